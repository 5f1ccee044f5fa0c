//! A pod without its invalid parts.
//!
//! Input: a pod of the API with invalid quantities or selectors. Output: the same pod without them.
//! Owner: pure functions. Why: such a pod uses its node, its ports and its other valid fields,
//! however it was admitted. An affinity with one invalid selector counts for nothing as a whole,
//! and the pod's other affinities count.
// k8s: pkg/scheduler/framework/types.go PodInfo.Update, NodeInfo.AddPod

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Pod, PodAffinityTerm, ResourceRequirements, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pintle_api_types::quantity::Amount;
use pintle_api_types::selector::Texts;

type Selector = pintle_api_types::selector::Selector<String>;

/// Returns the pod without invalid quantities and affinities.
pub(super) fn readable(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        spec.containers.iter_mut().for_each(container);
        spec.init_containers.iter_mut().flatten().for_each(container);
        amounts(spec.overhead.as_mut());
        requirements(spec.resources.as_mut());
        if let Some(affinity) = &mut spec.affinity {
            if let Some(to) = &mut affinity.pod_affinity {
                required(&mut to.required_during_scheduling_ignored_during_execution);
                preferred(&mut to.preferred_during_scheduling_ignored_during_execution);
            }
            if let Some(anti) = &mut affinity.pod_anti_affinity {
                required(&mut anti.required_during_scheduling_ignored_during_execution);
                preferred(&mut anti.preferred_during_scheduling_ignored_during_execution);
            }
        }
    }
    if let Some(status) = &mut pod.status {
        status.container_statuses.iter_mut().flatten().for_each(container_status);
        status.init_container_statuses.iter_mut().flatten().for_each(container_status);
        amounts(status.allocated_resources.as_mut());
        requirements(status.resources.as_mut());
    }
    pod
}

fn container(container: &mut Container) {
    requirements(container.resources.as_mut());
}

fn container_status(status: &mut ContainerStatus) {
    amounts(status.allocated_resources.as_mut());
    requirements(status.resources.as_mut());
}

fn requirements(resources: Option<&mut ResourceRequirements>) {
    amounts(resources.and_then(|resources| resources.requests.as_mut()));
}

fn amounts(list: Option<&mut BTreeMap<String, Quantity>>) {
    if let Some(list) = list {
        list.retain(|_, quantity| quantity.0.parse::<Amount>().is_ok());
    }
}

fn is_readable(term: &PodAffinityTerm) -> bool {
    let selectors = [term.label_selector.as_ref(), term.namespace_selector.as_ref()];
    selectors.into_iter().all(|selector| Selector::from_api(selector, &mut Texts).is_ok())
}

fn required(terms: &mut Option<Vec<PodAffinityTerm>>) {
    if terms.iter().flatten().any(|term| !is_readable(term)) {
        *terms = None;
    }
}

fn preferred(terms: &mut Option<Vec<WeightedPodAffinityTerm>>) {
    if terms.iter().flatten().any(|term| !is_readable(&term.pod_affinity_term)) {
        *terms = None;
    }
}
