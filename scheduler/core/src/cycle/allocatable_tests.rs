//! Node-allocatable devices, from the decision to the binding.

use k8s_openapi::api::core::v1::NodeAllocatableResourceClaimStatus;
use serde_json::{Value, json};

use super::device_tests::{answer, claim, class, has, read, reserves, user};
use super::tests::{
    at, bound, condition, decide, deliver_lists, node, pod, with, without_second_look,
};
use super::*;
use crate::plugins::dynamicresources::DeviceGates;
use crate::watch_event::{WatchEvent, WatchedObject};

const ON: DeviceGates = DeviceGates { taint_rules: false, lists: false, allocatable: true };

/// Devices of a node that consume this many CPUs each.
fn cards(node: &str, cpu: &str, names: &[&str]) -> WatchedObject {
    let takes = json!({"cpu": {"allocationMultiplier": cpu}});
    let one = |name: &&str| json!({"name": name, "nodeAllocatableResourceMappings": takes});
    let devices: Vec<Value> = names.iter().map(one).collect();
    WatchedObject::ResourceSlice(read(json!({
        "metadata": {"name": format!("slice-{node}")},
        "spec": {"driver": "d.example", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}},
    })))
}

/// A pod with a container that uses a claim.
fn uses(name: &str, claim: &str, change: impl FnOnce(&mut Value)) -> WatchedObject {
    with(name, "1", |pod| {
        pod["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": claim}]);
        pod["spec"]["containers"][0]["resources"]["claims"] = json!([{"name": "c"}]);
        change(pod);
    })
}

fn status(claim: &str, cpu: &str) -> Value {
    json!([{"resourceClaimName": claim, "containers": ["c"], "resources": {"cpu": cpu}}])
}

fn scheduler_with(gates: DeviceGates, things: &[WatchedObject]) -> Scheduler {
    let scheduler = Scheduler::new(Vec::new(), without_second_look(), 1);
    let mut scheduler = scheduler.with_device_gates(gates);
    deliver_lists(&mut scheduler, things);
    scheduler
}

/// The device statuses for a pod's status, as JSON.
fn said(commands: &[Command]) -> Option<Value> {
    commands.iter().find_map(|command| match command {
        Command::ReserveDevices { statuses, .. } => Some(json!(statuses)),
        _ => None,
    })
}

/// The number of released claims, and whether the pod's status is cleared.
fn released(commands: &[Command]) -> Option<(usize, bool)> {
    commands.iter().find_map(|command| match command {
        Command::ReleaseDevices { claims, clears, .. } => Some((claims.len(), *clears)),
        _ => None,
    })
}

/// CPUs in use on the only node.
fn used(scheduler: &Scheduler) -> i64 {
    scheduler.cache.cluster.view().numbers(0).cpu_used
}

fn base() -> Vec<WatchedObject> {
    vec![class(), node("a", "4"), cards("a", "2", &["g0", "g1"]), claim("c")]
}

#[test]
fn node_allocatable_devices_count_on_the_node_before_and_after_binding() {
    let mut things = base();
    things.extend([uses("p", "c", |_| ()), pod("q", "2")]);
    let mut scheduler = scheduler_with(ON, &things);
    let commands = decide(&mut scheduler, 0);
    // One CPU of its own and two of the device leave no room for another pod with two.
    assert_eq!(said(&commands), Some(status("c", "2")));
    assert_eq!(used(&scheduler), 3000);
    let why = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, \
        preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.";
    assert_eq!(condition(&commands), Some(("Unschedulable".to_owned(), why.to_owned())));
    assert!(commands.iter().all(|command| bound(command).is_none()), "not before it is written");
    let asked = reserves(&commands).expect("it is reserved");
    let commands = answer(&mut scheduler, &asked, 1);
    let (of, node) = commands.iter().find_map(bound).expect("it is bound");
    scheduler.ended(&of, &node, BindingResult::Bound, at(1));
    // The pod as the API then has it.
    let told = uses("p", "c", |pod| {
        pod["spec"]["nodeName"] = json!("a");
        pod["metadata"]["resourceVersion"] = json!("9");
        pod["status"] = json!({"nodeAllocatableResourceClaimStatuses": status("c", "2")});
    });
    scheduler.handle(WatchEvent::Set(told.clone()), at(2));
    assert_eq!((scheduler.assumed(), used(&scheduler)), (0, 3000));
    scheduler.handle(WatchEvent::Gone(told), at(3));
    assert_eq!(used(&scheduler), 0);
    assert!(decide(&mut scheduler, 10).iter().any(|command| bound(command).is_some()));
}

