//! The order of requests that wait: pure.
//!
//! Two lanes: requests that the whole node depends on, and requests of single pods. The first goes
//! before the second, but for one turn in `BULK_EVERY`, so that neither can stop the other. Within
//! the second lane each share (a pod, as a rule) has one turn after the other, however many
//! requests it has waiting. Bounds: as many waiters as there are callers; a share is forgotten when
//! none of its requests waits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// At least one turn of so many is for the bulk, if some of it waits.
const BULK_EVERY: u32 = 8;

/// The lane of a request: the order in which requests of one client are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Requests of the whole node: statuses, the node's object, watches of pods.
    #[default]
    Urgent,
    /// Requests of single pods: objects that they refer to.
    Bulk,
}

/// The tenant of a request in the bulk lane: an extension of the request. Requests without one form
/// a share together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct TenantShare(Arc<str>);

impl TenantShare {
    /// The share of that name: a pod's uid, for example.
    pub fn of(name: &str) -> Self {
        Self(name.into())
    }
}

/// The waiting requests.
#[derive(Debug)]
pub(crate) struct RequestTurns<W> {
    urgent: VecDeque<W>,
    bulk: BTreeMap<TenantShare, VecDeque<W>>,
    /// Shares with waiters, in the order of their turns.
    ring: VecDeque<TenantShare>,
    /// Urgent turns since the last one of the bulk.
    streak: u32,
}

impl<W> Default for RequestTurns<W> {
    fn default() -> Self {
        Self { urgent: VecDeque::new(), bulk: BTreeMap::new(), ring: VecDeque::new(), streak: 0 }
    }
}

impl<W> RequestTurns<W> {
    /// True when no request waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.ring.is_empty()
    }

    /// Adds a waiting request.
    pub(crate) fn push(&mut self, lane: Lane, share: &TenantShare, waiter: W) {
        if lane == Lane::Urgent {
            return self.urgent.push_back(waiter);
        }
        let queue = self.bulk.entry(share.clone()).or_default();
        if queue.is_empty() {
            self.ring.push_back(share.clone());
        }
        queue.push_back(waiter);
    }

    /// Takes the next request that `admits` lets in: `None` stands for the urgent lane.
    pub(crate) fn pop(
        &mut self,
        admits: impl Fn(Option<&TenantShare>) -> bool,
    ) -> Option<(Lane, TenantShare, W)> {
        let bulk_first = self.streak + 1 >= BULK_EVERY;
        if bulk_first && let Some(next) = self.pop_bulk(&admits) {
            return Some(next);
        }
        if admits(None)
            && let Some(waiter) = self.urgent.pop_front()
        {
            self.streak = if self.ring.is_empty() { 0 } else { self.streak.saturating_add(1) };
            return Some((Lane::Urgent, TenantShare::default(), waiter));
        }
        if bulk_first { None } else { self.pop_bulk(&admits) }
    }

    fn pop_bulk(
        &mut self,
        admits: impl Fn(Option<&TenantShare>) -> bool,
    ) -> Option<(Lane, TenantShare, W)> {
        let at = self.ring.iter().position(|share| admits(Some(share)))?;
        let share = self.ring.remove(at)?;
        let queue = self.bulk.get_mut(&share)?;
        let waiter = queue.pop_front()?;
        if queue.is_empty() {
            self.bulk.remove(&share);
        } else {
            self.ring.push_back(share.clone());
        }
        self.streak = 0;
        Some((Lane::Bulk, share, waiter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(mut turns: RequestTurns<String>) -> Vec<String> {
        std::iter::from_fn(|| turns.pop(|_| true)).map(|(_, _, waiter)| waiter).collect()
    }

    #[test]
    fn a_share_with_much_to_do_has_every_other_turn_at_most() {
        let (greedy, other) = (TenantShare::of("greedy"), TenantShare::of("other"));
        let mut turns = RequestTurns::default();
        for n in 0..1_000 {
            turns.push(Lane::Bulk, &greedy, format!("greedy {n}"));
        }
        turns.push(Lane::Bulk, &other, "other 0".to_owned());
        turns.push(Lane::Bulk, &other, "other 1".to_owned());
        let order = order(turns);
        assert_eq!(order[..4], ["greedy 0", "other 0", "greedy 1", "other 1"]);
        assert_eq!(order.len(), 1_002);
    }

    #[test]
    fn urgent_requests_precede_bulk_requests_without_starving_them() {
        let mut turns = RequestTurns::default();
        for n in 0..20 {
            turns.push(Lane::Bulk, &TenantShare::of("pod"), format!("bulk {n}"));
            turns.push(Lane::Urgent, &TenantShare::default(), format!("urgent {n}"));
        }
        let order = order(turns);
        let bulk_at = |order: &[String]| order.iter().position(|one| one.starts_with("bulk"));
        assert_eq!(bulk_at(&order), Some(BULK_EVERY as usize - 1), "{order:?}");
        let urgent = order.iter().take(22).filter(|one| one.starts_with("urgent")).count();
        assert_eq!(urgent, 20, "{order:?}");
    }

    #[test]
    fn a_share_that_is_not_let_in_is_passed_over() {
        let (full, free) = (TenantShare::of("a"), TenantShare::of("b"));
        let mut turns = RequestTurns::default();
        turns.push(Lane::Bulk, &full, 1);
        turns.push(Lane::Bulk, &free, 2);
        let admits = |share: Option<&TenantShare>| share == Some(&free);
        assert_eq!(turns.pop(admits).map(|(_, _, waiter)| waiter), Some(2));
        assert_eq!(turns.pop(admits).map(|(_, _, waiter)| waiter), None);
        assert!(!turns.is_empty());
        assert_eq!(turns.pop(|_| true).map(|(_, _, waiter)| waiter), Some(1));
        assert!(turns.is_empty());
    }
}
