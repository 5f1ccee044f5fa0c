//! Sentences by the state of objects.

use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{DEPLOYMENTS, PODS, REPLICA_SETS};
use pintle_api_types::request::{Request, Target};
use pintle_controllers_core::frame::{Findings, KeyWait};
use serde_json::{Value, json};

use super::*;

fn pod(name: &str, spec: Value, status: Value) -> Value {
    json!({"metadata": {"name": name, "labels": {"controller-revision-hash": "web-bad"}},
        "spec": spec, "status": status})
}

fn explained(kind: &str, evidence: &Evidence, reports: &[KeyReport]) -> ObjectExplanation {
    let subject = ExplainedKind::find(kind).expect("a kind that can be explained");
    explain(subject, &subject.key("n", "web"), evidence, reports)
}

fn of_object(object: Value) -> Evidence {
    Evidence { object: Some(object), ..Evidence::default() }
}

#[test]
fn kinds_have_the_names_of_kubectl() {
    for (name, kind) in [
        ("deploy", "Deployment"),
        ("Deployments.apps", "Deployment"),
        ("sts", "StatefulSet"),
        ("replicaset", "ReplicaSet"),
        ("cj", "CronJob"),
        ("quota", "ResourceQuota"),
        ("ns", "Namespace"),
        ("sa", "ServiceAccount"),
    ] {
        assert_eq!(ExplainedKind::find(name).map(|found| found.kind.kind), Ok(kind), "{name}");
    }
    let error = ExplainedKind::find("pod").expect_err("pods have no controller here").to_string();
    assert!(error.starts_with("\"pod\" cannot be explained: use deployment"), "{error}");
    let namespace = ExplainedKind::find("namespace").expect("it is known");
    assert_eq!(namespace.key("default", "a").as_str(), "a");
}

#[test]
fn pod_problem_is_described_in_a_short_sentence() {
    let waiting = |reason: &str| {
        json!({"phase": "Pending", "containerStatuses": [{"name": "c", "image": "i:1",
            "restartCount": 4, "lastState": {"terminated": {"exitCode": 3}},
            "state": {"waiting": {"reason": reason, "message": "m"}}}]})
    };
    let node = || json!({"nodeName": "a"});
    for (spec, status, expected) in [
        (json!({}), json!({"phase": "Pending"}), Some("not scheduled yet")),
        (
            json!({}),
            json!({"conditions": [{"type": "PodScheduled", "status": "False",
                "reason": "Unschedulable", "message": "0/1 nodes are available"}]}),
            Some("not scheduled: 0/1 nodes are available"),
        ),
        (
            json!({"schedulingGates": [{"name": "g"}]}),
            json!({"conditions": [{"type": "PodScheduled", "status": "False",
                "reason": "SchedulingGated"}]}),
            Some("waits for its scheduling gates g"),
        ),
        (node(), waiting("ImagePullBackOff"), Some("cannot get image i:1 (ImagePullBackOff)")),
        (
            node(),
            waiting("CrashLoopBackOff"),
            Some("container c keeps crashing (last exit code 3, 4 restarts)"),
        ),
        (
            node(),
            waiting("CreateContainerConfigError"),
            Some("container c does not start: CreateContainerConfigError: m"),
        ),
        (node(), waiting("ContainerCreating"), Some("its containers are being created")),
        (
            node(),
            json!({"containerStatuses": [{"name": "c", "ready": false, "state": {"running": {}}}]}),
            Some("runs, but container c is not ready"),
        ),
        (
            node(),
            json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
            Some("failed: Evicted: low on memory"),
        ),
        (
            json!({"nodeName": "a", "readinessGates": [{"conditionType": "g"}]}),
            json!({"containerStatuses": [{"name": "c", "ready": true}]}),
            Some("waits for its readiness gates g"),
        ),
        (
            node(),
            json!({"containerStatuses": [{"name": "c", "ready": true}]}),
            Some("marked as not ready although its containers are: check node a"),
        ),
        (node(), json!({"conditions": [{"type": "Ready", "status": "True"}]}), None),
        (node(), json!({}), Some("waits for the kubelet of its node to start it")),
    ] {
        let trouble = pods::trouble(&pod("p", spec, status));
        assert_eq!(trouble.as_deref(), expected);
    }
}

#[test]
fn pods_with_the_same_problem_share_a_sentence() {
    let unscheduled = |name| pod(name, json!({}), json!({}));
    let image = pod(
        "x",
        json!({"nodeName": "a"}),
        json!({"containerStatuses": [{"image": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}]}),
    );
    let pods = [image, unscheduled("a"), unscheduled("b"), unscheduled("c"), unscheduled("d")];
    assert_eq!(
        pods::troubles(&pods),
        [
            "4 pods (a, b, c and 1 more): not scheduled yet.",
            "Pod x: cannot get image i (ErrImagePull).",
        ]
    );
}

