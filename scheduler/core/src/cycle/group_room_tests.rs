//! Preemption for a whole group: victims, their order, events and conditions.

use serde_json::{Value, json};

use super::command::Related;
use super::group_tests::{
    Text, all_bound, conditions, results, scheduler_with_groups, texts, with_groups_and_lists,
};
use super::tests::{at, decide, node, object, pod_value};
use super::*;
use crate::groups::GroupGates;
use crate::pod_fields::PodRef;
use crate::watch_event::{WatchEvent, WatchedObject};

const GATES: GroupGates =
    GroupGates { gangs: true, topology: false, preemption: true, claims: false };
const UNSCHEDULABLE: &str = "pod group is unschedulable";

fn group(
    name: &str,
    priority: i32,
    min: Option<i32>,
    change: impl FnOnce(&mut Value),
) -> WatchedObject {
    let policy = min.map_or(json!({"basic": {}}), |min| json!({"gang": {"minCount": min}}));
    let mut value = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("g-{name}"),
            "resourceVersion": "7"},
        "spec": {"schedulingPolicy": policy, "priority": priority},
    });
    change(&mut value["spec"]);
    WatchedObject::PodGroup(object(value))
}

fn gang(name: &str, priority: i32, min: i32) -> WatchedObject {
    group(name, priority, Some(min), |_| {})
}

fn whole(name: &str, priority: i32) -> WatchedObject {
    group(name, priority, None, |spec| spec["disruptionMode"] = json!("PodGroup"))
}

fn pod(
    name: &str,
    group: Option<&str>,
    priority: i32,
    change: impl FnOnce(&mut Value),
) -> WatchedObject {
    let mut value = pod_value(name, name, "1");
    value["spec"]["priority"] = json!(priority);
    if let Some(group) = group {
        value["spec"]["schedulingGroup"] = json!({"podGroupName": group});
    }
    change(&mut value);
    WatchedObject::Pod(object(value))
}

fn member(name: &str, group: &str, priority: i32) -> WatchedObject {
    pod(name, Some(group), priority, |_| {})
}

/// A pod on a node, started at this second.
fn on(name: &str, node: &str, group: Option<&str>, priority: i32, since: u32) -> WatchedObject {
    pod(name, group, priority, |pod| {
        pod["spec"]["nodeName"] = json!(node);
        pod["status"] = json!({"startTime": format!("2026-01-01T00:00:{since:02}Z")});
    })
}

fn low(name: &str, priority: i32) -> WatchedObject {
    on(name, "n", None, priority, 0)
}

fn deciding(things: &[WatchedObject]) -> (Scheduler, Vec<Command>) {
    let mut scheduler = scheduler_with_groups(GATES, things);
    let commands = decide(&mut scheduler, 0);
    (scheduler, commands)
}

/// The victims in their order.
fn victims(commands: &[Command]) -> Vec<&str> {
    let all = commands.iter().filter_map(|command| match command {
        Command::Evict { victims, .. } => Some(victims),
        _ => None,
    });
    all.flatten().map(|victim| victim.key.name()).collect()
}

/// The condition of a group without victims.
fn refused(things: &[WatchedObject]) -> Vec<Text> {
    let (scheduler, commands) = deciding(things);
    assert_eq!((victims(&commands), all_bound(&commands)), (vec![], vec![]));
    assert_eq!(scheduler.assumed(), 0);
    conditions(&commands).1
}

fn unschedulable(why: &str) -> Vec<Text> {
    texts(&[["False", "Unschedulable", &format!("{UNSCHEDULABLE}, {why}")]])
}

fn ended(scheduler: &mut Scheduler, all: bool, seconds: u64) {
    let key = ObjectKey::new("default", "g");
    let pod = PodRef { key, uid: "g-g".into() };
    scheduler.evicted(&Evicted { pod, all, took: Duration::ZERO }, at(seconds));
}