#[test]
fn devices_and_statuses_consume_no_node_resources_without_the_feature_gate() {
    let mut things = base();
    let other = uses("other", "d", |pod| {
        pod["spec"]["nodeName"] = json!("a");
        pod["status"] = json!({"nodeAllocatableResourceClaimStatuses": status("d", "2")});
    });
    things.extend([uses("p", "c", |_| ()), other]);
    let mut scheduler = scheduler_with(DeviceGates::default(), &things);
    let commands = decide(&mut scheduler, 0);
    assert_eq!((said(&commands), used(&scheduler)), (Some(json!([])), 2000));
}

#[test]
fn node_allocatable_devices_of_pods_are_known_from_status_after_a_restart() {
    let mut things = base();
    let other = uses("other", "d", |pod| {
        pod["spec"]["nodeName"] = json!("a");
        pod["status"] = json!({"nodeAllocatableResourceClaimStatuses": status("d", "2")});
    });
    things.extend([has("d", 1, "a", "g0", &["other"]), other, uses("p", "c", |_| ())]);
    let mut scheduler = scheduler_with(ON, &things);
    assert_eq!(used(&scheduler), 3000);
    // The pod's own CPU alone would fit.
    let why = "0/1 nodes are available: 1 Insufficient cpu. still not schedulable, preemption: 0/1 \
        nodes are available: 1 No preemption victims found for incoming pod.";
    let commands = decide(&mut scheduler, 0);
    assert_eq!(condition(&commands), Some(("Unschedulable".to_owned(), why.to_owned())));
}

#[test]
fn a_claim_that_another_pod_of_the_node_uses_so_cannot_be_shared() {
    let mut things = base();
    let other = uses("other", "d", |pod| {
        pod["spec"]["nodeName"] = json!("a");
        pod["status"] = json!({"nodeAllocatableResourceClaimStatuses": status("d", "500m")});
    });
    things.extend([has("d", 1, "a", "g0", &["other"]), other, uses("p", "d", |_| ())]);
    let mut scheduler = scheduler_with(ON, &things);
    let why = "0/1 nodes are available: 1 node allocatable resource claim d is already used by \
        another pod. still not schedulable, preemption: 0/1 nodes are available: 1 Preemption is \
        not helpful for scheduling.";
    let commands = decide(&mut scheduler, 0);
    assert_eq!(condition(&commands), Some(("Unschedulable".to_owned(), why.to_owned())));
    let mut scheduler = scheduler_with(DeviceGates::default(), &things);
    assert!(reserves(&decide(&mut scheduler, 0)).is_some(), "without the gate it can");
}

#[test]
fn pod_that_can_never_use_node_allocatable_devices_reports_the_reason() {
    let idle = |pod: &mut Value| {
        pod["spec"]["containers"][0]["resources"]["claims"] = Value::Null;
    };
    let little = |pod: &mut Value| pod["spec"]["resources"] = json!({"requests": {"cpu": "2"}});
    let of_pod = "pod level request for cpu is insufficient to cover the aggregated container and \
        node-allocatable DRA requests";
    let unused =
        "claim c: node-allocatable resource claim not referenced by any container within the pod";
    for (change, why) in [(&idle as &dyn Fn(&mut Value), unused), (&little, of_pod)] {
        let mut things = base();
        things.push(uses("p", "c", change));
        let mut scheduler = scheduler_with(ON, &things);
        let commands = decide(&mut scheduler, 0);
        let (_, text) = condition(&commands).expect("a condition");
        let all = format!("0/1 nodes are available: 1 {why}.");
        assert!(text.starts_with(&all) && text.ends_with("not helpful for scheduling."), "{text}");
    }
}

/// A deleted pod frees node resources for devices, which NodeResourcesFit does not consider.
#[test]
fn pods_of_lower_priority_make_room_for_devices() {
    let mut things = base();
    let other = with("other", "2", |pod| {
        pod["spec"]["nodeName"] = json!("a");
        pod["spec"]["priority"] = json!(-1);
    });
    let stays = with("stays", "1", |pod| pod["spec"]["nodeName"] = json!("a"));
    things.extend([other, stays, uses("p", "c", |pod| pod["spec"]["priority"] = json!(5))]);
    let mut scheduler = scheduler_with(ON, &things);
    let commands = decide(&mut scheduler, 0);
    let evicted = commands.iter().find_map(|command| match command {
        Command::Evict { victims, .. } => Some(victims.clone()),
        _ => None,
    });
    let names: Vec<_> = evicted.expect("one goes").iter().map(|v| v.uid.to_string()).collect();
    assert_eq!(names, ["other"], "the one of the lowest priority is enough");
    let (_, text) = condition(&commands).expect("a condition");
    assert!(text.starts_with("0/1 nodes are available: 1 Insufficient cpu."), "{text}");
}

