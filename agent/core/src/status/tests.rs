//! Tests of `derive` beyond the recordings: sidecars, lost containers, restarts of the agent,
//! verdicts, bounds, and properties over arbitrary worlds.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::testing::{DerivedPod, SECOND, container, exited, sandbox};
use super::{Lifecycle, PodVerdict, REJECTED, WaitingReason, settled_phase};
use crate::observed::{Evidence, KernelExit, ObservedContainer, OomKill, RunState};
use pintle_api_types::ids::UnixNanos;

fn pod(spec: Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec})
}

fn two() -> Value {
    pod(json!({"containers": [{"name": "b", "image": "i"}, {"name": "a", "image": "i"}]}))
}

fn one(policy: &str) -> Value {
    pod(json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "i"}]}))
}

fn main_status<'a>(status: &'a PodStatus, name: &str) -> &'a ContainerStatus {
    let mut all = status.container_statuses.iter().flatten();
    all.find(|status| status.name == name).expect("a status")
}

fn condition(status: &PodStatus, type_: &str) -> (String, String) {
    let found = status.conditions.iter().flatten().find(|c| c.type_ == type_);
    let found = found.expect("a condition").clone();
    (found.status, found.reason.unwrap_or_default())
}

fn verdict(reason: &str) -> PodVerdict {
    PodVerdict { phase: "Failed".into(), reason: reason.into(), message: "why".into() }
}

/// The verdict of admission.
fn rejection(reason: &str) -> PodVerdict {
    PodVerdict { message: format!("{REJECTED}why"), ..verdict(reason) }
}

#[test]
fn probed_container_of_an_earlier_agent_stays_ready_until_its_first_probe() {
    let probed = json!({"name": "a", "image": "i", "readinessProbe": {"exec": {}}});
    // The container began at 901 s.
    for (agent, was, probe, want) in [
        (905, None, None, false),
        (912, None, None, true),
        (912, Some("True"), None, true),
        (912, Some("False"), None, false),
        (912, None, Some(false), false),
        (905, None, Some(true), true),
    ] {
        let mut manifest = pod(json!({"containers": [probed]}));
        if let Some(was) = was {
            manifest["status"] = json!({"conditions": [{"type": "Ready", "status": was}]});
        }
        let mut world = DerivedPod::new(manifest).with(vec![container("a", "1")]);
        world.node.agent_started_at = UnixNanos(agent * SECOND);
        world.probes.ready.extend(probe.map(|ready| ("1".into(), ready)));
        let ready = main_status(&world.derive(), "a").ready;
        assert_eq!(ready, want, "agent {agent}, was {was:?}, probe {probe:?}");
    }
}

#[test]
fn container_of_an_earlier_agent_is_started_after_its_startup_probe_deadline() {
    // The container began at 901 s.
    for (agent, failures, old, want) in [
        (905, 3, None, false),
        (912, 3, None, true),
        (912, 3, Some(("containerd://0", false)), true),
        (912, 3, Some(("containerd://1", false)), false),
        (912, 900, None, false),
        (912, 900, Some(("containerd://1", true)), true),
    ] {
        let probe = json!({"exec": {}, "periodSeconds": 1, "failureThreshold": failures});
        let probed = json!({"name": "a", "image": "i", "startupProbe": probe});
        let mut manifest = pod(json!({"containers": [probed]}));
        if let Some((id, started)) = old {
            manifest["status"] = json!({"containerStatuses": [{"name": "a", "image": "i",
                "imageID": "", "ready": true, "restartCount": 0, "containerID": id,
                "started": started}]});
        }
        let mut world = DerivedPod::new(manifest).with(vec![container("a", "1")]);
        world.node.agent_started_at = UnixNanos(agent * SECOND);
        let started = main_status(&world.derive(), "a").started;
        assert_eq!(started, Some(want), "agent {agent}, {failures} failures, was {old:?}");
    }
}