#[test]
fn gang_preempts_as_a_whole_and_is_bound_after_its_victims_are_deleted() {
    let things = [node("n", "3"), gang("g", 100, 3), low("x", 10), low("y", 10)];
    let members = ["a", "b", "c"].map(|name| member(name, "g", 100));
    let things: Vec<WatchedObject> = things.into_iter().chain(members).collect();
    let (mut scheduler, commands) = deciding(&things);
    assert_eq!(all_bound(&commands), [""; 0]);
    let evicts = commands.iter().find_map(|command| match command {
        Command::Evict { victims, pod, message, notes } => Some((victims, pod, message, notes)),
        _ => None,
    });
    let (victims, pod, message, notes) = evicts.expect("others go");
    let names: Vec<_> = victims.iter().map(|victim| victim.key.name()).collect();
    assert_eq!((names, pod.key.as_str(), &*pod.uid), (vec!["x", "y"], "default/g", "g-g"));
    let wanted = "default-scheduler: preempting to accommodate a higher priority podgroup";
    assert_eq!(message, wanted);
    assert_eq!(notes[1].note, "Preempted by podgroup g-g on node cluster");
    let related = Related::Group(pod.clone(), Some("7".to_owned()));
    assert_eq!((notes[1].about.key.name(), &notes[1].related), ("y", &Some(related)));
    // The pod that fits is nominated. No pod preempts alone.
    let alone = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, \
        preemption: not eligible due to workload aware preemption enabled";
    let pods = texts(&[
        ["a", "Unschedulable", UNSCHEDULABLE],
        ["b", "Unschedulable", alone],
        ["c", "Unschedulable", alone],
    ]);
    let groups = texts(&[["False", "Unschedulable", UNSCHEDULABLE]]);
    assert_eq!(conditions(&commands), (pods, groups));
    assert_eq!(results(&mut scheduler), ["waiting_on_preemption"]);
    assert_eq!(scheduler.cache.nominated_on("n").len(), 1);
    // No pod of the group is decided before the preemption ends, not even a new one.
    scheduler.handle(WatchEvent::Gone(low("x", 10)), at(60));
    scheduler.handle(WatchEvent::Set(member("d", "g", 100)), at(60));
    assert_eq!(decide(&mut scheduler, 60), []);
    assert_eq!(scheduler.count(QueuePlace::Gated), 4);
    scheduler.handle(WatchEvent::Gone(low("y", 10)), at(61));
    ended(&mut scheduler, true, 61);
    let commands = decide(&mut scheduler, 120);
    assert_eq!(all_bound(&commands), ["a@n", "b@n", "c@n"]);
    assert_eq!(results(&mut scheduler), ["scheduled"]);
}

#[test]
fn fewest_least_important_and_youngest_pods_are_preempted_for_a_gang() {
    let things = |pods: Vec<WatchedObject>| {
        let base = [node("n", "4"), gang("g", 100, 2)];
        let members = ["a", "b"].map(|name| member(name, "g", 100));
        base.into_iter().chain(members).chain(pods).collect::<Vec<WatchedObject>>()
    };
    let on = |name, since| on(name, "n", None, 1, since);
    // pods on the nodes, victims
    for (pods, wanted) in [
        (vec![low("p", 50), low("q", 10), low("r", 30), low("s", 10)], vec!["q", "s"]),
        (vec![low("p", 50), low("q", 60), low("r", 30), low("s", 10)], vec!["r", "s"]),
        (vec![low("p", 100), low("q", 99), low("r", 101), low("s", 98)], vec!["q", "s"]),
        (vec![on("p", 9), on("q", 7), on("r", 8), on("s", 6)], vec!["r", "p"]),
        (vec![low("p", 10), low("q", 10)], vec![]),
        (vec![low("p", 10), low("q", 20), low("r", 200)], vec!["p"]),
    ] {
        let (_, commands) = deciding(&things(pods));
        assert_eq!(victims(&commands), wanted);
        assert_eq!(all_bound(&commands).is_empty(), !wanted.is_empty());
    }
}

