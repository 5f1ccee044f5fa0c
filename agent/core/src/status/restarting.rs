//! A restart of the whole pod in place, as its status shows it.
//!
//! A container end that matches a rule with `RestartAllContainers` requests it; the condition
//! `AllContainersRestarting` keeps the request once the record of that end is removed, until no
//! container of the pod is left in the runtime. The worker acts on the condition, so a restart of
//! the agent half-way through continues where it stopped: the requesting container is removed last.
// k8s: pkg/kubelet/container/helpers.go ShouldAllContainersRestart, AllContainersRestartCleanedUp

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    PodCondition, PodStatus,
};

use super::container::{ended_as, terminated};
use super::{DeriveInput, Lifecycle, first_by};
use crate::sync::restart::restart_all_requested;
use pintle_api_types::pod;
use pintle_api_types::pod::restart::{RuleAction, matching_rule};

/// The condition's type.
pub(super) const CONDITION: &str = "AllContainersRestarting";
/// The condition's reason while it is true.
pub(super) const REASON_STARTED: &str = "RestartAllContainersStarted";
/// Its message.
pub(super) const MESSAGE_STARTED: &str = "container exited with restart policy rule";
/// Reason of a waiting container, and of its last attempt's end.
pub(crate) const REASON: &str = "RestartingAllContainers";
const MESSAGE: &str = "The container is removed because RestartAllContainers in place";
/// Exit code of an attempt that the restart removed.
const EXIT_REMOVED: i32 = 137;

/// True while the condition holds in this status.
pub fn is_restarting(status: &PodStatus) -> bool {
    let holds = |c: &PodCondition| c.type_ == CONDITION && c.status == "True";
    status.conditions.iter().flatten().any(holds)
}

/// True when the pod restarts in place: it was doing so, or a container's end requests it. A pod
/// that is being stopped restarts nothing.
pub(crate) fn requested(input: &DeriveInput, previous: &PodStatus) -> bool {
    let spec = pod::spec(input.pod);
    let asks = || match input.observed {
        Some(observed) => restart_all_requested(spec, observed),
        None => asked(input, previous),
    };
    input.lifecycle == Lifecycle::Syncing && (is_restarting(previous) || asks())
}

/// True when nothing of the pod's containers is left in the runtime.
pub(super) fn cleaned_up(input: &DeriveInput) -> bool {
    let wanted = first_by(mains_and_init(input), |container| &container.name);
    let left = input.observed.into_iter().flat_map(|observed| &observed.containers);
    left.into_iter().all(|container| !wanted.contains_key(&*container.name))
}

/// The status of a container that the restart has removed: it waits, and its last attempt is
/// reported as removed, whatever its state was.
pub(crate) fn removed(status: &mut ContainerStatus, old: &ContainerStatus) {
    let text = |text: &str| Some(text.to_owned());
    let waiting = ContainerStateWaiting { reason: text(REASON), message: text(MESSAGE) };
    status.state = Some(ContainerState { waiting: Some(waiting), ..ContainerState::default() });
    status.last_state = Some(terminated(ContainerStateTerminated {
        exit_code: EXIT_REMOVED,
        reason: text(REASON),
        message: text(MESSAGE),
        ..ContainerStateTerminated::default()
    }));
    status.restart_count = old.restart_count.saturating_add(1);
}

/// True for the end of an attempt that the restart removed: it starts again whatever its policy.
pub(super) fn took_away(end: &ContainerStateTerminated) -> bool {
    end.reason.as_deref() == Some(REASON)
}

