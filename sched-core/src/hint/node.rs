//! Hints about an added, changed or deleted node.

use super::*;
use crate::filter::node::keeps_away;

type Change<'a> = (Option<&'a NodeSpec>, Option<&'a NodeSpec>);

/// Returns upstream's name of a change of a node, the first that applies if several do; `None` for
/// a change that cannot help any pod, such as new images or a cordon.
// k8s: pkg/scheduler/framework/events.go NodeSchedulingPropertiesChange
pub(super) fn change(old: &NodeSpec, new: &NodeSpec) -> Option<&'static str> {
    if amounts(old) != amounts(new) {
        Some("NodeUpdateNodeAllocatable")
    } else if old.labels != new.labels {
        Some("NodeUpdateNodeLabel")
    } else if old.taints != new.taints || (old.unschedulable && !new.unschedulable) {
        Some("NodeUpdateNodeTaint")
    } else if old.features != new.features {
        Some("NodeUpdateNodeDeclaredFeature")
    } else {
        None
    }
}

pub(super) fn helps(cluster: &Cluster, change: Change<'_>, pod: &Rejected, by: Plugin) -> bool {
    let program = &pod.program;
    if by == Plugin::PodTopologySpread {
        return spread(change, pod);
    }
    // A deleted node frees pods attracted or repelled by its pods; upstream waits until these are
    // deleted.
    if by == Plugin::InterPodAffinity && change.1.is_none() {
        return true;
    }
    // The other plugins have no use for a deleted node.
    let (old, Some(new)) = change else { return false };
    match by {
        Plugin::NodeName | Plugin::NodePorts => old.is_none(),
        Plugin::NodeUnschedulable => !new.unschedulable && old.is_none_or(|o| o.unschedulable),
        Plugin::TaintToleration => {
            tolerates(program, new) && !old.is_some_and(|old| tolerates(program, old))
        }
        // A node may match by the profile's affinity alone, which is no reason to skip it.
        Plugin::NodeAffinity => {
            let added = program.node_affinity.added.as_ref();
            added.is_none_or(|terms| any(cluster, terms, new))
                && matches(cluster, program, new)
                && !old.is_some_and(|old| matches(cluster, program, old))
        }
        Plugin::NodeResourcesFit => {
            fits_alone(cluster, program, new) && old.is_none_or(|old| has_more(program, old, new))
        }
        Plugin::InterPodAffinity => pod_affinity(old, new, pod),
        Plugin::NodeDeclaredFeatures => {
            let has = |node: &NodeSpec| program.features.iter().all(|f| node.features.contains(f));
            has(new) && !old.is_some_and(has)
        }
        // Labels decide which volumes and devices a node can reach.
        Plugin::VolumeBinding | Plugin::VolumeZone => old.is_none_or(|o| o.labels != new.labels),
        Plugin::DynamicResources => {
            old.is_none_or(|o| o.labels != new.labels || amounts(o) != amounts(new))
        }
        Plugin::NodeVolumeLimits | Plugin::VolumeRestrictions => old.is_none(),
        _ => false,
    }
}

fn amounts(node: &NodeSpec) -> (&Resources, i64) {
    (&node.allocatable, node.pods)
}

fn tolerates(program: &Program, node: &NodeSpec) -> bool {
    !node.taints.iter().any(|taint| keeps_away(taint, program))
}

fn label(node: &NodeSpec, key: Str) -> Option<Str> {
    let at = node.labels.binary_search_by_key(&key, |(k, _)| *k).ok()?;
    Some(node.labels[at].1)
}

fn matches(cluster: &Cluster, program: &Program, node: &NodeSpec) -> bool {
    program.node_affinity.selector.iter().all(|r| meets(cluster, r, node))
        && program.node_affinity.required.as_ref().is_none_or(|terms| any(cluster, terms, node))
}

fn any(cluster: &Cluster, terms: &[NodeTerm], node: &NodeSpec) -> bool {
    terms.iter().any(|term| term.0.iter().all(|r| meets(cluster, r, node)))
}

