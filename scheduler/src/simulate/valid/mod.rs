//! Validation of objects, as far as decisions read them.
//!
//! Input: an object of a file, with the defaults that decoding sets. Output: its flaws, in the
//! words of the API server. Pure. Objects of a cluster's dump are valid; handwritten ones may not
//! be, and an answer about a pod that cannot be created would be wrong.
// k8s: pkg/apis/core/validation/validation.go ValidatePodSpec, ValidateNode

mod affinity;
mod containers;
pub(in crate::simulate) mod flaws;
mod policies;

use std::collections::{BTreeMap, HashSet};

use affinity::AffinityChecker;
use flaws::{Flaws, Path};
use k8s_openapi::api::core::v1::{
    Node, Pod, PodResourceClaim, PodSchedulingGate, PodSpec, Taint, Toleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pintle_sched_core::names;
pub(super) use policies::{
    budget, limit_range, priority_class, replica_set, runtime_class, stateful_set,
};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const RESTARTS: [&str; 3] = ["Always", "OnFailure", "Never"];
const PREEMPTIONS: [&str; 2] = ["PreemptLowerPriority", "Never"];
const DNS: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];

/// Was the object stored by an API server, which sets a creation time and a version?
pub(super) fn is_stored(metadata: &ObjectMeta) -> bool {
    metadata.creation_timestamp.is_some()
        || metadata.resource_version.as_ref().is_some_and(|version| !version.is_empty())
}

pub(super) fn node(node: &Node) -> Flaws {
    let mut flaws = Flaws::default();
    metadata(&node.metadata, &mut flaws);
    let status = Path::root("status");
    let of_node = node.status.as_ref();
    for (list, field) in [
        (of_node.and_then(|status| status.allocatable.as_ref()), "allocatable"),
        (of_node.and_then(|status| status.capacity.as_ref()), "capacity"),
    ] {
        let path = status.child(field);
        for (name, quantity) in list.into_iter().flatten() {
            containers::amount(name, quantity, &path.child(name), &mut flaws);
        }
    }
    if let Some(all) = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()) {
        taints(all, &Path::root("spec").child("taints"), &mut flaws);
    }
    flaws
}

// k8s: validation.go validateNodeTaints
fn taints(all: &[Taint], path: &Path<'_>, flaws: &mut Flaws) {
    let mut seen = HashSet::new();
    for (at, taint) in all.iter().enumerate() {
        let path = path.index(at);
        flaws.text(&path.child("key"), &taint.key, names::mistake);
        let value = taint.value.as_deref().unwrap_or_default();
        flaws.text(&path.child("value"), value, names::value_mistake);
        match taint.effect.as_str() {
            "" => flaws.required(&path.child("effect"), ""),
            effect => flaws.one_of(&path.child("effect"), effect, &EFFECTS),
        }
        if !seen.insert((&taint.key, &taint.effect)) {
            flaws.duplicate(&path, &format!("{}:{}", taint.key, taint.effect));
        }
    }
}

pub(super) fn pod(pod: &Pod) -> Flaws {
    let mut flaws = Flaws::default();
    metadata(&pod.metadata, &mut flaws);
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let path = Path::root("metadata");
    flaws.text(&path.child("namespace"), namespace, names::dns_label_mistake);
    let path = Path::root("spec");
    let Some(spec) = &pod.spec else {
        flaws.required(&path, "");
        return flaws;
    };
    containers::containers(spec, &path, &mut flaws);
    choices(spec, &path, &mut flaws);
    other_names(spec, &path, &mut flaws);
    let list = path.child("tolerations");
    for (at, toleration) in spec.tolerations.iter().flatten().enumerate() {
        tolerates(toleration, &list.index(at), &mut flaws);
    }
    gates(spec.scheduling_gates.as_deref().unwrap_or_default(), &path, &mut flaws);
    claims(spec.resource_claims.as_deref().unwrap_or_default(), &path, &mut flaws);
    let mut checker = AffinityChecker { flaws: &mut flaws, is_stored: is_stored(&pod.metadata) };
    if let Some(affinity) = &spec.affinity {
        checker.affinity(affinity, &path.child("affinity"));
    }
    let spread = spec.topology_spread_constraints.as_deref().unwrap_or_default();
    checker.spread(spread, &path.child("topologySpreadConstraints"));
    flaws
}

