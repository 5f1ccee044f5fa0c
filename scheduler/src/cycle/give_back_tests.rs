//! Pods whose claims give devices back: when they are decided again.

use super::command::PodRef;
use super::device_tests::{claim, class, devices_of, has, reserves, slice, user};
use super::tests::{at, decide, knowing, node};
use super::*;
use crate::watch::{Thing, Told};

/// A pod whose claim has a device of a node that is gone.
fn who_gives_back() -> (Scheduler, PodRef) {
    let stranded = has("c", 1, ("gone", "g0"), &["p"]);
    let things = vec![class(), node("a", "4"), slice("a", &["g0"]), stranded, user("p", "c")];
    let mut scheduler = knowing(things);
    let gives = |command: &Command| match command {
        Command::GiveDevicesBack { pod, .. } => Some(pod.clone()),
        _ => None,
    };
    let pod = decide(&mut scheduler, 0).iter().find_map(gives).expect("it gives them back");
    // Its claim fits now, and is its own, by what is known.
    scheduler.tell(Told::Set(node("gone", "4")), at(1));
    assert!(reserves(&decide(&mut scheduler, 60)).is_none(), "nobody knows whose the claim is");
    (scheduler, pod)
}

#[test]
fn who_gives_devices_back_is_not_decided_before_that_is_written() {
    let (mut scheduler, pod) = who_gives_back();
    let Thing::ResourceClaim(free) = claim("c") else { panic!("it is a claim") };
    let mut free = *free;
    free.metadata.resource_version = Some("2".to_owned());
    scheduler.gave_back(&pod.uid, true, vec![free], at(61));
    let asked = reserves(&decide(&mut scheduler, 120)).expect("it is decided again");
    assert_eq!(devices_of(&asked.2), ["a/g0"]);
}

#[test]
fn who_could_not_give_devices_back_is_decided_again() {
    let (mut scheduler, pod) = who_gives_back();
    scheduler.gave_back(&pod.uid, false, Vec::new(), at(61));
    let asked = reserves(&decide(&mut scheduler, 120)).expect("it is decided again");
    assert_eq!(asked.2, [], "the claim is as it was");
}
