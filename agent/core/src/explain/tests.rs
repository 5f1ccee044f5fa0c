//! One row for each reason that users suffer from: the situation, the sentence, the reason.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::observed::{OomKill, RunState};
use crate::status::testing::{SECOND, container, exited, sandbox};
use crate::testing::view;
use crate::worker::Failure;
use pintle_api_types::ids::ContainerKind;

/// The time of every row, in seconds.
pub(super) const NOW: i64 = 1000;

/// A situation.
pub(super) struct ExplainCase {
    pub(super) view: PodView,
    pub(super) calls: Vec<RuntimeCall>,
    timeline: Vec<TimelineEntry>,
    pub(super) unwritten: Option<Unwritten>,
    ahead: Option<ObservedPod>,
}

impl ExplainCase {
    pub(super) fn new(spec: Value, status: Value) -> Self {
        let pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u"},
            "spec": spec, "status": status});
        let mut view = view(pod);
        Arc::make_mut(&mut view.observed).sandboxes.push(sandbox());
        Self { view, calls: Vec::new(), timeline: Vec::new(), unwritten: None, ahead: None }
    }

    /// A pod with one container `c` and this status of it.
    pub(super) fn of(mut container: Value) -> Self {
        container["name"] = json!("c");
        for (field, value) in [("ready", json!(false)), ("restartCount", json!(0))] {
            if container.get(field).is_none() {
                container[field] = value;
            }
        }
        (container["image"], container["imageID"]) = (json!("x"), json!(""));
        Self::new(
            json!({"containers": [{"name": "c", "image": "x",
                "resources": {"limits": {"memory": "64Mi"}}}]}),
            json!({"phase": "Running", "containerStatuses": [container]}),
        )
    }

    pub(super) fn ready() -> Self {
        let mut case = Self::of(json!({"ready": true, "started": true, "state": {"running": {}}}));
        let status = Arc::make_mut(&mut case.view.status);
        status.conditions =
            serde_json::from_value(json!([{"type": "Ready", "status": "True"}])).expect("valid");
        case.with(container("c", "c1"))
    }

    pub(super) fn with(mut self, container: crate::observed::ObservedContainer) -> Self {
        Arc::make_mut(&mut self.view.observed).containers.insert(0, container);
        self
    }

    pub(super) fn stage(mut self, stage: WorkerStage) -> Self {
        self.view.stage = stage;
        self
    }

    pub(super) fn doing(mut self, action: Action) -> Self {
        self.view.doing.push(action);
        self
    }

    pub(super) fn failed(mut self, reason: &str, message: &str) -> Self {
        self.view.failure = Some(Failure::new(reason, message));
        self
    }

    pub(super) fn wakes_in(mut self, seconds: i64) -> Self {
        self.view.wake_at = Some(UnixNanos((NOW + seconds) * SECOND));
        self
    }

    pub(super) fn call(mut self, method: &'static str, subject: &str, seconds: u64) -> Self {
        let (subject, age) = (subject.to_owned(), Duration::from_secs(seconds));
        self.calls.push(RuntimeCall { method, subject, age, processes: Vec::new() });
        self
    }

    pub(super) fn process(mut self, pid: u32, state: char, wait_channel: Option<&str>) -> Self {
        let call = self.calls.last_mut().expect("a call");
        let wait_channel = wait_channel.map(str::to_owned);
        call.processes.push(CallProcess { role: "its shim", pid, state, wait_channel });
        self
    }

    pub(super) fn said(mut self, seconds: i64, what: &str, text: &str) -> Self {
        self.timeline.push(TimelineEntry {
            at: seconds * SECOND,
            since_seen_us: 0,
            what: what.to_owned(),
            container: Some("c".to_owned()),
            text: text.to_owned(),
            event: true,
            warning: what != "Killing",
            count: 1,
            last_since_seen_us: 0,
        });
        self
    }

    pub(super) fn explain(&self) -> Explanation {
        explain(&ExplainSubject {
            view: &self.view,
            calls: &self.calls,
            timeline: &self.timeline,
            unwritten: self.unwritten.as_ref(),
            ahead: self.ahead.as_ref(),
            now: UnixNanos(NOW * SECOND),
        })
    }
}

pub(super) fn check(rows: Vec<(ExplainCase, &str, &str)>) {
    for (case, reason, sentence) in rows {
        let found = case.explain();
        assert_eq!((found.reason.as_str(), found.sentence.as_str()), (reason, sentence));
        assert_eq!(found.healthy, matches!(reason, "Running" | "Succeeded"), "{sentence}");
    }
}

