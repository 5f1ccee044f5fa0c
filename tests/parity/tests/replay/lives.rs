//! Histories of containers, from the recorded calls and events.
//!
//! A call shows that a container was created, with its image, mounts and resources, and whether it
//! could be started; a command of a probe shows its result; an event shows that a probe failed or
//! why a container waits. Reads are not recorded: the start and end of a container, its user and
//! the digest of a pulled image stand in statuses only. They are gathered once for each container,
//! from all of its statuses, and may not contradict each other.
//!
//! A `LifePoint` is a point of one container's life. Its life goes on: from none to an attempt,
//! from made to running to ended, to the next attempt.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, Probe};
use pintle_agent_core::observed::{
    AppliedSettings, Evidence, ObservedContainer, ObservedUser, RunState,
};
use pintle_agent_core::status::WaitingReason;
use pintle_agent_core::types::UnixNanos;
use serde_json::Value;

use super::{calls, mounts, number, resources, text};

/// Waits of a crash loop, in the kubelet's words.
const CRASH_WAITS: [&str; 6] = ["10s", "20s", "40s", "1m20s", "2m40s", "5m0s"];

/// Stage of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Created,
    Running,
    Ended,
}

/// A point of a container's life.
#[derive(Clone, Debug, Default)]
pub struct LifePoint {
    /// The attempt's number, and its stage.
    at: Option<(usize, Stage)>,
    /// The attempt before is removed already.
    is_alone: bool,
    /// Results of the probes.
    pub started: bool,
    pub ready: bool,
    /// Why it is not started, or not again.
    pub waiting: Option<WaitingReason>,
}

/// One attempt.
struct Attempt {
    id: String,
    /// Position among all containers of the pod.
    order: usize,
    call: Value,
    /// Why the runtime did not start it.
    refused: Option<String>,
    /// A call asked the runtime to remove it.
    is_removed: bool,
    /// When it was started, and when it was stopped or removed, in milliseconds.
    lived_ms: (Option<i64>, Option<i64>),
    started_at: UnixNanos,
    end: Option<ContainerStateTerminated>,
    user: Option<ObservedUser>,
    /// Name and digest, of an image that has them.
    image_digest: Option<String>,
}

/// One container.
#[derive(Default)]
struct ContainerLife {
    attempts: Vec<Attempt>,
    waits: Vec<WaitingReason>,
    probes: Probes,
}

/// Recorded results of probes.
#[derive(Default)]
struct Probes {
    readiness: Option<Probe>,
    startup: Option<Probe>,
    /// Reported failures, by kind.
    failures: BTreeMap<&'static str, i64>,
}

/// All containers of a pod.
pub struct Lives {
    lives: BTreeMap<String, ContainerLife>,
    /// Commands that were run: container, words, whether it succeeded.
    commands: Vec<(String, Vec<String>, bool)>,
}

