//! The limit of requests per second, with a burst.
//!
//! `Bucket` is pure: it takes the time and says how long to wait. Whoever has to wait gets its turn
//! as `turns` says; while somebody waits, one task hands out what the bucket has.
// k8s: staging/src/k8s.io/client-go/util/flowcontrol/throttle.go

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::turns::{Lane, Share, Turns};

/// Requests per second and how many may come at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Requests per second, above zero.
    pub per_second: f64,
    /// How many may come at once, at least one.
    pub burst: u32,
}

#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    tokens: f64,
    filled_at: Instant,
}

impl Bucket {
    pub(crate) fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, tokens: f64::from(rate.burst.max(1)), filled_at: now }
    }

    /// Takes a token, even one that is not there yet; says how long to wait for it.
    pub(crate) fn take(&mut self, now: Instant) -> Duration {
        self.fill(now);
        self.tokens -= 1.0;
        Duration::from_secs_f64(-self.tokens.min(0.0) / self.rate.per_second)
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        let full = f64::from(self.rate.burst.max(1));
        self.tokens = (self.tokens + passed * self.rate.per_second).min(full);
        self.filled_at = now;
    }

    /// How long until there is a token.
    fn wait(&mut self, now: Instant) -> Duration {
        self.fill(now);
        match self.tokens < 1.0 {
            // What is lost by rounding must not make a turn of its own.
            true => Duration::from_secs_f64((1.0 - self.tokens) / self.rate.per_second)
                .max(Duration::from_micros(1)),
            false => Duration::ZERO,
        }
    }

    fn spend(&mut self) {
        self.tokens -= 1.0;
    }
}

#[derive(Debug)]
struct State {
    bucket: Bucket,
    turns: Turns<oneshot::Sender<()>>,
    /// A task hands out turns.
    handing_out: bool,
}

/// Holds requests back.
#[derive(Debug)]
pub(crate) struct Limiter(Mutex<State>);

impl Limiter {
    pub(crate) fn new(rate: Rate) -> Arc<Self> {
        let bucket = Bucket::new(rate, Instant::now());
        let state = State { bucket, turns: Turns::default(), handing_out: false };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Waits for this request's turn; says how long that took.
    pub(crate) async fn turn(self: &Arc<Self>, lane: Lane, share: &Share) -> Duration {
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
        // The task lives as long as somebody waits; with its runtime this one is gone, too.
        let _ = turn.await;
        begun.elapsed()
    }

    /// Gives the next one its turn if there is a token; says how long to wait for the one after
    /// it, `None` when nobody waits.
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
            // Whoever has given up costs no token.
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

    #[test]
    fn a_burst_passes_and_the_rest_waits_its_turn() {
        let begun = Instant::now();
        let mut bucket = Bucket::new(Rate { per_second: 10.0, burst: 2 }, begun);
        let mut take = |at: Instant| {
            let wait = bucket.wait(at);
            if wait.is_zero() {
                bucket.spend();
            }
            wait.as_millis()
        };
        assert_eq!([0, 0, 100, 100], [(); 4].map(|()| take(begun)));
        let next = begun + Duration::from_millis(100);
        assert_eq!([0, 100], [(); 2].map(|()| take(next)));
        let later = begun + Duration::from_secs(60);
        assert_eq!([0, 0, 100], [(); 3].map(|()| take(later)));
    }

    #[tokio::test]
    async fn whoever_gives_up_costs_nothing_and_urgent_ones_overtake() {
        let limiter = Limiter::new(Rate { per_second: 20.0, burst: 1 });
        limiter.turn(Lane::Bulk, &Share::default()).await;
        let waiting = |lane, share: &'static str| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                limiter.turn(lane, &Share::of(share)).await;
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
