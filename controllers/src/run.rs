//! Runs the controllers on one deciding thread: watch events and answers in, orders out.
//!
//! Input: the dependencies that the process provides. It runs until the process requests a stop;
//! then it starts no sync any more and waits for the answers to requests under way. Requests are
//! expensive and decisions are cheap, so one thread decides, and daemon and simulator run the same
//! frame. Bounds: `follow::EVENTS_MAX` watch events wait; a turn applies `BATCH_MAX` of them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::frame::{Frame, FrameEffect, MANAGER, Now};
use pintle_controllers_core::names::ControllerNames;
use pintle_controllers_core::tables::{DiscoveredKind, DiscoveredKinds, WatchEvent};
use pintle_controllers_loops::shadow::{HELD_BACK, ShadowFirst};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use crate::counts::ControllerCounts;
use crate::debug::{self, Explainer};
use crate::dispatch::{ControllerClients, Dispatcher, TicketAnswers};
use crate::follow::EVENTS_MAX;
use crate::process::{ControllerContext, WritesUnderWay};
use crate::shadow;
use crate::watches::KindWatches;

/// Watch events that are applied before syncs begin.
const BATCH_MAX: usize = 256;
/// A turn is made so often at least: a thread that makes none counts as stuck.
const TURN_EVERY: Duration = Duration::from_secs(5);
/// Metrics show counts of so long ago at most, while there is something to do.
pub(crate) const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Events wait behind the requests of their controller, not for a limit of their own.
const NO_LIMIT: pintle_api::Rate = pintle_api::Rate { per_second: 0.0, burst: 1 };

/// Runs the controllers until they have to stop. Must be called on a `LocalSet`.
pub(crate) async fn run(mut frame: Frame, mut context: ControllerContext) -> WritesUnderWay {
    let (told, mut events) = mpsc::channel(EVENTS_MAX);
    let (answer, mut answers) = mpsc::unbounded_channel();
    // Watches wait for no turn.
    let client = context.clients.root("shared-informers").urgent();
    let mut watches = KindWatches::new(client, context.discovery.clone(), told);
    watches.follow(&frame.kinds(), false);
    let identities = identities(&frame, &context);
    let explainer = explainer(&identities, &context);
    let mut dispatcher = Dispatcher::new(identities, answer);
    let discovered = discovered(&context.discovery.current());
    frame.apply(WatchEvent::Discovered(discovered.clone()), now());
    watches.follow_discovered(&frame, &discovered);
    let mut first = ShadowFirst::begin(&mut frame, context.options.shadow_first, now());
    let mut start = Startup::default();
    let mut counts = ControllerCounts::register(&context.metrics);
    loop {
        let held = first.as_ref().and_then(ShadowFirst::due);
        let due = frame.next_due().into_iter().chain(counts.next_due()).chain(held).min();
        let mut is_quiet = false;
        tokio::select! {
            event = events.recv() => {
                // The sender lives as long as this function.
                let Some(event) = event else { return WritesUnderWay::None };
                apply(&mut frame, &mut first, event);
                drain(&mut events, &mut frame, &mut first);
            }
            answered = answers.recv() => {
                let Some(TicketAnswers { ticket, answers }) = answered else { return WritesUnderWay::None };
                frame.answer(ticket, answers, now());
                dispatcher.mark_answered();
            }
            () = context.discovery.changed() => {
                let discovered = self::discovered(&context.discovery.current());
                watches.mark_undiscovered(&discovered, Instant::now());
                drop_kinds(&mut watches, &mut frame, &mut first);
                watches.follow_discovered(&frame, &discovered);
                apply(&mut frame, &mut first, WatchEvent::Discovered(discovered));
            }
            () = context.stop.requested() => break,
            Some(question) = context.questions.recv() => {
                debug::answer(&mut frame, question, &explainer, now());
            }
            () = wait_for(due) => is_quiet = true,
        }
        while let Ok(TicketAnswers { ticket, answers }) = answers.try_recv() {
            frame.answer(ticket, answers, now());
            dispatcher.mark_answered();
        }
        drop_kinds(&mut watches, &mut frame, &mut first);
        let mut orders = turn(&mut frame, &mut first);
        if first.is_some() {
            end_shadow_if_clean(&mut frame, &mut first);
            orders.extend(turn(&mut frame, &mut first));
        }
        for order in orders {
            is_quiet = false;
            dispatcher.carry_out(order);
        }
        counts.mark_turn(&frame, is_quiet, now());
        context.turns.mark();
        context.turns.set_ahead(dispatcher.under_way());
        start.note(&frame, is_quiet);
    }
    drop(watches);
    while dispatcher.under_way() > 0 && answers.recv().await.is_some() {
        dispatcher.mark_answered();
    }
    WritesUnderWay::None
}

