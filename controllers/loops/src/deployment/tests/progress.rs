//! Progress of a rollout and its deadline.
// k8s: pkg/controller/deployment/progress_test.go, util/deployment_util_test.go

use std::time::Duration;

use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{Deployment, ReplicaStatus};
use serde_json::{Value, json};

use super::super::progress::{is_progressing, is_timed_out};
use super::super::status::is_complete;
use super::{ago, available, now, rollout, set};
use crate::stub_api::{agree, kept, run};

/// Counts of a status: all, updated, ready and available.
fn counts(all: i32, updated: i32, ready: i32, available: i32) -> ReplicaStatus {
    ReplicaStatus {
        replicas: all,
        updated_replicas: updated,
        ready_replicas: ready,
        available_replicas: available,
        ..ReplicaStatus::default()
    }
}

fn condition(status: &str, reason: &str, since: i64) -> Value {
    json!({"type": "Progressing", "status": status, "reason": reason,
        "lastUpdateTime": ago(since), "lastTransitionTime": ago(since)})
}

/// A Deployment that wants `replicas`, with counts in its status: all, updated, available.
fn deployment(deadline: Option<i32>, replicas: i32, status: [i32; 3], conditions: Value) -> Value {
    let mut value = super::deployment(replicas, json!(1), json!(0));
    value["spec"]["strategy"] = json!({"type": "Recreate"});
    value["spec"]["progressDeadlineSeconds"] = json!(deadline);
    value["metadata"]["generation"] = 0.into();
    value["status"] = json!({"replicas": status[0], "updatedReplicas": status[1],
        "availableReplicas": status[2], "conditions": conditions});
    value
}

#[test]
fn rollout_progresses_with_more_updated_ready_or_available_or_fewer_old_pods() {
    for (old, new, expected) in [
        ((10, 4, 4, 4), (10, 6, 4, 4), true),
        ((10, 4, 4, 4), (10, 4, 4, 4), false),
        ((10, 4, 6, 6), (8, 4, 6, 6), true),
        ((10, 7, 3, 3), (10, 6, 3, 3), false),
        ((10, 4, 7, 7), (8, 8, 5, 5), true),
        ((10, 10, 9, 8), (10, 10, 10, 8), true),
        ((10, 10, 10, 9), (10, 10, 10, 10), true),
    ] {
        let of = |(all, updated, ready, available)| counts(all, updated, ready, available);
        assert_eq!(is_progressing(&of(old), &of(new)), expected, "{old:?} -> {new:?}");
    }
}

#[test]
fn rollout_is_complete_when_all_pods_are_new_and_available() {
    for (wanted, all, updated, available, expected) in [
        (5, 5, 5, 4, false),
        (5, 5, 5, 3, false),
        (5, 5, 5, 5, true),
        (5, 5, 4, 5, false),
        (1, 2, 1, 1, false),
        (1, 1, 1, 0, false),
    ] {
        let value = deployment(None, wanted, [all, updated, available], json!([]));
        let deployment: KeptObject<Deployment> = kept(&value);
        let rollout = rollout(&deployment, &[]);
        assert_eq!(is_complete(&rollout, &rollout.status), expected);
    }
    let mut value = deployment(None, 5, [5, 5, 5], json!([]));
    value["metadata"]["generation"] = 2.into();
    let deployment: KeptObject<Deployment> = kept(&value);
    let rollout = rollout(&deployment, &[]);
    assert!(!is_complete(&rollout, &rollout.status), "the spec was not observed");
}

#[test]
fn rollout_times_out_after_the_deadline() {
    for (reason, since, expected) in [
        ("", 11, true),
        ("", 10, false),
        ("", 9, false),
        ("NewReplicaSetAvailable", 1_000, false),
        ("ProgressDeadlineExceeded", 0, true),
    ] {
        let value = json!({"conditions": [condition("True", reason, since)]});
        let status: ReplicaStatus = serde_json::from_value(value).expect("a status");
        assert_eq!(is_timed_out(&status, 10, now()), expected, "{reason} {since}");
    }
    assert!(!is_timed_out(&ReplicaStatus::default(), 10, now()), "there is no base");
}

#[test]
fn stuck_rollout_is_checked_when_its_deadline_passes() {
    let stuck = |since| json!([condition("True", "", since)]);
    let failed = json!([condition("False", "ProgressDeadlineExceeded", 0)]);
    let short = Duration::from_millis(5);
    for (deadline, conditions, counted, expected) in [
        (None, json!([]), [3, 3, 2], None),
        (Some(i32::MAX), stuck(30), [3, 3, 2], None),
        (Some(60), json!([]), [3, 3, 2], None),
        (Some(60), stuck(30), [3, 3, 3], None),
        (Some(60), failed, [3, 3, 0], None),
        (Some(60), stuck(30), [3, 3, 1], Some(Duration::from_secs(31))),
        (Some(60), stuck(59), [3, 3, 1], Some(Duration::from_secs(2))),
        (Some(60), stuck(60), [3, 3, 1], Some(short)),
        (Some(60), stuck(61), [3, 3, 1], Some(short)),
        (Some(60), stuck(120), [3, 3, 1], Some(short)),
    ] {
        let value = deployment(deadline, 3, counted, conditions.clone());
        let deployment: KeptObject<Deployment> = kept(&value);
        let rollout = rollout(&deployment, &[]);
        let check = rollout.next_check(&rollout.status, now());
        assert_eq!(check, expected, "{deadline:?} {conditions}");
    }
}

/// A set with sizes by its spec and status, and available pods.
fn sized(name: &str, revision: &str, spec: i32, status: i32, ready: i32) -> Value {
    let mut value = available(set(name, revision, spec, 5), ready);
    value["status"]["replicas"] = status.into();
    value
}

