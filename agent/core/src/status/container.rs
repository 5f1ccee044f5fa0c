//! One container's status from its spec, its newest two instances and its last status.
//!
//! Input: a `StatusSubject` (spec, kind, last status) within a `DeriveInput`. Output:
//! `ContainerStatus`. The runtime's answer counts; lost facts come from the kernel's evidence
//! (`ended`), and an end that neither knows is reported as unknown, with exit code 137, never
//! guessed to be a success. Messages are cut here, since only here the number of containers that
//! share the bound is known.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, VolumeMount,
    VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::ended::{ContainerEnd, ended};
use super::{DeriveInput, first_by, resources, restarting};
use crate::observed::{ObservedContainer, ObservedMount, RunState};
use crate::probe::adopt;
use crate::types::is_from_before;
use pintle_api_types::ids::{ContainerId, ContainerKind, UnixNanos};
use pintle_api_types::pod::{self, containers, restart};

/// Reason of an end that was not observed.
const REASON_UNKNOWN: &str = "ContainerStatusUnknown";
/// Exit code of an end that was not observed.
const EXIT_UNKNOWN: i32 = 137;
/// Why a finished pod's container has no other status.
const MESSAGE_LOST: &str = "The container could not be located when the pod was terminated";
/// Why a container that ran is missing from the runtime.
const MESSAGE_GONE: &str = "The container could not be located when the pod was deleted.  \
                            The container used to be Running";
/// Why an init container without a trace counts as done.
const MESSAGE_INIT_DONE: &str = "Unable to get init container status from container runtime and \
                                 pod has been initialized, treat it as exited normally";
/// Bytes of all termination messages of a pod together.
// k8s: pkg/kubelet/container/runtime.go MaxPodTerminationMessageLogLength
const MESSAGES_BYTES_MAX: usize = 12 * 1024;

/// The subject container of a status.
#[derive(Clone, Copy)]
pub(crate) struct StatusSubject<'a> {
    pub container: &'a Container,
    pub kind: ContainerKind,
    pub old: Option<&'a ContainerStatus>,
    pub record: &'a PodFacts<'a>,
}

/// The facts that all containers of a pod share.
pub(crate) struct PodFacts<'a> {
    /// The newest two attempts of each name.
    attempts: HashMap<&'a str, [Option<&'a ObservedContainer>; 2]>,
    /// The pod restarts all its containers in place.
    restarting: bool,
    main_created: bool,
    /// Bytes of one container's termination message.
    message_bytes_max: usize,
}

impl<'a> PodFacts<'a> {
    pub(crate) fn new(input: &DeriveInput<'a>, restarting: bool) -> Self {
        let spec = pod::spec(input.pod);
        let mut attempts: HashMap<&str, [Option<&ObservedContainer>; 2]> = HashMap::new();
        for instance in input.observed.into_iter().flat_map(|observed| &observed.containers) {
            let known = attempts.entry(&instance.name).or_default();
            if let Some(free) = known.iter_mut().find(|attempt| attempt.is_none()) {
                *free = Some(instance);
            }
        }
        let main_created = spec.containers.iter().any(|main| attempts.contains_key(&*main.name));
        let ephemeral = spec.ephemeral_containers.iter().flatten().count();
        let count = containers::all(spec).count() + ephemeral;
        let message_bytes_max = MESSAGES_BYTES_MAX / count.max(1);
        Self { attempts, restarting, main_created, message_bytes_max }
    }
}

/// The status of one container.
// k8s: pkg/kubelet/kubelet_pods.go convertToAPIContainerStatuses
pub(crate) fn status(input: &DeriveInput, subject: &StatusSubject) -> ContainerStatus {
    let attempts = subject.record.attempts.get(&*subject.container.name);
    let [newest, older] = attempts.copied().unwrap_or_default();
    let mut status = match newest {
        Some(newest) => seen(input, subject, newest),
        None => unseen(input, subject),
    };
    let older =
        older.and_then(|older| seen(input, &StatusSubject { old: None, ..*subject }, older).state);
    // An end of the newest attempt itself, if it is lost or no longer known, is later than the end
    // of the attempt before.
    let is_its = |last: &ContainerState| {
        let end = last.terminated.as_ref();
        is_lost(last) || end.is_some_and(|end| end.container_id == status.container_id)
    };
    let newer = newest.is_some_and(|newest| newest.state == RunState::Unknown)
        && status.last_state.as_ref().is_some_and(is_its);
    if let Some(end) = older.filter(|state| state.terminated.is_some() && !newer) {
        status.last_state = Some(end);
    }
    apply_waiting(input, subject, newest, &mut status);
    apply_probes(input, subject, newest, &mut status);
    status.last_state.get_or_insert_default();
    for state in [&mut status.state, &mut status.last_state].into_iter().flatten() {
        cut_message(state, subject.record.message_bytes_max);
    }
    status
}

