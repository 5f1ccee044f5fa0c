//! `plan(desired, observed) -> actions`: the next actions of a pod's worker while the pod may run.
//!
//! Pure: no clock, no I/O. The order of the actions is the order in which they are executed, one
//! after the other; the work of one `SyncPod` of the kubelet is one plan here. The decisions follow
//! upstream's `computePodActions`, so that either agent continues where the other stopped:
//!
//! 1. no usable sandbox: kill the remaining containers, create one, start the first init container
//!    or, without init containers, every main container;
//! 2. sandbox fine: ephemeral containers, then init containers and sidecars (`plan_init`), then,
//!    once the pod is initialised, main containers;
//! 3. nothing runs and nothing will: kill the pod's remains (sidecars, sandbox).
//!
//! A container that has to wait (crash loop, image back-off) is not in the actions but in `held`;
//! it holds up no other one. Nothing here may
//! start a container while an older attempt of it runs.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go computePodActions, SyncPod

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use serde::{Deserialize, Serialize};

use crate::fnv::Fnv;
use crate::observed::{ObservedContainer, ObservedPod, RunState};
use crate::resize::{ContainerUpdate, PodResources, ResizeAction, change};
use crate::sync::backoff::{BackoffKey, CrashLoop, Pauses};
use crate::sync::plan_init::plan_init;
use crate::sync::restart;
use pintle_api_types::ids::{ContainerId, ContainerKind, Mono, SandboxId};
use pintle_api_types::pod;
use pintle_api_types::pod::restart::{RestartPolicy, pod_policy};

/// Why a container is killed; decides its grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillReason {
    /// Its definition changed, its pod ends, its hook failed.
    Other,
    /// The liveness probe failed.
    Liveness,
    /// The startup probe failed.
    Startup,
    /// The pod restarts in place.
    RestartAll,
}

/// Numbers that change while the pod runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodResize {
    /// Containers that are updated as they run.
    pub updates: Vec<ContainerUpdate>,
    /// The pod's own numbers change beyond the needs of the updates.
    pub pod_changes: bool,
    /// Requirements at pod level that are in force afterwards.
    pub of_pod: Option<ResourceRequirements>,
}

/// One action. Actions of a plan are executed in order; see `Action::aborts_sync`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Action {
    /// Make cgroup, directories and volumes ready. Idempotent.
    Prepare,
    /// Write changed files in volumes again.
    Refresh,
    /// Stop every container of the pod in its stop order, then every sandbox.
    KillPod {
        /// Grace period in seconds for every container; `None` takes each container's own.
        grace_seconds: Option<i64>,
    },
    /// Stop one container.
    KillContainer {
        /// Its id.
        id: ContainerId,
        /// Its name.
        name: String,
        /// Text of the event.
        message: String,
        /// Why, for the grace period.
        reason: KillReason,
    },
    /// Remove one dead container from the runtime.
    RemoveContainer {
        /// Its id.
        id: ContainerId,
        /// Its name.
        name: String,
        /// Keep its log files.
        keep_logs: bool,
    },
    /// Create the pod's sandbox.
    CreateSandbox {
        /// `metadata.attempt`.
        attempt: u32,
        /// The sandbox that it replaces, for the event `SandboxChanged`.
        replaces: Option<SandboxId>,
    },
    /// Pull the image if needed, create, start, run postStart.
    StartContainer {
        /// Its name.
        name: String,
        /// The list that contains it.
        kind: ContainerKind,
        /// Restart count of the new attempt; `None` when the runtime knows no earlier attempt, so
        /// that the log files decide.
        restart_count: Option<u32>,
        /// The sandbox; `None` when it is created earlier in the same plan.
        sandbox: Option<SandboxId>,
    },
    /// Bring running containers and the pod's cgroup to the allocated resources.
    ResizePod(Box<PodResize>),
    /// Remove a sandbox that is not ready and has no container.
    RemoveSandbox {
        /// Its id.
        id: SandboxId,
    },
    /// After the pod's end: unmount its volumes and remove its cgroup.
    Teardown,
    /// After the pod is gone from its source: remove containers, sandboxes, logs, directories.
    Cleanup,
}

impl Action {
    /// True when a failure makes the rest of the plan pointless: later actions build on this one.
    pub fn aborts_sync(&self) -> bool {
        !matches!(
            self,
            Self::StartContainer {
                kind: ContainerKind::Main | ContainerKind::Sidecar | ContainerKind::Ephemeral,
                ..
            } | Self::RemoveContainer { keep_logs: false, .. }
                | Self::RemoveSandbox { .. }
                | Self::Refresh
                | Self::ResizePod(_)
        )
    }

