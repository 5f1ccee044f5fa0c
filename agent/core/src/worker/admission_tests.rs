//! Admission and resizes through the whole core: a runtime of a few lines answers its commands.
//!
//! Effects of admission on a pod through the whole core: refused, admitted with victims, resized
//! now, later or never, and all of it over a restart. Single functions are tested next to their
//! code.

use std::time::Duration;

use serde_json::json;

use crate::types::NodeFacts;
use crate::worker::testing::{self as core, Host, ON_HOST, plain, sized_pod as pod};
use crate::worker::{Hint, PodsInput, WorkerStage};

#[test]
fn pod_that_does_not_fit_is_rejected_with_a_reason_and_never_starts() {
    let mut host = Host::new();
    host.want(plain("a", "800m"));
    assert_eq!(host.take(), "StartContainer a");
    host.want(plain("b", "300m"));
    assert_eq!(host.take(), "OutOfcpu b");
    let status = host.status("b");
    let want = "Pod was rejected: Node didn't have enough resource: cpu, requested: 300, \
                used: 800, capacity: 1000";
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("OutOfcpu")));
    assert_eq!(status["message"], want);
    assert_eq!(status["observedGeneration"], 1);
    assert!(status.get("conditions").is_none() && status.get("containerStatuses").is_none());
    assert_eq!(host.stage("b"), Some(WorkerStage::Finished));
    // Refused is refused: room that becomes free is for others.
    host.remove("a");
    host.take();
    host.want(plain("b", "300m"));
    host.want(plain("c", "900m"));
    assert_eq!(host.take(), "StartContainer c");
}

#[test]
fn critical_pod_starts_after_its_victims_have_ended() {
    let mut host = Host::new();
    host.want(plain("a", "400m"));
    host.want(plain("b", "500m"));
    host.take();
    host.want(pod("x", "300m", 1, json!({"priority": 2_000_000_000})));
    assert_eq!(host.take(), "Preempting a, KillPod a, StartContainer x");
    let status = host.status("a");
    // It ended well when it was stopped, and its phase shows only that.
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Succeeded"), &json!(null)));
    let target = &status["conditions"][0];
    assert_eq!(target["type"], "DisruptionTarget");
    let why = "Pod was preempted by Kubelet to accommodate a critical pod.";
    assert_eq!(target["message"], why);
}

#[test]
fn preemption_for_a_waiting_critical_pod_continues_after_an_agent_restart() {
    let mut host = Host::new();
    host.want(plain("a", "900m"));
    host.take();
    host.stubborn = true;
    let critical = || pod("x", "300m", 1, json!({"priority": 2_000_000_000}));
    host.want(critical());
    assert_eq!(host.take(), "Preempting a");
    host.stubborn = false;
    host.restart(vec![plain("a", "900m"), critical()]);
    assert_eq!(host.take(), "Preempting a, KillPod a, StartContainer x");
    assert!(host.pods.is_unsaved(), "it was given its share when it began");
    host.restart(vec![critical()]);
    assert_eq!(host.take(), "");
    assert!(host.pods.worker(&"x".into()).is_some_and(|worker| worker.resizing.requests.is_some()));
}

#[test]
fn overdue_victim_is_reported_once_and_delays_the_critical_pod_no_longer() {
    let mut host = Host::new();
    host.want(plain("a", "900m"));
    host.take();
    host.stubborn = true;
    host.want(pod("x", "300m", 1, json!({"priority": 2_000_000_000})));
    assert_eq!(host.take(), "Preempting a");
    // Half the grace period more, but not before 10 s. As in the kubelet, the critical pod starts
    // then.
    let overdue = "ExceededGracePeriod a, StartContainer x";
    for (seconds, told) in [(9, ""), (2, overdue), (60, "")] {
        host.now = host.now.plus(Duration::from_secs(seconds));
        host.send(PodsInput::Tick);
        assert_eq!(host.take(), told, "after {seconds} s");
    }
    host.stubborn = false;
    host.now = host.now.plus(Duration::from_secs(60));
    host.send(PodsInput::Tick);
    assert_eq!(host.take(), "KillPod a");
}

