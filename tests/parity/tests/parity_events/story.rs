//! One recorded pod: its expected events, how it is started and ended again, and the comparison.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use pintle_cri::v1::ContainerState;
use pintle_parity::stand::Stand;
use pintle_testbed::LONG;
use serde_json::{Value, json};

use crate::ports::{self, AnsweringPort, SILENT};
use crate::replay::statuses;
use crate::script::{self, CONTAINERS, items};

/// How long the last events may be under way.
const LAST: Duration = LONG;
/// Polling period of a condition.
const PERIOD: Duration = Duration::from_millis(10);
/// Events whose count follows from container state changes. Everything else repeats with retries.
const COUNTED: [&str; 7] = [
    "Created",
    "Started",
    "Killing",
    "FailedPostStartHook",
    "FailedPreStopHook",
    "SandboxChanged",
    "Preempting",
];

/// An event without what differs from life to life.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StoryEvent {
    kind: String,
    reason: String,
    message: String,
    path: String,
    count: i64,
}

impl StoryEvent {
    fn of(event: &Value, path: &Value, pod_ips: &[String]) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            kind: text(&event["type"]),
            reason: text(&event["reason"]),
            message: normal(&text(&event["message"]), pod_ips),
            path: text(path),
            count: event["count"].as_i64().unwrap_or(1),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        let Self { kind, reason, message, path, count: _ } = self;
        (kind, reason, message, path) == (&other.kind, &other.reason, &other.message, &other.path)
    }

    fn is_end(&self) -> bool {
        self.reason == "Killing" && self.message.starts_with("Stopping container ")
    }

    fn shown(&self) -> String {
        let Self { kind, reason, message, path, count } = self;
        format!("{kind} {reason} {path} {count} times: {message}")
    }
}

/// Drops addresses, times and sizes, and the rest of the node in a refusal.
fn normal(message: &str, pod_ips: &[String]) -> String {
    let mut text = message.to_owned();
    for ip in pod_ips {
        text = text.replace(ip.as_str(), "<pod ip>");
    }
    if let Some((head, _)) = text.split_once(" including waiting). Image size: ") {
        let head = head.rsplit_once(" in ").map_or(head, |(head, _)| head);
        text = format!("{head} in <time>");
    }
    match text.split_once(", used: ") {
        Some((head, _)) if text.starts_with("Node didn't have enough resource") => head.to_owned(),
        _ => text,
    }
}

/// A recorded pod.
pub(crate) struct Story {
    file: String,
    namespace: String,
    name: String,
    recording: Value,
    pod: Pod,
    wanted: Vec<StoryEvent>,
    address: Ipv4Addr,
}

impl Story {
    pub(crate) fn of(file: &str, recording: &Value) -> Option<Self> {
        let seen = &recording["pod_when_seen"];
        let Some(name) = seen["metadata"]["name"].as_str() else {
            pintle_testbed::lacks(&format!("{file} has no pod_when_seen"));
            return None;
        };
        if recording["events"].as_array().is_none() {
            pintle_testbed::lacks(&format!("{file} has no events"));
            return None;
        }
        let pod: Pod = serde_json::from_value(seen.clone()).expect("a pod");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let ips: Vec<String> = statuses(recording)
            .iter()
            .flat_map(|s| items(&s["podIPs"]).map(|ip| text(&ip["ip"])).collect::<Vec<_>>())
            .collect();
        let events = items(&recording["events"]);
        let wanted = events.map(|event| StoryEvent::of(event, &event["fieldPath"], &ips)).collect();
        Some(Self {
            file: file.to_owned(),
            namespace: text(&seen["metadata"]["namespace"]),
            name: name.to_owned(),
            recording: recording.clone(),
            pod,
            wanted,
            address: Ipv4Addr::LOCALHOST,
        })
    }

    /// The node that it ran on.
    pub(crate) fn node(&self) -> String {
        let node = self.pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        node.unwrap_or_else(|| "node".to_owned())
    }

