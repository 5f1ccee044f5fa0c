//! Pods by uid, shared by reference: a clone costs one pointer for every `CHUNK_MAX` pods, a change
//! after it one chunk.
//!
//! A sorted sequence of sorted chunks. The driver changes one pod and publishes the map to other
//! threads, some hundred times while a pod starts; with a tree that is copied whole that work grew
//! with the number of pods on the node. Bounds: `CHUNK_MAX` pods a chunk, as many chunks as needed.

use std::borrow::Borrow;
use std::sync::Arc;

use pintle_api_types::ids::PodUid;

/// Pods of a chunk; one that is full is split in two.
const CHUNK_MAX: usize = 32;

type Chunk<V> = Vec<(PodUid, Arc<V>)>;

/// A sorted map; clones share the parts that have not changed since.
#[derive(Clone, Debug)]
pub struct PodMap<V> {
    /// None of them is empty.
    chunks: Arc<Vec<Arc<Chunk<V>>>>,
    len: usize,
}

impl<V> Default for PodMap<V> {
    fn default() -> Self {
        Self { chunks: Arc::default(), len: 0 }
    }
}

impl<V> PodMap<V> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One pod.
    pub fn get<Q: Ord + ?Sized>(&self, uid: &Q) -> Option<&V>
    where
        PodUid: Borrow<Q>,
    {
        let chunk = self.chunks.get(self.chunk_of(uid))?;
        let at = chunk.binary_search_by(|(key, _)| key.borrow().cmp(uid)).ok()?;
        Some(&chunk[at].1)
    }

    /// True if it is there.
    pub fn contains_key(&self, uid: &PodUid) -> bool {
        self.get(uid).is_some()
    }

    /// All, by uid.
    pub fn iter(&self) -> Iter<'_, V> {
        Iter { chunks: self.chunks.iter(), chunk: [].iter() }
    }

    /// The uids, in their order.
    pub fn keys(&self) -> impl Iterator<Item = &PodUid> {
        self.iter().map(|(uid, _)| uid)
    }

    /// The values, by uid.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The chunk in which the uid is, or would be.
    fn chunk_of<Q: Ord + ?Sized>(&self, uid: &Q) -> usize
    where
        PodUid: Borrow<Q>,
    {
        let after = self.chunks.partition_point(|chunk| chunk[0].0.borrow() <= uid);
        after.saturating_sub(1)
    }

    /// Inserts a pod, or replaces the one of that uid.
    pub fn insert(&mut self, uid: PodUid, value: Arc<V>) {
        let at = self.chunk_of(&uid);
        let chunks = Arc::make_mut(&mut self.chunks);
        let Some(chunk) = chunks.get_mut(at) else {
            chunks.push(Arc::new(vec![(uid, value)]));
            self.len += 1;
            return;
        };
        let chunk = Arc::make_mut(chunk);
        match chunk.binary_search_by(|(key, _)| key.cmp(&uid)) {
            Ok(place) => {
                chunk[place].1 = value;
                return;
            }
            Err(place) => chunk.insert(place, (uid, value)),
        }
        self.len += 1;
        if chunk.len() > CHUNK_MAX {
            let upper = chunk.split_off(CHUNK_MAX / 2);
            chunks.insert(at + 1, Arc::new(upper));
        }
    }

    /// Takes a pod out.
    pub fn remove(&mut self, uid: &PodUid) {
        let at = self.chunk_of(uid);
        let Some(chunk) = self.chunks.get(at) else { return };
        let Ok(place) = chunk.binary_search_by(|(key, _)| key.cmp(uid)) else { return };
        self.len -= 1;
        let chunks = Arc::make_mut(&mut self.chunks);
        if chunks[at].len() == 1 {
            chunks.remove(at);
        } else {
            Arc::make_mut(&mut chunks[at]).remove(place);
        }
    }
}

impl<V> FromIterator<(PodUid, V)> for PodMap<V> {
    fn from_iter<I: IntoIterator<Item = (PodUid, V)>>(pods: I) -> Self {
        let mut map = Self::default();
        for (uid, value) in pods {
            map.insert(uid, Arc::new(value));
        }
        map
    }
}

/// All pods of a map, by uid.
#[derive(Debug)]
pub struct Iter<'a, V> {
    chunks: std::slice::Iter<'a, Arc<Chunk<V>>>,
    chunk: std::slice::Iter<'a, (PodUid, Arc<V>)>,
}

impl<'a, V> Iterator for Iter<'a, V> {
    type Item = (&'a PodUid, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((uid, value)) = self.chunk.next() {
                return Some((uid, value));
            }
            self.chunk = self.chunks.next()?.iter();
        }
    }
}

impl<'a, V> IntoIterator for &'a PodMap<V> {
    type Item = (&'a PodUid, &'a V);
    type IntoIter = Iter<'a, V>;

    fn into_iter(self) -> Iter<'a, V> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn uid(number: u16) -> PodUid {
        PodUid::from(format!("{number:05}"))
    }

    proptest! {
        #[test]
        fn pod_map_is_sorted_and_earlier_clones_do_not_change(
            steps in prop::collection::vec((0..200u16, any::<bool>(), any::<bool>()), 1..600)
        ) {
            let (mut map, mut model) = (PodMap::default(), BTreeMap::new());
            let mut kept: Vec<(PodMap<usize>, BTreeMap<PodUid, usize>)> = Vec::new();
            for (index, (number, insert, keep)) in steps.into_iter().enumerate() {
                let uid = uid(number);
                if keep && kept.len() < 8 {
                    kept.push((map.clone(), model.clone()));
                }
                if insert {
                    map.insert(uid.clone(), Arc::new(index));
                    model.insert(uid, index);
                } else {
                    map.remove(&uid);
                    model.remove(&uid);
                }
            }
            kept.push((map, model));
            for (map, model) in kept {
                prop_assert!(map.iter().eq(model.iter()));
                prop_assert_eq!(map.len(), model.len());
                for number in 0..200 {
                    prop_assert_eq!(map.get(&uid(number)), model.get(&uid(number)));
                }
                let full = map.chunks.iter().all(|c| !c.is_empty() && c.len() <= CHUNK_MAX);
                prop_assert!(full);
            }
        }
    }

    #[test]
    fn a_change_copies_one_chunk_however_many_pods_there_are() {
        let map: PodMap<u16> = (0..1000).map(|n| (uid(n), n)).collect();
        let mut changed = map.clone();
        changed.insert(uid(500), Arc::new(0));
        let shared = |chunk: &&Arc<Chunk<_>>| map.chunks.iter().any(|own| Arc::ptr_eq(own, chunk));
        assert_eq!(changed.chunks.iter().filter(|chunk| !shared(chunk)).count(), 1);
    }
}
