//! What only some nodes have: extended resources, host ports, images, features.
//!
//! Input: a name, a row, a number. Output: rows and numbers by name. Owner: the writer of the cluster;
//! readers hold the maps of a published epoch.
//! Bounds: a copy of a map is one pointer. A change copies one of `SHARDS` lists of pointers and
//! the one value it touches, and of an extended resource one chunk of 512 rows.
//! Why not plain maps behind a pointer: a placement with a GPU or a host port would clone them all.

use std::hash::{BuildHasher, BuildHasherDefault, Hash};
use std::sync::Arc;

use super::chunk::CHUNK_ROWS;
use crate::bits::{Bits, RowSet, WORD_ROWS};
use crate::intern::{FastHasher, FastMap, Str};

/// Parts of a map that are copied one by one.
const SHARDS: usize = 32;
/// Words of a mask in a chunk.
const WORDS: usize = CHUNK_ROWS / WORD_ROWS;

/// One part of a [`CowMap`].
type Shard<K, V> = Arc<FastMap<K, Arc<V>>>;

/// A map whose copy costs one pointer.
#[derive(Debug)]
pub struct CowMap<K, V> {
    shards: Arc<Vec<Shard<K, V>>>,
    /// Counts changes by others than `item_mut` and `take_out`.
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
        // Bits that the table within a shard does not look at.
        (BuildHasherDefault::<FastHasher>::default().hash_one(key) >> 40) as usize % SHARDS
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.shards.get(Self::shard(key))?.get(key).map(|value| &**value)
    }

    /// The value of a key for writing, new if there is none; copied when a reader still holds it.
    pub fn entry(&mut self, key: K) -> &mut V {
        self.shape += 1;
        self.item_mut(key)
    }

    /// The same for changes that are recorded and done again on copies.
    pub(crate) fn item_mut(&mut self, key: K) -> &mut V {
        let shards = Arc::make_mut(&mut self.shards);
        if shards.is_empty() {
            shards.resize_with(SHARDS, Arc::default);
        }
        let shard = Arc::make_mut(&mut shards[Self::shard(&key)]);
        Arc::make_mut(shard.entry(key).or_default())
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &K) {
        self.shape += 1;
        self.take_out(key);
    }

    /// The same for changes that are recorded and done again on copies.
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

    /// Whether both are the same copy.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shards, &other.shards)
    }

    /// Becomes the same copy.
    pub(crate) fn share(&mut self, other: &Self) {
        super::replica::share(&mut self.shards, &other.shards);
        self.shape = other.shape;
    }

    /// All keys and values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.shards.iter().flat_map(|s| s.iter()).map(|(key, value)| (key, &**value))
    }

    /// The keys whose value is of a kind.
    pub fn keys_where(&self, is: impl Fn(&V) -> bool) -> Vec<K> {
        self.iter().filter(|(_, value)| is(value)).map(|(key, _)| *key).collect()
    }
}

/// One extended resource on the rows of a chunk.
#[derive(Clone, Debug)]
struct ScalarChunk {
    /// Rows that name the resource.
    named: [u64; WORDS],
    all: [i64; CHUNK_ROWS],
    used: [i64; CHUNK_ROWS],
}

impl Default for ScalarChunk {
    fn default() -> Self {
        Self { named: [0; WORDS], all: [0; CHUNK_ROWS], used: [0; CHUNK_ROWS] }
    }
}

/// Allocatable and requested amounts of one extended resource, by row.
#[derive(Clone, Debug, Default)]
pub struct ScalarColumn {
    chunks: Vec<Option<Arc<ScalarChunk>>>,
}

impl ScalarColumn {
    fn chunk(&self, row: u32) -> Option<&ScalarChunk> {
        self.chunks.get(row as usize / CHUNK_ROWS)?.as_deref()
    }

    fn chunk_mut(&mut self, row: u32) -> &mut ScalarChunk {
        let at = row as usize / CHUNK_ROWS;
        if self.chunks.len() <= at {
            self.chunks.resize_with(at + 1, || None);
        }
        Arc::make_mut(self.chunks[at].get_or_insert_default())
    }

    /// Allocatable amount, for a row that names the resource.
    #[must_use]
    pub fn allocatable(&self, row: u32) -> Option<i64> {
        let (chunk, at) = (self.chunk(row)?, row as usize % CHUNK_ROWS);
        (chunk.named[at / WORD_ROWS] >> (at % WORD_ROWS) & 1 == 1).then_some(chunk.all[at])
    }

    /// Requested amount.
    #[must_use]
    pub fn used(&self, row: u32) -> i64 {
        self.chunk(row).map_or(0, |chunk| chunk.used[row as usize % CHUNK_ROWS])
    }

