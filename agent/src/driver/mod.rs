//! The driver: feeds `Pods` with inputs and executes its commands. All effects start here.
//!
//! Runs on the main thread. One loop takes inputs in batches, then publishes a snapshot for the
//! server's thread. Every read and every sync is a task of its own, so a runtime call that hangs
//! holds up nothing but its pod; a task that panics costs that call and nothing else (`owed`).
//! Which reads are made is decided by `worker::reads`. Bounds: `INPUTS_MAX` inputs queued (senders
//! wait), one read and one sync per pod, one list, one sweep.

mod flight;
mod logs;
mod node_channels;
mod owed;
mod publish;
mod save;
mod shutdown;
mod sweep;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pintle_agent_cluster::node::pleg::ListsSeen;
use pintle_agent_cluster::status::writer::StatusWriter;
use pintle_agent_core::eviction;
use pintle_agent_core::eviction::observed::Freed;
use pintle_agent_core::status_queue;
use pintle_agent_core::sync::plan::Action;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::worker::reads::Reads;
use pintle_agent_core::worker::{Command, Pods, PodsInput, RETRY_TOLD, ReadFailure, Wait, Worker};
use pintle_agent_host::ledger::Ledger;
use pintle_agent_host::shutdown::Progress;
use pintle_agent_metrics::Metrics;
use pintle_agent_runtime::execute::{self, Cancel, Executor, SyncOrder};
use pintle_agent_runtime::garbage;
use pintle_agent_runtime::logs::LogCommand;
use pintle_agent_runtime::observed::PodReader;
use pintle_agent_runtime::probe::Prober;
use pintle_agent_server::{HealthState, Query, Views};
use pintle_daemon::clock;
use pintle_daemon::tasks;
use tokio::sync::{mpsc, oneshot};

pub(crate) use self::flight::Tape;
pub(crate) use self::flight::start as start_recording;
use self::logs::FollowedLogs;
pub(crate) use self::node_channels::NodeChannels;
use self::owed::Owed;
use self::publish::Publisher;
use self::save::Saver;
use self::sweep::Sweeper;
use crate::pressure::PressureLook;

/// Inputs that may wait for the loop.
pub(crate) const INPUTS_MAX: usize = 4096;
/// Inputs taken in one turn before the snapshot is published.
const BATCH_MAX: usize = 256;
/// Longest sleep of the loop.
const SLEEP_MAX: Duration = Duration::from_secs(10);

/// The driver's parts.
pub(crate) struct PodDriver {
    /// The state machines.
    pub pods: Pods,
    /// Inputs from everywhere.
    pub inputs: mpsc::Receiver<PodsInput>,
    /// The channel for results of effects.
    pub back: mpsc::Sender<PodsInput>,
    /// Questions from the server.
    pub queries: mpsc::Receiver<Query>,
    /// Orders for the node's tasks.
    pub node: NodeChannels,
    /// Reads pods.
    pub reader: PodReader,
    /// Executes syncs.
    pub executor: Rc<Executor>,
    /// Probes containers.
    pub prober: Rc<Prober>,
    /// Timeline.
    pub recorder: Recorder,
    /// Snapshots for the server.
    pub views: Views,
    /// Writes to the API server; `None` without one.
    pub writer: Option<Rc<StatusWriter>>,
    /// Log rotation; `None` when it is off.
    pub logs: Option<mpsc::Sender<LogCommand>>,
    /// When the runtime last listed its pods.
    pub lists: ListsSeen,
    /// Removes unused images.
    pub garbage: garbage::CollectorRequests,
    /// The loop's pulse.
    pub health: Arc<HealthState>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// The root of the pods' directories.
    pub root_dir: PathBuf,
    /// The flight recorder.
    pub tape: Tape,
    /// How far a shutdown of the node has come.
    pub shutdown: Progress,
}

/// The state that the loop keeps between its turns.
struct TurnState {
    saver: Saver,
    reads: Rc<RefCell<Reads>>,
    syncs: HashMap<u64, Cancel>,
    followed: FollowedLogs,
}

