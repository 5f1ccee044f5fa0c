//! The shared setup of tests of the whole core: its settings, pods, and a host with a runtime of a
//! few lines that answers the core's commands at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::admit;
use crate::eviction::observed::Scope;
use crate::ledger as checkpoint;
use crate::observed::{ObservedPod, RunState, digest_of};
use crate::status::{self, testing};
use crate::sync::backoff::Curve;
use crate::sync::plan::Action;
use crate::types::NodeFacts;
use crate::worker::{Command, Failure, Hint, ListedPod, Pods, PodsInput, Settings, WorkerStage};
use pintle_api_types::ids::{Mono, Now, PodUid, UnixNanos};

/// When tests begin.
pub(super) fn now() -> Now {
    Now { wall: UnixNanos(1000 * testing::SECOND), mono: Mono::default() }
}

/// A roomy node that syncs its pods this often, and lists them all once an hour.
pub(super) fn settings(sync_period: Duration) -> Settings {
    Settings {
        sync_period,
        relist_period: Duration::from_secs(3600),
        crash_loop: Curve::default(),
        node: NodeFacts::default(),
        admission: Arc::new(admit::AdmissionNode::roomy("n")),
        has_node_object: false,
        eviction: Default::default(),
        garbage: Default::default(),
    }
}

/// The pod `u` with the container `c`, these labels, and one more field of the spec.
pub(super) fn pod(labels: &Value, field: &str, value: Value) -> Pod {
    let meta = json!({"uid": "u", "name": "u", "namespace": "ns", "labels": labels});
    let spec = json!({"containers": [{"name": "c", "image": "i"}], field: value});
    let mut pod = serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod");
    pintle_api_types::pod::defaults::apply(&mut pod);
    pod
}

/// A node of 1000 millicores and the runtime's records of its pods.
pub(super) struct Host {
    pub(super) pods: Pods,
    pub(super) now: Now,
    pub(super) records: BTreeMap<PodUid, ObservedPod>,
    pub(super) counter: u64,
    /// Actions and events since the last look, as `verb uid` and `reason uid`.
    pub(super) log: Vec<String>,
    /// Every resize fails with this.
    pub(super) refuses: Option<&'static str>,
    /// Passes do their work and do not come back.
    pub(super) lingers: bool,
    /// Containers are made and do not come up.
    pub(super) breaks: bool,
    /// Nothing can be stopped.
    pub(super) stubborn: bool,
    /// Dead containers cannot be removed.
    pub(super) keeps_dead: bool,
    /// Containers that fail to start with this.
    pub(super) failing: BTreeMap<String, Failure>,
    /// Names of the containers that were started since the last look.
    pub(super) starts: Vec<String>,
    /// The prober's last input: the pod's address, and how many of its containers run.
    pub(super) probed: Vec<(Option<String>, usize)>,
    /// Reads of the node's object that wait for their answer.
    pub(super) node_reads: Vec<u64>,
    /// Observations of the node that wait for their answer: ticket, pods, disks as well.
    pub(super) looks: Vec<(u64, Scope, bool)>,
    /// Reclaims that wait for their end.
    pub(super) reclaims: Vec<u64>,
}

/// Inputs that may follow from one, before it counts as spinning.
const TURNS_MAX: usize = 1_000;

/// A pod on the host's network.
pub(super) const ON_HOST: &str = "on-host";

pub(super) fn small_settings() -> Settings {
    let mut node = admit::AdmissionNode::roomy("n");
    node.allocatable.cpu_millis = 1000;
    Settings {
        node: NodeFacts { runtime_name: "containerd".to_owned(), ..NodeFacts::default() },
        admission: Arc::new(node),
        ..settings(Duration::from_secs(60))
    }
}

impl Host {
    pub(super) fn new() -> Self {
        Self::with(small_settings())
    }

    pub(super) fn with(settings: Settings) -> Self {
        let mut host = Self {
            pods: Pods::new(settings),
            now: now(),
            records: BTreeMap::new(),
            counter: 0,
            log: Vec::new(),
            refuses: None,
            lingers: false,
            breaks: false,
            stubborn: false,
            keeps_dead: false,
            failing: BTreeMap::new(),
            starts: Vec::new(),
            probed: Vec::new(),
            node_reads: Vec::new(),
            looks: Vec::new(),
            reclaims: Vec::new(),
        };
        host.send(PodsInput::Tick);
        host.send(PodsInput::SourcesReady);
        host.take();
        host
    }

