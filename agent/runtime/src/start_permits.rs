//! Start permits: how many pods are being started on the node at once, and which is next.
//!
//! A sync keeps its permit from its first call to its last: of a hundred pods that arrive together,
//! the median starts in half the time and the last no later than if each call had a permit of its
//! own; then all of them would get their token and their sandbox before the first one runs. A sync
//! that lost its permit because it waited, and one of a pod that has its sandbox, come before new
//! pods; else the order is that of arrival. Those are few, so new ones do not starve. Bounds:
//! `count` permits; one waiter per sync; a permit is kept for `CALL_MAX` in a call, for longer where
//! most calls take long (`call_pace`), and for `PAUSE_MAX` between two, so that a sync that hangs or
//! pulls an image holds up others for no longer. `StartsUnderWay` lets work without a waiter come
//! last. A wait for its end covers the starts that were there before, while some of them complete:
//! not newcomers, which may come for ever, and not a start that hangs in a hook or in a long grace
//! period.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::call_pace::CallPace;

/// How long a hanging call keeps others waiting for its permit on a quick node.
const CALL_MAX: Duration = Duration::from_secs(2);
/// The same between two calls: files are written meanwhile, which takes a few milliseconds, or an
/// image is pulled, or the API server does not answer.
pub const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The purpose of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFor {
    /// A pod that has its sandbox.
    Begun,
    /// A new sandbox.
    New,
}

/// The permits of a node; clones share them.
#[derive(Clone, Debug)]
pub struct StartPermits(Rc<RefCell<PermitQueue>>);

#[derive(Debug)]
struct PermitQueue {
    free: usize,
    begun: VecDeque<oneshot::Sender<Permit>>,
    new: VecDeque<oneshot::Sender<Permit>>,
    pace: Rc<CallPace>,
}

/// A permit; passed on when dropped.
#[derive(Debug)]
pub struct Permit(Option<Rc<RefCell<PermitQueue>>>);

impl StartPermits {
    /// This many at once.
    pub fn new(count: usize) -> Self {
        assert!(count > 0, "at least one permit");
        let (begun, new) = (VecDeque::new(), VecDeque::new());
        let pace = Rc::default();
        Self(Rc::new(RefCell::new(PermitQueue { free: count, begun, new, pace })))
    }

    /// How long to wait for a call that should take no longer than `least` on a quick node.
    pub fn wait(&self, least: Duration) -> Duration {
        self.0.borrow().pace.wait(least)
    }

    /// Waits for a permit. Giving up the wait gives up its place in the line.
    pub async fn take(&self, call: CallFor) -> Permit {
        let next = {
            let mut line = self.0.borrow_mut();
            if line.free > 0 {
                line.free -= 1;
                return Permit(Some(Rc::clone(&self.0)));
            }
            let (passed, next) = oneshot::channel();
            match call {
                CallFor::Begun => line.begun.push_back(passed),
                CallFor::New => line.new.push_back(passed),
            }
            next
        };
        next.await.expect("the line lives as long as `self` and drops no waiter")
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(line) = self.0.take() else { return };
        loop {
            let next = {
                let mut line = line.borrow_mut();
                let next = line.begun.pop_front().or_else(|| line.new.pop_front());
                if next.is_none() {
                    line.free += 1;
                }
                next
            };
            let Some(next) = next else { return };
            match next.send(Permit(Some(Rc::clone(&line)))) {
                Ok(()) => return,
                // The waiter has gone: the returned permit is emptied, and the next waiter gets it.
                Err(mut permit) => permit.0 = None,
            }
        }
    }
}

/// The permit that a sync keeps; it is passed on when this is dropped.
#[derive(Debug)]
pub struct StartPermit {
    permits: StartPermits,
    next: Cell<CallFor>,
    held: Rc<RefCell<Option<Permit>>>,
    timer: RefCell<Option<AbortHandle>>,
}

impl StartPermit {
    /// No permit yet, for a sync with this first call.
    pub fn new(permits: &StartPermits, first: CallFor) -> Self {
        let (held, timer) = (Rc::default(), RefCell::default());
        Self { permits: permits.clone(), next: Cell::new(first), held, timer }
    }

    /// Makes a call that costs the runtime work, with a permit.
    pub async fn call<T>(&self, call: impl Future<Output = T>) -> T {
        let pace = Rc::clone(&self.permits.0.borrow().pace);
        let timed = async {
            let begun = Instant::now();
            let done = call.await;
            pace.ended(begun.elapsed());
            done
        };
        self.call_within(pace.wait(CALL_MAX), timed).await
    }

