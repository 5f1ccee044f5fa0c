//! `derive`: the `PodStatus` that users see, from desired and observed state.
//!
//! Input: `DeriveInput`, which holds the last status, so that facts that stick (start time,
//! transition times, a terminal phase, a termination that the runtime forgot) are carried from one
//! derivation to the next. Output: a new status. Pure: same input, same status.
//!
//! The phase is settled first and reported later: as soon as the containers or a verdict decide
//! that the pod is over, its conditions show that, but `Succeeded` or `Failed` is shown only when
//! no container of the pod can run any more, because others reuse its resources then.
//! `settled_phase` gives the first, `derive(..).phase` the second.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, HostIP, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::container::{self, PodFacts, StatusSubject};
use super::{DeriveInput, Lifecycle, PodVerdict, Statuses, first_by};
use super::{conditions, phase, resources, restarting};
use crate::env::downward::ordered_ips;
use crate::eviction::{self, message};
use crate::observed::ObservedPod;
use crate::types::NodeFacts;
use pintle_api_types::ids::ContainerKind;
use pintle_api_types::pod::restart::RestartPolicy;
use pintle_api_types::pod::{self, containers, qos, restart};

/// Reasons of verdicts by which the node, not the pod, ended it.
const DISRUPTIVE: [&str; 4] = ["Evicted", "Preempting", "Terminated", "NodeShutdown"];

/// The pod's status now.
// k8s: pkg/kubelet/kubelet_pods.go generateAPIPodStatus, pkg/kubelet/status/status_manager.go
//      updateStatusInternal and mergePodStatus
pub fn derive(input: &DeriveInput) -> PodStatus {
    let none = PodStatus::default();
    let previous = input.previous.or(input.pod.status.as_ref()).unwrap_or(&none);
    let rejection = input.verdict.filter(|verdict| verdict.is_rejection());
    if let Some(verdict) = rejection.filter(|_| never_existed(input, previous)) {
        return refused(input, previous, verdict);
    }
    if phase::is_terminal(previous.phase.as_deref()) && never_existed(input, previous) {
        // Refused by an earlier run of the agent: its status stays as reported.
        let observed_generation = input.pod.metadata.generation.max(previous.observed_generation);
        return PodStatus { observed_generation, ..previous.clone() };
    }
    let lists = Lists::derive(input, previous);
    let statuses = lists.by_name();
    if forbidden(input, previous, &statuses) {
        let mut status = previous.clone();
        // Whatever the verdict, the pod has ended: clients must not wait for the end of a
        // container.
        if input.lifecycle == Lifecycle::Terminated {
            finish(input, &mut status);
        }
        return status;
    }
    let settled = settle(input, previous, &statuses);
    let mut status = PodStatus {
        conditions: Some(conditions::all(input, previous, &statuses, settled)),
        qos_class: Some(qos::class_of(input.pod).as_str().to_owned()),
        resources: Some(resources::of_pod(input, previous)),
        allocated_resources: resources::allocated_to_pod(input.pod),
        container_statuses: Some(lists.main),
        init_container_statuses: Some(lists.init).filter(|list| !list.is_empty()),
        ephemeral_container_statuses: Some(lists.ephemeral).filter(|list| !list.is_empty()),
        start_time: start_time(input, previous),
        observed_generation: input.pod.metadata.generation.max(previous.observed_generation),
        nominated_node_name: previous.nominated_node_name.clone(),
        resource_claim_statuses: previous.resource_claim_statuses.clone(),
        ..PodStatus::default()
    };
    report_phase(input, previous, settled, &mut status);
    addresses(input, previous, &mut status);
    if input.lifecycle == Lifecycle::Terminated {
        finish(input, &mut status);
    }
    status
}

/// The terminal phase on which containers, verdict or history have decided, reported or not yet.
/// A worker stops the pod as soon as this is `Some`.
pub fn settled_phase(input: &DeriveInput) -> Option<&'static str> {
    let none = PodStatus::default();
    let previous = input.previous.or(input.pod.status.as_ref()).unwrap_or(&none);
    let settled = settle(input, previous, &Lists::derive(input, previous).by_name());
    Some(settled).filter(|settled| phase::is_terminal(Some(settled)))
}

