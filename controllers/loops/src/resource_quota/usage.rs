//! Usage of a quota by objects.
// k8s: Usage of each evaluator in pkg/quota/v1/evaluator/core

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pintle_api_types::quantity::{Amount, Amounts};
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::kinds::{PersistentVolumeClaim, Pod, QuotaSpec, Service};
use pintle_controllers_core::tables::Change;

use super::add;
use super::devices::{self, DeviceClasses};
use super::evaluator::{Evaluator, NamespaceContent, STORAGE_CLASS, is_native};
use super::scopes;

impl NamespaceContent {
    /// The usage of the objects that the quota selects.
    pub(super) fn usage(
        &self,
        evaluator: &Evaluator,
        spec: &QuotaSpec,
        classes: &DeviceClasses,
        now: Timestamp,
    ) -> Amounts {
        let mut total = Amounts::new();
        let is_scoped = scopes::is_scoped(spec);
        match self {
            Self::Unlisted(_) => {}
            Self::Pods(pods) => {
                let mut known = HashMap::new();
                for pod in pods.iter().filter(|pod| scopes::selects_pod(spec, pod)) {
                    add_pod(&mut total, pod, now, &mut known);
                }
            }
            Self::Claims(claims) => {
                let selected = claims.iter().filter(|claim| scopes::selects_claim(spec, claim));
                selected.for_each(|claim| add(&mut total, &claim_usage(claim)));
            }
            // Other kinds have no scopes.
            _ if is_scoped => {}
            Self::Services(services) => {
                services.iter().for_each(|service| add(&mut total, &service_usage(service)));
            }
            Self::ResourceClaims { claims, pods } => {
                for claim in claims {
                    add(&mut total, &devices::usage(claim, claims, pods, classes, now));
                }
            }
            Self::Count(count) => {
                let count = Amount::from_units(*count);
                total.extend(evaluator.names().iter().map(|name| (name.clone(), count)));
            }
        }
        total
    }

    /// When a pod that is being deleted stops counting.
    pub(super) fn next(&self, now: Timestamp) -> Option<Duration> {
        let Self::Pods(pods) = self else { return None };
        let waits = pods.iter().filter(|pod| is_charged(pod, now)).filter_map(|pod| {
            let left = Duration::try_from(charged_until(pod)?.duration_since(now)).ok()?;
            // After that moment, not at it.
            Some(left + Duration::from_secs(1))
        });
        waits.min()
    }
}

/// A number of things.
trait Units {
    fn from_units(count: usize) -> Self;
}

impl Units for Amount {
    fn from_units(count: usize) -> Self {
        Self::parse(&count.to_string()).expect("a number is a quantity")
    }
}

/// When a pod stops counting although it still exists.
fn charged_until(pod: &Pod) -> Option<Timestamp> {
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds?);
    pod.metadata.deletion_timestamp?.checked_add(grace).ok()
}

/// The pod counts for more than its existence.
// k8s: pkg/quota/v1/evaluator/core/pods.go QuotaV1Pod
fn is_charged(pod: &Pod, now: Timestamp) -> bool {
    !pod.is_terminal() && charged_until(pod).is_none_or(|until| now <= until)
}

fn add_pod(total: &mut Amounts, pod: &Pod, now: Timestamp, known: &mut HashMap<Symbol, Amounts>) {
    if is_charged(pod, now) {
        let name = pod.charge.usage_name().clone();
        add(total, known.entry(name).or_insert_with(|| computed(pod)));
    }
    add(total, &Amounts::from([("count/pods".to_owned(), Amount::from_units(1))]));
}

/// All that a pod uses.
// k8s: pkg/quota/v1/evaluator/core/pods.go PodUsageFunc
pub(super) fn pod_usage(pod: &Pod, now: Timestamp) -> Amounts {
    let mut total = Amounts::new();
    add_pod(&mut total, pod, now, &mut HashMap::new());
    total
}

