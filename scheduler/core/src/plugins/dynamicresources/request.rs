//! Requests of a claim, and alternatives of a request, as one type.
//!
//! Input: claims of the API. Output: the fields of one request or alternative. Owner: pure
//! functions.

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClaim, DeviceRequest, DeviceSelector, DeviceSubRequest,
    DeviceTaint, DeviceToleration, ExactDeviceRequest, ResourceClaim,
};
use pintle_api_types::node_match::{TaintFields, TolerationFields};

/// A request, or an alternative of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedDevice<'a> {
    pub(super) name: &'a str,
    /// The request of which this is an alternative.
    pub(super) parent: Option<&'a str>,
    pub(super) class: &'a str,
    pub(super) mode: &'a str,
    pub(super) count: i64,
    /// Admin access: it monitors devices, even those in use.
    pub(super) is_admin: bool,
    pub(super) selectors: &'a [DeviceSelector],
    pub(super) tolerations: &'a Option<Vec<DeviceToleration>>,
    pub(super) capacity: Option<&'a CapacityRequirements>,
}

/// Allocation mode: a number of devices.
pub(super) const EXACT: &str = "ExactCount";
/// Allocation mode: all devices that fit.
pub(super) const ALL: &str = "All";

impl<'a> AskedDevice<'a> {
    fn exact(request: &'a DeviceRequest, exact: &'a ExactDeviceRequest) -> Self {
        Self {
            name: &request.name,
            parent: None,
            class: &exact.device_class_name,
            mode: exact.allocation_mode.as_deref().unwrap_or(EXACT),
            count: exact.count.unwrap_or(1),
            is_admin: exact.admin_access == Some(true),
            selectors: exact.selectors.as_deref().unwrap_or_default(),
            tolerations: &exact.tolerations,
            capacity: exact.capacity.as_ref(),
        }
    }

    fn alternative(request: &'a DeviceRequest, sub: &'a DeviceSubRequest) -> Self {
        Self {
            name: &sub.name,
            parent: Some(&request.name),
            class: &sub.device_class_name,
            mode: sub.allocation_mode.as_deref().unwrap_or(EXACT),
            count: sub.count.unwrap_or(1),
            is_admin: false,
            selectors: sub.selectors.as_deref().unwrap_or_default(),
            tolerations: &sub.tolerations,
            capacity: sub.capacity.as_ref(),
        }
    }

    /// Returns the alternatives of a request, best first; the request itself if it has none.
    pub(super) fn all(request: &'a DeviceRequest) -> Vec<Self> {
        let subs = request.first_available.iter().flatten();
        let subs: Vec<Self> = subs.map(|sub| Self::alternative(request, sub)).collect();
        match &request.exactly {
            Some(exact) if subs.is_empty() => vec![Self::exact(request, exact)],
            _ => subs,
        }
    }

    /// Returns the request's name as results report it (`parent/sub`).
    pub(super) fn full_name(&self) -> String {
        let parent = self.parent.map(|parent| format!("{parent}/"));
        format!("{}{}", parent.unwrap_or_default(), self.name)
    }

    /// Returns the name of the request, and of the alternative.
    pub(super) fn names(&self) -> (&'a str, Option<&'a str>) {
        self.parent.map_or((self.name, None), |parent| (parent, Some(self.name)))
    }

    /// Does one of the device's taints keep the request off?
    // k8s: structured/internal/incubating/allocator_incubating.go taintPreventsAllocation
    pub(super) fn is_kept_off<'t>(&self, taints: impl Iterator<Item = &'t DeviceTaint>) -> bool {
        let is_hard =
            |taint: &&DeviceTaint| taint.effect == "NoSchedule" || taint.effect == "NoExecute";
        let tolerated = |taint: &DeviceTaint| {
            self.tolerations.iter().flatten().any(|toleration| tolerates(toleration, taint))
        };
        taints.filter(is_hard).any(|taint| !tolerated(taint))
    }
}

// k8s: resourceclaim/devicetoleration.go ToleratesTaint
fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    fn text(text: &Option<String>) -> &str {
        text.as_deref().unwrap_or_default()
    }
    let toleration = TolerationFields {
        key: text(&toleration.key),
        operator: text(&toleration.operator),
        value: text(&toleration.value),
        effect: text(&toleration.effect),
    };
    let (value, effect) = (text(&taint.value), &*taint.effect);
    toleration.tolerates(TaintFields { key: &taint.key, value, effect })
}

/// Returns the device part of a claim's spec.
pub(super) fn device_claim(claim: &ResourceClaim) -> Option<&DeviceClaim> {
    claim.spec.devices.as_ref()
}

/// Returns the requests of a claim.
pub(super) fn requests(claim: &ResourceClaim) -> &[DeviceRequest] {
    device_claim(claim).and_then(|devices| devices.requests.as_deref()).unwrap_or_default()
}

/// Returns namespace and name of a claim.
pub fn name(claim: &ResourceClaim) -> String {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    let (namespace, name) = (part(&claim.metadata.namespace), part(&claim.metadata.name));
    format!("{namespace}/{name}")
}
