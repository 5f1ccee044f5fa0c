//! Dry runs of out-of-tree filters: a node with some pods removed or added.
//!
//! Input: the node, the pods. Output: the filters' statuses then. Owner: an attempt. Each node has
//! a copy of the attempt's state. Plugins are called for each pod that was added or removed since
//! the last dry run of the node, because upstream removes pods and adds them back.
// k8s: pkg/scheduler/framework/plugins/defaultpreemption/default_preemption.go SelectVictimsOnNode

use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use pintle_sched_core::chunk::Numbers;
use pintle_sched_core::config::Rank;
use pintle_sched_core::filter::status::Status;
use pintle_sched_core::snapshot::View;

use super::Attempt;
use super::meter::{Failed, call_plugin};
use super::points::{CycleState, NodeInfo};

/// Pods that a dry run adds to one node.
#[derive(Debug)]
pub(super) struct Expected {
    row: u32,
    pods: Vec<Rc<Pod>>,
}

/// The node under evaluation.
#[derive(Debug)]
pub(super) struct Trial {
    row: u32,
    state: CycleState,
    gone: Vec<Rc<Pod>>,
}

fn is_same(a: &Rc<Pod>, b: &Rc<Pod>) -> bool {
    a.metadata.uid == b.metadata.uid
}

impl Attempt {
    /// Adds these pods to a node until [`Self::clear_expected`].
    pub(crate) fn expect(&self, row: u32, pods: Vec<Rc<Pod>>) {
        *self.trial.borrow_mut() = None;
        *self.expected.borrow_mut() = (!pods.is_empty()).then_some(Expected { row, pods });
    }

    /// Removes the pods that `expect` added.
    pub(crate) fn clear_expected(&self) {
        *self.trial.borrow_mut() = None;
        *self.expected.borrow_mut() = None;
    }

    /// Calls the AddPod extensions for a pod.
    fn comes(&self, state: &CycleState, other: &Pod, info: &NodeInfo<'_>) -> Result<(), Status> {
        for (name, plugin) in self.followers() {
            let run = || plugin.add_pod(state, &self.pod, other, info);
            let added = call_plugin(name, "AddPod", run).unwrap_or_else(Failed::failed);
            added.map_err(|why| self.rejects("AddPod", name, why))?;
        }
        Ok(())
    }

    /// Calls the RemovePod extensions for a pod.
    fn goes(&self, state: &CycleState, other: &Pod, info: &NodeInfo<'_>) -> Result<(), Status> {
        for (name, plugin) in self.followers() {
            let run = || plugin.remove_pod(state, &self.pod, other, info);
            let removed = call_plugin(name, "RemovePod", run).unwrap_or_else(Failed::failed);
            removed.map_err(|why| self.rejects("RemovePod", name, why))?;
        }
        Ok(())
    }

    /// Returns the state of a node with its expected pods; `None` if it has none.
    pub(super) fn state_at(
        &self,
        info: &NodeInfo<'_>,
        row: u32,
    ) -> Option<Result<CycleState, Status>> {
        let expected = self.expected.borrow();
        let expected = expected.as_ref().filter(|expected| expected.row == row)?;
        let state = self.state.copy();
        let mut pods = expected.pods.iter();
        let added = pods.try_for_each(|other| self.comes(&state, other, info));
        Some(added.map(|()| state))
    }

    /// Runs the filters of one rank on a node without the pods in `gone`. Returns the rejection, if
    /// any; `numbers` are those of the node without these pods.
    pub(crate) fn rejection_without(
        &self,
        view: &View,
        row: u32,
        numbers: Numbers,
        gone: &[Rc<Pod>],
        rank: Rank,
    ) -> Option<Status> {
        let nodes = Rc::clone(&self.nodes.borrow());
        let info = match self.known(&nodes, view, row) {
            Ok(info) => NodeInfo { numbers, ..info },
            Err(status) => return Some(status),
        };
        let known = self.trial.borrow_mut().take().filter(|trial| trial.row == row);
        let mut trial = match known {
            Some(trial) => trial,
            None => match self.state_at(&info, row).unwrap_or_else(|| Ok(self.state.copy())) {
                Ok(state) => Trial { row, state, gone: Vec::new() },
                Err(status) => return Some(status),
            },
        };
        // A failure leaves the state inconsistent: it is dropped, and the next dry run starts from
        // a copy.
        if let Err(status) = self.catch_up(&mut trial, &info, gone) {
            return Some(status);
        }
        let found = self.ask_filters(&trial.state, &info, self.run_at(rank));
        *self.trial.borrow_mut() = Some(trial);
        found
    }

    fn catch_up(
        &self,
        trial: &mut Trial,
        info: &NodeInfo<'_>,
        gone: &[Rc<Pod>],
    ) -> Result<(), Status> {
        let is_among = |pod: &Rc<Pod>, all: &[Rc<Pod>]| all.iter().any(|other| is_same(pod, other));
        let before = std::mem::take(&mut trial.gone);
        for other in gone.iter().filter(|pod| !is_among(pod, &before)) {
            self.goes(&trial.state, other, info)?;
        }
        for other in before.iter().filter(|pod| !is_among(pod, gone)) {
            self.comes(&trial.state, other, info)?;
        }
        trial.gone = gone.to_vec();
        Ok(())
    }
}
