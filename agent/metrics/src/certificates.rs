//! The node's own certificates: remaining lifetime, and failed renewals.
//!
//! Input: the rotation of a certificate reports its expiry. Output: families that exist once a
//! certificate is rotated at all, as in the kubelet.
// k8s: cmd/kubelet/app/server.go buildKubeletClientConfig, pkg/kubelet/certificate/kubelet.go

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use pintle_daemon::metrics::{MetricNames, exposition};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::families::PLAIN_COUNTERS;

const ERRORS_HELP: &str = "[ALPHA] Counter of certificate renewal errors.";
/// Lifetimes of certificates: a minute to four years.
const AGES: [f64; 10] = [
    60.0,
    3_600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];
/// There is no certificate.
const NONE: i64 = i64::MAX;

/// The certificate's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateOf {
    /// The one that the agent shows to the API server.
    Client,
    /// The one that the HTTPS port shows.
    Server,
}

/// Both certificates, as far as they are rotated.
#[derive(Debug, Default)]
pub(super) struct Certificates {
    client: OnceLock<CertificateCounts>,
    server: OnceLock<CertificateCounts>,
}

/// Counts of one certificate; clones share them.
#[derive(Clone, Debug)]
pub struct CertificateCounts {
    ttl: Gauge<f64, AtomicU64>,
    errors: Counter,
    ages: Option<Histogram>,
    /// Seconds of Unix time.
    ends_at: Arc<AtomicI64>,
    registry: Arc<Registry>,
}

impl Certificates {
    /// From now on that certificate has its metric families.
    pub(super) fn of(&self, which: CertificateOf) -> CertificateCounts {
        let cell = match which {
            CertificateOf::Client => &self.client,
            CertificateOf::Server => &self.server,
        };
        cell.get_or_init(|| CertificateCounts::new(which)).clone()
    }

    /// Their families, as they stand at `now`, in seconds of Unix time.
    pub(super) fn render(&self, now: i64) -> String {
        let all = [&self.client, &self.server].into_iter().filter_map(OnceLock::get);
        all.map(|counts| counts.render(now)).collect()
    }
}

impl CertificateCounts {
    fn new(which: CertificateOf) -> Self {
        let mut registry = Registry::default();
        let mut at = MetricNames(&mut registry);
        let (ttl, errors, ages) = match which {
            CertificateOf::Client => (
                at.add(
                    "kubelet_certificate_manager_client_ttl_seconds",
                    "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate. \
                     The value is in seconds until certificate expiry (negative if already \
                     expired). If client certificate is invalid or unused, the value will be +INF.",
                ),
                at.add("kubelet_certificate_manager_client_expiration_renew_errors", ERRORS_HELP),
                None,
            ),
            CertificateOf::Server => (
                at.add(
                    "kubelet_certificate_manager_server_ttl_seconds",
                    "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving \
                     certificate. The value is in seconds until certificate expiry (negative if \
                     already expired). If serving certificate is invalid or unused, the value \
                     will be +INF.",
                ),
                at.add("kubelet_server_expiration_renew_errors", ERRORS_HELP),
                Some(at.put(
                    "kubelet_certificate_manager_server_rotation_seconds",
                    "[ALPHA] Histogram of the number of seconds the previous certificate lived \
                     before being rotated.",
                    Histogram::new(AGES),
                )),
            ),
        };
        let (ends_at, registry) = (Arc::new(AtomicI64::new(NONE)), Arc::new(registry));
        Self { ttl, errors, ages, ends_at, registry }
    }

    /// When the certificate in force ends, in seconds of Unix time; `None` without one.
    pub fn ends_at(&self, seconds: Option<i64>) {
        self.ends_at.store(seconds.unwrap_or(NONE), Ordering::Relaxed);
    }

    /// A replacement failed.
    pub fn not_renewed(&self) {
        self.errors.inc();
    }

    /// A certificate was replaced at this age, in seconds.
    pub fn replaced(&self, age_seconds: i64) {
        if let Some(ages) = &self.ages {
            #[allow(clippy::cast_precision_loss)] // centuries fit
            ages.observe(age_seconds as f64);
        }
    }

    fn render(&self, now: i64) -> String {
        #[allow(clippy::cast_precision_loss)] // centuries fit
        self.ttl.set(match self.ends_at.load(Ordering::Relaxed) {
            NONE => f64::INFINITY,
            ends_at => ends_at.saturating_sub(now) as f64,
        });
        exposition(&self.registry, &PLAIN_COUNTERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_there_once_a_certificate_is_rotated() {
        let all = Certificates::default();
        assert_eq!(all.render(0), "");
        let client = all.of(CertificateOf::Client);
        assert!(
            all.render(0).contains("\nkubelet_certificate_manager_client_ttl_seconds +Inf\n"),
            "{}",
            all.render(0)
        );
        client.ends_at(Some(1000));
        client.not_renewed();
        let server = all.of(CertificateOf::Server);
        server.ends_at(Some(400));
        server.replaced(100);
        all.of(CertificateOf::Server).replaced(200_000);
        let text = all.render(500);
        for line in [
            "# TYPE kubelet_certificate_manager_client_ttl_seconds gauge",
            "kubelet_certificate_manager_client_ttl_seconds 500",
            "# TYPE kubelet_certificate_manager_client_expiration_renew_errors counter",
            "kubelet_certificate_manager_client_expiration_renew_errors 1",
            "kubelet_certificate_manager_server_ttl_seconds -100",
            "kubelet_server_expiration_renew_errors 0",
            "kubelet_certificate_manager_server_rotation_seconds_count 2",
            "kubelet_certificate_manager_server_rotation_seconds_bucket{le=\"3600\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
    }
}
