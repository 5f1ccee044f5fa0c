//! All workers: admission, orphans, the next list, the next wake-up.
//!
//! Pure, see the module's header. Static pods of one name run one after the other: a new one waits
//! until the earlier one has ended. A pod that the runtime has and no source wants is stopped, but
//! only once every source has reported. Bounds: one worker per uid, one sync and one read per
//! worker. Indices make the cost of an input independent of the number of pods.
// k8s: pkg/kubelet/pod_workers.go allowPodStart, kubelet_pods.go HandlePodCleanups

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::admit::TakenResources;
use crate::eviction::Evictor;
use crate::observed::digest_of;
use crate::shutdown::Shutdown;
use crate::worker::book::Book;
use crate::worker::garbage::Garbage;
use crate::worker::index::Index;
use crate::worker::line::StartQueue;
use crate::worker::lobby::Lobby;
use crate::worker::parts::{ListState, ResizeQueue};
use crate::worker::resizes::FREED;
use crate::worker::step::{Notes, Worker, WorkerInputs, WorkerStage};
use crate::worker::{Command, DecisionCount, ListedPod, PodsInput, ReadFailure, Settings};
use pintle_api_types::ids::{Mono, Now, PodUid};
use pintle_api_types::pod;

/// Wait before a list that failed is repeated.
const LIST_RETRY: Duration = Duration::from_secs(1);

/// Namespace and name of a pod.
pub(super) type FullName = (String, String);

/// The set of pods of this node.
#[derive(Debug)]
pub struct Pods {
    pub(crate) settings: Settings,
    pub(crate) workers: BTreeMap<PodUid, Worker>,
    pub(crate) index: Index,
    /// The sum of the admitted pods.
    pub(super) taken: TakenResources,
    /// Workers that have not begun.
    pub(super) line: StartQueue,
    /// New pods that wait for the node's object.
    pub(super) lobby: Lobby,
    /// Which uid owns a name; other static pods of that name wait.
    pub(super) owners: BTreeMap<FullName, PodUid>,
    /// Names that became free outside of a worker's change.
    pub(super) freed: Vec<FullName>,
    pub(crate) sources_ready: bool,
    /// Pods that are wanted in a way that cannot be read.
    pub(super) unreadable: BTreeSet<PodUid>,
    pub(super) lists: ListState,
    pub(super) counter: u64,
    pub(crate) out: Vec<Command>,
    pub(crate) resizes: ResizeQueue,
    /// The records that survive a restart.
    pub(super) book: Book,
    pub(super) notes: Notes,
    /// The node is being shut down.
    pub(super) shutdown: Option<Shutdown>,
    /// Node-pressure eviction.
    pub(super) evictor: Evictor,
    /// The state of garbage collection.
    pub(super) garbage: Garbage,
}

impl Pods {
    /// An empty set; the first input makes it list the runtime's pods.
    pub fn new(settings: Settings) -> Self {
        Self {
            lobby: Lobby::new(settings.has_node_object),
            settings,
            workers: BTreeMap::new(),
            index: Index::default(),
            taken: TakenResources::default(),
            line: StartQueue::default(),
            owners: BTreeMap::new(),
            freed: Vec::new(),
            sources_ready: false,
            unreadable: BTreeSet::new(),
            lists: ListState::default(),
            counter: 0,
            out: Vec::new(),
            resizes: ResizeQueue::default(),
            book: Book::default(),
            notes: Notes::default(),
            shutdown: None,
            evictor: Evictor::default(),
            garbage: Garbage::default(),
        }
    }

