//! Rows that changed lately, so that caches by row know what to compute again.
//!
//! Input: changed rows. Output: a stamp that names the state of all rows, and the rows that changed
//! since an older stamp. Owner: the writer of the cluster; readers hold it within a view.
//! Bounds: the last `BLOCK * BLOCKS` changes; an older cache computes all rows. A change after a
//! publication copies one block.
//! Why stamps from one source: two clusters, or two copies of one that went separate ways, never
//! share a stamp, so that results kept by a decider cannot be taken for those of another cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Changes that are copied together.
const BLOCK: usize = 64;
/// Full blocks kept.
const BLOCKS: usize = 16;

/// The last assigned stamp. The order of stamps means nothing: they only have to differ.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A stamp and the changed row.
type Change = (u64, u32);

/// The last changes of rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    stamp: u64,
    recent: Arc<Vec<Change>>,
    older: Arc<Vec<Arc<Vec<Change>>>>,
}

impl Changes {
    /// Returns the stamp of the state of all rows; zero before the first change.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Records that a row changed.
    pub(crate) fn push(&mut self, row: u32) {
        self.stamp = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        if self.recent.len() == BLOCK {
            let older = Arc::make_mut(&mut self.older);
            if older.len() == BLOCKS {
                older.remove(0);
            }
            older.push(std::mem::take(&mut self.recent));
        }
        let recent = Arc::make_mut(&mut self.recent);
        if recent.capacity() < BLOCK {
            recent.reserve_exact(BLOCK - recent.len());
        }
        recent.push((self.stamp, row));
    }

    /// Calls `each` with the rows that changed since `stamp`, some of them more than once; returns
    /// false, without a call, if they are no longer known.
    pub(crate) fn since(&self, stamp: u64, mut each: impl FnMut(u32)) -> bool {
        if stamp == self.stamp {
            return true;
        }
        let at = |block: &[Change]| block.binary_search_by_key(&stamp, |change| change.0).ok();
        let mut rest = |block: &[Change]| block.iter().for_each(|(_, row)| each(*row));
        if let Some(at) = at(&self.recent) {
            rest(&self.recent[at + 1..]);
            return true;
        }
        let found = self.older.iter().enumerate().rev().find_map(|(k, b)| Some((k, at(b)?)));
        let Some((block, at)) = found else { return false };
        rest(&self.older[block][at + 1..]);
        self.older[block + 1..].iter().for_each(|block| rest(block));
        rest(&self.recent);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_since_a_stamp_are_complete_or_reported_as_unknown() {
        let mut changes = Changes::default();
        let mut stamps = Vec::new();
        for row in 0..2_000 {
            changes.push(row);
            stamps.push(changes.stamp());
        }
        for (at, stamp) in stamps.iter().enumerate() {
            let mut rows = Vec::new();
            let known = changes.since(*stamp, |row| rows.push(row as usize));
            assert!(!known && rows.is_empty() || rows.into_iter().eq(at + 1..2_000), "{at}");
            assert!(known || at < 2_000 - BLOCK * BLOCKS, "{at}");
        }
        assert!(!changes.since(stamps[0], |_| ()), "the log is bounded");
    }

    #[test]
    fn copies_that_went_separate_ways_share_no_stamp() {
        let mut one = Changes::default();
        one.push(1);
        let (common, mut two) = (one.stamp(), one.clone());
        one.push(2);
        two.push(3);
        assert!(!two.since(one.stamp(), |_| ()), "it never was in that state");
        let mut rows = Vec::new();
        assert!(two.since(common, |row| rows.push(row)) && rows == [3]);
    }
}
