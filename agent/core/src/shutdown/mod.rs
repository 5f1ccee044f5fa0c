//! Graceful shutdown of the node: when each pod ends, and with which grace period.
//!
//! ```text
//!   Config ─> windows ─> Notice ─PodsInput::Shutdown─> order ─Command::Shutdown─> Record (a file,
//!                                                        │                        Ready, the lock)
//!                                                        └─> which pods end now, with which grace
//! ```
//! Pure. Pods end in groups by their priority, the least important first; a group has as many
//! seconds as the configuration gives it, a pod the less of these and its own grace period. A group
//! is over when nothing of its pods is left to unmount, or when its time is up. Bounds: one shutdown
//! at a time, as many groups as are configured.
// k8s: pkg/kubelet/nodeshutdown/nodeshutdown_manager.go

mod order;
#[cfg(test)]
mod order_tests;
mod record;
mod windows;

use serde::{Deserialize, Serialize};

use crate::status::{self, PodVerdict};
pub use order::Shutdown;
pub use record::{RecordError, STATE_FILE, ShutdownRecord};
pub use windows::{Window, group_of, of_config, total};

/// Reason of pods that ended because of it.
pub const REASON: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Why the node is not ready meanwhile.
pub const NOT_READY: &str = "node is shutting down";
/// Reason of the node's events when it begins, and when it is given up.
pub const EVENT: &str = "Shutdown";

/// A notice of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// It is about to shut down.
    Begins {
        /// The groups, by ascending priority.
        windows: Vec<Window>,
        /// How far an agent before this one came.
        resumed: Option<ShutdownRecord>,
    },
    /// It stays up.
    Cancelled,
}

/// The status of a pod that ended because of it.
pub fn verdict() -> PodVerdict {
    PodVerdict {
        phase: status::FAILED.to_owned(),
        reason: REASON.to_owned(),
        message: MESSAGE.to_owned(),
    }
}
