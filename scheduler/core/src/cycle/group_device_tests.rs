//! ResourceClaims that pods of a group share, and those that are reserved for a group.

use serde_json::{Value, json};

use super::device_tests::{answer, claim, class, devices_of, has, read, slice};
use super::group_tests::conditions;
use super::tests::{
    answer as said, at, bound, decide, deliver_lists, node, question, with, without_second_look,
};
use super::*;
use crate::groups::{GroupGates, Groups};
use crate::pod_fields::PodRef;
use crate::watch_event::{WatchEvent, WatchedKind, WatchedObject};

const WITHOUT: GroupGates =
    GroupGates { gangs: true, topology: false, preemption: false, claims: false };
const WITH: GroupGates = GroupGates { claims: true, ..WITHOUT };

fn group(change: impl FnOnce(&mut Value)) -> WatchedObject {
    let mut value = json!({"metadata": {"name": "g", "namespace": "default", "uid": "uid-g"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}});
    change(&mut value);
    WatchedObject::PodGroup(read(value))
}

/// A group with this claim.
fn with_claim(change: impl FnOnce(&mut Value)) -> WatchedObject {
    group(|group| {
        group["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": "c"}]);
        change(group);
    })
}

/// A pod of the group that uses the claim.
fn member(name: &str, change: impl FnOnce(&mut Value)) -> WatchedObject {
    with(name, "1", |pod| {
        pod["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": "c"}]);
        pod["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
        change(pod);
    })
}

fn scheduler_with(gates: GroupGates, things: &[WatchedObject]) -> Scheduler {
    asking(gates, Vec::new(), things)
}

fn asking(gates: GroupGates, extenders: Vec<Extender>, things: &[WatchedObject]) -> Scheduler {
    let scheduler = Scheduler::new(Vec::new(), without_second_look(), 1);
    let mut scheduler = scheduler.with_groups(Groups::new(gates)).with_extenders(extenders);
    scheduler.handle(WatchEvent::Complete(WatchedKind::PodGroup), at(0));
    let is_group = |thing: &&WatchedObject| thing.kind() == WatchedKind::PodGroup;
    for thing in things.iter().filter(is_group) {
        scheduler.handle(WatchEvent::Set(thing.clone()), at(0));
    }
    let others: Vec<WatchedObject> =
        things.iter().filter(|thing| !is_group(thing)).cloned().collect();
    deliver_lists(&mut scheduler, &others);
    scheduler
}

fn pair(group: WatchedObject) -> Vec<WatchedObject> {
    let pods = ["a", "b"].map(|name| member(name, |_| {}));
    let nodes = [node("m", "4"), node("n", "4"), class(), slice("n", &["g0", "g1"]), group];
    nodes.into_iter().chain(pods).collect()
}

/// The reservations, one for each pod.
fn all_reserves(commands: &[Command]) -> Vec<(PodRef, u64, Vec<Reserve>)> {
    let all = commands.iter().filter_map(|command| match command {
        Command::ReserveDevices { pod, number, claims, .. } => {
            Some((pod.clone(), *number, claims.clone()))
        }
        _ => None,
    });
    all.collect()
}

fn users(all: &[(PodRef, u64, Vec<Reserve>)]) -> Vec<String> {
    let user = |(pod, _, claims): &(PodRef, u64, Vec<Reserve>)| {
        let user = claims.first().map(|claim| claim.user.as_ref());
        let user = user.map(|user| user.map_or_else(|| "itself".to_owned(), |u| u.uid.clone()));
        format!("{}: {}", pod.uid, user.unwrap_or_else(|| "nobody".to_owned()))
    };
    all.iter().map(user).collect()
}

fn releases(commands: &[Command]) -> Vec<String> {
    let all = commands.iter().filter_map(|command| match command {
        Command::ReleaseDevices { pod, claims, .. } => {
            Some(format!("{} {}", pod.uid, claims[0].metadata.name.as_deref().expect("a name")))
        }
        _ => None,
    });
    all.collect()
}

