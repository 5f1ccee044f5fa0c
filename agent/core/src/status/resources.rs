//! `resources` and `allocatedResources` of a status.
//!
//! A running container shows what the runtime has in force for the resources that can change while
//! it runs, else what the spec asks for. At pod level the values are those that the pod's cgroup was
//! last given: reading them back from it, as upstream does, reports "unlimited" as a limit of 8 EiB
//! on cgroup v1 and flickers between both forms.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::DeriveInput;
use super::container::Subject;
use super::phase::RUNNING;
use crate::observed::{ObservedContainer, ObservedResources, RunState};
use crate::resize::PodResources;
use pintle_api_types::pod;
use pintle_api_types::pod::resources::{pod_limits, pod_requests, to_quantities};
use pintle_api_types::quantity::Amount;

/// CPU shares of a container without a request.
// k8s: pkg/kubelet/cm/helpers_linux.go MinShares
const SHARES_MIN: i64 = 2;
/// CPU shares of one CPU.
const SHARES_PER_CPU: i64 = 1024;
/// Lowest CPU limit that a quota can express, in millicores.
// k8s: pkg/kubelet/cm/helpers_linux.go MinMilliCPULimit
const LIMIT_MILLIS_MIN: i64 = 10;

type List = BTreeMap<String, Quantity>;

/// Resources of a container as in force.
// k8s: pkg/kubelet/kubelet_pods.go convertContainerStatusResources
pub(crate) fn of_container(
    subject: &Subject,
    instance: &ObservedContainer,
    id: &str,
    actuated: &PodResources,
) -> ResourceRequirements {
    let mut shown = subject.container.resources.clone().unwrap_or_default();
    if instance.state != RunState::Running {
        return shown;
    }
    let old = subject.old.filter(|old| {
        old.container_id.as_deref() == Some(id)
            && old.state.as_ref().is_some_and(|state| state.running.is_some())
    });
    let old = old.and_then(|old| old.resources.as_ref());
    let actual = instance.resources.clone().unwrap_or_default();
    if let Some(limits) = shown.limits.as_mut() {
        let old = old.and_then(|old| old.limits.as_ref());
        put(limits, old, "cpu", cpu_limit(&actual), LIMIT_MILLIS_MIN);
        let memory = Some(actual.memory_limit_bytes).filter(|bytes| *bytes > 0);
        put(limits, old, "memory", memory.map(Amount::from_bytes), 0);
    }
    if let Some(requests) = shown.requests.as_mut() {
        let old = old.and_then(|old| old.requests.as_ref());
        put(requests, old, "cpu", cpu_request(&actual), SHARES_MIN);
        // The runtime does not know of it; what it was last told is what counts.
        let told = actuated.containers.get(&subject.container.name);
        let told = told.and_then(|own| own.requests.as_ref()?.get("memory"));
        let told = told.and_then(|quantity| Amount::parse(&quantity.0));
        put(requests, old, "memory", told.filter(|amount| !amount.is_zero()), 0);
    }
    shown
}

/// Takes the actual value, else the one shown before. Values at or below `millis_min` are too
/// coarse in the kernel to be read back.
fn put(list: &mut List, old: Option<&List>, name: &str, actual: Option<Amount>, millis_min: i64) {
    let Some(actual) = actual else {
        if let Some(old) = old.and_then(|old| old.get(name)) {
            list.insert(name.to_owned(), old.clone());
        }
        return;
    };
    let own = list.get(name).and_then(|quantity| Amount::parse(&quantity.0));
    if actual.millis() > millis_min || own.is_some_and(|own| own.millis() > millis_min) {
        // Equal amounts keep their text: 500M must not turn into its count of bytes.
        if own != Some(actual) {
            list.insert(name.to_owned(), Quantity(actual.canonical()));
        }
    }
}

// k8s: pkg/kubelet/kuberuntime/helpers_linux.go quotaToMilliCPU
fn cpu_limit(actual: &ObservedResources) -> Option<Amount> {
    if actual.cpu_quota <= 0 || actual.cpu_period <= 0 {
        return None;
    }
    Some(Amount::from_millis(actual.cpu_quota.saturating_mul(1000) / actual.cpu_period))
}

// k8s: pkg/kubelet/kuberuntime/helpers_linux.go sharesToMilliCPU
fn cpu_request(actual: &ObservedResources) -> Option<Amount> {
    if actual.cpu_shares <= 0 {
        return None;
    }
    let millis = actual.cpu_shares.saturating_mul(1000);
    let whole = millis / SHARES_PER_CPU + i64::from(millis % SHARES_PER_CPU != 0);
    Some(Amount::from_millis(if actual.cpu_shares <= SHARES_MIN { SHARES_MIN } else { whole }))
}

/// Resources of the pod: while it runs, those at pod level that are in force.
// k8s: pkg/kubelet/kubelet_pods.go convertToAPIPodLevelResourcesStatus
pub(crate) fn of_pod(input: &DeriveInput, previous: &PodStatus) -> ResourceRequirements {
    let runs = previous.phase.as_deref() == Some(RUNNING);
    let actuated = input.actuated.pod.clone().filter(|_| runs);
    let actuated = actuated.and_then(|of_pod| {
        PodResources { pod: Some(of_pod), ..PodResources::default() }.apply(input.pod)
    });
    let pod = actuated.as_deref().unwrap_or(input.pod);
    ResourceRequirements {
        claims: pod::spec(input.pod).resources.as_ref().and_then(|own| own.claims.clone()),
        requests: Some(to_quantities(pod_requests(pod))).filter(|list| !list.is_empty()),
        limits: Some(to_quantities(pod_limits(pod))).filter(|list| !list.is_empty()),
    }
}

/// Allocated requests of the pod.
pub(super) fn allocated_to_pod(pod: &Pod) -> Option<List> {
    Some(to_quantities(pod_requests(pod))).filter(|list| !list.is_empty())
}
