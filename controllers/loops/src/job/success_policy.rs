//! Success policy: whether the indexes that succeeded are enough for an indexed Job.
//!
//! Input: the rules of the policy and the indexes that succeeded. Output: the message of the
//! condition `SuccessCriteriaMet` when a rule matches; the first one counts. Pure.
// k8s: pkg/controller/job/success_policy.go

use pintle_controllers_core::kinds::{SuccessPolicy, SuccessRule};

use super::indexes::Indexes;

/// Returns the message when a rule of the policy matches.
// k8s: pkg/controller/job/success_policy.go matchSuccessPolicy
pub(super) fn match_success_policy(
    policy: Option<&SuccessPolicy>,
    completions: i64,
    succeeded: &Indexes,
) -> Option<String> {
    let policy = policy.filter(|_| !succeeded.is_empty())?;
    let is_met = |rule: &SuccessRule| is_rule_met(rule, completions, succeeded);
    let at = policy.rules.iter().position(is_met)?;
    Some(format!("Matched rules at index {at}"))
}

fn is_rule_met(rule: &SuccessRule, completions: i64, succeeded: &Indexes) -> bool {
    let count = rule.succeeded_count.map(i64::from);
    match &rule.succeeded_indexes {
        Some(indexes) => {
            let required = Indexes::parse(indexes, completions);
            !required.is_empty() && are_enough(&required, succeeded, count)
        }
        None => count.is_some_and(|count| succeeded.total() >= count),
    }
}

// k8s: pkg/controller/job/success_policy.go matchSucceededIndexesRule
fn are_enough(required: &Indexes, succeeded: &Indexes, count: Option<i64>) -> bool {
    let contained = overlap(required, succeeded);
    contained == required.total() || count.is_some_and(|count| contained >= count)
}

/// How many indexes are in both sets.
fn overlap(one: &Indexes, other: &Indexes) -> i64 {
    let (mut ones, mut others) = (one.intervals().iter(), other.intervals().iter());
    let (mut left, mut right) = (ones.next(), others.next());
    let mut total = 0;
    while let (Some(one), Some(other)) = (left, right) {
        let common = one.last.min(other.last) - one.first.max(other.first) + 1;
        total += common.max(0);
        if one.last <= other.last {
            left = ones.next();
        }
        if other.last <= one.last {
            right = others.next();
        }
    }
    total
}
