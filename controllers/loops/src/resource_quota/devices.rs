//! Usage of a quota by ResourceClaims.
//!
//! A pod that asks for an extended resource gets a claim; the part of the claim that its pod is
//! charged for already is not charged twice.
// k8s: pkg/quota/v1/evaluator/core/resource_claims.go

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use jiff::Timestamp;
use pintle_api_types::quantity::{Amount, Amounts};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{ExactRequest, Pod, ResourceClaim};
use pintle_controllers_core::meta::Meta;
use pintle_controllers_core::tables::Tables;

use super::evaluator::{count_name, is_extended};
use super::{add, usage};

/// Starts the extended resource that every class has.
// k8s: staging/src/k8s.io/api/resource/v1/types.go ResourceDeviceClassPrefix
pub(super) const IMPLICIT: &str = "deviceclass.resource.kubernetes.io/";
/// Ends the name under which devices of a class are counted.
// k8s: staging/src/k8s.io/api/core/v1/types.go ResourceClaimsPerClass
const PER_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
const ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";
/// Devices that a claim for all of them may get.
// k8s: staging/src/k8s.io/api/resource/v1/types.go AllocationResultsMaxSize
const DEVICES_MAX: i64 = 32;

/// Which extended resources classes stand for.
// k8s: staging/src/k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache
#[derive(Debug, Default, PartialEq)]
pub(super) struct DeviceClasses {
    classes: BTreeSet<String>,
    resources: BTreeMap<String, String>,
}

impl DeviceClasses {
    pub(super) fn of(tables: &Tables) -> Self {
        let mut known = Self::default();
        for class in tables.device_classes.iter() {
            let name = class.metadata.name.to_string();
            if let Some(resource) = &class.spec.extended_resource_name {
                known.resources.insert(name.clone(), resource.as_str().to_owned());
            }
            known.classes.insert(name);
        }
        known
    }

    fn resource(&self, class: &str) -> Option<&str> {
        self.resources.get(class).map(String::as_str)
    }

    /// Some class stands for the resource.
    fn has_resource(&self, resource: &str) -> bool {
        let implicit = resource.strip_prefix(IMPLICIT);
        implicit.is_some_and(|class| self.classes.contains(class))
            || self.resources.values().any(|known| known == resource)
    }
}

/// A name in a quota counts devices.
// k8s: resource_claims.go MatchingResources
pub(super) fn matches(name: &str, classes: &DeviceClasses) -> bool {
    if name == count_name(pintle_api_types::kind::RESOURCE_CLAIMS) || name.ends_with(PER_CLASS) {
        return true;
    }
    depends_on_classes(name, classes)
}

/// A name in a quota counts devices only because some class stands for it.
pub(super) fn depends_on_classes(name: &str, classes: &DeviceClasses) -> bool {
    let Some(resource) = name.strip_prefix("requests.") else { return false };
    let implicit = resource.strip_prefix(IMPLICIT);
    implicit.is_some_and(|class| classes.resource(class).is_some())
        || (is_extended(name) && classes.has_resource(resource))
}

/// The usage of a claim; `claims` and `pods` are those of its namespace.
// k8s: resource_claims.go Usage
pub(super) fn usage(
    claim: &ResourceClaim,
    claims: &[Rc<KeptObject<ResourceClaim>>],
    pods: &[Rc<KeptObject<Pod>>],
    classes: &DeviceClasses,
    now: Timestamp,
) -> Amounts {
    let mut devices = Amounts::new();
    for request in &claim.spec.devices.requests {
        let mut most = Amounts::new();
        for choice in request.first_available.iter() {
            let known = most.entry(class_name(choice)).or_insert(Amount::ZERO);
            *known = (*known).max(devices_of(choice));
        }
        most.retain(|_, amount| !amount.is_zero());
        if let Some(exact) = request.exactly.as_ref().filter(|_| most.is_empty()) {
            most.insert(class_name(exact), devices_of(exact));
        }
        add(&mut devices, &most);
    }
    let charged = owner(claim, claims, pods).map(|pod| usage::pod_usage(pod, now));
    let extended = extended(&devices, &charged.unwrap_or_default(), classes);
    devices.extend(extended);
    let count = count_name(pintle_api_types::kind::RESOURCE_CLAIMS);
    devices.insert(count, Amount::parse("1").expect("a number is a quantity"));
    devices
}

fn class_name(request: &ExactRequest) -> String {
    format!("{}{PER_CLASS}", &*request.device_class_name)
}

fn devices_of(request: &ExactRequest) -> Amount {
    let count = match &*request.allocation_mode {
        "ExactCount" => request.count,
        // The worst case.
        "All" => DEVICES_MAX,
        _ => 0,
    };
    Amount::parse(&count.to_string()).expect("a number is a quantity")
}

/// The devices under the names of extended resources, without those that the pod is charged for.
// k8s: resource_claims.go addExtendedResourceQuota
fn extended(devices: &Amounts, charged: &Amounts, classes: &DeviceClasses) -> Amounts {
    let mut extended = Amounts::new();
    for (name, amount) in devices {
        let Some(class) = name.strip_suffix(PER_CLASS).filter(|class| !class.is_empty()) else {
            continue;
        };
        let explicit = classes.resource(class);
        for resource in [Some(&*format!("{IMPLICIT}{class}")), explicit].into_iter().flatten() {
            extended.insert(format!("requests.{resource}"), *amount);
        }
    }
    let left = extended.into_iter().map(|(name, amount)| {
        let left = charged.get(&name).map_or(amount, |charged| amount.minus(*charged));
        (name, left)
    });
    left.filter(|(_, left)| !left.is_zero() && !left.is_negative()).collect()
}

/// The pod that has the claim for its extended resources.
// k8s: resource_claims.go getVerifiedPodUsage
fn owner<'a>(
    claim: &ResourceClaim,
    claims: &[Rc<KeptObject<ResourceClaim>>],
    pods: &'a [Rc<KeptObject<Pod>>],
) -> Option<&'a Pod> {
    let meta = &claim.metadata;
    let is_pods = |meta: &Meta| {
        let controller = meta.controller()?;
        let is_pod = (&*controller.kind, &*controller.api_version) == ("Pod", "v1");
        let is_extended = meta.annotation(ANNOTATION) == Some("true");
        (is_pod && is_extended).then(|| controller.clone())
    };
    let controller = is_pods(meta)?;
    let pod = pods.iter().find(|pod| *pod.metadata.name == *controller.name)?;
    if pod.metadata.uid != controller.uid {
        return None;
    }
    match &pod.charge.extended_claim {
        Some(name) => (**name == *meta.name).then_some(pod),
        None => {
            // The pod does not name its claim yet: its first one is it.
            let age = |meta: &Meta| (meta.creation_timestamp, meta.name.clone());
            let is_earlier = |other: &Rc<KeptObject<ResourceClaim>>| {
                let other = &other.metadata;
                is_pods(other).is_some_and(|owner| owner.uid == controller.uid)
                    && age(other) < age(meta)
            };
            (!claims.iter().any(is_earlier)).then_some(pod)
        }
    }
}
