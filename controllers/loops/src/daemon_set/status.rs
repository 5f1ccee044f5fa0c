//! The status of a DaemonSet: counts of nodes by what their pod is like.
//!
//! Input: the set, nodes, and the pods of each node. Output: the counts, and the request that
//! replaces the status in the API server if they differ.
// k8s: pkg/controller/daemon/daemon_controller.go updateDaemonSetStatus, storeDaemonSetStatus

use std::rc::Rc;

use jiff::Timestamp;
use pintle_api_types::kind::DAEMON_SETS;
use pintle_controllers_core::common::node_match::NodeFit;
use pintle_controllers_core::common::status::{StatusRetry, replace_status};
use pintle_controllers_core::frame::{Transcript, TranscriptStop};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{DaemonSet, DaemonSetStatus, Node};
use serde_json::Value;

use super::nodes::{Placement, PodsByNode, sort_by_age};
use super::template::{is_updated, template_generation};

/// How often a refused status is sent again.
const RETRIES_MAX: u32 = 1;

/// The nodes of the cluster with the set's pods on them.
#[derive(Clone, Copy)]
pub(super) struct DaemonCluster<'a> {
    /// All nodes.
    pub(super) nodes: &'a [Rc<KeptObject<Node>>],
    /// The pods of the set.
    pub(super) pods: &'a PodsByNode,
}

/// The status of the set as it is now.
pub(super) fn count(
    set: &DaemonSet,
    fit: &NodeFit,
    hash: &str,
    cluster: DaemonCluster<'_>,
    now: Timestamp,
) -> DaemonSetStatus {
    let generation = template_generation(set);
    let mut status = DaemonSetStatus {
        observed_generation: set.metadata.generation,
        collision_count: set.status.collision_count,
        ..DaemonSetStatus::default()
    };
    for node in cluster.nodes {
        let mut pods = cluster.pods.get(&*node.metadata.name).cloned().unwrap_or_default();
        let should_run = Placement::of(fit, node) == Placement::Run;
        if !should_run {
            status.number_misscheduled += i32::from(!pods.is_empty());
            continue;
        }
        status.desired_number_scheduled += 1;
        sort_by_age(&mut pods);
        let Some(pod) = pods.first() else { continue };
        status.current_number_scheduled += 1;
        if pod.is_ready() {
            status.number_ready += 1;
            let is_available = pod.is_available(set.spec.min_ready_seconds.into(), now);
            status.number_available += i32::from(is_available);
        }
        status.updated_number_scheduled += i32::from(is_updated(pod, hash, generation));
    }
    status.number_unavailable = status.desired_number_scheduled - status.number_available;
    status
}

/// Writes a status that differs from the one of the set.
///
/// # Errors
/// When the API server refuses it twice.
pub(super) fn write(
    set: &DaemonSet,
    whole: &Value,
    status: &DaemonSetStatus,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let known =
        DaemonSetStatus { observed_generation: status.observed_generation, ..set.status.clone() };
    let is_observed = set.status.observed_generation >= set.metadata.generation;
    if known == *status && is_observed {
        return Ok(());
    }
    let retry = StatusRetry::Refusals(RETRIES_MAX);
    let edit = |known: &mut Value| fill(known, status);
    replace_status(DAEMON_SETS, whole.clone(), retry, edit, transcript)?;
    Ok(())
}

/// Sets the counts; conditions and the collision count stay.
fn fill(known: &mut Value, status: &DaemonSetStatus) {
    known["observedGeneration"] = status.observed_generation.into();
    for (name, count) in [
        ("desiredNumberScheduled", status.desired_number_scheduled),
        ("currentNumberScheduled", status.current_number_scheduled),
        ("numberMisscheduled", status.number_misscheduled),
        ("numberReady", status.number_ready),
    ] {
        known[name] = count.into();
    }
    let fields = known.as_object_mut().expect("a field was set");
    for (name, count) in [
        ("updatedNumberScheduled", status.updated_number_scheduled),
        ("numberAvailable", status.number_available),
        ("numberUnavailable", status.number_unavailable),
    ] {
        match count {
            0 => drop(fields.remove(name)),
            _ => drop(fields.insert(name.to_owned(), count.into())),
        }
    }
}