fn meets(cluster: &Cluster, requirement: &NodeRequirement, node: &NodeSpec) -> bool {
    let value = match requirement.key {
        Some(key) => label(node, key),
        None => Some(node.name),
    };
    let number = || value.and_then(|value| cluster.text(value).parse::<i64>().ok());
    match &requirement.op {
        NodeOp::In(values) => value.is_some_and(|value| values.contains(&value)),
        NodeOp::NotIn(values) => !value.is_some_and(|value| values.contains(&value)),
        NodeOp::Exists => value.is_some(),
        NodeOp::NotExists => value.is_none(),
        NodeOp::Above(limit) => number().is_some_and(|n| n > *limit),
        NodeOp::Below(limit) => number().is_some_and(|n| n < *limit),
    }
}

fn scalar(node: &NodeSpec, name: &str) -> i64 {
    node.allocatable.scalar(name).unwrap_or(0)
}

/// Returns true if the pod fits a node on which nothing else is.
// k8s: noderesources/fit.go isFit
fn fits_alone(cluster: &Cluster, program: &Program, node: &NodeSpec) -> bool {
    let (asked, has) = (&program.requests.plain, &node.allocatable);
    let mut scalars = program.scalars.iter();
    node.pods > 0
        && asked.cpu_milli <= has.cpu_milli.max(0)
        && asked.mem_bytes <= has.mem_bytes.max(0)
        && asked.eph_bytes <= has.eph_bytes.max(0)
        && scalars.all(|(name, amount)| *amount <= scalar(node, cluster.text(*name)))
        && program.delegated.iter().all(|(name, amount)| {
            let has = scalar(node, cluster.text(*name));
            has <= 0 || *amount <= has
        })
}

/// Returns true if there is more of anything that the pod asks for.
// k8s: noderesources/fit.go haveAnyRequestedResourcesIncreased
fn has_more(program: &Program, old: &NodeSpec, new: &NodeSpec) -> bool {
    let asked = &program.requests.plain;
    let (was, is) = (&old.allocatable, &new.allocatable);
    let mut scalars = asked.scalars.iter().filter(|(_, amount)| *amount != 0);
    new.pods > old.pods
        || (asked.cpu_milli > 0 && is.cpu_milli > was.cpu_milli)
        || (asked.mem_bytes > 0 && is.mem_bytes > was.mem_bytes)
        || (asked.eph_bytes > 0 && is.eph_bytes > was.eph_bytes)
        || scalars.any(|(name, _)| scalar(new, name) > scalar(old, name))
        // Devices may offer it instead.
        || !program.delegated.is_empty()
}

// k8s: podtopologyspread/plugin.go isSchedulableAfterNodeChange
fn spread((old, new): Change<'_>, pod: &Rejected) -> bool {
    let keys = || pod.program.spread.hard.iter().filter_map(|s| pod.topology(s.key));
    let counts = |node: &NodeSpec| keys().all(|key| label(node, key).is_some());
    match (old, new) {
        (Some(old), Some(new)) if counts(old) == counts(new) => {
            let moved = keys().any(|key| label(old, key) != label(new, key));
            counts(new) && (moved || old.taints != new.taints)
        }
        (Some(_), Some(_)) => true,
        (one, other) => one.or(other).is_some_and(counts),
    }
}

// k8s: interpodaffinity/plugin.go isSchedulableAfterNodeChange
fn pod_affinity(old: Option<&NodeSpec>, new: &NodeSpec, pod: &Rejected) -> bool {
    let program = &pod.program;
    let attracted = program.pods.required.iter().flat_map(|(_, keys)| keys.iter());
    let comes = |key: Str| {
        let is = label(new, key);
        is.is_some() && old.is_none_or(|old| label(old, key) != is)
    };
    let leaves = |key: Str| match old {
        None => true,
        Some(old) => label(old, key).is_some_and(|was| label(new, key) != Some(was)),
    };
    let repelled = program.pods.anti.iter().map(|(_, key)| key);
    attracted.filter_map(|key| pod.topology(*key)).any(comes)
        || repelled.filter_map(|key| pod.topology(*key)).any(leaves)
        // Anti-affinity of other pods: a new node has none of them, and a changed label may end a
        // domain.
        || old.is_none_or(|old| old.labels != new.labels)
}
