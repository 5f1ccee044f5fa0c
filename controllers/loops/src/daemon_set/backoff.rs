//! How long a DaemonSet waits before it deletes the next failed pod of a node: 1 s, twice as long
//! each time, 15 min at most.
//!
//! Input: failures with their times. Output: waits. An entry is forgotten after twice the longest
//! wait. Owner: the controller; a sync has a copy of the entries of its set.
// k8s: staging/src/k8s.io/client-go/util/flowcontrol/backoff.go

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(15 * 60);

/// The waits of one set, by node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FailedPods {
    nodes: BTreeMap<String, FailedPod>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FailedPod {
    wait: Duration,
    at: Timestamp,
}

impl FailedPod {
    fn age(&self, now: Timestamp) -> Duration {
        Duration::try_from(now.duration_since(self.at)).unwrap_or_default()
    }

    fn is_expired(&self, now: Timestamp) -> bool {
        self.age(now) > WAIT_MAX * 2
    }
}

impl FailedPods {
    /// The wait that applies now: as long as the whole one, as upstream has it; `None` when it is
    /// over.
    // k8s: backoff.go IsInBackOffSinceUpdate, Get
    pub(super) fn wait(&self, node: &str, now: Timestamp) -> Option<Duration> {
        let known = self.nodes.get(node).filter(|known| !known.is_expired(now))?;
        (known.age(now) < known.wait).then_some(known.wait)
    }

    /// Records that a failed pod is deleted.
    // k8s: backoff.go Next
    pub(super) fn record(&mut self, node: &str, now: Timestamp) {
        let known = self.nodes.get(node).filter(|known| !known.is_expired(now));
        let wait = known.map_or(WAIT_MIN, |known| (known.wait * 2).min(WAIT_MAX));
        self.nodes.insert(node.to_owned(), FailedPod { wait, at: now });
    }

    /// Forgets what has expired.
    // k8s: backoff.go GC
    pub(super) fn forget_expired(&mut self, now: Timestamp) {
        self.nodes.retain(|_, known| !known.is_expired(now));
    }

    /// Nothing has failed lately.
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn wait_doubles_up_to_the_longest_and_starts_again_after_a_quiet_time() {
        let mut failed = FailedPods::default();
        let mut now = Timestamp::UNIX_EPOCH;
        let mut waits = Vec::new();
        for _ in 0..12 {
            assert_eq!(failed.wait("a", now), None);
            failed.record("a", now);
            let wait = failed.wait("a", now).expect("it has just failed");
            waits.push(wait.as_secs());
            now += SignedDuration::try_from(wait).expect("a short wait");
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]);
        assert_eq!(failed.wait("b", now), None, "each node waits for itself");
        now += SignedDuration::from_secs(1801);
        failed.record("a", now);
        assert_eq!(failed.wait("a", now), Some(WAIT_MIN));
        failed.forget_expired(now + SignedDuration::from_secs(1801));
        assert!(failed.is_empty());
    }
}
