//! Properties of `Pods` after any inputs in any order, also such as no driver would send.
//!
//! A step is drawn without knowledge of the state: stale answers, unknown uids, tickets that never
//! were. `StepRunner` sees only what a driver sees, and checks after every step. One list of steps
//! is one run, so a failure is replayed from its seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::json;

use crate::observed::{ObservedContainer, ObservedPod, RunState, TaskExit, digest_of};
use crate::status::{PodVerdict, is_terminal, testing};
use crate::sync::backoff::Curve;
use crate::sync::plan::Action;
use crate::types::NodeFacts;
use crate::worker::testing as testing_core;
use crate::worker::{
    Command, Failure, Hint, ListedPod, Pods, PodsInput, ProbeKind, ReadFailure, Settings, Worker,
    WorkerStage,
};
use pintle_api_types::ids::{ContainerId, Now, PodUid, UnixNanos};

/// Pods of a run; two of them share a name.
const UIDS: [&str; 3] = ["u0", "u1", "u2"];
const NAMES: [&str; 3] = ["p", "p", "q"];

/// One step, its choices still open numbers.
#[derive(Clone, Debug)]
pub(crate) enum WorldStep {
    Desired { pod: usize, variant: u8, deleted: bool },
    Removed { pod: usize },
    SourcesReady,
    Kill { pod: usize, grace: Option<i64> },
    Observed { pod: usize, newest: bool, record: Option<Record> },
    Listed { ok: bool, records: Vec<(usize, Record)> },
    Hint { pod: usize, kind: u8, container: u8 },
    Progress { pod: usize, bogus: bool, index: usize, outcome: u8 },
    SyncDone { pod: usize, bogus: bool },
    Probed { pod: usize, container: u8, healthy: bool },
    Content { pod: usize, files: bool },
    Retry { pod: usize },
    Node,
    Tick { after_ms: u64 },
}

/// The runtime's record of a pod: sandboxes' readiness, containers' name, attempt, state, code.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    sandboxes: Vec<bool>,
    containers: Vec<(u8, RunState, i32)>,
}

fn any_record() -> impl Strategy<Value = Record> {
    use RunState::{Created, Exited, Running, Unknown};
    let state = prop::sample::select(vec![Created, Running, Running, Exited, Exited, Unknown]);
    let containers = prop::collection::vec((0..3_u8, state, 0..3_i32), 0..4);
    (prop::collection::vec(prop::bool::weighted(0.7), 0..3), containers)
        .prop_map(|(sandboxes, containers)| Record { sandboxes, containers })
}

pub(crate) fn any_step() -> impl Strategy<Value = WorldStep> {
    let pod = || 0..UIDS.len();
    let listed = prop::collection::vec((pod(), any_record()), 0..3);
    prop_oneof![
        4 => (pod(), 0..4_u8, prop::bool::weighted(0.1))
            .prop_map(|(pod, variant, deleted)| WorldStep::Desired { pod, variant, deleted }),
        1 => pod().prop_map(|pod| WorldStep::Removed { pod }),
        1 => Just(WorldStep::SourcesReady),
        1 => (pod(), prop::option::of(-1..40_i64))
            .prop_map(|(pod, grace)| WorldStep::Kill { pod, grace }),
        8 => (pod(), prop::bool::weighted(0.8), prop::option::weighted(0.9, any_record()))
            .prop_map(|(pod, newest, record)| WorldStep::Observed { pod, newest, record }),
        3 => (prop::bool::weighted(0.9), listed)
            .prop_map(|(ok, records)| WorldStep::Listed { ok, records }),
        2 => (pod(), 0..5_u8, 0..9_u8)
            .prop_map(|(pod, kind, container)| WorldStep::Hint { pod, kind, container }),
        5 => (pod(), prop::bool::weighted(0.1), 0..4_usize, 0..4_u8)
            .prop_map(|(pod, bogus, index, outcome)| WorldStep::Progress { pod, bogus, index, outcome }),
        6 => (pod(), prop::bool::weighted(0.1))
            .prop_map(|(pod, bogus)| WorldStep::SyncDone { pod, bogus }),
        1 => (pod(), 0..9_u8, any::<bool>())
            .prop_map(|(pod, container, healthy)| WorldStep::Probed { pod, container, healthy }),
        2 => (pod(), any::<bool>()).prop_map(|(pod, files)| WorldStep::Content { pod, files }),
        2 => pod().prop_map(|pod| WorldStep::Retry { pod }),
        1 => Just(WorldStep::Node),
        5 => prop::sample::select(vec![0, 1, 50, 1_000, 11_000, 70_000, 700_000])
            .prop_map(|after_ms| WorldStep::Tick { after_ms }),
    ]
}

