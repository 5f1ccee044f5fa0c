//! The pods that a DaemonSet creates: the template with tolerations of node problems, labels of the
//! revision, and the node that the pod is for.
//!
//! Input: the whole set, the hash of its revision, and a node's name. Output: a pod. Pure.
// k8s: pkg/controller/daemon/util/daemonset_util.go

use pintle_api_types::kind::DAEMON_SETS;
use pintle_controllers_core::common::node_match::{NodeFit, Toleration};
use pintle_controllers_core::common::pods::pod_from_template;
use pintle_controllers_core::kinds::{DaemonSet, Pod};
use serde_json::{Map, Value, json};

/// The annotation of a set, and the label of a pod, with the number of the template.
pub(super) const GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";
pub(super) const GENERATION_LABEL: &str = "pod-template-generation";
/// The label of pods and revisions with the hash of the template.
pub(super) const HASH_LABEL: &str = "controller-revision-hash";

/// Taints that every daemon pod tolerates, with their effects.
// k8s: daemonset_util.go AddOrUpdateDaemonPodTolerations
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// The additional toleration of a daemon pod on the host network.
const TOLERATED_ON_HOST: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

fn tolerated(is_on_host: bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    TOLERATED.into_iter().chain(is_on_host.then_some(TOLERATED_ON_HOST))
}

/// The nodes that pods of the set fit, with the tolerations that they get.
pub(super) fn fit_of(set: &DaemonSet) -> NodeFit {
    let mut fit = set.spec.template.spec.clone();
    let added = tolerated(fit.host_network);
    let added = added.map(|(key, effect)| Toleration::exists(key, effect));
    fit.tolerations = fit.tolerations.iter().cloned().chain(added).collect();
    fit
}

/// The number of the template; `None` when there is none that can be read.
// k8s: daemonset_util.go GetTemplateGeneration
pub(super) fn template_generation(set: &DaemonSet) -> Option<i64> {
    set.metadata.annotation(GENERATION_ANNOTATION)?.parse().ok()
}

/// The pod is of the current template: by the hash, or by the number of earlier releases.
// k8s: daemonset_util.go IsPodUpdated
pub(super) fn is_updated(pod: &Pod, hash: &str, generation: Option<i64>) -> bool {
    let label = |key: &str| pod.metadata.labels.get(key).map(|value| value.as_str());
    let has_generation = generation
        .is_some_and(|number| label(GENERATION_LABEL) == Some(number.to_string().as_str()));
    let has_hash = !hash.is_empty() && label(HASH_LABEL) == Some(hash);
    has_generation || has_hash
}

/// The pod for a node; the scheduler binds it to that node only.
// k8s: daemonset_util.go CreatePodTemplate
pub(super) fn pod_for(set: &DaemonSet, whole: &Value, hash: &str, node: &str) -> Value {
    let mut pod = pod_from_template(&whole["spec"]["template"], DAEMON_SETS, &set.metadata);
    add_tolerations(&mut pod["spec"], set.spec.template.spec.host_network);
    let labels = &mut pod["metadata"]["labels"];
    if let Some(generation) = template_generation(set) {
        labels[GENERATION_LABEL] = generation.to_string().into();
    }
    if !hash.is_empty() {
        labels[HASH_LABEL] = hash.into();
    }
    set_node(&mut pod["spec"], node);
    pod
}

/// Adds what daemon pods tolerate; a toleration of the same taint takes its place.
// k8s: pkg/apis/core/v1/helper/helpers.go AddOrUpdateTolerationInPodSpec
fn add_tolerations(spec: &mut Value, is_on_host: bool) {
    let known = spec["tolerations"].as_array().cloned();
    let mut tolerations = known.unwrap_or_default();
    for (key, effect) in tolerated(is_on_host) {
        let wanted = json!({"key": key, "operator": "Exists", "effect": effect});
        let is_same = |one: &Value| {
            let has_value = one["value"].as_str().is_some_and(|value| !value.is_empty());
            one["key"] == key
                && one["operator"] == "Exists"
                && one["effect"] == effect
                && !has_value
        };
        let mut is_known = false;
        for one in tolerations.iter_mut().filter(|one| is_same(one)) {
            *one = wanted.clone();
            is_known = true;
        }
        if !is_known {
            tolerations.push(wanted);
        }
    }
    spec["tolerations"] = tolerations.into();
}

/// Requires the node of that name, in place of other terms.
// k8s: daemonset_util.go ReplaceDaemonSetPodNodeNameNodeAffinity
fn set_node(spec: &mut Value, node: &str) {
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let terms = json!([{ "matchFields": [field] }]);
    let mut within = spec;
    for level in ["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"] {
        within = &mut within[level];
        if within.is_null() {
            *within = Value::Object(Map::new());
        }
    }
    within["nodeSelectorTerms"] = terms;
}
