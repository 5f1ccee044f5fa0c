//! Which old sets are deleted.
// k8s: pkg/controller/deployment/sync_test.go TestDeploymentController_cleanupDeployment

use pintle_api_types::request::Request;
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::Deployment;
use serde_json::{Value, json};

use super::super::sets::REVISION;
use super::{ago, annotated, deployment, now, rollout, set};
use crate::stub_api::{agree, kept, refusal, run};

/// A set with sizes by its spec and status.
fn sized(name: &str, spec: i32, status: i32) -> Value {
    let mut value = set(name, name, spec, 5);
    value["status"]["replicas"] = status.into();
    value
}

fn deleted(limit: i32, values: &[Value]) -> Vec<String> {
    let mut value = deployment(1, json!(1), json!(0));
    value["spec"]["revisionHistoryLimit"] = limit.into();
    let deployment: KeptObject<Deployment> = kept(&value);
    let ran = run(now(), agree, |transcript| rollout(&deployment, values).clean_up(transcript));
    assert_eq!(ran.result, Ok(()));
    let names = ran.requests.iter().map(|request| match request {
        Request::Delete { target, .. } => target.key.name().to_owned(),
        other => panic!("{other:?}"),
    });
    names.collect()
}

#[test]
fn old_sets_without_pods_beyond_the_limit_are_deleted() {
    let mut deleting = sized("a", 0, 0);
    deleting["metadata"]["deletionTimestamp"] = ago(1).into();
    let mut unseen = sized("a", 0, 0);
    unseen["metadata"]["generation"] = 2.into();
    for (limit, values, expected) in [
        (1, vec![sized("a", 0, 0), sized("b", 0, 0), sized("c", 0, 0)], vec!["a", "b"]),
        (
            0,
            vec![sized("a", 0, 0), sized("b", 0, 1), sized("c", 1, 0), sized("d", 1, 1)],
            vec!["a"],
        ),
        (0, vec![sized("a", 0, 0), sized("b", 0, 0)], vec!["a", "b"]),
        (0, vec![sized("a", 1, 1), sized("b", 1, 1)], vec![]),
        (0, vec![deleting], vec![]),
        (0, vec![unseen], vec![]),
        (i32::MAX, vec![sized("a", 0, 0), sized("b", 0, 0)], vec![]),
    ] {
        assert_eq!(deleted(limit, &values), expected);
    }
}

#[test]
fn sets_with_the_lowest_revisions_are_deleted_first() {
    // The first is the oldest.
    for (limit, sets, expected) in [
        (1, vec![("1", 0), ("2", 0)], vec!["foo-0"]),
        (1, vec![("2", 0), ("1", 0)], vec!["foo-1"]),
        (1, vec![("1", 0), ("", 0)], vec!["foo-1"]),
        (1, vec![("", 0), ("2", 0)], vec!["foo-0"]),
        (1, vec![("1", 1), ("2", 0), ("3", 0)], vec!["foo-1"]),
        (1, vec![("1", 1), ("2", 1), ("3", 0)], vec![]),
        (2, vec![("3", 0), ("1", 0), ("4", 0), ("2", 0)], vec!["foo-1", "foo-3"]),
    ] {
        let values: Vec<_> = (0..)
            .zip(&sets)
            .map(|(at, (revision, size))| {
                let name = format!("foo-{at}");
                let value = set(&name, &name, *size, 100 - at);
                if revision.is_empty() { value } else { annotated(value, REVISION, revision) }
            })
            .collect();
        assert_eq!(deleted(limit, &values), expected, "{sets:?}");
    }
}

#[test]
fn clean_up_ignores_a_missing_set_and_stops_at_any_other_error() {
    let mut value = deployment(1, json!(1), json!(0));
    value["spec"]["revisionHistoryLimit"] = 0.into();
    let deployment: KeptObject<Deployment> = kept(&value);
    let values = [sized("a", 0, 0), sized("b", 0, 0)];
    for (error, sent, is_ok) in [
        (refusal(404, "NotFound", "gone"), 2, true),
        (refusal(500, "InternalError", "broken"), 1, false),
    ] {
        let ran = run(
            now(),
            |_| Err(error.clone()),
            |transcript| rollout(&deployment, &values).clean_up(transcript),
        );
        assert_eq!((ran.requests.len(), ran.result.is_ok()), (sent, is_ok));
    }
}
