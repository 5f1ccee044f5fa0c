//! Shutdowns of the node, over the whole core.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::ledger;
use crate::observed::RunState;
use crate::shutdown::{Notice, ShutdownRecord, Window};
use crate::worker::testing::{Host, of_folder, sized_pod, small_settings};
use crate::worker::{Command, Pods, PodsInput, WorkerStage};
use pintle_api_types::ids::UnixNanos;

fn windows() -> Vec<Window> {
    let window = |priority, seconds| Window { priority, seconds };
    vec![window(0, 10), window(1_000, 5), window(2_000_000_000, 3)]
}

fn begins() -> PodsInput {
    PodsInput::Shutdown(Notice::Begins { windows: windows(), resumed: None })
}

fn pod(uid: &str, priority: i32) -> Pod {
    let mut pod = sized_pod(uid, "10m", 1, json!({"priority": priority}));
    pod.spec.get_or_insert_default().termination_grace_period_seconds = Some(30);
    pod
}

/// One pod of each group.
fn host() -> Host {
    let mut host = Host::new();
    for (uid, priority) in [("least", -7), ("middle", 1_500), ("critical", 2_000_001_000)] {
        host.want(pod(uid, priority));
    }
    host.take();
    host
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn shutdown_ends_pods_group_by_group_with_reason_terminated() {
    let mut host = host();
    host.send(begins());
    assert_eq!(host.take(), "KillPod least, KillPod middle, KillPod critical");
    for uid in ["least", "middle", "critical"] {
        let status = host.status(uid);
        assert_eq!(status["phase"], "Failed");
        assert_eq!(status["reason"], "Terminated");
        let message = "Pod was terminated in response to imminent node shutdown.";
        assert_eq!(status["message"], message);
        let conditions = status["conditions"].as_array().expect("conditions");
        let target =
            conditions.iter().find(|c| c["type"] == "DisruptionTarget").expect("a condition");
        assert_eq!(target["status"], "True");
        assert_eq!(target["reason"], "TerminationByKubelet");
        assert_eq!(target["message"], message);
        assert_eq!(host.stage(uid), Some(WorkerStage::Finished));
    }
    // However often the machine reports it, nothing is stopped twice, nothing starts again.
    host.send(begins());
    host.wait(seconds(600));
    assert_eq!(host.take(), "");
}

#[test]
fn a_pod_that_has_not_begun_ends_as_any_other() {
    let mut host = host();
    host.stubborn = true;
    host.want(sized_pod("waits", "990m", 1, json!({"priority": 2_000_001_000})));
    assert_eq!(host.stage("waits"), Some(WorkerStage::Waiting), "for those that make room");
    host.stubborn = false;
    host.send(begins());
    let status = host.status("waits");
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Terminated")));
    let conditions = status["conditions"].as_array().expect("conditions");
    for type_ in ["DisruptionTarget", "PodScheduled"] {
        assert!(conditions.iter().any(|c| c["type"] == type_ && c["status"] == "True"), "{type_}");
    }
    let end = &status["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(end["reason"], "ContainerStatusUnknown");
}

#[test]
fn shutdown_group_waits_for_the_previous_group_only_for_its_period() {
    let mut host = host();
    host.stubborn = true;
    host.send(begins());
    let stages = |host: &Host| {
        ["least", "middle", "critical"].map(|uid| host.stage(uid) == Some(WorkerStage::Terminating))
    };
    assert_eq!(stages(&host), [true, false, false]);
    host.wait(seconds(9));
    assert_eq!(stages(&host), [true, false, false]);
    host.wait(seconds(1));
    assert_eq!(stages(&host), [true, true, false]);
    host.wait(seconds(5));
    assert_eq!(stages(&host), [true, true, true]);
    let graces = ["least", "middle", "critical"]
        .map(|uid| host.pods.worker(&uid.into()).and_then(|worker| worker.ending.grace_seconds));
    assert_eq!(graces, [Some(10), Some(5), Some(3)], "the less of its own and its group's");
}

#[test]
fn a_group_is_not_over_before_its_volumes_are_unmounted() {
    let mut host = host();
    host.lingers = true;
    host.send(begins());
    assert_eq!(host.stage("least"), Some(WorkerStage::Terminating));
    // Its containers have ended; the next action is the removal of its volumes.
    let stop = host.ticket("least");
    host.send(PodsInput::SyncDone { uid: "least".into(), ticket: stop });
    assert_eq!(host.stage("least"), Some(WorkerStage::Terminated));
    assert_eq!(host.status("least")["reason"], "Terminated");
    assert_eq!(host.stage("middle"), Some(WorkerStage::Syncing));
    host.finish("least");
    for uid in ["least", "middle", "critical"] {
        assert_eq!(host.stage(uid), Some(WorkerStage::Finished), "{uid}");
    }
}

#[test]
fn pods_are_rejected_during_a_shutdown_and_admitted_after_its_cancellation() {
    let mut host = host();
    host.send(begins());
    host.want(pod("late", 2_000_001_000));
    assert_eq!(host.status("late")["reason"], "NodeShutdown");
    let message = "Pod was rejected as the node is shutting down.";
    assert!(host.status("late")["message"].as_str().is_some_and(|told| told.ends_with(message)));
    // The Node object's conditions meanwhile open nothing.
    let node = small_settings().admission;
    host.send(PodsInput::Admission(node));
    host.want(pod("later", 0));
    assert_eq!(host.status("later")["reason"], "NodeShutdown");
    host.send(PodsInput::Shutdown(Notice::Cancelled));
    host.take();
    host.want(pod("after", 0));
    assert_eq!(host.take(), "StartContainer after");
    assert_eq!(host.status("least")["reason"], "Terminated", "what has ended stays so");
}

#[test]
fn pods_of_later_groups_keep_running_when_the_shutdown_is_cancelled() {
    let mut host = host();
    host.stubborn = true;
    host.send(begins());
    host.send(PodsInput::Shutdown(Notice::Cancelled));
    host.stubborn = false;
    host.wait(seconds(600));
    assert_eq!(host.stage("least"), Some(WorkerStage::Finished));
    for uid in ["middle", "critical"] {
        assert_eq!(host.stage(uid), Some(WorkerStage::Syncing));
    }
    // And the next one starts over.
    host.send(begins());
    assert_eq!(host.stage("critical"), Some(WorkerStage::Finished));
}

#[test]
fn a_pod_that_succeeded_stays_so() {
    let mut host = host();
    let mut done = pod("done", 0);
    done.spec.get_or_insert_default().restart_policy = Some("Never".to_owned());
    host.want(done);
    host.end("done", "c", 0);
    assert_eq!(host.status("done")["phase"], "Succeeded");
    host.send(begins());
    assert_eq!(host.status("done")["phase"], "Succeeded");
    assert_eq!(host.status("done")["reason"], json!(null));
}

#[test]
fn pods_that_wait_for_the_node_object_are_refused_at_once() {
    let mut settings = small_settings();
    settings.has_node_object = true;
    let mut host = Host::with(settings);
    host.want(pod("guest", 0));
    assert_eq!(host.stage("guest"), None);
    host.send(begins());
    assert_eq!(host.status("guest")["reason"], "NodeShutdown");
    host.want(pod("later", 0));
    assert_eq!(host.status("later")["reason"], "NodeShutdown");
}

/// The content of the last command of the kind.
fn records(host: &mut Host, input: PodsInput) -> Vec<ShutdownRecord> {
    let commands = host.pods.handle(host.now, input).into_iter();
    let told = commands.filter_map(|command| match command {
        Command::Shutdown(record) => Some(record),
        _ => None,
    });
    told.collect()
}

#[test]
fn restarted_agent_resumes_the_shutdown_and_starts_no_ended_pod() {
    let mut host = host();
    host.stubborn = true;
    let first = records(&mut host, begins());
    host.now = host.now.plus(seconds(10));
    let told = records(&mut host, PodsInput::Tick);
    let record = told.last().expect("the next group").clone();
    assert_eq!(record.started_at, first[0].started_at);
    assert_eq!(record.group.map(|(priority, _)| priority), Some(1_000));
    // A pod of the first group has ended, and its manifest is still there.
    host.stubborn = false;
    host.end("least", "c", 0);
    let manifest = |uid, priority| of_folder(pod(uid, priority), uid);
    let (allocated, actuated) = (ledger::Entries::default(), Default::default());
    host.pods = Pods::new(small_settings());
    host.pods.restore(allocated, actuated);
    let resumed = Some(record);
    host.send(PodsInput::Shutdown(Notice::Begins { windows: windows(), resumed }));
    host.send(PodsInput::Tick);
    host.take();
    host.take_starts();
    for (uid, priority) in [("least", -7), ("middle", 1_500), ("critical", 2_000_001_000)] {
        host.want(manifest(uid, priority));
    }
    assert_eq!(host.stage("critical"), Some(WorkerStage::Finished), "refused: it had no record");
    host.send(PodsInput::SourcesReady);
    assert_eq!(host.take_starts(), Vec::<String>::new());
    for uid in ["least", "middle", "critical"] {
        assert_eq!(host.stage(uid), Some(WorkerStage::Finished), "{uid}");
    }
    let over = records(&mut host, PodsInput::Tick);
    assert!(over.is_empty(), "its record was written before: {over:?}");
}

fn read(draft: &ledger::Draft) -> ledger::Entries {
    ledger::decode(draft.text().as_bytes()).expect("a checkpoint")
}

#[test]
fn restarted_agent_fails_only_pods_that_ended_after_the_shutdown_began() {
    for (ends_after, expected) in [(-5, "Succeeded"), (5, "Failed")] {
        let mut host = host();
        let mut done = of_folder(pod("done", 0), "done");
        done.spec.get_or_insert_default().restart_policy = Some("Never".to_owned());
        host.want(done.clone());
        let began_at = host.now.wall;
        host.now = host.now.plus(seconds(10));
        let at = match ends_after {
            -5 => UnixNanos(began_at.0 - 5_000_000_000),
            _ => began_at.plus(seconds(5)),
        };
        let record = host.records.get_mut("done").expect("it runs");
        record.sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = false);
        for container in &mut record.containers {
            (container.state, container.finished_at) = (RunState::Exited, at);
        }
        let group = Some((0, host.now.wall.plus(seconds(9))));
        let resumed =
            Some(ShutdownRecord { started_at: began_at, group, ..ShutdownRecord::default() });
        let (allocated, actuated) = host.pods.checkpoints();
        host.pods = Pods::new(small_settings());
        host.pods.restore(read(&allocated), read(&actuated));
        host.take_starts();
        host.send(PodsInput::Shutdown(Notice::Begins { windows: windows(), resumed }));
        host.send(PodsInput::Tick);
        host.send(PodsInput::Desired { uid: "done".into(), pod: std::sync::Arc::new(done) });
        host.send(PodsInput::SourcesReady);
        assert_eq!(host.status("done")["phase"], expected);
        assert_eq!(host.take_starts(), Vec::<String>::new());
    }
}

#[test]
fn shutdown_group_ends_only_by_its_timeout_until_all_pods_are_known() {
    let mut host = Host::new();
    host.pods = Pods::new(small_settings());
    host.send(PodsInput::Tick);
    let begun = records(&mut host, begins());
    assert_eq!(begun.last().and_then(|told| told.group.map(|(priority, _)| priority)), Some(0));
    host.now = host.now.plus(seconds(10));
    let next = records(&mut host, PodsInput::Tick);
    assert_eq!(next.last().and_then(|told| told.group.map(|(priority, _)| priority)), Some(1_000));
    host.send(PodsInput::SourcesReady);
    assert!(host.pods.knows_all());
    assert!(host.pods.shutdown.as_ref().is_some_and(|shutdown| shutdown.is_over()));
}
