//! Deallocation of claims: when their pods are decided again.

use serde_json::json;

use super::device_tests::{claim, class, devices_of, has, reserves, slice, user};
use super::tests::{at, condition, decide, node, scheduler_with, with};
use super::wake_tests::node_like;
use super::*;
use crate::pod_fields::PodRef;
use crate::watch_event::{WatchEvent, WatchedObject};

/// A pod with a claim that has a device of a deleted node.
fn who_gives_back() -> (Scheduler, PodRef) {
    let stranded = has("c", 1, "gone", "g0", &["p"]);
    let things = vec![class(), node("a", "4"), slice("a", &["g0"]), stranded, user("p", "c")];
    let mut scheduler = scheduler_with(things);
    let gives = |command: &Command| match command {
        Command::GiveDevicesBack { pod, .. } => Some(pod.clone()),
        _ => None,
    };
    let pod = decide(&mut scheduler, 0).iter().find_map(gives).expect("it gives them back");
    // The claim fits now, and is still reserved for the pod in the cache.
    scheduler.handle(WatchEvent::Set(node("gone", "4")), at(1));
    assert!(reserves(&decide(&mut scheduler, 60)).is_none(), "the claim is still being released");
    (scheduler, pod)
}

#[test]
fn pod_is_not_decided_before_its_claim_deallocation_is_written() {
    let (mut scheduler, pod) = who_gives_back();
    let WatchedObject::ResourceClaim(free) = claim("c") else { panic!("it is a claim") };
    let mut free = *free;
    free.metadata.resource_version = Some("2".to_owned());
    scheduler.gave_back(&pod.uid, true, vec![free], at(61));
    let asked = reserves(&decide(&mut scheduler, 120)).expect("it is decided again");
    assert_eq!(devices_of(&asked.2), ["a/g0"]);
}

#[test]
fn pod_whose_claim_deallocation_failed_is_decided_again() {
    let (mut scheduler, pod) = who_gives_back();
    scheduler.gave_back(&pod.uid, false, Vec::new(), at(61));
    let asked = reserves(&decide(&mut scheduler, 120)).expect("it is decided again");
    assert_eq!(asked.2, [], "the claim is as it was");
}

#[test]
fn claim_is_not_deallocated_for_a_node_blocked_by_other_pods() {
    // Its devices are on a tainted node; the other node has no room for it.
    let closed = node_like("b", |node| {
        node["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
    });
    let low = with("low", "4", |pod| {
        pod["spec"]["nodeName"] = json!("a");
        pod["spec"]["priority"] = json!(-1);
    });
    let expected = with("expected", "4", |pod| {
        pod["spec"]["schedulingGates"] = json!([{"name": "g"}]);
        pod["status"] = json!({"nominatedNodeName": "a"});
    });
    for in_the_way in [low, expected] {
        let own = has("c", 1, "b", "g0", &["p"]);
        let things = [class(), node("a", "4"), closed.clone(), slice("b", &["g0"]), own];
        let pods = [in_the_way, user("p", "c")];
        let mut scheduler = scheduler_with(things.into_iter().chain(pods).collect());
        let commands = decide(&mut scheduler, 0);
        let gives = |command: &&Command| matches!(command, Command::GiveDevicesBack { .. });
        assert_eq!(commands.iter().find(gives), None);
        let (_, message) = condition(&commands).expect("a condition");
        assert!(message.contains(". still not schedulable, preemption: 0/2 nodes"), "{message}");
    }
}
