//! Devices (DRA): slices of drivers, claims of pods, and allocation.
//!
//! ```text
//!   slices, classes, rules ─> offer ─┐
//!   claims ─> known ────────────────┼─ look(pod) ─> DeviceClaims ─row─> allocate (search, answer)
//!                 ^           │                                       │
//!                 └─ give, take back: what is decided and not written yet
//!                                                                     └─> allocatable: the node's share
//! ```
// k8s: pkg/scheduler/framework/plugins/dynamicresources

pub(crate) mod allocatable;
#[cfg(test)]
mod allocatable_tests;
pub(crate) mod allocate;
#[cfg(any(test, feature = "testing"))]
pub mod alone;
mod answer;
mod capacity;
mod constraint;
pub mod extended;
pub(crate) mod groups;
pub mod known;
#[cfg(test)]
mod list_tests;
pub mod look;
pub(crate) mod offer;
mod pools;
pub(crate) mod ready;
pub mod request;
pub(crate) mod row;
#[cfg(test)]
mod rule_tests;
pub mod rules;
mod search;
#[cfg(test)]
mod selector_cost_tests;
pub(crate) mod selectors;
#[cfg(test)]
mod tests;
pub(crate) mod usage;
pub(crate) mod users;

/// Feature gates of DRA that are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceGates {
    /// DeviceTaintRules apply (DRADeviceTaintRules).
    pub taint_rules: bool,
    /// Attributes may be lists (DRAListTypeAttributes).
    pub lists: bool,
    /// Devices may take allocatable resources of their node (DRANodeAllocatableResources).
    pub allocatable: bool,
}