#[test]
fn pods_of_a_group_share_the_pending_allocation_of_their_claim() {
    for gates in [WITHOUT, WITH] {
        let things: Vec<WatchedObject> =
            pair(group(|_| {})).into_iter().chain([claim("c")]).collect();
        let mut scheduler = scheduler_with(gates, &things);
        let all = all_reserves(&decide(&mut scheduler, 0));
        assert_eq!(users(&all), ["a: itself", "b: itself"]);
        assert_eq!(devices_of(&all[0].2), devices_of(&all[1].2));
        // No other pod gets the device, whichever of the two is first.
        let commands = answer(&mut scheduler, &all[1], 1);
        assert_eq!(commands.iter().find_map(bound).expect("a pod").0.uid, "b".into());
        scheduler.handle(
            WatchEvent::Set(with("x", "1", |pod| {
                pod["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": "d"}]);
            })),
            at(2),
        );
        scheduler.handle(WatchEvent::Set(claim("d")), at(2));
        let others = all_reserves(&decide(&mut scheduler, 2));
        assert_ne!(devices_of(&others[0].2), devices_of(&all[0].2));
        let commands = answer(&mut scheduler, &all[0], 3);
        assert_eq!(commands.iter().find_map(bound).expect("a pod").0.uid, "a".into());
    }
}

#[test]
fn pending_allocation_is_dropped_when_no_pod_of_the_group_needs_the_claim() {
    let things: Vec<WatchedObject> = pair(group(|_| {})).into_iter().chain([claim("c")]).collect();
    let mut scheduler = scheduler_with(WITHOUT, &things);
    let all = all_reserves(&decide(&mut scheduler, 0));
    let fails = |scheduler: &mut Scheduler, at_second| {
        let one: &(PodRef, u64, Vec<Reserve>) = &all[at_second as usize - 1];
        let (pod, number, error) = (one.0.clone(), one.1, Some("no".to_owned()));
        let reserved = ReservationResult { pod, number, claims: Vec::new(), error, made: None };
        scheduler.devices_reserved(reserved, at(at_second));
    };
    // With a single device on its node no other pod could have one.
    scheduler.handle(WatchEvent::Set(slice("n", &["g0"])), at(0));
    let is_given = |scheduler: &mut Scheduler, now| {
        scheduler.handle(WatchEvent::Set(claim("d")), at(now));
        let other = |pod: &mut Value| {
            pod["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": "d"}]);
        };
        scheduler.handle(WatchEvent::Set(with("x", "1", other)), at(now));
        let found = all_reserves(&decide(scheduler, now));
        scheduler.handle(WatchEvent::Gone(with("x", "1", other)), at(now));
        !found.iter().any(|(pod, ..)| &*pod.uid == "x")
    };
    fails(&mut scheduler, 1);
    assert!(is_given(&mut scheduler, 1), "the other one wants it still");
    scheduler.handle(WatchEvent::Gone(member("a", |_| {})), at(1));
    fails(&mut scheduler, 2);
    assert!(!is_given(&mut scheduler, 2));
}

#[test]
fn pending_allocation_of_a_claim_cannot_be_deallocated() {
    // The node with the device has room for one of the pods.
    let pods = ["a", "b"].map(|name| member(name, |_| {}));
    let base = [node("m", "4"), node("n", "1"), class(), slice("n", &["g0"]), claim("c")];
    let things: Vec<WatchedObject> = base.into_iter().chain([group(|_| {})]).chain(pods).collect();
    let mut scheduler = scheduler_with(WITHOUT, &things);
    let commands = decide(&mut scheduler, 0);
    let gives = |command: &Command| matches!(command, Command::GiveDevicesBack { .. });
    assert!(!commands.iter().any(gives), "{commands:?}");
    let (pods, _) = conditions(&commands);
    assert_eq!(pods.len(), 2);
    let alone = "0/2 nodes are available: 1 Insufficient cpu, 1 resourceclaim not available on the \
        node. still not schedulable, ";
    assert!(pods[1].2.starts_with(alone), "{pods:?}");
    assert!(all_reserves(&commands).is_empty());
}

