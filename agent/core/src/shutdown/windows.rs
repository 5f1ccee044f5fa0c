//! The groups of the configuration, and to which of them a pod belongs. Pure.

use std::time::Duration;

use pintle_agent_config::Config;
use serde::{Deserialize, Serialize};

/// Priority of critical pods, upwards.
// k8s: pkg/apis/scheduling/types.go SystemCriticalPriority
const CRITICAL: i32 = 2_000_000_000;

/// Pods from this priority on, up to the next group's, and how long they may take together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The least priority of the group.
    pub priority: i32,
    /// Its time, in seconds.
    pub seconds: i64,
}

impl Window {
    pub(super) fn period(&self) -> Duration {
        Duration::from_secs(self.seconds.max(0).unsigned_abs())
    }
}

/// The groups of this node by ascending priority; none when shutdowns are not to be waited for.
// k8s: pkg/kubelet/nodeshutdown/nodeshutdown_manager.go newPodManager, migrateConfig
pub fn of_config(config: &Config) -> Vec<Window> {
    let kubelet = &config.kubelet;
    if !config.gates.enabled("GracefulNodeShutdown") {
        return Vec::new();
    }
    let by_priority = &kubelet.shutdown_grace_period_by_pod_priority;
    if config.gates.enabled("GracefulNodeShutdownBasedOnPodPriority") && !by_priority.is_empty() {
        let each = by_priority.iter();
        let each = each.map(|group| (group.priority, group.shutdown_grace_period_seconds));
        return sorted(each.collect());
    }
    let all = kubelet.shutdown_grace_period.to_std();
    of_periods(all, kubelet.shutdown_grace_period_critical_pods.to_std())
}

/// By ascending priority; of two groups of one priority the first is never reached.
fn sorted(groups: Vec<(i32, i64)>) -> Vec<Window> {
    let each = groups.into_iter();
    let mut windows: Vec<_> =
        each.map(|(priority, seconds)| Window { priority, seconds }).collect();
    windows.sort_by_key(|window| window.priority);
    windows
}

/// Two groups: critical pods have the last part of the time.
fn of_periods(all: Duration, critical: Duration) -> Vec<Window> {
    let Some(others) = all.checked_sub(critical).filter(|_| !all.is_zero()) else {
        return Vec::new();
    };
    let seconds = |period: Duration| i64::try_from(period.as_secs()).unwrap_or(i64::MAX);
    sorted(vec![(0, seconds(others)), (CRITICAL, seconds(critical))])
}

/// How long all groups may take together: the delay requested of the machine.
// k8s: pkg/kubelet/nodeshutdown/nodeshutdown_manager.go periodRequested
pub fn total(windows: &[Window]) -> Duration {
    windows.iter().fold(Duration::ZERO, |sum, window| sum.saturating_add(window.period()))
}

/// The index of a pod's group: the last one that begins at or below its priority, else the first.
// k8s: pkg/kubelet/nodeshutdown/nodeshutdown_manager.go groupByPriority
pub fn group_of(windows: &[Window], priority: i32) -> usize {
    // As upstream, the first one of a priority that is its own.
    let first = windows.partition_point(|window| window.priority < priority);
    let own = windows.get(first).is_some_and(|window| window.priority == priority);
    if own { first } else { first.saturating_sub(1) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn windows(groups: &[(i32, i64)]) -> Vec<Window> {
        sorted(groups.to_vec())
    }

    #[test]
    fn two_periods_are_two_groups_and_critical_pods_come_last() {
        for (all, critical, expected) in [
            (30, 10, vec![(0, 20), (CRITICAL, 10)]),
            (30, 0, vec![(0, 30), (CRITICAL, 0)]),
            (30, 30, vec![(0, 0), (CRITICAL, 30)]),
            (0, 0, vec![]),
            // Never valid: if it passes validation, the result is empty instead of a wrong order.
            (10, 30, vec![]),
        ] {
            let got = of_periods(Duration::from_secs(all), Duration::from_secs(critical));
            assert_eq!(got, windows(&expected), "{all} {critical}");
        }
        // As upstream, parts of a second are cut.
        let got = of_periods(Duration::from_millis(2_500), Duration::from_millis(1_200));
        assert_eq!(got, windows(&[(0, 1), (CRITICAL, 1)]));
    }

    #[test]
    fn a_pod_belongs_to_the_last_group_that_begins_at_or_below_its_priority() {
        let groups = windows(&[(1_000, 3), (0, 1), (-500, 7), (CRITICAL, 2)]);
        assert_eq!(groups.iter().map(|w| w.seconds).collect::<Vec<_>>(), [7, 1, 3, 2]);
        for (priority, group) in [
            (i32::MIN, 0),
            (-501, 0),
            (-500, 0),
            (-1, 0),
            (0, 1),
            (999, 1),
            (1_000, 2),
            (1_001, 2),
            (CRITICAL - 1, 2),
            (CRITICAL, 3),
            (CRITICAL + 1_000, 3),
            (i32::MAX, 3),
        ] {
            assert_eq!(group_of(&groups, priority), group, "{priority}");
        }
        assert_eq!(total(&groups), Duration::from_secs(13));
    }

    proptest! {
        #[test]
        fn groups_are_ordered_as_priorities_are(
            groups in prop::collection::btree_map(any::<i32>(), 0..9_i64, 1..6),
            one in any::<i32>(), other in any::<i32>(),
        ) {
            let groups = windows(&groups.into_iter().collect::<Vec<_>>());
            let (low, high) = (one.min(other), one.max(other));
            prop_assert!(group_of(&groups, low) <= group_of(&groups, high));
            let group = groups[group_of(&groups, low)];
            prop_assert!(group.priority <= low || group == groups[0]);
        }
    }
}
