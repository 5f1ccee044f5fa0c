//! On which nodes a DaemonSet should run, and which pods each node lacks or has too many of.
//!
//! Input: a set, a node and its daemon pods. Output: whether the node needs a pod, and the pods to
//! delete there. Pure but for reasons and events.
// k8s: pkg/controller/daemon/daemon_controller.go NodeShouldRunDaemonPod, podsShouldBeOnNode

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::common::int_or_percent::{NoIntOrPercent, Rounding, scaled};
use pintle_controllers_core::common::node_match::NodeFit;
use pintle_controllers_core::frame::{EventTarget, ObjectEvent, Transcript};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{DaemonSet, Node, Pod};

use super::backoff::FailedPods;
use super::template::HASH_LABEL;

/// The daemon pods of each node, by the node's name.
pub(super) type PodsByNode = BTreeMap<Symbol, Vec<Rc<KeptObject<Pod>>>>;

/// The decision of whether a node should have a daemon pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// It should have one.
    Run,
    /// It gets none, but an existing one stays.
    Stay,
    /// It should have none.
    Leave,
}

impl Placement {
    /// Of pods that fit these nodes on one node.
    // k8s: daemon_controller.go NodeShouldRunDaemonPod
    pub(super) fn of(fit: &NodeFit, node: &Node) -> Self {
        let is_named = fit.node_name.is_empty() || *fit.node_name == *node.metadata.name;
        if !is_named || !fit.selects(node) {
            return Self::Leave;
        }
        if fit.untolerated(node, &["NoExecute"]).is_some() {
            return Self::Leave;
        }
        match fit.untolerated(node, &["NoSchedule"]) {
            Some(_) => Self::Stay,
            None => Self::Run,
        }
    }
}

/// The pods to create and to delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DaemonPlan {
    /// Names of nodes that get a pod.
    pub(super) create_on: Vec<String>,
    /// Names of pods.
    pub(super) delete: Vec<String>,
    /// When a failed pod may be deleted.
    pub(super) again: Option<Duration>,
}

/// Groups pods by the node that they run on or are for.
// k8s: daemon_controller.go getNodesToDaemonPods
pub(super) fn by_node(pods: &[Rc<KeptObject<Pod>>]) -> PodsByNode {
    let mut by_node = PodsByNode::new();
    for pod in pods {
        // The kubelet or the collector of pods is about to remove it.
        if pod.is_terminal() && pod.metadata.is_deleting() {
            continue;
        }
        let node = match pod.spec.node_name.is_empty() {
            false => Some(&pod.spec.node_name),
            true => pod.spec.target_node.as_ref(),
        };
        if let Some(node) = node {
            by_node.entry(node.clone()).or_default().push(Rc::clone(pod));
        }
    }
    by_node
}

/// The pod that counts for its node comes first: bound, then oldest, then by name.
// k8s: daemon_controller.go podByCreationTimestampAndPhase
pub(super) fn sort_by_age(pods: &mut [Rc<KeptObject<Pod>>]) {
    pods.sort_by(|one, other| {
        let key = |pod: &Rc<KeptObject<Pod>>| {
            (pod.spec.node_name.is_empty(), pod.metadata.creation_timestamp)
        };
        key(one).cmp(&key(other)).then_with(|| one.metadata.name.cmp(&other.metadata.name))
    });
}

/// How many pods beyond one a node may have.
///
/// # Errors
/// When the set states neither a number nor a percentage.
// k8s: pkg/controller/daemon/util/daemonset_util.go SurgeCount
pub(super) fn surge(set: &DaemonSet, nodes: i64) -> Result<i64, NoIntOrPercent> {
    let strategy = &set.spec.update_strategy;
    let limits = strategy.rolling_update.as_ref().filter(|_| &*strategy.kind == "RollingUpdate");
    let limit = limits.map(|limits| &limits.max_surge).filter(|limit| !limit.is_null());
    limit.map_or(Ok(0), |limit| scaled(limit, nodes, Rounding::Up))
}

/// Decides for one node after the other.
pub(super) struct NodePlanner<'a> {
    /// The set.
    pub(super) set: &'a DaemonSet,
    /// The nodes that its pods fit.
    pub(super) fit: &'a NodeFit,
    /// The hash of its current revision.
    pub(super) hash: &'a str,
    /// The set as events name it.
    pub(super) about: &'a EventTarget,
    /// The plan so far.
    pub(super) plan: DaemonPlan,
    /// Waits after failed pods.
    pub(super) failed: &'a mut FailedPods,
}

