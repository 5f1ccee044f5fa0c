//! Rows for pods of the API: refusals, missing objects, writes, deletions, resizes, hooks.

use std::sync::Arc;

use pintle_api_types::ids::PodUid;
use pintle_api_types::quantity::Amount;
use serde_json::{Value, json};

use super::tests::{ExplainCase, NOW, check, start, waiting};
use super::*;
use crate::eviction::rank::{EvictionRule, Weight};
use crate::eviction::report::{Eviction, Runner, Stall};
use crate::status::testing::{SECOND, container};

/// A deleted pod that has ended.
fn deleted(finalizers: Value) -> ExplainCase {
    let mut case =
        ExplainCase::new(json!({"containers": [{"name": "c"}]}), json!({"phase": "Succeeded"}))
            .stage(WorkerStage::Finished);
    let meta = &mut Arc::make_mut(&mut case.view.pod).metadata;
    meta.deletion_timestamp =
        serde_json::from_value(json!("1970-01-01T00:16:00Z")).expect("a time");
    meta.finalizers = serde_json::from_value(finalizers).expect("finalizers");
    case
}

fn unwritten(mut case: ExplainCase, what: &'static str, seconds: i64, words: &str) -> ExplainCase {
    let since = UnixNanos((NOW - seconds) * SECOND);
    let trouble = Trouble { since, tries: 4, words: words.to_owned() };
    case.unwritten = Some(Unwritten { what, trouble });
    case
}

fn remedy(case: &ExplainCase) -> String {
    case.explain().remedy.expect("a remedy")
}

#[test]
fn pods_that_were_refused_at_the_door() {
    let refused = |reason: &str, why: &str| {
        let message = format!("Pod was rejected: {why}");
        let status = json!({"phase": "Failed", "reason": reason, "message": message});
        ExplainCase::new(json!({"containers": [{"name": "c"}]}), status)
            .stage(WorkerStage::Finished)
    };
    let cpu = "Node didn't have enough resource: cpu, requested: 200, used: 1860, capacity: 2000";
    let ports = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod \
                 ports";
    assert!(remedy(&refused("OutOfcpu", cpu)).starts_with("end other pods of this node"));
    assert!(remedy(&refused("NodePorts", ports)).starts_with("another pod of this node has"));
    check(vec![
        (
            refused("OutOfcpu", cpu),
            "OutOfcpu",
            "Was refused by this node (OutOfcpu): Node didn't have enough resource: cpu, \
             requested: 200, used: 1860, capacity: 2000.",
        ),
        (
            refused("NodePorts", ports),
            "NodePorts",
            "Was refused by this node (NodePorts): Predicate NodePorts failed: node(s) didn't have \
             free ports for the requested pod ports.",
        ),
    ]);
}

#[test]
fn pods_that_wait_for_an_object_name_volume_and_object_and_since_when() {
    let missing = "MountVolume.SetUp failed for volume \"v\" : secret \"nope\" not found";
    let two =
        format!("{missing}; MountVolume.SetUp failed for volume \"w\" : configmap \"x\" not found");
    let case = |message: &str| {
        waiting("ContainerCreating", "")
            .failed("FailedMount", message)
            .said(NOW - 130, "FailedMount", missing)
            .wakes_in(8)
    };
    assert!(remedy(&case(missing)).starts_with("create secret nope in namespace ns"));
    let variable = waiting("CreateContainerConfigError", "configmap \"settings\" not found");
    assert!(remedy(&variable).starts_with("create configmap settings in namespace ns"));
    check(vec![
        (
            case(missing),
            "FailedMount",
            "Waits for volume v, for 2 min 10 s: secret \"nope\" not found; tried again in 8 s.",
        ),
        (
            case(&two),
            "FailedMount",
            "Waits for volume v (and one more volume), for 2 min 10 s: secret \"nope\" not found; \
             tried again in 8 s.",
        ),
        (
            waiting("ContainerCreating", "")
                .failed("NetworkNotReady", "network is not ready: cni plugin not initialized")
                .wakes_in(1),
            "NetworkNotReady",
            "Cannot be connected: network is not ready: cni plugin not initialized; tried again \
             in 1 s.",
        ),
    ]);
}

#[test]
fn failed_pull_shows_the_registrys_error_and_a_matching_remedy() {
    let failed = |words: &str| {
        let message = format!("Back-off pulling image \"x\": ErrImagePull: {words}");
        waiting("ImagePullBackOff", &message).wakes_in(40)
    };
    let credentials = failed("unexpected status from HEAD request: 401 Unauthorized");
    assert!(remedy(&credentials).starts_with("the registry wants other credentials"));
    let sentence = credentials.explain().sentence;
    assert!(sentence.ends_with("401 Unauthorized; tried again in 40 s."), "{sentence}");
    assert!(remedy(&failed("x:1: not found")).starts_with("the registry has no such image"));
    let slow = waiting("ContainerCreating", "").doing(start("c"));
    assert!(
        remedy(&slow.call("PullImage", "x:latest", 300)).starts_with("see whether the registry")
    );
}