/// The terminated state of a container with an unobserved end.
pub(crate) fn lost() -> ContainerState {
    unknown_end(REASON_UNKNOWN, MESSAGE_LOST)
}

fn is_lost(state: &ContainerState) -> bool {
    state.terminated.as_ref().is_some_and(|end| end.message.as_deref() == Some(MESSAGE_LOST))
}

fn unknown_reason(subject: &StatusSubject) -> &'static str {
    if subject.record.restarting { restarting::REASON } else { REASON_UNKNOWN }
}

fn unknown_end(reason: &str, message: &str) -> ContainerState {
    terminated(ContainerStateTerminated {
        exit_code: EXIT_UNKNOWN,
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..ContainerStateTerminated::default()
    })
}

pub(crate) fn terminated(end: ContainerStateTerminated) -> ContainerState {
    ContainerState { terminated: Some(end), ..ContainerState::default() }
}

fn waiting(reason: Option<&str>, message: Option<&str>) -> ContainerState {
    let text = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason: text(reason), message: text(message) }),
        ..ContainerState::default()
    }
}

/// Status of a container that the runtime has an instance of.
fn seen(
    input: &DeriveInput,
    subject: &StatusSubject,
    instance: &ObservedContainer,
) -> ContainerStatus {
    let old = subject.old;
    let id = qualified_id(input, &instance.id);
    let mut status = ContainerStatus {
        name: instance.name.clone(),
        image: instance.image.clone(),
        image_id: instance.image_id.clone(),
        restart_count: i32::try_from(instance.restart_count).unwrap_or(i32::MAX),
        volume_mounts: volume_mounts(input, subject, Some(instance)),
        user: user(instance),
        stop_signal: instance.applied.stop_signal.clone().filter(|_| input.node.stop_signals),
        ..ContainerStatus::default()
    };
    if let Some(old) = old {
        status.restart_count = status.restart_count.max(old.restart_count);
        status.last_state = carried_last_state(old, &id);
        // The count comes from the log files after a restart in place; they may be gone, too. The
        // number of an attempt that was made, never started and removed is given again: as
        // upstream's, this count has it twice then.
        // k8s: pkg/kubelet/kubelet_pods.go convertToAPIContainerStatuses
        let follows_end = ended_as(old).is_some() && old.container_id.as_deref() != Some(&id);
        if follows_end && instance.state == RunState::Running {
            status.restart_count = status.restart_count.max(old.restart_count.saturating_add(1));
        }
    }
    let end = ended(instance);
    let was_running = old.and_then(|old| old.state.as_ref()?.running.as_ref()).is_some();
    status.state = Some(match (instance.state, end) {
        (_, Some(end)) => terminated_state(instance, end, &id),
        (RunState::Running, None) => ContainerState {
            running: Some(ContainerStateRunning { started_at: time(instance.started_at) }),
            ..ContainerState::default()
        },
        (RunState::Unknown, None) if was_running => {
            let next = old.map_or(0, |old| old.restart_count).saturating_add(1);
            status.restart_count = status.restart_count.max(next);
            unknown_end(unknown_reason(subject), MESSAGE_LOST)
        }
        // The reported end stays, because nothing newer is known about this container.
        (RunState::Unknown, None) => same_end(old, &id).unwrap_or_else(|| waiting(None, None)),
        (RunState::Created, None) => not_started(input, subject, instance),
        (RunState::Exited, None) => waiting(None, None),
    });
    status.resources = Some(resources::of_container(subject, instance, &id, input.actuated));
    status.allocated_resources = subject
        .container
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.clone())
        .filter(|requests| !requests.is_empty());
    status.container_id = Some(id);
    status
}

/// State of a container between its creation and its start: the state from before its creation. The
/// kubelet derives nothing between the two, so clients expect no wait without a reason.
fn not_started(
    input: &DeriveInput,
    subject: &StatusSubject,
    instance: &ObservedContainer,
) -> ContainerState {
    if instance.restart_count == 0 {
        return waiting(Some(first_reason(input)), None);
    }
    let old = subject.old.and_then(|old| old.state.as_ref()?.waiting.as_ref());
    let (reason, message) =
        old.map_or((None, None), |old| (old.reason.as_deref(), old.message.as_deref()));
    waiting(reason, message)
}

/// Why a container waits that nothing has happened to yet.
fn first_reason(input: &DeriveInput) -> &'static str {
    let has_init = pod::spec(input.pod).init_containers.iter().flatten().next().is_some();
    if has_init { "PodInitializing" } else { "ContainerCreating" }
}