    /// The same with a permit that a hanging call keeps for this long.
    pub async fn call_within<T>(&self, limit: Duration, call: impl Future<Output = T>) -> T {
        if self.held.borrow().is_none() {
            let permit = self.permits.take(self.next.get()).await;
            *self.held.borrow_mut() = Some(permit);
            self.next.set(CallFor::Begun);
        }
        self.keep(limit);
        let done = call.await;
        self.keep(PAUSE_MAX);
        done
    }

    /// Passes the permit on if it is not used for this long. Must be called on a local task.
    fn keep(&self, limit: Duration) {
        if self.held.borrow().is_none() {
            return;
        }
        let held = Rc::clone(&self.held);
        let timer = pintle_daemon::tasks::spawn("permit", async move {
            tokio::time::sleep(limit).await;
            drop(held.borrow_mut().take());
        });
        self.set_timer(Some(timer.abort_handle()));
    }

    fn set_timer(&self, timer: Option<AbortHandle>) {
        if let Some(before) = self.timer.replace(timer) {
            before.abort();
        }
    }
}

impl Drop for StartPermit {
    fn drop(&mut self) {
        self.set_timer(None);
        drop(self.held.borrow_mut().take());
    }
}

/// The syncs under way with a waiter; clones share them.
#[derive(Clone, Debug)]
pub struct StartsUnderWay(watch::Sender<Crowd>);

#[derive(Debug, Default)]
struct Crowd {
    next: u64,
    under_way: BTreeSet<u64>,
}

/// One of them; it ends when this is dropped.
#[derive(Debug)]
pub struct StartGuard(u64, watch::Sender<Crowd>);

impl Default for StartsUnderWay {
    fn default() -> Self {
        Self(watch::Sender::new(Crowd::default()))
    }
}

impl StartsUnderWay {
    /// Adds a sync with a waiter.
    pub fn join(&self) -> StartGuard {
        let mut number = 0;
        self.0.send_modify(|crowd| {
            number = crowd.next;
            crowd.next += 1;
            crowd.under_way.insert(number);
        });
        StartGuard(number, self.0.clone())
    }

    /// Waits until all is over that was under way when this was called, or until none of it got
    /// done for `still`; at most for `limit`.
    pub async fn over(&self, still: Duration, limit: Duration) {
        let mut crowd = self.0.subscribe();
        let mut left = crowd.borrow().under_way.clone();
        let all_over = async {
            while !left.is_empty() {
                let is_done = |crowd: &Crowd| left.iter().any(|n| !crowd.under_way.contains(n));
                let one_over = tokio::time::timeout(still, crowd.wait_for(is_done)).await;
                let Ok(Ok(crowd)) = one_over else { return };
                left.retain(|n| crowd.under_way.contains(n));
            }
        };
        let _ = tokio::time::timeout(limit, all_over).await;
    }
}