fn mains_and_init<'a>(input: &DeriveInput<'a>) -> impl Iterator<Item = &'a Container> {
    let spec = pod::spec(input.pod);
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// True when the end of some container, as last reported, requests it.
fn asked(input: &DeriveInput, previous: &PodStatus) -> bool {
    let init = previous.init_container_statuses.iter().flatten();
    let olds =
        first_by(init.chain(previous.container_statuses.iter().flatten()), |status| &status.name);
    mains_and_init(input).any(|container| {
        let end = olds.get(&*container.name).and_then(|old| ended_as(old));
        let rule = end.and_then(|end| matching_rule(container, end.exit_code));
        rule == Some(RuleAction::RestartAllContainers)
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodStatus;
    use serde_json::json;

    use super::*;
    use crate::observed::{ObservedContainer, RunState};
    use crate::status::testing::{DerivedPod, container, exited};

    /// `a` requests a restart of all with exit code 9; nothing restarts otherwise.
    fn world() -> DerivedPod {
        DerivedPod::new(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"restartPolicy": "Never", "initContainers": [{"name": "i", "image": "i"}],
                "containers": [{"name": "b", "image": "i"}, {"name": "a", "image": "i",
                    "restartPolicy": "Never", "restartPolicyRules": [{
                        "action": "RestartAllContainers",
                        "exitCodes": {"operator": "In", "values": [9]}}]}]}
        }))
    }

    /// Condition and its reason, then each container: state or waiting reason, restart count.
    fn shown(status: &PodStatus) -> String {
        let condition = status.conditions.iter().flatten().find(|c| c.type_ == CONDITION);
        let condition = condition.expect("the condition");
        let mut words =
            vec![condition.status.clone(), condition.reason.clone().unwrap_or_default()];
        let init = status.init_container_statuses.iter().flatten();
        for container in init.chain(status.container_statuses.iter().flatten()) {
            let state = container.state.clone().expect("a state");
            let word = match (state.waiting, state.terminated) {
                (Some(waiting), _) => waiting.reason.unwrap_or_default(),
                (None, Some(end)) => format!("exit {}", end.exit_code),
                (None, None) => "runs".to_owned(),
            };
            words.push(format!("{} {word} {}", container.name, container.restart_count));
        }
        words.retain(|word| !word.is_empty());
        words.join(", ")
    }

    fn again(name: &str) -> ObservedContainer {
        ObservedContainer { restart_count: 1, ..container(name, &format!("{name}-2")) }
    }

    #[test]
    fn the_condition_holds_from_the_end_that_asks_until_every_container_is_removed() {
        let mut world = world();
        let init = || exited("i", "i-1", 0);
        let source = || exited("a", "a-1", 9);
        let done = || ObservedContainer { restart_count: 1, ..exited("i", "i-2", 0) };
        let new_init = || ObservedContainer { restart_count: 1, ..container("i", "i-2") };
        let both = vec![container("a", "a-1"), container("b", "b-1"), init()];
        let table = [
            (both, "False, i exit 0 0, a runs 0, b runs 0"),
            (
                vec![source(), container("b", "b-1"), init()],
                "True, RestartAllContainersStarted, i exit 0 0, a exit 9 0, b runs 0",
            ),
            (
                vec![source(), init()],
                "True, RestartAllContainersStarted, i exit 0 0, a exit 9 0, \
                 b RestartingAllContainers 1",
            ),
            (
                vec![source()],
                "True, RestartAllContainersStarted, i RestartingAllContainers 1, a exit 9 0, \
                 b RestartingAllContainers 1",
            ),
            (
                vec![],
                "False, i RestartingAllContainers 1, a RestartingAllContainers 1, \
                 b RestartingAllContainers 1",
            ),
            (vec![], "False, i PodInitializing 1, a PodInitializing 1, b PodInitializing 1"),
            (vec![new_init()], "False, i runs 1, a PodInitializing 1, b PodInitializing 1"),
            (vec![done(), again("a"), again("b")], "False, i exit 0 1, a runs 1, b runs 1"),
        ];
        for (step, (containers, want)) in table.into_iter().enumerate() {
            world = world.with(containers);
            let status = world.derive();
            assert_eq!(shown(&status), want, "step {step}");
            assert!(
                matches!(status.phase.as_deref(), Some("Running" | "Pending")),
                "step {step}: {:?}",
                status.phase
            );
            assert_eq!(is_restarting(&status), want.starts_with("True"), "step {step}");
        }
        let status = world.derive();
        let last = status.container_statuses.iter().flatten().next().expect("a status");
        let last = last.last_state.clone().and_then(|state| state.terminated).expect("an end");
        assert_eq!((last.exit_code, last.reason.as_deref()), (EXIT_REMOVED, Some(REASON)));
    }

    #[test]
    fn a_pod_without_such_a_rule_has_no_such_condition() {
        let mut world = world();
        let spec = world.pod.spec.as_mut().expect("a spec");
        spec.containers[1].restart_policy_rules = None;
        let status = world.with(vec![exited("a", "a-1", 9)]).derive();
        assert!(!status.conditions.iter().flatten().any(|c| c.type_ == CONDITION));
    }

    #[test]
    fn terminating_pod_restarts_no_container() {
        let mut world = world().with(vec![exited("a", "a-1", 9), container("b", "b-1")]);
        assert!(is_restarting(&world.derive()));
        world.lifecycle = Lifecycle::Terminating;
        assert!(!is_restarting(&world.derive()));
    }

    #[test]
    fn a_container_that_vanishes_while_its_pod_restarts_counts_as_removed() {
        let mut world = world().with(vec![container("a", "a-1"), container("b", "b-1")]);
        world.derive();
        let unknown = ObservedContainer { state: RunState::Unknown, ..container("b", "b-1") };
        let status = world.with(vec![exited("a", "a-1", 9), unknown]).derive();
        let b = status.container_statuses.iter().flatten().find(|c| c.name == "b");
        let end = b.and_then(|b| b.state.clone()?.terminated).expect("an end");
        assert_eq!(end.reason.as_deref(), Some(REASON));
    }

    #[test]
    fn in_place_restart_is_counted_even_if_the_log_files_are_removed() {
        let mut world = world().with(vec![container("a", "a-1"), exited("b", "b-1", 1)]);
        world.derive();
        let status = world.with(vec![container("a", "a-1"), container("b", "b-2")]).derive();
        let b = status.container_statuses.iter().flatten().find(|c| c.name == "b");
        assert_eq!(b.map(|b| b.restart_count), Some(1));
    }
}
