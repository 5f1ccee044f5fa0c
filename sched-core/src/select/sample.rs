//! Samples the feasible nodes, for profiles that limit how many are scored.
//!
//! Input: the rows that pass all filters, where to begin, how many are enough. Output: those of
//! them to be scored, and the start of the next decision. Owner: the decider keeps the sample. Why
//! after the filters: they process all columns at once, so that filtering fewer nodes saves
//! nothing. The order is that of rows; upstream's alternates between zones.
// k8s: pkg/scheduler/schedule_one.go findNodesThatPassFilters, numFeasibleNodesToFind

use crate::bits::Bits;

/// Nodes to score at least, if there are as many.
// k8s: pkg/scheduler/schedule_one.go minFeasibleNodesToFind
const NODES_MIN: usize = 100;

/// Returns the sufficient number of nodes at this percentage; more than 100 counts as 100.
#[must_use]
pub fn sample_size(nodes: usize, percent: u32) -> usize {
    if nodes < NODES_MIN || percent >= 100 {
        return nodes;
    }
    (nodes * percent as usize / 100).max(NODES_MIN)
}

/// Start of the sample, and the sufficient number of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeSample {
    /// The first row, modulo the number of rows.
    pub from: u32,
    /// Number of feasible nodes that suffices.
    pub enough: usize,
}

impl NodeSample {
    /// Keeps the first feasible rows, from `from` on and wrapping around, and starts after them
    /// next time.
    pub(super) fn take(&mut self, valid: &Bits, rows: usize, passing: &mut Bits) {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        if rows == 0 {
            return;
        }
        let from = self.from % rows;
        let mut left = self.enough;
        let mut kept = Bits::default();
        kept.reset(rows as usize);
        for row in (from..rows).chain(0..from) {
            if left == 0 {
                self.from = row;
                break;
            }
            if passing.get(row) && valid.get(row) {
                kept.set(row);
                left -= 1;
            }
        }
        *passing = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // k8s: pkg/scheduler/schedule_one_test.go TestNumFeasibleNodesToFind
    #[test]
    fn a_share_is_enough_but_not_less_than_a_hundred() {
        for (nodes, percent, want) in
            [(10, 30, 10), (99, 1, 99), (1000, 40, 400), (1000, 5, 100), (6000, 100, 6000)]
        {
            assert_eq!(sample_size(nodes, percent), want, "{nodes} {percent}");
        }
    }

    #[test]
    fn node_sample_starts_where_the_last_sample_ended() {
        let mut valid = Bits::default();
        valid.reset(10);
        (0..10).filter(|row| *row != 3).for_each(|row| valid.set(row));
        let mut sample = NodeSample { from: 0, enough: 4 };
        let mut turn = || {
            let mut passing = valid.clone();
            passing.clear(5);
            sample.take(&valid, 10, &mut passing);
            passing.iter().collect::<Vec<_>>()
        };
        assert_eq!(turn(), [0, 1, 2, 4]);
        assert_eq!(turn(), [6, 7, 8, 9]);
        assert_eq!(turn(), [0, 1, 2, 4]);
    }

    #[test]
    fn sample_with_too_few_passing_nodes_keeps_its_start_index() {
        let mut valid = Bits::default();
        valid.reset(4);
        (0..4).for_each(|row| valid.set(row));
        let mut sample = NodeSample { from: 9, enough: 4 };
        let mut passing = Bits::default();
        passing.reset(4);
        passing.set(2);
        sample.take(&valid, 4, &mut passing);
        assert_eq!((passing.iter().collect::<Vec<_>>(), sample.from), (vec![2], 9));
    }
}
