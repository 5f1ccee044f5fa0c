//! A container that is killed to be started again, seen through the whole core while that happens.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::observed::{KernelExit, RunState, TaskExit};
use crate::sync::plan::Action;
use crate::worker::testing::{Host, plain};
use crate::worker::{Failure, Hint, PodsInput};
use pintle_api_types::ids::PodUid;
use pintle_api_types::pod::hash;

/// A pod of this policy with a running container, and the same pod with another image.
fn with_new_image(policy: &str) -> (Host, Pod) {
    let mut pod = plain("p", "100m");
    let spec = pod.spec.as_mut().expect("a spec");
    spec.restart_policy = Some(policy.to_owned());
    spec.containers[0].image = Some("i:1".to_owned());
    let made_of = hash::container_hash(&spec.containers[0]);
    let mut host = Host::new();
    host.want(pod.clone());
    let record = host.records.get_mut("p").expect("a pod in the runtime");
    record.containers[0].hash = Some(made_of);
    host.send(PodsInput::Hint { uid: "p".into(), hint: Hint::Changed });
    pod.spec.as_mut().expect("a spec").containers[0].image = Some("i:2".to_owned());
    (host, pod)
}

fn container(host: &Host) -> Value {
    host.status("p")["containerStatuses"][0].clone()
}

/// The sync kills the container with this code and goes no further; returns the planned actions.
fn kill_only(host: &mut Host, pod: Pod, code: i32) -> Vec<Action> {
    host.lingers = true;
    host.want(pod);
    let actions = host.pods.worker(&"p".into()).expect("a worker").current_actions().to_vec();
    for action in &actions {
        if matches!(action, Action::KillContainer { .. }) {
            host.act(&"p".into(), action).expect("it is stopped");
        }
    }
    let record = host.records.get_mut("p").expect("a pod in the runtime");
    assert_eq!(record.containers[0].state, RunState::Exited, "{actions:?}");
    record.containers[0].exit_code = code;
    host.send(PodsInput::Hint { uid: "p".into(), hint: Hint::Changed });
    actions
}

fn go_on(host: &mut Host, actions: &[Action], fails: bool) {
    let uid = PodUid::from("p");
    let ticket = host.pods.worker(&uid).and_then(|w| w.sync.run.as_ref()).map(|p| p.ticket);
    let ticket = ticket.expect("a sync under way");
    host.lingers = false;
    for (index, action) in actions.iter().enumerate() {
        let starts = matches!(action, Action::StartContainer { .. });
        let mut outcome = Ok(());
        if starts && fails {
            outcome = Err(Failure::new("ErrImagePull", "no such image"));
        } else if starts {
            outcome = host.act(&uid, action);
        }
        host.send(PodsInput::Progress { uid: uid.clone(), ticket, index, outcome });
        host.send(PodsInput::Hint { uid: uid.clone(), hint: Hint::Changed });
    }
    host.send(PodsInput::SyncDone { uid, ticket });
}

#[test]
fn container_not_restarted_by_policy_is_shown_running_while_it_is_replaced() {
    for (policy, code) in [("Never", 0), ("Never", 143), ("OnFailure", 0)] {
        let (mut host, pod) = with_new_image(policy);
        let before = container(&host);
        assert!(before["state"]["running"].is_object(), "{before}");
        let actions = kill_only(&mut host, pod, code);
        assert_eq!(container(&host), before, "{policy}, {code}");
        go_on(&mut host, &actions, false);
        let after = container(&host);
        assert!(after["state"]["running"].is_object(), "{policy}, {code}: {after}");
        assert_ne!(after["containerID"], before["containerID"], "{policy}, {code}: it is frozen");
        assert_eq!(after["restartCount"], 1, "{policy}, {code}");
        assert_eq!(after["lastState"]["terminated"]["exitCode"], code, "{policy}");
        assert_eq!(host.status("p")["phase"], "Running", "{policy}, {code}");
    }
}

#[test]
fn container_restarted_by_policy_is_shown_exited_while_it_is_replaced() {
    for (policy, code) in [("Always", 0), ("Always", 143), ("OnFailure", 143)] {
        let (mut host, pod) = with_new_image(policy);
        kill_only(&mut host, pod, code);
        let end = &container(&host)["state"]["terminated"]["exitCode"];
        assert_eq!(*end, json!(code), "{policy}, {code}");
    }
}

#[test]
fn container_whose_replacement_fails_to_start_is_shown_exited() {
    for (policy, code, phase) in [("Never", 143, "Failed"), ("OnFailure", 0, "Succeeded")] {
        let (mut host, pod) = with_new_image(policy);
        let actions = kill_only(&mut host, pod, code);
        go_on(&mut host, &actions, true);
        let end = &container(&host)["state"]["terminated"]["exitCode"];
        assert_eq!(*end, json!(code), "{policy}, {code}");
        assert_eq!(host.status("p")["phase"], phase, "{policy}, {code}");
    }
}

/// A sync that was to replace the container has failed after the runtime received the request to
/// stop it.
#[test]
fn published_exit_that_the_policy_does_not_restart_stays_final() {
    for (policy, phase) in [("Never", "Succeeded"), ("OnFailure", "Succeeded")] {
        let (mut host, pod) = with_new_image(policy);
        let at = host.now.wall;
        let record = host.records.get_mut("p").expect("a pod in the runtime");
        let evidence = &mut record.containers[0].evidence;
        evidence.exit = Some(KernelExit { code: 0, at });
        evidence.told =
            Some(TaskExit { code: 0, at, words: Some(String::new()), no_oom_kill: false });
        host.send(PodsInput::Hint { uid: "p".into(), hint: Hint::Changed });
        host.take_starts();
        host.want(pod);
        let told = container(&host);
        assert_eq!(told["state"]["terminated"]["exitCode"], 0, "{policy}: {told}");
        host.end("p", "c", 0);
        assert_eq!(host.take_starts(), [""; 0], "{policy}");
        assert_eq!(container(&host)["containerID"], told["containerID"], "{policy}");
        assert_eq!(host.status("p")["phase"], phase, "{policy}");
    }
}
