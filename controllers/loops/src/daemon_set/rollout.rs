//! Which pods of a DaemonSet are replaced because its template has changed.
//!
//! Input: the set, nodes, and the pods of each node. Output: pods to delete, and nodes that get a
//! new pod next to their old one. Without surge an old pod is deleted first, and at most so many
//! nodes have no available pod; with surge the new pod comes first, on at most so many nodes at
//! once.
// k8s: pkg/controller/daemon/update.go rollingUpdate

use std::rc::Rc;

use jiff::Timestamp;
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::common::int_or_percent::{NoIntOrPercent, Rounding, scaled};
use pintle_controllers_core::common::node_match::NodeFit;
use pintle_controllers_core::frame::{Transcript, TranscriptStop};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{DaemonSet, Node, Pod};

use super::nodes::{DaemonPlan, Placement, PodsByNode, surge};
use super::template::{is_updated, template_generation};

/// The state that a rollout reads.
pub(super) struct Rollout<'a> {
    /// The set.
    pub(super) set: &'a DaemonSet,
    /// The nodes that its pods fit.
    pub(super) fit: &'a NodeFit,
    /// The hash of its current revision.
    pub(super) hash: &'a str,
    /// All nodes, by name.
    pub(super) nodes: &'a [Rc<KeptObject<Node>>],
    /// When the sync began.
    pub(super) now: Timestamp,
}

/// How far a rollout may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RolloutLimits {
    /// Nodes that may have two pods.
    pub(super) surge: i64,
    /// Nodes that may have no available pod.
    pub(super) unavailable: i64,
    /// Nodes that should have a pod.
    pub(super) desired: i64,
}

/// The pods of a node that stay: at most one of each.
#[derive(Clone, Copy, Debug)]
struct NodePods<'a> {
    new: Option<&'a Pod>,
    old: Option<&'a Pod>,
}

