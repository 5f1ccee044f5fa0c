//! CRI requests compared with the Go kubelet's.
//!
//! For each recording the pod's RunPodSandbox and CreateContainer requests are rebuilt from the
//! recorded object and node and compared field by field; also the timeouts of StopContainer, the
//! errors that kept a container waiting, the text of `/etc/hosts` and the limits of the pod's
//! cgroup. The comparison leaves out only unpredictable values: times, random file names, the order
//! of variables (a Go map's), the address of the host's resolver.
//!
//! `PINTLE_RECORDED=DIR` reads another folder of the same layout; what is absent there fails
//! unless the folder says so. A table of pods and requests is printed in the end.

mod files;
mod json;
mod world;

use std::collections::BTreeMap;

use pintle_agent_core::request;
use pintle_agent_core::sync::plan::KillReason;
use pintle_agent_core::sync::stop_order;
use pintle_cri::json::to_json;
use pintle_cri::v1;
use pintle_testbed::recorded;
use serde_json::Value;

use json::{difference, normal_container, normal_sandbox};
use world::{PodRecording, RecordedNode};

/// One line of the table.
struct RequestLine {
    pod: String,
    request: String,
    difference: Option<String>,
}

#[derive(Default)]
struct Table {
    lines: Vec<RequestLine>,
}

impl Table {
    fn add(&mut self, pod: &str, request: impl Into<String>, difference: Option<String>) {
        self.lines.push(RequestLine { pod: pod.to_owned(), request: request.into(), difference });
    }

    fn finish(self) {
        for RequestLine { pod, request, difference } in &self.lines {
            println!("{pod:24} {request:36} {}", difference.as_deref().unwrap_or("equal"));
        }
        let differ: Vec<String> = self
            .lines
            .iter()
            .filter_map(|l| l.difference.as_ref().map(|d| format!("{} {}: {d}", l.pod, l.request)))
            .collect();
        println!("{} comparisons, {} differ", self.lines.len(), differ.len());
        assert!(differ.is_empty(), "{}", differ.join("\n"));
        assert!(!self.lines.is_empty() || recorded::path("pods").is_none(), "nothing to compare");
    }
}

#[test]
fn every_recorded_request_is_built_again() {
    let node = RecordedNode::recorded();
    let mut table = Table::default();
    for recording in files::pods().iter().chain(&files::static_pods()) {
        requests_of(&node, recording, &mut table);
    }
    table.finish();
}

fn requests_of(node: &RecordedNode, recording: &PodRecording, table: &mut Table) {
    let mut sandboxes = 0;
    let mut attempts: BTreeMap<String, u32> = BTreeMap::new();
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    for call in &recording.calls {
        let want = &call["request"];
        match call["method"].as_str().unwrap_or_default() {
            "RunPodSandbox" => {
                let got = sandbox_request(node, recording, sandboxes);
                let got = to_json(&got).expect("a message of the protocol");
                let name = format!("RunPodSandbox #{sandboxes}");
                let pair = (normal_sandbox(want, recording), normal_sandbox(&got, recording));
                table.add(&recording.name, name, difference(&pair.0, &pair.1));
                sandboxes += u32::from(call["error"].is_null());
            }
            "CreateContainer" => {
                let name = want["config"]["metadata"]["name"].as_str().unwrap_or_default();
                let attempt = attempts.entry(name.to_owned()).or_default();
                let got = create_request(node, recording, want, *attempt, &ids).map_or_else(
                    |e| Value::String(e.to_string()),
                    |m| to_json(&m).expect("a message"),
                );
                let line = format!("CreateContainer {name} #{attempt}");
                let pair = (normal_container(want, recording), normal_container(&got, recording));
                table.add(&recording.name, line, difference(&pair.0, &pair.1));
                *attempt += u32::from(call["error"].is_null());
                if let Some(id) = call["response"]["container_id"].as_str() {
                    ids.insert(name.to_owned(), id.to_owned());
                }
            }
            _ => {}
        }
    }
}