    /// True for a pod that uses a shared resource of the node.
    pub(crate) fn is_alone(&self) -> bool {
        let Some(spec) = &self.pod.spec else { return false };
        let containers = || spec.init_containers.iter().flatten().chain(&spec.containers);
        let asks = |r: &k8s_openapi::api::core::v1::ResourceRequirements| r.requests.is_some();
        let ports = containers().flat_map(|c| c.ports.iter().flatten());
        let (host_ports, requests) = (
            ports.filter(|port| port.host_port.is_some()).count(),
            containers().any(|c| c.resources.as_ref().is_some_and(asks)),
        );
        host_ports > 0 || requests || spec.resources.as_ref().is_some_and(asks)
    }

    /// Gives the pod an address, and the runtime its part.
    pub(crate) fn settle(&mut self, stand: &Stand, index: usize) {
        self.address = ports::address(index);
        let pod = format!("{}/{}", self.namespace, self.name);
        stand.runtime.set_address(&pod, &self.address.to_string());
        script::play(stand, &pod, &self.recording);
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }

    /// Runs the pod, deletes it, and compares.
    pub(crate) fn play(&self, stand: &Stand) -> Vec<String> {
        let filler = self.wanted.iter().find_map(|told| told.reason.strip_prefix("OutOf"));
        let filler = filler.map(|resource| fill(stand, resource));
        let ports = self.open_ports();
        let mut object = self.recording["pod_when_seen"].clone();
        object["status"] = json!({"phase": "Pending"});
        object["spec"]["nodeName"] = json!(stand.node());
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
            object["metadata"].as_object_mut().expect("an object").remove(field);
        }
        stand.api.put(&self.path(), object);
        let lived = wait(LONG, || self.lived(stand, &ports));
        if let Err(error) = &lived {
            println!("{}: deleted after a wait in vain: {error}", self.file);
        }
        stand.api.delete(&self.path());
        let gone = wait(LONG, || {
            ensure!(stand.api.get(&self.path()).is_none(), "the pod is not deleted");
            Ok(())
        });
        // Events are written after the states that they report.
        let compared = wait(LAST, || {
            let differences = self.compare(&self.told(stand));
            ensure!(differences.is_empty(), "{}", differences.join("\n"));
            Ok(())
        });
        if let Some(filler) = filler {
            stand.api.delete(&format!("/api/v1/namespaces/default/pods/{filler}"));
        }
        let mut differences: Vec<String> =
            [compared, gone].into_iter().filter_map(|r| r.err().map(|e| e.to_string())).collect();
        if !differences.is_empty() {
            differences.extend(lived.err().map(|error| error.to_string()));
        }
        differences.extend(self.broken(stand));
        let at = |text: String| text.lines().map(|l| format!("{}: {l}", self.file)).collect();
        differences.into_iter().flat_map(|text| -> Vec<String> { at(text) }).collect()
    }

    fn told(&self, stand: &Stand) -> Vec<StoryEvent> {
        let ips = [self.address.to_string()];
        let events = stand.api.events(&self.namespace, &self.name);
        let path = |event: &Value| event["involvedObject"]["fieldPath"].clone();
        events.iter().map(|event| StoryEvent::of(event, &path(event), &ips)).collect()
    }

    /// True for events whose count follows from container state changes.
    fn is_counted(&self, told: &StoryEvent) -> bool {
        let of = |reason: &str| {
            let mut same = self.wanted.iter();
            same.find(|w| w.path == told.path && w.reason == reason).map_or(0, |w| w.count)
        };
        COUNTED.contains(&told.reason.as_str())
            || (told.reason == "Pulled" && told.count == of("Created"))
    }

    /// Fails until everything that happened before the deletion has happened.
    fn lived(&self, stand: &Stand, ports: &BTreeMap<String, Vec<AnsweringPort>>) -> Result<()> {
        let told = self.told(stand);
        for wanted in self.wanted.iter().filter(|wanted| !wanted.is_end()) {
            let count = told.iter().find(|t| t.is_same(wanted)).map_or(0, |t| t.count);
            let enough = if self.is_counted(wanted) { wanted.count } else { 1 };
            if wanted.reason == "Unhealthy" && count >= wanted.count {
                recover(ports, &wanted.path);
            }
            ensure!(count >= enough, "{count} instead of {}", wanted.shown());
        }
        let phase = &self.recording["pod_when_seen"]["status"]["phase"];
        let is_over = matches!(phase.as_str(), Some("Succeeded" | "Failed"));
        for wanted in self.wanted.iter().filter(|wanted| wanted.reason == "Started") {
            let stops = !is_over && self.wanted.iter().any(|w| w.is_end() && w.path == wanted.path);
            let name = container_of(&wanted.path);
            let found =
                stand.runtime.container(&format!("{}/{}/{name}", self.namespace, self.name));
            let Some(found) = found else { continue };
            let runs = found.state() == ContainerState::ContainerRunning;
            ensure!(runs == stops, "{name} runs: {runs}");
            // The agent, like the kubelet, would report differently a state that it learns during
            // deletion.
            let told =
                self.is_told(stand, name, &found.id, if runs { "running" } else { "terminated" });
            ensure!(told, "the status does not show that {name} runs: {runs}");
        }
        self.check_ready(stand)
    }

    /// Returns whether a status has reported the container, as its current or its last state.
    fn is_told(&self, stand: &Stand, name: &str, id: &str, state: &str) -> bool {
        let pod = stand.api.get(&self.path()).unwrap_or_default();
        statuses_of_containers(&pod["status"]).any(|status| {
            let states = [&status["state"][state], &status["lastState"][state]];
            let is_of = |state: &Value| match state["containerID"].as_str() {
                Some(told) => told.ends_with(id),
                None => !state.is_null(),
            };
            status["name"] == name && states.into_iter().any(is_of)
        })
    }

    /// Fails until all containers are ready that were ready when the pod was seen.
    fn check_ready(&self, stand: &Stand) -> Result<()> {
        let ready = |pod: &Value| {
            let mut conditions = items(&pod["status"]["conditions"]);
            conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
        };
        let is_ready = stand.api.get(&self.path()).is_some_and(|pod| ready(&pod));
        ensure!(is_ready || !ready(&self.recording["pod_when_seen"]), "it is not ready");
        Ok(())
    }

    /// Ports that answer as the recorded probes say.
    fn open_ports(&self) -> BTreeMap<String, Vec<AnsweringPort>> {
        let mut open = BTreeMap::new();
        for (name, numbers) in ports::probed(&self.pod) {
            let failed = self
                .wanted
                .iter()
                .find(|told| told.reason == "Unhealthy" && container_of(&told.path) == name);
            let answer = match failed.map(|told| told.message.as_str()) {
                None => 200,
                Some(text) if text.contains("connection refused") => continue,
                Some(text) => {
                    let (_, code) = text.rsplit_once("statuscode: ").unwrap_or_default();
                    code.parse().unwrap_or(SILENT)
                }
            };
            let ports = numbers.iter().filter_map(|number| {
                AnsweringPort::open(SocketAddr::from((self.address, *number)), answer).ok()
            });
            open.insert(name, ports.collect());
        }
        open
    }

    fn compare(&self, told: &[StoryEvent]) -> Vec<String> {
        let (wanted, told) = (in_order(&self.wanted), in_order(told));
        let mut differences = Vec::new();
        for want in &wanted {
            match told.iter().find(|told| told.is_same(want)) {
                None => differences.push(format!("missing event: {}", want.shown())),
                Some(told) if self.is_counted(want) && told.count != want.count => {
                    differences.push(format!("reported {} times: {}", told.count, want.shown()));
                }
                Some(_) => {}
            }
        }
        let besides = told.iter().filter(|told| !wanted.iter().any(|want| want.is_same(told)));
        differences.extend(besides.map(|told| format!("extra event: {}", told.shown())));
        let same_order = wanted.iter().zip(&told).all(|(want, told)| want.is_same(told));
        if differences.is_empty() && !same_order {
            let shown = |all: &[StoryEvent]| {
                all.iter().map(StoryEvent::shown).collect::<Vec<_>>().join("; ")
            };
            differences.push(format!("order: {} instead of {}", shown(&told), shown(&wanted)));
        }
        differences
    }

    /// Differences in the other fields of events.
    fn broken(&self, stand: &Stand) -> Vec<String> {
        let uid = &self.recording["pod_when_seen"]["metadata"]["uid"];
        let node = json!(stand.node());
        let source = json!({"component": "kubelet", "host": node});
        let mut differences = Vec::new();
        for event in stand.api.events(&self.namespace, &self.name) {
            let about = &event["involvedObject"];
            let said = json!([
                about["apiVersion"],
                about["kind"],
                about["namespace"],
                about["name"],
                about["uid"],
                event["source"],
                event["reportingComponent"],
                event["reportingInstance"]
            ]);
            let want =
                json!(["v1", "Pod", self.namespace, self.name, uid, source, "kubelet", node]);
            let stamps = event["firstTimestamp"].as_str() <= event["lastTimestamp"].as_str();
            if said != want || !stamps || event["firstTimestamp"].is_null() {
                differences.push(format!("says {said} instead of {want}: {event}"));
            }
        }
        differences
    }
}

