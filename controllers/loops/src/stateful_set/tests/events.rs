//! Events and failures of single pods.
// k8s: pkg/controller/statefulset/stateful_pod_control_test.go

use pintle_api_types::kind::PODS;
use pintle_api_types::request::{ApiError, Request};
use serde_json::json;

use super::*;
use crate::test_world::error;

/// Refuses what is done to pods by this verb.
fn refuse(world: &mut LoopWorld, verb: &'static str, answer: ApiError) {
    world.refuse = Box::new(move |request| {
        let is_it = match request {
            Request::Create { kind, .. } => verb == "create" && *kind == PODS,
            Request::Replace { target, .. } => verb == "update" && target.kind == PODS,
            Request::Delete { target, .. } => verb == "delete" && target.kind == PODS,
            _ => false,
        };
        is_it.then(|| answer.clone())
    });
}

#[test]
fn pod_that_exists_already_fails_the_sync_without_an_event() {
    let mut world = world(set(1));
    refuse(&mut world, "create", error(409, "AlreadyExists"));
    let driven = sync(&mut world);
    assert!(driven.events.is_empty());
    assert_eq!(driven.outcome.expect_err("it exists").message, "AlreadyExists");
}

#[test]
fn missing_pod_counts_as_deleted() {
    for (answer, event, is_failed) in [
        (
            error(404, "NotFound"),
            "Normal SuccessfulDelete Delete Pod web-0 in StatefulSet web successful",
            false,
        ),
        (
            error(403, "Forbidden"),
            "Warning FailedDelete Delete Pod web-0 in StatefulSet web failed error: Forbidden",
            true,
        ),
    ] {
        let mut world = world(set(1));
        settle(&mut world);
        edit(&mut world, |set| set["spec"]["replicas"] = 0.into());
        refuse(&mut world, "delete", answer);
        let driven = sync(&mut world);
        assert_eq!((events(&driven), driven.outcome.is_err()), (vec![event.to_owned()], is_failed));
    }
}

#[test]
fn failed_update_is_reported_once() {
    let mut world = world(set(1));
    settle(&mut world);
    world.edit(PODS, "web-0", |pod| {
        pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = "none".into();
    });
    refuse(&mut world, "update", error(500, "InternalError"));
    let driven = sync(&mut world);
    assert_eq!(
        events(&driven),
        ["Warning FailedUpdate Update Pod web-0 in StatefulSet web failed error: InternalError"]
    );
    assert!(driven.outcome.is_err());
}

#[test]
fn pod_that_was_recreated_is_not_updated() {
    let mut world = world(set(1));
    settle(&mut world);
    world.edit(PODS, "web-0", |pod| {
        pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = "none".into();
    });
    let tables = world.tables();
    let now =
        pintle_controllers_core::frame::Now { instant: std::time::Instant::now(), wall: world.now };
    let key = pintle_api_types::key::ObjectKey::new("n", "web");
    let snapshot = pintle_controllers_core::frame::Controller::snapshot(
        &mut { CONTROLLER },
        &key,
        &tables,
        now,
    );
    let snapshot = snapshot.expect("the set is there");
    world.edit(PODS, "web-0", |pod| pod["metadata"]["uid"] = "other".into());
    let driven = pintle_controllers_core::frame::drive::<super::super::StatefulSets>(
        &snapshot,
        world.now,
        |request| match request {
            Request::Read { target, .. } if target.kind == PODS => {
                Ok(world.get(PODS, "web-0").expect("it is there").clone())
            }
            Request::Replace { target, body } if target.sub == "status" => Ok(body.clone()),
            other => panic!("{other:?}"),
        },
    );
    let failure = driven.outcome.expect_err("it was recreated");
    assert_eq!(failure.message, "pod n/web-0 was recreated meanwhile");
    assert_eq!(failure.retry, pintle_controllers_core::frame::Retry::Quietly);
}

#[test]
fn pod_of_a_wrong_name_is_released_and_its_claims_stay_without_owners() {
    // k8s: TestOrphanedPodsWithPVCDeletePolicy
    let mut owning = set(1);
    owning["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}}]);
    owning["spec"]["persistentVolumeClaimRetentionPolicy"] =
        json!({"whenScaled": "Delete", "whenDeleted": "Delete"});
    let mut world = world(owning);
    world.add(
        PODS,
        json!({"metadata": {"name": "xweb-2", "labels": {"app": "web"},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web",
            "uid": "set", "controller": true}]}, "status": {"phase": "Running"}}),
    );
    world.add(
        pintle_api_types::kind::PERSISTENT_VOLUME_CLAIMS,
        json!({"metadata": {"name": "data-web-2"}}),
    );
    settle(&mut world);
    let pod = world.get(PODS, "xweb-2").expect("it stays");
    assert_eq!(pod["metadata"]["ownerReferences"], json!([]));
    let claim = world.get(pintle_api_types::kind::PERSISTENT_VOLUME_CLAIMS, "data-web-2");
    assert!(claim.expect("it stays")["metadata"]["ownerReferences"].is_null());
}