/// How far the start is.
#[derive(Default)]
struct Startup {
    is_synced: bool,
    is_over: bool,
}

impl Startup {
    /// A turn has ended; nothing happened in it if it was quiet.
    fn note(&mut self, frame: &Frame, is_quiet: bool) {
        if !self.is_synced && frame.is_started() {
            self.is_synced = true;
            tracing::info!("all caches are synced");
        }
        if self.is_synced && is_quiet && !self.is_over {
            self.is_over = true;
            // What only the start needed makes room.
            pintle_heap::code::forget();
        }
    }
}

fn explainer(
    identities: &BTreeMap<&'static str, Rc<ControllerClients>>,
    context: &ControllerContext,
) -> Explainer {
    Explainer {
        identities: identities.clone(),
        client: context.clients.root("explain").urgent(),
        discovery: context.discovery.clone(),
    }
}

fn apply(frame: &mut Frame, first: &mut Option<ShadowFirst>, event: WatchEvent) {
    let changes = frame.apply(event, now());
    if let Some(first) = first {
        first.note(&changes, frame, now());
    }
}

fn drop_kinds(watches: &mut KindWatches, frame: &mut Frame, first: &mut Option<ShadowFirst>) {
    for kind in watches.end_undiscovered(Instant::now()) {
        apply(frame, first, WatchEvent::Dropped(kind));
    }
}

fn turn(frame: &mut Frame, first: &mut Option<ShadowFirst>) -> Vec<FrameEffect> {
    match first {
        Some(first) => first.turn(frame, now()),
        None => frame.turn(now()),
    }
}

/// Controllers that `--shadow-first` holds back act once they were clean for long enough. Called
/// after a turn, so that everything that was decided is compared.
fn end_shadow_if_clean(frame: &mut Frame, first: &mut Option<ShadowFirst>) {
    let Some(held) = first else { return };
    let is_over = held.end_if_clean(frame, now());
    shadow::log(held.take_fresh());
    if is_over {
        tracing::info!("acting after {:?} in shadow: {}", held.wait(), HELD_BACK.join(", "));
        *first = None;
    }
}

fn drain(
    events: &mut mpsc::Receiver<WatchEvent>,
    frame: &mut Frame,
    first: &mut Option<ShadowFirst>,
) {
    for _ in 0..BATCH_MAX {
        let Ok(event) = events.try_recv() else { return };
        apply(frame, first, event);
    }
}

pub(crate) async fn wait_for(due: Option<Instant>) {
    let latest = Instant::now() + TURN_EVERY;
    sleep_until(due.map_or(latest, |due| due.min(latest)).into()).await;
}

pub(crate) fn now() -> Now {
    Now { instant: Instant::now(), wall: Timestamp::now() }
}

/// The client and event recorder of each controller; its events share the limit of its requests.
fn identities(
    frame: &Frame,
    context: &ControllerContext,
) -> BTreeMap<&'static str, Rc<ControllerClients>> {
    let identity = |name: &'static str| {
        let names = ControllerNames::find(name).expect("each controller has names");
        // Namespaces take turns in it.
        let client = context.clients.of(names.identity).bulk();
        let component = names.event_component;
        let (recorder, sink) =
            pintle_api::events::recorder(client.clone(), component, "", NO_LIMIT);
        tokio::task::spawn_local(sink.run());
        context.health.mark_healthy(name);
        context.metrics.set_running(name, true);
        (name, Rc::new(ControllerClients { client, recorder }))
    };
    let client = context.clients.root("").urgent();
    let (recorder, _) = pintle_api::events::recorder(client.clone(), "", "", NO_LIMIT);
    let manager = (MANAGER, Rc::new(ControllerClients { client, recorder }));
    frame.names().map(identity).chain([manager]).collect()
}

/// The discovered kinds in the form that controllers read.
pub(crate) fn discovered(known: &crate::discovery::DiscoveredGroups) -> DiscoveredKinds {
    let mut kinds = Vec::new();
    for group in &known.groups {
        let mut preferred = std::collections::BTreeSet::new();
        for version in group.versions.iter().filter(|version| version.failure.is_none()) {
            for resource in &version.resources {
                kinds.push(DiscoveredKind {
                    kind: resource.kind,
                    verbs: resource.verbs.iter().map(|verb| Symbol::of(verb)).collect(),
                    is_preferred: preferred.insert(resource.kind.plural),
                });
            }
        }
    }
    let failed = known.failures().map(|(group, failure)| (group, failure.to_owned()));
    DiscoveredKinds { kinds, failed_groups: failed.collect(), read_at: known.read_at }
}