impl PodDriver {
    /// Runs until every sender of inputs is gone or `stop` fires; pods are left as they are.
    pub(crate) async fn run(mut self, stop: impl Future<Output = ()>, ledger: Ledger) {
        let mut turns = TurnState {
            saver: Saver::new(ledger),
            reads: Rc::default(),
            syncs: HashMap::new(),
            followed: FollowedLogs::new(self.logs.take()),
        };
        let mut publisher = Publisher::new(self.views.clone());
        let (executor, views) = (Rc::clone(&self.executor), self.views.clone());
        let metrics = Arc::clone(&self.metrics);
        let mut sweeper = Sweeper::new(executor, views, self.root_dir.clone(), metrics);
        let mut batch = Vec::new();
        tokio::pin!(stop);
        self.handle(PodsInput::Tick, &mut turns);
        loop {
            let sleep = turns.saver.within(self.until_wake(), &self.pods);
            batch.clear();
            tokio::select! {
                () = &mut stop => return self.tape.end().await,
                count = self.inputs.recv_many(&mut batch, BATCH_MAX) => {
                    if count == 0 {
                        return self.tape.end().await;
                    }
                }
                Some(query) = self.queries.recv() => self.answer(query, &mut turns),
                () = tokio::time::sleep(sleep) => batch.push(PodsInput::Tick),
            }
            for input in batch.drain(..) {
                self.take(input, &mut turns);
            }
            if self.until_wake().is_zero() {
                self.handle(PodsInput::Tick, &mut turns);
            }
            turns.saver.save(&mut self.pods);
            publisher.publish(&mut self.pods);
            self.health.beat();
            sweeper.look(&self.pods);
        }
    }

    fn take(&mut self, input: PodsInput, turns: &mut TurnState) {
        let mut read = None;
        match &input {
            PodsInput::SyncDone { ticket, .. } => drop(turns.syncs.remove(ticket)),
            PodsInput::Observed { uid, result: Ok(_), .. } => read = Some(uid.clone()),
            PodsInput::Listed { result: Ok(_), .. } => self.lists.seen(),
            PodsInput::Node(facts) => self.executor.know_node(facts),
            PodsInput::SourcesReady => self.executor.volumes.sources_ready(),
            _ => {}
        }
        self.handle(input, turns);
        if let Some(worker) = read.and_then(|uid| self.pods.worker(&uid)) {
            turns.followed.follow(worker.observed());
        }
    }

    fn until_wake(&self) -> Duration {
        let now = clock::clocks().mono;
        self.pods.next_wake().map_or(SLEEP_MAX, |at| at.since(now).min(SLEEP_MAX))
    }

    fn answer(&mut self, query: Query, turns: &mut TurnState) {
        match query {
            Query::Plan { uid, answer } => {
                let plan = self.pods.worker(&uid).map(|w| w.dry_run(clock::clocks().mono));
                let _ = answer.send(plan);
            }
            Query::Retry { uid, answer } => {
                let _ = answer.send(self.retry(uid, turns));
            }
            // The last place in the queue is for eviction.
            Query::Images { answer } if self.garbage.queue.capacity() > 1 => {
                drop(self.garbage.queue.try_send(garbage::GarbageRequest::Report(answer)));
            }
            Query::Images { .. } => {}
            Query::Pressure { uses, answer } => {
                let _ = answer.send(self.pods.pressure_report(uses.as_ref(), clock::clocks()));
            }
        }
    }

    /// Ends all waits of a pod, and returns them; `None` for a pod that is gone.
    fn retry(&mut self, uid: PodUid, turns: &mut TurnState) -> Option<Vec<Wait>> {
        let waits = self.pods.worker(&uid)?.waits(clock::clocks().mono);
        self.recorder.stage(&uid, "Retry", None, RETRY_TOLD);
        // A pull backs off by itself.
        self.executor.images.retry(&uid);
        self.handle(PodsInput::Retry { uid }, turns);
        Some(waits)
    }

    fn handle(&mut self, input: PodsInput, turns: &mut TurnState) {
        let now = clock::clocks();
        self.tape.input(now, &input);
        let commands = self.pods.handle(now, input);
        self.tape.commands(&commands);
        self.tape.between(&self.pods);
        for command in commands {
            self.execute(command, turns);
        }
    }

    fn execute(&mut self, command: Command, turns: &mut TurnState) {
        match command {
            Command::Read { uid, stamp, after } => self.read(uid, stamp, after, &turns.reads),
            Command::List { stamp } => self.list(stamp),
            Command::Run { uid, ticket, pod, observed, actions } => {
                let cancel = Cancel::default();
                turns.syncs.insert(ticket, cancel.clone());
                let order = SyncOrder { uid, ticket, pod, observed, actions };
                self.run_sync(order, cancel, &mut turns.saver);
            }
            Command::FetchNode { ticket } => self.fetch_node(ticket),
            Command::Cancel { ticket, .. } => {
                if let Some(cancel) = turns.syncs.get(&ticket) {
                    cancel.cancel();
                }
            }
            Command::Probe { .. } => self.prober.order(command),
            Command::Publish { uid, pod, status, stage } => {
                self.recorder.status(&uid, &status);
                self.metrics.published(&uid, &pod, &status, clock::now());
                self.queue_status(status_queue::QueueInput::Derived { pod, status, stage });
            }
            Command::Event { uid, warning, reason, message, container } => {
                self.recorder.event(&uid, warning, &reason, &message, container.as_deref());
            }
            Command::Measure { ticket, pods, disks } => {
                self.measure(PressureLook { ticket, pods, disks });
            }
            Command::Reclaim { ticket, images, .. } => self.reclaim(ticket, images),
            Command::Pressure(pressure) => drop(self.node.pressure.send_replace(pressure)),
            Command::Evicted { uid, message, notes } => {
                let notes = notes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
                let reason = eviction::REASON;
                self.recorder.annotated(&uid, true, reason, &message, None, &notes);
            }
            Command::NodeEvent(event) => (self.executor.node_events)(event),
            Command::Shutdown(record) => self.shut_down(record),
            Command::Count(count) => self.metrics.counted(&count),
            Command::Gone { uid } => self.gone(uid, turns),
        }
    }

