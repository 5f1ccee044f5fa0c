//! Node-pressure eviction: thresholds, reclaiming, ranking, victims.
//!
//! ```text
//!   threshold ─> met ────────────┐
//!   observed ──┘                 v
//!       rank, local, sight ─> evictor ─> message ─> (worker/eviction)
//!                                └─> report
//! ```
//! | file | decides |
//! |---|---|
//! | `signal` | the resources that a node can run out of |
//! | `observed` | readings of the node, and usage of pods |
//! | `threshold` | the required amount of each resource |
//! | `met` | met thresholds, since when, and the pressure conditions |
//! | `rank`, `local` | the order of eviction; pods above a limit of their own |
//! | `sight` | decides when usage figures suffice to rank |
//! | `evictor` | the next step: observe, reclaim, rank, evict, wait |
//! | `step` | what a decision reads, and the actions that follow |
//! | `message` | texts of its event and status |
//! | `report` | the report for users |

pub mod evictor;
pub mod local;
pub mod message;
pub mod met;
pub mod observed;
pub mod rank;
pub mod report;
pub mod sight;
pub mod signal;
pub mod step;
pub mod threshold;

pub use evictor::Evictor;
pub use threshold::Settings;

/// Reason of a victim's status and event.
// k8s: pkg/kubelet/eviction/helpers.go Reason
pub const REASON: &str = "Evicted";
