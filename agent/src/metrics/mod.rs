//! Metrics of the agent, named as the kubelet's wherever it has the same one.
//!
//! Input: the ends of runtime calls (`Metrics` is a `pintle_cri::Observer`), what the driver
//! reports, and at each scrape a snapshot of the pods. Output: the Prometheus text exposition
//! (`text.rs` turns the library's OpenMetrics into the form that the kubelet serves). Shared by
//! the main thread, which counts, and the server's thread, which reads; counting never blocks on
//! a reader for longer than a map look-up. Bounds: one series per call of CRI, a handful of others,
//! and `STARTING_MAX` pods whose start is being timed.
//!
//! A number that can be read off the snapshot is computed when it is asked for, so that it can
//! never disagree with `/pods`.

mod api_requests;
mod credential_providers;
mod families;
mod images;
mod probes;
mod process;
mod requests;
mod text;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use pintle_cri::{Code, Method, Observer};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use families::{
    BUILD_HELP, Build, Decisions, Limit, ModeLabel, Names, Node, Operation, Operations, Own,
    PodCounts, ReasonDetail, Relists, RetryTrigger, Signal, StartError, StartOf, Starts, State,
    Static, build_labels, reason_label,
};

pub use self::credential_providers::CredentialProviders;
pub use self::images::Images;
pub use self::probes::{ProbeCounts, ProbeResult};
use crate::observed::RunState;
use crate::pod;
use crate::runtime::plan::Action;
use crate::status::RUNNING;
use crate::status::view::Snapshot;
use crate::types::{ContainerKind, PodUid, UnixNanos};
use crate::worker::{Count, Failure, Stage};

/// Pods whose start may be timed at once.
const STARTING_MAX: usize = 4096;
/// What only the moment of a scrape knows.
#[derive(Clone, Copy, Debug)]
pub struct Scrape<'a> {
    /// The pods.
    pub snapshot: &'a Snapshot,
    /// Where events come from: `ebpf`, `pidfd`, `relist`.
    pub event_source: &'a str,
    /// Events lost since the start.
    pub events_dropped: u64,
    /// Timeline entries dropped since the start.
    pub timeline_dropped: u64,
    /// Runtime calls under way.
    pub calls_in_flight: usize,
}

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    operations: Operations,
    pods: PodCounts,
    starts: Starts,
    relists: Relists,
    decisions: Decisions,
    own: Own,
    process: process::Process,
    requests: requests::Requests,
    probes: ProbeCounts,
    api_requests: api_requests::ApiRequests,
    credential_providers: CredentialProviders,
    images: Images,
    starting: Mutex<BTreeMap<PodUid, bool>>,
}

impl Metrics {
    /// Metrics at zero, of the node of this name.
    pub fn new(node: &str) -> Self {
        let mut registry = Registry::default();
        let mut at = Names(&mut registry);
        let build: Family<Build, Gauge> = at.add("kubernetes_build_info", BUILD_HELP);
        build.get_or_create(&build_labels()).set(1);
        let node_name: Family<Node, Gauge> =
            at.add("kubelet_node_name", "The node's name. The count is always 1.");
        node_name.get_or_create(&Node { node: node.to_owned() }).set(1);
        Self {
            operations: Operations::register(&mut at),
            pods: PodCounts::register(&mut at),
            starts: Starts::register(&mut at),
            relists: Relists::register(&mut at),
            decisions: Decisions::register(&mut at),
            own: Own::register(&mut at),
            process: process::Process::register(&mut at),
            requests: requests::Requests::register(&mut at),
            probes: ProbeCounts::default(),
            api_requests: api_requests::ApiRequests::register(&mut at),
            credential_providers: CredentialProviders::register(&mut at),
            images: Images::register(&mut at),
            starting: Mutex::default(),
            registry,
        }
    }

