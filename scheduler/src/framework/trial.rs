//! A node that plugins of others are asked about with some pods thought away, or thought there.
//!
//! Input: the node as it is, the pods. Output: what filters say of it then. Owner: an attempt. A node has
//! a copy of the attempt's state; what changes between two questions about it is told one by one, as
//! upstream does, which takes pods away and puts them back.
// k8s: pkg/scheduler/framework/plugins/defaultpreemption/default_preemption.go SelectVictimsOnNode

use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use pintle_sched_core::config::Rank;
use pintle_sched_core::filter::status::Status;
use pintle_sched_core::snapshot::View;
use pintle_sched_core::snapshot::chunk::Numbers;

use super::Attempt;
use super::meter::{Failed, asked};
use super::points::{CycleState, NodeInfo};

/// Pods that count as on one node.
#[derive(Debug)]
pub(super) struct Expected {
    row: u32,
    pods: Vec<Rc<Pod>>,
}

/// The node that is tried.
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
    /// These pods count as on a node until nobody is expected any more.
    pub(crate) fn expect(&self, row: u32, pods: Vec<Rc<Pod>>) {
        *self.trial.borrow_mut() = None;
        *self.expected.borrow_mut() = (!pods.is_empty()).then_some(Expected { row, pods });
    }

    /// Nobody counts as on a node who is not there.
    pub(crate) fn expect_nobody(&self) {
        *self.trial.borrow_mut() = None;
        *self.expected.borrow_mut() = None;
    }

    /// A pod counts as on a node.
    fn comes(&self, state: &CycleState, other: &Pod, info: &NodeInfo<'_>) -> Result<(), Status> {
        for (name, plugin) in self.followers() {
            let run = || plugin.add_pod(state, &self.pod, other, info);
            let added = asked(name, "AddPod", run).unwrap_or_else(Failed::failed);
            added.map_err(|why| self.rejects("AddPod", name, why))?;
        }
        Ok(())
    }

    /// A pod counts as gone from it.
    fn goes(&self, state: &CycleState, other: &Pod, info: &NodeInfo<'_>) -> Result<(), Status> {
        for (name, plugin) in self.followers() {
            let run = || plugin.remove_pod(state, &self.pod, other, info);
            let removed = asked(name, "RemovePod", run).unwrap_or_else(Failed::failed);
            removed.map_err(|why| self.rejects("RemovePod", name, why))?;
        }
        Ok(())
    }

    /// The state of a node, with those who are expected there; `None` where that is the attempt's own.
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

    /// Why those of one place do not let a node take the pod that these have left, with the numbers that it
    /// has then.
    pub(crate) fn rejection_without(
        &self,
        view: &View,
        (row, numbers): (u32, Numbers),
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
        // Some may have been followed and others not: the next question begins anew.
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
