//! The resources of one pod as a record of its own, apart from its spec.
//!
//! Input: a pod. Output: a record, or the pod with a record's numbers in place of its own. The
//! JSON of a record is that of the kubelet's checkpoints. Pure.
// k8s: pkg/kubelet/allocation/allocation_manager.go allocationFromPod, updatePodFromAllocation

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Deserializer, Serialize};

use pintle_api_types::pod;
use pintle_api_types::pod::resources::{Amounts, pod_requests};
use pintle_api_types::quantity::Amount;

type List = BTreeMap<String, Quantity>;

/// Requirements of a pod's containers and of the pod as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodResources {
    /// By container name; init and main containers.
    #[serde(rename = "ContainerResources", default, deserialize_with = "or_empty")]
    pub containers: BTreeMap<String, ResourceRequirements>,
    /// At pod level.
    #[serde(rename = "PodLevelResources", default)]
    pub pod: Option<ResourceRequirements>,
}

/// Go writes a map that was never made as `null`.
fn or_empty<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<BTreeMap<String, ResourceRequirements>, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or_default())
}

impl PodResources {
    /// The resources in the pod's spec.
    pub fn of(pod: &Pod) -> Self {
        let spec = pod::spec(pod);
        let own = |container: &Container| container.resources.clone().unwrap_or_default();
        let containers = pod::containers::all(spec)
            .map(|(_, container)| (container.name.clone(), own(container)));
        Self { containers: containers.collect(), pod: spec.resources.clone() }
    }

    /// The pod with these numbers; `None` when it has them already.
    pub fn apply(&self, pod: &Pod) -> Option<Arc<Pod>> {
        let spec = pod::spec(pod);
        let differs = |container: &Container| {
            let given = self.containers.get(&container.name);
            given.is_some_and(|given| !same(Some(given), container.resources.as_ref()))
        };
        let pod_differs = !same(self.pod.as_ref(), spec.resources.as_ref());
        if !pod_differs && !pod::containers::all(spec).any(|(_, container)| differs(container)) {
            return None;
        }
        let mut pod = pod.clone();
        let spec = pod.spec.get_or_insert_default();
        if pod_differs {
            spec.resources.clone_from(&self.pod);
        }
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(&mut spec.containers).filter(|container| differs(container)) {
            container.resources = self.containers.get(&container.name).cloned();
        }
        Some(Arc::new(pod))
    }

    /// The limits of a container with the pod's own standing in for those that it has not.
    // k8s: pkg/kubelet/util/util.go GetLimits
    pub fn with_pod_limits(
        of_pod: Option<&ResourceRequirements>,
        own: &ResourceRequirements,
    ) -> ResourceRequirements {
        let mut own = own.clone();
        let Some(of_pod) = of_pod.and_then(|of_pod| of_pod.limits.as_ref()) else { return own };
        for name in ["cpu", "memory"] {
            let is_set = |list: &List| list.get(name).is_some_and(|q| !is_zero(q));
            if own.limits.as_ref().is_some_and(is_set) || !is_set(of_pod) {
                continue;
            }
            if let Some(limit) = of_pod.get(name) {
                own.limits.get_or_insert_default().insert(name.to_owned(), limit.clone());
            }
        }
        own
    }
}

/// The node resources that a pod holds: the larger of the allocated amount and the amount still in
/// force, container by container, so that room counts as free only once it is.
// k8s: staging/src/k8s.io/component-helpers/resource/helpers.go PodRequests, UseStatusResources
pub fn held_requests(pod: &Pod, actuated: &PodResources) -> Amounts {
    let larger = |container: &Container| {
        let own = container.resources.clone().unwrap_or_default();
        let forced = actuated.containers.get(&container.name)?;
        let requests = largest(own.requests.as_ref(), forced.requests.as_ref())?;
        Some(ResourceRequirements { requests: Some(requests), ..own })
    };
    let mut held = PodResources::of(pod);
    held.containers = pod::containers::all(pod::spec(pod))
        .filter_map(|(_, container)| Some((container.name.clone(), larger(container)?)))
        .collect();
    let of_pod = held.pod.as_ref().and_then(|own| own.requests.as_ref());
    let forced = actuated.pod.as_ref().and_then(|own| own.requests.as_ref());
    if let (Some(requests), Some(own)) = (largest(of_pod, forced), held.pod.as_mut()) {
        own.requests = Some(requests);
    }
    match held.apply(pod) {
        Some(larger) => pod_requests(&larger),
        None => pod_requests(pod),
    }
}

