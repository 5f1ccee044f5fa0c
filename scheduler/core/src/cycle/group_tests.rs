//! Pods of a group are decided together, and bound together or not at all; conditions of each.

use serde_json::{Value, json};

use super::tests::{answer, at, bound, decide, node, object, question, with, without_second_look};
use super::*;
use crate::extender::consulted::Nodes;
use crate::groups::{GroupGates, Groups};
use crate::watch_event::{KINDS, WatchEvent, WatchedKind, WatchedObject};

const TOO_FEW: &str = "pod group is unschedulable, waiting for minCount pods from a gang to be \
    scheduled, one or more plugins asked to wait and no plugin rejected pod";

/// The pod or the group's status, a reason, and a message.
pub(super) type Text = (String, String, String);

fn group(name: &str, policy: &Value) -> WatchedObject {
    WatchedObject::PodGroup(object(json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("g-{name}"),
            "generation": 1},
        "spec": {"schedulingPolicy": policy},
    })))
}

fn gang(name: &str, min: i32) -> WatchedObject {
    group(name, &json!({"gang": {"minCount": min}}))
}

fn basic(name: &str) -> WatchedObject {
    group(name, &json!({"basic": {}}))
}

fn member(name: &str, group: &str, cpu: &str) -> WatchedObject {
    with(name, cpu, |pod| pod["spec"]["schedulingGroup"] = json!({"podGroupName": group}))
}

pub(super) fn scheduler_with_groups(gates: GroupGates, things: &[WatchedObject]) -> Scheduler {
    with_groups_and_lists(Scheduler::new(Vec::new(), without_second_look(), 1), gates, things)
}

pub(super) fn with_groups_and_lists(
    scheduler: Scheduler,
    gates: GroupGates,
    things: &[WatchedObject],
) -> Scheduler {
    let mut scheduler = scheduler.with_groups(Groups::new(gates));
    for kind in KINDS.into_iter().chain([WatchedKind::PodGroup]) {
        scheduler.handle(WatchEvent::Begun(kind), at(0));
        for thing in things.iter().filter(|thing| thing.kind() == kind) {
            scheduler.handle(WatchEvent::Listed(thing.clone()), at(0));
        }
        scheduler.handle(WatchEvent::Complete(kind), at(0));
    }
    scheduler
}

fn scheduler_with(things: &[WatchedObject]) -> Scheduler {
    scheduler_with_groups(GroupGates { gangs: true, ..GroupGates::default() }, things)
}

fn scheduler_with_racks(things: &[WatchedObject]) -> Scheduler {
    scheduler_with_groups(
        GroupGates { gangs: true, topology: true, ..GroupGates::default() },
        things,
    )
}

/// A node in a rack.
fn in_rack(name: &str, rack: &str, cpu: &str) -> WatchedObject {
    WatchedObject::Node(object(json!({
        "metadata": {"name": name, "labels": {"rack": rack}},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}},
    })))
}

/// A group that stays in one rack.
fn racked(name: &str, policy: &Value) -> WatchedObject {
    WatchedObject::PodGroup(object(json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("g-{name}")},
        "spec": {"schedulingPolicy": policy,
            "schedulingConstraints": {"topology": [{"key": "rack"}]}},
    })))
}

pub(super) fn all_bound(commands: &[Command]) -> Vec<String> {
    let all = commands.iter().filter_map(bound);
    let mut all: Vec<String> =
        all.map(|(pod, node)| format!("{}@{node}", pod.key.name())).collect();
    all.sort_unstable();
    all
}