pub(super) fn waiting(reason: &str, message: &str) -> ExplainCase {
    ExplainCase::of(json!({"state": {"waiting": {"reason": reason, "message": message}}}))
}

pub(super) fn start(name: &str) -> Action {
    let (name, kind) = (name.to_owned(), ContainerKind::Main);
    Action::StartContainer { name, kind, restart_count: None, sandbox: None }
}

/// A claim that is not bound, in the kubelet's words.
const UNBOUND: &str = "Unable to attach or mount volumes: unmounted volumes=[data], unattached \
    volumes=[], failed to process volumes=[data]: error processing PVC ns/data: PVC is not bound";
/// A volume that another pod has.
const TAKEN: &str = "MountVolume.SetUp failed for volume \"pv\" : volume uses the ReadWriteOncePod \
    access mode and is already in use by another pod";

#[test]
fn pod_waiting_for_an_earlier_pod_or_the_runtime_is_explained() {
    let mut earlier = ObservedPod::empty("old".into(), "ns", "p");
    earlier.containers.push(container("app", "a1"));
    let mut behind =
        ExplainCase::new(json!({"containers": []}), json!({})).stage(WorkerStage::Waiting);
    behind.ahead = Some(earlier.clone());
    let mut last =
        ExplainCase::new(json!({"containers": []}), json!({})).stage(WorkerStage::Waiting);
    earlier.containers.clear();
    last.ahead = Some(earlier);
    let alone =
        || ExplainCase::new(json!({"containers": []}), json!({})).stage(WorkerStage::Waiting);
    check(vec![
        (
            behind,
            "WaitingForEarlierPod",
            "Waits for the earlier pod ns/p (uid old) to end: container app is still there.",
        ),
        (
            last,
            "WaitingForEarlierPod",
            "Waits for the earlier pod ns/p (uid old) to end: its remains are being taken away.",
        ),
        (
            alone(),
            "WaitingForRuntime",
            "Waits for the first list of what runs on this node, so that nothing is started twice.",
        ),
        (
            alone().call("ListPodSandbox", "", 9),
            "RuntimeNotResponding",
            "The runtime does not answer: ListPodSandbox has waited for 9 s.",
        ),
    ]);
}

#[test]
fn adopted_pod_shows_the_cgroup_of_its_sandbox() {
    let mut case = ExplainCase::ready();
    assert!(!case.explain().details.iter().any(|line| line.contains("cgroup")));
    let cgroup = Some("/old/kubepods/podu/s".to_owned());
    let facts = crate::observed::SpecFacts { cgroup, namespaces: None };
    let mut observed = (*case.view.observed).clone();
    observed.sandboxes = vec![crate::status::testing::sandbox()];
    observed.specs = [("s".to_owned(), facts)].into();
    case.view.observed = std::sync::Arc::new(observed);
    let line = "was adopted by this agent; its cgroup is /old/kubepods/podu";
    let details = case.explain().details;
    assert_eq!(details.iter().filter(|found| *found == line).count(), 1, "{details:?}");
}

#[test]
fn pod_with_failed_volumes_cgroup_or_sandbox_is_explained() {
    let creating = || waiting("ContainerCreating", "");
    check(vec![
        (
            creating().failed("FailedMount", "volume \"h\": /data is no directory.").wakes_in(4),
            "FailedMount",
            "A volume cannot be made ready: volume \"h\": /data is no directory; tried again in 4 s.",
        ),
        (
            creating().failed("FailedMount", UNBOUND).wakes_in(4),
            "FailedMount",
            "Waits for claim ns/data: PVC is not bound; tried again in 4 s.",
        ),
        (
            creating().failed("FailedMount", TAKEN),
            "FailedMount",
            "Waits for volume pv: volume uses the ReadWriteOncePod access mode and is already in \
             use by another pod.",
        ),
        (
            creating().failed("CreatePodSandboxError", "cni: no network").wakes_in(0),
            "CreatePodSandboxError",
            "The pod's sandbox cannot be made: cni: no network; tried again now.",
        ),
        (
            creating().failed("FailedCreatePodContainer", "read-only file system"),
            "FailedCreatePodContainer",
            "The pod's cgroup cannot be made: read-only file system.",
        ),
        (
            creating().doing(Action::Prepare),
            "Starting",
            "Is starting: its volumes are being made ready.",
        ),
        (
            creating().doing(Action::CreateSandbox { attempt: 0, replaces: None }),
            "Starting",
            "Is starting: its sandbox is being made.",
        ),
        (creating(), "Starting", "Is starting: container c is to be started."),
    ]);
}