    /// Short name for timeline and logs.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Prepare => "Prepare",
            Self::Refresh => "Refresh",
            Self::KillPod { .. } => "KillPod",
            Self::KillContainer { .. } => "KillContainer",
            Self::RemoveContainer { .. } => "RemoveContainer",
            Self::RemoveSandbox { .. } => "RemoveSandbox",
            Self::CreateSandbox { .. } => "CreateSandbox",
            Self::StartContainer { .. } => "StartContainer",
            Self::ResizePod(_) => "ResizePod",
            Self::Teardown => "Teardown",
            Self::Cleanup => "Cleanup",
        }
    }

    /// The container that the action is about.
    pub fn container(&self) -> Option<&str> {
        match self {
            Self::KillContainer { name, .. }
            | Self::RemoveContainer { name, .. }
            | Self::StartContainer { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// Results of probes as the plan needs them; absent means not known yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeVerdicts {
    /// Liveness: `Some(false)` requests a restart.
    pub liveness: Option<bool>,
    /// Startup: `Some(false)` requests a restart, `Some(true)` lets the next init container start.
    pub startup: Option<bool>,
}

/// Input of `plan`.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// The pod as desired.
    pub pod: &'a Pod,
    /// Its record from the runtime.
    pub observed: &'a ObservedPod,
    /// Probe results by container id.
    pub probes: &'a BTreeMap<ContainerId, ProbeVerdicts>,
    /// Crash-loop table.
    pub backoff: &'a CrashLoop,
    /// When each dead container ended.
    pub ends: &'a BTreeMap<ContainerId, Mono>,
    /// Containers that could not be started and wait before the next attempt.
    pub pauses: &'a Pauses,
    /// The resources in force of its containers.
    pub actuated: &'a PodResources,
    /// How many ends of each container stay in the runtime, one at least.
    pub ends_kept: usize,
    /// True while the pod restarts all its containers in place.
    pub restart_all: bool,
    /// The time, for waits.
    pub now: Mono,
}

/// A container that has to wait before its next start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayedContainer {
    /// Container name.
    pub name: String,
    /// Until when.
    pub until: Mono,
    /// The whole wait in its crash loop, for the message; `None` when it could not be started,
    /// which its status shows.
    pub wait: Option<Duration>,
}

/// The actions to start now and the waits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SyncPlan {
    /// In order.
    pub actions: Vec<Action>,
    /// Waiting for their back-off.
    pub held: Vec<DelayedContainer>,
}

impl SyncPlan {
    /// True when there is nothing to do now.
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }
}

/// The target state of a pod's container lists; filled by the functions below and turned into
/// actions at the end.
#[derive(Debug, Default)]
pub struct TargetLists<'a> {
    pub(crate) kill_pod: bool,
    pub(crate) kill: Vec<Action>,
    pub(crate) start: Vec<(&'a Container, ContainerKind)>,
    pub(crate) updates: Vec<ContainerUpdate>,
    /// A container restarts because its resources changed.
    pub restarts: bool,
}

/// Decides the next actions of a pod that may run.
pub fn plan(input: &PlanInput<'_>) -> SyncPlan {
    let Some(spec) = input.pod.spec.as_ref() else { return SyncPlan::default() };
    if pod::is_deleted(input.pod) {
        return SyncPlan { actions: kill_remains(input.observed), held: Vec::new() };
    }
    if input.restart_all {
        let reset = reset_containers(spec, input.observed);
        if !reset.is_empty() {
            return SyncPlan { actions: reset, held: Vec::new() };
        }
    }
    match sandbox_change(spec, input.observed) {
        Some(change) => plan_new_sandbox(input, spec, change),
        None => plan_in_sandbox(input, spec),
    }
}

/// Why and how a sandbox has to be made.
#[derive(Debug, PartialEq, Eq)]
struct SandboxChange {
    attempt: u32,
    replaces: Option<SandboxId>,
}