/// The conditions of the pods, and of the groups.
pub(super) fn conditions(commands: &[Command]) -> (Vec<Text>, Vec<Text>) {
    let (mut pods, mut groups) = (Vec::new(), Vec::new());
    for command in commands {
        match command {
            Command::Status { pod, condition: Some(condition), .. } => {
                let (reason, message) = (condition.reason.clone(), condition.message.clone());
                let name = pod.whole().metadata.name.clone().expect("a name");
                pods.push((name, reason.expect("a reason"), message.expect("a message")));
            }
            Command::GroupStatus { condition, .. } => {
                let (reason, message) = (condition.reason.clone(), condition.message.clone());
                let (reason, message) = (reason.expect("a reason"), message.expect("a message"));
                groups.push((condition.status.clone(), reason, message));
            }
            _ => {}
        }
    }
    pods.sort_unstable();
    (pods, groups)
}

pub(super) fn texts(all: &[[&str; 3]]) -> Vec<Text> {
    all.iter().map(|[a, b, c]| ((*a).to_owned(), (*b).to_owned(), (*c).to_owned())).collect()
}

pub(super) fn results(scheduler: &mut Scheduler) -> Vec<&'static str> {
    let facts = scheduler.take_facts().into_iter().filter_map(|fact| match fact {
        Fact::Group { result, .. } => Some(result),
        _ => None,
    });
    facts.collect()
}

#[test]
fn a_gang_that_fits_is_bound_as_a_whole() {
    let mut scheduler = scheduler_with(&[
        node("n", "2"),
        gang("g", 2),
        member("a", "g", "1"),
        member("b", "g", "1"),
    ]);
    let commands = decide(&mut scheduler, 0);
    assert_eq!(all_bound(&commands), ["a@n", "b@n"]);
    assert_eq!(conditions(&commands), (vec![], texts(&[["True", "Scheduled", ""]])));
    assert_eq!(results(&mut scheduler), ["scheduled"]);
    assert_eq!((scheduler.assumed(), scheduler.count(QueuePlace::Binding)), (2, 2));
}

#[test]
fn gang_that_does_not_fit_binds_no_pod_and_assumes_none() {
    let mut scheduler = scheduler_with(&[
        node("n", "1"),
        gang("g", 2),
        member("a", "g", "1"),
        member("b", "g", "1"),
    ]);
    let commands = decide(&mut scheduler, 0);
    assert_eq!(all_bound(&commands), [""; 0]);
    let full = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, \
        preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.";
    let pods = texts(&[["a", "Unschedulable", TOO_FEW], ["b", "Unschedulable", full]]);
    let groups = texts(&[["False", "Unschedulable", "pod group is unschedulable"]]);
    assert_eq!(conditions(&commands), (pods, groups));
    assert_eq!(results(&mut scheduler), ["unschedulable"]);
    assert_eq!(scheduler.assumed(), 0);
    // The room of its dry run is free for another pod.
    scheduler.handle(WatchEvent::Set(with("c", "1", |_| {})), at(1));
    assert_eq!(all_bound(&decide(&mut scheduler, 1)), ["c@n"]);
}

#[test]
fn gang_waits_for_its_group_object_and_its_minimum_pod_count() {
    let mut scheduler = scheduler_with(&[node("n", "9"), member("a", "g", "1")]);
    assert_eq!(decide(&mut scheduler, 0), []);
    assert_eq!(scheduler.count(QueuePlace::Gated), 1);
    scheduler.handle(WatchEvent::Set(gang("g", 3)), at(1));
    scheduler.handle(WatchEvent::Set(member("b", "g", "1")), at(1));
    scheduler.handle(WatchEvent::Set(member("x", "other", "1")), at(1));
    assert_eq!(decide(&mut scheduler, 1), []);
    assert_eq!(scheduler.count(QueuePlace::Gated), 3);
    scheduler.handle(WatchEvent::Set(member("c", "g", "1")), at(2));
    assert_eq!(all_bound(&decide(&mut scheduler, 2)), ["a@n", "b@n", "c@n"]);
    scheduler.handle(WatchEvent::Set(basic("other")), at(3));
    assert_eq!(all_bound(&decide(&mut scheduler, 3)), ["x@n"]);
}

