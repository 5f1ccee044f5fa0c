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
//! | `signal` | what a node can run out of |
//! | `observed` | how much of it there is, and what pods take |
//! | `threshold` | how much there has to be |
//! | `met` | whether there is less, since when, and what the node says of it |
//! | `rank`, `local` | the order of eviction; pods above a limit of their own|
//! | `sight` | whether enough is known of what pods take |
//! | `evictor` | what is done next: look, reclaim, weigh, evict, wait |
//! | `message` | texts of its event and status |
//! | `report` | what people read of it later |

pub mod evictor;
pub mod local;
pub mod message;
pub mod met;
pub mod observed;
pub mod rank;
pub mod report;
pub mod sight;
pub mod signal;
pub mod threshold;

pub use evictor::Evictor;
pub use threshold::Settings;

/// Reason of a victim's status and event.
// k8s: pkg/kubelet/eviction/helpers.go Reason
pub const REASON: &str = "Evicted";
