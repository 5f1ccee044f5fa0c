//! Resource fit: the requests of the admitted pods and of the candidate, against the allocatable
//! amounts.
//!
//! Pure. Sums are in the units of the kubelet's messages: millicores, bytes, counts. Extended
//! resources that the node does not have are ignored.
// k8s: pkg/scheduler/framework/plugins/noderesources/fit.go fitsRequest

use std::collections::BTreeMap;

use super::{AdmissionCandidate, AdmissionNode, AdmissionRefusal, Allocatable, Others};
use pintle_api_types::pod::resources::Amounts;
use pintle_api_types::quantity::Amount;

/// A resource that does not suffice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub resource: String,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl Shortage {
    // k8s: pkg/kubelet/lifecycle/predicate.go InsufficientResourceError
    pub(crate) fn refusal(&self) -> AdmissionRefusal {
        let Self { resource, requested, used, capacity } = self;
        let message = format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, \
             capacity: {capacity}"
        );
        AdmissionRefusal::new(format!("OutOf{resource}"), message)
    }

    /// How much would have to become free.
    pub(crate) fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

/// The resources that the candidate requests and the node lacks, in the kubelet's order.
pub(super) fn shortages(
    node: &AdmissionNode,
    others: &Others<'_>,
    candidate: &AdmissionCandidate<'_>,
) -> Vec<Shortage> {
    let all = &node.allocatable;
    let mut short = Vec::new();
    let mut check = |resource: &str, requested: i64, used: i64, capacity: i64| {
        if requested > 0 && requested > capacity.saturating_sub(used) {
            let resource = resource.to_owned();
            short.push(Shortage { resource, requested, used, capacity });
        }
    };
    check("pods", 1, others.count(), all.pods);
    let asked = asked(all, candidate.requests);
    for resource in ["cpu", "memory", "ephemeral-storage"] {
        let requested = asked.get(resource).copied().unwrap_or(0);
        check(resource, requested, others.used(resource), capacity(all, resource));
    }
    for (resource, requested) in &asked {
        if !matches!(*resource, "cpu" | "memory" | "ephemeral-storage") {
            check(resource, *requested, others.used(resource), capacity(all, resource));
        }
    }
    short
}

/// The candidate's requests without extended resources that the node does not know.
// k8s: pkg/kubelet/lifecycle/predicate.go removeMissingExtendedResources
fn asked<'a>(all: &Allocatable, requests: &'a Amounts) -> BTreeMap<&'a str, i64> {
    requests
        .iter()
        .filter(|(name, _)| !is_extended(name) || all.scalar.contains_key(*name))
        .map(|(name, amount)| (name.as_str(), in_units(name, *amount)))
        .collect()
}

// k8s: pkg/apis/core/v1/helper/helpers.go IsExtendedResourceName
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

fn capacity(all: &Allocatable, resource: &str) -> i64 {
    match resource {
        "cpu" => all.cpu_millis,
        "memory" => all.memory_bytes,
        "ephemeral-storage" => all.storage_bytes,
        "pods" => all.pods,
        other => all.scalar.get(other).copied().unwrap_or(0),
    }
}

/// The amount in the unit in which it is compared.
pub(super) fn in_units(resource: &str, amount: Amount) -> i64 {
    if resource == "cpu" { amount.millis() } else { amount.units() }
}
