//! Claims: created before their pod, owned as the retention policy asks, others left alone.

use pintle_api_types::kind::{PERSISTENT_VOLUME_CLAIMS, PODS};
use pintle_api_types::request::Request;
use serde_json::json;

use super::*;
use crate::test_world::error;

fn claiming(replicas: i32, when_scaled: &str, when_deleted: &str) -> Value {
    let mut set = set(replicas);
    set["spec"]["volumeClaimTemplates"] = json!([
        {"metadata": {"name": "data", "labels": {"own": "label"}}, "spec": {"accessModes": ["RWO"]}},
        {"metadata": {"name": "log"}, "spec": {}},
    ]);
    set["spec"]["persistentVolumeClaimRetentionPolicy"] =
        json!({"whenScaled": when_scaled, "whenDeleted": when_deleted});
    set
}

fn owners(world: &LoopWorld, claim: &str) -> Vec<String> {
    let claim = world.get(PERSISTENT_VOLUME_CLAIMS, claim).expect("the claim is there");
    let owners = claim["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.map(|one| one["kind"].as_str().expect("a kind").to_owned()).collect()
}

#[test]
fn claims_are_created_before_their_pod() {
    let mut world = world(claiming(1, "Retain", "Retain"));
    let driven = sync(&mut world);
    assert_eq!(
        actions(&driven),
        [
            "create persistentvolumeclaims data-web-0",
            "create persistentvolumeclaims log-web-0",
            "create pods web-0",
            "status"
        ]
    );
    assert_eq!(
        events(&driven),
        [
            "Normal SuccessfulCreate Create Claim data-web-0 Pod web-0 in StatefulSet web success",
            "Normal SuccessfulCreate Create Claim log-web-0 Pod web-0 in StatefulSet web success",
            "Normal SuccessfulCreate Create Pod web-0 in StatefulSet web successful",
        ]
    );
    let claim = world.get(PERSISTENT_VOLUME_CLAIMS, "data-web-0").expect("it was created");
    assert_eq!(claim["metadata"]["labels"], json!({"own": "label", "app": "web"}));
    let volumes = &world.get(PODS, "web-0").expect("it was created")["spec"]["volumes"];
    assert_eq!(
        *volumes,
        json!([
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}},
            {"name": "log", "persistentVolumeClaim": {"claimName": "log-web-0"}},
        ])
    );
}

