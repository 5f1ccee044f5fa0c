//! The trait of controllers.
//!
//! Input: changes of objects, the tables, the time. Output: keys to sync, a snapshot of the state
//! that one sync reads, and the outcome of the sync, which is a pure function.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::Kind;

use super::queue::{KeyBackoff, QueueKey};
use super::transcript::{SyncError, Transcript, TranscriptStop};
use crate::common::sample::SampleTotals;
use crate::tables::{Change, Tables};

/// The time, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The monotonic clock, for waits.
    pub instant: Instant,
    /// The wall clock, for timestamps of objects.
    pub wall: Timestamp,
}

/// A controller. It has a queue of keys. A sync of a key takes a snapshot of the tables, and a pure
/// function decides by it.
pub trait Controller: 'static {
    /// The unit of a sync: mostly an object's key.
    type Key: QueueKey + Debug + 'static;
    /// All that one sync reads; shares the objects with the tables.
    type Snapshot: 'static;
    /// A note that a finished sync leaves for later ones.
    type Note;

    /// The canonical name, such as `deployment-controller`.
    const NAME: &'static str;
    /// The back-off of failed keys.
    const BACKOFF: KeyBackoff = KeyBackoff::DEFAULT;
    /// Failures in a row after which the key is dropped until its next change.
    const RETRIES_MAX: Option<u32> = None;

    /// The kinds that it reads; all of them are listed before the first sync.
    fn kinds(&self) -> Vec<Kind>;

    /// It reads the metadata of every kind that discovery finds.
    fn reads_all_metadata(&self) -> bool {
        false
    }

    /// Most concurrent syncs.
    fn workers(&self) -> usize;

    /// All its kinds are listed for the first time.
    fn handle_start(&mut self, _tables: &Tables, _wake: &mut Wakes<Self::Key>) {}

    /// The key of an object that this controller is about; `None` where keys are something else.
    fn key_of(_object: &ObjectKey) -> Option<Self::Key> {
        None
    }

    /// An object changed; also called for each object of a first list.
    fn handle_change(
        &mut self,
        change: &Change,
        tables: &Tables,
        now: Now,
        wake: &mut Wakes<Self::Key>,
    );

    /// The state that a sync of the key reads; `None` when there is nothing to do.
    fn snapshot(&mut self, key: &Self::Key, tables: &Tables, now: Now) -> Option<Self::Snapshot>;

    /// Decides. Pure, and rerun from the start for each answer.
    ///
    /// # Errors
    /// When a request has to be answered first, and when the sync failed.
    fn sync(
        snapshot: &Self::Snapshot,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<Self::Note>, TranscriptStop>;

    /// Records a note of a sync.
    fn remember(&mut self, _key: &Self::Key, _note: Self::Note, _now: Now) {}

    /// The metric samples of its syncs and handlers.
    fn totals(&self) -> Option<&SampleTotals> {
        None
    }

    /// The page `/debug/controllers/NAME/PAGE`, limited to these objects if UIDs are given.
    fn debug_page(&self, _page: &str, _uids: &[&str]) -> Option<String> {
        None
    }

    /// Keys that the notes of a sync concern; called after they were remembered.
    fn wake_after_notes(&mut self, _wake: &mut Wakes<Self::Key>) {}
}

/// The outcome of a sync.
#[derive(Debug)]
pub struct SyncOutcome<N> {
    /// The key is synced again after this time.
    pub again: Option<Duration>,
    /// Notes for the controller, also of a failed sync.
    pub notes: Vec<N>,
    /// The failure of the sync, if it failed.
    pub failed: Option<SyncError>,
}

impl<N> SyncOutcome<N> {
    /// Nothing more is to be done until something changes.
    pub fn done() -> Self {
        Self::new(None, Vec::new())
    }

    /// The key is synced again after this time, if there is one.
    pub fn new(again: Option<Duration>, notes: Vec<N>) -> Self {
        Self { again, notes, failed: None }
    }

    /// The key is synced again after this time.
    pub fn after(wait: Duration) -> Self {
        Self::new(Some(wait), Vec::new())
    }
}

/// Keys that a handler wants to be synced.
#[derive(Debug)]
pub struct Wakes<K> {
    /// In the order of the calls.
    pub(super) wakes: Vec<Wake<K>>,
}

#[derive(Debug)]
pub(super) enum Wake<K> {
    Now(K),
    After(K, Duration),
    Backoff(K),
}

impl<K> Default for Wakes<K> {
    fn default() -> Self {
        Self { wakes: Vec::new() }
    }
}

impl<K> Wakes<K> {
    /// The keys in the order of the calls, each with its wait; after a back-off counts as now.
    pub fn waits(&self) -> impl Iterator<Item = (&K, Duration)> {
        self.wakes.iter().map(|wake| match wake {
            Wake::Now(key) | Wake::Backoff(key) => (key, Duration::ZERO),
            Wake::After(key, wait) => (key, *wait),
        })
    }

    /// The key is synced as soon as possible.
    pub fn now(&mut self, key: K) {
        self.wakes.push(Wake::Now(key));
    }

    /// The key is synced after a wait; the earliest of several counts.
    pub fn after(&mut self, key: K, wait: Duration) {
        self.wakes.push(Wake::After(key, wait));
    }

    /// The key is synced after its back-off, as if a sync had failed.
    pub fn backoff(&mut self, key: K) {
        self.wakes.push(Wake::Backoff(key));
    }
}
