//! The patch that turns one Node object into another: a strategic merge patch.
//!
//! Input: both objects. Output: the patch for the status subresource, or `None` without a
//! difference. Pure. Metadata may be part of it; spec never is.
// k8s: staging/src/k8s.io/component-helpers/node/util/status.go PatchNodeStatus

use k8s_openapi::api::core::v1::Node;
use serde_json::{Map, Value, json};

/// Lists that are merged by a key, by their path; all others are replaced as a whole.
const MERGED: [(&str, &str); 2] = [("status.conditions", "type"), ("status.addresses", "type")];

/// The patch from `old` to `new`.
pub fn status(old: &Node, new: &Node) -> Option<Value> {
    let (before, mut after) = (value(old), value(new));
    // The list is declared as merged by type, but may hold a type twice: it is replaced.
    let addresses = |node: &Value| node["status"]["addresses"].as_array().cloned();
    let (had, has) = (addresses(&before), addresses(&after));
    let replace = had.as_ref().is_some_and(|had| !had.is_empty()) && had != has;
    if replace {
        after["status"]["addresses"] = Value::from(had.unwrap_or_default());
    }
    let mut patch = diff(&before, &after, "").unwrap_or_else(|| json!({}));
    if replace {
        let mut list = has.unwrap_or_default();
        list.push(json!({"$patch": "replace"}));
        patch["status"]["addresses"] = Value::from(list);
    }
    patch.as_object().is_some_and(|fields| !fields.is_empty()).then_some(patch)
}

fn value(node: &Node) -> Value {
    let metadata = json!({
        "labels": node.metadata.labels,
        "annotations": node.metadata.annotations,
    });
    let status = serde_json::to_value(&node.status).unwrap_or_default();
    let mut all = json!({"metadata": metadata, "status": status});
    drop_nulls(&mut all);
    all
}

fn drop_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, value| !value.is_null());
        fields.values_mut().for_each(drop_nulls);
    }
}

/// The patch that turns `old` into `new`; `None` when they are equal.
fn diff(old: &Value, new: &Value, path: &str) -> Option<Value> {
    match (old, new) {
        _ if old == new => None,
        (Value::Object(old), Value::Object(new)) => Some(Value::Object(fields(old, new, path))),
        _ => Some(new.clone()),
    }
}

fn fields(old: &Map<String, Value>, new: &Map<String, Value>, path: &str) -> Map<String, Value> {
    let mut patch = Map::new();
    for (field, after) in new {
        let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
        let key = MERGED.iter().find(|(at, _)| *at == path).map(|(_, key)| *key);
        let before = old.get(field).unwrap_or(&Value::Null);
        match (key, after) {
            (Some(key), Value::Array(after)) if before != &Value::from(after.clone()) => {
                let before = before.as_array().map(Vec::as_slice).unwrap_or_default();
                let order: Vec<Value> = after.iter().map(|item| json!({key: item[key]})).collect();
                patch.insert(format!("$setElementOrder/{field}"), Value::from(order));
                patch.insert(field.clone(), Value::from(items(before, after, key)));
            }
            _ => {
                if let Some(said) = diff(before, after, &path) {
                    patch.insert(field.clone(), said);
                }
            }
        }
    }
    for field in old.keys().filter(|field| !new.contains_key(*field)) {
        patch.insert(field.clone(), Value::Null);
    }
    patch
}

/// Items of a merged list: changed ones with their changes, new ones in full, removed ones by name.
fn items(before: &[Value], after: &[Value], key: &str) -> Vec<Value> {
    let same = |list: &[Value], item: &Value| list.iter().find(|i| i[key] == item[key]).cloned();
    let changed = after.iter().filter_map(|item| match same(before, item) {
        None => Some(item.clone()),
        Some(old) => {
            let mut said = diff(&old, item, "")?;
            said[key] = item[key].clone();
            Some(said)
        }
    });
    let gone = before.iter().filter(|item| same(after, item).is_none());
    let gone = gone.map(|item| json!({"$patch": "delete", key: item[key]}));
    changed.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(status: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"labels": {"a": "1"}}, "status": status}))
            .expect("a node")
    }

    fn condition(kind: &str, beat: &str) -> Value {
        json!({"type": kind, "status": "True", "lastHeartbeatTime": beat})
    }

    #[test]
    fn heartbeat_patch_contains_only_times_and_order() {
        let (one, two) = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z");
        let old = node(json!({"conditions": [condition("A", one), condition("B", one)]}));
        let new = node(json!({"conditions": [condition("A", two), condition("B", one)]}));
        let want = json!({"status": {
            "$setElementOrder/conditions": [{"type": "A"}, {"type": "B"}],
            "conditions": [{"type": "A", "lastHeartbeatTime": two}],
        }});
        assert_eq!(status(&old, &new), Some(want));
        assert_eq!(status(&new, &new), None);
    }

    #[test]
    fn addresses_that_changed_are_replaced() {
        let list = |ip: &str| json!({"addresses": [{"type": "InternalIP", "address": ip}]});
        let patch = status(&node(list("192.0.2.1")), &node(list("192.0.2.2"))).expect("a patch");
        let want = json!([{"type": "InternalIP", "address": "192.0.2.2"}, {"$patch": "replace"}]);
        assert_eq!(patch, json!({"status": {"addresses": want}}));
        let first = status(&node(json!({})), &node(list("192.0.2.1"))).expect("a patch");
        assert_eq!(first["status"]["$setElementOrder/addresses"], json!([{"type": "InternalIP"}]));
    }

    #[test]
    fn removed_fields_are_null_and_removed_conditions_are_deleted_in_a_patch() {
        let mut new = node(json!({}));
        new.metadata.labels = Some([("b".to_owned(), "2".to_owned())].into());
        let patch = status(&node(json!({})), &new).expect("a patch");
        assert_eq!(patch, json!({"metadata": {"labels": {"a": null, "b": "2"}}}));
        let old = node(json!({"capacity": {"x/y": "1", "cpu": "2"}, "images": [{"names": ["a"]}]}));
        let new = node(json!({"capacity": {"cpu": "2"}}));
        let patch = status(&old, &new).expect("a patch");
        assert_eq!(patch, json!({"status": {"capacity": {"x/y": null}, "images": null}}));
        let old = node(json!({"conditions": [condition("A", "2026-01-01T00:00:01Z")]}));
        let patch = status(&old, &node(json!({"conditions": []}))).expect("a patch");
        let gone = json!([{"$patch": "delete", "type": "A"}]);
        assert_eq!(patch["status"]["conditions"], gone);
    }
}
