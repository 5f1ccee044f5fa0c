//! The main loop: watches deliver events, the scheduler decides, the dispatcher writes.
//!
//! ```text
//!   watch ─WatchEvent─> Scheduler ─Command─> WriteDispatcher ─> API server
//!                           ^ ──────EndedWork─────┘
//! ```
//! Effects. Owner of the one thread that decides, and of the clock; the lease has another thread.
//! All pending watch events are applied before the next pod is decided, so that decisions use the
//! newest cache. Bounds: `AHEAD_MAX` pods are assumed and not bound; at that limit no further pod
//! is decided; `TAKE_MAX` for watch events before other work.

mod rebuild;
mod start;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use futures_util::FutureExt as _;
use pintle_api::{Access, ClientOptions, Observer};
use pintle_daemon::program::ending::{self, Ending};
use pintle_daemon::program::lease::{LeaderLease, LeaseCandidate};
use pintle_daemon::program::watchdog;
use pintle_daemon::{logging, own_code, tasks};
use pintle_scheduler_core::cycle::{BindingResult, Fact, Scheduler};
use pintle_scheduler_core::extender::ExtenderError;
use pintle_scheduler_core::framework::{Handle, Registry};
use pintle_scheduler_core::watch_event::WatchEvent;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc};

use self::rebuild::{Rebuilds, SchedulerWatches};
use self::start::{OfOthers, access, plugins};
use crate::daemon::Settings;
use crate::daemon::serve::{self, SchedulerQuery, State};
use crate::dispatcher::extender::Caller;
use crate::dispatcher::{BoundBy, EndedWork, WriteDispatcher};

/// Limit of assumed pods without a confirmed binding.
const AHEAD_MAX: usize = 4096;
/// Decisions before other work is done.
const DECISIONS_AT_ONCE: usize = 16;
/// Longest wait when nothing is due.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Shortest interval of updating the gauges.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Pods listed in a dump.
const DUMPED_MAX: usize = 1000;
/// Longest time spent on watch events, or on decisions, before other work.
const TAKE_MAX: Duration = Duration::from_millis(50);
/// Decisions of this length are followed by a pause for I/O.
const LONG_DECISIONS: Duration = Duration::from_millis(20);
/// Interval of logging the missing lists before it may lead.
const SAY_MISSING_EVERY: Duration = Duration::from_secs(30);
/// Time for bindings in flight at shutdown.
const END_MAX: Duration = Duration::from_secs(10);

/// Schedules, with the plugins of the registry that profiles enable.
///
/// # Errors
/// A file cannot be used, a port is taken, or the lease is lost.
pub fn run(settings: &Settings, registry: &Registry) -> Result<()> {
    let format = if settings.logs_json { logging::Format::Json } else { logging::Format::Text };
    logging::init(format, settings.verbosity);
    tasks::log_panics();
    settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if let Some(path) = &settings.write_config_to {
        let text = serde_json::to_string_pretty(&settings.configuration)?;
        return std::fs::write(path, text + "\n").context("--write-config-to");
    }
    let (ending, signals) = ending::listen()?;
    let access = access(&settings.process, settings.master.as_deref())?;
    let handle = Handle::default();
    let (state, questions) = State::new(settings);
    let state = Arc::new(state);
    let of_others = OfOthers { plugins: plugins(settings, registry, &handle, &state)?, handle };
    serve::start(&settings.serving, settings.process.election.is_on, &state)?;
    let lead = lead(&access, settings, &state)?;
    let lease = lead.as_ref().map(LeaderLease::keeper);
    signals.guard(Arc::clone(&state.turns), lease.clone(), "bindings");
    watchdog::start(Arc::clone(&state.turns), lease)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let running = RunningScheduler::new(&access, settings, &state, questions, of_others)?;
        work(running, lead, ending).await
    })
}

/// Starts the thread of the lease; `None` without leader election.
fn lead(access: &Access, settings: &Settings, state: &Arc<State>) -> Result<Option<LeaderLease>> {
    let election = settings.process.election.clone();
    if !election.is_on {
        return Ok(None);
    }
    state.metrics.leads(false);
    let (reporter, rival) = (state.reporter.clone(), "another scheduler");
    let candidate = LeaseCandidate { election, reporter, rival };
    Ok(Some(LeaderLease::begin(access, &candidate, Arc::clone(state) as Arc<_>)?))
}

