//! Recordings of the Go kubelet, played again: the runtime's state at each status patch is rebuilt
//! from the recorded CRI calls and events.

#![allow(unreachable_pub, dead_code, reason = "shared by several test programs")]

mod lives;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pintle_agent_core::cgroup::formulas::PERIOD_DEFAULT_US;
use pintle_agent_core::observed::{ObservedMount, ObservedPod, ObservedResources, ObservedSandbox};
use pintle_agent_core::resize::{PodResources, ResizeConditions};
use pintle_agent_core::status;
use pintle_agent_core::status::{DeriveInput, Lifecycle, PodVerdict, ProbeView, WaitingReason};
use pintle_agent_core::types::{NodeFacts, PodCgroups, UnixNanos};
use pintle_api_types::pod;
use pintle_api_types::strategic::merge;
use pintle_testbed::recorded;
use serde_json::{Map, Value, json};

use lives::{LifePoint, Lives};

/// The recordings, by file name; empty only if the folder says that nothing was recorded.
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

/// A status without nulls and empty objects.
pub fn normal(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().map(|(key, value)| (key.clone(), normal(value)));
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

/// The cgroup of a pod that has ended may or may not exist when the kubelet derives a status, so
/// the derived status takes the recorded value.
pub fn keep_cgroup(derived: &mut PodStatus, before: &Value, recorded: &Value) {
    let had_ended = status::is_terminal(before["phase"].as_str());
    if had_ended && before["resources"] == recorded["resources"] {
        derived.resources = parse(&recorded["resources"]);
    }
}

/// Input of `derive` at one step.
pub struct ReplayedPod {
    pub pod: Pod,
    observed: Option<ObservedPod>,
    previous: PodStatus,
    pub lifecycle: Lifecycle,
    waiting: BTreeMap<String, WaitingReason>,
    probes: ProbeView,
    verdict: Option<PodVerdict>,
    resize: ResizeConditions,
    actuated: PodResources,
    node: NodeFacts,
    now: UnixNanos,
}

impl ReplayedPod {
    /// The worlds of all steps, the first one's after the first patch.
    ///
    /// The state of containers comes from the calls and events (`lives`). A status gives only its
    /// moment: no earlier than that of the status before it, and the first at which the container's
    /// status is the recorded one. Without such a moment the earliest one is used, and the
    /// comparison shows the difference.
    pub fn all(recording: &Value, statuses: &[Value]) -> Vec<Self> {
        let lives = Lives::of(recording, statuses);
        let mut moments: Vec<(String, LifePoint)> =
            lives.containers().map(|name| (name.to_owned(), LifePoint::default())).collect();
        let mut worlds = Vec::new();
        for step in 1..statuses.len() {
            let mut world = Self::without_containers(recording, statuses, step);
            for at in 0..moments.len() {
                let name = moments[at].0.clone();
                let Some(want) = status_of(&statuses[step], &name) else { continue };
                let want = normal(want);
                let before = moments[at].1.clone();
                let found = lives.moments(&name, &before).into_iter().find(|moment| {
                    moments[at].1 = moment.clone();
                    world.play(&lives, &moments);
                    let derived = status::derive(&world.input());
                    let derived = serde_json::to_value(derived).expect("a status is JSON");
                    status_of(&derived, &name).is_some_and(|got| normal(got) == want)
                });
                moments[at].1 = found.unwrap_or(before);
            }
            world.play(&lives, &moments);
            worlds.push(world);
        }
        worlds
    }

    fn without_containers(recording: &Value, statuses: &[Value], step: usize) -> Self {
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
        Self {
            observed: sandbox(recording, statuses, step),
            previous: parse(previous),
            lifecycle,
            waiting: BTreeMap::new(),
            probes: ProbeView::default(),
            verdict,
            resize: ResizeConditions::default(),
            actuated: PodResources::default(),
            node: node(&parsed),
            now: now(previous, current),
            pod,
        }
    }

    /// Puts every container where it stands at its moment.
    fn play(&mut self, lives: &Lives, moments: &[(String, LifePoint)]) {
        (self.waiting, self.probes) = (BTreeMap::new(), ProbeView::default());
        let mut containers = Vec::new();
        for (name, moment) in moments {
            containers.extend(lives.seen(name, moment));
            if let Some(waiting) = &moment.waiting {
                self.waiting.insert(name.clone(), waiting.clone());
            }
            let found = pod::containers::find(pod::spec(&self.pod), name);
            let (Some((_, container)), Some(id)) = (found, lives.id(name, moment)) else {
                continue;
            };
            if container.readiness_probe.is_some() {
                self.probes.ready.insert(id.into(), moment.ready);
            }
            if container.startup_probe.is_some() {
                self.probes.started.insert(id.into(), moment.started);
            }
        }
        if let Some(observed) = &mut self.observed {
            containers.sort_by_key(|(order, _)| std::cmp::Reverse(*order));
            observed.containers = containers.into_iter().map(|(_, container)| container).collect();
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
            actuated: &self.actuated,
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
        // Recorded on cgroup v1, with the defaults of configz.json.
        pod_cgroups: Some(PodCgroups {
            is_v2: false,
            enforce_cpu_quota: true,
            cpu_period_us: PERIOD_DEFAULT_US,
        }),
        ..NodeFacts::default()
    }
}

/// Returns whether the runtime's default handler supports recursive read-only mounts, as the node
/// reported.
fn default_handler_makes_read_only_mounts_recursive() -> bool {
    let writes = recorded::json_or_own("node-writes.json");
    let handlers = writes.as_array().into_iter().flatten().flat_map(|write| {
        write["body"]["status"]["runtimeHandlers"].as_array().into_iter().flatten()
    });
    let mut default = handlers.filter(|handler| handler["name"] == "");
    default.any(|handler| handler["features"]["recursiveReadOnlyMounts"] == true)
}

/// The verdict that shows later in the recording, from the step on at which its effect shows.
fn verdict(statuses: &[Value], step: usize) -> Option<PodVerdict> {
    let last = statuses.last()?;
    let reason = last["reason"].as_str()?;
    let ready = statuses[step]["conditions"].as_array().into_iter().flatten();
    let failed = ready.into_iter().any(|c| c["type"] == "Ready" && c["reason"] == "PodFailed");
    let effective = failed || statuses[step]["phase"] == "Failed";
    effective.then(|| PodVerdict {
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

fn calls<'a>(recording: &'a Value, method: &'a str) -> impl Iterator<Item = &'a Value> {
    let calls = recording["cri_calls"].as_array().into_iter().flatten();
    calls.filter(move |call| call["method"] == method)
}

/// The runtime's state of the pod at a step, without its containers.
fn sandbox(recording: &Value, statuses: &[Value], step: usize) -> Option<ObservedPod> {
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
    Some(observed)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
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

/// The status of a container within that of its pod.
fn status_of<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    let mut all = lists.iter().flat_map(|list| status[*list].as_array().into_iter().flatten());
    all.find(|one| one["name"] == name)
}
