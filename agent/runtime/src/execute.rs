//! Executes the actions of a sync, one after the other: the effects behind `plan`.
//!
//! A sync belongs to one pod and runs in a task of its own on the main thread. Results of an
//! earlier action of the same sync (sandbox, addresses) are kept in `SyncState` for the later ones,
//! so that a pod starts without reading back in between. Waits, hooks and pulls end at once when
//! the sync is cancelled; a CRI call that creates or starts something is awaited to its end,
//! because only then is the container to stop known. At most `starts` syncs that bring pods up run
//! at once on the node (`start_permits`).

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_cluster::objects::Objects;
use pintle_agent_core::cgroup::classes::ClassShare;
use pintle_agent_core::observed::ObservedPod;
use pintle_agent_core::request::NodeContext;
use pintle_agent_core::resize::steps;
use pintle_agent_core::sync::plan::Action;
use pintle_agent_core::sync::stop_order;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::{NodeFacts, PodUid, SandboxId};
use pintle_agent_core::worker::{Failure, PodsInput};
use pintle_agent_host::cgroup::Cgroups;
use pintle_api_types::pod;
use pintle_cri::containerd::Containerd;
use pintle_cri::{Client, v1};
use pintle_daemon::tasks;
use tokio::sync::{Notify, mpsc};

use crate::event::kernel::Tracker;
use crate::hooks::Hooks;
use crate::image::{Images, PresentImage};
use crate::kill::Killer;
use crate::observed::PodReader;
use crate::start_permits::{CallFor, PAUSE_MAX, StartPermit, StartPermits, StartsUnderWay};
use crate::storage::Volumes;
use crate::users::IdUsers;

/// How long records of pods that are gone stay at most while others start or stop: longer than two
/// cores need for a hundred pods, and half of what a kubelet lets them stay.
const CLEANUP_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long they stay when none of those others completes, on a quick node: the others wait
/// themselves.
const CLEANUP_STILL_MAX: Duration = Duration::from_millis(500);

/// Ends a sync early; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Rc<(Cell<bool>, Notify)>);

impl Cancel {
    /// Requests the end of the sync.
    pub fn cancel(&self) {
        self.0.0.set(true);
        self.0.1.notify_waiters();
    }

    /// True once requested.
    pub fn is_cancelled(&self) -> bool {
        self.0.0.get()
    }

    /// Runs `work` unless the sync is cancelled before it ends.
    pub async fn unless<T>(&self, work: impl Future<Output = T>) -> Result<T, Failure> {
        let asked = self.0.1.notified();
        if self.is_cancelled() {
            return Err(Failure::cancelled());
        }
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = asked => Err(Failure::cancelled()),
        }
    }
}

/// A sync to run.
#[derive(Clone, Debug)]
pub struct SyncOrder {
    /// The pod's uid.
    pub uid: PodUid,
    /// Names the sync.
    pub ticket: u64,
    /// The pod; `None` for one that only the runtime knows.
    pub pod: Option<Arc<Pod>>,
    /// The record on which it was planned.
    pub observed: Arc<ObservedPod>,
    /// The actions.
    pub actions: Vec<Action>,
}

/// The results of earlier actions of a sync.
#[derive(Debug)]
pub(super) struct SyncState {
    /// Its turn among those that bring pods up.
    pub(super) permit: StartPermit,
    /// Sandbox made in this sync.
    pub(super) sandbox: Option<NewSandbox>,
    /// Images of image volumes, pulled once for all containers of the sync.
    pub(super) image_volumes: OnceCell<ImageVolumes>,
}

/// Ids of the images of image volumes by the volumes' names, or why they are not there.
pub(super) type ImageVolumes = std::collections::BTreeMap<String, Result<PresentImage, Failure>>;

/// A sandbox made in this sync.
#[derive(Clone, Debug)]
pub(super) struct NewSandbox {
    pub(super) id: String,
    pub(super) attempt: u32,
    pub(super) ips: Vec<std::net::IpAddr>,
}

/// Settings of the node that syncs read.
#[derive(Debug)]
pub struct ExecutorSettings {
    /// Volumes are counted by project quotas (`LocalStorageCapacityIsolationFSQuotaMonitoring`).
    pub project_quotas: bool,
    /// Path of the node's resolv.conf; `None` when the setting is empty.
    pub resolv_conf: Option<std::path::PathBuf>,
}

/// Turns of syncs that run at the same time.
#[derive(Debug)]
pub struct SyncTurns {
    /// Syncs that bring pods up.
    pub starts: StartPermits,
    /// Pods removed from the runtime.
    pub cleanups: StartPermits,
    /// Syncs with a waiter: the removal of a pod's remains has none.
    pub under_way: StartsUnderWay,
}

impl SyncTurns {
    /// Turns for as many starts and as many removals at the same time.
    pub fn new(starts: usize, cleanups: usize) -> Self {
        let (starts, cleanups) = (StartPermits::new(starts), StartPermits::new(cleanups));
        Self { starts, cleanups, under_way: StartsUnderWay::default() }
    }
}