/// Containers of a pod are stopped at once: the order of their events means nothing.
fn in_order(events: &[StoryEvent]) -> Vec<StoryEvent> {
    let mut events = events.to_vec();
    for run in events.chunk_by_mut(|a, b| a.reason == "Killing" && b.reason == "Killing") {
        run.sort_by(|a, b| a.path.cmp(&b.path));
    }
    events
}

/// Of init, main and ephemeral containers.
fn statuses_of_containers(status: &Value) -> impl Iterator<Item = &Value> {
    CONTAINERS.into_iter().flat_map(|list| items(&status[list]))
}

fn container_of(path: &str) -> &str {
    path.split(['{', '}']).nth(1).unwrap_or_default()
}

/// The probe failed as often as recorded: from now on it succeeds.
fn recover(ports: &BTreeMap<String, Vec<AnsweringPort>>, path: &str) {
    let of = ports.get(container_of(path));
    of.into_iter().flatten().for_each(|port| port.answer(200));
}

/// Creates a pod that uses up a resource; returns its name.
fn fill(stand: &Stand, resource: &str) -> String {
    let node = format!("/api/v1/nodes/{}", stand.node());
    let allocatable = wait(LONG, || {
        let node = stand.api.get(&node).unwrap_or_default();
        let all = node["status"]["allocatable"][resource].clone();
        ensure!(all.is_string(), "the node has no {resource}: {node}");
        Ok(all)
    });
    let name = format!("takes-{resource}");
    stand.runtime.add_image("filler");
    let container = json!({"name": "c", "image": "filler", "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log",
        "resources": {"requests": {resource: allocatable.expect("a node")}}});
    let spec = json!({"nodeName": stand.node(), "terminationGracePeriodSeconds": 1,
        "enableServiceLinks": false, "containers": [container]});
    let path = format!("/api/v1/namespaces/default/pods/{name}");
    stand.api.put(&path, json!({"spec": spec, "status": {"phase": "Pending"}}));
    let runs = wait(LONG, || {
        let pod = stand.api.get(&path).unwrap_or_default();
        ensure!(pod["status"]["phase"] == "Running", "the pod that fills the node: {pod}");
        Ok(())
    });
    runs.expect("a filled node");
    name
}

/// Polls until the answer is `Ok`; returns the last error at the limit.
fn wait<T>(limit: Duration, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = std::time::Instant::now() + limit;
    loop {
        match ask() {
            Err(_) if std::time::Instant::now() < deadline => std::thread::sleep(PERIOD),
            answer => return answer,
        }
    }
}
