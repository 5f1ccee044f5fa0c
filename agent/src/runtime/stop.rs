//! How long a container may take to stop.
//!
//! Input: the pod, the container, why it is stopped, what was spent already. Output: seconds for
//! the hook and for `StopContainer`. Pure. The clock and the order of sidecars are the worker's.

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::pod;

/// Least timeout of `StopContainer` in seconds: even a pod killed at once may react to its signal.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go minimumGracePeriodInSeconds
pub const STOP_SECONDS_MIN: i64 = 2;

/// Why a container is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Its liveness probe failed.
    Liveness,
    /// Its startup probe failed.
    Startup,
    /// Anything else.
    Other,
}

/// Seconds from the decision to the kill. An order from outside (`override_seconds`: eviction,
/// preemption, an orphan) wins over all that the pod says.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go setTerminationGracePeriod
pub fn grace_seconds(
    pod: &Pod,
    container: &Container,
    reason: StopReason,
    override_seconds: Option<i64>,
) -> i64 {
    if let Some(seconds) = override_seconds.or(pod.metadata.deletion_grace_period_seconds) {
        return seconds;
    }
    let Some(own) = pod::spec(pod).termination_grace_period_seconds else {
        return STOP_SECONDS_MIN;
    };
    let probe = match reason {
        StopReason::Liveness => container.liveness_probe.as_ref(),
        StopReason::Startup => container.startup_probe.as_ref(),
        StopReason::Other => None,
    };
    probe.and_then(|probe| probe.termination_grace_period_seconds).unwrap_or(own)
}

/// Timeout of `StopContainer`: what is left of the grace period.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go killContainer
pub fn stop_timeout_seconds(grace_seconds: i64, spent_seconds: i64) -> i64 {
    grace_seconds.saturating_sub(spent_seconds.max(0)).max(STOP_SECONDS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn grace(
        deletion: Option<i64>,
        own: Option<i64>,
        reason: StopReason,
        order: Option<i64>,
    ) -> i64 {
        let pod = json!({"metadata": {"deletionGracePeriodSeconds": deletion},
            "spec": {"containers": [], "terminationGracePeriodSeconds": own}});
        let probe = |seconds: i64| json!({"terminationGracePeriodSeconds": seconds});
        let container = json!({"name": "c", "livenessProbe": probe(11), "startupProbe": probe(12)});
        grace_seconds(
            &serde_json::from_value(pod).expect("a pod"),
            &serde_json::from_value(container).expect("a container"),
            reason,
            order,
        )
    }

    #[test]
    fn an_order_wins_over_the_deletion_over_the_probe_over_the_pod() {
        use StopReason::{Liveness, Other, Startup};
        for (deletion, own, reason, order, want) in [
            (Some(7), Some(30), Liveness, Some(1), 1),
            (Some(7), Some(30), Liveness, None, 7),
            (None, Some(30), Liveness, None, 11),
            (None, Some(30), Startup, None, 12),
            (None, Some(30), Other, None, 30),
            (None, None, Liveness, None, STOP_SECONDS_MIN),
        ] {
            assert_eq!(
                grace(deletion, own, reason, order),
                want,
                "{deletion:?} {own:?} {reason:?}"
            );
        }
    }

    #[test]
    fn the_timeout_is_what_the_hook_left_but_never_below_the_least() {
        for (grace, spent, want) in [(30, 0, 30), (30, 12, 18), (30, 40, 2), (0, 0, 2), (5, -3, 5)]
        {
            assert_eq!(stop_timeout_seconds(grace, spent), want);
        }
    }
}
