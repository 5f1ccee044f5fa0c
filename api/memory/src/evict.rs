//! Evictions: deletions of pods that ask their disruption budget first.
//!
//! Input: an Eviction of a pod. Output: the pod marked with a condition and deleted, or 429 when
//! its budget allows no disruption. Pure.
// k8s: pkg/registry/core/pod/storage/eviction.go Create, checkAndDecrement

use std::time::Duration;

use jiff::Timestamp;
use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::{Answer, ApiError, DeleteOptions, Target};
use pintle_api_types::selector;
use serde_json::{Value, json};

use crate::server::Server;
use crate::{errors, meta};

/// Seconds after which an eviction is worth another try while the budget is not up to date.
const PROCESSING_SECONDS: u64 = 10;

impl Server {
    pub(crate) fn evict(&mut self, target: &Target, body: &Value, now: Timestamp) -> Answer {
        let pod = Value::clone(self.existing(target)?);
        if !has_no_say(&pod) {
            self.ask_budget(target, &pod, now)?;
        }
        let stated = &body["deleteOptions"];
        let text = |field: &str| stated["preconditions"][field].as_str().map(str::to_owned);
        let options = DeleteOptions {
            uid: text("uid"),
            version: text("resourceVersion"),
            grace_seconds: stated["gracePeriodSeconds"].as_i64(),
            ..DeleteOptions::default()
        };
        let mut marked = pod.clone();
        if set_condition(&mut marked, now) {
            self.write(kind::PODS, marked);
        }
        self.delete(target, &options, now)?;
        Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "code": 201}))
    }

    /// Takes one allowed disruption of the budget that selects the pod.
    fn ask_budget(&mut self, target: &Target, pod: &Value, now: Timestamp) -> Result<(), ApiError> {
        let kind =
            Kind::interned("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", true);
        let labels = meta::labels(pod);
        let budgets = self.store.objects(kind, target.key.namespace());
        let selecting: Vec<Value> = budgets
            .filter(|(_, budget)| selects(budget, &labels))
            .map(|(_, budget)| Value::clone(budget))
            .collect();
        let mut budget = match &selecting[..] {
            [] => return Ok(()),
            [one] => one.clone(),
            _ => {
                return Err(errors::internal(
                    "This pod has more than one PodDisruptionBudget, which the eviction \
                     subresource does not support.",
                ));
            }
        };
        if !is_ready(pod) && is_open_to_unready(&budget) {
            return Ok(());
        }
        take_disruption(&mut budget, target.key.name(), now)?;
        self.write(kind, budget);
        Ok(())
    }
}

/// Pods that can be evicted without a disruption.
// k8s: eviction.go canIgnorePDB
fn has_no_say(pod: &Value) -> bool {
    let phases = ["Succeeded", "Failed", "Pending"];
    meta::is_deleting(pod) || phases.iter().any(|phase| pod["status"]["phase"] == *phase)
}

fn selects(budget: &Value, labels: &std::collections::BTreeMap<String, String>) -> bool {
    let selector = serde_json::from_value(budget["spec"]["selector"].clone()).ok();
    selector::matches(selector.as_ref(), labels).unwrap_or(false)
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn is_open_to_unready(budget: &Value) -> bool {
    let number = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    let is_healthy = number("currentHealthy") >= number("desiredHealthy");
    budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        || (is_healthy && number("desiredHealthy") > 0)
}

fn take_disruption(budget: &mut Value, pod: &str, now: Timestamp) -> Result<(), ApiError> {
    let number = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    let generation = meta::number(budget, "generation").unwrap_or(0);
    if number("observedGeneration") < generation {
        return Err(too_many(Some(Duration::from_secs(PROCESSING_SECONDS))));
    }
    let left = number("disruptionsAllowed") - 1;
    if left < 0 {
        return Err(too_many(None));
    }
    let status = meta::child(budget, "status");
    status.insert("disruptionsAllowed".to_owned(), left.into());
    let disrupted = status.entry("disruptedPods").or_insert_with(|| json!({}));
    disrupted[pod] = meta::time(now).into();
    if left == 0 {
        let condition = json!({"type": "DisruptionAllowed", "status": "False",
            "reason": "InsufficientPods", "message": "", "observedGeneration": generation,
            "lastTransitionTime": meta::time(now)});
        put_condition(status, condition);
    }
    Ok(())
}

fn too_many(retry_after: Option<Duration>) -> ApiError {
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    ApiError {
        code: 429,
        reason: "TooManyRequests".to_owned(),
        message: message.to_owned(),
        causes: vec!["DisruptionBudget".to_owned()],
        retry_after,
    }
}

/// Marks a pod as disrupted; false if it is marked already.
fn set_condition(pod: &mut Value, now: Timestamp) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let is_marked = conditions.any(|condition| {
        condition["type"] == "DisruptionTarget"
            && condition["reason"] == "EvictionByEvictionAPI"
            && condition["status"] == "True"
    });
    if !is_marked {
        let condition = json!({"type": "DisruptionTarget", "status": "True",
            "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
            "lastTransitionTime": meta::time(now)});
        put_condition(meta::child(pod, "status"), condition);
    }
    !is_marked
}

/// Replaces the condition of a type, or adds it.
fn put_condition(status: &mut serde_json::Map<String, Value>, condition: Value) {
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else { return };
    match conditions.iter_mut().find(|old| old["type"] == condition["type"]) {
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
}
