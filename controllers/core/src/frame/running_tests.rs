//! When the frame wants its next turn, and syncs that a controller leaves behind in shadow.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{Kind, NAMESPACES, PODS};
use pintle_api_types::request::Request;

use super::{Controller, Frame, FrameEffect, Now, SyncOutcome, Transcript, TranscriptStop, Wakes};
use crate::tables::{Change, Tables, WatchEvent};

/// One worker, which waits for an answer; another key is due a second after the start.
struct BusyWorker;

impl Controller for BusyWorker {
    type Key = ObjectKey;
    type Snapshot = ();
    type Note = ();

    const NAME: &'static str = "busy-controller";

    fn kinds(&self) -> Vec<Kind> {
        vec![NAMESPACES]
    }

    fn workers(&self) -> usize {
        1
    }

    fn handle_start(&mut self, _: &Tables, wake: &mut Wakes<ObjectKey>) {
        wake.now(ObjectKey::new("", "first"));
        wake.after(ObjectKey::new("", "second"), Duration::from_secs(1));
    }

    fn handle_change(&mut self, _: &Change, _: &Tables, _: Now, _: &mut Wakes<ObjectKey>) {}

    fn snapshot(&mut self, _: &ObjectKey, _: &Tables, _: Now) -> Option<()> {
        Some(())
    }

    fn sync((): &(), transcript: &mut Transcript) -> Result<SyncOutcome<()>, TranscriptStop> {
        let (namespace, labels) = (String::new(), String::new());
        let list = Request::List { kind: PODS, namespace, labels, only_metadata: true };
        transcript.send(list).map(|_| SyncOutcome::done())
    }
}

#[test]
fn key_due_while_all_workers_are_busy_does_not_wake_the_loop() {
    let begun = Instant::now();
    let at = |seconds| Now {
        instant: begun + Duration::from_secs(seconds),
        wall: Timestamp::UNIX_EPOCH,
    };
    let mut frame = Frame::default();
    frame.add(BusyWorker);
    frame.apply(WatchEvent::ListBegun(NAMESPACES), at(0));
    frame.apply(WatchEvent::ListComplete(NAMESPACES), at(0));
    let orders = frame.turn(at(0));
    let [FrameEffect::Send { ticket, .. }] = orders[..] else { panic!("one request: {orders:?}") };
    assert_eq!(frame.next_due(), Some(at(1).instant));
    assert!(frame.turn(at(2)).is_empty(), "the only worker is busy");
    assert_eq!(frame.next_due(), None, "the key waits for the worker, not for the time");
    frame.answer(ticket, vec![Ok(serde_json::Value::Null)], at(3));
    assert_eq!(frame.turn(at(3)).len(), 1, "the second key is synced");
}

/// The oracle's answers in shadow are no facts: nothing is written because of them.
#[test]
fn sync_begun_in_shadow_is_restarted_when_the_controller_becomes_active() {
    let now = Now { instant: Instant::now(), wall: Timestamp::UNIX_EPOCH };
    let mut frame = Frame::default();
    frame.add(BusyWorker);
    frame.set_shadow(BusyWorker::NAME, true, now);
    frame.apply(WatchEvent::ListBegun(NAMESPACES), now);
    frame.apply(WatchEvent::ListComplete(NAMESPACES), now);
    let orders = frame.turn(now);
    let [FrameEffect::Send { ticket, .. }] = orders[..] else { panic!("one request: {orders:?}") };
    frame.set_shadow(BusyWorker::NAME, false, now);
    frame.answer(ticket, vec![Ok(serde_json::Value::Null)], now);
    let orders = frame.turn(now);
    let [FrameEffect::Send { ticket, .. }] = orders[..] else {
        panic!("a second request: {orders:?}")
    };
    assert_eq!(frame.stats(now)[0].stats.synced, 0);
    frame.answer(ticket, vec![Ok(serde_json::Value::Null)], now);
    assert_eq!(frame.stats(now)[0].stats.synced, 1);
}
