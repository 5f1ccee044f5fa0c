//! Runs the controllers: watches and answers in, orders out, one deciding thread.
//!
//! Input: the clients, and the controllers as the options set them up. It runs until it is dropped.
//! Requests are what costs, decisions are not: so one thread decides, and daemon and simulator run
//! the same frame. Bounds: `follow::EVENTS_MAX` watch events wait; a turn applies `BATCH_MAX` of them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use jiff::Timestamp;
use pintle_api_types::kind::Kind;
use pintle_controllers_core::frame::{Frame, Now};
use pintle_controllers_core::tables::WatchEvent;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use crate::dispatch::{Answered, Dispatcher, Identity};
use crate::follow::{EVENTS_MAX, Source, follow_kind};

/// Watch events that are applied before syncs begin.
const BATCH_MAX: usize = 256;

/// What the loop runs on.
pub struct Parts {
    /// The controllers.
    pub frame: Frame,
    /// The clients of each controller, by name.
    pub identities: BTreeMap<&'static str, Rc<Identity>>,
    /// The client that lists and watches.
    pub watcher: kube::Client,
}

/// Runs the controllers for ever. Must be called on a `LocalSet`.
pub async fn run(parts: Parts) {
    let Parts { mut frame, identities, watcher } = parts;
    let (told, mut events) = mpsc::channel(EVENTS_MAX);
    let (answer, mut answers) = mpsc::unbounded_channel();
    for kind in frame.kinds() {
        let source = source_of(kind);
        tokio::task::spawn_local(follow_kind(watcher.clone(), &source, &told));
    }
    let dispatcher = Dispatcher::new(identities, answer);
    let mut was_started = false;
    loop {
        let due = frame.next_due();
        tokio::select! {
            event = events.recv() => {
                // The sender lives as long as this function.
                let Some(event) = event else { return };
                frame.apply(event, now());
                drain(&mut events, &mut frame);
            }
            answered = answers.recv() => {
                let Some(Answered { ticket, answers }) = answered else { return };
                frame.answer(ticket, answers, now());
            }
            () = wait_for(due) => {}
        }
        while let Ok(Answered { ticket, answers }) = answers.try_recv() {
            frame.answer(ticket, answers, now());
        }
        for order in frame.turn(now()) {
            dispatcher.carry_out(order);
        }
        if !was_started && frame.is_started() {
            was_started = true;
            tracing::info!("all caches are synced");
        }
    }
}

fn drain(events: &mut mpsc::Receiver<WatchEvent>, frame: &mut Frame) {
    for _ in 0..BATCH_MAX {
        let Ok(event) = events.try_recv() else { return };
        frame.apply(event, now());
    }
}

async fn wait_for(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn now() -> Now {
    Now { instant: Instant::now(), wall: Timestamp::now() }
}

fn source_of(kind: Kind) -> Source {
    Source { kind, only_metadata: false, fields: "" }
}