#[test]
fn unwritten_status_is_reported_unless_another_failure_explains_the_pod() {
    check(vec![
        (
            unwritten(ExplainCase::ready(), "its status", 120, "Connection refused (os error 111)"),
            "NotWritten",
            "Runs and is ready, but the API server has not taken its status for 2 min (4 tries): \
             Connection refused (os error 111).",
        ),
        (
            unwritten(deleted(json!(null)), "its deletion", 7, "pods \"p\" is forbidden: no"),
            "NotWritten",
            "Has ended and nothing of it is left here; the API server is to forget it, but the API \
             server has not taken its deletion for 7 s (4 tries): pods \"p\" is forbidden: no.",
        ),
        (
            unwritten(waiting("ErrImageNeverPull", "absent"), "its status", 7, "busy"),
            "ErrImageNeverPull",
            "Image x of container c is not on this node: absent.",
        ),
    ]);
    let mirror =
        unwritten(ExplainCase::ready(), "its mirror pod", 60, "the node is not registered");
    let line = "the API server has not taken its mirror pod for 1 min (4 tries): the node is not \
                registered";
    assert!(mirror.explain().details.iter().any(|detail| detail == line));
    let refused = unwritten(ExplainCase::ready(), "its status", 60, "Unauthorized");
    assert!(remedy(&refused).starts_with("the API server does not know this node"));
}

#[test]
fn deleted_pod_reports_the_finalizer_or_deletion_that_is_pending() {
    let finalizers = deleted(json!(["a.test/f", "b.test/g"]));
    assert!(remedy(&finalizers).contains("take the finalizers out of metadata.finalizers"));
    check(vec![
        (
            deleted(json!(["a.test/f"])),
            "WaitingForFinalizers",
            "Has ended and nothing of it is left here; its object stays for its finalizer a.test/f.",
        ),
        (
            deleted(json!(null)),
            "DeletionPending",
            "Has ended and nothing of it is left here; the API server is to forget it.",
        ),
    ]);
}

#[test]
fn ready_pod_reports_a_pending_or_failed_resize() {
    let resizing = |kind: &str, reason: &str| {
        let mut case = ExplainCase::ready();
        let condition = json!({"type": kind, "status": "True", "reason": reason,
            "message": "Node didn't have enough capacity: cpu, requested: 9000, capacity: 2000"});
        let condition = serde_json::from_value(condition).expect("a condition");
        Arc::make_mut(&mut case.view.status).conditions.get_or_insert_default().push(condition);
        case
    };
    let words = "Node didn't have enough capacity: cpu, requested: 9000, capacity: 2000.";
    for (kind, given, reason, what) in [
        ("PodResizePending", "Deferred", "ResizeDeferred", "its resize waits"),
        (
            "PodResizePending",
            "Infeasible",
            "ResizeInfeasible",
            "its resize cannot be done on this node",
        ),
        ("PodResizeInProgress", "Error", "ResizeError", "its resize fails"),
    ] {
        let sentence = format!("Runs and is ready, but {what}: {words}");
        check(vec![(resizing(kind, given), reason, &sentence)]);
    }
    assert!(resizing("PodResizeInProgress", "").explain().healthy);
}

#[test]
fn running_post_start_hook_is_reported_with_its_process() {
    let mut hook = waiting("ContainerCreating", "")
        .with(container("c", "c1"))
        .doing(start("c"))
        .call("ExecSync", "c1", 65);
    hook.calls.last_mut().expect("a call").processes.push(CallProcess {
        role: COMMAND,
        pid: 4242,
        state: 'S',
        wait_channel: None,
    });
    check(vec![(
        hook,
        "PostStartHookRuns",
        "The postStart hook of container c has run for 1 min 5 s (pid 4242); the container counts \
         as started, and the next one begins, when it has ended.",
    )]);
    let young = waiting("ContainerCreating", "").with(container("c", "c1")).doing(start("c"));
    assert_eq!(young.call("ExecSync", "c1", 1).explain().reason, "Starting");
}

#[test]
fn a_stream_hangs_only_where_a_process_cannot_run() {
    let open = |letter: char| {
        ExplainCase::ready().call("ExecStream", "c1", 90).process(7, letter, None).explain()
    };
    assert!(open('S').healthy);
    let line = "runtime call ExecStream of container c (c1) for 1 min 30 s; its shim, pid 7, is \
                waiting (state S)";
    assert!(open('S').details.iter().any(|detail| detail == line));
    assert_eq!(
        open('T').sentence,
        "Waits for the runtime: ExecStream of container c (c1) has not returned for 1 min 30 s; \
         its shim, pid 7, is stopped by a signal (state T)."
    );
}

