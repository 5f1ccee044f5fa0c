//! Who of those thought away is put back next, to see whether a group fits beside him.
//!
//! Input: how many there are, the most important first, and whether the group fitted. Output: those to be
//! put back, until it is certain of each whether he goes. Owner: pure. Bounds: two looks for each that
//! goes, times the logarithm of how many stay between him and the one before.
//! Why several at once: in a cluster of thousands of pods few have to go, and one look decides all pods of
//! the group. Where the group fits beside several, it is taken to fit beside the first of them as well;
//! upstream has a look at each. So who goes is the same but for groups that want to be beside such pods.
// k8s: pkg/scheduler/framework/preemption/podgrouppreemption.go selectVictimsOnDomain

use std::ops::Range;

/// How far that is.
#[derive(Debug)]
pub(super) struct Reprieve {
    /// The first of whom it is not certain yet.
    from: usize,
    count: usize,
    /// How many are put back at once.
    step: usize,
    /// With all up to this one put back the group does not fit.
    barred: Option<usize>,
}

impl Reprieve {
    /// So many are thought away.
    pub(super) fn of(count: usize) -> Self {
        Self { from: 0, count, step: 1, barred: None }
    }

    /// Who is put back next; `None` when it is certain of all.
    pub(super) fn next(&self) -> Option<Range<usize>> {
        let end = match self.barred {
            Some(barred) => self.from + (barred - self.from).div_ceil(2),
            None => self.from.saturating_add(self.step).min(self.count),
        };
        (self.from < self.count).then_some(self.from..end)
    }

    /// Those were put back, and stay where the group fits beside them.
    pub(super) fn saw(&mut self, back: Range<usize>, fits: bool) {
        assert_eq!(back.start, self.from, "they are put back in their order");
        if fits {
            self.from = back.end;
            self.step = self.step.saturating_mul(2);
        } else {
            self.barred = Some(back.end - 1);
        }
        // Nobody before him is left, so that it is he beside whom it does not fit.
        if self.barred == Some(self.from) {
            *self = Self { from: self.from + 1, count: self.count, step: 1, barred: None };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who goes, and after how many looks; each takes his part of the room.
    fn goes(parts: &[u64], room: u64) -> (Vec<usize>, usize) {
        let mut reprieve = Reprieve::of(parts.len());
        let mut stays = vec![false; parts.len()];
        let mut looks = 0;
        while let Some(back) = reprieve.next() {
            assert!(!back.is_empty() && back.end <= parts.len());
            looks += 1;
            back.clone().for_each(|at| stays[at] = true);
            let taken: u64 = parts.iter().zip(&stays).filter(|(_, s)| **s).map(|(p, _)| p).sum();
            if taken > room {
                back.clone().for_each(|at| stays[at] = false);
            }
            reprieve.saw(back, taken <= room);
        }
        ((0..parts.len()).filter(|at| !stays[*at]).collect(), looks)
    }

    /// The same, one after the other.
    fn goes_one_by_one(parts: &[u64], room: u64) -> Vec<usize> {
        let mut left = room;
        let mut stays = |part: u64| {
            let fits = part <= left;
            left -= if fits { part } else { 0 };
            fits
        };
        (0..parts.len()).filter(|at| !stays(parts[*at])).collect()
    }

    #[test]
    fn those_go_who_would_go_one_by_one() {
        let mut state = 7u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % n
        };
        for _ in 0..2_000 {
            let count = below(70);
            let parts: Vec<u64> = (0..count).map(|_| below(9)).collect();
            let room = below(parts.iter().sum::<u64>() + 2);
            let (found, looks) = goes(&parts, room);
            assert_eq!(found, goes_one_by_one(&parts, room), "{parts:?} in {room}");
            assert!(looks <= 2 * parts.len() + 1, "{looks} looks at {}", parts.len());
        }
    }

    #[test]
    fn few_who_go_among_many_cost_few_looks() {
        let parts = vec![1; 100_000];
        assert_eq!(goes(&parts, 100_000), (vec![], 17));
        let (found, looks) = goes(&parts, 99_990);
        assert_eq!(found, (99_990..100_000).collect::<Vec<_>>());
        assert!(looks < 60, "{looks}");
        // Where all go, each has his own.
        assert_eq!(goes(&parts[..1_000], 0), ((0..1_000).collect(), 1_000));
    }
}