fn pod_of(pod: usize, variant: u8, deleted: bool) -> Arc<Pod> {
    let rule = json!([{"action": "RestartAllContainers",
        "exitCodes": {"operator": "In", "values": [2]}}]);
    let spec = match variant {
        0 => json!({"containers": [{"name": "c0", "image": "i"}]}),
        1 => json!({"restartPolicy": "Never", "activeDeadlineSeconds": 60,
            "initContainers": [{"name": "c1", "image": "i"}],
            "containers": [{"name": "c0", "image": "i"}]}),
        2 => json!({"terminationGracePeriodSeconds": 5, "initContainers": [
            {"name": "c1", "image": "i", "restartPolicy": "Always"}],
            "containers": [{"name": "c0", "image": "i", "livenessProbe":
                {"exec": {"command": ["x"]}}}, {"name": "c2", "image": "j"}]}),
        _ => json!({"restartPolicy": "OnFailure", "containers": [{"name": "c0", "image": "i",
            "restartPolicy": "Never", "restartPolicyRules": rule}, {"name": "c2", "image": "j"}]}),
    };
    let mut built: Pod = serde_json::from_value(json!({"metadata":
        {"name": NAMES[pod], "namespace": "ns", "uid": UIDS[pod]}, "spec": spec}))
    .expect("a pod");
    if deleted {
        let at = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(UnixNanos(1).to_timestamp());
        built.metadata.deletion_timestamp = Some(at);
        built.metadata.deletion_grace_period_seconds = Some(3);
    }
    pintle_api_types::pod::defaults::apply(&mut built);
    Arc::new(built)
}

fn id_of(container: u8) -> ContainerId {
    ContainerId::from(format!("id{container}"))
}

fn evicted() -> PodVerdict {
    let (phase, reason, message) = ("Failed".into(), "Evicted".into(), "why".into());
    PodVerdict { phase, reason, message }
}

/// An end that the runtime reports, with the code that the kernel reports.
fn reported_end(at: UnixNanos) -> TaskExit {
    TaskExit { code: 3, at, words: Some(String::new()), no_oom_kill: false }
}

fn record_of(pod: usize, record: &Record) -> ObservedPod {
    let mut built = ObservedPod::empty(PodUid::from(UIDS[pod]), "ns", NAMES[pod]);
    for (back, ready) in record.sandboxes.iter().enumerate() {
        let attempt = u32::try_from(record.sandboxes.len() - 1 - back).expect("few");
        let id = format!("s{attempt}").into();
        let of =
            crate::observed::ObservedSandbox { id, ready: *ready, attempt, ..testing::sandbox() };
        built.sandboxes.push(of);
    }
    for (at, (name, state, code)) in record.containers.iter().enumerate() {
        let (name, id) = (format!("c{name}"), id_of(name * 3 + u8::try_from(at % 3).expect("few")));
        let exited = testing::exited(&name, id.as_str(), *code);
        built.containers.push(ObservedContainer { state: *state, ..exited });
    }
    built
}

fn listed(ok: bool, records: &[(usize, Record)]) -> Result<Vec<ListedPod>, ReadFailure> {
    let listed = records.iter().map(|(pod, record)| ListedPod {
        uid: PodUid::from(UIDS[*pod]),
        namespace: "ns".to_owned(),
        name: NAMES[*pod].to_owned(),
        digest: digest_of(&record_of(*pod, record)),
    });
    let listed: BTreeMap<_, _> = listed.map(|p| (p.uid.clone(), p)).collect();
    ok.then(|| listed.into_values().collect()).ok_or_else(|| ReadFailure("no answer".to_owned()))
}

/// A pod as its driver sees it, from its first command to `Gone`.
#[derive(Debug, Default)]
struct Life {
    stage: Option<WorkerStage>,
    grace: Option<i64>,
    sync_run: Option<(u64, usize)>,
    reads: Vec<u64>,
    phase: Option<String>,
}

/// Runs steps and checks the results.
struct StepRunner {
    pods: Pods,
    now: Now,
    counter: u64,
    list: Option<u64>,
    lives: BTreeMap<PodUid, Life>,
    inputs: Vec<(Now, PodsInput)>,
}

/// Settings of a run.
pub(crate) fn settings() -> Settings {
    Settings {
        sync_period: Duration::from_secs(60),
        relist_period: Duration::from_secs(60),
        crash_loop: Curve::default(),
        node: NodeFacts::default(),
        admission: Arc::new(crate::admit::AdmissionNode::roomy("node")),
        has_node_object: false,
        eviction: Default::default(),
        garbage: Default::default(),
    }
}