    /// Takes one input and returns the commands to execute.
    pub fn handle(&mut self, now: Now, input: PodsInput) -> Vec<Command> {
        match input {
            PodsInput::Desired { uid, pod } => self.desired(uid, pod, now),
            PodsInput::Reconciled { uid, pod } => self.reconciled(uid, pod, now),
            PodsInput::Removed { uid } => {
                self.leaves_lobby(&uid, now);
                self.with(&uid, now, |w, _| w.remove());
            }
            PodsInput::Unreadable(uids) => {
                // A pod that is no longer among them may be an orphan.
                self.unreadable = uids;
                self.list_soon(now);
            }
            PodsInput::SourcesReady => self.ready(now),
            PodsInput::Kill { uid, verdict, grace_seconds } => {
                self.with(&uid, now, |w, _| w.evict(verdict, grace_seconds, now.mono));
            }
            PodsInput::Observed { uid, stamp, result } => {
                self.with(&uid, now, |w, context| w.observe(stamp, result, context));
            }
            PodsInput::Listed { stamp, result } => self.listed(stamp, result, now),
            PodsInput::Hint { uid, hint } => {
                self.with(&uid, now, |w, context| w.hint(hint, context))
            }
            PodsInput::ContainerHint { container, hint } => {
                if let Some(uid) = self.index.owner(&container).cloned() {
                    self.with(&uid, now, |w, context| w.hint(hint, context));
                }
            }
            PodsInput::Progress { uid, ticket, index, outcome } => {
                self.with(&uid, now, |w, context| w.progress(ticket, index, outcome, context));
            }
            PodsInput::SyncDone { uid, ticket } => {
                self.with(&uid, now, |w, context| w.sync_done(ticket, context));
            }
            PodsInput::Probed { uid, container, probe, healthy } => {
                self.with(&uid, now, |w, _| w.probed(container, probe, healthy));
            }
            PodsInput::Content { uid, files } => self.with(&uid, now, |w, _| w.content(files)),
            PodsInput::Retry { uid } => self.with(&uid, now, |w, _| w.retry(now.mono)),
            PodsInput::Node(node) => {
                self.know_node(node);
                self.everyone(now);
            }
            PodsInput::Admission(node) => {
                self.offered(node);
                self.node_seen(now);
            }
            PodsInput::NodeFetched { ticket, node } => self.node_fetched(ticket, node, now),
            PodsInput::Shutdown(notice) => self.noticed(notice, now),
            PodsInput::Pressure { ticket, observation } => self.measured(ticket, &observation, now),
            PodsInput::Reclaiming { ticket } => self.evictor.reclaiming(ticket, now.mono),
            PodsInput::Reclaimed { ticket, freed } => self.reclaimed(ticket, &freed, now),
            PodsInput::MemoryLow => self.evictor.heed(now.mono),
            PodsInput::Lost => self.list_soon(now),
            PodsInput::RelistEvery(period) => {
                self.settings.relist_period = period;
                self.lists.at = self.lists.at.min(now.mono.plus(period));
            }
            PodsInput::Tick => self.due(now),
        }
        self.begin_freed(now);
        self.resizes_due(now);
        self.shut_down(now);
        self.evict_due(now);
        self.list_if_due(now);
        std::mem::take(&mut self.out)
    }

    /// A pod that changed, or that still waits for its admission.
    fn reconciled(&mut self, uid: PodUid, pod: Arc<Pod>, now: Now) {
        if self.lobby.has(&uid) {
            self.desired(uid, pod, now);
        } else {
            self.with(&uid, now, |w, _| w.reconcile(pod));
        }
    }

    /// Every source has delivered.
    fn ready(&mut self, now: Now) {
        self.sources_ready = true;
        self.restart_list(now);
        self.everyone(now);
        // All pods that were admitted before have come by this time.
        let unreadable = &self.unreadable;
        for (uid, _) in self.resizes.records.extract_if(.., |uid, _| !unreadable.contains(uid)) {
            self.book.changed(&uid);
        }
        self.retry_resizes("pods_added", now);
    }

    /// When the next `PodsInput::Tick` is needed at the latest.
    pub fn next_wake(&self) -> Option<Mono> {
        let list = (!self.lists.under_way).then_some(self.lists.at);
        let resize = (!self.resizes.pending.is_empty()).then_some(self.resizes.at);
        let blocked = self.line.next_wake();
        let shutdown = self.shutdown.as_ref().and_then(Shutdown::until);
        let others = list.into_iter().chain(resize).chain(blocked).chain(shutdown);
        let others = others.chain(self.evict_wake()).chain(self.reclaim_wake());
        self.index.next_wake().into_iter().chain(others).min()
    }

    /// The pods that may look different since the last question.
    pub fn take_touched(&mut self) -> BTreeSet<PodUid> {
        self.index.take_touched()
    }