impl NodePlanner<'_> {
    /// Plans for a node; `None` when it has no pod.
    // k8s: daemon_controller.go podsShouldBeOnNode
    pub(super) fn plan(
        &mut self,
        node: &Node,
        pods: Option<&[Rc<KeptObject<Pod>>]>,
        transcript: &mut Transcript,
    ) {
        let name = &*node.metadata.name;
        let placement = Placement::of(self.fit, node);
        match (placement, pods) {
            (Placement::Run, None) => {
                transcript.because(format!("node {name} has no pod"));
                self.plan.create_on.push(name.to_owned());
            }
            (_, None) => {}
            (Placement::Leave, Some(pods)) => {
                transcript.because(format!("node {name} should run no pod"));
                let pods = pods.iter().filter(|pod| !pod.metadata.is_deleting());
                self.plan.delete.extend(pods.map(|pod| pod.metadata.name.to_string()));
            }
            (_, Some(pods)) => {
                let mut running = self.delete_ended(name, pods, transcript);
                sort_by_age(&mut running);
                match surge(self.set, 1).is_ok_and(|surge| surge > 0) {
                    false => self.delete_excess(name, running.iter().skip(1), transcript),
                    true => self.plan_surging(name, placement, &running, transcript),
                }
            }
        }
    }

    /// Deletes pods that have ended; returns those that have not.
    fn delete_ended(
        &mut self,
        node: &str,
        pods: &[Rc<KeptObject<Pod>>],
        transcript: &mut Transcript,
    ) -> Vec<Rc<KeptObject<Pod>>> {
        let mut running = Vec::new();
        for pod in pods.iter().filter(|pod| !pod.metadata.is_deleting()) {
            let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
            let about = self.about.clone();
            match &*pod.status.phase {
                "Failed" => {
                    // The kubelet may refuse each new pod again: without a wait both would race.
                    if let Some(wait) = self.failed.wait(node, transcript.now()) {
                        transcript.because(format!("failed pod {name} is deleted in {wait:?}"));
                        self.plan.again = self.plan.again.into_iter().chain([wait]).min();
                        continue;
                    }
                    self.failed.record(node, transcript.now());
                    let message = format!(
                        "Found failed daemon pod {namespace}/{name} on node {node}, will try to \
                         kill it"
                    );
                    transcript.event(ObjectEvent::warning(about, "FailedDaemonPod", message));
                    self.plan.delete.push(name.to_string());
                }
                "Succeeded" => {
                    let message = format!(
                        "Found succeeded daemon pod {namespace}/{name} on node {node}, will try \
                         to delete it"
                    );
                    transcript.event(ObjectEvent::normal(about, "SucceededDaemonPod", message));
                    self.plan.delete.push(name.to_string());
                }
                _ => running.push(Rc::clone(pod)),
            }
        }
        running
    }

    fn delete_excess<'p>(
        &mut self,
        node: &str,
        pods: impl Iterator<Item = &'p Rc<KeptObject<Pod>>>,
        transcript: &mut Transcript,
    ) {
        for pod in pods {
            let name = &pod.metadata.name;
            transcript.because(format!("node {node} has another pod than {name}"));
            self.plan.delete.push(name.to_string());
        }
    }

    /// A surging node may have an old pod that is ready next to a new one that is not available.
    fn plan_surging(
        &mut self,
        node: &str,
        placement: Placement,
        running: &[Rc<KeptObject<Pod>>],
        transcript: &mut Transcript,
    ) {
        if running.is_empty() && placement == Placement::Run {
            transcript.because(format!("node {node} has no pod that stays"));
            self.plan.create_on.push(node.to_owned());
        }
        if running.len() <= 1 {
            return;
        }
        let is_new = |pod: &Pod| {
            pod.metadata.labels.get(HASH_LABEL).is_some_and(|label| **label == *self.hash)
        };
        let new = running.iter().find(|pod| is_new(pod));
        let old = running.iter().find(|pod| !is_new(pod));
        let is_kept = |pod: &&Rc<KeptObject<Pod>>| {
            [new, old].into_iter().flatten().any(|kept| Rc::ptr_eq(kept, pod))
        };
        self.delete_excess(node, running.iter().filter(|pod| !is_kept(pod)), transcript);
        let (Some(new), Some(old)) = (new, old) else { return };
        let min_ready = self.set.spec.min_ready_seconds.into();
        if !old.is_ready() || new.is_available(min_ready, transcript.now()) {
            let (old, new) = (&old.metadata.name, &new.metadata.name);
            transcript.because(format!("pod {new} takes the place of {old} on node {node}"));
            self.plan.delete.push(old.to_string());
        }
    }
}

/// Pending pods for a deleted node: neither the scheduler nor the pod garbage collector deletes
/// them.
// k8s: daemon_controller.go getUnscheduledPodsWithoutNode
pub(super) fn unscheduled_without_node(
    nodes: &[Rc<KeptObject<Node>>],
    pods: &PodsByNode,
) -> Vec<String> {
    let is_unbound = |pod: &&Rc<KeptObject<Pod>>| pod.spec.node_name.is_empty();
    let waiting = pods.iter().filter(|(_, pods)| pods.iter().any(|pod| is_unbound(&pod)));
    let names: BTreeSet<&str> = nodes.iter().map(|node| &*node.metadata.name).collect();
    let homeless = waiting.filter(|(node, _)| !names.contains(node.as_str()));
    homeless
        .flat_map(|(_, pods)| pods.iter().filter(is_unbound))
        .map(|pod| pod.metadata.name.to_string())
        .collect()
}
