//! The kernel event source: follows pod cgroups and turns kernel events into hints.
//!
//! Owner of `pintle_ebpf::Source`: one task, fed through a bounded channel of requests, so that no
//! other task waits for a map operation. A kernel event names a cgroup by its id; the directory
//! name beneath the pod's cgroup is the container's id (cgroupfs) or ends with it (systemd), found
//! by listing the pod's directory when an unknown id turns up. An event with a cgroup that is
//! already gone still names the pod to read.
//!
//! The relist is its backstop: each `RELIST.0` while every pod is followed, each `RELIST.1` while
//! one is not, or once the source has ended.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pintle_agent_core::types::{ContainerId, PodUid, UnixNanos};
use pintle_agent_core::worker::{Hint, PodsInput};
use pintle_agent_host::cgroup::oom;
use pintle_daemon::clock;
use pintle_ebpf::{Clocks, EventKind, EventSource, KernelEvent, Mode, Options, Slot, Watched};
use tokio::sync::{mpsc, oneshot};

use super::oom_pace::OomPace;

/// Listing of everything behind a source that follows all pods, and behind one that does not.
pub const RELIST: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1));
/// Requests that may wait for the task.
const REQUESTS_MAX: usize = 256;

enum TrackRequest {
    Track { uid: PodUid, dir: PathBuf, done: oneshot::Sender<()> },
    Untrack { uid: PodUid },
    WatchInit { uid: PodUid, container: ContainerId, pid: Option<u32> },
    OomVictims { uid: PodUid, answer: oneshot::Sender<Option<u64>> },
}

/// Handle of the task; clones share it.
#[derive(Clone, Debug)]
pub struct Tracker {
    requests: mpsc::Sender<TrackRequest>,
    mode: Mode,
    /// The source has ended: there are no events any more.
    ended: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
}

impl Tracker {
    /// Opens the best source that works here and starts its task on the current thread.
    pub fn start(options: &Options, inputs: mpsc::Sender<PodsInput>) -> Self {
        let source = EventSource::open(options);
        let (requests, queue) = mpsc::channel(REQUESTS_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let (mode, ended) = (source.mode(), Arc::new(AtomicBool::new(false)));
        let tracker =
            Self { requests, mode, ended: Arc::clone(&ended), dropped: Arc::clone(&dropped) };
        let task = Task {
            relist: relist(mode, false),
            source,
            inputs,
            ended,
            dropped,
            blind: BTreeSet::new(),
            ooms: OomPace::default(),
            next_slot: 1,
            pods: HashMap::new(),
            slots: HashMap::new(),
            names: HashMap::new(),
            inits: HashMap::new(),
        };
        pintle_daemon::tasks::singleton("kernel events", task.run(queue));
        tracker
    }

    /// The active mode.
    pub fn mode(&self) -> Mode {
        match self.ended.load(Ordering::Relaxed) {
            true => Mode::Relist,
            false => self.mode,
        }
    }

    /// How often everything is to be listed to begin with.
    pub fn relist_period(&self) -> Duration {
        relist(self.mode(), false)
    }

    /// True when every container's first process has to be named by `watch_init`.
    pub fn needs_pids(&self) -> bool {
        self.mode() == Mode::Pidfd
    }

    /// Events lost so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Follows a pod's cgroup directory; returns once the kernel does.
    pub async fn track(&self, uid: &PodUid, dir: &Path) {
        let (done, tracked) = oneshot::channel();
        let request = TrackRequest::Track { uid: uid.clone(), dir: dir.to_owned(), done };
        if self.requests.send(request).await.is_ok() {
            let _ = tracked.await;
        }
    }

    /// Forgets a pod.
    pub async fn untrack(&self, uid: &PodUid) {
        let _ = self.requests.send(TrackRequest::Untrack { uid: uid.clone() }).await;
    }

    /// Names a container's first process; `None` when it is unknown.
    pub async fn watch_init(&self, uid: &PodUid, container: &ContainerId, pid: Option<u32>) {
        let (uid, container) = (uid.clone(), container.clone());
        let _ = self.requests.send(TrackRequest::WatchInit { uid, container, pid }).await;
    }

    /// OOM victims in the pod so far; `None` where the kernel does not count them, or for a pod that
    /// is not followed.
    pub async fn oom_victims(&self, uid: &PodUid) -> Option<u64> {
        let (answer, counted) = oneshot::channel();
        let request = TrackRequest::OomVictims { uid: uid.clone(), answer };
        self.requests.send(request).await.ok()?;
        counted.await.ok()?
    }
}

struct Task {
    source: EventSource,
    inputs: mpsc::Sender<PodsInput>,
    ended: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
    /// How often everything is listed, as last reported.
    relist: Duration,
    /// Pods that cannot be followed completely.
    blind: BTreeSet<PodUid>,
    ooms: OomPace,
    next_slot: u64,
    pods: HashMap<Slot, (PodUid, PathBuf)>,
    slots: HashMap<PodUid, Slot>,
    /// Container by cgroup id, within the pods followed.
    names: HashMap<u64, (Slot, ContainerId)>,
    /// Container by pid of its first process, where that was named.
    inits: HashMap<u32, (Slot, ContainerId)>,
}

impl Task {
    async fn run(mut self, mut queue: mpsc::Receiver<TrackRequest>) {
        let mut batch = Vec::new();
        loop {
            batch.clear();
            tokio::select! {
                biased;
                request = queue.recv() => match request {
                    Some(request) => {
                        let gone = self.serve(request);
                        if let Some(input) = gone && self.inputs.send(input).await.is_err() {
                            return;
                        }
                    }
                    None => return,
                },
                () = self.source.next_batch(&mut batch) => {}
            }
            let clocks = Clocks::read();
            for event in batch.drain(..) {
                let Some(input) = self.hint(&event, &clocks) else { continue };
                if self.inputs.send(input).await.is_err() {
                    return;
                }
            }
            if self.send_relist_period().await.is_err() {
                return;
            }
            let dropped = self.source.dropped();
            if self.dropped.swap(dropped, Ordering::Relaxed) < dropped
                && self.inputs.send(PodsInput::Lost).await.is_err()
            {
                return;
            }
        }
    }