    /// All workers, by uid.
    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values()
    }

    /// One worker.
    pub fn worker(&self, uid: &PodUid) -> Option<&Worker> {
        self.workers.get(uid)
    }

    /// True once every source has reported.
    pub fn sources_ready(&self) -> bool {
        self.sources_ready
    }

    /// Pods that are wanted in a way that cannot be read.
    pub fn unreadable(&self) -> &BTreeSet<PodUid> {
        &self.unreadable
    }

    /// True once every pod that a source wants or the runtime has is known: all other remains of
    /// pods on the node are left over.
    pub fn knows_all(&self) -> bool {
        self.sources_ready && self.lists.since_ready && self.lobby.is_empty()
    }

    pub(super) fn desired(&mut self, uid: PodUid, pod: Arc<Pod>, now: Now) {
        if !self.workers.contains_key(&uid) {
            return self.arrive(uid, pod, now);
        }
        self.update(uid, pod, now);
    }

    pub(crate) fn create(&mut self, uid: PodUid, pod: Option<Arc<Pod>>) {
        let meta = pod.as_ref().map(|p| &p.metadata);
        let name = meta.and_then(|m| m.name.clone()).unwrap_or_default();
        let namespace = meta.and_then(|m| m.namespace.clone()).unwrap_or_default();
        self.create_named(uid, pod, (namespace, name));
    }

    fn create_named(&mut self, uid: PodUid, pod: Option<Arc<Pod>>, name: FullName) {
        let curve = self.settings.crash_loop;
        let mut worker = Worker::new(uid.clone(), pod, name.clone(), curve);
        worker.sync.ends_kept = self.settings.garbage.kept_at_once();
        if !worker.is_serial() {
            // A list before its source may have taken it for a pod that blocks others.
            if self.release_name(&uid, &name) {
                self.freed.push(name.clone());
            }
        }
        // Before the first list it is unknown whether an earlier pod of this name still runs.
        let begins = self.may_begin(&uid, worker.is_serial(), name.clone()) && self.lists.once;
        if begins && !self.is_blocked(&uid) {
            worker.begin();
        } else {
            self.line.wait(&uid, name);
        }
        self.index.touch(&uid);
        self.workers.insert(uid, worker);
    }

    /// True when no other pod holds this one's name, which is the pod's then.
    fn may_begin(&mut self, uid: &PodUid, serial: bool, name: FullName) -> bool {
        !serial || self.owners.entry(name).or_insert_with(|| uid.clone()) == uid
    }

    /// Runs `change` on one worker, lets it act, and takes it away when nothing is left of it.
    pub fn with(
        &mut self,
        uid: &PodUid,
        now: Now,
        change: impl FnOnce(&mut Worker, &mut WorkerInputs<'_>),
    ) {
        let Some(worker) = self.workers.get_mut(uid) else { return };
        let mut context = WorkerInputs {
            now,
            node: &self.settings.node,
            sync_period: self.settings.sync_period,
            counter: &mut self.counter,
            notes: &mut self.notes,
            out: &mut self.out,
        };
        let (held, before) = (worker.admitted().is_some(), worker.indexed());
        let (pod, unsaved) = (worker.pod.clone(), std::mem::take(&mut context.notes.unsaved));
        let waited = worker.stage() == WorkerStage::Waiting;
        change(worker, &mut context);
        worker.advance(&mut context);
        let holds = worker.admitted();
        if held && holds.is_none() {
            self.notes.freed = Some(FREED[0]);
        }
        self.taken.set(uid, holds);
        self.notes.unsaved |= waited && worker.stage() != WorkerStage::Waiting;
        if self.notes.unsaved || !is_same(pod.as_ref(), worker.pod.as_ref()) {
            self.book.changed(uid);
        }
        self.notes.unsaved |= unsaved;
        self.index.changed(uid, before, worker.indexed(), worker.observed());
        let (gone, ended) = (worker.is_gone(), worker.stage() == WorkerStage::Finished);
        if gone {
            self.gone(uid, now);
        } else if ended {
            self.pass_name_on(uid, now);
        }
        for waiting in self.line.after(uid) {
            self.begin_one(&waiting, now);
        }
    }

    fn gone(&mut self, uid: &PodUid, now: Now) {
        let Some(mut worker) = self.workers.remove(uid) else { return };
        self.index.gone(uid, worker.indexed());
        self.taken.set(uid, None);
        self.book.changed(uid);
        self.out.push(Command::Gone { uid: uid.clone() });
        self.line.leave(uid);
        let is_free = self.release_name(uid, &worker.full_name);
        if let Some(pod) = worker.take_again() {
            self.out.push(Command::Count(DecisionCount::Restarted(pod::is_static(&pod))));
            self.desired(uid.clone(), pod, now);
        }
        if is_free {
            self.begin_named(&worker.full_name, now);
        }
    }

    /// A finished pod no longer holds its name, now or later.
    fn pass_name_on(&mut self, uid: &PodUid, now: Now) {
        let Some(worker) = self.workers.get(uid) else { return };
        if self.owners.get(&worker.full_name) == Some(uid) {
            let name = worker.full_name.clone();
            self.owners.remove(&name);
            self.begin_named(&name, now);
        }
    }

    /// True when the name was the pod's.
    fn release_name(&mut self, uid: &PodUid, name: &FullName) -> bool {
        let owned = self.owners.get(name) == Some(uid);
        if owned {
            self.owners.remove(name);
        }
        owned
    }

    /// Starts pods with a name that is free now, unless they wait for room.
    fn begin_waiting(&mut self, now: Now) {
        for uid in self.line.all() {
            self.begin_one(&uid, now);
        }
    }

    /// The same, of names that became free while a pod came.
    fn begin_freed(&mut self, now: Now) {
        for name in std::mem::take(&mut self.freed) {
            self.begin_named(&name, now);
        }
    }

    /// The same, of one name. A pod that ends without having held the name comes first: of several
    /// that an agent left behind, each is waited for.
    fn begin_named(&mut self, name: &FullName, now: Now) {
        let is_waiting = |uid: &PodUid| self.workers.get(uid).is_some_and(Worker::is_waiting);
        let (waiting, begun): (Vec<_>, Vec<_>) =
            self.line.of_name(name).into_iter().partition(is_waiting);
        for uid in begun.iter().chain(&waiting) {
            self.begin_one(uid, now);
        }
    }

    fn begin_one(&mut self, uid: &PodUid, now: Now) {
        if !self.lists.once {
            return;
        }
        #[cfg(test)]
        super::visits::count();
        let Some(worker) = self.workers.get(uid) else { return self.line.leave(uid) };
        let (name, serial) = (worker.full_name.clone(), worker.is_serial());
        if !worker.is_waiting() {
            let has_ended = worker.stage() == WorkerStage::Finished;
            if has_ended || self.may_begin(uid, serial, name) {
                self.line.leave(uid);
            }
            return;
        }
        if !self.is_blocked(uid) && self.may_begin(uid, serial, name) {
            self.line.leave(uid);
            self.with(uid, now, |w, _| w.begin());
        }
    }

    fn everyone(&mut self, now: Now) {
        let uids: Vec<_> = self.workers.keys().cloned().collect();
        for uid in uids {
            self.with(&uid, now, |_, _| {});
        }
    }

    fn due(&mut self, now: Now) {
        for uid in self.index.due(now.mono) {
            self.with(&uid, now, |_, _| {});
        }
        let given_up = self.line.give_up(now.mono);
        if !given_up.is_empty() {
            given_up.iter().for_each(|uid| self.book.changed(uid));
            self.begin_waiting(now);
        }
    }

    fn list_if_due(&mut self, now: Now) {
        if self.lists.under_way || now.mono < self.lists.at {
            return;
        }
        self.lists.under_way = true;
        self.counter += 1;
        self.out.push(Command::List { stamp: self.counter });
    }

    /// Starts a new list, because the one under way may have missed the change. No pod is known to
    /// be an orphan before a list that begins from now on.
    fn restart_list(&mut self, now: Now) {
        self.lists.since_ready = false;
        self.lists.ready_stamp = self.counter + 1;
        self.list_soon(now);
    }

    /// A pod is removed that may have waited for admission. Lists have skipped the runtime's
    /// containers of such a pod, because it was to be taken over: it has no worker that stops it,
    /// and no sweep may remove anything of it before it has.
    fn leaves_lobby(&mut self, uid: &PodUid, now: Now) {
        if self.lobby.has(uid) {
            self.lobby.leave(uid);
            self.restart_list(now);
        }
    }

    fn list_soon(&mut self, now: Now) {
        self.lists.at = now.mono;
        self.lists.again = self.lists.under_way;
    }

    fn listed(&mut self, stamp: u64, result: Result<Vec<ListedPod>, ReadFailure>, now: Now) {
        self.lists.under_way = false;
        let period = match result {
            Ok(_) => self.settings.relist_period,
            Err(_) => LIST_RETRY,
        };
        let wait = if std::mem::take(&mut self.lists.again) { Duration::ZERO } else { period };
        self.lists.at = now.mono.plus(wait);
        let listed = match result {
            Ok(listed) => listed,
            Err(error) => return self.garbage_stays(error.0, now),
        };
        let known: BTreeMap<_, _> = listed.iter().map(|p| (p.uid.clone(), p)).collect();
        self.claim_names(&listed);
        if self.sources_ready {
            let unknown = |p: &&ListedPod| {
                let is_wanted = self.lobby.has(&p.uid) || self.unreadable.contains(&p.uid);
                !self.workers.contains_key(&p.uid) && !is_wanted
            };
            for pod in listed.iter().filter(unknown).collect::<Vec<_>>() {
                let name = (pod.namespace.clone(), pod.name.clone());
                self.create_named(pod.uid.clone(), None, name);
                self.with(&pod.uid, now, |w, _| w.orphaned());
                self.out.push(Command::Count(DecisionCount::Orphan));
            }
        }
        self.lists.once = true;
        self.lists.since_ready |= self.sources_ready && stamp >= self.lists.ready_stamp;
        self.begin_waiting(now);
        let uids: Vec<_> = self.workers.keys().cloned().collect();
        for uid in uids {
            let digest = known.get(&uid).map_or(&[][..], |p| &p.digest);
            let Some(worker) = self.workers.get(&uid) else { continue };
            if *digest != *digest_of(worker.observed()) {
                self.with(&uid, now, |w, context| w.hint(crate::worker::Hint::Changed, context));
            }
        }
        self.collect_garbage(now);
    }
}