impl Lives {
    pub fn of(recording: &Value, statuses: &[Value]) -> Self {
        let mut lives: BTreeMap<String, ContainerLife> = BTreeMap::new();
        let spec = &recording["pod_when_seen"]["spec"];
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            for value in spec[list].as_array().into_iter().flatten() {
                let container: Container =
                    serde_json::from_value(value.clone()).expect("a recorded container");
                let life = lives.entry(container.name.clone()).or_default();
                life.waits = waits(recording, &container.name);
                life.probes = probes(recording, container);
            }
        }
        for (order, call) in calls(recording, "CreateContainer").enumerate() {
            let Some(id) = call["response"]["container_id"].as_str() else { continue };
            let name = text(&call["request"]["config"]["metadata"]["name"]);
            let attempt = attempt(recording, statuses, order, call, id);
            lives.entry(name).or_default().attempts.push(attempt);
        }
        Self { lives, commands: commands(recording) }
    }

    pub fn containers(&self) -> impl Iterator<Item = &str> {
        self.lives.keys().map(String::as_str)
    }

    /// Id of the attempt of a moment.
    pub fn id(&self, name: &str, moment: &LifePoint) -> Option<&str> {
        let (index, _) = moment.at?;
        Some(&self.lives[name].attempts[index].id)
    }

    /// The moments that may follow one, itself included, in their order.
    pub fn moments(&self, name: &str, from: &LifePoint) -> Vec<LifePoint> {
        let life = &self.lives[name];
        let mut all = Vec::new();
        let waits = || std::iter::once(None).chain(life.waits.iter().cloned().map(Some));
        if from.at.is_none() {
            all.extend(waits().map(|waiting| LifePoint { waiting, ..LifePoint::default() }));
        }
        for (index, attempt) in life.attempts.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| &life.attempts[before]);
            for stage in [Stage::Created, Stage::Running, Stage::Ended] {
                let at = Some((index, stage));
                if at < from.at || !attempt.has(stage) {
                    continue;
                }
                let is_past = from.at.is_some_and(|(at, _)| at == index) && from.is_alone;
                let removed = [false, true].into_iter().filter(|removed| {
                    before.map_or(!removed, |b| *removed == is_past || (*removed && b.is_removed))
                });
                for is_alone in removed {
                    for (started, ready) in self.probed(life, attempt, stage) {
                        let waits = attempt.waits(stage, waits().collect()).into_iter();
                        let moment = |waiting| LifePoint { at, is_alone, started, ready, waiting };
                        all.extend(waits.map(moment));
                    }
                }
            }
        }
        all
    }

    /// Results that the probes of an attempt may have: started, ready.
    fn probed(&self, life: &ContainerLife, attempt: &Attempt, stage: Stage) -> Vec<(bool, bool)> {
        if stage == Stage::Created {
            return vec![(false, false)];
        }
        let succeeds = |kind, probe: &Option<Probe>| {
            probe.as_ref().is_some_and(|probe| self.succeeded(&life.probes, attempt, kind, probe))
        };
        let started = succeeds("Startup", &life.probes.startup);
        let ready = succeeds("Readiness", &life.probes.readiness);
        let mut all = vec![(false, false)];
        let begun = started || life.probes.startup.is_none();
        all.extend(started.then_some((true, false)));
        all.extend((begun && ready).then_some((started, true)));
        all
    }

    /// Returns whether this probe of this attempt may ever have succeeded: its command did, or it
    /// had time for more tries than were reported as failures.
    fn succeeded(&self, probes: &Probes, attempt: &Attempt, kind: &str, probe: &Probe) -> bool {
        if let Some(exec) = &probe.exec {
            let words = exec.command.as_deref().unwrap_or_default();
            let own = |(id, said, _): &&(String, Vec<String>, bool)| {
                *id == attempt.id && said.as_slice() == words
            };
            let wanted = usize::try_from(probe.success_threshold.unwrap_or(1)).unwrap_or(1);
            let done = self.commands.iter().filter(own).filter(|(_, _, ok)| *ok).count();
            return done >= wanted;
        }
        let failures = probes.failures.get(kind).copied().unwrap_or(0);
        let (Some(from), to) = attempt.lived_ms else { return false };
        let period_ms = i64::from(probe.period_seconds.unwrap_or(10)) * 1000;
        failures == 0 || to.is_none_or(|to| (to - from) / period_ms > failures)
    }

    /// The container as the runtime shows it, and the attempt before it, with their order.
    pub fn seen(&self, name: &str, moment: &LifePoint) -> Vec<(usize, ObservedContainer)> {
        let Some((index, stage)) = moment.at else { return Vec::new() };
        let attempts = &self.lives[name].attempts;
        let now = attempts[index].seen(name, stage);
        let before = index.checked_sub(1).filter(|_| !moment.is_alone);
        let before = before.map(|before| attempts[before].seen(name, Stage::Ended));
        before.into_iter().chain([now]).collect()
    }
}

impl Attempt {
    /// Returns whether the attempt ever reached the stage.
    fn has(&self, stage: Stage) -> bool {
        match stage {
            Stage::Created => true,
            Stage::Running => self.refused.is_none() && self.started_at.is_set(),
            Stage::Ended => self.end.is_some(),
        }
    }

