//! What the API server makes of a strategic merge patch.

use serde_json::{Value, json};

/// A strategic merge patch, as far as statuses need it: lists of conditions and addresses merge by
/// key, other lists are replaced, null removes.
pub fn merge(target: &mut Value, patch: &Value) {
    let (Some(target), Some(patch)) = (target.as_object_mut(), patch.as_object()) else {
        return;
    };
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        let merge_key = match &**key {
            "conditions" => Some("type"),
            "podIPs" | "hostIPs" => Some("ip"),
            _ => None,
        };
        match (merge_key, value) {
            (_, Value::Null) => drop(target.remove(key)),
            (Some(merge_key), Value::Array(items)) => {
                let list = target.entry(key.clone()).or_insert_with(|| json!([]));
                for item in items {
                    merge_item(list.as_array_mut().expect("a list"), merge_key, item);
                }
            }
            (None, Value::Object(_)) => {
                let entry = target.entry(key.clone()).or_insert_with(|| json!({}));
                merge(entry, value);
            }
            _ => drop(target.insert(key.clone(), value.clone())),
        }
    }
}

fn merge_item(list: &mut Vec<Value>, merge_key: &str, item: &Value) {
    let at = list.iter().position(|old| old[merge_key] == item[merge_key]);
    match (at, item["$patch"] == "delete") {
        (Some(at), true) => drop(list.remove(at)),
        (Some(at), false) => merge(&mut list[at], item),
        (None, true) => {}
        (None, false) => list.push(item.clone()),
    }
}