    /// Restarts the agent, with the records it left on disk.
    pub(super) fn restart(&mut self, pods: Vec<Pod>) {
        self.restart_with(small_settings(), pods);
    }

    /// The same, with these settings.
    pub(super) fn restart_with(&mut self, settings: Settings, pods: Vec<Pod>) {
        let (allocated, actuated) = self.pods.checkpoints();
        self.pods = Pods::new(settings);
        let read = |draft: checkpoint::Draft| {
            checkpoint::decode(draft.text().as_bytes()).expect("a checkpoint")
        };
        self.pods.restore(read(allocated), read(actuated));
        self.send(PodsInput::Tick);
        for pod in pods {
            self.want(pod);
        }
        self.send(PodsInput::SourcesReady);
    }

    /// Completes the sync that began while it lingered.
    pub(super) fn finish(&mut self, uid: &str) {
        self.lingers = false;
        let ticket = self.ticket(uid);
        self.send(PodsInput::SyncDone { uid: uid.into(), ticket });
    }

    /// Of the sync under way.
    pub(super) fn ticket(&self, uid: &str) -> u64 {
        let run = self.pods.worker(&uid.into()).and_then(|w| w.sync.run.as_ref());
        run.map(|run| run.ticket).expect("a sync under way")
    }

    pub(super) fn want(&mut self, pod: Pod) {
        let uid = pintle_api_types::pod::uid(&pod);
        self.send(PodsInput::Desired { uid, pod: Arc::new(pod) });
    }

    pub(super) fn remove(&mut self, uid: &str) {
        self.send(PodsInput::Removed { uid: uid.into() });
    }

    /// Feeds an input and everything that follows from it.
    pub(super) fn send(&mut self, input: PodsInput) {
        let mut inputs = std::collections::VecDeque::from([input]);
        let mut turns = 0;
        while let Some(input) = inputs.pop_front() {
            turns += 1;
            assert!(turns < TURNS_MAX, "it spins at {input:?}: {}", self.take());
            self.now = self.now.plus(Duration::from_millis(1));
            for command in self.pods.handle(self.now, input) {
                self.execute(command, &mut inputs);
            }
            super::visits::uncounted(|| self.check_places());
        }
    }

    /// A client that reads that a pod has ended may send another one for its place at once.
    pub(super) fn check_places(&self) {
        for worker in self.pods.workers() {
            let phase = worker.status().phase.as_deref();
            if status::is_terminal(phase) && !worker.needs_kill() {
                assert!(worker.admitted().is_none(), "{} is {phase:?}", worker.uid());
            }
        }
    }

    pub(super) fn execute(
        &mut self,
        command: Command,
        inputs: &mut std::collections::VecDeque<PodsInput>,
    ) {
        match command {
            Command::Read { uid, stamp, .. } => {
                let empty = || ObservedPod::empty(uid.clone(), "ns", uid.as_str());
                let result = Ok(self.records.get(&uid).cloned().unwrap_or_else(empty));
                inputs.push_back(PodsInput::Observed { uid, stamp, result });
            }
            Command::List { stamp } => {
                let listed = |(uid, record): (&PodUid, &ObservedPod)| ListedPod {
                    uid: uid.clone(),
                    namespace: "ns".to_owned(),
                    name: record.name.clone(),
                    digest: digest_of(record),
                };
                let result = Ok(self.records.iter().map(listed).collect());
                inputs.push_back(PodsInput::Listed { stamp, result });
            }
            Command::Run { uid, ticket, actions, .. } => {
                for (index, action) in actions.iter().enumerate() {
                    let outcome = self.act(&uid, action);
                    if self.lingers {
                        return;
                    }
                    let ends = outcome.is_err() && action.aborts_sync();
                    let uid = uid.clone();
                    inputs.push_back(PodsInput::Progress { uid, ticket, index, outcome });
                    if ends {
                        break;
                    }
                }
                inputs.push_back(PodsInput::SyncDone { uid, ticket });
            }
            Command::Event { uid, reason, .. } => self.log.push(format!("{reason} {uid}")),
            Command::Probe { observed, pod_ip, .. } => {
                let running = observed.containers.iter().filter(|c| c.state == RunState::Running);
                self.probed.push((pod_ip, running.count()));
            }
            Command::FetchNode { ticket } => self.node_reads.push(ticket),
            Command::Measure { ticket, pods, disks } => self.looks.push((ticket, pods, disks)),
            Command::Reclaim { ticket, signal, .. } => {
                self.log.push(format!("Reclaim {signal}"));
                self.reclaims.push(ticket);
            }
            Command::Evicted { uid, .. } => self.log.push(format!("Evicted {uid}")),
            Command::NodeEvent(event) => self.log.push(event.message),
            _ => {}
        }
    }