/// Limits of the cgroups of the QoS classes.
#[derive(Debug, Default)]
pub struct ClassLimits {
    /// Requests that count for them, by pod.
    pub shares: RefCell<BTreeMap<PodUid, ClassShare>>,
    /// The turn to write them.
    pub turn: tokio::sync::Mutex<()>,
}

/// What the runtime and the kernel have that this agent did not make.
#[derive(Debug, Default)]
pub struct ForeignState {
    /// Shims that nothing belongs to.
    pub shims: RefCell<crate::shims::ShimWatch>,
    /// Cgroups with processes, of unknown pods.
    pub strangers: pintle_agent_host::cgroup::sweep::Strangers,
    /// The sandbox of each pod with logged differences from what this agent would have made.
    pub differing: RefCell<BTreeMap<PodUid, SandboxId>>,
}

/// Executes syncs.
pub struct Executor {
    /// The runtime.
    pub client: Client,
    /// Reads pods; receives requests to inspect running containers again.
    pub reader: PodReader,
    /// Images.
    pub images: Images,
    /// Objects that pods refer to by name.
    pub objects: Objects,
    /// Volumes of CSI drivers.
    pub volumes: Volumes,
    /// Stops containers.
    pub killer: Killer,
    /// Hooks.
    pub hooks: Hooks,
    /// Timeline and events.
    pub recorder: Recorder,
    /// Events about the node.
    pub node_events: pintle_agent_core::node::conditions::NodeEvents,
    /// Ids of pods with users of their own.
    pub users: IdUsers,
    /// The node's side of requests, with the facts of the start.
    pub node: NodeContext,
    /// The facts as they are now.
    pub facts: std::cell::RefCell<NodeFacts>,
    /// Cgroups; `None` without `cgroupsPerQOS`.
    pub cgroups: Option<Rc<Cgroups>>,
    /// Counters.
    pub metrics: Arc<pintle_agent_metrics::Metrics>,
    /// Kernel event source.
    pub tracker: Tracker,
    /// Settings of the node.
    pub settings: ExecutorSettings,
    /// Turns of syncs.
    pub turns: SyncTurns,
    /// The cgroups of the QoS classes.
    pub class_limits: ClassLimits,
    /// containerd's own API and its socket, when that is the runtime.
    pub containerd: Option<(Containerd, String)>,
    /// What this agent did not make.
    pub foreign: ForeignState,
}

impl Executor {
    /// Runs a sync to its end, reporting each action.
    pub async fn run(&self, order: SyncOrder, cancel: Cancel, back: &mpsc::Sender<PodsInput>) {
        let is_new = order.actions.iter().any(|a| matches!(a, Action::CreateSandbox { .. }));
        let permit = StartPermit::new(
            &self.turns.starts,
            if is_new { CallFor::New } else { CallFor::Begun },
        );
        let mut state = SyncState { permit, sandbox: None, image_volumes: OnceCell::new() };
        let mut start_guard = Some(self.turns.under_way.join());
        let own_users = |pod: &Arc<Pod>| pod::spec(pod).host_users == Some(false);
        let own_users = is_new && order.pod.as_ref().is_some_and(own_users);
        // Of a pod with user ids of its own: whether all went well since its sandbox was begun.
        let mut went_well = None;
        for (index, action) in order.actions.iter().enumerate() {
            let begun = tokio::time::Instant::now();
            if *action == Action::Cleanup {
                drop(start_guard.take());
            }
            let outcome = match cancel.is_cancelled() && !is_ending(action) {
                true => Err(Failure::cancelled()),
                false => self.act_or_fail(&order, action, &mut state, &cancel).await,
            };
            let ended = outcome.as_ref().map(|()| begun.elapsed());
            self.recorder.action(&order.uid, action, ended);
            self.metrics.action_ended(action, outcome.as_ref().err());
            let failed = outcome.is_err();
            if own_users && matches!(action, Action::CreateSandbox { .. }) {
                went_well = Some(true);
            }
            if outcome.as_ref().is_err_and(|failure| !failure.cancelled) {
                went_well = went_well.map(|_| false);
            }
            let (uid, ticket) = (order.uid.clone(), order.ticket);
            let progress = PodsInput::Progress { uid, ticket, index, outcome };
            if back.send(progress).await.is_err() || (failed && action.aborts_sync()) {
                break;
            }
        }
        // k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go SyncPod (StartedUserNamespacedPods*)
        if let Some(good) = went_well {
            self.metrics.user_namespaced_pod(good);
        }
    }

    /// Reports that a sync of one action could not begin.
    pub async fn put_off(
        &self,
        order: &SyncOrder,
        failure: Failure,
        back: &mpsc::Sender<PodsInput>,
    ) {
        let Some(action) = order.actions.first() else { return };
        self.recorder.action(&order.uid, action, Err(&failure));
        self.metrics.action_ended(action, Some(&failure));
        let (uid, ticket) = (order.uid.clone(), order.ticket);
        let progress = PodsInput::Progress { uid, ticket, index: 0, outcome: Err(failure) };
        let _ = back.send(progress).await; // fails once the driver has ended
    }

