//! Data that only some nodes have: extended resources, host ports, images, features.
//!
//! Input: a name, a row, a number. Output: rows and numbers by name. Owner: the writer of the
//! cluster; readers hold the maps of a published epoch.
//! Bounds: a copy of a map is one pointer. A change copies one of `SHARDS` lists of pointers and
//! the one value it touches, and of an extended resource one chunk of 512 rows, which takes up 16
//! bytes a row, or 32 bytes a row that has anything while these are few.
//! Why not plain maps behind a pointer: a placement with a GPU or a host port would clone them all.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash};
use std::sync::Arc;

use crate::bits::{Bits, RowSet, WORD_ROWS};
use crate::chunk::CHUNK_ROWS;
use crate::intern::{FastHasher, FastMap, Str};

/// Parts of a map that are copied separately.
const SHARDS: usize = 32;
/// Rows of a chunk that list or use a resource, up to which they are stored singly.
const FEW_ROWS: usize = 64;
/// Words of a mask in a chunk.
const WORDS: usize = CHUNK_ROWS / WORD_ROWS;

/// One part of a [`CowMap`].
type Shard<K, V> = Arc<FastMap<K, Arc<V>>>;

/// A map that is copied by one pointer.
#[derive(Debug)]
pub struct CowMap<K, V> {
    shards: Arc<Vec<Shard<K, V>>>,
    /// Counts changes other than by `item_mut` and `take_out`.
    shape: u64,
}

impl<K, V> Clone for CowMap<K, V> {
    fn clone(&self) -> Self {
        Self { shards: Arc::clone(&self.shards), shape: self.shape }
    }
}

impl<K, V> Default for CowMap<K, V> {
    fn default() -> Self {
        Self { shards: Arc::default(), shape: 0 }
    }
}

impl<K: Copy + Eq + Hash, V: Clone + Default> CowMap<K, V> {
    fn shard(key: &K) -> usize {
        // Bits that the table within a shard does not use.
        (BuildHasherDefault::<FastHasher>::default().hash_one(key) >> 40) as usize % SHARDS
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.shards.get(Self::shard(key))?.get(key).map(|value| &**value)
    }

    /// The value of a key for writing, new if there is none; copied if a reader still holds it.
    pub fn entry(&mut self, key: K) -> &mut V {
        self.shape += 1;
        self.item_mut(key)
    }

    /// Like `entry`, for changes that are recorded and replayed on copies.
    pub(crate) fn item_mut(&mut self, key: K) -> &mut V {
        let shards = Arc::make_mut(&mut self.shards);
        if shards.is_empty() {
            shards.resize_with(SHARDS, Arc::default);
        }
        let shard = Arc::make_mut(&mut shards[Self::shard(&key)]);
        Arc::make_mut(shard.entry(key).or_default())
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &K) {
        self.shape += 1;
        self.take_out(key);
    }

    /// Removes a key, for changes that are recorded and replayed on copies.
    pub(crate) fn take_out(&mut self, key: &K) {
        if self.get(key).is_some() {
            let shards = Arc::make_mut(&mut self.shards);
            Arc::make_mut(&mut shards[Self::shard(key)]).remove(key);
        }
    }

    /// Equal for two copies that differ by recorded changes only.
    pub(crate) fn shape(&self) -> u64 {
        self.shape
    }

    /// Returns true if both are the same copy.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shards, &other.shards)
    }

    /// Shares the values of `other`.
    pub(crate) fn share(&mut self, other: &Self) {
        share(&mut self.shards, &other.shards);
        self.shape = other.shape;
    }

    /// All keys and values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.shards.iter().flat_map(|s| s.iter()).map(|(key, value)| (key, &**value))
    }

    /// Returns the keys with a value for which `is` is true.
    pub fn keys_where(&self, is: impl Fn(&V) -> bool) -> Vec<K> {
        self.iter().filter(|(_, value)| is(value)).map(|(key, _)| *key).collect()
    }
}

/// One extended resource on the rows of a chunk.
#[derive(Clone, Debug)]
struct ScalarChunk {
    /// Rows that list the resource.
    named: [u64; WORDS],
    all: [i64; CHUNK_ROWS],
    used: [i64; CHUNK_ROWS],
}

impl ScalarChunk {
    fn with(rows: &[ScalarRow]) -> Self {
        let mut chunk = Self { named: [0; WORDS], all: [0; CHUNK_ROWS], used: [0; CHUNK_ROWS] };
        for row in rows {
            chunk.set_allocatable(row.at as usize, row.all);
            chunk.used[row.at as usize] = row.used;
        }
        chunk
    }

