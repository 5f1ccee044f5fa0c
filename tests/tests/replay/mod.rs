//! Recordings of the Go kubelet, played again: the runtime's state at each status patch is rebuilt
//! from the recorded CRI calls and from the container states of that patch.

#![allow(unreachable_pub, dead_code, reason = "shared by several test programs")]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pintle_agent::observed::{
    Evidence, ObservedContainer, ObservedMount, ObservedPod, ObservedResources, ObservedSandbox,
    ObservedUser, RunState,
};
use pintle_agent::pod;
use pintle_agent::resize::{PodResources, ResizeConditions};
use pintle_agent::status::{self, DeriveInput, Lifecycle, ProbeView, Verdict, Waiting};
use pintle_agent::types::{NodeFacts, UnixNanos};
use pintle_api_types::strategic::merge;
use pintle_tests::recorded;
use serde_json::{Map, Value, json};

/// "Unlimited" of cgroup v1 as the kubelet reports it.
const UNLIMITED_V1: &str = "9007199254740988Ki";

/// The recordings, by file name; empty only when the folder says that there are none.
pub fn recordings() -> Vec<(String, Value)> {
    recorded::pods().unwrap_or_default()
}

/// The status after creation and after each patch.
pub fn statuses(recording: &Value) -> Vec<Value> {
    let qos = &recording["pod_when_seen"]["status"]["qosClass"];
    let mut all = vec![json!({"phase": "Pending", "qosClass": qos})];
    for write in recording["api_writes"].as_array().into_iter().flatten() {
        if write["subresource"] == "status" && write["verb"] == "patch" && write["code"] == 200 {
            let mut next = all.last().expect("a first status").clone();
            merge(&mut next, &write["body"]["status"]);
            all.push(next);
        }
    }
    all
}

/// A status without nulls, empty objects and the limit that means "none".
pub fn normal(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields
                .iter()
                .filter(|(key, value)| !(*key == "memory" && value.as_str() == Some(UNLIMITED_V1)));
            let kept = kept.map(|(key, value)| (key.clone(), normal(value)));
            Value::Object(
                kept.filter(|(_, value)| !value.is_null() && *value != json!({}))
                    .collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(normal).collect()),
        other => other.clone(),
    }
}

pub fn compare(at: &str, want: &Value, got: &Value, differences: &mut Vec<String>) {
    match (want, got) {
        (Value::Object(want_fields), Value::Object(got_fields)) => {
            for key in want_fields.keys().chain(got_fields.keys().filter(|k| want.get(k).is_none()))
            {
                compare(&format!("{at}.{key}"), &want[key], &got[key], differences);
            }
        }
        (Value::Array(want), Value::Array(got)) if want.len() == got.len() => {
            for (index, (want, got)) in want.iter().zip(got).enumerate() {
                compare(&format!("{at}[{index}]"), want, got, differences);
            }
        }
        _ if want == got => {}
        _ => differences.push(format!("{at}: recorded {want}, derived {got}")),
    }
}

/// What `derive` is given at one step.
pub struct World {
    pub pod: Pod,
    observed: Option<ObservedPod>,
    previous: PodStatus,
    pub lifecycle: Lifecycle,
    waiting: BTreeMap<String, Waiting>,
    probes: ProbeView,
    verdict: Option<Verdict>,
    resize: ResizeConditions,
    in_force: PodResources,
    node: NodeFacts,
    now: UnixNanos,
}

impl World {
    pub fn at(recording: &Value, statuses: &[Value], step: usize) -> Self {
        let (previous, current) = (&statuses[step - 1], &statuses[step]);
        let parsed: PodStatus = parse(current);
        let deleted = parsed.observed_generation
            > recording["pod_when_seen"]["metadata"]["generation"].as_i64();
        let mut pod: Pod = parse(&recording["pod_when_seen"]);
        pod.status = None;
        pod.metadata.generation = parsed.observed_generation;
        pod.metadata.deletion_timestamp = deleted.then(|| Time(UnixNanos(1).to_timestamp()));
        let verdict = verdict(statuses, step);
        let over = status::is_terminal(parsed.phase.as_deref());
        let lifecycle = match (over, deleted || verdict.is_some()) {
            (true, _) => Lifecycle::Terminated,
            (false, true) => Lifecycle::Terminating,
            (false, false) => Lifecycle::Syncing,
        };
        let mut world = Self {
            observed: observed(recording, statuses, step, &parsed),
            previous: parse(previous),
            lifecycle,
            waiting: BTreeMap::new(),
            probes: ProbeView::default(),
            verdict,
            resize: ResizeConditions::default(),
            in_force: PodResources::default(),
            node: node(&parsed),
            now: now(previous, current),
            pod,
        };
        for status in all_statuses(&parsed) {
            world.note(status);
        }
        world
    }

