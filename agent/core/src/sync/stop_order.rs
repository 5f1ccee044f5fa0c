//! In which order and with how much time the containers of a pod are stopped.
//!
//! Pure. Main, init and ephemeral containers begin at once and in parallel; a sidecar waits until
//! every main container and every sidecar listed after it has ended, within the same grace period.
//! Without the pod (its source is gone and the agent was restarted) hook and grace period come
//! from the annotations that were written when the container was created.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_termination_order.go, kuberuntime_container.go
// setTerminationGracePeriod, restoreSpecsFromContainerLabels

use k8s_openapi::api::core::v1::{Container, ContainerPort, LifecycleHandler, Pod};

use crate::labels;
use crate::observed::{ObservedContainer, ObservedPod, RunState};
use crate::sync::plan::KillReason;
use pintle_api_types::ids::ContainerId;
use pintle_api_types::pod;

/// Shortest time in seconds that a container gets between SIGTERM and SIGKILL.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go minimumGracePeriodInSeconds
pub const GRACE_SECONDS_MIN: i64 = 2;
/// Longest grace period sent to a runtime, a year: runtimes count nanoseconds in 64 bits, and a
/// longer one turns negative there, which kills at once.
pub use pintle_api_types::pod::GRACE_SECONDS_MAX;

/// One container to stop.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerStop {
    /// Its id.
    pub id: ContainerId,
    /// Its name.
    pub name: String,
    /// Whole time in seconds for hook, waiting and stop.
    pub grace_seconds: i64,
    /// Hook to run first.
    pub pre_stop: Option<LifecycleHandler>,
    /// Ports, for a hook that names one.
    pub ports: Vec<ContainerPort>,
    /// Indices of the stops that have to be over before this one sends its signal.
    pub after: Vec<usize>,
}

/// The stops of a whole pod.
pub fn stop_pod(
    pod: Option<&Pod>,
    observed: &ObservedPod,
    grace: Option<i64>,
) -> Vec<ContainerStop> {
    let alive = |c: &&ObservedContainer| matches!(c.state, RunState::Running | RunState::Unknown);
    let running: Vec<_> = observed.containers.iter().filter(alive).collect();
    let mut stops: Vec<_> =
        running.iter().map(|c| stop_container(pod, c, KillReason::Other, grace)).collect();
    if let Some(pod) = pod {
        order(pod, &mut stops);
    }
    stops
}

/// The stop of one container.
pub fn stop_container(
    pod: Option<&Pod>,
    container: &ObservedContainer,
    reason: KillReason,
    grace: Option<i64>,
) -> ContainerStop {
    let spec = pod.and_then(|p| pod::containers::find(pod::spec(p), &container.name));
    let notes = labels::container_notes(&container.annotations);
    let own = match (pod, spec) {
        (Some(pod), Some((_, spec))) => grace_of(pod, spec, reason),
        (Some(pod), None) => pod::grace_seconds(pod),
        (None, _) => notes
            .deletion_grace_seconds
            .or(notes.termination_grace_seconds)
            .unwrap_or(GRACE_SECONDS_MIN),
    };
    let (pre_stop, ports) = match spec {
        Some((_, spec)) => (
            spec.lifecycle.as_ref().and_then(|l| l.pre_stop.clone()),
            spec.ports.clone().unwrap_or_default(),
        ),
        None => (notes.pre_stop, notes.ports),
    };
    ContainerStop {
        id: container.id.clone(),
        name: container.name.clone(),
        grace_seconds: grace.unwrap_or(own).clamp(0, GRACE_SECONDS_MAX),
        pre_stop,
        ports,
        after: Vec::new(),
    }
}

fn grace_of(pod: &Pod, container: &Container, reason: KillReason) -> i64 {
    match reason {
        KillReason::RestartAll => 0,
        _ if pod.metadata.deletion_grace_period_seconds.is_some() => pod::grace_seconds(pod),
        KillReason::Liveness => pod::probe_grace_seconds(pod, container.liveness_probe.as_ref()),
        KillReason::Startup => pod::probe_grace_seconds(pod, container.startup_probe.as_ref()),
        KillReason::Other => pod::grace_seconds(pod),
    }
}

fn order(pod: &Pod, stops: &mut [ContainerStop]) {
    let spec = pod::spec(pod);
    let main = |name: &str| spec.containers.iter().any(|c| c.name == name);
    let sidecar = |name: &str| {
        let mut init = spec.init_containers.iter().flatten().enumerate();
        init.find(|(_, c)| c.name == name && pod::containers::is_sidecar(c)).map(|(i, _)| i)
    };
    for index in 0..stops.len() {
        let Some(position) = sidecar(&stops[index].name) else { continue };
        stops[index].after = (0..stops.len())
            .filter(|other| {
                let name = &stops[*other].name;
                main(name) || sidecar(name).is_some_and(|later| later > position)
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn grace(deleted: Option<i64>, own: i64, reason: KillReason) -> i64 {
        let pod = json!({
            "metadata": {"deletionGracePeriodSeconds": deleted,
                "deletionTimestamp": deleted.map(|_| "2026-01-01T00:00:00Z")},
            "spec": {"containers": [], "terminationGracePeriodSeconds": own}});
        let probe = |seconds: i64| json!({"terminationGracePeriodSeconds": seconds});
        let container = json!({"name": "c", "livenessProbe": probe(11), "startupProbe": probe(12)});
        let pod = serde_json::from_value(pod).expect("a pod");
        grace_of(&pod, &serde_json::from_value(container).expect("a container"), reason)
    }

    #[test]
    fn a_deletion_wins_over_the_probe_and_the_probe_over_the_pod() {
        for (deleted, own, reason, want) in [
            (Some(7), 30, KillReason::Liveness, 7),
            (None, 30, KillReason::Liveness, 11),
            (None, 30, KillReason::Startup, 12),
            (None, 30, KillReason::Other, 30),
            (Some(7), 30, KillReason::RestartAll, 0),
        ] {
            assert_eq!(grace(deleted, own, reason), want, "{deleted:?} {reason:?}");
        }
    }
}
