//! Manages the pods of a DaemonSet in one sync: pods per node, then the rollout, then the
//! status.
//!
//! Input: a snapshot, the hash of the current revision, and the set's pods. Output: requests,
//! events and when to sync again. At most 250 pods are created, and as many deleted, in one step;
//! creations begin slowly, so that a quota that is used up costs one refusal and not 250.
// k8s: pkg/controller/daemon/daemon_controller.go manage, syncNodes

use std::rc::Rc;
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_controllers_core::common::lockstep::aggregate;
use pintle_controllers_core::common::node_match::NodeFit;
use pintle_controllers_core::common::pods;
use pintle_controllers_core::frame::{EventTarget, SyncError, Transcript, TranscriptStop};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{DaemonSet, Pod};
use serde_json::Value;

use super::backoff::FailedPods;
use super::nodes::{DaemonPlan, NodePlanner, PodsByNode, by_node, unscheduled_without_node};
use super::rollout::Rollout;
use super::{DaemonSetSnapshot, earlier, status, template};

/// Pods that are created, and deleted, in one step at most.
pub(super) const BURST_MAX: usize = 250;

/// One sync of a set.
pub(super) struct DaemonUpdate<'a> {
    seen: &'a DaemonSetSnapshot,
    whole: &'a Value,
    hash: &'a str,
    about: &'a EventTarget,
    fit: NodeFit,
    pods: PodsByNode,
    /// Waits after failed pods.
    pub(super) failed: FailedPods,
    /// When the set is synced again.
    pub(super) again: Option<Duration>,
}

/// The outcome of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acted {
    /// Nothing was created or deleted.
    No,
    /// Something was.
    Yes,
}

impl<'a> DaemonUpdate<'a> {
    pub(super) fn new(
        seen: &'a DaemonSetSnapshot,
        whole: &'a Value,
        hash: &'a str,
        about: &'a EventTarget,
        pods: &[Rc<KeptObject<Pod>>],
    ) -> Self {
        let (fit, pods) = (template::fit_of(&seen.set), by_node(pods));
        Self { seen, whole, hash, about, fit, pods, failed: seen.failed.clone(), again: None }
    }

    fn set(&self) -> &'a DaemonSet {
        &self.seen.set
    }

    /// Creates and deletes pods.
    ///
    /// # Errors
    /// When the API server refuses something.
    // k8s: daemon_controller.go updateDaemonSet
    pub(super) fn run(&mut self, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        let plan = self.plan(transcript);
        self.again = earlier(self.again, plan.again);
        let is_rolling = &*self.set().spec.update_strategy.kind == "RollingUpdate";
        if self.carry_out(&plan, transcript)? == Acted::Yes || !is_rolling {
            return Ok(());
        }
        let rollout = Rollout {
            set: self.set(),
            fit: &self.fit,
            hash: self.hash,
            nodes: &self.seen.nodes,
            now: transcript.now(),
        };
        let plan = rollout.plan(&self.pods, transcript)?;
        self.carry_out(&plan, transcript)?;
        Ok(())
    }

    fn plan(&mut self, transcript: &mut Transcript) -> DaemonPlan {
        let mut planner = NodePlanner {
            set: &self.seen.set,
            fit: &self.fit,
            hash: self.hash,
            about: self.about,
            plan: DaemonPlan::default(),
            failed: &mut self.failed,
        };
        for node in &self.seen.nodes {
            let pods = self.pods.get(&*node.metadata.name).map(Vec::as_slice);
            planner.plan(node, pods, transcript);
        }
        let mut plan = planner.plan;
        plan.delete.extend(unscheduled_without_node(&self.seen.nodes, &self.pods));
        plan
    }

    // k8s: daemon_controller.go syncNodes
    fn carry_out(
        &self,
        plan: &DaemonPlan,
        transcript: &mut Transcript,
    ) -> Result<Acted, TranscriptStop> {
        let namespace = &*self.set().metadata.namespace;
        let mut errors = Vec::new();
        let mut acted = Acted::No;
        let nodes = plan.create_on.iter().take(BURST_MAX);
        let create = |node: &String| {
            let pod = template::pod_for(self.set(), self.whole, self.hash, node);
            pods::create(namespace, pod)
        };
        let requests = nodes.map(create).collect::<Result<_, _>>()?;
        for answer in transcript.slow_start(requests)? {
            pods::record_created(&answer, self.about, transcript);
            match answer {
                Ok(_) => acted = Acted::Yes,
                // The namespace is terminating, so all its objects will be deleted.
                Err(error) if error.is_namespace_terminating() => acted = Acted::Yes,
                Err(error) => errors.push(failure(error.into())),
            }
        }
        let deleted = &plan.delete[..plan.delete.len().min(BURST_MAX)];
        let delete = |name: &String| pods::delete(&ObjectKey::new(namespace, name));
        let answers = transcript.send_all(deleted.iter().map(delete).collect())?;
        for (name, answer) in deleted.iter().zip(answers) {
            if answer.is_ok() {
                acted = Acted::Yes;
            }
            if let Err(error) = pods::record_deleted(name, answer, self.about, transcript) {
                errors.push(failure(error.into()));
            }
        }
        aggregate(errors).map_or(Ok(acted), |error| Err(TranscriptStop::Failed(error)))
    }

    /// Writes the status; syncs again when pods that are ready become available.
    ///
    /// # Errors
    /// When the API server refuses it.
    // k8s: daemon_controller.go updateDaemonSetStatus
    pub(super) fn write_status(
        &mut self,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let set = self.set();
        let cluster = status::DaemonCluster { nodes: &self.seen.nodes, pods: &self.pods };
        let counted = status::count(set, &self.fit, self.hash, cluster, transcript.now());
        status::write(set, self.whole, &counted, transcript)?;
        let min_ready = u64::try_from(set.spec.min_ready_seconds).unwrap_or(0);
        if min_ready > 0 && counted.number_ready != counted.number_available {
            self.again = earlier(self.again, Some(Duration::from_secs(min_ready)));
        }
        Ok(())
    }
}

fn failure(stop: TranscriptStop) -> SyncError {
    match stop {
        TranscriptStop::Failed(error) => error,
        TranscriptStop::Pending => unreachable!("an answer is no open request"),
    }
}
