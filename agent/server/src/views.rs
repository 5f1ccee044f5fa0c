//! The latest snapshot of all pods, published by the driver after each turn.
//!
//! Read by other threads through an `arc-swap`: a reader never waits and never delays the driver.

use std::sync::Arc;

use arc_swap::ArcSwap;
use pintle_agent_core::view::Snapshot;

/// Holds the latest snapshot; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Views(Arc<ArcSwap<Snapshot>>);

impl Views {
    /// Publishes a snapshot.
    pub fn store(&self, snapshot: Snapshot) {
        self.0.store(Arc::new(snapshot));
    }

    /// The latest one.
    pub fn load(&self) -> Arc<Snapshot> {
        self.0.load_full()
    }
}