#[test]
fn details_are_bounded() {
    let mut case = ExplainCase::ready();
    for _ in 0..100 {
        case = case.call("ContainerStatus", "c1", 1);
    }
    let details = case.explain().details;
    assert_eq!(details.len(), DETAILS_MAX + 1);
    assert_eq!(details[DETAILS_MAX], "and 61 lines more: see timeline and dump");
}

#[test]
fn troubles_of_the_whole_node_name_words_and_remedy() {
    let trouble = |words: &str| {
        let since = UnixNanos((NOW - 90) * SECOND);
        Trouble { since, tries: 3, words: words.to_owned() }
    };
    let told = node_troubles(
        &[
            (Task::Registration, trouble("nodes is forbidden: User \"x\"")),
            (Task::Pods, trouble("Unauthorized")),
        ],
        UnixNanos(NOW * SECOND),
    );
    assert!(
        told[0].starts_with(
            "this node is not registered, for 1 min 30 s: nodes is forbidden: User \"x\" (remedy: \
             something refuses the node"
        ),
        "{told:?}"
    );
    assert!(told[1].contains("for 1 min 30 s: Unauthorized (remedy: the API server does not know"));
}

/// An eviction for want of memory, by this rule, with two other candidates.
fn evicted(rule: EvictionRule) -> Eviction {
    let runner = |pod: &str, exceeds, mib: i64| Runner {
        pod: pod.to_owned(),
        weight: Weight { known: true, exceeds, priority: 7, over: Amount::from_bytes(mib << 20) },
    };
    Eviction {
        at: UnixNanos(NOW * SECOND),
        uid: PodUid::from("u"),
        pod: "ns/p".to_owned(),
        signal: "memory.available".to_owned(),
        rule,
        grace_seconds: 0,
        message: "The node was low on resource: memory. ".to_owned(),
        runners: vec![
            runner("ns/p", true, 90),
            runner("ns/second", true, 20),
            runner("ns/third", false, -5),
        ],
        of: 3,
        stall: None,
    }
}

#[test]
fn evicted_pod_reports_the_signal_the_rule_and_other_candidates() {
    let failed = json!({"phase": "Failed", "reason": "Evicted", "message": "as upstream has it"});
    let of_spec = || json!({"containers": [{"name": "c"}]});
    let mut case = ExplainCase::new(of_spec(), failed.clone()).stage(WorkerStage::Finished);
    case.view.evicted = Some(Arc::new(evicted(EvictionRule::Usage)));
    let told = case.explain();
    assert_eq!(
        told.sentence,
        "Was evicted for memory.available: it uses most over its request (2 more came into \
         question); it was told: The node was low on resource: memory."
    );
    assert_eq!(told.reason, "Evicted");
    assert!(told.remedy.is_some_and(|remedy| remedy.starts_with("let it request what it uses")));
    for line in [
        "came into question as well: ns/second, priority 7, 20Mi more than it requests",
        "came into question as well: ns/third, priority 7, no more than it requests",
    ] {
        assert!(told.details.iter().any(|detail| detail == line), "{:#?}", told.details);
    }
    assert!(!told.details.iter().any(|detail| detail.contains("ns/p,")), "{:#?}", told.details);

    // Its own limit has no other candidates.
    let mut limited = ExplainCase::new(of_spec(), failed.clone()).stage(WorkerStage::Finished);
    let of_limit = Eviction { runners: Vec::new(), of: 1, ..evicted(EvictionRule::Limit) };
    limited.view.evicted = Some(Arc::new(of_limit));
    let told = limited.explain();
    assert!(told.sentence.contains("it uses more of a disk than it may; it was told"), "{told:?}");
    assert!(told.remedy.is_some_and(|remedy| remedy.starts_with("let it write less")));

    // Where stall decides as well, the text shows that.
    let stall = Some(Stall { now: Some(1234), least: 1000, cache: 20 << 20 });
    let mut stalled = ExplainCase::new(of_spec(), failed.clone()).stage(WorkerStage::Finished);
    let of_stall = Eviction { stall, ..evicted(EvictionRule::Usage) };
    stalled.view.evicted = Some(Arc::new(of_stall));
    let said = "question); stall 12.34%, 10.00% or more: 20Mi of page cache count as used; it was";
    let sentence = stalled.explain().sentence;
    assert!(sentence.contains(said), "{sentence}");

    // While it ends, and where an earlier agent evicted it.
    let mut ending = ExplainCase::ready().stage(WorkerStage::Terminating);
    ending.view.evicted = Some(Arc::new(evicted(EvictionRule::Priority)));
    let sentence = ending.explain().sentence;
    let said = "Is being ended, evicted for memory.available: its priority is the lowest";
    assert!(sentence.starts_with(said), "{sentence}");
    let earlier = ExplainCase::new(of_spec(), failed).stage(WorkerStage::Finished);
    assert_eq!(earlier.explain().sentence, "Has failed: Evicted: as upstream has it.");
}
