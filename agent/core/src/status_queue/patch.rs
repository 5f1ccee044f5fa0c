//! `patch`: the strategic merge patch that makes one status of another.
//!
//! Pure. Input: the status that the API server has and the one it should have. Output: the body of
//! a PATCH, which names the pod's uid, so that it never hits a later pod of that name; `None` when
//! nothing differs. Lists that the API merges by key (conditions, addresses) are patched item by
//! item, so that items written by others stay; other lists are replaced.
// k8s: pkg/util/pod/pod.go preparePatchBytesForPodStatus

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Map, Value, json};

/// Lists of a status that are merged, with the field that identifies their items.
// k8s: staging/src/k8s.io/api/core/v1/types.go PodStatus, the patchMergeKey tags
const MERGED: [(&str, &str); 4] = [
    ("conditions", "type"),
    ("hostIPs", "ip"),
    ("podIPs", "ip"),
    ("resourceClaimStatuses", "name"),
];

/// The body that turns `old` into `new` on the pod with this uid.
pub fn patch(uid: &str, old: &PodStatus, new: &PodStatus) -> Option<Value> {
    if old == new {
        return None;
    }
    let (old, new) = (as_object(old), as_object(new));
    let status = object_patch(&old, &new);
    (!status.is_empty()).then(|| json!({"metadata": {"uid": uid}, "status": status}))
}

fn as_object(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        // A status has string keys only, so it always is an object.
        _ => Map::new(),
    }
}

/// An absent value and an empty object are the same for an optional field.
fn is_absent_or_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(fields)) => fields.values().all(|field| is_absent_or_empty(Some(field))),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

/// Equality that does not see the difference between a missing and an empty field.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let covers = |a: &Map<String, Value>, b: &Map<String, Value>| {
                a.iter().all(|(key, value)| match b.get(key) {
                    Some(other) => same(value, other),
                    None => is_absent_or_empty(Some(value)),
                })
            };
            covers(a, b) && covers(b, a)
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        _ => a == b || (is_absent_or_empty(Some(a)) && is_absent_or_empty(Some(b))),
    }
}

