//! Scale up, scale down, failed pods and Parallel mode.

use pintle_api_types::kind::{PODS, STATEFUL_SETS};
use pintle_api_types::request::Request;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::test_world::error;

#[test]
fn ordered_set_creates_a_pod_when_all_previous_pods_are_ready() {
    let mut world = world(set(3));
    let driven = sync(&mut world);
    assert_eq!(actions(&driven), ["create pods web-0", "status"]);
    assert_eq!(
        events(&driven),
        ["Normal SuccessfulCreate Create Pod web-0 in StatefulSet web successful"]
    );
    let waiting = sync(&mut world);
    assert_eq!(actions(&waiting), ["status"]);
    assert_eq!(waiting.reasons, ["pod web-0 is not running and ready"]);
    world.run_pod("web-0");
    assert_eq!(actions(&sync(&mut world)), ["create pods web-1", "status"]);
    settle(&mut world);
    assert_eq!(world.names(PODS), ["web-0", "web-1", "web-2"]);
    let status = status(&world);
    for count in ["replicas", "readyReplicas", "availableReplicas", "currentReplicas"] {
        assert_eq!(status[count], 3, "{count}");
    }
}

#[test]
fn pod_has_the_labels_names_and_owner_of_its_ordinal() {
    let mut world = world(set(1));
    sync(&mut world);
    let pod = world.get(PODS, "web-0").expect("the pod is there");
    let revision = &status(&world)["updateRevision"];
    let labels = json!({"app": "web", "statefulset.kubernetes.io/pod-name": "web-0",
        "apps.kubernetes.io/pod-index": "0", "controller-revision-hash": revision});
    assert_eq!(pod["metadata"]["labels"], labels);
    assert_eq!(pod["metadata"]["generateName"], "web-");
    assert_eq!(
        (&pod["spec"]["hostname"], &pod["spec"]["subdomain"]),
        (&json!("web-0"), &json!("svc"))
    );
    assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], "set");
}

#[test]
fn scale_down_deletes_the_highest_ordinal_first_and_waits_for_it() {
    let mut world = world(set(3));
    settle(&mut world);
    edit(&mut world, |set| set["spec"]["replicas"] = 0.into());
    let driven = sync(&mut world);
    assert_eq!(actions(&driven), ["delete pods web-2", "status"]);
    assert_eq!(
        events(&driven),
        ["Normal SuccessfulDelete Delete Pod web-2 in StatefulSet web successful"]
    );
    let waiting = sync(&mut world);
    assert_eq!(actions(&waiting), ["status"], "it does not count as current any more");
    assert_eq!(waiting.reasons, ["scaling down waits for pod web-2 to be gone"]);
    settle(&mut world);
    assert_eq!(world.names(PODS), [""; 0]);
    assert_eq!(status(&world)["replicas"], 0);
}

#[test]
fn scale_down_waits_for_an_unhealthy_predecessor() {
    let mut world = world(set(3));
    settle(&mut world);
    world.edit(PODS, "web-1", |pod| pod["status"]["conditions"][0]["status"] = "False".into());
    world.edit(PODS, "web-2", |pod| pod["status"]["conditions"][0]["status"] = "False".into());
    edit(&mut world, |set| set["spec"]["replicas"] = 1.into());
    let driven = sync(&mut world);
    assert_eq!(driven.reasons, ["scaling down waits for pod web-1 to be available"]);
    assert_eq!(actions(&driven), ["status"]);
    world.run_pod("web-1");
    assert_eq!(actions(&sync(&mut world)), ["delete pods web-2", "status"]);
}

#[test]
fn ended_pod_is_deleted_and_created_again() {
    for phase in ["Failed", "Succeeded"] {
        let mut world = world(set(2));
        settle(&mut world);
        world.edit(PODS, "web-0", |pod| pod["status"] = json!({"phase": phase}));
        assert_eq!(actions(&sync(&mut world)), ["delete pods web-0", "status"], "{phase}");
        assert_eq!(actions(&sync(&mut world))[0], "create pods web-0", "{phase}");
    }
}