#[test]
fn gang_member_that_arrives_bound_counts_for_the_waiting_gang() {
    let mut scheduler = scheduler_with(&[node("n", "8"), gang("g", 2), member("a", "g", "1")]);
    assert_eq!(all_bound(&decide(&mut scheduler, 0)), Vec::<String>::new());
    let WatchedObject::Pod(mut there) = member("b", "g", "1") else { unreachable!("a pod") };
    there.spec.get_or_insert_default().node_name = Some("n".to_owned());
    scheduler.handle(WatchEvent::Set(WatchedObject::Pod(there)), at(5));
    assert_eq!(all_bound(&decide(&mut scheduler, 5)), ["a@n"]);
}

#[test]
fn basic_group_binds_each_pod_that_fits() {
    let things = [node("n", "1"), basic("g"), member("a", "g", "1"), member("b", "g", "1")];
    for gangs in [true, false] {
        let mut scheduler =
            scheduler_with_groups(GroupGates { gangs, ..GroupGates::default() }, &things);
        let commands = decide(&mut scheduler, 0);
        assert_eq!(all_bound(&commands), ["a@n"]);
        let (pods, groups) = conditions(&commands);
        assert_eq!((pods.len(), &*pods[0].0), (1, "b"));
        assert_eq!(groups, texts(&[["True", "Scheduled", ""]]));
    }
}

#[test]
fn gang_pods_do_not_wait_for_each_other_without_the_feature_gate() {
    let things = [node("n", "1"), gang("g", 2), member("a", "g", "1")];
    let mut scheduler = scheduler_with_groups(GroupGates::default(), &things);
    assert_eq!(all_bound(&decide(&mut scheduler, 0)), ["a@n"]);
    // Without any gate there is no group either.
    let mut scheduler = super::tests::scheduler_with(things.to_vec());
    let commands = decide(&mut scheduler, 0);
    assert_eq!((all_bound(&commands), commands.len()), (vec!["a@n".to_owned()], 1));
}

#[test]
fn surplus_gang_pods_are_bound_as_they_fit_and_the_group_stays_scheduled() {
    let mut scheduler = scheduler_with(&[
        node("n", "2"),
        gang("g", 2),
        member("a", "g", "1"),
        member("b", "g", "1"),
        member("c", "g", "1"),
    ]);
    let commands = decide(&mut scheduler, 0);
    assert_eq!(all_bound(&commands), ["a@n", "b@n"]);
    assert_eq!(conditions(&commands).1, texts(&[["True", "Scheduled", ""]]));
    // A later cycle for the remaining pod does not revert that.
    let commands = decide(&mut scheduler, 60);
    assert_eq!((all_bound(&commands), conditions(&commands).1), (vec![], vec![]));
    scheduler.handle(WatchEvent::Set(node("m", "1")), at(120));
    assert_eq!(all_bound(&decide(&mut scheduler, 120)), ["c@m"]);
}

#[test]
fn gang_is_retried_after_its_backoff_without_any_event() {
    let mut scheduler = scheduler_with(&[
        node("n", "1"),
        gang("g", 2),
        member("a", "g", "1"),
        member("b", "g", "1"),
    ]);
    decide(&mut scheduler, 0);
    scheduler.take_facts();
    decide(&mut scheduler, 600);
    assert_eq!(results(&mut scheduler), ["unschedulable"]);
    scheduler.handle(WatchEvent::Set(node("n", "2")), at(601));
    assert_eq!(all_bound(&decide(&mut scheduler, 1200)), ["a@n", "b@n"]);
}

#[test]
fn highest_priority_pods_of_a_gang_are_bound_first() {
    let important = |name: &str| match member(name, "g", "1") {
        WatchedObject::Pod(mut pod) => {
            pod.spec.as_mut().expect("a spec").priority = Some(1);
            WatchedObject::Pod(pod)
        }
        other => other,
    };
    let things = [node("n", "1"), gang("g", 1), member("a", "g", "1"), important("b")];
    assert_eq!(all_bound(&decide(&mut scheduler_with(&things), 0)), ["b@n"]);
}

