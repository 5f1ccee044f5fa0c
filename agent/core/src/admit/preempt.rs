//! Chooses the victims that make room for a critical pod.
//!
//! Pure. Victims of class Guaranteed are chosen first, as if all lower classes were gone already,
//! then Burstable, then BestEffort, so that as few as possible of the better classes end. Within a
//! class the pod nearest to the shortage is chosen next.
// k8s: pkg/kubelet/preemption/preemption.go

use k8s_openapi::api::core::v1::Pod;

use super::fit::{Shortage, in_units};
use super::{AdmissionRefusal, Admitted, Grant};
use pintle_api_types::pod;
use pintle_api_types::pod::qos::{self, QosClass};

/// Message of a victim's status and event.
pub const EVENT_MESSAGE: &str = "Preempted in order to admit critical pod";

/// The shortage of one resource.
#[derive(Clone, Debug, PartialEq)]
struct Missing {
    resource: String,
    quantity: i64,
}

/// The victims that free the missing resources.
pub(crate) fn make_room(
    admitted: &[Admitted<'_>],
    pod: &Pod,
    shortages: &mut [Shortage],
) -> Result<Grant, AdmissionRefusal> {
    let starved = shortages.first().map(|first| first.resource.clone()).unwrap_or_default();
    let missing: Vec<Missing> = shortages
        .iter()
        .map(|short| Missing { resource: short.resource.clone(), quantity: short.missing() })
        .collect();
    let victims = victims(admitted, pod, &missing).map_err(|left| {
        let message = format!(
            "Unexpected error while attempting to recover from admission failure: preemption: \
             error finding a set of pods to preempt: no set of running pods found to reclaim \
             resources: {}",
            described(&left)
        );
        AdmissionRefusal::new("UnexpectedAdmissionError", message)
    })?;
    Ok(Grant { victims: victims.iter().map(|victim| victim.uid.clone()).collect(), starved })
}

/// The victims, or the resources that could not be freed.
fn victims<'a>(
    admitted: &[Admitted<'a>],
    preemptor: &Pod,
    missing: &[Missing],
) -> Result<Vec<Admitted<'a>>, Vec<Missing>> {
    let of = |class: QosClass| -> Vec<Admitted<'a>> {
        let may = admitted.iter().filter(|other| may_preempt(preemptor, other.pod));
        may.filter(|other| qos::class_of(other.pod) == class).copied().collect()
    };
    let best_effort = of(QosClass::BestEffort);
    let (burstable, guaranteed) = (of(QosClass::Burstable), of(QosClass::Guaranteed));
    let everything = [&*best_effort, &*burstable, &*guaranteed].concat();
    let left = without(missing, &everything);
    if !left.is_empty() {
        return Err(left);
    }
    let below = [&*best_effort, &*burstable].concat();
    let of_guaranteed = nearest(guaranteed, without(missing, &below))?;
    let others = [&*best_effort, &*of_guaranteed].concat();
    let of_burstable = nearest(burstable, without(missing, &others))?;
    let above = [&*of_burstable, &*of_guaranteed].concat();
    let of_best_effort = nearest(best_effort, without(missing, &above))?;
    Ok([of_best_effort, of_burstable, of_guaranteed].concat())
}

// k8s: pkg/kubelet/types/pod_update.go Preemptable
fn may_preempt(preemptor: &Pod, other: &Pod) -> bool {
    if pod::is_critical(preemptor) && !pod::is_critical(other) {
        return true;
    }
    let priorities = pod::spec(preemptor).priority.zip(pod::spec(other).priority);
    priorities.is_some_and(|(own, other)| own > other)
}

/// Takes the pod nearest to the shortage until none is left.
// k8s: pkg/kubelet/preemption/preemption.go getPodsToPreemptByDistance
fn nearest<'a>(
    mut pods: Vec<Admitted<'a>>,
    mut missing: Vec<Missing>,
) -> Result<Vec<Admitted<'a>>, Vec<Missing>> {
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        for (index, pod) in pods.iter().enumerate() {
            let far = distance(&missing, pod);
            let better = best.is_none_or(|(at, least)| {
                far < least || far == least && requests_less(pod, &pods[at])
            });
            if better {
                best = Some((index, far));
            }
        }
        let Some((index, _)) = best else { return Err(missing) };
        let pod = pods.swap_remove(index);
        missing = without(&missing, &[pod]);
        chosen.push(pod);
    }
    Ok(chosen)
}

/// The share of the shortage that the pod would not free, squared and summed.
fn distance(missing: &[Missing], pod: &Admitted<'_>) -> f64 {
    let rests = missing.iter().map(|short| {
        let rest = short.quantity.saturating_sub(requested(pod, &short.resource)).max(0);
        (rest as f64 / short.quantity as f64).powi(2)
    });
    rests.sum()
}

fn without(missing: &[Missing], pods: &[Admitted<'_>]) -> Vec<Missing> {
    let rest = missing.iter().filter_map(|short| {
        let freed = pods.iter().map(|pod| requested(pod, &short.resource));
        let quantity = freed.fold(short.quantity, i64::saturating_sub);
        (quantity > 0).then(|| Missing { resource: short.resource.clone(), quantity })
    });
    rest.collect()
}

/// Memory first, then CPU; equal counts as less, as upstream has it.
fn requests_less(a: &Admitted<'_>, b: &Admitted<'_>) -> bool {
    let of = |pod: &Admitted<'_>| (requested(pod, "memory"), requested(pod, "cpu"));
    of(a) <= of(b)
}

fn requested(pod: &Admitted<'_>, resource: &str) -> i64 {
    if resource == "pods" {
        return 1;
    }
    pod.requests.get(resource).map_or(0, |amount| in_units(resource, *amount))
}

fn described(missing: &[Missing]) -> String {
    let each = missing.iter().map(|m| format!("(res: {}, q: {}), ", m.resource, m.quantity));
    format!("[{}]", each.collect::<String>())
}
