//! The checks of the real server that controllers and their tests meet.
//!
//! Input: an object, and the stored one for updates. Output: nothing, or the 422 of the server.
//! Most of upstream's validation is left out: simulated clients write valid objects. Pure.

use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::ApiError;
use serde_json::Value;

use crate::create::missing_name;
use crate::errors::{self, FieldProblem};
use crate::meta;

pub(crate) fn created(kind: Kind, object: &Value) -> Result<(), ApiError> {
    let mut problems: Vec<FieldProblem> = missing_name(object).into_iter().collect();
    problems.extend(template_labels(kind, object));
    answer(kind, object, &problems)
}

pub(crate) fn updated(kind: Kind, object: &Value, old: &Value) -> Result<(), ApiError> {
    let mut problems = metadata(object, old);
    problems.extend(template_labels(kind, object));
    problems.extend(immutable_fields(kind, object, old));
    problems.extend(pod_spec(kind, object, old));
    answer(kind, object, &problems)
}

fn answer(kind: Kind, object: &Value, problems: &[FieldProblem]) -> Result<(), ApiError> {
    match problems {
        [] => Ok(()),
        problems => Err(errors::invalid(&errors::kind_name(kind), meta::name(object), problems)),
    }
}

// k8s: staging/src/k8s.io/apimachinery/pkg/api/validation/objectmeta.go
fn metadata(object: &Value, old: &Value) -> Vec<FieldProblem> {
    let mut problems = Vec::new();
    if meta::is_deleting(old) {
        let had = meta::finalizers(old);
        let added: Vec<String> =
            meta::finalizers(object).into_iter().filter(|one| !had.contains(one)).collect();
        if !added.is_empty() {
            let list = added.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(", ");
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new \
                 finalizers []string{{{list}}}"
            );
            problems.push(FieldProblem::forbidden("metadata.finalizers", &why));
        }
    }
    for field in ["name", "namespace", "uid"] {
        if meta::text(object, field) != meta::text(old, field) {
            let value = format!("{:?}", meta::text(object, field));
            problems.push(FieldProblem::invalid(
                &format!("metadata.{field}"),
                &value,
                "field is immutable",
            ));
        }
    }
    problems
}

/// A workload selects its own template.
fn template_labels(kind: Kind, object: &Value) -> Option<FieldProblem> {
    let is_checked =
        [kind::REPLICA_SETS, kind::DEPLOYMENTS, kind::STATEFUL_SETS, kind::DAEMON_SETS]
            .contains(&kind);
    let labels = meta::labels(&object["spec"]["template"]);
    let selector = meta::texts(&object["spec"]["selector"]["matchLabels"]);
    let matches = selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    (is_checked && !matches).then(|| {
        let text = serde_json::to_string(&object["spec"]["template"]["metadata"]["labels"])
            .unwrap_or_default();
        let why = "`selector` does not match template `labels`";
        FieldProblem::invalid("spec.template.metadata.labels", &text, why)
    })
}

/// Of a pod's spec nearly nothing changes; upstream's sentence ends with a diff, ours does not.
// k8s: pkg/apis/core/validation/validation.go ValidatePodUpdate
fn pod_spec(kind: Kind, object: &Value, old: &Value) -> Option<FieldProblem> {
    let fixed = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for field in ["activeDeadlineSeconds", "tolerations"] {
            spec[field] = Value::Null;
        }
        for list in ["containers", "initContainers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                container["image"] = Value::Null;
            }
        }
        spec
    };
    let is_changed = kind == kind::PODS && fixed(object) != fixed(old);
    is_changed.then(|| {
        let why = "pod updates may not change fields other than `spec.containers[*].image`,\
                   `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` \
                   (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` \
                   (allow it to be set to 1 if it was previously negative)";
        FieldProblem::forbidden("spec", why)
    })
}

fn immutable_fields(kind: Kind, object: &Value, old: &Value) -> Vec<FieldProblem> {
    let fields: &[&str] = match (kind.group, kind.plural) {
        ("apps", "replicasets") | ("apps", "deployments") | ("apps", "daemonsets") => &["selector"],
        ("batch", "jobs") => &["completions", "selector", "completionMode"],
        _ => &[],
    };
    let changed = fields.iter().filter(|field| object["spec"][**field] != old["spec"][**field]);
    changed
        .map(|field| {
            let value = object["spec"][*field].to_string();
            FieldProblem::invalid(&format!("spec.{field}"), &value, "field is immutable")
        })
        .collect()
}