#[test]
fn pod_with_a_container_that_cannot_start_is_explained() {
    check(vec![
        (
            waiting("CreateContainerConfigError", "secret \"s\" not found"),
            "CreateContainerConfigError",
            "The configuration of container c cannot be used: secret \"s\" not found.",
        ),
        (
            waiting("RunContainerError", "exec: \"nope\":\n  not found"),
            "RunContainerError",
            "The runtime could not start container c: exec: \"nope\": not found.",
        ),
        (waiting("SomethingNew", ""), "SomethingNew", "Container c waits (SomethingNew)."),
    ]);
}

fn crashed(code: i32, reason: &str, message: &str, count: i32) -> ExplainCase {
    let message = json!({"containerID": "containerd://c1", "exitCode": code, "reason": reason,
        "message": message});
    let back_off = "back-off 1m20s restarting failed container=c pod=p_ns(u)";
    ExplainCase::of(json!({"restartCount": count, "lastState": {"terminated": message},
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": back_off}}}))
}

/// Ended at second 950; with 80 s of back-off it restarts at 1030.
fn dead(code: i32) -> crate::observed::ObservedContainer {
    exited("c", "c1", code)
}

fn oom(init: bool) -> Option<OomKill> {
    let (comm, at) = ("worker".to_owned(), UnixNanos(940 * SECOND));
    Some(OomKill { init, count: 1, pid: 77, comm, at })
}

#[test]
fn crashing_pod_reports_exit_code_cause_and_next_restart() {
    let mut by_init = dead(137);
    by_init.evidence.oom = oom(true);
    let mut by_child = dead(1);
    by_child.evidence.oom = oom(false);
    check(vec![
        (
            crashed(3, "Error", "starting\nno such table: users\n", 4).with(dead(3)),
            "CrashLoopBackOff",
            "Container c ended with exit code 3, termination message: no such table: users; it \
             restarts in 30 s (restarted 4 times).",
        ),
        (
            crashed(137, "Error", "", 1).with(dead(137)),
            "CrashLoopBackOff",
            "Container c ended with exit code 137 (SIGKILL); it restarts in 30 s \
             (restarted once).",
        ),
        (
            crashed(137, "OOMKilled", "", 2).with(by_init),
            "CrashLoopBackOff",
            "Container c was killed because its memory ran out (limit 64Mi), process worker \
             (pid 77); it restarts in 30 s (restarted 2 times).",
        ),
        (
            crashed(1, "Error", "", 2).with(by_child),
            "CrashLoopBackOff",
            "Container c ended with exit code 1 after the OOM killer took its process worker \
             (pid 77); it restarts in 30 s (restarted 2 times).",
        ),
    ]);
}

#[test]
fn the_remedy_of_a_crash_is_its_log_or_more_memory() {
    let mut with_log = dead(1);
    with_log.log_path = "/var/log/pods/x/c/0.log".to_owned();
    let remedy = crashed(1, "Error", "", 1).with(with_log).explain().remedy;
    let retry = "`pintle-agent retry ns/p` once its cause is mended";
    let log = format!("read what it said: /var/log/pods/x/c/0.log, or {retry}");
    assert_eq!(remedy, Some(log));
    let remedy = crashed(137, "OOMKilled", "", 1).with(dead(137)).explain().remedy;
    let memory = "raise resources.limits.memory of container c, or make it need less";
    assert_eq!(remedy, Some(format!("{memory}, or {retry}")));
    let remedy = crashed(1, "Error", "", 1).explain().remedy;
    assert_eq!(remedy.as_deref(), Some(retry));
}

#[test]
fn pods_that_run_and_are_not_ready() {
    let started = "1970-01-01T00:16:30Z"; // 10 s before
    let running = |started_up: bool| {
        ExplainCase::of(
            json!({"started": started_up, "state": {"running": {"startedAt": started}}}),
        )
    };
    let init = |state: Value| {
        ExplainCase::new(
            json!({"initContainers": [{"name": "i", "image": "x"}], "containers": [{"name": "c"}]}),
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": state,
                "ready": false, "restartCount": 0, "image": "", "imageID": ""}]}),
        )
    };
    check(vec![
        (
            running(true).said(999, "Unhealthy", "Readiness probe failed: connection refused"),
            "ReadinessProbeFailed",
            "Container c runs and is not ready: Readiness probe failed: connection refused.",
        ),
        (
            running(true)
                .said(999, "Unhealthy", "Readiness probe failed: i/o timeout")
                .said(999, "ProbeTimedOut", "Liveness probe: no connection for 2s")
                .said(999, "ProbeTimedOut", "Readiness probe: no connection for 1s"),
            "ReadinessProbeFailed",
            "Container c runs and is not ready: Readiness probe failed: i/o timeout, no connection \
             for 1s.",
        ),
        (
            running(true).said(999, "Unhealthy", "Liveness probe failed: x"),
            "ReadinessProbePending",
            "Container c runs and is not ready: its readiness probe has not succeeded yet.",
        ),
        (
            running(false).said(999, "Unhealthy", "Startup probe failed: HTTP 503"),
            "StartupProbeFailed",
            "Container c has run for 10 s and has not started up: Startup probe failed: HTTP 503.",
        ),
        (
            init(json!({"running": {"startedAt": started}})),
            "PodInitializing",
            "Init container i has run for 10 s; the others wait for it.",
        ),
        (
            init(json!({"waiting": {"reason": "ErrImageNeverPull"}})),
            "ErrImageNeverPull",
            "Image x of container i is not on this node.",
        ),
    ]);
}

