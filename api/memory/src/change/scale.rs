//! The subresource `scale`: replicas of a workload without the rest of it.
//!
//! Input: a workload, or a `Scale` that a client wants. Output: a `Scale`, or the workload with its
//! replicas. Pure.
// k8s: pkg/registry/apps/deployment/storage/storage.go ScaleREST

use pintle_api_types::request::{Answer, ApiError, Target};
use serde_json::{Map, Value, json};

use crate::change::update::Wanted;
use crate::server::Server;
use crate::{errors, meta};

/// The field manager that owns the replicas of a scaled workload. The model stores no managed
/// fields, but a change of the owner is a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicasOwner {
    /// The subresource, which changed the number.
    Scale,
    /// The writer of the object, after the subresource split its fields into two entries.
    Split,
    /// No manager: the next update after a split keeps one entry of the two.
    Unowned,
}

/// The owner after an update: an update without other effect that changes it is a change.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/managedfields/scalehandler.go ToParent
pub(crate) fn owner_after(
    sub: &str,
    owner: Option<ReplicasOwner>,
    is_same: bool,
    changes_replicas: bool,
) -> Option<ReplicasOwner> {
    match (sub, owner) {
        ("scale", _) if !is_same => Some(ReplicasOwner::Scale),
        ("scale", None) => Some(ReplicasOwner::Split),
        ("", _) if changes_replicas => None,
        (_, Some(ReplicasOwner::Split)) => Some(ReplicasOwner::Unowned),
        (_, owner) => owner,
    }
}

impl Server {
    pub(crate) fn read_scale(&self, target: &Target) -> Answer {
        self.existing(target).map(|workload| of(workload))
    }

    /// Changes the replicas to those of the `Scale` that `wanted` makes of the current one.
    pub(crate) fn update_scale(&mut self, target: &Target, wanted: &Wanted<'_>) -> Answer {
        let updated = self.update(target, &|workload| {
            let scale = wanted(&of(workload))?;
            check_uid(target, &scale, workload)?;
            let mut workload = workload.clone();
            let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
            if replicas < 0 {
                let why = "must be greater than or equal to 0";
                let problem =
                    errors::FieldProblem::invalid("spec.replicas", &replicas.to_string(), why);
                return Err(errors::invalid("Scale.autoscaling", target.key.name(), &[problem]));
            }
            meta::child(&mut workload, "spec").insert("replicas".to_owned(), replicas.into());
            meta::copy(&mut workload, "resourceVersion", &scale);
            Ok(workload)
        })?;
        Ok(of(&updated))
    }
}

fn check_uid(target: &Target, scale: &Value, workload: &Value) -> Result<(), ApiError> {
    let (asked, stored) = (meta::text(scale, "uid"), meta::text(workload, "uid"));
    if asked.is_empty() || asked == stored {
        return Ok(());
    }
    let resource = match target.kind.group {
        "" => format!("{}/scale", target.kind.plural),
        group => format!("{}/scale.{group}", target.kind.plural),
    };
    let why =
        format!("Precondition failed: UID in precondition: {asked}, UID in object meta: {stored}");
    Err(errors::conflict(&resource, target.key.name(), &why))
}

/// The `Scale` of a workload.
fn of(workload: &Value) -> Value {
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        metadata.insert(field.to_owned(), workload["metadata"][field].clone());
    }
    let mut scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {}, "status": {"replicas": workload["status"]["replicas"].as_i64().unwrap_or(0)}});
    if let Some(replicas @ 1..) = workload["spec"]["replicas"].as_i64() {
        scale["spec"]["replicas"] = replicas.into();
    }
    let selector = selector_text(&workload["spec"]["selector"]);
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    scale
}

/// A selector as text, as `labels.Selector` prints it: sorted by key.
// k8s: staging/src/k8s.io/apimachinery/pkg/labels/selector.go String
fn selector_text(selector: &Value) -> String {
    let is_bare =
        selector.get("matchLabels").is_none() && selector.get("matchExpressions").is_none();
    let labels = meta::texts(if is_bare { selector } else { &selector["matchLabels"] });
    let mut parts: Vec<(String, String)> =
        labels.into_iter().map(|(key, value)| (key.clone(), format!("{key}={value}"))).collect();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default().to_owned();
        let values = expression["values"].as_array().into_iter().flatten();
        let mut values: Vec<&str> = values.filter_map(Value::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        let text = match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.clone(),
            _ => format!("!{key}"),
        };
        parts.push((key, text));
    }
    parts.sort();
    parts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}