    /// Its possible waiting states at that stage: for a refused start the runtime's message.
    fn waits(&self, stage: Stage, told: Vec<Option<WaitingReason>>) -> Vec<Option<WaitingReason>> {
        match (stage, &self.refused) {
            (Stage::Ended, Some(words)) => {
                let reason = "RunContainerError".to_owned();
                let refused = WaitingReason { reason, message: words.clone() };
                std::iter::once(Some(refused)).chain(told).collect()
            }
            (Stage::Ended, None) => told,
            (Stage::Created | Stage::Running, _) => vec![None],
        }
    }

    fn seen(&self, name: &str, stage: Stage) -> (usize, ObservedContainer) {
        let config = &self.call["request"]["config"];
        let count = text(&config["annotations"]["io.kubernetes.container.restartCount"]);
        let image = text(&config["image"]["user_specified_image"]);
        let mut container = ObservedContainer {
            id: self.id.as_str().into(),
            name: name.to_owned(),
            sandbox_id: text(&self.call["request"]["pod_sandbox_id"]).into(),
            state: RunState::Created,
            restart_count: count.parse().expect("a count of restarts"),
            hash: None,
            created_at: UnixNanos(1),
            started_at: UnixNanos::NEVER,
            finished_at: UnixNanos::NEVER,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: full_name(&image),
            image_id: self.image_digest.clone().unwrap_or(text(&config["image"]["image"])),
            log_path: String::new(),
            annotations: BTreeMap::new(),
            mounts: mounts(config),
            applied: AppliedSettings {
                resources: Some(resources(&config["linux"]["resources"])),
                user: self.user.clone(),
                stop_signal: None,
            },
            evidence: Evidence::default(),
        };
        if stage == Stage::Running {
            (container.state, container.started_at) = (RunState::Running, self.started_at);
        }
        if let (Stage::Ended, Some(end)) = (stage, &self.end) {
            container.state = RunState::Exited;
            container.exit_code = end.exit_code;
            container.reason = end.reason.clone().unwrap_or_default();
            container.message = end.message.clone().unwrap_or_default();
            container.started_at = nanos(end.started_at.as_ref());
            container.finished_at = nanos(end.finished_at.as_ref());
        }
        (self.order, container)
    }
}

/// A name as the runtime writes it: with registry, folder and tag.
fn full_name(image: &str) -> String {
    let (host, rest) = image.split_once('/').unwrap_or(("", image));
    let is_host = host.contains(['.', ':']) || host == "localhost";
    let name = match (is_host, image.contains('/')) {
        (true, _) => image.to_owned(),
        (false, true) => format!("docker.io/{image}"),
        (false, false) => format!("docker.io/library/{image}"),
    };
    let last = rest.rsplit('/').next().unwrap_or_default();
    if last.contains([':', '@']) { name } else { format!("{name}:latest") }
}

fn attempt(recording: &Value, statuses: &[Value], order: usize, call: &Value, id: &str) -> Attempt {
    let of = |method| calls(recording, method).find(|call| call["request"]["container_id"] == id);
    let start = of("StartContainer");
    let error = start.map(|call| &call["error"]).filter(|error| !error.is_null());
    let over = of("StopContainer").or_else(|| of("RemoveContainer"));
    let at = |call: &Value| call["at_ms"].as_i64();
    let mut attempt = Attempt {
        id: id.to_owned(),
        order,
        call: call.clone(),
        refused: error.map(|error| text(&error["details"])),
        is_removed: of("RemoveContainer").is_some(),
        lived_ms: (start.and_then(at), over.and_then(at)),
        started_at: UnixNanos::NEVER,
        end: None,
        user: None,
        image_digest: None,
    };
    let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    for status in statuses {
        let all = lists.iter().flat_map(|list| status[*list].as_array().into_iter().flatten());
        for told in all {
            attempt.hear(told);
        }
    }
    attempt
}