/// Container statuses by list.
struct Lists {
    main: Vec<ContainerStatus>,
    init: Vec<ContainerStatus>,
    ephemeral: Vec<ContainerStatus>,
}

impl Lists {
    fn derive(input: &DeriveInput, previous: &PodStatus) -> Self {
        let spec = pod::spec(input.pod);
        let main = spec.containers.iter().map(|container| (ContainerKind::Main, container));
        let ephemeral: Vec<_> =
            spec.ephemeral_containers.iter().flatten().map(containers::from_ephemeral).collect();
        let ephemeral = ephemeral.iter().map(|container| (ContainerKind::Ephemeral, container));
        let olds = [
            previous.container_statuses.as_deref(),
            previous.init_container_statuses.as_deref(),
            previous.ephemeral_container_statuses.as_deref(),
        ];
        let [old_main, old_init, old_ephemeral] = olds.map(Option::unwrap_or_default);
        let record = PodFacts::new(input, restarting::requested(input, previous));
        let mut lists = Self {
            main: statuses(input, main, old_main, &record),
            init: statuses(input, containers::init(spec), old_init, &record),
            ephemeral: statuses(input, ephemeral, old_ephemeral, &record),
        };
        // Init containers keep the spec's order, the others are sorted by name.
        lists.main.sort_by(|a, b| a.name.cmp(&b.name));
        lists.ephemeral.sort_by(|a, b| a.name.cmp(&b.name));
        lists
    }

    /// Those that count for phase and conditions.
    fn by_name(&self) -> Statuses<'_> {
        first_by(self.init.iter().chain(&self.main), |status| &status.name)
    }
}

/// True when a container would leave its terminal state although no rule allows that. A runtime
/// that lost its state must not make a finished job look unfinished. A failed one may be created
/// again in another sandbox if its pod restarts on failure, whatever its own policy.
// k8s: pkg/kubelet/status/status_manager.go checkContainerStateTransition
fn forbidden(input: &DeriveInput, previous: &PodStatus, news: &Statuses) -> bool {
    let spec = pod::spec(input.pod);
    let of_pod = restart::pod_policy(spec);
    if of_pod == RestartPolicy::Always || restart::may_restart_all(spec) {
        return false;
    }
    let specs = first_by(containers::all(spec).map(|(_, container)| container), |c| &c.name);
    let olds = previous.container_statuses.iter().flatten();
    let mut olds = olds.chain(previous.init_container_statuses.iter().flatten());
    olds.any(|old| {
        let name = old.name.as_str();
        let Some((end, container)) = container::ended_as(old).zip(specs.get(name)) else {
            return false;
        };
        let new = news.get(name);
        let by_pod = of_pod == RestartPolicy::OnFailure && end.exit_code != 0;
        !by_pod
            && !restart::may_restart(container, spec, end.exit_code)
            && new.is_some_and(|new| container::ended_as(new).is_none())
    })
}

fn statuses<'a>(
    input: &DeriveInput,
    list: impl Iterator<Item = (ContainerKind, &'a Container)>,
    olds: &[ContainerStatus],
    record: &PodFacts<'_>,
) -> Vec<ContainerStatus> {
    let olds = first_by(olds, |old| &old.name);
    list.map(|(kind, container)| {
        let old = olds.get(&*container.name).copied();
        container::status(input, &StatusSubject { container, kind, old, record })
    })
    .collect()
}

/// True when nothing of the pod was ever created.
fn never_existed(input: &DeriveInput, previous: &PodStatus) -> bool {
    let observed = input.observed;
    observed.is_none_or(|o| o.sandboxes.is_empty() && o.containers.is_empty())
        && previous.container_statuses.iter().flatten().next().is_none()
}

/// Status of a pod that was not admitted.
// k8s: pkg/kubelet/kubelet.go rejectPod
fn refused(input: &DeriveInput, previous: &PodStatus, verdict: &PodVerdict) -> PodStatus {
    let foreign = input.pod.status.as_ref().and_then(|status| status.conditions.clone());
    PodStatus {
        phase: Some(verdict.phase.clone()),
        reason: Some(verdict.reason.clone()),
        message: Some(verdict.message.clone()),
        conditions: previous.conditions.clone().or(foreign).map(conditions::of_others),
        qos_class: Some(qos::class_of(input.pod).as_str().to_owned()),
        start_time: start_time(input, previous),
        observed_generation: input.pod.metadata.generation,
        ..PodStatus::default()
    }
}

