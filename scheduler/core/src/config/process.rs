//! Process settings of the configuration: credentials, rate limits, the lease, backoff.
// k8s: pkg/scheduler/apis/config/v1/defaults.go, component-base/config/v1alpha1/defaults.go

use std::path::PathBuf;
use std::time::Duration;

use pintle_api_types::duration::GoDuration;
use pintle_api_types::lease::Timing;
use pintle_api_types::rate::Rate;
use pintle_config::election::Election;
use serde::Deserialize;

use super::{ConfigError, ConfigFile, field};
use crate::queue::Backoff;

/// Process settings.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessSettings {
    /// Credentials.
    pub kubeconfig: Option<PathBuf>,
    /// Requests per second.
    pub qps: f64,
    /// Requests in a burst.
    pub burst: u32,
    /// Leader election.
    pub election: Election,
    /// Backoff of rejected pods.
    pub backoff: Backoff,
    /// percentageOfNodesToScore as written; a profile may override it.
    pub percentage_of_nodes: i32,
}

impl Default for ProcessSettings {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            qps: 50.0,
            burst: 100,
            election: Election::on("kube-scheduler"),
            backoff: Backoff::default(),
            percentage_of_nodes: 0,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct LeaderElection {
    leader_elect: Option<bool>,
    lease_duration: Option<GoDuration>,
    renew_deadline: Option<GoDuration>,
    retry_period: Option<GoDuration>,
    resource_lock: Option<String>,
    resource_name: Option<String>,
    resource_namespace: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ClientConnection {
    kubeconfig: Option<String>,
    // The client speaks JSON only.
    #[serde(rename = "acceptContentTypes")]
    _accept_content_types: Option<String>,
    pub(super) content_type: Option<String>,
    qps: Option<f64>,
    burst: Option<i32>,
}

impl ProcessSettings {
    pub(super) fn of(file: &ConfigFile) -> Result<Self, ConfigError> {
        let mut process = Self::default();
        process.connection(&file.client_connection)?;
        process.election(&file.leader_election)?;
        process.percentage_of_nodes = file.percentage_of_nodes_to_score.unwrap_or(0);
        let seconds = |value: Option<i64>, default: Duration| {
            value.and_then(|s| u64::try_from(s).ok()).map_or(default, Duration::from_secs)
        };
        let usual = Backoff::default();
        process.backoff = Backoff {
            initial: seconds(file.pod_initial_backoff_seconds, usual.initial),
            max: seconds(file.pod_max_backoff_seconds, usual.max),
        };
        Ok(process)
    }

    fn connection(&mut self, from: &ClientConnection) -> Result<(), ConfigError> {
        let path = from.kubeconfig.as_deref().filter(|path| !path.is_empty());
        self.kubeconfig = path.map(PathBuf::from);
        if let Some(burst) = from.burst {
            // k8s: component-base/config/validation/validation.go ValidateClientConnectionConfiguration
            let problem = "must be non-negative";
            let burst = u32::try_from(burst);
            self.burst = burst.map_err(|_| field("clientConnection.burst", problem))?;
        }
        self.qps = from.qps.filter(|qps| *qps != 0.0).unwrap_or(self.qps);
        if self.burst == 0 {
            self.burst = Self::default().burst;
        }
        Ok(())
    }

    fn election(&mut self, from: &LeaderElection) -> Result<(), ConfigError> {
        let election = &mut self.election;
        election.is_on = from.leader_elect.unwrap_or(true);
        let or_usual = |value: Option<GoDuration>, usual: Duration| {
            value.filter(|value| !value.is_zero()).map_or(usual, GoDuration::to_std)
        };
        let usual = Timing::default();
        election.timing = Timing {
            lease: or_usual(from.lease_duration, usual.lease),
            renew: or_usual(from.renew_deadline, usual.renew),
            retry: or_usual(from.retry_period, usual.retry),
        };
        // The lock is not validated without leader election.
        // k8s: pkg/scheduler/apis/config/validation/validation.go ValidateKubeSchedulerConfiguration
        let lock = from.resource_lock.as_deref().filter(|_| election.is_on);
        if let Some(lock) = lock.filter(|lock| !["", "leases"].contains(lock)) {
            let problem = format!("is {lock:?}, only \"leases\" is supported");
            return Err(field("leaderElection.resourceLock", &problem));
        }
        for (text, place) in [
            (&from.resource_namespace, &mut election.namespace),
            (&from.resource_name, &mut election.name),
        ] {
            if let Some(text) = text.as_ref().filter(|text| !text.is_empty()) {
                place.clone_from(text);
            }
        }
        Ok(())
    }

    /// Returns the client's rate limit; none if the rate is negative. Only flags can set it to
    /// zero.
    pub fn rate(&self) -> Option<Rate> {
        let burst = i32::try_from(self.burst).unwrap_or(i32::MAX);
        Some(Rate::of_settings(self.qps, burst)).filter(|rate| rate.per_second > 0.0)
    }
}
