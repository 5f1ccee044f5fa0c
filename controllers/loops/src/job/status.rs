//! The status of a Job while a sync changes it, and its conditions.
//!
//! Input: the status of the whole Job, as it was read or answered. Output: the status to be
//! written back, with fields that the controller does not know left as they are, because a status
//! is written as a whole. Times have whole seconds, as the API has them.

use jiff::Timestamp;
use pintle_controllers_core::common::times::seconds;
use pintle_controllers_core::frame::{Retry, SyncError, TranscriptStop};
use pintle_controllers_core::meta::or_default;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The status of a Job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WorkingStatus {
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub(super) conditions: Vec<JobConditionState>,
    #[serde(with = "seconds", skip_serializing_if = "Option::is_none")]
    pub(super) start_time: Option<Timestamp>,
    #[serde(with = "seconds", skip_serializing_if = "Option::is_none")]
    pub(super) completion_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) active: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) succeeded: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) failed: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) terminating: Option<i64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) completed_indexes: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed_indexes: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) uncounted_terminated_pods: Uncounted,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ready: Option<i64>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

/// Pods that ended and are not counted yet, by UID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Uncounted {
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub(super) succeeded: Vec<String>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub(super) failed: Vec<String>,
}

/// A condition of a Job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct JobConditionState {
    /// Such as `Complete`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// `True`, `False` or `Unknown`.
    pub(super) status: String,
    /// The time of the last probe.
    #[serde(with = "seconds", skip_serializing_if = "Option::is_none")]
    pub(super) last_probe_time: Option<Timestamp>,
    /// When its status last changed.
    #[serde(with = "seconds", skip_serializing_if = "Option::is_none")]
    pub(super) last_transition_time: Option<Timestamp>,
    /// The reason in a word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
    /// The sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // what serde calls
fn is_zero(count: &i64) -> bool {
    *count == 0
}

impl WorkingStatus {
    /// The status of a whole Job.
    ///
    /// # Errors
    /// When it cannot be read: counters that are not known must not be written.
    pub(super) fn read(job: &Value) -> Result<Self, TranscriptStop> {
        let status = Option::<Self>::deserialize(&job["status"]);
        let status = status.map_err(|error| {
            let message = format!("the status of the Job cannot be read: {error}");
            TranscriptStop::Failed(SyncError { message, retry: Retry::Never })
        });
        Ok(status?.unwrap_or_default())
    }

    /// The Job with this status.
    pub(super) fn put(&self, job: &mut Value) {
        job["status"] = serde_json::to_value(self).expect("a status has texts as keys");
    }

    /// The condition of a type, if its status is true.
    pub(super) fn true_condition(&self, kind: &str) -> Option<&JobConditionState> {
        let mut conditions = self.conditions.iter();
        conditions.find(|condition| condition.kind == kind).filter(|one| one.status == "True")
    }

    /// Adds a condition or changes the one of its type; returns whether anything changed. A status
    /// that goes from nothing to false is not added.
    // k8s: pkg/controller/job/job_controller.go ensureJobConditionStatus
    pub(super) fn ensure(&mut self, condition: JobConditionState) -> bool {
        match self.conditions.iter_mut().find(|known| known.kind == condition.kind) {
            Some(known) if known.is_same(&condition) => false,
            Some(known) => {
                *known = condition;
                true
            }
            None if condition.status == "False" => false,
            None => {
                self.conditions.push(condition);
                true
            }
        }
    }
}

impl JobConditionState {
    /// A condition that is true from now on.
    // k8s: pkg/controller/job/job_controller.go newCondition
    pub(super) fn new(
        kind: &str,
        reason: &str,
        message: impl Into<String>,
        now: Timestamp,
    ) -> Self {
        Self {
            kind: kind.to_owned(),
            status: "True".to_owned(),
            last_probe_time: Some(now),
            last_transition_time: Some(now),
            reason: reason.to_owned(),
            message: message.into(),
        }
    }

    /// The same reason and message under another type.
    pub(super) fn turned_into(&self, kind: &str, now: Timestamp) -> Self {
        Self::new(kind, &self.reason, &*self.message, now)
    }

    fn is_same(&self, other: &Self) -> bool {
        self.status == other.status && self.reason == other.reason && self.message == other.message
    }
}
