//! Admission and resizes through the whole core: a runtime of a few lines answers its commands.
//!
//! What a single function decides stands beside it; here is what comes of it for a pod: refused,
//! let in at others' cost, resized now, later or never, and all of it over a restart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::admit;
use crate::ledger::checkpoint;
use crate::observed::{ObservedPod, RunState, digest_of};
use crate::runtime::plan::Action;
use crate::status::{self, testing};
use crate::types::{NodeFacts, PodUid, UnixNanos};
use crate::worker::{
    Command, Failure, Hint, Input, ListedPod, Pods, Settings, Stage, testing as core,
};

/// A node of 1000 millicores and what the runtime has of its pods.
struct Host {
    pods: Pods,
    now: UnixNanos,
    records: BTreeMap<PodUid, ObservedPod>,
    counter: u64,
    /// Actions and events since the last look, as `verb uid` and `reason uid`.
    log: Vec<String>,
    /// Every resize fails with this.
    refuses: Option<&'static str>,
    /// Passes do their work and do not come back.
    lingers: bool,
    /// Containers are made and do not come up.
    breaks: bool,
    /// Nothing can be stopped.
    stubborn: bool,
}

/// A pod on the host's network.
const ON_HOST: &str = "on-host";

fn settings() -> Settings {
    let mut node = admit::Node::roomy("n");
    node.allocatable.cpu_millis = 1000;
    Settings {
        node: NodeFacts { runtime_name: "containerd".to_owned(), ..NodeFacts::default() },
        admission: Arc::new(node),
        ..core::settings(Duration::from_secs(60))
    }
}

impl Host {
    fn new() -> Self {
        let mut host = Self {
            pods: Pods::new(settings()),
            now: UnixNanos(1000 * testing::SECOND),
            records: BTreeMap::new(),
            counter: 0,
            log: Vec::new(),
            refuses: None,
            lingers: false,
            breaks: false,
            stubborn: false,
        };
        host.tell(Input::Tick);
        host.tell(Input::SourcesReady);
        host.take();
        host
    }

    /// The agent starts anew, with what it left on disk.
    fn restart(&mut self, pods: Vec<Pod>) {
        let (allocated, in_force) = self.pods.checkpoints();
        self.pods = Pods::new(settings());
        let read = |text: String| checkpoint::decode(text.as_bytes()).expect("a checkpoint");
        self.pods.restore(read(allocated), read(in_force));
        self.tell(Input::Tick);
        for pod in pods {
            self.want(pod);
        }
        self.tell(Input::SourcesReady);
    }

    fn want(&mut self, pod: Pod) {
        let uid = crate::pod::uid(&pod);
        self.tell(Input::Desired { uid, pod: Arc::new(pod) });
    }

    fn remove(&mut self, uid: &str) {
        self.tell(Input::Removed { uid: uid.into() });
    }

