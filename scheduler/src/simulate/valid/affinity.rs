//! Validation of affinity, topology spread, and their selectors.
//!
//! Input: parts of a pod, with the keys of `matchLabelKeys` merged into selectors. Output: flaws.
//! Pure.
// k8s: pkg/apis/core/validation/validation.go validateAffinity, validateTopologySpreadConstraints

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, TopologySpreadConstraint,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use pintle_sched_core::names;

use super::flaws::{Flaws, Path};
use super::labels;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const POLICIES: [&str; 2] = ["Honor", "Ignore"];
const ACTIONS: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];

/// Flaws, and how strict the checks are: stored objects keep label values from before the API
/// validated them.
pub(super) struct AffinityChecker<'a> {
    pub(super) flaws: &'a mut Flaws,
    /// An API server has stored the object.
    pub(super) is_stored: bool,
}

impl AffinityChecker<'_> {
    pub(super) fn affinity(&mut self, affinity: &Affinity, root: &Path<'_>) {
        if let Some(of_node) = &affinity.node_affinity {
            let path = root.child("nodeAffinity");
            if let Some(required) = &of_node.required_during_scheduling_ignored_during_execution {
                let path = path.child(REQUIRED);
                let path = path.child("nodeSelectorTerms");
                if required.node_selector_terms.is_empty() {
                    self.flaws.required(&path, "must have at least one node selector term");
                }
                for (at, term) in required.node_selector_terms.iter().enumerate() {
                    self.node_term(term, !self.is_stored, &path.index(at));
                }
            }
            let path = path.child(PREFERRED);
            let preferred = &of_node.preferred_during_scheduling_ignored_during_execution;
            for (at, term) in preferred.iter().flatten().enumerate() {
                let path = path.index(at);
                self.weight(term.weight, &path);
                // Preferences accept any value.
                self.node_term(&term.preference, false, &path.child("preference"));
            }
        }
        if let Some(with) = &affinity.pod_affinity {
            let required = &with.required_during_scheduling_ignored_during_execution;
            let preferred = &with.preferred_during_scheduling_ignored_during_execution;
            let path = root.child("podAffinity");
            self.pod_terms(required.as_deref(), preferred.as_deref(), &path);
        }
        if let Some(against) = &affinity.pod_anti_affinity {
            let required = &against.required_during_scheduling_ignored_during_execution;
            let preferred = &against.preferred_during_scheduling_ignored_during_execution;
            let path = root.child("podAntiAffinity");
            self.pod_terms(required.as_deref(), preferred.as_deref(), &path);
        }
    }

    fn weight(&mut self, weight: i32, path: &Path<'_>) {
        if !(1..=100).contains(&weight) {
            let why = "must be in the range 1-100";
            self.flaws.out_of_range(&path.child("weight"), weight.into(), why);
        }
    }

    fn node_term(&mut self, term: &NodeSelectorTerm, checks_values: bool, path: &Path<'_>) {
        let list = path.child("matchExpressions");
        for (at, one) in term.match_expressions.iter().flatten().enumerate() {
            self.node_requirement(one, checks_values, &list.index(at));
        }
        let list = path.child("matchFields");
        for (at, one) in term.match_fields.iter().flatten().enumerate() {
            self.field_requirement(one, &list.index(at));
        }
    }

    // k8s: validation.go ValidateNodeSelectorRequirement
    fn node_requirement(
        &mut self,
        one: &NodeSelectorRequirement,
        checks_values: bool,
        path: &Path<'_>,
    ) {
        let values = one.values.as_deref().unwrap_or_default();
        if matches!(one.operator.as_str(), "Gt" | "Lt") {
            if values.len() != 1 {
                let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                self.flaws.required(&path.child("values"), why);
            }
        } else {
            let all = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
            self.operator(&one.operator, values, &all, path);
        }
        self.flaws.text(&path.child("key"), &one.key, names::mistake);
        if checks_values {
            self.values(values, path);
        }
    }

    // k8s: validation.go ValidateNodeFieldSelectorRequirement
    fn field_requirement(&mut self, one: &NodeSelectorRequirement, path: &Path<'_>) {
        let values = one.values.as_deref().unwrap_or_default();
        self.flaws.one_of(&path.child("operator"), &one.operator, &["In", "NotIn"]);
        if matches!(one.operator.as_str(), "In" | "NotIn") && values.len() != 1 {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field \
                selector";
            self.flaws.required(&path.child("values"), why);
        }
        if one.key != "metadata.name" {
            self.flaws.one_of(&path.child("key"), &one.key, &["metadata.name"]);
            return;
        }
        let list = path.child("values");
        for (at, value) in values.iter().enumerate() {
            self.flaws.text(&list.index(at), value, names::object_mistake);
        }
    }

    fn operator(&mut self, operator: &str, values: &[String], all: &[&str], path: &Path<'_>) {
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                self.flaws.required(&path.child("values"), why);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                self.flaws.forbidden(&path.child("values"), why);
            }
            other => self.flaws.one_of(&path.child("operator"), other, all),
        }
    }

    fn values(&mut self, values: &[String], path: &Path<'_>) {
        let list = path.child("values");
        for (at, value) in values.iter().enumerate() {
            self.flaws.text(&list.index(at), value, names::value_mistake);
        }
    }

    fn pod_terms(
        &mut self,
        required: Option<&[PodAffinityTerm]>,
        preferred: Option<&[WeightedPodAffinityTerm]>,
        root: &Path<'_>,
    ) {
        let path = root.child(REQUIRED);
        for (at, term) in required.unwrap_or_default().iter().enumerate() {
            self.pod_term(term, &path.index(at));
        }
        let path = root.child(PREFERRED);
        for (at, term) in preferred.unwrap_or_default().iter().enumerate() {
            let path = path.index(at);
            self.weight(term.weight, &path);
            self.pod_term(&term.pod_affinity_term, &path.child("podAffinityTerm"));
        }
    }

    // k8s: validation.go validatePodAffinityTerm
    fn pod_term(&mut self, term: &PodAffinityTerm, path: &Path<'_>) {
        self.topology(&term.topology_key, path);
        self.selector(term.label_selector.as_ref(), &path.child("labelSelector"));
        self.selector(term.namespace_selector.as_ref(), &path.child("namespaceSelector"));
        let list = path.child("namespaces");
        for (at, name) in term.namespaces.iter().flatten().enumerate() {
            self.flaws.text(&list.index(at), name, names::dns_label_mistake);
        }
        let keys = term.match_label_keys.as_deref().unwrap_or_default();
        let other = term.mismatch_label_keys.as_deref().unwrap_or_default();
        self.label_keys(keys, term.label_selector.as_ref(), &path.child("matchLabelKeys"));
        self.label_keys(other, term.label_selector.as_ref(), &path.child("mismatchLabelKeys"));
        for (at, key) in keys.iter().enumerate().filter(|(_, key)| other.contains(key)) {
            let why = "exists in both matchLabelKeys and mismatchLabelKeys";
            self.flaws.invalid(&path.child("matchLabelKeys").index(at), key, why);
        }
        self.repeated(keys, term.label_selector.as_ref(), path);
    }

    fn topology(&mut self, key: &str, path: &Path<'_>) {
        let path = path.child("topologyKey");
        match key {
            "" => self.flaws.required(&path, "can not be empty"),
            key => self.flaws.text(&path, key, names::mistake),
        }
    }

    // k8s: validation.go validateLabelKeys
    fn label_keys(&mut self, keys: &[String], selector: Option<&LabelSelector>, path: &Path<'_>) {
        if !keys.is_empty() && selector.is_none() {
            let why = "must not be specified when labelSelector is not set";
            return self.flaws.forbidden(path, why);
        }
        for (at, key) in keys.iter().enumerate() {
            self.flaws.text(&path.index(at), key, names::mistake);
        }
    }

    /// A key of `matchLabelKeys` that the selector has in addition to the merged requirement.
    // k8s: validation.go ValidateMatchLabelKeysAndMismatchLabelKeys
    fn repeated(&mut self, keys: &[String], selector: Option<&LabelSelector>, path: &Path<'_>) {
        let Some(selector) = selector else { return };
        let expressions = selector.match_expressions.as_deref().unwrap_or_default();
        for (at, key) in keys.iter().enumerate() {
            let named = selector.match_labels.as_ref().is_some_and(|all| all.contains_key(key));
            let count = expressions.iter().filter(|one| one.key == *key).count();
            if count + usize::from(named) > 1 {
                let why = "exists in both matchLabelKeys and labelSelector";
                self.flaws.invalid(&path.child("matchLabelKeys").index(at), key, why);
            }
        }
    }

    // k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/validation/validation.go ValidateLabelSelector
    pub(super) fn selector(&mut self, selector: Option<&LabelSelector>, path: &Path<'_>) {
        let Some(selector) = selector else { return };
        labels(selector.match_labels.as_ref(), &path.child("matchLabels"), self.flaws);
        let list = path.child("matchExpressions");
        for (at, one) in selector.match_expressions.iter().flatten().enumerate() {
            let path = list.index(at);
            let values = one.values.as_deref().unwrap_or_default();
            self.operator(&one.operator, values, &["In", "NotIn", "Exists", "DoesNotExist"], &path);
            self.flaws.text(&path.child("key"), &one.key, names::mistake);
            if !self.is_stored {
                self.values(values, &path);
            }
        }
    }

    pub(super) fn spread(&mut self, all: &[TopologySpreadConstraint], root: &Path<'_>) {
        for (at, one) in all.iter().enumerate() {
            let path = root.index(at);
            if one.max_skew < 1 {
                let why = "must be greater than zero";
                self.flaws.out_of_range(&path.child("maxSkew"), one.max_skew.into(), why);
            }
            self.topology(&one.topology_key, &path);
            let action = one.when_unsatisfiable.as_str();
            self.flaws.one_of(&path.child("whenUnsatisfiable"), action, &ACTIONS);
            let is_same = |other: &TopologySpreadConstraint| {
                (&other.topology_key, &*other.when_unsatisfiable) == (&one.topology_key, action)
            };
            if all[at + 1..].iter().any(is_same) {
                let both = format!("{{{}, {action}}}", one.topology_key);
                self.flaws.duplicate(&path.child("{topologyKey, whenUnsatisfiable}"), &both);
            }
            self.min_domains(one, &path);
            let policy = one.node_affinity_policy.as_deref();
            self.flaws.one_of_given(&path.child("nodeAffinityPolicy"), policy, &POLICIES);
            let policy = one.node_taints_policy.as_deref();
            self.flaws.one_of_given(&path.child("nodeTaintsPolicy"), policy, &POLICIES);
            let keys = one.match_label_keys.as_deref().unwrap_or_default();
            self.label_keys(keys, one.label_selector.as_ref(), &path.child("matchLabelKeys"));
            self.repeated(keys, one.label_selector.as_ref(), &path);
            self.selector(one.label_selector.as_ref(), &path.child("labelSelector"));
        }
    }

    // k8s: validation.go validateMinDomains
    fn min_domains(&mut self, one: &TopologySpreadConstraint, path: &Path<'_>) {
        let Some(count) = one.min_domains else { return };
        let path = path.child("minDomains");
        if count < 1 {
            self.flaws.out_of_range(&path, count.into(), "must be greater than zero");
        }
        if one.when_unsatisfiable != "DoNotSchedule" {
            let why = "can only be used if whenUnsatisfiable is DoNotSchedule";
            self.flaws.out_of_range(&path, count.into(), why);
        }
    }
}
