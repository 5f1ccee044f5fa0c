//! Questions to the API server: equal ones are asked once, and no peer exceeds its share.
//!
//! Input: a question, its peer, and how to ask it. Output: the answer, or that there is no turn. A
//! caller with a question that is already being asked waits for that answer. A question without a
//! waiting caller is dropped. Peers take turns (`turns`), those first that had a good answer
//! lately: a flood of random tokens from many addresses delays a real one by less than `WAIT_MAX`.
//! Bounds: `UNDER_WAY_MAX` questions at the API server, of them `UNDER_WAY_PER_PEER` of one peer;
//! `WAITING_PER_PEER` that wait, none longer than `WAIT_MAX`; `RATE` questions of all, `PEER_RATE`
//! of one peer.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, Shared};
use pintle_api_types::rate::Rate;

use super::reviews::ReviewError;
use crate::serve::connections::PeerKey;
use crate::serve::turns::{TurnKind, TurnLimits};

/// Questions at the API server at the same time.
const UNDER_WAY_MAX: usize = 32;
const UNDER_WAY_PER_PEER: usize = 4;
/// Questions of one peer that wait for their turn.
const WAITING_PER_PEER: usize = 64;
/// Longest wait for a turn.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Questions per second, and at once. The kubelet's go through the client of kubeAPIQPS.
const RATE: Rate = Rate { per_second: 50.0, burst: 100 };
const PEER_RATE: Rate = Rate { per_second: 10.0, burst: 30 };
const LIMITS: TurnLimits = TurnLimits {
    rate: RATE,
    peer_rate: PEER_RATE,
    under_way: UNDER_WAY_MAX,
    under_way_per_peer: UNDER_WAY_PER_PEER,
    waiting_per_peer: WAITING_PER_PEER,
};

/// Reason why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// Too much is asked; later there may be a turn.
    Busy,
    /// The API server did not answer the question.
    Failed(ReviewError),
}

type Flight<V> = Shared<BoxFuture<'static, Result<V, NoAnswer>>>;

/// Questions of one kind. A flood of tokens delays no question about rights.
pub(super) struct Flights<K, V: Clone> {
    flights: Arc<Mutex<HashMap<K, Flight<V>>>>,
    turns: TurnKind,
}

impl<K, V> Flights<K, V>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub(super) fn new() -> Self {
        Self::with(WAIT_MAX)
    }

    fn with(wait_max: Duration) -> Self {
        Self { flights: Arc::default(), turns: TurnKind::new(LIMITS, wait_max) }
    }

    /// A question of the peer's had a good answer: its next ones come before those of strangers.
    pub(super) fn prove(&self, peer: PeerKey) {
        self.turns.prove(peer);
    }

    /// The answer to `question`, asked with `ask` unless it is being asked already.
    pub(super) async fn answer(
        &self,
        question: K,
        peer: PeerKey,
        ask: impl FnOnce() -> BoxFuture<'static, Result<V, ReviewError>>,
    ) -> Result<V, NoAnswer> {
        let flight = {
            let mut flights = lock(&self.flights);
            // Drops questions that no caller waits for any more.
            flights.retain(|_, flight| flight.strong_count().is_some_and(|count| count > 1));
            match flights.get(&question) {
                Some(flight) => flight.clone(),
                None => {
                    let (turns, asked) = (self.turns.clone(), ask());
                    let flight = async move {
                        let _turn = turns.turn(peer).await.map_err(|_| NoAnswer::Busy)?;
                        asked.await.map_err(NoAnswer::Failed)
                    };
                    let flight = flight.boxed().shared();
                    flights.insert(question.clone(), flight.clone());
                    flight
                }
            }
        };
        let answer = flight.clone().await;
        let mut flights = lock(&self.flights);
        if flights.get(&question).is_some_and(|known| known.ptr_eq(&flight)) {
            flights.remove(&question);
        }
        answer
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;

    use std::sync::atomic::{AtomicUsize, Ordering};

    const WAIT: Duration = Duration::from_millis(100);

    fn peer(last: u8) -> PeerKey {
        PeerKey::of([192, 0, 2, last].into())
    }

    fn flights() -> Arc<Flights<u32, u32>> {
        Arc::new(Flights::with(WAIT))
    }

    fn never() -> BoxFuture<'static, Result<u32, ReviewError>> {
        std::future::pending().boxed()
    }

    #[tokio::test]
    async fn equal_questions_are_asked_once_and_asked_again_after_the_answer() {
        let flights = flights();
        let (asked, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let ask = |last| {
            let (flights, asked, gate) =
                (Arc::clone(&flights), Arc::clone(&asked), Arc::clone(&gate));
            async move {
                let answer = flights.answer(1, peer(last), || {
                    asked.fetch_add(1, Ordering::Relaxed);
                    async move { gate.acquire().await.map_or(Ok(7), |_| Ok(0)) }.boxed()
                });
                answer.await
            }
        };
        let all: Vec<_> = (0..50).map(|last| tokio::spawn(ask(last))).collect();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        gate.close();
        for answer in all {
            assert_eq!(answer.await.expect("no panic"), Ok(7));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert_eq!(ask(1).await, Ok(7));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn hung_lookups_of_a_peer_do_not_block_other_peers() {
        let flights = flights();
        let mut hanging = Vec::new();
        for question in 0..200 {
            let flights = Arc::clone(&flights);
            hanging
                .push(tokio::spawn(async move { flights.answer(question, peer(1), never).await }));
        }
        for _ in 0..400 {
            tokio::task::yield_now().await;
        }
        let refused = hanging.iter().filter(|task| task.is_finished()).count();
        assert_eq!(refused, 200 - UNDER_WAY_PER_PEER - WAITING_PER_PEER, "the rest waits");
        let other = flights.answer(1000, peer(2), || async { Ok(1) }.boxed()).await;
        assert_eq!(other, Ok(1));
        let mut open = hanging;
        while open.len() > UNDER_WAY_PER_PEER {
            tokio::time::sleep(WAIT / 10).await;
            open.retain(|task| !task.is_finished()); // its caller has waited too long
        }
        tokio::time::sleep(2 * WAIT).await;
        assert!(open.iter().all(|task| !task.is_finished()), "whose turn it is has its time");
        for task in open {
            task.abort();
            let _ = task.await;
        }
        let again = flights.answer(0, peer(1), || async { Ok(2) }.boxed()).await;
        assert_eq!(again, Ok(2), "requests without a caller are dropped");
    }
}
