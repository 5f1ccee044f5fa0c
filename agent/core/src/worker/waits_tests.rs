//! Waiting actions and the length of waits, through the whole core: crash loops, deadlines, lists,
//! whatever the wall clock does meanwhile.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use crate::observed::RunState;
use crate::worker::testing::{Host, plain};
use crate::worker::{Command, Failure, Hint, PodsInput, ProbeKind};
use pintle_api_types::ids::{ContainerId, UnixNanos};

const HOUR: i64 = 3600 * 1_000_000_000;

impl Host {
    /// A user sets the wall clock.
    fn set_clock(&mut self, by: i64) {
        self.now.wall = UnixNanos(self.now.wall.0 + by);
    }
}

/// The wall clock's steps before and after the end of a container.
const STEPS: [(i64, i64); 5] = [(0, 0), (8, 0), (-8, 0), (0, 8), (0, -8)];

#[test]
fn crash_loop_backoff_is_independent_of_wall_clock_steps() {
    for (before, after) in STEPS {
        let mut host = Host::new();
        host.now.wall = UnixNanos(100 * HOUR);
        host.want(plain("p", "100m"));
        host.end("p", "c", 1);
        assert_eq!(host.take_starts(), ["c", "c"], "the first restart is at once");
        host.wait(Duration::from_secs(1));
        host.set_clock(before * HOUR);
        host.end("p", "c", 1);
        host.set_clock(after * HOUR);
        assert_eq!(host.take_starts(), [""; 0], "{before} {after}: it is in a crash loop");
        host.wait(Duration::from_secs(8));
        assert_eq!(host.take_starts(), [""; 0], "{before} {after}: rushed");
        host.wait(Duration::from_secs(2));
        assert_eq!(host.take_starts(), ["c"], "{before} {after}: frozen");
    }
}

#[test]
fn wall_clock_step_between_an_exit_and_its_read_does_not_shift_the_next_start() {
    for hours in [8, -8] {
        let mut host = Host::new();
        host.now.wall = UnixNanos(100 * HOUR);
        host.want(plain("p", "100m"));
        host.end("p", "c", 1);
        host.take_starts();
        host.wait(Duration::from_secs(1));
        let ended = host.now.wall;
        host.set_clock(hours * HOUR);
        host.end("p", "c", 1);
        let record = host.records.get_mut("p").expect("a pod");
        record.containers[0].finished_at = ended;
        assert_eq!(host.take_starts(), [""; 0], "{hours}: rushed");
        host.wait(Duration::from_secs(11));
        assert_eq!(host.take_starts(), ["c"], "{hours}: frozen");
    }
}

#[test]
fn active_deadline_is_independent_of_wall_clock_steps() {
    for hours in [8, -8] {
        let mut host = Host::new();
        host.now.wall = UnixNanos(100 * HOUR);
        let mut pod = plain("p", "100m");
        pod.spec.get_or_insert_default().active_deadline_seconds = Some(60);
        host.want(pod);
        host.set_clock(hours * HOUR);
        host.wait(Duration::from_secs(58));
        assert_eq!(host.status("p")["phase"], "Running", "{hours}");
        host.wait(Duration::from_secs(2));
        assert_eq!(host.status("p")["reason"], json!("DeadlineExceeded"), "{hours}");
    }
}

#[test]
fn pod_past_its_active_deadline_at_agent_start_is_not_started() {
    for (seconds, begins) in [(60, false), (6_000, true)] {
        let mut host = Host::new();
        let mut pod = plain("p", "100m");
        pod.spec.get_or_insert_default().active_deadline_seconds = Some(seconds);
        let since = UnixNanos(host.now.wall.0 - HOUR / 30).to_seconds();
        pod.status.get_or_insert_default().start_time = Some(Time(since));
        host.want(pod);
        assert_eq!(host.take_starts().is_empty(), !begins, "{seconds} s, since 120 s");
        assert_eq!(host.status("p")["reason"] == "DeadlineExceeded", !begins, "{seconds} s");
    }
}

