//! Hints about other pods, and about changes of the pod itself.

use super::*;
use crate::requests::Resources;

/// Returns true if the plugin depends on the users of volumes.
pub(super) fn waits_for_users(by: Plugin) -> bool {
    matches!(by, Plugin::VolumeRestrictions | Plugin::NodeVolumeLimits)
}

pub(super) fn helps_itself(changes: Changes, by: Plugin) -> bool {
    match by {
        Plugin::SchedulingGates => changes.gates,
        Plugin::TaintToleration | Plugin::NodeUnschedulable => changes.tolerations,
        Plugin::PodTopologySpread => changes.tolerations || changes.labels,
        Plugin::InterPodAffinity => changes.labels,
        Plugin::NodeResourcesFit => changes.requests,
        Plugin::DynamicResources => changes.claims,
        // The features that a pod requires never change.
        _ => false,
    }
}

/// Returns upstream's name of a change of a pod on a node.
// k8s: pkg/scheduler/framework/events.go PodSchedulingPropertiesChange
pub(super) fn change(old: &PodFacts, new: &PodFacts) -> &'static str {
    if old.counters != new.counters {
        "AssignedPodUpdatePodLabel"
    } else if new.requests.own().is_less_than(old.requests.own()) {
        "AssignedPodUpdatePodScaleDown"
    } else {
        "AssignedPodUpdate"
    }
}

fn counted(pod: &PodFacts, counter: CounterId) -> bool {
    pod.counters.binary_search(&counter).is_ok()
}

fn spread_counts(other: &PodFacts, pod: &Rejected) -> bool {
    let is = |s: &Spread| other.namespace == pod.namespace && counted(other, s.counter);
    pod.program.spread.hard.iter().any(is)
}

pub(super) fn helps_added(new: &PodFacts, pod: &Rejected, by: Plugin) -> bool {
    match by {
        Plugin::PodTopologySpread => spread_counts(new, pod),
        Plugin::InterPodAffinity => attracts(new, pod),
        _ => false,
    }
}

/// Upstream treats a pod without terms as matched by every other pod, so that it requeues too
/// often.
fn attracts(other: &PodFacts, pod: &Rejected) -> bool {
    pod.program.pods.required.as_ref().is_some_and(|(counter, _)| counted(other, *counter))
}

/// A pod that meets its own affinity may go to any node once no other pod meets it: upstream has no
/// hint for the deletion of the last one.
fn was_last_hope(other: &PodFacts, pod: &Rejected) -> bool {
    pod.program.pods.meets_own && attracts(other, pod)
}

fn repels(other: &PodFacts, pod: &Rejected) -> bool {
    pod.program.pods.anti.iter().any(|(counter, _)| counted(other, *counter))
}

pub(super) fn helps_changed(old: &PodFacts, new: &PodFacts, pod: &Rejected, by: Plugin) -> bool {
    match by {
        Plugin::NodeResourcesFit => gives_back(old, new, pod),
        Plugin::PodTopologySpread => {
            // Terminating pods are not counted; upstream has no event for that change.
            let counts = |pod: &PodFacts, s: &Spread| !pod.terminating && counted(pod, s.counter);
            let differs = |s: &Spread| counts(old, s) != counts(new, s);
            new.namespace == pod.namespace && pod.program.spread.hard.iter().any(differs)
        }
        Plugin::InterPodAffinity => {
            let comes = attracts(new, pod) && !attracts(old, pod);
            let last = was_last_hope(old, pod) && !attracts(new, pod);
            let leaves = |(counter, _): &(CounterId, KeyId)| {
                counted(old, *counter) && !counted(new, *counter)
            };
            comes || last || pod.program.pods.anti.iter().any(leaves)
        }
        // The volumes that a pod uses never change.
        _ => false,
    }
}

/// Returns true if the other pod now requests less of a resource that this pod requests.
// k8s: noderesources/fit.go isSchedulableAfterPodScaleDown
fn gives_back(old: &PodFacts, new: &PodFacts, pod: &Rejected) -> bool {
    let asked = &pod.program.requests.plain;
    let (was, is) = (old.requests.own(), new.requests.own());
    let of = |all: &Resources, name: &str| all.scalar(name).unwrap_or(0);
    let mut scalars = asked.scalars.iter().filter(|(_, amount)| *amount != 0);
    (asked.cpu_milli > 0 && was.cpu_milli > is.cpu_milli)
        || (asked.mem_bytes > 0 && was.mem_bytes > is.mem_bytes)
        || (asked.eph_bytes > 0 && was.eph_bytes > is.eph_bytes)
        || scalars.any(|(name, _)| of(was, name) > of(is, name))
}

pub(super) fn helps_gone(cluster: &Cluster, old: &PodFacts, pod: &Rejected, by: Plugin) -> bool {
    match by {
        Plugin::NodeResourcesFit => true,
        Plugin::NodePorts => {
            let any = cluster.view.wildcard_ip;
            let clash = |a: &HostPort, b: &HostPort| {
                (a.port, a.protocol) == (b.port, b.protocol)
                    && (a.ip == b.ip || a.ip == any || b.ip == any)
            };
            pod.program.ports.iter().any(|a| old.ports.iter().any(|b| clash(a, b)))
        }
        Plugin::PodTopologySpread => spread_counts(old, pod),
        Plugin::InterPodAffinity => {
            let repelled = |term: &TermKey| {
                let within = term.scope.contains(pod.namespace)
                    || term.namespaces.matches(&pod.namespace_labels);
                within && term.selector.matches(&pod.labels)
            };
            repels(old, pod) || was_last_hope(old, pod) || old.repels.iter().any(repelled)
        }
        // k8s: nodevolumelimits/csi.go, volumerestrictions/volume_restrictions.go isSchedulableAfterPodDeleted
        other => waits_for_users(other) && old.volumes().is_none_or(|names| !names.is_empty()),
    }
}