#[test]
fn pod_is_not_created_while_a_claim_is_refused_or_deleted() {
    let mut world = world(claiming(1, "Retain", "Retain"));
    world.add(
        PERSISTENT_VOLUME_CLAIMS,
        json!({"metadata": {"name": "log-web-0",
        "deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    );
    world.refuse = Box::new(|request| match request {
        Request::Create { kind, .. } if *kind == PERSISTENT_VOLUME_CLAIMS => {
            Some(error(403, "Forbidden"))
        }
        _ => None,
    });
    let driven = sync(&mut world);
    let sentence = "[failed to create PVC data-web-0: Forbidden, pvc log-web-0 is being deleted]";
    assert_eq!(
        events(&driven),
        [
            "Warning FailedCreate Create Claim data-web-0 for Pod web-0 in StatefulSet web failed \
         error: Forbidden"
                .to_owned(),
            format!(
                "Warning FailedCreate Create Pod web-0 in StatefulSet web failed error: {sentence}"
            ),
        ]
    );
    assert_eq!(driven.outcome.expect_err("it failed").message, sentence);
    assert_eq!(world.names(PODS), [""; 0]);
}

#[test]
fn owners_of_claims_follow_the_retention_policy() {
    for (when_scaled, when_deleted, kept, condemned) in [
        ("Retain", "Retain", [""; 0].as_slice(), [""; 0].as_slice()),
        ("Retain", "Delete", &["StatefulSet"], &["StatefulSet"]),
        ("Delete", "Retain", &[], &["Pod"]),
        ("Delete", "Delete", &["StatefulSet"], &["Pod"]),
    ] {
        let mut world = world(claiming(2, when_scaled, when_deleted));
        settle(&mut world);
        assert_eq!(owners(&world, "data-web-1"), kept, "{when_scaled} {when_deleted}");
        edit(&mut world, |set| set["spec"]["replicas"] = 1.into());
        sync(&mut world);
        assert_eq!(owners(&world, "data-web-0"), kept, "{when_scaled} {when_deleted}");
        assert_eq!(owners(&world, "data-web-1"), condemned, "{when_scaled} {when_deleted}");
    }
}

#[test]
fn changed_policy_rewrites_claims_and_their_pod() {
    let mut world = world(claiming(1, "Retain", "Retain"));
    settle(&mut world);
    edit(&mut world, |set| {
        set["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] = "Delete".into();
    });
    let driven = sync(&mut world);
    assert_eq!(
        actions(&driven)[..4],
        [
            "update persistentvolumeclaims data-web-0",
            "update persistentvolumeclaims log-web-0",
            "read pods web-0",
            "update pods web-0",
        ]
    );
    assert_eq!(
        events(&driven),
        ["Normal SuccessfulUpdate Update Pod web-0 in StatefulSet web successful"]
    );
    assert_eq!(owners(&world, "data-web-0"), ["StatefulSet"]);
}

#[test]
fn claim_of_another_controller_is_left_alone_and_reported() {
    let mut world = world(claiming(1, "Retain", "Delete"));
    let foreign = json!({"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "o",
        "controller": true});
    world.add(
        PERSISTENT_VOLUME_CLAIMS,
        json!({"metadata": {"name": "data-web-0",
        "ownerReferences": [foreign]}}),
    );
    let driven = sync(&mut world);
    assert!(driven.events.iter().any(|event| event.reason == "ConflictingController"));
    settle(&mut world);
    assert_eq!(owners(&world, "data-web-0"), ["Other"]);
    assert_eq!(owners(&world, "log-web-0"), ["StatefulSet"]);
}

#[test]
fn own_reference_beside_a_foreign_controller_is_removed() {
    let mut world = world(claiming(1, "Retain", "Delete"));
    settle(&mut world);
    world.edit(PERSISTENT_VOLUME_CLAIMS, "data-web-0", |claim| {
        let owners = claim["metadata"]["ownerReferences"].as_array_mut().expect("owners");
        owners.push(json!({"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "o",
            "controller": true}));
    });
    settle(&mut world);
    assert_eq!(owners(&world, "data-web-0"), ["Other"]);
}

#[test]
fn pod_waits_for_the_deletion_of_a_claim_of_its_predecessor() {
    let mut world = world(claiming(1, "Delete", "Retain"));
    world.add(
        PERSISTENT_VOLUME_CLAIMS,
        json!({"metadata": {"name": "data-web-0",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "old",
            "controller": true}]}}),
    );
    let driven = sync(&mut world);
    let reason = "pod web-0 waits for a claim of its predecessor to go";
    assert!(driven.reasons.contains(&reason.to_owned()), "{:?}", driven.reasons);
    assert_eq!(world.names(PODS), [""; 0]);
    world.remove(PERSISTENT_VOLUME_CLAIMS, "data-web-0");
    sync(&mut world);
    assert_eq!(world.names(PODS), ["web-0"]);
}

#[test]
fn pending_pod_gets_claims_that_were_deleted() {
    let mut world = world(claiming(1, "Retain", "Retain"));
    sync(&mut world);
    world.remove(PERSISTENT_VOLUME_CLAIMS, "log-web-0");
    let driven = sync(&mut world);
    assert_eq!(actions(&driven)[0], "create persistentvolumeclaims log-web-0");
}

#[test]
fn pod_without_its_label_or_volumes_is_repaired_on_its_newest_state() {
    let mut world = world(claiming(1, "Retain", "Retain"));
    settle(&mut world);
    world.edit(PODS, "web-0", |pod| {
        pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = "none".into();
        pod["spec"]["volumes"] = json!([{"name": "data"}, {"name": "own"}]);
        pod["metadata"]["annotations"] = json!({"other": "kept"});
    });
    sync(&mut world);
    let pod = world.get(PODS, "web-0").expect("it is there");
    assert_eq!(pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"], "web-0");
    assert_eq!(pod["metadata"]["annotations"], json!({"other": "kept"}));
    let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
    let names: Vec<_> = volumes.iter().map(|one| one["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["data", "log", "own"]);
    assert!(sync(&mut world).requests.is_empty());
}

#[test]
fn conflict_on_a_pod_is_retried_with_a_new_read() {
    let mut world = world(set(1));
    settle(&mut world);
    world.edit(PODS, "web-0", |pod| {
        pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = "none".into();
    });
    let left = std::cell::Cell::new(2);
    world.refuse = Box::new(move |request| match request {
        Request::Replace { target, .. } if target.kind == PODS && left.get() > 0 => {
            left.set(left.get() - 1);
            Some(error(409, "Conflict"))
        }
        _ => None,
    });
    let driven = sync(&mut world);
    let pod: Vec<_> =
        actions(&driven).into_iter().filter(|action| action.contains("pods")).collect();
    let [read, update] = ["read pods web-0", "update pods web-0"];
    assert_eq!(pod, [read, update, read, update, read, update]);
}
