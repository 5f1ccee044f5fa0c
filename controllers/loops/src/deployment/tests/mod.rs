//! Tests of Deployments, most of them upstream's tables in other words.
// k8s: pkg/controller/deployment/*_test.go, pkg/controller/deployment/util/*_test.go

mod annotations;
mod history;
mod limits;
mod progress;
mod properties;
mod recreate;
mod rollback;
mod rolling;
mod scaling;
mod syncs;
mod vectors;
mod volume;
mod wakes;

use std::rc::Rc;

use jiff::Timestamp;
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::Deployment;
use serde_json::{Value, json};

use super::annotations as set_annotations;
use super::limits as limits_of;
use super::rollout::Rollout;
use super::sets::Set;
use crate::stub_api::kept;

pub(super) fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).expect("a time")
}

/// A time so many seconds before now.
pub(super) fn ago(seconds: i64) -> String {
    let at = Timestamp::from_second(now().as_second() - seconds).expect("a time");
    at.to_string()
}

/// The template of a revision; the Deployment's is that of revision "new".
pub(super) fn template(revision: &str) -> Value {
    json!({"metadata": {"labels": {"app": "foo"}},
        "spec": {"containers": [{"name": "main", "image": format!("image:{revision}")}]}})
}

/// The Deployment `foo`.
pub(super) fn deployment(replicas: i32, surge: Value, unavailable: Value) -> Value {
    json!({
        "metadata": {"name": "foo", "namespace": "n", "uid": "foo-uid", "resourceVersion": "5",
            "generation": 1, "annotations": {"mine": "1"}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "foo"}},
            "strategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
            "template": template("new")}
    })
}

/// A set of the Deployment with the template of a revision, `age` seconds old; all its pods are
/// there, and none is available.
pub(super) fn set(name: &str, revision: &str, replicas: i32, age: i64) -> Value {
    let mut template = template(revision);
    template["metadata"]["labels"]["pod-template-hash"] = name.into();
    json!({
        "metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "7",
            "generation": 1, "creationTimestamp": ago(age),
            "labels": {"app": "foo", "pod-template-hash": name},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "foo",
                "uid": "foo-uid", "controller": true}]},
        "spec": {"replicas": replicas, "template": template,
            "selector": {"matchLabels": {"app": "foo", "pod-template-hash": name}}},
        "status": {"replicas": replicas, "observedGeneration": 1}
    })
}

/// The set with that many available pods.
pub(super) fn available(mut set: Value, count: i32) -> Value {
    set["status"]["availableReplicas"] = count.into();
    set["status"]["readyReplicas"] = count.into();
    set
}

/// The set with an annotation.
pub(super) fn annotated(mut set: Value, key: &str, value: &str) -> Value {
    set["metadata"]["annotations"][key] = value.into();
    set
}

/// The set with the annotations that scaling it for this Deployment leaves.
pub(super) fn scaled_for(set: Value, deployment: &Value) -> Value {
    let deployment: KeptObject<Deployment> = kept(deployment);
    let (desired, max) = (deployment.spec.wanted(), limits_of::max_replicas(&deployment.spec));
    let mut annotations = set_annotations::of(&set);
    set_annotations::set_replicas(&mut annotations, desired, max);
    let mut set = set;
    set_annotations::put(&mut set, annotations);
    set
}

pub(super) fn sets(values: &[Value]) -> Vec<Set> {
    values.iter().map(|value| Rc::new(kept(value))).collect()
}

/// The Deployment and its sets in the middle of a sync.
pub(super) fn rollout<'a>(deployment: &'a KeptObject<Deployment>, values: &[Value]) -> Rollout<'a> {
    let mut rollout = Rollout::new(deployment);
    rollout.assign_sets(sets(values));
    rollout
}