fn start_time(input: &DeriveInput, previous: &PodStatus) -> Option<Time> {
    previous.start_time.clone().or_else(|| Some(Time(input.now.to_seconds())))
}

/// The phase on which the pod has settled.
fn settle(input: &DeriveInput, previous: &PodStatus, statuses: &Statuses) -> &'static str {
    let old =
        [previous.phase.as_deref(), input.pod.status.as_ref().and_then(|s| s.phase.as_deref())];
    for terminal in [phase::SUCCEEDED, phase::FAILED] {
        if old.contains(&Some(terminal)) {
            return terminal;
        }
    }
    let Some(verdict) = input.verdict else {
        return phase::of(input, statuses, stopped(input));
    };
    // A pod that was preempted for a critical pod and ended well has succeeded: upstream's own
    // tests require that. A pod that ends for any other reason was not done.
    let has_made_room = verdict.reason == phase::PREEMPTING && stopped(input);
    match phase::of(input, statuses, true) {
        phase::SUCCEEDED if has_made_room => phase::SUCCEEDED,
        _ => phase::FAILED,
    }
}

/// True when the pod is being stopped and nothing of it is left to run.
fn stopped(input: &DeriveInput) -> bool {
    match input.lifecycle {
        Lifecycle::Syncing => false,
        Lifecycle::Terminating => input.observed.is_some_and(|observed| !may_run(observed)),
        Lifecycle::Terminated => true,
    }
}

/// True while a container of the pod runs or could.
fn may_run(observed: &ObservedPod) -> bool {
    observed.any_running() || observed.sandboxes.iter().any(|sandbox| sandbox.ready)
}

/// Reports the settled phase, or the last one while a terminal phase must wait.
fn report_phase(
    input: &DeriveInput,
    previous: &PodStatus,
    settled: &'static str,
    status: &mut PodStatus,
) {
    let old = previous.phase.as_deref();
    let becomes_terminal = phase::is_terminal(Some(settled)) && !phase::is_terminal(old);
    if becomes_terminal && !stopped(input) {
        status.phase = Some(old.unwrap_or(phase::PENDING).to_owned());
        status.reason.clone_from(&previous.reason);
        status.message.clone_from(&previous.message);
        return;
    }
    status.phase = Some(settled.to_owned());
    if old == Some(settled) {
        status.reason.clone_from(&previous.reason);
        status.message.clone_from(&previous.message);
    } else if let Some(verdict) = input.verdict {
        let failed = Some(verdict).filter(|_| settled == phase::FAILED);
        status.reason = failed.map(|verdict| verdict.reason.clone());
        status.message = failed.map(|verdict| verdict.message.clone());
        if is_disruptive(verdict) {
            let conditions = status.conditions.get_or_insert_default();
            conditions.retain(|c| c.type_ != conditions::DISRUPTION_TARGET);
            conditions.insert(0, conditions::disrupted(input, disruption(verdict)));
        }
    }
}

/// The node ends the pod although it did nothing wrong. A pod that exceeds its own limits, or was
/// never admitted, is no target of a disruption.
// k8s: pkg/kubelet/eviction/eviction_manager.go evictPod, its callers' condition
fn is_disruptive(verdict: &PodVerdict) -> bool {
    let reason = verdict.reason.as_str();
    let by_node = reason != eviction::REASON || verdict.message.starts_with(message::OF_NODE);
    DISRUPTIVE.contains(&reason) && by_node
}

/// The condition's message for a verdict.
fn disruption(verdict: &PodVerdict) -> &str {
    match verdict.reason.as_str() {
        // k8s: pkg/kubelet/preemption/preemption.go evictPodsToFreeRequests
        "Preempting" => "Pod was preempted by Kubelet to accommodate a critical pod.",
        _ => &verdict.message,
    }
}

