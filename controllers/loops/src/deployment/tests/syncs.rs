//! Whole syncs: from a snapshot of the tables to the requests.
// k8s: pkg/controller/deployment/deployment_controller_test.go

use std::time::Instant;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{DEPLOYMENTS, PODS, REPLICA_SETS};
use pintle_api_types::request::{Answer, Request};
use pintle_controllers_core::frame::{Controller, Driven, Now, Retry, drive};
use pintle_controllers_core::golang::hash::pod_template_hash;
use pintle_controllers_core::tables::Tables;
use serde_json::{Value, json};

use super::super::{DeploymentController, DeploymentSnapshot};
use super::{ago, annotated, available, deployment, now, scaled_for, set, template};
use crate::stub_api::{agree, messages, put, refusal, verbs};

const REVISION: &str = "deployment.kubernetes.io/revision";

fn snapshot(deployment: &Value, sets: &[Value], pods: &[Value]) -> DeploymentSnapshot {
    let mut tables = Tables::default();
    put(&mut tables, DEPLOYMENTS, deployment);
    sets.iter().for_each(|set| drop(put(&mut tables, REPLICA_SETS, set)));
    pods.iter().for_each(|pod| drop(put(&mut tables, PODS, pod)));
    let at = Now { instant: Instant::now(), wall: now() };
    let key = ObjectKey::new("n", "foo");
    DeploymentController { workers: 1 }.snapshot(&key, &tables, at).expect("it is there")
}

fn synced_with(
    deployment: &Value,
    sets: &[Value],
    answer: impl FnMut(&Request) -> Answer,
) -> Driven<()> {
    drive::<DeploymentController>(&snapshot(deployment, sets, &[]), now(), answer)
}

fn synced(deployment: &Value, sets: &[Value]) -> Driven<()> {
    synced_with(deployment, sets, agree)
}

/// The body of the last request that writes a resource or subresource.
fn last<'a>(driven: &'a Driven<()>, resource: &str) -> &'a Value {
    let mut bodies = driven.requests.iter().filter_map(|request| match request {
        Request::Replace { body, .. } | Request::Create { body, .. } => {
            let verb = verbs(std::slice::from_ref(request)).pop()?;
            verb.ends_with(resource).then_some(body)
        }
        _ => None,
    });
    bodies.next_back().expect("such a write")
}

