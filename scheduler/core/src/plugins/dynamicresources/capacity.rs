//! Consumable capacity: amounts that requests take of shared devices, and whether they are left.
//!
//! Input: a request's amounts, a device's capacity and the part in use. Output: amounts. Owner:
//! pure functions. Bounds: 32 capacities a device.
// k8s: structured/internal/incubating/consumable_capacity.go

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::CapacityRequirements;
use pintle_api_types::quantity::Amount;

use super::offer::{Capacity, Counters, Policy, amount};

/// Returns the amounts that a request takes of a device.
// k8s: GetConsumedCapacityFromRequest, calculateConsumedCapacity
pub(super) fn consumed(
    requirements: Option<&CapacityRequirements>,
    has: &BTreeMap<String, Capacity>,
) -> Counters {
    has.iter().map(|(name, capacity)| (name.clone(), one(requirements, name, capacity))).collect()
}

fn one(requirements: Option<&CapacityRequirements>, name: &str, capacity: &Capacity) -> Amount {
    let requested = requirements.and_then(|all| all.requests.as_ref()?.get(name)).map(amount);
    let Some(requested) = requested else {
        let default = capacity.policy.as_ref().and_then(|policy| policy.default);
        return default.unwrap_or(capacity.value);
    };
    let Some(policy) = &capacity.policy else { return requested };
    if let Some((least, _, step)) = policy.range {
        return in_range(requested, least, step);
    }
    policy.values.iter().copied().find(|value| requested <= *value).unwrap_or(requested)
}

// k8s: roundUpRange
fn in_range(requested: Amount, least: Amount, step: Option<Amount>) -> Amount {
    if requested < least {
        return least;
    }
    let Some(step) = step.map(Amount::units).filter(|step| *step > 0) else { return requested };
    let over = requested.units().saturating_sub(least.units());
    let steps = over.div_euclid(step) + i64::from(over % step != 0);
    Amount::from_bytes(least.units().saturating_add(steps.saturating_mul(step)))
}

// k8s: violatesPolicy
fn violates(taken: Amount, policy: &Policy) -> bool {
    if policy.default == Some(taken) {
        return false;
    }
    if let Some((least, most, step)) = policy.range {
        let step = step.map(Amount::units).filter(|step| *step > 0);
        let over = taken.units().saturating_sub(least.units());
        return most.is_some_and(|most| taken > most) || step.is_some_and(|step| over % step != 0);
    }
    !policy.values.is_empty() && !policy.values.contains(&taken)
}

/// Does the device still have what a request takes, given the parts in use and allocated in this
/// search?
// k8s: CmpRequestOverCapacity
pub(super) fn is_left(
    requirements: Option<&CapacityRequirements>,
    has: &BTreeMap<String, Capacity>,
    used: [Option<&Counters>; 2],
) -> bool {
    let mut names =
        requirements.iter().flat_map(|requirements| requirements.requests.iter().flatten());
    if !names.all(|(name, _)| has.contains_key(name)) {
        return false;
    }
    has.iter().all(|(name, capacity)| {
        let taken = one(requirements, name, capacity);
        let used = used.into_iter().flatten().filter_map(|used| used.get(name));
        let sum = used.fold(taken, |sum, used| sum + *used);
        !capacity.policy.as_ref().is_some_and(|policy| violates(taken, policy))
            && sum <= capacity.value
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn asked(amount: &str) -> CapacityRequirements {
        serde_json::from_value(json!({"requests": {"memory": amount}})).expect("requirements")
    }

    fn has(policy: &Value) -> BTreeMap<String, Capacity> {
        let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "allNodes": true,
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "a", "capacity": {"memory":
                {"value": "10Gi", "requestPolicy": policy}}}]}});
        let slice = serde_json::from_value(slice).expect("a slice");
        super::super::offer::Slice::read(&slice, false).devices[0].capacity.clone()
    }

    #[test]
    fn requested_capacity_is_rounded_by_the_request_policy() {
        let range =
            json!({"default": "1Gi", "validRange": {"min": "1Gi", "max": "8Gi", "step": "2Gi"}});
        let values = json!({"default": "2Gi", "validValues": ["2Gi", "4Gi"]});
        for (policy, request, want, is_good) in [
            (&Value::Null, Some("3Gi"), "3Gi", true),
            (&Value::Null, None, "10Gi", true),
            (&Value::Null, Some("11Gi"), "11Gi", false),
            (&range, None, "1Gi", true),
            (&range, Some("1Mi"), "1Gi", true),
            (&range, Some("2Gi"), "3Gi", true),
            (&range, Some("5Gi"), "5Gi", true),
            (&range, Some("8Gi"), "9Gi", false),
            (&values, None, "2Gi", true),
            (&values, Some("3Gi"), "4Gi", true),
            (&values, Some("5Gi"), "5Gi", false),
        ] {
            let (has, request) = (has(policy), request.map(asked));
            let taken = consumed(request.as_ref(), &has);
            assert_eq!(Some(taken["memory"]), Amount::parse(want), "{policy} {request:?}");
            let left = is_left(request.as_ref(), &has, [None, None]);
            assert_eq!(left, is_good, "{policy} {request:?}");
        }
    }

    #[test]
    fn consumed_or_absent_capacity_is_not_allocated() {
        let (has, four) = (has(&Value::Null), asked("4Gi"));
        let used =
            |text: &str| Counters::from([("memory".into(), Amount::parse(text).expect(text))]);
        let (three, four_used) = (used("3Gi"), used("4Gi"));
        assert!(is_left(Some(&four), &has, [Some(&three), Some(&three)]));
        assert!(!is_left(Some(&four), &has, [Some(&three), Some(&four_used)]));
        let other = serde_json::from_value(json!({"requests": {"cores": "1"}})).expect("some");
        assert!(!is_left(Some(&other), &has, [None, None]));
    }
}