    /// Reports when the relist must come more or less often than before.
    async fn send_relist_period(&mut self) -> Result<(), mpsc::error::SendError<PodsInput>> {
        let mode = self.source.mode();
        if mode == Mode::Relist {
            self.ended.store(true, Ordering::Relaxed);
        }
        let period = relist(mode, !self.blind.is_empty());
        if std::mem::replace(&mut self.relist, period) == period {
            return Ok(());
        }
        self.inputs.send(PodsInput::RelistEvery(period)).await
    }

    /// Returns a hint if the container to follow had ended before.
    fn serve(&mut self, request: TrackRequest) -> Option<PodsInput> {
        match request {
            TrackRequest::Track { uid, dir, done } => {
                let slot = *self.slots.entry(uid.clone()).or_insert_with(|| {
                    self.next_slot += 1;
                    Slot(self.next_slot)
                });
                match self.source.track(slot, &dir) {
                    Ok(()) => {
                        self.blind.remove(&uid);
                    }
                    Err(error) => {
                        tracing::warn!(pod = %uid, %error, "cannot follow a pod in the kernel");
                        self.blind.insert(uid.clone());
                    }
                }
                self.pods.insert(slot, (uid, dir));
                self.learn_names(slot);
                let _ = done.send(());
                None
            }
            TrackRequest::Untrack { uid } => {
                let slot = self.slots.remove(&uid)?;
                self.blind.remove(&uid);
                self.ooms.forget(slot);
                if let Err(error) = self.source.untrack(slot) {
                    tracing::debug!(pod = %uid, %error, "pod is still followed in the kernel");
                }
                self.pods.remove(&slot);
                self.names.retain(|_, (of, _)| *of != slot);
                self.inits.retain(|_, (of, _)| *of != slot);
                None
            }
            TrackRequest::OomVictims { uid, answer } => {
                let dir = self.slots.get(&uid).and_then(|slot| self.pods.get(slot));
                // Fails if the other side has stopped to wait.
                let _ = answer.send(dir.and_then(|(_, dir)| oom::victims(dir)));
                None
            }
            TrackRequest::WatchInit { uid, container, pid } => {
                let slot = self.slots.get(&uid).copied()?;
                let Some(pid) = pid else {
                    self.blind.insert(uid);
                    return None;
                };
                self.inits.insert(pid, (slot, container.clone()));
                match self.source.watch_init(slot, pid) {
                    Ok(Watched::Yes | Watched::Never) => None,
                    Ok(Watched::Gone) => {
                        self.inits.remove(&pid);
                        let at = clock::now();
                        let hint = Hint::Exited { container: Some(container), code: None, at };
                        Some(PodsInput::Hint { uid, hint })
                    }
                    Err(error) => {
                        tracing::warn!(pod = %uid, pid, %error, "cannot follow a process");
                        self.blind.insert(uid);
                        None
                    }
                }
            }
        }
    }

