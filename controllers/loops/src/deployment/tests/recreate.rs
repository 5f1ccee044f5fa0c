//! Steps of the strategy `Recreate`.
// k8s: pkg/controller/deployment/recreate_test.go

use std::collections::BTreeSet;

use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::Deployment;
use pintle_controllers_core::meta::Uid;
use serde_json::{Value, json};

use super::{deployment, now, rollout, set};
use crate::stub_api::{agree, kept, run, sizes, verbs};

fn recreate(replicas: i32) -> Value {
    let mut value = deployment(replicas, json!(0), json!(0));
    value["spec"]["strategy"] = json!({"type": "Recreate"});
    value
}

fn running(uids: &[&str]) -> BTreeSet<Uid> {
    uids.iter().map(|uid| Uid::of(uid)).collect()
}

#[test]
fn old_sets_are_scaled_to_zero_before_a_new_set_is_created() {
    let value = recreate(3);
    let deployment: KeptObject<Deployment> = kept(&value);
    let values = [set("old-1", "a", 3, 9), set("old-2", "b", 0, 8), set("old-3", "c", 1, 7)];
    let ran = run(now(), agree, |transcript| {
        rollout(&deployment, &values).recreate(&running(&[]), transcript)
    });
    let sizes = sizes(&ran.requests);
    assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [("old-1".into(), 0), ("old-3".into(), 0)]);
    assert!(!verbs(&ran.requests).contains(&"create replicasets".to_owned()));
}

#[test]
fn old_pods_by_the_sets_or_the_pods_count_hold_the_rollout() {
    let value = recreate(3);
    let deployment: KeptObject<Deployment> = kept(&value);
    let counted = |count: i32| {
        let mut old = set("old", "old", 0, 9);
        old["status"]["replicas"] = count.into();
        old
    };
    for (values, of_pods, expected) in [
        (vec![], &[][..], false),
        (vec![counted(0)], &["old"], true),
        (vec![counted(1)], &[], true),
        (vec![counted(0)], &[], false),
        (vec![counted(0), set("new", "new", 0, 1)], &["new"], false),
    ] {
        let rollout = rollout(&deployment, &values);
        assert_eq!(rollout.has_old_pods(&running(of_pods)), expected);
    }
}

#[test]
fn new_set_is_created_at_full_size_after_old_pods_have_ended() {
    let value = recreate(3);
    let deployment: KeptObject<Deployment> = kept(&value);
    let old = set("old", "old", 0, 9);
    let waiting = run(now(), agree, |transcript| {
        rollout(&deployment, std::slice::from_ref(&old)).recreate(&running(&["old"]), transcript)
    });
    assert_eq!(verbs(&waiting.requests), ["update deployments/status"]);
    let going = run(now(), agree, |transcript| {
        rollout(&deployment, std::slice::from_ref(&old)).recreate(&running(&[]), transcript)
    });
    assert_eq!(
        verbs(&going.requests),
        ["create replicasets", "update deployments/status", "update deployments/status"]
    );
    let pintle_api_types::request::Request::Create { body, .. } = &going.requests[0] else {
        panic!("a creation")
    };
    assert_eq!(body["spec"]["replicas"], 3);
}
