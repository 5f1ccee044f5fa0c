//! `matchLabelKeys` and `mismatchLabelKeys`, which the API server merges into selectors at
//! creation.
//!
//! Input: a pod that no API server has stored. Output: its selectors with a requirement for each
//! key whose label the pod has. Pure. A requirement that exists already, as in a dump without times
//! and versions, is not added again.
// k8s: pkg/registry/core/pod/strategy.go applyLabelKeysToLabelSelector

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, WeightedPodAffinityTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Merges the keys; true if any selector changed.
pub(in crate::simulate) fn merge(pod: &mut Pod) -> bool {
    let Some(labels) = pod.metadata.labels.as_ref() else { return false };
    let Some(spec) = &mut pod.spec else { return false };
    let mut any = false;
    for one in spec.topology_spread_constraints.iter_mut().flatten() {
        let keys = one.match_label_keys.as_deref();
        any |= add(one.label_selector.as_mut(), keys, "In", labels);
    }
    let Some(affinity) = &mut spec.affinity else { return any };
    let mut each = |required: &mut Option<Vec<PodAffinityTerm>>,
                    preferred: &mut Option<Vec<WeightedPodAffinityTerm>>| {
        let preferred = preferred.iter_mut().flatten().map(|one| &mut one.pod_affinity_term);
        for term in required.iter_mut().flatten().chain(preferred) {
            let selector = term.label_selector.as_mut();
            any |= add(selector, term.match_label_keys.as_deref(), "In", labels);
            let selector = term.label_selector.as_mut();
            any |= add(selector, term.mismatch_label_keys.as_deref(), "NotIn", labels);
        }
    };
    if let Some(with) = &mut affinity.pod_affinity {
        each(
            &mut with.required_during_scheduling_ignored_during_execution,
            &mut with.preferred_during_scheduling_ignored_during_execution,
        );
    }
    if let Some(against) = &mut affinity.pod_anti_affinity {
        each(
            &mut against.required_during_scheduling_ignored_during_execution,
            &mut against.preferred_during_scheduling_ignored_during_execution,
        );
    }
    any
}

fn add(
    selector: Option<&mut LabelSelector>,
    keys: Option<&[String]>,
    operator: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    // A missing selector selects nothing, whatever requirements are added.
    let Some(selector) = selector else { return false };
    let mut any = false;
    for key in keys.unwrap_or_default() {
        let Some(value) = labels.get(key) else { continue };
        let requirement = LabelSelectorRequirement {
            key: key.clone(),
            operator: operator.to_owned(),
            values: Some(vec![value.clone()]),
        };
        let expressions = selector.match_expressions.get_or_insert_default();
        if !expressions.contains(&requirement) {
            expressions.push(requirement);
            any = true;
        }
    }
    any
}
