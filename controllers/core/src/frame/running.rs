//! A running controller in the frame: its queue, the syncs under way, and the fences of its keys.
//!
//! A key is in one of these states: idle; waiting in the queue; behind its fence, until the tables
//! show its own writes; in a sync that waits for answers. A sync that panics costs only its key's
//! attempt. Bounds: `workers` syncs at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Answer, Request};

use super::controller::{Controller, Now, SyncOutcome, Wake, Wakes};
use super::explain::{Dry, KeyState, KeyWait, is_write};
use super::fence::Fence;
use super::fences::Fences;
use super::queue::{QueueStats, WorkQueue};
use super::transcript::{Retry, SyncError, Transcript, TranscriptStop};
use super::{FrameEffect, MANAGER, Ticket};
use crate::common::sample::SampleTotals;
use crate::tables::{Change, Tables};

/// A type-erased controller.
pub(super) trait ErasedController {
    fn name(&self) -> &'static str;
    fn kinds(&self) -> Vec<Kind>;
    fn reads_all_metadata(&self) -> bool;
    fn start(&mut self, tables: &Tables, now: Now);
    fn handle_change(&mut self, change: &Change, tables: &Tables, now: Now);
    /// Records that the watch of a kind reached a newer version.
    fn note_progress(&mut self, kind: Kind, changes: &[Change], tables: &Tables);
    /// Starts syncs as long as there are keys and workers.
    fn turn(&mut self, turn: &mut ControllerTurn<'_>);
    fn answer(&mut self, ticket: Ticket, answers: Vec<Answer>, turn: &mut ControllerTurn<'_>);
    fn next_due(&self) -> Option<Instant>;
    fn is_idle(&self) -> bool;
    fn stats(&self, now: Now) -> ControllerStats;
    /// Has its writes reported instead of made, or the other way round.
    fn set_shadow(&mut self, is_shadow: bool, now: Now);
    /// Syncs the key of an object again.
    fn resync(&mut self, object: &ObjectKey, now: Now);
    /// The state of an object's key; `None` when the keys are no objects.
    fn key_state(&mut self, object: &ObjectKey, tables: &Tables, now: Now) -> Option<KeyState>;
    fn totals(&self) -> Option<&SampleTotals>;
    fn debug_page(&self, page: &str, uids: &[&str]) -> Option<String>;
}

/// The state that a controller's turn reads and writes.
pub(super) struct ControllerTurn<'a> {
    pub(super) tables: &'a Tables,
    pub(super) now: Now,
    pub(super) orders: &'a mut Vec<FrameEffect>,
    pub(super) next_ticket: &'a mut u64,
}

/// Metrics of a controller.
#[derive(Clone, Copy, Debug, Default)]
pub struct ControllerStats {
    /// Its queue.
    pub queue: QueueStats,
    /// Syncs that ended without a failure.
    pub synced: u64,
    /// Syncs that failed.
    pub failed: u64,
    /// Syncs that panicked.
    pub panicked: u64,
    /// Syncs put off until the tables showed an own write (`stale_sync_skips_total`).
    pub stale: u64,
}

struct Sync<C: Controller> {
    snapshot: C::Snapshot,
    transcript: Transcript,
    /// Events that were ordered.
    emitted: usize,
    /// When its last requests were handed out.
    requested: Instant,
    /// It began in shadow: what it was answered may never have been.
    is_shadow: bool,
}

/// A controller and its progress.
pub(super) struct RunningController<C: Controller> {
    controller: C,
    queue: WorkQueue<C::Key>,
    syncs: BTreeMap<C::Key, Sync<C>>,
    tickets: BTreeMap<Ticket, C::Key>,
    fences: Fences<C::Key>,
    /// The failure of each key that failed in its last sync.
    failed: BTreeMap<C::Key, String>,
    stats: ControllerStats,
    is_started: bool,
    /// Its writes are answered by an oracle, and reported.
    is_shadow: bool,
    /// Keys that would have been written for, in shadow.
    shadowed: BTreeSet<C::Key>,
}

impl<C: Controller> RunningController<C> {
    pub(super) fn new(controller: C) -> Self {
        Self {
            controller,
            queue: WorkQueue::new(C::BACKOFF),
            syncs: BTreeMap::new(),
            tickets: BTreeMap::new(),
            fences: Fences::default(),
            failed: BTreeMap::new(),
            stats: ControllerStats::default(),
            is_started: false,
            is_shadow: false,
            shadowed: BTreeSet::new(),
        }
    }

