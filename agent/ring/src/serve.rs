//! The loop of a ring: takes the next batches, submits their chains, answers.
//!
//! Input: batches in the shared queue, batches without a caller, completions. Output: an answer for
//! each batch. Runs on a thread of its own, which waits in the kernel and nowhere else; a caller
//! writes to an eventfd that the ring reads. A caller watches its own timeout: here a batch that
//! was given up is cancelled, and holds its owner's place until the kernel has completed it.
//!
//! Bounds: batches in flight by the classes' places, `CHAINS_PER_BATCH` of each at a time.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nix::sys::eventfd::EventFd;
use pintle_daemon::blocking::{
    Blocked, Class, ClassCounts, JobId, JobPlace, JobQueue, SLOW_AFTER, ThreadLimits,
};
use tokio::sync::oneshot;

use crate::chain::{Batch, Chain, Done};
use crate::files::{Answers, ChainError};
use crate::progress::{ChainProgress, Failure};
use crate::uring::{EndedPart, Uring};

/// Chains of a batch that are in flight at a time.
pub(crate) const CHAINS_PER_BATCH: usize = 8;

/// A batch, and the sender of its answer.
pub(crate) struct RingJob {
    pub(crate) batch: Batch,
    pub(crate) answer: oneshot::Sender<Answers>,
}

/// State that callers and the loop share; the lock is held for moments.
pub(crate) struct LoopQueue {
    state: Mutex<State>,
    wake: Arc<EventFd>,
}

struct State {
    queue: JobQueue<RingJob>,
    given_up: Vec<JobId>,
    /// The loop was woken and has not looked yet.
    is_woken: bool,
    is_closed: bool,
    is_broken: bool,
    #[cfg(test)]
    breaks: bool,
}

/// The work that the loop finds after a wake-up.
struct LoopWork {
    begun: Vec<(Class, JobId, RingJob)>,
    given_up: Vec<JobId>,
    /// A batch waits that may get a place when those in flight become slow.
    waits: bool,
    is_closed: bool,
}

impl LoopQueue {
    pub(crate) fn new(limits: impl Fn(Class) -> ThreadLimits) -> io::Result<Self> {
        let state = State {
            queue: JobQueue::new(limits),
            given_up: Vec::new(),
            is_woken: false,
            is_closed: false,
            is_broken: false,
            #[cfg(test)]
            breaks: false,
        };
        Ok(Self { state: Mutex::new(state), wake: Arc::new(EventFd::new()?) })
    }

    pub(crate) fn wake(&self) -> Arc<EventFd> {
        Arc::clone(&self.wake)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held; should it, the queue is still one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the loop look, at most once for each of its looks.
    fn changed(&self, state: &mut State) {
        if !std::mem::replace(&mut state.is_woken, true) {
            // It fails when the count is at its end, which one write for each look never reaches.
            let _ = self.wake.write(1);
        }
    }

    /// Takes a batch, unless too many of its owner wait or the loop has ended.
    pub(crate) fn order(&self, place: &JobPlace, job: RingJob) -> Result<JobId, Blocked> {
        let mut state = self.lock();
        if state.is_broken {
            return Err(Blocked::Panicked);
        }
        let id = state.queue.push(place, job).map_err(|_| Blocked::Full)?;
        self.changed(&mut state);
        Ok(id)
    }

    /// Takes a batch back that waits, or has it cancelled.
    pub(crate) fn give_up(&self, place: &JobPlace, id: JobId) {
        let mut state = self.lock();
        let withdrawn = state.queue.withdraw(place, id);
        if withdrawn.is_none() {
            state.given_up.push(id);
            self.changed(&mut state);
        }
        drop(state);
        // Dropping its buffers may take time.
        drop(withdrawn);
    }

    /// Ends the loop: there are no callers left.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.changed(&mut state);
    }

    /// The loop ended on its own: waiting callers get an error.
    pub(crate) fn broke(&self) {
        let mut state = self.lock();
        state.is_broken = true;
        let queue = std::mem::replace(&mut state.queue, JobQueue::new(Class::limits));
        drop(state);
        drop(queue);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.lock().is_broken
    }

    #[cfg(test)]
    pub(crate) fn make_it_break(&self) {
        let mut state = self.lock();
        state.breaks = true;
        self.changed(&mut state);
    }

    pub(crate) fn counts(&self, class: Class) -> ClassCounts {
        self.lock().queue.counts(class, Instant::now())
    }

    fn find(&self) -> LoopWork {
        let now = Instant::now();
        let mut state = self.lock();
        #[cfg(test)]
        assert!(!state.breaks, "the loop is broken on purpose");
        state.is_woken = false;
        let mut begun = Vec::new();
        for class in Class::ALL {
            while let Some((id, job)) = state.queue.begin(class, now) {
                begun.push((class, id, job));
            }
        }
        let waits = Class::ALL.iter().any(|class| state.queue.counts(*class, now).waiting > 0);
        let given_up = std::mem::take(&mut state.given_up);
        LoopWork { begun, given_up, waits, is_closed: state.is_closed }
    }

    fn ended(&self, ended: Vec<EndedBatch>) {
        let mut state = self.lock();
        for over in &ended {
            state.queue.ended(over.class, over.id);
        }
        drop(state);
        for over in ended {
            // The receiver of a cancelled batch is gone.
            let _ = over.answer.map(|answer| answer.send(over.answers));
        }
    }
}

