//! Which active pods of a Job are surplus, and in which order they are deleted.
//!
//! Input: the active pods and how many are too many. Output: the pods to delete. Of an indexed Job
//! those without a valid index go first, then all but one of each index. The rest is ranked by how
//! little is lost with a pod: unscheduled, pending, not ready, lately ready, restarted, young.
// k8s: pkg/controller/job/job_controller.go activePodsForRemoval

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use pintle_controllers_core::kinds::{Job, Pod};

use super::pods::{JobPod, completions, is_indexed};

/// The pods to delete: surplus ones of indexes, and more up to `at_least` in all.
pub(super) fn pods_to_remove(job: &Job, active: &[JobPod], at_least: usize) -> Vec<JobPod> {
    let (mut removed, mut left) = match is_indexed(job) {
        true => split_repeated_indexes(active, completions(job)),
        false => (Vec::new(), active.to_vec()),
    };
    if removed.len() < at_least {
        left.sort_by_key(|pod| rank(&pod.facts));
        left.truncate(at_least - removed.len());
        removed.append(&mut left);
    }
    removed
}

/// Pods that are surplus by their index, and the others.
// k8s: pkg/controller/job/indexed_job_utils.go appendDuplicatedIndexPodsForRemoval
fn split_repeated_indexes(active: &[JobPod], completions: i64) -> (Vec<JobPod>, Vec<JobPod>) {
    let (mut removed, mut left) = (Vec::new(), Vec::new());
    let mut by_index = BTreeMap::<i64, Vec<JobPod>>::new();
    let mut beyond = Vec::new();
    for pod in active {
        match pod.index {
            None => removed.push(pod.clone()),
            Some(index) if index >= completions => beyond.push(pod.clone()),
            Some(index) => by_index.entry(index).or_default().push(pod.clone()),
        }
    }
    for mut pods in by_index.into_values() {
        pods.sort_by_key(|pod| rank(&pod.facts));
        left.extend(pods.pop());
        removed.append(&mut pods);
    }
    // Pods beyond the completions, by index.
    beyond.sort_by_key(|pod| pod.index);
    removed.append(&mut beyond);
    (removed, left)
}

/// The deletion rank of a pod; the lowest rank is deleted first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_assigned: bool,
    phase: u8,
    is_ready: bool,
    ready: Option<Reverse<Timestamp>>,
    restarts: Reverse<i32>,
    sidecar_restarts: Reverse<i32>,
    created: Option<Reverse<Timestamp>>,
}

// k8s: pkg/controller/controller_utils.go ActivePods
fn rank(pod: &Pod) -> Rank {
    let ready = pod.condition("Ready").filter(|ready| &*ready.status == "True");
    let (status, sidecars) = (&pod.status, &pod.spec.sidecars);
    let restarts = status.container_statuses.iter().map(|container| container.restart_count);
    let inits = status.init_container_statuses.iter();
    let sidecar_restarts = inits
        .filter(|container| sidecars.contains(&container.name))
        .map(|container| container.restart_count);
    Rank {
        is_assigned: !pod.spec.node_name.is_empty(),
        phase: match &*status.phase {
            "Unknown" => 1,
            "Running" => 2,
            _ => 0,
        },
        is_ready: ready.is_some(),
        ready: ready.and_then(|ready| ready.last_transition_time).map(Reverse),
        restarts: Reverse(restarts.max().unwrap_or(0)),
        sidecar_restarts: Reverse(sidecar_restarts.max().unwrap_or(0)),
        created: pod.metadata.creation_timestamp.map(Reverse),
    }
}
