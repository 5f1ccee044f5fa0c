//! Conditions of a pod: those that the node agent owns, and those of other writers, which it keeps.
//!
//! Input: derived container statuses, the settled phase and the last status. Output: conditions in
//! the order in which upstream writes them. A condition's transition time moves only with its
//! status, never with its reason.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::phase::{FAILED, SUCCEEDED};
use super::{DeriveInput, Statuses, restarting};
use crate::observed::ObservedPod;
use pintle_api_types::ids::ContainerKind;
use pintle_api_types::pod::{self, containers, restart};

const TRUE: &str = "True";
const FALSE: &str = "False";
/// Condition types that only the node agent writes.
// k8s: pkg/kubelet/types/pod_status.go PodConditionsByKubelet
pub(crate) const OWNED: [&str; 8] = [
    "PodScheduled",
    "Ready",
    "Initialized",
    "ContainersReady",
    "PodReadyToStartContainers",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
];
/// Condition of a pod that the node ended.
pub(crate) const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The content of a condition, before times and generation are added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Finding {
    holds: bool,
    reason: &'static str,
    message: String,
}

impl Finding {
    fn holds(holds: bool, reason: &'static str) -> Self {
        Self { holds, reason, message: String::new() }
    }
}

/// All conditions of the pod.
// k8s: pkg/kubelet/kubelet_pods.go generateAPIPodStatus
pub(super) fn all(
    input: &DeriveInput,
    previous: &PodStatus,
    statuses: &Statuses,
    phase: &str,
) -> Vec<PodCondition> {
    let api = input.pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let kept = api.or(previous.conditions.as_ref()).into_iter().flatten();
    let mut conditions = of_others(kept.cloned().collect());
    let known = previous.conditions.iter().flatten();
    if let Some(disruption) = known.into_iter().find(|c| c.type_ == DISRUPTION_TARGET) {
        conditions.retain(|c| c.type_ != DISRUPTION_TARGET);
        conditions.push(disruption.clone());
    }
    if input.lifecycle != super::Lifecycle::Terminated {
        conditions.extend(input.resize.shown());
    }
    let network = Finding::holds(sandbox_serves(input.pod, input.observed), "");
    let containers_ready = containers_ready(input.pod, statuses, phase);
    let ready = ready(input.pod, &conditions, &containers_ready);
    let found = [
        ("PodReadyToStartContainers", network),
        ("Initialized", initialized(input.pod, previous, statuses, phase)),
        ("Ready", ready),
        ("ContainersReady", containers_ready),
        ("PodScheduled", Finding::holds(true, "")),
    ];
    conditions.extend(found.into_iter().map(|(type_, f)| condition(input, previous, type_, f)));
    if input.lifecycle == super::Lifecycle::Terminated {
        keep_why_unready(previous, &mut conditions);
    }
    if restart::may_restart_all(pod::spec(input.pod)) {
        let finding = restarting(input, previous, phase);
        let condition = condition(input, previous, restarting::CONDITION, finding);
        conditions.push(PodCondition { observed_generation: None, ..condition });
    }
    conditions
}

/// Once a removed pod has its terminal phase, its conditions keep the reason why it was not ready:
/// a phase that it has only because of the removal is no reason.
// k8s: pkg/kubelet/status/status_manager.go TerminatePod, which leaves the conditions alone
fn keep_why_unready(previous: &PodStatus, conditions: &mut [PodCondition]) {
    if !super::phase::is_terminal(previous.phase.as_deref()) {
        return;
    }
    let types = ["Ready", "ContainersReady"];
    for condition in conditions.iter_mut().filter(|c| types.contains(&&*c.type_)) {
        let mut known = previous.conditions.iter().flatten();
        if let Some(old) = known.find(|c| c.type_ == condition.type_ && c.status == FALSE) {
            condition.reason.clone_from(&old.reason);
            condition.message.clone_from(&old.message);
        }
    }
}

// k8s: pkg/kubelet/status/generate.go GenerateAllContainersRestartingCondition
fn restarting(input: &DeriveInput, previous: &PodStatus, phase: &str) -> Finding {
    match phase {
        SUCCEEDED => Finding::holds(false, "PodCompleted"),
        FAILED => Finding::holds(false, "PodFailed"),
        _ if restarting::requested(input, previous) && !restarting::cleaned_up(input) => Finding {
            holds: true,
            reason: restarting::REASON_STARTED,
            message: restarting::MESSAGE_STARTED.to_owned(),
        },
        _ => Finding::default(),
    }
}

/// Conditions of other writers: all that a refused pod keeps.
// k8s: pkg/kubelet/status/status_manager.go mergePodStatus
pub(super) fn of_others(mut conditions: Vec<PodCondition>) -> Vec<PodCondition> {
    conditions.retain(|c| !OWNED.contains(&&*c.type_));
    conditions
}

/// The condition of a pod that the node ended.
pub(super) fn disrupted(input: &DeriveInput, message: &str) -> PodCondition {
    let finding =
        Finding { holds: true, reason: "TerminationByKubelet", message: message.to_owned() };
    condition(input, &PodStatus::default(), DISRUPTION_TARGET, finding)
}

