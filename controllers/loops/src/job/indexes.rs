//! Sets of completion indexes as ordered intervals, and their text in a Job's status: `1,3-5,7`.
//!
//! Input: the text of `completedIndexes`, `failedIndexes` or `succeededIndexes`, and single
//! indexes. Output: sets, their union, their text. Two neighbours are written `1,2`, more of them
//! `1-3`, as upstream does, because other programs compare these texts. Bounds: as many intervals
//! as indexes.
// k8s: pkg/controller/job/indexed_job_utils.go

use std::fmt;

/// Indexes from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    /// The lowest index.
    pub(super) first: i64,
    /// The highest index.
    pub(super) last: i64,
}

/// A set of indexes: intervals in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Indexes(Vec<Interval>);

impl Indexes {
    /// Parses the text of a set; indexes from `completions` on are left out, and so is what is no
    /// interval.
    // k8s: pkg/controller/job/indexed_job_utils.go parseIndexesFromString
    pub(super) fn parse(text: &str, completions: i64) -> Self {
        let mut indexes = Vec::<Interval>::new();
        if text.is_empty() {
            return Self(indexes);
        }
        for part in text.split(',') {
            let mut limits = part.split('-');
            let first = limits.next().unwrap_or_default();
            let Ok(first) = first.parse::<i64>() else { continue };
            if first >= completions {
                break;
            }
            let last = match limits.next().map(str::parse::<i64>) {
                None => first,
                Some(Ok(last)) => last.min(completions - 1),
                Some(Err(_)) => continue,
            };
            match indexes.last_mut().filter(|interval| interval.last == first - 1) {
                Some(interval) => interval.last = last,
                None => indexes.push(Interval { first, last }),
            }
        }
        Self(indexes)
    }

    /// The set of these indexes, which are in order.
    pub(super) fn of(ordered: impl IntoIterator<Item = i64>) -> Self {
        let single = |index| Interval { first: index, last: index };
        Self::default().union(&Self(ordered.into_iter().map(single).collect()))
    }

    /// The indexes of both sets.
    // k8s: pkg/controller/job/indexed_job_utils.go merge
    pub(super) fn union(&self, other: &Self) -> Self {
        let mut all: Vec<_> = other.0.iter().chain(&self.0).copied().collect();
        all.sort_by_key(|interval| interval.first);
        let mut merged = Vec::<Interval>::with_capacity(all.len());
        for interval in all {
            match merged.last_mut() {
                Some(last) if interval.first <= last.last + 1 => {
                    last.last = last.last.max(interval.last);
                }
                _ => merged.push(interval),
            }
        }
        Self(merged)
    }

    /// How many indexes there are.
    pub(super) fn total(&self) -> i64 {
        self.0.iter().map(|interval| interval.last - interval.first + 1).sum()
    }

    /// The index is one of them.
    pub(super) fn has(&self, index: i64) -> bool {
        let at = self.0.partition_point(|interval| interval.last < index);
        self.0.get(at).is_some_and(|interval| interval.first <= index)
    }

    /// There are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The intervals, in order.
    pub(super) fn intervals(&self) -> &[Interval] {
        &self.0
    }

    /// The lowest `count` indexes below `completions` that are not in the set.
    // k8s: pkg/controller/job/indexed_job_utils.go firstPendingIndexes
    pub(super) fn first_absent(&self, count: usize, completions: i64) -> Vec<i64> {
        let mut absent = Vec::new();
        let mut candidate = 0;
        let end = Interval { first: completions, last: completions };
        for interval in self.0.iter().chain([&end]) {
            while candidate < completions && absent.len() < count && candidate < interval.first {
                absent.push(candidate);
                candidate += 1;
            }
            candidate = candidate.max(interval.last + 1);
        }
        absent
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Interval { first, last }) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}