    /// Takes waiting reasons and probe results from a container's recorded status.
    fn note(&mut self, recorded: &ContainerStatus) {
        let state = recorded.state.clone().unwrap_or_default();
        let reason = state.waiting.as_ref().and_then(|waiting| waiting.reason.clone());
        match reason.as_deref() {
            None | Some("ContainerCreating" | "PodInitializing") => {}
            Some(reason) => {
                let message = state.waiting.and_then(|waiting| waiting.message);
                let why =
                    Waiting { reason: reason.to_owned(), message: message.unwrap_or_default() };
                self.waiting.insert(recorded.name.clone(), why);
            }
        }
        let found = pod::containers::find(pod::spec(&self.pod), &recorded.name);
        let (Some((_, container)), Some(id)) = (found, bare_id(&recorded.container_id)) else {
            return;
        };
        if container.readiness_probe.is_some() {
            self.probes.ready.insert(id.clone().into(), recorded.ready);
        }
        if container.startup_probe.is_some() {
            self.probes.started.insert(id.into(), recorded.started == Some(true));
        }
    }

    pub fn input(&self) -> DeriveInput<'_> {
        DeriveInput {
            pod: &self.pod,
            observed: self.observed.as_ref(),
            previous: Some(&self.previous),
            lifecycle: self.lifecycle,
            waiting: &self.waiting,
            probes: &self.probes,
            verdict: self.verdict.as_ref(),
            resize: &self.resize,
            in_force: &self.in_force,
            node: &self.node,
            now: self.now,
        }
    }
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).expect("a recorded object has its type")
}

fn node(status: &PodStatus) -> NodeFacts {
    let ips = status.host_ips.iter().flatten().map(|ip| ip.ip.parse().expect("an address"));
    NodeFacts {
        runtime_name: "containerd".to_owned(),
        host_ips: ips.collect(),
        recursive_read_only: default_handler_makes_read_only_mounts_recursive(),
        ..NodeFacts::default()
    }
}

/// What the runtime's default handler can do, as the node told the API server.
fn default_handler_makes_read_only_mounts_recursive() -> bool {
    let writes = recorded::json_or_own("node-writes.json");
    let handlers = writes.as_array().into_iter().flatten().flat_map(|write| {
        write["body"]["status"]["runtimeHandlers"].as_array().into_iter().flatten()
    });
    let mut default = handlers.filter(|handler| handler["name"] == "");
    default.any(|handler| handler["features"]["recursiveReadOnlyMounts"] == true)
}

/// The verdict that shows later in the recording, from the step on at which its effect shows.
fn verdict(statuses: &[Value], step: usize) -> Option<Verdict> {
    let last = statuses.last()?;
    let reason = last["reason"].as_str()?;
    let ready = statuses[step]["conditions"].as_array().into_iter().flatten();
    let failed = ready.into_iter().any(|c| c["type"] == "Ready" && c["reason"] == "PodFailed");
    let effective = failed || statuses[step]["phase"] == "Failed";
    effective.then(|| Verdict {
        phase: "Failed".to_owned(),
        reason: reason.to_owned(),
        message: last["message"].as_str().unwrap_or_default().to_owned(),
    })
}

/// The time at which the step's conditions changed; long after all else when none did.
fn now(previous: &Value, current: &Value) -> UnixNanos {
    let old: Vec<_> = previous["conditions"].as_array().into_iter().flatten().collect();
    let changed = current["conditions"].as_array().into_iter().flatten().filter(|condition| {
        old.iter()
            .all(|old| old["status"] != condition["status"] || old["type"] != condition["type"])
    });
    let stamps = changed.chain([current].into_iter().filter(|_| old.is_empty())).map(|value| {
        let text = value["lastTransitionTime"].as_str().or(value["startTime"].as_str());
        text.and_then(|text| text.parse::<k8s_openapi::jiff::Timestamp>().ok())
    });
    let latest = stamps.flatten().max().map(|stamp| stamp.as_nanosecond());
    UnixNanos(latest.and_then(|nanos| i64::try_from(nanos).ok()).unwrap_or(i64::MAX / 2))
}

fn all_statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten()
}

fn bare_id(qualified: &Option<String>) -> Option<String> {
    Some(qualified.as_deref()?.split_once("://")?.1.to_owned())
}

fn calls<'a>(recording: &'a Value, method: &'a str) -> impl Iterator<Item = &'a Value> {
    let calls = recording["cri_calls"].as_array().into_iter().flatten();
    calls.filter(move |call| call["method"] == method)
}