    /// A panic fails the action, which is tried again as after any failure.
    async fn act_or_fail(
        &self,
        order: &SyncOrder,
        action: &Action,
        state: &mut SyncState,
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        let acted = tasks::caught(self.act(order, action, state, cancel)).await;
        acted.unwrap_or_else(|panic| {
            tasks::counted("sync");
            tracing::error!(pod = %order.uid, action = action.verb(), "{panic}");
            Err(Failure::new("InternalError", panic.to_string()))
        })
    }

    async fn act(
        &self,
        order: &SyncOrder,
        action: &Action,
        state: &mut SyncState,
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        let observed = &*order.observed;
        match action {
            Action::KillPod { grace_seconds } => {
                let pod = order.pod.as_deref();
                cancel.unless(self.killer.kill_pod(pod, observed, *grace_seconds)).await?
            }
            Action::KillContainer { id, message, reason, .. } => {
                let Some(container) = observed.containers.iter().find(|c| c.id == *id) else {
                    return Ok(());
                };
                let pod = order.pod.as_deref();
                let grace =
                    (*reason == pintle_agent_core::sync::plan::KillReason::RestartAll).then_some(0);
                let stop = stop_order::stop_container(pod, container, *reason, grace);
                cancel.unless(self.killer.stop(observed, &stop, message, None)).await?
            }
            Action::RemoveContainer { id, keep_logs, .. } => {
                self.remove_container(observed, id, *keep_logs).await
            }
            Action::RemoveSandbox { id } => {
                let removed = self.killer.remove_sandbox(id).await;
                removed.map_err(|error| Failure::new("RemovePodSandboxError", error.to_string()))
            }
            Action::ResizePod(resize) => {
                let Some(pod) = order.pod.as_deref() else { return Ok(()) };
                let wanted = steps::ResizeOrder {
                    updates: &resize.updates,
                    pod_changes: resize.pod_changes,
                };
                let begun = tokio::time::Instant::now();
                let outcome = self.resize(order, pod, &wanted).await;
                self.metrics.resized(begun.elapsed(), outcome.is_ok());
                outcome
            }
            Action::Teardown => self.tear_down(order).await,
            Action::Cleanup => {
                let SyncTurns { starts, cleanups, under_way } = &self.turns;
                let permit = StartPermit::new(cleanups, CallFor::Begun);
                let asked = tokio::time::Instant::now();
                // With the permit: a removal that waited for one comes after starts that began
                // meanwhile. The wait for the permit counts, or removals would fall behind.
                let over = async {
                    let left = CLEANUP_WAIT_MAX.saturating_sub(asked.elapsed());
                    under_way.over(starts.wait(CLEANUP_STILL_MAX), left).await;
                };
                permit.call_within(CLEANUP_WAIT_MAX, over).await;
                permit.call(self.clean_up(order)).await
            }
            Action::Prepare
            | Action::Refresh
            | Action::CreateSandbox { .. }
            | Action::StartContainer { .. } => {
                let Some(pod) = order.pod.as_deref() else { return Ok(()) };
                self.bring_up(order, pod, action, state, cancel).await
            }
        }
    }

    async fn bring_up(
        &self,
        order: &SyncOrder,
        pod: &Pod,
        action: &Action,
        state: &mut SyncState,
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        match action {
            Action::Prepare => {
                let prepare = self.prepare(order, pod);
                cancel.unless(state.permit.call_within(PAUSE_MAX, prepare)).await?
            }
            Action::Refresh => cancel.unless(self.refresh(order, pod)).await?,
            Action::CreateSandbox { attempt, .. } => {
                state.sandbox =
                    Some(self.create_sandbox(order, pod, *attempt, &state.permit, cancel).await?);
                Ok(())
            }
            Action::StartContainer { name, kind, restart_count, .. } => {
                let start = crate::start::ContainerStart {
                    order,
                    pod,
                    name,
                    kind: *kind,
                    restart_count: *restart_count,
                    sandbox: state.sandbox.as_ref(),
                    image_volumes: &state.image_volumes,
                    permit: &state.permit,
                };
                self.start_container(&start, cancel).await
            }
            _ => Ok(()),
        }
    }

    /// Sets the node facts for containers started from now on.
    pub fn know_node(&self, facts: &NodeFacts) {
        self.facts.replace(facts.clone());
    }
}

/// The failure that keeps the last record of a pod's end from being removed.
pub fn unrecorded() -> Failure {
    let message = "the end of the pod cannot be recorded, and nothing else would tell it";
    Failure::new("CleanupError", message)
}

/// Actions that continue when the pod ends.
fn is_ending(action: &Action) -> bool {
    matches!(action, Action::Teardown | Action::Cleanup)
}

/// Status of a sandbox right after it was made.
pub(super) async fn sandbox_ips(
    client: &Client,
    id: &str,
) -> Result<Vec<std::net::IpAddr>, pintle_cri::Error> {
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
    let answer = client.pod_sandbox_status(request).await?;
    let sandbox = answer.status.as_ref().and_then(pintle_agent_core::observed::read_back::sandbox);
    Ok(sandbox.map(|(_, sandbox)| sandbox.ips).unwrap_or_default())
}

#[cfg(test)]
#[path = "execute_tests.rs"]
mod tests;