// k8s: pkg/kubelet/kuberuntime/util/util.go PodSandboxChanged
fn sandbox_change(spec: &PodSpec, observed: &ObservedPod) -> Option<SandboxChange> {
    let Some(newest) = observed.newest_sandbox() else {
        return Some(SandboxChange { attempt: 0, replaces: None });
    };
    let host_network = spec.host_network.unwrap_or(false);
    let several_ready = observed.sandboxes.iter().filter(|s| s.ready).count() > 1;
    let attempt = newest.attempt + 1;
    if newest.ready && !several_ready && newest.host_network != host_network {
        return Some(SandboxChange { attempt, replaces: None });
    }
    let without_ip = !host_network && newest.ips.is_empty();
    (several_ready || !newest.ready || without_ip)
        .then(|| SandboxChange { attempt, replaces: Some(newest.id.clone()) })
}

fn plan_new_sandbox(input: &PlanInput<'_>, spec: &PodSpec, change: SandboxChange) -> SyncPlan {
    let observed = input.observed;
    let ends_here = pod_policy(spec) == RestartPolicy::Never
        && change.attempt != 0
        && !observed.containers.is_empty();
    let start: Vec<_> =
        spec.containers.iter().filter(|c| !succeeded_once(c, spec, observed)).collect();
    if ends_here || (start.is_empty() && any_main_created(spec, observed)) {
        return SyncPlan { actions: kill_remains(observed), held: Vec::new() };
    }
    let mut actions = kill_remains(observed);
    let init: Vec<_> = spec.init_containers.iter().flatten().collect();
    for container in &init {
        actions.extend(observed.attempts(&container.name).map(|old| remove(old, false)));
    }
    actions.push(Action::Prepare);
    actions
        .push(Action::CreateSandbox { attempt: change.attempt, replaces: change.replaces.clone() });
    let wanted: Vec<(&Container, ContainerKind)> = match init.first() {
        Some(first) => vec![(*first, pod::containers::init_kind(first))],
        None => start.into_iter().map(|c| (c, ContainerKind::Main)).collect(),
    };
    let mut plan = SyncPlan { actions, held: Vec::new() };
    append_starts(&mut plan, input, &wanted, None);
    plan
}

fn plan_in_sandbox(input: &PlanInput<'_>, spec: &PodSpec) -> SyncPlan {
    let observed = input.observed;
    let mut wanted = TargetLists::default();
    let ephemeral = ephemeral_to_start(spec, observed);
    let initialised = plan_init(input, spec, &mut wanted);
    if initialised && !wanted.kill_pod {
        plan_main(input, spec, &mut wanted);
    }
    if wanted.kill_pod {
        return SyncPlan { actions: kill_remains(observed), held: Vec::new() };
    }
    let mut plan = SyncPlan { actions: std::mem::take(&mut wanted.kill), held: Vec::new() };
    plan.actions.extend(stale_attempts(spec, input));
    let sandbox = observed.newest_sandbox().map(|s| s.id.clone());
    append_ephemeral(&mut plan, input, &ephemeral, sandbox.as_ref());
    // Before anything starts: a sidecar that starts with more CPU than its pod has is refused by
    // the kernel. The kubelet resizes after the init containers and restarts such a one twice.
    plan.actions.extend(pod_resize(input, spec, &mut wanted, initialised));
    append_starts(&mut plan, input, &wanted.start, sandbox.as_ref());
    if plan.actions.iter().any(|a| matches!(a, Action::StartContainer { .. })) {
        plan.actions.insert(0, Action::Prepare);
    }
    plan
}

fn plan_main<'a>(input: &PlanInput<'_>, spec: &'a PodSpec, wanted: &mut TargetLists<'a>) {
    let observed = input.observed;
    let mut kept = 0;
    let mut starts = 0;
    for container in &spec.containers {
        let latest = observed.latest(&container.name);
        let Some(running) = latest.filter(|c| c.state == RunState::Running) else {
            if restart::should_start(container, input.pod, observed) {
                starts += 1;
                wanted.start.push((container, ContainerKind::Main));
                match latest {
                    Some(c) if c.state == RunState::Unknown => {
                        wanted.kill.push(kill_unknown(c, "Container is in"));
                    }
                    Some(c) if c.state == RunState::Created => wanted.kill.push(remove(c, true)),
                    _ => {}
                }
            }
            continue;
        };
        // Its end is already published and may be final: the list that shows the end decides.
        if running.certain_end().is_some() {
            kept += 1;
            continue;
        }
        let mut restart = restart::returns_after_kill(container, spec);
        let verdict = input.probes.get(&running.id).copied().unwrap_or_default();
        let (message, reason) = if definition_changed(container, running) {
            restart = true;
            (format!("Container {} definition changed", container.name), KillReason::Other)
        } else if verdict.liveness == Some(false) {
            (format!("Container {} failed liveness probe", container.name), KillReason::Liveness)
        } else if verdict.startup == Some(false) {
            (format!("Container {} failed startup probe", container.name), KillReason::Startup)
        } else if resize(input, container, running, wanted) {
            kept += 1;
            continue;
        } else {
            starts += 1;
            wanted.start.push((container, ContainerKind::Main));
            continue;
        };
        let message = if restart { format!("{message}, will be restarted") } else { message };
        if restart {
            starts += 1;
            wanted.start.push((container, ContainerKind::Main));
        }
        wanted.kill.push(kill(running, message, reason));
    }
    if kept == 0 && starts == 0 {
        wanted.kill_pod = true;
    }
}

