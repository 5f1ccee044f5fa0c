//! The requests of a set's sync.
// k8s: pkg/controller/replicaset/replica_set_test.go, replica_set_utils_test.go

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{PODS, REPLICA_SETS, REPLICATION_CONTROLLERS};
use pintle_api_types::request::{Answer, Request};
use pintle_controllers_core::frame::{Controller, Driven, Now, Retry, drive};
use pintle_controllers_core::kinds::{ReplicaSet, ReplicationController};
use pintle_controllers_core::tables::Tables;
use serde_json::{Value, json};

use super::super::{ReplicaController, ReplicaSnapshot, Replicated};
use crate::stub_api::{agree, messages, put, refusal, verbs};

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).expect("a time")
}

/// A set of `replicas` pods; by its status all of them are there and ready.
fn set(replicas: i64) -> Value {
    json!({
        "metadata": {"name": "rs", "namespace": "n", "uid": "rs-uid", "resourceVersion": "5",
            "generation": 2, "annotations": {"keep": "me"}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b", "c": "d"}},
                "spec": {"containers": [{"name": "main", "image": "i"}]}}},
        "status": {"replicas": replicas, "fullyLabeledReplicas": replicas,
            "readyReplicas": replicas, "availableReplicas": replicas,
            "terminatingReplicas": 0, "observedGeneration": 2}
    })
}

fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"),
            "resourceVersion": "7", "labels": {"a": "b", "c": "d"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs",
                "uid": "rs-uid", "controller": true}]},
        "spec": {"nodeName": "node"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True",
            "lastTransitionTime": (now() - SignedDuration::from_secs(60)).to_string()}]}
    })
}

fn pods(count: usize) -> Vec<Value> {
    (0..count).map(|n| pod(&format!("pod-{n}"))).collect()
}

fn snapshot<W: Replicated>(set: &Value, pods: &[Value]) -> ReplicaSnapshot<W> {
    let mut tables = Tables::default();
    put(&mut tables, W::KIND, set);
    pods.iter().for_each(|pod| drop(put(&mut tables, PODS, pod)));
    let key = ObjectKey::new("n", set["metadata"]["name"].as_str().expect("a name"));
    let at = Now { instant: std::time::Instant::now(), wall: now() };
    ReplicaController::<W>::new(1).snapshot(&key, &tables, at).expect("the set is there")
}

fn synced_with(set: &Value, pods: &[Value], answer: impl FnMut(&Request) -> Answer) -> Driven<()> {
    drive::<ReplicaController<ReplicaSet>>(&snapshot(set, pods), now(), answer)
}

fn synced(set: &Value, pods: &[Value]) -> Driven<()> {
    synced_with(set, pods, agree)
}

fn status_of(driven: &Driven<()>) -> Value {
    let mut statuses = driven.requests.iter().filter_map(|request| match request {
        Request::Replace { target, body } if target.sub == "status" => Some(&body["status"]),
        _ => None,
    });
    statuses.next_back().expect("a status was written").clone()
}

fn count(driven: &Driven<()>, verb: &str) -> usize {
    verbs(&driven.requests).iter().filter(|known| *known == verb).count()
}

#[test]
fn set_with_all_its_pods_sends_no_requests() {
    let driven = synced(&set(2), &pods(2));
    assert!(driven.requests.is_empty(), "{:?}", driven.requests);
    assert!(driven.outcome.expect("no failure").again.is_none());
}

#[test]
fn missing_pods_are_created_and_the_status_counts_existing_pods() {
    let driven = synced(&set(3), &pods(1));
    assert_eq!(
        verbs(&driven.requests),
        ["create pods", "create pods", "update replicasets/status"]
    );
    assert_eq!(messages(&driven.events), ["SuccessfulCreate: Created pod: rs-abcde"; 2]);
    let Request::Create { body, namespace, .. } = &driven.requests[0] else { panic!("a creation") };
    assert_eq!(namespace, "n");
    assert_eq!(body["metadata"]["labels"], json!({"a": "b", "c": "d"}));
    assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "rs-uid");
    assert_eq!(body["spec"]["containers"][0]["image"], "i");
    assert_eq!(status_of(&driven)["replicas"], 1);
    assert_eq!(driven.reasons, ["1 of 3 pods are there"]);
}