impl Attempt {
    /// Merges the facts of a status. Two statuses must not contradict each other.
    fn hear(&mut self, status: &Value) {
        let own = self.id.clone();
        let is_its = |id: &Value| id.as_str().is_some_and(|text| text.ends_with(&own));
        if is_its(&status["containerID"]) {
            if let Ok(at) = serde_json::from_value(status["state"]["running"]["startedAt"].clone())
            {
                let at = nanos(Some(&at));
                let same = !self.started_at.is_set() || self.started_at == at;
                assert!(same, "{} began twice", self.id);
                self.started_at = at;
            }
            self.hear_what_runs(status);
        }
        for state in [&status["state"], &status["lastState"]] {
            let end = &state["terminated"];
            if !is_its(&end["containerID"]) {
                continue;
            }
            let end: ContainerStateTerminated =
                serde_json::from_value(end.clone()).expect("a recorded end");
            let same = self.end.as_ref().is_none_or(|known| known.exit_code == end.exit_code);
            assert!(same, "{} ended twice", self.id);
            let began = nanos(end.started_at.as_ref());
            if began.is_set() && !self.started_at.is_set() && self.refused.is_none() {
                self.started_at = began;
            }
            self.end = Some(end);
        }
    }
}

impl Attempt {
    /// Merges its user and its image, as the runtime reported them.
    fn hear_what_runs(&mut self, status: &Value) {
        let linux = &status["user"]["linux"];
        if linux.is_object() {
            let groups = linux["supplementalGroups"].as_array().into_iter().flatten();
            let user = ObservedUser {
                uid: number(&linux["uid"]),
                gid: number(&linux["gid"]),
                supplemental_groups: groups.map(number).collect(),
            };
            let same = self.user.as_ref().is_none_or(|known| *known == user);
            assert!(same, "{} ran as two users", self.id);
            self.user = Some(user);
        }
        // A value without a digest is the call's, or a difference.
        let digest = status["imageID"].as_str().filter(|id| id.contains("@sha256:"));
        if let Some(digest) = digest {
            let same = self.image_digest.as_ref().is_none_or(|known| known == digest);
            assert!(same, "{} was of two images", self.id);
            self.image_digest = Some(digest.to_owned());
        }
    }
}

fn nanos(time: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>) -> UnixNanos {
    let nanos = time.and_then(|time| i64::try_from(time.0.as_nanosecond()).ok());
    UnixNanos(nanos.unwrap_or(0))
}

fn events<'a>(recording: &'a Value, container: &str) -> impl Iterator<Item = &'a Value> {
    let name = format!("{{{container}}}");
    let events = recording["events"].as_array().into_iter().flatten();
    events.filter(move |event| event["fieldPath"].as_str().is_some_and(|at| at.ends_with(&name)))
}

