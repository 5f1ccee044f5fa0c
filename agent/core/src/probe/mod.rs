//! Probes: targets, schedule, and the meaning of results.

pub mod adopt;
pub mod plan;
pub mod target;
#[doc(hidden)]
pub mod testing;

use serde::{Deserialize, Serialize};

/// Which probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProbeKind {
    /// Restarts the container.
    Liveness,
    /// Takes it out of service.
    Readiness,
    /// Holds the other two back.
    Startup,
}