/// The inputs of a run of these steps, and when each of them came.
pub(crate) fn inputs_of(steps: &[WorldStep]) -> Vec<(Now, PodsInput)> {
    let mut watch = StepRunner::new();
    for step in steps {
        // Violations of this run are for another test to report.
        let _ = watch.step(step);
    }
    watch.inputs
}

impl StepRunner {
    fn new() -> Self {
        Self {
            pods: Pods::new(settings()),
            now: testing_core::now(),
            counter: 0,
            list: None,
            lives: BTreeMap::new(),
            inputs: Vec::new(),
        }
    }

    fn input(&mut self, step: &WorldStep) -> Option<PodsInput> {
        let uid = |pod: usize| PodUid::from(UIDS[pod]);
        let life = |pod: usize| self.lives.get(UIDS[pod]);
        Some(match step {
            WorldStep::Desired { pod, variant, deleted } => {
                PodsInput::Desired { uid: uid(*pod), pod: pod_of(*pod, *variant, *deleted) }
            }
            WorldStep::Removed { pod } => PodsInput::Removed { uid: uid(*pod) },
            WorldStep::SourcesReady => PodsInput::SourcesReady,
            WorldStep::Kill { pod, grace } => {
                PodsInput::Kill { uid: uid(*pod), verdict: evicted(), grace_seconds: *grace }
            }
            WorldStep::Observed { pod, newest, record } => {
                let reads = &life(*pod)?.reads;
                let stamp = *if *newest { reads.last() } else { reads.first() }?;
                let record = record.as_ref().map(|record| record_of(*pod, record));
                let result = record.ok_or_else(|| ReadFailure("no answer".to_owned()));
                PodsInput::Observed { uid: uid(*pod), stamp, result }
            }
            WorldStep::Listed { ok, records } => {
                let stamp = self.list.take()?;
                PodsInput::Listed { stamp, result: listed(*ok, records) }
            }
            WorldStep::Hint { pod, kind, container } => {
                let (number, container, at) = (container, Some(id_of(*container)), self.now.wall);
                let hint = match kind {
                    0 => Hint::Changed,
                    1 => Hint::Exited { container, code: Some(3), at },
                    2 => Hint::Exited { container: None, code: None, at },
                    3 => Hint::TaskExit { container: id_of(*number), end: reported_end(at) },
                    _ => Hint::Oom { container, init: true, pid: 1, comm: String::new(), at },
                };
                PodsInput::Hint { uid: uid(*pod), hint }
            }
            WorldStep::Progress { pod, bogus, index, outcome } => {
                let (ticket, count) = life(*pod)?.sync_run?;
                let outcome = match outcome {
                    0 | 1 => Ok(()),
                    2 => Err(Failure::new("ErrImagePull", "no")),
                    _ => Err(Failure::cancelled()),
                };
                let index = if *bogus { count } else { index % count };
                PodsInput::Progress { uid: uid(*pod), ticket, index, outcome }
            }
            WorldStep::SyncDone { pod, bogus } => {
                let (ticket, _) = life(*pod)?.sync_run?;
                let ticket = if *bogus { ticket + 1_000_000 } else { ticket };
                PodsInput::SyncDone { uid: uid(*pod), ticket }
            }
            WorldStep::Probed { pod, container, healthy } => {
                let probes = [ProbeKind::Liveness, ProbeKind::Readiness, ProbeKind::Startup];
                let probe = probes[usize::from(*container) % 3];
                let container = id_of(*container);
                PodsInput::Probed { uid: uid(*pod), container, probe, healthy: *healthy }
            }
            WorldStep::Content { pod, files } => {
                PodsInput::Content { uid: uid(*pod), files: *files }
            }
            WorldStep::Retry { pod } => PodsInput::Retry { uid: uid(*pod) },
            WorldStep::Node => PodsInput::Node(NodeFacts::default()),
            WorldStep::Tick { after_ms } => {
                self.now = self.now.plus(Duration::from_millis(*after_ms));
                PodsInput::Tick
            }
        })
    }

    fn step(&mut self, step: &WorldStep) -> Result<(), TestCaseError> {
        let Some(input) = self.input(step) else { return Ok(()) };
        self.inputs.push((self.now, input.clone()));
        let must_cancel = self.must_cancel(&input);
        if let PodsInput::SyncDone { uid, ticket } = &input {
            let life = self.lives.get_mut(uid).expect("it has a sync");
            life.sync_run = life.sync_run.filter(|(open, _)| open != ticket);
        }
        let ticked = matches!(input, PodsInput::Tick);
        let commands = self.pods.handle(self.now, input);
        if let Some((uid, ticket)) = must_cancel {
            let cancelled = commands.iter().any(|command| match command {
                Command::Cancel { uid: of, ticket: open } => *of == uid && *open == ticket,
                _ => false,
            });
            prop_assert!(cancelled, "{uid} goes on with a sync: {commands:?}");
        }
        for command in &commands {
            self.command(command)?;
        }
        if ticked {
            let wake = self.pods.next_wake();
            prop_assert!(wake.is_none_or(|at| at > self.now.mono), "due at once again: {wake:?}");
        }
        self.pods.assert_indexed();
        self.pods.assert_recorded();
        let workers: Vec<Worker> = self.pods.workers().cloned().collect();
        workers.iter().try_for_each(|worker| self.look(worker))
    }

