//! The health of a leader: a lease that is renewed too late is a failed check.
//!
//! Input: renewals, from the lease's thread. Output: the check `leaderElection`.
// k8s: staging/src/k8s.io/client-go/tools/leaderelection/healthzadaptor.go

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::serve::checks::CheckFault;

/// A leader that has not renewed its lease for so long after it expired is not healthy.
// k8s: cmd/kube-scheduler/app/options/options.go makeLeaderElectionConfig, NewLeaderHealthzAdaptor
const LATE_MAX: Duration = Duration::from_secs(20);

/// When the lease was renewed last.
#[derive(Debug)]
pub struct LeaderHealth {
    lease: String,
    duration: Duration,
    renewed: Mutex<Option<Instant>>,
}

impl LeaderHealth {
    /// The lease of this name and duration, which this process does not hold yet.
    pub fn new(lease: &str, duration: Duration) -> Self {
        Self { lease: lease.to_owned(), duration, renewed: Mutex::new(None) }
    }

    /// The lease is held as of now.
    pub fn mark_renewed(&self) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Fails when the lease was held and its renewal is late.
    ///
    /// # Errors
    /// In upstream's words.
    pub fn check(&self) -> Result<(), CheckFault> {
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        match renewed {
            Some(renewed) if renewed.elapsed() > self.duration + LATE_MAX => {
                Err(CheckFault::LateLease(self.lease.clone()))
            }
            _ => Ok(()),
        }
    }
}
