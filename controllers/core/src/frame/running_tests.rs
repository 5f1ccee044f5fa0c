//! What the frame tells the loop around it about the time, and syncs that a controller leaves behind
//! in shadow.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{Kind, NAMESPACES, PODS};
use pintle_api_types::request::{PatchForm, Request, Target};
use serde_json::json;

use super::{Controller, Frame, Now, Order, Outcome, Stop, Ticket, Transcript, Wakes};
use crate::tables::{Change, Decoded, Tables, WatchEvent};

/// One worker, which waits for an answer; another key is due a second after the start.
struct Busy;

impl Controller for Busy {
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

    fn sync((): &(), asked: &mut Transcript) -> Result<Outcome<()>, Stop> {
        let (namespace, labels) = (String::new(), String::new());
        let list = Request::List { kind: PODS, namespace, labels, only_metadata: true };
        asked.send(list).map(|_| Outcome::done())
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
    frame.add(Busy);
    frame.apply(WatchEvent::ListBegun(NAMESPACES), at(0));
    frame.apply(WatchEvent::ListComplete(NAMESPACES), at(0));
    let orders = frame.turn(at(0));
    let [Order::Send { ticket, .. }] = orders[..] else { panic!("one request: {orders:?}") };
    assert_eq!(frame.next_due(), Some(at(1).instant));
    assert!(frame.turn(at(2)).is_empty(), "the only worker is busy");
    assert_eq!(frame.next_due(), None, "the key waits for the worker, not for the time");
    frame.answer(ticket, vec![Ok(serde_json::Value::Null)], at(3));
    assert_eq!(frame.turn(at(3)).len(), 1, "the second key is synced");
}

/// What a sync was told in shadow may never have been: nothing is written for it.
#[test]
fn sync_that_began_in_shadow_is_begun_anew_when_the_controller_acts() {
    let now = Now { instant: Instant::now(), wall: Timestamp::UNIX_EPOCH };
    let mut frame = Frame::default();
    frame.add(Busy);
    frame.set_shadow(Busy::NAME, true, now);
    frame.apply(WatchEvent::ListBegun(NAMESPACES), now);
    frame.apply(WatchEvent::ListComplete(NAMESPACES), now);
    let orders = frame.turn(now);
    let [Order::Send { ticket, .. }] = orders[..] else { panic!("one request: {orders:?}") };
    frame.set_shadow(Busy::NAME, false, now);
    frame.answer(ticket, vec![Ok(serde_json::Value::Null)], now);
    let orders = frame.turn(now);
    let [Order::Send { ticket, .. }] = orders[..] else { panic!("it asks again: {orders:?}") };
    assert_eq!(frame.stats(now)[0].stats.synced, 0);
    frame.answer(ticket, vec![Ok(serde_json::Value::Null)], now);
    assert_eq!(frame.stats(now)[0].stats.synced, 1);
}

/// Writes each time that it is synced.
struct Writer;

impl Controller for Writer {
    type Key = ObjectKey;
    type Snapshot = ObjectKey;
    type Note = ();

    const NAME: &'static str = "writer-controller";
    const SETTLE: Duration = Duration::from_millis(20);

    fn kinds(&self) -> Vec<Kind> {
        vec![NAMESPACES]
    }

    fn workers(&self) -> usize {
        1
    }

    fn handle_change(&mut self, change: &Change, _: &Tables, _: Now, wake: &mut Wakes<ObjectKey>) {
        if let Some(meta) = change.new_meta() {
            wake.now(meta.key());
        }
    }

    fn snapshot(&mut self, key: &ObjectKey, _: &Tables, _: Now) -> Option<ObjectKey> {
        Some(key.clone())
    }

    fn sync(key: &ObjectKey, asked: &mut Transcript) -> Result<Outcome<()>, Stop> {
        let target = Target::object(NAMESPACES, key.clone());
        asked.send(Request::Patch { target, form: PatchForm::Merge, body: json!({}) })??;
        Ok(Outcome::done())
    }
}

fn version(version: u64) -> Decoded {
    let text =
        json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": version.to_string()}});
    Decoded::typed(NAMESPACES, &text.to_string()).expect("a namespace")
}

/// The one request that the frame makes now.
fn sent(frame: &mut Frame, now: Now) -> Option<Ticket> {
    match frame.turn(now)[..] {
        [] => None,
        [Order::Send { ticket, .. }] => Some(ticket),
        ref orders => panic!("one request at most: {orders:?}"),
    }
}

#[test]
fn key_whose_own_write_shows_settles_and_a_key_at_rest_is_synced_at_once() {
    let begun = Instant::now();
    let at = |millis| Now {
        instant: begun + Duration::from_millis(millis),
        wall: Timestamp::UNIX_EPOCH,
    };
    let mut frame = Frame::default();
    frame.add(Writer);
    frame.apply(WatchEvent::ListBegun(NAMESPACES), at(0));
    frame.apply(WatchEvent::Listed(version(1)), at(0));
    frame.apply(WatchEvent::ListComplete(NAMESPACES), at(0));
    let wrote = |frame: &mut Frame, millis: u64, version: u64| {
        let ticket = sent(frame, at(millis)).expect("a write");
        let answer = json!({"metadata": {"resourceVersion": version.to_string()}});
        frame.answer(ticket, vec![Ok(answer)], at(millis));
    };
    wrote(&mut frame, 0, 2);
    frame.apply(WatchEvent::Set(version(2)), at(5));
    assert_eq!(sent(&mut frame, at(5)), None, "its own write shows");
    assert_eq!(frame.next_due(), Some(at(25).instant));
    frame.apply(WatchEvent::Set(version(3)), at(10));
    assert_eq!(sent(&mut frame, at(10)), None, "it settles");
    wrote(&mut frame, 25, 4);
    frame.apply(WatchEvent::Set(version(4)), at(30));
    assert_eq!(sent(&mut frame, at(30)), None);
    wrote(&mut frame, 50, 5);
    assert_eq!(sent(&mut frame, at(500)), None, "nothing happened since");
    frame.apply(WatchEvent::Version(NAMESPACES, 5), at(500));
    assert_eq!(sent(&mut frame, at(500)), None);
    frame.apply(WatchEvent::Set(version(6)), at(1000));
    assert!(sent(&mut frame, at(1000)).is_some(), "it was at rest");
}
