//! The update that a running container needs to reach its allocated resources.
//!
//! Input: allocated and in-force requirements, the container's resize policy. Output: nothing, an
//! update while it runs, or a restart. Pure. Only CPU and memory can change; everything else in
//! the requirements is left as it was created.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go computePodResizeAction

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

use super::PodResources;
use super::allocation::amount;
use crate::observed::{ObservedPod, RunState};
use pintle_api_types::ids::ContainerId;
use pintle_api_types::pod;
use pintle_api_types::quantity::Amount;

/// The numbers that can change; 0 for an unset one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Memory limit in bytes.
    pub memory_limit: i64,
    /// Memory request in bytes.
    pub memory_request: i64,
    /// CPU limit in millicores.
    pub cpu_limit: i64,
    /// CPU request in millicores.
    pub cpu_request: i64,
}

impl Figures {
    /// Of requirements as they stand.
    pub fn of(own: &ResourceRequirements) -> Self {
        let limit = |name| amount(own.limits.as_ref().and_then(|list| list.get(name)));
        let request = |name| amount(own.requests.as_ref().and_then(|list| list.get(name)));
        Self {
            memory_limit: limit("memory").units(),
            memory_request: request("memory").units(),
            cpu_limit: limit("cpu").millis(),
            cpu_request: request("cpu").millis(),
        }
    }

    /// Requirements with exactly these numbers, also where they are 0.
    // k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go updatePodContainerResources
    pub fn requirements(&self) -> ResourceRequirements {
        let list = |cpu: i64, memory: i64| {
            let (cpu, memory) = (Amount::from_millis(cpu), Amount::from_bytes(memory));
            let list = [("cpu", cpu), ("memory", memory)];
            Some(list.map(|(name, a)| (name.to_owned(), Quantity(a.canonical()))).into())
        };
        ResourceRequirements {
            limits: list(self.cpu_limit, self.memory_limit),
            requests: list(self.cpu_request, self.memory_request),
            claims: None,
        }
    }
}

/// A container to be resized while it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerUpdate {
    /// Its id.
    pub id: ContainerId,
    /// Its name.
    pub name: String,
    /// The numbers in force.
    pub from: Figures,
    /// The new numbers.
    pub to: Figures,
    /// The resources in force afterwards.
    pub resources: ResourceRequirements,
}

/// The action that a container needs.
#[derive(Clone, Debug, PartialEq)]
pub enum ResizeAction {
    /// Nothing.
    None,
    /// Other numbers while it runs.
    Update(Box<ContainerUpdate>),
    /// A restart, by its resize policy.
    Restart,
}

/// The action that the running container `id` needs.
pub fn of_container(
    pod: &Pod,
    container: &Container,
    id: &ContainerId,
    actuated: &PodResources,
) -> ResizeAction {
    let known = actuated.containers.get(&container.name);
    if reads_the_same(pod, container, known) && actuated.pod.is_none() {
        return ResizeAction::None;
    }
    let resources = allocated(pod, container);
    let to = Figures::of(&resources);
    let from = known.map_or_else(Figures::default, |own| {
        Figures::of(&PodResources::with_pod_limits(actuated.pod.as_ref(), own))
    });
    if from == to {
        return ResizeAction::None;
    }
    let restarts = |resource: &str| {
        let mut policies = container.resize_policy.iter().flatten();
        policies.any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
    };
    let memory = (from.memory_limit, from.memory_request) != (to.memory_limit, to.memory_request);
    let cpu = (from.cpu_limit, from.cpu_request) != (to.cpu_limit, to.cpu_request);
    // Without a record its numbers are unknown: an update is harmless then, a restart is not.
    if known.is_some() && (memory && restarts("memory") || cpu && restarts("cpu")) {
        return ResizeAction::Restart;
    }
    let (id, name) = (id.clone(), container.name.clone());
    ResizeAction::Update(Box::new(ContainerUpdate { id, name, from, to, resources }))
}

/// True when the pod-level numbers in force are not those that the pod was given.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go computePodLevelResourcesResizeAction
pub fn pod_level_differs(pod: &Pod, actuated: &PodResources) -> bool {
    let figures = |own: Option<&ResourceRequirements>| own.map(Figures::of).unwrap_or_default();
    figures(pod::spec(pod).resources.as_ref()) != figures(actuated.pod.as_ref())
}

