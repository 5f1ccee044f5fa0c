//! Volumes of CSI drivers and disks of storage networks: owns the state machine `Storage`, makes
//! its calls, ends the waits of syncs.
//!
//! ```text
//!   prepare ─ ready ─┐                        ┌─> calls ─> files, driver, files
//!   teardown ─ gone ─┼─> Storage::handle ─────┤        └─ outcome ─┐
//!   Node, drivers ───┤        ^               ├─> volumesInUse     │
//!   timer ───────────┘        └───────────────┼────────────────────┘
//!                                             └─> waits, events
//! ```
//! Everything runs on the main thread; each call is a task of its own, so a driver that hangs holds
//! up nothing but its volume. Before the first input the disk has been looked at. Bounds: one call a
//! volume, a waiter for each sync.
// k8s: pkg/kubelet/volumemanager/volume_manager.go

mod calls;
mod device;
mod disk;
mod expand;
mod follow;
mod late;
mod limit;
mod local;
mod resync;
mod wanted;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_cluster::node::own::OwnNode;
use pintle_agent_cluster::node::report::WrittenInUse;
use pintle_agent_cluster::objects::Objects;
use pintle_agent_core::explain::volumes::{READY, WAITING};
use pintle_agent_core::storage::csi::Volume;
use pintle_agent_core::storage::selinux::LabelSettings;
use pintle_agent_core::storage::{
    Answer, Call, Command, InUse, Input, Known, Outcome, Storage, Waiting,
};
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::csi_dirs::CsiDirs;
use pintle_agent_host::volume::san::SanHost;
use pintle_agent_metrics::{Metrics, OfDriver};
use pintle_agent_plugins::{Drivers, Refresher};
use pintle_api::events;
use pintle_daemon::{clock, tasks};
use tokio::sync::{Notify, oneshot, watch};

pub use self::late::{LateNames, NotReady};
pub use pintle_agent_core::explain::volumes::sentences;

/// The kubelet's name of an expansion.
const EXPANSION: &str = "volume_fs_resize";
/// How long a pod's volumes are waited for in one sync.
// k8s: pkg/kubelet/volumemanager/volume_manager.go podAttachAndMountTimeout
pub const READY_MAX: Duration = Duration::from_secs(2 * 60 + 3);

/// What the volumes need of the rest of the agent.
pub struct StorageParts {
    /// The agent's root directory.
    pub root: PathBuf,
    /// The node's name.
    pub node_name: Arc<str>,
    /// Registered drivers.
    pub drivers: Drivers,
    /// Objects of the API server.
    pub objects: Objects,
    /// Takes events of pods.
    pub recorder: Recorder,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// The own Node object; `None` without an API server.
    pub node: Option<watch::Receiver<OwnNode>>,
    /// Takes events of claims; `None` without an API server.
    pub events: Option<events::Recorder>,
    /// The attach-detach controller says which disks the node may have. Disks of a storage network
    /// are attached without it otherwise.
    pub attaches_by_controller: bool,
    /// Has a driver asked again how many volumes the node can have.
    pub refresher: Refresher,
    /// SELinux labels of volumes.
    pub labels: LabelSettings,
    /// `syncFrequency`: how often claims of pods that run are read again.
    pub resync: Duration,
}

/// The volumes of CSI drivers on this node. Clones share them.
#[derive(Clone)]
pub struct Volumes(Rc<Shared>);

struct Shared {
    machine: RefCell<Storage>,
    /// The pods as their syncs have them, for calls that are made later.
    pods: RefCell<BTreeMap<PodUid, Arc<Pod>>>,
    waiters: RefCell<BTreeMap<PodUid, Vec<oneshot::Sender<Answer>>>>,
    /// What timelines say that pods wait for.
    reported_waits: RefCell<BTreeMap<PodUid, String>>,
    /// Volumes that are in no state machine and may grow.
    locals: RefCell<BTreeMap<PodUid, Vec<local::LocalVolume>>>,
    in_use: watch::Sender<Option<InUse>>,
    in_use_written: watch::Sender<Option<WrittenInUse>>,
    /// The timer has to look again.
    due_moved: Notify,
    /// The disk was looked at.
    is_known: Cell<bool>,
    known: Notify,
    dirs: CsiDirs,
    /// The node's network disks.
    san: SanHost,
    parts: StorageParts,
}