/// Addresses of node and pod.
fn addresses(input: &DeriveInput, previous: &PodStatus, status: &mut PodStatus) {
    let hosts: Vec<_> = input.node.host_ips.iter().take(2).map(IpAddr::to_string).collect();
    status.host_ip = hosts.first().cloned();
    status.host_ips = list(hosts.iter().map(|ip| HostIP { ip: ip.clone() }).collect());
    let mut ips = pod_ips(input.observed, input.node);
    if ips.is_empty() && input.observed.is_none_or(|o| !o.sandboxes.iter().any(|s| s.ready)) {
        // The addresses of a pod that stopped stay known: logs and events are found by them.
        ips = previous.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    }
    if pod::uses_host_network(input.pod) {
        ips = host_network_ips(ips, &hosts);
    }
    status.pod_ip = ips.first().cloned();
    status.pod_ips = list(ips.into_iter().map(|ip| PodIP { ip }).collect());
}

fn list<T>(items: Vec<T>) -> Option<Vec<T>> {
    Some(items).filter(|items| !items.is_empty())
}

/// At most one address of each family, that of the first `--node-ip` first.
// k8s: pkg/kubelet/kubelet_pods.go sortPodIPs
pub fn pod_ips(observed: Option<&ObservedPod>, node: &NodeFacts) -> Vec<String> {
    let sandbox = observed.and_then(ObservedPod::newest_sandbox).filter(|sandbox| sandbox.ready);
    let ips = sandbox.map(|sandbox| &*sandbox.ips).unwrap_or_default();
    ordered_ips(ips, node).iter().map(IpAddr::to_string).collect()
}

/// A pod on the node's network has the node's addresses, immutable once set.
fn host_network_ips(known: Vec<String>, hosts: &[String]) -> Vec<String> {
    let mut ips = known;
    if ips.is_empty() {
        ips.extend(hosts.first().cloned());
    }
    if let (1, Some(second)) = (ips.len(), hosts.get(1)) {
        let is_v4 = |ip: &str| !ip.contains(':');
        if is_v4(&ips[0]) != is_v4(second) {
            ips.push(second.clone());
        }
    }
    ips
}

/// Reports every container without a known end as ended: the pod is gone, and there is no later
/// read.
// k8s: pkg/kubelet/status/status_manager.go TerminatePod
fn finish(input: &DeriveInput, status: &mut PodStatus) {
    if was_initialized(input, status) {
        status.container_statuses.iter_mut().flatten().for_each(end_unknown);
    }
    let inits = status.init_container_statuses.as_deref_mut().unwrap_or_default();
    let tried = inits.iter().rposition(|init| !is_untried(init)).unwrap_or(0);
    inits.iter_mut().take(tried + 1).for_each(end_unknown);
    if !pod::is_static(input.pod) && !phase::is_terminal(status.phase.as_deref()) {
        status.phase = Some(phase::FAILED.to_owned());
    }
}

fn end_unknown(status: &mut ContainerStatus) {
    if status.state.as_ref().is_none_or(|state| state.terminated.is_none()) {
        status.state = Some(container::lost());
        (status.ready, status.started) = (false, Some(false));
    }
}

fn is_untried(status: &ContainerStatus) -> bool {
    let ended = |state: &Option<_>| {
        state
            .as_ref()
            .is_some_and(|s: &k8s_openapi::api::core::v1::ContainerState| s.terminated.is_some())
    };
    status.state.as_ref().is_some_and(|state| state.waiting.is_some()) && !ended(&status.last_state)
}

/// True when a main container ever had the chance to start.
// k8s: pkg/kubelet/status/status_manager.go hasPodInitialized
fn was_initialized(input: &DeriveInput, status: &PodStatus) -> bool {
    let inits = status.init_container_statuses.as_deref().unwrap_or_default();
    if pod::spec(input.pod).init_containers.iter().flatten().next().is_none() {
        return true;
    }
    let mains = status.container_statuses.iter().flatten();
    let done = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| {
        let end = state.as_ref().and_then(|state| state.terminated.as_ref());
        end.is_some_and(|end| end.exit_code == 0)
    };
    let sidecar = pod::spec(input.pod).init_containers.iter().flatten().next_back();
    let sidecar = sidecar.is_some_and(containers::is_sidecar);
    let passed = |last: &ContainerStatus| match sidecar {
        true => {
            let runs = last.state.as_ref().is_some_and(|state| state.running.is_some());
            runs && last.started == Some(true)
        }
        false => done(&last.state) || done(&last.last_state),
    };
    mains.into_iter().any(|main| !is_untried(main)) || inits.last().is_some_and(passed)
}
