//! Questions to the API server: equal ones are asked once, and nobody asks more than a share.
//!
//! Input: a question, whose it is, and how to ask it. Output: the answer, or that there is no turn.
//! Whoever asks what is being asked already waits for that answer. A question that nobody waits for
//! any more is dropped. Bounds: `UNDER_WAY_MAX` questions at the API server, of them
//! `UNDER_WAY_PER_PEER` of one peer; `WAITING_PER_PEER` that wait, none longer than `WAIT_MAX`;
//! `RATE` questions of all, `PEER_RATE` of one peer; `PEERS_MAX` peers that are kept account of.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt as _, Shared};
use pintle_api_types::rate::{Bucket, Rate};
use tokio::sync::Semaphore;

use crate::serve::connections::PeerKey;

/// Questions at the API server at the same time.
const UNDER_WAY_MAX: usize = 32;
const UNDER_WAY_PER_PEER: usize = 4;
/// Questions of one peer that wait for their turn.
const WAITING_PER_PEER: usize = 64;
/// How long one waits for its turn.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Questions per second, and at once. The kubelet's go through the client of kubeAPIQPS.
const RATE: Rate = Rate { per_second: 50.0, burst: 100 };
const PEER_RATE: Rate = Rate { per_second: 10.0, burst: 30 };
/// Peers with an account.
const PEERS_MAX: usize = 4096;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// Too much is asked; later there may be a turn.
    Busy,
    /// The API server did not say.
    Failed(String),
}

type Flight<V> = Shared<BoxFuture<'static, Result<V, NoAnswer>>>;

/// Questions of one kind.
pub(super) struct Flights<K, V: Clone> {
    flights: Arc<Mutex<HashMap<K, Flight<V>>>>,
    turns: Arc<Turns>,
}

/// The turns of one kind of questions: a flood of tokens holds up no question about rights.
struct Turns {
    wait_max: Duration,
    under_way: Semaphore,
    accounts: Mutex<Accounts>,
}

struct Accounts {
    all: Bucket,
    peers: HashMap<PeerKey, Account>,
}

struct Account {
    bucket: Bucket,
    under_way: Arc<Semaphore>,
    waiting: usize,
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
        Self { flights: Arc::default(), turns: Arc::new(Turns::new(wait_max)) }
    }

    /// The answer to `question`, asked with `ask` unless it is being asked already.
    pub(super) async fn answer(
        &self,
        question: K,
        peer: PeerKey,
        ask: impl FnOnce() -> BoxFuture<'static, Result<V, String>>,
    ) -> Result<V, NoAnswer> {
        let flight = {
            let mut flights = lock(&self.flights);
            // Those that nobody waited for to their end.
            flights.retain(|_, flight| flight.strong_count().is_some_and(|count| count > 1));
            match flights.get(&question) {
                Some(flight) => flight.clone(),
                None => {
                    let (turns, asked) = (Arc::clone(&self.turns), ask());
                    let flight = async move {
                        let _turn = turns.turn(peer).await?;
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

/// The right to ask; given back when it is dropped.
struct Turn<'a> {
    _all: tokio::sync::SemaphorePermit<'a>,
    _peer: tokio::sync::OwnedSemaphorePermit,
}

/// A place among those of a peer that wait.
struct Waiting<'a>(&'a Turns, PeerKey);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut accounts = lock(&self.0.accounts);
        if let Some(account) = accounts.peers.get_mut(&self.1) {
            account.waiting -= 1;
        }
    }
}

impl Turns {
    fn new(wait_max: Duration) -> Self {
        let all = Bucket::new(RATE);
        let accounts = Mutex::new(Accounts { all, peers: HashMap::new() });
        Self { wait_max, under_way: Semaphore::new(UNDER_WAY_MAX), accounts }
    }

    async fn turn(&self, peer: PeerKey) -> Result<Turn<'_>, NoAnswer> {
        let (of_peer, _waiting) = self.queue(peer).ok_or(NoAnswer::Busy)?;
        let turn = async {
            // First the peer's own bounds, so that who waits for those holds nothing of the others'.
            let peers = of_peer.acquire_owned().await.ok()?;
            loop {
                let wait = self.take(peer);
                if wait.is_zero() {
                    break;
                }
                tokio::time::sleep(wait).await;
            }
            let all = self.under_way.acquire().await.ok()?;
            Some(Turn { _all: all, _peer: peers })
        };
        tokio::time::timeout(self.wait_max, turn).await.ok().flatten().ok_or(NoAnswer::Busy)
    }

    fn queue(&self, peer: PeerKey) -> Option<(Arc<Semaphore>, Waiting<'_>)> {
        let now = Instant::now();
        let mut accounts = lock(&self.accounts);
        if accounts.peers.len() >= PEERS_MAX && !accounts.peers.contains_key(&peer) {
            accounts.peers.retain(|_, account| {
                let idle = account.under_way.available_permits() == UNDER_WAY_PER_PEER;
                !(idle && account.waiting == 0 && account.bucket.is_full(now))
            });
            if accounts.peers.len() >= PEERS_MAX {
                return None;
            }
        }
        let account = accounts.peers.entry(peer).or_insert_with(|| Account {
            bucket: Bucket::new(PEER_RATE),
            under_way: Arc::new(Semaphore::new(UNDER_WAY_PER_PEER)),
            waiting: 0,
        });
        if account.waiting >= WAITING_PER_PEER {
            return None;
        }
        account.waiting += 1;
        Some((Arc::clone(&account.under_way), Waiting(self, peer)))
    }

    /// Takes a token of both buckets, or says how long there is none.
    fn take(&self, peer: PeerKey) -> Duration {
        let now = Instant::now();
        let accounts = &mut *lock(&self.accounts);
        let Some(account) = accounts.peers.get_mut(&peer) else { return Duration::ZERO };
        let wait = account.bucket.wait(now).max(accounts.all.wait(now));
        if wait.is_zero() {
            account.bucket.spend();
            accounts.all.spend();
        }
        wait
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const WAIT: Duration = Duration::from_millis(100);

    fn peer(last: u8) -> PeerKey {
        PeerKey::of([192, 0, 2, last].into())
    }

    fn flights() -> Arc<Flights<u32, u32>> {
        Arc::new(Flights::with(WAIT))
    }

    fn never() -> BoxFuture<'static, Result<u32, String>> {
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
    async fn one_peers_questions_do_not_hold_up_anothers() {
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
            open.retain(|task| !task.is_finished()); // who waited too long was told
        }
        tokio::time::sleep(2 * WAIT).await;
        assert!(open.iter().all(|task| !task.is_finished()), "whose turn it is has its time");
        for task in open {
            task.abort();
            let _ = task.await;
        }
        let again = flights.answer(0, peer(1), || async { Ok(2) }.boxed()).await;
        assert_eq!(again, Ok(2), "nobody waits for the earlier ones: they are dropped");
    }
}