/// Adds the update that the running container needs to reach its allocated resources; false when it
/// has to restart for it, which the caller does.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go computePodResizeAction
pub fn resize(
    input: &PlanInput<'_>,
    container: &Container,
    running: &ObservedContainer,
    wanted: &mut TargetLists<'_>,
) -> bool {
    match change::of_container(input.pod, container, &running.id, input.actuated) {
        ResizeAction::None => {}
        ResizeAction::Update(update) => wanted.updates.push(*update),
        ResizeAction::Restart => {
            let message = format!("Container {} resize requires restart", container.name);
            wanted.kill.push(kill(running, message, KillReason::Other));
            wanted.restarts = true;
            return false;
        }
    }
    true
}

/// The action for all that changes in place.
fn pod_resize(
    input: &PlanInput<'_>,
    spec: &PodSpec,
    wanted: &mut TargetLists<'_>,
    initialised: bool,
) -> Option<Action> {
    let level = initialised && change::pod_level_differs(input.pod, input.actuated);
    let updates = std::mem::take(&mut wanted.updates);
    let pod_changes = wanted.restarts || level;
    if updates.is_empty() && !pod_changes {
        return None;
    }
    let of_pod = spec.resources.clone();
    Some(Action::ResizePod(Box::new(PodResize { updates, pod_changes, of_pod })))
}

/// Ephemeral containers are started once each and never again.
fn ephemeral_to_start(spec: &PodSpec, observed: &ObservedPod) -> Vec<String> {
    spec.ephemeral_containers
        .iter()
        .flatten()
        .filter(|c| observed.latest(&c.name).is_none())
        .map(|c| c.name.clone())
        .collect()
}

fn append_ephemeral(
    plan: &mut SyncPlan,
    input: &PlanInput<'_>,
    names: &[String],
    sandbox: Option<&SandboxId>,
) {
    for name in names {
        if let Some(held) = paused(input, name) {
            plan.held.push(held);
            continue;
        }
        plan.actions.push(Action::StartContainer {
            name: name.clone(),
            kind: ContainerKind::Ephemeral,
            restart_count: None,
            sandbox: sandbox.cloned(),
        });
    }
}

/// Appends starts in order; a start in back-off is held, and a held init container holds all later
/// ones.
fn append_starts(
    plan: &mut SyncPlan,
    input: &PlanInput<'_>,
    wanted: &[(&Container, ContainerKind)],
    sandbox: Option<&SandboxId>,
) {
    for (container, kind) in wanted {
        if let Some(held) = held(input, container) {
            plan.held.push(held);
            if *kind == ContainerKind::Init {
                break;
            }
            continue;
        }
        let restart_count = input.observed.latest(&container.name).map(|c| c.restart_count + 1);
        plan.actions.push(Action::StartContainer {
            name: container.name.clone(),
            kind: *kind,
            restart_count,
            sandbox: sandbox.cloned(),
        });
    }
}

fn held(input: &PlanInput<'_>, container: &Container) -> Option<DelayedContainer> {
    // The failure of its last start is shown until the next try.
    paused(input, &container.name).or_else(|| in_crash_loop(input, container))
}

fn in_crash_loop(input: &PlanInput<'_>, container: &Container) -> Option<DelayedContainer> {
    let dead = input.observed.attempts(&container.name).find(|c| c.state == RunState::Exited)?;
    let ended_at = *input.ends.get(&dead.id)?;
    let (until, wait) = input.backoff.held_until(key(container), ended_at, input.now)?;
    Some(DelayedContainer { name: container.name.clone(), until, wait: Some(wait) })
}

