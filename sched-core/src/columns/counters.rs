//! Incremental counters: how many pods of a selector, or with an affinity term, sit in each domain.
//!
//! Input: a pod appears on or leaves a node. Output: counts by node and by value of a topology key.
//! Owner: the writer of the cluster. Bounds: a counter holds one entry a node with a match and one
//! a domain with a match, of the keys asked for.
//! Why: upstream walks every pod for every pod it places; here a decision reads sums that each
//! placement changed in a handful of places.

use std::sync::Arc;

use super::domain_counts::DomainCounts;
use super::keys::{KeyColumn, KeyId, KeyTable};
use super::row_counts::RowCounts;
use crate::bits::Bits;
use crate::intern::Str;
use crate::selector::Selector;

/// Index of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterId(pub u32);

/// Index of an existing pods' affinity term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TermId(pub u32);

/// Namespaces of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Every namespace, even one without an object.
    All,
    /// These, sorted. Equal lists of the terms of a pod are shared.
    These(Arc<[Str]>),
}

impl Scope {
    /// Returns true if a namespace is within.
    #[must_use]
    pub fn contains(&self, namespace: Str) -> bool {
        match self {
            Self::All => true,
            Self::These(list) => list.binary_search(&namespace).is_ok(),
        }
    }
}

/// One condition on a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodMatch {
    /// Its namespace.
    pub scope: Scope,
    /// Its labels.
    pub selector: Selector,
}

impl PodMatch {
    /// Returns true if a pod with these labels in this namespace meets it.
    #[must_use]
    pub fn matches(&self, namespace: Str, labels: &[(Str, Str)]) -> bool {
        self.scope.contains(namespace) && self.selector.matches(labels)
    }
}

/// Key of a counter: it counts pods that meet every condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CounterKey {
    /// All of these must hold.
    pub all: Box<[PodMatch]>,
    /// Pods being deleted do not count (topology spread), or do (affinity).
    pub live_only: bool,
}

impl CounterKey {
    /// Returns true if a pod counts.
    #[must_use]
    pub fn matches(&self, namespace: Str, labels: &[(Str, Str)]) -> bool {
        !self.all.is_empty() && self.all.iter().all(|m| m.matches(namespace, labels))
    }
}

/// Pods of one selector.
#[derive(Clone, Debug)]
pub struct Counter {
    /// The key.
    pub key: CounterKey,
    /// Matching pods by row.
    pub nodes: RowCounts,
    /// Matching pods by value id of each topology key asked for.
    pub domains: Vec<(KeyId, DomainCounts)>,
}

impl Counter {
    /// An empty counter.
    #[must_use]
    pub fn new(key: CounterKey) -> Self {
        Self { key, nodes: RowCounts::default(), domains: Vec::new() }
    }

    /// Matching pods by value id of `key`, which must have been tracked.
    #[must_use]
    pub fn domain(&self, key: KeyId) -> &DomainCounts {
        let found = self.domains.iter().find(|(k, _)| *k == key);
        &found.expect("the compiler tracks every key it counts by").1
    }

    /// Adds up the pods on the rows of a set by value of a key; those on rows without the key count
    /// for the value `lacking`.
    pub fn sum(&self, column: &KeyColumn, rows: &Bits, lacking: usize, sums: &mut [i64]) {
        if let RowCounts::Dense(planes) = &self.nodes
            && column.is_narrow()
            && lacking == 0
        {
            for (values, sum) in column.rows.iter().zip(sums).skip(1) {
                *sum += planes.sum(values, rows) as i64;
            }
            return;
        }
        for (row, n) in self.nodes.iter().filter(|(row, _)| rows.get(*row)) {
            let value = match column.value(row) {
                0 => lacking,
                value => value as usize,
            };
            sums[value] += i64::from(n);
        }
    }

    /// Starts to count by the values of `key`.
    pub fn track(&mut self, key: KeyId, keys: &KeyTable) {
        if self.domains.iter().any(|(k, _)| *k == key) {
            return;
        }
        let column = keys.column(key);
        let mut counts = DomainCounts::default();
        for (row, count) in self.nodes.iter() {
            add_to_domain(&mut counts, column, row, count.cast_signed());
        }
        self.domains.push((key, counts));
    }

    /// One pod more (or less) on `row`, of a table of `rows`.
    pub fn add(&mut self, row: u32, rows: usize, delta: i32, keys: &KeyTable) {
        self.nodes.add(row, delta, rows);
        for (key, counts) in &mut self.domains {
            add_to_domain(counts, keys.column(*key), row, delta);
        }
    }
}

