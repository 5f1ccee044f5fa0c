//! Scaling in proportion.
// k8s: pkg/controller/deployment/sync_test.go TestScale

use std::collections::BTreeMap;

use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::Deployment;
use serde_json::{Value, json};

use super::super::scale::fraction;
use super::super::sets::MAX_REPLICAS;
use super::{annotated, available, deployment, now, rollout, scaled_for, set, sets};
use crate::stub_api::{agree, kept, messages, run, sizes};

/// A case: sizes of the new set, which comes first, and of old ones from newer to older.
struct ScalingCase {
    name: &'static str,
    before: Value,
    after: Value,
    /// `None` when no set has the template.
    new: Option<i32>,
    old: &'static [i32],
    expected_new: Option<i32>,
    expected_old: &'static [i32],
}

fn plain(replicas: i32) -> Value {
    deployment(replicas, json!(0), json!(0))
}

fn surging(replicas: i32, surge: i32) -> Value {
    deployment(replicas, json!(surge), json!(0))
}

fn case(name: &'static str, before: i32, after: i32, sizes: SetSizes) -> ScalingCase {
    ScalingCase {
        name,
        before: plain(before),
        after: plain(after),
        new: sizes.new,
        old: sizes.old,
        expected_new: sizes.expected_new,
        expected_old: sizes.expected_old,
    }
}

struct SetSizes {
    new: Option<i32>,
    old: &'static [i32],
    expected_new: Option<i32>,
    expected_old: &'static [i32],
}

fn from_to(
    new: i32,
    old: &'static [i32],
    expected_new: i32,
    expected_old: &'static [i32],
) -> SetSizes {
    SetSizes { new: Some(new), old, expected_new: Some(expected_new), expected_old }
}

fn cases() -> Vec<ScalingCase> {
    vec![
        case("normal: 10 -> 12", 10, 12, from_to(10, &[], 12, &[])),
        case("normal: 10 -> 5", 10, 5, from_to(10, &[], 5, &[])),
        case("5 -> 10", 5, 10, from_to(2, &[3], 4, &[6])),
        case("5 -> 3", 5, 3, from_to(2, &[3], 1, &[2])),
        case("9 -> 4", 9, 4, from_to(8, &[1], 4, &[0])),
        case("7 -> 10", 7, 10, from_to(2, &[3, 2], 3, &[4, 3])),
        case("13 -> 8", 13, 8, from_to(2, &[8, 3], 1, &[5, 2])),
        case("leftover: 3 -> 4", 3, 4, from_to(1, &[1, 1], 2, &[1, 1])),
        case("leftover: 3 -> 2", 3, 2, from_to(1, &[1, 1], 1, &[1, 0])),
        case("6 -> 0", 6, 0, from_to(3, &[2, 1], 0, &[0, 0])),
        case("0 -> 6", 6, 6, from_to(0, &[0, 0], 6, &[0, 0])),
        case(
            "no new set: 4 -> 5",
            4,
            5,
            SetSizes { new: None, old: &[2, 2], expected_new: None, expected_old: &[3, 2] },
        ),
        case(
            "size and template: 10 -> 14",
            10,
            14,
            SetSizes { new: None, old: &[7, 3], expected_new: None, expected_old: &[10, 4] },
        ),
        ScalingCase {
            before: surging(10, 2),
            after: surging(20, 2),
            ..case("surge pods", 0, 0, from_to(6, &[6], 11, &[11]))
        },
        ScalingCase {
            before: surging(10, 3),
            after: surging(50, 6),
            ..case("surge and size", 0, 0, from_to(5, &[8], 22, &[34]))
        },
        ScalingCase {
            before: deployment(2, json!(1), json!(1)),
            after: deployment(2, json!(1), json!(1)),
            ..case("new set without available pods", 0, 0, from_to(2, &[1], 2, &[1]))
        },
    ]
}

/// The sizes of sets after a scaling event, by name.
fn scaled(after: &Value, values: &[Value]) -> BTreeMap<String, i64> {
    let deployment: KeptObject<Deployment> = kept(after);
    let rollout = rollout(&deployment, values);
    let ran = run(now(), agree, |transcript| rollout.scale(transcript));
    assert_eq!(ran.result, Ok(()));
    let before = values.iter().map(|set| {
        let name = set["metadata"]["name"].as_str().expect("a name").to_owned();
        (name, set["spec"]["replicas"].as_i64().expect("a size"))
    });
    let mut all: BTreeMap<_, _> = before.collect();
    all.extend(sizes(&ran.requests));
    all
}