#[test]
fn deployment_names_refused_creations_and_the_next_write() {
    let deployment = json!({"metadata": {"name": "web", "namespace": "n"},
        "spec": {"replicas": 3},
        "status": {"replicas": 2, "updatedReplicas": 1, "availableReplicas": 2}});
    let set = json!({"metadata": {"name": "web-1"}, "status": {"conditions": [{
        "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
        "message": "exceeded quota: q"}]}});
    let evidence = Evidence { children: vec![set], ..of_object(deployment) };
    let target = Target::object(REPLICA_SETS, ObjectKey::new("n", "web-0"));
    let write = Request::Replace { target, body: json!({"spec": {"replicas": 1}}) };
    let findings = Findings {
        reasons: vec!["waits for 1 of 3 pods to become available".to_owned()],
        writes: vec![write],
        ..Findings::default()
    };
    let report = KeyReport { controller: "deployment-controller", waits: Vec::new(), findings };
    let found = explained("deployment", &evidence, &[report]);
    assert!(!found.is_settled);
    assert_eq!(
        found.to_string(),
        "Deployment n/web: 2 of 3 pods are available.\n\
         1 of 3 pods has the current template, one pod has an older one.\n\
         ReplicaSet web-1 cannot create pods: exceeded quota: q.\n\
         Next write of deployment-controller: update ReplicaSet web-0 (replicas: 1).\n"
    );
}

#[test]
fn complete_deployment_is_settled() {
    let object = json!({"metadata": {"name": "web", "namespace": "n"}, "spec": {"replicas": 2},
        "status": {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}});
    let found = explained("deploy", &of_object(object), &[KeyReport::default()]);
    assert!(found.is_settled);
    assert_eq!(found.to_string(), "Deployment n/web: 2 of 2 pods are available.\n");
}