/// The very same pod, not an equal one.
fn is_same(a: Option<&Arc<Pod>>, b: Option<&Arc<Pod>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

#[cfg(test)]
impl Pods {
    /// Asserts that the indices equal a search through all workers.
    pub(super) fn assert_indexed(&self) {
        let held = TakenResources::of(self.workers.values().filter_map(Worker::admitted));
        assert_eq!(format!("{:?}", self.taken), format!("{held:?}"));
        let wake = self.workers.values().filter_map(Worker::wake_at).min();
        assert_eq!(self.index.next_wake(), wake);
        if let Some(now) = wake {
            let due = self.workers.values().filter(|w| w.wake_at().is_some_and(|at| at <= now));
            assert!(self.index.due(now).iter().eq(due.map(Worker::uid)));
        }
        for (id, uid) in self.index.owners() {
            let observed = self.workers.get(uid).map(Worker::observed);
            let owned = observed.is_some_and(|pod| {
                pod.containers.iter().any(|c| c.id == *id)
                    || pod.sandboxes.iter().any(|s| s.id.as_str() == id.as_str())
            });
            assert!(owned, "{id} of {uid}, which does not have it");
        }
    }
}

impl Pods {
    /// A pod that the runtime has, wanted or not, owns its name before any that it has not.
    fn claim_names(&mut self, listed: &[ListedPod]) {
        let in_runtime: BTreeSet<_> = listed.iter().map(|pod| &pod.uid).collect();
        let workers = &self.workers;
        self.owners.retain(|_, uid| in_runtime.contains(uid) || workers.contains_key(uid));
        for pod in listed {
            let worker = workers.get(&pod.uid);
            let stands = |w: &Worker| w.is_serial() && w.stage() != WorkerStage::Finished;
            if self.lobby.has(&pod.uid) || worker.is_some_and(|w| !stands(w)) {
                continue;
            }
            let name = (pod.namespace.clone(), pod.name.clone());
            let begun =
                |uid: &PodUid| workers.get(uid).is_some_and(|w| w.stage() != WorkerStage::Waiting);
            let owner = self.owners.entry(name).or_insert_with(|| pod.uid.clone());
            if !begun(owner) && !in_runtime.contains(owner) {
                *owner = pod.uid.clone();
            }
        }
    }
}
