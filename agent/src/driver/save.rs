//! When the records of pods' resources are written.
//!
//! Encoding them goes through all pods, so changes within `SAVE_EVERY` are written together: a
//! hundred pods that are admitted cost a few files and not one each. A sync that waits for its
//! record waits no longer than for the turn's end.
//!
//! A full disk takes no record. The pod with the end to record may hold the space: all of that pod
//! is removed that is not needed to show its end, and then the record is written at once.

use std::time::Duration;

use pintle_agent_core::worker::Pods;
use pintle_agent_host::ledger::Ledger;
use pintle_agent_host::ledger::writer::Writing;
use tokio::time::Instant;

/// Least time between two encodings without a waiting sync: a base, plus a time for each pod,
/// because each encoding goes through all of them.
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

    /// The write of everything that was decided by now.
    pub(super) fn wait(&mut self, pods: &Pods) -> Writing {
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

    /// How long the loop may sleep, given that it would sleep this long.
    pub(super) fn within(&self, sleep: Duration, pods: &Pods) -> Duration {
        if !pods.is_unsaved() {
            return sleep;
        }
        sleep.min(self.next_at.saturating_duration_since(Instant::now()))
    }
}

/// True once the record is durable; makes room and retries after a failure.
pub(super) async fn is_recorded(mut record: Writing, make_room: impl Future<Output = ()>) -> bool {
    if record.ended().await {
        return true;
    }
    make_room.await;
    record.again().await
}

fn every(pods: usize) -> Duration {
    SAVE_EVERY.max(SAVE_EVERY_PER_POD * u32::try_from(pods).unwrap_or(u32::MAX).min(SAVED_PODS_MAX))
}

#[cfg(test)]
mod tests {
    use pintle_agent_core::ledger::LedgerEntry;
    use pintle_agent_core::types::PodUid;
    use pintle_agent_host::ledger::writer::load;

    use super::*;

    #[test]
    fn room_is_made_for_a_record_only_where_there_is_none() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime.expect("a runtime"), async {
            let dir = tempfile::tempdir().expect("a folder");
            let root = dir.path().join("root");
            let mut ledger = Ledger::start(root.clone());
            let text = || [(&PodUid::from("u"), &LedgerEntry::default())].into_iter().collect();
            ledger.save(text(), text());
            assert!(!is_recorded(ledger.wait(false), async {}).await, "there is no such folder");
            let make_room = async { std::fs::create_dir(&root).expect("made") };
            assert!(is_recorded(ledger.wait(false), make_room).await);
            assert_eq!(load(&root).allocated.len(), 1);
            let record = ledger.wait(false);
            assert!(is_recorded(record, async { unreachable!("it is written") }).await);
        });
    }

    #[test]
    fn many_pods_are_encoded_less_often() {
        let millis = [0, 50, 110, 500, 1 << 40].map(|pods| every(pods).as_millis());
        assert_eq!(millis, [100, 100, 220, 1000, 2000]);
    }
}
