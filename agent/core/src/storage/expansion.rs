//! Expansion on the node: whether a claim allows it now, and what its status says afterwards.
//!
//! Pure. Input: a claim that was just read, the size of its PersistentVolume, and how the call to the
//! driver ended. Output: what to call, and strategic merge patches of the claim's status. With a
//! resizer that writes `allocatedResources`, the claim says when it is the node's turn; with an older
//! one the volume is expanded whenever it is larger than the claim.
// k8s: pkg/volume/util/operationexecutor/node_expander.go, operation_generator.go
// checkForRecoveryFromExpansion, legacyCallNodeExpandOnPlugin; pkg/volume/util/resize_util.go

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimStatus};
use serde_json::{Value, json};

use super::csi::{ClaimSize, STORAGE, bytes, claim_capacity};
use super::{Failure, Problem};
use crate::types::UnixNanos;

/// Says on a claim that the resizer has done everything.
const NODE_EXPANSION_NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
/// The condition of a claim whose expansion failed on a node.
const NODE_RESIZE_ERROR: &str = "NodeResizeError";
/// The condition of a claim that waits for its node.
const RESIZE_PENDING: &str = "FileSystemResizePending";
/// Conditions that go with the end of an expansion.
const RESIZE_CONDITIONS: [&str; 4] =
    [RESIZE_PENDING, "Resizing", "ControllerResizeError", NODE_RESIZE_ERROR];
/// Statuses of an expansion.
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";

/// What a node does about a claim that is smaller than its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing: the claim has the size.
    Done,
    /// Nothing yet: it is not the node's turn, or the expansion is infeasible.
    Later,
    /// The driver is called.
    Call(Order),
}

/// An expansion that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The size, as the claim's status gets it.
    pub size: String,
    /// The claim says how far its expansion is.
    pub has_status: bool,
    /// The claim has the size already: another node has written it.
    pub is_claimed: bool,
    /// The claim asks for another size by now: a final refusal makes this expansion infeasible, so
    /// that the resizer turns to the other one.
    pub is_outdated: bool,
}

impl Order {
    /// Bytes that the driver is told.
    pub fn bytes(&self) -> u64 {
        bytes(&self.size).unwrap_or(0)
    }
}

/// Why an expansion was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What it means for the claim.
    pub kind: RefusalKind,
    /// For people.
    pub text: String,
}

/// What a refusal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The driver cannot be reached, or may still be at it: nothing is known.
    Open,
    /// The driver has no NodeExpandVolume.
    NotSupported,
    /// The driver does not expand a volume in use.
    InUse,
    /// The driver will never do it.
    Infeasible,
    /// It failed.
    Failed,
}

/// What becomes of an expansion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Patch of the claim's status.
    pub patch: Option<Value>,
    /// The pod and the claim get an event of success.
    pub is_success: bool,
    /// Why the volume is not in its full size.
    pub failure: Option<Failure>,
}

/// The event of a pod that has a volume read-only while it is to grow.
// k8s: pkg/volume/util/operationexecutor/operation_generator.go expandVolumeDuringMount
pub fn read_only_notice(name: &str, size: &ClaimSize) -> Option<String> {
    let why = "requested read-only file system";
    let is_smaller = size.claimed_bytes < size.volume_bytes();
    is_smaller.then(|| format!("MountVolume.NodeExpandVolume failed for volume {name:?} {why}"))
}

/// The event of an expansion that failed while a pod runs.
// k8s: pkg/volume/util/operationexecutor/operation_generator.go GenerateExpandInUseVolumeFunc
pub fn failed_in_use(name: &str, why: &str) -> String {
    format!("NodeExpandVolume.NodeExpandVolume failed for volume {name:?} : {why}")
}

/// The event of an expansion that failed before its pod starts.
// k8s: pkg/volume/util/operationexecutor/operation_generator.go GenerateMountVolumeFunc,
// GenerateMapVolumeFunc
pub fn failed_at_start(name: &str, is_block: bool, why: &str) -> String {
    let step = match is_block {
        true => "MapVolume.MarkVolumeAsMounted",
        false => "MountVolume.Setup",
    };
    format!("{step} failed while expanding volume for volume {name:?} : {why}")
}

/// Decides whether a volume is expanded now. `had_final_error`: the driver's last answer was final.
pub fn plan(claim: &PersistentVolumeClaim, size: &ClaimSize, had_final_error: bool) -> Plan {
    let spec = claim.spec.as_ref();
    let Some(status) = claim.status.as_ref() else { return Plan::Later };
    let claimed = capacity(status);
    let progress = progress(status);
    if progress.is_empty() && status.allocated_resources.is_none() {
        let is_claimed = claimed >= size.volume_bytes();
        let size = size.volume.clone();
        return Plan::Call(Order { size, has_status: false, is_claimed, is_outdated: false });
    }
    let allocated = status.allocated_resources.as_ref().and_then(|all| all.get(STORAGE));
    let size = allocated.map_or_else(|| "0".to_owned(), |quantity| quantity.0.clone());
    let to = bytes(&size).unwrap_or(0);
    let is_claimed = claimed >= to && progress.is_empty();
    let is_outdated = had_final_error && requested(claim) != to;
    let order = Order { size, has_status: true, is_claimed, is_outdated };
    let modes = spec.and_then(|spec| spec.access_modes.as_ref());
    let is_shared = modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteMany"));
    let annotations = claim.metadata.annotations.as_ref();
    let needs_node = !annotations.is_some_and(|all| all.contains_key(NODE_EXPANSION_NOT_REQUIRED));
    match progress {
        _ if is_claimed && is_shared && needs_node => Plan::Call(order),
        "" if is_claimed => Plan::Done,
        PENDING | IN_PROGRESS => Plan::Call(order),
        _ => Plan::Later,
    }
}