/// Checks name and labels, which all kinds have.
fn metadata(metadata: &ObjectMeta, flaws: &mut Flaws) {
    let path = Path::root("metadata");
    let name = metadata.name.as_deref().unwrap_or_default();
    flaws.text(&path.child("name"), name, names::object_mistake);
    labels(metadata.labels.as_ref(), &path.child("labels"), flaws);
}

// k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/validation/validation.go ValidateLabels
fn labels(all: Option<&BTreeMap<String, String>>, path: &Path<'_>, flaws: &mut Flaws) {
    for (key, value) in all.into_iter().flatten() {
        flaws.text(path, key, names::mistake);
        flaws.text(&path.key(key), value, names::value_mistake);
    }
}

fn choices(spec: &PodSpec, path: &Path<'_>, flaws: &mut Flaws) {
    let restart = spec.restart_policy.as_deref().filter(|text| !text.is_empty());
    flaws.one_of_given(&path.child("restartPolicy"), restart, &RESTARTS);
    let dns = spec.dns_policy.as_deref().filter(|text| !text.is_empty());
    flaws.one_of_given(&path.child("dnsPolicy"), dns, &DNS);
    let preemption = spec.preemption_policy.as_deref();
    flaws.one_of_given(&path.child("preemptionPolicy"), preemption, &PREEMPTIONS);
}

fn other_names(spec: &PodSpec, path: &Path<'_>, flaws: &mut Flaws) {
    labels(spec.node_selector.as_ref(), &path.child("nodeSelector"), flaws);
    for (name, field) in [
        (&spec.node_name, "nodeName"),
        (&spec.priority_class_name, "priorityClassName"),
        (&spec.runtime_class_name, "runtimeClassName"),
    ] {
        if let Some(name) = name.as_deref().filter(|name| !name.is_empty()) {
            flaws.text(&path.child(field), name, names::object_mistake);
        }
    }
}

// k8s: validation.go ValidateTolerations
fn tolerates(toleration: &Toleration, path: &Path<'_>, flaws: &mut Flaws) {
    let key = toleration.key.as_deref().unwrap_or_default();
    let operator = toleration.operator.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !key.is_empty() {
        flaws.text(&path.child("key"), key, names::mistake);
    } else if operator != "Exists" {
        let why = "operator must be Exists when `key` is empty, which means \"match all values and \
            all keys\"";
        flaws.invalid(&path.child("operator"), operator, why);
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        flaws.invalid(&path.child("effect"), effect, why);
    }
    match operator {
        "" | "Equal" => flaws.text(&path.child("value"), value, names::value_mistake),
        "Exists" if !value.is_empty() => {
            let why = "value must be empty when `operator` is 'Exists'";
            flaws.invalid(&path.child("operator"), value, why);
        }
        "Gt" | "Lt" if value.parse::<i64>().is_err() => {
            flaws.invalid(&path.child("value"), value, "must be a whole number");
        }
        other => {
            flaws.one_of(&path.child("operator"), other, &["Equal", "Exists", "Gt", "Lt"]);
        }
    }
    if !effect.is_empty() {
        flaws.one_of(&path.child("effect"), effect, &EFFECTS);
    }
}

fn gates(all: &[PodSchedulingGate], path: &Path<'_>, flaws: &mut Flaws) {
    let path = path.child("schedulingGates");
    let mut seen = HashSet::new();
    for (at, gate) in all.iter().enumerate() {
        flaws.text(&path.index(at), &gate.name, names::mistake);
        if !seen.insert(&gate.name) {
            flaws.duplicate(&path.index(at), &gate.name);
        }
    }
}

// k8s: validation.go validatePodResourceClaim
fn claims(all: &[PodResourceClaim], path: &Path<'_>, flaws: &mut Flaws) {
    let path = path.child("resourceClaims");
    let mut seen = HashSet::new();
    for (at, claim) in all.iter().enumerate() {
        let path = path.index(at);
        match claim.name.as_str() {
            "" => flaws.required(&path.child("name"), ""),
            name if !seen.insert(name) => flaws.duplicate(&path.child("name"), name),
            name => flaws.text(&path.child("name"), name, names::dns_label_mistake),
        }
        let of = (&claim.resource_claim_name, &claim.resource_claim_template_name);
        if of.0.is_some() == of.1.is_some() {
            let why = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
            flaws.invalid(&path, &claim.name, why);
        }
        for (name, field) in [(of.0, "resourceClaimName"), (of.1, "resourceClaimTemplateName")] {
            if let Some(name) = name {
                flaws.text(&path.child(field), name, names::object_mistake);
            }
        }
    }
}

#[cfg(test)]
mod tests;
