//! Patches that controllers and clients send, and those that are refused.

use serde_json::{Value, json};

use super::*;

fn schema(version: &str, kind: &str) -> Schema {
    Schema::of_kind(version, kind).expect("the kind is built in")
}

#[track_caller]
fn assert_applied(original: Value, patch: Value, expected: Value) {
    assert_eq!(apply(&original, &patch, schema("v1", "Pod")), Ok(expected));
}

fn refusal(original: Value, patch: Value) -> PatchError {
    let result = apply(&original, &patch, schema("v1", "Pod"));
    result.expect_err("the patch is refused")
}

#[test]
fn items_merge_by_key_and_new_items_follow() {
    assert_applied(
        json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "r"}]}}),
        json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "reason": null}, {"type": "DisruptionTarget"},
        ]}}),
        json!({"status": {"conditions": [
            {"type": "Ready", "status": "True"}, {"type": "DisruptionTarget"},
        ]}}),
    );
}

#[test]
fn owner_reference_is_deleted_by_its_uid() {
    assert_applied(
        json!({"metadata": {"ownerReferences": [{"uid": "1"}, {"uid": "2", "name": "b"}]}}),
        json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": "1"}]}}),
        json!({"metadata": {"ownerReferences": [{"uid": "2", "name": "b"}]}}),
    );
}

#[test]
fn lists_without_a_strategy_are_replaced() {
    assert_applied(
        json!({"spec": {"tolerations": [{"key": "a"}], "nodeSelector": {"a": "1", "b": "2"}}}),
        json!({"spec": {"tolerations": [{"key": "b"}], "nodeSelector": {"a": null, "c": "3"}}}),
        json!({"spec": {"tolerations": [{"key": "b"}], "nodeSelector": {"b": "2", "c": "3"}}}),
    );
}

#[test]
fn retained_keys_clear_the_other_source_of_a_volume() {
    assert_applied(
        json!({"spec": {"volumes": [{"name": "a", "emptyDir": {}}]}}),
        json!({"spec": {"volumes": [
            {"$retainKeys": ["name", "hostPath"], "name": "a", "hostPath": {"path": "/"}},
        ]}}),
        json!({"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}}),
    );
}

#[test]
fn scalars_are_added_deleted_and_ordered() {
    let original = json!({"metadata": {"finalizers": ["a", "b", "c"]}});
    assert_applied(
        original.clone(),
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"]}}),
        json!({"metadata": {"finalizers": ["a", "c"]}}),
    );
    assert_applied(
        original,
        json!({"metadata": {
            "$setElementOrder/finalizers": ["d", "a", "b", "c"], "finalizers": ["d"],
        }}),
        json!({"metadata": {"finalizers": ["d", "a", "b", "c"]}}),
    );
}

#[test]
fn a_revision_replaces_the_template_of_its_set() {
    let set = json!({"metadata": {"name": "db"}, "spec": {
        "replicas": 3, "template": {"spec": {"containers": [{"name": "old"}], "hostPID": true}},
    }});
    let data = json!({"spec": {"template": {
        "$patch": "replace", "spec": {"containers": [{"name": "new"}]},
    }}});
    let expected = json!({"metadata": {"name": "db"}, "spec": {
        "replicas": 3, "template": {"spec": {"containers": [{"name": "new"}]}},
    }});
    assert_eq!(apply(&set, &data, schema("apps/v1", "StatefulSet")), Ok(expected));
}

#[test]
fn bad_patches_are_refused() {
    let pod = json!({"spec": {"containers": [{"name": "a"}], "foo": {}}});
    let nameless = json!({"spec": {"containers": [{"image": "b"}]}});
    assert_eq!(refusal(pod.clone(), nameless), PatchError::NoMergeKey { key: "name".to_owned() });
    let unknown = json!({"spec": {"foo": {"bar": 1}}});
    assert!(matches!(refusal(pod.clone(), unknown), PatchError::UnknownField { .. }));
    let directive = json!({"spec": {"$patch": "merge"}});
    assert!(matches!(refusal(pod.clone(), directive), PatchError::BadDirective { .. }));
    let unordered = json!({"spec": {
        "$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "b"}],
    }});
    assert_eq!(refusal(pod.clone(), unordered), PatchError::BadOrder);
    let unnamed = json!({"spec": {"$retainKeys": ["volumes"], "hostPID": true}});
    assert_eq!(refusal(pod.clone(), unnamed), PatchError::BadRetainKeys);
    assert_eq!(refusal(pod, json!([])), PatchError::NotAnObject);
}

#[test]
fn two_way_patch_between_pods_contains_only_the_changes() {
    let original = json!({
        "metadata": {"labels": {"a": "1", "b": "2"}, "finalizers": ["x", "y"]},
        "spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b"}], "volumes": [
            {"name": "v", "emptyDir": {}},
        ]},
    });
    let modified = json!({
        "metadata": {"labels": {"a": "1"}, "finalizers": ["y"]},
        "spec": {"containers": [{"name": "a", "image": "j"}], "volumes": [
            {"name": "v", "hostPath": {"path": "/"}},
        ]},
    });
    let pod = schema("v1", "Pod");
    let patch = two_way_patch(&original, &modified, pod).expect("items have keys");
    let expected = json!({
        "metadata": {
            "labels": {"b": null}, "$deleteFromPrimitiveList/finalizers": ["x"],
            "$setElementOrder/finalizers": ["y"],
        },
        "spec": {
            "$setElementOrder/containers": [{"name": "a"}],
            "containers": [{"name": "a", "image": "j"}, {"$patch": "delete", "name": "b"}],
            "$setElementOrder/volumes": [{"name": "v"}],
            "volumes": [{
                "$retainKeys": ["hostPath", "name"], "emptyDir": null, "name": "v",
                "hostPath": {"path": "/"},
            }],
        },
    });
    assert_eq!(patch, expected);
    assert_eq!(apply(&original, &patch, pod), Ok(modified));
    assert_eq!(two_way_patch(&original, &original, pod), Ok(json!({})));
}