    /// Feeds an input and everything that follows from it.
    fn tell(&mut self, input: Input) {
        let mut inputs = std::collections::VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.now = self.now.plus(Duration::from_millis(1));
            for command in self.pods.handle(self.now, input) {
                self.execute(command, &mut inputs);
            }
            self.check_places();
        }
    }

    /// Whoever reads that a pod has ended may send another one for its place at once.
    fn check_places(&self) {
        for worker in self.pods.workers() {
            let phase = worker.status().phase.as_deref();
            if status::is_terminal(phase) && !worker.needs_kill() {
                assert!(worker.admitted().is_none(), "{} is {phase:?}", worker.uid());
            }
        }
    }

    fn execute(&mut self, command: Command, inputs: &mut std::collections::VecDeque<Input>) {
        match command {
            Command::Read { uid, stamp, .. } => {
                let empty = || ObservedPod::empty(uid.clone(), "ns", uid.as_str());
                let result = Ok(self.records.get(&uid).cloned().unwrap_or_else(empty));
                inputs.push_back(Input::Observed { uid, stamp, result });
            }
            Command::List { stamp } => {
                let listed = |(uid, record): (&PodUid, &ObservedPod)| ListedPod {
                    uid: uid.clone(),
                    namespace: "ns".to_owned(),
                    name: record.name.clone(),
                    digest: digest_of(record),
                };
                let result = Ok(self.records.iter().map(listed).collect());
                inputs.push_back(Input::Listed { stamp, result });
            }
            Command::Run { uid, ticket, actions, .. } => {
                for (index, action) in actions.iter().enumerate() {
                    let outcome = self.act(&uid, action);
                    if self.lingers {
                        return;
                    }
                    let uid = uid.clone();
                    inputs.push_back(Input::Progress { uid, ticket, index, outcome });
                }
                inputs.push_back(Input::PassDone { uid, ticket });
            }
            Command::Event { uid, reason, .. } => self.log.push(format!("{reason} {uid}")),
            _ => {}
        }
    }

    fn act(&mut self, uid: &PodUid, action: &Action) -> Result<(), Failure> {
        self.counter += 1;
        let id = format!("i{}", self.counter);
        let record = self.records.entry(uid.clone());
        let record = record.or_insert_with(|| ObservedPod::empty(uid.clone(), "ns", uid.as_str()));
        let end = |record: &mut ObservedPod, named: Option<&str>| {
            for container in &mut record.containers {
                if named.is_none_or(|name| name == container.name) {
                    container.state = RunState::Exited;
                }
            }
        };
        match action {
            Action::CreateSandbox { .. } => {
                let mut sandbox = testing::sandbox();
                sandbox.host_network = uid.as_str() == ON_HOST;
                record.sandboxes.insert(0, sandbox);
            }
            Action::StartContainer { name, restart_count, .. } => {
                let mut container = testing::container(name, &id);
                container.restart_count = restart_count.unwrap_or(0);
                if self.breaks {
                    (container.state, container.exit_code) = (RunState::Exited, 128);
                    container.finished_at = self.now;
                    record.containers.insert(0, container);
                    return Err(Failure::new("RunContainerError", "no such program"));
                }
                record.containers.insert(0, container);
            }
            Action::KillContainer { name, .. } => end(record, Some(name)),
            Action::RemoveContainer { id, .. } => record.containers.retain(|c| c.id != *id),
            Action::KillPod { .. } if self.stubborn => {
                return Err(Failure::new("KillContainerError", "it stays"));
            }
            Action::KillPod { .. } => {
                end(record, None);
                record.sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = false);
            }
            Action::Cleanup => {
                record.containers.clear();
                record.sandboxes.clear();
            }
            _ => {}
        }
        if let Action::ResizePod(resize) = action {
            let names: Vec<_> = resize.updates.iter().map(|update| update.name.as_str()).collect();
            self.log.push(format!("resize {uid} [{}]", names.join(" ")));
            if let Some(why) = self.refuses {
                return Err(Failure::new("ResizePodInPlaceError", why));
            }
        } else if matches!(action, Action::StartContainer { .. } | Action::KillPod { .. }) {
            self.log.push(format!("{} {uid}", action.verb()));
        }
        Ok(())
    }

    fn take(&mut self) -> String {
        std::mem::take(&mut self.log).join(", ")
    }

    fn stage(&self, uid: &str) -> Option<Stage> {
        self.pods.worker(&uid.into()).map(|worker| worker.stage())
    }

    fn status(&self, uid: &str) -> Value {
        let worker = self.pods.worker(&uid.into()).expect("a worker");
        serde_json::to_value(&**worker.status()).expect("json")
    }

    /// Reason and generation of a resize condition.
    fn condition(&self, uid: &str, type_: &str) -> Option<(Value, Value)> {
        let status = self.status(uid);
        let found = status["conditions"].as_array()?.iter().find(|c| c["type"] == type_)?;
        Some((found["reason"].clone(), found["observedGeneration"].clone()))
    }
}

fn pod(uid: &str, cpu: &str, generation: i64, more: Value) -> Pod {
    let list = json!({"cpu": cpu});
    let mut container = json!({"name": "c", "resources": {"requests": list, "limits": list}});
    if let Some(policy) = more.get("policy") {
        container["resizePolicy"] =
            json!([{"resourceName": "cpu", "restartPolicy": policy.clone()}]);
    }
    let meta = json!({"uid": uid, "name": uid, "namespace": "ns", "generation": generation});
    let mut spec = json!({"containers": [container], "priority": more["priority"]});
    spec["terminationGracePeriodSeconds"] = json!(1);
    let pod = json!({"metadata": meta, "spec": spec, "status": more["status"]});
    serde_json::from_value(pod).expect("a pod")
}

fn plain(uid: &str, cpu: &str) -> Pod {
    pod(uid, cpu, 1, json!({}))
}

#[test]
fn a_pod_that_does_not_fit_never_starts_and_says_why() {
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
    assert_eq!(host.stage("b"), Some(Stage::Finished));
    // Refused is refused: room that becomes free is for others.
    host.remove("a");
    host.take();
    host.want(plain("b", "300m"));
    host.want(plain("c", "900m"));
    assert_eq!(host.take(), "StartContainer c");
}

#[test]
fn a_critical_pod_starts_when_those_in_its_way_have_ended() {
    let mut host = Host::new();
    host.want(plain("a", "400m"));
    host.want(plain("b", "500m"));
    host.take();
    host.want(pod("x", "300m", 1, json!({"priority": 2_000_000_000})));
    assert_eq!(host.take(), "Preempting a, KillPod a, StartContainer x");
    let status = host.status("a");
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Preempting")));
    assert_eq!(status["message"], "Preempted in order to admit critical pod");
    let target = &status["conditions"][0];
    assert_eq!(target["type"], "DisruptionTarget");
    let why = "Pod was preempted by Kubelet to accommodate a critical pod.";
    assert_eq!(target["message"], why);
}