    /// The sync that has to be given up because its pod ends with this input.
    fn must_cancel(&self, input: &PodsInput) -> Option<(PodUid, u64)> {
        let (PodsInput::Removed { uid } | PodsInput::Kill { uid, .. }) = input else { return None };
        let syncing = self.pods.worker(uid)?.stage() == WorkerStage::Syncing;
        let (ticket, _) = self.lives.get(uid)?.sync_run.filter(|_| syncing)?;
        Some((uid.clone(), ticket))
    }

    fn command(&mut self, command: &Command) -> Result<(), TestCaseError> {
        match command {
            Command::List { stamp } => {
                prop_assert!(self.list.is_none(), "one list at a time");
                self.fresh(*stamp)?;
                self.list = Some(*stamp);
            }
            Command::Read { uid, stamp, .. } => {
                self.fresh(*stamp)?;
                self.life(uid).reads.push(*stamp);
            }
            Command::Run { uid, ticket, actions, .. } => {
                self.fresh(*ticket)?;
                let life = self.life(uid);
                prop_assert!(life.sync_run.is_none(), "one sync at a time");
                prop_assert!(!actions.is_empty(), "a sync does something");
                let starts = |a: &Action| matches!(a.verb(), "StartContainer" | "CreateSandbox");
                let ends = life.stage.is_some_and(|stage| stage > WorkerStage::Syncing);
                prop_assert!(!(ends && actions.iter().any(starts)), "it ends and starts");
                life.sync_run = Some((*ticket, actions.len()));
            }
            Command::Cancel { uid, ticket } => {
                let open = self.life(uid).sync_run.map(|(open, _)| open);
                prop_assert_eq!(open, Some(*ticket), "only an open pass is cancelled");
            }
            Command::Publish { uid, status, .. } => {
                let life = self.life(uid);
                if is_terminal(life.phase.as_deref()) {
                    prop_assert_eq!(&status.phase, &life.phase, "a terminal phase stays");
                }
                life.phase.clone_from(&status.phase);
            }
            Command::Gone { uid } => {
                let life = self.lives.remove(uid).unwrap_or_default();
                prop_assert!(life.sync_run.is_none(), "gone with a sync under way");
            }
            Command::Probe { .. }
            | Command::Event { .. }
            | Command::Count(_)
            | Command::FetchNode { .. }
            | Command::Measure { .. }
            | Command::Reclaim { .. }
            | Command::Pressure(_)
            | Command::Evicted { .. }
            | Command::NodeEvent(_)
            | Command::Shutdown(_) => {}
        }
        Ok(())
    }

    fn life(&mut self, uid: &PodUid) -> &mut Life {
        self.lives.entry(uid.clone()).or_default()
    }

    /// Stamps and tickets come from one counter and are never used again.
    fn fresh(&mut self, number: u64) -> Result<(), TestCaseError> {
        prop_assert!(number > self.counter, "{number} after {}", self.counter);
        self.counter = number;
        Ok(())
    }

    fn look(&mut self, worker: &Worker) -> Result<(), TestCaseError> {
        let (stage, grace) = (worker.stage(), worker.ending.grace_seconds);
        let life = self.life(worker.uid());
        prop_assert!(life.stage.is_none_or(|before| before <= stage), "back to {stage:?}");
        if let Some(before) = life.grace {
            prop_assert!(grace.is_some_and(|now| now <= before), "{before} s became {grace:?}");
        }
        (life.stage, life.grace) = (Some(stage), grace);
        prop_assert_eq!(
            worker.sync.run.as_ref().map(|p| p.ticket),
            life.sync_run.map(|(open, _)| open)
        );
        prop_assert!(worker.reads.reading.is_none_or(|stamp| life.reads.last() == Some(&stamp)));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    #[test]
    fn worker_keeps_its_invariants_for_any_sequence_of_inputs(
        steps in prop::collection::vec(any_step(), 1..120)
    ) {
        let mut watch = StepRunner::new();
        watch.step(&WorldStep::Tick { after_ms: 0 })?;
        for step in &steps {
            watch.step(step)?;
        }
    }
}
