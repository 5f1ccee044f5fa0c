//! Tests of the success policy and the pod failure policy.
// k8s: pkg/controller/job/success_policy_test.go, pod_failure_policy_test.go

use pintle_controllers_core::kinds::{PodFailurePolicy, SuccessPolicy};
use serde_json::{Value, json};

use super::super::failure_policy::{FailureAction, match_failure_policy};
use super::super::indexes::Indexes;
use super::super::success_policy::match_success_policy;
use super::kit::pod;

fn success(rules: &Value, succeeded: &str) -> Option<String> {
    let policy = json!({"rules": rules});
    let policy: SuccessPolicy = serde_json::from_value(policy).expect("a policy");
    match_success_policy(Some(&policy), 10, &Indexes::parse(succeeded, 10))
}

#[test]
fn success_policy_matches_by_indexes_and_counts() {
    let rule = |indexes: &str| json!([{"succeededIndexes": indexes}]);
    let counted =
        |indexes: &str, count: i32| json!([{"succeededIndexes": indexes, "succeededCount": count}]);
    for (rules, succeeded, matched) in [
        (json!([]), "0", None),
        (rule("invalid-form"), "0", None),
        (rule("0-2"), "0-2,4-7", Some(0)),
        (rule("0-2"), "0,4-7", None),
        (json!([{"succeededCount": 3}]), "0-2,4-7", Some(0)),
        (json!([{"succeededCount": 9}]), "0-2,4-7", None),
        (json!([{"succeededIndexes": "9"}, {"succeededIndexes": "4-6"}]), "0-2,4-7", Some(1)),
        (json!([{"succeededIndexes": "0-2"}, {"succeededIndexes": "4-6"}]), "0-2,4-7", Some(0)),
        (counted("0-9", 4), "0-2,4-7", Some(0)),
        (counted("8,9", 1), "0-2,4-7", None),
        (rule("0-2"), "", None),
        (rule("4-7"), "4-7", Some(0)),
        (rule("5,6"), "4-7", Some(0)),
        (rule(""), "4-7", None),
        (rule("8,9"), "4-7", None),
        (rule("3-5"), "4-7", None),
        (counted("3-5", 2), "4-7", Some(0)),
        (rule("6-8"), "4-7", None),
        (counted("6-8", 2), "4-7", Some(0)),
        (rule("3-8"), "4-7", None),
        (counted("3-8", 4), "4-7", Some(0)),
        (rule("2-8"), "0-2,4,6-8", None),
        (counted("2-8", 5), "0-2,4,6-8", Some(0)),
        (rule("1,4"), "1,2,5", None),
    ] {
        let message = matched.map(|at| format!("Matched rules at index {at}"));
        assert_eq!(success(&rules, succeeded), message, "{rules} {succeeded}");
    }
    assert_eq!(match_success_policy(None, 10, &Indexes::parse("0", 10)), None);
}

/// A failed pod with containers that ended like this.
fn failed(containers: &[(&str, i32)], conditions: &[(&str, &str)]) -> Value {
    let containers = containers
        .iter()
        .map(|(name, code)| json!({"name": name, "state": {"terminated": {"exitCode": code}}}));
    let conditions =
        conditions.iter().map(|(kind, status)| json!({"type": kind, "status": status}));
    json!({"metadata": {"name": "mypod", "namespace": "default"}, "status": {
        "phase": "Failed",
        "containerStatuses": containers.collect::<Vec<_>>(),
        "conditions": conditions.collect::<Vec<_>>(),
    }})
}

fn failure(rules: &Value, of: &Value) -> FailureAction {
    let policy = json!({"rules": rules});
    let policy: PodFailurePolicy = serde_json::from_value(policy).expect("a policy");
    match_failure_policy(Some(&policy), &pod(of))
}

fn codes(action: &str, operator: &str, values: &[i32]) -> Value {
    json!({"action": action, "onExitCodes": {"operator": operator, "values": values}})
}

#[test]
fn first_matching_rule_of_a_failure_policy_decides() {
    let two = failed(&[("main", 2)], &[]);
    let disrupted = failed(&[], &[("DisruptionTarget", "True")]);
    let on_disruption = |action: &str| {
        json!({"action": action,
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]})
    };
    let in_codes = |action: &str| codes(action, "In", &[1, 2]);
    for (rules, pod, action) in [
        (json!([]), &two, FailureAction::Unmatched),
        (json!([in_codes("Ignore")]), &two, FailureAction::Ignore),
        (json!([in_codes("Count"), in_codes("Ignore")]), &two, FailureAction::Count),
        (json!([in_codes("FailIndex")]), &two, FailureAction::FailIndex),
        (json!([in_codes("Later"), in_codes("Count")]), &two, FailureAction::Count),
        (json!([codes("Ignore", "NotIn", &[1, 2])]), &two, FailureAction::Unmatched),
        (json!([codes("Ignore", "NotIn", &[5])]), &two, FailureAction::Ignore),
        (json!([codes("Ignore", "Near", &[2])]), &two, FailureAction::Unmatched),
        (json!([on_disruption("Ignore")]), &disrupted, FailureAction::Ignore),
        (json!([on_disruption("Ignore")]), &two, FailureAction::Unmatched),
        (json!([on_disruption("Count"), in_codes("Ignore")]), &two, FailureAction::Ignore),
    ] {
        assert_eq!(failure(&rules, pod), action, "{rules}");
    }
    let unready = failed(&[], &[("DisruptionTarget", "False")]);
    assert_eq!(failure(&json!([on_disruption("Ignore")]), &unready), FailureAction::Unmatched);
}

#[test]
fn message_of_a_failed_job_names_the_container_or_condition_and_the_rule() {
    let rules = json!([codes("Count", "In", &[9]), codes("FailJob", "In", &[2])]);
    let message = "Container main for pod default/mypod failed with exit code 2 matching FailJob \
                   rule at index 1";
    let action = failure(&rules, &failed(&[("main", 2)], &[]));
    assert_eq!(action, FailureAction::FailJob(message.to_owned()));
    let rules = json!([{"action": "FailJob",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]);
    let message =
        "Pod default/mypod has condition DisruptionTarget matching FailJob rule at index 0";
    let action = failure(&rules, &failed(&[], &[("DisruptionTarget", "True")]));
    assert_eq!(action, FailureAction::FailJob(message.to_owned()));
}

#[test]
fn exit_code_rule_matches_only_its_container_and_never_0() {
    let pod = failed(&[("first", 0), ("second", 3)], &[]);
    assert_eq!(failure(&json!([codes("Ignore", "In", &[0])]), &pod), FailureAction::Unmatched);
    assert_eq!(failure(&json!([codes("Ignore", "NotIn", &[1])]), &pod), FailureAction::Ignore);
    let mut rule = codes("Ignore", "In", &[3]);
    rule["onExitCodes"]["containerName"] = "first".into();
    assert_eq!(failure(&json!([rule.clone()]), &pod), FailureAction::Unmatched);
    rule["onExitCodes"]["containerName"] = "second".into();
    assert_eq!(failure(&json!([rule]), &pod), FailureAction::Ignore);
}