#[test]
fn a_pod_that_does_not_make_room_in_time_is_told_of_once() {
    let mut host = Host::new();
    host.want(plain("a", "900m"));
    host.take();
    host.stubborn = true;
    host.want(pod("x", "300m", 1, json!({"priority": 2_000_000_000})));
    assert_eq!(host.take(), "Preempting a");
    // Half the grace period more, but not before 10 s.
    for (seconds, told) in [(9, ""), (2, "ExceededGracePeriod a"), (60, "")] {
        host.now = host.now.plus(Duration::from_secs(seconds));
        host.tell(Input::Tick);
        assert_eq!(host.take(), told, "after {seconds} s");
    }
    host.stubborn = false;
    host.now = host.now.plus(Duration::from_secs(60));
    host.tell(Input::Tick);
    assert_eq!(host.take(), "KillPod a, StartContainer x");
}

#[test]
fn nothing_starts_before_the_network_is_ready_but_pods_of_the_hosts_network() {
    let mut host = Host::new();
    let error = Some("cni plugin not initialized".to_owned());
    host.tell(Input::Node(NodeFacts { network_error: error, ..settings().node }));
    host.want(plain("a", "100m"));
    assert_eq!(host.take(), "NetworkNotReady a");
    let mut on_host = plain(ON_HOST, "100m");
    on_host.spec.get_or_insert_default().host_network = Some(true);
    host.want(on_host);
    assert_eq!(host.take(), "StartContainer on-host");
    let second = Duration::from_secs(1);
    host.now = host.now.plus(second);
    host.tell(Input::Tick);
    assert_eq!(host.take(), "NetworkNotReady a");
    host.tell(Input::Node(settings().node));
    host.now = host.now.plus(second);
    host.tell(Input::Tick);
    assert_eq!(host.take(), "StartContainer a");
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
fn a_resize_restarts_the_container_where_its_policy_says_so() {
    let mut host = Host::new();
    let policy = json!({"policy": "RestartContainer"});
    host.want(pod("a", "200m", 1, policy.clone()));
    host.take();
    host.want(pod("a", "500m", 2, policy));
    assert_eq!(host.take(), "ResizeStarted a, resize a [], StartContainer a, ResizeCompleted a");
    assert_eq!(host.status("a")["containerStatuses"][0]["restartCount"], 1);
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
    // Looked at again, nothing new to say.
    host.now = host.now.plus(Duration::from_secs(181));
    host.tell(Input::Tick);
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
fn what_asks_for_less_goes_first_and_makes_room_for_the_rest() {
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
fn what_the_runtime_refuses_is_said_and_tried_again() {
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
    host.tell(Input::Tick);
    assert_eq!(host.take(), "resize a [c], ResizeCompleted a");
}

#[test]
fn a_restart_of_the_agent_neither_refuses_nor_forgets() {
    let mut host = Host::new();
    host.want(plain("a", "400m"));
    host.want(plain("b", "500m"));
    let wish = || pod("a", "700m", 2, json!({}));
    host.want(wish());
    host.take();
    // A newcomer delivered first does not push out those that were there before.
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

#[test]
fn the_place_of_a_pod_is_free_when_its_end_is_told() {
    let mut host = Host::new();
    host.want(plain("old", "800m"));
    host.lingers = true;
    host.remove("old");
    // The runtime tells that all has stopped before its call returns.
    host.tell(Input::Hint { uid: "old".into(), hint: Hint::Changed });
    assert_eq!(host.stage("old"), Some(Stage::Terminating));
    assert_eq!(host.status("old")["phase"], "Succeeded");
    host.lingers = false;
    host.want(plain("new", "800m"));
    assert_eq!(host.status("new")["phase"], "Running", "{}", host.take());
}

#[test]
fn a_container_that_does_not_come_up_is_in_a_crash_loop_like_one_that_ends() {
    let mut host = Host::new();
    host.breaks = true;
    host.want(plain("p", "100m"));
    let told = |host: &Host| {
        let status = &host.status("p")["containerStatuses"][0];
        (status["restartCount"].clone(), status["state"]["waiting"]["reason"].clone())
    };
    assert_eq!(told(&host), (json!(0), json!("RunContainerError")));
    let mut pass = |seconds| {
        host.now = host.now.plus(Duration::from_secs(seconds));
        host.tell(Input::Tick);
        told(&host)
    };
    assert_eq!(pass(1), (json!(1), json!("RunContainerError")));
    assert_eq!(pass(2), (json!(1), json!("CrashLoopBackOff")));
    assert_eq!(pass(10), (json!(2), json!("RunContainerError")));
}

#[test]
fn a_refusal_stays_as_it_was_said_over_a_restart() {
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
