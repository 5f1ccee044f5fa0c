//! The driver: feeds `Pods` with inputs and executes its commands. All effects start here.
//!
//! Runs on the main thread. One loop takes inputs in batches, then publishes a snapshot for the
//! server's thread. Every read and every pass is a task of its own, so a runtime call that hangs
//! holds up nothing but its pod. Bounds: `INPUTS_MAX` inputs queued (senders wait), one read and
//! one pass per pod.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;

use crate::clock;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::observed::{Reader, RunState};
use crate::probe::Prober;
use crate::runtime::execute::{Cancel, Executor, PassOrder};
use crate::runtime::logs::LogCommand;
use crate::runtime::plan::Action;
use crate::runtime::start;
use crate::server::Views;
use crate::server::{Health, Query};
use crate::status::outbox;
use crate::status::timeline::Recorder;
use crate::status::view::{PodView, Snapshot};
use crate::status::writer::Writer;
use crate::types::{ContainerId, Mono, PodUid};
use crate::volume;
use crate::worker::{Command, Input, Pods, Stage, Worker};

/// Inputs that may wait for the loop.
pub const INPUTS_MAX: usize = 4096;
/// Inputs taken in one turn before the snapshot is published.
const BATCH_MAX: usize = 256;
/// How often directories of pods that are gone are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// Longest sleep of the loop.
const SLEEP_MAX: Duration = Duration::from_secs(10);

/// The driver's parts.
pub struct Driver {
    /// The state machines.
    pub pods: Pods,
    /// Inputs from everywhere.
    pub inputs: mpsc::Receiver<Input>,
    /// Where effects send what came of them.
    pub back: mpsc::Sender<Input>,
    /// Questions from the server.
    pub queries: mpsc::Receiver<Query>,
    /// Reads pods.
    pub reader: Reader,
    /// Executes passes.
    pub executor: Rc<Executor>,
    /// Probes containers.
    pub prober: Rc<Prober>,
    /// Timeline.
    pub recorder: Recorder,
    /// Snapshots for the server.
    pub views: Views,
    /// Writes to the API server; `None` without one.
    pub writer: Option<Rc<Writer>>,
    /// Log rotation; `None` when it is off.
    pub logs: Option<mpsc::Sender<LogCommand>>,
    /// The loop's pulse.
    pub health: Arc<Health>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Where the pods' directories are.
    pub root_dir: PathBuf,
    /// Records that survive a restart.
    pub ledger: Ledger,
}

#[derive(Default)]
struct ReadSlot {
    running: bool,
    again: Option<u64>,
    done: u64,
}

type Reads = Rc<std::cell::RefCell<HashMap<PodUid, ReadSlot>>>;

