//! The text for an evicted pod: message of its status and event, and the event's annotations.
//!
//! Pure, in the kubelet's words.
// k8s: pkg/kubelet/eviction/helpers.go evictionMessage, getThresholdMetInfo

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{Container, Pod};
use pintle_api_types::pod;
use pintle_api_types::pod::resources::{self, Side};
use pintle_api_types::quantity::Amount;

use super::observed::{ContainerUse, PodUse, ResourceReading};
use super::signal::{Signal, Starved};
use super::threshold::{Threshold, signed};

/// Prefix of the messages of evictions for a shortage of the node; messages for a pod's own limit
/// have another, and their pods are no targets of a disruption.
pub const OF_NODE: &str = "The node was low on resource: ";

/// Names and values.
pub type Notes = Vec<(&'static str, String)>;

/// Message and annotations. `thresholds` are the met ones, the one acted upon first.
pub fn message(
    starved: Starved,
    pod: &Pod,
    used: Option<&PodUse>,
    thresholds: &[Threshold],
    readings: &BTreeMap<Signal, ResourceReading>,
) -> (String, Notes) {
    let mut message = format!("{OF_NODE}{starved}. ");
    let mut of_starved = thresholds.iter().filter(|t| t.signal.starved() == starved);
    let met = of_starved.find_map(|t| Some((t, readings.get(&t.signal)?)));
    if let Some((threshold, reading)) = met {
        let least = threshold.least(reading).canonical();
        let available = threshold.shown(reading.available).canonical();
        // Writing to a text cannot fail.
        let _ = write!(message, "Threshold quantity: {least}, available: {available}. ");
    }
    let mut notes = Notes::new();
    let Some(used) = used else { return (message, notes) };
    if starved == Starved::Memory {
        of_pod(pod, used, &mut message, &mut notes);
    }
    let (mut names, mut amounts) = (Vec::new(), Vec::new());
    for container in containers(pod) {
        let of = used.containers.get(&container.name);
        let Some(amount) = of.and_then(|of| used_by(starved, of)) else { continue };
        let requests = resources::of_container(container, Side::Requests);
        let requested = requests.get(starved.as_str()).copied().unwrap_or(Amount::ZERO);
        if amount > requested {
            let name = &container.name;
            let (amount, requested) = (amount.canonical(), requested.canonical());
            let _ = write!(
                message,
                "Container {name} was using {amount}, request is {requested}, has larger \
                 consumption of {starved}. "
            );
            names.push(name.clone());
            amounts.push(amount);
        }
    }
    notes.push(("offending_containers", names.join(",")));
    notes.push(("offending_containers_usage", amounts.join(",")));
    notes.push(("starved_resource", starved.to_string()));
    (message, notes)
}

/// A pod that requests memory as a whole is blamed as a whole as well.
fn of_pod(pod: &Pod, used: &PodUse, message: &mut String, notes: &mut Notes) {
    let spec = pod::spec(pod);
    let requested = resources::pod_level(spec, Side::Requests).get("memory").copied();
    let (Some(requested), Some(working_set)) = (requested, used.working_set) else { return };
    let (name, amount) = (pod::name(pod), Amount::from_bytes(signed(working_set)).canonical());
    let requested = requested.canonical();
    let _ = write!(
        message,
        "Pod {name} was using {amount}, request is {requested}, has larger consumption of memory. "
    );
    notes.push(("offending_pod", name.to_owned()));
    notes.push(("offending_pod_usage", amount));
}

/// Containers that can have requests; ephemeral ones cannot.
fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod::spec(pod);
    spec.containers.iter().chain(spec.init_containers.iter().flatten())
}

fn used_by(starved: Starved, of: &ContainerUse) -> Option<Amount> {
    let bytes = match starved {
        Starved::EphemeralStorage => of.layer?.bytes.saturating_add(of.logs?.bytes),
        Starved::Memory => of.working_set?,
        Starved::Inodes | Starved::Pids => return None,
    };
    Some(Amount::from_bytes(signed(bytes)))
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
