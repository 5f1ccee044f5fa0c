//! Back-off of pod creation: the more pods fail in a row, the longer a replacement waits.
//!
//! Input: the pods that ended since the last sync, and the time. Output: how long to wait. The
//! record of a Job lives in the controller's memory only; a new process begins without one, as
//! upstream's does. Bounds: one record for each Job with failures, and the UIDs of its pods that
//! ended and are not counted.
// k8s: pkg/controller/job/backoff_utils.go

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::Pod;
use pintle_controllers_core::meta::Uid;

use super::pods::{FinishedPods, IndexFailures, JobPod, finished_at};

/// Failures since the last success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BackoffRecord {
    /// How many pods failed since the last success.
    pub(super) failures: u32,
    /// When the last of them failed.
    pub(super) last_failure: Option<Timestamp>,
}

/// How long replacements wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureBackoff {
    /// After the first failure; doubles with each.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
}

impl FailureBackoff {
    /// The remaining wait after failures in a row.
    // k8s: pkg/controller/job/backoff_utils.go getRemainingTimeForFailuresCount
    pub(super) fn remaining(self, record: BackoffRecord, now: Timestamp) -> Duration {
        let Some(last) = record.last_failure.filter(|_| record.failures > 0) else {
            return Duration::ZERO;
        };
        let mut wait = self.first;
        for _ in 1..record.failures {
            wait *= 2;
            if wait >= self.longest {
                wait = self.longest;
                break;
            }
        }
        let left = i128::try_from(wait.as_nanos()).unwrap_or(i128::MAX)
            - now.duration_since(last).as_nanos();
        Duration::from_nanos(u64::try_from(left.max(0)).unwrap_or(u64::MAX))
    }

    /// The remaining wait of an index with this last failed pod.
    // k8s: pkg/controller/job/backoff_utils.go getRemainingTimePerIndex
    pub(super) fn remaining_of_index(self, last_failed: Option<&Pod>, now: Timestamp) -> Duration {
        let Some(pod) = last_failed else { return Duration::ZERO };
        let failures = IndexFailures::before(pod).total() + 1;
        let failures = u32::try_from(failures).unwrap_or(u32::MAX);
        let record = BackoffRecord { failures, last_failure: finished_at(pod) };
        self.remaining(record, now)
    }
}

impl BackoffRecord {
    /// The record after pods ended.
    // k8s: pkg/controller/job/backoff_utils.go newBackoffRecord
    pub(super) fn after(self, finished: &FinishedPods) -> Self {
        let ends = |pods: &[Rc<KeptObject<Pod>>]| -> Vec<_> {
            pods.iter().map(|pod| finished_at(pod)).collect()
        };
        let failures = ends(&finished.failed);
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        if finished.succeeded.is_empty() {
            let Some(last) = failures.iter().max() else { return self };
            let failures = self.failures.saturating_add(count(failures.len()));
            return Self { failures, last_failure: *last };
        }
        let success = ends(&finished.succeeded).into_iter().max().flatten();
        let later: Vec<_> = failures.into_iter().filter(|end| *end > success).collect();
        let last_failure = later.iter().max().copied().flatten();
        Self { failures: count(later.len()), last_failure }
    }
}

/// The back-off of one Job.
#[derive(Clone, Debug, Default)]
pub(super) struct JobBackoff {
    record: BackoffRecord,
    /// Pods that are in the record and still have the finalizer: each counts once, also when a sync
    /// fails after it was counted.
    counted: BTreeSet<Uid>,
}

impl JobBackoff {
    /// Counts pods that ended; returns the record.
    pub(super) fn observe(&mut self, pods: &[JobPod], finished: FinishedPods) -> BackoffRecord {
        let tracked: BTreeSet<_> = pods
            .iter()
            .filter(|pod| pod.is_tracked)
            .map(|pod| pod.facts.metadata.uid.clone())
            .collect();
        self.counted.retain(|uid| tracked.contains(uid));
        let counted = &self.counted;
        let is_new = |pod: &Rc<KeptObject<Pod>>| !counted.contains(&pod.metadata.uid);
        let new = FinishedPods {
            succeeded: finished.succeeded.into_iter().filter(is_new).collect(),
            failed: finished.failed.into_iter().filter(is_new).collect(),
        };
        self.record = self.record.after(&new);
        let all = new.succeeded.iter().chain(&new.failed);
        self.counted.extend(all.map(|pod| pod.metadata.uid.clone()));
        self.record
    }

    /// There is nothing to remember.
    pub(super) fn is_empty(&self) -> bool {
        self.record == BackoffRecord::default() && self.counted.is_empty()
    }
}

#[cfg(test)]
impl JobBackoff {
    /// A Job that failed before.
    pub(super) fn of(record: BackoffRecord) -> Self {
        Self { record, counted: BTreeSet::new() }
    }
}