#[test]
fn parallel_set_creates_pods_in_growing_batches() {
    let mut parallel = set(5);
    parallel["spec"]["podManagementPolicy"] = "Parallel".into();
    let mut world = world(parallel);
    let driven = sync(&mut world);
    let created = ["web-0", "web-1", "web-2", "web-3", "web-4"];
    assert_eq!(world.names(PODS), created);
    assert_eq!(driven.events.len(), 5);
    world.run_kubelets();
    edit(&mut world, |set| set["spec"]["replicas"] = 0.into());
    sync(&mut world);
    assert!(world.all(PODS).all(|pod| !pod["metadata"]["deletionTimestamp"].is_null()));
}

#[test]
fn failed_create_stops_only_later_batches_of_a_parallel_set() {
    let mut parallel = set(7);
    parallel["spec"]["podManagementPolicy"] = "Parallel".into();
    let mut world = world(parallel);
    world.refuse = Box::new(|request| match request {
        Request::Create { kind, body, .. }
            if *kind == PODS && body["metadata"]["name"] == "web-1" =>
        {
            Some(error(403, "Forbidden"))
        }
        _ => None,
    });
    let driven = sync(&mut world);
    assert_eq!(world.names(PODS), ["web-0", "web-2"]);
    assert_eq!(driven.outcome.expect_err("a pod was refused").message, "Forbidden");
    assert_eq!(status(&world)["observedGeneration"], 1, "the status is written nevertheless");
    assert!(driven.events.iter().any(|event| {
        event.reason == "FailedCreate"
            && event.message == "Create Pod web-1 in StatefulSet web failed error: Forbidden"
    }));
}

#[test]
fn first_ordinal_moves_the_pods() {
    let mut shifted = set(2);
    shifted["spec"]["ordinals"] = json!({"start": 3});
    let mut world = world(shifted);
    settle(&mut world);
    assert_eq!(world.names(PODS), ["web-3", "web-4"]);
    edit(&mut world, |set| set["spec"]["ordinals"]["start"] = 4.into());
    settle(&mut world);
    assert_eq!(world.names(PODS), ["web-4", "web-5"]);
}

#[test]
fn pod_counts_as_available_after_min_ready_seconds() {
    let mut slow = set(2);
    slow["spec"]["minReadySeconds"] = 30.into();
    let mut world = world(slow);
    sync(&mut world);
    world.run_pod("web-0");
    let driven = sync(&mut world);
    assert_eq!(driven.reasons, ["pod web-0 is not ready for long enough"]);
    let wait = driven.outcome.expect("no failure").again;
    assert_eq!(wait, Some(std::time::Duration::from_secs(30)));
    assert_eq!(
        (&status(&world)["readyReplicas"], &status(&world)["availableReplicas"]),
        (&json!(1), &json!(0))
    );
    world.now += jiff::SignedDuration::from_secs(30);
    assert_eq!(actions(&sync(&mut world)), ["create pods web-1", "status"]);
}

#[test]
fn set_that_is_being_deleted_only_has_its_status_updated() {
    let mut deleting = set(3);
    deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut world = world(deleting);
    assert_eq!(actions(&sync(&mut world)), ["status"]);
}

#[test]
fn pod_is_adopted_by_name_and_labels_and_released_without_them() {
    let mut world = world(set(1));
    let pod = |name: &str, labels: serde_json::Value| {
        let metadata = json!({"name": name, "labels": labels});
        json!({"metadata": metadata, "status": {"phase": "Running"}})
    };
    world.add(PODS, pod("web-0", json!({"app": "web"})));
    world.add(PODS, pod("other-0", json!({"app": "web"})));
    let driven = sync(&mut world);
    let actions = actions(&driven);
    assert_eq!(actions[..2], ["read statefulsets.apps web", "patch pods web-0"]);
    assert!(world.get(PODS, "other-0").expect("it stays")["metadata"]["ownerReferences"].is_null());
    world.edit(PODS, "web-0", |pod| pod["metadata"]["labels"]["app"] = "none".into());
    sync(&mut world);
    let owners = &world.get(PODS, "web-0").expect("it stays")["metadata"]["ownerReferences"];
    assert_eq!(*owners, json!([]));
}

