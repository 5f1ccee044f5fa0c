//! Writes to the API server about a pod, against those of the Go kubelet.
//!
//! Each recording is played again step by step: the derived status goes through the product's
//! status queue, whose requests are answered by an API server that applies them. Every PATCH must
//! be the recorded one, field by field, in the recorded order; in the end the pod is deleted with
//! its uid and no grace. There may be fewer writes than recorded, never more.

mod replay;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::status;
use pintle_agent_core::status::Lifecycle;
use pintle_agent_core::status_queue::{Ask, QueueInput, RequestResult, StatusQueue, StatusRequest};
use pintle_agent_core::types::Now;
use pintle_agent_core::worker::WorkerStage;
use serde_json::{Value, json};

use replay::{ReplayedPod, compare, keep_cgroup, normal, statuses};

/// Times that Go writes as null when they are not set.
const UNSET_TIMES: [&str; 3] = ["lastProbeTime", "startedAt", "finishedAt"];

#[test]
fn every_recorded_write_is_written_again_and_none_besides() {
    let recordings = replay::recordings();
    let (mut writes, mut differences) = (0, Vec::new());
    for (name, recording) in &recordings {
        if recording["pod_when_seen"]["metadata"]["name"].as_str().is_none() {
            pintle_testbed::lacks(&format!("{name} has no pod_when_seen"));
            continue;
        }
        let mut desk = Desk::new(recording);
        desk.play(&mut differences);
        writes += desk.writes;
    }
    println!("{} recordings, {writes} writes", recordings.len());
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(recordings.is_empty() || writes > 0, "recordings without a single write");
}

/// The status queue and an API server with one pod.
struct Desk<'a> {
    recording: &'a Value,
    queue: StatusQueue,
    now: Now,
    /// The object as the API server has it.
    object: Value,
    version: u64,
    writes: usize,
}

impl<'a> Desk<'a> {
    fn new(recording: &'a Value) -> Self {
        let mut object = recording["pod_when_seen"].clone();
        object["status"] = json!({});
        let (queue, now) = (StatusQueue::default(), Now::default());
        Self { recording, queue, now, object, version: 0, writes: 0 }
    }

    fn play(&mut self, differences: &mut Vec<String>) {
        let statuses = statuses(self.recording);
        let recorded: Vec<_> = recorded(self.recording).collect();
        let name = self.object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.object["status"] = statuses[0].clone();
        self.see();
        let worlds = ReplayedPod::all(self.recording, &statuses);
        let last = worlds.last().map(|world| world.pod.clone());
        for (world, step) in worlds.into_iter().zip(1..) {
            let at = format!("{name} #{step}");
            if world.pod.metadata.deletion_timestamp.is_some() && !self.is_deleted() {
                self.object["metadata"]["deletionTimestamp"] = json!("2026-11-21T02:27:13Z");
                self.see();
            }
            let mut derived = status::derive(&world.input());
            // The kubelet writes the sandbox's condition before it reads its address.
            if statuses[step].get("podIP").is_none() {
                (derived.pod_ip, derived.pod_ips) = (None, None);
            }
            keep_cgroup(&mut derived, &statuses[step - 1], &statuses[step]);
            let stage = stage(world.lifecycle);
            let derived =
                QueueInput::Derived { pod: Arc::new(world.pod), status: Arc::new(derived), stage };
            let asked = self.after(derived);
            self.expect(&at, asked, recorded[step - 1], differences);
            // Continues with the recorded status, so that one difference is reported once.
            self.object["status"] = normal(&statuses[step]);
            self.see();
        }
        if let Some(pod) = last {
            self.finish(&name, pod, &statuses, differences);
        }
    }

    fn is_deleted(&self) -> bool {
        self.object["metadata"].get("deletionTimestamp").is_some()
    }

    /// The requests that follow, once all delays have passed.
    fn after(&mut self, input: QueueInput) -> Vec<StatusRequest> {
        let mut requests = self.queue.handle(self.now, input);
        self.now = self.now.plus(Duration::from_secs(60));
        requests.extend(self.queue.handle(self.now, QueueInput::Tick));
        requests
    }

