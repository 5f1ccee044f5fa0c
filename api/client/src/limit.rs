//! The limit of requests per second, with a burst.
//!
//! A waiting request gets its turn in the order of `turns`; while requests wait, one task hands out
//! the tokens of the bucket (`rate`, pure).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pintle_api_types::rate::{Bucket, Rate};
use tokio::sync::oneshot;

use crate::turns::{Lane, RequestTurns, TenantShare};

#[derive(Debug)]
struct State {
    bucket: Bucket,
    turns: RequestTurns<oneshot::Sender<()>>,
    /// A task hands out turns.
    handing_out: bool,
}

/// Holds requests back.
#[derive(Debug)]
pub(crate) struct Limiter(Mutex<State>);

impl Limiter {
    pub(crate) fn new(rate: Rate) -> Arc<Self> {
        let bucket = Bucket::new(rate);
        let state = State { bucket, turns: RequestTurns::default(), handing_out: false };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Waits for this request's turn; returns how long that took.
    pub(crate) async fn turn(self: &Arc<Self>, lane: Lane, share: &TenantShare) -> Duration {
        let begun = Instant::now();
        let turn = {
            let mut state = self.state();
            if state.turns.is_empty() && state.bucket.wait(begun).is_zero() {
                state.bucket.spend();
                return Duration::ZERO;
            }
            let (give, turn) = oneshot::channel();
            state.turns.push(lane, share, give);
            if !std::mem::replace(&mut state.handing_out, true) {
                tokio::spawn(hand_out(Arc::clone(self)));
            }
            turn
        };
        // The task lives as long as a request waits; with its runtime this one is gone, too.
        let _ = turn.await;
        begun.elapsed()
    }

    /// Gives the next request its turn if there is a token. Returns the wait for the one after it,
    /// `None` when no request waits.
    fn next(&self) -> Option<Duration> {
        let mut state = self.state();
        loop {
            if state.turns.is_empty() {
                state.handing_out = false;
                return None;
            }
            let wait = state.bucket.wait(Instant::now());
            if !wait.is_zero() {
                return Some(wait);
            }
            // A request that was dropped costs no token.
            if let Some((_, _, waiter)) = state.turns.pop(|_| true)
                && waiter.send(()).is_ok()
            {
                state.bucket.spend();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn hand_out(limiter: Arc<Limiter>) {
    while let Some(wait) = limiter.next() {
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cancelled_requests_use_no_rate_limit_tokens_and_urgent_requests_overtake() {
        let limiter = Limiter::new(Rate { per_second: 20.0, burst: 1 });
        limiter.turn(Lane::Bulk, &TenantShare::default()).await;
        let waiting = |lane, share: &'static str| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                limiter.turn(lane, &TenantShare::of(share)).await;
                Instant::now()
            })
        };
        let given_up: Vec<_> = (0..1_000).map(|_| waiting(Lane::Bulk, "greedy")).collect();
        tokio::task::yield_now().await;
        given_up.iter().for_each(tokio::task::JoinHandle::abort);
        let bulk: Vec<_> = (0..3).map(|_| waiting(Lane::Bulk, "pod")).collect();
        tokio::task::yield_now().await;
        let urgent = waiting(Lane::Urgent, "").await.expect("its turn");
        let mut last = urgent;
        for bulk in bulk {
            last = last.max(bulk.await.expect("its turn"));
        }
        assert!(urgent < last, "the urgent one came last and went before");
    }
}