fn object_patch(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for (key, value) in new {
        let before = old.get(key);
        if before.is_some_and(|before| same(before, value)) {
            continue;
        }
        let merge_key = MERGED.iter().find(|(list, _)| list == key).map(|(_, by)| *by);
        match (before, value, merge_key) {
            (None, ..) => drop(patch.insert(key.clone(), value.clone())),
            (Some(Value::Array(before)), Value::Array(now), Some(by)) => {
                list_patch(key, by, ListChange { old: before, new: now }, &mut patch);
            }
            (Some(Value::Object(before)), Value::Object(now), _) => {
                let inner = object_patch(before, now);
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            _ => drop(patch.insert(key.clone(), value.clone())),
        }
    }
    for (key, value) in old {
        if !new.contains_key(key) && !is_absent_or_empty(Some(value)) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    patch
}

struct ListChange<'a> {
    old: &'a [Value],
    new: &'a [Value],
}

/// Items that are new or changed, removals, and the order that the list should have.
fn list_patch(name: &str, by: &str, change: ListChange<'_>, patch: &mut Map<String, Value>) {
    let ListChange { old, new } = change;
    let key_of = |item: &Value| item.get(by).cloned().unwrap_or_default();
    let mut items = Vec::new();
    for item in new {
        let before = old.iter().find(|before| key_of(before) == key_of(item));
        match (before, item) {
            (Some(Value::Object(before)), Value::Object(now)) => {
                let mut changed = object_patch(before, now);
                if !changed.is_empty() {
                    changed.insert(by.to_owned(), key_of(item));
                    items.push(Value::Object(changed));
                }
            }
            _ => items.push(item.clone()),
        }
    }
    for item in old {
        if !new.iter().any(|kept| key_of(kept) == key_of(item)) {
            items.push(json!({"$patch": "delete", by: key_of(item)}));
        }
    }
    // An order alone is not worth a write: others may like another one.
    if items.is_empty() {
        return;
    }
    let order = new.iter().map(|item| json!({by: key_of(item)})).collect();
    patch.insert(format!("$setElementOrder/{name}"), Value::Array(order));
    patch.insert(name.to_owned(), Value::Array(items));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status(value: Value) -> PodStatus {
        serde_json::from_value(value).expect("a status")
    }

    fn patched(old: Value, new: Value) -> Option<Value> {
        patch("u", &status(old), &status(new)).map(|mut body| body["status"].take())
    }

    #[test]
    fn equal_status_needs_no_patch() {
        let same = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        assert_eq!(patched(same.clone(), same), None);
        let empty = json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "lastState": {}, "resources": {}}], "resources": {}});
        let absent = json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "",
            "ready": false, "restartCount": 0}]});
        assert_eq!(patched(empty, absent), None);
    }

    #[test]
    fn a_first_status_is_written_whole_and_with_the_pods_uid() {
        let new = json!({"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]});
        let body = patch("u-1", &PodStatus::default(), &status(new.clone()));
        assert_eq!(body, Some(json!({"metadata": {"uid": "u-1"}, "status": new})));
    }

    #[test]
    fn condition_is_patched_by_its_type_with_the_element_order() {
        let ready = |status: &str| json!({"type": "Ready", "status": status, "reason": "No"});
        let old = json!({"conditions": [ready("False"), {"type": "foreign", "status": "True"}]});
        let new = json!({"conditions": [{"type": "foreign", "status": "True"},
            {"type": "Ready", "status": "True"}]});
        let want = json!({
            "$setElementOrder/conditions": [{"type": "foreign"}, {"type": "Ready"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": null}]});
        assert_eq!(patched(old, new), Some(want));
    }

    #[test]
    fn removed_field_is_nulled_and_removed_list_item_is_deleted() {
        let old = json!({"message": "m", "podIPs": [{"ip": "1"}, {"ip": "2"}]});
        let new = json!({"podIPs": [{"ip": "2"}]});
        let want = json!({"message": null, "$setElementOrder/podIPs": [{"ip": "2"}],
            "podIPs": [{"$patch": "delete", "ip": "1"}]});
        assert_eq!(patched(old, new), Some(want));
    }

    /// The API server's result of applying a patch.
    fn applied(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
        for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
            let by = MERGED.iter().find(|(list, _)| list == key).map(|(_, by)| *by);
            match (value, by) {
                (Value::Null, _) => drop(target.remove(key)),
                (Value::Array(items), Some(by)) => {
                    let list = target.entry(key.clone()).or_insert_with(|| json!([]));
                    apply_items(list.as_array_mut().expect("a list"), by, items);
                }
                (Value::Object(inner), _) if target.get(key).is_some_and(Value::is_object) => {
                    let old = target.get_mut(key).and_then(Value::as_object_mut);
                    applied(old.expect("an object"), inner);
                }
                _ => drop(target.insert(key.clone(), value.clone())),
            }
            let order = patch.get(&format!("$setElementOrder/{key}")).and_then(Value::as_array);
            if let (Some(order), Some(by)) = (order, by) {
                let list = target.get_mut(key).and_then(Value::as_array_mut).expect("a list");
                list.sort_by_key(|item| order.iter().position(|at| at[by] == item[by]));
            }
        }
    }

    fn apply_items(list: &mut Vec<Value>, by: &str, items: &[Value]) {
        for item in items {
            let at = list.iter().position(|old| old[by] == item[by]);
            match (at, item.get("$patch").is_some()) {
                (Some(at), true) => drop(list.remove(at)),
                (Some(at), false) => {
                    let old = list[at].as_object_mut().expect("an object");
                    applied(old, item.as_object().expect("an object"));
                }
                (None, _) => list.push(item.clone()),
            }
        }
    }

    fn any_status() -> impl Strategy<Value = PodStatus> {
        let text = || prop::option::of("[ab]");
        let condition = ("[PQR]", "[TF]", text(), text()).prop_map(|(type_, status, reason, message)| {
            json!({"type": type_, "status": status, "reason": reason, "message": message})
        });
        let conditions = prop::collection::vec(condition, 0..4).prop_map(|mut all| {
            all.sort_by_key(|c| c["type"].to_string());
            all.dedup_by_key(|c| c["type"].to_string());
            all
        });
        let ips = prop::collection::btree_set("[123]", 0..3);
        let container = ("[cd]", any::<bool>(), 0..3).prop_map(|(name, ready, count)| {
            json!({"name": name, "ready": ready, "restartCount": count, "image": "", "imageID": ""})
        });
        (text(), conditions, ips, prop::collection::vec(container, 0..3), text()).prop_map(
            |(phase, conditions, ips, containers, limit)| {
                let ips: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
                let resources = limit.map(|limit| json!({"limits": {"cpu": limit}}));
                status(json!({"phase": phase, "conditions": conditions, "podIPs": ips,
                    "containerStatuses": containers, "resources": resources}))
            },
        )
    }

    proptest! {
        #[test]
        fn applied_patch_turns_the_old_status_into_the_new_status(old in any_status(), new in any_status()) {
            let mut target = as_object(&old);
            if let Some(body) = patch("u", &old, &new) {
                applied(&mut target, body["status"].as_object().expect("an object"));
            }
            let (got, want) = (Value::Object(target), Value::Object(as_object(&new)));
            prop_assert!(same(&got, &want), "{got} instead of {want}");
        }
    }
}