fn sandbox_request(
    node: &RecordedNode,
    recording: &PodRecording,
    attempt: u32,
) -> v1::RunPodSandboxRequest {
    let ctx = recording.context(node, attempt);
    let sandbox = request::sandbox_config(&ctx).expect("a sandbox");
    v1::RunPodSandboxRequest { config: Some(sandbox.config), runtime_handler: sandbox.handler }
}

fn create_request(
    node: &RecordedNode,
    recording: &PodRecording,
    want: &Value,
    attempt: u32,
    ids: &BTreeMap<String, String>,
) -> anyhow::Result<v1::CreateContainerRequest> {
    let name = want["config"]["metadata"]["name"].as_str().unwrap_or_default();
    let sandbox_attempt = want["sandbox_config"]["metadata"]["attempt"].as_u64().unwrap_or(0);
    let sandbox_attempt = u32::try_from(sandbox_attempt).expect("an attempt");
    let sandbox = sandbox_request(node, recording, sandbox_attempt);
    let config = recording.container_config(node, name, attempt, want, ids)?;
    Ok(v1::CreateContainerRequest {
        pod_sandbox_id: want["pod_sandbox_id"].as_str().unwrap_or_default().to_owned(),
        config: Some(config),
        sandbox_config: sandbox.config,
    })
}

#[test]
fn containers_that_were_kept_waiting_are_refused_in_the_same_words() {
    let node = RecordedNode::recorded();
    let mut table = Table::default();
    for recording in &files::pods() {
        for (name, message) in recording.config_errors() {
            let got = recording.container_config(&node, &name, 0, &Value::Null, &BTreeMap::new());
            let got =
                got.map_or_else(|e| Value::String(e.to_string()), |_| Value::from("no error"));
            let line = format!("refusal of {name}");
            table.add(&recording.name, line, difference(&Value::String(message), &got));
        }
    }
    table.finish();
}

#[test]
fn containers_are_given_the_recorded_time_to_stop() {
    let mut table = Table::default();
    for recording in files::pods().iter().chain(&files::static_pods()) {
        for (name, timeout) in recording.stops() {
            let reasons = [KillReason::Other, KillReason::Liveness, KillReason::Startup];
            let stops = reasons.map(|reason| {
                let observed = recording.observed(&name);
                stop_order::stop_container(Some(&recording.pod), &observed, reason, None)
            });
            let grace =
                stops.each_ref().map(|s| s.grace_seconds.max(stop_order::GRACE_SECONDS_MIN));
            // The duration of a hook, or of a sidecar's wait, is deducted.
            let spends = stops[0].pre_stop.is_some() || recording.is_sidecar(&name);
            let fits =
                |seconds: &i64| if spends { timeout <= *seconds } else { timeout == *seconds };
            let differs = !grace.iter().any(fits) || timeout < stop_order::GRACE_SECONDS_MIN;
            let text = differs.then(|| format!("recorded {timeout}, built one of {grace:?}"));
            table.add(&recording.name, format!("StopContainer {name}"), text);
        }
    }
    table.finish();
}

#[test]
fn hosts_files_have_the_recorded_text() {
    let node = RecordedNode::recorded();
    let mut table = Table::default();
    for recording in &files::pods() {
        if let Some(want) = recording.hosts_file() {
            let ctx = recording.context(&node, 0);
            let own = files::node_hosts(&want);
            let got = request::hosts_text(&ctx, own).expect("a hosts file");
            let pair = (Value::String(want.clone()), Value::String(got));
            table.add(&recording.name, "/etc/hosts", difference(&pair.0, &pair.1));
        }
    }
    table.finish();
}

#[test]
fn pod_cgroups_have_the_recorded_limits() {
    let node = RecordedNode::recorded();
    let mut table = Table::default();
    for recording in &files::pods() {
        for (file, want, got) in recording.cgroup_values(&node) {
            table.add(&recording.name, file, difference(&want.into(), &got.into()));
        }
    }
    table.finish();
}