#[test]
fn replicas_are_spread_over_sets_in_proportion() {
    for case in cases() {
        let mut values = Vec::new();
        if let Some(size) = case.new {
            values.push(set("new", "new", size, 10));
        }
        for (at, size) in (0..).zip(case.old) {
            values.push(set(&format!("old-{at}"), &format!("old-{at}"), *size, 20 + at));
        }
        let values: Vec<_> = values.into_iter().map(|set| scaled_for(set, &case.before)).collect();
        let all = scaled(&case.after, &values);
        let expected_new = case.expected_new.map(i64::from);
        assert_eq!(all.get("new").copied(), expected_new, "{}", case.name);
        for (at, expected) in case.expected_old.iter().enumerate() {
            let size = all[&format!("old-{at}")];
            assert_eq!(size, i64::from(*expected), "{}: old-{at}", case.name);
        }
    }
}

#[test]
fn set_that_missed_an_earlier_scaling_event_catches_up() {
    // 3 -> 5: new was scaled, old-0 was not.
    let values = [
        scaled_for(set("new", "new", 2, 10), &plain(5)),
        scaled_for(set("old-0", "old-0", 1, 20), &plain(3)),
        scaled_for(set("old-1", "old-1", 1, 30), &plain(5)),
    ];
    let all = scaled(&plain(5), &values);
    assert_eq!((all["new"], all["old-0"], all["old-1"]), (2, 2, 1));
}

#[test]
fn saturated_new_set_scales_old_sets_to_zero() {
    let after = deployment(2, json!(1), json!(1));
    let values = [
        available(scaled_for(set("new", "new", 2, 10), &after), 2),
        scaled_for(set("old-0", "old-0", 1, 20), &after),
        scaled_for(set("old-1", "old-1", 3, 30), &after),
    ];
    let all = scaled(&after, &values);
    assert_eq!((all["new"], all["old-0"], all["old-1"]), (2, 0, 0));
}

#[test]
fn scaled_set_records_the_size_of_the_deployment_and_reports_an_event() {
    let value = surging(12, 2);
    let deployment: KeptObject<Deployment> = kept(&value);
    let values = [scaled_for(set("new", "new", 10, 1), &surging(10, 2))];
    let rollout = rollout(&deployment, &values);
    let ran = run(now(), agree, |transcript| rollout.scale(transcript));
    assert_eq!(
        messages(&ran.events),
        ["ScalingReplicaSet: Scaled up replica set new from 10 to 12"]
    );
    let pintle_api_types::request::Request::Replace { body, .. } = &ran.requests[0] else {
        panic!("an update")
    };
    assert_eq!(
        body["metadata"]["annotations"],
        json!({"deployment.kubernetes.io/desired-replicas": "12",
            "deployment.kubernetes.io/max-replicas": "14"})
    );
}

#[test]
fn fraction_of_a_set_follows_the_growth_of_the_deployment() {
    for (wanted, replicas, surge, size, max, expected) in [
        (0, 0, 0, 10, None, -10),
        (10, 0, 0, 5, None, 0),
        (10, 0, 0, 5, Some("0"), 0),
        (120, 100, 0, 50, None, 10),
        (120, 100, 0, 50, Some("0"), 10),
        (120, 0, 0, 50, Some("100"), 10),
        (120, 0, 10, 50, Some("110"), 9),
        (10, 0, 0, 6, Some("12"), -1),
        (100, 0, 10, 50, Some("130"), -8),
    ] {
        let value = deployment(wanted, json!(surge), json!(1));
        let deployment: KeptObject<Deployment> = kept(&value);
        let mut one = set("one", "one", size, 1);
        if let Some(max) = max {
            one = annotated(one, MAX_REPLICAS, max);
        }
        let all = sets(&[one]);
        let part = fraction(&all[0], &deployment.spec, replicas);
        assert_eq!(part, expected, "{size} of {max:?}, {wanted} are wanted");
    }
}
