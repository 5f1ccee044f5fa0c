//! Defaults of workloads.
// k8s: pkg/apis/apps/v1/defaults.go, pkg/apis/batch/v1/defaults.go, pkg/apis/core/v1/defaults.go

use serde_json::{Map, Value};

use super::template::template;
use super::{or, spec, within};
use crate::meta;

/// `backoffLimit` of a Job that limits failures per index.
const BACKOFF_MAX: i32 = i32::MAX;

pub(super) fn deployment(object: &mut Value) {
    let spec = spec(object);
    template(spec);
    or(spec, "replicas", 1);
    let strategy = within(spec, "strategy");
    if or(strategy, "type", "RollingUpdate") == "RollingUpdate" {
        let rolling = within(strategy, "rollingUpdate");
        or(rolling, "maxUnavailable", "25%");
        or(rolling, "maxSurge", "25%");
    }
    or(spec, "revisionHistoryLimit", 10);
    or(spec, "progressDeadlineSeconds", 600);
}

pub(super) fn replica_set(object: &mut Value) {
    let spec = spec(object);
    template(spec);
    or(spec, "replicas", 1);
}

pub(super) fn replication_controller(object: &mut Value) {
    let spec = spec(object);
    or(spec, "replicas", 1);
    if spec.get("template").is_none_or(Value::is_null) {
        return;
    }
    template(spec);
    let labels = template_labels(spec);
    let is_empty =
        |value: Option<&Value>| value.and_then(Value::as_object).is_none_or(Map::is_empty);
    if labels.as_object().is_some_and(|labels| !labels.is_empty()) {
        if is_empty(spec.get("selector")) {
            spec.insert("selector".to_owned(), labels.clone());
        }
        copy_labels(object, labels);
    }
}

pub(super) fn stateful_set(object: &mut Value) {
    let spec = spec(object);
    template(spec);
    or(spec, "podManagementPolicy", "OrderedReady");
    let update = within(spec, "updateStrategy");
    let is_unset = update.get("type").and_then(Value::as_str).unwrap_or_default().is_empty();
    if is_unset {
        within(update, "rollingUpdate");
    }
    let is_rolling = or(update, "type", "RollingUpdate") == "RollingUpdate";
    if is_rolling && update.get("rollingUpdate").is_some_and(Value::is_object) {
        let rolling = within(update, "rollingUpdate");
        or(rolling, "partition", 0);
    }
    let retention = within(spec, "persistentVolumeClaimRetentionPolicy");
    or(retention, "whenDeleted", "Retain");
    or(retention, "whenScaled", "Retain");
    or(spec, "replicas", 1);
    or(spec, "revisionHistoryLimit", 10);
    for claim in
        spec.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut).into_iter().flatten()
    {
        or(super::spec(claim), "volumeMode", "Filesystem");
        or(meta::child(claim, "status"), "phase", "Pending");
        if let Some(claim) = claim.as_object_mut() {
            or(claim, "apiVersion", "v1");
            or(claim, "kind", "PersistentVolumeClaim");
        }
    }
}

pub(super) fn daemon_set(object: &mut Value) {
    let spec = spec(object);
    template(spec);
    let update = within(spec, "updateStrategy");
    if or(update, "type", "RollingUpdate") == "RollingUpdate" {
        let rolling = within(update, "rollingUpdate");
        or(rolling, "maxUnavailable", 1);
        or(rolling, "maxSurge", 0);
    }
    or(spec, "revisionHistoryLimit", 10);
}

pub(super) fn job(object: &mut Value) {
    job_spec(spec(object));
    let labels = template_labels(spec(object));
    copy_labels(object, labels);
}

pub(super) fn cron_job(object: &mut Value) {
    let spec = spec(object);
    or(spec, "concurrencyPolicy", "Allow");
    or(spec, "suspend", false);
    or(spec, "successfulJobsHistoryLimit", 3);
    or(spec, "failedJobsHistoryLimit", 1);
    let of_job = within(spec, "jobTemplate");
    within(of_job, "metadata");
    // Only the pod template of a job template has defaults.
    template(within(of_job, "spec"));
}

fn job_spec(spec: &mut Map<String, Value>) {
    template(spec);
    let is_set =
        |spec: &Map<String, Value>, name: &str| spec.get(name).is_some_and(|v| !v.is_null());
    if !is_set(spec, "completions") && !is_set(spec, "parallelism") {
        or(spec, "completions", 1);
    }
    or(spec, "parallelism", 1);
    let limit = if is_set(spec, "backoffLimitPerIndex") { BACKOFF_MAX } else { 6 };
    or(spec, "backoffLimit", limit);
    or(spec, "completionMode", "NonIndexed");
    or(spec, "suspend", false);
    let replaced = match is_set(spec, "podFailurePolicy") {
        true => "Failed",
        false => "TerminatingOrFailed",
    };
    or(spec, "podReplacementPolicy", replaced);
    or(spec, "manualSelector", false);
    let rules = spec.get_mut("podFailurePolicy").and_then(|policy| policy["rules"].as_array_mut());
    for rule in rules.into_iter().flatten() {
        let patterns = rule.get_mut("onPodConditions").and_then(Value::as_array_mut);
        for pattern in patterns.into_iter().flatten().filter_map(Value::as_object_mut) {
            or(pattern, "status", "True");
        }
    }
}

fn template_labels(spec: &Map<String, Value>) -> Value {
    spec.get("template").map_or(Value::Null, |template| template["metadata"]["labels"].clone())
}

/// Gives an object without labels those of its template.
fn copy_labels(object: &mut Value, labels: Value) {
    let has_labels = !meta::labels(object).is_empty();
    let is_some = labels.as_object().is_some_and(|labels| !labels.is_empty());
    if !has_labels && is_some {
        meta::set(object, "labels", labels);
    }
}