fn paused(input: &PlanInput<'_>, name: &str) -> Option<DelayedContainer> {
    let until = input.pauses.get(name)?.until;
    (input.now < until).then(|| DelayedContainer { name: name.to_owned(), until, wait: None })
}

/// The crash-loop key of a container: a new image or new resources start afresh.
pub fn key(container: &Container) -> BackoffKey<'_> {
    let mut print = Fnv::default().text(container.image.as_deref().unwrap_or_default());
    if let Some(resources) = &container.resources {
        for (name, quantity) in resources.limits.iter().chain(&resources.requests).flatten() {
            print = print.text(name).text(&quantity.0);
        }
    }
    BackoffKey { name: &container.name, fingerprint: print.number() }
}

/// Kills the rest of a pod; nothing when nothing is left.
fn kill_remains(observed: &ObservedPod) -> Vec<Action> {
    let left = observed.any_running() || observed.sandboxes.iter().any(|s| s.ready);
    if left { vec![Action::KillPod { grace_seconds: None }] } else { Vec::new() }
}

/// Dead attempts beyond those of each container that may stay: only the last end is useful.
// k8s: pkg/kubelet/pod_container_deletor.go getContainersToDeleteInPod
fn stale_attempts(spec: &PodSpec, input: &PlanInput<'_>) -> Vec<Action> {
    let names = spec.init_containers.iter().flatten().chain(&spec.containers).map(|c| &c.name);
    names
        .flat_map(|name| {
            input
                .observed
                .attempts(name)
                .filter(|c| matches!(c.state, RunState::Exited | RunState::Unknown))
                .skip(input.ends_kept.max(1))
                .filter(|c| c.state == RunState::Exited)
        })
        .map(|old| remove(old, false))
        .collect()
}

/// Restart in place: every container is killed and removed, the requesting ones last.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go getContainersToReset
fn reset_containers(spec: &PodSpec, observed: &ObservedPod) -> Vec<Action> {
    let lists = [spec.containers.as_slice(), spec.init_containers.as_deref().unwrap_or_default()];
    let mut actions = Vec::new();
    for sources in [false, true] {
        for container in lists.iter().copied().flatten() {
            for old in observed.attempts(&container.name) {
                if restart::asks_restart_all(container, old) != sources {
                    continue;
                }
                if old.state != RunState::Exited {
                    actions.push(kill(old, "killing".to_owned(), KillReason::RestartAll));
                }
                actions.push(remove(old, true));
            }
        }
    }
    actions
}

pub(crate) fn kill(container: &ObservedContainer, message: String, reason: KillReason) -> Action {
    let (id, name) = (container.id.clone(), container.name.clone());
    Action::KillContainer { id, name, message, reason }
}

/// A container of unknown state may still run: it is killed before another one is started.
pub(crate) fn kill_unknown(container: &ObservedContainer, subject: &str) -> Action {
    let message = format!("{subject} \"unknown\" state, try killing it before restart");
    kill(container, message, KillReason::Other)
}

/// Removal of a dead attempt, or of one that was created and never started: its start may still be
/// under way in the runtime, so it is removed before the next attempt is created.
pub fn remove(container: &ObservedContainer, keep_logs: bool) -> Action {
    let (id, name) = (container.id.clone(), container.name.clone());
    Action::RemoveContainer { id, name, keep_logs }
}

/// True when the container's image or name differs from those it was created with.
pub(crate) fn definition_changed(container: &Container, observed: &ObservedContainer) -> bool {
    observed.hash.is_some_and(|hash| hash != pod::hash::container_hash(container))
}

/// True for a container that ended well and runs to success only once.
fn succeeded_once(container: &Container, spec: &PodSpec, observed: &ObservedPod) -> bool {
    let once = match container.restart_policy.as_deref() {
        Some(policy) => policy == "OnFailure",
        None => pod_policy(spec) == RestartPolicy::OnFailure,
    };
    once && observed
        .latest(&container.name)
        .is_some_and(|c| c.state == RunState::Exited && c.exit_code == 0)
}

// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go HasAnyRegularContainerCreated
fn any_main_created(spec: &PodSpec, observed: &ObservedPod) -> bool {
    spec.containers
        .iter()
        .any(|c| observed.latest(&c.name).is_some_and(|c| c.state != RunState::Unknown))
}

#[cfg(test)]
mod proptests;
#[cfg(test)]
mod tests;
