//! Records the inputs and results of decisions, and never waits for a disk.
//!
//! ```text
//!   driver ─ note ─> notes ─ encode (a thread) ─> batches ─ append (the ring) ─> segment
//!            clone            redact, digest       <= BATCHES_BYTES_MAX           linked fdatasync
//! ```
//! A note is written `GROUP` later, so a burst is one write, and a power cut costs no more than
//! `GROUP` and the write under way. A disk that is full, dead or too slow costs the record and
//! nothing else: notes that do not fit are dropped and counted, one log line reports it, the next
//! attempt is made after a wait that doubles, and the record continues with a state of all pods.
//! The agent's start waits for the folder for a moment and no longer. A panic of the decisions
//! writes the notes before the process ends: the input that led to it is last. Bounds:
//! `NOTES_BYTES_MAX`, `BATCHES_BYTES_MAX`, one job of the pool, one write on the ring.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use pintle_agent_core::flight::{AgentStart, Flight, Redactor, SegmentBytes};
use pintle_agent_core::types::Now;
use pintle_agent_core::worker::{Command, Pods, PodsInput, State};
use pintle_agent_host::flight::{self, FOLDER, FlightFolder, FolderState, append_last};
use pintle_agent_metrics::FlightCounts;
use pintle_daemon::blocking::{self, JobPlace};
use pintle_daemon::{build, clock, tasks};
use tokio::sync::Notify;

/// How long a note waits for more.
const GROUP: Duration = Duration::from_millis(80);
/// Bytes of notes that may wait for encoding, as `weight_of` estimates them.
const NOTES_BYTES_MAX: usize = 1 << 20;
/// From this size on notes are written without a wait for more.
const NOTES_BYTES_MANY: usize = 64 << 10;
/// Encoded bytes that may wait for the disk; one batch may be beyond it.
const BATCHES_BYTES_MAX: usize = 512 << 10;
/// First and longest wait before a disk that failed is tried again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long the start of the agent waits for the folder.
const OPEN_MAX: Duration = Duration::from_millis(250);
/// How long the end of the agent waits for the last batch.
const LAST_MAX: Duration = Duration::from_secs(1);

/// A part of the record of one decision.
enum Note {
    Input(Now, Box<PodsInput>),
    Commands(Vec<Command>),
    State(Box<State>),
}

#[derive(Default)]
struct FlightNotes {
    list: Vec<Note>,
    /// Of `list`.
    bytes: usize,
    /// A note was lost: later ones can only be replayed from a state.
    lost: bool,
}

/// The state that the tasks and the driver share.
struct FlightState {
    notes: Mutex<FlightNotes>,
    noted: Notify,
    many: Notify,
    /// None until the folder is open.
    flight: Mutex<Option<Flight>>,
    batches: Mutex<VecDeque<SegmentBytes>>,
    /// The folder is open, or failed to be for the first time.
    opened: Notify,
    encoded: Notify,
    written: Notify,
    /// The directory of segments.
    dir: PathBuf,
    /// The driver is to note a state.
    needs_state: AtomicBool,
    /// The next batch does not follow the last one.
    gap: AtomicBool,
    /// The disk fails or does not keep up: nothing is noted until it is tried again.
    paused: AtomicBool,
    counts: FlightCounts,
}

/// The driver's end of the recorder; `None` when it is off.
pub(crate) struct Tape(Option<Arc<FlightState>>);

/// Begins to record, and to open the folder. The start waits a moment for it, so that decisions
/// that panic at once are recorded; decisions before it is open are noted.
pub(crate) async fn start(
    root: &Path,
    segments_max: u64,
    begins: AgentStart,
    counts: FlightCounts,
) -> Tape {
    if segments_max == 0 {
        return Tape(None);
    }
    let shared = Arc::new(FlightState {
        notes: Mutex::default(),
        noted: Notify::new(),
        many: Notify::new(),
        flight: Mutex::default(),
        batches: Mutex::default(),
        opened: Notify::new(),
        encoded: Notify::new(),
        written: Notify::new(),
        dir: root.join(FOLDER),
        needs_state: AtomicBool::new(false),
        gap: AtomicBool::new(false),
        paused: AtomicBool::new(false),
        counts,
    });
    let (writer, root) = (Arc::clone(&shared), root.to_owned());
    tasks::singleton("flight writer", async move {
        let folder = open(&writer, root, segments_max, begins).await;
        tasks::singleton("flight encoder", encode_all(Arc::clone(&writer)));
        write_all(writer, folder).await;
    });
    let _ = tokio::time::timeout(OPEN_MAX, shared.opened.notified()).await;
    Tape(Some(shared))
}