#[test]
fn victim_group_in_pod_group_disruption_mode_loses_all_its_pods_or_none() {
    let members = ["x", "y"].map(|name| on(name, "n", Some("w"), 0, 0));
    let far = on("z", "m", Some("w"), 0, 0);
    let base = [node("n", "3"), node("m", "1"), member("a", "g", 100), far];
    let all = |more: Vec<WatchedObject>| {
        let all = base.iter().chain(&members).cloned().chain(more);
        deciding(&all.collect::<Vec<WatchedObject>>()).1
    };
    let p = || low("p", 50);
    // The group's own priority counts, not that of its pods.
    let commands = all(vec![gang("g", 100, 1), whole("w", 10), p()]);
    assert_eq!(victims(&commands), ["x", "y", "z"]);
    let commands = all(vec![gang("g", 100, 1), whole("w", 60), p()]);
    assert_eq!(victims(&commands), ["p"]);
    let commands = all(vec![gang("g", 100, 1), whole("w", 100), p()]);
    assert_eq!(victims(&commands), ["p"]);
    // At equal priority a group is more important than a pod.
    let commands = all(vec![gang("g", 100, 1), whole("w", 50), p()]);
    assert_eq!(victims(&commands), ["p"]);
    // Without the mode, or without the group object, pods of a group are preempted one by one.
    for w in [vec![gang("w", 10, 1)], vec![]] {
        let commands = all(w.into_iter().chain([gang("g", 100, 1), p()]).collect());
        let gone = victims(&commands);
        assert!(gone.len() == 1 && gone != ["p"], "{gone:?}");
    }
}

#[test]
fn pods_and_groups_that_would_violate_a_disruption_budget_are_preempted_last() {
    let guarded = |name: &str, group: Option<&str>| {
        pod(name, group, 50, |pod| {
            pod["spec"]["nodeName"] = json!("n");
            pod["metadata"]["labels"] = json!({"app": "x"});
        })
    };
    let budget = |allowed: i32| {
        WatchedObject::PodDisruptionBudget(object(json!({
            "metadata": {"name": "b", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "x"}}},
            "status": {"disruptionsAllowed": allowed, "currentHealthy": 0, "desiredHealthy": 0,
                "expectedPods": 0}})))
    };
    let base = [node("n", "3"), gang("g", 100, 1), member("a", "g", 100), whole("w", 40)];
    let all = |more: Vec<WatchedObject>| {
        let all = base.iter().cloned().chain(more);
        deciding(&all.collect::<Vec<WatchedObject>>()).1
    };
    // The group is less important, but protected by a budget.
    let group = || vec![guarded("x", Some("w")), guarded("y", Some("w"))];
    for (allowed, wanted) in [(1, vec!["p"]), (2, vec!["x", "y"])] {
        let more = group().into_iter().chain([low("p", 60), budget(allowed)]);
        assert_eq!(victims(&all(more.collect())), wanted);
    }
    // Without other candidates its pods are preempted nevertheless.
    let more = group().into_iter().chain([low("p", 100), budget(0)]);
    assert_eq!(victims(&all(more.collect())), ["x", "y"]);
}

#[test]
fn group_condition_reports_why_no_pod_is_preempted_for_the_group() {
    let base =
        |group: WatchedObject| vec![node("n", "1"), group, low("x", 10), member("a", "g", 100)];
    let never = "not eligible due to preemptionPolicy=Never.";
    let mut things = base(gang("g", 100, 1));
    let calm = |pod: &mut Value| pod["spec"]["preemptionPolicy"] = json!("Never");
    things.push(pod("b", Some("g"), 100, calm));
    assert_eq!(refused(&things), unschedulable(never));
    // The group's priority counts, not that of its pods.
    let nobody = "No preemption victims found for incoming preemptor";
    assert_eq!(refused(&base(gang("g", 10, 1))), unschedulable(nobody));
    let mut things = base(gang("g", 100, 2));
    things.push(member("b", "g", 100));
    assert_eq!(refused(&things), unschedulable(UNSCHEDULABLE));
    let disabled =
        "default preemption plugin is not registered, workload aware preemption is disabled";
    let profile = pintle_sched_core::Profile { preemption: false, ..Default::default() };
    let scheduler = Scheduler::new(vec![profile], super::tests::without_second_look(), 1);
    let mut scheduler = with_groups_and_lists(scheduler, GATES, &base(gang("g", 100, 1)));
    assert_eq!(conditions(&decide(&mut scheduler, 0)).1, unschedulable(disabled));
}