    fn gone(&self, uid: PodUid, turns: &mut TurnState) {
        self.prober.forget(&uid);
        self.metrics.gone(&uid);
        self.queue_status(status_queue::QueueInput::Gone(uid.clone()));
        self.recorder.stage(&uid, "Gone", None, "");
        self.recorder.forget(&uid);
        // A pod that was wanted again meanwhile has been started again.
        if let Some(pod) = self.pods.worker(&uid).and_then(Worker::pod) {
            self.recorder.register(pod);
        }
        turns.reads.borrow_mut().forget(&uid);
        turns.followed.forget(&uid);
    }

    /// Has the Node object read; the answer is an input, also when there is no reader.
    fn fetch_node(&self, ticket: u64) {
        if !self.node.fetch(ticket) {
            self.answer_later(PodsInput::NodeFetched { ticket, node: None });
        }
    }

    /// Orders an observation. Without a lookout the answer is empty.
    fn measure(&self, order: PressureLook) {
        let ticket = order.ticket;
        if !self.node.measure(order) {
            self.answer_later(PodsInput::Pressure { ticket, observation: Box::default() });
        }
    }

    /// Has unused images removed; dead containers went before, with syncs of their pods.
    fn reclaim(&self, ticket: u64, images: bool) {
        let (answer, mut answered) = oneshot::channel();
        let mut steps = self.garbage.steps.clone();
        steps.mark_unchanged();
        let request = garbage::GarbageRequest::Images(answer);
        let asked = images && self.garbage.queue.try_send(request).is_ok();
        if !asked {
            return self.answer_later(PodsInput::Reclaimed { ticket, freed: Freed::default() });
        }
        let back = self.back.clone();
        let owed =
            Owed::new(back.clone(), PodsInput::Reclaimed { ticket, freed: Freed::default() });
        tasks::spawn("reclaim", async move {
            let freed = loop {
                tokio::select! {
                    freed = &mut answered => break freed.unwrap_or_default(),
                    // Fails only when the driver no longer takes inputs; then the answer is not
                    // taken either.
                    Ok(()) = steps.changed() => drop(back.send(PodsInput::Reclaiming { ticket }).await),
                }
            };
            owed.settle(PodsInput::Reclaimed { ticket, freed }).await;
        });
    }

    fn answer_later(&self, input: PodsInput) {
        let back = self.back.clone();
        tokio::task::spawn_local(async move {
            let _ = back.send(input).await;
        });
    }

    fn queue_status(&self, input: status_queue::QueueInput) {
        if let Some(writer) = &self.writer {
            writer.take(input);
        }
    }

    fn list(&self, stamp: u64) {
        let given_up = PodsInput::Listed {
            stamp,
            result: Err(ReadFailure("the list was given up".to_owned())),
        };
        let owed = Owed::new(self.back.clone(), given_up);
        let (reader, metrics) = (self.reader.clone(), Arc::clone(&self.metrics));
        tasks::spawn("list", async move {
            let begun = std::time::Instant::now();
            let result = match tasks::caught(reader.list()).await {
                Ok(listed) => listed.map_err(|error| ReadFailure(error.rpc_text())),
                Err(panic) => {
                    tasks::counted("list");
                    tracing::error!("list of the runtime's pods: {panic}");
                    Err(ReadFailure(panic.to_string()))
                }
            };
            metrics.relisted(clock::now(), begun.elapsed());
            owed.settle(PodsInput::Listed { stamp, result }).await;
        });
    }