/// Opens the folder, again and again where it fails or hangs.
async fn open(
    shared: &FlightState,
    root: PathBuf,
    segments_max: u64,
    begins: AgentStart,
) -> FlightFolder {
    let mut retry: Option<Duration> = None;
    loop {
        let root = root.clone();
        let open = move || -> io::Result<_> {
            Ok((build::version(), FlightFolder::open(&root, segments_max)?))
        };
        match blocking::try_run(flight::place(), open).await {
            Ok((version, (folder, FolderState { key, next }))) => {
                let begins = AgentStart { version, ..begins };
                let flight = Flight::new(Redactor::new(&key), next, &begins, clock::now());
                *lock(&shared.flight) = Some(flight);
                if retry.is_some() {
                    tracing::info!("--pintle-flight-recorder: decisions are recorded from now on");
                    shared.resume();
                }
                shared.opened.notify_one();
                shared.noted.notify_one();
                return folder;
            }
            Err(error) => {
                shared.opened.notify_one();
                shared.failed(&mut retry, &error).await;
            }
        }
    }
}

fn warn_of(folder: &Path, error: &io::Error) {
    tracing::warn!(%error, folder = %folder.display(),
        "--pintle-flight-recorder: what is decided cannot be recorded; pods are not affected");
}

impl Tape {
    /// The decisions are given this next.
    pub(super) fn input(&self, now: Now, input: &PodsInput) {
        match self.recording() {
            Some(shared) => shared.note(Note::Input(now, Box::new(input.clone()))),
            None => self.0.iter().for_each(|shared| shared.counts.lost()),
        }
    }

    /// Notes the resulting commands.
    pub(super) fn commands(&self, commands: &[Command]) {
        if let Some(shared) = self.recording() {
            shared.note(Note::Commands(commands.to_vec()));
        }
    }

    /// To be called between two inputs.
    pub(super) fn between(&self, pods: &Pods) {
        if let Some(shared) = self.recording()
            && shared.needs_state.swap(false, Ordering::Relaxed)
        {
            shared.note(Note::State(Box::new(pods.state())));
        }
    }

    fn recording(&self) -> Option<&FlightState> {
        self.0.as_deref().filter(|shared| !shared.paused.load(Ordering::Relaxed))
    }

    /// Writes the waiting notes; waits no longer than `LAST_MAX`.
    pub(super) async fn end(&self) {
        let Some(shared) = &self.0 else { return };
        shared.noted.notify_one();
        shared.many.notify_one();
        let all_written = async {
            while !shared.is_idle() {
                shared.written.notified().await;
            }
        };
        let _ = tokio::time::timeout(LAST_MAX, all_written).await;
    }
}

impl Drop for Tape {
    /// After a panic of the decisions no task runs any more: the notes are written from here.
    fn drop(&mut self) {
        let Some(shared) = self.0.take() else { return };
        if !std::thread::panicking() {
            return;
        }
        let (done, ended) = mpsc::channel();
        let write = move || {
            shared.encode();
            while let Some(batch) = shared.first_batch() {
                if append_last(&shared.dir, &batch).is_err() {
                    break;
                }
                shared.batch_ended();
            }
            let _ = done.send(());
        };
        // A disk that is dead must not keep the process from ending.
        if std::thread::Builder::new().name("last flight".to_owned()).spawn(write).is_ok() {
            let _ = ended.recv_timeout(LAST_MAX);
        }
    }
}

fn put(flight: &mut Flight, note: Note) {
    match note {
        Note::Input(now, input) => flight.input(now, &input),
        Note::Commands(commands) => flight.commands(&commands),
        Note::State(state) => flight.state(*state),
    }
}

/// About how many bytes a note alone keeps in memory.
fn weight_of(note: &Note) -> usize {
    const RECORD: usize = 1 << 10;
    match note {
        Note::Input(_, input) => match &**input {
            PodsInput::Observed { result: Ok(pod), .. } => {
                RECORD * (1 + pod.sandboxes.len() + pod.containers.len())
            }
            PodsInput::Listed { result: Ok(pods), .. } => RECORD + RECORD / 4 * pods.len(),
            _ => RECORD,
        },
        Note::Commands(commands) => {
            let of_one = |command: &Command| match command {
                Command::Run { observed, .. } | Command::Probe { observed, .. } => {
                    RECORD * (1 + observed.containers.len())
                }
                Command::Publish { status, .. } => {
                    RECORD * (1 + status.container_statuses.as_ref().map_or(0, Vec::len))
                }
                _ => RECORD / 4,
            };
            commands.iter().map(of_one).sum()
        }
        // It is alone in its segment's beginning, and as long as it is.
        Note::State(_) => 0,
    }
}