    fn wake(&mut self, wakes: Wakes<C::Key>, now: Now) {
        for wake in wakes.wakes {
            match wake {
                Wake::Now(key) => self.queue.add(key, now.instant),
                Wake::After(key, wait) => self.queue.add_after(key, now.instant, wait),
                Wake::Backoff(key) => self.queue.add_rate_limited(key, now.instant),
            }
        }
    }

    /// Keys behind a fence that opened are synced.
    fn open_fences(&mut self, turn: &mut ControllerTurn<'_>) {
        let syncs = &self.syncs;
        for key in self.fences.take_open(|key| syncs.contains_key(key), turn.tables) {
            if self.queue.is_working(&key) {
                // It was taken while its fence was closed.
                self.begin(key, turn);
            }
        }
    }

    fn begin(&mut self, key: C::Key, turn: &mut ControllerTurn<'_>) {
        if !self.fences.is_open(&key, turn.tables) {
            self.stats.stale += 1;
            let lists = self.unknown(&key).to_vec();
            if !lists.is_empty() {
                self.settle(key, lists, turn);
            }
            return;
        }
        let controller = &mut self.controller;
        let snapshot = catch(|| controller.snapshot(&key, turn.tables, turn.now));
        match snapshot {
            Ok(Some(snapshot)) => {
                let transcript = Transcript::new(turn.now.wall);
                let requested = turn.now.instant;
                let is_shadow = self.is_shadow;
                let sync = Sync { snapshot, transcript, emitted: 0, requested, is_shadow };
                self.advance(key, sync, turn);
            }
            Ok(None) => {
                self.report(&key, &Transcript::new(turn.now.wall), turn);
                self.finish(&key, Ok(SyncOutcome::done()), turn);
            }
            Err(panic) => self.finish(&key, Err(panic), turn),
        }
    }

    /// The lists that show the outcome of the key's requests without an answer.
    fn unknown(&self, key: &C::Key) -> &[Request] {
        self.fences.get(key).map(Fence::unknown).unwrap_or_default()
    }

    /// Lists the objects after requests without an answer. The manager lists, because the roles of
    /// many controllers do not allow it, and their keys would be stuck for ever.
    fn settle(&mut self, key: C::Key, lists: Vec<Request>, turn: &mut ControllerTurn<'_>) {
        let ticket = turn.ticket();
        turn.orders.push(FrameEffect::Send { ticket, controller: MANAGER, requests: lists });
        self.tickets.insert(ticket, key);
    }

    fn advance(&mut self, key: C::Key, mut sync: Sync<C>, turn: &mut ControllerTurn<'_>) {
        let result = catch(|| C::sync(&sync.snapshot, &mut sync.transcript));
        let new = sync.transcript.events().get(sync.emitted..).unwrap_or_default();
        let events =
            new.iter().map(|event| FrameEffect::Emit { controller: C::NAME, event: event.clone() });
        turn.orders.extend(events);
        sync.emitted = sync.emitted.max(sync.transcript.events().len());
        if !matches!(result, Ok(Err(TranscriptStop::Pending))) {
            self.report(&key, &sync.transcript, turn);
        }
        match result {
            Ok(Ok(outcome)) => self.finish(&key, Ok(outcome), turn),
            Ok(Err(TranscriptStop::Failed(error))) => self.finish(&key, Err(error), turn),
            Err(panic) => self.finish(&key, Err(panic), turn),
            Ok(Err(TranscriptStop::Pending)) => {
                let ticket = turn.ticket();
                let requests = sync.transcript.wanted().to_vec();
                turn.orders.push(FrameEffect::Send { ticket, controller: C::NAME, requests });
                self.tickets.insert(ticket, key.clone());
                sync.requested = turn.now.instant;
                self.syncs.insert(key, sync);
            }
        }
    }

