//! The order of jobs: pure, no thread and no clock in it.
//!
//! Input: jobs as they are ordered, withdrawn, begun and ended, and instants. Output: the job to
//! run next in a class, and whether one could. Every executor of jobs (threads here, a ring
//! elsewhere) asks it, so that shares are the same everywhere. Bounds: `WAITING_PER_OWNER_MAX`,
//! `WAITING_PER_PART_MAX`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::{Class, JobLane, JobPlace, Owner, ThreadLimits};

/// A job that runs longer than this no longer counts against its class's threads.
pub const SLOW_AFTER: Duration = Duration::from_secs(2);
/// Waiting jobs of one owner in one class and lane.
pub(super) const WAITING_PER_OWNER_MAX: usize = 64;
/// Waiting jobs of a part of the agent, which works for all pods.
const WAITING_PER_PART_MAX: usize = 4096;

/// Names one job.
pub type JobId = u64;

/// The current state of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// Jobs that run.
    pub running: usize,
    /// Jobs that have run for longer than `SLOW_AFTER`.
    pub slow: usize,
    /// Jobs that wait.
    pub waiting: usize,
}

type Key = (Owner, JobLane);

/// The jobs of all classes.
pub struct JobQueue<J> {
    classes: HashMap<Class, ClassQueue<J>>,
    /// Owners and lanes with a job that runs, over all classes.
    busy: HashSet<Key>,
    last: JobId,
}

struct ClassQueue<J> {
    limits: ThreadLimits,
    waiting: HashMap<Key, VecDeque<(JobId, J)>>,
    /// The keys of `waiting` in the order of their turns.
    turns: VecDeque<Key>,
    running: Vec<RunningJobs>,
}

struct RunningJobs {
    id: JobId,
    key: Key,
    since: Instant,
}

impl RunningJobs {
    fn is_slow(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= SLOW_AFTER
    }
}

impl<J> JobQueue<J> {
    /// An empty one with these places in each class.
    pub fn new(limits: impl Fn(Class) -> ThreadLimits) -> Self {
        let line = |class| {
            let (waiting, turns, running) = Default::default();
            (class, ClassQueue { limits: limits(class), waiting, turns, running })
        };
        Self { classes: Class::ALL.map(line).into(), busy: HashSet::new(), last: 0 }
    }

    fn line(&mut self, class: Class) -> &mut ClassQueue<J> {
        self.classes.get_mut(&class).expect("every class has a line")
    }

    /// Takes a job; gives it back when too many of its owner wait.
    pub fn push(&mut self, place: &JobPlace, job: J) -> Result<JobId, J> {
        self.last += 1;
        let id = self.last;
        let line = self.line(place.class);
        let key = (place.owner.clone(), place.lane);
        let jobs = line.waiting.entry(key.clone()).or_default();
        let most = match place.owner {
            Owner::Pod(_) => WAITING_PER_OWNER_MAX,
            Owner::Server(_) | Owner::Part(_) => WAITING_PER_PART_MAX,
        };
        if jobs.len() >= most {
            return Err(job);
        }
        if jobs.is_empty() {
            line.turns.push_back(key);
        }
        jobs.push_back((id, job));
        Ok(id)
    }

    /// Takes a waiting job away; one that runs or has ended is left alone.
    pub fn withdraw(&mut self, place: &JobPlace, id: JobId) -> Option<J> {
        let line = self.line(place.class);
        let key = (place.owner.clone(), place.lane);
        let jobs = line.waiting.get_mut(&key)?;
        let at = jobs.iter().position(|(of, _)| *of == id)?;
        let (_, job) = jobs.remove(at)?;
        if jobs.is_empty() {
            line.waiting.remove(&key);
            line.turns.retain(|turn| *turn != key);
        }
        Some(job)
    }

    /// True if a job of the class could begin now.
    pub fn could_begin(&self, class: Class, now: Instant) -> bool {
        let line = &self.classes[&class];
        line.room(now) && line.turns.iter().any(|key| self.may_begin(line, key, now))
    }

    fn may_begin(&self, line: &ClassQueue<J>, key: &Key, now: Instant) -> bool {
        if self.busy.contains(key) {
            return false;
        }
        // Spare threads are only for owners without a slow job.
        let own = |running: &RunningJobs| running.key.0 == key.0 && running.is_slow(now);
        line.running.len() < line.limits.threads || !line.running.iter().any(own)
    }

    /// Begins the next job of the class.
    pub fn begin(&mut self, class: Class, now: Instant) -> Option<(JobId, J)> {
        let line = &self.classes[&class];
        if !line.room(now) {
            return None;
        }
        let at = line.turns.iter().position(|key| self.may_begin(line, key, now))?;
        let line = self.line(class);
        let key = line.turns.remove(at)?;
        let jobs = line.waiting.get_mut(&key)?;
        let (id, job) = jobs.pop_front()?;
        if jobs.is_empty() {
            line.waiting.remove(&key);
        } else {
            line.turns.push_back(key.clone());
        }
        line.running.push(RunningJobs { id, key: key.clone(), since: now });
        self.busy.insert(key);
        Some((id, job))
    }

    /// A job ended, with or without success.
    pub fn ended(&mut self, class: Class, id: JobId) {
        let line = self.line(class);
        let Some(at) = line.running.iter().position(|running| running.id == id) else { return };
        let RunningJobs { key, .. } = line.running.swap_remove(at);
        self.busy.remove(&key);
    }

    /// The state of the class at this instant.
    pub fn counts(&self, class: Class, now: Instant) -> ClassCounts {
        let line = &self.classes[&class];
        ClassCounts {
            running: line.running.len(),
            slow: line.running.iter().filter(|running| running.is_slow(now)).count(),
            waiting: line.waiting.values().map(VecDeque::len).sum(),
        }
    }
}

impl<J> ClassQueue<J> {
    fn room(&self, now: Instant) -> bool {
        let ThreadLimits { threads, spare } = self.limits;
        let counted = self.running.iter().filter(|running| !running.is_slow(now)).count();
        counted < threads && self.running.len() < threads + spare
    }
}