    fn set_allocatable(&mut self, at: usize, amount: Option<i64>) {
        let bit = 1 << (at % WORD_ROWS);
        match amount {
            Some(_) => self.named[at / WORD_ROWS] |= bit,
            None => self.named[at / WORD_ROWS] &= !bit,
        }
        self.all[at] = amount.unwrap_or(0);
    }
}

/// The same for one row, by its index in the chunk.
#[derive(Clone, Copy, Debug, Default)]
struct ScalarRow {
    at: u32,
    all: Option<i64>,
    used: i64,
}

/// The data of a chunk as its rows need it, because a node with many resources must not make a
/// chunk of each.
#[derive(Clone, Debug)]
enum ScalarPart {
    /// Rows that list the resource or use it, ascending.
    Few(Arc<Vec<ScalarRow>>),
    Many(Arc<ScalarChunk>),
}

impl Default for ScalarPart {
    fn default() -> Self {
        Self::Few(Arc::default())
    }
}

impl ScalarPart {
    fn row(&self, at: usize) -> ScalarRow {
        match self {
            Self::Few(rows) => match rows.binary_search_by_key(&(at as u32), |row| row.at) {
                Ok(found) => rows[found],
                Err(_) => ScalarRow::default(),
            },
            Self::Many(chunk) => {
                let named = chunk.named[at / WORD_ROWS] >> (at % WORD_ROWS) & 1 == 1;
                let all = named.then_some(chunk.all[at]);
                ScalarRow { at: at as u32, all, used: chunk.used[at] }
            }
        }
    }

    /// Puts a row into a short list; an empty row is removed.
    fn put(rows: &mut Arc<Vec<ScalarRow>>, row: ScalarRow) -> Option<ScalarChunk> {
        let (rows, is_nothing) = (Arc::make_mut(rows), row.all.is_none() && row.used == 0);
        match rows.binary_search_by_key(&row.at, |row| row.at) {
            Ok(found) if is_nothing => _ = rows.remove(found),
            Ok(found) => rows[found] = row,
            Err(_) if is_nothing => {}
            Err(place) => {
                rows.reserve_exact(usize::from(rows.is_empty()));
                rows.insert(place, row);
            }
        }
        (rows.len() > FEW_ROWS).then(|| ScalarChunk::with(rows))
    }

    fn change(&mut self, at: usize, change: impl FnOnce(&mut ScalarRow)) {
        let mut row = ScalarRow { at: at as u32, ..self.row(at) };
        change(&mut row);
        if let Self::Few(rows) = self
            && let Some(chunk) = Self::put(rows, row)
        {
            *self = Self::Many(Arc::new(chunk));
        }
    }

    /// Keeps the rows of these words that have this amount left.
    fn keep_fitting(&self, amount: i64, words: &mut [u64]) {
        match self {
            Self::Few(rows) => {
                let mut fits = [0; WORDS];
                for row in rows.iter() {
                    let left = row.all.map(|all| all.wrapping_sub(row.used));
                    let at = row.at as usize;
                    fits[at / WORD_ROWS] |=
                        u64::from(left.is_some_and(|left| amount <= left)) << (at % WORD_ROWS);
                }
                words.iter_mut().zip(fits).for_each(|(word, fits)| *word &= fits);
            }
            Self::Many(chunk) => {
                for (at, word) in words.iter_mut().enumerate().filter(|(_, word)| **word != 0) {
                    let rows = at * WORD_ROWS..(at + 1) * WORD_ROWS;
                    let pairs = chunk.all[rows.clone()].iter().zip(&chunk.used[rows]);
                    let fits = pairs.enumerate().fold(0, |fits, (bit, (all, used))| {
                        fits | u64::from(amount <= all.wrapping_sub(*used)) << bit
                    });
                    *word &= chunk.named[at] & fits;
                }
            }
        }
    }

    fn is_unused(&self) -> bool {
        match self {
            Self::Few(rows) => rows.is_empty(),
            Self::Many(c) => c.named.iter().all(|w| *w == 0) && c.used.iter().all(|u| *u == 0),
        }
    }

    fn heap_bytes(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Few(rows) => rows.capacity() * size_of::<ScalarRow>(),
                Self::Many(_) => size_of::<ScalarChunk>(),
            }
    }
}

/// Allocatable and requested amounts of one extended resource, by row.
#[derive(Clone, Debug, Default)]
pub struct ScalarColumn {
    parts: Vec<ScalarPart>,
}

impl ScalarColumn {
    fn row(&self, row: u32) -> ScalarRow {
        let part = self.parts.get(row as usize / CHUNK_ROWS);
        part.map_or_else(ScalarRow::default, |part| part.row(row as usize % CHUNK_ROWS))
    }

    fn part_mut(&mut self, row: u32) -> &mut ScalarPart {
        let at = row as usize / CHUNK_ROWS;
        if self.parts.len() <= at {
            self.parts.reserve_exact(at + 1 - self.parts.len());
            self.parts.resize_with(at + 1, ScalarPart::default);
        }
        &mut self.parts[at]
    }

