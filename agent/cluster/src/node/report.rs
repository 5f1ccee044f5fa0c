//! Writes the Node object: registers it, updates an existing one, keeps its status up to date.
//!
//! Input: the facts that the polls of `task.rs` keep, and a notification when they change. Output:
//! writes through the heartbeat's connection, only after a change or when the report period is
//! over. Owner: one task. Bounds: one request at a time, `UPDATES_MAX` attempts in one round.
// k8s: pkg/kubelet/kubelet_node_status.go syncNodeStatus, registerWithAPIServer

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use pintle_agent_core::api_health::Task;
use pintle_agent_metrics::{Metrics, StartStep};
use pintle_api_types::jitter as pace;
use pintle_daemon::clock;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::conditions::NodeEvent;
use super::conditions::NodeEvents;
use super::own::OwnNode;
use super::status::{self, StatusFacts};
use super::{csi_node, patch, register};
use crate::NodeCluster;

/// Attempts to write the status in one round.
const UPDATES_MAX: usize = 5;
/// Jitter of the rounds.
const JITTER: f64 = 0.04;
/// First and longest wait between attempts to register.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), BACKOFF_MAX);
const BACKOFF_MAX: Duration = Duration::from_secs(7);

/// How long the watch may lag behind an answer before the Node is read again: the API server may
/// have been restored to an earlier state.
const BEHIND_MAX: Duration = Duration::from_secs(5);
/// How long the first status waits for the CSINode object.
const VOLUMES_MAX: Duration = Duration::from_secs(5);

/// A report of volumes in use that is in the Node's status.
#[derive(Clone, Debug)]
pub struct WrittenInUse {
    /// The report's number.
    pub number: u64,
    /// The Node with this report in its status.
    pub node: Arc<Node>,
}

/// Registers the Node object and keeps its status up to date.
pub struct Reporter {
    cluster: NodeCluster,
    nodes: Api<Node>,
    heartbeat: Api<Node>,
    facts: Rc<RefCell<StatusFacts>>,
    changed: Rc<Notify>,
    own: watch::Receiver<OwnNode>,
    events: NodeEvents,
    /// The newest known Node, from the watch or from an answer.
    latest: Option<Arc<Node>>,
    answered_at: Instant,
    /// Lists of the Node when that answer came.
    answered_lists: u64,
    reported_at: Option<Instant>,
    /// How long the next report without a change may wait.
    report_after: Duration,
    told_reboot: bool,
    unschedulable: bool,
    /// How many deletions of the Node were handled.
    gone: u32,
    steps: Option<Arc<Metrics>>,
    in_use_written: watch::Sender<Option<WrittenInUse>>,
}

impl Reporter {
    /// A reporter; it sends nothing until it runs.
    pub fn new(
        cluster: NodeCluster,
        facts: Rc<RefCell<StatusFacts>>,
        changed: Rc<Notify>,
        own: watch::Receiver<OwnNode>,
        events: NodeEvents,
    ) -> Self {
        let report_after = facts.borrow().settings.report_every;
        Self {
            nodes: Api::all(cluster.client.clone()),
            heartbeat: Api::all(cluster.heartbeat.clone()),
            report_after,
            cluster,
            facts,
            changed,
            own,
            events,
            latest: None,
            answered_at: Instant::now(),
            answered_lists: 0,
            reported_at: None,
            told_reboot: false,
            unschedulable: false,
            gone: 0,
            steps: None,
            in_use_written: watch::Sender::default(),
        }
    }

    /// Sets the channel for reports of volumes in use that were written.
    #[must_use]
    pub fn with_in_use_written(
        mut self,
        in_use_written: watch::Sender<Option<WrittenInUse>>,
    ) -> Self {
        self.in_use_written = in_use_written;
        self
    }

    /// Sets the metrics in which the steps of the start are timed.
    #[must_use]
    pub fn timed_in(mut self, metrics: Arc<Metrics>) -> Self {
        self.steps = Some(metrics);
        self
    }

    fn step(&self, step: StartStep) {
        if let Some(metrics) = &self.steps {
            metrics.start_step(step);
        }
    }

    /// Reports for ever.
    pub async fn run(mut self) {
        let settings = self.facts.borrow().settings.clone();
        if settings.register {
            let events = self.register(false).await;
            events.into_iter().for_each(|event| (self.events)(event));
        }
        self.prepare_volumes().await;
        loop {
            if self.was_deleted() {
                self.latest = None;
                // Off by default, as the kubelet, which registers only when it starts: a deletion
                // of the Node is taken as intended.
                if settings.recreate {
                    tracing::warn!(
                        "the Node object was deleted; the node registers again, cordoned"
                    );
                    self.register(true).await;
                    self.prepare_volumes().await;
                } else {
                    tracing::warn!(
                        "the Node object was deleted; start the agent again to register the node"
                    );
                }
            }
            self.report_schedulable();
            self.round().await;
            let pause = tokio::time::sleep(pace::jitter(settings.update_every, JITTER));
            tokio::pin!(pause);
            // The wait returns a read lock on the cell: held over the pause, it would block the
            // watch, and with it this thread.
            let deleted = async {
                let before = self.gone;
                let again =
                    |own: &OwnNode| matches!(own, OwnNode::Absent { gone } if *gone != before);
                let _ = self.own.wait_for(again).await;
            };
            tokio::select! {
                () = &mut pause => {}
                () = self.changed.notified() => {}
                // The client that deleted the Node may be about to recreate it.
                () = deleted => pause.await,
            }
        }
    }

