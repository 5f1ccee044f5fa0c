//! Binding conditions: are the devices of a claim ready on their node?
//!
//! Input: claims with devices, the time. Output: yes, not yet, or why never. Owner: pure functions.
// k8s: dynamicresources.go isClaimReadyForBinding, isClaimTimeout

use std::time::{Duration, SystemTime};

use k8s_openapi::api::resource::v1::{
    AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaim,
};

use super::known::allocation;

/// Progress of preparing devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    Waits,
    /// The driver reported a failure condition.
    Failed(String),
    /// The claim or its allocation no longer exists.
    Gone(String),
}

fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let devices = allocation(claim).and_then(|allocation| allocation.devices.as_ref());
    devices.into_iter().flat_map(|devices| devices.results.iter().flatten())
}

/// Returns the binding conditions of a device.
fn conditions(device: &DeviceRequestAllocationResult) -> &[String] {
    device.binding_conditions.as_deref().unwrap_or_default()
}

/// Do any of the claim's devices have binding conditions?
pub(crate) fn has_conditions(claim: &ResourceClaim) -> bool {
    results(claim).any(|device| !conditions(device).is_empty())
}

/// Returns the driver of each device of a claim, and true if the device has binding conditions.
pub(crate) fn drivers(claim: &ResourceClaim) -> impl Iterator<Item = (String, bool)> {
    results(claim).map(|device| (device.driver.clone(), !conditions(device).is_empty()))
}

fn status_of<'a>(
    claim: &'a ResourceClaim,
    device: &DeviceRequestAllocationResult,
) -> Option<&'a AllocatedDeviceStatus> {
    let all = claim.status.as_ref()?.devices.as_ref()?;
    let id = (&device.driver, &device.pool, &device.device);
    all.iter().find(|status| (&status.driver, &status.pool, &status.device) == id)
}

/// Returns the readiness of a claim's devices; a claim without devices waits for them.
pub(crate) fn readiness(claim: &ResourceClaim) -> Readiness {
    if allocation(claim).is_none() {
        return Readiness::Waits;
    }
    for device in results(claim).filter(|device| !conditions(device).is_empty()) {
        let Some(status) = status_of(claim, device) else { return Readiness::Waits };
        let reported = status.conditions.as_deref().unwrap_or_default();
        let is_true =
            |kind: &String| reported.iter().find(|c| c.type_ == *kind && c.status == "True");
        let failures = device.binding_failure_conditions.iter().flatten();
        if let Some(failed) = failures.filter_map(is_true).next() {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            let (reason, message) = (&failed.reason, &failed.message);
            return Readiness::Failed(format!(
                "device binding failed: claim={name}, reason={reason}, message={message:?}"
            ));
        }
        if conditions(device).iter().any(|kind| is_true(kind).is_none()) {
            return Readiness::Waits;
        }
    }
    Readiness::Ready
}

/// Has the claim waited for its devices for too long?
fn is_late(claim: &ResourceClaim, most: Duration, now: SystemTime) -> bool {
    time_left(claim, most, now) == Some(None)
}

/// Returns the time left to wait for its devices, counted from their allocation; `Some(None)` once
/// that is over, `None` for a claim that has nothing to wait for.
pub(crate) fn time_left(
    claim: &ResourceClaim,
    most: Duration,
    now: SystemTime,
) -> Option<Option<Duration>> {
    let since = allocation(claim)?.allocation_timestamp.as_ref()?;
    let until = SystemTime::from(since.0).checked_add(most)?;
    let waits = results(claim).any(|device| device.binding_conditions.is_some());
    waits.then(|| until.duration_since(now).ok())
}

/// Should the claim be allocated other devices?
pub(super) fn is_broken(claim: &ResourceClaim, most: Duration, now: SystemTime) -> bool {
    match readiness(claim) {
        Readiness::Ready => false,
        Readiness::Waits => is_late(claim, most, now),
        Readiness::Failed(_) | Readiness::Gone(_) => true,
    }
}