#[test]
fn pod_stopped_at_its_deadline_is_failed_even_if_its_containers_succeeded() {
    for (phase, want) in [("Running", "Failed"), ("Succeeded", "Succeeded")] {
        let mut host = Host::new();
        let mut pod = plain("p", "100m");
        let spec = pod.spec.get_or_insert_default();
        spec.active_deadline_seconds = Some(60);
        spec.restart_policy = Some("Never".to_owned());
        host.want(pod.clone());
        let status = host.status("p");
        host.records.get_mut("p").expect("a pod").containers[0].state = RunState::Exited;
        host.now = host.now.plus(Duration::from_secs(60));
        let mut status: PodStatus = serde_json::from_value(status).expect("a status");
        status.phase = Some(phase.to_owned());
        pod.status = Some(status);
        host.restart(vec![pod]);
        assert_eq!(host.status("p")["phase"], want, "reported as {phase}");
    }
}

#[test]
fn periodic_list_is_independent_of_wall_clock_steps() {
    for hours in [8, -8] {
        let mut host = Host::new();
        host.now.wall = UnixNanos(100 * HOUR);
        host.set_clock(hours * HOUR);
        let mut lists = |by| {
            host.now = host.now.plus(Duration::from_secs(by));
            let commands = host.pods.handle(host.now, PodsInput::Tick);
            commands.iter().any(|command| matches!(command, Command::List { .. }))
        };
        assert!(!lists(3590), "{hours}");
        assert!(lists(11), "{hours}");
    }
}

/// A pod of two containers and a sidecar.
fn of_three() -> Pod {
    let containers = json!([{"name": "a", "image": "a:1", "livenessProbe": {"exec": {}}},
        {"name": "typo", "image": "typo:1"}]);
    let init = json!([{"name": "s", "image": "s:1", "restartPolicy": "Always"}]);
    let meta = json!({"uid": "p", "name": "p", "namespace": "ns"});
    let spec = json!({"containers": containers, "initContainers": init});
    let mut pod = serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod");
    pintle_api_types::pod::defaults::apply(&mut pod);
    pod
}

/// The image of `typo` cannot be pulled for the next five minutes.
fn with_back_off() -> Host {
    let mut host = Host::new();
    let mut failure = Failure::new("ImagePullBackOff", "Back-off pulling image");
    failure.retry_after = Some(Duration::from_secs(300));
    host.failing.insert("typo".to_owned(), failure);
    host.want(of_three());
    assert_eq!(host.take_starts(), ["s", "a"]);
    host
}

#[test]
fn an_image_that_cannot_be_pulled_holds_up_no_other_container() {
    let mut host = with_back_off();
    host.end("p", "a", 1);
    assert_eq!(host.take_starts(), ["a"], "it ended and waits for another one's image");
    host.end("p", "s", 1);
    assert_eq!(host.take_starts(), ["s"], "a sidecar");
    host.end("p", "a", 1);
    assert_eq!(host.take_starts(), [""; 0], "its own crash loop");
    host.wait(Duration::from_secs(10));
    assert_eq!(host.take_starts(), ["a"], "after its own crash loop");
    let id = host.records["p"].latest("a").expect("it runs").id.clone();
    let (uid, probe) = ("p".into(), ProbeKind::Liveness);
    host.send(PodsInput::Probed { uid, container: id, probe, healthy: false });
    host.wait(Duration::from_secs(20));
    assert_eq!(host.take_starts(), ["a"], "its liveness probe failed");
}