#[test]
fn pod_that_fits_in_another_placement_deallocates_no_claim() {
    let asks_for = |cpu: &'static str| {
        move |pod: &mut Value| {
            let requests = &mut pod["spec"]["containers"][0]["resources"]["requests"];
            *requests = json!({"cpu": cpu});
        }
    };
    // Alone, and together with a pod that fits nowhere, so that the group does not fit.
    let alone = in_two_racks(1, vec![member("a", |_| {})]);
    assert_eq!(users(&all_reserves(&alone)), ["a: nobody"]);
    let together = in_two_racks(2, vec![member("a", |_| {}), member("b", asks_for("8"))]);
    assert!(all_reserves(&together).is_empty());
    let gives = |command: &Command| matches!(command, Command::GiveDevicesBack { .. });
    assert!(!alone.iter().chain(&together).any(gives), "{alone:?} {together:?}");
}

/// The commands for a group in which `a` has devices of a node in the second of two racks.
fn in_two_racks(least: u32, pods: Vec<WatchedObject>) -> Vec<Command> {
    let in_rack = |name: &str, rack: &str| {
        WatchedObject::Node(read(json!({
            "metadata": {"name": name, "labels": {"rack": rack}},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
        })))
    };
    let racked = group(|group| {
        group["spec"]["schedulingPolicy"]["gang"]["minCount"] = json!(least);
        group["spec"]["schedulingConstraints"] = json!({"topology": [{"key": "rack"}]});
    });
    let base = [in_rack("m", "x"), in_rack("n", "y"), class(), slice("n", &["g0"])];
    let claim = has("c", 1, "n", "g0", &["a"]);
    let things: Vec<WatchedObject> = base.into_iter().chain([racked, claim]).chain(pods).collect();
    let mut scheduler = scheduler_with(GroupGates { topology: true, ..WITHOUT }, &things);
    decide(&mut scheduler, 0)
}

#[test]
fn a_claim_of_a_group_is_reserved_for_the_group() {
    let things: Vec<WatchedObject> =
        pair(with_claim(|_| {})).into_iter().chain([claim("c")]).collect();
    let mut scheduler = scheduler_with(WITH, &things);
    let all = all_reserves(&decide(&mut scheduler, 0));
    assert_eq!(users(&all), ["a: uid-g", "b: uid-g"]);
    let user = all[0].2[0].user.as_ref().expect("a group");
    let of = (user.api_group.as_deref(), &*user.resource, &*user.name);
    assert_eq!(of, (Some("scheduling.k8s.io"), "podgroups", "g"));
    // Without the gate, or if the group names it differently, the claim is reserved for the pods.
    let mut scheduler = scheduler_with(WITHOUT, &things);
    assert_eq!(users(&all_reserves(&decide(&mut scheduler, 0))), ["a: itself", "b: itself"]);
    let other = with_claim(|group| group["spec"]["resourceClaims"][0]["name"] = json!("other"));
    let things: Vec<WatchedObject> = pair(other).into_iter().chain([claim("c")]).collect();
    let mut scheduler = scheduler_with(WITH, &things);
    assert_eq!(users(&all_reserves(&decide(&mut scheduler, 0))), ["a: itself", "b: itself"]);
}

/// A claim with a device of n that is reserved for the group.
fn of_group(device: &str) -> WatchedObject {
    let WatchedObject::ResourceClaim(mut claim) = has("c", 5, "n", device, &["uid-g"]) else {
        panic!("it is a claim")
    };
    let users = claim.status.as_mut().and_then(|status| status.reserved_for.as_mut());
    for user in users.expect("a user") {
        user.api_group = Some("scheduling.k8s.io".to_owned());
        (user.resource, user.name) = ("podgroups".to_owned(), "g".to_owned());
    }
    WatchedObject::ResourceClaim(claim)
}