/// The larger amount of CPU and memory each; `None` when the second list has none that is larger.
fn largest(given: Option<&List>, forced: Option<&List>) -> Option<List> {
    let mut list = given.cloned().unwrap_or_default();
    let mut changed = false;
    for name in ["cpu", "memory"] {
        let Some(other) = forced.and_then(|list| list.get(name)) else { continue };
        if amount(Some(other)) > amount(list.get(name)) {
            list.insert(name.to_owned(), other.clone());
            changed = true;
        }
    }
    changed.then_some(list)
}

/// True when both are equal, whatever the notation; empty and absent are the same.
pub fn same(a: Option<&ResourceRequirements>, b: Option<&ResourceRequirements>) -> bool {
    let none = ResourceRequirements::default();
    let (a, b) = (a.unwrap_or(&none), b.unwrap_or(&none));
    let claims = |own: &ResourceRequirements| own.claims.clone().unwrap_or_default();
    same_list(a.requests.as_ref(), b.requests.as_ref())
        && same_list(a.limits.as_ref(), b.limits.as_ref())
        && claims(a) == claims(b)
}

fn same_list(a: Option<&List>, b: Option<&List>) -> bool {
    let (a, b) = (a.into_iter().flatten(), b.into_iter().flatten());
    let amounts = |(name, quantity): (&String, &Quantity)| (name.clone(), amount(Some(quantity)));
    a.map(amounts).eq(b.map(amounts))
}

fn is_zero(quantity: &Quantity) -> bool {
    amount(Some(quantity)).is_zero()
}

/// An amount; nothing when absent or no quantity.
pub fn amount(quantity: Option<&Quantity>) -> Amount {
    quantity.and_then(|quantity| Amount::parse(&quantity.0)).unwrap_or(Amount::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(resources: Value, of_pod: Value) -> Pod {
        let containers = json!([{"name": "c", "resources": resources}]);
        let spec = json!({"containers": containers, "resources": of_pod});
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).expect("a pod")
    }

    #[test]
    fn a_record_is_the_kubelets_json() {
        let own = json!({"requests": {"cpu": "50m"}, "limits": {"memory": "1Gi"}});
        let record = PodResources::of(&pod(own.clone(), json!(null)));
        let text = serde_json::to_value(&record).expect("json");
        assert_eq!(text, json!({"ContainerResources": {"c": own}, "PodLevelResources": null}));
        let read: PodResources = serde_json::from_value(text).expect("a record");
        assert_eq!(read, record);
        let empty = json!({"ContainerResources": null, "PodLevelResources": null});
        let read: PodResources = serde_json::from_value(empty).expect("a record");
        assert_eq!(read, PodResources::default());
    }

    #[test]
    fn pod_spec_shows_the_allocated_resources() {
        let given = PodResources::of(&pod(json!({"requests": {"cpu": "1"}}), json!(null)));
        for (asked, same) in [
            (json!({"requests": {"cpu": "1000m"}}), true),
            (json!({"requests": {"cpu": "1"}, "limits": {}}), true),
            (json!({"requests": {"cpu": "2"}}), false),
            (json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}), false),
            (json!(null), false),
        ] {
            let shown = given.apply(&pod(asked.clone(), json!(null)));
            assert_eq!(shown.is_none(), same, "{asked}");
            if let Some(shown) = shown {
                assert_eq!(PodResources::of(&shown), given);
            }
        }
        let level = json!({"requests": {"cpu": "2"}});
        let shown = given.apply(&pod(json!({"requests": {"cpu": "1"}}), level)).expect("differs");
        assert_eq!(pod::spec(&shown).resources, None);
    }

    #[test]
    fn resources_are_freed_only_after_a_decrease_is_actuated() {
        let actuated = PodResources::of(&pod(json!({"requests": {"cpu": "2"}}), json!(null)));
        let held = |cpu: &str| {
            let pod = pod(json!({"requests": {"cpu": cpu, "memory": "1Mi"}}), json!(null));
            let held = held_requests(&pod, &actuated);
            (held["cpu"].millis(), held["memory"].units())
        };
        assert_eq!(held("1"), (2000, 1 << 20));
        assert_eq!(held("3"), (3000, 1 << 20));
    }

    #[test]
    fn the_pods_limits_stand_in_for_those_a_container_has_not() {
        let of = |own: Value, of_pod: Value| {
            let read = |value| serde_json::from_value::<ResourceRequirements>(value).expect("ok");
            let merged = PodResources::with_pod_limits(Some(&read(of_pod)), &read(own));
            serde_json::to_value(merged.limits).expect("json")
        };
        let pod = json!({"limits": {"cpu": "2", "memory": "1Gi"}});
        assert_eq!(of(json!({}), pod.clone()), json!({"cpu": "2", "memory": "1Gi"}));
        let own = json!({"limits": {"cpu": "1", "memory": "0"}});
        assert_eq!(of(own, pod), json!({"cpu": "1", "memory": "1Gi"}));
        assert_eq!(of(json!({}), json!({})), json!(null));
    }
}