    /// True once after each deletion of the Node.
    fn was_deleted(&mut self) -> bool {
        match *self.own.borrow_and_update() {
            OwnNode::Unknown | OwnNode::Present { .. } => false,
            OwnNode::Absent { gone } => std::mem::replace(&mut self.gone, gone) != gone,
        }
    }

    /// Retries until the Node object exists and is ours; returns the events to emit.
    async fn register(&mut self, again: bool) -> Vec<NodeEvent> {
        let mut wait = BACKOFF.0;
        let mut is_logged = false;
        loop {
            let (initial, events) = status::initial(&self.facts.borrow(), clock::clocks());
            let initial = if again { cordoned(initial) } else { initial };
            let tried = self.try_register(&initial).await;
            if let Err(error) = &tried {
                let now = clock::now();
                self.cluster.api_health.fails(Task::Registration, &crate::words(error), now);
            }
            match tried {
                Ok(()) => {
                    self.cluster.api_health.works(Task::Registration);
                    return events;
                }
                Err(error) if !is_logged => {
                    is_logged = true;
                    tracing::warn!(%error, "the node cannot be registered yet; trying again");
                }
                Err(error) => tracing::debug!(%error, "registration"),
            }
            tokio::time::sleep(wait).await;
            wait = pace::doubled(wait, BACKOFF.1);
        }
    }

    async fn try_register(&mut self, initial: &Node) -> Result<(), kube::Error> {
        self.step(StartStep::Registers);
        let name = &self.cluster.node_name;
        let existing = match self.nodes.create(&PostParams::default(), initial).await {
            Ok(node) => {
                tracing::info!(node = %name, "registered");
                self.step(StartStep::Registered);
                self.answered(Some(node));
                return Ok(());
            }
            // Forbidden: a kubelet without the right to create nodes may have an existing one.
            Err(kube::Error::Api(status))
                if status.is_already_exists() || status.is_forbidden() =>
            {
                self.nodes.get(name).await?
            }
            Err(error) => return Err(error),
        };
        let mut wanted = existing.clone();
        let node = match register::reconcile(initial, &mut wanted) {
            false => existing,
            true => match patch::status(&existing, &wanted) {
                None => existing,
                Some(patch) => self.send(&self.nodes, &patch).await?,
            },
        };
        tracing::info!(node = %name, "was registered before");
        self.answered(Some(node));
        Ok(())
    }

    fn answered(&mut self, node: Option<Node>) {
        self.latest = node.map(Arc::new);
        self.answered_at = Instant::now();
        self.answered_lists = self.own.borrow().lists();
    }

