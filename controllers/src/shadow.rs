//! The shadow on a live cluster: reads, decides, compares, and never writes.
//!
//! Input: watches and live reads with the manager's own credentials. Output: `/pintle/shadow`, metrics,
//! a line in the log for each difference, and the whole report at the end. No lease, no tokens of
//! accounts, no events. [`ShadowFirst`] holds back some controllers of a manager that acts, until
//! they were in shadow for long enough. Owner: the deciding thread.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pintle_api_types::request::Answer;
use pintle_controllers_core::frame::{Frame, Order, Ticket};
use pintle_controllers_core::tables::{Change, WatchEvent};
use pintle_controllers_loops::shadow::{
    Difference, Ledger, LiveReads, Oracle, Report, Shadow, note,
};
use pintle_daemon::serve::answer::Answer as Page;
use tokio::sync::mpsc;

use crate::debug::{self, Explainer};
use crate::follow::EVENTS_MAX;
use crate::process::{Context, Question, ShadowMetrics, WritesUnderWay};
use crate::run::{COUNT_EVERY, Watches, discovered, now, wait_for};

/// The page of the report.
const PAGE: &str = "/pintle/shadow";
/// Controllers that delete what they do not know: they act only after a time in shadow.
const HELD_BACK: [&str; 2] = ["garbage-collector-controller", "namespace-controller"];

type Answered = (Ticket, Vec<Answer>);

/// Runs a frame in shadow until it has to stop. Must be called on a `LocalSet`.
pub(crate) async fn run(frame: Frame, mut context: Context) -> WritesUnderWay {
    let (told, mut events) = mpsc::channel(EVENTS_MAX);
    let (answer, mut answers) = mpsc::unbounded_channel::<Answered>();
    let mut watches = Watches::new(&context, told);
    watches.follow(&frame.kinds(), false);
    let client = context.clients.root("shadow").urgent();
    let explainer = Explainer {
        identities: std::collections::BTreeMap::new(),
        client: client.clone(),
        discovery: context.discovery.clone(),
    };
    let mut shadow = Shadow::new(frame, now());
    let found = discovered(&context.discovery.current());
    watches.follow_discovered(shadow.frame(), &found);
    let read =
        |reads: Vec<LiveReads>| reads.into_iter().for_each(|one| send(&client, one, &answer));
    read(shadow.take(WatchEvent::Discovered(found), now()));
    let metrics = ShadowMetrics::register(&context.metrics);
    tracing::info!("in shadow: nothing is written");
    let mut counted = Instant::now();
    loop {
        let due = shadow.next_due();
        tokio::select! {
            event = events.recv() => {
                // The sender lives as long as this function.
                let Some(event) = event else { return WritesUnderWay::None };
                read(shadow.take(event, now()));
            }
            answered = answers.recv() => {
                let Some((ticket, answers)) = answered else { return WritesUnderWay::None };
                read(shadow.answer(ticket, answers, now()));
            }
            () = context.discovery.changed() => {
                let found = discovered(&context.discovery.current());
                for kind in watches.drop_undiscovered(&found) {
                    read(shadow.take(WatchEvent::Dropped(kind), now()));
                }
                watches.follow_discovered(shadow.frame(), &found);
                read(shadow.take(WatchEvent::Discovered(found), now()));
            }
            () = context.stop.requested() => break,
            Some(question) = context.questions.recv() => {
                answer_question(&mut shadow, question, &explainer);
            }
            () = wait_for(due) => {}
        }
        read(shadow.settle(now()));
        log(shadow.take_fresh());
        context.turns.mark();
        if counted.elapsed() >= COUNT_EVERY {
            counted = Instant::now();
            metrics.update(shadow.report());
        }
    }
    shadow.report().to_string().lines().for_each(|line| tracing::info!("shadow: {line}"));
    WritesUnderWay::None
}

