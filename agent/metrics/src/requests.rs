//! Requests to the HTTPS server: counts, durations, kinds.
//!
//! Bounds: methods and paths are of fixed sets, whatever clients send.
// k8s: pkg/kubelet/server/metrics/metrics.go, server.go getMetricBucket

use std::time::Instant;

use pintle_daemon::metrics::MetricNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::families::SECONDS;

const METHODS: [&str; 8] = ["OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"];
/// First words of paths that are counted by themselves.
const PATHS: [&str; 18] = [
    "healthz",
    "pods",
    "stats",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "run",
    "exec",
    "attach",
    "portForward",
    "containerLogs",
    "configz",
    "runningpods",
    "checkpoint",
    "logs",
    "debug",
    "statusz",
];
/// Requests that last for as long as their client likes.
const LONG_RUNNING: [&str; 4] = ["exec", "attach", "portforward", "debug"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    long_running: String,
    method: String,
    path: String,
    server_type: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestEndpoint {
    subresource: String,
}

/// Handles of the families.
#[derive(Clone, Debug)]
pub(super) struct RequestMetrics {
    total: Family<RequestLabels, Counter>,
    seconds: Family<RequestLabels, Histogram, fn() -> Histogram>,
    websockets: Family<RequestEndpoint, Counter>,
    in_flight: Family<RequestLabels, Gauge>,
}

/// A request in flight; dropping it ends it.
#[derive(Debug)]
pub struct UnderWay {
    labels: RequestLabels,
    requests: RequestMetrics,
    begun: Instant,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let all = &self.requests;
        all.in_flight.get_or_create(&self.labels).dec();
        let seconds = self.begun.elapsed().as_secs_f64();
        all.seconds.get_or_create(&self.labels).observe(seconds);
    }
}

impl RequestMetrics {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        let seconds: Family<RequestLabels, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(SECONDS));
        Self {
            total: at.add(
                "kubelet_http_requests",
                "[ALPHA] Number of the http requests received since the server started",
            ),
            seconds: at.put(
                "kubelet_http_requests_duration_seconds",
                "[ALPHA] Duration in seconds to serve http requests",
                seconds,
            ),
            websockets: at.add(
                "kubelet_websocket_streaming_requests",
                "[ALPHA] Total number of WebSocket streaming requests (exec/attach/portforward) \
                 received by the kubelet.",
            ),
            in_flight: at.add(
                "kubelet_http_inflight_requests",
                "[ALPHA] Number of the inflight http requests",
            ),
        }
    }

    /// A request of this server (`readwrite`, `readonly`) came in.
    // k8s: pkg/kubelet/server/server.go ServeHTTP
    pub(super) fn begun(&self, server: &str, method: &str, path: &str) -> UnderWay {
        let path = bucket(path);
        let labels = RequestLabels {
            long_running: LONG_RUNNING.contains(&path).to_string(),
            method: METHODS.iter().find(|known| **known == method).unwrap_or(&"other").to_string(),
            path: path.to_owned(),
            server_type: server.to_owned(),
        };
        self.total.get_or_create(&labels).inc();
        self.in_flight.get_or_create(&labels).inc();
        UnderWay { labels, requests: self.clone(), begun: Instant::now() }
    }

    /// A WebSocket is translated or tunnelled.
    pub(super) fn websocket(&self, subresource: &str) {
        let labels = RequestEndpoint { subresource: subresource.to_owned() };
        self.websockets.get_or_create(&labels).inc();
    }
}

fn bucket(path: &str) -> &'static str {
    let mut words = path.trim_start_matches('/').splitn(3, '/');
    let (first, second) = (words.next().unwrap_or_default(), words.next());
    let is = |known: &str| match (first, second) {
        ("metrics", Some(second)) => known.strip_prefix("metrics/") == Some(second),
        _ => known == first,
    };
    PATHS.iter().copied().find(|known| is(known)).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::bucket;

    #[test]
    fn request_paths_are_bucketed_by_known_route_or_as_other() {
        for (path, expected) in [
            ("/exec/ns/p/c", "exec"),
            ("/metrics", "metrics"),
            ("/metrics/cadvisor", "metrics/cadvisor"),
            ("/metrics/what", "other"),
            ("/wp-login.php", "other"),
            ("/", "other"),
        ] {
            assert_eq!(bucket(path), expected, "{path}");
        }
    }
}
