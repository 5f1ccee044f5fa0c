//! Runs of credential provider plugins, and which configuration of them is in force.
//!
//! Bound: one series per configured plugin.
// k8s: pkg/credentialprovider/plugin/metrics.go

use std::time::Duration;

use pintle_daemon::metrics::MetricNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::families::SECONDS;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProviderPlugin {
    plugin_name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Hash {
    hash: String,
}

/// Handles of the families.
#[derive(Debug)]
pub struct CredentialProviders {
    errors: Family<ProviderPlugin, Counter>,
    seconds: Family<ProviderPlugin, Histogram, fn() -> Histogram>,
    configured: Family<Hash, Gauge>,
}

impl CredentialProviders {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        let seconds: Family<ProviderPlugin, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(SECONDS));
        Self {
            errors: at.add(
                "kubelet_credential_provider_plugin_errors",
                "[ALPHA] Number of errors from credential provider plugin",
            ),
            seconds: at.put(
                "kubelet_credential_provider_plugin_duration",
                "[ALPHA] Duration of execution in seconds for credential provider plugin",
                seconds,
            ),
            configured: at.add(
                "kubelet_credential_provider_config_info",
                "[ALPHA] Information about the last applied credential provider configuration with hash \
                 as label",
            ),
        }
    }

    /// The configuration with this hash of its files was loaded.
    pub fn configured(&self, hash: &str) {
        self.configured.clear();
        self.configured.get_or_create(&Hash { hash: hash.to_owned() }).set(1);
    }

    /// A plugin's program ended.
    pub fn ran(&self, plugin: &str, took: Duration, success: bool) {
        let label = ProviderPlugin { plugin_name: plugin.to_owned() };
        self.seconds.get_or_create(&label).observe(took.as_secs_f64());
        if !success {
            self.errors.get_or_create(&label).inc();
        }
    }
}
