//! The shadow on a live cluster: reads, decides, compares, and never writes.
//!
//! Input: watches and live reads with the manager's own credentials. Output: `/pintle/shadow`,
//! metrics, a line in the log for each difference, and the whole report at the end. No lease, no
//! tokens of accounts, no events. Owner: the deciding thread. `--shadow-first`, which holds back
//! some controllers of a manager that acts, is a part of `run`.

use std::time::Instant;

use futures_util::future::join_all;
use pintle_api_types::request::Answer;
use pintle_controllers_core::frame::{Frame, Ticket};
use pintle_controllers_core::tables::WatchEvent;
use pintle_controllers_loops::shadow::{LiveReads, Shadow, ShadowReport, WriteDifference};
use pintle_daemon::serve::answer::HttpAnswer as Page;
use tokio::sync::mpsc;

use crate::debug::{self, Explainer};
use crate::follow::EVENTS_MAX;
use crate::process::{ControllerContext, DecisionQuery, ShadowMetrics, WritesUnderWay};
use crate::run::{COUNT_EVERY, discovered, now, wait_for};
use crate::watches::KindWatches;

/// The page of the report.
const PAGE: &str = "/pintle/shadow";

type Answered = (Ticket, Vec<Answer>);

/// Runs a frame in shadow until it has to stop. Must be called on a `LocalSet`.
pub(crate) async fn run(frame: Frame, mut context: ControllerContext) -> WritesUnderWay {
    let (told, mut events) = mpsc::channel(EVENTS_MAX);
    let (answer, mut answers) = mpsc::unbounded_channel::<Answered>();
    // Watches wait for no turn.
    let client = context.clients.root("shared-informers").urgent();
    let mut watches = KindWatches::new(client, context.discovery.clone(), told);
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
                watches.mark_undiscovered(&found, Instant::now());
                for kind in watches.end_undiscovered(Instant::now()) {
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
        for kind in watches.end_undiscovered(Instant::now()) {
            read(shadow.take(WatchEvent::Dropped(kind), now()));
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
        // The receiver is dropped only when the process is about to exit.
        let _ = answer.send((reads.ticket, join_all(all).await));
    });
}

fn answer_question(shadow: &mut Shadow, question: DecisionQuery, explainer: &Explainer) {
    if question.path != PAGE {
        return debug::answer(shadow.frame(), question, explainer, now());
    }
    let page = page(shadow.report(), question.wants_json);
    // The client may have disconnected.
    let _ = question.answer.send(page);
}

fn page(report: &ShadowReport, wants_json: bool) -> Page {
    if wants_json { Page::json(report) } else { Page::text(200, report.to_string()) }
}

/// Logs differences.
pub(crate) fn log(differences: Vec<WriteDifference>) {
    differences.iter().for_each(|found| tracing::warn!("differs: {found}"));
}
