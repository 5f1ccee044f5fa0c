//! Durations of the lease that a leader holds.
//!
//! Input: settings. Output: [`Timing`], which `leader` of the client checks and keeps to. Owner:
//! plain data.

use std::time::Duration;

/// Duration of a lease, how long its holder tries to renew it, how often a candidate tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Others take over after this time without a change (`leaseDuration`).
    pub lease: Duration,
    /// The holder gives up after this time without a successful renewal (`renewDeadline`).
    pub renew: Duration,
    /// Wait between two attempts (`retryPeriod`).
    pub retry: Duration,
}

impl Default for Timing {
    /// The timings of Kubernetes' components.
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}