impl Rollout<'_> {
    /// Plans the next step.
    ///
    /// # Errors
    /// When a limit is neither a number nor a percentage, or the node of an old pod no longer
    /// exists.
    pub(super) fn plan(
        &self,
        pods: &PodsByNode,
        transcript: &mut Transcript,
    ) -> Result<DaemonPlan, TranscriptStop> {
        let mut pods = pods.clone();
        let limits = self.limits(&mut pods).map_err(|error| {
            TranscriptStop::failed(format!("couldn't get unavailable numbers: {error}"))
        })?;
        let plan = match limits.surge {
            0 => self.plan_in_place(&pods, limits),
            _ => self.plan_surging(&pods, limits)?,
        };
        let (delete, create) = (plan.delete.len(), plan.create_on.len());
        if delete + create > 0 {
            transcript.because(format!(
                "the rollout deletes {delete} old pods and creates {create} new ones: {} nodes may \
                 have two pods, {} none that is available",
                limits.surge, limits.unavailable
            ));
        }
        Ok(plan)
    }

    /// The limits; nodes that should have a pod and have none get an empty entry.
    // k8s: update.go updatedDesiredNodeCounts
    pub(super) fn limits(&self, pods: &mut PodsByNode) -> Result<RolloutLimits, NoIntOrPercent> {
        let mut desired = 0;
        for node in self.nodes {
            if Placement::of(self.fit, node) == Placement::Run {
                desired += 1;
                pods.entry(Symbol::of(&node.metadata.name)).or_default();
            }
        }
        let limits = self.set.spec.update_strategy.rolling_update.as_ref();
        let unavailable = limits.map(|limits| &limits.max_unavailable);
        let unavailable = unavailable.map_or(Ok(0), |it| scaled(it, desired, Rounding::Up))?;
        let surge = surge(self.set, desired)?;
        let is_stuck = desired > 0 && unavailable == 0 && surge == 0;
        let unavailable = if is_stuck { 1 } else { unavailable };
        Ok(RolloutLimits { surge, unavailable, desired })
    }

    fn is_available(&self, pod: &Pod) -> bool {
        pod.is_available(self.set.spec.min_ready_seconds.into(), self.now)
    }

    /// The pods of a node that are not being deleted; `None` when there are several of a kind.
    // k8s: update.go findUpdatedPodsOnNode
    fn pods_of<'p>(&self, pods: &'p [Rc<KeptObject<Pod>>]) -> Option<NodePods<'p>> {
        let generation = template_generation(self.set);
        let mut found = NodePods { new: None, old: None };
        for pod in pods.iter().filter(|pod| !pod.metadata.is_deleting()) {
            let place = match is_updated(pod, self.hash, generation) {
                true => &mut found.new,
                false => &mut found.old,
            };
            if place.replace(pod).is_some() {
                return None;
            }
        }
        Some(found)
    }

    fn plan_in_place(&self, pods: &PodsByNode, limits: RolloutLimits) -> DaemonPlan {
        let mut unavailable = 0;
        let mut replaced = Vec::new();
        let mut candidates = Vec::new();
        for pods in pods.values() {
            match self.pods_of(pods) {
                Some(NodePods { new: Some(new), old: None }) => {
                    unavailable += i64::from(!self.is_available(new));
                }
                Some(NodePods { new: None, old: Some(old) }) => {
                    let name = old.metadata.name.to_string();
                    if !self.is_available(old) {
                        replaced.push(name);
                        unavailable += 1;
                    } else if unavailable < limits.unavailable {
                        candidates.push(name);
                    }
                }
                // The pods of the node are put in order first.
                Some(_) | None => unavailable += 1,
            }
        }
        let left = usize::try_from(limits.unavailable - unavailable).unwrap_or(0);
        replaced.extend(candidates.into_iter().take(left));
        DaemonPlan { delete: replaced, ..DaemonPlan::default() }
    }

    fn plan_surging(
        &self,
        pods: &PodsByNode,
        limits: RolloutLimits,
    ) -> Result<DaemonPlan, TranscriptStop> {
        let mut plan = DaemonPlan::default();
        let (mut surging, mut available) = (0, 0);
        let mut leaving = Vec::new();
        let mut candidates = Vec::new();
        for (name, pods) in pods {
            let Some(found) = self.pods_of(pods) else {
                surging += 1;
                continue;
            };
            let counted = found.old.or(found.new);
            available += i64::from(counted.is_some_and(|pod| self.is_available(pod)));
            let Some(old) = found.old else { continue };
            let old_name = old.metadata.name.to_string();
            let is_old_available = self.is_available(old);
            match found.new {
                Some(new) if self.is_available(new) => plan.delete.push(old_name),
                Some(_) => surging += 1,
                None => match (self.is_wanted(name)?, is_old_available) {
                    (false, false) => plan.delete.push(old_name),
                    (false, true) => leaving.push(old_name),
                    (true, false) => plan.create_on.push(name.to_string()),
                    (true, true) if surging < limits.surge => candidates.push(name.to_string()),
                    (true, true) => {}
                },
            }
        }
        // Nodes that are left keep their pod until as many pods as wanted are available elsewhere.
        let spare = usize::try_from(available - limits.desired).unwrap_or(0);
        plan.delete.extend(leaving.into_iter().take(spare));
        let left = usize::try_from(limits.surge - surging).unwrap_or(0);
        plan.create_on.extend(candidates.into_iter().take(left));
        Ok(plan)
    }

    /// The node of an old pod should still have one.
    fn is_wanted(&self, name: &str) -> Result<bool, TranscriptStop> {
        let at = self.nodes.binary_search_by(|node| (*node.metadata.name).cmp(name));
        let at = at.map_err(|_| {
            let gone = format!("node \"{name}\" not found");
            TranscriptStop::failed(format!("couldn't get node for nodeName \"{name}\": {gone}"))
        })?;
        Ok(Placement::of(self.fit, &self.nodes[at]) == Placement::Run)
    }
}