#[test]
fn failed_container_is_reported_before_a_container_that_is_not_ready() {
    let container = |name: &str, state: Value| {
        json!({"name": name, "state": state, "ready": false, "restartCount": 0, "image": "",
            "imageID": "", "started": true})
    };
    let case = ExplainCase::new(
        json!({"containers": [{"name": "a"}, {"name": "b"}]}),
        json!({"phase": "Running", "containerStatuses": [container("a", json!({"running": {}})),
            container("b", json!({"waiting": {"reason": "RunContainerError", "message": "no"}}))]}),
    );
    assert_eq!(case.explain().sentence, "The runtime could not start container b: no.");
}

#[test]
fn pods_that_are_being_ended() {
    let kill = || Action::KillPod { grace_seconds: Some(30) };
    let ending = || ExplainCase::ready().stage(WorkerStage::Terminating).doing(kill());
    let mut ended = ExplainCase::ready().stage(WorkerStage::Terminating);
    Arc::make_mut(&mut ended.view.observed).containers[0].state = RunState::Exited;
    check(vec![
        (
            ending().said(988, "Killing", "Stopping container c"),
            "Terminating",
            "Is being ended: container c is still running, 18 s of 30 s grace left.",
        ),
        (
            ending().said(900, "Killing", "Stopping container c"),
            "Terminating",
            "Is being ended: container c is still running, 0.0 s of 30 s grace left.",
        ),
        (
            ending().said(988, "Killing", "Stopping container c").call("ExecSync", "c1", 12),
            "Terminating",
            "Is being ended: container c is still running, 18 s of 30 s grace left, a command in \
             container c (c1) has run for 12 s.",
        ),
        (
            ended,
            "Terminating",
            "Is being ended: no container runs any more, its sandbox is being stopped.",
        ),
        (
            ending().failed("KillContainerError", "StopContainer c1: Unknown: eof").wakes_in(2),
            "KillContainerError",
            "Is being ended, but stopping it failed: StopContainer c1: Unknown: eof; tried again \
             in 2 s.",
        ),
    ]);
}

#[test]
fn a_frozen_shim_is_named_with_call_pid_and_wait_channel() {
    let ending = || {
        let kill = Action::KillPod { grace_seconds: Some(30) };
        ExplainCase::ready().stage(WorkerStage::Terminating).doing(kill)
    };
    check(vec![
        (
            ending().call("StopContainer", "c1", 3).process(4711, 'T', Some("do_signal_stop")),
            "RuntimeCallHangs",
            "Is being ended, but the runtime hangs: StopContainer of container c (c1) has not \
             returned for 3 s; its shim, pid 4711, is stopped by a signal in do_signal_stop \
             (state T).",
        ),
        (
            ending().call("StopContainer", "c1", 40),
            "RuntimeCallHangs",
            "Is being ended, but the runtime hangs: StopContainer of container c (c1) has not \
             returned for 40 s.",
        ),
        (
            ending().call("StopContainer", "c1", 20).process(4711, 'S', None),
            "Terminating",
            "Is being ended: container c is still running, 30 s grace.",
        ),
        (
            waiting("ContainerCreating", "")
                .call("RunPodSandbox", "ns/p", 61)
                .process(9, 'D', None),
            "RuntimeCallHangs",
            "Waits for the runtime: RunPodSandbox of the pod has not returned for 1 min 1 s; its \
             shim, pid 9, sleeps in the kernel without end (state D).",
        ),
    ]);
    let stopped = ending().call("StopContainer", "c1", 3).process(4711, 'T', None).explain();
    let remedy = "continue it with kill -CONT 4711, or end it with kill -9 4711";
    assert_eq!(stopped.remedy.as_deref(), Some(remedy));
}