/// Waiting states of a container, from the events about it.
// k8s: pkg/kubelet/images/image_manager.go, pkg/kubelet/kuberuntime/kuberuntime_container.go
fn waits(recording: &Value, container: &str) -> Vec<WaitingReason> {
    let told: Vec<(String, String)> =
        events(recording, container).map(|e| (text(&e["reason"]), text(&e["message"]))).collect();
    let message = |reason: &str, before: &str| {
        let mut same = told.iter().filter(|(r, m)| r == reason && m.starts_with(before));
        same.next().map(|(_, message)| message.clone())
    };
    let wait = |reason: &str, message: String| WaitingReason { reason: reason.to_owned(), message };
    let pulled = message("Failed", "Failed to pull image ");
    let pull_error = pulled.as_deref().and_then(|text| text.split_once("\": ")).map(|(_, why)| why);
    let mut waits = Vec::new();
    for (reason, text) in &told {
        match (reason.as_str(), text.strip_prefix("Error: ")) {
            ("Failed", Some("ErrImagePull")) => {
                waits.push(wait("ErrImagePull", pull_error.unwrap_or_default().to_owned()));
            }
            ("Failed", Some("ImagePullBackOff")) => {
                let back_off = message("BackOff", "Back-off pulling image ").unwrap_or_default();
                let why = pull_error.unwrap_or_default();
                waits.push(wait("ImagePullBackOff", format!("{back_off}: ErrImagePull: {why}")));
            }
            ("Failed", Some("ErrImageNeverPull")) => {
                let why = message("ErrImageNeverPull", "").unwrap_or_default();
                waits.push(wait("ErrImageNeverPull", why));
            }
            ("Failed", Some("InvalidImageName")) => {
                let why = message("InspectFailed", "").unwrap_or_default();
                waits.push(wait("InvalidImageName", why));
            }
            ("Failed", Some(why)) => {
                waits.push(wait("CreateContainerConfigError", why.to_owned()));
                waits.push(wait("CreateContainerError", why.to_owned()));
                waits.push(wait("RunContainerError", why.to_owned()));
            }
            ("FailedPostStartHook", _) => {
                let hooks = failed_hooks(recording, container);
                waits.extend(hooks.into_iter().map(|why| wait("PostStartHookError", why)));
            }
            ("BackOff", _) => {
                let meta = &recording["pod_when_seen"]["metadata"];
                let text = |field: &str| meta[field].as_str().unwrap_or_default();
                let pod = format!("{}_{}({})", text("name"), text("namespace"), text("uid"));
                waits.extend(CRASH_WAITS.map(|time| {
                    let start = format!("back-off {time} restarting failed");
                    let message = format!("{start} container={container} pod={pod}");
                    wait("CrashLoopBackOff", message)
                }));
            }
            _ => {}
        }
    }
    waits
}

/// Error of a hook whose command failed, from the call that ran it.
// k8s: pkg/kubelet/lifecycle/handlers.go Run
fn failed_hooks(recording: &Value, container: &str) -> Vec<String> {
    let seen = &recording["pod_when_seen"];
    let mut all = seen["spec"]["containers"].as_array().into_iter().flatten();
    let spec = all.find(|one| one["name"] == container).cloned().unwrap_or_default();
    let command = &spec["lifecycle"]["postStart"]["exec"]["command"];
    let words: Vec<String> = command.as_array().into_iter().flatten().map(text).collect();
    let words = words.join(" ");
    let meta = |field: &str| text(&seen["metadata"][field]);
    let pod = format!("{}_{}({})", meta("name"), meta("namespace"), meta("uid"));
    let own = calls(recording, "ExecSync").filter(|call| &call["request"]["cmd"] == command);
    let why = own.filter_map(|call| {
        let limit = text(&call["request"]["timeout"]);
        let limit = if limit.is_empty() { "0" } else { &limit };
        let error = match call["error"]["code"].as_str() {
            Some("DEADLINE_EXCEEDED") => {
                format!("command timed out: {words:?} timed out after {limit}s")
            }
            Some(_) => text(&call["error"]["details"]),
            None => match number(&call["response"]["exit_code"]) {
                0 => return None,
                code => format!("command '{words}' exited with {code}: "),
            },
        };
        Some(format!(
            "Exec lifecycle hook ([{words}]) for Container {container:?} in Pod {pod:?} failed - \
             error: {error}, message: \"\""
        ))
    });
    why.collect()
}

fn probes(recording: &Value, container: Container) -> Probes {
    let mut failures = BTreeMap::new();
    for event in events(recording, &container.name).filter(|event| event["reason"] == "Unhealthy") {
        for kind in ["Readiness", "Startup"] {
            if text(&event["message"]).starts_with(kind) {
                *failures.entry(kind).or_default() += event["count"].as_i64().unwrap_or(1);
            }
        }
    }
    let Container { readiness_probe: readiness, startup_probe: startup, .. } = container;
    Probes { readiness, startup, failures }
}

fn commands(recording: &Value) -> Vec<(String, Vec<String>, bool)> {
    let of = |call: &Value| {
        let words = call["request"]["cmd"].as_array().into_iter().flatten().map(text).collect();
        // Zero is not written.
        let succeeded = call["error"].is_null() && number(&call["response"]["exit_code"]) == 0;
        (text(&call["request"]["container_id"]), words, succeeded)
    };
    calls(recording, "ExecSync").map(of).collect()
}
