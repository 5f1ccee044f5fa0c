//! Requests to the API server: how many, how long, how long held back.
//!
//! Bounds: methods are HTTP's, hosts those of one kubeconfig, codes those of HTTP.
// k8s: staging/src/k8s.io/component-base/metrics/prometheus/restclient/metrics.go

use std::time::Duration;

use pintle_api::{Observer, PluginRun, Sent};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use super::MetricNames;

/// Upper bounds of sizes in bytes.
const BYTES: [f64; 11] = [
    64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0,
    16777216.0,
];
/// Upper bounds of durations in seconds.
const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnsweredRequest {
    code: String,
    host: String,
    method: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Again {
    code: String,
    host: String,
    verb: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    host: String,
    verb: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginCall {
    call_status: String,
    code: String,
}

/// Handles of the families.
#[derive(Debug)]
pub struct ApiRequests {
    total: Family<AnsweredRequest, Counter>,
    again: Family<Again, Counter>,
    seconds: Family<RequestLabels, Histogram, fn() -> Histogram>,
    limited: Family<RequestLabels, Histogram, fn() -> Histogram>,
    sent_bytes: Family<RequestLabels, Histogram, fn() -> Histogram>,
    received_bytes: Family<RequestLabels, Histogram, fn() -> Histogram>,
    plugin_calls: Family<PluginCall, Counter>,
}

impl ApiRequests {
    /// Registers the families.
    pub fn register(at: &mut MetricNames<'_>) -> Self {
        let histogram = || -> Family<RequestLabels, Histogram, fn() -> Histogram> {
            Family::new_with_constructor(|| Histogram::new(SECONDS))
        };
        let sizes = || -> Family<RequestLabels, Histogram, fn() -> Histogram> {
            Family::new_with_constructor(|| Histogram::new(BYTES))
        };
        Self {
            total: at.add(
                "rest_client_requests",
                "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
            ),
            again: at.add(
                "rest_client_request_retries",
                "[ALPHA] Number of request retries, partitioned by status code, verb, and host.",
            ),
            seconds: at.put(
                "rest_client_request_duration_seconds",
                "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
                histogram(),
            ),
            limited: at.put(
                "rest_client_rate_limiter_duration_seconds",
                "[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.",
                histogram(),
            ),
            sent_bytes: at.put(
                "rest_client_request_size_bytes",
                "[ALPHA] Request size in bytes. Broken down by verb and host.",
                sizes(),
            ),
            received_bytes: at.put(
                "rest_client_response_size_bytes",
                "[ALPHA] Response size in bytes. Broken down by verb and host.",
                sizes(),
            ),
            plugin_calls: at.add(
                "rest_client_exec_plugin_call",
                "[ALPHA] Number of calls to an exec plugin, partitioned by the type of event encountered",
            ),
        }
    }
}

impl Observer for ApiRequests {
    fn sent(&self, sent: Sent<'_>) {
        let code = sent.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let (host, method) = (sent.host.to_owned(), sent.method.to_owned());
        let asked = RequestLabels { host: host.clone(), verb: method.clone() };
        self.seconds.get_or_create(&asked).observe(sent.took.as_secs_f64());
        if let Some(bytes) = sent.bytes {
            self.sent_bytes.get_or_create(&asked).observe(bytes as f64);
        }
        if sent.again {
            let again = Again { code: code.clone(), host: host.clone(), verb: method.clone() };
            self.again.get_or_create(&again).inc();
        }
        self.total.get_or_create(&AnsweredRequest { code, host, method }).inc();
    }

    fn received(&self, method: &str, host: &str, bytes: u64) {
        let asked = RequestLabels { host: host.to_owned(), verb: method.to_owned() };
        self.received_bytes.get_or_create(&asked).observe(bytes as f64);
    }

    fn limited(&self, method: &str, host: &str, waited: Duration) {
        let asked = RequestLabels { host: host.to_owned(), verb: method.to_owned() };
        self.limited.get_or_create(&asked).observe(waited.as_secs_f64());
    }

    fn plugin_ran(&self, run: PluginRun) {
        let (status, code) = match run {
            PluginRun::Well => ("no_error", 0),
            PluginRun::Exited(code) => ("plugin_execution_error", code),
            PluginRun::NotFound => ("plugin_not_found_error", 1),
            PluginRun::Failed => ("client_internal_error", 1),
        };
        let call = PluginCall { call_status: status.to_owned(), code: code.to_string() };
        self.plugin_calls.get_or_create(&call).inc();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::metrics::exposition;

    #[test]
    fn request_sizes_are_counted_where_known() {
        let mut registry = Registry::default();
        let requests = ApiRequests::register(&mut MetricNames(&mut registry));
        let put = |bytes| Sent {
            method: "PUT",
            host: "h:1",
            code: Some(200),
            took: Duration::ZERO,
            bytes,
            again: bytes.is_none(),
        };
        requests.sent(put(Some(5_000_000)));
        requests.sent(put(None));
        requests.plugin_ran(PluginRun::Exited(3));
        requests.received("GET", "h:1", 64);
        let text = exposition(&registry, &[]);
        let (sent, received) =
            ("rest_client_request_size_bytes", "rest_client_response_size_bytes");
        let (put, get) = (r#"host="h:1",verb="PUT""#, r#"host="h:1",verb="GET""#);
        for line in [
            format!("{sent}_count{{{put}}} 1"),
            format!(r#"{sent}_bucket{{le="4.194304e+06",{put}}} 0"#),
            format!(r#"{sent}_bucket{{le="1.6777216e+07",{put}}} 1"#),
            format!(r#"{received}_bucket{{le="64",{get}}} 1"#),
            format!("{received}_sum{{{get}}} 64"),
            format!("rest_client_request_duration_seconds_count{{{put}}} 2"),
            format!(r#"rest_client_request_retries_total{{code="200",{put}}} 1"#),
            r#"rest_client_exec_plugin_call_total{call_status="plugin_execution_error",code="3"} 1"#
                .to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
        }
    }
}
