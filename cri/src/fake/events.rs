//! Delivery of the fake runtime's lifecycle events, and its faults.
//!
//! Events are kept for the first subscriber, as containerd does, then go to every subscriber. A
//! test may lose them, hold them back and release them in another order, or break the streams.
//! Owner: `FakeRuntime`, behind a lock. Bound: `HISTORY_MAX` events, the oldest go first.

use std::collections::VecDeque;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::Status;

use crate::v1::ContainerEventResponse;

type Item = Result<ContainerEventResponse, Status>;

/// Events kept for the first subscriber, and held events.
const HISTORY_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct EventBus {
    history: VecDeque<ContainerEventResponse>,
    subscribed_once: bool,
    listeners: Vec<UnboundedSender<Item>>,
    lost: bool,
    held: Option<Vec<ContainerEventResponse>>,
}

impl EventBus {
    pub(super) fn subscribe(&mut self) -> UnboundedReceiver<Item> {
        let (sender, receiver) = unbounded_channel();
        self.subscribed_once = true;
        for event in self.history.drain(..) {
            _ = sender.send(Ok(event)); // the receiver is ours
        }
        self.listeners.push(sender);
        receiver
    }

    pub(super) fn publish(&mut self, event: ContainerEventResponse) {
        if self.lost {
            return;
        }
        if let Some(held) = &mut self.held {
            held.push(event);
            held.drain(..held.len().saturating_sub(HISTORY_MAX));
            return;
        }
        if !self.subscribed_once {
            self.history.push_back(event);
            self.history.drain(..self.history.len().saturating_sub(HISTORY_MAX));
            return;
        }
        self.listeners.retain(|listener| listener.send(Ok(event.clone())).is_ok());
    }

    pub(super) fn lose(&mut self, lost: bool) {
        self.lost = lost;
    }

    pub(super) fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Delivers held events, in the order that `arrange` makes of them.
    pub(super) fn release(&mut self, arrange: impl FnOnce(&mut Vec<ContainerEventResponse>)) {
        let mut events = self.held.take().unwrap_or_default();
        arrange(&mut events);
        events.into_iter().for_each(|event| self.publish(event));
    }

    /// Ends every stream with an error.
    pub(super) fn break_streams(&mut self) {
        for listener in self.listeners.drain(..) {
            _ = listener.send(Err(Status::unavailable("the stream broke"))); // may be gone
        }
    }

    /// The runtime process ended: subscribers and history are gone.
    pub(super) fn forget(&mut self) {
        *self = Self { lost: self.lost, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: i64) -> ContainerEventResponse {
        ContainerEventResponse { created_at: at, ..Default::default() }
    }

    fn received(receiver: &mut UnboundedReceiver<Item>) -> Vec<i64> {
        std::iter::from_fn(|| receiver.try_recv().ok())
            .map(|item| item.map_or(-1, |event| event.created_at))
            .collect()
    }

    #[test]
    fn the_first_subscriber_receives_the_history_and_later_ones_do_not() {
        let mut bus = EventBus::default();
        bus.publish(event(1));
        let mut first = bus.subscribe();
        let mut second = bus.subscribe();
        bus.publish(event(2));
        assert_eq!(received(&mut first), [1, 2]);
        assert_eq!(received(&mut second), [2]);
    }

    #[test]
    fn events_can_be_lost_reordered_and_cut_off() {
        let mut bus = EventBus::default();
        let mut stream = bus.subscribe();
        bus.lose(true);
        bus.publish(event(1));
        bus.lose(false);
        bus.hold();
        bus.publish(event(2));
        bus.publish(event(3));
        assert!(received(&mut stream).is_empty());
        bus.release(|events| events.reverse());
        bus.break_streams();
        bus.publish(event(4));
        assert_eq!(received(&mut stream), [3, 2, -1]);
    }
}
