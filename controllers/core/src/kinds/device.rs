//! Claims of devices, and classes of devices.

use pintle_api_types::symbol::Symbol;
use serde::Deserialize;

use super::facts;
use crate::meta::{Meta, or_default};

/// A ResourceClaim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    /// Its metadata.
    pub metadata: Meta,
    /// The desired state.
    pub spec: ResourceClaimSpec,
}
facts!(ResourceClaim, RESOURCE_CLAIMS, whole: false);

/// The spec of a ResourceClaim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaimSpec {
    /// The devices.
    pub devices: DeviceClaim,
}

/// The devices that are wanted.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceClaim {
    /// The requests.
    #[serde(deserialize_with = "or_default")]
    pub requests: Box<[DeviceRequest]>,
}

/// A request of devices: exactly these, or the first that are available.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeviceRequest {
    /// Exactly these.
    pub exactly: Option<ExactRequest>,
    /// One of these.
    #[serde(deserialize_with = "or_default")]
    pub first_available: Box<[ExactRequest]>,
}

/// Devices of one class.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExactRequest {
    /// The class.
    pub device_class_name: Symbol,
    /// `ExactCount` or `All`.
    pub allocation_mode: Symbol,
    /// How many with `ExactCount`.
    pub count: i64,
}

/// A DeviceClass.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceClass {
    /// Its metadata.
    pub metadata: Meta,
    /// The spec.
    pub spec: DeviceClassSpec,
}
facts!(DeviceClass, DEVICE_CLASSES, whole: false);

/// The spec of a DeviceClass.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeviceClassSpec {
    /// The extended resource by which pods ask for it.
    pub extended_resource_name: Option<Symbol>,
}
