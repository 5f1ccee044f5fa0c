//! Chooses which victims to reprieve next in pod-group preemption.
//!
//! Input: the number of potential victims, the most important first, and whether the group fits.
//! Output: the range to add back next, until each pod is a victim or reprieved. Owner: pure.
//! Bounds: two dry runs per victim, times the logarithm of the number of reprieves since the
//! previous victim. Several pods are added back at once, because in a cluster of thousands of pods
//! few are victims, and one dry run decides all pods of the group. If the group fits with several
//! pods added back, it is assumed to fit with fewer of them; upstream does a dry run for each. The
//! victims differ from upstream's only for groups with affinity to pods that are added back.
// k8s: pkg/scheduler/framework/preemption/podgrouppreemption.go selectVictimsOnDomain

use std::ops::Range;

/// Progress of the search.
#[derive(Debug)]
pub(super) struct Reprieve {
    /// The index of the first undecided pod.
    from: usize,
    count: usize,
    /// The number to add back next.
    step: usize,
    /// The group does not fit if all pods up to this index are added back, this one included.
    barred: Option<usize>,
}

impl Reprieve {
    /// Starts with `count` removed potential victims.
    pub(super) fn of(count: usize) -> Self {
        Self { from: 0, count, step: 1, barred: None }
    }

    /// Returns the range to add back next; `None` if all pods are decided.
    pub(super) fn next(&self) -> Option<Range<usize>> {
        let end = match self.barred {
            Some(barred) => self.from + (barred - self.from).div_ceil(2),
            None => self.from.saturating_add(self.step).min(self.count),
        };
        (self.from < self.count).then_some(self.from..end)
    }

    /// Records the result of a dry run with the pods of the range `back` added back: they are
    /// reprieved if the group fits.
    pub(super) fn saw(&mut self, back: Range<usize>, fits: bool) {
        assert_eq!(back.start, self.from, "pods are added back in order");
        if fits {
            self.from = back.end;
            self.step = self.step.saturating_mul(2);
        } else {
            self.barred = Some(back.end - 1);
        }
        // No undecided pod precedes the barred one, so the barred pod is a victim.
        if self.barred == Some(self.from) {
            *self = Self { from: self.from + 1, count: self.count, step: 1, barred: None };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the victims and the number of dry runs. `parts` are the requests of the potential
    /// victims, which fit if their sum is at most `room`.
    fn search_victims(parts: &[u64], room: u64) -> (Vec<usize>, usize) {
        let mut reprieve = Reprieve::of(parts.len());
        let mut stays = vec![false; parts.len()];
        let mut dry_runs = 0;
        while let Some(back) = reprieve.next() {
            assert!(!back.is_empty() && back.end <= parts.len());
            dry_runs += 1;
            back.clone().for_each(|at| stays[at] = true);
            let taken: u64 = parts.iter().zip(&stays).filter(|(_, s)| **s).map(|(p, _)| p).sum();
            if taken > room {
                back.clone().for_each(|at| stays[at] = false);
            }
            reprieve.saw(back, taken <= room);
        }
        ((0..parts.len()).filter(|at| !stays[*at]).collect(), dry_runs)
    }

    /// Returns the victims if each potential victim is added back alone, as upstream does.
    fn victims_one_by_one(parts: &[u64], room: u64) -> Vec<usize> {
        let mut left = room;
        let mut stays = |part: u64| {
            let fits = part <= left;
            left -= if fits { part } else { 0 };
            fits
        };
        (0..parts.len()).filter(|at| !stays(parts[*at])).collect()
    }

    #[test]
    fn reprieve_search_finds_the_same_victims_as_one_by_one() {
        let mut state = 7u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % n
        };
        for _ in 0..2_000 {
            let count = below(70);
            let parts: Vec<u64> = (0..count).map(|_| below(9)).collect();
            let room = below(parts.iter().sum::<u64>() + 2);
            let (found, dry_runs) = search_victims(&parts, room);
            assert_eq!(found, victims_one_by_one(&parts, room), "{parts:?} in {room}");
            assert!(dry_runs <= 2 * parts.len() + 1, "{dry_runs} for {} pods", parts.len());
        }
    }

    #[test]
    fn few_victims_among_many_pods_cost_few_dry_runs() {
        let parts = vec![1; 100_000];
        assert_eq!(search_victims(&parts, 100_000), (vec![], 17));
        let (found, dry_runs) = search_victims(&parts, 99_990);
        assert_eq!(found, (99_990..100_000).collect::<Vec<_>>());
        assert!(dry_runs < 60, "{dry_runs}");
        // If all are victims, each needs a dry run.
        assert_eq!(search_victims(&parts[..1_000], 0), ((0..1_000).collect(), 1_000));
    }
}
