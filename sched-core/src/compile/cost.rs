//! Cost of compiling and deciding a pod, estimated from its spec.
//!
//! Input: a pod. Output: numbers of its parts, and from these work and memory. Owner: pure
//! functions. Bounds: one walk over the pod. Why before anything is compiled: a charge is made
//! before the work, and in bulk, so that the loops over columns count nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelectorTerm, Pod, PodAffinityTerm, PodSpec, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::bits::WORD_ROWS;
use crate::snapshot::Cluster;

/// Parts of a pod beyond which it has no template.
const PARTS_MAX: usize = 512;
/// Bytes that a term takes up while the pod is decided.
const TERM_BYTES: usize = 640;

/// Size of a pod's spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PodCost {
    /// Terms of pod affinity and spread constraints: each may need a counter.
    pub(super) counted: usize,
    /// Terms that select namespaces by label.
    namespaced: usize,
    /// Keys, values and namespaces of these.
    words: usize,
    /// Requirements of node affinity, their values not counted.
    requirements: usize,
    values: usize,
    tolerations: usize,
    /// Containers, ports, resources, gates, image volumes.
    rest: usize,
}

fn len<T>(list: &Option<Vec<T>>) -> usize {
    list.as_ref().map_or(0, Vec::len)
}

impl PodCost {
    pub(super) fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let mut cost = Self { tolerations: len(&spec.tolerations), ..Self::default() };
        cost.add_rest(spec);
        cost.requirements += spec.node_selector.as_ref().map_or(0, BTreeMap::len);
        for constraint in spec.topology_spread_constraints.iter().flatten() {
            cost.counted += 1;
            cost.words += len(&constraint.match_label_keys);
            cost.add_selector(constraint.label_selector.as_ref());
        }
        let Some(affinity) = &spec.affinity else { return cost };
        if let Some(nodes) = &affinity.node_affinity {
            let required = nodes.required_during_scheduling_ignored_during_execution.as_ref();
            required
                .into_iter()
                .flat_map(|r| &r.node_selector_terms)
                .for_each(|t| cost.add_node(t));
            let preferred = nodes.preferred_during_scheduling_ignored_during_execution.iter();
            preferred.flatten().for_each(|t| cost.add_node(&t.preference));
        }
        if let Some(pods) = &affinity.pod_affinity {
            cost.add_pods(
                pods.required_during_scheduling_ignored_during_execution.as_deref(),
                pods.preferred_during_scheduling_ignored_during_execution.as_deref(),
            );
        }
        if let Some(pods) = &affinity.pod_anti_affinity {
            cost.add_pods(
                pods.required_during_scheduling_ignored_during_execution.as_deref(),
                pods.preferred_during_scheduling_ignored_during_execution.as_deref(),
            );
        }
        cost
    }

    fn add_rest(&mut self, spec: &PodSpec) {
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        for container in containers {
            let resources = container.resources.as_ref();
            let requests = resources.and_then(|r| r.requests.as_ref()).map_or(0, BTreeMap::len);
            self.rest += 1 + len(&container.ports) + requests;
        }
        let images = spec.volumes.iter().flatten().filter(|volume| volume.image.is_some());
        self.rest += len(&spec.scheduling_gates) + images.count();
    }

    fn add_node(&mut self, term: &NodeSelectorTerm) {
        for r in term.match_expressions.iter().chain(&term.match_fields).flatten() {
            self.requirements += 1;
            self.values += len(&r.values);
        }
    }

    fn add_pods(
        &mut self,
        required: Option<&[PodAffinityTerm]>,
        preferred: Option<&[WeightedPodAffinityTerm]>,
    ) {
        let preferred = preferred.into_iter().flatten().map(|term| &term.pod_affinity_term);
        for term in required.into_iter().flatten().chain(preferred) {
            self.counted += 1;
            self.namespaced += usize::from(term.namespace_selector.is_some());
            self.words += len(&term.namespaces) + len(&term.match_label_keys);
            self.add_selector(term.label_selector.as_ref());
            self.add_selector(term.namespace_selector.as_ref());
        }
    }

    fn add_selector(&mut self, selector: Option<&LabelSelector>) {
        let Some(selector) = selector else { return };
        self.words += selector.match_labels.as_ref().map_or(0, BTreeMap::len);
        let expressions = selector.match_expressions.iter().flatten();
        self.words += expressions.map(|r| 1 + len(&r.values)).sum::<usize>();
    }

    /// Returns true if a template of the pod would take too much memory.
    pub(super) fn is_heavy(&self) -> bool {
        let terms = self.counted * 4 + self.words + self.requirements + self.values;
        terms + self.tolerations + self.rest > PARTS_MAX
    }

    /// Returns the work of compiling the pod and deciding it once.
    pub(super) fn work(&self, cluster: &Cluster) -> u64 {
        let words = cluster.view.rows / WORD_ROWS;
        // A counter is compared with all classes of pods, and joined to a mask.
        let counted = self.counted * (16 + cluster.classes.len() + words);
        let namespaced = self.namespaced * cluster.namespaces.len();
        let required = self.requirements * (8 + words) + self.values * 4;
        let tolerations = self.tolerations * (4 + cluster.view.sparse.taints.len());
        (counted + namespaced + self.words * 4 + required + tolerations + self.rest * 8) as u64
    }

    /// Returns the bytes used meanwhile, beyond those of a small pod.
    pub(super) fn bytes(&self, cluster: &Cluster) -> u64 {
        let namespaces = self.namespaced * cluster.namespaces.len() * size_of::<u32>();
        // A term of a pod on a node is kept with each class that it selects.
        let term = TERM_BYTES + cluster.classes.len() * size_of::<u32>();
        let terms = self.counted * term + self.words * 32 + self.requirements * 64;
        (terms + namespaces + (self.values + self.tolerations + self.rest) * 32) as u64
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::snapshot::tests::pod_with;

    #[test]
    fn pod_cost_counts_terms_selectors_and_tolerations_in_every_field() {
        let pod = pod_with("p", |p| {
            let selector = json!({"matchLabels": {"a": "b"},
                "matchExpressions": [{"key": "c", "operator": "In", "values": ["d", "e"]}]});
            let term = json!({"topologyKey": "zone", "labelSelector": selector,
                "namespaces": ["x", "y"], "namespaceSelector": {"matchLabels": {"n": "m"}}});
            let weighted = json!({"weight": 1, "podAffinityTerm": term});
            let of_pods = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term],
                "preferredDuringSchedulingIgnoredDuringExecution": [weighted, weighted]});
            let node = json!({"matchExpressions":
                [{"key": "k", "operator": "In", "values": ["1", "2", "3"]}],
                "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]});
            let of_nodes = json!({"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [node]}, "preferredDuringSchedulingIgnoredDuringExecution":
                [{"weight": 1, "preference": node}]});
            p["spec"]["affinity"] = json!({"podAffinity": of_pods, "podAntiAffinity": of_pods,
                "nodeAffinity": of_nodes});
            p["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]);
            p["spec"]["tolerations"] = json!([{"key": "a"}, {"key": "b"}]);
            p["spec"]["nodeSelector"] = json!({"a": "b"});
            p["spec"]["schedulingGates"] = json!([{"name": "g"}]);
        });
        let want = PodCost {
            counted: 7,
            namespaced: 6,
            words: 6 * (2 + 4 + 1) + 4,
            requirements: 5,
            values: 8,
            tolerations: 2,
            rest: 3,
        };
        assert_eq!(PodCost::of(&pod), want);
        assert!(!want.is_heavy());
        let many: Vec<_> = (0..600).map(|at| json!({"key": format!("k{at}")})).collect();
        let heavy = pod_with("p", |p| p["spec"]["tolerations"] = json!(many));
        assert!(PodCost::of(&heavy).is_heavy());
    }
}
