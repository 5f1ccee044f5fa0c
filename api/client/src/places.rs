//! The limit of requests in flight, and the order in which waiting requests get a place.
//!
//! A watch keeps its place for as long as it lasts. So a share of the bulk gets no more than
//! `SHARE_MAX` places, nor more than are left, and `RESERVED` places are never given to the bulk.
//! Input: lane and share of a request. Output: a `TakenPlace`, given back when it is dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::turns::{Lane, RequestTurns, TenantShare};

/// Places that one share of the bulk holds at most.
const SHARE_MAX: usize = 512;
/// One of so many places is kept for urgent requests.
const RESERVED_PART: usize = 16;

#[derive(Debug)]
struct HeldPlace {
    limit: usize,
    all: usize,
    bulk: usize,
    shares: BTreeMap<TenantShare, usize>,
    turns: RequestTurns<oneshot::Sender<TakenPlace>>,
}

impl HeldPlace {
    /// True if there is a place for this share, or for an urgent request.
    fn admits(&self, share: Option<&TenantShare>) -> bool {
        let Some(share) = share else { return self.all < self.limit };
        let for_bulk = self.limit - (self.limit / RESERVED_PART).max(1).min(self.limit - 1);
        let left = for_bulk.saturating_sub(self.bulk);
        let own = self.shares.get(share).copied().unwrap_or(0);
        self.all < self.limit && own < left.min(SHARE_MAX)
    }

    fn take(&mut self, lane: Lane, share: &TenantShare) {
        self.all += 1;
        if lane == Lane::Bulk {
            self.bulk += 1;
            *self.shares.entry(share.clone()).or_default() += 1;
        }
    }

    fn give_back(&mut self, lane: Lane, share: &TenantShare) {
        self.all -= 1;
        if lane == Lane::Bulk {
            self.bulk -= 1;
            if let Some(own) = self.shares.get_mut(share) {
                *own -= 1;
                if *own == 0 {
                    self.shares.remove(share);
                }
            }
        }
    }
}

/// The places of one client.
#[derive(Debug)]
pub(crate) struct RequestPlaces(Mutex<HeldPlace>);

/// A place that is taken.
#[derive(Debug)]
pub(crate) struct TakenPlace {
    /// `None` when it was given back already.
    places: Option<Arc<RequestPlaces>>,
    lane: Lane,
    share: TenantShare,
}

impl RequestPlaces {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(HeldPlace {
            limit: limit.max(2),
            all: 0,
            bulk: 0,
            shares: BTreeMap::new(),
            turns: RequestTurns::default(),
        })))
    }

    /// From now on there are so many.
    pub(crate) fn limit(self: &Arc<Self>, limit: usize) {
        let mut held = self.held();
        held.limit = limit.max(2);
        self.hand_out(&mut held);
    }

    /// Waits for a place.
    pub(crate) async fn room(self: &Arc<Self>, lane: Lane, share: &TenantShare) -> TakenPlace {
        loop {
            let room = {
                let mut held = self.held();
                let key = (lane == Lane::Bulk).then_some(share);
                if held.admits(key) {
                    held.take(lane, share);
                    return self.taken(lane, share.clone());
                }
                let (give, room) = oneshot::channel();
                held.turns.push(lane, share, give);
                room
            };
            if let Ok(room) = room.await {
                return room;
            }
        }
    }

    fn taken(self: &Arc<Self>, lane: Lane, share: TenantShare) -> TakenPlace {
        TakenPlace { places: Some(Arc::clone(self)), lane, share }
    }

    /// Returns a place, and gives free places to waiting requests.
    fn give_back(self: &Arc<Self>, lane: Lane, share: &TenantShare) {
        let mut held = self.held();
        held.give_back(lane, share);
        self.hand_out(&mut held);
    }

    /// Gives free places to waiting requests.
    fn hand_out(self: &Arc<Self>, held: &mut HeldPlace) {
        loop {
            let mut turns = std::mem::take(&mut held.turns);
            let next = turns.pop(|share| held.admits(share));
            held.turns = turns;
            let Some((lane, share, waiter)) = next else { return };
            if waiter.is_closed() {
                continue;
            }
            held.take(lane, &share);
            if let Err(mut unwanted) = waiter.send(self.taken(lane, share)) {
                // Dropped while the places are locked: counted here, not by its own drop.
                unwanted.places = None;
                held.give_back(unwanted.lane, &unwanted.share);
            }
        }
    }

    fn held(&self) -> MutexGuard<'_, HeldPlace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TakenPlace {
    fn drop(&mut self) {
        if let Some(places) = self.places.take() {
            places.give_back(self.lane, &self.share);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the places that are free now.
    fn grab(places: &Arc<RequestPlaces>, lane: Lane, share: &str, most: usize) -> Vec<TakenPlace> {
        let share = TenantShare::of(share);
        let take = |_| {
            let mut held = places.held();
            let key = (lane == Lane::Bulk).then_some(&share);
            held.admits(key).then(|| {
                held.take(lane, &share);
                places.taken(lane, share.clone())
            })
        };
        (0..most).map_while(take).collect()
    }

    #[test]
    fn no_share_takes_all_and_urgent_requests_always_find_a_place() {
        let places = RequestPlaces::new(6_400);
        let greedy: Vec<_> =
            (0..40).map(|n| grab(&places, Lane::Bulk, &format!("pod {n}"), 7_000)).collect();
        assert_eq!(greedy[0].len(), SHARE_MAX);
        assert!(greedy[10].len() > 100, "{}", greedy[10].len());
        assert_eq!(grab(&places, Lane::Urgent, "", 400).len(), 400);
        drop(greedy);
        let held = places.held();
        assert!(held.shares.is_empty());
        assert_eq!((held.all, held.bulk), (0, 0));
    }

    #[tokio::test]
    async fn freed_places_pass_to_waiting_requests_and_skip_cancelled_requests() {
        let places = RequestPlaces::new(4);
        let mut taken = grab(&places, Lane::Urgent, "", 10);
        assert_eq!(taken.len(), 4);
        let wait = |share: &'static str| {
            let places = Arc::clone(&places);
            tokio::spawn(async move { places.room(Lane::Bulk, &TenantShare::of(share)).await })
        };
        let (first, given_up, other) = (wait("a"), wait("a"), wait("b"));
        tokio::task::yield_now().await;
        given_up.abort();
        taken.pop();
        let room = first.await.expect("a place");
        taken.pop();
        drop(room);
        let _room = other.await.expect("the place of the given-up request");
        let more = wait("c");
        tokio::task::yield_now().await;
        places.limit(9);
        more.await.expect("one of the new places");
    }
}
