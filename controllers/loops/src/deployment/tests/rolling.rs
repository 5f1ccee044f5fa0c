//! Steps of a rolling update.

use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::Deployment;
use serde_json::json;

use super::{available, deployment, now, rollout, set};
use crate::stub_api::{agree, kept, refusal, run, sizes, verbs};

#[test]
fn new_set_is_scaled_as_far_as_surge_allows() {
    for (wanted, surge, old, new, expected) in [
        (10, 0, 10, 0, None),
        (10, 2, 10, 0, Some(2)),
        (10, 2, 5, 0, Some(7)),
        (10, 2, 10, 2, None),
        (10, 2, 2, 11, Some(10)),
        (10, 2, 0, 10, None),
    ] {
        let value = deployment(wanted, json!(surge), json!(0));
        let deployment: KeptObject<Deployment> = kept(&value);
        let values = [set("new", "new", new, 1), set("old", "old", old, 9)];
        let rollout = rollout(&deployment, &values);
        let new_set = rollout.new.clone().expect("it has the template");
        let ran = run(now(), agree, |transcript| rollout.reconcile_new_set(&new_set, transcript));
        assert_eq!(ran.result, Ok(expected.is_some()));
        assert_eq!(sizes(&ran.requests).get("new").copied(), expected, "{old} and {new}");
    }
}

#[test]
fn old_sets_shrink_while_enough_pods_stay_available() {
    for (unavailable, old, new, old_ready, new_ready, expected) in [
        (0, 10, 0, 10, 0, None),
        (0, 10, 1, 10, 1, Some(9)),
        (2, 10, 0, 10, 0, Some(8)),
        // Pods that are not available go first.
        (2, 10, 0, 8, 0, Some(8)),
        (2, 10, 0, 9, 0, Some(8)),
        // Unavailable pods of the new set cost no old ones.
        (2, 8, 2, 8, 0, None),
        (2, 0, 10, 0, 10, None),
    ] {
        let value = deployment(10, json!(1), json!(unavailable));
        let deployment: KeptObject<Deployment> = kept(&value);
        let values = [
            available(set("new", "new", new, 1), new_ready),
            available(set("old", "old", old, 9), old_ready),
        ];
        let rollout = rollout(&deployment, &values);
        let new_set = rollout.new.clone().expect("it has the template");
        let ran = run(now(), agree, |transcript| rollout.reconcile_old_sets(&new_set, transcript));
        assert_eq!(ran.result, Ok(expected.is_some()));
        assert_eq!(sizes(&ran.requests).get("old").copied(), expected, "{old_ready} of {old}");
    }
}

#[test]
fn unhealthy_pods_are_cleaned_up_to_a_limit() {
    for (ready, max, expected) in [(8, 1, 1), (8, 3, 2), (8, 0, 0), (10, 3, 0)] {
        let value = deployment(10, json!(2), json!(2));
        let deployment: KeptObject<Deployment> = kept(&value);
        let values = [available(set("old", "old", 10, 9), ready)];
        let rollout = rollout(&deployment, &values);
        let ran = run(now(), agree, |transcript| {
            rollout.clean_up_unhealthy(rollout.old.clone(), max, transcript)
        });
        let cleaned = ran.result.expect("no failure");
        assert_eq!(cleaned.count, expected);
        assert_eq!(cleaned.old[0].spec.wanted(), 10 - expected, "the set is as it is then");
    }
}

#[test]
fn available_pods_beyond_the_minimum_are_scaled_down() {
    for (unavailable, ready, old, expected) in [
        // No way to make progress counts as one unavailable pod.
        (0, 10, 10, Some(9)),
        (2, 10, 10, Some(8)),
        (2, 8, 10, None),
        (2, 10, 0, None),
        (2, 1, 10, None),
    ] {
        let value = deployment(10, json!(0), json!(unavailable));
        let deployment: KeptObject<Deployment> = kept(&value);
        let values =
            [available(set("old", "old", old, 9), ready), available(set("new", "new", 0, 1), 0)];
        let rollout = rollout(&deployment, &values);
        let new_set = rollout.new.clone().expect("it has the template");
        let ran = run(now(), agree, |transcript| {
            rollout.scale_down_old_sets(&rollout.old, &new_set, transcript)
        });
        assert_eq!(sizes(&ran.requests).get("old").copied(), expected, "{ready} of {old}");
        assert_eq!(ran.result.map(|count| count > 0), Ok(expected.is_some()));
    }
}

#[test]
fn oldest_set_is_scaled_down_first() {
    let value = deployment(4, json!(0), json!(3));
    let deployment: KeptObject<Deployment> = kept(&value);
    let values = [
        available(set("newest", "c", 2, 1), 2),
        available(set("oldest", "a", 2, 9), 2),
        available(set("new", "new", 0, 0), 0),
    ];
    let rollout = rollout(&deployment, &values);
    let new_set = rollout.new.clone().expect("it has the template");
    let ran = run(now(), agree, |transcript| {
        rollout.scale_down_old_sets(&rollout.old, &new_set, transcript)
    });
    let sizes = sizes(&ran.requests);
    assert_eq!((sizes["oldest"], sizes["newest"]), (0, 1));
}

#[test]
fn failure_to_shrink_an_old_set_is_retried_after_the_status_was_synced() {
    let value = deployment(4, json!(0), json!(2));
    let deployment: KeptObject<Deployment> = kept(&value);
    let values = [
        available(set("old", "old", 4, 9), 4),
        super::annotated(set("new", "new", 0, 1), "deployment.kubernetes.io/revision", "1"),
    ];
    let values = values.map(|set| super::annotated(set, "mine", "1"));
    let ran = run(
        now(),
        |request| match verbs(std::slice::from_ref(request))[0].as_str() {
            "update replicasets" if sizes(std::slice::from_ref(request)).contains_key("old") => {
                Err(refusal(500, "InternalError", "broken"))
            }
            _ => agree(request),
        },
        |transcript| rollout(&deployment, &values).roll(transcript),
    );
    assert_eq!(verbs(&ran.requests).last().map(String::as_str), Some("update deployments/status"));
    assert_eq!(ran.result.expect_err("a failure").message, "broken");
}

#[test]
fn status_of_a_set_that_lags_behind_its_size_is_no_failure() {
    let value = deployment(4, json!(2), json!(2));
    let deployment: KeptObject<Deployment> = kept(&value);
    // It was just scaled from 4 to 3.
    let values = [available(set("old", "old", 3, 9), 4), available(set("new", "new", 4, 1), 4)];
    let ran = run(now(), agree, |transcript| rollout(&deployment, &values).roll(transcript));
    assert!(ran.result.is_ok());
    assert_eq!(sizes(&ran.requests).get("old"), None);
}
