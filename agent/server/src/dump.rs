//! `/dump`: the agent's whole state, for a bug report. Pure.
//!
//! Names, states and times; no environment, no commands, no volume contents: a dump may be shown to
//! others.

use pintle_agent_core::explain::RuntimeCall;
use pintle_agent_core::observed::ObservedPod;
use pintle_agent_core::view::{PodView, Snapshot};
use serde_json::{Value, json};

use crate::ServerParts;
use crate::local::stage_word;
use crate::select::full;

/// The whole state as JSON.
pub(super) fn dump(parts: &ServerParts, snapshot: &Snapshot, calls: &[RuntimeCall]) -> Value {
    let events = (parts.events)();
    let problems: Vec<String> = parts.problems.load().iter().map(ToString::to_string).collect();
    let starting = || parts.health.awaited().map(|awaited| format!("starting: {awaited}"));
    let health = parts.health.check().err().map(|fault| fault.to_string()).or_else(starting);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "sourcesReady": snapshot.sources_ready,
        "health": health.unwrap_or_else(|| "ok".to_owned()),
        "eventSource": {"mode": events.mode, "dropped": events.dropped},
        "timelineEntriesDropped": parts.recorder.overflowed(),
        "brokenManifests": problems,
        "runtimeCalls": calls.iter().map(call).collect::<Vec<_>>(),
        "pods": snapshot.pods.values().map(pod).collect::<Vec<_>>(),
        "orphans": snapshot.orphans.iter().map(|o| observed(o)).collect::<Vec<_>>(),
    })
}

fn call(call: &RuntimeCall) -> Value {
    let processes = call.processes.iter().map(
        |p| json!({"role": p.role, "pid": p.pid, "state": p.state, "waitChannel": p.wait_channel}),
    );
    json!({
        "method": call.method,
        "subject": call.subject,
        "seconds": call.age.as_secs_f64(),
        "processes": processes.collect::<Vec<_>>(),
    })
}

fn pod(view: &PodView) -> Value {
    let failure = view.failure.as_ref().map(|f| json!({"reason": f.reason, "message": f.message}));
    json!({
        "pod": full(view),
        "stage": stage_word(view.stage),
        "underWay": view.doing.iter().map(|a| a.verb()).collect::<Vec<_>>(),
        "failure": failure,
        "wakeAtUnixNanos": view.wake_at.map(|at| at.0),
        "status": &*view.status,
        "observed": observed(&view.observed),
    })
}

fn observed(observed: &ObservedPod) -> Value {
    let sandboxes = observed.sandboxes.iter().map(
        |s| json!({"id": s.id.as_str(), "ready": s.ready, "attempt": s.attempt, "ips": s.ips}),
    );
    let containers = observed.containers.iter().map(|c| {
        json!({
            "id": c.id.as_str(),
            "name": c.name,
            "state": format!("{:?}", c.state),
            "restartCount": c.restart_count,
            "exitCode": c.exit_code,
            "reason": c.reason,
            "evidence": format!("{:?}", c.evidence),
        })
    });
    json!({
        "uid": observed.uid.as_str(),
        "namespace": observed.namespace,
        "name": observed.name,
        "version": observed.version.0,
        "sandboxes": sandboxes.collect::<Vec<_>>(),
        "containers": containers.collect::<Vec<_>>(),
    })
}