    /// Reports the writes of a sync in shadow.
    fn report(&mut self, key: &C::Key, transcript: &Transcript, turn: &mut ControllerTurn<'_>) {
        if !self.is_shadow {
            return;
        }
        let steps = transcript.steps().iter().flat_map(|step| &step.requests);
        let writes: Vec<_> = steps.filter(|request| is_write(request)).cloned().collect();
        if !writes.is_empty() {
            self.shadowed.insert(key.clone());
        }
        let key = format!("{key:?}");
        turn.orders.push(FrameEffect::Decided { controller: C::NAME, key, writes });
    }

    fn finish(
        &mut self,
        key: &C::Key,
        result: Result<SyncOutcome<C::Note>, SyncError>,
        turn: &mut ControllerTurn<'_>,
    ) {
        match result {
            Ok(outcome) => {
                match &outcome.failed {
                    Some(error) => self.fail(key, error, turn),
                    None => self.succeed(key),
                }
                if let Some(wait) = outcome.again {
                    self.queue.add_after(key.clone(), turn.now.instant, wait);
                }
                let mut wakes = Wakes::default();
                for note in outcome.notes {
                    self.controller.remember(key, note, turn.now);
                }
                self.controller.wake_after_notes(&mut wakes);
                self.wake(wakes, turn.now);
            }
            Err(error) => self.fail(key, &error, turn),
        }
        self.queue.done(key, turn.now.instant);
    }

    fn succeed(&mut self, key: &C::Key) {
        self.stats.synced += 1;
        self.queue.forget(key);
        self.failed.remove(key);
    }

    fn fail(&mut self, key: &C::Key, error: &SyncError, turn: &mut ControllerTurn<'_>) {
        if error.retry == Retry::NeverSilently {
            return self.queue.forget(key);
        }
        self.stats.failed += 1;
        let failures = self.queue.failures(key);
        let is_last = C::RETRIES_MAX.is_some_and(|max| failures >= max);
        if error.retry == Retry::Never || is_last {
            self.queue.forget(key);
            self.failed.remove(key);
        } else {
            self.failed.insert(key.clone(), error.message.clone());
            self.queue.add_rate_limited(key.clone(), turn.now.instant);
        }
        turn.orders.push(FrameEffect::Failed {
            controller: C::NAME,
            key: format!("{key:?}"),
            message: error.message.clone(),
            is_quiet: error.retry == Retry::Quietly,
        });
    }
}

impl<C: Controller> ErasedController for RunningController<C> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn kinds(&self) -> Vec<Kind> {
        self.controller.kinds()
    }

    fn reads_all_metadata(&self) -> bool {
        self.controller.reads_all_metadata()
    }

    fn start(&mut self, tables: &Tables, now: Now) {
        let mut wakes = Wakes::default();
        self.controller.handle_start(tables, &mut wakes);
        self.is_started = true;
        self.wake(wakes, now);
    }

    fn handle_change(&mut self, change: &Change, tables: &Tables, now: Now) {
        let mut wakes = Wakes::default();
        let controller = &mut self.controller;
        let handled = catch(|| controller.handle_change(change, tables, now, &mut wakes));
        self.stats.panicked += u64::from(handled.is_err());
        self.wake(wakes, now);
    }

    fn note_progress(&mut self, kind: Kind, changes: &[Change], tables: &Tables) {
        if self.fences.is_empty() {
            return;
        }
        self.fences.note_version(kind, tables.version(kind));
        for object in changes.iter().filter_map(Change::old_meta) {
            self.fences.note_change(kind, object.key());
        }
    }

    fn turn(&mut self, turn: &mut ControllerTurn<'_>) {
        // Also before the start and while all workers are busy: a key that is due must not keep the
        // loop awake.
        self.queue.release_due(turn.now.instant);
        if !self.is_started {
            return;
        }
        self.open_fences(turn);
        while self.syncs.len() < self.controller.workers() {
            let Some(key) = self.queue.take(turn.now.instant) else { break };
            self.begin(key, turn);
        }
    }

