//! When the records of pods' resources are written.
//!
//! Encoding them goes through all pods, so what changes within `SAVE_EVERY` is written together:
//! a hundred pods that are admitted cost a few files and not one each. A sync that waits for its
//! record waits no longer than for the turn's end.

use std::time::Duration;

use pintle_agent_core::worker::Pods;
use pintle_agent_host::ledger::Ledger;
use tokio::time::Instant;

/// Least time between two encodings that nobody waits for: at least so long, and so long for each
/// pod, because each goes through all of them.
const SAVE_EVERY: Duration = Duration::from_millis(100);
const SAVE_EVERY_PER_POD: Duration = Duration::from_millis(2);
/// Pods for which it grows.
const SAVED_PODS_MAX: u32 = 1000;

/// Orders writes of the ledger.
pub(super) struct Saver {
    ledger: Ledger,
    /// When the next write may be ordered.
    next_at: Instant,
    waited_for: bool,
}

impl Saver {
    pub(super) fn new(ledger: Ledger) -> Self {
        Self { ledger, next_at: Instant::now(), waited_for: false }
    }

    /// Ends when everything that was decided by now is durable.
    pub(super) fn wait(&mut self, pods: &Pods) -> impl Future<Output = ()> + use<> {
        let unsaved = pods.is_unsaved();
        self.waited_for |= unsaved;
        self.ledger.wait(unsaved)
    }

    /// Orders a write when it is time; called at the end of each turn.
    pub(super) fn save(&mut self, pods: &mut Pods) {
        let now = Instant::now();
        if !pods.is_unsaved() || (now < self.next_at && !self.waited_for) {
            return;
        }
        self.waited_for = false;
        self.next_at = now + every(pods.workers().count());
        let (allocated, actuated) = pods.checkpoints();
        self.ledger.save(allocated, actuated);
    }

    /// How long the loop may sleep that would sleep so long.
    pub(super) fn within(&self, sleep: Duration, pods: &Pods) -> Duration {
        if !pods.is_unsaved() {
            return sleep;
        }
        sleep.min(self.next_at.saturating_duration_since(Instant::now()))
    }
}

fn every(pods: usize) -> Duration {
    SAVE_EVERY.max(SAVE_EVERY_PER_POD * u32::try_from(pods).unwrap_or(u32::MAX).min(SAVED_PODS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_pods_are_encoded_less_often() {
        let millis = [0, 50, 110, 500, 1 << 40].map(|pods| every(pods).as_millis());
        assert_eq!(millis, [100, 100, 220, 1000, 2000]);
    }
}