/// `lastState` that the runtime no longer proves.
fn carried_last_state(old: &ContainerStatus, id: &str) -> Option<ContainerState> {
    let same = old.container_id.as_deref() == Some(id);
    let last = || old.last_state.as_ref()?.terminated.as_ref();
    let end = if same { None } else { ended_as(old) };
    end.or_else(last).cloned().map(terminated)
}

/// The end that the last status gives to the same instance.
fn same_end(old: Option<&ContainerStatus>, id: &str) -> Option<ContainerState> {
    let old = old.filter(|old| old.container_id.as_deref() == Some(id))?;
    ended_as(old).cloned().map(terminated)
}

pub(super) fn ended_as(old: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    old.state.as_ref()?.terminated.as_ref()
}

fn terminated_state(instance: &ObservedContainer, end: ContainerEnd, id: &str) -> ContainerState {
    terminated(ContainerStateTerminated {
        container_id: Some(id.to_owned()),
        exit_code: end.exit_code,
        reason: Some(end.reason).filter(|reason| !reason.is_empty()),
        message: Some(end.message).filter(|message| !message.is_empty()),
        started_at: time(instance.started_at),
        finished_at: time(end.finished_at),
        signal: None,
    })
}

/// Status of a container without a record in the runtime.
fn unseen(input: &DeriveInput, subject: &StatusSubject) -> ContainerStatus {
    let old_state = subject.old.and_then(|old| old.state.as_ref());
    let waits = old_state.is_some_and(|state| state.waiting.is_some());
    if let Some(old) = subject.old.filter(|_| subject.record.restarting) {
        let mut status = old.clone();
        if !waits {
            restarting::removed(&mut status, old);
        }
        return status;
    }
    if let Some(old) = subject.old.filter(|_| old_state.is_some_and(|s| s.terminated.is_some())) {
        return old.clone();
    }
    let mut status = ContainerStatus {
        name: subject.container.name.clone(),
        image: subject.container.image.clone().unwrap_or_default(),
        state: Some(waiting(Some(first_reason(input)), None)),
        volume_mounts: volume_mounts(input, subject, None),
        ..ContainerStatus::default()
    };
    if let Some(old) = subject.old {
        status.restart_count = old.restart_count;
        status.last_state.clone_from(&old.last_state);
    }
    if subject.kind == ContainerKind::Init && subject.record.main_created {
        status.state = Some(terminated(ContainerStateTerminated {
            reason: Some("Completed".to_owned()),
            message: Some(MESSAGE_INIT_DONE.to_owned()),
            ..ContainerStateTerminated::default()
        }));
        if subject.record.restarting {
            let done = status.clone();
            restarting::removed(&mut status, &done);
        }
        return status;
    }
    let ran = old_state.is_some_and(|state| state.running.is_some());
    let has_end = status.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
    // It ran and is gone: showing it as waiting only would send the pod back to Pending.
    if ran && !has_end && input.observed.is_some() {
        status.last_state = Some(unknown_end(REASON_UNKNOWN, MESSAGE_GONE));
        status.restart_count += i32::from(!pod::is_deleted(input.pod));
    }
    status
}

/// The reason for which the next start waits, if there is one.
fn apply_waiting(
    input: &DeriveInput,
    subject: &StatusSubject,
    newest: Option<&ObservedContainer>,
    status: &mut ContainerStatus,
) {
    let Some(why) = input.waiting.get(&subject.container.name) else {
        return;
    };
    if !will_start(input, subject, newest) {
        return;
    }
    let state = status.state.take().unwrap_or_default();
    if state.terminated.is_some() {
        status.last_state = Some(state);
    }
    status.state = Some(waiting(Some(&why.reason), Some(&why.message)));
}

/// True when the container is to be started at the next opportunity.
/// Unlike upstream, a pod that is being stopped for whatever reason starts nothing: a crash-looping
/// container of an evicted pod then keeps its real exit code instead of becoming "unknown".
// k8s: pkg/kubelet/container/helpers.go ShouldContainerBeRestarted
fn will_start(
    input: &DeriveInput,
    subject: &StatusSubject,
    newest: Option<&ObservedContainer>,
) -> bool {
    if pod::is_deleted(input.pod) || input.lifecycle != super::Lifecycle::Syncing {
        return false;
    }
    let Some(newest) = newest else {
        return true;
    };
    match ended(newest) {
        Some(end) if subject.kind == ContainerKind::Init && end.exit_code == 0 => false,
        Some(end) => restart::may_restart(subject.container, pod::spec(input.pod), end.exit_code),
        None => newest.state != RunState::Running,
    }
}

