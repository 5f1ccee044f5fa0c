//! Node labels by key: a column of value ids, and a bitset a value while the key has few values.
//!
//! Input: the labels of a node. Output: which nodes carry a key, a value, a number in a range; and
//! the topology domain of a node, which is just the value id of the topology key.
//! Owner: the writer of the cluster. Bounds: a bitset a value up to `NARROW_VALUES` values a key;
//! a key with more (hostname) keeps the column alone. A value costs a byte a node, four then. A key
//! that few nodes carry (`RARE_ROWS`, or one node of 64) is a list of these, unless pods ask for
//! it: a node may have very many keys of its own. So is any key that no pod asks for once
//! `COLUMNS_MAX` of them have columns: a few nodes may have very many keys in common.
//! Why inverted: a requirement over 5,000 nodes is then 79 ORs instead of 5,000 map lookups.

use std::sync::Arc;

use super::index::{self, Index};
use super::sparse::CowMap;
use crate::bits::{Bits, WORD_ROWS};
use crate::chunk::CHUNK_ROWS;
use crate::intern::{FastMap, Str};

/// Values of a key up to which each has a bitset of its own.
pub const NARROW_VALUES: usize = 64;

/// Nodes with a key up to which it has no column, whatever the size of the cluster.
const RARE_ROWS: usize = 8;

/// Columns of keys that no pod mentions.
const COLUMNS_MAX: usize = 512;

/// Label of a node's own name, a key with mostly one node per value.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";

/// A label key of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub u32);

/// A value of a key: 1-based; 0 means that the node lacks the key.
pub type ValueId = u32;

/// Value ids by row, as narrow as the key.
#[derive(Clone, Debug)]
pub enum Values {
    /// For a key with a bitset for each value.
    Narrow(Vec<u8>),
    /// For any other key.
    Wide(Vec<ValueId>),
}

impl Values {
    fn widen(&mut self) {
        if let Self::Narrow(ids) = self {
            *self = Self::Wide(ids.iter().map(|id| (*id).into()).collect());
        }
    }

    fn set(&mut self, row: u32, id: ValueId) {
        match self {
            Self::Narrow(ids) => {
                *slot(ids, row) = u8::try_from(id).expect("few values while narrow");
            }
            Self::Wide(ids) => *slot(ids, row) = id,
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Narrow(ids) => ids.capacity(),
            Self::Wide(ids) => ids.capacity() * 4,
        }
    }
}

/// Returns the entry of a row; a column grows a chunk at a time, as doubling would cost more than
/// it.
fn slot<T: Clone + Default>(ids: &mut Vec<T>, row: u32) -> &mut T {
    if ids.len() <= row as usize {
        let rows = (row as usize + 1).next_multiple_of(CHUNK_ROWS);
        ids.reserve_exact(rows - ids.len());
        ids.resize(rows, T::default());
    }
    &mut ids[row as usize]
}

/// One key.
#[derive(Clone, Debug)]
pub struct KeyColumn {
    /// The key.
    pub name: Str,
    /// Value of each row, 0 when absent.
    pub values: Values,
    /// Rows that carry the key.
    pub present: Bits,
    /// Value ids by text, over `texts`.
    index: Index,
    /// Ids of values that no node has.
    free: Vec<ValueId>,
    /// Text of each value; at index 0 and at a free id the key, which is not the text of any value.
    pub texts: Vec<Str>,
    /// Values that are integers.
    pub numbers: FastMap<ValueId, i64>,
    /// Rows of each value.
    pub counts: Vec<u32>,
    /// Rows that carry the key.
    carriers: u32,
    /// It was made for a pod, and not because many nodes carry the key.
    is_asked_for: bool,
    /// Rows by value, while the key is narrow; empty afterwards.
    pub rows: Vec<Bits>,
}

impl KeyColumn {
    fn new(name: Str) -> Self {
        Self {
            name,
            values: Values::Narrow(Vec::new()),
            present: Bits::default(),
            index: Index::default(),
            free: Vec::new(),
            texts: vec![name],
            numbers: FastMap::default(),
            counts: vec![0],
            carriers: 0,
            is_asked_for: true,
            rows: vec![Bits::default()],
        }
    }