#[test]
fn created_container_without_a_start_keeps_its_waiting_reason() {
    let back_off = json!({"containerStatuses": [{"name": "a", "image": "i", "imageID": "",
        "ready": false, "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}]});
    let init = json!([{"name": "first", "image": "i"}]);
    for (init, status, restarts, want) in [
        (json!([]), json!({}), 0, Some("ContainerCreating")),
        (init, json!({}), 0, Some("PodInitializing")),
        (json!([]), back_off, 1, Some("CrashLoopBackOff")),
        (json!([]), json!({}), 1, None),
    ] {
        let mut manifest = one("Always");
        manifest["spec"]["initContainers"] = init;
        manifest["status"] = status;
        let created = ObservedContainer {
            state: RunState::Created,
            restart_count: restarts,
            ..container("a", "1")
        };
        let derived = DerivedPod::new(manifest).with(vec![created]).derive();
        let state = main_status(&derived, "a").state.clone().expect("a state");
        let waiting = state.waiting.expect("it waits");
        assert_eq!(waiting.reason.as_deref(), want, "{restarts} restarts");
    }
}

#[test]
fn the_phase_follows_from_all_main_containers() {
    let created = || ObservedContainer { state: RunState::Created, ..container("b", "2") };
    for (policy, containers, want) in [
        ("Always", vec![], "Pending"),
        ("Always", vec![container("a", "1")], "Pending"),
        ("Always", vec![container("a", "1"), created()], "Pending"),
        ("Always", vec![container("a", "1"), container("b", "2")], "Running"),
        ("Always", vec![container("a", "1"), exited("b", "2", 1)], "Running"),
        ("Always", vec![exited("a", "1", 0), exited("b", "2", 0)], "Running"),
        ("OnFailure", vec![exited("a", "1", 0), exited("b", "2", 1)], "Running"),
        ("OnFailure", vec![exited("a", "1", 0), exited("b", "2", 0)], "Succeeded"),
        ("Never", vec![exited("a", "1", 0), exited("b", "2", 1)], "Failed"),
    ] {
        let mut world = DerivedPod::new(two()).with(containers.clone());
        world.pod.spec.as_mut().expect("a spec").restart_policy = Some(policy.into());
        let settled = settled_phase(&world.input());
        let reported = world.derive().phase.expect("a phase");
        let names: Vec<_> = containers.iter().map(|c| (&c.name, c.state)).collect();
        match want {
            "Succeeded" | "Failed" => {
                assert_eq!((settled, &*reported), (Some(want), "Pending"), "{policy} {names:?}");
            }
            _ => assert_eq!((settled, &*reported), (None, want), "{policy} {names:?}"),
        }
    }
}

#[test]
fn terminal_phase_is_reported_when_no_sandbox_is_ready() {
    let mut world = DerivedPod::new(one("Never")).with(vec![exited("a", "1", 0)]);
    assert_eq!(world.derive().phase.as_deref(), Some("Pending"));
    world.lifecycle = Lifecycle::Terminating;
    assert_eq!(world.derive().phase.as_deref(), Some("Pending"));
    world.observed.as_mut().expect("observed").sandboxes[0].ready = false;
    let status = world.derive();
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
    assert_eq!(condition(&status, "Ready"), ("False".into(), "PodCompleted".into()));
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.7"), "the address stays known");
}

#[test]
fn a_terminal_phase_is_never_left() {
    let mut world = DerivedPod::new(one("Never")).with(vec![exited("a", "1", 1)]);
    world.lifecycle = Lifecycle::Terminated;
    assert_eq!(world.derive().phase.as_deref(), Some("Failed"));
    world.lifecycle = Lifecycle::Syncing;
    world.observed = None;
    assert_eq!(world.derive().phase.as_deref(), Some("Failed"));
}

#[test]
fn status_of_a_finished_container_stays_if_its_policy_forbids_a_restart() {
    let mut world = DerivedPod::new(one("Never")).with(vec![exited("a", "1", 0)]);
    let before = world.derive();
    world.observed.as_mut().expect("observed").containers = vec![container("a", "2")];
    assert_eq!(world.derive(), before);
    let mut allowed = DerivedPod::new(one("Always")).with(vec![exited("a", "1", 0)]);
    allowed.derive();
    allowed.observed.as_mut().expect("observed").containers = vec![container("a", "2")];
    let status = allowed.derive();
    assert_eq!(main_status(&status, "a").container_id.as_deref(), Some("containerd://2"));
    let last = main_status(&status, "a").last_state.clone().expect("a last state");
    assert_eq!(last.terminated.expect("ended").container_id.as_deref(), Some("containerd://1"));
}

#[test]
fn failed_container_may_restart_in_a_new_sandbox_under_pod_policy_on_failure() {
    for (code, is_new) in [(1, true), (0, false)] {
        let containers = json!([{"name": "a", "restartPolicy": "Never"}, {"name": "b"}]);
        let spec = json!({"restartPolicy": "OnFailure", "containers": containers});
        let old = vec![exited("a", "1", code), container("b", "2")];
        let mut world = DerivedPod::new(pod(spec)).with(old);
        let before = world.derive();
        let observed = world.observed.as_mut().expect("observed");
        observed.sandboxes[0].ips = vec!["10.0.0.8".parse().expect("an address")];
        observed.containers = vec![container("a", "3"), container("b", "4")];
        let status = world.derive();
        let ids = ["a", "b"].map(|name| main_status(&status, name).container_id.as_deref());
        if is_new {
            assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.8"));
            assert_eq!(ids, [Some("containerd://3"), Some("containerd://4")]);
        } else {
            assert_eq!(status, before);
        }
    }
}

#[test]
fn a_removed_pod_is_over_although_a_finished_container_was_being_made_again() {
    let mut world = DerivedPod::new(one("OnFailure")).with(vec![exited("a", "1", 0)]);
    world.derive();
    let made = ObservedContainer { state: RunState::Created, ..container("a", "2") };
    world.observed.as_mut().expect("observed").containers = vec![made];
    world.lifecycle = Lifecycle::Terminated;
    let status = world.derive();
    assert_eq!(status.phase.as_deref(), Some("Failed"), "or its deletion is never asked for");
    assert_eq!(main_status(&status, "a").container_id.as_deref(), Some("containerd://1"));
}

#[test]
fn a_running_container_that_vanished_counts_as_ended_not_as_never_started() {
    let mut world = DerivedPod::new(one("Always")).with(vec![container("a", "1")]);
    world.derive();
    world.observed.as_mut().expect("observed").containers.clear();
    let status = world.derive();
    let vanished = main_status(&status, "a");
    let end = vanished.last_state.clone().and_then(|last| last.terminated).expect("an end");
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    assert_eq!(vanished.restart_count, 1);
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(main_status(&world.derive(), "a").restart_count, 1, "counted once");
}

#[test]
fn unobserved_exit_replaces_the_previous_attempt_as_last_state() {
    let why = WaitingReason { reason: "CrashLoopBackOff".into(), message: "back-off".into() };
    let newest = ObservedContainer { restart_count: 1, ..container("a", "2") };
    let mut world = DerivedPod::new(one("Always")).with(vec![newest, exited("a", "1", 3)]);
    world.waiting.insert("a".into(), why);
    world.derive();
    world.observed.as_mut().expect("observed").containers[0].state = RunState::Unknown;
    let status = world.derive();
    let last = main_status(&status, "a").last_state.clone().and_then(|last| last.terminated);
    assert_eq!(last.expect("an end").reason.as_deref(), Some("ContainerStatusUnknown"));
    assert_eq!(world.derive(), status, "the reported end stays");
}

#[test]
fn exit_with_a_lost_record_still_outranks_the_previous_attempt_as_last_state() {
    let why = WaitingReason { reason: "CrashLoopBackOff".into(), message: "back-off".into() };
    let newest = ObservedContainer { restart_count: 1, ..exited("a", "2", 0) };
    let mut world = DerivedPod::new(one("Always")).with(vec![newest, exited("a", "1", 3)]);
    world.derive();
    world.waiting.insert("a".into(), why);
    let newest = &mut world.observed.as_mut().expect("observed").containers[0];
    (newest.state, newest.finished_at) = (RunState::Unknown, UnixNanos(0));
    let status = world.derive();
    let last = main_status(&status, "a").last_state.clone().and_then(|last| last.terminated);
    assert_eq!(last.expect("an end").container_id.as_deref(), Some("containerd://2"));
    assert_eq!(world.derive(), status, "it stays so");
}

#[test]
fn restart_number_used_by_two_attempts_counts_twice_as_in_the_kubelet() {
    let attempt = |id: &str, restart_count| ObservedContainer {
        restart_count,
        created_at: UnixNanos(950 * SECOND),
        ..container("a", id)
    };
    let count = |world: &mut DerivedPod| main_status(&world.derive(), "a").restart_count;
    let mut world = DerivedPod::new(one("Always")).with(vec![exited("a", "1", 3)]);
    assert_eq!(count(&mut world), 0);
    let made = ObservedContainer { state: RunState::Created, ..attempt("2", 1) };
    let mut world = world.with(vec![made, exited("a", "1", 3)]);
    assert_eq!(count(&mut world), 1);
    let mut world = world.with(vec![exited("a", "1", 3)]);
    assert_eq!(count(&mut world), 1, "it was removed before it could start");
    let mut world = world.with(vec![attempt("3", 1), exited("a", "1", 3)]);
    assert_eq!(count(&mut world), 2);
    assert_eq!(count(&mut world), 2, "once more");
}

#[test]
fn container_with_policy_never_may_be_replaced_if_its_pod_restarts_always() {
    let policy = json!({"name": "a", "image": "i", "restartPolicy": "Never"});
    let mut world =
        DerivedPod::new(pod(json!({"restartPolicy": "Always", "containers": [policy]})));
    world = world.with(vec![exited("a", "1", 0)]);
    world.derive();
    let mut world = world.with(vec![container("a", "2")]);
    let status = world.derive();
    assert_eq!(main_status(&status, "a").container_id.as_deref(), Some("containerd://2"));
}

#[test]
fn no_container_counts_as_lost_before_the_first_read() {
    let mut world = DerivedPod::new(one("Always")).with(vec![container("a", "1")]);
    world.derive();
    world.observed = None;
    let status = world.derive();
    assert_eq!(main_status(&status, "a").restart_count, 0);
    assert_eq!(main_status(&status, "a").last_state.clone().and_then(|s| s.terminated), None);
}

#[test]
fn an_init_container_without_a_trace_is_done_once_main_containers_exist() {
    let spec = json!({
        "initContainers": [{"name": "i", "image": "i"},
                           {"name": "s", "image": "i", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "image": "i"}]
    });
    let mut world = DerivedPod::new(pod(spec)).with(vec![container("a", "1"), container("s", "2")]);
    let status = world.derive();
    let inits = status.init_container_statuses.clone().expect("init statuses");
    let end = inits[0].state.clone().and_then(|state| state.terminated).expect("done");
    assert_eq!((end.exit_code, inits[0].ready), (0, true));
    assert_eq!(inits.iter().map(|s| &*s.name).collect::<Vec<_>>(), ["i", "s"]);
    assert_eq!(condition(&status, "Initialized").0, "True");
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn a_sidecar_counts_for_readiness_and_must_start_before_the_pod_is_initialized() {
    let spec = json!({
        "initContainers": [{"name": "s", "image": "i", "restartPolicy": "Always",
                            "startupProbe": {"exec": {"command": ["true"]}}}],
        "containers": [{"name": "a", "image": "i"}]
    });
    let mut world = DerivedPod::new(pod(spec)).with(vec![container("s", "2")]);
    let status = world.derive();
    assert_eq!(condition(&status, "Initialized").0, "False");
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    world.probes.started.insert("2".into(), true);
    let status = world.derive();
    assert_eq!(condition(&status, "Initialized").0, "True");
    let observed = world.observed.as_mut().expect("observed");
    observed.containers = vec![container("a", "3"), exited("s", "2", 1)];
    let status = world.derive();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let message = status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
    let message = message.and_then(|c| c.message.clone());
    assert_eq!(message.as_deref(), Some("containers with unready status: [s]"));
}

#[test]
fn probe_results_belong_to_one_container_id() {
    let spec = json!({"containers": [{"name": "a", "image": "i",
        "readinessProbe": {"exec": {"command": ["true"]}},
        "startupProbe": {"exec": {"command": ["true"]}}}]});
    let mut world = DerivedPod::new(pod(spec)).with(vec![container("a", "1")]);
    let flags = |status: &PodStatus| {
        let status = main_status(status, "a");
        (status.started, status.ready)
    };
    assert_eq!(flags(&world.derive()), (Some(false), false));
    world.probes.started.insert("1".into(), true);
    assert_eq!(flags(&world.derive()), (Some(true), false));
    world.probes.ready.insert("1".into(), true);
    assert_eq!(flags(&world.derive()), (Some(true), true));
    world.observed.as_mut().expect("observed").containers = vec![container("a", "2")];
    assert_eq!(flags(&world.derive()), (Some(false), false));
}

#[test]
fn a_started_container_stays_started_over_a_restart_of_the_agent() {
    let spec = json!({"containers": [{"name": "a", "image": "i",
        "startupProbe": {"exec": {"command": ["true"]}}}]});
    let mut world = DerivedPod::new(pod(spec)).with(vec![container("a", "1")]);
    world.probes.started.insert("1".into(), true);
    world.derive();
    world.probes.started.clear();
    assert_eq!(main_status(&world.derive(), "a").started, Some(true));
}

#[test]
fn a_waiting_reason_shows_only_while_a_start_is_due() {
    let why = WaitingReason { reason: "CrashLoopBackOff".into(), message: "back-off".into() };
    let mut world = DerivedPod::new(one("Always")).with(vec![exited("a", "1", 3)]);
    world.waiting.insert("a".into(), why);
    let status = world.derive();
    let shown = main_status(&status, "a");
    let state = shown.state.clone().expect("a state");
    assert_eq!(state.waiting.expect("waiting").reason.as_deref(), Some("CrashLoopBackOff"));
    let last = shown.last_state.clone().and_then(|last| last.terminated).expect("its last end");
    assert_eq!(last.exit_code, 3);
    world.observed.as_mut().expect("observed").containers[0].state = RunState::Running;
    let running = world.derive();
    assert!(main_status(&running, "a").state.clone().expect("a state").running.is_some());
    world.observed.as_mut().expect("observed").containers = vec![exited("a", "1", 3)];
    world.lifecycle = Lifecycle::Terminating;
    let stopping = world.derive();
    assert!(main_status(&stopping, "a").state.clone().expect("a state").terminated.is_some());
}

#[test]
fn evidence_of_the_kernel_reaches_the_status() {
    let mut lost = exited("a", "1", 255);
    lost.reason = "Unknown".into();
    lost.evidence = Evidence {
        exit: Some(KernelExit { code: 137, at: UnixNanos(940 * SECOND) }),
        told: None,
        oom: Some(OomKill {
            init: true,
            count: 1,
            pid: 7,
            comm: "hog".into(),
            at: UnixNanos(940 * SECOND),
        }),
    };
    let mut world = DerivedPod::new(one("Always")).with(vec![lost]);
    let status = world.derive();
    let end = main_status(&status, "a").state.clone().and_then(|s| s.terminated).expect("ended");
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("OOMKilled")));
    assert_eq!(end.finished_at.expect("a time").0.as_second(), 940);
}

#[test]
fn rejected_pod_has_only_phase_reason_and_message() {
    let mut world = DerivedPod::new(one("Always"));
    world.verdict = Some(rejection("OutOfcpu"));
    let status = world.derive();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(
        (status.reason.as_deref(), status.message.as_deref()),
        (Some("OutOfcpu"), Some("Pod was rejected: why"))
    );
    assert_eq!((status.container_statuses, status.conditions), (None, None));
}

#[test]
fn rejected_pod_keeps_only_conditions_of_foreign_types() {
    let mut world = DerivedPod::new(one("Never"));
    let condition = |type_: &str| json!({"type": type_, "status": "True"});
    let status = json!({"conditions": [condition("PodScheduled"), condition("example.com/gate")]});
    world.pod.status = Some(serde_json::from_value(status).expect("a status"));
    world.verdict = Some(rejection("SysctlForbidden"));
    let conditions = world.derive().conditions.expect("conditions");
    let types: Vec<_> = conditions.iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(types, ["example.com/gate"]);
}

#[test]
fn pod_removed_before_its_start_keeps_reason_containers_not_ready() {
    let mut world = DerivedPod::new(one("Always")).with(Vec::new());
    world.derive();
    world.lifecycle = Lifecycle::Terminated;
    let expected = ("False".to_owned(), "ContainersNotReady".to_owned());
    for _ in 0..2 {
        let status = world.derive();
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        assert_eq!(condition(&status, "Ready"), expected);
        assert_eq!(condition(&status, "ContainersReady"), expected);
    }
}

#[test]
fn evicted_pod_is_failed_with_condition_disruption_target() {
    let mut world = DerivedPod::new(one("Always")).with(vec![container("a", "1")]);
    world.derive();
    let message = "The node was low on resource: memory. ".to_owned();
    world.verdict = Some(PodVerdict { message, ..verdict("Evicted") });
    world.lifecycle = Lifecycle::Terminating;
    let status = world.derive();
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Running"), None));
    assert_eq!(condition(&status, "Ready"), ("False".into(), "PodFailed".into()));
    world.lifecycle = Lifecycle::Terminated;
    world.observed.as_mut().expect("observed").containers = vec![exited("a", "1", 143)];
    let status = world.derive();
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("Evicted"))
    );
    assert_eq!(
        condition(&status, "DisruptionTarget"),
        ("True".into(), "TerminationByKubelet".into())
    );
    assert_eq!(world.derive(), status, "deriving again changes nothing");
}

/// As in the kubelet, and as upstream's tests of critical pods require.
#[test]
fn preempted_pod_that_exits_with_zero_has_succeeded_and_is_a_disruption_target() {
    for (reason, code, phase, told) in [
        ("Preempting", 0, "Succeeded", None),
        ("Preempting", 137, "Failed", Some("Preempting")),
        ("Evicted", 0, "Failed", Some("Evicted")),
        ("NodeShutdown", 0, "Failed", Some("NodeShutdown")),
    ] {
        let mut world = DerivedPod::new(one("Always")).with(vec![exited("a", "1", code)]);
        let message = format!("{}memory. ", crate::eviction::message::OF_NODE);
        world.verdict = Some(PodVerdict { message, ..verdict(reason) });
        world.lifecycle = Lifecycle::Terminated;
        let status = world.derive();
        let found = (status.phase.as_deref(), status.reason.as_deref());
        assert_eq!(found, (Some(phase), told), "{reason} {code}");
        let target = condition(&status, "DisruptionTarget");
        assert_eq!(target, ("True".into(), "TerminationByKubelet".into()), "{reason} {code}");
        assert_eq!(world.derive(), status, "deriving again changes nothing");
    }
}

#[test]
fn pod_evicted_for_its_own_limit_has_no_condition_disruption_target() {
    let mut world = DerivedPod::new(one("Always")).with(vec![exited("a", "1", 143)]);
    world.verdict = Some(verdict("Evicted"));
    world.lifecycle = Lifecycle::Terminated;
    let status = world.derive();
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert!(status.conditions.iter().flatten().all(|c| c.type_ != "DisruptionTarget"));
}

#[test]
fn messages_share_twelve_kibibytes() {
    let mut ended = exited("a", "1", 1);
    ended.message = "é".repeat(8000);
    let mut world = DerivedPod::new(two()).with(vec![ended]);
    let status = world.derive();
    let end = main_status(&status, "a").state.clone().and_then(|s| s.terminated).expect("ended");
    assert_eq!(end.message.expect("a message").len(), 6144);
}

#[test]
fn addresses_put_the_nodes_family_first_and_host_network_takes_the_nodes() {
    let mut world = DerivedPod::new(one("Always")).with(vec![]);
    let six = "fd00::7".parse().expect("an address");
    world.observed.as_mut().expect("observed").sandboxes[0].ips.insert(0, six);
    let ips = |status: PodStatus| -> Vec<String> {
        status.pod_ips.into_iter().flatten().map(|ip| ip.ip).collect()
    };
    assert_eq!(ips(world.derive()), ["10.0.0.7", "fd00::7"]);
    world.previous = None;
    world.node.host_ips = vec![six, "192.0.2.2".parse().expect("an address")];
    // The first address of the Node object differs from --node-ip.
    assert_eq!(ips(world.derive()), ["10.0.0.7", "fd00::7"]);
    world.previous = None;
    world.node.prefers_v6 = true;
    assert_eq!(ips(world.derive()), ["fd00::7", "10.0.0.7"]);
    world.previous = None;
    world.pod.spec.as_mut().expect("a spec").host_network = Some(true);
    let on_host = &mut world.observed.as_mut().expect("observed").sandboxes[0];
    (on_host.host_network, on_host.ips) = (true, Vec::new());
    assert_eq!(ips(world.derive()), ["fd00::7", "192.0.2.2"]);
}

#[test]
fn transition_times_change_only_with_their_condition() {
    let mut world = DerivedPod::new(one("Always")).with(vec![container("a", "1")]);
    let first = world.derive();
    world.now = UnixNanos(2000 * SECOND);
    assert_eq!(world.derive(), first);
    world.observed.as_mut().expect("observed").containers = vec![exited("a", "1", 1)];
    let later = world.derive();
    assert_eq!(later.start_time, first.start_time);
    let moved =
        later.conditions.iter().flatten().filter(|c| {
            c.last_transition_time.as_ref().map(|time| time.0.as_second()) == Some(2000)
        });
    assert_eq!(moved.map(|c| &*c.type_).collect::<Vec<_>>(), ["Ready", "ContainersReady"]);
}

#[test]
fn conditions_of_other_controllers_are_kept() {
    let mut world = DerivedPod::new(json!({
        "metadata": {"generation": 4},
        "spec": {"containers": [{"name": "a"}], "readinessGates": [{"conditionType": "x/gate"}]},
        "status": {"conditions": [{"type": "x/gate", "status": "False"}]}
    }))
    .with(vec![container("a", "1")]);
    let status = world.derive();
    assert_eq!(condition(&status, "x/gate").0, "False");
    assert_eq!(condition(&status, "Ready"), ("False".into(), "ReadinessGatesNotReady".into()));
    assert_eq!(status.observed_generation, Some(4));
}

#[test]
fn pod_is_ready_to_start_containers_with_one_ready_sandbox_that_has_an_address() {
    let mut world = DerivedPod::new(one("Always")).with(vec![]);
    assert_eq!(condition(&world.derive(), "PodReadyToStartContainers").0, "True");
    let sandboxes = &mut world.observed.as_mut().expect("observed").sandboxes;
    sandboxes.push(sandbox());
    assert_eq!(condition(&world.derive(), "PodReadyToStartContainers").0, "False");
    let sandboxes = &mut world.observed.as_mut().expect("observed").sandboxes;
    sandboxes.truncate(1);
    sandboxes[0].ips.clear();
    assert_eq!(condition(&world.derive(), "PodReadyToStartContainers").0, "False");
}

fn any_container() -> impl Strategy<Value = ObservedContainer> {
    let states = prop_oneof![
        Just(RunState::Created),
        Just(RunState::Running),
        Just(RunState::Exited),
        Just(RunState::Unknown)
    ];
    ("[abix]", "[1-9]", states, 0..3i32, 0u32..4, any::<bool>()).prop_map(
        |(name, id, state, code, restarts, lost)| {
            let mut built = exited(&name, &id, code);
            built.state = state;
            built.restart_count = restarts;
            if lost {
                built.evidence.exit = Some(KernelExit { code: 7, at: UnixNanos(1) });
            }
            built
        },
    )
}

fn any_world() -> impl Strategy<Value = DerivedPod> {
    let policies = prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")];
    let lifecycles = prop_oneof![
        Just(Lifecycle::Syncing),
        Just(Lifecycle::Terminating),
        Just(Lifecycle::Terminated)
    ];
    let containers = proptest::collection::vec(any_container(), 0..8);
    (policies, lifecycles, containers, any::<[bool; 4]>()).prop_map(
        |(policy, lifecycle, containers, [has_init, ready, ended, waits])| {
            let inits = if has_init { json!([{"name": "i", "image": "i"}]) } else { json!([]) };
            let mains = json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]);
            let spec =
                json!({"restartPolicy": policy, "initContainers": inits, "containers": mains});
            let mut world = DerivedPod::new(pod(spec)).with(containers);
            world.observed.as_mut().expect("observed").sandboxes[0].ready = ready;
            world.lifecycle = lifecycle;
            world.verdict = ended.then(|| verdict("DeadlineExceeded"));
            if waits {
                let why = WaitingReason { reason: "ErrImagePull".into(), message: String::new() };
                world.waiting.insert("a".into(), why);
            }
            world
        },
    )
}