fn condition<'a>(body: &'a Value, kind: &str) -> &'a Value {
    let conditions = body["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

fn add_condition(deployment: &mut Value, condition: Value) {
    let conditions = deployment["status"]["conditions"].as_array_mut();
    conditions.expect("it has conditions").push(condition);
}

fn with_deadline(mut deployment: Value) -> Value {
    deployment["spec"]["progressDeadlineSeconds"] = 600.into();
    deployment
}

/// A Deployment with a complete rollout, and its set.
fn complete(replicas: i32) -> (Value, Value) {
    let mut deployment = annotated(deployment(replicas, json!(1), json!(0)), REVISION, "1");
    deployment["status"] = json!({"observedGeneration": 1, "replicas": replicas,
        "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
        "terminatingReplicas": 0, "conditions": [{"type": "Available", "status": "True",
            "reason": "MinimumReplicasAvailable", "lastUpdateTime": ago(9),
            "lastTransitionTime": ago(9),
            "message": "Deployment has minimum availability."}]});
    let set = available(set("new", "new", replicas, 9), replicas);
    let set = scaled_for(annotated(annotated(set, REVISION, "1"), "mine", "1"), &deployment);
    let mut set = set;
    set["status"]["terminatingReplicas"] = 0.into();
    (deployment, set)
}

#[test]
fn first_sync_creates_the_set_and_records_its_revision() {
    let driven = synced(&with_deadline(deployment(3, json!(1), json!(0))), &[]);
    assert_eq!(
        verbs(&driven.requests),
        ["create replicasets", "update deployments/status", "update deployments/status"]
    );
    let hash = pod_template_hash(&template("new"), None);
    let created = last(&driven, "replicasets");
    let name = format!("foo-{hash}");
    assert_eq!(created["metadata"]["name"], *name);
    let labels = json!({"app": "foo", "pod-template-hash": hash});
    assert_eq!(created["metadata"]["labels"], labels);
    assert_eq!(created["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(created["spec"]["template"]["metadata"]["labels"], labels);
    assert_eq!(created["spec"]["template"]["spec"], template("new")["spec"]);
    assert_eq!(created["spec"]["replicas"], 3);
    assert_eq!(
        created["metadata"]["annotations"],
        json!({"mine": "1", REVISION: "1", "deployment.kubernetes.io/desired-replicas": "3",
            "deployment.kubernetes.io/max-replicas": "4"})
    );
    let owner = &created["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&json!("foo-uid"), &json!(true)));
    let written = last(&driven, "deployments/status");
    assert_eq!(written["metadata"]["annotations"], json!({"mine": "1", REVISION: "1"}));
    assert_eq!(written["metadata"]["resourceVersion"], "1005", "that of the first write");
    assert_eq!(condition(written, "Progressing")["reason"], "NewReplicaSetCreated");
    assert_eq!(
        condition(written, "Progressing")["message"],
        format!("Created new replica set \"{name}\"")
    );
    assert_eq!(condition(written, "Available")["status"], "False");
    let event = format!("ScalingReplicaSet: Scaled up replica set {name} from 0 to 3");
    assert_eq!(messages(&driven.events), [event]);
}

#[test]
fn complete_rollout_sends_no_requests() {
    let (deployment, set) = complete(3);
    let driven = synced(&deployment, &[set]);
    assert!(driven.requests.is_empty(), "{:?}", driven.requests);
    assert!(driven.reasons.is_empty());
}

#[test]
fn new_template_creates_a_set_of_the_next_revision_within_surge() {
    let (deployment, mut old) = complete(4);
    old["spec"]["template"] = template("old");
    let driven = synced(&deployment, &[old]);
    let created = last(&driven, "replicasets");
    assert_eq!(created["spec"]["replicas"], 1);
    assert_eq!(created["metadata"]["annotations"][REVISION], "2");
    let written = last(&driven, "deployments/status");
    assert_eq!(written["metadata"]["annotations"][REVISION], "2");
    assert_eq!(written["status"]["updatedReplicas"], Value::Null);
}

#[test]
fn rolled_back_set_gets_a_new_revision_and_a_revision_history() {
    let (deployment, set) = complete(2);
    let newer = annotated(super::set("other", "other", 0, 1), REVISION, "2");
    let driven = synced(&deployment, &[set, newer]);
    assert_eq!(
        verbs(&driven.requests)[..2],
        ["update replicasets", "update deployments/status"],
        "each is written once"
    );
    let updated = last(&driven, "replicasets");
    assert_eq!(updated["metadata"]["annotations"][REVISION], "3");
    assert_eq!(
        updated["metadata"]["annotations"]["deployment.kubernetes.io/revision-history"],
        "1"
    );
    let written = last(&driven, "deployments/status");
    assert_eq!(written["metadata"]["annotations"][REVISION], "3");
}

#[test]
fn annotations_and_min_ready_seconds_are_given_to_the_set() {
    let (mut deployment, set) = complete(2);
    deployment["metadata"]["annotations"]["cause"] = "edit".into();
    deployment["spec"]["minReadySeconds"] = 7.into();
    let driven = synced(&deployment, &[set]);
    assert_eq!(verbs(&driven.requests), ["update replicasets"]);
    let updated = last(&driven, "replicasets");
    assert_eq!(updated["metadata"]["annotations"]["cause"], "edit");
    assert_eq!(updated["spec"]["minReadySeconds"], 7);
}

#[test]
fn set_without_progressing_condition_is_found() {
    let (deployment, set) = complete(2);
    let driven = synced(&with_deadline(deployment), &[set]);
    let Request::Replace { body, .. } = &driven.requests[0] else { panic!("an update") };
    let found = condition(body, "Progressing");
    assert_eq!(
        (&found["reason"], &found["status"]),
        (&json!("FoundNewReplicaSet"), &json!("True"))
    );
    assert_eq!(found["message"], "Found new replica set \"new\"");
    let written = last(&driven, "deployments/status");
    assert_eq!(condition(written, "Progressing")["reason"], "NewReplicaSetAvailable");
}

#[test]
fn oldest_set_with_the_current_template_is_the_new_set() {
    let (deployment, set) = complete(2);
    let twin = annotated(super::set("twin", "new", 1, 1), REVISION, "1");
    let driven = synced(&deployment, &[set, twin]);
    let scaled = crate::stub_api::sizes(&driven.requests);
    assert_eq!(scaled.get("twin").copied(), Some(0));
}

#[test]
fn selector_of_everything_is_refused() {
    let mut value = deployment(1, json!(1), json!(0));
    value["spec"]["selector"] = json!({});
    let driven = synced(&value, &[]);
    assert_eq!(verbs(&driven.requests), ["update deployments/status"]);
    assert_eq!(last(&driven, "status")["status"], json!({"observedGeneration": 1}));
    assert_eq!(
        messages(&driven.events),
        ["SelectingAll: This deployment is selecting all pods. A non-empty selector is required."]
    );
    value["status"] = json!({"observedGeneration": 1});
    assert!(synced(&value, &[]).requests.is_empty());
}

#[test]
fn deployment_being_deleted_only_updates_its_status() {
    let mut value = deployment(3, json!(1), json!(0));
    value["metadata"]["deletionTimestamp"] = ago(1).into();
    let driven = synced(&value, &[set("old", "old", 2, 9)]);
    assert_eq!(verbs(&driven.requests), ["update deployments/status"]);
    assert_eq!(last(&driven, "status")["status"]["replicas"], 2);
}

#[test]
fn deployment_deleted_meanwhile_adopts_no_set() {
    let mut orphan = set("orphan", "new", 1, 9);
    orphan["metadata"]["ownerReferences"] = json!([]);
    let value = deployment(1, json!(1), json!(0));
    let driven = synced_with(&value, &[orphan], |request| match request {
        Request::Read { .. } => {
            let mut live = value.clone();
            live["metadata"]["deletionTimestamp"] = ago(1).into();
            Ok(live)
        }
        _ => agree(request),
    });
    assert_eq!(verbs(&driven.requests), ["get deployments"]);
    assert!(driven.outcome.is_err());
}

#[test]
fn paused_rollout_scales_cleans_up_and_sets_its_paused_condition() {
    let (deployment, old) = complete(4);
    let mut paused = with_deadline(deployment);
    paused["spec"]["paused"] = true.into();
    paused["spec"]["replicas"] = 6.into();
    paused["spec"]["revisionHistoryLimit"] = 0.into();
    let mut old = old;
    old["spec"]["template"] = template("old");
    let ancient = set("ancient", "ancient", 0, 99);
    let driven = synced(&paused, &[old, ancient]);
    assert_eq!(
        verbs(&driven.requests),
        [
            "update deployments/status",
            "update replicasets",
            "delete replicasets",
            "update deployments/status"
        ]
    );
    let Request::Replace { body, .. } = &driven.requests[0] else { panic!("an update") };
    let progress = condition(body, "Progressing");
    assert_eq!(progress["reason"], "DeploymentPaused");
    assert_eq!(
        (&progress["status"], &progress["message"]),
        (&json!("Unknown"), &json!("Deployment is paused"))
    );
    assert_eq!(last(&driven, "replicasets")["spec"]["replicas"], 6);
    assert!(driven.reasons.contains(&"the rollout is paused".to_owned()));
}

#[test]
fn resumed_rollout_restarts_its_progress_deadline() {
    let (deployment, set) = complete(2);
    let mut resumed = with_deadline(deployment);
    let progress = json!({"type": "Progressing", "status": "Unknown",
        "reason": "DeploymentPaused", "lastUpdateTime": ago(9999),
        "lastTransitionTime": ago(9999)});
    add_condition(&mut resumed, progress);
    let driven = synced(&resumed, &[set]);
    let Request::Replace { body, .. } = &driven.requests[0] else { panic!("an update") };
    let progress = condition(body, "Progressing");
    assert_eq!(progress["reason"], "DeploymentResumed");
    assert_eq!(progress["lastUpdateTime"], ago(0));
    assert_eq!(progress["lastTransitionTime"], ago(9999), "the status did not change");
}

#[test]
fn timed_out_rollout_keeps_its_condition_when_paused() {
    let (deployment, set) = complete(2);
    let mut paused = with_deadline(deployment);
    paused["spec"]["paused"] = true.into();
    let progress = json!({"type": "Progressing", "status": "False",
        "reason": "ProgressDeadlineExceeded", "lastUpdateTime": ago(9),
        "lastTransitionTime": ago(9)});
    add_condition(&mut paused, progress);
    assert!(synced(&paused, &[set]).requests.is_empty());
}

#[test]
fn scaling_event_scales_instead_of_rolling() {
    let (mut deployment, old) = complete(4);
    deployment["spec"]["replicas"] = 6.into();
    let mut old = old;
    old["spec"]["template"] = template("old");
    let driven = synced(&deployment, &[old]);
    assert_eq!(verbs(&driven.requests), ["update replicasets", "update deployments/status"]);
}

/// A sync in which the creation of the set is refused; `live` is the set that a read returns.
fn with_refused_creation(
    error: &pintle_api_types::request::ApiError,
    live: Option<&Value>,
) -> Driven<()> {
    let value = with_deadline(deployment(3, json!(1), json!(0)));
    synced_with(&value, &[], |request| match request {
        Request::Create { .. } => Err(error.clone()),
        Request::Read { .. } => live.cloned().ok_or_else(|| refusal(404, "NotFound", "gone")),
        _ => agree(request),
    })
}

#[test]
fn creation_that_fails_is_reported() {
    let driven = with_refused_creation(&refusal(403, "Forbidden", "no quota"), None);
    let hash = pod_template_hash(&template("new"), None);
    let message = format!("Failed to create new replica set \"foo-{hash}\": no quota");
    let progress = condition(last(&driven, "deployments/status"), "Progressing");
    assert_eq!(progress["reason"], "ReplicaSetCreateError");
    assert_eq!((&progress["status"], &progress["message"]), (&json!("False"), &json!(message)));
    assert_eq!(messages(&driven.events), [format!("ReplicaSetCreateError: {message}")]);
    assert_eq!(driven.outcome.expect_err("a failure").retry, Retry::Backoff);
}

#[test]
fn creation_in_a_namespace_that_is_deleted_is_not_tried_again() {
    let mut error = refusal(403, "Forbidden", "is being terminated");
    error.causes = vec!["NamespaceTerminating".into()];
    let driven = with_refused_creation(&error, None);
    assert_eq!(verbs(&driven.requests), ["create replicasets"]);
    assert!(driven.events.is_empty());
    assert_eq!(driven.outcome.expect_err("a failure").retry, Retry::NeverSilently);
}

#[test]
fn existing_set_of_same_name_and_template_absent_from_cache_is_the_new_set() {
    let driven = with_refused_creation(
        &refusal(409, "AlreadyExists", "there"),
        Some(&set("new", "new", 3, 1)),
    );
    assert_eq!(
        verbs(&driven.requests),
        [
            "create replicasets",
            "get replicasets",
            "update deployments/status",
            "update deployments/status"
        ]
    );
    assert!(driven.events.is_empty(), "it was not scaled now");
    let written = last(&driven, "deployments/status");
    assert_eq!(written["metadata"]["annotations"][REVISION], "1");
    assert_eq!(written["status"]["collisionCount"], Value::Null);
}

#[test]
fn set_of_the_name_with_another_template_or_owner_is_a_collision() {
    let mut foreign = set("new", "new", 3, 1);
    foreign["metadata"]["ownerReferences"][0]["uid"] = "other".into();
    for taken in [set("other", "other", 3, 1), foreign] {
        let driven = with_refused_creation(&refusal(409, "AlreadyExists", "there"), Some(&taken));
        assert_eq!(
            verbs(&driven.requests),
            ["create replicasets", "get replicasets", "update deployments/status"]
        );
        assert_eq!(last(&driven, "deployments/status")["status"]["collisionCount"], 1);
        assert_eq!(driven.outcome.expect_err("a failure").message, "there");
    }
    let mut value = deployment(3, json!(1), json!(0));
    value["status"] = json!({"collisionCount": 1});
    let driven = synced(&value, &[]);
    let hash = pod_template_hash(&template("new"), Some(1));
    assert_eq!(last(&driven, "replicasets")["metadata"]["name"], format!("foo-{hash}"));
}

#[test]
fn recreate_waits_for_pods_that_have_not_ended() {
    let mut value = deployment(1, json!(1), json!(0));
    value["spec"]["strategy"] = json!({"type": "Recreate"});
    let old = set("old", "old", 0, 9);
    for (phase, is_created) in [
        ("Running", false),
        ("Pending", false),
        ("Unknown", false),
        ("Failed", true),
        ("Succeeded", true),
    ] {
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "p",
                "resourceVersion": "1", "ownerReferences": [{"apiVersion": "apps/v1",
                    "kind": "ReplicaSet", "name": "old", "uid": "old", "controller": true}]},
            "status": {"phase": phase}});
        let snapshot = snapshot(&value, std::slice::from_ref(&old), &[pod]);
        let driven = drive::<DeploymentController>(&snapshot, now(), agree);
        let is_found = verbs(&driven.requests).contains(&"create replicasets".to_owned());
        assert_eq!(is_found, is_created, "{phase}");
    }
}

#[test]
fn unknown_strategy_fails_the_sync() {
    let mut value = deployment(1, json!(1), json!(0));
    value["spec"]["strategy"] = json!({"type": "Other"});
    let error = synced(&value, &[]).outcome.expect_err("a failure");
    assert_eq!(error.message, "unexpected deployment strategy type: Other");
}

#[test]
fn terminating_pods_are_reported_only_when_every_set_reports_them() {
    let (deployment, set) = complete(2);
    for (count, observed, expected) in
        [(Some(3), 1, json!(3)), (None, 1, Value::Null), (None, 0, json!(0))]
    {
        let mut old = super::set("old", "old", 0, 20);
        old["status"] = json!({"observedGeneration": observed, "terminatingReplicas": count});
        let old = annotated(old, REVISION, "0");
        let driven = synced(&deployment, &[set.clone(), old]);
        let found = match driven.requests.is_empty() {
            true => deployment["status"]["terminatingReplicas"].clone(),
            false => last(&driven, "status")["status"]["terminatingReplicas"].clone(),
        };
        assert_eq!(found, expected, "{count:?} {observed}");
    }
}