/// The condition Progressing after a sync of the status, and what it was before.
struct ProgressOutcome {
    name: &'static str,
    deployment: Value,
    sets: Vec<Value>,
    /// Status and reason; `None` when there is no condition.
    expected: Option<(&'static str, &'static str)>,
    /// Since when, in seconds ago: last update and last transition.
    since: [i64; 2],
}

fn outcomes() -> Vec<ProgressOutcome> {
    let updated = || json!([condition("True", "ReplicaSetUpdated", 100)]);
    let failed = || json!([condition("False", "ProgressDeadlineExceeded", 100)]);
    let done = || json!([condition("True", "NewReplicaSetAvailable", 100)]);
    let rolling = || vec![sized("old", "old", 0, 1, 1), sized("new", "new", 3, 2, 2)];
    let complete = || vec![sized("new", "new", 3, 3, 3)];
    let of = |name, deployment, sets, expected, since| ProgressOutcome {
        name,
        deployment,
        sets,
        expected,
        since,
    };
    let is = |status, reason| Some((status, reason));
    vec![
        of("no deadline", deployment(None, 3, [2, 2, 2], updated()), rolling(), None, [0, 0]),
        of(
            "one active set",
            deployment(Some(60), 3, [3, 3, 3], done()),
            vec![sized("old", "old", 3, 3, 3)],
            is("True", "NewReplicaSetAvailable"),
            [100, 100],
        ),
        of(
            "progress of a rollout that progresses",
            deployment(Some(60), 3, [2, 2, 2], updated()),
            rolling(),
            is("True", "ReplicaSetUpdated"),
            [0, 100],
        ),
        of(
            "progress of a rollout that failed",
            deployment(Some(60), 3, [2, 2, 2], failed()),
            rolling(),
            is("True", "ReplicaSetUpdated"),
            [0, 0],
        ),
        of(
            "first progress",
            deployment(Some(60), 3, [2, 2, 2], json!([])),
            rolling(),
            is("True", "ReplicaSetUpdated"),
            [0, 0],
        ),
        of(
            "end of a rollout that progresses",
            deployment(Some(60), 3, [3, 3, 3], updated()),
            complete(),
            is("True", "NewReplicaSetAvailable"),
            [0, 100],
        ),
        of(
            "end of a rollout that failed",
            deployment(Some(60), 3, [3, 3, 3], failed()),
            complete(),
            is("True", "NewReplicaSetAvailable"),
            [0, 0],
        ),
        of(
            "end without a condition",
            deployment(Some(60), 3, [3, 3, 3], json!([])),
            complete(),
            is("True", "NewReplicaSetAvailable"),
            [0, 0],
        ),
        of(
            "end without a new set",
            deployment(Some(60), 0, [3, 3, 3], updated()),
            vec![sized("old", "old", 0, 0, 0)],
            is("True", "NewReplicaSetAvailable"),
            [0, 100],
        ),
        of(
            "deadline",
            deployment(Some(60), 3, [2, 2, 2], updated()),
            vec![sized("new", "new", 3, 2, 2)],
            is("False", "ProgressDeadlineExceeded"),
            [0, 0],
        ),
        of(
            "deadline of a rollout that failed",
            deployment(Some(60), 3, [2, 2, 2], failed()),
            vec![sized("new", "new", 3, 2, 2)],
            is("False", "ProgressDeadlineExceeded"),
            [100, 100],
        ),
    ]
}

#[test]
fn progressing_condition_matches_the_rollout_outcome() {
    for case in outcomes() {
        let mut value = case.deployment;
        // Upstream's fixtures have no count of ready pods.
        value["status"]["readyReplicas"] = 10.into();
        if case.expected.is_none_or(|(_, reason)| reason == "ReplicaSetUpdated") {
            value["status"]["readyReplicas"] = 0.into();
        }
        let deployment: KeptObject<Deployment> = kept(&value);
        let ran = run(now(), agree, |transcript| {
            let mut rollout = rollout(&deployment, &case.sets);
            rollout.sync_rollout_status(transcript)?;
            Ok(rollout.status.condition("Progressing").cloned())
        });
        let found = ran.result.expect("no failure");
        let words = found.as_ref().map(|found| (&*found.status, &*found.reason));
        assert_eq!(words, case.expected, "{}", case.name);
        if let Some(found) = found {
            let times = [found.last_update_time, found.last_transition_time];
            let times = times.map(|at| at.expect("a time").to_string());
            assert_eq!(times, case.since.map(ago), "{}", case.name);
        }
    }
}

#[test]
fn failure_of_the_new_set_comes_before_that_of_old_ones() {
    let failing = |mut set: Value, message: &str| {
        set["status"]["conditions"] = json!([{"type": "ReplicaFailure", "status": "True",
            "reason": "FailedCreate", "message": message, "lastTransitionTime": ago(7)}]);
        set
    };
    let value = deployment(Some(60), 3, [3, 3, 0], json!([]));
    let deployment: KeptObject<Deployment> = kept(&value);
    let old = failing(sized("old", "old", 1, 1, 0), "old failure");
    let new = failing(sized("new", "new", 2, 2, 0), "new failure");
    let both = rollout(&deployment, &[old.clone(), new]).replica_failure();
    assert_eq!(both.map(|failure| failure.message.to_string()).as_deref(), Some("new failure"));
    let one = rollout(&deployment, &[old, sized("new", "new", 2, 2, 0)]).replica_failure();
    let one = one.expect("the old set has one");
    assert_eq!(&*one.message, "old failure");
    assert_eq!(one.last_update_time, one.last_transition_time);
}
