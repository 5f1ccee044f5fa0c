//! Work that may block, kept off the thread that decides, with a share for each pod.
//!
//! Input: a job and its [`JobPlace`]: its class, its owner, and whether it changes or only reads.
//! Output: the job's answer, or the reason why there is none (`Blocked`): it panicked, it exceeded
//! its timeout, its owner has too many jobs waiting.
//!
//! Why not tokio's pool: that one has no shares. Sixty mounts of a dead NFS server held the thread
//! that a healthy pod's volume needed. Here:
//! - Each class of work has threads of its own, so that a removal of millions of files never waits
//!   in front of a mount, and a hostPath on a dead server never in front of a config map.
//! - Within a class owners take turns, and no owner ever runs more than one change, one read and
//!   one rotation of logs. A second change of the same pod waits for the first, even for one that
//!   was given up: files of a pod have one writer.
//! - A job that runs longer than `SLOW_AFTER` keeps its thread but no longer counts: a spare thread
//!   takes its turn, up to a bound. Owners with such a job get no spare thread.
//! - A waiting job is dropped with its caller; a running job runs to its end.
//!
//! Bounds: `Class::limits` (30 threads over all classes), `WAITING_PER_OWNER_MAX`. Threads end
//! after `IDLE_MAX` without work.

mod queue;
#[cfg(test)]
mod tests;
mod threads;

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

pub use self::queue::{ClassCounts, JobId, JobQueue, SLOW_AFTER};
pub use self::threads::Pool;
use pintle_api_types::ids::PodUid;

/// Kinds of work; each has threads of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The agent's own files: checkpoints, records of pulls, certificates, manifests.
    Own,
    /// Pod directories, their volumes of the agent's own kinds, logs, termination messages.
    Pod,
    /// Paths that a pod names and that may lead anywhere, such as to a dead server; walks over all
    /// files of a volume.
    Foreign,
    /// System calls that wait for a file server or a driver's volume, with a share for each.
    Remote,
    /// Removal of trees whose size a pod chose.
    Removal,
    /// Sweeps over everything and compression: long jobs for which no caller waits.
    Bulk,
    /// Requests of clients of the HTTPS port.
    Serve,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Own, Self::Pod, Self::Foreign, Self::Remote, Self::Removal, Self::Bulk, Self::Serve];

    /// Threads, and spare ones for when those are held by slow jobs.
    pub const fn limits(self) -> ThreadLimits {
        let (threads, spare) = match self {
            Self::Own => (2, 1),
            Self::Pod => (4, 6),
            Self::Foreign => (3, 4),
            Self::Remote => (4, 8),
            Self::Removal | Self::Serve => (2, 2),
            Self::Bulk => (1, 1),
        };
        ThreadLimits { threads, spare }
    }

    /// Name in metrics and of the threads.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Pod => "pod",
            Self::Foreign => "foreign",
            Self::Remote => "remote",
            Self::Removal => "removal",
            Self::Bulk => "bulk",
            Self::Serve => "serve",
        }
    }
}

/// Jobs of a class that run at a time, a thread each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLimits {
    /// While none of them is slow.
    pub threads: usize,
    /// Further threads while some run slow jobs.
    pub spare: usize,
}

impl ThreadLimits {
    /// All that can ever run at a time.
    pub const fn most(self) -> usize {
        self.threads + self.spare
    }
}

/// The owner of a share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Owner {
    Pod(PodUid),
    /// A file server.
    Server(String),
    /// A part of the agent.
    Part(&'static str),
}

/// Jobs of one owner and lane run one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum JobLane {
    Change,
    Look,
    /// Rotated logs, which have a writer of their own.
    Logs,
}

/// Class, owner and kind of access of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPlace {
    class: Class,
    owner: Owner,
    lane: JobLane,
    patience: Duration,
}

/// As long as the kubelet waits for a pod's volumes.
// k8s: pkg/kubelet/volumemanager/volume_manager.go podAttachAndMountTimeout
const CHANGE_PATIENCE: Duration = Duration::from_secs(123);
/// The volumes of ten pods of a server that is dead take their turns, a minute each.
const REMOTE_PATIENCE: Duration = Duration::from_secs(660);
/// A volume may have hundreds of millions of files.
const OWNERSHIP_PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// A message or a log's end that takes longer is not waited for.
const LOOK_PATIENCE: Duration = Duration::from_secs(10);
/// Own files lie on the node's disk.
const OWN_PATIENCE: Duration = Duration::from_secs(60);
/// No caller waits for these.
const BULK_PATIENCE: Duration = Duration::from_secs(3600);

impl JobPlace {
    fn of_pod(class: Class, uid: &PodUid, lane: JobLane, patience: Duration) -> Self {
        Self { class, owner: Owner::Pod(uid.clone()), lane, patience }
    }

    /// A part of the agent works on its own files; its jobs run in order.
    pub fn own(part: &'static str) -> Self {
        let (owner, patience) = (Owner::Part(part), OWN_PATIENCE);
        Self { class: Class::Own, owner, lane: JobLane::Change, patience }
    }

    /// Long work of a part of the agent.
    pub fn bulk(part: &'static str) -> Self {
        let (owner, patience) = (Owner::Part(part), BULK_PATIENCE);
        Self { class: Class::Bulk, owner, lane: JobLane::Change, patience }
    }