#[test]
fn status_update_keeps_fields_that_the_controller_does_not_read() {
    let driven = synced(&set(2), &pods(1));
    let Some(Request::Replace { body, .. }) = driven.requests.last() else { panic!("an update") };
    assert_eq!(body["metadata"]["annotations"], json!({"keep": "me"}));
    assert_eq!(body["metadata"]["resourceVersion"], "5");
    assert_eq!(body["spec"], set(2)["spec"]);
}

#[test]
fn creations_and_deletions_stop_at_the_burst() {
    let driven = synced(&set(600), &[]);
    assert_eq!(count(&driven, "create pods"), 500);
    let driven = synced(&set(1), &pods(600));
    assert_eq!(count(&driven, "delete pods"), 500);
}

#[test]
fn pod_creations_double_until_a_failure_that_becomes_a_condition() {
    for (good, sent) in [(0, 1), (1, 3), (2, 3), (3, 7), (100, 10)] {
        let mut left = good;
        let driven = synced_with(&set(10), &[], |request| match request {
            Request::Create { .. } if left == 0 => Err(refusal(403, "Forbidden", "no quota")),
            Request::Create { .. } => {
                left -= 1;
                agree(request)
            }
            _ => agree(request),
        });
        assert_eq!(count(&driven, "create pods"), sent, "{good} succeed");
        let status = status_of(&driven);
        if good < 10 {
            let condition = &status["conditions"][0];
            assert_eq!(condition["type"], "ReplicaFailure");
            assert_eq!(condition["status"], "True");
            assert_eq!(condition["reason"], "FailedCreate");
            assert_eq!(condition["message"], "no quota");
            assert_eq!(condition["lastTransitionTime"], now().to_string());
            let error = driven.outcome.expect_err("the sync failed");
            assert_eq!((error.message.as_str(), error.retry), ("no quota", Retry::Backoff));
            let events = messages(&driven.events);
            assert!(events.iter().any(|event| event == "FailedCreate: Error creating: no quota"));
        } else {
            assert_eq!(status.get("conditions"), None);
        }
    }
}

#[test]
fn creation_in_a_namespace_that_is_deleted_is_no_failure() {
    let driven = synced_with(&set(4), &[], |request| match request {
        Request::Create { .. } => {
            let mut error = refusal(403, "Forbidden", "is being terminated");
            error.causes = vec!["NamespaceTerminating".into()];
            Err(error)
        }
        _ => agree(request),
    });
    assert!(driven.events.is_empty());
    assert_eq!(status_of(&driven).get("conditions"), None);
    assert!(driven.outcome.is_ok());
}

#[test]
fn failed_deletion_becomes_a_condition_unless_the_pod_is_missing() {
    let failing = |error: pintle_api_types::request::ApiError| {
        synced_with(&set(1), &pods(3), move |request| match request {
            Request::Delete { .. } => Err(error.clone()),
            _ => agree(request),
        })
    };
    let driven = failing(refusal(500, "InternalError", "broken"));
    let condition = &status_of(&driven)["conditions"][0];
    assert_eq!(condition["reason"], "FailedDelete");
    assert_eq!(condition["message"], "unable to delete pods: broken");
    assert_eq!(messages(&driven.events), ["FailedDelete: Error deleting: broken"; 2]);
    assert!(driven.outcome.is_err());
    let driven = failing(refusal(404, "NotFound", "gone"));
    assert!(driven.events.is_empty() && driven.outcome.is_ok());
}

#[test]
fn failure_condition_is_unchanged_until_the_sync_succeeds() {
    let mut failed = set(2);
    failed["status"]["conditions"] = json!([
        {"type": "Other", "status": "True"},
        {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "old",
            "lastTransitionTime": "2020-01-01T00:00:00Z"}]);
    let driven = synced_with(&failed, &pods(1), |request| match request {
        Request::Create { .. } => Err(refusal(403, "Forbidden", "new")),
        _ => agree(request),
    });
    assert_eq!(status_of(&driven)["conditions"][1]["message"], "old");
    let driven = synced(&failed, &pods(2));
    let conditions = &status_of(&driven)["conditions"];
    assert_eq!(conditions.as_array().map(Vec::len), Some(1));
    assert_eq!(conditions[0]["type"], "Other");
}

#[test]
fn surplus_pods_are_deleted_by_rank() {
    let mut all = pods(4);
    all[2]["status"]["conditions"] = json!([]);
    all[1]["spec"]["nodeName"] = "".into();
    let driven = synced(&set(2), &all);
    let deleted: Vec<_> = driven
        .requests
        .iter()
        .filter_map(|request| match request {
            Request::Delete { target, .. } => Some(target.key.name().to_owned()),
            _ => None,
        })
        .collect();
    assert_eq!(deleted, ["pod-1", "pod-2"]);
    let messages = messages(&driven.events);
    assert_eq!(
        messages,
        ["pod-1", "pod-2"].map(|pod| format!("SuccessfulDelete: Deleted pod: {pod}"))
    );
}

