//! What a worker does when something changed that its pod refers to, through the whole core.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::observed::ObservedPod;
use crate::status::testing;
use crate::sync::plan::Action;
use crate::worker::{Command, Failure, Input, Pods, testing as core};
use pintle_api_types::ids::{Now, PodUid};

/// One pod, what the runtime has of it, and which actions fail.
struct Scene {
    pods: Pods,
    now: Now,
    record: ObservedPod,
    /// Reason of the failure by the action's verb.
    failing: BTreeMap<&'static str, &'static str>,
    /// Verbs of the actions since the last look.
    log: Vec<&'static str>,
    /// Arrives while the next pass is under way.
    during: Option<Input>,
}

fn uid() -> PodUid {
    PodUid::from("u")
}

fn pod(labels: &Value, volumes: &Value) -> Pod {
    core::pod(labels, ("volumes", volumes.clone()))
}

impl Scene {
    fn new() -> Self {
        let settings = core::settings(Duration::from_secs(600));
        let mut scene = Self {
            pods: Pods::new(settings),
            now: core::now(),
            record: ObservedPod::empty(uid(), "ns", "u"),
            failing: BTreeMap::new(),
            log: Vec::new(),
            during: None,
        };
        scene.tell(Input::Tick);
        scene.tell(Input::SourcesReady);
        scene
    }

    fn running() -> Self {
        let mut scene = Self::new();
        scene.want(pod(&json!({}), &json!([])));
        assert_eq!(scene.take(), ["Prepare", "CreateSandbox", "StartContainer"]);
        scene
    }

    fn want(&mut self, pod: Pod) {
        self.tell(Input::Desired { uid: uid(), pod: Arc::new(pod) });
    }

    fn content(&mut self, files: bool) {
        self.tell(Input::Content { uid: uid(), files });
    }

    /// Lets time pass up to when the core wants to be woken; the time that took.
    fn wake(&mut self) -> Duration {
        let at = self.pods.next_wake().expect("a time");
        let waited = at.since(self.now.mono);
        self.now = self.now.plus(waited);
        self.tell(Input::Tick);
        waited
    }

    fn take(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.log)
    }

    fn tell(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for command in self.pods.handle(self.now, input) {
                self.execute(command, &mut inputs);
            }
        }
    }

    fn execute(&mut self, command: Command, inputs: &mut VecDeque<Input>) {
        match command {
            Command::Read { uid, stamp, .. } => {
                inputs.push_back(Input::Observed { uid, stamp, result: Ok(self.record.clone()) });
            }
            Command::List { stamp } => {
                inputs.push_back(Input::Listed { stamp, result: Ok(Vec::new()) });
            }
            Command::Run { uid, ticket, actions, .. } => {
                inputs.extend(self.during.take());
                for (index, action) in actions.iter().enumerate() {
                    let outcome = self.act(action);
                    let ends = outcome.is_err() && action.aborts_pass();
                    let uid = uid.clone();
                    inputs.push_back(Input::Progress { uid, ticket, index, outcome });
                    if ends {
                        break;
                    }
                }
                inputs.push_back(Input::PassDone { uid, ticket });
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
fn changed_files_are_written_once_and_nothing_else_is_done() {
    let mut scene = Scene::running();
    scene.content(true);
    assert_eq!(scene.take(), ["Refresh"]);
    scene.tell(Input::Tick);
    assert_eq!(scene.take(), [""; 0]);
    // A variable keeps its value until the container starts anew.
    scene.content(false);
    assert_eq!(scene.take(), [""; 0]);
}

#[test]
fn a_change_during_a_pass_is_seen_to_after_it() {
    let mut scene = Scene::running();
    scene.during = Some(Input::Content { uid: uid(), files: true });
    scene.content(true);
    assert_eq!(scene.take(), ["Refresh", "Refresh"]);
}

#[test]
fn a_refresh_that_fails_is_repeated_ever_more_seldom_and_holds_up_nothing() {
    let mut scene = Scene::running();
    scene.failing.insert("Refresh", "FailedMount");
    scene.content(true);
    assert_eq!(scene.take(), ["Refresh"]);
    for seconds in [0.5, 1.0, 2.0, 4.0] {
        assert_eq!(scene.wake(), Duration::from_secs_f64(seconds));
        assert_eq!(scene.take(), ["Refresh"]);
    }
    // The container ends meanwhile: it starts again at once, files or not.
    scene.record.containers = vec![testing::exited("c", "id", 1)];
    let hint = crate::worker::Hint::Changed;
    scene.tell(Input::Hint { uid: uid(), hint });
    assert_eq!(scene.take(), ["Prepare", "StartContainer"]);
    // To prepare was to refresh: nothing is left to do.
    scene.failing.clear();
    scene.tell(Input::Tick);
    assert_eq!(scene.take(), [""; 0]);
    // What is told anew is done at once, whatever failed before.
    scene.content(true);
    assert_eq!(scene.take(), ["Refresh"]);
}

#[test]
fn a_pod_that_waits_for_an_object_goes_on_when_it_appears() {
    for (verb, reason) in
        [("Prepare", "FailedMount"), ("StartContainer", "CreateContainerConfigError")]
    {
        let mut scene = Scene::new();
        scene.failing.insert(verb, reason);
        scene.want(pod(&json!({}), &json!([])));
        assert_eq!(scene.take().last(), Some(&verb));
        scene.tell(Input::Tick);
        assert_eq!(scene.take(), [""; 0], "it waits");
        scene.failing.clear();
        scene.content(verb == "Prepare");
        assert_eq!(scene.take().last(), Some(&"StartContainer"), "{verb}");
    }
}

#[test]
fn other_failures_keep_their_pace() {
    let mut scene = Scene::new();
    scene.failing.insert("StartContainer", "ErrImagePull");
    scene.want(pod(&json!({}), &json!([])));
    scene.take();
    scene.content(false);
    assert_eq!(scene.take(), [""; 0]);
}

#[test]
fn a_pod_whose_own_facts_are_shown_is_refreshed_when_they_change() {
    let field = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let table = [
        (json!([{"name": "v", "downwardAPI": {"items": field}}]), 1),
        (json!([{"name": "v", "projected": {"sources": [{"downwardAPI": {"items": field}}]}}]), 1),
        (json!([{"name": "v", "emptyDir": {}}]), 0),
    ];
    for (volumes, refreshes) in table {
        let mut scene = Scene::new();
        scene.want(pod(&json!({"a": "1"}), &volumes));
        scene.take();
        scene.want(pod(&json!({"a": "2"}), &volumes));
        assert_eq!(scene.take(), vec!["Refresh"; refreshes], "{volumes}");
        // The same once more.
        scene.want(pod(&json!({"a": "2"}), &volumes));
        assert_eq!(scene.take(), [""; 0]);
    }
}

#[test]
fn a_prepare_that_fails_is_made_again_before_anything_else() {
    let mut scene = Scene::running();
    scene.failing.insert("Prepare", "FailedMount");
    scene.record.containers = vec![testing::exited("c", "id", 1)];
    let hint = crate::worker::Hint::Changed;
    scene.tell(Input::Hint { uid: uid(), hint });
    assert_eq!(scene.take(), ["Prepare"]);
    // Somebody else has started it: its volumes are still to be made ready.
    scene.record.containers = vec![testing::container("c", "id")];
    scene.failing.clear();
    scene.tell(Input::Hint { uid: uid(), hint: crate::worker::Hint::Changed });
    assert_eq!(scene.take(), [""; 0]);
    scene.wake();
    assert_eq!(scene.take(), ["Prepare"]);
}