#[test]
fn claim_reserved_for_the_group_is_not_reserved_for_its_pods_again() {
    let things: Vec<WatchedObject> =
        pair(with_claim(|_| {})).into_iter().chain([of_group("g0")]).collect();
    let mut scheduler = scheduler_with(WITH, &things);
    let commands = decide(&mut scheduler, 0);
    assert_eq!(users(&all_reserves(&commands)), ["a: nobody", "b: nobody"]);
    let mut scheduler = scheduler_with(WITHOUT, &things);
    assert_eq!(users(&all_reserves(&decide(&mut scheduler, 0))), ["a: itself", "b: itself"]);
}

#[test]
fn claim_created_for_a_group_is_used_by_its_pods() {
    let made = |owner: &str, kind: &str| {
        let WatchedObject::ResourceClaim(mut claim) = claim("made") else {
            panic!("it is a claim")
        };
        claim.metadata.owner_references = Some(vec![*read(json!({
            "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": kind, "name": owner,
            "uid": "uid-g", "controller": true}))]);
        WatchedObject::ResourceClaim(claim)
    };
    let pods = ["a", "b"].map(|name| {
        member(name, |pod| {
            let named = json!([{"name": "c", "resourceClaimTemplateName": "t"}]);
            pod["spec"]["resourceClaims"] = named;
            pod["status"]["resourceClaimStatuses"] =
                json!([{"name": "c", "resourceClaimName": "made"}]);
        })
    });
    let of = |gates, claim: WatchedObject| {
        let group = with_claim(|group| {
            let named = json!([{"name": "c", "resourceClaimTemplateName": "t"}]);
            group["spec"]["resourceClaims"] = named;
        });
        let base = [node("n", "4"), class(), slice("n", &["g0"]), group, claim];
        let things: Vec<WatchedObject> = base.into_iter().chain(pods.clone()).collect();
        let mut scheduler = scheduler_with(gates, &things);
        users(&all_reserves(&decide(&mut scheduler, 0)))
    };
    assert_eq!(of(WITH, made("g", "PodGroup")), ["a: uid-g", "b: uid-g"]);
    // They wait for a claim of their own.
    assert_eq!(of(WITHOUT, made("g", "PodGroup")), [""; 0]);
    assert_eq!(of(WITH, made("h", "PodGroup")), [""; 0]);
    assert_eq!(of(WITH, made("g", "Job")), [""; 0]);
}

#[test]
fn unschedulable_group_releases_its_claim_unless_one_of_its_pods_has_a_node() {
    // The node of the device has no room.
    let full = |more: Vec<WatchedObject>| {
        let pods = ["a", "b"].map(|name| member(name, |_| {}));
        let base = [node("m", "4"), node("n", "1"), class(), slice("n", &["g0"])];
        let base = base.into_iter().chain([with_claim(|_| {}), of_group("g0")]);
        base.chain(pods).chain(more).collect::<Vec<WatchedObject>>()
    };
    let mut scheduler = scheduler_with(WITH, &full(Vec::new()));
    let commands = decide(&mut scheduler, 0);
    assert_eq!(releases(&commands), ["uid-g c"]);
    let (pods, _) = conditions(&commands);
    let says = |text: &str| pods.iter().filter(|(.., message)| message.contains(text)).count();
    assert_eq!(says("ResourceClaim unreserved for PodGroup, preemption"), 1, "{pods:?}");
    // Then its devices are deallocated.
    let WatchedObject::ResourceClaim(free) = has("c", 6, "n", "g0", &[]) else { panic!("a claim") };
    scheduler.devices_released(&"uid-g".into(), vec![*free], at(1));
    let commands = decide(&mut scheduler, 60);
    let gives = |command: &Command| matches!(command, Command::GiveDevicesBack { .. });
    assert_eq!((releases(&commands), commands.iter().filter(|c| gives(c)).count()), (vec![], 1));
    // If a pod of the group gets a node or has one, the group keeps the claim.
    let base = [node("n", "1"), class(), slice("n", &["g0"]), of_group("g0")];
    let pods = ["a", "b"].map(|name| member(name, |_| {}));
    let basic = with_claim(|group| group["spec"]["schedulingPolicy"] = json!({"basic": {}}));
    let things: Vec<WatchedObject> = base.into_iter().chain([basic]).chain(pods).collect();
    let mut scheduler = scheduler_with(WITH, &things);
    let commands = decide(&mut scheduler, 0);
    assert_eq!((all_reserves(&commands).len(), releases(&commands)), (1, vec![]));
    let placed = member("z", |pod| pod["spec"]["nodeName"] = json!("n"));
    let mut scheduler = scheduler_with(WITH, &full(vec![placed]));
    assert_eq!(releases(&decide(&mut scheduler, 0)), [""; 0]);
}