#[test]
fn pods_on_a_node_with_more_related_pods_are_deleted_first() {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "d",
        "controller": true}]);
    let mut one = set(1);
    one["metadata"]["ownerReferences"] = owner.clone();
    let mut sibling = set(3);
    sibling["metadata"]["ownerReferences"] = owner;
    sibling["metadata"]["name"] = "sibling".into();
    sibling["metadata"]["uid"] = "sibling-uid".into();
    sibling["spec"]["selector"] = json!({"matchLabels": {"of": "sibling"}});
    let mut tables = Tables::default();
    put(&mut tables, REPLICA_SETS, &one);
    put(&mut tables, REPLICA_SETS, &sibling);
    for (name, node, labels, owner) in [
        ("crowded", "x", json!({"a": "b"}), "rs"),
        ("alone", "y", json!({"a": "b"}), "rs"),
        ("neighbour", "x", json!({"of": "sibling"}), "sibling"),
        ("stranger-1", "y", json!({}), "other"),
        ("stranger-2", "y", json!({}), "other"),
    ] {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = node.into();
        pod["metadata"]["labels"] = labels;
        pod["metadata"]["ownerReferences"][0]["name"] = owner.into();
        pod["metadata"]["ownerReferences"][0]["uid"] = format!("{owner}-uid").into();
        put(&mut tables, PODS, &pod);
    }
    let at = Now { instant: std::time::Instant::now(), wall: now() };
    let mut controller = ReplicaController::<ReplicaSet>::new(1);
    let snapshot = controller.snapshot(&ObjectKey::new("n", "rs"), &tables, at).expect("a set");
    let driven = drive::<ReplicaController<ReplicaSet>>(&snapshot, now(), agree);
    let Request::Delete { target, .. } = &driven.requests[0] else { panic!("a deletion") };
    assert_eq!(target.key.name(), "crowded");
}

#[test]
fn status_counts_labels_readiness_availability_and_terminating_pods() {
    let mut all = pods(6);
    all[0]["metadata"]["labels"] = json!({"a": "b"});
    all[1]["status"]["conditions"] = json!([]);
    all[2]["status"]["conditions"][0]["lastTransitionTime"] = now().to_string().into();
    all[3]["metadata"]["deletionTimestamp"] = now().to_string().into();
    all[4]["status"]["phase"] = "Failed".into();
    all[5]["metadata"]["deletionTimestamp"] = now().to_string().into();
    all[5]["status"]["phase"] = "Succeeded".into();
    let mut slow = set(3);
    slow["spec"]["minReadySeconds"] = 30.into();
    slow["metadata"]["generation"] = 3.into();
    let driven = synced(&slow, &all);
    assert_eq!(
        status_of(&driven),
        json!({"replicas": 3, "fullyLabeledReplicas": 2, "readyReplicas": 2,
            "availableReplicas": 1, "terminatingReplicas": 1, "observedGeneration": 3})
    );
    assert_eq!(driven.outcome.expect("no failure").again, Some(Duration::from_secs(30)));
}

#[test]
fn next_check_is_when_the_next_pod_becomes_available() {
    for (ages, wait) in [
        (vec![60, 60], None),
        (vec![60, 20], Some(10)),
        (vec![10, 20], Some(10)),
        (vec![0, 29], Some(1)),
    ] {
        let mut all = pods(ages.len());
        for (pod, age) in all.iter_mut().zip(&ages) {
            let since = now() - SignedDuration::from_secs(*age);
            pod["status"]["conditions"][0]["lastTransitionTime"] = since.to_string().into();
        }
        let mut slow = set(2);
        slow["spec"]["minReadySeconds"] = 30.into();
        let driven = synced(&slow, &all);
        let again = driven.outcome.expect("no failure").again;
        assert_eq!(again, wait.map(Duration::from_secs), "{ages:?}");
    }
}

