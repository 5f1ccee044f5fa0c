//! Pods as they were at a moment of a record, and their events until then.
//!
//! Input: the frames of a replay, each after it was taken. Output: the snapshot and timelines that
//! a running agent publishes; and removed pods, as they were last. Timelines have the inputs and
//! results of decisions. Entries of effects (pulls, hooks, writes to the API server) are no inputs,
//! and not in a record. Pure; bounds: those of the decisions and of the timeline, and `LEFT_MAX`
//! removed pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use k8s_openapi::api::core::v1::Pod;

use crate::intake;
use crate::observed::ObservedPod;
use crate::source::{SourceKind, SourceUpdate};
use crate::sync::plan::Action;
use crate::timeline::Recorder;
use crate::view::{PodView, Snapshot};
use crate::worker::{Command, Failure, Hint, Pods, PodsInput, RETRY_TOLD, WorkerStage};
use pintle_api_types::ids::{ContainerId, Mono, Now, PodUid, UnixNanos};
use pintle_api_types::pod;

use super::frame::Frame;
use super::replay::Replay;

/// Removed pods that are remembered; the oldest is dropped first.
const LEFT_MAX: usize = 1024;

/// Why a pod is not in the snapshot any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nothing was left of it.
    Gone,
    /// The agent restarted, and has not read the pod since.
    Restart,
}

/// A pod that was in the snapshot before.
#[derive(Clone, Debug)]
pub struct Left {
    /// As it was last.
    pub view: Arc<PodView>,
    /// When it left.
    pub at: UnixNanos,
    /// Why.
    pub why: Why,
}

/// A sync under way.
#[derive(Debug)]
struct Sync {
    actions: Vec<Action>,
    /// When its last action ended.
    since: Mono,
}

/// See the module's header.
#[derive(Debug)]
pub struct Past {
    recorder: Recorder,
    clock: Arc<AtomicI64>,
    now: Now,
    snapshot: Snapshot,
    views: BTreeMap<PodUid, Arc<PodView>>,
    left: BTreeMap<PodUid, Left>,
    syncs: BTreeMap<u64, Sync>,
}

impl Default for Past {
    fn default() -> Self {
        let clock = Arc::<AtomicI64>::default();
        Self {
            recorder: Recorder::at(Arc::clone(&clock)),
            clock,
            now: Now::default(),
            snapshot: Snapshot::default(),
            views: BTreeMap::new(),
            left: BTreeMap::new(),
            syncs: BTreeMap::new(),
        }
    }
}

impl Past {
    /// Sees a frame that the replay has just taken.
    pub fn see(&mut self, replay: &mut Replay, frame: &Frame) {
        match frame {
            Frame::Start(_) => self.forget_run(),
            Frame::Input { now, input } => {
                self.now = *now;
                self.clock.store(now.wall.0, Ordering::Relaxed);
                self.note_input(replay.pods().as_deref(), input);
                replay.commands().iter().for_each(|command| self.note_command(command));
                if let Some(pods) = replay.pods() {
                    self.publish(pods);
                }
            }
            Frame::State(_) => {
                if let Some(pods) = replay.pods() {
                    self.find_all(pods);
                }
            }
            _ => {}
        }
    }

    /// When the last input came.
    pub fn now(&self) -> UnixNanos {
        self.now.wall
    }

    /// The last published snapshot.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Timelines, also of pods that have left.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Pods that have left.
    pub fn left(&self) -> &BTreeMap<PodUid, Left> {
        &self.left
    }

    /// Another agent begins; it has to hear of each pod again.
    fn forget_run(&mut self) {
        self.syncs.clear();
        let known: Vec<_> = self.views.keys().cloned().collect();
        known.iter().for_each(|uid| self.leaves(uid, Why::Restart));
        self.snapshot = Snapshot::default();
    }

    /// A state: all that the decisions know, including events from before the start of the record.
    fn find_all(&mut self, pods: &mut Pods) {
        for worker in pods.workers() {
            let uid = worker.uid();
            if let Some(pod) = worker.pod().filter(|_| self.recorder.entries(uid).is_empty()) {
                let text = pod::described(pod);
                self.recorder.stage(uid, "KnownBefore", None, &text);
            }
        }
        let known = |uid: &&PodUid| pods.worker(uid).is_none();
        let gone: Vec<_> = self.views.keys().filter(known).cloned().collect();
        gone.iter().for_each(|uid| self.leaves(uid, Why::Gone));
        self.publish(pods);
    }

    fn publish(&mut self, pods: &mut Pods) {
        let touched = pods.take_touched();
        self.snapshot.sources_ready = pods.sources_ready();
        self.snapshot.unreadable.clone_from(pods.unreadable());
        for uid in touched {
            let worker = pods.worker(&uid);
            match PodView::of(pods, &uid, self.now) {
                Some(view) => {
                    let view = Arc::new(view);
                    self.left.remove(&uid);
                    self.snapshot.pods.insert(uid.clone(), Arc::clone(&view));
                    self.views.insert(uid.clone(), view);
                }
                None => self.leaves(&uid, Why::Gone),
            }
            let orphan = worker.filter(|w| w.pod().is_none() && w.stage() != WorkerStage::Finished);
            self.snapshot.orphans.retain(|orphan| orphan.uid != uid);
            self.snapshot.orphans.extend(orphan.map(|worker| Arc::clone(worker.observed())));
        }
    }