    fn run_sync(&self, order: SyncOrder, cancel: Cancel, saver: &mut Saver) {
        let (uid, ticket) = (order.uid.clone(), order.ticket);
        // The runtime does not show the effect of a resize, nor the end of a pod without remains:
        // the record comes first.
        let resizes = order.actions.iter().any(|a| matches!(a, Action::ResizePod(_)));
        let of_pod = self.pods.worker(&uid);
        let keeps = of_pod.is_some_and(|w| w.kept_verdict().is_some());
        let needs = of_pod.is_some_and(|w| w.needs_record(&order.actions));
        let record = (resizes || keeps).then(|| saver.wait(&self.pods));
        let metrics = Arc::clone(&self.metrics);
        let pod = order.pod.as_deref();
        let operation = metrics.sync_begins(&uid, pod, &order.actions, clock::now());
        let (executor, back) = (Rc::clone(&self.executor), self.back.clone());
        let owed = Owed::new(back.clone(), PodsInput::SyncDone { uid: uid.clone(), ticket });
        tasks::spawn("sync", async move {
            let is_recorded = match record {
                Some(record) if needs => {
                    save::is_recorded(record, executor.make_room(&order)).await
                }
                Some(mut record) => record.ended().await,
                None => true,
            };
            let begun = std::time::Instant::now();
            match is_recorded || !needs {
                true => executor.run(order, cancel, &back).await,
                false => executor.put_off(&order, execute::unrecorded(), &back).await,
            }
            metrics.sync_ended(operation, begun.elapsed());
            owed.settle(PodsInput::SyncDone { uid, ticket }).await;
        });
    }

    fn read(&self, uid: PodUid, stamp: u64, after: Duration, reads: &Rc<RefCell<Reads>>) {
        let observed = self.pods.worker(&uid).map(Worker::observed);
        let names = observed.map(|o| (o.namespace.clone(), o.name.clone())).unwrap_or_default();
        let read = PodRead {
            uid,
            names,
            reader: self.reader.clone(),
            back: self.back.clone(),
            recorder: self.recorder.clone(),
            metrics: Arc::clone(&self.metrics),
            reads: Rc::clone(reads),
        };
        reads.borrow_mut().asked(&read.uid);
        tasks::spawn("read", async move {
            if !after.is_zero() {
                tokio::time::sleep(after).await;
            }
            if read.reads.borrow_mut().due(&read.uid, stamp) {
                read.make(stamp).await;
            }
        });
    }
}

/// Reads one pod, again for each request made meanwhile.
struct PodRead {
    uid: PodUid,
    names: (String, String),
    reader: PodReader,
    back: mpsc::Sender<PodsInput>,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    reads: Rc<RefCell<Reads>>,
}

impl PodRead {
    async fn make(&self, mut stamp: u64) {
        loop {
            let given_up = Err(ReadFailure("the read was given up".to_owned()));
            let owed = Owed::new(self.back.clone(), self.answer(stamp, given_up));
            let begun = std::time::Instant::now();
            let names = (self.names.0.as_str(), self.names.1.as_str());
            let place = ReadPlace(self);
            let result = tasks::caught(self.reader.read(&self.uid, names)).await;
            self.metrics.pod_read(begun.elapsed());
            let result = match result {
                Ok(read) => read.map_err(|error| {
                    report_unread_pod(&self.recorder, &self.uid, &error);
                    ReadFailure(error.to_string())
                }),
                Err(panic) => {
                    tasks::counted("read");
                    tracing::error!(pod = %self.uid, "reading the pod: {panic}");
                    Err(ReadFailure(panic.to_string()))
                }
            };
            let next = place.ended(stamp);
            if !owed.settle(self.answer(stamp, result)).await {
                return;
            }
            match next {
                Some(next) => stamp = next,
                None => return,
            }
        }
    }

    fn answer(
        &self,
        stamp: u64,
        result: Result<pintle_agent_core::observed::ObservedPod, ReadFailure>,
    ) -> PodsInput {
        PodsInput::Observed { uid: self.uid.clone(), stamp, result }
    }
}

/// A read under way; dropped before its end it gives up its place.
struct ReadPlace<'a>(&'a PodRead);

impl ReadPlace<'_> {
    /// The stamp of the read to make next.
    fn ended(self, stamp: u64) -> Option<u64> {
        let next = self.0.reads.borrow_mut().ended(&self.0.uid, stamp);
        std::mem::forget(self);
        next
    }
}

impl Drop for ReadPlace<'_> {
    fn drop(&mut self) {
        self.0.reads.borrow_mut().given_up(&self.0.uid);
    }
}

/// Emits FailedSync for a pod that cannot be read, unless the runtime itself is unreachable.
// k8s: pkg/kubelet/pod_workers.go podWorkerLoop FailedSync
fn report_unread_pod(recorder: &Recorder, uid: &PodUid, error: &pintle_cri::Error) {
    if error.code != pintle_cri::Code::Unavailable {
        let text = format!("error determining status: {}", error.rpc_text());
        recorder.event(uid, true, "FailedSync", &text, None);
    }
}

#[cfg(test)]
mod tests;
