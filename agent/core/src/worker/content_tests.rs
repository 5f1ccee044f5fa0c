//! A worker's reaction to a change of an object that its pod refers to, through the whole core.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::observed::ObservedPod;
use crate::status::testing;
use crate::sync::plan::Action;
use crate::worker::{Command, Failure, Pods, PodsInput, Settings, testing as core};
use pintle_api_types::ids::{Now, PodUid};

/// One pod, its record from the runtime, and the actions that fail.
struct Context {
    pods: Pods,
    now: Now,
    record: ObservedPod,
    /// Reason of the failure by the action's verb.
    failing: BTreeMap<&'static str, &'static str>,
    /// Verbs of the actions since the last look.
    log: Vec<&'static str>,
    /// Arrives while the next sync is under way.
    during: Option<PodsInput>,
}

fn uid() -> PodUid {
    PodUid::from("u")
}

fn pod(labels: &Value, volumes: &Value) -> Pod {
    core::pod(labels, "volumes", volumes.clone())
}

impl Context {
    fn new() -> Self {
        Self::with(core::settings(Duration::from_secs(600)))
    }

    fn with(settings: Settings) -> Self {
        let mut context = Self {
            pods: Pods::new(settings),
            now: core::now(),
            record: ObservedPod::empty(uid(), "ns", "u"),
            failing: BTreeMap::new(),
            log: Vec::new(),
            during: None,
        };
        context.send(PodsInput::Tick);
        context.send(PodsInput::SourcesReady);
        context
    }

    fn running() -> Self {
        let mut context = Self::new();
        context.want(pod(&json!({}), &json!([])));
        assert_eq!(context.take(), ["Prepare", "CreateSandbox", "StartContainer"]);
        context
    }

    fn want(&mut self, pod: Pod) {
        self.send(PodsInput::Desired { uid: uid(), pod: Arc::new(pod) });
    }

    fn content(&mut self, files: bool) {
        self.send(PodsInput::Content { uid: uid(), files });
    }

    /// Lets time pass up to when the core wants to be woken; the time that took.
    fn wake(&mut self) -> Duration {
        let at = self.pods.next_wake().expect("a time");
        let waited = at.since(self.now.mono);
        self.now = self.now.plus(waited);
        self.send(PodsInput::Tick);
        waited
    }

    fn take(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.log)
    }

    fn send(&mut self, input: PodsInput) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for command in self.pods.handle(self.now, input) {
                self.execute(command, &mut inputs);
            }
        }
    }

    fn execute(&mut self, command: Command, inputs: &mut VecDeque<PodsInput>) {
        match command {
            Command::Read { uid, stamp, .. } => {
                inputs.push_back(PodsInput::Observed {
                    uid,
                    stamp,
                    result: Ok(self.record.clone()),
                });
            }
            Command::List { stamp } => {
                inputs.push_back(PodsInput::Listed { stamp, result: Ok(Vec::new()) });
            }
            Command::Run { uid, ticket, actions, .. } => {
                inputs.extend(self.during.take());
                for (index, action) in actions.iter().enumerate() {
                    let outcome = self.act(action);
                    let ends = outcome.is_err() && action.aborts_sync();
                    let uid = uid.clone();
                    inputs.push_back(PodsInput::Progress { uid, ticket, index, outcome });
                    if ends {
                        break;
                    }
                }
                inputs.push_back(PodsInput::SyncDone { uid, ticket });
            }
            _ => {}
        }
    }

    fn act(&mut self, action: &Action) -> Result<(), Failure> {
        self.log.push(action.verb());
        if let Some(reason) = self.failing.get(action.verb()) {
            return Err(Failure::new(*reason, "why"));
        }
        match action {
            Action::CreateSandbox { .. } => self.record.sandboxes = vec![testing::sandbox()],
            Action::StartContainer { name, .. } => {
                self.record.containers = vec![testing::container(name, "id")];
            }
            _ => {}
        }
        Ok(())
    }
}

#[test]
fn changed_files_cause_one_refresh_and_no_other_action() {
    let mut context = Context::running();
    context.content(true);
    assert_eq!(context.take(), ["Refresh"]);
    context.send(PodsInput::Tick);
    assert_eq!(context.take(), [""; 0]);
    // A variable keeps its value until the container restarts.
    context.content(false);
    assert_eq!(context.take(), [""; 0]);
}

#[test]
fn change_during_a_sync_is_refreshed_after_the_sync() {
    let mut context = Context::running();
    context.during = Some(PodsInput::Content { uid: uid(), files: true });
    context.content(true);
    assert_eq!(context.take(), ["Refresh", "Refresh"]);
}