impl Volumes {
    /// Begins to look at the disk, and to follow drivers and the Node. To be called within a
    /// `LocalSet`.
    pub fn start(parts: StorageParts) -> Self {
        let shared = Rc::new(Shared {
            machine: RefCell::default(),
            pods: RefCell::default(),
            waiters: RefCell::default(),
            reported_waits: RefCell::default(),
            locals: RefCell::default(),
            in_use: watch::Sender::default(),
            in_use_written: watch::Sender::default(),
            due_moved: Notify::new(),
            is_known: Cell::new(false),
            known: Notify::new(),
            dirs: CsiDirs::new(&parts.root),
            san: SanHost::default(),
            parts,
        });
        let volumes = Self(shared);
        tasks::singleton("volumes of drivers", follow::run(volumes.clone()));
        volumes
    }

    /// What `volumesInUse` of the Node is to be; `None` until it is known.
    pub fn in_use(&self) -> watch::Receiver<Option<InUse>> {
        self.0.in_use.subscribe()
    }

    /// Takes which of these was written.
    pub fn in_use_written(&self) -> watch::Sender<Option<WrittenInUse>> {
        self.0.in_use_written.clone()
    }

    /// Every source of pods has reported.
    pub fn sources_ready(&self) {
        self.give(Input::SourcesReady);
    }

    /// Waits until all volumes of drivers that the pod wants are published, and staged before.
    /// Dropping the future gives up the wait, not the volumes.
    ///
    /// # Errors
    /// They were not within `READY_MAX`; the calls go on.
    pub async fn ready(
        &self,
        uid: &PodUid,
        pod: &Arc<Pod>,
        volumes: &[Volume],
    ) -> Result<(), NotReady> {
        self.ready_within(READY_MAX, uid, pod, volumes).await
    }

    async fn ready_within(
        &self,
        limit: Duration,
        uid: &PodUid,
        pod: &Arc<Pod>,
        volumes: &[Volume],
    ) -> Result<(), NotReady> {
        if volumes.is_empty() {
            return Ok(());
        }
        self.known().await;
        let deadline = tokio::time::Instant::now() + limit;
        self.0.pods.borrow_mut().insert(uid.clone(), Arc::clone(pod));
        let wanted = self.0.wanted(uid, pod, volumes);
        let late = || NotReady { waiting: Vec::new() };
        let wanted = match tokio::time::timeout_at(deadline, wanted).await.map_err(|_| late())? {
            Ok(wanted) => wanted,
            Err(conflict) => {
                // It ends with the pod alone: the spec of a pod does not change.
                let text = conflict.to_string();
                self.0.parts.recorder.event(uid, true, "FailedMount", &text, None);
                tokio::time::sleep_until(deadline).await;
                return Err(late());
            }
        };
        let done = self.wait(uid);
        self.give(Input::Wanted { pod: uid.clone(), volumes: wanted });
        match tokio::time::timeout_at(deadline, done).await {
            Ok(_) => Ok(()),
            Err(_) => Err(NotReady { waiting: self.waiting(uid) }),
        }
    }

    /// Waits until nothing of the pod is published any more. Nothing of it may run.
    ///
    /// # Errors
    /// It was not within `READY_MAX`; the calls go on.
    pub async fn release(&self, uid: &PodUid) -> Result<(), NotReady> {
        self.0.locals.borrow_mut().remove(uid);
        self.known().await;
        let done = self.wait(uid);
        self.give(Input::Released { pod: uid.clone() });
        match tokio::time::timeout(READY_MAX, done).await {
            Ok(_) => {
                self.0.pods.borrow_mut().remove(uid);
                Ok(())
            }
            Err(_) => Err(NotReady { waiting: self.waiting(uid) }),
        }
    }

    /// Makes volumes of a pod known that have no record.
    pub fn recover(&self, uid: &PodUid, volumes: Vec<Known>) {
        self.give(Input::Recovered { pod: uid.clone(), volumes });
    }

    /// Begins to take away the volumes of pods that are not to be kept: they are unknown, and nothing of
    /// them runs.
    pub fn release_unless(&self, is_kept: impl Fn(&PodUid) -> bool) {
        self.0.locals.borrow_mut().retain(|pod, _| is_kept(pod));
        let pods: Vec<PodUid> = self.0.machine.borrow().pods().cloned().collect();
        for pod in pods.into_iter().filter(|pod| !is_kept(pod)) {
            self.give(Input::Released { pod });
        }
    }

    /// What the pod waits for.
    pub fn waiting(&self, uid: &PodUid) -> Vec<Waiting> {
        self.0.machine.borrow().waiting(uid)
    }

    async fn known(&self) {
        while !self.0.is_known.get() {
            self.0.known.notified().await;
        }
    }

