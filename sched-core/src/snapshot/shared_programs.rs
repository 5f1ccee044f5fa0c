//! Compiled programs, each kept once for all pods that are compiled to the same.
//!
//! Input: programs with keyed hashes, which tenants cannot make collide. Output: shared programs.
//! Owner: the cluster. Bounds: the programs in use, and those of the time since the last sweep.

use std::sync::Arc;

use crate::intern::FastMap;
use crate::program::Program;

/// Programs by hash.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedPrograms {
    by_hash: FastMap<u64, Vec<Arc<Program>>>,
    len: usize,
}

impl SharedPrograms {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the kept program equal to this one, which has this hash.
    pub(super) fn share(&mut self, hash: u64, program: Program) -> Arc<Program> {
        let same = self.by_hash.entry(hash).or_default();
        if let Some(kept) = same.iter().find(|kept| ***kept == program) {
            return Arc::clone(kept);
        }
        let program = Arc::new(program);
        same.push(Arc::clone(&program));
        self.len += 1;
        program
    }

    /// Drops programs that nothing else holds; calls `keep` with each of the others.
    pub(super) fn sweep(&mut self, mut keep: impl FnMut(&Program)) {
        self.by_hash.retain(|_, same| {
            same.retain(|program| Arc::strong_count(program) > 1);
            same.iter().for_each(|program| keep(program));
            !same.is_empty()
        });
        self.len = self.by_hash.values().map(Vec::len).sum();
    }
}