/// `started` and `ready`.
// k8s: pkg/kubelet/prober/prober_manager.go UpdatePodStatus
fn apply_probes(
    input: &DeriveInput,
    subject: &StatusSubject,
    newest: Option<&ObservedContainer>,
    status: &mut ContainerStatus,
) {
    let state = status.state.as_ref();
    if subject.kind == ContainerKind::Ephemeral {
        (status.ready, status.started) = (false, None);
        return;
    }
    let running = state.is_some_and(|state| state.running.is_some());
    let running = newest.filter(|_| running);
    let started = running.is_some_and(|newest| has_started(input, subject, newest));
    status.started = Some(started);
    status.ready = match subject.kind {
        ContainerKind::Init => state
            .and_then(|state| state.terminated.as_ref())
            .is_some_and(|terminated| terminated.exit_code == 0),
        _ => started && running.is_some_and(|newest| is_ready(input, subject, newest)),
    };
}

fn has_started(input: &DeriveInput, subject: &StatusSubject, newest: &ObservedContainer) -> bool {
    if let Some(started) = input.probes.started.get(&newest.id) {
        return *started;
    }
    // Without a probe a container has started once it runs, and one that had started stays so.
    if subject.container.startup_probe.is_none() {
        return true;
    }
    let id = qualified_id(input, &newest.id);
    match subject.old.filter(|old| old.container_id.as_deref() == Some(&id)) {
        Some(old) => old.started == Some(true),
        // A static pod's status is nowhere while the agent starts.
        None => {
            let agent_started_at = input.node.agent_started_at;
            let times = adopt::AdoptTimes { agent_started_at, now: input.now };
            adopt::outlived_its_start(subject.container, newest, times)
        }
    }
}

/// Until its probe has run, a container of an earlier agent stays as ready as it was.
// k8s: pkg/kubelet/prober/prober_manager.go setReadyStateOnKubeletRestart
fn is_ready(input: &DeriveInput, subject: &StatusSubject, newest: &ObservedContainer) -> bool {
    if let Some(probed) = input.probes.ready.get(&newest.id) {
        return *probed;
    }
    let status = input.pod.status.as_ref();
    let was_unready = || {
        let mut conditions = status.and_then(|s| s.conditions.as_ref()).into_iter().flatten();
        conditions.any(|c| c.type_ == "Ready" && c.status != "True")
    };
    let adopted = || is_from_before(newest.started_at, input.node.agent_started_at);
    subject.container.readiness_probe.is_none() || adopted() && !was_unready()
}

/// `containerd://ID`.
pub(super) fn qualified_id(input: &DeriveInput, id: &ContainerId) -> String {
    format!("{}://{id}", input.node.runtime_name)
}

fn volume_mounts(
    input: &DeriveInput,
    subject: &StatusSubject,
    instance: Option<&ObservedContainer>,
) -> Option<Vec<VolumeMountStatus>> {
    let mounts = subject.container.volume_mounts.as_deref().unwrap_or_default();
    let created = instance.filter(|_| mounts.iter().any(wants_recursive));
    let created = created.map(|instance| first_by(&instance.mounts, |m| &m.container_path));
    let created = created.unwrap_or_default();
    let statuses = mounts.iter().map(|mount| {
        let read_only = mount.read_only == Some(true);
        let recursive = read_only.then(|| {
            let on = is_recursive(input, mount, created.get(&*mount.mount_path).copied());
            if on { "Enabled".to_owned() } else { "Disabled".to_owned() }
        });
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: read_only.then_some(true),
            recursive_read_only: recursive,
            volume_status: None,
        }
    });
    Some(statuses.collect()).filter(|statuses: &Vec<_>| !statuses.is_empty())
}

/// True when the mount is read-only with all mounts below it: as it was created, else as it will
/// be.
// k8s: pkg/kubelet/kubelet_pods.go resolveRecursiveReadOnly
fn is_recursive(input: &DeriveInput, mount: &VolumeMount, created: Option<&ObservedMount>) -> bool {
    let by_node = input.node.recursive_read_only;
    wants_recursive(mount) && created.map_or(by_node, |created| created.recursive_read_only)
}

fn wants_recursive(mount: &VolumeMount) -> bool {
    matches!(mount.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible"))
}

fn user(instance: &ObservedContainer) -> Option<ContainerUser> {
    let user = instance.applied.user.as_ref()?;
    let groups = user.supplemental_groups.clone();
    Some(ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: Some(groups).filter(|groups| !groups.is_empty()),
        }),
    })
}

/// Cuts a termination message to its share, at a character's start.
// k8s: pkg/kubelet/status/status_manager.go normalizeStatus
fn cut_message(state: &mut ContainerState, bytes_max: usize) {
    let message = state.terminated.as_mut().and_then(|end| end.message.as_mut());
    if let Some(message) = message {
        message.truncate(message.floor_char_boundary(bytes_max));
    }
}

/// A time of the API; "never" shows as the epoch, as upstream shows it.
pub(crate) fn time(at: UnixNanos) -> Option<Time> {
    Some(Time(at.to_seconds()))
}
