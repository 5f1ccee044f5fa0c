//! States near the one before a decision: the other scheduler may have seen one of them.
//!
//! It assumes a pod in its own cache when it decides, and writes the binding a little later,
//! several concurrently; changes by others reach it a little later than they were written. So some
//! of the last changes came after its decision, and some of the next ones before. Input: steps
//! before and after, the cache. Output: the distance in steps of the first state in which a check
//! holds. The cache is restored at the end. Owner: the shadow. Bounds: `REACH` steps each way, of
//! each pod or node the nearest only; as many states as the caller allows, the nearest first.

use std::collections::{HashSet, VecDeque};

use pintle_sched_core::intern::Str;

use super::HeldChange;
use crate::cache::{Aside, CacheDelta, ClusterCache};

/// Steps to each side.
const REACH: usize = 32;
/// Of these nearest steps every pair and triple is tried.
const CLOSE: usize = 10;
/// Waiting changes from which steps are taken.
const LOOK_AHEAD: usize = 4 * REACH;
/// Steps that a disagreement lists, on each side.
const CHANGES_MAX: usize = 8;

/// The steps around a decision.
#[derive(Debug)]
pub(super) struct Nearby {
    /// Steps before it, the last one first.
    past: Vec<CacheDelta>,
    /// Steps after it, the next one first.
    next: Vec<CacheDelta>,
}

/// One step: before (false) or after (true), and its distance.
type Turn = (bool, usize);

/// The state that the cache is in.
#[derive(Debug, Default)]
struct Turned {
    all: Vec<Turn>,
    aside: Aside,
}

impl Nearby {
    /// Collects the steps; `asking` is the decided pod.
    pub(super) fn new<'a>(
        cache: &mut ClusterCache,
        past: &VecDeque<CacheDelta>,
        held: impl Iterator<Item = &'a HeldChange>,
        asking: Str,
    ) -> Self {
        let mut seen: HashSet<Str> = [asking].into();
        let mut gathered = Vec::new();
        for step in past.iter().rev() {
            let new = step.object().is_some_and(|object| seen.insert(object));
            if new && gathered.len() < REACH {
                gathered.push(step.clone());
            }
        }
        let past = gathered;
        let mut next = Vec::new();
        for held in held.take(LOOK_AHEAD) {
            if next.len() >= REACH {
                break;
            }
            let steps = match held {
                HeldChange::Set(thing) => cache.foresee(thing),
                HeldChange::Gone(kind, key, last) => cache.foresee_end(*kind, key, last.as_ref()),
            };
            let Some(object) = steps.first().and_then(CacheDelta::object) else { continue };
            if steps.iter().any(CacheDelta::matters) && seen.insert(object) {
                next.extend(steps);
            }
        }
        Self { past, next }
    }

    /// Searches a state in which `check` holds, the present one first; returns its distance in
    /// steps.
    pub(super) fn find(
        &self,
        cache: &mut ClusterCache,
        tries: usize,
        mut check: impl FnMut(&mut ClusterCache) -> bool,
    ) -> Option<usize> {
        if check(cache) {
            return Some(0);
        }
        let mut turned = Turned::default();
        let mut found = None;
        for wanted in self.states().take(tries) {
            self.turn_to(cache, &mut turned, &wanted);
            if check(cache) {
                found = Some(wanted.len());
                break;
            }
        }
        self.turn_to(cache, &mut turned, &[]);
        found
    }

    /// Describes the steps nearby.
    pub(super) fn lines(&self, cache: &ClusterCache) -> Vec<String> {
        let text = |step: &CacheDelta| {
            let object = step.object().map_or("", |object| cache.cluster.text(object));
            match step {
                CacheDelta::Bound(pod, node) => {
                    format!("{} bound to {node}", cache.cluster.text(pod.name))
                }
                CacheDelta::Gone { node, .. } => format!("{object} gone from {node}"),
                CacheDelta::Changed { new, node, .. } => {
                    format!("{} changed on {node}", cache.cluster.text(new.name))
                }
                CacheDelta::Nominated { new, .. } => {
                    let node = new.as_ref().map_or("no node", |n| &*n.node);
                    format!("{node} is kept for {object}")
                }
                CacheDelta::Node { new, .. } => {
                    format!("node {object} {}", if new.is_some() { "changed" } else { "gone" })
                }
            }
        };
        let before = self.past.iter().take(CHANGES_MAX).map(|s| format!("before: {}", text(s)));
        before
            .chain(self.next.iter().take(CHANGES_MAX).map(|s| format!("after: {}", text(s))))
            .collect()
    }

    /// Returns all states, the likely ones first.
    fn states(&self) -> impl Iterator<Item = Vec<Turn>> + use<> {
        let (past, next) = (self.past.len(), self.next.len());
        let first = move |count: usize, after: bool| (0..count).map(move |at| (after, at));
        // The last few steps undone, the next few already applied.
        let runs = (1..=past + next).flat_map(move |sum| {
            let fewest = sum.saturating_sub(next);
            (fewest..=sum.min(past)).map(move |before| {
                first(before, false).chain(first(sum - before, true)).collect::<Vec<Turn>>()
            })
        });
        let all: Vec<Turn> = {
            let mut all: Vec<Turn> = first(past, false).chain(first(next, true)).collect();
            all.sort_by_key(|(after, at)| (*at, !*after));
            all
        };
        let close: Vec<Turn> = all.iter().copied().take(2 * CLOSE).collect();
        let singles = all.into_iter().map(|turn| vec![turn]);
        let of = close.clone();
        let pairs = (0..of.len()).flat_map(move |b| {
            let of = of.clone();
            (0..b).map(move |a| vec![of[a], of[b]])
        });
        let of: Vec<Turn> = close.into_iter().take(CLOSE).collect();
        let triples = (0..of.len()).flat_map(move |c| {
            let of = of.clone();
            (0..c).flat_map(move |b| {
                let of = of.clone();
                (0..b).map(move |a| vec![of[a], of[b], of[c]])
            })
        });
        singles.chain(pairs).chain(runs).chain(triples)
    }

    /// Applies and undoes the difference between two states.
    fn turn_to(&self, cache: &mut ClusterCache, turned: &mut Turned, wanted: &[Turn]) {
        let Turned { all, aside } = turned;
        let mut turn = |(after, at): Turn, on: bool| {
            let step = if after { &self.next[at] } else { &self.past[at] };
            cache.turn(step, after == on, aside);
        };
        all.iter().filter(|turn| !wanted.contains(turn)).for_each(|one| turn(*one, false));
        wanted.iter().filter(|turn| !all.contains(turn)).for_each(|one| turn(*one, true));
        *all = wanted.to_vec();
    }
}