    fn leaves(&mut self, uid: &PodUid, why: Why) {
        let Some(view) = self.views.remove(uid) else { return };
        self.snapshot.pods.remove(uid);
        if self.left.len() >= LEFT_MAX {
            let first = self.left.iter().min_by_key(|(_, left)| left.at);
            let first = first.map(|(uid, _)| uid.clone());
            first.map(|uid| self.left.remove(&uid));
        }
        self.left.insert(uid.clone(), Left { view, at: self.now.wall, why });
    }

    fn note_input(&mut self, pods: Option<&Pods>, input: &PodsInput) {
        let observed = |uid: &PodUid| Some(&**pods?.worker(uid)?.observed());
        match input {
            PodsInput::Desired { uid, pod } => self.note_desired(uid, pod),
            PodsInput::Removed { uid } => {
                let name = self.snapshot.pods.get(uid).map(|view| pod::name(&view.pod));
                self.recorder.stage(uid, "Removed", None, name.unwrap_or_default());
            }
            PodsInput::Kill { uid, verdict, .. } => {
                self.recorder.stage(uid, &verdict.reason, None, &verdict.message);
            }
            PodsInput::Retry { uid } => self.recorder.stage(uid, "Retry", None, RETRY_TOLD),
            PodsInput::Progress { uid, ticket, index, outcome } => {
                self.note_progress(uid, *ticket, *index, outcome);
            }
            PodsInput::SyncDone { ticket, .. } => drop(self.syncs.remove(ticket)),
            PodsInput::Probed { uid, container, probe, healthy } => {
                let name = observed(uid).and_then(|pod| name_of(pod, container));
                let became = if *healthy { "succeeds" } else { "fails" };
                self.recorder.stage(uid, "Probed", name, &format!("{probe:?} {became}"));
            }
            PodsInput::Hint { uid, hint } => self.note_hint(uid, observed(uid), hint),
            _ => {}
        }
    }

    fn note_desired(&self, uid: &PodUid, wanted: &Arc<Pod>) {
        let known = self.snapshot.pods.get(uid).map(|view| pod::is_deleted(&view.pod));
        let update = match known {
            None => SourceUpdate::Add(Arc::clone(wanted)),
            Some(false) if pod::is_deleted(wanted) => SourceUpdate::Delete(Arc::clone(wanted)),
            Some(_) => SourceUpdate::Update(Arc::clone(wanted)),
        };
        let text = intake::shown(SourceKind::of(wanted), wanted);
        self.recorder.stage(uid, intake::change(&update), None, &text);
    }

    fn note_progress(
        &mut self,
        uid: &PodUid,
        ticket: u64,
        index: usize,
        outcome: &Result<(), Failure>,
    ) {
        // Nothing is known of a sync that began before the record.
        let Some(sync) = self.syncs.get_mut(&ticket) else { return };
        let Some(action) = sync.actions.get(index) else { return };
        let took = self.now.mono.since(sync.since);
        sync.since = self.now.mono;
        self.recorder.action(uid, action, outcome.as_ref().map(|()| took));
    }

    fn note_hint(&self, uid: &PodUid, pod: Option<&ObservedPod>, hint: &Hint) {
        let name = |id: &ContainerId| name_of(pod?, id);
        match hint {
            Hint::Exited { container, code, .. } => {
                let code = code.map(|code| format!("exit code {code}")).unwrap_or_default();
                self.recorder.stage(uid, "Exited", container.as_ref().and_then(name), &code);
            }
            Hint::Oom { container, comm, pid, .. } => {
                let text = format!("{comm} (pid {pid})");
                self.recorder.trouble(uid, "OOM", container.as_ref().and_then(name), &text);
            }
            Hint::TaskExit { .. } | Hint::Changed => {}
        }
    }

    fn note_command(&mut self, command: &Command) {
        match command {
            Command::Run { ticket, actions, .. } => {
                let sync = Sync { actions: actions.clone(), since: self.now.mono };
                self.syncs.insert(*ticket, sync);
            }
            Command::Publish { uid, status, .. } => self.recorder.status(uid, status),
            Command::Event { uid, warning, reason, message, container } => {
                self.recorder.event(uid, *warning, reason, message, container.as_deref());
            }
            Command::Gone { uid } => self.recorder.stage(uid, "Gone", None, ""),
            _ => {}
        }
    }
}

fn name_of<'a>(pod: &'a ObservedPod, id: &ContainerId) -> Option<&'a str> {
    let found = pod.containers.iter().find(|container| container.id == *id);
    found.map(|container| container.name.as_str())
}