    /// An action of a pass ended.
    pub fn action_ended(&self, action: &Action, failure: Option<&Failure>) {
        match (action, failure) {
            (Action::CreateSandbox { .. }, None) => {
                self.starts.pods.inc();
            }
            (Action::CreateSandbox { .. }, Some(_)) => {
                self.starts.pods.inc();
                self.starts.pod_errors.inc();
            }
            (Action::StartContainer { kind, .. }, failure) => {
                let container_type = container_type(*kind).to_owned();
                let label = StartOf { container_type: container_type.clone() };
                self.starts.containers.get_or_create(&label).inc();
                if let Some(failure) = failure.filter(|f| !f.cancelled) {
                    let error = StartError { container_type, code: failure.reason.clone() };
                    self.starts.container_errors.get_or_create(&error).inc();
                }
            }
            _ => {}
        }
    }

    /// A decision that is counted.
    pub fn counted(&self, count: &Count) {
        match count {
            Count::Refused(reason) => {
                self.decisions.refused.get_or_create(&reason_label(reason)).inc();
            }
            Count::Preempted(resource) => {
                let signal = Signal { preemption_signal: resource.clone() };
                self.decisions.preempted.get_or_create(&signal).inc();
            }
            Count::Infeasible(why) => {
                let detail = ReasonDetail { reason_detail: (*why).to_owned() };
                self.decisions.infeasible.get_or_create(&detail).inc();
            }
            Count::Accepted(why) => {
                let trigger = RetryTrigger { retry_trigger: (*why).to_owned() };
                self.decisions.accepted.get_or_create(&trigger).inc();
            }
        }
    }

    /// A pod's status changed; times its way from first seen to running.
    // k8s: pkg/kubelet/kubelet.go SyncPod
    pub fn published(&self, uid: &PodUid, pod: &Pod, status: &PodStatus, now: UnixNanos) {
        let mut starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let running = status.phase.as_deref() == Some(RUNNING);
        let counted = match starting.get(uid) {
            Some(counted) => *counted,
            None if starting.len() >= STARTING_MAX => {
                drop(starting);
                return self.limit_hit("timed pod starts");
            }
            None => false,
        };
        starting.insert(uid.clone(), counted || running);
        drop(starting);
        if running
            && !counted
            && let Some(seen) = seen_at(pod)
        {
            self.starts.pod_seconds.observe(now.since(seen).as_secs_f64());
        }
    }

