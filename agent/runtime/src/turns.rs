//! Turns: how many pods are being started on the node at once, and whose turn is next.
//!
//! A pass keeps its turn from its first call to its last: a hundred pods that arrive together run
//! one after the other, half of them in half the time, and the last one no later. With a turn for
//! each call all of them would get their token and their sandbox before the first one runs. A pass
//! that lost its turn, because it waited for something else, and one of a pod that has its sandbox
//! come before new pods, else it goes by arrival. Those are few by nature, so new ones do not
//! starve. Bounds: `count` turns; one waiter per pass; a turn is kept for `CALL_MAX` in a call and
//! for `PAUSE_MAX` between two, so that whoever hangs or pulls an image holds up nobody for longer.
//! `Rush` is what somebody waits for, so that what nobody waits for can come after it. Whoever comes
//! after it waits for those that were there before, for as long as they get done: not for newcomers,
//! which may come for ever, and not for what hangs in a hook or in a long grace period.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

/// How long a hanging call keeps others waiting for its turn.
const CALL_MAX: Duration = Duration::from_secs(2);
/// The same between two calls: files are written meanwhile, which takes a few milliseconds, or an
/// image is pulled, or the API server does not answer.
pub const PAUSE_MAX: Duration = Duration::from_millis(250);

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFor {
    /// A pod that has its sandbox.
    Begun,
    /// A new sandbox.
    New,
}

/// The turns of a node; clones share them.
#[derive(Clone, Debug)]
pub struct Turns(Rc<RefCell<Line>>);

#[derive(Debug)]
struct Line {
    free: usize,
    begun: VecDeque<oneshot::Sender<Turn>>,
    new: VecDeque<oneshot::Sender<Turn>>,
}

/// A turn; passed on when dropped.
#[derive(Debug)]
pub struct Turn(Option<Rc<RefCell<Line>>>);

impl Turns {
    /// So many at once.
    pub fn new(count: usize) -> Self {
        assert!(count > 0, "somebody must have a turn");
        let (begun, new) = (VecDeque::new(), VecDeque::new());
        Self(Rc::new(RefCell::new(Line { free: count, begun, new })))
    }