// k8s: pkg/quota/v1/evaluator/core/pods.go podComputeUsageHelper
fn computed(pod: &Pod) -> Amounts {
    let mut usage = Amounts::from([("pods".to_owned(), Amount::from_units(1))]);
    for (name, amount) in pod.charge.requests() {
        let is_computed = matches!(&*name, "cpu" | "memory" | "ephemeral-storage");
        if is_computed || name.starts_with("hugepages-") {
            usage.insert(format!("requests.{name}"), amount);
            usage.insert(name, amount);
        } else if is_extended(&name) {
            usage.insert(format!("requests.{name}"), amount);
        }
    }
    for (name, amount) in pod.charge.limits() {
        if matches!(&*name, "cpu" | "memory" | "ephemeral-storage") {
            usage.insert(format!("limits.{name}"), amount);
        }
    }
    usage
}

// k8s: pkg/scheduler/util/utils.go IsDRAExtendedResourceName
fn is_extended(name: &str) -> bool {
    let is_explicit = !is_native(name) && !name.starts_with("requests.");
    is_explicit || name.starts_with(devices::IMPLICIT)
}

// k8s: pkg/quota/v1/evaluator/core/services.go Usage
fn service_usage(service: &Service) -> Amounts {
    let spec = &service.spec;
    let ports = spec.ports.len();
    let is_balanced = &*spec.kind == "LoadBalancer";
    let node_ports = match &*spec.kind {
        "NodePort" => ports,
        "LoadBalancer" if spec.allocate_load_balancer_node_ports == Some(false) => {
            spec.ports.iter().filter(|port| port.node_port != 0).count()
        }
        "LoadBalancer" => ports,
        _ => 0,
    };
    let counts = [
        ("count/services", 1),
        ("services", 1),
        ("services.nodeports", node_ports),
        ("services.loadbalancers", usize::from(is_balanced)),
    ];
    counts.map(|(name, count)| (name.to_owned(), Amount::from_units(count))).into()
}

// k8s: pkg/quota/v1/evaluator/core/persistent_volume_claims.go Usage
fn claim_usage(claim: &PersistentVolumeClaim) -> Amounts {
    let mut usage = Amounts::new();
    let class = claim.storage_class();
    let mut charge = |name: &str, amount: Amount| {
        usage.insert(name.to_owned(), amount);
        if !class.is_empty() {
            usage.insert(format!("{class}{STORAGE_CLASS}{name}"), amount);
        }
    };
    charge("persistentvolumeclaims", Amount::from_units(1));
    if let Some(storage) = storage(claim) {
        charge("requests.storage", storage);
    }
    usage.insert("count/persistentvolumeclaims".to_owned(), Amount::from_units(1));
    usage
}

/// The storage that a claim asks for, or has while it is being expanded; in whole bytes.
// k8s: pkg/quota/v1/evaluator/core/persistent_volume_claims.go getStorageUsage
fn storage(claim: &PersistentVolumeClaim) -> Option<Amount> {
    let whole = |amount: Amount| match amount.is_whole() {
        true => amount,
        false => Amount::parse(&amount.units().to_string()).unwrap_or(amount),
    };
    let wanted = whole(claim.spec.resources.requests.get("storage")?.amount());
    let allocated = claim.status.allocated_resources.get("storage");
    let allocated = allocated.map(|quantity| quantity.amount());
    Some(allocated.filter(|allocated| *allocated > wanted).map_or(wanted, whole))
}

/// The change of an object that stays changes what it uses, or which quotas count it.
// k8s: pkg/quota/v1/install/update_filter.go DefaultUpdateFilter
pub(super) fn is_replenishing(change: &Change, now: Timestamp) -> bool {
    match change {
        Change::Pod(delta) => {
            let (Some(old), Some(new)) = (&delta.old, &delta.new) else { return false };
            !old.charge.has_same_usage(&new.charge)
                || old.charge.has_deadline != new.charge.has_deadline
                || (is_charged(old, now) && !is_charged(new, now))
        }
        Change::Service(delta) => {
            let (Some(old), Some(new)) = (&delta.old, &delta.new) else { return false };
            let kind = |service: &Service| {
                let kind = service.spec.kind.clone();
                Some(kind).filter(|kind| matches!(&**kind, "NodePort" | "LoadBalancer"))
            };
            kind(old) != kind(new)
        }
        Change::PersistentVolumeClaim(delta) => {
            let (Some(old), Some(new)) = (&delta.old, &delta.new) else { return false };
            claim_usage(old) != claim_usage(new)
                || old.attribute_classes() != new.attribute_classes()
        }
        _ => false,
    }
}