    /// Creates the CSINode object; the node is not ready before it exists. Waits up to
    /// `VOLUMES_MAX`, so that a restart of the agent does not report a ready node as not ready.
    async fn prepare_volumes(&self) {
        let uid = self.latest.as_ref().and_then(|node| node.metadata.uid.clone());
        let (client, name) = (self.cluster.client.clone(), Arc::clone(&self.cluster.node_name));
        let (facts, changed) = (Rc::clone(&self.facts), Rc::clone(&self.changed));
        let own = self.own.clone();
        let prepared = pintle_daemon::tasks::spawn("CSINode", async move {
            let set_error = |why: Option<String>| {
                let before = std::mem::replace(&mut facts.borrow_mut().storage_error, why.clone());
                if before != why {
                    changed.notify_one();
                }
            };
            let mut is_logged = false;
            let failed = |why: String| {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!("{why}; trying again");
                }
                set_error(Some(why));
            };
            csi_node::prepare(client, &name, uid, own, failed).await;
            set_error(None);
        });
        let _ = tokio::time::timeout(VOLUMES_MAX, prepared).await;
    }

    async fn round(&mut self) {
        for attempt in 0..UPDATES_MAX {
            match self.sync(attempt > 0).await {
                Ok(()) => return self.cluster.api_health.works(Task::Heartbeat),
                Err(error) => {
                    let now = clock::now();
                    self.cluster.api_health.fails(Task::Heartbeat, &crate::words(&error), now);
                    tracing::debug!(%error, attempt, "status of the node");
                }
            }
        }
        tracing::warn!("the node's status cannot be written; trying again in the next round");
    }

    /// Sends once that this report of volumes in use is in the status of that Node.
    fn publish_in_use(&self, number: Option<u64>, node: &Arc<Node>) {
        let Some(number) = number else { return };
        self.in_use_written.send_if_modified(|written| {
            let is_new = written.as_ref().is_none_or(|written| written.number != number);
            if is_new {
                *written = Some(WrittenInUse { number, node: Arc::clone(node) });
            }
            is_new
        });
    }

    /// Writes the changed status. The first attempt trusts the watch; later ones read the Node
    /// first.
    async fn sync(&mut self, ask: bool) -> Result<(), kube::Error> {
        let Some(old) = self.object(ask).await? else { return Ok(()) };
        let mut new = (*old).clone();
        let mut events = status::update(&self.facts.borrow(), &mut new, clock::clocks());
        let in_use = self.facts.borrow().volumes_in_use.as_ref().map(|report| report.number);
        let changed = status::differs(&old, &new);
        let due = self.reported_at.is_none_or(|at| at.elapsed() >= self.report_after);
        if !changed && !due {
            self.publish_in_use(in_use, &old);
            return Ok(());
        }
        if let Some(patch) = patch::status(&old, &new) {
            let answer = self.send(&self.heartbeat, &patch).await?;
            if is_ready(&answer) {
                self.step(StartStep::Ready);
            }
            self.publish_in_use(in_use, &Arc::new(answer.clone()));
            self.answered(Some(answer));
        } else {
            self.publish_in_use(in_use, &old);
        }
        let every = self.facts.borrow().settings.report_every;
        let fresh = changed || self.reported_at.is_none();
        self.report_after = if fresh { pace::spread(every) } else { every };
        self.reported_at = Some(Instant::now());
        events.retain(|event| event.reason != "Rebooted" || !self.told_reboot);
        self.told_reboot |= events.iter().any(|event| event.reason == "Rebooted");
        events.into_iter().for_each(|event| (self.events)(event));
        Ok(())
    }

    /// The newest known Node, read from the API server if `ask`; `None` when there is none.
    async fn object(&mut self, ask: bool) -> Result<Option<Arc<Node>>, kube::Error> {
        let (watched, lists) = {
            let own = self.own.borrow();
            (own.object().cloned(), own.lists())
        };
        // A list that came after the answer and has an older Node: etcd may have been restored.
        let is_listed = lists != self.answered_lists;
        let age = if is_listed { BEHIND_MAX } else { self.answered_at.elapsed() };
        self.latest = newest(self.latest.take(), age, watched);
        if ask || self.latest.is_none() {
            let found = self.heartbeat.get_opt(&self.cluster.node_name).await?;
            self.answered(found);
        }
        Ok(self.latest.clone())
    }

    async fn send(&self, api: &Api<Node>, patch: &serde_json::Value) -> Result<Node, kube::Error> {
        let params = PatchParams::default();
        api.patch_status(&self.cluster.node_name, &params, &Patch::Strategic(patch)).await
    }

    fn report_schedulable(&mut self) {
        let spec = self.own.borrow().object().and_then(|node| node.spec.clone());
        let Some(spec) = spec else { return };
        let unschedulable = spec.unschedulable.unwrap_or(false);
        if unschedulable != self.unschedulable {
            self.unschedulable = unschedulable;
            let reason = if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" };
            (self.events)(NodeEvent::status(&self.cluster.node_name, reason));
        }
    }
}

/// The Node marked unschedulable: it may have been drained before it was deleted, and its taints
/// are lost with the object.
fn cordoned(mut node: Node) -> Node {
    node.spec.get_or_insert_default().unschedulable = Some(true);
    node
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// The newer of the last answer, received `age` ago, and the watched Node. `None` when the Node has
/// to be read again: after `BEHIND_MAX` or a list, the watch should have caught up with that answer.
fn newest(
    latest: Option<Arc<Node>>,
    age: Duration,
    watched: Option<Arc<Node>>,
) -> Option<Arc<Node>> {
    match (latest, watched) {
        (Some(latest), Some(watched)) if version(&latest) > version(&watched) => {
            (age < BEHIND_MAX).then_some(latest)
        }
        (latest, watched) => watched.or(latest),
    }
}

/// The resourceVersion as a number, which grows with each write; an unreadable one counts as
/// oldest.
fn version(node: &Node) -> u64 {
    let text = node.metadata.resource_version.as_deref();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_the_watch_does_not_come_to_is_not_believed_for_long() {
        let node = |version: u64| {
            let mut node = Node::default();
            node.metadata.resource_version = Some(version.to_string());
            Some(Arc::new(node))
        };
        let known = |latest, age, watched| newest(latest, age, watched).map(|node| version(&node));
        let soon = Duration::from_millis(10);
        assert_eq!(known(node(9), soon, node(7)), Some(9), "the watch is on its way");
        assert_eq!(known(node(9), BEHIND_MAX, node(7)), None, "etcd may have been restored");
        assert_eq!(known(node(9), BEHIND_MAX, node(12)), Some(12));
        assert_eq!(known(node(9), BEHIND_MAX, None), Some(9));
        assert_eq!(known(None, BEHIND_MAX, node(7)), Some(7));
        assert_eq!(known(None, soon, None), None);
    }
}