    fn wait(&self, uid: &PodUid) -> oneshot::Receiver<Answer> {
        let (waiter, done) = oneshot::channel();
        let mut waiters = self.0.waiters.borrow_mut();
        let of_pod = waiters.entry(uid.clone()).or_default();
        // A sync that was cancelled waits no more.
        of_pod.retain(|waiter| !waiter.is_closed());
        of_pod.push(waiter);
        done
    }

    fn give(&self, input: Input) {
        let commands = self.0.machine.borrow_mut().handle(clock::clocks().mono, input);
        for command in commands {
            self.carry_out(command);
        }
        self.0.due_moved.notify_one();
        self.note_waits();
    }

    /// Keeps the timelines of pods that are waited for up to date.
    fn note_waits(&self) {
        let waiting: Vec<PodUid> = self.0.waiters.borrow().keys().cloned().collect();
        let mut reported = self.0.reported_waits.borrow_mut();
        reported.retain(|pod, _| waiting.contains(pod));
        for pod in waiting {
            let text = sentences(&self.waiting(&pod));
            if !text.is_empty() && reported.get(&pod) != Some(&text) {
                self.0.parts.recorder.stage(&pod, WAITING, None, &text);
                reported.insert(pod, text);
            }
        }
    }

    fn carry_out(&self, command: Command) {
        match command {
            Command::Call { volume, ticket, call } => {
                let volumes = self.clone();
                tokio::task::spawn_local(async move {
                    let outcome = volumes.make(call).await;
                    volumes.give(Input::Done { volume, ticket, outcome });
                });
            }
            Command::ReportInUse(report) => {
                self.0.in_use.send_replace(Some(report));
            }
            Command::Answer { pod, answer } => {
                if self.0.reported_waits.borrow_mut().remove(&pod).is_some() {
                    self.0.parts.recorder.stage(&pod, READY, None, "");
                }
                for waiter in self.0.waiters.borrow_mut().remove(&pod).into_iter().flatten() {
                    let _ = waiter.send(answer); // its sync was cancelled
                }
            }
            Command::Failed { pod, text } => {
                self.0.parts.recorder.event(&pod, true, reason(&text), &text, None);
            }
        }
    }

    async fn make(&self, call: Call) -> Outcome {
        let (of, name) = operation(&call);
        self.0.operate(of, name, self.0.call(&call)).await
    }
}

impl Shared {
    /// Counts an operation. A panic is its failure, and leaves the volume uncertain.
    async fn operate(
        &self,
        of: OfDriver<'_>,
        name: &'static str,
        work: impl Future<Output = Outcome>,
    ) -> Outcome {
        let begun = tokio::time::Instant::now();
        let done = tasks::caught(work).await;
        let good = matches!(done, Ok(Ok(())));
        self.parts.metrics.volume_operated(of, name, good, begun.elapsed());
        done.unwrap_or_else(|panic| {
            tasks::counted("volume call");
            tracing::error!("{panic}");
            Err(calls::uncertain(panic.to_string()))
        })
    }
}

/// The driver of a call, and the kubelet's name of the operation. An expansion is never of a migrated
/// volume, as in the kubelet.
// k8s: pkg/volume/util/operationexecutor/operation_generator.go GeneratedOperations.OperationName
fn operation(call: &Call) -> (OfDriver<'_>, &'static str) {
    match call {
        Call::Stage { wanted, .. } | Call::Publish { wanted, .. } => {
            let name = if wanted.volume.is_block { "map_volume" } else { "volume_mount" };
            (calls::of_driver(&wanted.volume), name)
        }
        Call::Expand { wanted, .. } => (OfDriver::own(&wanted.volume.driver), EXPANSION),
        Call::Unpublish { known, .. } => {
            let name = if known.is_block { "unmap_volume" } else { "volume_unmount" };
            (of_known(known), name)
        }
        Call::Unstage(known) => {
            let name = if known.is_block { "unmap_device" } else { "unmount_device" };
            (of_known(known), name)
        }
    }
}

fn of_known(known: &Known) -> OfDriver<'_> {
    OfDriver { driver: &known.driver, is_migrated: known.is_migrated }
}

// k8s: pkg/kubelet/events/event.go
fn reason(text: &str) -> &'static str {
    if text.starts_with("NodeExpandVolume.") {
        "VolumeResizeFailed"
    } else if text.starts_with("MountVolume.NodeExpandVolume failed") {
        "FileSystemResizeFailed"
    } else if text.starts_with("Map") {
        "FailedMapVolume"
    } else if text.starts_with("Un") {
        "FailedUnMount"
    } else {
        "FailedMount"
    }
}

#[cfg(test)]
mod tests;