    /// A pod's own files are changed.
    pub fn change(uid: &PodUid) -> Self {
        Self::of_pod(Class::Pod, uid, JobLane::Change, CHANGE_PATIENCE)
    }

    /// Place of a change that touches paths that the pod named.
    pub fn foreign(uid: &PodUid) -> Self {
        Self::of_pod(Class::Foreign, uid, JobLane::Change, CHANGE_PATIENCE)
    }

    /// A volume of a file server or of a driver; those of one server or driver one after the other.
    pub fn remote(server: &str) -> Self {
        let owner = Owner::Server(server.to_owned());
        Self { class: Class::Remote, owner, lane: JobLane::Change, patience: REMOTE_PATIENCE }
    }

    /// The owner of every file of a volume is changed: as long as its files take.
    // k8s: pkg/volume/volume_linux.go ChangePermissions, which no time limit ends
    pub fn ownership(uid: &PodUid) -> Self {
        Self::of_pod(Class::Foreign, uid, JobLane::Change, OWNERSHIP_PATIENCE)
    }

    /// A statfs of a file server, besides the work on its mounts.
    pub fn remote_look(server: &str) -> Self {
        let owner = Owner::Server(server.to_owned());
        Self { class: Class::Remote, owner, lane: JobLane::Look, patience: LOOK_PATIENCE }
    }

    /// Place of a change that removes trees of any size.
    pub fn removal(uid: &PodUid) -> Self {
        Self::of_pod(Class::Removal, uid, JobLane::Change, CHANGE_PATIENCE)
    }

    /// A pod's files are read.
    pub fn look(uid: &PodUid) -> Self {
        Self::of_pod(Class::Pod, uid, JobLane::Look, LOOK_PATIENCE)
    }

    /// A pod's logs are rotated, which waits for no volume.
    pub fn logs(uid: &PodUid) -> Self {
        Self::of_pod(Class::Pod, uid, JobLane::Logs, OWN_PATIENCE)
    }

    /// A pod's rotated logs are compressed.
    pub fn compression(uid: &PodUid) -> Self {
        Self::of_pod(Class::Bulk, uid, JobLane::Logs, BULK_PATIENCE)
    }

    /// A client asks for a pod's files.
    pub fn serve(uid: &PodUid) -> Self {
        Self::of_pod(Class::Serve, uid, JobLane::Look, LOOK_PATIENCE)
    }

    /// A client asks a part of the agent for files of the node.
    pub fn serve_node(part: &'static str) -> Self {
        let (owner, patience) = (Owner::Part(part), LOOK_PATIENCE);
        Self { class: Class::Serve, owner, lane: JobLane::Look, patience }
    }

    /// The class of the work.
    pub fn class(&self) -> Class {
        self.class
    }

    /// From the order until the answer.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// The place with another timeout, from the order until the answer.
    #[must_use]
    pub fn within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

/// Reason why a job has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Blocked {
    /// The job did not end in time. If it runs, it goes on, and the next job waits for it.
    #[error("timed out after {0:?} waiting for a file operation that blocks")]
    TimedOut(Duration),
    /// The job panicked.
    #[error("a file operation panicked")]
    Panicked,
    /// Too many jobs of the same owner wait.
    #[error("too many file operations wait")]
    Full,
    /// No thread can be made.
    #[error("no thread for a file operation: {0}")]
    NoThread(String),
}

impl From<Blocked> for std::io::Error {
    fn from(blocked: Blocked) -> Self {
        let kind = match blocked {
            Blocked::TimedOut(_) => std::io::ErrorKind::TimedOut,
            Blocked::Panicked => std::io::ErrorKind::Other,
            Blocked::Full | Blocked::NoThread(_) => std::io::ErrorKind::ResourceBusy,
        };
        Self::new(kind, blocked)
    }
}

/// Runs a job on the process's pool. Dropping the future withdraws a job that still waits.
pub async fn run<T: Send + 'static>(
    place: JobPlace,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Blocked> {
    Pool::of_process().run(place, job).await
}

/// As `run` for jobs with an error type that can hold `Blocked`.
pub async fn try_run<T: Send + 'static, E: From<Blocked> + Send + 'static>(
    place: JobPlace,
    job: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    run(place, job).await?
}

impl Pool {
    /// Runs a job on this pool.
    pub async fn run<T: Send + 'static>(
        &self,
        place: JobPlace,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Blocked> {
        let patience = place.patience;
        let begun = Instant::now();
        let (answer, mut result) = oneshot::channel();
        let work = Box::new(move || drop(answer.send(job())));
        let withdraw = self.order(place, work)?;
        loop {
            let left = patience.saturating_sub(begun.elapsed());
            match tokio::time::timeout(left.min(SLOW_AFTER), &mut result).await {
                Ok(Ok(answer)) => {
                    withdraw.answered();
                    return Ok(answer);
                }
                // The sender was dropped without a word.
                Ok(Err(_)) => return Err(Blocked::Panicked),
                Err(_) if begun.elapsed() >= patience => {
                    self.gave_up();
                    return Err(Blocked::TimedOut(patience));
                }
                // A job that ran all that time is slow now: a spare thread may be due.
                Err(_) => self.rebalance(),
            }
        }
    }
}
