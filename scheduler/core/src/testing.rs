//! A cluster of a few objects and a scheduler that knows it, for tests of this crate and of the
//! program around it.
//!
//! Input: objects. Output: a [`Scheduler`] with them, the commands of its decisions. Owner: tests.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cycle::{Command, Scheduler};
use crate::queue::Settings;
use crate::watch_event::{KINDS, WatchEvent, WatchedObject};

/// An object of this JSON.
pub fn object<T: serde::de::DeserializeOwned>(value: Value) -> Box<T> {
    Box::new(serde_json::from_value(value).expect("an object of its kind"))
}

/// A node of this name with so many CPUs, 8 GiB and room for 10 pods.
pub fn node(name: &str, cpu: &str) -> WatchedObject {
    WatchedObject::Node(object(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}},
    })))
}

/// A pod with one container that requests so many CPUs, as JSON.
pub fn pod_value(name: &str, uid: &str, cpu: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid, "resourceVersion": "1",
            "generation": 1},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            "schedulerName": "default-scheduler"},
    })
}

/// A pending pod that requests so many CPUs.
pub fn pod(name: &str, cpu: &str) -> WatchedObject {
    WatchedObject::Pod(object(pod_value(name, name, cpu)))
}

/// Such a pod, changed.
pub fn with(name: &str, cpu: &str, change: impl FnOnce(&mut Value)) -> WatchedObject {
    let mut value = pod_value(name, name, cpu);
    change(&mut value);
    WatchedObject::Pod(object(value))
}

/// The time so many seconds after the start.
pub fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Settings without the unschedulable flush.
pub fn without_second_look() -> Settings {
    Settings { stay_max: Duration::from_secs(u64::from(u32::MAX)), ..Settings::default() }
}

/// A scheduler with these objects, at time zero.
pub fn scheduler_with(things: Vec<WatchedObject>) -> Scheduler {
    let mut scheduler = Scheduler::new(Vec::new(), without_second_look(), 1);
    deliver_lists(&mut scheduler, &things);
    scheduler
}

/// Delivers a list of each kind, at time zero.
pub fn deliver_lists(scheduler: &mut Scheduler, things: &[WatchedObject]) {
    for kind in KINDS {
        scheduler.handle(WatchEvent::Begun(kind), at(0));
        for thing in things.iter().filter(|thing| thing.kind() == kind) {
            scheduler.handle(WatchEvent::Listed(thing.clone()), at(0));
        }
        scheduler.handle(WatchEvent::Complete(kind), at(0));
    }
}

/// Decides all pods that are due and returns the commands.
pub fn decide(scheduler: &mut Scheduler, now: u64) -> Vec<Command> {
    while scheduler.decide_next(at(now)) {}
    scheduler.take_commands()
}
