//! Number of pods of some kind by value of a topology key.
//!
//! Input: a pod added or removed in a domain. Output: the count of a domain, and sums over all of
//! them. Owner: a counter or a term. Bounds: an entry a domain with pods, or four bytes a domain
//! once that is not more than twice as much.
//! Why both forms: a pod may name tens of thousands of selectors, of which most select no pod or
//! few; a list of all hostnames for each of them would be gigabytes. Decisions read the list, where
//! it exists, with kernels.

use super::keys::NARROW_VALUES;
use crate::intern::FastMap;
use crate::simd;

/// Domains per entry of the map below which the map is larger than the list.
const DOMAINS_AN_ENTRY: usize = 8;

/// Counts by value id.
#[derive(Clone, Debug)]
pub enum DomainCounts {
    /// By value id, for domains with pods.
    Sparse(FastMap<u32, u32>),
    /// At the value id, with the number of domains that have any.
    Dense(Vec<u32>, u32),
}

impl Default for DomainCounts {
    fn default() -> Self {
        Self::Sparse(FastMap::default())
    }
}

impl DomainCounts {
    /// Count of a domain.
    #[must_use]
    pub fn get(&self, value: u32) -> u32 {
        match self {
            Self::Sparse(counts) => counts.get(&value).copied().unwrap_or(0),
            Self::Dense(counts, _) => counts.get(value as usize).copied().unwrap_or(0),
        }
    }

    /// Returns the entries that a walk over the counts visits.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Sparse(counts) => counts.len(),
            Self::Dense(counts, _) => counts.len(),
        }
    }

    /// Returns true if no domain has any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Sparse(counts) => counts.is_empty(),
            Self::Dense(_, members) => *members == 0,
        }
    }

    /// Returns the domains with a count, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (sparse, dense) = match self {
            Self::Sparse(counts) => (Some(counts), None),
            Self::Dense(counts, _) => (None, Some(counts)),
        };
        let sparse = sparse.into_iter().flatten().map(|(value, count)| (*value, *count));
        let dense = dense.into_iter().flatten().enumerate().filter(|(_, count)| **count > 0);
        sparse.chain(dense.map(|(value, count)| (value as u32, *count)))
    }

    /// Adds pods to a domain of a key with `values` value ids.
    pub fn add(&mut self, value: u32, delta: i32, values: usize) {
        let was = self.get(value);
        let count = was.checked_add_signed(delta).expect("a pod leaves where it was counted");
        match self {
            Self::Sparse(counts) if count == 0 => _ = counts.remove(&value),
            Self::Sparse(counts) => {
                counts.insert(value, count);
                if values <= NARROW_VALUES || counts.len() * DOMAINS_AN_ENTRY > values {
                    *self = Self::listed(counts, values);
                }
            }
            Self::Dense(counts, members) => {
                if counts.len() <= value as usize {
                    counts.resize(value as usize + 1, 0);
                }
                counts[value as usize] = count;
                *members = *members + u32::from(count != 0) - u32::from(was != 0);
                if *members == 0 {
                    *self = Self::default();
                }
            }
        }
    }

    fn listed(counts: &FastMap<u32, u32>, values: usize) -> Self {
        let last = counts.keys().max().map_or(0, |value| *value as usize);
        let mut list = vec![0; values.max(last + 1)];
        counts.iter().for_each(|(value, count)| list[*value as usize] = *count);
        Self::Dense(list, counts.len() as u32)
    }

    /// Marks the domains that have a count.
    pub(crate) fn mark(&self, marks: &mut [bool]) {
        match self {
            Self::Sparse(counts) => counts.keys().for_each(|value| marks[*value as usize] = true),
            Self::Dense(counts, _) => {
                marks.iter_mut().zip(counts).for_each(|(mark, count)| *mark |= *count > 0);
            }
        }
    }

    /// Adds the counts, times a weight, at the index of their domains.
    pub(crate) fn add_to(&self, sums: &mut [f64], weight: f64) {
        match self {
            Self::Sparse(counts) => counts.iter().for_each(|(value, count)| {
                sums[*value as usize] += weight * f64::from(*count);
            }),
            Self::Dense(counts, _) => simd::add_counts(sums, counts, weight),
        }
    }

    /// Replaces a list by the counts of so many value ids.
    pub(crate) fn write(&self, list: &mut Vec<i64>, values: usize) {
        list.clear();
        match self {
            Self::Sparse(counts) => {
                list.resize(values, 0);
                counts.iter().for_each(|(value, count)| list[*value as usize] = (*count).into());
            }
            Self::Dense(counts, _) => {
                list.extend(counts.iter().map(|n| i64::from(*n)));
                list.resize(values, 0);
            }
        }
    }

    /// Bytes held on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Sparse(counts) => counts.capacity() * 9,
            Self::Dense(counts, _) => counts.capacity() * 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn both_forms_count_as_a_map_does() {
        for values in [4_usize, 64, 2_000] {
            let (mut counts, mut map, mut state) = (DomainCounts::default(), BTreeMap::new(), 1u64);
            let mut dense = 0;
            for at in 0..6_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let value = 1 + (state >> 33) as u32 % (values as u32 - 1);
                let here: u32 = map.get(&value).copied().unwrap_or(0);
                let delta = if here == 0 || (at < 3_000 && state >> 20 & 3 != 0) { 1 } else { -1 };
                counts.add(value, delta, values);
                map.insert(value, here.checked_add_signed(delta).expect("one at least"));
                map.retain(|_, count| *count > 0);
                dense += usize::from(matches!(counts, DomainCounts::Dense(..)));
            }
            assert!(dense > 0);
            assert_eq!(counts.iter().collect::<BTreeMap<_, _>>(), map);
            let (mut list, mut marks) = (vec![9], vec![false; values]);
            let mut sums = vec![0.0; values];
            counts.write(&mut list, values);
            counts.mark(&mut marks);
            counts.add_to(&mut sums, -2.0);
            for value in 0..values as u32 {
                let want = map.get(&value).copied().unwrap_or(0);
                let at = value as usize;
                assert_eq!((counts.get(value), list[at]), (want, i64::from(want)));
                assert_eq!((marks[at], sums[at]), (want > 0, -2.0 * f64::from(want)));
            }
            map.iter().for_each(|(value, count)| counts.add(*value, -(*count as i32), values));
            assert!(counts.is_empty() && matches!(counts, DomainCounts::Sparse(_)));
        }
    }

    #[test]
    fn few_pods_among_many_domains_take_the_memory_of_few() {
        let mut counts = DomainCounts::default();
        (0..100).for_each(|at| counts.add(4_900 + at, 1, 5_001));
        assert!(counts.heap_bytes() < 100 * 24, "{}", counts.heap_bytes());
        (0..4_000).for_each(|at| counts.add(1 + at, 1, 5_001));
        assert!(counts.heap_bytes() <= 5_001 * 4);
    }
}
