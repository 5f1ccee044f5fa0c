//! Settings of leader election, and their faults. Pure.
//!
//! Input: flags, or fields of a file. Output: [`Election`], or one sentence for the first mistake.
// k8s: component-base/config/validation/validation.go ValidateLeaderElectionConfiguration;
// staging/src/k8s.io/client-go/tools/leaderelection/leaderelection.go NewLeaderElector

use std::time::Duration;

use pintle_api_types::duration::GoDuration;
use pintle_api_types::lease::Timing;
use serde_json::Value;

use crate::error::ConfigError;
use crate::given::GivenFlags;

/// An attempt may come so much later than after `retryPeriod`, as a factor.
const RETRY_SPREAD: f64 = 1.2;

/// Settings of the leader election.
#[derive(Clone, Debug, PartialEq)]
pub struct Election {
    /// Several processes agree; otherwise this one works at once.
    pub is_on: bool,
    /// The lease's namespace.
    pub namespace: String,
    /// The lease's name.
    pub name: String,
    /// Its durations.
    pub timing: Timing,
}

/// A time of the lease that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTiming {
    /// The field in a file: `leaseDuration`, `renewDeadline`, `retryPeriod`.
    pub field: &'static str,
    /// Its value.
    pub time: Duration,
    /// The fault.
    pub problem: String,
    /// The remedy.
    pub remedy: &'static str,
}

impl BadTiming {
    /// The flag that sets the field.
    pub fn flag(&self) -> &'static str {
        match self.field {
            "leaseDuration" => "--leader-elect-lease-duration",
            "renewDeadline" => "--leader-elect-renew-deadline",
            _ => "--leader-elect-retry-period",
        }
    }
}

impl Election {
    /// Election on the lease `kube-system/NAME`, as all components have it.
    pub fn on(name: &str) -> Self {
        let (namespace, name) = ("kube-system".to_owned(), name.to_owned());
        Self { is_on: true, namespace, name, timing: Timing::default() }
    }

    /// Overrides the settings by the flags.
    ///
    /// # Errors
    /// When the lock is not a lease. It is not checked where no election takes place.
    pub fn put_flags(&mut self, given: &GivenFlags) -> Result<(), ConfigError> {
        if let Some(on) = given.value("leader-elect").and_then(Value::as_bool) {
            self.is_on = on;
        }
        for (name, time) in [
            ("leader-elect-lease-duration", &mut self.timing.lease),
            ("leader-elect-renew-deadline", &mut self.timing.renew),
            ("leader-elect-retry-period", &mut self.timing.retry),
        ] {
            let read = given.text(name).and_then(|text| text.parse::<GoDuration>().ok());
            *time = read.map_or(*time, GoDuration::to_std);
        }
        let lock = given.text("leader-elect-resource-lock").filter(|_| self.is_on);
        if let Some(lock) = lock.filter(|lock| *lock != "leases") {
            let (flag, problem) = ("--leader-elect-resource-lock", "only leases are supported");
            return Err(ConfigError::new(flag, format!("{lock:?}"), problem, "remove it"));
        }
        for (flag, place) in [
            ("leader-elect-resource-namespace", &mut self.namespace),
            ("leader-elect-resource-name", &mut self.name),
        ] {
            if let Some(text) = given.text(flag) {
                text.clone_into(place);
            }
        }
        Ok(())
    }

    /// The first time with which two processes could lead at once, or none.
    pub fn bad_timing(&self) -> Option<BadTiming> {
        let Timing { lease, renew, retry } = self.timing;
        let bad = |field, time, problem, remedy| Some(BadTiming { field, time, problem, remedy });
        let no_shorter = |than: &str, time: Duration| {
            format!("it must be longer than {than}, which is {}", GoDuration::from_std(time))
        };
        match () {
            () if !self.is_on => None,
            () if lease < Duration::from_secs(1) => {
                let problem = "it must be at least 1s".to_owned();
                bad("leaseDuration", lease, problem, "the default is 15s")
            }
            () if lease <= renew => {
                let problem = no_shorter("renewDeadline", renew);
                bad("leaseDuration", lease, problem, "the defaults are 15s and 10s")
            }
            () if retry.is_zero() => {
                let problem = "it must be longer than zero".to_owned();
                bad("retryPeriod", retry, problem, "the default is 2s")
            }
            () if renew <= retry.mul_f64(RETRY_SPREAD) => {
                let problem = no_shorter("1.2 times retryPeriod", retry);
                bad("renewDeadline", renew, problem, "the defaults are 10s and 2s")
            }
            () => None,
        }
    }
}