    /// Nothing is left of a pod.
    pub fn gone(&self, uid: &PodUid) {
        self.starting.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// All pods were listed at `now`, `interval` after the list before.
    pub fn relisted(&self, now: UnixNanos, took: Duration, interval: Option<Duration>) {
        self.relists.seconds.observe(took.as_secs_f64());
        if let Some(interval) = interval {
            self.relists.interval_seconds.observe(interval.as_secs_f64());
        }
        self.relists.last.set(Duration::from_nanos(now.0.max(0).unsigned_abs()).as_secs_f64());
    }

    /// A bounded resource of this name was full.
    pub fn limit_hit(&self, limit: &str) {
        self.own.limit_hits.get_or_create(&Limit { limit: limit.to_owned() }).inc();
    }

    /// A request to the HTTPS server was answered.
    pub fn http_request(&self, method: &str, path: &str, took: Duration) {
        self.requests.ended(method, path, took);
    }

    /// A WebSocket to this subresource is translated here.
    pub fn websocket_stream(&self, subresource: &str) {
        self.requests.websocket(subresource);
    }

    /// Counts of credential provider plugins.
    pub fn credential_providers(&self) -> &CredentialProviders {
        &self.credential_providers
    }

    /// Counts of images.
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// Counts of probes, for the prober.
    pub fn probes(&self) -> ProbeCounts {
        self.probes.clone()
    }

    /// The exposition of probes alone.
    pub fn render_probes(&self, snapshot: &Snapshot) -> String {
        self.probes.render(snapshot, self.process.started_at())
    }

    /// The exposition in Prometheus' text format 0.0.4.
    pub fn render(&self, scrape: &Scrape<'_>) -> String {
        self.count_pods(scrape.snapshot);
        self.own.event_source.clear();
        let mode = ModeLabel { mode: scrape.event_source.to_owned() };
        self.own.event_source.get_or_create(&mode).set(1);
        raise(&self.own.events_dropped, scrape.events_dropped);
        let timeline = Limit { limit: "timeline entries".to_owned() };
        raise(&self.own.limit_hits.get_or_create(&timeline), scrape.timeline_dropped);
        self.own.calls_in_flight.set(i64::try_from(scrape.calls_in_flight).unwrap_or(i64::MAX));
        self.process.read();
        let mut open_metrics = String::new();
        prometheus_client::encoding::text::encode(&mut open_metrics, &self.registry)
            .expect("writing to a string cannot fail");
        text::from_open_metrics(&open_metrics)
    }

    fn count_pods(&self, snapshot: &Snapshot) {
        let observed =
            || snapshot.pods.values().map(|view| &view.observed).chain(&snapshot.orphans);
        let with_sandbox = observed().filter(|o| o.sandboxes.iter().any(|s| s.ready)).count();
        self.pods.running.set(i64::try_from(with_sandbox).unwrap_or(i64::MAX));
        for (state, name) in [
            (RunState::Created, "created"),
            (RunState::Running, "running"),
            (RunState::Exited, "exited"),
            (RunState::Unknown, "unknown"),
        ] {
            let containers = observed().flat_map(|o| &o.containers);
            let count = containers.filter(|c| c.state == state).count();
            let label = State { container_state: name.to_owned() };
            let gauge = self.pods.containers.get_or_create(&label);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        for (is_static, name) in [(true, "true"), (false, "")] {
            let label = Static { r#static: name.to_owned() };
            let of_kind = || snapshot.pods.values().filter(|v| pod::is_static(&v.pod) == is_static);
            let active = of_kind().filter(|v| v.stage < Stage::Terminated).count();
            let desired = i64::try_from(of_kind().count()).unwrap_or(i64::MAX);
            self.pods.desired.get_or_create(&label).set(desired);
            self.pods.active.get_or_create(&label).set(i64::try_from(active).unwrap_or(i64::MAX));
        }
    }
}

impl Observer for Metrics {
    fn call_ended(&self, method: Method, outcome: Option<Code>, took: Duration) {
        let label = Operation { operation_type: operation(method) };
        self.operations.total.get_or_create(&label).inc();
        self.operations.seconds.get_or_create(&label).observe(took.as_secs_f64());
        // A stream that its reader closes has done its work.
        let fine = outcome == Some(Code::Ok) || (outcome.is_none() && method.is_stream());
        if !fine {
            self.operations.errors.get_or_create(&label).inc();
        }
        if outcome == Some(Code::ResourceExhausted) {
            self.limit_hit("runtime calls");
        }
    }
}

impl pintle_api::Observer for Metrics {
    fn sent(&self, sent: pintle_api::Sent<'_>) {
        self.api_requests.sent(sent);
    }

    fn limited(&self, method: &str, host: &str, waited: Duration) {
        self.api_requests.limited(method, host, waited);
    }

    fn plugin_ran(&self, good: bool) {
        self.api_requests.plugin_ran(good);
    }
}

/// Sets a counter that somebody else counts; such a source never goes down.
fn raise(counter: &Counter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}

/// The kubelet's name of a runtime call.
// k8s: pkg/kubelet/kuberuntime/instrumented_services.go
fn operation(method: Method) -> String {
    if method == Method::UpdateContainerResources {
        return "update_container".to_owned();
    }
    let name = method.name().replace("PodSandbox", "Podsandbox");
    let mut out = String::with_capacity(name.len() + 4);
    for (index, c) in name.char_indices() {
        if c.is_ascii_uppercase() && index > 0 {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

// k8s: pkg/kubelet/metrics/metrics.go Container, InitContainer, EphemeralContainer
fn container_type(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init | ContainerKind::Sidecar => "init_container",
        ContainerKind::Main => "container",
        ContainerKind::Ephemeral => "ephemeral_container",
    }
}

fn seen_at(pod: &Pod) -> Option<UnixNanos> {
    let text = pod::annotation(pod, pod::ANNOTATION_SEEN)?;
    let at: jiff::Timestamp = text.parse().ok()?;
    i64::try_from(at.as_nanosecond()).ok().map(UnixNanos)
}

#[cfg(test)]
mod tests;
