//! The conditions of the pod's resize: pending, or in progress.
//!
//! Pure. A condition is there or it is not; there is no `False`. Its generation is that of the spec
//! that requested the resize.
// k8s: pkg/kubelet/status/status_manager.go SetPodResizePendingCondition

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use pintle_api_types::ids::UnixNanos;

/// The node has not granted the resize.
pub const PENDING: &str = "PodResizePending";
/// The resize was granted and is not in force everywhere.
pub const IN_PROGRESS: &str = "PodResizeInProgress";
/// Not now; tried again.
pub const DEFERRED: &str = "Deferred";
/// Never on this node as it is.
pub const INFEASIBLE: &str = "Infeasible";
/// The runtime or the kernel refused.
pub const ERROR: &str = "Error";

/// One of the two conditions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeCondition {
    /// `Deferred`, `Infeasible`, `Error` or empty.
    pub reason: String,
    /// Sentence for users.
    pub message: String,
    /// Generation of the spec.
    pub generation: Option<i64>,
    /// Since when it holds with this reason.
    pub since: UnixNanos,
}

impl ResizeCondition {
    fn shown(&self, type_: &str) -> PodCondition {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let since = Some(Time(self.since.to_seconds()));
        PodCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            reason: text(&self.reason),
            message: text(&self.message),
            // Upstream updates this one with every sync of the pod; here it changes with the
            // reason.
            last_probe_time: since.clone(),
            last_transition_time: since,
            observed_generation: self.generation,
        }
    }

    fn read(status: &PodStatus, type_: &str) -> Option<Self> {
        let mut all = status.conditions.iter().flatten();
        let found = all.find(|condition| condition.type_ == type_)?;
        let since = found.last_transition_time.as_ref();
        let since = since.and_then(|time| i64::try_from(time.0.as_nanosecond()).ok());
        Some(Self {
            reason: found.reason.clone().unwrap_or_default(),
            message: found.message.clone().unwrap_or_default(),
            generation: found.observed_generation,
            since: UnixNanos(since.unwrap_or(0)),
        })
    }
}

/// Both conditions of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeConditions {
    /// Not granted.
    pub pending: Option<ResizeCondition>,
    /// Granted, not in force.
    pub in_progress: Option<ResizeCondition>,
}

impl ResizeConditions {
    /// As the API server has them, after a restart of the agent.
    // k8s: pkg/kubelet/status/status_manager.go BackfillPodResizeConditions
    pub fn read(status: &PodStatus) -> Self {
        Self {
            pending: ResizeCondition::read(status, PENDING),
            in_progress: ResizeCondition::read(status, IN_PROGRESS),
        }
    }

    /// For the pod's status, in the kubelet's order.
    pub fn shown(&self) -> impl Iterator<Item = PodCondition> {
        let pending = self.pending.as_ref().map(|condition| condition.shown(PENDING));
        let progress = self.in_progress.as_ref().map(|condition| condition.shown(IN_PROGRESS));
        pending.into_iter().chain(progress)
    }

    /// Records why the resize is not granted; returns true when users must be notified.
    pub fn set_pending(
        &mut self,
        reason: &str,
        message: &str,
        generation: Option<i64>,
        now: UnixNanos,
    ) -> bool {
        let old = self.pending.as_ref();
        let same_reason = old.filter(|old| old.reason == reason);
        let told = same_reason.is_some_and(|old| old.generation == generation);
        let since = same_reason.map_or(now, |old| old.since);
        let (reason, message) = (reason.to_owned(), message.to_owned());
        self.pending = Some(ResizeCondition { reason, message, generation, since });
        !told
    }

    /// Records that a granted resize is not in force, or why not. The generation of a condition
    /// stays, and so do reason and message when none are given. True after a change.
    // k8s: pkg/kubelet/status/status_manager.go SetPodResizeInProgressCondition
    pub fn set_in_progress(
        &mut self,
        reason: &str,
        message: &str,
        generation: Option<i64>,
        now: UnixNanos,
    ) -> bool {
        let Some(old) = &mut self.in_progress else {
            let (reason, message) = (reason.to_owned(), message.to_owned());
            self.in_progress = Some(ResizeCondition { reason, message, generation, since: now });
            return true;
        };
        let keeps = reason.is_empty() && message.is_empty();
        if keeps || old.reason == reason && old.message == message {
            return false;
        }
        if old.reason != reason {
            old.since = now;
        }
        (old.reason, old.message) = (reason.to_owned(), message.to_owned());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> UnixNanos {
        UnixNanos(seconds * 1_000_000_000)
    }

    #[test]
    fn pending_resize_is_reported_once_per_reason_and_generation() {
        let mut conditions = ResizeConditions::default();
        assert!(conditions.set_pending(DEFERRED, "no cpu", Some(2), at(1)));
        assert!(!conditions.set_pending(DEFERRED, "less cpu", Some(2), at(2)));
        assert!(conditions.set_pending(DEFERRED, "no cpu", Some(3), at(3)));
        assert!(conditions.set_pending(INFEASIBLE, "never", Some(3), at(4)));
        let pending = conditions.pending.expect("pending");
        assert_eq!((pending.since, pending.message.as_str()), (at(4), "never"));
    }

    #[test]
    fn progress_keeps_its_generation_and_its_error() {
        let mut conditions = ResizeConditions::default();
        assert!(conditions.set_in_progress("", "", Some(2), at(1)));
        assert!(conditions.set_in_progress(ERROR, "refused", Some(3), at(2)));
        assert!(!conditions.set_in_progress(ERROR, "refused", Some(3), at(3)));
        assert!(!conditions.set_in_progress("", "", Some(3), at(4)));
        let progress = conditions.in_progress.clone().expect("in progress");
        assert_eq!((progress.generation, progress.since), (Some(2), at(2)));
        let status =
            PodStatus { conditions: Some(conditions.shown().collect()), ..PodStatus::default() };
        assert_eq!(ResizeConditions::read(&status), conditions);
    }
}