#[test]
fn failed_status_update_is_tried_once_more_upon_the_live_set() {
    let mut live = set(5);
    live["metadata"]["resourceVersion"] = "9".into();
    live["metadata"]["generation"] = 8.into();
    let mut updates = 0;
    let driven = synced_with(&set(1), &[], |request| match request {
        Request::Replace { .. } => {
            updates += 1;
            if updates == 1 { Err(refusal(409, "Conflict", "changed")) } else { agree(request) }
        }
        Request::Read { .. } => Ok(live.clone()),
        _ => agree(request),
    });
    assert_eq!(
        verbs(&driven.requests),
        [
            "create pods",
            "update replicasets/status",
            "get replicasets",
            "update replicasets/status"
        ]
    );
    let Some(Request::Replace { body, .. }) = driven.requests.last() else { panic!("an update") };
    assert_eq!(body["metadata"]["resourceVersion"], "9");
    assert_eq!(body["spec"]["replicas"], 5);
    assert_eq!(body["status"]["observedGeneration"], 2, "the generation that was acted on");
    assert!(driven.outcome.is_ok());
}

#[test]
fn status_update_that_fails_twice_fails_the_sync() {
    let driven = synced_with(&set(1), &[], |request| match request {
        Request::Replace { .. } => Err(refusal(409, "Conflict", "changed")),
        Request::Read { .. } => Ok(set(1)),
        _ => agree(request),
    });
    assert_eq!(count(&driven, "update replicasets/status"), 2);
    assert_eq!(driven.outcome.expect_err("a failure").retry, Retry::Quietly);
}

#[test]
fn set_that_is_deleted_neither_creates_nor_adopts_pods() {
    let mut deleting = set(3);
    deleting["metadata"]["deletionTimestamp"] = now().to_string().into();
    let mut orphan = pod("orphan");
    orphan["metadata"]["ownerReferences"] = json!([]);
    let driven = synced(&deleting, &[pod("own"), orphan]);
    assert_eq!(verbs(&driven.requests), ["update replicasets/status"]);
    assert_eq!(status_of(&driven)["replicas"], 1);
}

#[test]
fn orphan_is_adopted_and_a_pod_that_is_not_selected_is_released() {
    let mut orphan = pod("orphan");
    orphan["metadata"]["ownerReferences"] = json!([]);
    let mut stray = pod("stray");
    stray["metadata"]["labels"] = json!({"a": "other"});
    let mut foreign = pod("foreign");
    foreign["metadata"]["ownerReferences"][0]["uid"] = "other".into();
    let driven = synced_with(&set(1), &[orphan, stray, foreign], |request| match request {
        Request::Read { .. } => Ok(set(1)),
        _ => agree(request),
    });
    assert_eq!(verbs(&driven.requests), ["get replicasets", "patch pods", "patch pods"]);
    assert!(driven.outcome.is_ok());
}

#[test]
fn failed_adoption_fails_the_sync_before_any_pod_is_created() {
    let mut orphan = pod("orphan");
    orphan["metadata"]["ownerReferences"] = json!([]);
    let driven = synced_with(&set(4), &[orphan], |request| match request {
        Request::Read { .. } => Ok(set(4)),
        Request::Patch { .. } => Err(refusal(500, "InternalError", "broken")),
        _ => agree(request),
    });
    assert_eq!(verbs(&driven.requests), ["get replicasets", "patch pods"]);
    assert!(driven.outcome.is_err());
}

#[test]
fn replication_controller_has_no_count_of_terminating_pods() {
    let mut controller = set(2);
    controller["spec"]["selector"] = json!({"a": "b"});
    controller["status"] = json!({"replicas": 0});
    let mut all = pods(1);
    all[0]["metadata"]["ownerReferences"][0]["kind"] = "ReplicationController".into();
    let snapshot = snapshot::<ReplicationController>(&controller, &all);
    let driven = drive::<ReplicaController<ReplicationController>>(&snapshot, now(), agree);
    assert_eq!(verbs(&driven.requests), ["create pods", "update replicationcontrollers/status"]);
    assert_eq!(status_of(&driven).get("terminatingReplicas"), None);
    let Request::Create { body, .. } = &driven.requests[0] else { panic!("a creation") };
    assert_eq!(body["metadata"]["ownerReferences"][0]["kind"], "ReplicationController");
    assert_eq!(REPLICATION_CONTROLLERS.kind, "ReplicationController");
}

#[test]
fn pod_of_a_set_of_the_same_uid_in_another_namespace_does_not_count() {
    let mut elsewhere = pod("elsewhere");
    elsewhere["metadata"]["namespace"] = "other".into();
    let driven = synced(&set(1), &[elsewhere]);
    assert_eq!(count(&driven, "create pods"), 1);
}