    fn copy(&mut self) -> Pod {
        self.version += 1;
        let mut object = self.object.clone();
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        serde_json::from_value(object).expect("a pod")
    }

    fn see(&mut self) {
        let copy = Arc::new(self.copy());
        self.queue.handle(self.now, QueueInput::Seen(copy));
    }

    fn expect(
        &mut self,
        at: &str,
        asked: Vec<StatusRequest>,
        recorded: &Value,
        differences: &mut Vec<String>,
    ) {
        let want = said(recorded);
        let says_nothing = want["status"] == json!({});
        let bodies: Vec<_> = asked.iter().filter_map(|request| patch_of(&request.ask)).collect();
        match &bodies[..] {
            [] if says_nothing => {}
            [body] => {
                self.writes += 1;
                compare(at, &want, &said(body), differences);
            }
            other => differences.push(format!("{at}: {} writes for {want}", other.len())),
        }
        for request in &asked {
            let copy = Box::new(self.copy());
            let answer = RequestResult::Copy(copy);
            self.queue.handle(self.now, QueueInput::Answered { ticket: request.ticket, answer });
        }
    }

    fn finish(&mut self, name: &str, pod: Pod, statuses: &[Value], differences: &mut Vec<String>) {
        let writes = self.recording["api_writes"].as_array().into_iter().flatten();
        let Some(delete) = writes.into_iter().find(|write| write["verb"] == "delete") else {
            return;
        };
        let last = statuses.len() - 1;
        if !self.is_deleted() {
            self.object["metadata"]["deletionTimestamp"] = json!("2026-11-21T02:27:13Z");
            self.see();
        }
        let status = serde_json::from_value(normal(&statuses[last])).expect("a status");
        let status = Arc::new(status);
        let pod = Arc::new(pod);
        let asked = self.after(QueueInput::Derived { pod, status, stage: WorkerStage::Finished });
        let deletions: Vec<_> = asked
            .iter()
            .filter_map(|request| match &request.ask {
                Ask::Delete(uid) => Some(uid.as_str().to_owned()),
                _ => None,
            })
            .collect();
        let want = delete["body"]["preconditions"]["uid"].as_str().unwrap_or_default();
        if deletions != [want] {
            differences.push(format!("{name}: deletes {deletions:?} instead of {want}"));
        }
    }
}

fn recorded(recording: &Value) -> impl Iterator<Item = &Value> {
    let writes = recording["api_writes"].as_array().into_iter().flatten();
    let is_patch = |write: &&Value| {
        write["subresource"] == "status" && write["verb"] == "patch" && write["code"] == 200
    };
    writes.filter(is_patch).map(|write| &write["body"])
}

fn patch_of(ask: &Ask) -> Option<&Value> {
    match ask {
        Ask::Patch(body) => Some(body),
        _ => None,
    }
}

fn stage(lifecycle: Lifecycle) -> WorkerStage {
    match lifecycle {
        Lifecycle::Syncing => WorkerStage::Syncing,
        Lifecycle::Terminating => WorkerStage::Terminating,
        Lifecycle::Terminated => WorkerStage::Terminated,
    }
}

/// Contents of a patch: without empty fields that mean nothing, but with those that it removes.
fn said(body: &Value) -> Value {
    fn mark(value: &Value, key: &str) -> Value {
        match value {
            // Times that never were, as Go writes them; no removal.
            Value::Null if UNSET_TIMES.contains(&key) => Value::Null,
            Value::Null => json!("(removed)"),
            Value::Object(fields) => {
                fields.iter().map(|(key, value)| (key.clone(), mark(value, key))).collect()
            }
            Value::Array(items) => items.iter().map(|item| mark(item, "")).collect(),
            other => other.clone(),
        }
    }
    let mut said = normal(&mark(body, ""));
    if said.get("status").is_none() {
        said["status"] = json!({});
    }
    said
}
