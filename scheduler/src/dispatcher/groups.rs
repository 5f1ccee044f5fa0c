//! Writes conditions into the status of pod groups, one group after the other.
//!
//! Input: groups at their last observed version, with a condition. Output: patches. Owner: one
//! task. Bounds: one condition a group waits, the latest.
// k8s: pkg/scheduler/util/utils.go PatchPodGroupStatus

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodCondition;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use pintle_api_types::object::key_of;
use pintle_daemon::tasks;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::status::{send, since_second};

/// Conditions still to be written, by namespace and name.
type Waiting = BTreeMap<String, (Rc<PodGroup>, PodCondition)>;

/// Writes the statuses of pod groups.
pub(super) struct GroupLane {
    client: kube::Client,
    waiting: RefCell<Waiting>,
    wake: Notify,
}

impl GroupLane {
    pub(super) fn new(client: kube::Client) -> Self {
        Self { client, waiting: RefCell::default(), wake: Notify::new() }
    }

    /// Writes it, later.
    pub(super) fn put(&self, group: Rc<PodGroup>, condition: PodCondition) {
        let key = key_of(&*group).as_str().to_owned();
        self.waiting.borrow_mut().insert(key, (group, condition));
        self.wake.notify_one();
    }

    /// Writes waiting conditions, forever.
    pub(super) async fn run(&self) {
        loop {
            let next = self.waiting.borrow_mut().pop_first();
            let Some((_, (group, condition))) = next else {
                self.wake.notified().await;
                continue;
            };
            let key = key_of(&*group);
            let (namespace, name) = (key.namespace(), key.name());
            let path = format!(
                "/apis/scheduling.k8s.io/v1alpha2/namespaces/{namespace}/podgroups/{name}/status"
            );
            let write = async { send(&self.client, &path, &patch(&group, &condition)).await };
            let written = tasks::caught(write).await.unwrap_or_else(|panic| {
                tasks::counted("group status");
                tracing::error!(%panic, group = key.as_str(), "its status was not written");
                Ok(())
            });
            if let Err(error) = written {
                let gone = matches!(&error, kube::Error::Api(s) if [404, 409].contains(&s.code));
                if !gone {
                    tracing::warn!(%error, group = key.as_str(), "its status was not written");
                }
            }
        }
    }
}

/// Builds the patch of a status, as upstream's merge of two statuses does.
fn patch(group: &PodGroup, condition: &PodCondition) -> Value {
    let all = group.status.as_ref().and_then(|status| status.conditions.as_deref());
    let all = all.unwrap_or_default();
    let old = all.iter().find(|c| c.type_ == condition.type_ && c.status == condition.status);
    let since = old.map(|c| c.last_transition_time.clone());
    let changed = Condition {
        last_transition_time: since.unwrap_or_else(|| since_second(Timestamp::now())),
        message: condition.message.clone().unwrap_or_default(),
        observed_generation: condition.observed_generation,
        reason: condition.reason.clone().unwrap_or_default(),
        status: condition.status.clone(),
        type_: condition.type_.clone(),
    };
    let mut order: Vec<&str> = all.iter().map(|c| c.type_.as_str()).collect();
    if !order.contains(&condition.type_.as_str()) {
        order.push(&condition.type_);
    }
    let order: Vec<Value> = order.into_iter().map(|of| json!({"type": of})).collect();
    let status = json!({"$setElementOrder/conditions": order, "conditions": [changed]});
    // A group with the same name and another uid is another group.
    match &group.metadata.uid {
        Some(uid) => json!({"metadata": {"uid": uid}, "status": status}),
        None => json!({ "status": status }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_keeps_its_transition_time_while_its_status_is_unchanged() {
        let since = "2020-01-01T00:00:00Z";
        let group = |status: &str| {
            let old = json!({"type": "PodGroupScheduled", "status": status, "reason": "R",
                "message": "", "lastTransitionTime": since});
            let other = json!({"type": "Other", "status": "True", "reason": "R", "message": "",
                "lastTransitionTime": since});
            let group = json!({"metadata": {"name": "g", "uid": "u"},
                "spec": {"schedulingPolicy": {"basic": {}}}, "status": {"conditions": [other, old]}});
            serde_json::from_value::<PodGroup>(group).expect("a group")
        };
        let condition = PodCondition {
            type_: "PodGroupScheduled".to_owned(),
            status: "False".to_owned(),
            reason: Some("Unschedulable".to_owned()),
            message: Some("m".to_owned()),
            observed_generation: Some(2),
            ..PodCondition::default()
        };
        let same = patch(&group("False"), &condition);
        let (order, changed) = (&same["status"]["$setElementOrder/conditions"], "conditions");
        assert_eq!(*order, json!([{"type": "Other"}, {"type": "PodGroupScheduled"}]));
        let wanted = json!({"type": "PodGroupScheduled", "status": "False",
            "reason": "Unschedulable", "message": "m", "observedGeneration": 2,
            "lastTransitionTime": since});
        assert_eq!(same["status"][changed], json!([wanted]));
        assert_eq!(same["metadata"], json!({"uid": "u"}));
        let other = patch(&group("True"), &condition);
        assert_ne!(other["status"][changed][0]["lastTransitionTime"], since);
    }
}