    pub(super) fn act(&mut self, uid: &PodUid, action: &Action) -> Result<(), Failure> {
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
                if sandbox.host_network {
                    sandbox.ips.clear();
                }
                record.sandboxes.insert(0, sandbox);
            }
            Action::StartContainer { name, .. } if self.failing.contains_key(name) => {
                return Err(self.failing[name].clone());
            }
            Action::StartContainer { name, restart_count, .. } => {
                self.starts.push(name.clone());
                let mut container = testing::container(name, &id);
                container.restart_count = restart_count.unwrap_or(0);
                if self.breaks {
                    (container.state, container.exit_code) = (RunState::Exited, 128);
                    container.finished_at = self.now.wall;
                    record.containers.insert(0, container);
                    return Err(Failure::new("RunContainerError", "no such program"));
                }
                record.containers.insert(0, container);
            }
            Action::KillContainer { .. } if self.stubborn => {
                return Err(Failure::new("KillContainerError", "it stays"));
            }
            Action::KillContainer { name, .. } => end(record, Some(name)),
            Action::RemoveContainer { id, .. } => record.containers.retain(|c| c.id != *id),
            Action::RemoveSandbox { id } => record.sandboxes.retain(|s| s.id != *id),
            Action::KillPod { .. } if self.stubborn => {
                return Err(Failure::new("KillContainerError", "it stays"));
            }
            Action::KillPod { .. } => {
                end(record, None);
                record.sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = false);
            }
            Action::Cleanup if self.keeps_dead => {
                return Err(Failure::new("CleanupError", "it stays"));
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

    /// Time passes.
    pub(super) fn wait(&mut self, by: Duration) {
        self.now = self.now.plus(by);
        self.send(PodsInput::Tick);
    }

    /// Containers that were started since the last look.
    pub(super) fn take_starts(&mut self) -> Vec<String> {
        std::mem::take(&mut self.starts)
    }

    /// A container's process ends and the runtime reports it.
    pub(super) fn end(&mut self, uid: &str, container: &str, code: i32) {
        let record = self.records.get_mut(uid).expect("a pod in the runtime");
        let latest = record.containers.iter_mut().find(|c| c.name == container);
        let latest = latest.expect("a container");
        (latest.state, latest.exit_code) = (RunState::Exited, code);
        latest.finished_at = self.now.wall;
        self.send(PodsInput::Hint { uid: uid.into(), hint: Hint::Changed });
    }

    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.log).join(", ")
    }

    pub(super) fn stage(&self, uid: &str) -> Option<WorkerStage> {
        self.pods.worker(&uid.into()).map(|worker| worker.stage())
    }

    pub(super) fn status(&self, uid: &str) -> Value {
        let worker = self.pods.worker(&uid.into()).expect("a worker");
        serde_json::to_value(&**worker.status()).expect("json")
    }

    /// Reason and generation of a resize condition.
    pub(super) fn condition(&self, uid: &str, type_: &str) -> Option<(Value, Value)> {
        let status = self.status(uid);
        let found = status["conditions"].as_array()?.iter().find(|c| c["type"] == type_)?;
        Some((found["reason"].clone(), found["observedGeneration"].clone()))
    }
}

pub(super) fn sized_pod(uid: &str, cpu: &str, generation: i64, more: Value) -> Pod {
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

/// A pod of a manifest in a folder.
pub(super) fn of_folder(mut pod: Pod, name: &str) -> Pod {
    let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
    pod.metadata.annotations.get_or_insert_default().extend([source]);
    pod.metadata.name = Some(name.to_owned());
    pod
}

pub(super) fn plain(uid: &str, cpu: &str) -> Pod {
    sized_pod(uid, cpu, 1, json!({}))
}
