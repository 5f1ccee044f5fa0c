//! Decides whether a container that is not running is started again, given its observed attempts.
//!
//! Pure; the policies and rules themselves are in `pod::restart`. A rule needs an exit code and is
//! therefore never checked for a running container.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::observed::{ObservedContainer, ObservedPod, RunState};
use pintle_api_types::pod::restart::{
    RestartPolicy, RuleAction, matching_rule, may_restart, may_restart_all, pod_policy,
};

/// True when a container that has to be killed while it runs comes back afterwards.
pub fn returns_after_kill(container: &Container, spec: &PodSpec) -> bool {
    match container.restart_policy.as_deref() {
        Some(policy) => policy != "Never",
        None => pod_policy(spec) != RestartPolicy::Never,
    }
}

/// True when the container is to be started now, given its newest observed attempt.
// k8s: pkg/kubelet/container/helpers.go ShouldContainerBeRestarted
pub fn should_start(container: &Container, pod: &Pod, observed: &ObservedPod) -> bool {
    if pintle_api_types::pod::is_deleted(pod) {
        return false;
    }
    let Some(latest) = observed.latest(&container.name) else { return true };
    match latest.state {
        RunState::Running => false,
        RunState::Created | RunState::Unknown => true,
        RunState::Exited => {
            may_restart(container, pintle_api_types::pod::spec(pod), latest.exit_code)
        }
    }
}

/// True when this attempt's end requests a restart of the whole pod in place.
pub fn asks_restart_all(container: &Container, attempt: &ObservedContainer) -> bool {
    attempt.state == RunState::Exited
        && matching_rule(container, attempt.exit_code) == Some(RuleAction::RestartAllContainers)
}

/// True when some container's end requests a restart of the whole pod in place.
// k8s: pkg/kubelet/container/helpers.go ShouldAllContainersRestart
pub fn restart_all_requested(spec: &PodSpec, observed: &ObservedPod) -> bool {
    if !may_restart_all(spec) {
        return false;
    }
    let mut latest = HashMap::new();
    for attempt in &observed.containers {
        latest.entry(&attempt.name).or_insert(attempt);
    }
    spec.init_containers.iter().flatten().chain(&spec.containers).any(|container| {
        latest.get(&container.name).is_some_and(|latest| asks_restart_all(container, latest))
    })
}