#[test]
fn runtime_calls_of_other_pods_do_not_affect_the_explanation() {
    for (method, subject) in [
        ("StopContainer", "other"),
        ("RunPodSandbox", "ns/p2"),
        ("RunPodSandbox", "ns/other"),
        ("CreateContainer", "other/p/c"),
        ("GetContainerEvents", ""),
    ] {
        let case = ExplainCase::ready().call(method, subject, 900);
        assert_eq!(case.explain().reason, "Running", "{method} {subject}");
    }
    let own = ExplainCase::ready().call("CreateContainer", "ns/p/c", 900).explain();
    assert_eq!(own.reason, "RuntimeCallHangs");
}

#[test]
fn pods_that_have_ended() {
    let ended = |status: Value| {
        ExplainCase::new(json!({"containers": [{"name": "c"}]}), status)
            .stage(WorkerStage::Finished)
    };
    let end = json!({"name": "c", "ready": false, "restartCount": 0, "image": "", "imageID": "",
        "state": {"terminated": {"exitCode": 2, "reason": "Error", "message": "bad flag"}}});
    check(vec![
        (
            ended(json!({"phase": "Succeeded"})),
            "Succeeded",
            "Has finished: every container ended with exit code 0.",
        ),
        (
            ended(json!({"phase": "Failed", "containerStatuses": [end]})),
            "Failed",
            "Has failed: container c ended with exit code 2, termination message: bad flag.",
        ),
        (
            ended(json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "too long"})),
            "DeadlineExceeded",
            "Has failed: DeadlineExceeded: too long.",
        ),
        (
            ended(json!({"phase": "Running"}))
                .stage(WorkerStage::Terminated)
                .failed("FailedUnmount", "target is busy"),
            "FailedUnmount",
            "Has ended, but its remains cannot be taken away: target is busy.",
        ),
        (
            ended(json!({"phase": "Running"})).stage(WorkerStage::Terminated),
            "Ended",
            "Has ended; its volumes and its cgroup are being taken away.",
        ),
    ]);
}

#[test]
fn healthy_pod_reports_running_and_an_oom_killed_child_process() {
    let mut lossy = ExplainCase::ready();
    let observed = Arc::make_mut(&mut lossy.view.observed);
    observed.containers[0].evidence.oom = oom(false);
    check(vec![
        (ExplainCase::ready(), "Running", "Runs and is ready."),
        (
            lossy,
            "Running",
            "Runs and is ready, but the OOM killer took process worker (pid 77) of container c \
             1 min ago.",
        ),
        (
            ExplainCase::new(json!({"containers": []}), json!({})),
            "Starting",
            "Was just seen; nothing is known of it yet.",
        ),
    ]);
}

#[test]
fn details_list_containers_calls_and_the_last_warnings() {
    let case = waiting("ContainerCreating", "")
        .doing(start("c"))
        .call("StartContainer", "ns/p/c", 1)
        .wakes_in(60)
        .said(990, "Killing", "no warning")
        .said(995, "FailedMount", "no such\n  file");
    assert_eq!(
        case.explain().details,
        [
            "container c: waits, ContainerCreating",
            "under way: StartContainer c",
            "runtime call StartContainer of container c for 1 s",
            "looked at again in 1 min",
            "5 s ago: FailedMount: no such file",
        ]
    );
}

#[test]
fn spans_of_time_read_naturally() {
    for (millis, text) in [
        (0, "0.0 s"),
        (840, "0.8 s"),
        (12_999, "12 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (273_600_000, "3 d 4 h"),
    ] {
        assert_eq!(span(Duration::from_millis(millis)), text);
    }
}

#[test]
fn long_error_message_is_truncated_in_the_middle() {
    let long = format!("{}{}", "ä".repeat(1000), "ö".repeat(1000));
    let line = words::one_line(&long);
    assert_eq!(line, format!("{} … {}", "ä".repeat(160), "ö".repeat(140)));
}
