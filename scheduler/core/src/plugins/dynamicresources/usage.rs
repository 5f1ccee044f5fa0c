//! Devices in use.
//!
//! Input: allocations of claims, added and removed. Output: devices in exclusive use, and the used
//! capacity of shared ones. Owner: the devices; pure. Bounds: 32 devices a claim.
// k8s: pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequestAllocationResult};
use pintle_api_types::quantity::Amount;

use super::offer::{Counters, DeviceId, amount};

/// Allocated devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    /// Number of claims in exclusive use of a device: more than one only by mistake.
    whole: HashMap<DeviceId, usize>,
    parts: HashMap<DeviceId, UsedParts>,
}

/// Parts of a shared device that claims use.
#[derive(Clone, Debug, Default)]
pub(super) struct UsedParts {
    claims: usize,
    pub(super) used: Counters,
}

impl UsedParts {
    /// Adds a claim's parts.
    pub(super) fn add(&mut self, used: &BTreeMap<String, Amount>) {
        self.claims += 1;
        for (name, amount) in used {
            let sum = self.used.get(name).map_or(*amount, |sum| *sum + *amount);
            self.used.insert(name.clone(), sum);
        }
    }

    /// Removes one claim's share; true if it was the last one.
    pub(super) fn remove(&mut self, used: &BTreeMap<String, Amount>) -> bool {
        self.claims = self.claims.saturating_sub(1);
        for (name, amount) in used {
            if let Some(sum) = self.used.get_mut(name) {
                *sum = sum.minus(*amount);
            }
        }
        self.claims == 0
    }
}

/// Returns the devices that an allocation uses: not those of admin access.
pub(super) fn results(
    allocation: &AllocationResult,
) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let all = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    all.filter(|result| result.admin_access != Some(true))
}

fn id(result: &DeviceRequestAllocationResult) -> DeviceId {
    DeviceId {
        driver: result.driver.as_str().into(),
        pool: result.pool.as_str().into(),
        device: result.device.as_str().into(),
    }
}

fn consumed(result: &DeviceRequestAllocationResult) -> Counters {
    let all = result.consumed_capacity.iter().flatten();
    all.map(|(name, quantity)| (name.clone(), amount(quantity))).collect()
}

impl Usage {
    /// A claim has these.
    pub(crate) fn add(&mut self, allocation: &AllocationResult) {
        for result in results(allocation) {
            match result.share_id {
                Some(_) => self.parts.entry(id(result)).or_default().add(&consumed(result)),
                None => *self.whole.entry(id(result)).or_default() += 1,
            }
        }
    }

    /// Removes an allocation.
    pub(crate) fn remove(&mut self, allocation: &AllocationResult) {
        for result in results(allocation) {
            let id = id(result);
            if result.share_id.is_some() {
                if self.parts.get_mut(&id).is_some_and(|parts| parts.remove(&consumed(result))) {
                    self.parts.remove(&id);
                }
            } else if let Some(count) = self.whole.get_mut(&id) {
                *count -= 1;
                if *count == 0 {
                    self.whole.remove(&id);
                }
            }
        }
    }

    /// Is the device in exclusive use?
    pub(super) fn is_taken(&self, device: &DeviceId) -> bool {
        self.whole.contains_key(device)
    }

    /// Returns the used parts of a shared device; `None` if it is unused.
    pub(super) fn parts(&self, device: &DeviceId) -> Option<&UsedParts> {
        self.parts.get(device)
    }

    /// Is the device in use, whole or in part?
    pub(super) fn is_used(&self, device: &DeviceId) -> bool {
        self.is_taken(device) || self.parts.contains_key(device)
    }
}