/// What the runtime had of the pod at a step.
fn observed(
    recording: &Value,
    statuses: &[Value],
    step: usize,
    status: &PodStatus,
) -> Option<ObservedPod> {
    let serves = |status: &Value| {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        conditions
            .into_iter()
            .any(|c| c["type"] == "PodReadyToStartContainers" && c["status"] == "True")
    };
    let created = statuses[..=step].iter().any(serves);
    let call = calls(recording, "RunPodSandbox").last().filter(|_| created)?;
    let mut observed = ObservedPod::empty("u".into(), "ns", "p");
    let options = &call["request"]["config"]["linux"]["security_context"]["namespace_options"];
    let host_network = options["network"] == "NODE";
    let addressed = statuses[step..].iter().find_map(|later| later["podIPs"].as_array());
    let ips = addressed.into_iter().flatten().filter_map(|ip| ip["ip"].as_str()?.parse().ok());
    observed.sandboxes.push(ObservedSandbox {
        id: text(&call["response"]["pod_sandbox_id"]).into(),
        ready: serves(&statuses[step]),
        attempt: 0,
        created_at: UnixNanos(1),
        ips: if host_network { Vec::new() } else { ips.collect() },
        host_network,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        runtime_handler: String::new(),
    });
    let containers = calls(recording, "CreateContainer").filter_map(|call| container(call, status));
    observed.containers = containers.collect();
    observed.containers.reverse();
    Some(observed)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// The created container, when the status of the step proves that it existed then.
fn container(call: &Value, status: &PodStatus) -> Option<ObservedContainer> {
    let id = call["response"]["container_id"].as_str()?;
    let config = &call["request"]["config"];
    let name = text(&config["metadata"]["name"]);
    let recorded = all_statuses(status).find(|status| status.name == name)?;
    let (state, last) = (recorded.state.as_ref()?, recorded.last_state.as_ref());
    let is_current = bare_id(&recorded.container_id).as_deref() == Some(id);
    let ended = |state: Option<&ContainerState>| {
        let end = state?.terminated.clone()?;
        (bare_id(&end.container_id).as_deref() == Some(id)).then_some(end)
    };
    let end = ended(Some(state)).or_else(|| ended(last));
    if !is_current && end.is_none() {
        return None;
    }
    let running = state.running.as_ref().filter(|_| is_current && end.is_none());
    let started = running.and_then(|running| running.started_at.clone());
    let annotations = &config["annotations"];
    let mut container = ObservedContainer {
        id: id.into(),
        name,
        sandbox_id: text(&call["request"]["pod_sandbox_id"]).into(),
        state: if running.is_some() { RunState::Running } else { RunState::Created },
        restart_count: text(&annotations["io.kubernetes.container.restartCount"]).parse().ok()?,
        hash: None,
        created_at: UnixNanos(1),
        started_at: nanos(started),
        finished_at: UnixNanos::NEVER,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: recorded.image.clone(),
        image_id: recorded.image_id.clone(),
        log_path: String::new(),
        annotations: BTreeMap::new(),
        mounts: mounts(config),
        resources: Some(resources(&config["linux"]["resources"])),
        user: user(recorded),
        stop_signal: None,
        evidence: Evidence::default(),
    };
    if let Some(end) = end {
        container.state = RunState::Exited;
        container.exit_code = end.exit_code;
        container.reason = end.reason.unwrap_or_default();
        container.message = end.message.unwrap_or_default();
        container.started_at = nanos(end.started_at);
        container.finished_at = nanos(end.finished_at);
    }
    Some(container)
}

fn nanos(time: Option<Time>) -> UnixNanos {
    let nanos = time.and_then(|time| i64::try_from(time.0.as_nanosecond()).ok());
    UnixNanos(nanos.unwrap_or(0))
}

fn mounts(config: &Value) -> Vec<ObservedMount> {
    let mounts = config["mounts"].as_array().into_iter().flatten();
    let observed = mounts.map(|mount| ObservedMount {
        container_path: text(&mount["container_path"]),
        host_path: text(&mount["host_path"]),
        readonly: mount["readonly"] == true,
        recursive_read_only: mount["recursive_read_only"] == true,
    });
    observed.collect()
}

fn resources(requested: &Value) -> ObservedResources {
    ObservedResources {
        cpu_shares: number(&requested["cpu_shares"]),
        cpu_quota: number(&requested["cpu_quota"]),
        cpu_period: number(&requested["cpu_period"]),
        memory_limit_bytes: number(&requested["memory_limit_in_bytes"]),
    }
}

fn user(recorded: &ContainerStatus) -> Option<ObservedUser> {
    let linux = recorded.user.as_ref()?.linux.as_ref()?;
    Some(ObservedUser {
        uid: linux.uid,
        gid: linux.gid,
        supplemental_groups: linux.supplemental_groups.clone().unwrap_or_default(),
    })
}