#[test]
fn stateful_set_stuck_on_an_old_revision_names_the_pod_and_the_command() {
    let set = json!({"metadata": {"name": "web", "namespace": "n"}, "spec": {"replicas": 2},
        "status": {"readyReplicas": 1, "currentRevision": "web-good", "updateRevision": "web-good"}});
    let broken = pod(
        "web-1",
        json!({"nodeName": "a"}),
        json!({"containerStatuses": [{"name": "c", "image": "i:bad",
            "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}),
    );
    let mut evidence = Evidence { pods: vec![broken], ..of_object(set) };
    let found = explained("sts", &evidence, &[]);
    assert_eq!(found.remedy.as_deref(), Some("kubectl delete pod web-1 -n n"));
    assert!(found.to_string().ends_with("To continue: kubectl delete pod web-1 -n n\n"));
    // A pod of the newest revision is helped by a new template alone.
    evidence.pods[0]["metadata"]["labels"]["controller-revision-hash"] = json!("web-good");
    assert_eq!(explained("sts", &evidence, &[]).remedy, None);
}

#[test]
fn terminating_namespace_names_kinds_finalizers_and_groups_that_hold_it() {
    let namespace = json!({"metadata": {"name": "web", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"finalizers": ["kubernetes", "example.com/own"]}});
    let list = json!({"items": [{"metadata": {"name": "a", "finalizers": ["example.com/f"]}},
        {"metadata": {"name": "b"}}]});
    let remaining = vec![Remaining::of_list(PODS, &list)];
    let failed_groups = [("m/v1".to_owned(), "no endpoints".to_owned())].into();
    let evidence = Evidence { remaining, failed_groups, ..of_object(namespace) };
    let found = explained("ns", &evidence, &[]);
    assert_eq!(
        found.state,
        [
            "Namespace web has been terminating since 2026-01-01T00:00:00Z; 2 objects remain: 2 of pods.",
            "Finalizer example.com/f holds 1 of pods: its controller has to remove it.",
            "API group m/v1 does not answer (no endpoints); the namespace stays until its \
             APIService works or is deleted.",
            "The namespace itself has the finalizers example.com/own: their controllers have to \
             remove them.",
        ]
    );
}

#[test]
fn job_explanation_counts_pods_and_names_the_reason_of_an_ended_job() {
    for (status, spec, settled, expected) in [
        (
            json!({"active": 1, "failed": 2}),
            json!({"completions": 3, "backoffLimit": 6}),
            false,
            "Job n/web: pods succeeded: 0 of 3, active: 1, failed: 2.\nIt fails after 7 failed pods.\n",
        ),
        (
            json!({"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded",
                "message": "Job was active longer than specified deadline"}]}),
            json!({}),
            true,
            "Job n/web has failed: DeadlineExceeded: Job was active longer than specified deadline.\n",
        ),
        (
            json!({}),
            json!({"suspend": true, "completions": 1}),
            false,
            "Job n/web is suspended: set spec.suspend to false to start it.\n\
             Job n/web: pods succeeded: 0 of 1, active: 0, failed: 0.\n",
        ),
    ] {
        let object =
            json!({"metadata": {"name": "web", "namespace": "n"}, "spec": spec, "status": status});
        let found = explained("job", &of_object(object), &[]);
        assert_eq!((found.is_settled, found.to_string().as_str()), (settled, expected));
    }
}

#[test]
fn quota_explanation_names_exhausted_and_uncounted_resources() {
    let object = json!({"metadata": {"name": "web", "namespace": "n"},
        "spec": {"hard": {"pods": "2", "requests.cpu": "1", "services": "3"}},
        "status": {"used": {"pods": "2", "requests.cpu": "500m"}}});
    let found = explained("quota", &of_object(object), &[]);
    assert_eq!(
        found.state,
        [
            "ResourceQuota n/web: services is not counted yet.",
            "ResourceQuota n/web is used up: pods (2 of 2); creations beyond it are refused.",
        ]
    );
}

#[test]
fn waits_are_explained_with_their_end() {
    let create = Request::Create {
        kind: PODS,
        namespace: "n".to_owned(),
        below: None,
        body: json!({"metadata": {}}),
    };
    let requests = vec![create.clone(), create];
    for (wait, expected) in [
        (
            KeyWait::Answers { requests, since: Duration::from_secs(12) },
            "c has waited 12 s for its turn or an answer: create 2 pods.",
        ),
        (
            KeyWait::OwnWrites("the watch of pods to reach version 7".to_owned()),
            "c waits for its own last write to appear: the watch of pods to reach version 7.",
        ),
        (
            KeyWait::Backoff {
                left: Duration::from_millis(40),
                failures: 3,
                message: "forbidden".to_owned(),
            },
            "c failed 3 times in a row, and tries again in 40 ms: Forbidden.",
        ),
        (KeyWait::Timer(Duration::from_secs(300)), "The next check is in 5 min."),
        (KeyWait::Queue(9), "The object is in the queue of c, which has 9 keys."),
        (KeyWait::Lists, "c waits for its first lists to be complete."),
    ] {
        let is_timer = matches!(wait, KeyWait::Timer(_));
        let findings = Findings::default();
        let report = KeyReport { controller: "c", waits: vec![wait], findings };
        let found = explained("sa", &Evidence::default(), &[report]);
        assert_eq!(found.waits_for, [expected]);
        assert_eq!(found.is_settled, is_timer);
    }
}

/// k#126114: the queue may be half an hour long.
#[test]
fn deletion_held_by_the_garbage_collector_reports_its_queue_length() {
    let held = |finalizer: &str| {
        json!({"metadata": {"name": "web", "namespace": "n", "finalizers": [finalizer],
            "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    };
    let end = |finalizer: &str, collector_queue| {
        let evidence = Evidence { collector_queue, ..of_object(held(finalizer)) };
        explained("deploy", &evidence, &[]).waits_for
    };
    for (queue, expected) in [
        (0, "its queue is empty."),
        (1, "one object is in its queue."),
        (180_000, "180000 objects are in its queue, which --kube-api-qps slows down."),
    ] {
        let expected = format!("The garbage collector has to end the deletion; {expected}");
        assert_eq!(end("foregroundDeletion", Some(queue)), [&*expected]);
        assert_eq!(end("orphan", Some(queue)), [&*expected]);
    }
    assert_eq!(end("foregroundDeletion", None), [""; 0], "it does not run here");
    assert_eq!(end("x/y", Some(9)), [""; 0], "it does not remove this finalizer");
}

#[test]
fn lease_without_a_leader_is_named() {
    let lease = |holder: &str, expired_seconds| LeaseState {
        name: "kube-system/kube-controller-manager".to_owned(),
        holder: holder.to_owned(),
        expired_seconds,
    };
    for (lease, expected) in [
        (lease("a", None), None),
        (lease("", None), Some("has no holder.")),
        (lease("a", Some(90)), Some("of a expired 90 s ago.")),
    ] {
        let sentence = lease.sentence();
        assert_eq!(sentence.is_some(), expected.is_some());
        assert!(sentence.unwrap_or_default().ends_with(expected.unwrap_or_default()));
    }
}

#[test]
fn dependents_are_listed_by_selector_and_filtered_by_owner() {
    let subject = ExplainedKind::find("deployment").expect("it is known");
    let key = ObjectKey::new("n", "web");
    let object = json!({"spec": {"selector": {"matchLabels": {"a": "b"}, "matchExpressions": [
        {"key": "k", "operator": "In", "values": ["x", "y"]},
        {"key": "z", "operator": "DoesNotExist"}]}}});
    let (sets, pods) = dependents(subject, &key, &object);
    let labels = |request: Option<Request>| match request {
        Some(Request::List { kind, labels, .. }) => Some((kind, labels)),
        _ => None,
    };
    assert_eq!(labels(sets), Some((REPLICA_SETS, "a=b,k in (x,y),!z".to_owned())));
    assert_eq!(labels(pods).map(|(kind, _)| kind), Some(PODS));
    assert_ne!(REPLICA_SETS, DEPLOYMENTS);
    let list = json!({"items": [{"metadata": {"name": "p", "ownerReferences": [
        {"uid": "u", "controller": true}]}}, {"metadata": {"name": "q"}}]});
    assert_eq!(owned_by(&list, &["u"]).len(), 1);
    assert_eq!(owned_by(&list, &["v"]).len(), 0);
}