#[test]
fn gang_with_victims_waits_for_preemption_as_a_whole() {
    let low = with("low", "1", |pod| {
        pod["spec"]["nodeName"] = json!("n");
        pod["spec"]["priority"] = json!(-1);
    });
    let things =
        [node("n", "2"), gang("g", 2), member("a", "g", "1"), member("b", "g", "1"), low.clone()];
    let mut scheduler = scheduler_with(&things);
    let commands = decide(&mut scheduler, 0);
    assert_eq!(all_bound(&commands), [""; 0]);
    let evicted = commands.iter().filter_map(|command| match command {
        Command::Evict { victims, pod, .. } => Some((victims[0].key.name(), pod.clone())),
        _ => None,
    });
    let evicted: Vec<_> = evicted.collect();
    assert_eq!((evicted.len(), evicted[0].0), (1, "low"));
    assert_eq!(super::tests::nominated(&commands), ["n", "n"]);
    let (pods, groups) = conditions(&commands);
    let waits = "pod group is unschedulable, pod group is waiting for preemption to complete";
    assert_eq!(groups, texts(&[["False", "Unschedulable", waits]]));
    let first = &pods[0];
    assert_eq!((&*first.0, &*first.1, &*first.2), ("a", "Unschedulable", waits));
    assert!(pods[1].2.starts_with("0/1 nodes are available: 1 Insufficient cpu."), "{pods:?}");
    assert_eq!(results(&mut scheduler), ["waiting_on_preemption"]);
    let all = Evicted { pod: evicted[0].1.clone(), all: true, took: Duration::ZERO };
    scheduler.handle(WatchEvent::Gone(low), at(1));
    scheduler.evicted(&all, at(1));
    assert_eq!(all_bound(&decide(&mut scheduler, 60)), ["a@n", "b@n"]);
}

/// A scheduler with two profiles and no objects.
fn with_two_profiles() -> Scheduler {
    let profile = |name: &str| Profile { scheduler_name: name.to_owned(), ..Profile::default() };
    let profiles = vec![profile("default-scheduler"), profile("other")];
    let scheduler = Scheduler::new(profiles, without_second_look(), 1);
    with_groups_and_lists(scheduler, GroupGates { gangs: true, ..GroupGates::default() }, &[])
}

/// A pod of a group that names the other profile.
fn of_other(name: &str, group: &str, cpu: &str, priority: i32) -> WatchedObject {
    with(name, cpu, |pod| {
        pod["spec"]["schedulingGroup"] = json!({"podGroupName": group});
        pod["spec"]["schedulerName"] = json!("other");
        pod["spec"]["priority"] = json!(priority);
    })
}

#[test]
fn group_with_several_scheduler_names_gets_a_scheduler_error() {
    let mut scheduler = with_two_profiles();
    let pods = [member("a", "g", "1"), of_other("b", "g", "1", 0)];
    for thing in [node("n", "2"), gang("g", 2)].into_iter().chain(pods) {
        scheduler.handle(WatchEvent::Set(thing), at(0));
    }
    let commands = decide(&mut scheduler, 0);
    let why = "all pods in a single pod group should have the same .spec.schedulerName set, got: \
        \"other\" and \"default-scheduler\"";
    let all = texts(&[["a", "SchedulerError", why], ["b", "SchedulerError", why]]);
    assert_eq!(conditions(&commands).0, all);
    assert_eq!(scheduler.assumed(), 0);
}

#[test]
fn mixed_scheduler_names_of_a_group_are_reported_whichever_pod_arrives_last() {
    let mut scheduler = with_two_profiles();
    for thing in [node("n", "2"), basic("g"), of_other("b", "g", "9", 10)] {
        scheduler.handle(WatchEvent::Set(thing), at(0));
    }
    decide(&mut scheduler, 0);
    scheduler.handle(WatchEvent::Set(member("a", "g", "1")), at(1));
    let why = "all pods in a single pod group should have the same .spec.schedulerName set, got: \
        \"default-scheduler\" and \"other\"";
    let all = texts(&[["a", "SchedulerError", why], ["b", "SchedulerError", why]]);
    assert_eq!(conditions(&decide(&mut scheduler, 1)).0, all);
}

