//! Jobs and cron jobs.

use jiff::Timestamp;
use pintle_api_types::symbol::Symbol;
use serde::Deserialize;

use super::facts;
use crate::meta::{Meta, or_default, time};

/// A Job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Its metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: JobSpec,
    /// What is.
    pub status: JobStatus,
}
facts!(Job, JOBS, whole: true);

/// The spec of a Job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobSpec {
    /// Seconds after its end when it is deleted.
    pub ttl_seconds_after_finished: Option<i32>,
}

/// The status of a Job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobStatus {
    /// Its conditions.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Box<[JobCondition]>,
}

/// A condition of a Job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobCondition {
    /// Such as `Complete`.
    #[serde(rename = "type")]
    pub kind: Symbol,
    /// `True`, `False` or `Unknown`.
    pub status: Symbol,
    /// The reason in a word.
    pub reason: Symbol,
    /// When the status last changed.
    #[serde(deserialize_with = "time")]
    pub last_transition_time: Option<Timestamp>,
}

impl Job {
    /// The condition that says it is complete or failed.
    // k8s: pkg/controller/job/utils.go FinishedCondition
    pub fn finished(&self) -> Option<&JobCondition> {
        self.status.conditions.iter().find(|condition| {
            matches!(&*condition.kind, "Complete" | "Failed") && &*condition.status == "True"
        })
    }
}

/// A CronJob.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CronJob {
    /// Its metadata.
    pub metadata: Meta,
}
facts!(CronJob, CRON_JOBS, whole: true);