    /// Returns true if each value has a bitset.
    #[must_use]
    pub fn is_narrow(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Returns true if all of so many nodes carry the key.
    #[must_use]
    pub(crate) fn is_everywhere(&self, nodes: usize) -> bool {
        self.carriers as usize == nodes
    }

    /// Returns true if each value is of one row, so that a row is a domain.
    #[must_use]
    pub(crate) fn is_by_row(&self) -> bool {
        self.carriers as usize == self.texts.len() - 1 - self.free.len()
    }

    /// Number of value ids, the unused 0 included.
    #[must_use]
    pub fn value_ids(&self) -> usize {
        self.texts.len()
    }

    /// Value of a row, 0 when absent.
    #[must_use]
    pub fn value(&self, row: u32) -> ValueId {
        match &self.values {
            Values::Narrow(ids) => ids.get(row as usize).copied().unwrap_or(0).into(),
            Values::Wide(ids) => ids.get(row as usize).copied().unwrap_or(0),
        }
    }

    /// The id of a value, if some node has it.
    #[must_use]
    pub fn find(&self, text: Str) -> Option<ValueId> {
        self.index.find(text, &self.texts)
    }

    fn value_id(&mut self, text: Str, number: Option<i64>) -> ValueId {
        if let Some(id) = self.find(text) {
            return id;
        }
        if let Some(id) = self.free.pop() {
            self.texts[id as usize] = text;
            self.index.insert(id, &self.texts);
            number.map(|number| self.numbers.insert(id, number));
            return id;
        }
        let id = u32::try_from(self.texts.len()).expect("fewer than 2^32 values");
        index::push(&mut self.texts, text);
        self.index.insert(id, &self.texts);
        number.map(|number| self.numbers.insert(id, number));
        index::push(&mut self.counts, 0);
        if self.is_narrow() {
            if self.texts.len() > NARROW_VALUES {
                self.rows = Vec::new();
                self.values.widen();
            } else {
                self.rows.push(Bits::default());
            }
        }
        id
    }

    /// Drops a value that no node has; its id, under which no pod is counted, may be reused.
    fn forget(&mut self, id: ValueId) {
        self.index.remove(id, &self.texts);
        self.texts[id as usize] = self.name;
        self.numbers.remove(&id);
        self.free.push(id);
    }

    /// Adds to `out` the rows with a value id that is `wanted` in the table (indexed by value id).
    pub fn rows_where(&self, wanted: &[bool], out: &mut Bits) {
        if self.is_narrow() {
            for (rows, _) in self.rows.iter().zip(wanted).filter(|(_, wanted)| **wanted) {
                out.or(rows);
            }
        } else if let Values::Wide(values) = &self.values {
            crate::simd::rows_in_table(values, wanted, out.words_mut());
        }
    }
}

/// Returns how many of `rows` may carry a key that has no column.
fn rare_rows(rows: usize) -> usize {
    (rows / WORD_ROWS).max(RARE_ROWS)
}

/// A label of a node, with a key that few nodes carry.
#[derive(Clone, Copy, Debug)]
pub struct RareLabel {
    /// The node's row.
    pub row: u32,
    /// The value.
    pub value: Str,
    /// The value as a number, if it is one.
    pub number: Option<i64>,
}

/// All keys.
#[derive(Clone, Debug, Default)]
pub struct KeyTable {
    ids: FastMap<Str, KeyId>,
    columns: Vec<Arc<KeyColumn>>,
    /// Labels by key, of keys without a column.
    rare: CowMap<Str, Vec<RareLabel>>,
    /// Keys of a row without a column at the time when the row got them.
    rare_keys: CowMap<u32, Vec<Str>>,
    /// Keys without references.
    free: Vec<KeyId>,
    /// Columns made because many nodes carry the key.
    unasked: usize,
}

impl KeyTable {
    /// Returns the id of a key, new if never seen; a key may exist before any node carries it.
    pub fn intern(&mut self, name: Str) -> KeyId {
        if let Some(key) = self.find(name) {
            return key;
        }
        let key = self.new_column(name);
        let rare = self.rare.get(&name).cloned();
        if let Some(rare) = rare {
            self.rare.remove(&name);
            rare.iter().for_each(|label| self.fill(key, label));
        }
        key
    }

