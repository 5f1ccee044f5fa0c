//! Turns: how many calls create or start something on the node at once, and whose is next.
//!
//! A call for a pod that already has its sandbox comes before a call for a new sandbox, else in
//! order of arrival. With one queue for all, fifty pods that arrive together would all get their
//! sandbox before the first one runs; like this they run one after the other, half of them in half
//! the time, and the last one no later. Calls of sandboxes that exist are few by nature, so new
//! ones do not starve. Bounds: `count` turns; one waiter per pass.
//! `Rush` is what somebody waits for, so that what nobody waits for can come after it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

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

/// What is under way for which somebody waits; clones share it.
#[derive(Clone, Debug)]
pub struct Rush(watch::Sender<usize>);

/// A part of the rush; it ends when this is dropped.
#[derive(Debug)]
pub struct Hurry(watch::Sender<usize>);

impl Default for Rush {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Rush {
    /// Something begins for which somebody waits.
    pub fn join(&self) -> Hurry {
        self.0.send_modify(|count| *count += 1);
        Hurry(self.0.clone())
    }

    /// Waits until nothing of that kind is under way, at most so long.
    pub async fn over(&self, limit: Duration) {
        let mut count = self.0.subscribe();
        let _ = tokio::time::timeout(limit, count.wait_for(|count| *count == 0)).await;
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn what_nobody_waits_for_comes_after_the_rush_or_after_its_limit() {
        let (rush, hour) = (Rush::default(), Duration::from_secs(3600));
        assert!(rush.over(hour).now_or_never().is_some(), "there is no rush");
        let (first, second) = (rush.join(), rush.join());
        let over = rush.over(hour);
        tokio::pin!(over);
        drop(first);
        assert!(over.as_mut().now_or_never().is_none(), "one is left");
        drop(second);
        over.await;
        let _hangs = rush.join();
        rush.over(Duration::from_millis(1)).await;
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