fn condition(
    input: &DeriveInput,
    previous: &PodStatus,
    type_: &str,
    finding: Finding,
) -> PodCondition {
    let status = if finding.holds { TRUE } else { FALSE };
    let old = previous.conditions.iter().flatten().find(|old| old.type_ == type_);
    let kept =
        old.filter(|old| old.status == status).and_then(|old| old.last_transition_time.clone());
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    PodCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: text(finding.reason),
        message: text(&finding.message),
        last_probe_time: None,
        last_transition_time: Some(kept.unwrap_or_else(|| Time(input.now.to_seconds()))),
        observed_generation: input.pod.metadata.generation,
    }
}

/// True when the pod has a sandbox in which containers can start.
// k8s: pkg/kubelet/kuberuntime/util/util.go PodSandboxChanged
pub fn sandbox_serves(pod: &Pod, observed: Option<&ObservedPod>) -> bool {
    let Some(observed) = observed else {
        return false;
    };
    let Some(newest) = observed.newest_sandbox() else {
        return false;
    };
    let ready = observed.sandboxes.iter().filter(|sandbox| sandbox.ready).count();
    let host_network = pod::uses_host_network(pod);
    newest.ready
        && ready == 1
        && newest.host_network == host_network
        && (host_network || !newest.ips.is_empty())
}

// k8s: pkg/kubelet/status/generate.go GeneratePodInitializedCondition
fn initialized(pod: &Pod, previous: &PodStatus, statuses: &Statuses, phase: &str) -> Finding {
    let spec = pod::spec(pod);
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for (kind, container) in containers::init(spec) {
        match statuses.get(&*container.name) {
            None => unknown.push(&*container.name),
            Some(status) => {
                let done = match kind {
                    ContainerKind::Sidecar => status.started == Some(true),
                    _ => status.ready,
                };
                if !done {
                    incomplete.push(&*container.name);
                }
            }
        }
    }
    if phase == SUCCEEDED && unknown.is_empty() {
        return Finding::holds(true, "PodCompleted");
    }
    let main_started = spec.containers.iter().any(|container| {
        let state = statuses.get(&*container.name).and_then(|status| status.state.as_ref());
        state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    });
    // Init containers run again in a new sandbox and after a restart in place; a pod that was
    // initialized once is not taken for uninitialized then.
    let mut known = previous.conditions.iter().flatten();
    let before = known.any(|c| c.type_ == "Initialized" && c.status == TRUE);
    if before || main_started || (unknown.is_empty() && incomplete.is_empty()) {
        return Finding::holds(true, "");
    }
    Finding {
        holds: false,
        reason: "ContainersNotInitialized",
        message: list(&unknown, &incomplete, "incomplete"),
    }
}

// k8s: pkg/kubelet/status/generate.go GenerateContainersReadyCondition
fn containers_ready(pod: &Pod, statuses: &Statuses, phase: &str) -> Finding {
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    for (kind, container) in containers::all(pod::spec(pod)) {
        if kind == ContainerKind::Init {
            continue;
        }
        match statuses.get(&*container.name) {
            None => unknown.push(&*container.name),
            Some(status) if !status.ready => unready.push(&*container.name),
            Some(_) => {}
        }
    }
    if phase == SUCCEEDED && unknown.is_empty() {
        return Finding::holds(false, "PodCompleted");
    }
    if phase == FAILED {
        return Finding::holds(false, "PodFailed");
    }
    if unknown.is_empty() && unready.is_empty() {
        return Finding::holds(true, "");
    }
    Finding {
        holds: false,
        reason: "ContainersNotReady",
        message: list(&unknown, &unready, "unready"),
    }
}

// k8s: pkg/kubelet/status/generate.go GeneratePodReadyCondition
fn ready(pod: &Pod, conditions: &[PodCondition], containers_ready: &Finding) -> Finding {
    if !containers_ready.holds {
        return containers_ready.clone();
    }
    let gates = pod::spec(pod).readiness_gates.iter().flatten();
    let unmet = gates.filter_map(|gate| {
        let gate = &gate.condition_type;
        match conditions.iter().find(|condition| condition.type_ == *gate) {
            None => Some(format!(
                "corresponding condition of pod readiness gate \"{gate}\" does not exist."
            )),
            Some(condition) if condition.status != TRUE => Some(format!(
                "the status of pod readiness gate \"{gate}\" is not \"True\", but {}",
                condition.status
            )),
            Some(_) => None,
        }
    });
    let message = unmet.collect::<Vec<_>>().join(", ");
    if message.is_empty() {
        return Finding::holds(true, "");
    }
    Finding { holds: false, reason: "ReadinessGatesNotReady", message }
}

fn list(unknown: &[&str], short: &[&str], what: &str) -> String {
    let mut parts = Vec::new();
    if !unknown.is_empty() {
        parts.push(format!("containers with unknown status: [{}]", unknown.join(" ")));
    }
    if !short.is_empty() {
        parts.push(format!("containers with {what} status: [{}]", short.join(" ")));
    }
    parts.join(", ")
}
