//! Owners of claims by the cases of upstream's tables.
// k8s: pkg/controller/statefulset/stateful_set_utils_test.go

use pintle_controllers_core::kinds::{PersistentVolumeClaim, StatefulSet};
use serde_json::{Value, json};

use super::super::claims::{ClaimUser, OwnedClaim};

/// A set named `set` with one replica, and its policies.
fn set(when_scaled: &str, when_deleted: &str) -> StatefulSet {
    let policy = json!({"whenScaled": when_scaled, "whenDeleted": when_deleted});
    let set = json!({"metadata": {"name": "set", "uid": "set-uid"},
        "spec": {"replicas": 1, "persistentVolumeClaimRetentionPolicy": policy}});
    serde_json::from_value(set).expect("a set")
}

fn owner(kind: &str, name: &str, uid: &str, is_controller: bool) -> Value {
    let api_version = if kind == "StatefulSet" { "apps/v1" } else { "v1" };
    json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid,
        "controller": is_controller})
}

/// The decisions for a claim with these owners, for a pod of this name.
struct Decided {
    is_up_to_date: bool,
    is_foreign: bool,
    /// UIDs of the owners afterwards.
    owners: Vec<String>,
}

fn decide(set: &StatefulSet, pod: &str, owners: &[Value]) -> Decided {
    let mut whole = json!({"metadata": {"name": "c", "ownerReferences": owners}});
    let claim: PersistentVolumeClaim = serde_json::from_value(whole.clone()).expect("a claim");
    let owned = OwnedClaim { set, pod: ClaimUser { name: pod, uid: "pod-uid" }, claim: &claim };
    owned.set_owners(&mut whole);
    let after = whole["metadata"]["ownerReferences"].as_array().expect("owners");
    Decided {
        is_up_to_date: owned.is_up_to_date(),
        is_foreign: owned.has_foreign_controller(),
        owners: after.iter().map(|one| one["uid"].as_str().unwrap_or_default().into()).collect(),
    }
}

const POLICIES: [(&str, &str); 4] =
    [("Retain", "Retain"), ("Retain", "Delete"), ("Delete", "Retain"), ("Delete", "Delete")];

#[test]
fn claim_owners_follow_the_retention_policy_from_any_previous_owners() {
    for (when_scaled, when_deleted) in POLICIES {
        let set = set(when_scaled, when_deleted);
        for (pod, is_condemned) in [("set-0", false), ("set-1", true)] {
            let needs_pod = when_scaled == "Delete" && is_condemned;
            let needs_set = when_deleted == "Delete" && !needs_pod;
            for state in 0..8 {
                let (has_pod, has_set, has_other) = (state & 1 > 0, state & 2 > 0, state & 4 > 0);
                let pod_owner = has_pod.then(|| owner("Pod", pod, "pod-uid", true));
                let set_owner = has_set.then(|| owner("StatefulSet", "set", "set-uid", true));
                let other = has_other.then(|| owner("Other", "o", "other", false));
                let owners: Vec<_> = pod_owner.into_iter().chain(set_owner).chain(other).collect();
                let decided = decide(&set, pod, &owners);
                let case = format!("{when_scaled} {when_deleted} {pod} {owners:?}");
                let is_right = has_pod == needs_pod && has_set == needs_set;
                assert_eq!(decided.is_up_to_date, is_right, "{case}");
                let mut wanted = Vec::new();
                wanted.extend(has_other.then_some("other"));
                wanted.extend(needs_pod.then_some("pod-uid"));
                wanted.extend(needs_set.then_some("set-uid"));
                assert_eq!(decided.owners, wanted, "{case}");
            }
        }
    }
}

#[test]
fn stale_plain_and_foreign_owners() {
    let pod = |uid: &str, is_controller| owner("Pod", "set-1", uid, is_controller);
    let own = |uid: &str, is_controller| owner("StatefulSet", "set", uid, is_controller);
    let foreign = || owner("StatefulSet", "other", "random", true);
    for (when_scaled, owners, is_up_to_date) in [
        ("Delete", vec![pod("pod-uid", true)], true),
        ("Delete", vec![pod("pod-uid", false)], false),
        ("Delete", vec![pod("stale", true)], true),
        ("Delete", vec![pod("pod-uid", true), foreign()], false),
        ("Retain", vec![own("set-uid", true)], true),
        ("Retain", vec![own("set-uid", false)], false),
        ("Retain", vec![own("stale", true)], true),
        ("Retain", vec![own("set-uid", true), foreign()], false),
        ("Retain", vec![foreign()], true),
    ] {
        let decided = decide(&set(when_scaled, "Delete"), "set-1", &owners);
        assert_eq!(decided.is_up_to_date, is_up_to_date, "{owners:?}");
    }
}

#[test]
fn controller_is_foreign_by_kind_name_and_uid_but_never_without_a_policy() {
    for (owners, is_foreign) in [
        (vec![owner("Custom", "simon", "other", true)], true),
        (vec![owner("Custom", "simon", "other", false)], false),
        (vec![owner("Pod", "simon", "other", true)], true),
        (vec![owner("StatefulSet", "simon", "other", true)], true),
        (vec![owner("StatefulSet", "set", "set-uid", true)], false),
        (vec![owner("StatefulSet", "set", "stale", true)], true),
        (vec![owner("Pod", "set-0", "pod-uid", true)], false),
        (vec![owner("Pod", "set-0", "stale", true)], true),
        (vec![owner("Pod", "set-0", "pod-uid", true), owner("Custom", "s", "o", true)], true),
        (vec![owner("Pod", "set-0", "pod-uid", true), owner("Custom", "s", "o", false)], false),
    ] {
        for (when_scaled, when_deleted) in POLICIES {
            let decided = decide(&set(when_scaled, when_deleted), "set-0", &owners);
            let has_policy = when_scaled == "Delete" || when_deleted == "Delete";
            assert_eq!(decided.is_foreign, is_foreign && has_policy, "{owners:?}");
        }
    }
}

#[test]
fn own_references_are_rewritten_unless_they_are_stale() {
    for (owners, wanted) in [
        (vec![owner("StatefulSet", "set", "set-uid", true)], vec!["set-uid"]),
        (vec![owner("StatefulSet", "set", "set-uid", false)], vec!["set-uid"]),
        (vec![owner("Else", "set", "456", false)], vec!["456", "set-uid"]),
        (vec![], vec!["set-uid"]),
        (vec![owner("StatefulSet", "set", "", true)], vec![]),
        (vec![owner("StatefulSet", "set", "", false)], vec![]),
    ] {
        assert_eq!(decide(&set("Delete", "Delete"), "set-0", &owners).owners, wanted, "{owners:?}");
    }
}

#[test]
fn unknown_policy_means_retain() {
    let owners = [owner("StatefulSet", "set", "set-uid", true)];
    let decided = decide(&set("Other", "Other"), "set-0", &owners);
    assert!(!decided.is_up_to_date && decided.owners.is_empty());
}