/// Upstream's plugin has no hint for deleted pods; its pods wait for the unschedulable flush.
#[test]
fn deleted_or_shrunk_pod_frees_its_node_for_node_allocatable_devices() {
    let other = |cpu: &str| with("other", cpu, |pod| pod["spec"]["nodeName"] = json!("a"));
    let mut things = base();
    things.extend([other("2"), uses("p", "c", |_| ())]);
    for told in [WatchEvent::Gone(other("2")), WatchEvent::Set(other("1"))] {
        let mut scheduler = scheduler_with(ON, &things);
        assert_eq!(reserves(&decide(&mut scheduler, 0)), None, "three CPUs where two are left");
        scheduler.handle(told, at(1));
        assert!(reserves(&decide(&mut scheduler, 20)).is_some(), "it is tried again");
    }
}

#[test]
fn a_status_that_was_written_is_cleared_where_the_pod_gets_no_node() {
    let mut things = base();
    things.push(uses("p", "c", |_| ()));
    let mut scheduler = scheduler_with(ON, &things);
    let (of, number, _) = reserves(&decide(&mut scheduler, 0)).expect("asked for");
    let why = "updating pod default/p NodeAllocatableResourceClaimStatuses: no";
    let reserved = ReservationResult {
        pod: of.clone(),
        number,
        claims: Vec::new(),
        error: Some(why.to_owned()),
        made: None,
    };
    scheduler.devices_reserved(reserved, at(1));
    let commands = scheduler.take_commands();
    let text = format!("running PreBind plugin \"DynamicResources\": {why}");
    assert_eq!(condition(&commands), Some(("SchedulerError".to_owned(), text)));
    assert_eq!((released(&commands), used(&scheduler)), (Some((0, true)), 0));
    assert_eq!(decide(&mut scheduler, 20), [], "not before it is cleared");
    scheduler.devices_released(&of.uid, Vec::new(), at(21));
    let asked = reserves(&decide(&mut scheduler, 40)).expect("it is tried again");
    // A binding that fails releases the claim as well.
    let commands = answer(&mut scheduler, &asked, 41);
    let (of, node) = commands.iter().find_map(bound).expect("it is bound");
    scheduler.ended(&of, &node, BindingResult::Failed("no".to_owned()), at(42));
    assert_eq!(released(&scheduler.take_commands()), Some((1, true)));
    assert_eq!(used(&scheduler), 0);
}

/// Entries that an earlier attempt left in the status do not count, and are replaced at the
/// binding.
#[test]
fn allocatable_status_of_an_unbound_pod_is_ignored_and_replaced_on_binding() {
    let left = |pod: &mut Value| {
        pod["status"] = json!({"nodeAllocatableResourceClaimStatuses": status("c", "3")});
    };
    let mut things = base();
    things.push(uses("p", "c", left));
    let mut scheduler = scheduler_with(ON, &things);
    let commands = decide(&mut scheduler, 0);
    assert_eq!((said(&commands), used(&scheduler)), (Some(status("c", "2")), 3000));
    // With its claim allocated no device is selected: as upstream, only the pod's own requests
    // count.
    let mut things = base();
    things[3] = has("c", 1, "a", "g0", &["p"]);
    things.push(uses("p", "c", left));
    let mut scheduler = scheduler_with(ON, &things);
    let commands = decide(&mut scheduler, 0);
    assert_eq!((said(&commands), used(&scheduler)), (Some(json!([])), 1000));
}

/// A device that consumes node resources by capacity, but has none allocated: the attempt fails.
#[test]
fn a_device_without_consumed_capacity_is_a_mistake() {
    let takes = json!({"cpu": {"capacityKey": "cores"}});
    let devices = json!([{"name": "g0", "nodeAllocatableResourceMappings": takes}]);
    let offered = WatchedObject::ResourceSlice(read(json!({
        "metadata": {"name": "s"},
        "spec": {"driver": "d.example", "nodeName": "a", "devices": devices,
            "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1}},
    })));
    let things = [class(), node("a", "4"), offered, claim("c"), user("p", "c")];
    let mut scheduler = scheduler_with(ON, &things);
    let why = "running \"DynamicResources\" filter plugin: claim default/c, device g0: \
        ConsumedCapacity is nil, but Capacity key 'cores' is set in NodeAllocatableResourceMappings \
        for resource cpu";
    let commands = decide(&mut scheduler, 0);
    assert_eq!(condition(&commands), Some(("SchedulerError".to_owned(), why.to_owned())));
}

#[test]
fn allocatable_claim_statuses_round_trip_as_api_json() {
    let read: Vec<NodeAllocatableResourceClaimStatus> =
        serde_json::from_value(status("c", "2")).expect("statuses");
    assert_eq!(json!(read), status("c", "2"));
}