impl Driver {
    /// Runs until every sender of inputs is gone or `stop` fires; pods are left as they are.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let reads = Reads::default();
        let mut passes: HashMap<u64, Cancel> = HashMap::new();
        let mut logs = BTreeSet::new();
        let mut sweep_at = Mono::PAST;
        let mut batch = Vec::new();
        tokio::pin!(stop);
        self.handle(Input::Tick, &reads, &mut passes);
        loop {
            let sleep = self.until_wake();
            batch.clear();
            tokio::select! {
                () = &mut stop => return,
                count = self.inputs.recv_many(&mut batch, BATCH_MAX) => {
                    if count == 0 {
                        return;
                    }
                }
                Some(query) = self.queries.recv() => self.answer(query),
                () = tokio::time::sleep(sleep) => batch.push(Input::Tick),
            }
            for input in batch.drain(..) {
                if let Input::PassDone { ticket, .. } = &input {
                    passes.remove(ticket);
                }
                let read = match &input {
                    Input::Observed { uid, result: Ok(_), .. } => Some(uid.clone()),
                    _ => None,
                };
                self.handle(input, &reads, &mut passes);
                if let Some(uid) = read {
                    self.follow_logs(&uid, &mut logs);
                }
            }
            if self.until_wake().is_zero() {
                self.handle(Input::Tick, &reads, &mut passes);
            }
            if self.pods.is_unsaved() {
                let (allocated, actuated) = self.pods.checkpoints();
                self.ledger.save(allocated, actuated);
            }
            self.publish();
            self.health.beat();
            self.sweep(&mut sweep_at);
        }
    }

    /// Has the logs of running containers kept at their limit.
    fn follow_logs(&self, uid: &PodUid, followed: &mut BTreeSet<ContainerId>) {
        let (Some(logs), Some(worker)) = (&self.logs, self.pods.worker(uid)) else { return };
        for container in &worker.observed().containers {
            let id = container.id.clone();
            let command = match container.state {
                RunState::Running if !followed.contains(&id) => {
                    followed.insert(id.clone());
                    LogCommand::Watch { id, path: PathBuf::from(&container.log_path) }
                }
                RunState::Exited if followed.remove(&id) => LogCommand::Forget { id },
                _ => continue,
            };
            // A full queue means that the rotator is behind: the next read tries again.
            if let Err(mpsc::error::TrySendError::Full(LogCommand::Watch { id, .. })) =
                logs.try_send(command)
            {
                followed.remove(&id);
            }
        }
    }

    /// Removes what a crash left of pods that nobody wants: directories, mounts, cgroups.
    fn sweep(&self, due_at: &mut Mono) {
        let now = clock::clocks().mono;
        if !self.pods.knows_all() || now < *due_at {
            return;
        }
        *due_at = now.plus(SWEEP_EVERY);
        let keep: BTreeSet<PodUid> = self.pods.workers().map(|w| w.uid().clone()).collect();
        let (root, views) = (self.root_dir.clone(), self.views.clone());
        let (executor, known) = (Rc::clone(&self.executor), keep.clone());
        let (logs, since) = (executor.node.pod_logs_dir.clone(), SystemTime::now());
        let metrics = Arc::clone(&self.metrics);
        let snapshot = self.views.load();
        tokio::task::spawn_local(async move {
            executor.count_all(&snapshot).await;
            executor.sweep_cgroups(&known).await;
            executor.look_for_shims(&snapshot).await;
        });
        tokio::task::spawn_blocking(move || {
            // A pod is in the snapshot before anything is done for it.
            let is_kept = |uid: &PodUid| keep.contains(uid) || views.load().pods.contains_key(uid);
            match volume::orphan::sweep_unless(&root, is_kept) {
                Ok(swept) => {
                    metrics.orphan_dirs(swept.removed.len(), swept.kept.len());
                    if let Some(warning) = swept.warning() {
                        tracing::warn!("{warning}");
                    }
                }
                Err(error) => tracing::warn!(%error, "orphaned pod directories: cannot look"),
            }
            Executor::sweep_logs(Path::new(&logs), &keep, since);
        });
    }

    fn until_wake(&self) -> Duration {
        let now = clock::clocks().mono;
        self.pods.next_wake().map_or(SLEEP_MAX, |at| at.since(now).min(SLEEP_MAX))
    }

    fn answer(&self, query: Query) {
        match query {
            Query::Plan { uid, answer } => {
                let plan = self.pods.worker(&uid).map(|w| w.dry_run(clock::clocks().mono));
                let _ = answer.send(plan);
            }
        }
    }

    fn handle(&mut self, input: Input, reads: &Reads, passes: &mut HashMap<u64, Cancel>) {
        for command in self.pods.handle(clock::clocks(), input) {
            self.execute(command, reads, passes);
        }
    }

    fn execute(&mut self, command: Command, reads: &Reads, passes: &mut HashMap<u64, Cancel>) {
        match command {
            Command::Read { uid, stamp, after } => self.read(uid, stamp, after, reads),
            Command::List { stamp } => {
                let (reader, back) = (self.reader.clone(), self.back.clone());
                let metrics = Arc::clone(&self.metrics);
                tokio::task::spawn_local(async move {
                    let begun = std::time::Instant::now();
                    let result = reader.list().await.map_err(|error| error.to_string());
                    metrics.relisted(clock::now(), begun.elapsed());
                    let _ = back.send(Input::Listed { stamp, result }).await;
                });
            }
            Command::Run { uid, ticket, pod, observed, actions } => {
                let cancel = Cancel::default();
                passes.insert(ticket, cancel.clone());
                // What a resize did cannot be told from the runtime: its record comes first.
                let resizes = actions.iter().any(|a| matches!(a, Action::ResizePod(_)));
                let saved = resizes.then(|| self.ledger.wait(self.pods.is_unsaved()));
                let metrics = Arc::clone(&self.metrics);
                let operation = metrics.pass_begins(&uid, pod.as_deref(), &actions, clock::now());
                let order = PassOrder { uid, ticket, pod, observed, actions };
                let (executor, back) = (Rc::clone(&self.executor), self.back.clone());
                tokio::task::spawn_local(async move {
                    let uid = order.uid.clone();
                    if let Some(saved) = saved {
                        saved.await;
                    }
                    let begun = std::time::Instant::now();
                    executor.run(order, cancel, &back).await;
                    metrics.pass_ended(operation, begun.elapsed());
                    let _ = back.send(Input::PassDone { uid, ticket }).await;
                });
            }
            Command::Cancel { ticket, .. } => {
                if let Some(cancel) = passes.get(&ticket) {
                    cancel.cancel();
                }
            }
            Command::Probe { .. } => self.prober.order(command),
            Command::Publish { uid, pod, status, stage } => {
                self.recorder.status(&uid, &status);
                self.metrics.published(&uid, &pod, &status, clock::now());
                self.tell(outbox::Input::Derived { pod, status, stage });
            }
            Command::Event { uid, warning, reason, message, container } => {
                self.recorder.event(&uid, warning, &reason, &message, container.as_deref());
            }
            Command::Count(count) => self.metrics.counted(&count),
            Command::Gone { uid } => {
                self.prober.forget(&uid);
                self.metrics.gone(&uid);
                self.tell(outbox::Input::Gone(uid.clone()));
                self.recorder.stage(&uid, "Gone", None, "");
                self.recorder.forget(&uid);
                // A pod that was wanted again meanwhile has been begun anew.
                if let Some(pod) = self.pods.worker(&uid).and_then(Worker::pod) {
                    self.recorder.know(pod);
                }
                reads.borrow_mut().remove(&uid);
            }
        }
    }

    fn tell(&self, input: outbox::Input) {
        if let Some(writer) = &self.writer {
            writer.take(input);
        }
    }

    fn read(&self, uid: PodUid, mut stamp: u64, after: Duration, reads: &Reads) {
        let names = self.pods.worker(&uid).map(|w| {
            let observed = w.observed();
            (observed.namespace.clone(), observed.name.clone())
        });
        let names = names.unwrap_or_default();
        let (reader, back, reads) = (self.reader.clone(), self.back.clone(), Rc::clone(reads));
        let recorder = self.recorder.clone();
        let metrics = Arc::clone(&self.metrics);
        tokio::task::spawn_local(async move {
            if !after.is_zero() {
                tokio::time::sleep(after).await;
            }
            {
                let mut slots = reads.borrow_mut();
                let slot = slots.entry(uid.clone()).or_default();
                if slot.done >= stamp {
                    return;
                }
                if slot.running {
                    slot.again = slot.again.max(Some(stamp));
                    return;
                }
                slot.running = true;
            }
            loop {
                let begun = std::time::Instant::now();
                let result = reader.read(&uid, (&names.0, &names.1)).await;
                metrics.pod_read(begun.elapsed());
                let again = {
                    let mut slots = reads.borrow_mut();
                    let slot = slots.entry(uid.clone()).or_default();
                    slot.done = stamp;
                    slot.again.take()
                };
                let result = result.map_err(|error| {
                    tell_unread(&recorder, &uid, &error);
                    error.to_string()
                });
                let observed = Input::Observed { uid: uid.clone(), stamp, result };
                if back.send(observed).await.is_err() {
                    return;
                }
                match again {
                    Some(next) => stamp = next,
                    None => break,
                }
            }
            if let Some(slot) = reads.borrow_mut().get_mut(&uid) {
                slot.running = false;
            }
        });
    }

    fn publish(&self) {
        let now = clock::clocks();
        let view = |worker: &Worker| {
            let pod = worker.pod()?;
            let view = PodView {
                pod: Arc::clone(pod),
                status: Arc::clone(worker.status()),
                observed: Arc::clone(worker.observed()),
                stage: worker.stage(),
                removed: worker.is_removed(),
                doing: worker.current_actions().to_vec(),
                failure: worker.last_failure().cloned(),
                wake_at: worker.wake_at().map(|at| now.wall_at(at)),
            };
            Some((worker.uid().clone(), view))
        };
        let pods = self.pods.workers().filter_map(view).collect();
        let orphans = self
            .pods
            .workers()
            .filter(|w| w.pod().is_none() && w.stage() != Stage::Finished)
            .map(|w| Arc::clone(w.observed()))
            .collect();
        self.views.store(Snapshot { pods, orphans, sources_ready: self.pods.sources_ready() });
    }
}

/// The runtime cannot tell of one pod; one that cannot be reached is no pod's trouble.
// k8s: pkg/kubelet/pod_workers.go podWorkerLoop FailedSync
fn tell_unread(recorder: &Recorder, uid: &PodUid, error: &pintle_cri::Error) {
    if error.code != pintle_cri::Code::Unavailable {
        let text = format!("error determining status: {}", start::rpc_text(error));
        recorder.event(uid, true, "FailedSync", &text, None);
    }
}