/// Schedules until shutdown, or until the lease is lost.
async fn work(
    mut running: RunningScheduler,
    mut lead: Option<LeaderLease>,
    mut ending: Ending,
) -> Result<()> {
    own_code::start(pintle_heap::code::forget);
    let state = Arc::clone(&running.state);
    // A scheduler without a synced cache leaves the lease to others.
    // k8s: cmd/kube-scheduler/app/server.go Run
    let leads = async {
        running.learn().await?;
        running.follow(wait_until_leading(&mut lead)).await
    };
    tokio::select! {
        is_known = leads => is_known?,
        () = ending.requested() => return Ok(()),
    }
    tokio::select! {
        ended = running.schedule() => ended?,
        () = wait_until_lost(&mut lead) => {
            anyhow::bail!("the lease was lost: another scheduler may work now")
        }
        () = ending.requested() => {}
    }
    ending.acknowledge();
    state.mark_ending();
    // A binding without an answer may still be made: then the lease is not released, and other
    // schedulers wait until it expires. A second signal ends the process meanwhile.
    if running.end().await
        && let Some(lead) = lead
    {
        lead.release().await;
    }
    Ok(())
}

async fn wait_until_leading(lead: &mut Option<LeaderLease>) {
    if let Some(lead) = lead {
        lead.wait_until_leading().await;
    }
}

async fn wait_until_lost(lead: &mut Option<LeaderLease>) {
    match lead {
        Some(lead) => lead.wait_until_lost().await,
        None => std::future::pending().await,
    }
}

/// Returns a seed, so that two schedulers break ties differently.
fn seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos() & u128::from(u64::MAX)).unwrap_or(1)
}

/// Splits the time over searches, and over decided pods: a pod rejected by its nominated node has
/// two searches.
fn shares(took: Duration, facts: &[Fact]) -> (Duration, Duration) {
    let count = |is: fn(&&Fact) -> bool| facts.iter().filter(is).count();
    let searched = count(|fact| matches!(fact, Fact::Searched { .. }));
    let decided = count(|fact| matches!(fact, Fact::Decided(_))).max(1);
    let share = |parts| took / u32::try_from(parts).unwrap_or(u32::MAX);
    (share(searched.max(decided)), share(decided))
}

/// Lets watches and bindings, which share this thread, proceed after long decisions. A yield is one
/// step of each task, and a watch event needs several: after long decisions they get a tenth of the
/// time.
async fn let_io_run(took: Duration) {
    match took < LONG_DECISIONS {
        true => tokio::task::yield_now().await,
        false => tokio::time::sleep(took / 10).await,
    }
}

/// The scheduler with its inputs and outputs.
struct RunningScheduler {
    scheduler: Scheduler,
    /// Creates an empty scheduler.
    make: Box<dyn Fn() -> Scheduler>,
    dispatcher: WriteDispatcher,
    watches: SchedulerWatches,
    rebuilds: Rebuilds,
    watch_events: mpsc::Receiver<WatchEvent>,
    ended: mpsc::UnboundedReceiver<EndedWork>,
    questions: mpsc::Receiver<SchedulerQuery>,
    /// An out-of-tree plugin requested something.
    asked_for: Rc<Notify>,
    dump: Signal,
    counted: Duration,
    /// Nothing happened since.
    is_counted: bool,
    begun: Instant,
    state: Arc<State>,
}