#[test]
fn a_group_with_a_topology_gets_all_its_nodes_in_one_domain() {
    let gang = racked("g", &json!({"gang": {"minCount": 2}}));
    let pods = [member("a", "g", "1"), member("b", "g", "1")];
    let nodes = [in_rack("x1", "x", "1"), in_rack("y1", "y", "1"), in_rack("y2", "y", "1")];
    let all: Vec<WatchedObject> =
        nodes.iter().cloned().chain([gang.clone()]).chain(pods.clone()).collect();
    let commands = decide(&mut scheduler_with_racks(&all), 0);
    let bound = all_bound(&commands);
    assert!(bound == ["a@y1", "b@y2"] || bound == ["a@y2", "b@y1"], "{bound:?}");
    // Two nodes of different racks are not enough.
    let mut scheduler =
        scheduler_with_racks(&[&nodes[..2], std::slice::from_ref(&gang), &pods].concat());
    let commands = decide(&mut scheduler, 0);
    assert_eq!(all_bound(&commands), [""; 0]);
    let why = "0/2 placements are available, first placement status: pod group is unschedulable";
    let full = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, \
        preemption: not eligible due to placement-based pod group scheduling limitation";
    let texts_of = texts(&[["a", "Unschedulable", TOO_FEW], ["b", "Unschedulable", full]]);
    assert_eq!(conditions(&commands), (texts_of, texts(&[["False", "Unschedulable", why]])));
    assert_eq!(scheduler.assumed(), 0);
    // Neither are they with the NodeName plugin disabled.
    let mut profile = Profile::default();
    profile.filters[Plugin::NodeName as usize] = false;
    let apart = [&nodes[..2], std::slice::from_ref(&gang), &pods].concat();
    let of_racks = GroupGates { gangs: true, topology: true, ..GroupGates::default() };
    let scheduler = Scheduler::new(vec![profile], without_second_look(), 1);
    let commands = decide(&mut with_groups_and_lists(scheduler, of_racks, &apart), 0);
    assert_eq!(all_bound(&commands), [""; 0]);
    // Neither is a node without a rack.
    let mut scheduler = scheduler_with_racks(&[&[node("n", "9"), gang], &pods[..]].concat());
    let commands = decide(&mut scheduler, 0);
    let none = "no feasible placements found";
    let texts_of = texts(&[["a", "Unschedulable", none], ["b", "Unschedulable", none]]);
    assert_eq!(conditions(&commands), (texts_of, texts(&[["False", "Unschedulable", none]])));
}

