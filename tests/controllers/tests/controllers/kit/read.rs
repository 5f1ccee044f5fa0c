//! Fields of objects as values that can be compared.

use serde_json::{Value, json};

/// The name.
pub fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// The UID.
pub fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// Returns whether it is being deleted.
pub fn is_terminating(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// A label's value; `null` without it.
pub fn label(object: &Value, key: &str) -> Value {
    object["metadata"]["labels"][key].clone()
}

/// An annotation's value; `null` without it.
pub fn annotation(object: &Value, key: &str) -> Value {
    object["metadata"]["annotations"][key].clone()
}

/// The image of a pod's or a template's first container.
pub fn image(object: &Value) -> String {
    object["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned()
}

/// The owner that controls it; `null` without one.
pub fn controller(object: &Value) -> Value {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let controller = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    controller.cloned().unwrap_or_default()
}

/// These fields of a condition; `null` without it.
pub fn condition(object: &Value, kind: &str, fields: &[&str]) -> Value {
    let all = object["status"]["conditions"].as_array();
    let found = all.into_iter().flatten().find(|condition| condition["type"] == kind);
    found.map_or(Value::Null, |found| fields.iter().map(|field| found[field].clone()).collect())
}

/// A number of the status, which is absent where it is 0.
pub fn count(object: &Value, field: &str) -> i64 {
    object["status"][field].as_i64().unwrap_or(0)
}

/// A reference to the object as an owner.
pub fn owner_reference(object: &Value, blocks: bool) -> Value {
    let mut reference = json!({
        "apiVersion": object["apiVersion"], "kind": object["kind"],
        "name": name(object), "uid": uid(object),
    });
    if blocks {
        reference["blockOwnerDeletion"] = true.into();
    }
    reference
}