#[test]
fn group_is_not_decided_before_its_claim_release_is_written() {
    let pods = ["a", "b"].map(|name| member(name, |_| {}));
    let base = [node("m", "4"), node("n", "1"), class(), slice("n", &["g0"])];
    let base = base.into_iter().chain([with_claim(|_| {}), of_group("g0")]);
    let mut scheduler = scheduler_with(WITH, &base.chain(pods).collect::<Vec<_>>());
    assert_eq!(releases(&decide(&mut scheduler, 0)), ["uid-g c"]);
    // There is room now, and the cache shows the claim as the group's; a new pod waits as well.
    scheduler.handle(WatchEvent::Set(node("n", "4")), at(1));
    scheduler.handle(WatchEvent::Set(member("z", |_| {})), at(1));
    assert_eq!(all_reserves(&decide(&mut scheduler, 60)), []);
    let WatchedObject::ResourceClaim(free) = has("c", 6, "n", "g0", &[]) else { panic!("a claim") };
    scheduler.devices_released(&"uid-g".into(), vec![*free], at(61));
    let all = all_reserves(&decide(&mut scheduler, 120));
    assert_eq!(users(&all), ["a: uid-g", "b: uid-g", "z: uid-g"]);
}

#[test]
fn pod_added_during_an_extender_call_is_held_with_its_group() {
    let extender = Extender {
        node_cache_capable: true,
        filter_verb: "filter".to_owned(),
        ..Extender::default()
    };
    let pods = ["a", "b"].map(|name| member(name, |_| {}));
    let base = [node("n", "4"), class(), slice("n", &["g0"]), with_claim(|_| {}), of_group("g0")];
    let things: Vec<WatchedObject> = base.into_iter().chain(pods).collect();
    let mut scheduler = asking(WITH, vec![extender], &things);
    let first = question(&decide(&mut scheduler, 0)).expect("it is asked");
    scheduler.handle(WatchEvent::Set(member("z", |_| {})), at(1));
    let none = crate::extender::consulted::Nodes::default;
    scheduler.consulted(said(&first, none()), at(2));
    let mut commands = decide(&mut scheduler, 2);
    while let Some(next) = question(&commands) {
        assert_eq!(releases(&commands), [""; 0]);
        scheduler.consulted(said(&next, none()), at(3));
        commands = decide(&mut scheduler, 3);
    }
    assert_eq!(releases(&commands), ["uid-g c"]);
    assert!(question(&decide(&mut scheduler, 60)).is_none(), "no pod is decided");
    let WatchedObject::ResourceClaim(free) = has("c", 6, "n", "g0", &[]) else { panic!("a claim") };
    scheduler.devices_released(&"uid-g".into(), vec![*free], at(61));
    assert!(question(&decide(&mut scheduler, 120)).is_some());
}