impl Drop for StartGuard {
    fn drop(&mut self) {
        self.1.send_modify(|crowd| {
            crowd.under_way.remove(&self.0);
        });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::Notify;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn wait_for_pod_starts_ignores_starts_that_join_later() {
        let starts = StartsUnderWay::default();
        assert!(starts.over(HOUR, HOUR).now_or_never().is_some(), "there are no starts");
        let (first, second) = (starts.join(), starts.join());
        let over = starts.over(HOUR, HOUR);
        tokio::pin!(over);
        assert!(over.as_mut().now_or_never().is_none(), "two are under way");
        let _newcomer = starts.join();
        drop(first);
        assert!(over.as_mut().now_or_never().is_none(), "one is left");
        drop(second);
        over.await;
    }

    #[tokio::test]
    async fn wait_for_pod_starts_ends_without_progress_but_not_while_starts_complete() {
        let (starts, moment) = (StartsUnderWay::default(), Duration::from_millis(1));
        let _hangs = starts.join();
        starts.over(moment, HOUR).await;
        starts.over(HOUR, moment).await;

        let (one, two) = (starts.join(), starts.join());
        let over = starts.over(HOUR, HOUR);
        tokio::pin!(over);
        for done in [one, two] {
            assert!(over.as_mut().now_or_never().is_none(), "they get done");
            drop(done);
        }
        assert!(over.as_mut().now_or_never().is_none(), "there is time for the one that hangs");
    }

    /// Takes a permit, notes its name, and returns the permit.
    async fn noted(
        permits: &StartPermits,
        call: CallFor,
        name: u32,
        order: &RefCell<Vec<u32>>,
    ) -> Permit {
        let permit = permits.take(call).await;
        order.borrow_mut().push(name);
        permit
    }

    #[tokio::test]
    async fn started_pod_gets_a_permit_before_a_new_pod() {
        let (permits, order) = (StartPermits::new(1), RefCell::default());
        let held = permits.take(CallFor::New).await;
        let first = async { drop(noted(&permits, CallFor::New, 1, &order).await) };
        let second = async { drop(noted(&permits, CallFor::New, 2, &order).await) };
        let begun = async { drop(noted(&permits, CallFor::Begun, 3, &order).await) };
        tokio::join!(first, second, begun, async { drop(held) });
        assert_eq!(order.into_inner(), [3, 1, 2]);
    }

    /// Two syncs that come one after the other, of two calls each. The first one does other work
    /// between them, or hangs in the first call, until the second sync is over.
    async fn order_of_calls(first_waits: bool, first_hangs: bool) -> Vec<u32> {
        let (permits, order, over) =
            (StartPermits::new(1), RefCell::<Vec<u32>>::default(), Notify::new());
        let note = async |name| order.borrow_mut().push(name);
        let first = async {
            let start = StartPermit::new(&permits, CallFor::New);
            let begins = async {
                note(1).await;
                if first_hangs {
                    over.notified().await;
                }
            };
            start.call_within(if first_hangs { Duration::ZERO } else { CALL_MAX }, begins).await;
            if first_waits {
                over.notified().await;
            }
            start.call(note(1)).await;
        };
        let second = async {
            let start = StartPermit::new(&permits, CallFor::New);
            start.call(note(2)).await;
            start.call(note(2)).await;
            drop(start);
            over.notify_one();
        };
        let both = async { tokio::join!(first, second) };
        tokio::task::LocalSet::new().run_until(both).await;
        assert_eq!(permits.0.borrow().free, 1, "every permit came back");
        order.into_inner()
    }

    #[tokio::test]
    async fn a_sync_keeps_its_permit_unless_it_waits_or_hangs() {
        assert_eq!(order_of_calls(false, false).await, [1, 1, 2, 2]);
        assert_eq!(order_of_calls(true, false).await, [1, 2, 2, 1], "it pulls an image");
        assert_eq!(order_of_calls(false, true).await, [1, 2, 2, 1], "its first call hangs");
    }

    #[tokio::test]
    async fn sync_that_lost_its_permit_precedes_a_new_sync() {
        let (permits, order, begun) =
            (StartPermits::new(1), RefCell::<Vec<u32>>::default(), Notify::new());
        let note = async |name| order.borrow_mut().push(name);
        let first = async {
            let start = StartPermit::new(&permits, CallFor::New);
            start.call_within(Duration::ZERO, begun.notified()).await;
            start.call(note(1)).await;
        };
        let second = async {
            let start = StartPermit::new(&permits, CallFor::New);
            // The first one comes back while this one has the permit.
            start.call(async { begun.notify_one() }).await;
            start.call(tokio::task::yield_now()).await;
            start.call(tokio::task::yield_now()).await;
        };
        let third = async { StartPermit::new(&permits, CallFor::New).call(note(3)).await };
        let all = async { tokio::join!(first, second, third) };
        tokio::task::LocalSet::new().run_until(all).await;
        assert_eq!(order.into_inner(), [1, 3]);
    }

    #[tokio::test]
    async fn a_waiter_that_gave_up_loses_no_permit() {
        let permits = StartPermits::new(1);
        let held = permits.take(CallFor::New).await;
        {
            let waiting = permits.take(CallFor::Begun);
            tokio::pin!(waiting);
            tokio::select! {
                biased;
                _ = &mut waiting => panic!("there is no permit"),
                () = std::future::ready(()) => {}
            }
        }
        drop(held);
        drop(permits.take(CallFor::New).await);
        assert_eq!(permits.0.borrow().free, 1);
    }

    #[tokio::test]
    async fn permit_granted_to_a_cancelled_waiter_is_released() {
        let permits = StartPermits::new(1);
        let held = permits.take(CallFor::New).await;
        {
            let waiting = permits.take(CallFor::Begun);
            tokio::pin!(waiting);
            tokio::select! {
                biased;
                _ = &mut waiting => panic!("there is no permit"),
                () = std::future::ready(()) => {}
            }
            // Sent, and never read.
            drop(held);
        }
        assert_eq!(permits.0.borrow().free, 1);
    }
}
