//! The read side of a cluster: everything that filters and scores read, cheap to copy.
//!
//! Input: built and changed by `Cluster` alone. Output: what a decider reads.
//! Owner: the writer holds one; `publish` hands out copies that share all chunks and tables.
//! Bounds: a copy is some twenty pointers. A change copies only the chunk or table it touches, and
//! only while a reader still holds the old one.
//! Why copies instead of locks: a decider must see one consistent epoch and never wait.

use std::sync::Arc;

use super::changes::Changes;
use crate::bits::{Bits, RowSet};
use crate::chunk::{CHUNK_ROWS, Chunk, Numbers};
use crate::columns::counters::{Counter, CowVec, Term, TermId};
use crate::columns::index::Index;
use crate::columns::keys::KeyTable;
use crate::columns::sparse::{CowMap, ImageRows, PortUse, ScalarColumn};
use crate::columns::taints::NodeTaint;
use crate::config::Profile;
use crate::intern::{FastMap, Str};
use crate::program::Program;

/// Columns of what few nodes have.
#[derive(Clone, Debug, Default)]
pub(crate) struct SparseColumns {
    pub(crate) taints: Arc<Vec<(NodeTaint, RowSet)>>,
    pub(crate) images: CowMap<Str, ImageRows>,
    pub(crate) features: CowMap<Str, RowSet>,
    pub(crate) scalars: CowMap<Str, ScalarColumn>,
    pub(crate) ports: CowMap<(Str, i32), PortUse>,
}

/// Counters of pods, and terms of existing pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterColumns {
    pub(crate) counters: CowVec<Counter>,
    pub(crate) terms: CowVec<Term>,
    /// Counts changes of any term's domains.
    pub(crate) terms_version: u64,
    /// Terms of existing pods that select a class of incoming pods, by class.
    pub(crate) class_terms: CowVec<Vec<TermId>>,
    /// Number of times a selector first mentioned an own label.
    pub(crate) own_keys_version: u32,
}

/// One epoch of a cluster. Its parts are nested by value: filters read them without a further
/// pointer.
#[derive(Clone, Debug)]
pub struct View {
    pub(crate) profile: Arc<Profile>,
    pub(crate) epoch: u64,
    /// Reservations applied, as `shared::Claim` counts them.
    pub(crate) whole: u64,
    pub(crate) rows: usize,
    pub(crate) valid: Arc<Bits>,
    pub(crate) nodes: usize,
    pub(crate) names: Arc<Vec<Str>>,
    /// Rows by name, over `names`.
    pub(crate) row_index: Arc<Index>,
    pub(crate) chunks: Arc<Vec<Arc<Chunk>>>,
    /// Rows with recent changes of their numbers or extended resources.
    pub(crate) changes: Changes,
    pub(crate) wide: Arc<FastMap<u32, Numbers>>,
    pub(crate) wide_rows: Arc<Bits>,
    pub(crate) unschedulable: Arc<Bits>,
    pub(crate) keys: Arc<KeyTable>,
    pub(crate) sparse: SparseColumns,
    pub(crate) wildcard_ip: Str,
    pub(crate) empty_text: Str,
    /// The kernels cover the profile's utilisation score.
    pub(crate) fit_is_default: bool,
    /// The kernels cover the profile's balance score.
    pub(crate) balance_is_default: bool,
    pub(crate) counts: CounterColumns,
}

impl View {
    /// Counts every change; two views of one cluster with the same epoch are the same.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns true if a program still knows all labels of its pod that selectors mention.
    /// Otherwise it must be compiled again, because a selector has since mentioned an own label.
    #[must_use]
    pub fn is_current(&self, program: &Program) -> bool {
        program.own_keys_version == self.counts.own_keys_version
    }

    /// The profile it was built for.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Number of nodes.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes
    }

    /// The number columns, a chunk at a time.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().map(|c| &**c)
    }

    /// Bytes of all tables that grow with the nodes, strings excluded.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let sets = self.sparse.taints.iter().map(|(_, rows)| rows.heap_bytes() + 48);
        let images = self.sparse.images.iter().map(|(_, i)| i.rows.heap_bytes() + 56);
        let features = self.sparse.features.iter().map(|(_, rows)| rows.heap_bytes() + 48);
        let scalars = self.sparse.scalars.iter().map(|(_, column)| column.heap_bytes());
        self.chunks.len() * size_of::<Chunk>()
            + self.keys.heap_bytes()
            + sets.chain(images).chain(features).chain(scalars).sum::<usize>()
            + self.names.capacity() * 4
            + self.row_index.heap_bytes()
            + self.valid.words().len() * 8 * 3
    }

    /// Size of the row table, holes included.
    #[must_use]
    pub fn row_count(&self) -> usize {
        self.rows
    }

    /// Row of the node of that name.
    pub(crate) fn row_of(&self, name: Str) -> Option<u32> {
        self.row_index.find(name, &self.names)
    }

    /// Rows that hold a node.
    #[must_use]
    pub fn valid_rows(&self) -> &Bits {
        &self.valid
    }

    /// Exact numbers of a row.
    #[must_use]
    pub fn numbers(&self, row: u32) -> Numbers {
        match self.wide.get(&row) {
            Some(numbers) => *numbers,
            None => self.chunk(row).numbers(row as usize % CHUNK_ROWS),
        }
    }

    /// Returns the number of changes of a row.
    #[must_use]
    pub fn version(&self, row: u32) -> u64 {
        self.chunk(row).version[row as usize % CHUNK_ROWS].into()
    }

    pub(crate) fn chunk(&self, row: u32) -> &Chunk {
        &self.chunks[row as usize / CHUNK_ROWS]
    }

    /// Allocatable and requested amount of an extended resource; `None` if the node lacks it.
    pub(crate) fn scalar(&self, name: Str, row: u32) -> (Option<i64>, i64) {
        let Some(column) = self.sparse.scalars.get(&name) else { return (None, 0) };
        (column.allocatable(row), column.used(row))
    }

    /// Allocatable and requested amount of an extended resource on a node.
    #[must_use]
    pub fn extended(&self, name: Str, row: u32) -> (i64, i64) {
        let (all, used) = self.scalar(name, row);
        (all.unwrap_or(0), used)
    }

    /// Replaces the numbers of a row, and records that it changed.
    pub(crate) fn set_numbers(&mut self, row: u32, numbers: &Numbers) {
        let at = row as usize % CHUNK_ROWS;
        let chunk = Arc::make_mut(&mut Arc::make_mut(&mut self.chunks)[row as usize / CHUNK_ROWS]);
        if numbers.is_narrow() {
            chunk.set_numbers(at, numbers);
            chunk.balance[at] = crate::balance::balance_default(numbers);
            if self.wide.contains_key(&row) {
                Arc::make_mut(&mut self.wide).remove(&row);
                Arc::make_mut(&mut self.wide_rows).clear(row);
            }
        } else {
            chunk.set_numbers(at, &Numbers::default());
            Arc::make_mut(&mut self.wide).insert(row, *numbers);
            Arc::make_mut(&mut self.wide_rows).set(row);
        }
        let version = &mut chunk.version[at];
        *version = version.checked_add(1).expect("fewer than 2^32 changes of a node");
    }
}
