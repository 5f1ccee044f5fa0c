//! In which order surplus pods are deleted.
//!
//! Input: active pods, and how many related pods each node has. Output: the pods, those to delete
//! first in front. The order prefers pods that are missed least: without a node, not ready, of low
//! deletion cost, on a node that has several, young. Ages count by their binary logarithm, and
//! within one step the UID decides, so that young pods of about the same age go at random. The
//! order is not transitive across steps, hence a sort that bears that.
// k8s: pkg/controller/controller_utils.go ActivePodsWithRanks

use std::collections::BTreeMap;
use std::rc::Rc;

use jiff::Timestamp;
use pintle_api_types::symbol::Symbol;

use crate::kept::KeptObject;
use crate::kinds::Pod;

/// The annotation by which users say what a pod's deletion costs.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// How many active pods that are related to a workload each node has; pods without a node are
/// counted under the empty name.
pub type PodsByNode = BTreeMap<Symbol, usize>;

/// A pod and what it is ranked by.
struct RankCandidate<'a> {
    pod: &'a Rc<KeptObject<Pod>>,
    is_assigned: bool,
    phase: u8,
    is_ready: bool,
    cost: i32,
    neighbours: usize,
    ready_at: Option<Timestamp>,
    restarts: (i32, i32),
}

/// Sorts pods: those to delete first in front.
pub fn rank_for_deletion(
    pods: &[Rc<KeptObject<Pod>>],
    related: &PodsByNode,
    now: Timestamp,
) -> Vec<Rc<KeptObject<Pod>>> {
    let mut candidates: Vec<_> = pods.iter().map(|pod| RankCandidate::of(pod, related)).collect();
    merge_sort(&mut candidates, &|one, other| one.goes_before(other, now));
    candidates.into_iter().map(|candidate| Rc::clone(candidate.pod)).collect()
}

impl<'a> RankCandidate<'a> {
    fn of(pod: &'a Rc<KeptObject<Pod>>, related: &PodsByNode) -> Self {
        let is_ready = pod.is_ready();
        let ready = pod.condition("Ready").filter(|_| is_ready);
        Self {
            pod,
            is_assigned: !pod.spec.node_name.is_empty(),
            phase: match &*pod.status.phase {
                "Unknown" => 1,
                "Running" => 2,
                _ => 0,
            },
            is_ready,
            cost: deletion_cost(pod),
            neighbours: related.get(&pod.spec.node_name).copied().unwrap_or_default(),
            ready_at: ready.and_then(|ready| ready.last_transition_time),
            restarts: restarts(pod),
        }
    }

    /// It is to be deleted rather than the other one.
    // k8s: pkg/controller/controller_utils.go ActivePodsWithRanks.Less
    fn goes_before(&self, other: &Self, now: Timestamp) -> bool {
        if self.is_assigned != other.is_assigned {
            return !self.is_assigned;
        }
        if self.phase != other.phase {
            return self.phase < other.phase;
        }
        if self.is_ready != other.is_ready {
            return !self.is_ready;
        }
        if self.cost != other.cost {
            return self.cost < other.cost;
        }
        if self.neighbours != other.neighbours {
            return self.neighbours > other.neighbours;
        }
        if self.is_ready && self.ready_at != other.ready_at {
            return self.is_younger(self.ready_at, other, other.ready_at, now);
        }
        if self.restarts != other.restarts {
            return self.restarts > other.restarts;
        }
        let (created, others) =
            (self.pod.metadata.creation_timestamp, other.pod.metadata.creation_timestamp);
        created != others && self.is_younger(created, other, others, now)
    }

    fn is_younger(
        &self,
        at: Option<Timestamp>,
        other: &Self,
        other_at: Option<Timestamp>,
        now: Timestamp,
    ) -> bool {
        let (Some(at), Some(other_at)) = (at, other_at) else { return at.is_none() };
        let (age, other_age) = (age_step(at, now), age_step(other_at, now));
        if age == other_age {
            return self.pod.metadata.uid < other.pod.metadata.uid;
        }
        age < other_age
    }
}

/// The binary logarithm of an age in nanoseconds; -1 when there is none.
// k8s: pkg/controller/controller_utils.go logarithmicRankDiff
fn age_step(at: Timestamp, now: Timestamp) -> i64 {
    let age = now.as_nanosecond() - at.as_nanosecond();
    // Whole numbers up to 2^53 are exact; the logarithm is cut, as upstream does.
    if age > 0 { (age as f64).log2() as i64 } else { -1 }
}

// k8s: pkg/apis/core/helper/helpers.go GetDeletionCostFromPodAnnotations
fn deletion_cost(pod: &Pod) -> i32 {
    let Some(text) = pod.metadata.annotation(DELETION_COST) else { return 0 };
    // Neither a plus sign nor leading zeros are allowed; what is not valid counts as 0.
    let is_number =
        text == "0" || text.starts_with(['-', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    if is_number { text.parse().unwrap_or(0) } else { 0 }
}

/// The most restarts of any container, and of any sidecar.
// k8s: pkg/controller/controller_utils.go maxContainerRestarts
fn restarts(pod: &Pod) -> (i32, i32) {
    let of_containers = pod.status.container_statuses.iter();
    let sidecars = pod.status.init_container_statuses.iter();
    let sidecars = sidecars.filter(|status| pod.spec.sidecars.contains(&status.name));
    let max = |count: Option<i32>| count.unwrap_or_default().max(0);
    (
        max(of_containers.map(|status| status.restart_count).max()),
        max(sidecars.map(|status| status.restart_count).max()),
    )
}

/// Stable; unlike the standard sort it never panics on an order that is not transitive.
fn merge_sort<T>(items: &mut Vec<T>, is_less: &impl Fn(&T, &T) -> bool) {
    if items.len() < 2 {
        return;
    }
    let mut right = items.split_off(items.len() / 2);
    merge_sort(items, is_less);
    merge_sort(&mut right, is_less);
    let mut merged = Vec::with_capacity(items.len() + right.len());
    let (mut from_left, mut from_right) = (items.drain(..).peekable(), right.drain(..).peekable());
    while let (Some(one), Some(other)) = (from_left.peek(), from_right.peek()) {
        let next = if is_less(other, one) { from_right.next() } else { from_left.next() };
        merged.extend(next);
    }
    merged.extend(from_left);
    merged.extend(from_right);
    *items = merged;
}