/// A batch that has begun.
struct RunningBatch {
    class: Class,
    answer: Option<oneshot::Sender<Answers>>,
    groups: std::vec::IntoIter<Vec<Chain>>,
    /// Chains of the group that is in flight, by their numbers in the batch.
    waiting: VecDeque<(usize, Chain)>,
    answers: Vec<Option<Result<Vec<Done>, ChainError>>>,
    /// Chains that have been taken from `groups`.
    taken: usize,
    under_way: usize,
    has_failed: bool,
    is_given_up: bool,
}

/// A batch that has ended.
struct EndedBatch {
    class: Class,
    id: JobId,
    answer: Option<oneshot::Sender<Answers>>,
    answers: Answers,
}

/// A chain that is in flight.
struct Flying {
    job: JobId,
    number: usize,
    progress: ChainProgress,
}

struct RingWork<'a> {
    uring: &'a mut Uring,
    running: HashMap<JobId, RunningBatch>,
    flying: Vec<Option<Flying>>,
    free: Vec<usize>,
    ended: Vec<EndedBatch>,
}

/// Serves until there are no callers left.
pub(crate) fn serve(shared: &LoopQueue, uring: &mut Uring, flights: usize) -> io::Result<()> {
    let mut work = RingWork {
        uring,
        running: HashMap::new(),
        flying: (0..flights).map(|_| None).collect(),
        free: (0..flights).rev().collect(),
        ended: Vec::new(),
    };
    loop {
        let found = shared.find();
        if found.is_closed {
            return Ok(());
        }
        for (class, id, job) in found.begun {
            work.begin(class, id, job)?;
        }
        for id in found.given_up {
            work.give_up(id)?;
        }
        // A batch without chains is done before anything is submitted.
        if work.ended.is_empty() {
            work.uring.wait(found.waits.then_some(SLOW_AFTER))?;
            for ended in work.uring.reap() {
                work.part_ended(ended)?;
            }
        }
        if !work.ended.is_empty() {
            shared.ended(std::mem::take(&mut work.ended));
        }
    }
}

impl RingWork<'_> {
    fn begin(&mut self, class: Class, id: JobId, job: RingJob) -> io::Result<()> {
        let running = RunningBatch {
            class,
            answers: (0..job.batch.len()).map(|_| None).collect(),
            answer: Some(job.answer),
            groups: job.batch.groups.into_iter(),
            waiting: VecDeque::new(),
            taken: 0,
            under_way: 0,
            has_failed: false,
            is_given_up: false,
        };
        self.running.insert(id, running);
        self.advance(id)
    }

    /// Begins the chains of a batch that may begin; ends the batch when none is left.
    fn advance(&mut self, id: JobId) -> io::Result<()> {
        loop {
            let Some(running) = self.running.get_mut(&id) else { return Ok(()) };
            match running.next_chain() {
                Some((number, chain)) => self.start(id, number, chain)?,
                None if running.under_way > 0 => return Ok(()),
                None => break,
            }
        }
        if let Some(running) = self.running.remove(&id) {
            let RunningBatch { class, answer, answers, .. } = running;
            let answers = answers.into_iter();
            let answers = answers.map(|one| one.unwrap_or(Err(ChainError::NotBegun))).collect();
            self.ended.push(EndedBatch { class, id, answer, answers });
        }
        Ok(())
    }

    fn start(&mut self, job: JobId, number: usize, chain: Chain) -> io::Result<()> {
        let flight = self.free.pop().expect("there are places for all batches of all classes");
        self.flying[flight] = Some(Flying { job, number, progress: ChainProgress::default() });
        self.go_on(flight, chain)
    }

    /// Submits the next part of a chain, or stores the chain's result.
    fn go_on(&mut self, flight: usize, chain: Chain) -> io::Result<()> {
        let flying = self.flying[flight].as_ref().expect("a chain is under way");
        let part = flying.progress.next(&chain);
        if !part.is_empty() {
            return self.uring.start(flight, chain, part, |step| flying.progress.written(step));
        }
        let Flying { job, number, progress } = self.flying[flight].take().expect("as above");
        self.free.push(flight);
        let answer = progress.finish().map_err(|f: Failure| ChainError::of(&chain, f));
        if let Some(running) = self.running.get_mut(&job) {
            running.under_way -= 1;
            running.has_failed |= answer.is_err();
            running.answers[number] = Some(answer);
        }
        Ok(())
    }

    fn part_ended(&mut self, ended: EndedPart) -> io::Result<()> {
        let EndedPart { flight, chain, part, answers } = ended;
        let flying = self.flying[flight].as_mut().expect("a chain is under way");
        let job = flying.job;
        flying.progress.answered(&chain, &part, answers);
        if self.running.get(&job).is_none_or(|running| running.is_given_up) {
            flying.progress.give_up(&chain);
        }
        self.go_on(flight, chain)?;
        self.advance(job)
    }

    fn give_up(&mut self, id: JobId) -> io::Result<()> {
        let Some(running) = self.running.get_mut(&id) else { return Ok(()) };
        running.is_given_up = true;
        running.answer = None;
        for flight in 0..self.flying.len() {
            if self.flying[flight].as_ref().is_some_and(|flying| flying.job == id) {
                self.uring.cancel(flight)?;
            }
        }
        self.advance(id)
    }
}

impl RunningBatch {
    /// The next chain that may begin now.
    fn next_chain(&mut self) -> Option<(usize, Chain)> {
        if self.is_given_up || self.under_way == CHAINS_PER_BATCH {
            return None;
        }
        while self.waiting.is_empty() {
            if self.under_way > 0 || self.has_failed {
                return None;
            }
            let group = self.groups.next()?;
            let first = self.taken;
            self.taken += group.len();
            self.waiting = group.into_iter().enumerate().map(|(n, c)| (first + n, c)).collect();
        }
        self.under_way += 1;
        self.waiting.pop_front()
    }
}
