//! One row for each pod, as `pintle-agent pods` shows them. Pure.
//!
//! READY, STATUS and RESTARTS are those that people know from `kubectl get pods`; WHY is the
//! sentence of `explain` for an unhealthy pod.
// k8s: pkg/printers/internalversion/printers.go printPod

use k8s_openapi::api::core::v1::{ContainerStatus, PodSpec};
use pintle_agent_core::explain::Explanation;
use pintle_agent_core::types::{ContainerKind, UnixNanos};
use pintle_agent_core::view::PodView;
use pintle_agent_core::worker::WorkerStage;
use pintle_api_types::pod;
use pintle_api_types::pod::containers::{init_kind, is_sidecar};
use serde::Serialize;

/// A row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OutputRow {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) ready: usize,
    pub(super) containers: usize,
    pub(super) status: String,
    pub(super) restarts: i32,
    /// Seconds since the pod was started here, or first seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) age_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ip: Option<String>,
    pub(super) healthy: bool,
    pub(super) reason: String,
    /// Empty for a healthy pod.
    pub(super) why: String,
}

/// The row of one pod.
pub(super) fn row(view: &PodView, explanation: &Explanation, now: UnixNanos) -> OutputRow {
    let spec = pod::spec(&view.pod);
    let status = &view.status;
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    let served = || served_statuses(spec, view);
    let start = status.start_time.as_ref().and_then(|t| i64::try_from(t.0.as_nanosecond()).ok());
    let statuses = status.init_container_statuses.iter().chain(&status.container_statuses);
    OutputRow {
        namespace: pod::namespace(&view.pod).to_owned(),
        name: pod::name(&view.pod).to_owned(),
        uid: super::select::uid(view).to_owned(),
        ready: served().filter(|s| s.ready).count(),
        containers: spec.containers.len() + sidecars.count(),
        status: short_status(spec, view),
        restarts: statuses.flatten().map(|s| s.restart_count).sum(),
        age_seconds: start.map(|at| now.since(UnixNanos(at)).as_secs()),
        ip: status.pod_ip.clone().filter(|ip| !ip.is_empty()),
        healthy: explanation.healthy,
        reason: explanation.reason.clone(),
        why: if explanation.healthy { String::new() } else { explanation.sentence.clone() },
    }
}

/// Statuses of main containers and sidecars: those that count for READY.
fn served_statuses<'a>(
    spec: &'a PodSpec,
    view: &'a PodView,
) -> impl Iterator<Item = &'a ContainerStatus> {
    let sidecars = view.status.init_container_statuses.iter().flatten().filter(|status| {
        let mut init = spec.init_containers.iter().flatten();
        init.any(|c| c.name == status.name && is_sidecar(c))
    });
    sidecars.chain(view.status.container_statuses.iter().flatten())
}

fn short_status(spec: &PodSpec, view: &PodView) -> String {
    let status = &view.status;
    if view.stage == WorkerStage::Terminating {
        return "Terminating".to_owned();
    }
    let own = status.reason.clone().filter(|reason| !reason.is_empty());
    let phase = own.or(status.phase.clone()).unwrap_or_else(|| "Pending".to_owned());
    if let Some(init) = init_status(spec, view) {
        return init;
    }
    let mut shown = phase;
    let mut any_running = false;
    for container in status.container_statuses.iter().flatten().rev() {
        let state = container.state.clone().unwrap_or_default();
        if let Some(reason) = state.waiting.and_then(|w| w.reason).filter(|r| !r.is_empty()) {
            shown = reason;
        } else if let Some(end) = state.terminated {
            shown = end
                .reason
                .filter(|r| !r.is_empty())
                .unwrap_or(format!("ExitCode:{}", end.exit_code));
        } else if state.running.is_some() && container.ready {
            any_running = true;
        }
    }
    if shown == "Completed" && any_running {
        let ready =
            status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        shown = if ready { "Running" } else { "NotReady" }.to_owned();
    }
    shown
}