    /// Allocatable amount, for a row that lists the resource.
    #[must_use]
    pub fn allocatable(&self, row: u32) -> Option<i64> {
        self.row(row).all
    }

    /// Requested amount.
    #[must_use]
    pub fn used(&self, row: u32) -> i64 {
        self.row(row).used
    }

    /// Sets or removes the allocatable amount of a row.
    pub fn set_allocatable(&mut self, row: u32, amount: Option<i64>) {
        let at = row as usize % CHUNK_ROWS;
        match self.part_mut(row) {
            ScalarPart::Many(chunk) => Arc::make_mut(chunk).set_allocatable(at, amount),
            few => few.change(at, |row| row.all = amount),
        }
    }

    /// Adds to the requested amount.
    pub fn add_used(&mut self, row: u32, amount: i64) {
        let at = row as usize % CHUNK_ROWS;
        match self.part_mut(row) {
            ScalarPart::Many(chunk) => {
                let used = &mut Arc::make_mut(chunk).used[at];
                *used = used.wrapping_add(amount);
            }
            few => few.change(at, |row| row.used = row.used.wrapping_add(amount)),
        }
    }

    /// Keeps the rows that have this amount left.
    pub fn keep_fitting(&self, amount: i64, mask: &mut Bits) {
        for (at, words) in mask.words_mut().chunks_mut(WORDS).enumerate() {
            match self.parts.get(at) {
                Some(part) => part.keep_fitting(amount, words),
                None => words.fill(0),
            }
        }
    }

    /// Returns true if no row names the resource or uses it.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.parts.iter().all(ScalarPart::is_unused)
    }

    /// Bytes held on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.parts.iter().map(ScalarPart::heap_bytes).sum()
    }
}

/// An image on nodes.
#[derive(Clone, Debug, Default)]
pub struct ImageRows {
    /// Size on the first node that had it.
    pub size_bytes: i64,
    /// Nodes that have it.
    pub rows: RowSet,
}

/// Users of one port of a protocol: rows by address. A pod may name very many addresses.
#[derive(Clone, Debug, Default)]
pub struct PortUse {
    by_ip: BTreeMap<Str, RowSet>,
    /// Users beyond the first of an address and row; only static pods can be that many.
    more: BTreeMap<(Str, u32), u32>,
}

impl PortUse {
    /// Adds a user; `rows` is the size of the table.
    pub fn take(&mut self, ip: Str, row: u32, rows: usize) {
        if !self.by_ip.entry(ip).or_default().insert(row, rows) {
            *self.more.entry((ip, row)).or_default() += 1;
        }
    }

    /// One user fewer.
    pub fn free(&mut self, ip: Str, row: u32) {
        if let Some(count) = self.more.get_mut(&(ip, row)) {
            *count -= 1;
            if *count == 0 {
                self.more.remove(&(ip, row));
            }
            return;
        }
        let rows = self.by_ip.get_mut(&ip).expect("a port is freed where it was taken");
        assert!(rows.remove(row), "a port is freed where it was taken");
        if rows.is_empty() {
            self.by_ip.remove(&ip);
        }
    }

    /// Returns row sets of the addresses that clash with one.
    pub fn clashing(&self, ip: Str, wildcard: Str) -> impl Iterator<Item = (Str, &RowSet)> {
        let is_any = ip == wildcard;
        let all = is_any.then_some(&self.by_ip).into_iter().flatten();
        let all = all.map(|(of, rows)| (*of, rows));
        let some = [ip, wildcard].into_iter().filter(move |_| !is_any);
        all.chain(some.filter_map(|of| Some((of, self.by_ip.get(&of)?))))
    }

    /// Users of an address on a row.
    #[must_use]
    pub fn count(&self, ip: Str, row: u32) -> usize {
        let first = self.by_ip.get(&ip).is_some_and(|rows| rows.contains(row));
        let more = self.more.get(&(ip, row)).copied().unwrap_or(0);
        usize::from(first) + more as usize
    }

    /// The addresses.
    pub fn ips(&self) -> impl Iterator<Item = Str> + '_ {
        self.by_ip.keys().copied()
    }

    /// Returns true if no pod uses the port.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.by_ip.is_empty()
    }
}