#[test]
fn failed_refresh_backs_off_and_does_not_delay_container_restarts() {
    let mut context = Context::running();
    context.failing.insert("Refresh", "FailedMount");
    context.content(true);
    assert_eq!(context.take(), ["Refresh"]);
    for seconds in [0.5, 1.0, 2.0, 4.0] {
        assert_eq!(context.wake(), Duration::from_secs_f64(seconds));
        assert_eq!(context.take(), ["Refresh"]);
    }
    // The container ends meanwhile: it starts again at once, files or not.
    context.record.containers = vec![testing::exited("c", "id", 1)];
    let hint = crate::worker::Hint::Changed;
    context.send(PodsInput::Hint { uid: uid(), hint });
    assert_eq!(context.take(), ["Prepare", "StartContainer"]);
    // To prepare was to refresh: nothing is left to do.
    context.failing.clear();
    context.send(PodsInput::Tick);
    assert_eq!(context.take(), [""; 0]);
    // A new report is acted upon at once, whatever failed before.
    context.content(true);
    assert_eq!(context.take(), ["Refresh"]);
}

#[test]
fn pod_that_waits_for_an_object_is_retried_when_the_object_appears() {
    for (verb, reason) in [
        ("Prepare", "FailedMount"),
        ("StartContainer", "CreateContainerConfigError"),
        ("StartContainer", "ErrImagePull"),
        ("StartContainer", "ImagePullBackOff"),
    ] {
        let mut context = Context::new();
        context.failing.insert(verb, reason);
        context.want(pod(&json!({}), &json!([])));
        assert_eq!(context.take().last(), Some(&verb));
        context.send(PodsInput::Tick);
        assert_eq!(context.take(), [""; 0], "it waits");
        context.failing.clear();
        context.content(verb == "Prepare");
        assert_eq!(context.take().last(), Some(&"StartContainer"), "{verb}");
    }
}

#[test]
fn pod_is_rejected_if_its_volume_exceeds_the_attachment_limit() {
    let mut context = Context::new();
    context.failing.insert("Prepare", crate::worker::ATTACHMENT_LIMIT);
    context.want(pod(&json!({}), &json!([])));
    assert!(!context.take().contains(&"StartContainer"));
    let status = context.pods.worker(&uid()).expect("a worker").status();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("VolumeAttachmentLimitExceeded"));
    let message = status.message.as_deref().unwrap_or_default();
    assert!(message.starts_with("Pod was rejected: "), "{message}");
}

#[test]
fn new_content_does_not_retry_an_unrelated_start_failure() {
    let mut context = Context::new();
    context.failing.insert("StartContainer", "CreateContainerError");
    context.want(pod(&json!({}), &json!([])));
    context.take();
    context.content(false);
    assert_eq!(context.take(), [""; 0]);
}

#[test]
fn pod_with_downward_api_labels_is_refreshed_when_its_labels_change() {
    let field = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let table = [
        (json!([{"name": "v", "downwardAPI": {"items": field}}]), 1),
        (json!([{"name": "v", "projected": {"sources": [{"downwardAPI": {"items": field}}]}}]), 1),
        (json!([{"name": "v", "emptyDir": {}}]), 0),
    ];
    for (volumes, refreshes) in table {
        let mut context = Context::new();
        context.want(pod(&json!({"a": "1"}), &volumes));
        context.take();
        context.want(pod(&json!({"a": "2"}), &volumes));
        assert_eq!(context.take(), vec!["Refresh"; refreshes], "{volumes}");
        // The same once more.
        context.want(pod(&json!({"a": "2"}), &volumes));
        assert_eq!(context.take(), [""; 0]);
    }
}

#[test]
fn downward_api_volume_is_refreshed_while_the_resize_of_its_pod_is_pending() {
    let field = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let volumes = json!([{"name": "v", "downwardAPI": {"items": field}}]);
    let sized = |label: &str, cpu: &str| {
        let mut pod = pod(&json!({"a": label}), &volumes);
        let resources = serde_json::from_value(json!({"requests": {"cpu": cpu}}));
        pod.spec.get_or_insert_default().containers[0].resources = resources.ok();
        pod
    };
    let mut context = Context::with(core::small_settings());
    context.want(sized("1", "100m"));
    context.take();
    context.want(sized("1", "2"));
    assert_eq!(context.take(), [""; 0]);
    let status = context.pods.worker(&uid()).expect("a worker").status();
    let conditions = status.conditions.as_deref().unwrap_or_default();
    assert!(conditions.iter().any(|c| c.type_ == "PodResizePending"), "{conditions:?}");
    context.want(sized("2", "2"));
    assert_eq!(context.take(), ["Refresh"]);
}

#[test]
fn a_prepare_that_fails_is_made_again_before_anything_else() {
    let mut context = Context::running();
    context.failing.insert("Prepare", "FailedMount");
    context.record.containers = vec![testing::exited("c", "id", 1)];
    let hint = crate::worker::Hint::Changed;
    context.send(PodsInput::Hint { uid: uid(), hint });
    assert_eq!(context.take(), ["Prepare"]);
    // An earlier agent has started it: its volumes still have to be prepared.
    context.record.containers = vec![testing::container("c", "id")];
    context.failing.clear();
    context.send(PodsInput::Hint { uid: uid(), hint: crate::worker::Hint::Changed });
    assert_eq!(context.take(), [""; 0]);
    context.wake();
    assert_eq!(context.take(), ["Prepare"]);
}
