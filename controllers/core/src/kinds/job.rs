//! Jobs and cron jobs.

use std::collections::BTreeSet;

use jiff::Timestamp;
use pintle_api_types::symbol::Symbol;
use serde::Deserialize;

use super::facts;
use crate::meta::{Meta, Uid, or_default, time};
use crate::selector::PodSelector;

/// A Job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Its metadata.
    pub metadata: Meta,
    /// The desired state.
    pub spec: JobSpec,
    /// The observed state.
    pub status: JobStatus,
}
facts!(Job, JOBS, whole: true);

/// The spec of a Job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobSpec {
    /// Seconds after its end when it is deleted.
    pub ttl_seconds_after_finished: Option<i32>,
    /// How many pods may run at once; 1 when not given.
    pub parallelism: Option<i32>,
    /// How many pods have to succeed; when not given, one success ends the Job.
    pub completions: Option<i32>,
    /// `NonIndexed` or `Indexed`.
    pub completion_mode: Option<Symbol>,
    /// How many failures it takes; 6 when not given.
    pub backoff_limit: Option<i32>,
    /// How many failures an index takes.
    pub backoff_limit_per_index: Option<i32>,
    /// How many indexes may fail.
    pub max_failed_indexes: Option<i32>,
    /// Seconds that it may be active.
    pub active_deadline_seconds: Option<i64>,
    /// No pods are to run.
    pub suspend: Option<bool>,
    /// Actions upon failures of pods.
    pub pod_failure_policy: Option<Box<PodFailurePolicy>>,
    /// When an indexed Job has succeeded before all its indexes have.
    pub success_policy: Option<Box<SuccessPolicy>>,
    /// `TerminatingOrFailed` or `Failed`: when a pod is replaced.
    pub pod_replacement_policy: Option<Symbol>,
    /// The controller that reconciles it, if not the Job controller.
    pub managed_by: Option<Box<str>>,
    /// Which pods are its own.
    pub selector: PodSelector,
    /// The pod template.
    pub template: JobPodTemplate,
}

/// The fields of a Job's pod template that are read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct JobPodTemplate {
    /// The pods' spec.
    pub spec: JobPodSpec,
}

/// The fields of the spec in a Job's pod template that are read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobPodSpec {
    /// `OnFailure` or `Never`.
    pub restart_policy: Symbol,
}

/// Actions upon failures of pods: the first matching rule decides.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodFailurePolicy {
    /// The rules.
    #[serde(deserialize_with = "or_default")]
    pub rules: Box<[PodFailureRule]>,
}

/// A rule about failures of pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodFailureRule {
    /// `FailJob`, `FailIndex`, `Ignore` or `Count`.
    pub action: Symbol,
    /// Matches exit codes of containers.
    pub on_exit_codes: Option<ExitCodeRule>,
    /// Matches conditions of the pod.
    pub on_pod_conditions: Option<Box<[PodConditionRule]>>,
}

/// Which exit codes a rule matches.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExitCodeRule {
    /// Only of the container with this name.
    pub container_name: Option<Symbol>,
    /// `In` or `NotIn`.
    pub operator: Symbol,
    /// The exit codes.
    #[serde(deserialize_with = "or_default")]
    pub values: Box<[i32]>,
}

/// Which condition of a pod a rule matches.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodConditionRule {
    /// The condition's type.
    #[serde(rename = "type")]
    pub kind: Symbol,
    /// The condition's status.
    pub status: Symbol,
}

/// When an indexed Job has succeeded before all its indexes have.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SuccessPolicy {
    /// One of these rules has to match.
    #[serde(deserialize_with = "or_default")]
    pub rules: Box<[SuccessRule]>,
}

/// A rule about indexes that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SuccessRule {
    /// The indexes that have to succeed; all indexes count when not given.
    pub succeeded_indexes: Option<Box<str>>,
    /// So many of them are enough.
    pub succeeded_count: Option<i32>,
}

/// The status of a Job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobStatus {
    /// Its conditions.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Box<[JobCondition]>,
    /// When it was started or resumed.
    #[serde(deserialize_with = "time")]
    pub start_time: Option<Timestamp>,
    /// When it was complete.
    #[serde(deserialize_with = "time")]
    pub completion_time: Option<Timestamp>,
    /// Pods that ended and are not counted yet.
    #[serde(deserialize_with = "or_default")]
    pub uncounted_terminated_pods: UncountedPods,
}

/// Pods that ended and are not counted yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UncountedPods {
    /// Those that succeeded.
    #[serde(deserialize_with = "or_default")]
    pub succeeded: BTreeSet<Uid>,
    /// Those that failed.
    #[serde(deserialize_with = "or_default")]
    pub failed: BTreeSet<Uid>,
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
    /// The desired state.
    pub spec: CronJobSpec,
    /// The observed state.
    pub status: CronJobStatus,
}
facts!(CronJob, CRON_JOBS, whole: true);

/// The spec of a CronJob.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CronJobSpec {
    /// When its Jobs start, in cron's format.
    pub schedule: Box<str>,
    /// The time zone of the schedule; the process's own when not given.
    pub time_zone: Option<Box<str>>,
    /// Seconds after its time until which a Job may still be started.
    pub starting_deadline_seconds: Option<i64>,
    /// `Allow`, `Forbid` or `Replace`: what happens while an earlier Job is active.
    pub concurrency_policy: Symbol,
    /// No Jobs are to be started.
    pub suspend: Option<bool>,
    /// How many Jobs that succeeded are kept; all when not given.
    pub successful_jobs_history_limit: Option<i32>,
    /// How many Jobs that failed are kept; all when not given.
    pub failed_jobs_history_limit: Option<i32>,
}

/// The status of a CronJob.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CronJobStatus {
    /// The time of the schedule that the last Job was started for.
    #[serde(deserialize_with = "time")]
    pub last_schedule_time: Option<Timestamp>,
}
