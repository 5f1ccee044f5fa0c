//! The recorded scheduler and kubelet, and the protection of claims in use.
//!
//! Input: pods of the server. Output: what happens to them, and when: bound, ready 100 ms later,
//! ended if `fake/behaviour` says so, removed 200 ms after their deletion. A claim that is being
//! deleted loses its finalizer when no pod has it any more.
// k8s: pkg/controller/volume/pvcprotection/pvc_protection_controller.go

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{NODES, PERSISTENT_VOLUME_CLAIMS, PODS};
use pintle_api_types::request::{DeleteOptions, PatchForm, Request, Subresource, Target};
use serde_json::{Value, json};

use super::play::{Happening, Player};

/// From the creation of a pod to its binding.
const BIND_MS: u64 = 12;
/// From the binding of a pod until it is ready.
const READY_MS: u64 = 100;
/// From the readiness of a pod until it ends, unless its annotation says another time.
const RUN_MS: u64 = 1_500;
/// From the deletion request of a pod until it is removed.
const GONE_MS: u64 = 200;
/// From the moment at which no pod uses a claim until the claim is removed.
const RELEASE_MS: u64 = 8;

const JOB_TRACKING: &str = "batch.kubernetes.io/job-tracking";
const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";

/// A step of a pod or claim.
#[derive(Clone, Debug)]
pub(super) enum PodStep {
    Bind,
    Run,
    End,
    Remove,
    Release,
}

/// A phase of a pod, as the kubelet reports it.
pub(super) struct Report<'a> {
    pub(super) phase: &'a str,
    pub(super) is_ready: bool,
    pub(super) exit_code: i64,
    /// Another condition: type and status.
    pub(super) condition: Option<(&'a str, &'a str)>,
}

fn annotation<'a>(pod: &'a Value, name: &str) -> &'a str {
    pod["metadata"]["annotations"][name].as_str().unwrap_or_default()
}

fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn has_finalizer(object: &Value, name: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
}

fn has_claim(pod: &Value, claim: &str) -> bool {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.into_iter().any(|volume| volume["persistentVolumeClaim"]["claimName"] == claim)
}

/// The node that a daemon pod is for.
fn pinned(pod: &Value) -> Option<&str> {
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
    let terms = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let field = &terms[0]["matchFields"][0];
    (field["key"] == "metadata.name").then(|| field["values"][0].as_str()).flatten()
}

/// The next steps of a pod, and their delays.
fn next_steps(pod: &Value) -> Vec<(u64, PodStep)> {
    let is_bound = pod["spec"]["nodeName"].is_string();
    let behaviour = annotation(pod, "fake/behaviour");
    let mut steps = Vec::new();
    if !is_bound && !is_deleting(pod) {
        steps.push((BIND_MS, PodStep::Bind));
    }
    if is_bound {
        steps.push((READY_MS, PodStep::Run));
    }
    if pod["status"]["phase"] == "Running" && matches!(behaviour, "succeed" | "fail") {
        let wait = annotation(pod, "fake/run-ms").parse().unwrap_or(RUN_MS);
        steps.push((wait, PodStep::End));
    }
    if is_deleting(pod) {
        steps.push((GONE_MS, PodStep::Remove));
    }
    steps
}