    /// Lists the pod's cgroup: directory names beneath it are containers.
    fn learn_names(&mut self, slot: Slot) {
        let Some((_, dir)) = self.pods.get(&slot) else { return };
        let Ok(entries) = std::fs::read_dir(dir) else { return };
        for entry in entries.flatten() {
            let (Ok(meta), Some(name)) = (entry.metadata(), entry.file_name().into_string().ok())
            else {
                continue;
            };
            if meta.is_dir() {
                let id = container_id(&name).to_owned();
                self.names.insert(meta.ino(), (slot, ContainerId::from(id)));
            }
        }
    }

    fn container(&mut self, slot: Slot, event: &KernelEvent) -> Option<ContainerId> {
        if let Some((_, container)) = self.inits.get(&event.pid).filter(|(of, _)| *of == slot) {
            return Some(container.clone());
        }
        if event.cgroup_id == 0 {
            return None;
        }
        if !self.names.contains_key(&event.cgroup_id) {
            self.learn_names(slot);
        }
        self.names.get(&event.cgroup_id).map(|(_, container)| container.clone())
    }

    fn hint(&mut self, event: &KernelEvent, clocks: &Clocks) -> Option<PodsInput> {
        let slot = event.slot?;
        let uid = self.pods.get(&slot)?.0.clone();
        let at = wall(clocks, event);
        let hint = match &event.kind {
            EventKind::Exit(exit) => {
                let container = self.container(slot, event);
                let code = exit.status.map(|status| status.runtime_code());
                self.inits.remove(&event.pid);
                Hint::Exited { container, code, at }
            }
            EventKind::OomVictim { is_init, .. }
                if !self.ooms.passes(slot, *is_init, clock::clocks().mono) =>
            {
                return None;
            }
            EventKind::OomVictim { comm, is_init } => Hint::Oom {
                container: self.container(slot, event),
                init: *is_init,
                pid: event.pid,
                comm: comm.to_string(),
                at,
            },
            EventKind::CgroupCreated => {
                self.learn_names(slot);
                return None;
            }
            EventKind::CgroupRemoved => {
                self.names.remove(&event.cgroup_id);
                return None;
            }
            // The agent reads the results of its own actions afterwards; an entry point or a filled
            // cgroup of another client shows in the runtime's own events and in the relist.
            EventKind::Exec | EventKind::Populated(_) => return None,
        };
        Some(PodsInput::Hint { uid, hint })
    }
}

fn relist(mode: Mode, is_blind: bool) -> Duration {
    if mode == Mode::Relist || is_blind { RELIST.1 } else { RELIST.0 }
}

/// `<id>` under cgroupfs, `cri-containerd-<id>.scope` under systemd.
fn container_id(dir: &str) -> &str {
    let name = dir.strip_suffix(".scope").unwrap_or(dir);
    name.rsplit_once('-').map_or(name, |(_, id)| id)
}

fn wall(clocks: &Clocks, event: &KernelEvent) -> UnixNanos {
    let since = clocks.wall_of(event.time).duration_since(std::time::UNIX_EPOCH);
    UnixNanos(since.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::container_id;

    #[test]
    fn container_id_is_parsed_from_cgroupfs_and_systemd_cgroup_names() {
        assert_eq!(container_id("0fbe88b3"), "0fbe88b3");
        assert_eq!(container_id("cri-containerd-0fbe88b3.scope"), "0fbe88b3");
    }
}
