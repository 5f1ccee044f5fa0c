//! Pods that are pending because of a DeviceTaintRule.

use serde_json::{Value, json};

use super::device_tests::{answer, claim, class, devices_of, read, reserves, slice, user};
use super::tests::{at, bound, condition, decide, deliver_lists, node, without_second_look};
use super::*;
use crate::plugins::dynamicresources::DeviceGates;
use crate::watch_event::{WatchEvent, WatchedKind, WatchedObject};

pub(super) const RULES: DeviceGates =
    DeviceGates { taint_rules: true, lists: false, allocatable: false };

fn rule(name: &str, selector: &Value) -> WatchedObject {
    WatchedObject::DeviceTaintRule(read(json!({
        "metadata": {"name": name},
        "spec": {"deviceSelector": selector, "taint": {"key": "k", "effect": "NoSchedule"}},
    })))
}

/// A scheduler that has observed a node with a device, a pod that needs the device, and these
/// rules.
fn scheduler_with(rules: &[WatchedObject]) -> Scheduler {
    let scheduler = Scheduler::new(Vec::new(), without_second_look(), 1);
    let mut scheduler = scheduler.with_device_gates(RULES);
    let things = [class(), node("n", "4"), slice("n", &["g0"]), claim("c"), user("p", "c")];
    deliver_lists(&mut scheduler, &things);
    list(&mut scheduler, rules, 0);
    scheduler
}

fn list(scheduler: &mut Scheduler, rules: &[WatchedObject], now: u64) {
    scheduler.handle(WatchEvent::Begun(WatchedKind::DeviceTaintRule), at(now));
    for rule in rules {
        scheduler.handle(WatchEvent::Listed(rule.clone()), at(now));
    }
    scheduler.handle(WatchEvent::Complete(WatchedKind::DeviceTaintRule), at(now));
}

/// Checks that the device is reserved and the pod is bound.
fn check_bound(scheduler: &mut Scheduler, now: u64) {
    let asked = reserves(&decide(scheduler, now)).expect("it fits now");
    assert_eq!(devices_of(&asked.2), ["n/g0"]);
    let commands = answer(scheduler, &asked, now);
    assert_eq!(&*commands.iter().find_map(bound).expect("it is bound").1, "n");
}

#[test]
fn pod_waits_while_a_rule_taints_its_device_and_is_bound_after_rule_deletion() {
    let mut scheduler = scheduler_with(&[rule("r", &json!({"driver": "d.example"}))]);
    let why = "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, \
        preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    let said = condition(&decide(&mut scheduler, 0));
    assert_eq!(said, Some(("Unschedulable".to_owned(), why.to_owned())));
    scheduler.handle(WatchEvent::Gone(rule("r", &json!({"driver": "d.example"}))), at(60));
    check_bound(&mut scheduler, 60);
}

#[test]
fn rules_that_change_no_device_wake_no_pod() {
    let mut scheduler = scheduler_with(&[rule("r", &json!({"driver": "d.example"}))]);
    assert!(condition(&decide(&mut scheduler, 0)).is_some());
    scheduler.handle(WatchEvent::Set(rule("other", &json!({"driver": "other.example"}))), at(60));
    scheduler.handle(WatchEvent::Set(rule("r", &json!({"driver": "d.example"}))), at(60));
    scheduler.handle(WatchEvent::Gone(rule("other", &json!({"driver": "other.example"}))), at(60));
    assert_eq!(
        (decide(&mut scheduler, 60), scheduler.count(QueuePlace::Unschedulable)),
        (vec![], 1)
    );
    // The rule now selects the devices of another pool.
    scheduler.handle(WatchEvent::Set(rule("r", &json!({"pool": "elsewhere"}))), at(120));
    check_bound(&mut scheduler, 120);
}

#[test]
fn rule_absent_from_a_new_list_is_deleted() {
    let mut scheduler = scheduler_with(&[rule("r", &Value::Null)]);
    assert!(condition(&decide(&mut scheduler, 0)).is_some(), "no selector means all devices");
    list(&mut scheduler, &[rule("new", &json!({"device": "g1"}))], 60);
    check_bound(&mut scheduler, 60);
}

#[test]
fn no_pod_is_decided_before_taint_rules_are_synced_if_the_gate_is_on() {
    let things = [class(), node("n", "4"), slice("n", &["g0"]), claim("c"), user("p", "c")];
    let scheduler = Scheduler::new(Vec::new(), without_second_look(), 1);
    let mut scheduler = scheduler.with_device_gates(RULES);
    deliver_lists(&mut scheduler, &things);
    assert_eq!(decide(&mut scheduler, 0), []);
    let missing: Vec<WatchedKind> = scheduler.cache.missing().collect();
    assert_eq!(missing, [WatchedKind::DeviceTaintRule]);
    list(&mut scheduler, &[], 1);
    check_bound(&mut scheduler, 1);
}