fn send(client: &kube::Client, reads: LiveReads, answer: &mpsc::UnboundedSender<Answered>) {
    let (client, answer) = (client.clone(), answer.clone());
    tokio::task::spawn_local(async move {
        let all = reads.requests.iter().map(|request| pintle_api::send(&client, request));
        // The receiver is gone only when the process is about to end.
        let _ = answer.send((reads.ticket, join_all(all).await));
    });
}

fn answer_question(shadow: &mut Shadow, question: Question, explainer: &Explainer) {
    if question.path != PAGE {
        return debug::answer(shadow.frame(), question, explainer, now());
    }
    let page = page(shadow.report(), question.wants_json);
    // The client may have gone.
    let _ = question.answer.send(page);
}

fn page(report: &Report, wants_json: bool) -> Page {
    if wants_json { Page::json(report) } else { Page::text(200, report.to_string()) }
}

fn log(differences: Vec<Difference>) {
    differences.iter().for_each(|found| tracing::warn!("differs: {found}"));
}

/// Controllers of an acting manager that are in shadow first.
pub(crate) struct ShadowFirst {
    ledger: Ledger,
    oracle: Oracle,
    wait: Duration,
    /// Since when nothing was found; `None` until all kinds are listed.
    clean_since: Option<Instant>,
    found: u64,
}

impl ShadowFirst {
    /// Puts them in shadow; `None` when there is nothing to wait for.
    pub(crate) fn begin(frame: &mut Frame, wait: Duration) -> Option<Self> {
        let running: Vec<_> = frame.names().filter(|name| HELD_BACK.contains(name)).collect();
        if wait.is_zero() || running.is_empty() {
            return None;
        }
        running.iter().for_each(|name| frame.set_shadow(name, true, now()));
        let (ledger, oracle) = (Ledger::new(running), Oracle::default());
        Some(Self { ledger, oracle, wait, clean_since: None, found: 0 })
    }

    /// Something changed in the cluster.
    pub(crate) fn note(&mut self, changes: &[Change], frame: &Frame) {
        note(&mut self.ledger, changes, frame, now());
    }

    /// Keeps the writes of controllers in shadow from being made; returns what is to be done.
    pub(crate) fn filter(&mut self, order: Order, frame: &mut Frame) -> Option<Order> {
        match order {
            Order::Send { ticket, controller, requests } if HELD_BACK.contains(&controller) => {
                match self.oracle.answer_writes(&requests, frame.tables()) {
                    Some(answers) => frame.answer(ticket, answers, now()),
                    None => return Some(Order::Send { ticket, controller, requests }),
                }
                None
            }
            Order::Decided { controller, key, writes } => {
                self.ledger.decide(controller, key, &writes, frame.tables(), now());
                None
            }
            Order::Emit { controller, .. } if HELD_BACK.contains(&controller) => None,
            other => Some(other),
        }
    }

    /// Has the controllers act once nothing was found for long enough; says whether they do.
    pub(crate) fn is_over(&mut self, frame: &mut Frame) -> bool {
        if !frame.is_started() {
            return false;
        }
        for (controller, key) in self.ledger.tick(now(), frame.tables()) {
            frame.resync(controller, &key, now());
        }
        log(self.ledger.take_fresh());
        // A deletion that nobody else makes is expected where no other manager acts. One that is not
        // wanted any more would have been a mistake, and so is what only the other would delete.
        let counts = self.ledger.report().counts.values().flat_map(|reasons| reasons.values());
        let found = counts.map(|counts| counts.withdrawn + counts.theirs_only).sum();
        let now = Instant::now();
        if self.clean_since.is_none() || found > self.found {
            (self.clean_since, self.found) = (Some(now), found);
        }
        let is_over = self.clean_since.is_some_and(|since| since + self.wait <= now);
        if is_over {
            tracing::info!("acting after {:?} in shadow: {}", self.wait, HELD_BACK.join(", "));
            HELD_BACK.iter().for_each(|name| frame.set_shadow(name, false, crate::run::now()));
        }
        is_over
    }
}