    fn answer(&mut self, ticket: Ticket, answers: Vec<Answer>, turn: &mut ControllerTurn<'_>) {
        let key = self.tickets.remove(&ticket).expect("an answer to a request under way");
        let Some(mut sync) = self.syncs.remove(&key) else {
            // A list that settles lost answers.
            self.fences.settle(&key, &answers, turn.tables);
            if !self.unknown(&key).is_empty() {
                self.queue.add_rate_limited(key.clone(), turn.now.instant);
                return self.queue.done(&key, turn.now.instant);
            }
            return self.begin(key, turn);
        };
        if sync.is_shadow && !self.is_shadow {
            // The controller acts now, so the sync begins again without the oracle's answers.
            self.queue.add(key.clone(), turn.now.instant);
            return self.queue.done(&key, turn.now.instant);
        }
        if !self.is_shadow {
            let wanted = sync.transcript.wanted();
            self.fences.record(&key, wanted, &answers, turn.tables);
        }
        sync.transcript.answer(answers);
        self.advance(key, sync, turn);
    }

    fn set_shadow(&mut self, is_shadow: bool, now: Now) {
        self.is_shadow = is_shadow;
        for key in std::mem::take(&mut self.shadowed) {
            self.queue.add(key, now.instant);
        }
    }

    fn resync(&mut self, object: &ObjectKey, now: Now) {
        if let Some(key) = C::key_of(object) {
            self.queue.add(key, now.instant);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.queue.next_due().filter(|_| self.is_started)
    }

    fn is_idle(&self) -> bool {
        self.syncs.is_empty() && self.queue.depth() == 0 && self.fences.is_empty()
    }

    fn stats(&self, now: Now) -> ControllerStats {
        ControllerStats { queue: self.queue.stats(now.instant), ..self.stats }
    }

    fn totals(&self) -> Option<&SampleTotals> {
        self.controller.totals()
    }

    fn debug_page(&self, page: &str, uids: &[&str]) -> Option<String> {
        self.controller.debug_page(page, uids)
    }

    fn key_state(&mut self, object: &ObjectKey, tables: &Tables, now: Now) -> Option<KeyState> {
        let key = C::key_of(object)?;
        let controller = &mut self.controller;
        let dry = catch(|| controller.snapshot(&key, tables, now)).ok().flatten();
        let transcript = Transcript::new(now.wall);
        let dry = dry.map(|snapshot| Box::new(Dry::<C>::new(snapshot, transcript)) as _);
        Some(KeyState { controller: C::NAME, waits: self.waits(&key, now), dry })
    }
}

impl<C: Controller> RunningController<C> {
    fn waits(&self, key: &C::Key, now: Now) -> Vec<KeyWait> {
        let mut waits = Vec::new();
        if !self.is_started {
            waits.push(KeyWait::Lists);
        }
        if let Some(sync) = self.syncs.get(key) {
            let since = now.instant.saturating_duration_since(sync.requested);
            waits.push(KeyWait::Answers { requests: sync.transcript.wanted().to_vec(), since });
        }
        if let Some(fence) = self.fences.get(key)
            && !self.syncs.contains_key(key)
        {
            waits.push(KeyWait::OwnWrites(fence.describe()));
        }
        if self.queue.is_waiting(key) && self.is_started {
            waits.push(KeyWait::Queue(self.queue.depth()));
        } else if let Some(due) = self.queue.due(key) {
            let left = due.saturating_duration_since(now.instant);
            let failures = self.queue.failures(key);
            waits.push(match self.failed.get(key) {
                Some(message) if failures > 0 => {
                    KeyWait::Backoff { left, failures, message: message.clone() }
                }
                _ => KeyWait::Timer(left),
            });
        }
        waits
    }
}

impl ControllerTurn<'_> {
    fn ticket(&mut self) -> Ticket {
        *self.next_ticket += 1;
        Ticket(*self.next_ticket)
    }
}

pub(super) fn catch<T>(run: impl FnOnce() -> T) -> Result<T, SyncError> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let mut message = "panicked".to_owned();
        let text = panic.downcast_ref::<String>().map(String::as_str);
        if let Some(text) = text.or_else(|| panic.downcast_ref::<&str>().copied()) {
            let _ = write!(message, ": {text}"); // a String takes everything
        }
        SyncError { message, retry: Retry::Backoff }
    })
}
