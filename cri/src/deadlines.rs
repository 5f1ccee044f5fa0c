//! Deadlines of the classes of calls.
//!
//! Input: the kubelet's `runtimeRequestTimeout` (2 minutes by default). Output: a duration per
//! class, or none. The class is what a call waits for: a read answers from the runtime's memory,
//! for which it may need a while on a busy machine, a start waits for processes and network, a stop
//! for the pod's own grace period, a command for its own timeout, a pull for a registry's network,
//! a stream for ever.
//!
//! A call without a deadline must be one that a caller can drop: dropping it cancels it. No
//! deadline is longer than `DEADLINE_MAX`: times of the protocol are 64 bits of seconds, which
//! users choose, and neither a clock nor gRPC's timeout header can hold them all.

use std::time::Duration;

/// The class of a call; decides its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlineClass {
    /// The runtime's memory: lists, statuses, version.
    Read,
    /// Statistics: walks cgroups and snapshots of every container.
    Stats,
    /// Namespaces, network plug-in and pause process of a pod.
    Sandbox,
    /// Everything else that changes something.
    Change,
    /// The container's own grace period, in seconds, and then a change.
    Stop(i64),
    /// A command inside a container with its own timeout, in seconds; 0 waits for ever.
    Exec(i64),
    /// A checkpoint with its own timeout, in seconds; 0 is the runtime's default.
    Checkpoint(i64),
    /// A registry. There is no deadline, as in the kubelet: the runtime gives up a pull without
    /// progress (containerd's `image_pull_progress_timeout`).
    // k8s: staging/src/k8s.io/cri-client/pkg/remote_image.go PullImage
    Pull,
    /// Held for as long as the caller likes.
    Stream,
}

/// Longest deadline of a call, so that clocks and gRPC's timeout header can hold it.
pub const DEADLINE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Deadline of each class of call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Calls that answer from memory, gather statistics, or change something.
    pub call: Duration,
    /// Calls that build or tear down a pod's network: twice as long, as with the kubelet.
    pub sandbox: Duration,
    /// Added to a command's own timeout, so that the runtime's answer wins over ours.
    pub exec_margin: Duration,
}

/// The kubelet's default of `runtimeRequestTimeout`.
pub const RUNTIME_REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// The runtime kills a command at its timeout and answers once it is gone.
const EXEC_MARGIN: Duration = Duration::from_secs(5);

impl Default for Deadlines {
    fn default() -> Self {
        Self::from_request_timeout(RUNTIME_REQUEST_TIMEOUT)
    }
}

impl Deadlines {
    /// Deadlines that follow from `runtimeRequestTimeout`.
    // k8s: cri-client/pkg/remote_runtime.go (all calls), RunPodSandbox (twice the timeout)
    pub fn from_request_timeout(timeout: Duration) -> Self {
        Self { call: timeout, sandbox: timeout.saturating_mul(2), exec_margin: EXEC_MARGIN }
    }

    /// The deadline of one call, or none.
    // k8s: cri-client/pkg/remote_runtime.go StopContainer, ExecSync, CheckpointContainer
    pub fn of(&self, class: DeadlineClass) -> Option<Duration> {
        let wanted = match class {
            DeadlineClass::Read | DeadlineClass::Stats | DeadlineClass::Change => Some(self.call),
            DeadlineClass::Sandbox => Some(self.sandbox),
            DeadlineClass::Stop(grace) => Some(self.call.saturating_add(seconds(grace))),
            DeadlineClass::Checkpoint(timeout) => Some(self.call.max(seconds(timeout))),
            DeadlineClass::Exec(timeout) if timeout > 0 => {
                Some(seconds(timeout).saturating_add(self.exec_margin))
            }
            DeadlineClass::Exec(_) | DeadlineClass::Pull | DeadlineClass::Stream => None,
        };
        wanted.map(representable)
    }
}

/// A deadline that clocks and headers can hold.
pub(crate) fn representable(deadline: Duration) -> Duration {
    deadline.min(DEADLINE_MAX)
}

/// Seconds of the protocol as a duration: negative ones count as none.
fn seconds(value: i64) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_deadline_class_has_a_deadline_for_its_kind_of_call() {
        let deadlines = Deadlines::default();
        let seconds = |class| deadlines.of(class).map(|deadline| deadline.as_secs());
        for (class, expected) in [
            (DeadlineClass::Read, Some(120)),
            (DeadlineClass::Stats, Some(120)),
            (DeadlineClass::Sandbox, Some(240)),
            (DeadlineClass::Change, Some(120)),
            (DeadlineClass::Stop(30), Some(150)),
            (DeadlineClass::Stop(-1), Some(120)),
            (DeadlineClass::Exec(1), Some(6)),
            (DeadlineClass::Exec(0), None),
            (DeadlineClass::Checkpoint(60), Some(120)),
            (DeadlineClass::Checkpoint(180), Some(180)),
            (DeadlineClass::Pull, None),
            (DeadlineClass::Stream, None),
        ] {
            assert_eq!(seconds(class), expected, "{class:?}");
        }
    }

    #[test]
    fn the_request_timeout_is_that_of_reads_and_statistics_too() {
        for seconds in [3, 900] {
            let timeout = Duration::from_secs(seconds);
            let deadlines = Deadlines::from_request_timeout(timeout);
            for class in [DeadlineClass::Read, DeadlineClass::Stats] {
                assert_eq!(deadlines.of(class), Some(timeout), "{class:?}");
            }
            assert_eq!(deadlines.of(DeadlineClass::Sandbox), Some(timeout * 2));
        }
    }

    #[test]
    fn no_time_that_a_user_chose_makes_a_deadline_longer_than_a_year() {
        let deadlines = Deadlines::from_request_timeout(Duration::MAX);
        for class in [
            DeadlineClass::Stop(400_000_000_000),
            DeadlineClass::Exec(i64::MAX),
            DeadlineClass::Sandbox,
        ] {
            assert_eq!(deadlines.of(class), Some(DEADLINE_MAX), "{class:?}");
        }
        let deadlines = Deadlines::default();
        for seconds in [i64::from(i32::MAX), 400_000_000_000, i64::MAX] {
            for class in [
                DeadlineClass::Stop(seconds),
                DeadlineClass::Exec(seconds),
                DeadlineClass::Checkpoint(seconds),
            ] {
                assert_eq!(deadlines.of(class), Some(DEADLINE_MAX), "{class:?}");
            }
        }
    }
}
