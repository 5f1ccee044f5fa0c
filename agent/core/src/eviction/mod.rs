//! Who has to go when the node runs out of something.
//!
//! ```text
//!   signal     what a node can run out of
//!   observed   how much of it there is, and what pods take
//!   threshold  how much there has to be
//! ```

pub mod observed;
pub mod signal;
pub mod threshold;

pub use threshold::Settings;

/// Reason of a victim's status and event.
// k8s: pkg/kubelet/eviction/helpers.go Reason
pub const REASON: &str = "Evicted";
