//! Pods that have ended, and the wait before the next failed one is deleted.

use pintle_api_types::kind::PODS;

use super::*;
use crate::test_world::error;

#[test]
fn failed_pods_of_a_node_are_deleted_at_growing_intervals() {
    let mut world = world(set(), 1);
    let mut controller = DaemonSets::new(1);
    // Waits belong to the generation in the status, which the first sync writes.
    world.sync(&mut controller, "ds");
    world.names(PODS).into_iter().map(str::to_owned).collect::<Vec<_>>().iter().for_each(|pod| {
        world.remove(PODS, pod);
    });
    for (turn, wait) in [1, 2, 4].into_iter().enumerate() {
        world.add(PODS, daemon_pod(&format!("pod-{turn}"), "node-0", "Failed"));
        let driven = world.sync(&mut controller, "ds");
        assert_eq!(pod_actions(&driven), PodActions { created: 0, deleted: 1 });
        let message =
            format!("Found failed daemon pod n/pod-{turn} on node node-0, will try to kill it");
        assert_eq!(
            (driven.events[0].reason, &driven.events[0].message),
            ("FailedDaemonPod", &message)
        );
        world.add(PODS, daemon_pod(&format!("next-{turn}"), "node-0", "Failed"));
        let driven = world.sync(&mut controller, "ds");
        assert_eq!(pod_actions(&driven).deleted, 0);
        let again = driven.outcome.expect("no failure").again;
        assert_eq!(again, Some(std::time::Duration::from_secs(wait)));
        world.remove(PODS, &format!("next-{turn}"));
        world.now += jiff::SignedDuration::from_secs(i64::try_from(wait).expect("short"));
    }
}

/// One node that refuses pods must not end the back-off of the other nodes.
#[test]
fn wait_after_a_failed_pod_grows_also_when_another_node_is_refused() {
    let mut world = world(set(), 2);
    let mut controller = DaemonSets::new(1);
    world.sync(&mut controller, "ds");
    let pods: Vec<_> = world.names(PODS).into_iter().map(str::to_owned).collect();
    pods.iter().for_each(|pod| world.remove(PODS, pod));
    world.refuse = Box::new(|request| match request {
        Request::Create { .. } => Some(error(403, "Forbidden")),
        _ => None,
    });
    for (turn, wait) in [1, 2].into_iter().enumerate() {
        world.add(PODS, daemon_pod(&format!("pod-{turn}"), "node-0", "Failed"));
        let driven = world.sync(&mut controller, "ds");
        assert_eq!(pod_actions(&driven).deleted, 1);
        driven.outcome.expect_err("the other node's pod was refused");
        world.add(PODS, daemon_pod(&format!("next-{turn}"), "node-0", "Failed"));
        assert_eq!(pod_actions(&world.sync(&mut controller, "ds")).deleted, 0, "it waits");
        world.remove(PODS, &format!("next-{turn}"));
        world.now += jiff::SignedDuration::from_secs(wait);
    }
}

#[test]
fn second_failed_pod_of_a_node_waits_in_the_same_sync() {
    let mut world = world(set(), 2);
    for (name, node) in [("a", "node-0"), ("b", "node-0"), ("c", "node-1")] {
        world.add(PODS, daemon_pod(name, node, "Failed"));
    }
    let driven = sync(&mut world);
    assert_eq!(pod_actions(&driven), PodActions { created: 0, deleted: 2 });
    assert_eq!(world.names(PODS), ["b"]);
}

#[test]
fn succeeded_pod_is_deleted_at_once_and_created_again() {
    let mut world = world(set(), 1);
    world.add(PODS, daemon_pod("done", "node-0", "Succeeded"));
    let driven = sync(&mut world);
    let event = &driven.events[0];
    assert_eq!(event.reason, "SucceededDaemonPod");
    assert_eq!(
        event.message,
        "Found succeeded daemon pod n/done on node node-0, will try to delete it"
    );
    settle(&mut world);
    assert_eq!(images(&world).len(), 1);
    assert!(world.get(PODS, "done").is_none());
}

#[test]
fn ended_pod_that_is_being_deleted_does_not_count() {
    let mut world = world(set(), 1);
    let mut pod = daemon_pod("ended", "node-0", "Failed");
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.add(PODS, pod);
    assert_eq!(pod_actions(&sync(&mut world)), PodActions { created: 1, deleted: 0 });
}

#[test]
fn running_pod_that_is_being_deleted_blocks_its_node() {
    let mut world = world(set(), 1);
    let mut pod = daemon_pod("leaving", "node-0", "Running");
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.add(PODS, pod);
    assert_eq!(pod_actions(&sync(&mut world)), PodActions { created: 0, deleted: 0 });
}
