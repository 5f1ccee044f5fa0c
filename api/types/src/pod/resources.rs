//! Sums of a pod's requests and limits.
//!
//! Main containers and sidecars add up; an init container counts with the sidecars started before
//! it, as a maximum. Pod-level values replace the sums they name, overhead comes on top.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{containers, spec};
use crate::ids::ContainerKind;
use crate::quantity::Amount;
pub use crate::quantity::Amounts;

/// One half of the requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `requests`.
    Requests,
    /// `limits`.
    Limits,
}

/// The named half of a container's requirements; invalid quantities are left out.
pub fn of_container(container: &Container, side: Side) -> Amounts {
    of_requirements(container.resources.as_ref(), side)
}

/// The pod's requests, as the scheduler and the node account for them.
// k8s: staging/src/k8s.io/component-helpers/resource/helpers.go PodRequests
pub fn pod_requests(pod: &Pod) -> Amounts {
    let spec = spec(pod);
    let mut sum = aggregate(spec, Side::Requests);
    sum.extend(pod_level(spec, Side::Requests));
    add_all(&mut sum, &amounts(spec.overhead.as_ref()));
    sum
}

/// The pod's limits. A resource is named as soon as one container limits it.
// k8s: staging/src/k8s.io/component-helpers/resource/helpers.go PodLimits
pub fn pod_limits(pod: &Pod) -> Amounts {
    let spec = spec(pod);
    let mut sum = aggregate(spec, Side::Limits);
    sum.extend(pod_level(spec, Side::Limits));
    for (name, overhead) in amounts(spec.overhead.as_ref()) {
        if let Some(limit) = sum.get_mut(&name).filter(|limit| !limit.is_zero()) {
            *limit = *limit + overhead;
        }
    }
    sum
}

/// True when the pod as a whole can be limited: at pod level, or in every init and main container.
// k8s: pkg/kubelet/cm/helpers_linux.go ResourceConfigForPod
pub fn is_limited(pod: &Pod, resource: &str) -> bool {
    let spec = spec(pod);
    pod_level(spec, Side::Limits).contains_key(resource)
        || containers::all(spec).all(|(_, container)| {
            let limits = of_container(container, Side::Limits);
            limits.get(resource).is_some_and(|limit| !limit.is_zero())
        })
}

/// Requirements at pod level that pod-level resources support.
pub fn pod_level(spec: &PodSpec, side: Side) -> Amounts {
    let mut own = of_requirements(spec.resources.as_ref(), side);
    own.retain(|name, _| supports_pod_level(name));
    own
}

/// Something that pod-level resources support is set at pod level.
// k8s: staging/src/k8s.io/component-helpers/resource/helpers.go IsPodLevelResourcesSet
pub fn has_pod_level(spec: &PodSpec) -> bool {
    [Side::Requests, Side::Limits].into_iter().any(|side| !pod_level(spec, side).is_empty())
}

/// Resources that may be set at pod level.
// k8s: staging/src/k8s.io/component-helpers/resource/helpers.go IsSupportedPodLevelResource
pub fn supports_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory" || name.starts_with("hugepages-")
}

/// Amounts as the API writes them.
pub fn to_quantities(amounts: Amounts) -> BTreeMap<String, Quantity> {
    amounts.into_iter().map(|(name, amount)| (name, Quantity(amount.canonical()))).collect()
}

// k8s: staging/src/k8s.io/component-helpers/resource/helpers.go AggregateContainerRequests
fn aggregate(spec: &PodSpec, side: Side) -> Amounts {
    let mut sum = Amounts::new();
    for container in &spec.containers {
        add_all(&mut sum, &of_container(container, side));
    }
    let mut sidecars = Amounts::new();
    let mut peak = Amounts::new();
    for (kind, container) in containers::init(spec) {
        let own = of_container(container, side);
        if kind == ContainerKind::Sidecar {
            add_all(&mut sum, &own);
            add_all(&mut sidecars, &own);
            max_all(&mut peak, &sidecars);
        } else {
            let mut with = own;
            add_all(&mut with, &sidecars);
            max_all(&mut peak, &with);
        }
    }
    max_all(&mut sum, &peak);
    sum
}

fn of_requirements(requirements: Option<&ResourceRequirements>, side: Side) -> Amounts {
    amounts(requirements.and_then(|requirements| match side {
        Side::Requests => requirements.requests.as_ref(),
        Side::Limits => requirements.limits.as_ref(),
    }))
}

/// Amounts of a list; invalid quantities are left out.
pub fn amounts(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let pairs = list.into_iter().flatten();
    pairs.filter_map(|(name, q)| Some((name.clone(), Amount::parse(&q.0)?))).collect()
}

fn add_all(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let entry = sum.entry(name.clone()).or_insert(Amount::ZERO);
        *entry = *entry + *amount;
    }
}

fn max_all(most: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = most.entry(name.clone()).or_insert(*amount);
        *entry = (*entry).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn cpu(value: &str) -> Value {
        json!({"requests": {"cpu": value}, "limits": {"cpu": value}})
    }

    fn requests(spec: Value) -> BTreeMap<String, Quantity> {
        let pod = serde_json::from_value(json!({ "spec": spec })).expect("a pod");
        to_quantities(pod_requests(&pod))
    }

    #[test]
    fn init_containers_count_with_the_sidecars_before_them() {
        let sidecar =
            |value| json!({"name": "s", "restartPolicy": "Always", "resources": cpu(value)});
        let init = |value| json!({"name": "i", "resources": cpu(value)});
        let main = json!([{"name": "a", "resources": cpu("100m")},
                          {"name": "b", "resources": cpu("200m")}]);
        for (inits, want) in [
            (json!([]), "300m"),
            (json!([init("1")]), "1"),
            (json!([init("50m")]), "300m"),
            (json!([sidecar("100m")]), "400m"),
            (json!([sidecar("100m"), init("500m")]), "600m"),
            (json!([init("500m"), sidecar("100m")]), "500m"),
        ] {
            let sum = requests(json!({"containers": main, "initContainers": inits}));
            assert_eq!(sum["cpu"].0, want, "{inits}");
        }
    }

    #[test]
    fn pod_level_values_replace_sums_and_overhead_comes_on_top() {
        let sum = requests(json!({
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
            "resources": {"requests": {"cpu": "2"}},
            "overhead": {"cpu": "250m", "memory": "64Mi"}
        }));
        assert_eq!((&*sum["cpu"].0, &*sum["memory"].0), ("2250m", "1088Mi"));
    }

    #[test]
    fn overhead_grows_only_limits_that_exist() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "containers": [{"name": "a", "resources": {"limits": {"memory": "1Gi"}}}],
            "overhead": {"cpu": "250m", "memory": "1Gi"}
        }}))
        .expect("a pod");
        let limits = to_quantities(pod_limits(&pod));
        assert_eq!(limits.len(), 1);
        assert_eq!(limits["memory"].0, "2Gi");
        assert!(is_limited(&pod, "memory"));
        assert!(!is_limited(&pod, "cpu"));
    }
}
