//! The status of a CronJob while a sync changes it.
//!
//! Input: the status of the whole CronJob. Output: the status to be written back, with fields that
//! the controller does not know left as they are, because a status is written as a whole.

use jiff::Timestamp;
use pintle_api_types::kind::JOBS;
use pintle_controllers_core::common::times::seconds;
use pintle_controllers_core::frame::{Retry, SyncError, TranscriptStop};
use pintle_controllers_core::meta::or_default;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The status of a CronJob.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WorkingStatus {
    /// The Jobs that run.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub(super) active: Vec<ActiveJob>,
    #[serde(with = "seconds", skip_serializing_if = "Option::is_none")]
    pub(super) last_schedule_time: Option<Timestamp>,
    #[serde(with = "seconds", skip_serializing_if = "Option::is_none")]
    pub(super) last_successful_time: Option<Timestamp>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

/// A reference to a Job that runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ActiveJob {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// Its kind and version.
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

impl WorkingStatus {
    /// The status of a whole CronJob.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn read(cron_job: &Value) -> Result<Self, TranscriptStop> {
        let status = Option::<Self>::deserialize(&cron_job["status"]);
        let status = status.map_err(|error| {
            let message = format!("the status of the CronJob cannot be read: {error}");
            TranscriptStop::Failed(SyncError { message, retry: Retry::Never })
        });
        Ok(status?.unwrap_or_default())
    }

    /// The CronJob with this status.
    pub(super) fn put(&self, cron_job: &mut Value) {
        cron_job["status"] = serde_json::to_value(self).expect("a status has texts as keys");
    }

    pub(super) fn is_active(&self, uid: &str) -> bool {
        self.active.iter().any(|job| job.uid == uid)
    }

    pub(super) fn remove_active(&mut self, uid: &str) {
        self.active.retain(|job| job.uid != uid);
    }
}

impl ActiveJob {
    /// A reference to a whole Job.
    // k8s: pkg/controller/cronjob/cronjob_controllerv2.go getRef
    pub(super) fn of(job: &Value) -> Self {
        let metadata = &job["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let rest = [
            ("kind", JOBS.kind.into()),
            ("apiVersion", JOBS.api_version().into()),
            ("resourceVersion", metadata["resourceVersion"].clone()),
        ];
        let rest = rest.into_iter().map(|(field, value): (&str, Value)| (field.to_owned(), value));
        Self {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            rest: rest.filter(|(_, value)| !value.is_null()).collect(),
        }
    }
}