proptest! {
    #[test]
    fn a_status_is_complete_and_settles(mut world in any_world()) {
        let first = world.derive();
        let spec = world.pod.spec.clone().expect("a spec");
        prop_assert_eq!(
            first.container_statuses.as_ref().map(Vec::len), Some(spec.containers.len())
        );
        for status in first.container_statuses.iter().flatten() {
            let state = status.state.clone().expect("a state");
            let set =
                [state.running.is_some(), state.waiting.is_some(), state.terminated.is_some()];
            prop_assert_eq!(set.iter().filter(|set| **set).count(), 1);
            prop_assert!(!status.ready || state.running.is_some());
        }
        if world.lifecycle == Lifecycle::Terminated {
            prop_assert!(super::is_terminal(first.phase.as_deref()));
        }
        // Whatever came first, deriving the same world again reaches a fixed point at once.
        let second = world.derive();
        prop_assert_eq!(world.derive(), second);
    }

    #[test]
    fn restart_counts_never_decrease_and_terminal_phases_never_change(
        mut world in any_world(), other in any_world()
    ) {
        let before = world.derive();
        world.observed = other.observed;
        let after = world.derive();
        for old in before.container_statuses.iter().flatten() {
            prop_assert!(main_status(&after, &old.name).restart_count >= old.restart_count);
        }
        if super::is_terminal(before.phase.as_deref()) {
            prop_assert_eq!(after.phase, before.phase);
        }
    }
}