#[test]
fn only_host_network_pods_start_before_the_network_is_ready() {
    let mut host = Host::new();
    let error = Some("cni plugin not initialized".to_owned());
    host.send(PodsInput::Node(NodeFacts { network_error: error, ..core::small_settings().node }));
    host.want(plain("a", "100m"));
    assert_eq!(host.take(), "NetworkNotReady a");
    let mut on_host = plain(ON_HOST, "100m");
    on_host.spec.get_or_insert_default().host_network = Some(true);
    host.want(on_host);
    assert_eq!(host.take(), "StartContainer on-host");
    let second = Duration::from_secs(1);
    host.now = host.now.plus(second);
    host.send(PodsInput::Tick);
    assert_eq!(host.take(), "NetworkNotReady a");
    host.send(PodsInput::Node(core::small_settings().node));
    host.now = host.now.plus(second);
    host.send(PodsInput::Tick);
    assert_eq!(host.take(), "StartContainer a");
}

#[test]
fn admission_without_a_node_object_uses_the_features_of_the_runtime() {
    let mut host = Host::new();
    let strict = |name: &str| {
        let mut pod = plain(name, "100m");
        let context = json!({"supplementalGroupsPolicy": "Strict"});
        let context = serde_json::from_value(context).expect("a context");
        pod.spec.get_or_insert_default().security_context = Some(context);
        pod
    };
    host.want(strict("a"));
    assert_eq!(host.take(), "SupplementalGroupsPolicyNotSupported a");
    let able = NodeFacts { supplemental_groups_policy: true, ..core::small_settings().node };
    host.send(PodsInput::Node(able));
    host.want(strict("b"));
    assert_eq!(host.take(), "StartContainer b");
}

#[test]
fn prober_gets_a_pod_before_its_containers_run_and_again_with_a_new_address() {
    let mut host = Host::new();
    let at = |ip: &str| NodeFacts {
        host_ips: vec![ip.parse().expect("an address")],
        ..core::small_settings().node
    };
    host.send(PodsInput::Node(at("192.0.2.2")));
    let mut pod = plain(ON_HOST, "100m");
    let spec = pod.spec.get_or_insert_default();
    spec.host_network = Some(true);
    let probe = serde_json::from_value(json!({"tcpSocket": {"port": 80}})).expect("a probe");
    spec.containers[0].liveness_probe = Some(probe);
    host.want(pod);
    host.take();
    let first = Some("192.0.2.2".to_owned());
    assert_eq!(host.probed, [(first.clone(), 0), (first, 1)]);
    host.send(PodsInput::Node(at("192.0.2.3")));
    host.now = host.now.plus(Duration::from_secs(61));
    host.send(PodsInput::Tick);
    assert_eq!(host.probed[2..], [(Some("192.0.2.3".to_owned()), 1)]);
}

#[test]
fn a_resize_is_granted_and_carried_out() {
    let mut host = Host::new();
    host.want(plain("a", "200m"));
    host.take();
    host.want(pod("a", "500m", 2, json!({})));
    assert_eq!(host.take(), "ResizeStarted a, resize a [c], ResizeCompleted a");
    let status = host.status("a");
    assert_eq!(status["observedGeneration"], 2);
    assert_eq!(status["allocatedResources"]["cpu"], "500m");
    assert_eq!(host.condition("a", "PodResizeInProgress"), None);
    // The same in another notation is no resize.
    host.want(pod("a", "0.5", 3, json!({})));
    assert_eq!(host.take(), "");
}

