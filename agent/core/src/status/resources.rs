//! `resources` and `allocatedResources` of a status.
//!
//! A running container shows the runtime's values in force for the resources that can change while
//! it runs, else those of the spec. A pod shows its allocated resources until the API server knows
//! that it runs, from then on those of its cgroup, and without a cgroup those of its own spec.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::DeriveInput;
use super::container::StatusSubject;
use super::phase::{RUNNING, is_terminal};
use crate::observed::{ObservedContainer, ObservedResources, RunState};
use crate::request::pod_amounts;
use crate::resize::PodResources;
use crate::types::PodCgroups;
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
    subject: &StatusSubject,
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
    let actual = instance.applied.resources.clone().unwrap_or_default();
    if let Some(limits) = shown.limits.as_mut() {
        let old = old.and_then(|old| old.limits.as_ref());
        put(limits, old, "cpu", cpu_limit(&actual), LIMIT_MILLIS_MIN);
        let memory = Some(actual.memory_limit_bytes).filter(|bytes| *bytes > 0);
        put(limits, old, "memory", memory.map(Amount::from_bytes), 0);
    }
    if let Some(requests) = shown.requests.as_mut() {
        let old = old.and_then(|old| old.requests.as_ref());
        put(requests, old, "cpu", cpu_request(&actual), SHARES_MIN);
        // The runtime does not know of it, so the amount that was last applied counts.
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

/// Resources of the pod.
// k8s: pkg/kubelet/kubelet_pods.go convertToAPIPodLevelResourcesStatus
pub(crate) fn of_pod(input: &DeriveInput, previous: &PodStatus) -> ResourceRequirements {
    match cgroup_of_pod(input, previous) {
        PodCgroup::Unread => given_to_pod(input.pod),
        PodCgroup::Has(actual) => read_of_pod(input.pod, previous.resources.as_ref(), &actual),
        PodCgroup::Removed => read_of_pod(input.pod, None, &ObservedResources::default()),
    }
}

/// The part of the pod's cgroup that a status shows.
enum PodCgroup {
    /// Nothing: the pod is not known to run.
    Unread,
    /// The values of its files.
    Has(ObservedResources),
    /// The pod ran and its cgroup is removed.
    Removed,
}

/// Upstream uses the phase in its copy of the object, which for a static pod is never one of the
/// API server's. A pod that ended is still `Running` there when its last status is made.
fn cgroup_of_pod(input: &DeriveInput, previous: &PodStatus) -> PodCgroup {
    if pod::is_static(input.pod) {
        return PodCgroup::Unread;
    }
    let old = previous.phase.as_deref();
    if is_terminal(old) {
        let mut mains = previous.container_statuses.iter().flatten();
        let ran = mains.any(|main| main.container_id.as_deref().is_some_and(|id| !id.is_empty()));
        return if ran { PodCgroup::Removed } else { PodCgroup::Unread };
    }
    let copy = input.pod.status.as_ref().map_or(old, |status| status.phase.as_deref());
    if old != Some(RUNNING) || copy != Some(RUNNING) {
        return PodCgroup::Unread;
    }
    let is_known = *input.actuated != PodResources::default();
    let actuated = is_known.then(|| input.actuated.apply(input.pod)).flatten();
    let amounts = pod_amounts(actuated.as_deref().unwrap_or(input.pod));
    let read = |cgroups: PodCgroups| cgroups.read_back(&amounts);
    PodCgroup::Has(input.node.pod_cgroups.map(read).unwrap_or_default())
}

/// The pod's own resources with the values of its cgroup, and of the status before where the
/// cgroup has none. A memory request is nowhere in a cgroup: the first one that was shown stays.
fn read_of_pod(
    pod: &Pod,
    old: Option<&ResourceRequirements>,
    actual: &ObservedResources,
) -> ResourceRequirements {
    let mut shown = pod::spec(pod).resources.clone().unwrap_or_default();
    let old_requests = old.and_then(|old| old.requests.as_ref());
    let requests = shown.requests.get_or_insert_default();
    put(requests, old_requests, "cpu", cpu_request(actual), SHARES_MIN);
    if !requests.contains_key("memory") {
        let sum = pod_requests(pod).get("memory").map(|sum| Quantity(sum.canonical()));
        requests.extend(sum.map(|sum| ("memory".to_owned(), sum)));
    }
    put(requests, old_requests, "memory", None, 0);
    let old_limits = old.and_then(|old| old.limits.as_ref());
    let limits = shown.limits.get_or_insert_default();
    put(limits, old_limits, "cpu", cpu_limit(actual), LIMIT_MILLIS_MIN);
    let memory = Some(actual.memory_limit_bytes).filter(|bytes| *bytes > 0);
    put(limits, old_limits, "memory", memory.map(Amount::from_bytes), 0);
    shown.requests = shown.requests.filter(|list| !list.is_empty());
    shown.limits = shown.limits.filter(|list| !list.is_empty());
    shown
}

/// The allocated resources of the pod, as sums.
// k8s: pkg/kubelet/kubelet_pods.go getEffectiveAllocatedResources
fn given_to_pod(pod: &Pod) -> ResourceRequirements {
    ResourceRequirements {
        claims: pod::spec(pod).resources.as_ref().and_then(|own| own.claims.clone()),
        requests: allocated_to_pod(pod),
        limits: Some(to_quantities(pod_limits(pod))).filter(|list| !list.is_empty()),
    }
}

/// Allocated requests of the pod.
pub(super) fn allocated_to_pod(pod: &Pod) -> Option<List> {
    Some(to_quantities(pod_requests(pod))).filter(|list| !list.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::status::testing::{DerivedPod, container, exited};
    use crate::status::{Lifecycle, derive};

    fn world(resources: Value) -> DerivedPod {
        let own = json!({"name": "c", "image": "i", "resources": resources});
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [own, {"name": "d", "image": "i"}]}});
        let mut world = DerivedPod::new(pod).with(vec![container("c", "1"), container("d", "2")]);
        world.node.pod_cgroups =
            Some(PodCgroups { is_v2: false, enforce_cpu_quota: true, cpu_period_us: 100_000 });
        world
    }

    fn resources_of(status: &PodStatus) -> Value {
        serde_json::to_value(&status.resources).expect("JSON")
    }

    #[test]
    fn pod_resources_come_from_the_sums_then_the_cgroup_then_the_spec() {
        let own = json!({"requests": {"cpu": "100m", "memory": "16Mi"},
            "limits": {"cpu": "200m", "memory": "32Mi"}});
        let mut world = world(own.clone());
        assert_eq!(resources_of(&world.derive()), own);
        // The second container has no limits, so neither has the cgroup: the limit of CPU that was
        // shown stays, and version 1 has a number for memory.
        let running = json!({"requests": {"cpu": "100m", "memory": "16Mi"},
            "limits": {"cpu": "200m", "memory": "9007199254740988Ki"}});
        assert_eq!(resources_of(&world.derive()), running);
        world = world.with(vec![exited("c", "1", 0), exited("d", "2", 0)]);
        world.lifecycle = Lifecycle::Terminated;
        assert_eq!(resources_of(&world.derive()), running);
        assert_eq!(resources_of(&world.derive()), json!({"requests": {"memory": "16Mi"}}));
        assert_eq!(resources_of(&derive(&world.input())), json!({"requests": {"memory": "16Mi"}}));
    }

    #[test]
    fn the_cgroup_counts_once_the_api_server_knows_that_the_pod_runs() {
        let mut world = world(json!({}));
        world.derive();
        world.pod.status =
            Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() });
        assert_eq!(resources_of(&world.derive()), json!({}));
        world.pod.status =
            Some(PodStatus { phase: Some("Running".into()), ..PodStatus::default() });
        let limits = json!({"limits": {"memory": "9007199254740988Ki"}});
        assert_eq!(resources_of(&world.derive()), limits);
    }
}
