//! Events about a pod, in the order in which they were first emitted.
//!
//! The name of an event ends with the nanosecond at which it was made, which gives the order. The
//! count of an event that repeats depends on time, so only "once" and "more than once" differ.

use serde_json::{Value, json};

use super::api::KeptObjects;
use super::normal::Normal;
use super::observe::Subject;

/// Messages of events that may come in any run of the kubelet: it requests a token before the API
/// server knows that the pod is on the node, or an object before its watch has begun or after it
/// has ended.
const CHANCE: [&str; 4] = [
    "no relationship found between node",
    "failed to sync configmap cache",
    "failed to sync secret cache",
    " not registered",
];

/// The pod's events without the scheduler's, each under its reason and what it is about, and their
/// order.
pub(super) fn of(kept: &KeptObjects, subject: &Subject, normal: &Normal) -> Value {
    let is_chance = |event: &Value| {
        event["message"].as_str().is_some_and(|m| CHANCE.iter().any(|chance| m.contains(chance)))
    };
    let is_about = |event: &Value| {
        let object = &event["involvedObject"];
        object["namespace"] == subject.namespace.as_str()
            && object["name"] == subject.name.as_str()
            && event["source"]["component"] != "default-scheduler"
            && event["reportingComponent"] != "default-scheduler"
    };
    let events = kept.events.values().map(|e| &e.object).filter(|e| is_about(e) && !is_chance(e));
    let mut events: Vec<(u64, Value)> = events.map(|e| (made_at(e), shown(e, normal))).collect();
    events.sort_by_key(|(at, _)| *at);
    // Events that differ in nothing but a placeholder are one event that was emitted again.
    let mut told: Vec<Value> = Vec::new();
    for (_, event) in events {
        match told.iter_mut().find(|t| t["name"] == event["name"]) {
            Some(earlier) => earlier["count"] = json!("repeated"),
            None => told.push(event),
        }
    }
    // All containers get their Killing events at the same time, in any order.
    let is_end = |e: &Value| e["name"].as_str().is_some_and(|n| n.starts_with("Killing spec."));
    for ends in told.chunk_by_mut(|a, b| is_end(a) && is_end(b)) {
        ends.sort_by_key(|e| super::flat::show(&e["name"]));
    }
    Value::Array(told)
}

fn shown(event: &Value, normal: &Normal) -> Value {
    let text = |v: &Value| normal.text(v.as_str().unwrap_or_default());
    let message = text(&event["message"]);
    let field = text(&event["involvedObject"]["fieldPath"]);
    let name = format!("{} {field} {message}", text(&event["reason"]));
    let count = event["count"].as_u64().unwrap_or_default();
    let mut involved = event["involvedObject"].clone();
    if let Some(fields) = involved.as_object_mut() {
        fields.remove("resourceVersion");
    }
    let mut shown = json!({
        "name": name,
        "count": if count > 1 { "repeated" } else { "once" },
        "type": event["type"],
        "source": event["source"],
        "reportingComponent": event["reportingComponent"],
        "reportingInstance": event["reportingInstance"],
        "involvedObject": involved,
        "annotations": event["metadata"]["annotations"],
        "action": event["action"],
        "related": event["related"],
    });
    if let Some(fields) = shown.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    shown
}

fn made_at(event: &Value) -> u64 {
    let name = event["metadata"]["name"].as_str().unwrap_or_default();
    let stamp = name.rsplit_once('.').map_or("", |(_, stamp)| stamp);
    u64::from_str_radix(stamp, 16).unwrap_or_default()
}