#[test]
fn resize_restarts_the_container_if_its_resize_policy_requires_a_restart() {
    let mut host = Host::new();
    let policy = json!({"policy": "RestartContainer"});
    host.want(pod("a", "200m", 1, policy.clone()));
    host.take();
    host.want(pod("a", "500m", 2, policy));
    assert_eq!(host.take(), "ResizeStarted a, resize a [], StartContainer a, ResizeCompleted a");
    assert_eq!(host.status("a")["containerStatuses"][0]["restartCount"], 1);
}

#[test]
fn resize_with_a_container_restart_completes_only_after_the_container_is_killed() {
    let policy = || json!({"policy": "RestartContainer"});
    let done = "resize a [], StartContainer a, ResizeCompleted a";
    // The agent stops while the container is being stopped; the container lives on.
    let mut host = Host::new();
    host.want(pod("a", "200m", 1, policy()));
    host.take();
    host.lingers = true;
    host.want(pod("a", "500m", 2, policy()));
    assert_eq!(host.take(), "ResizeStarted a");
    assert_eq!(host.status("a")["containerStatuses"][0]["resources"]["limits"]["cpu"], "200m");
    host.lingers = false;
    let status = host.status("a");
    let found = json!({"policy": "RestartContainer", "status": status});
    host.restart(vec![pod("a", "500m", 2, found)]);
    assert_eq!(host.take(), done);
    // The runtime does not stop it for a while.
    let mut host = Host::new();
    host.want(pod("a", "200m", 1, policy()));
    host.take();
    host.stubborn = true;
    host.want(pod("a", "500m", 2, policy()));
    assert_eq!(host.take(), "ResizeStarted a");
    host.stubborn = false;
    host.wait(Duration::from_secs(11));
    assert_eq!(host.take(), done);
    assert_eq!(host.status("a")["containerStatuses"][0]["restartCount"], 1);
}

#[test]
fn container_restarted_for_a_resize_gets_the_limits_at_the_start_of_its_sync() {
    let policy = || json!({"policy": "RestartContainer"});
    let mut host = Host::new();
    host.want(pod("a", "200m", 1, policy()));
    host.lingers = true;
    host.want(pod("a", "600m", 3, policy()));
    host.want(pod("a", "700m", 4, policy()));
    host.take();
    let ticket = host.ticket("a");
    let worker = host.pods.worker(&"a".into()).expect("a worker");
    let actions = worker.current_actions().to_vec();
    for (index, action) in actions.iter().enumerate() {
        let outcome = host.act(&"a".into(), action);
        host.send(PodsInput::Progress { uid: "a".into(), ticket, index, outcome });
    }
    let worker = host.pods.worker(&"a".into()).expect("a worker");
    let given = worker.resizing.actuated.containers["c"].limits.as_ref().expect("limits");
    assert_eq!(given["cpu"].0, "600m");
}

#[test]
fn a_resize_without_room_waits_until_there_is() {
    let mut host = Host::new();
    host.want(plain("a", "400m"));
    host.want(plain("b", "500m"));
    host.take();
    host.want(pod("a", "700m", 2, json!({})));
    assert_eq!(host.take(), "ResizeDeferred a");
    let pending = host.condition("a", "PodResizePending");
    assert_eq!(pending, Some((json!("Deferred"), json!(2))));
    assert_eq!(host.status("a")["allocatedResources"]["cpu"], "400m");
    assert_eq!(host.status("a")["observedGeneration"], 2);
    // Checked again, with no news.
    host.now = host.now.plus(Duration::from_secs(181));
    host.send(PodsInput::Tick);
    assert_eq!(host.take(), "");
    host.remove("b");
    let log = host.take();
    assert!(log.contains("ResizeStarted a, resize a [c], ResizeCompleted a"), "{log}");
    assert_eq!(host.condition("a", "PodResizePending"), None);
}

#[test]
fn a_wish_that_is_taken_back_is_forgotten() {
    let mut host = Host::new();
    host.want(plain("a", "400m"));
    host.want(pod("a", "2", 2, json!({})));
    assert!(host.condition("a", "PodResizePending").is_some());
    host.take();
    host.want(pod("a", "400m", 3, json!({})));
    assert_eq!(host.condition("a", "PodResizePending"), None);
    assert_eq!(host.take(), "");
}

