//! The threads that run the jobs: made when there is work, ended when there is none.
//!
//! Input: jobs. Output: their effects. A job that panics ends alone: its thread continues and its
//! place is free again. The lock is held for moments only and never while a job runs. A thread is
//! woken when the lock is free again: one that is woken earlier goes to sleep a second time.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::queue::{ClassCounts, JobId, JobQueue};
use super::{Blocked, Class, JobPlace, ThreadLimits};

/// A thread without work ends after this time.
const IDLE_MAX: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

/// Runs jobs on threads.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<ThreadQueue>,
}

struct ThreadQueue {
    state: Mutex<State>,
    /// A condition for each class, so that a job wakes a thread that can run it.
    work: HashMap<Class, Condvar>,
    gave_up: AtomicU64,
}

struct State {
    queue: JobQueue<Work>,
    threads: HashMap<Class, Threads>,
}

#[derive(Clone, Copy, Default)]
struct Threads {
    all: usize,
    idle: usize,
    /// Idle or new ones that are to look for a job and did not yet.
    woken: usize,
}

/// Withdraws a job that still waits, when the caller goes away.
pub(super) struct Withdraw {
    pool: Pool,
    place: JobPlace,
    id: Option<JobId>,
}

impl Withdraw {
    /// The job has ended: the thread that ran it has the lock just now, and nothing waits.
    pub(super) fn answered(mut self) {
        self.id = None;
    }
}

impl Drop for Withdraw {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        // Dropped after the lock is: dropping a job's captures may take time.
        let job = self.pool.shared.lock().queue.withdraw(&self.place, id);
        drop(job);
    }
}

/// A thread of the class is to be woken once the lock is free.
#[must_use]
struct ThreadWake(Class);

thread_local! {
    /// The pool that `Pool::own` made for this thread.
    static OWN: OnceCell<Pool> = const { OnceCell::new() };
}

impl Default for Pool {
    fn default() -> Self {
        Self::with(Class::limits)
    }
}

impl Pool {
    /// The one of this process: threads are the process's to bound.
    pub fn of_process() -> Self {
        static POOL: LazyLock<Pool> = LazyLock::new(Pool::default);
        OWN.with(|own| own.get().cloned()).unwrap_or_else(|| POOL.clone())
    }

    /// Gives the calling thread a pool of its own: new threads are in the mount namespace of the
    /// thread that makes them, and tests have one each.
    #[doc(hidden)]
    pub fn own() {
        OWN.with(|own| drop(own.set(Self::default())));
    }

    pub(super) fn with(limits: impl Fn(Class) -> ThreadLimits) -> Self {
        let state = State {
            queue: JobQueue::new(limits),
            threads: Class::ALL.map(|c| (c, Threads::default())).into(),
        };
        let work = Class::ALL.map(|class| (class, Condvar::new())).into();
        let shared = ThreadQueue { state: Mutex::new(state), work, gave_up: AtomicU64::new(0) };
        Self { shared: Arc::new(shared) }
    }

    pub(super) fn order(&self, place: JobPlace, work: Work) -> Result<Withdraw, Blocked> {
        let mut state = self.shared.lock();
        let id = state.queue.push(&place, work).map_err(|_| Blocked::Full)?;
        let withdraw = Withdraw { pool: self.clone(), place, id: Some(id) };
        let woken = self.wake(&mut state, withdraw.place.class);
        drop(state);
        let woken = woken.map(|wake| self.notify(wake));
        // With other threads in the class its turn comes when one of them is free.
        match woken {
            Err(error) if self.threads(withdraw.place.class) == 0 => {
                Err(Blocked::NoThread(error.to_string()))
            }
            _ => Ok(withdraw),
        }
    }

    /// Gives every job that could run a thread.
    pub(super) fn rebalance(&self) {
        let mut state = self.shared.lock();
        // A thread that cannot be made is tried again with the next job.
        let wakes = Class::ALL.map(|class| self.wake(&mut state, class).ok().flatten());
        drop(state);
        wakes.into_iter().for_each(|wake| self.notify(wake));
    }

    fn notify(&self, wake: Option<ThreadWake>) {
        if let Some(ThreadWake(class)) = wake {
            self.shared.work[&class].notify_one();
        }
    }

    /// Has a thread woken, or makes one, when a job of the class could begin. That thread sees to
    /// the next.
    fn wake(&self, state: &mut State, class: Class) -> std::io::Result<Option<ThreadWake>> {
        if !state.queue.could_begin(class, Instant::now()) {
            return Ok(None);
        }
        let threads = state.threads.entry(class).or_default();
        if threads.idle > threads.woken {
            threads.woken += 1;
            return Ok(Some(ThreadWake(class)));
        }
        if threads.woken > 0 {
            return Ok(None);
        }
        let pool = self.clone();
        let name = format!("files-{}", class.name());
        let made = std::thread::Builder::new().name(name).spawn(move || pool.work(class));
        made.map(|_| {
            threads.all += 1;
            threads.woken += 1;
            None
        })
    }

    fn work(&self, class: Class) {
        let mut state = self.shared.lock();
        state.threads.entry(class).or_default().woken -= 1;
        loop {
            if let Some((id, job)) = state.queue.begin(class, Instant::now()) {
                // The next job has a thread before this one begins.
                let wake = self.wake(&mut state, class).ok().flatten();
                drop(state);
                self.notify(wake);
                // The caller learns of a panic by its answer, the log by the panic's own message.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.shared.lock();
                state.queue.ended(class, id);
                // Its owner's next job may wait in another class.
                state = self.wake_others(state, class);
                continue;
            }
            state.threads.entry(class).or_default().idle += 1;
            let waited = self.shared.work[&class].wait_timeout(state, IDLE_MAX);
            let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = back;
            let threads = state.threads.entry(class).or_default();
            threads.idle -= 1;
            let was_woken = threads.woken > 0;
            threads.woken = threads.woken.saturating_sub(1);
            if timeout.timed_out() && !was_woken {
                threads.all -= 1;
                return;
            }
        }
    }

    fn wake_others<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        class: Class,
    ) -> MutexGuard<'a, State> {
        for other in Class::ALL.into_iter().filter(|other| *other != class) {
            let wake = self.wake(&mut state, other).ok().flatten();
            if wake.is_some() {
                drop(state);
                self.notify(wake);
                state = self.shared.lock();
            }
        }
        state
    }

    pub(super) fn gave_up(&self) {
        self.shared.gave_up.fetch_add(1, Ordering::Relaxed);
    }

    /// Jobs whose callers stopped waiting, since the start.
    pub fn given_up(&self) -> u64 {
        self.shared.gave_up.load(Ordering::Relaxed)
    }

    /// The current state of a class.
    pub fn counts(&self, class: Class) -> ClassCounts {
        self.shared.lock().queue.counts(class, Instant::now())
    }

    /// Threads of a class.
    pub fn threads(&self, class: Class) -> usize {
        self.shared.lock().threads.get(&class).map_or(0, |threads| threads.all)
    }
}

impl ThreadQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held; should it, the queue is still one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
