//! Updates of subresources that are a part of the object: status, finalize, approval.
//!
//! Input: the wanted and the stored object. Output: the wanted one with everything restored that
//! such an update may not change. Most kinds let a status update change metadata, so a client that
//! sends an object without its annotations erases them, as it does in the real server. Pure.
// k8s: pkg/registry/*/*/strategy.go PrepareForUpdate of the status strategies

use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::ApiError;
use serde_json::Value;

use crate::rules::{KindRules, StatusKeeps};
use crate::{errors, meta};

/// Metadata that only an update of the object itself may change.
// k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/helpers.go ResetObjectMetaForStatus
const OWN_METADATA: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];

/// True if a kind has such a subresource.
pub(crate) fn exists(kind: Kind, rules: &KindRules, sub: &str) -> bool {
    match sub {
        "" => true,
        "status" => rules.status != StatusKeeps::None,
        "scale" => rules.has_scale,
        "finalize" => kind == kind::NAMESPACES,
        "approval" => kind.plural == "certificatesigningrequests",
        _ => false,
    }
}

/// Restores what an update of a subresource may not change.
pub(crate) fn prepare(
    kind: Kind,
    rules: &KindRules,
    sub: &str,
    new: &mut Value,
    old: &Value,
) -> Result<(), ApiError> {
    meta::copy(new, "generation", old);
    match sub {
        "finalize" => meta::copy_field(new, "status", old),
        "approval" => {
            let conditions = new["status"]["conditions"].clone();
            let version = new["metadata"]["resourceVersion"].clone();
            *new = old.clone();
            meta::set(new, "resourceVersion", version);
            meta::child(new, "status").insert("conditions".to_owned(), conditions);
        }
        "status" => prepare_status(kind, rules, new, old),
        _ => return Err(errors::no_such_path()),
    }
    Ok(())
}

fn prepare_status(kind: Kind, rules: &KindRules, new: &mut Value, old: &Value) {
    match rules.status {
        StatusKeeps::None | StatusKeeps::Spec => meta::copy_field(new, "spec", old),
        StatusKeeps::Fields(fields) => {
            meta::copy_field(new, "spec", old);
            fields.iter().for_each(|field| meta::copy(new, field, old));
        }
        StatusKeeps::Everything => {
            let status = new["status"].clone();
            let wanted = std::mem::replace(new, old.clone());
            meta::copy_field(new, "status", &wanted);
            debug_assert_eq!(status, new["status"], "only the status is taken");
            OWN_METADATA.iter().for_each(|field| meta::copy(new, field, old));
        }
    }
    match (kind.group, kind.plural) {
        ("", "pods") => pod(new, old),
        ("", "persistentvolumes") => volume(new, old),
        _ => {}
    }
}

/// An old kubelet may leave out what later releases added to the status.
// k8s: pkg/registry/core/pod/strategy.go podStatusStrategy, preserveOldObservedGeneration
fn pod(new: &mut Value, old: &Value) {
    let old_status = &old["status"];
    let status = meta::child(new, "status");
    for field in ["qosClass", "observedGeneration"] {
        if !old_status[field].is_null() {
            status.entry(field).or_insert_with(|| old_status[field].clone());
        }
    }
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let same = |other: &&Value| other["type"] == condition["type"];
        let mut others = old_status["conditions"].as_array().into_iter().flatten();
        let generation = others.find(same).map(|other| other["observedGeneration"].clone());
        let is_unset = condition["observedGeneration"].as_i64().unwrap_or(0) == 0;
        if let Some(generation) = generation.filter(|generation| is_unset && !generation.is_null())
        {
            condition["observedGeneration"] = generation;
        }
    }
}

/// The time of the phase changes with the phase.
fn volume(new: &mut Value, old: &Value) {
    let is_same = new["status"]["phase"] == old["status"]["phase"];
    if is_same && new["status"]["lastPhaseTransitionTime"].is_null() {
        let time = old["status"]["lastPhaseTransitionTime"].clone();
        meta::child(new, "status").insert("lastPhaseTransitionTime".to_owned(), time);
    }
}
