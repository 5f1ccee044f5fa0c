//! Tries a group with a topology constraint in each domain; the best domain is used.
//!
//! Input: the group's constraint, the outcome in each domain. Output: the next domain to try, or
//! the outcome in the best one. Owner: the scheduler. Bounds: the domains, each with its pods'
//! results.
// k8s: pkg/scheduler/schedule_one_podgroup.go podGroupSchedulingPlacementAlgorithm

use std::collections::VecDeque;
use std::rc::Rc;

use super::group::{GroupCycle, GroupOutcome, Tried, UNSCHEDULABLE};
use super::{Scheduler, Uid};
use crate::diagnosis::Asking;
use crate::groups::GroupError;
use crate::placement::{self, DomainError, Placement};

/// Upstream's messages.
// k8s: framework/runtime/framework.go RunPlacementGeneratePlugins,
//      defaultpreemption/default_preemption.go PostFilter
const NO_PLACEMENT: &str = "no feasible placements found";
const NEVER: &str = "not eligible due to placement-based pod group scheduling limitation";

/// Placements of a group. `None` is a placement with all nodes.
#[derive(Debug)]
pub(super) struct Trials {
    now: Option<Rc<Placement>>,
    left: VecDeque<Option<Rc<Placement>>>,
    count: usize,
    done: Vec<PlacementTrial>,
}

/// The outcome in one placement.
#[derive(Debug)]
struct PlacementTrial {
    placement: Option<Rc<Placement>>,
    tried: Vec<Tried>,
    came: GroupOutcome,
}

/// Reason why a group has no placements.
#[derive(Debug, thiserror::Error)]
enum PlacementError {
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error("cannot determine domain for already scheduled pods: {0}")]
    Domain(#[from] DomainError),
}

impl Scheduler {
    /// Finds the placements of a group; returns false if there are none.
    pub(super) fn find_placements(&mut self, cycle: &mut GroupCycle) -> bool {
        let found = self.placements_of(cycle);
        let mut left = match found {
            Ok(found) if found.is_empty() => {
                cycle.message = Some(NO_PLACEMENT.to_owned());
                return false;
            }
            Ok(found) => VecDeque::from(found),
            Err(error) => {
                cycle.came = GroupOutcome::Failed(error.to_string());
                return false;
            }
        };
        let count = left.len();
        let now = left.pop_front().flatten();
        cycle.trials = Some(Trials { now, left, count, done: Vec::new() });
        true
    }

    // k8s: topologyaware/topology_placement.go GeneratePlacements
    fn placements_of(
        &self,
        cycle: &mut GroupCycle,
    ) -> Result<Vec<Option<Rc<Placement>>>, PlacementError> {
        let (key, is_constrained) = cycle.group.topology()?;
        if is_constrained {
            cycle.never_preempts = Some(NEVER);
        }
        let Some(key) = key else { return Ok(vec![None]) };
        let node_of = |pod, uid: &Uid| {
            let assumed = self.assumed.get(uid).map(|assumed| Rc::clone(&assumed.node));
            assumed.or_else(|| self.cache.node_of(pod).map(Rc::from))
        };
        let placed = cycle.group.placed();
        let placed = placed.iter().filter_map(|(pod, uid)| {
            let node = node_of(pod, uid)?;
            Some((pod.as_str().to_owned(), node))
        });
        let placed: Vec<_> = placed.collect();
        let only = placement::domain_of(&self.cache, &key, &placed)?;
        let found = placement::placements(&self.cache, &key, only.as_deref());
        Ok(found.into_iter().map(|placement| Some(Rc::new(placement))).collect())
    }

    /// Restricts a pod to the current placement of its group.
    pub(super) fn stays_in_placement(&self, asking: &mut Asking) {
        let Some(cycle) = &self.group else { return };
        asking.placement = cycle.trials.as_ref().and_then(|trials| trials.now.clone());
        asking.never_preempts = cycle.never_preempts;
    }

    /// Prepares the next placement after all pods were tried in the current one, and returns true.
    /// After the last placement it sets the outcome of the best one and returns false. A cycle that
    /// failed or has no placements is left as it is.
    pub(super) fn tries_elsewhere(&mut self, cycle: &mut GroupCycle) -> bool {
        let failed = matches!(cycle.came, GroupOutcome::Failed(_));
        let Some(trials) = cycle.trials.as_mut().filter(|_| !failed) else { return false };
        let tried = std::mem::take(&mut cycle.tried);
        let came = std::mem::replace(&mut cycle.came, GroupOutcome::Nowhere);
        let again = tried.iter().map(|one| (one.uid.clone(), Rc::clone(&one.queued)));
        cycle.left = again.collect();
        trials.done.push(PlacementTrial { placement: trials.now.take(), tried, came });
        if let Some(next) = trials.left.pop_front() {
            trials.now = next;
            cycle.needs_room = false;
            return true;
        }
        cycle.left.clear();
        let (count, done) = (trials.count, std::mem::take(&mut trials.done));
        let best = self.best_of(cycle, &done);
        let mut done = done;
        if best.is_none() {
            cycle.message = Some(format!(
                "0/{count} placements are available, first placement status: {UNSCHEDULABLE}"
            ));
        }
        let best = done.swap_remove(best.unwrap_or(0));
        (cycle.tried, cycle.came) = (best.tried, best.came);
        false
    }

    /// Returns the index of the placement with the highest score, a random one among equals. `None`
    /// if enough pods fit in no placement, not even after a preemption.
    // k8s: schedule_one_podgroup.go findBestPlacement
    fn best_of(&mut self, cycle: &GroupCycle, done: &[PlacementTrial]) -> Option<usize> {
        let takes = |trial: &PlacementTrial| {
            matches!(trial.came, GroupOutcome::Fits | GroupOutcome::NeedsRoom)
        };
        let fit: Vec<usize> = (0..done.len()).filter(|at| takes(&done[*at])).collect();
        if fit.len() < 2 {
            return fit.first().copied();
        }
        let profile = std::sync::Arc::clone(self.cache.profile(cycle.profile));
        self.cache.cluster.use_profile(&profile);
        let placed = cycle.group.placed().len();
        let known: Vec<(usize, i64)> = fit
            .iter()
            .map(|at| {
                let has_node = done[*at].tried.iter().filter(|one| one.place.is_some());
                let pods: Vec<_> = has_node.map(|one| &one.queued.spec.requests).collect();
                let rows = done[*at].placement.as_ref().map(|placement| &placement.rows);
                let full = rows.map_or(0, |rows| self.cache.cluster.fullness(rows, &pods));
                (placed + pods.len(), full)
            })
            .collect();
        let points = placement::scores(&profile, &known);
        let most = points.iter().max().copied()?;
        let best: Vec<usize> = (0..points.len()).filter(|at| points[*at] == most).collect();
        Some(fit[best[self.random(best.len())]])
    }
}
