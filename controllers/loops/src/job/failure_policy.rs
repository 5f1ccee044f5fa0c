//! Pod failure policy: what the failure of a pod means for its Job.
//!
//! Input: the rules of the policy and a pod that failed. Output: the action of the first rule that
//! matches, and for `FailJob` the message of the condition. Pure.
// k8s: pkg/controller/job/pod_failure_policy.go

use pintle_controllers_core::kinds::{
    ContainerStatus, ExitCodeRule, Pod, PodConditionRule, PodFailurePolicy, PodFailureRule,
};

/// The action upon a pod's failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FailureAction {
    /// The whole Job fails, with this message.
    FailJob(String),
    /// The pod's index fails.
    FailIndex,
    /// The failure does not count.
    Ignore,
    /// A rule says that the failure counts.
    Count,
    /// No rule matches: the failure counts.
    Unmatched,
}

impl FailureAction {
    /// The failure counts towards the limits.
    pub(super) fn is_counted(&self) -> bool {
        !matches!(self, Self::Ignore)
    }

    /// The action's name in the API; `None` when no rule matched.
    pub(super) fn name(&self) -> Option<&'static str> {
        match self {
            Self::FailJob(_) => Some("FailJob"),
            Self::FailIndex => Some("FailIndex"),
            Self::Ignore => Some("Ignore"),
            Self::Count => Some("Count"),
            Self::Unmatched => None,
        }
    }
}

/// Returns the policy's action upon a pod's failure.
// k8s: pkg/controller/job/pod_failure_policy.go matchPodFailurePolicy
pub(super) fn match_failure_policy(policy: Option<&PodFailurePolicy>, pod: &Pod) -> FailureAction {
    let rules = policy.into_iter().flat_map(|policy| policy.rules.iter().enumerate());
    let mut actions = rules.filter_map(|(at, rule)| match_rule(at, rule, pod));
    actions.next().unwrap_or(FailureAction::Unmatched)
}

fn match_rule(at: usize, rule: &PodFailureRule, pod: &Pod) -> Option<FailureAction> {
    let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
    let action = &rule.action;
    let message = if let Some(codes) = &rule.on_exit_codes {
        let (container, code) = matching_container(pod, codes)?;
        format!(
            "Container {container} for pod {namespace}/{name} failed with exit code {code} \
             matching {action} rule at index {at}"
        )
    } else {
        let kind = matching_condition(pod, rule.on_pod_conditions.as_deref()?)?;
        format!("Pod {namespace}/{name} has condition {kind} matching {action} rule at index {at}")
    };
    match &**action {
        "FailJob" => Some(FailureAction::FailJob(message)),
        "FailIndex" => Some(FailureAction::FailIndex),
        "Ignore" => Some(FailureAction::Ignore),
        "Count" => Some(FailureAction::Count),
        // An action of a later version: the next rule decides.
        _ => None,
    }
}

/// The name and exit code of the first container with an end that the rule matches.
// k8s: pkg/controller/job/pod_failure_policy.go matchOnExitCodes
fn matching_container<'a>(pod: &'a Pod, rule: &ExitCodeRule) -> Option<(&'a str, i32)> {
    let status = &pod.status;
    let containers = status.container_statuses.iter().chain(&status.init_container_statuses);
    let ended = containers.filter_map(|container| {
        let code = container.state.terminated.as_ref()?.exit_code;
        is_matching_end(container, code, rule).then_some((&*container.name, code))
    });
    ended.into_iter().next()
}

fn is_matching_end(container: &ContainerStatus, code: i32, rule: &ExitCodeRule) -> bool {
    let is_meant = rule.container_name.as_ref().is_none_or(|name| *name == container.name);
    let is_listed = rule.values.contains(&code);
    let is_match = match &*rule.operator {
        "In" => is_listed,
        "NotIn" => !is_listed,
        _ => false,
    };
    // A container that succeeded is no failure, whatever the rule says.
    is_meant && code != 0 && is_match
}

// k8s: pkg/controller/job/pod_failure_policy.go matchOnPodConditions
fn matching_condition<'a>(pod: &'a Pod, rules: &[PodConditionRule]) -> Option<&'a str> {
    let mut conditions = pod.status.conditions.iter();
    let found = conditions.find(|condition| {
        rules.iter().any(|rule| rule.kind == condition.kind && rule.status == condition.status)
    });
    found.map(|condition| &*condition.kind)
}