#[test]
fn conflict_on_the_status_is_retried() {
    let mut world = world(set(0));
    world.refuse = Box::new(|request| match request {
        Request::Replace { target, body } if target.kind == STATEFUL_SETS => {
            let is_first = body["metadata"]["resourceVersion"] == "101";
            is_first.then(|| error(409, "Conflict"))
        }
        _ => None,
    });
    edit(&mut world, |_| {});
    let driven = sync(&mut world);
    assert!(driven.outcome.is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// In ordered mode no pod is created while one before it is missing or not ready, and never two
    /// pods are acted upon in one sync.
    #[test]
    fn ordered_set_acts_on_one_pod_in_order(
        replicas in 0..6_i32,
        pods in prop::collection::vec(0..5_u8, 8),
    ) {
        let mut world = world(set(replicas));
        sync(&mut world);
        for (ordinal, state) in pods.iter().enumerate() {
            let name = format!("web-{ordinal}");
            if world.get(PODS, &name).is_some() {
                world.remove(PODS, &name);
            }
            let (phase, ready, deletion) = match state {
                0 => continue,
                1 => ("Pending", "False", json!(null)),
                2 => ("Failed", "False", json!(null)),
                3 => ("Running", "True", json!("2026-01-01T00:00:00Z")),
                _ => ("Running", "True", json!(null)),
            };
            let conditions = json!([{"type": "Ready", "status": ready}]);
            world.add(PODS, json!({
                "metadata": {"name": name, "deletionTimestamp": deletion,
                    "labels": {"app": "web", "statefulset.kubernetes.io/pod-name": name},
                    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet",
                        "name": "web", "uid": "set", "controller": true}]},
                "status": {"phase": phase, "conditions": conditions}}));
        }
        let driven = sync(&mut world);
        let acted: Vec<_> = actions(&driven).into_iter().filter(|one| one.contains("pods")).collect();
        prop_assert!(acted.len() <= 1, "{acted:?}");
        if let Some(name) = acted.first().and_then(|one| one.strip_prefix("create pods web-")) {
            let ordinal: usize = name.parse().expect("an ordinal");
            prop_assert!(pods[..ordinal].iter().all(|state| *state == 4), "{pods:?}");
            prop_assert_eq!(pods[ordinal], 0);
        }
        if let Some(name) = acted.first().and_then(|one| one.strip_prefix("delete pods web-")) {
            let ordinal: usize = name.parse().expect("an ordinal");
            let wanted = usize::try_from(replicas).expect("a count");
            if ordinal >= wanted {
                prop_assert!(pods[..wanted].iter().all(|state| *state == 4), "{pods:?}");
                prop_assert!(pods[ordinal + 1..].iter().all(|state| *state == 0), "{pods:?}");
            }
        }
    }

    /// From any state a set settles with exactly its ordinals.
    #[test]
    fn set_settles_with_its_ordinals(sizes in prop::collection::vec((0..5_i32, 0..3_i32), 1..4),
        is_parallel: bool) {
        let mut first = set(1);
        if is_parallel {
            first["spec"]["podManagementPolicy"] = "Parallel".into();
        }
        let mut world = world(first);
        for (replicas, start) in sizes {
            sync(&mut world);
            edit(&mut world, |set| {
                set["spec"]["replicas"] = replicas.into();
                set["spec"]["ordinals"] = json!({"start": start});
            });
            sync(&mut world);
            world.run_kubelets();
            sync(&mut world);
            settle(&mut world);
            let names: Vec<_> = (start..start + replicas).map(|at| format!("web-{at}")).collect();
            prop_assert_eq!(world.names(PODS), names);
        }
    }
}