    fn new_column(&mut self, name: Str) -> KeyId {
        let (columns, free) = (&mut self.columns, &mut self.free);
        *self.ids.entry(name).or_insert_with(|| match free.pop() {
            Some(key) => {
                columns[key.0 as usize] = Arc::new(KeyColumn::new(name));
                key
            }
            None => {
                columns.push(Arc::new(KeyColumn::new(name)));
                KeyId(u32::try_from(columns.len() - 1).expect("fewer than 2^32 keys"))
            }
        })
    }

    /// Returns the nodes that carry a key without a column, in no order.
    #[must_use]
    pub fn rare(&self, name: Str) -> &[RareLabel] {
        self.rare.get(&name).map_or(&[], Vec::as_slice)
    }

    /// The id of a key, if it has a column.
    #[must_use]
    pub fn find(&self, name: Str) -> Option<KeyId> {
        self.ids.get(&name).copied()
    }

    /// The column of a key.
    #[must_use]
    pub fn column(&self, key: KeyId) -> &KeyColumn {
        &self.columns[key.0 as usize]
    }

    /// All columns.
    pub fn columns(&self) -> impl Iterator<Item = (KeyId, &KeyColumn)> {
        self.columns.iter().enumerate().map(|(i, c)| (KeyId(i as u32), &**c))
    }

    /// Sets a label of `row`, in a table of `rows`.
    pub fn set(&mut self, row: u32, rows: usize, key: Str, value: Str, number: Option<i64>) {
        let label = RareLabel { row, value, number };
        if let Some(key) = self.find(key) {
            return self.fill(key, &label);
        }
        let carriers = self.rare.entry(key);
        debug_assert!(carriers.iter().all(|other| other.row != row), "a row is cleared first");
        carriers.reserve_exact(usize::from(carriers.is_empty()));
        carriers.push(label);
        if carriers.len() > rare_rows(rows) && self.unasked < COLUMNS_MAX {
            let key = self.intern(key);
            Arc::make_mut(&mut self.columns[key.0 as usize]).is_asked_for = false;
            self.unasked += 1;
        } else {
            self.rare_keys.entry(row).push(key);
        }
    }

    fn fill(&mut self, key: KeyId, label: &RareLabel) {
        let column = Arc::make_mut(&mut self.columns[key.0 as usize]);
        let (row, id) = (label.row, column.value_id(label.value, label.number));
        assert_eq!(column.value(row), 0, "a row is cleared before it is set");
        column.values.set(row, id);
        column.counts[id as usize] += 1;
        column.carriers += 1;
        column.present.set(row);
        if column.is_narrow() {
            column.rows[id as usize].set(row);
        }
    }

    /// Removes all labels from `row`.
    pub fn clear(&mut self, row: u32) {
        let rare = self.rare_keys.get(&row).cloned().unwrap_or_default();
        self.rare_keys.remove(&row);
        // A key may have got a column since.
        for key in rare {
            if self.find(key).is_some() {
                continue;
            }
            let carriers = self.rare.entry(key);
            carriers.retain(|label| label.row != row);
            if carriers.is_empty() {
                self.rare.remove(&key);
            }
        }
        for column in &mut self.columns {
            let id = column.value(row);
            if id == 0 {
                continue;
            }
            let column = Arc::make_mut(column);
            column.values.set(row, 0);
            column.counts[id as usize] -= 1;
            column.carriers -= 1;
            column.present.clear(row);
            if column.is_narrow() {
                column.rows[id as usize].clear(row);
            }
            if column.counts[id as usize] == 0 {
                column.forget(id);
            }
        }
    }

    /// Drops unused columns, of keys that few of `rows` carry, or that no node carries.
    pub(crate) fn sweep(&mut self, rows: usize, in_use: impl Fn(KeyId) -> bool) {
        for at in 0..self.columns.len() {
            let key = KeyId(at as u32);
            let column = &self.columns[at];
            let named = self.ids.get(&column.name) == Some(&key);
            let is_rare = column.carriers as usize <= rare_rows(rows);
            // A column made for a pod does not count as one that many nodes need.
            let is_spare = column.is_asked_for && self.unasked >= COLUMNS_MAX;
            if named && (is_rare || is_spare) && !in_use(key) {
                self.forget_column(key);
            }
        }
    }