/// `Init:1/2` and its like while init containers have not all had their turn.
fn init_status(spec: &PodSpec, view: &PodView) -> Option<String> {
    let total = spec.init_containers.iter().flatten().count();
    let specs = spec.init_containers.iter().flatten();
    let statuses: Vec<_> = view.status.init_container_statuses.iter().flatten().collect();
    for (index, container) in specs.enumerate() {
        let Some(status) = statuses.iter().find(|s| s.name == container.name) else { continue };
        let state = status.state.clone().unwrap_or_default();
        let sidecar = init_kind(container) == ContainerKind::Sidecar;
        if sidecar && status.started == Some(true) {
            continue;
        }
        if let Some(end) = state.terminated {
            if end.exit_code == 0 {
                continue;
            }
            let reason = end.reason.filter(|r| !r.is_empty());
            return Some(match reason {
                Some(reason) => format!("Init:{reason}"),
                None => format!("Init:ExitCode:{}", end.exit_code),
            });
        }
        let waiting = state.waiting.and_then(|w| w.reason);
        return Some(match waiting.filter(|r| !r.is_empty() && r != "PodInitializing") {
            Some(reason) => format!("Init:{reason}"),
            None => format!("Init:{index}/{total}"),
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::testing::view;
    use serde_json::{Value, json};

    fn of(spec: Value, status: Value) -> OutputRow {
        let view = view(json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u"},
            "spec": spec, "status": status}));
        row(&view, &Explanation::default(), UnixNanos(130_000_000_000))
    }

    #[test]
    fn the_status_column_reads_as_kubectl_prints_it() {
        let one = json!({"containers": [{"name": "c"}]});
        let init = json!({"initContainers": [{"name": "i"}, {"name": "j"}],
            "containers": [{"name": "c"}]});
        let c = |state: Value| {
            json!({"phase": "Running", "containerStatuses":
            [{"name": "c", "state": state, "ready": true}]})
        };
        let i = |state: Value| {
            json!({"phase": "Pending", "initContainerStatuses": [
            {"name": "i", "state": {"terminated": {"exitCode": 0}}}, {"name": "j", "state": state}]})
        };
        for (spec, status, shown) in [
            (&one, json!({"phase": "Pending"}), "Pending"),
            (&one, json!({}), "Pending"),
            (&one, c(json!({"running": {}})), "Running"),
            (&one, c(json!({"waiting": {"reason": "CrashLoopBackOff"}})), "CrashLoopBackOff"),
            (&one, c(json!({"terminated": {"exitCode": 3}})), "ExitCode:3"),
            (&one, c(json!({"terminated": {"exitCode": 3, "reason": "Error"}})), "Error"),
            (&one, json!({"phase": "Failed", "reason": "Evicted"}), "Evicted"),
            (&init, i(json!({"running": {}})), "Init:1/2"),
            (&init, i(json!({"waiting": {"reason": "ErrImagePull"}})), "Init:ErrImagePull"),
            (&init, i(json!({"terminated": {"exitCode": 1}})), "Init:ExitCode:1"),
        ] {
            assert_eq!(of(spec.clone(), status.clone()).status, shown, "{status}");
        }
    }

    #[test]
    fn readiness_restarts_and_age_are_summed_up() {
        let spec = json!({"initContainers": [{"name": "s", "restartPolicy": "Always"},
            {"name": "i"}], "containers": [{"name": "c"}, {"name": "d"}]});
        let status = json!({"phase": "Running", "startTime": "1970-01-01T00:00:10Z",
            "podIP": "10.0.0.1",
            "initContainerStatuses": [
                {"name": "s", "ready": true, "started": true, "restartCount": 2},
                {"name": "i", "ready": true, "state": {"terminated": {"exitCode": 0}}}],
            "containerStatuses": [{"name": "c", "ready": true, "restartCount": 1},
                {"name": "d", "ready": false}]});
        let row = of(spec, status);
        assert_eq!((row.ready, row.containers, row.restarts), (2, 3, 3));
        assert_eq!((row.age_seconds, row.ip.as_deref()), (Some(120), Some("10.0.0.1")));
    }
}