    /// Sets or takes away what a row has.
    pub fn set_allocatable(&mut self, row: u32, amount: Option<i64>) {
        let (chunk, at) = (self.chunk_mut(row), row as usize % CHUNK_ROWS);
        let bit = 1 << (at % WORD_ROWS);
        match amount {
            Some(_) => chunk.named[at / WORD_ROWS] |= bit,
            None => chunk.named[at / WORD_ROWS] &= !bit,
        }
        chunk.all[at] = amount.unwrap_or(0);
    }

    /// Adds to what is requested.
    pub fn add_used(&mut self, row: u32, amount: i64) {
        let used = &mut self.chunk_mut(row).used[row as usize % CHUNK_ROWS];
        *used = used.wrapping_add(amount);
    }

    /// Keeps the rows that have so much left.
    pub fn keep_fitting(&self, amount: i64, mask: &mut Bits) {
        for (at, words) in mask.words_mut().chunks_mut(WORDS).enumerate() {
            let Some(chunk) = self.chunks.get(at).and_then(Option::as_deref) else {
                words.fill(0);
                continue;
            };
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

    /// Whether no row names the resource or uses it.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        let unused =
            |c: &ScalarChunk| c.named.iter().all(|w| *w == 0) && c.used.iter().all(|u| *u == 0);
        self.chunks.iter().flatten().all(|chunk| unused(chunk))
    }

    /// Bytes held on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.chunks.capacity() * 8 + self.chunks.iter().flatten().count() * size_of::<ScalarChunk>()
    }
}

/// An image on nodes.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Size on the first node that had it.
    pub size_bytes: i64,
    /// Nodes that have it.
    pub rows: RowSet,
}

/// Who uses one port of a protocol: rows by address.
#[derive(Clone, Debug, Default)]
pub struct PortUse {
    by_ip: Vec<(Str, RowSet)>,
    /// Users beyond the first of an address and row; only static pods get that far.
    more: Vec<(Str, u32, u32)>,
}

impl PortUse {
    /// One user more; `rows` is the size of the table.
    pub fn take(&mut self, ip: Str, row: u32, rows: usize) {
        let at = self.by_ip.iter().position(|(of, _)| *of == ip).unwrap_or_else(|| {
            self.by_ip.push((ip, RowSet::default()));
            self.by_ip.len() - 1
        });
        if self.by_ip[at].1.insert(row, rows) {
            return;
        }
        match self.more.iter_mut().find(|(of, r, _)| (*of, *r) == (ip, row)) {
            Some((_, _, count)) => *count += 1,
            None => self.more.push((ip, row, 1)),
        }
    }

    /// One user fewer.
    pub fn free(&mut self, ip: Str, row: u32) {
        if let Some(at) = self.more.iter().position(|(of, r, _)| (*of, *r) == (ip, row)) {
            self.more[at].2 -= 1;
            if self.more[at].2 == 0 {
                self.more.swap_remove(at);
            }
            return;
        }
        let at = self.by_ip.iter().position(|(of, _)| *of == ip);
        let at = at.expect("a port is freed where it was taken");
        assert!(self.by_ip[at].1.remove(row), "a port is freed where it was taken");
        if self.by_ip[at].1.is_empty() {
            self.by_ip.swap_remove(at);
        }
    }

    /// Row sets of the addresses that clash with one.
    pub fn clashing(&self, ip: Str, wildcard: Str) -> impl Iterator<Item = (Str, &RowSet)> {
        let clashes = move |of: Str| of == ip || of == wildcard || ip == wildcard;
        self.by_ip.iter().filter(move |(of, _)| clashes(*of)).map(|(of, rows)| (*of, rows))
    }

    /// Users of an address on a row.
    #[must_use]
    pub fn count(&self, ip: Str, row: u32) -> usize {
        let first = self.by_ip.iter().any(|(of, rows)| *of == ip && rows.contains(row));
        let more = self.more.iter().find(|(of, r, _)| (*of, *r) == (ip, row));
        usize::from(first) + more.map_or(0, |(_, _, count)| *count as usize)
    }

    /// The addresses.
    pub fn ips(&self) -> impl Iterator<Item = Str> + '_ {
        self.by_ip.iter().map(|(ip, _)| *ip)
    }

    /// Whether nobody uses the port.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.by_ip.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_what_it_had() {
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
        let shared = before
            .chunks
            .iter()
            .zip(&column.chunks)
            .filter(|(a, b)| matches!((a, b), (Some(a), Some(b)) if Arc::ptr_eq(a, b)));
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
