//! The known state of the lease, and the next request. Pure: no clock, no I/O.
//!
//! Input: the time, the lease that was read or written. Output: the next request.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// The first request of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FirstRequest {
    /// This process holds the lease: replace its last write by this one.
    Renew(Box<Lease>),
    /// Read the lease.
    Read,
}

/// The step after a read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TermStep {
    /// There is no lease: create this one.
    Create(Box<Lease>),
    /// This process holds the lease, or it is free or expired: write this one.
    Write(Box<Lease>),
    /// Another process holds it.
    Wait,
}

/// A lease as it was last seen to change.
#[derive(Clone, Debug)]
struct SeenLease {
    lease: Lease,
    at: Instant,
}

/// One process' view of a lease.
#[derive(Clone, Debug)]
pub(super) struct LeaseTerm {
    identity: String,
    name: String,
    lease: Duration,
    seen: Option<SeenLease>,
    /// Start of the last write that succeeded.
    renewed: Option<Instant>,
}

impl LeaseTerm {
    /// Nothing is known yet.
    pub(super) fn new(identity: String, name: String, lease: Duration) -> Self {
        Self { identity, name, lease, seen: None, renewed: None }
    }

    /// The last known holder of the lease.
    pub(super) fn leader(&self) -> Option<&str> {
        holder(&self.seen.as_ref()?.lease)
    }

    /// The lease, as far as it is known.
    pub(super) fn lease(&self) -> Option<&Lease> {
        self.seen.as_ref().map(|seen| &seen.lease)
    }

    /// Start of the own lease, which is not later than any other process observed it.
    pub(super) fn renewed(&self) -> Option<Instant> {
        self.renewed
    }

    /// True if this process holds the lease.
    pub(super) fn is_ours(&self) -> bool {
        self.leader() == Some(self.identity.as_str())
    }

    /// The first request of an attempt.
    pub(super) fn first_request(&self, now: Instant, wall: Timestamp) -> FirstRequest {
        match &self.seen {
            Some(seen) if self.is_ours() && is_valid(seen, now) => {
                FirstRequest::Renew(Box::new(self.wanted(Some(&seen.lease), wall)))
            }
            _ => FirstRequest::Read,
        }
    }

    /// Records a read and returns the next step; `found` is `None` when there is no lease.
    pub(super) fn record_read(
        &mut self,
        found: Option<Lease>,
        now: Instant,
        wall: Timestamp,
    ) -> TermStep {
        let Some(found) = found else {
            return TermStep::Create(Box::new(self.wanted(None, wall)));
        };
        match &mut self.seen {
            // A new version of the same spec is no renewal.
            Some(seen) if seen.lease.spec == found.spec => seen.lease = found,
            seen => *seen = Some(SeenLease { lease: found, at: now }),
        }
        let seen = self.seen.as_ref().expect("it was just stored");
        if self.leader().is_some() && !self.is_ours() && is_valid(seen, now) {
            return TermStep::Wait;
        }
        TermStep::Write(Box::new(self.wanted(Some(&seen.lease), wall)))
    }

    /// Records that the API server stored the own lease.
    pub(super) fn record_write(&mut self, lease: Lease, now: Instant) {
        self.seen = Some(SeenLease { lease, at: now });
        self.renewed = Some(now);
    }

    /// The released lease, based on the lease that was read; `None` if another process holds it.
    // k8s: leaderelection.go release
    pub(super) fn released(&self, found: &Lease, wall: Timestamp) -> Option<Lease> {
        if holder(found) != Some(self.identity.as_str()) {
            return None;
        }
        let mut lease = found.clone();
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(MicroTime(wall)),
            renew_time: Some(MicroTime(wall)),
            lease_transitions: found.spec.as_ref().and_then(|spec| spec.lease_transitions),
            ..LeaseSpec::default()
        });
        Some(lease)
    }

    /// The own lease, based on `base`.
    fn wanted(&self, base: Option<&Lease>, wall: Timestamp) -> Lease {
        let mut lease = base.cloned().unwrap_or_default();
        lease.metadata.name = Some(self.name.clone());
        let old = lease.spec.take().unwrap_or_default();
        let is_renewal = old.holder_identity.as_deref() == Some(self.identity.as_str());
        let transitions = old.lease_transitions.unwrap_or(0);
        let (acquired, transitions) = match (base, is_renewal) {
            (None, _) => (None, 0),
            (Some(_), true) => (old.acquire_time, transitions),
            (Some(_), false) => (None, transitions.saturating_add(1)),
        };
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(self.lease.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: Some(acquired.unwrap_or(MicroTime(wall))),
            renew_time: Some(MicroTime(wall)),
            lease_transitions: Some(transitions),
            ..old
        });
        lease
    }
}

pub(super) fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref();
    holder.filter(|holder| !holder.is_empty())
}

/// True if the holder may still work: its lease, of the duration that it wrote, has not expired.
// k8s: leaderelection.go isLeaseValid
fn is_valid(seen: &SeenLease, now: Instant) -> bool {
    let seconds = seen.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    let life = Duration::from_secs(u64::try_from(seconds.unwrap_or(0)).unwrap_or(0));
    now.saturating_duration_since(seen.at) < life
}
