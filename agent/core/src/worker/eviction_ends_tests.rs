//! The ends of evicted pods: with all of their data, once, and before other pods if they end
//! already.

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::status;
use crate::sync::plan::Action;
use crate::worker::eviction_tests::{MI, Scarce, grace, hard, pod, settings};
use crate::worker::{PodsInput, WorkerStage};

/// Its log is removed with its containers. No other pod is evicted meanwhile, and the API server
/// need not know.
#[test]
fn log_of_a_victim_is_removed_even_if_the_api_server_is_not_informed() {
    let mut node = Scarce::with(hard());
    for (uid, disk) in [("a", 3_000), ("b", 6_500)] {
        node.want(pod(uid, 0), 1, disk);
    }
    node.logs_stay = true;
    node.pass(120);
    assert_eq!(node.victims(), ["b"]);
    assert!(node.host.records["b"].containers.is_empty(), "its log has gone");
    let status = node.host.status("b");
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Evicted")));
    let end = &status["containerStatuses"][0]["state"]["terminated"];
    assert!(end.is_object(), "the end of the container is still reported: {status}");
}

#[test]
fn next_eviction_waits_until_the_disk_can_show_the_space_of_the_victim() {
    let mut node = Scarce::with(hard());
    for (uid, disk) in [("a", 3_000), ("b", 6_500)] {
        node.want(pod(uid, 0), 1, disk);
    }
    (node.logs_stay, node.host.keeps_dead) = (true, true);
    node.pass(25);
    assert_eq!(node.victims(), ["b"]);
    assert_eq!(node.host.stage("b"), Some(WorkerStage::Finished), "its end frees nothing yet");
    node.pass(120);
    assert_eq!(node.victims().len(), 2, "the wait for the first victim ends");
}

/// No other record of its end is left than the one this agent has kept.
#[test]
fn victim_without_a_runtime_record_is_not_started_again_by_a_restarted_agent() {
    let mut node = Scarce::with(hard());
    for (uid, disk) in [("a", 3_000), ("b", 6_500)] {
        node.want(pod(uid, 0), 1, disk);
    }
    node.pass(30);
    let ended = node.host.status("b");
    assert_eq!(ended["reason"], "Evicted");
    // The second one restores the first one's record, not the runtime's.
    for _ in 0..2 {
        node.host.take();
        node.host.restart_with(settings(hard()), vec![pod("a", 0), pod("b", 0)]);
        node.pass(120);
        assert_eq!(node.host.take(), "", "nothing was started");
        assert_eq!(node.host.stage("b"), Some(WorkerStage::Finished));
        let status = node.host.status("b");
        for field in ["phase", "reason", "message"] {
            assert_eq!(status[field], ended[field], "{field}");
        }
    }
    let kept = |node: &mut Scarce| node.host.pods.checkpoints().0.text().contains("PintleEnded");
    let needs = |node: &Scarce, action| {
        let worker = node.host.pods.worker(&"b".into());
        worker.is_some_and(|worker| worker.needs_record(&[action]))
    };
    assert!(kept(&mut node) && needs(&node, Action::Cleanup));
    assert!(!needs(&node, Action::Teardown), "the containers still show the end");
    let mut told = pod("b", 0);
    let status = json!({"phase": "Failed", "reason": "Evicted"});
    told.status = serde_json::from_value(status).expect("a status");
    node.host.send(PodsInput::Reconciled { uid: "b".into(), pod: told.into() });
    assert!(!kept(&mut node) && !needs(&node, Action::Cleanup), "its source knows");
}

/// A pod that drains for an hour and holds the scarce resource.
fn drains() -> Pod {
    let mut drains = pod("drains", 0);
    let spec = drains.spec.get_or_insert_default();
    spec.termination_grace_period_seconds = Some(3600);
    drains
}

#[test]
fn terminating_preempted_pod_is_evicted_at_once_before_other_pods() {
    let mut node = Scarce::with(hard());
    node.want(pod("b", 0), 330, 1);
    node.want(drains(), 600, 1);
    node.host.stubborn = true;
    let (phase, reason) = ("Failed".to_owned(), "Preempting".to_owned());
    let verdict = status::PodVerdict { phase, reason, message: "room".to_owned() };
    node.host.send(PodsInput::Kill { uid: "drains".into(), verdict, grace_seconds: None });
    assert_eq!(grace(&node, "drains"), Some(3600));
    node.pass(15);
    assert_eq!(node.victims(), ["drains"]);
    assert_eq!(grace(&node, "drains"), Some(1));
    node.host.stubborn = false;
    node.pass(120);
    assert_eq!(node.victims(), ["drains"], "evicted once, and no other pod");
    assert_eq!(node.host.status("drains")["reason"], "Evicted", "the last word counts");
}

#[test]
fn pod_past_its_deadline_is_evicted_at_once_before_other_pods() {
    let mut node = Scarce::with(hard());
    let mut of_time = drains();
    of_time.spec.get_or_insert_default().active_deadline_seconds = Some(5);
    node.want(of_time, 500, 1);
    node.want(pod("b", 0), 330, 1);
    node.host.stubborn = true;
    node.pass(8);
    assert_eq!(grace(&node, "drains"), Some(3600), "it ends by itself");
    node.uses.insert("drains".into(), (600 * MI, MI));
    node.pass(15);
    assert_eq!(node.victims(), ["drains"]);
    assert_eq!(grace(&node, "drains"), Some(1));
    node.host.stubborn = false;
    node.pass(120);
    assert_eq!(node.victims(), ["drains"]);
}
