//! Leader election on a Lease: one of several processes works, the others wait to take over.
//!
//! ```text
//!   Elector::acquire ──leads──> Elector::hold ──lost──> the process ends or acquires again
//!        │  LeaseTerm (pure)                            Elector::release: hand over at once
//!        └──────────── Lease ────────────┘
//! ```
//! Input: a client, a lock's name, an identity, timings. Output: when the process leads, when it no
//! longer does. A candidate that reads the lease of another holder waits a whole lease duration
//! from the moment at which it *saw* the last change, by its own monotonic clock: no two clocks are
//! compared. A holder that cannot renew stops before that can have passed, counted from when it
//! *began* the last renewal that was answered. Bounds: one request at a time, each within half the
//! renew deadline or `REQUEST_LEAST`.
// k8s: staging/src/k8s.io/client-go/tools/leaderelection/leaderelection.go

mod elector;
mod term;
#[cfg(test)]
mod tests;
mod watch;

use std::time::Duration;

pub use elector::Elector;
use pintle_api_types::lease::Timing;

/// Longest spread of the wait between two attempts to acquire, as a factor.
const JITTER: f64 = 1.2;
/// Least time limit of a request.
const REQUEST_LEAST: Duration = Duration::from_secs(1);
/// Time for the work to stop, before another process begins.
const STOP: Duration = Duration::from_secs(1);

/// Timings with which two processes could lead at once, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// A lease has whole seconds, at least one.
    #[error("leaseDuration must be at least 1s; the default is 15s")]
    LeaseTooShort,
    /// The holder must have stopped when others take over.
    #[error("leaseDuration must be longer than renewDeadline; the defaults are 15s and 10s")]
    RenewNotShorter,
    /// There must be time for a second attempt.
    #[error("renewDeadline must be longer than 1.2 times retryPeriod; the defaults are 10s and 2s")]
    RetryNotShorter,
    /// A candidate must pause between attempts.
    #[error("retryPeriod must be longer than zero; the default is 2s")]
    RetryZero,
}

// k8s: leaderelection.go NewLeaderElector
fn check(timing: Timing) -> Result<Timing, TimingError> {
    match timing {
        _ if timing.lease < Duration::from_secs(1) => Err(TimingError::LeaseTooShort),
        _ if timing.lease <= timing.renew => Err(TimingError::RenewNotShorter),
        _ if timing.retry.is_zero() => Err(TimingError::RetryZero),
        _ if timing.renew <= timing.retry.mul_f64(JITTER) => Err(TimingError::RetryNotShorter),
        good => Ok(good),
    }
}

/// Timeout of one request.
// k8s: staging/src/k8s.io/client-go/tools/leaderelection/resourcelock/interface.go NewFromKubeconfig
fn request_max(timing: Timing) -> Duration {
    (timing.renew / 2).max(REQUEST_LEAST)
}

/// How long a holder works after it began its last renewal: as long as upstream's, which counts
/// from the answer, unless another process may begin before that.
fn work_max(timing: Timing) -> Duration {
    (timing.renew + timing.retry).min(timing.lease.saturating_sub(STOP)).max(timing.renew)
}