impl FlightState {
    fn note(&self, note: Note) {
        let mut notes = lock(&self.notes);
        if notes.lost || notes.bytes >= NOTES_BYTES_MAX {
            notes.lost = true;
            return self.counts.lost();
        }
        if notes.list.is_empty() {
            self.noted.notify_one();
        }
        let before = notes.bytes;
        notes.bytes += weight_of(&note);
        notes.list.push(note);
        if before < NOTES_BYTES_MANY && notes.bytes >= NOTES_BYTES_MANY {
            self.many.notify_one();
        }
    }

    /// Blocks: makes batches of all that is noted.
    fn encode(&self) {
        let mut flight = lock(&self.flight);
        let Some(flight) = flight.as_mut() else { return };
        if self.gap.swap(false, Ordering::Relaxed) {
            flight.lost(clock::now());
        }
        let FlightNotes { list, lost, .. } = std::mem::take(&mut *lock(&self.notes));
        for note in list {
            put(flight, note);
            if flight.is_due() {
                self.hand_over(flight);
            }
        }
        self.hand_over(flight);
        if lost {
            flight.lost(clock::now());
            self.hand_over(flight);
        }
        let noted = lock(&self.notes).list.iter().any(|note| matches!(note, Note::State(_)));
        if flight.needs_state() && !noted {
            self.needs_state.store(true, Ordering::Relaxed);
        }
    }

    fn hand_over(&self, flight: &mut Flight) {
        let Some(batch) = flight.take(clock::now()) else { return };
        let mut batches = lock(&self.batches);
        let waiting: usize = batches.iter().map(|batch| batch.bytes.len()).sum();
        if waiting >= BATCHES_BYTES_MAX {
            // Nothing is copied and encoded for a disk that does not keep up, until it has.
            self.paused.store(true, Ordering::Relaxed);
            return self.counts.lost();
        }
        batches.push_back(batch);
    }

    /// The batch that is written next; it stays until it is.
    fn first_batch(&self) -> Option<SegmentBytes> {
        lock(&self.batches).front().cloned()
    }

    fn batch_ended(&self) {
        let mut batches = lock(&self.batches);
        batches.pop_front();
        if batches.is_empty() && self.paused.load(Ordering::Relaxed) {
            self.resume();
        }
        self.written.notify_one();
    }

    fn is_idle(&self) -> bool {
        // An encoder that runs has taken notes and not given all batches.
        let Ok(_encoder) = self.flight.try_lock() else { return false };
        lock(&self.notes).list.is_empty() && lock(&self.batches).is_empty()
    }

    /// The disk refuses or hangs: one log line reports it, and nothing is noted for a while.
    async fn failed(&self, retry: &mut Option<Duration>, error: &io::Error) {
        self.counts.failed();
        if retry.is_none() {
            warn_of(&self.dir, error);
        }
        let wait = retry.map_or(RETRY.0, |wait| (wait * 2).min(RETRY.1));
        *retry = Some(wait);
        self.pause();
        tokio::time::sleep(wait).await;
    }

    /// Drops the waiting notes and batches, because they could only follow a part that was not
    /// written.
    fn pause(&self) {
        self.paused.store(true, Ordering::Relaxed);
        *lock(&self.notes) = FlightNotes::default();
        lock(&self.batches).clear();
    }

    /// The next segment begins with a state.
    fn resume(&self) {
        self.gap.store(true, Ordering::Relaxed);
        self.needs_state.store(true, Ordering::Relaxed);
        self.paused.store(false, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn encode_all(shared: Arc<FlightState>) {
    loop {
        shared.noted.notified().await;
        let _ = tokio::time::timeout(GROUP, shared.many.notified()).await;
        let encoding = Arc::clone(&shared);
        let encoded =
            blocking::run(JobPlace::own("flight encoder"), move || encoding.encode()).await;
        if let Err(error) = encoded {
            tracing::error!(%error, "flight recorder: what was noted cannot be encoded");
            shared.counts.lost();
            shared.resume();
        }
        shared.encoded.notify_one();
        shared.written.notify_one();
    }
}

async fn write_all(shared: Arc<FlightState>, mut folder: FlightFolder) {
    let mut retry: Option<Duration> = None;
    let mut failed = None;
    loop {
        let Some(batch) = shared.first_batch() else {
            shared.encoded.notified().await;
            continue;
        };
        if Some(batch.segment) <= failed {
            shared.batch_ended();
            continue;
        }
        let begun = std::time::Instant::now();
        match folder.append(&batch).await {
            Ok(()) => {
                shared.counts.written(batch.bytes.len(), begun.elapsed());
                if retry.take().is_some() {
                    tracing::info!("--pintle-flight-recorder: decisions are recorded again");
                }
                shared.batch_ended();
            }
            Err(error) => {
                failed = Some(batch.segment);
                shared.failed(&mut retry, &error).await;
                shared.resume();
            }
        }
    }
}

#[cfg(test)]
#[path = "flight_tests.rs"]
mod flight_tests;
