//! The handle: runs batches of chains, over a ring or by plain calls.
//!
//! Input: a place and a batch. Output: an answer for each chain, or why there is none (`Blocked`).
//! A timeout returns `TimedOut` at once; the kernel is asked to cancel entries in flight, and their
//! buffers stay untouched until it has completed them. Dropping the future does the same. Steps
//! that were already submitted may still take effect, as with a call that blocks; nothing new
//! begins.
//!
//! Where the kernel refuses a ring, chosen once at the start, the same chains run as jobs of
//! `pintle_daemon::blocking`'s pool. A ring with a loop that ended by an error or a panic answers
//! `Panicked` to all waiting callers, and from then on that pool does its work.

use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::sync::{Arc, LazyLock};

use nix::errno::Errno;
use pintle_daemon::blocking::{Blocked, Class, ClassCounts, JobId, JobPlace, Pool, ThreadLimits};
use tokio::sync::oneshot;

use crate::chain::{Batch, Chain, Done};
use crate::direct;
use crate::progress::Failure;
use crate::serve::{self, CHAINS_PER_BATCH, LoopQueue, RingJob};
use crate::uring::{RingSizes, Uring};

/// Classes of the agent's own ring; the others are of the pods'.
const OWN: [Class; 2] = [Class::Own, Class::Bulk];
const PODS: [Class; 4] = [Class::Pod, Class::Foreign, Class::Removal, Class::Serve];
/// Entries that are queued before they are submitted.
const ENTRIES: u32 = 256;

/// Reason why a chain did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// This step of it failed; the steps before were done.
    #[error("{operation}: {errno}")]
    Step {
        /// The step's number, from 0.
        step: usize,
        /// The system call that it stands for.
        operation: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// A chain failed that it was to wait for.
    #[error("a file operation before it failed")]
    NotBegun,
}

impl ChainError {
    pub(crate) fn of(chain: &Chain, (step, errno): Failure) -> Self {
        Self::Step { step, operation: chain.steps[step].name(), errno }
    }

    /// The kernel's error.
    pub fn errno(self) -> Errno {
        match self {
            Self::Step { errno, .. } => errno,
            Self::NotBegun => Errno::ECANCELED,
        }
    }
}

/// Reason why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// A chain failed.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// None of it has an answer.
    #[error(transparent)]
    Blocked(#[from] Blocked),
    /// A path cannot be one.
    #[error("no path: {0}")]
    Path(#[from] Errno),
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Chain(chain) => chain.errno().into(),
            FileError::Blocked(blocked) => blocked.into(),
            FileError::Path(errno) => errno.into(),
        }
    }
}

/// The result of each chain of a batch, in their order.
pub type Answers = Vec<Result<Vec<Done>, ChainError>>;

/// Runs chains. Clones share the ring; it ends with the last of them.
#[derive(Clone)]
pub struct RingFiles {
    backend: Backend,
}

#[derive(Clone)]
enum Backend {
    Ring(Arc<Ring>),
    Direct,
}

/// The callers' end of a ring.
struct Ring {
    shared: Arc<LoopQueue>,
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Settings of a ring.
#[derive(Clone, Copy)]
pub(crate) struct RingSetup {
    pub(crate) name: &'static str,
    pub(crate) classes: &'static [Class],
    pub(crate) limits: fn(Class) -> ThreadLimits,
    pub(crate) entries: u32,
    pub(crate) is_async: bool,
}

/// Cancels a batch when its caller is dropped.
struct GiveUp<'a> {
    shared: &'a LoopQueue,
    place: &'a JobPlace,
    id: Option<JobId>,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shared.give_up(self.place, id);
        }
    }
}

impl Ring {
    fn start(setup: RingSetup) -> io::Result<Self> {
        let places: usize = setup.classes.iter().map(|class| (setup.limits)(*class).most()).sum();
        let flights = places * CHAINS_PER_BATCH;
        let sizes = RingSizes { flights, entries: setup.entries, is_async: setup.is_async };
        let none = ThreadLimits { threads: 0, spare: 0 };
        let limits =
            |class| if setup.classes.contains(&class) { (setup.limits)(class) } else { none };
        let shared = Arc::new(LoopQueue::new(limits)?);
        let (made, is_made) = mpsc::channel();
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(format!("ring-{}", setup.name));
        // The kernel's workers belong to this thread.
        thread.spawn(move || {
            let mut uring = match Uring::new(sizes, served.wake()) {
                Ok(uring) => uring,
                Err(error) => return drop(made.send(Err(error))),
            };
            let _ = made.send(Ok(()));
            let ended = AssertUnwindSafe(|| serve::serve(&served, &mut uring, flights));
            // The panic's own message reports it.
            let ended = catch_unwind(ended).unwrap_or_else(|_| Err(io::Error::other("a panic")));
            if let Err(error) = ended {
                tracing::error!(%error, ring = setup.name, "a ring of file operations ended; they \
                     go on by plain calls");
                served.broke();
            }
        })?;
        let made = is_made.recv().map_err(io::Error::other)?;
        made.map(|()| Self { shared })
    }

