//! Restored probe state of a container that ran before the agent did.
//!
//! Pure. A restart of the agent must change nothing that users see: a container that began well
//! before the agent keeps its state. If the pod's status has its `started` and readiness, these are
//! kept; a pod without one (static, no API server) is judged by time: a container that is older
//! than its startup probe may take has passed it, or it would have been killed. A younger one is
//! probed again, since taking it for started could let its liveness probe kill it.
// k8s: pkg/kubelet/prober/worker.go doProbe, prober_manager.go setReadyStateOnKubeletRestart

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};

use super::plan::{Beginning, Settings};
use crate::observed::ObservedContainer;
use crate::types::is_from_before;
use pintle_api_types::ids::UnixNanos;

/// When a running container is adopted.
#[derive(Clone, Copy, Debug)]
pub struct AdoptTimes {
    /// When the agent began.
    pub agent_started_at: UnixNanos,
    /// The time of the adoption.
    pub now: UnixNanos,
}

/// How the probes of a running container begin.
pub fn beginning(
    pod: &Pod,
    container: &Container,
    seen: &ObservedContainer,
    times: AdoptTimes,
) -> Beginning {
    let AdoptTimes { agent_started_at, now } = times;
    let age = now.since(seen.started_at);
    if !is_from_before(seen.started_at, agent_started_at) {
        return Beginning { age, ..Beginning::default() };
    }
    let started = has_started(pod, seen).unwrap_or_else(|| must_have_started(container, age));
    Beginning { age, started, ready: was_ready(pod).unwrap_or(true) }
}

/// A container that ran before the agent did, for longer than its startup probe may take.
pub fn outlived_its_start(
    container: &Container,
    seen: &ObservedContainer,
    times: AdoptTimes,
) -> bool {
    let AdoptTimes { agent_started_at, now } = times;
    is_from_before(seen.started_at, agent_started_at)
        && must_have_started(container, now.since(seen.started_at))
}

fn must_have_started(container: &Container, age: Duration) -> bool {
    age > startup_time_max(container)
}

/// The value of `started` in the pod's status for this very container.
fn has_started(pod: &Pod, seen: &ObservedContainer) -> Option<bool> {
    let status = pod.status.as_ref()?;
    let mains = status.container_statuses.iter().flatten();
    let id = |status: &&ContainerStatus| {
        let id = status.container_id.as_deref().unwrap_or_default();
        id.split_once("://").is_some_and(|(_, id)| id == seen.id.as_str())
    };
    mains.chain(status.init_container_statuses.iter().flatten()).find(id)?.started
}

/// The readiness in the pod's status.
fn was_ready(pod: &Pod) -> Option<bool> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|c| c.type_ == "Ready").map(|c| c.status == "True")
}

/// The longest time that a startup probe may take before the container is killed for it.
fn startup_time_max(container: &Container) -> Duration {
    let Some(probe) = &container.startup_probe else { return Duration::ZERO };
    let settings = Settings::of(probe);
    let round = settings.period.max(settings.timeout);
    let rounds = settings.failure_threshold.saturating_add(1);
    settings.initial_delay.saturating_add(round.saturating_mul(rounds))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::probe::testing;

    const AGENT: UnixNanos = UnixNanos(1_000_000_000_000_000);

    fn begins(container: Value, status: Value, seconds_before_agent: i64) -> Beginning {
        let pod = testing::pod(json!({"containers": [container]}), status);
        let seen = testing::observed(&pod, AGENT.0 - seconds_before_agent * 1_000_000_000);
        let container = &pintle_api_types::pod::spec(&pod).containers[0];
        let now = AGENT.plus(Duration::from_secs(1));
        beginning(&pod, container, &seen.containers[0], AdoptTimes { agent_started_at: AGENT, now })
    }

    fn probed() -> Value {
        let probe = json!({"exec": {}, "failureThreshold": 5, "periodSeconds": 10});
        json!({"name": "c", "startupProbe": probe})
    }

    #[test]
    fn a_container_of_this_run_of_the_agent_begins_unready_and_not_started() {
        for before in [-5, 0, 5, 10] {
            let got = begins(probed(), json!({}), before);
            assert!(!got.started && !got.ready, "{before} s before the agent: {got:?}");
        }
    }

    #[test]
    fn an_older_container_has_started_once_its_startup_probe_would_have_killed_it() {
        // 5 failures at 10 s, and one period for the time between.
        for (before, started) in [(11, false), (50, false), (58, false), (60, true), (5000, true)] {
            assert_eq!(begins(probed(), json!({}), before).started, started, "{before}");
        }
    }

    #[test]
    fn the_status_of_this_very_container_wins_over_the_clock() {
        let status = |id: &str, started: bool| {
            json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
                   "restartCount": 0, "containerID": id, "started": started}]})
        };
        assert!(begins(probed(), status("containerd://id-1", true), 20).started);
        assert!(!begins(probed(), status("containerd://id-1", false), 5000).started);
        assert!(!begins(probed(), status("containerd://id-0", true), 20).started);
    }

    #[test]
    fn an_older_container_stays_ready_unless_the_pod_is_known_not_to_be() {
        let status = |ready: &str| json!({"conditions": [{"type": "Ready", "status": ready}]});
        for (status, ready) in [(json!({}), true), (status("True"), true), (status("False"), false)]
        {
            assert_eq!(begins(json!({"name": "c"}), status.clone(), 60).ready, ready, "{status}");
        }
    }
}
