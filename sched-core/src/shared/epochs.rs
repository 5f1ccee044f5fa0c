//! The epochs that deciders read: each follows the writer's view in place, while it has no reader.
//!
//! Input: the writer's view and the changes since the last publication. Output: the next epoch.
//! Owner: the holder of the write lock. Bounds: `EPOCHS_MAX` copies of what pods change, and
//! `CHANGES_MAX` changes that one of them lacks.
//! Why several copies: publishing one that shares everything makes the next change of each chunk
//! and counter copy it. A copy without readers catches up by the few changes it lacks. See
//! adr/0107.

use std::collections::VecDeque;

use super::Published;
use crate::snapshot::replica::PodChange;
use crate::snapshot::{Cluster, View};
use crate::sync::Arc;

/// Copies kept: the published one, one for each decider still reading, and one to write.
const EPOCHS_MAX: usize = 8;
/// Changes that a copy may lack; one further behind is dropped for a new one that shares all
/// tables.
const CHANGES_MAX: usize = 1024;

/// Epochs, the oldest first and the published one last, and the changes since the oldest.
#[derive(Debug)]
pub(super) struct Epochs {
    /// Each copy with the number of changes applied to it.
    copies: VecDeque<(Arc<View>, u64)>,
    changes: VecDeque<PodChange>,
    /// Number of changes recorded before the first of `changes`.
    first: u64,
}

impl Epochs {
    /// Starts to record the changes of a cluster, of which `published` is the current copy.
    pub(super) fn of(cluster: &mut Cluster, published: Arc<View>) -> Self {
        cluster.log = Some(Vec::new());
        Self { copies: [(published, 0)].into(), changes: VecDeque::new(), first: 0 }
    }

    /// Publishes the cluster, if it has changed.
    pub(super) fn publish(&mut self, cluster: &mut Cluster, cell: &Published<View>) {
        self.changes.extend(cluster.log.iter_mut().flat_map(|log| log.drain(..)));
        let last = self.first + self.changes.len() as u64;
        let (published, seen) = self.copies.back().expect("one is published");
        if *seen == last && published.shows(&cluster.view) {
            return;
        }
        let next = self.next(cluster);
        cell.replace(Arc::clone(&next));
        self.copies.push_back((next, last));
        self.forget(last);
    }

    /// Returns a copy without readers, brought up to date; a new one if all have readers.
    fn next(&mut self, cluster: &Cluster) -> Arc<View> {
        for at in 0..self.copies.len() {
            let (copy, seen) = &mut self.copies[at];
            let from = (*seen - self.first) as usize;
            if let Some(view) = Arc::get_mut(copy) {
                view.follow(&cluster.view, self.changes.range(from..));
                return self.copies.remove(at).expect("found above").0;
            }
        }
        Arc::new(cluster.publish())
    }

    /// Drops copies that are too old, and changes applied to all copies.
    fn forget(&mut self, last: u64) {
        while self.copies.len() > EPOCHS_MAX
            || self.copies.front().is_some_and(|(_, seen)| seen + (CHANGES_MAX as u64) < last)
        {
            self.copies.pop_front();
        }
        let oldest = self.copies.front().map_or(last, |(_, seen)| *seen);
        self.changes.drain(..(oldest - self.first) as usize);
        self.first = oldest;
    }
}