    /// Waits for a turn. Giving up the wait gives up the place.
    pub async fn take(&self, call: CallFor) -> Turn {
        let next = {
            let mut line = self.0.borrow_mut();
            if line.free > 0 {
                line.free -= 1;
                return Turn(Some(Rc::clone(&self.0)));
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

impl Drop for Turn {
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
            match next.send(Turn(Some(Rc::clone(&line)))) {
                Ok(()) => return,
                // The waiter has gone: what came back is emptied, and the next one is asked.
                Err(mut turn) => turn.0 = None,
            }
        }
    }
}

/// The turn that a pass keeps; it is passed on when this is dropped.
#[derive(Debug)]
pub struct Place {
    turns: Turns,
    next: Cell<CallFor>,
    held: Rc<RefCell<Option<Turn>>>,
    timer: RefCell<Option<AbortHandle>>,
}

impl Place {
    /// A place without a turn, for a pass whose first call is this.
    pub fn new(turns: &Turns, first: CallFor) -> Self {
        let (held, timer) = (Rc::default(), RefCell::default());
        Self { turns: turns.clone(), next: Cell::new(first), held, timer }
    }

    /// Makes a call that costs the runtime something, in turn.
    pub async fn call<T>(&self, call: impl Future<Output = T>) -> T {
        self.call_within(CALL_MAX, call).await
    }

    /// The same with a turn that a hanging call keeps so long.
    pub async fn call_within<T>(&self, limit: Duration, call: impl Future<Output = T>) -> T {
        if self.held.borrow().is_none() {
            let turn = self.turns.take(self.next.get()).await;
            *self.held.borrow_mut() = Some(turn);
            self.next.set(CallFor::Begun);
        }
        self.keep(limit);
        let done = call.await;
        self.keep(PAUSE_MAX);
        done
    }

    /// Passes the turn on if it is not used for so long. Must be called on a local task.
    fn keep(&self, limit: Duration) {
        if self.held.borrow().is_none() {
            return;
        }
        let held = Rc::clone(&self.held);
        let timer = pintle_daemon::tasks::spawn("turn", async move {
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

impl Drop for Place {
    fn drop(&mut self) {
        self.set_timer(None);
        drop(self.held.borrow_mut().take());
    }
}

/// What is under way for which somebody waits; clones share it.
#[derive(Clone, Debug)]
pub struct Rush(watch::Sender<Crowd>);

#[derive(Debug, Default)]
struct Crowd {
    next: u64,
    under_way: BTreeSet<u64>,
}

/// A part of the rush; it ends when this is dropped.
#[derive(Debug)]
pub struct Hurry(u64, watch::Sender<Crowd>);

impl Default for Rush {
    fn default() -> Self {
        Self(watch::Sender::new(Crowd::default()))
    }
}

impl Rush {
    /// Something begins for which somebody waits.
    pub fn join(&self) -> Hurry {
        let mut number = 0;
        self.0.send_modify(|crowd| {
            number = crowd.next;
            crowd.next += 1;
            crowd.under_way.insert(number);
        });
        Hurry(number, self.0.clone())
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

impl Drop for Hurry {
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
    async fn what_nobody_waits_for_comes_after_the_rush_that_was_there_before() {
        let rush = Rush::default();
        assert!(rush.over(HOUR, HOUR).now_or_never().is_some(), "there is no rush");
        let (first, second) = (rush.join(), rush.join());
        let over = rush.over(HOUR, HOUR);
        tokio::pin!(over);
        assert!(over.as_mut().now_or_never().is_none(), "two are under way");
        let _newcomer = rush.join();
        drop(first);
        assert!(over.as_mut().now_or_never().is_none(), "one is left");
        drop(second);
        over.await;
    }

    #[tokio::test]
    async fn a_rush_that_hangs_is_waited_for_while_others_of_it_get_done_and_no_longer() {
        let (rush, moment) = (Rush::default(), Duration::from_millis(1));
        let _hangs = rush.join();
        rush.over(moment, HOUR).await;
        rush.over(HOUR, moment).await;

        let (one, two) = (rush.join(), rush.join());
        let over = rush.over(HOUR, HOUR);
        tokio::pin!(over);
        for done in [one, two] {
            assert!(over.as_mut().now_or_never().is_none(), "they get done");
            drop(done);
        }
        assert!(over.as_mut().now_or_never().is_none(), "there is time for the one that hangs");
    }

    /// Takes a turn, notes its name, and returns the turn.
    async fn noted(turns: &Turns, call: CallFor, name: u32, order: &RefCell<Vec<u32>>) -> Turn {
        let turn = turns.take(call).await;
        order.borrow_mut().push(name);
        turn
    }

    #[tokio::test]
    async fn a_pod_that_has_begun_comes_before_a_new_one() {
        let (turns, order) = (Turns::new(1), RefCell::default());
        let held = turns.take(CallFor::New).await;
        let first = async { drop(noted(&turns, CallFor::New, 1, &order).await) };
        let second = async { drop(noted(&turns, CallFor::New, 2, &order).await) };
        let begun = async { drop(noted(&turns, CallFor::Begun, 3, &order).await) };
        tokio::join!(first, second, begun, async { drop(held) });
        assert_eq!(order.into_inner(), [3, 1, 2]);
    }

    /// Two passes that come one after the other, of two calls each. The first one has done something
    /// else between them, or hangs in the first call, until the second pass is over.
    async fn order_of_calls(first_waits: bool, first_hangs: bool) -> Vec<u32> {
        let (turns, order, over) = (Turns::new(1), RefCell::<Vec<u32>>::default(), Notify::new());
        let note = async |name| order.borrow_mut().push(name);
        let first = async {
            let place = Place::new(&turns, CallFor::New);
            let begins = async {
                note(1).await;
                if first_hangs {
                    over.notified().await;
                }
            };
            place.call_within(if first_hangs { Duration::ZERO } else { CALL_MAX }, begins).await;
            if first_waits {
                over.notified().await;
            }
            place.call(note(1)).await;
        };
        let second = async {
            let place = Place::new(&turns, CallFor::New);
            place.call(note(2)).await;
            place.call(note(2)).await;
            drop(place);
            over.notify_one();
        };
        let both = async { tokio::join!(first, second) };
        tokio::task::LocalSet::new().run_until(both).await;
        assert_eq!(turns.0.borrow().free, 1, "every turn came back");
        order.into_inner()
    }

    #[tokio::test]
    async fn a_pass_keeps_its_turn_unless_it_waits_or_hangs() {
        assert_eq!(order_of_calls(false, false).await, [1, 1, 2, 2]);
        assert_eq!(order_of_calls(true, false).await, [1, 2, 2, 1], "it pulls an image");
        assert_eq!(order_of_calls(false, true).await, [1, 2, 2, 1], "its first call hangs");
    }

    #[tokio::test]
    async fn a_pass_that_lost_its_turn_comes_before_a_new_one() {
        let (turns, order, begun) = (Turns::new(1), RefCell::<Vec<u32>>::default(), Notify::new());
        let note = async |name| order.borrow_mut().push(name);
        let first = async {
            let place = Place::new(&turns, CallFor::New);
            place.call_within(Duration::ZERO, begun.notified()).await;
            place.call(note(1)).await;
        };
        let second = async {
            let place = Place::new(&turns, CallFor::New);
            // The first one comes back while this one has the turn.
            place.call(async { begun.notify_one() }).await;
            place.call(tokio::task::yield_now()).await;
            place.call(tokio::task::yield_now()).await;
        };
        let third = async { Place::new(&turns, CallFor::New).call(note(3)).await };
        let all = async { tokio::join!(first, second, third) };
        tokio::task::LocalSet::new().run_until(all).await;
        assert_eq!(order.into_inner(), [1, 3]);
    }

    #[tokio::test]
    async fn a_waiter_that_gave_up_loses_no_turn() {
        let turns = Turns::new(1);
        let held = turns.take(CallFor::New).await;
        {
            let waiting = turns.take(CallFor::Begun);
            tokio::pin!(waiting);
            tokio::select! {
                biased;
                _ = &mut waiting => panic!("there is no turn"),
                () = std::future::ready(()) => {}
            }
        }
        drop(held);
        drop(turns.take(CallFor::New).await);
        assert_eq!(turns.0.borrow().free, 1);
    }

    #[tokio::test]
    async fn a_turn_passed_to_one_who_gives_up_at_that_moment_goes_on() {
        let turns = Turns::new(1);
        let held = turns.take(CallFor::New).await;
        {
            let waiting = turns.take(CallFor::Begun);
            tokio::pin!(waiting);
            tokio::select! {
                biased;
                _ = &mut waiting => panic!("there is no turn"),
                () = std::future::ready(()) => {}
            }
            // Sent, and never looked at.
            drop(held);
        }
        assert_eq!(turns.0.borrow().free, 1);
    }
}