    async fn run(&self, place: &JobPlace, batch: Batch) -> Result<Answers, Blocked> {
        let (answer, answers) = oneshot::channel();
        let id = self.shared.order(place, RingJob { batch, answer })?;
        let mut give_up = GiveUp { shared: &self.shared, place, id: Some(id) };
        match tokio::time::timeout(place.patience(), answers).await {
            Err(_) => Err(Blocked::TimedOut(place.patience())),
            Ok(ended) => {
                give_up.id = None;
                ended.map_err(|_| Blocked::Panicked)
            }
        }
    }
}

thread_local! {
    /// The files that `RingFiles::for_thread` made for this thread.
    static THREAD: RefCell<Option<RingFiles>> = const { RefCell::new(None) };
}

impl RingFiles {
    /// A ring that serves all classes; for tests and measurements.
    #[doc(hidden)]
    pub fn ring(is_async: bool) -> io::Result<Self> {
        let limits = Class::limits;
        let setup =
            RingSetup { name: "test", classes: &Class::ALL, limits, entries: ENTRIES, is_async };
        Self::with(setup)
    }

    pub(crate) fn with(setup: RingSetup) -> io::Result<Self> {
        let ring = Ring::start(setup)?;
        Ok(Self { backend: Backend::Ring(Arc::new(ring)) })
    }

    /// Plain calls in the pool of the thread or process.
    pub fn direct() -> Self {
        Self { backend: Backend::Direct }
    }

    /// The process's for this class of work; they are made when they are first asked for.
    pub fn of_process(class: Class) -> Self {
        static OWN_RING: LazyLock<RingFiles> =
            LazyLock::new(|| RingFiles::start("own", &OWN, false));
        static POD_RING: LazyLock<RingFiles> =
            LazyLock::new(|| RingFiles::start("pods", &PODS, true));
        let thread = THREAD.with(|thread| thread.borrow().clone());
        let of_all = || if OWN.contains(&class) { OWN_RING.clone() } else { POD_RING.clone() };
        thread.unwrap_or_else(of_all)
    }

    /// Gives the calling thread these files instead of the process's: tests have mounts of their
    /// own, which only a ring with a thread from within them sees.
    #[doc(hidden)]
    pub fn for_thread(self) {
        THREAD.with(|thread| *thread.borrow_mut() = Some(self));
    }

    fn start(name: &'static str, classes: &'static [Class], is_async: bool) -> Self {
        let setup = RingSetup { name, classes, limits: Class::limits, entries: ENTRIES, is_async };
        Self::with(setup).unwrap_or_else(|error| {
            tracing::info!(%error, ring = name, "the kernel refuses an io_uring for files; they \
                 are read and written by plain calls");
            Self::direct()
        })
    }

    /// Runs a batch.
    pub async fn run(&self, place: JobPlace, batch: impl Into<Batch>) -> Result<Answers, Blocked> {
        let batch = batch.into();
        match &self.backend {
            Backend::Ring(ring) if !ring.shared.is_broken() => ring.run(&place, batch).await,
            _ => direct::run(&Pool::of_process(), place, batch).await,
        }
    }

    /// The current state of a class.
    pub fn counts(&self, class: Class) -> ClassCounts {
        match &self.backend {
            Backend::Ring(ring) => ring.shared.counts(class),
            Backend::Direct => Pool::of_process().counts(class),
        }
    }

    /// True if plain calls do the work of a ring that ended.
    #[cfg(test)]
    pub(crate) fn is_broken(&self) -> bool {
        matches!(&self.backend, Backend::Ring(ring) if ring.shared.is_broken())
    }

    #[cfg(test)]
    pub(crate) fn make_it_break(&self) {
        if let Backend::Ring(ring) = &self.backend {
            ring.shared.make_it_break();
        }
    }
}

/// Runs a batch on the process's ring for the place; returns the result of each chain.
pub async fn run(place: JobPlace, batch: impl Into<Batch>) -> Result<Answers, Blocked> {
    RingFiles::of_process(place.class()).run(place, batch).await
}

/// As `run`, but the first chain that failed is the failure of all.
pub async fn run_all(
    place: JobPlace,
    batch: impl Into<Batch>,
) -> Result<Vec<Vec<Done>>, FileError> {
    let answers = run(place, batch).await?;
    Ok(answers.into_iter().collect::<Result<_, _>>()?)
}

/// As `run`, for one chain.
pub async fn run_one(place: JobPlace, chain: Chain) -> Result<Vec<Done>, FileError> {
    let mut answers = run(place, chain).await?;
    Ok(answers.pop().unwrap_or(Ok(Vec::new()))?)
}