    /// Replaces a column by a list of the rows that carry its key.
    fn forget_column(&mut self, key: KeyId) {
        let at = key.0 as usize;
        let name = self.columns[at].name;
        let column = std::mem::replace(&mut self.columns[at], Arc::new(KeyColumn::new(name)));
        self.unasked -= usize::from(!column.is_asked_for);
        self.ids.remove(&name);
        self.free.push(key);
        let label = |row: u32| {
            let id = column.value(row);
            let number = column.numbers.get(&id).copied();
            RareLabel { row, value: column.texts[id as usize], number }
        };
        let labels: Vec<RareLabel> = column.present.iter().map(label).collect();
        for row in labels.iter().map(|label| label.row) {
            let keys = self.rare_keys.entry(row);
            // The row may have got the key before it had a column.
            if !keys.contains(&name) {
                keys.push(name);
            }
        }
        if !labels.is_empty() {
            *self.rare.entry(name) = labels;
        }
    }

    /// Returns the strings that columns refer to.
    pub(crate) fn words(&self) -> impl Iterator<Item = Str> + '_ {
        let rare = self.rare.iter().flat_map(|(key, labels)| {
            std::iter::once(*key).chain(labels.iter().map(|label| label.value))
        });
        self.ids.values().flat_map(|key| self.column(*key).texts.iter().copied()).chain(rare)
    }

    /// Bytes held on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let of = |c: &Arc<KeyColumn>| {
            c.values.heap_bytes()
                + c.present.words().len() * 8
                + c.index.heap_bytes()
                + c.texts.capacity() * 4
                + c.numbers.capacity() * 13
                + c.counts.capacity() * 4
                + c.rows.iter().map(|r| r.words().len() * 8 + 24).sum::<usize>()
        };
        let rare = self.rare.iter().map(|(_, labels)| 64 + labels.capacity() * 24);
        let keys = self.rare_keys.iter().map(|(_, keys)| 64 + keys.capacity() * 4);
        self.columns.iter().map(of).chain(rare).chain(keys).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Str = Str(7);

    /// A table of rows with labels, the same on all.
    fn labelled(rows: u32, labels: u32) -> KeyTable {
        let mut table = KeyTable::default();
        for row in 0..rows {
            for key in 0..labels {
                table.set(row, 5_000, Str(1_000 + key), Str(row), Some(row.into()));
            }
        }
        table
    }

    #[test]
    fn few_nodes_with_many_labels_in_common_do_not_make_columns_of_all() {
        let mut table = labelled(100, 3_000);
        assert_eq!(table.columns().count(), COLUMNS_MAX);
        assert!(table.heap_bytes() < 100 * 3_000 * 40, "{}", table.heap_bytes());
        // Each label is found, with or without a column.
        let without = (0..3_000).map(|key| Str(1_000 + key)).find(|key| table.find(*key).is_none());
        let without = without.expect("not all have one");
        assert_eq!(table.rare(without).len(), 100);
        let asked = table.intern(without);
        assert_eq!(table.column(asked).value_ids(), 101);
        (0..100).for_each(|row| table.clear(row));
        assert!(table.columns().all(|(_, column)| column.carriers == 0));
        assert!(table.rare.iter().next().is_none());
    }

    #[test]
    fn column_that_no_pod_asks_for_any_more_becomes_a_list_again() {
        let mut table = labelled(5, 3);
        let key = table.intern(Str(1_001));
        table.intern(KEY);
        table.set(5, 5_000, Str(1_001), Str(99), None);
        table.sweep(5_000, |used| used == key);
        assert_eq!((table.find(Str(1_001)), table.find(KEY)), (Some(key), None));
        table.sweep(5_000, |_| false);
        assert_eq!(table.find(Str(1_001)), None);
        let mut rows: Vec<_> =
            table.rare(Str(1_001)).iter().map(|l| (l.row, l.value, l.number)).collect();
        rows.sort_unstable();
        let mut want: Vec<_> = (0..5).map(|row| (row, Str(row), Some(i64::from(row)))).collect();
        want.push((5, Str(99), None));
        assert_eq!(rows, want);
        // As a list it is cleared and filled like any other.
        table.clear(5);
        table.clear(2);
        table.set(2, 5_000, Str(1_001), Str(8), None);
        let again = table.intern(Str(1_001));
        let values = (0..6).map(|row| table.column(again).value(row) != 0).collect::<Vec<_>>();
        assert_eq!(values, [true, true, true, true, true, false]);
    }
}