impl RunningScheduler {
    /// Starts the watches: a standby has a synced cache before it leads.
    fn new(
        access: &Access,
        settings: &Settings,
        state: &Arc<State>,
        questions: mpsc::Receiver<SchedulerQuery>,
        of_others: OfOthers,
    ) -> Result<Self> {
        let options = |observer: Option<Arc<dyn Observer>>| ClientOptions {
            user_agent: pintle_config::help::user_agent("kube-scheduler"),
            rate: settings.process.rate(),
            observer,
            ..Default::default()
        };
        let observer = Some(Arc::clone(state) as Arc<dyn Observer>);
        let clients = access.clients(options(observer.clone()));
        // Events have their own rate limit, as upstream.
        // k8s: cmd/kube-scheduler/app/options/options.go createClients
        let events = access.client(options(observer));
        let (dispatcher, ended) = WriteDispatcher::new(&clients, events);
        let callers = settings.extenders.iter().cloned().map(Caller::new);
        let callers: Result<Vec<Caller>, ExtenderError> = callers.collect();
        let asked_for = Rc::new(Notify::new());
        let wake = Rc::clone(&asked_for);
        of_others.handle.connect(clients.urgent(), Box::new(move || wake.notify_one()));
        let whole = !settings.extenders.is_empty() || of_others.plugins.iter().any(Option::is_some);
        let make = rebuild::maker(settings, of_others, seed());
        let begun = Instant::now();
        let (watches, watch_events) = SchedulerWatches::begin(clients, settings, whole);
        Ok(Self {
            scheduler: make().with_clock(Rc::new(move || begun.elapsed())),
            make,
            watches,
            rebuilds: Rebuilds::default(),
            dispatcher: dispatcher.with_extenders(callers?),
            watch_events,
            ended,
            questions,
            asked_for,
            // k8s: pkg/scheduler/backend/cache/debugger/debugger.go
            dump: signal(SignalKind::user_defined2())?,
            counted: Duration::ZERO,
            is_counted: false,
            begun,
            state: Arc::clone(state),
        })
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Applies watch events until the cache is synced.
    async fn learn(&mut self) -> Result<()> {
        let first = tokio::time::Instant::now() + SAY_MISSING_EVERY;
        let mut says = tokio::time::interval_at(first, SAY_MISSING_EVERY);
        while !self.scheduler.cache.is_complete() {
            tokio::select! {
                is_open = self.receive() => if !is_open? { return Ok(()) },
                _ = says.tick() => {
                    let missing: Vec<_> = self.scheduler.cache.missing().collect();
                    tracing::warn!("not ready to schedule: no list yet of {missing:?}");
                }
            }
        }
        // A standby is ready too.
        self.state.mark_synced();
        // Code that only the start needed is released from memory.
        pintle_heap::code::forget();
        Ok(())
    }

    /// Applies watch events until this process is the leader.
    async fn follow(&mut self, leads: impl Future<Output = ()>) -> Result<()> {
        let mut leads = std::pin::pin!(leads);
        loop {
            tokio::select! {
                () = &mut leads => return Ok(()),
                is_open = self.receive() => if !is_open? { return Ok(()) },
            }
        }
    }

    /// Handles one watch event or request; false once the watches have ended.
    async fn receive(&mut self) -> Result<bool> {
        self.begin_turn().await?;
        tokio::select! {
            watch_event = self.watch_events.recv() => match watch_event {
                Some(watch_event) => self.handle(watch_event),
                None => return Ok(false),
            },
            Some(question) = self.questions.recv() => self.answer(question),
            Some(()) = self.dump.recv() => self.dump(),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        Ok(true)
    }

    /// Marks that the thread is not stuck. A cache torn by a panic is replaced first.
    async fn begin_turn(&mut self) -> Result<()> {
        let turns = &self.state.turns;
        turns.mark();
        if turns.is_given_up() {
            // Another scheduler may have the lease: earlier decisions are void.
            anyhow::bail!("this process was given up: its deciding thread was stuck");
        }
        if self.scheduler.is_torn() { self.rebuild().await } else { Ok(()) }
    }

    /// Decides for ever.
    async fn schedule(&mut self) -> Result<()> {
        self.state.mark_working();
        let (waiting, bound, nodes) = self.scheduler.cache.counts();
        tracing::info!("scheduling: {nodes} nodes, {bound} pods on them, {waiting} without");
        loop {
            self.begin_turn().await?;
            let knows_all = self.apply_pending();
            // An event may satisfy a pod that waits with a node.
            self.scheduler.attend(self.now());
            self.carry_out(Duration::ZERO);
            self.look_around();
            if !knows_all {
                tokio::task::yield_now().await;
                continue;
            }
            let began = self.now();
            if self.decide() {
                self.is_counted = false;
                let_io_run(self.now().saturating_sub(began)).await;
                continue;
            }
            let now = self.now();
            let due = self.scheduler.next_due(self.is_blocked(now));
            let patience = self.scheduler.patience_due().filter(|due| *due > now);
            let due = due.into_iter().chain(patience).min();
            let wait = due.map_or(LOOK_EVERY, |due| due.saturating_sub(self.now()).min(LOOK_EVERY));
            // The state after the last of many events is counted too.
            let uncounted = (self.counted + COUNT_EVERY).saturating_sub(self.now());
            let wait = if self.is_counted { wait } else { wait.min(uncounted) };
            tokio::select! {
                watch_event = self.watch_events.recv() => match watch_event {
                    Some(watch_event) => self.handle(watch_event),
                    None => return Ok(()),
                },
                Some(end) = self.ended.recv() => self.apply_ended(end),
                Some(question) = self.questions.recv() => self.answer(question),
                Some(()) = self.dump.recv() => self.dump(),
                () = self.asked_for.notified() => {}
                () = tokio::time::sleep(wait) => continue,
            }
            self.is_counted = false;
        }
    }

    /// Applies a watch event.
    fn handle(&mut self, watch_event: WatchEvent) {
        let now = self.now();
        if let Some(event) = self.scheduler.handle(watch_event, now) {
            self.state.metrics.handled(event, self.now().saturating_sub(now));
        }
    }

    /// Applies pending results and watch events, for at most `TAKE_MAX`; true if none is left.
    fn apply_pending(&mut self) -> bool {
        let began = Instant::now();
        while let Ok(end) = self.ended.try_recv() {
            self.apply_ended(end);
        }
        while began.elapsed() < TAKE_MAX {
            let Ok(watch_event) = self.watch_events.try_recv() else { return true };
            self.handle(watch_event);
        }
        false
    }

    /// Handles requests that must not wait until the queue is empty.
    fn look_around(&mut self) {
        if let Ok(question) = self.questions.try_recv() {
            self.answer(question);
        }
        if let Some(Some(())) = self.dump.recv().now_or_never() {
            self.dump();
        }
        self.count_now_and_then();
    }

    /// Must all decisions wait?
    fn is_blocked(&self, now: Duration) -> bool {
        self.dispatcher.ahead() >= AHEAD_MAX || self.scheduler.is_blocked(now)
    }

    /// Logs cache and queue, for debugging.
    fn dump(&self) {
        let (waiting, bound, nodes) = self.scheduler.cache.counts();
        let assumed = self.scheduler.assumed();
        tracing::info!(
            "dump: {nodes} nodes, {bound} pods on them, {waiting} without, {assumed} assumed"
        );
        for line in self.scheduler.queue_lines(DUMPED_MAX, self.now()) {
            tracing::info!("dump: {line}");
        }
    }

    /// Answers a request; the client may have disconnected.
    fn answer(&mut self, question: SchedulerQuery) {
        match question {
            SchedulerQuery::Explain { pod, node, answer } => {
                let now = self.now();
                drop(answer.send(self.scheduler.explain(&pod, node.as_deref(), now)));
            }
            SchedulerQuery::Declared(answer) => drop(answer.send(self.scheduler.cache.declared())),
        }
    }

    fn apply_ended(&mut self, end: EndedWork) {
        let now = self.now();
        self.state.turns.set_ahead(self.dispatcher.ahead());
        match end {
            EndedWork::Bind(end) => {
                let status = if end.ended == BindingResult::Bound { "Success" } else { "Error" };
                let profile = self.scheduler.profile_of(&end.pod.uid);
                // Out-of-tree Bind plugins do not run if an extender binds.
                // k8s: pkg/scheduler/schedule_one.go bind
                let is_asked = matches!(end.by, BoundBy::Default | BoundBy::Plugin);
                if let Some(profile) = profile.filter(|_| is_asked) {
                    self.state.metrics.at_point("Bind", status, profile, end.took);
                }
                if end.by == BoundBy::Default {
                    self.state.metrics.plugin("DefaultBinder", "Bind", status, end.took);
                }
                self.scheduler.ended(&end.pod, &end.node, end.ended, now);
            }
            EndedWork::Evict(evicted) => {
                self.state.metrics.made_room(evicted.all, evicted.took);
                self.scheduler.evicted(&evicted, now);
            }
            EndedWork::Volumes(written) => self.scheduler.volumes_written(written, now),
            EndedWork::Released(pod, claims) => self.scheduler.devices_released(&pod, claims, now),
            EndedWork::GaveBack(pod, did, claims) => {
                self.scheduler.gave_back(&pod, did, claims, now)
            }
            EndedWork::Devices(reserved) => {
                if let Some(is_made) = reserved.made {
                    self.state.metrics.made_claim(is_made);
                }
                self.scheduler.devices_reserved(reserved, now);
            }
            EndedWork::Consult(consulted) => {
                self.scheduler.consulted(consulted, now);
                return self.carry_out(self.now().saturating_sub(now));
            }
        }
        self.carry_out(Duration::ZERO);
    }

    /// Decides some pods; false if there was none to decide.
    fn decide(&mut self) -> bool {
        let (mut any, first) = (false, self.now());
        for _ in 0..DECISIONS_AT_ONCE {
            let began = self.now();
            // Several long attempts in a row would delay a new pod.
            if began.saturating_sub(first) >= TAKE_MAX {
                break;
            }
            if self.is_blocked(began) || !self.scheduler.decide_next(began) {
                // No pod was decided, but pods with an expired wait may have new statuses.
                self.carry_out(Duration::ZERO);
                break;
            }
            any = true;
            self.carry_out(self.now().saturating_sub(began));
        }
        any
    }

    /// Executes the commands of decisions that took `took`.
    fn carry_out(&mut self, took: Duration) {
        let turns = &self.state.turns;
        if turns.is_given_up() {
            return;
        }
        self.scheduler.take_commands().into_iter().for_each(|command| self.dispatcher.run(command));
        turns.set_ahead(self.dispatcher.ahead());
        let metrics = &self.state.metrics;
        let facts = self.scheduler.take_facts();
        let (of_search, of_decision) = shares(took, &facts);
        for fact in facts {
            match fact {
                Fact::Bound { profile, took, all, attempts, was_flushed } => {
                    metrics.bound(profile, took, all, attempts, was_flushed);
                }
                Fact::Searched { profile, failed } => {
                    let status = if failed { "Error" } else { "Success" };
                    metrics.at_point("Filter", status, profile, of_search);
                }
                Fact::Decided(waited) => metrics.decided(waited.saturating_add(of_decision)),
                Fact::Refused { profile, is_error, since } => {
                    metrics.refused(profile, is_error, since.saturating_add(took));
                }
                Fact::Exhausted(limit) => metrics.net.exhausted(limit),
                Fact::Group { profile, result } => metrics.group(profile, result, took),
                Fact::TriedToPreempt => metrics.tried_to_preempt(),
                Fact::Preempted(victims) => metrics.preempted(victims),
                Fact::VolumesFailed => metrics.volumes_failed(),
                Fact::Permitted { result, took } => metrics.permitted(result, took),
                Fact::Prepared { profile, status, took, devices } => {
                    metrics.prepared(profile, status, took, devices);
                }
            }
        }
    }

    /// Updates the gauges, at most once per `COUNT_EVERY`.
    fn count_now_and_then(&mut self) {
        let now = self.now();
        if now < self.counted + COUNT_EVERY {
            return;
        }
        (self.counted, self.is_counted) = (now, true);
        let (_, bound, nodes) = self.scheduler.cache.counts();
        let known = [nodes, bound, self.scheduler.assumed()];
        let metrics = &self.state.metrics;
        metrics.counts(|place| self.scheduler.count(place), known);
        metrics.unreadable(self.scheduler.cache.unreadable());
        metrics.set_in_flight_events(self.scheduler.in_flight_events());
        let moved = self.scheduler.queue.take_moved();
        metrics.queue(moved, self.scheduler.queue.rejected(), self.dispatcher.under_way());
        metrics.batches(&self.scheduler.take_batches());
        metrics.net.over_share(self.scheduler.queue.namespaces_over_share(now));
    }

    /// Waits for bindings in flight, because no other scheduler may start before they end; true if
    /// all ended in time.
    async fn end(&mut self) -> bool {
        self.dispatcher.close();
        let bound =
            async { while self.dispatcher.under_way() > 0 && self.ended.recv().await.is_some() {} };
        let is_done = tokio::time::timeout(END_MAX, bound).await.is_ok();
        if !is_done {
            let left = self.dispatcher.under_way();
            tracing::warn!("ending while {left} bindings have no answer");
        }
        is_done
    }
}

#[cfg(test)]
mod tests;