/// Takes another pointer, if it differs: updating the reference count costs more than the
/// comparison.
pub(crate) fn share<T: ?Sized>(mine: &mut Arc<T>, other: &Arc<T>) {
    if !Arc::ptr_eq(mine, other) {
        *mine = Arc::clone(other);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn clone_is_unaffected_by_changes_to_the_original() {
        let mut map: CowMap<Str, RowSet> = CowMap::default();
        (0..500).for_each(|at| assert!(map.entry(Str(at)).insert(at, 1000)));
        let before = map.clone();
        map.entry(Str(7)).insert(8, 1000);
        map.remove(&Str(9));
        map.remove(&Str(1000));
        assert_eq!(before.get(&Str(7)).map(RowSet::len), Some(1));
        assert_eq!(map.get(&Str(7)).map(RowSet::len), Some(2));
        assert_eq!((before.iter().count(), map.iter().count()), (500, 499));
        assert_eq!(map.keys_where(|rows| rows.len() == 2), vec![Str(7)]);
    }

    #[test]
    fn a_change_of_one_resource_copies_one_chunk() {
        let mut column = ScalarColumn::default();
        (0..2000).for_each(|row| column.set_allocatable(row, Some(8)));
        let before = column.clone();
        column.add_used(700, 3);
        use ScalarPart::Many;
        let pairs = before.parts.iter().zip(&column.parts);
        let shared = pairs.filter(|pair| matches!(pair, (Many(a), Many(b)) if Arc::ptr_eq(a, b)));
        assert_eq!(shared.count(), 3);
        assert_eq!((before.used(700), column.used(700)), (0, 3));
    }

    #[test]
    fn rows_with_so_much_left_are_kept() {
        let mut column = ScalarColumn::default();
        let rows = 1300;
        for row in (0..rows).filter(|row| row % 3 != 0) {
            column.set_allocatable(row, Some(i64::from(row % 5)));
            column.add_used(row, i64::from(row % 2));
        }
        column.add_used(3, -9);
        for amount in [0, 1, 3] {
            let mut mask = Bits::with_rows(rows as usize);
            (0..rows).filter(|row| row % 7 != 0).for_each(|row| mask.set(row));
            column.keep_fitting(amount, &mut mask);
            for row in 0..rows {
                let left = i64::from(row % 5) - i64::from(row % 2);
                let fits = row % 3 != 0 && row % 7 != 0 && amount <= left;
                assert_eq!(mask.get(row), fits, "row {row} amount {amount}");
            }
        }
        assert!(!column.is_unused());
    }

    #[test]
    fn few_and_many_parts_give_the_same_values_and_fitting_rows() {
        for (step, is_many) in [(11, false), (1, true)] {
            let (mut column, mut want) = (ScalarColumn::default(), HashMap::new());
            let mut state = 1_u64;
            for _ in 0..20_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let row = (state >> 33) as u32 % (990 / step) * step;
                let amount = (state >> 50) as i64 % 4;
                let (all, used) = want.entry(row).or_insert((None, 0));
                if state >> 60 & 1 == 0 {
                    *all = (amount > 0).then_some(amount);
                    column.set_allocatable(row, *all);
                } else {
                    column.add_used(row, amount - *used);
                    *used = amount;
                }
                assert_eq!((column.allocatable(row), column.used(row)), want[&row]);
            }
            let something = want.values().filter(|(all, used)| all.is_some() || *used != 0).count();
            let few = column.parts.iter().map(|part| match part {
                ScalarPart::Few(rows) => rows.len(),
                ScalarPart::Many(_) => 0,
            });
            assert_eq!(few.sum::<usize>(), if is_many { 0 } else { something });
            for amount in [0, 1, 3] {
                let mut mask = Bits::with_rows(1024);
                (0..1024).filter(|row| row % 7 != 0).for_each(|row| mask.set(row));
                column.keep_fitting(amount, &mut mask);
                let fits = |row| {
                    let (all, used) = want.get(&row).copied().unwrap_or((None, 0));
                    row % 7 != 0 && all.is_some_and(|all| amount <= all - used)
                };
                assert!((0..1024).all(|row| mask.get(row) == fits(row)));
            }
            for (row, (_, used)) in want {
                column.set_allocatable(row, None);
                column.add_used(row, -used);
            }
            assert!(column.is_unused());
        }
    }

    #[test]
    fn a_port_is_free_when_its_last_user_left() {
        let (any, ip) = (Str(1), Str(2));
        let mut port = PortUse::default();
        port.take(ip, 5, 100);
        port.take(ip, 5, 100);
        port.take(any, 6, 100);
        assert_eq!((port.count(ip, 5), port.count(any, 5)), (2, 0));
        let rows =
            |asked: Str| port.clashing(asked, any).map(|(_, rows)| rows.len()).sum::<usize>();
        assert_eq!((rows(ip), rows(any), rows(Str(3))), (2, 2, 1));
        let mut port = port.clone();
        port.free(ip, 5);
        assert_eq!(port.count(ip, 5), 1);
        port.free(ip, 5);
        port.free(any, 6);
        assert!(port.is_free());
    }
}