#[test]
fn resize_to_less_is_actuated_first_and_makes_room_for_other_resizes() {
    let mut host = Host::new();
    for uid in ["a", "b", "c"] {
        host.want(plain(uid, "300m"));
    }
    host.want(pod("a", "500m", 2, json!({})));
    host.want(pod("b", "500m", 2, json!({"priority": 5})));
    host.take();
    host.want(pod("c", "150m", 2, json!({})));
    let log = host.take();
    let want = "ResizeStarted c, resize c [c], ResizeStarted b, resize b [c], ResizeCompleted c, \
                ResizeCompleted b";
    assert_eq!(log, want);
    assert!(host.condition("a", "PodResizePending").is_some());
}

#[test]
fn resize_refused_by_the_runtime_is_reported_and_retried() {
    let mut host = Host::new();
    host.want(plain("a", "200m"));
    host.take();
    host.refuses = Some("not now");
    host.want(pod("a", "500m", 2, json!({})));
    assert_eq!(host.take(), "ResizeStarted a, resize a [c], ResizeError a");
    let progress = host.condition("a", "PodResizeInProgress");
    assert_eq!(progress, Some((json!("Error"), json!(2))));
    host.refuses = None;
    host.now = host.now.plus(Duration::from_secs(11));
    host.send(PodsInput::Tick);
    assert_eq!(host.take(), "resize a [c], ResizeCompleted a");
}

#[test]
fn failed_resize_that_is_reverted_is_undone_in_case_the_runtime_applied_it() {
    let mut host = Host::new();
    host.want(plain("a", "200m"));
    host.refuses = Some("the answer was lost");
    host.want(pod("a", "500m", 2, json!({})));
    host.take();
    host.refuses = None;
    host.want(pod("a", "200m", 3, json!({})));
    host.wait(Duration::from_secs(11));
    let log = host.take();
    assert!(log.contains("resize a [c]"), "{log}");
    host.wait(Duration::from_secs(11));
    assert_eq!(host.take(), "", "it is undone once");
}

#[test]
fn a_restart_of_the_agent_neither_refuses_nor_forgets() {
    let mut host = Host::new();
    host.want(plain("a", "400m"));
    host.want(plain("b", "500m"));
    let wish = || pod("a", "700m", 2, json!({}));
    host.want(wish());
    host.take();
    // A new pod that is delivered first does not preempt those that were there before.
    host.restart(vec![plain("c", "300m"), plain("b", "500m"), wish()]);
    let log = host.take();
    assert!(!log.contains("OutOfcpu a") && !log.contains("OutOfcpu b"), "{log}");
    assert!(!log.contains("KillPod") && !log.contains("resize"), "{log}");
    assert_eq!(host.status("a")["allocatedResources"]["cpu"], "400m");
    assert!(host.condition("a", "PodResizePending").is_some());
}

#[test]
fn a_resize_that_a_crash_interrupted_is_completed() {
    let mut host = Host::new();
    host.want(plain("a", "200m"));
    host.refuses = Some("not now");
    host.want(pod("a", "500m", 2, json!({})));
    host.refuses = None;
    host.take();
    host.restart(vec![pod("a", "500m", 2, json!({}))]);
    assert_eq!(host.take(), "resize a [c], ResizeCompleted a");
    // Once it is recorded it is not done again.
    host.restart(vec![pod("a", "500m", 2, json!({}))]);
    assert_eq!(host.take(), "");
}

#[test]
fn a_pod_that_is_over_takes_no_room_and_is_not_asked() {
    let mut host = Host::new();
    let over = json!({"status": {"phase": "Succeeded"}});
    host.want(pod("a", "900m", 1, over.clone()));
    host.want(pod("b", "5", 1, over));
    host.want(plain("c", "900m"));
    assert_eq!(host.take(), "StartContainer c");
}