#[test]
fn later_pod_of_a_group_is_placed_in_the_domain_of_its_group() {
    let basic = racked("g", &json!({"basic": {}}));
    let there = with("a", "1", |pod| {
        pod["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
        pod["spec"]["nodeName"] = json!("x1");
    });
    let nodes = [in_rack("x1", "x", "2"), in_rack("y1", "y", "9")];
    let things = [&nodes[..], &[basic.clone(), there, member("b", "g", "1")]].concat();
    let mut scheduler = scheduler_with_racks(&things);
    assert_eq!(all_bound(&decide(&mut scheduler, 0)), ["b@x1"]);
    scheduler.handle(WatchEvent::Set(member("c", "g", "1")), at(1));
    assert_eq!(all_bound(&decide(&mut scheduler, 1)), [""; 0]);
    // Pods in two racks are an error that persists.
    let other = with("z", "1", |pod| {
        pod["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
        pod["spec"]["nodeName"] = json!("y1");
    });
    let mut scheduler = scheduler_with_racks(&[&things[..], &[other]].concat());
    let commands = decide(&mut scheduler, 0);
    let why = "cannot determine domain for already scheduled pods: more than 1 domain found for \
        pod group: x, y";
    assert_eq!(conditions(&commands).0, texts(&[["b", "SchedulerError", why]]));
}

#[test]
fn domain_that_fits_more_pods_wins_then_the_fuller_domain() {
    let basic = racked("g", &json!({"basic": {}}));
    let pods = [member("a", "g", "1"), member("b", "g", "1")];
    let more = [in_rack("x1", "x", "1"), in_rack("y1", "y", "2")];
    let commands = decide(
        &mut scheduler_with_racks(&[&more[..], std::slice::from_ref(&basic), &pods].concat()),
        0,
    );
    assert_eq!(all_bound(&commands), ["a@y1", "b@y1"]);
    let fuller = [in_rack("x1", "x", "9"), in_rack("y1", "y", "3"), in_rack("z1", "z", "8")];
    let commands = decide(&mut scheduler_with_racks(&[&fuller[..], &[basic], &pods].concat()), 0);
    assert_eq!(all_bound(&commands), ["a@y1", "b@y1"]);
}

#[test]
fn with_the_gate_of_topologies_other_groups_are_decided_as_before() {
    let pods = [member("a", "g", "1"), member("b", "g", "1")];
    let things = [&[node("n", "2"), gang("g", 2)], &pods[..]].concat();
    let commands = decide(&mut scheduler_with_racks(&things), 0);
    assert_eq!(all_bound(&commands), ["a@n", "b@n"]);
    // Without the gate the topology is ignored.
    let gang = racked("g", &json!({"gang": {"minCount": 2}}));
    let nodes = [in_rack("x1", "x", "1"), in_rack("y1", "y", "1")];
    let commands = decide(&mut scheduler_with(&[&nodes[..], &[gang], &pods].concat()), 0);
    assert_eq!(all_bound(&commands).len(), 2);
}

/// Pods of a node in the cache.
fn on(scheduler: &Scheduler, node: &str) -> Vec<String> {
    let cluster = &scheduler.cache.cluster;
    let row = cluster.row(node).expect("it is there");
    cluster.pods().on_node(row).map(|id| cluster.pod_name(id)).collect()
}

#[test]
fn group_pod_bound_elsewhere_during_an_extender_call_stays_on_its_node() {
    let left = || Nodes { left: ["n".to_owned()].into(), ..Nodes::default() };
    let elsewhere = |name: &str| {
        with(name, "1", |pod| {
            pod["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
            pod["spec"]["nodeName"] = json!("x");
        })
    };
    let things = [node("n", "4"), node("x", "4"), basic("g")];
    let things = [&things[..], &[member("a", "g", "1"), member("b", "g", "1")]].concat();
    // Another scheduler binds either the pod that is decided later, or the assumed pod.
    for (bound_by_other, asked_first, expected) in [("b", true, "a@n"), ("a", false, "b@n")] {
        let extender = Extender { node_cache_capable: true, ..Extender::default() };
        let extender = Extender { filter_verb: "filter".to_owned(), ..extender };
        let scheduler = Scheduler::new(Vec::new(), without_second_look(), 1);
        let scheduler = scheduler.with_extenders(vec![extender]);
        let mut scheduler = with_groups_and_lists(scheduler, GroupGates::default(), &things);
        let mut consult = question(&decide(&mut scheduler, 0)).expect("the first is asked about");
        if !asked_first {
            scheduler.consulted(answer(&consult, left()), at(1));
            consult = question(&decide(&mut scheduler, 1)).expect("the second is asked about");
        }
        scheduler.handle(WatchEvent::Set(elsewhere(bound_by_other)), at(2));
        scheduler.consulted(answer(&consult, left()), at(3));
        let commands = decide(&mut scheduler, 3);
        assert_eq!((all_bound(&commands), question(&commands)), (vec![expected.to_owned()], None));
        assert_eq!(on(&scheduler, "x"), [format!("default/{bound_by_other}")]);
        assert_eq!(scheduler.count(QueuePlace::InFlight), 0);
    }
}
