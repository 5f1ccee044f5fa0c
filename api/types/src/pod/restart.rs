//! Restart policy: may a container that ended with this exit code run again?
//!
//! The answer comes from the first matching rule of the container, else from the container's own
//! policy, else from the pod's. A sidecar always may.

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, PodSpec};

use super::containers;

/// Restart policy in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// After every end.
    Always,
    /// After an exit code other than 0.
    OnFailure,
    /// Not at all.
    Never,
}

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Restart this container.
    Restart,
    /// Restart the whole pod in place.
    RestartAllContainers,
}

impl RestartPolicy {
    fn parse(text: Option<&str>) -> Option<Self> {
        match text? {
            "Always" => Some(Self::Always),
            "OnFailure" => Some(Self::OnFailure),
            "Never" => Some(Self::Never),
            _ => None,
        }
    }

    fn allows(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// The pod's policy; `Always` when it names none.
pub fn pod_policy(spec: &PodSpec) -> RestartPolicy {
    RestartPolicy::parse(spec.restart_policy.as_deref()).unwrap_or(RestartPolicy::Always)
}

/// The first rule of the container that matches the exit code.
// k8s: pkg/api/v1/pod/util.go findMatchingContainerRestartRule
pub fn matching_rule(container: &Container, exit_code: i32) -> Option<RuleAction> {
    let rules = container.restart_policy_rules.iter().flatten();
    rules.filter(|rule| rule_matches(rule, exit_code)).find_map(|rule| match &*rule.action {
        "Restart" => Some(RuleAction::Restart),
        "RestartAllContainers" => Some(RuleAction::RestartAllContainers),
        _ => None,
    })
}

/// True when the container may run again after that exit code.
/// An init container of a pod with `Always` restarts on failure only, as it is done once it
/// succeeded; callers that walk init containers ask with codes other than 0.
// k8s: pkg/api/v1/pod/util.go ContainerShouldRestart
pub fn may_restart(container: &Container, spec: &PodSpec, exit_code: i32) -> bool {
    if matching_rule(container, exit_code).is_some() {
        return true;
    }
    let own = RestartPolicy::parse(container.restart_policy.as_deref());
    own.unwrap_or_else(|| pod_policy(spec)).allows(exit_code)
}

/// True when some container may ask for a restart of all of them.
// k8s: pkg/api/v1/pod/util.go AllContainersCouldRestart
pub fn may_restart_all(spec: &PodSpec) -> bool {
    containers::all(spec).any(|(_, container)| {
        let mut rules = container.restart_policy_rules.iter().flatten();
        rules.any(|rule| rule.action == "RestartAllContainers")
    })
}

fn rule_matches(rule: &ContainerRestartRule, exit_code: i32) -> bool {
    let Some(codes) = &rule.exit_codes else {
        return false;
    };
    let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
    match &*codes.operator {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ContainerRestartRuleOnExitCodes;

    fn spec(policy: &str) -> PodSpec {
        PodSpec { restart_policy: Some(policy.into()), ..PodSpec::default() }
    }

    fn rule(action: &str, operator: &str, values: &[i32]) -> ContainerRestartRule {
        ContainerRestartRule {
            action: action.into(),
            exit_codes: Some(ContainerRestartRuleOnExitCodes {
                operator: operator.into(),
                values: Some(values.to_vec()),
            }),
        }
    }

    #[test]
    fn pod_restart_policy_decides_without_a_container_policy() {
        for (policy, code, want) in [
            ("Always", 0, true),
            ("Always", 1, true),
            ("OnFailure", 0, false),
            ("OnFailure", 1, true),
            ("Never", 0, false),
            ("Never", 1, false),
        ] {
            let container = Container::default();
            assert_eq!(may_restart(&container, &spec(policy), code), want, "{policy} {code}");
        }
    }

    #[test]
    fn container_rule_overrides_container_policy_which_overrides_pod_policy() {
        let container = Container {
            restart_policy: Some("Never".into()),
            restart_policy_rules: Some(vec![rule("Restart", "In", &[42])]),
            ..Container::default()
        };
        assert!(may_restart(&container, &spec("Never"), 42));
        assert!(!may_restart(&container, &spec("Always"), 1));
        let other = Container {
            restart_policy_rules: Some(vec![rule("RestartAllContainers", "NotIn", &[0])]),
            ..Container::default()
        };
        assert_eq!(matching_rule(&other, 3), Some(RuleAction::RestartAllContainers));
        assert_eq!(matching_rule(&other, 0), None);
    }
}
