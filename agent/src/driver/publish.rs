//! Keeps the snapshot that other threads read up to date with the workers.
//!
//! After each batch of inputs only the views of the touched pods are rebuilt; the snapshot shares
//! the rest with the one before. A pod is in the snapshot before anything is done for it: the
//! sweeps of remains rely on that.

use std::sync::Arc;

use pintle_agent_core::view::{PodView, Snapshot};
use pintle_agent_core::worker::{Pods, WorkerStage};
use pintle_agent_server::Views;
use pintle_daemon::clock;

/// The snapshot as it was last published.
#[derive(Debug)]
pub(super) struct Publisher {
    views: Views,
    last: Snapshot,
}

impl Publisher {
    pub(super) fn new(views: Views) -> Self {
        Self { views, last: Snapshot::default() }
    }

    /// Publishes the changes since the last call, if there are any.
    pub(super) fn publish(&mut self, pods: &mut Pods) {
        let touched = pods.take_touched();
        let last = &mut self.last;
        let same = last.sources_ready == pods.sources_ready();
        if touched.is_empty() && same && last.unreadable == *pods.unreadable() {
            return;
        }
        last.sources_ready = pods.sources_ready();
        last.unreadable.clone_from(pods.unreadable());
        let now = clock::clocks();
        for uid in touched {
            let worker = pods.worker(&uid);
            match PodView::of(pods, &uid, now) {
                Some(view) => self.last.pods.insert(uid.clone(), Arc::new(view)),
                None => self.last.pods.remove(&uid),
            }
            self.last.orphans.retain(|orphan| orphan.uid != uid);
            self.last.orphans.extend(
                worker
                    .filter(|w| w.pod().is_none() && w.stage() != WorkerStage::Finished)
                    .map(|w| Arc::clone(w.observed())),
            );
        }
        self.views.store(self.last.clone());
    }
}