/// True while some running container, or the pod as a whole, lacks its allocated resources.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go IsPodResizeInProgress
pub fn is_in_progress(pod: &Pod, observed: &ObservedPod, actuated: &PodResources) -> bool {
    let spec = pod::spec(pod);
    let of_containers = pod::containers::all(spec).any(|(_, container)| {
        let latest = observed.latest(&container.name);
        let running = latest.is_some_and(|latest| latest.state == RunState::Running);
        let known = actuated.containers.get(&container.name).filter(|_| running);
        !reads_the_same(pod, container, known)
            && known
                .is_some_and(|known| Figures::of(known) != Figures::of(&allocated(pod, container)))
    });
    of_containers || actuated.pod.is_some() && pod_level_differs(pod, actuated)
}

/// True when both are written alike, which spares reading the amounts.
fn reads_the_same(pod: &Pod, container: &Container, known: Option<&ResourceRequirements>) -> bool {
    pod::spec(pod).resources.is_none() && known.is_some() && container.resources.as_ref() == known
}

/// The resources with which a container is created or updated.
pub fn allocated(pod: &Pod, container: &Container) -> ResourceRequirements {
    let none = ResourceRequirements::default();
    let own = container.resources.as_ref().unwrap_or(&none);
    PodResources::with_pod_limits(pod::spec(pod).resources.as_ref(), own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(resources: Value, policy: Value, of_pod: Value) -> Pod {
        let containers = json!([{"name": "c", "resources": resources, "resizePolicy": policy}]);
        let spec = json!({"containers": containers, "resources": of_pod});
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).expect("a pod")
    }

    fn change(from: Value, to: Value, policy: Value) -> ResizeAction {
        let actuated = PodResources::of(&pod(from, json!([]), json!(null)));
        let pod = pod(to, policy, json!(null));
        of_container(&pod, &pod::spec(&pod).containers[0], &ContainerId::from("i"), &actuated)
    }

    fn both(cpu: &str, memory: &str) -> Value {
        let list = json!({"cpu": cpu, "memory": memory});
        json!({"requests": list, "limits": list})
    }

    #[test]
    fn resize_restarts_the_container_only_if_its_resize_policy_requires_a_restart() {
        let restart = |resource: &str| json!([{"resourceName": resource, "restartPolicy": "RestartContainer"}]);
        let kind = |from: Value, to: Value, policy: Value| match change(from, to, policy) {
            ResizeAction::None => "none",
            ResizeAction::Update(_) => "update",
            ResizeAction::Restart => "restart",
        };
        let (a, cpu, memory) = (both("1", "1Gi"), both("2", "1Gi"), both("1", "2Gi"));
        for (to, policy, want) in [
            (a.clone(), json!([]), "none"),
            (both("1000m", "1024Mi"), json!([]), "none"),
            (cpu.clone(), json!([]), "update"),
            (memory.clone(), json!([]), "update"),
            (cpu.clone(), restart("memory"), "update"),
            (cpu, restart("cpu"), "restart"),
            (memory, restart("memory"), "restart"),
        ] {
            assert_eq!(kind(a.clone(), to.clone(), policy.clone()), want, "{to} {policy}");
        }
        // Other resources do not change in place.
        let more = json!({"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}});
        assert_eq!(kind(json!({"requests": {"cpu": "1"}}), more, json!([])), "none");
    }

    #[test]
    fn a_container_without_a_record_is_updated_and_never_restarted() {
        let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
        let pod = pod(both("1", "1Gi"), policy, json!(null));
        let of = |actuated: &PodResources| {
            let container = &pod::spec(&pod).containers[0];
            of_container(&pod, container, &ContainerId::from("i"), actuated)
        };
        assert!(matches!(of(&PodResources::default()), ResizeAction::Update(_)));
        assert_eq!(of(&PodResources::of(&pod)), ResizeAction::None);
    }

    #[test]
    fn a_pod_level_limit_is_the_containers_too() {
        let level = |cpu: &str| json!({"limits": {"cpu": cpu, "memory": "1Gi"}});
        let of = |cpu: &str| pod(json!({}), json!([]), level(cpu));
        let actuated = PodResources::of(&of("1"));
        let pod = of("2");
        assert!(pod_level_differs(&pod, &actuated));
        let container = &pod::spec(&pod).containers[0];
        let change = of_container(&pod, container, &ContainerId::from("i"), &actuated);
        let ResizeAction::Update(update) = change else { panic!("{change:?}") };
        assert_eq!((update.from.cpu_limit, update.to.cpu_limit), (1000, 2000));
        assert_eq!(update.resources.limits.expect("limits")["memory"].0, "1Gi");
    }
}
