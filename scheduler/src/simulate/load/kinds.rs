//! Known kinds, and corrections of handwritten objects.
//!
//! Input: the name of a kind; the JSON of an object. Output: the kind's API group; the JSON with
//! the strings that typed objects require; the fields that typed objects do not have. Pure. Bounds:
//! `UNKNOWN_MAX` fields of an object.

use serde_json::Value;

use super::super::valid::flaws::cut;

/// Limit of unknown fields of one object.
const UNKNOWN_MAX: usize = 5;

pub(super) fn missing_type(text: &str) -> bool {
    text.contains("missing field `kind`") || text.contains("missing field `apiVersion`")
}

/// Returns the API group of a kind that a simulation uses.
pub(super) fn group_of(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "Node" | "Pod" | "Namespace" | "Service" | "ReplicationController" | "LimitRange" => "",
        "ReplicaSet" | "StatefulSet" => "apps",
        "PodDisruptionBudget" => "policy",
        "PriorityClass" => "scheduling.k8s.io",
        "RuntimeClass" => "node.k8s.io",
        _ => return None,
    })
}

/// Replaces numbers in place of quantities by their text, as an API server does.
pub(super) fn quantities_as_text(value: &mut Value, depth: usize) {
    const LISTS: [&str; 13] = [
        "requests",
        "limits",
        "allocatable",
        "capacity",
        "overhead",
        "podFixed",
        "default",
        "defaultRequest",
        "max",
        "min",
        "maxLimitRequestRatio",
        "allocatedResources",
        "sizeLimit",
    ];
    if depth > 32 {
        return;
    }
    match value {
        Value::Array(all) => all.iter_mut().for_each(|one| quantities_as_text(one, depth + 1)),
        Value::Object(fields) => {
            for (name, field) in fields {
                let is_list = LISTS.contains(&name.as_str());
                match field {
                    Value::Object(amounts) if is_list => {
                        amounts.values_mut().for_each(as_text);
                        amounts.values_mut().for_each(|one| quantities_as_text(one, depth + 1));
                    }
                    Value::Number(_) if name == "sizeLimit" => as_text(field),
                    other => quantities_as_text(other, depth + 1),
                }
            }
        }
        _ => {}
    }
}

fn as_text(value: &mut Value) {
    if value.is_number() {
        *value = Value::String(value.to_string());
    }
}

/// Returns the paths of fields that were not decoded, such as a field with a typo in its name.
pub(super) fn unknown_fields(written: &Value, read: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(written, read, &mut String::new(), &mut found);
    found
}

fn compare(written: &Value, read: &Value, path: &mut String, found: &mut Vec<String>) {
    let length = path.len();
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => {
            for (name, value) in written.iter().filter(|(_, value)| !value.is_null()) {
                if found.len() == UNKNOWN_MAX {
                    return;
                }
                path.push_str(if length == 0 { "" } else { "." });
                path.push_str(cut(name));
                match read.get(name) {
                    Some(read) => compare(value, read, path, found),
                    None => found.push(path.clone()),
                }
                path.truncate(length);
            }
        }
        (Value::Array(written), Value::Array(read)) => {
            for (at, (value, read)) in written.iter().zip(read).enumerate() {
                path.push_str(&format!("[{at}]"));
                compare(value, read, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_of_a_kind_are_reported_with_their_paths() {
        let written = json!({"spec": {"nodeSelecter": {"a": "b"}, "containers": [{"name": "c",
            "imagee": "i", "resources": {}}], "priority": null}, "metadata": {"labels": {"x": "y"}}});
        let pod: k8s_openapi::api::core::v1::PodSpec =
            serde_json::from_value(written["spec"].clone()).expect("a specification");
        let read = json!({"spec": pod, "metadata": {"labels": {"x": "y"}}});
        let found = unknown_fields(&written, &read);
        assert_eq!(found, ["spec.containers[0].imagee", "spec.nodeSelecter"]);
    }
}