/// The patch that says that the node is at it; `None` where the claim says so already.
// k8s: resize_util.go MarkNodeExpansionInProgress
pub fn mark_begun(claim: &PersistentVolumeClaim, order: &Order) -> Option<Value> {
    let status = claim.status.as_ref()?;
    let is_needed = order.has_status && !order.is_claimed && progress(status) != IN_PROGRESS;
    is_needed.then(|| {
        let mut patch = versioned(claim);
        patch["status"]["allocatedResourceStatuses"] = json!({ STORAGE: IN_PROGRESS });
        patch
    })
}

/// What becomes of the claim and the volume after the call.
// k8s: node_expander.go expandOnPlugin
pub fn conclude(
    claim: &PersistentVolumeClaim,
    order: &Order,
    called: Result<(), Refusal>,
    now: UnixNanos,
) -> Verdict {
    let Err(refusal) = called else {
        let patch = (!order.is_claimed).then(|| finished(claim, &order.size));
        return Verdict { patch, is_success: true, failure: None };
    };
    let Refusal { kind, text } = refusal;
    let is_unneeded = !order.has_status || order.is_claimed;
    if kind == RefusalKind::NotSupported && is_unneeded {
        return Verdict::default();
    }
    let is_final = kind != RefusalKind::Open;
    let is_infeasible = kind == RefusalKind::Infeasible || (is_final && order.is_outdated);
    let patch = match order.has_status && is_final {
        true => failed(claim, &text, is_infeasible, now),
        false => None,
    };
    let problem = match kind {
        RefusalKind::InUse => Problem::InUse,
        RefusalKind::Open => Problem::Uncertain,
        _ => Problem::Final,
    };
    let failure = Some(Failure { problem, is_of_attachment: false, text });
    Verdict { patch, is_success: false, failure }
}

/// True when the claim may have another size than `known`, or is about to: its PersistentVolume has
/// to be read.
pub fn is_growing(claim: &PersistentVolumeClaim, known: &ClaimSize) -> bool {
    let Some(status) = claim.status.as_ref() else { return false };
    let claimed = capacity(status);
    let mut conditions = status.conditions.iter().flatten();
    claimed != known.claimed_bytes
        || !progress(status).is_empty()
        || requested(claim) > claimed
        || conditions.any(|condition| condition.type_ == RESIZE_PENDING)
}

fn capacity(status: &PersistentVolumeClaimStatus) -> u64 {
    claim_capacity(status).and_then(bytes).unwrap_or(0)
}

fn requested(claim: &PersistentVolumeClaim) -> u64 {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    requests.and_then(|all| bytes(&all.get(STORAGE)?.0)).unwrap_or(0)
}

fn progress(status: &PersistentVolumeClaimStatus) -> &str {
    let statuses = status.allocated_resource_statuses.as_ref();
    statuses.and_then(|all| all.get(STORAGE)).map_or("", String::as_str)
}

/// A patch that fails if the claim has changed.
fn versioned(claim: &PersistentVolumeClaim) -> Value {
    json!({ "metadata": { "resourceVersion": claim.metadata.resource_version } })
}

// k8s: resize_util.go MarkNodeExpansionFinishedWithRecovery, MarkFSResizeFinished
fn finished(claim: &PersistentVolumeClaim, size: &str) -> Value {
    let mut patch = versioned(claim);
    let status = claim.status.as_ref();
    let statuses = status.and_then(|status| status.allocated_resource_statuses.as_ref());
    let is_last = statuses.is_some_and(|all| all.keys().all(|key| key == STORAGE));
    patch["status"]["capacity"] = json!({ STORAGE: size });
    if is_last {
        patch["status"]["allocatedResourceStatuses"] = Value::Null;
    } else if statuses.is_some_and(|all| all.contains_key(STORAGE)) {
        patch["status"]["allocatedResourceStatuses"] = json!({ STORAGE: null });
    }
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let gone = conditions.into_iter().flatten().map(|condition| condition.type_.as_str());
    let gone = gone.filter(|kind| RESIZE_CONDITIONS.contains(kind));
    let gone: Vec<Value> = gone.map(|kind| json!({"$patch": "delete", "type": kind})).collect();
    if !gone.is_empty() {
        patch["status"]["conditions"] = Value::Array(gone);
    }
    patch
}

// k8s: resize_util.go MarkNodeExpansionInfeasible, MarkNodeExpansionFailedCondition
fn failed(
    claim: &PersistentVolumeClaim,
    why: &str,
    is_infeasible: bool,
    now: UnixNanos,
) -> Option<Value> {
    let mut status = serde_json::Map::new();
    if is_infeasible {
        let statuses = json!({ STORAGE: INFEASIBLE });
        status.insert("allocatedResourceStatuses".to_owned(), statuses);
    }
    let conditions = claim.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let is_told = conditions.any(|c| c.type_ == NODE_RESIZE_ERROR && c.status == "True");
    if !is_told {
        let condition = json!({
            "type": NODE_RESIZE_ERROR, "status": "True", "lastTransitionTime": now.to_rfc3339(),
            "message": format!("failed to expand pvc with {why}"),
        });
        status.insert("conditions".to_owned(), json!([condition]));
    }
    (!status.is_empty()).then(|| json!({ "status": status }))
}

#[cfg(test)]
#[path = "expansion_tests.rs"]
mod tests;