impl Player<'_> {
    /// Plans what the scheduler and the kubelet will do.
    pub(super) fn notice_pods(&mut self) {
        let all = |kind| -> Vec<(ObjectKey, std::sync::Arc<Value>)> {
            let objects = self.server.objects(kind, "");
            objects.map(|(key, object)| (key.clone(), std::sync::Arc::clone(object))).collect()
        };
        let (pods, claims) = (all(PODS), all(PERSISTENT_VOLUME_CLAIMS));
        for (key, claim) in claims {
            let is_used = |(pod_key, pod): &(ObjectKey, std::sync::Arc<Value>)| {
                pod_key.namespace() == key.namespace() && has_claim(pod, key.name())
            };
            let is_held = has_finalizer(&claim, CLAIM_PROTECTION);
            if is_deleting(&claim) && is_held && !pods.iter().any(is_used) {
                self.plan_once(&claim, &key, RELEASE_MS, PodStep::Release);
            }
        }
        for (key, pod) in pods {
            for (wait, step) in next_steps(&pod) {
                self.plan_once(&pod, &key, wait, step);
            }
        }
    }

    fn plan_once(&mut self, object: &Value, key: &ObjectKey, wait: u64, step: PodStep) {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        if self.begun_for.insert(format!("{uid} {step:?}")) {
            self.plan(self.ms + wait, Happening::Pod(key.clone(), step));
        }
    }

    /// Does a step; if the pod no longer exists, nothing changes.
    pub(super) fn do_pod_step(&mut self, key: ObjectKey, step: &PodStep) {
        let kind = if matches!(step, PodStep::Release) { PERSISTENT_VOLUME_CLAIMS } else { PODS };
        let Some(object) = self.server.object(kind, &key).cloned() else { return };
        match step {
            PodStep::Bind => self.bind(key, &object),
            PodStep::Run => {
                let is_ready = annotation(&object, "fake/behaviour") != "never-ready";
                self.report(
                    key,
                    &Report { phase: "Running", is_ready, exit_code: 0, condition: None },
                );
            }
            PodStep::End => {
                let fails = annotation(&object, "fake/behaviour") == "fail";
                let usual = i64::from(fails);
                let exit_code = annotation(&object, "fake/exit-code").parse().unwrap_or(usual);
                let phase = if fails { "Failed" } else { "Succeeded" };
                self.report(key, &Report { phase, is_ready: false, exit_code, condition: None });
            }
            PodStep::Remove => {
                let is_ended =
                    matches!(object["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
                if has_finalizer(&object, JOB_TRACKING) && !is_ended {
                    let killed = Report {
                        phase: "Failed",
                        is_ready: false,
                        exit_code: 137,
                        condition: None,
                    };
                    self.report(key.clone(), &killed);
                }
                let uid = object["metadata"]["uid"].as_str().map(str::to_owned);
                let options = DeleteOptions { grace_seconds: Some(0), uid, ..Default::default() };
                drop(self.ask(Request::Delete { target: Target::object(PODS, key), options }));
            }
            PodStep::Release => {
                let target = Target::object(kind, key);
                let body = json!({"metadata": {"finalizers": null}});
                drop(self.ask(Request::Patch { target, form: PatchForm::Merge, body }));
            }
        }
    }

    fn bind(&mut self, key: ObjectKey, pod: &Value) {
        self.bound += 1;
        let node = match pinned(pod) {
            Some(node) if self.server.object(NODES, &ObjectKey::new("", node)).is_none() => return,
            Some(node) => node.to_owned(),
            None => format!("fake-{}", self.bound % 3 + 1),
        };
        let below = Some(Subresource { name: key.name().to_owned(), sub: "binding" });
        let body = json!({"target": {"kind": "Node", "name": node}});
        let namespace = key.namespace().to_owned();
        drop(self.ask(Request::Create { kind: PODS, namespace, below, body }));
    }

    /// Reports a phase as the kubelet does.
    pub(super) fn report(&mut self, key: ObjectKey, report: &Report<'_>) {
        let Some(pod) = self.server.object(PODS, &key).cloned() else { return };
        let now = Timestamp::from_second(self.now().wall.as_second()).expect("a time").to_string();
        let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
        let state = match report.phase {
            "Running" => json!({"running": {"startedAt": now}}),
            _ => json!({"terminated": {"exitCode": report.exit_code, "reason": "Ended",
                "startedAt": now, "finishedAt": now}}),
        };
        let status = |container: &Value| {
            json!({"name": container["name"], "image": container["image"], "imageID": "",
                "restartCount": 0, "ready": report.is_ready, "state": state})
        };
        let ready = if report.is_ready { "True" } else { "False" };
        let own = [("Ready", ready), ("ContainersReady", ready)];
        let mut conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        for (name, status) in own.into_iter().chain(report.condition) {
            let is_same = |one: &Value| one["type"] == name && one["status"] == status;
            if !conditions.iter().any(is_same) {
                conditions.retain(|one| one["type"] != name);
                conditions.push(json!({"type": name, "status": status, "lastTransitionTime": now}));
            }
        }
        let started = pod["status"]["startTime"].as_str().unwrap_or(&now).to_owned();
        let body = json!({"status": {"phase": report.phase, "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}], "startTime": started, "conditions": conditions,
            "containerStatuses": containers.map(status).collect::<Vec<_>>()}});
        let target = Target::status(PODS, key);
        drop(self.ask(Request::Patch { target, form: PatchForm::Merge, body }));
    }
}