fn add_to_domain(counts: &mut DomainCounts, column: &KeyColumn, row: u32, delta: i32) {
    let value = column.value(row);
    if value != 0 {
        counts.add(value, delta, column.value_ids());
    }
}

/// Effect of an existing pod's affinity term on an incoming pod it selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TermKind {
    /// Forbids the domain.
    RequiredAnti,
    /// Attracts with the configured weight.
    RequiredAffinity,
    /// Attracts with this weight, or repels when negative.
    Preferred(i32),
}

/// An affinity term, as carried by any number of existing pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TermKey {
    /// Effect.
    pub kind: TermKind,
    /// Namespaces named.
    pub scope: Scope,
    /// Namespaces by label, evaluated against the incoming pod's namespace.
    pub namespaces: Selector,
    /// Pods selected.
    pub selector: Selector,
    /// Topology key.
    pub topology: Str,
}

/// Pods that carry one term, by domain.
#[derive(Clone, Debug)]
pub struct Term {
    /// The term.
    pub key: TermKey,
    /// Its topology key.
    pub topology: KeyId,
    /// Pods with the term by value id.
    pub domains: DomainCounts,
    /// Sum of `domains`.
    pub total: u32,
    /// The same pods by row, if the topology key is the hostname.
    pub nodes: Option<RowCounts>,
}

impl Term {
    /// One pod more (or less) with the term on `row`, of a table of `rows`.
    pub fn add(&mut self, row: u32, rows: usize, delta: i32, keys: &KeyTable) {
        let column = keys.column(self.topology);
        if column.value(row) != 0 {
            if let Some(nodes) = &mut self.nodes {
                nodes.add(row, delta, rows);
            }
            add_to_domain(&mut self.domains, column, row, delta);
            self.total = self.total.checked_add_signed(delta).expect("sum of domains");
        }
    }
}

/// Items in a block of a [`CowVec`].
const BLOCK: usize = 32;

/// A vector that is copied by one pointer; a change copies one block of pointers.
#[derive(Debug)]
pub struct CowVec<T> {
    blocks: Arc<Vec<Arc<Vec<Arc<T>>>>>,
    len: usize,
    /// Counts changes other than by `item_mut`.
    shape: u64,
}

impl<T> Clone for CowVec<T> {
    fn clone(&self) -> Self {
        Self { blocks: Arc::clone(&self.blocks), len: self.len, shape: self.shape }
    }
}

impl<T> Default for CowVec<T> {
    fn default() -> Self {
        Self { blocks: Arc::default(), len: 0, shape: 0 }
    }
}

impl<T: Clone> CowVec<T> {
    /// Number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The item at `at`.
    #[must_use]
    pub fn get(&self, at: u32) -> &T {
        &self.blocks[at as usize / BLOCK][at as usize % BLOCK]
    }

    /// The item at `at` for writing; copied first if a reader still holds it.
    pub fn get_mut(&mut self, at: u32) -> &mut T {
        self.shape += 1;
        self.item_mut(at)
    }

    /// Like `get_mut`, for changes that are recorded and replayed on copies.
    pub(crate) fn item_mut(&mut self, at: u32) -> &mut T {
        let block = &mut Arc::make_mut(&mut self.blocks)[at as usize / BLOCK];
        Arc::make_mut(&mut Arc::make_mut(block)[at as usize % BLOCK])
    }

    /// Appends and returns the index.
    pub fn push(&mut self, item: T) -> u32 {
        self.shape += 1;
        let blocks = Arc::make_mut(&mut self.blocks);
        if self.len.is_multiple_of(BLOCK) {
            blocks.push(Arc::default());
        }
        let block = blocks.last_mut().expect("pushed above");
        Arc::make_mut(block).push(Arc::new(item));
        self.len += 1;
        u32::try_from(self.len - 1).expect("fewer than 2^32 items")
    }

    /// Puts an item at a free index, or at the end; returns its index.
    pub(crate) fn put(&mut self, item: T, free: &mut Vec<u32>) -> u32 {
        match free.pop() {
            Some(at) => {
                *self.get_mut(at) = item;
                at
            }
            None => self.push(item),
        }
    }

    /// Equal for two copies that differ by recorded changes only.
    pub(crate) fn shape(&self) -> u64 {
        self.shape
    }

    /// Returns true if both are the same copy.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.blocks, &other.blocks)
    }

    /// Shares the items of `other`.
    pub(crate) fn share(&mut self, other: &Self) {
        super::sparse::share(&mut self.blocks, &other.blocks);
        (self.len, self.shape) = (other.len, other.shape);
    }

    /// All items.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flat_map(|b| b.iter()).map(|item| &**item)
    }
}