/// A pod that is being deleted and has not been read yet.
fn deleted(uid: &str, phase: &str) -> k8s_openapi::api::core::v1::Pod {
    let mut pod = pod(uid, "900m", 1, json!({"status": {"phase": phase}}));
    pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
    pod
}

#[test]
fn deleted_pod_with_a_terminal_phase_takes_no_room_before_its_first_read() {
    for (phase, told) in
        [("Succeeded", ""), ("Failed", ""), ("Running", "OutOfcpu c"), ("", "OutOfcpu c")]
    {
        let mut host = Host::new();
        let uid = "a".into();
        // The answer to its first read is on its way.
        let old = PodsInput::Desired { uid, pod: std::sync::Arc::new(deleted("a", phase)) };
        host.pods.handle(host.now, old);
        host.want(plain("c", "900m"));
        let log = host.take();
        let refused = if log.contains("OutOfcpu c") { "OutOfcpu c" } else { "" };
        assert_eq!(refused, told, "{phase:?}: {log}");
    }
}

#[test]
fn deleted_pod_that_still_runs_takes_room_from_its_first_read_despite_phase_failed() {
    let mut host = Host::new();
    host.want(plain("a", "900m"));
    host.take();
    host.stubborn = true;
    host.restart(vec![deleted("a", "Failed")]);
    assert_eq!(host.stage("a"), Some(WorkerStage::Terminating));
    host.take();
    host.want(plain("c", "900m"));
    assert!(host.take().contains("OutOfcpu c"));
}

#[test]
fn room_of_a_pod_is_free_when_its_end_is_reported() {
    let mut host = Host::new();
    host.want(plain("old", "800m"));
    host.lingers = true;
    host.remove("old");
    // The runtime's event for the end of all containers comes before its call returns.
    host.send(PodsInput::Hint { uid: "old".into(), hint: Hint::Changed });
    assert_eq!(host.stage("old"), Some(WorkerStage::Terminating));
    assert_eq!(host.status("old")["phase"], "Succeeded");
    host.lingers = false;
    host.want(plain("new", "800m"));
    assert_eq!(host.status("new")["phase"], "Running", "{}", host.take());
}

#[test]
fn container_that_fails_to_start_enters_crash_loop_backoff() {
    let mut host = Host::new();
    host.breaks = true;
    host.want(plain("p", "100m"));
    let told = |host: &Host| {
        let status = &host.status("p")["containerStatuses"][0];
        (status["restartCount"].clone(), status["state"]["waiting"]["reason"].clone())
    };
    assert_eq!(told(&host), (json!(0), json!("RunContainerError")));
    let mut sync = |seconds| {
        host.now = host.now.plus(Duration::from_secs(seconds));
        host.send(PodsInput::Tick);
        told(&host)
    };
    assert_eq!(sync(1), (json!(1), json!("RunContainerError")));
    assert_eq!(sync(2), (json!(1), json!("CrashLoopBackOff")));
    assert_eq!(sync(10), (json!(2), json!("RunContainerError")));
}

#[test]
fn rejection_status_is_unchanged_after_an_agent_restart() {
    let mut host = Host::new();
    let status = json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: x",
        "qosClass": "Guaranteed", "startTime": "2026-11-21T02:27:13Z", "observedGeneration": 1});
    host.restart(vec![pod("a", "100m", 1, json!({"status": status}))]);
    assert_eq!(host.take(), "");
    assert_eq!(host.status("a"), status);
}

#[test]
fn a_refused_resize_is_not_tried_again_on_the_way_to_the_next() {
    let mut host = Host::new();
    host.want(plain("a", "200m"));
    host.refuses = Some("not now");
    host.want(pod("a", "100m", 2, json!({})));
    host.take();
    host.refuses = None;
    host.want(pod("a", "300m", 3, json!({})));
    assert_eq!(host.take(), "ResizeStarted a, resize a [c], ResizeCompleted a");
}