#[test]
fn group_with_topology_constraints_preempts_no_pod() {
    let gates = GroupGates { topology: true, ..GATES };
    let racked = |topology: Value| {
        group("g", 100, Some(1), |spec| {
            spec["schedulingConstraints"] = json!({"topology": topology})
        })
    };
    let things =
        |group: WatchedObject| [node("n", "1"), group, low("x", 10), member("a", "g", 100)];
    let of = |group: WatchedObject| {
        let mut scheduler = scheduler_with_groups(gates, &things(group));
        let commands = decide(&mut scheduler, 0);
        let gone = victims(&commands).len();
        (gone, conditions(&commands).1)
    };
    let no =
        "workload aware preemption is not supported for pod groups with scheduling constraints";
    let message = format!("no feasible placements found, {no}");
    let wanted = texts(&[["False", "Unschedulable", &message]]);
    assert_eq!(of(racked(json!([{"key": "rack"}]))), (0, wanted));
    // Empty constraints, and none at all, change nothing.
    let placements = "0/1 placements are available, first placement status: pod group is \
        unschedulable";
    let wanted = texts(&[["False", "Unschedulable", placements]]);
    assert_eq!(of(gang("g", 100, 1)), (1, wanted.clone()));
    assert_eq!(of(racked(json!([]))), (1, wanted));
}

#[test]
fn basic_group_preempts_for_one_pod_at_a_time() {
    let basic = group("g", 100, None, |_| {});
    let mut things = vec![node("n", "2"), basic, low("x", 10), low("y", 20)];
    things.extend(["a", "b"].map(|name| member(name, "g", 100)));
    let (mut scheduler, commands) = deciding(&things);
    assert_eq!(victims(&commands), ["x"]);
    scheduler.handle(WatchEvent::Gone(low("x", 10)), at(1));
    ended(&mut scheduler, true, 1);
    // One pod of the group fits, so there is no preemption for the others.
    let commands = decide(&mut scheduler, 60);
    assert_eq!((all_bound(&commands).len(), victims(&commands).len()), (1, 0));
    let commands = decide(&mut scheduler, 120);
    assert_eq!((all_bound(&commands).len(), victims(&commands)), (0, vec!["y"]));
}

#[test]
fn terminating_victim_of_a_group_is_not_evicted_again() {
    let mut things = vec![node("n", "1"), gang("g", 100, 1), member("a", "g", 100)];
    let going = |pod: &mut Value| {
        pod["spec"]["nodeName"] = json!("n");
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    };
    things.push(pod("x", None, 1, going));
    let (mut scheduler, commands) = deciding(&things);
    assert_eq!((victims(&commands), all_bound(&commands)), (vec![], vec![]));
    assert_eq!(conditions(&commands).1, texts(&[["False", "Unschedulable", UNSCHEDULABLE]]));
    assert_eq!(results(&mut scheduler), ["waiting_on_preemption"]);
    // Nothing is written: the group is not held.
    assert_eq!(scheduler.count(QueuePlace::Gated), 0);
}

#[test]
fn group_with_a_failed_eviction_is_retried_at_once() {
    let mut things = vec![node("n", "1"), gang("g", 100, 1), member("a", "g", 100)];
    things.push(low("x", 10));
    let (mut scheduler, commands) = deciding(&things);
    assert_eq!(victims(&commands), ["x"]);
    assert_eq!(decide(&mut scheduler, 60), []);
    ended(&mut scheduler, false, 60);
    assert_eq!(victims(&decide(&mut scheduler, 60)), ["x"]);
}
