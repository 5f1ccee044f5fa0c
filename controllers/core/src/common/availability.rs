//! When a ready pod becomes available.
// k8s: pkg/controller/controller_utils.go FindMinNextPodAvailabilityCheck

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::kinds::Pod;

/// How long it is until the first of these pods becomes available; `None` when none of them is on
/// its way.
pub fn next_availability<'a>(
    pods: impl Iterator<Item = &'a Pod>,
    min_ready_seconds: i32,
    now: Timestamp,
) -> Option<Duration> {
    pods.filter_map(|pod| wait(pod, min_ready_seconds, now)).min()
}

// k8s: pkg/controller/controller_utils.go nextPodAvailabilityCheck
fn wait(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    let ready = pod.condition("Ready").filter(|ready| &*ready.status == "True")?;
    let min_ready = SignedDuration::from_secs(min_ready_seconds.into());
    let at = ready.last_transition_time?.checked_add(min_ready).ok()?;
    let left = Duration::try_from(at.duration_since(now)).ok()?;
    (min_ready_seconds > 0 && !left.is_zero()).then_some(left)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn first_pod_to_become_available_counts() {
        let pod = |ready: &str, since: &str| -> Pod {
            let condition = json!({"type": "Ready", "status": ready, "lastTransitionTime": since});
            serde_json::from_value(json!({"status": {"conditions": [condition]}})).expect("a pod")
        };
        let now = "2026-01-01T00:00:10Z".parse().expect("a time");
        let pods = [
            pod("True", "2026-01-01T00:00:05Z"),
            pod("True", "2026-01-01T00:00:02Z"),
            pod("True", "2026-01-01T00:00:00Z"),
            pod("False", "2026-01-01T00:00:01Z"),
        ];
        let next = |seconds| next_availability(pods.iter(), seconds, now);
        assert_eq!(next(10), Some(Duration::from_secs(2)));
        assert_eq!(next(0), None);
        assert_eq!(next(5), None);
    }
}