#[test]
fn container_waits_for_its_own_retry_delay_despite_restarts_of_other_containers() {
    let mut host = with_back_off();
    let waits = |host: &Host| {
        let statuses = host.status("p")["containerStatuses"].clone();
        let typo = statuses.as_array().expect("a list").iter().find(|c| c["name"] == "typo");
        typo.expect("a status")["state"]["waiting"]["reason"].clone()
    };
    assert_eq!(waits(&host), "ImagePullBackOff");
    host.wait(Duration::from_secs(100));
    host.end("p", "a", 1);
    assert_eq!(waits(&host), "ImagePullBackOff", "it stays what it is");
    host.failing.clear();
    host.wait(Duration::from_secs(199));
    assert!(!host.take_starts().contains(&"typo".to_owned()), "too soon");
    host.wait(Duration::from_secs(2));
    assert_eq!(host.take_starts(), ["typo"]);
}

#[test]
fn debug_container_with_a_missing_image_does_not_delay_other_containers() {
    let mut host = Host::new();
    let mut failure = Failure::new("ImagePullBackOff", "Back-off pulling image");
    failure.retry_after = Some(Duration::from_secs(300));
    host.failing.insert("debug".to_owned(), failure);
    host.want(of_three());
    host.take_starts();
    let mut pod = serde_json::to_value(of_three()).expect("json");
    pod["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "typo"}]);
    host.want(serde_json::from_value(pod).expect("a pod"));
    host.end("p", "a", 1);
    assert_eq!(host.take_starts(), ["a"]);
}

#[test]
fn kernel_exit_that_the_runtime_keeps_contradicting_is_discarded() {
    let mut host = Host::new();
    host.want(plain("p", "100m"));
    let id = host.records["p"].containers[0].id.clone();
    for _ in 0..3 {
        let (container, at) = (Some(id.clone()), host.now.wall);
        let hint = Hint::Exited { container, code: Some(3), at };
        host.send(PodsInput::Hint { uid: "p".into(), hint });
        let shown = host.pods.worker(&"p".into()).expect("a worker").observed().clone();
        assert_eq!(shown.containers[0].evidence.exit, None, "it is kept as evidence");
    }
    // The kernel reports its real end, which the runtime loses, again.
    let (container, at) = (Some(id.clone()), host.now.plus(Duration::from_secs(1)).wall);
    let record = host.records.get_mut("p").expect("a pod");
    record.containers[0].state = crate::observed::RunState::Exited;
    (record.containers[0].exit_code, record.containers[0].reason) = (255, "Unknown".to_owned());
    let hint = Hint::Exited { container, code: Some(9), at };
    host.send(PodsInput::Hint { uid: "p".into(), hint });
    let shown = host.pods.worker(&"p".into()).expect("a worker").observed().clone();
    let ended = shown.containers.iter().find(|c| c.id == id).expect("its end");
    assert_eq!(ended.exit_code, 9);
}

#[test]
fn events_lost_during_a_list_cause_another_list() {
    let mut host = Host::new();
    let mut lists = |input| {
        let commands = host.pods.handle(host.now, input);
        let stamp = |command: &Command| match command {
            Command::List { stamp } => Some(*stamp),
            _ => None,
        };
        commands.iter().find_map(stamp)
    };
    let stamp = lists(PodsInput::Lost).expect("a list");
    assert_eq!(lists(PodsInput::Lost), None, "one at a time");
    assert!(lists(PodsInput::Listed { stamp, result: Ok(Vec::new()) }).is_some());
}

#[test]
fn a_hint_finds_its_pod_by_container_and_by_sandbox() {
    let mut host = Host::new();
    host.want(plain("p", "100m"));
    let record = &host.records["p"];
    let container = record.containers[0].id.clone();
    let sandbox = ContainerId::from(record.sandboxes[0].id.as_str());
    for (id, reads) in [(container, true), (sandbox, true), ("other".into(), false)] {
        let input = PodsInput::ContainerHint { container: id.clone(), hint: Hint::Changed };
        let commands = host.pods.handle(host.now, input);
        let read = commands.iter().any(|command| matches!(command, Command::Read { .. }));
        assert_eq!(read, reads, "{id}");
    }
}
