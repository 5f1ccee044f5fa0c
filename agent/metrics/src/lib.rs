//! Metrics of the agent, named as the kubelet's wherever it has the same one.
//!
//! Input: the ends of runtime calls (`Metrics` is a `pintle_cri::Observer`), what the driver
//! reports, and at each scrape a snapshot of the pods. Output: the Prometheus text exposition
//! (`text.rs` turns the library's OpenMetrics into the form that the kubelet serves). Shared by
//! the main thread, which counts, and the server's thread, which reads; counting never blocks on
//! a reader for longer than a map look-up. Bounds: one series per call of CRI, a handful of others,
//! and `lifecycle::PODS_MAX` pods that are followed.
//!
//! A number that can be read off the snapshot is computed when it is asked for, so that it can
//! never disagree with `/pods`.

#![forbid(unsafe_code)]

mod blocking;
mod certificates;
mod credential_providers;
mod families;
mod flight;
mod image_use;
mod images;
mod lifecycle;
mod memory_qos;
mod node;
mod pod_gauges;
mod probes;
mod requests;
mod start;
mod sync_loop;
mod volumes;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use pintle_cri::{Code, Method, Observer};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use families::{
    BUILD_HELP, Build, Limit, ModeLabel, NodeName, Operation, Operations, OwnMetrics,
    PLAIN_COUNTERS, Task, build_labels,
};

pub use self::credential_providers::CredentialProviders;
pub use self::flight::FlightCounts;
pub use self::images::ImageMetrics;
pub use self::probes::ProbeCounts;
pub use self::requests::UnderWay;
pub use self::start::StartStep;
pub use self::volumes::{CountedFrom, OfDriver};
pub use certificates::{CertificateCounts, CertificateOf};
use pintle_agent_config::FeatureGates;
use pintle_agent_core::cgroup::memory_qos::ClassRequests;
use pintle_agent_core::shutdown::ShutdownRecord;
use pintle_agent_core::sync::plan::Action;
use pintle_agent_core::types::{PodUid, UnixNanos};
use pintle_agent_core::view::Snapshot;
use pintle_agent_core::worker::{DecisionCount, Failure};
use pintle_api_types::pod;
use pintle_daemon::clock;
use pintle_daemon::metrics::{ApiRequests, MetricNames, ProcessMetrics, booted_at, exposition};
use pintle_daemon::tasks;

/// Values that exist only at the moment of a scrape.
#[derive(Clone, Copy, Debug)]
pub struct Scrape<'a> {
    /// The pods.
    pub snapshot: &'a Snapshot,
    /// There is an API server.
    pub has_api: bool,
    /// Source of events: `ebpf`, `pidfd`, `relist`.
    pub event_source: &'a str,
    /// Events lost since the start.
    pub events_dropped: u64,
    /// Timeline entries dropped since the start.
    pub timeline_dropped: u64,
    /// Runtime calls in flight.
    pub calls_in_flight: usize,
}

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    operations: Operations,
    pod_gauges: pod_gauges::PodGauges,
    lifecycle: lifecycle::LifecycleMetrics,
    node: node::NodeMetrics,
    image_use: image_use::ImageUse,
    start: start::StartMetrics,
    sync_loop: sync_loop::SyncLoopMetrics,
    own: OwnMetrics,
    process: ProcessMetrics,
    requests: requests::RequestMetrics,
    probes: ProbeCounts,
    api_requests: ApiRequests,
    credential_providers: CredentialProviders,
    images: ImageMetrics,
    volumes: volumes::VolumeMetrics,
    certificates: certificates::Certificates,
    blocking: blocking::Blocking,
    flight: FlightCounts,
}

impl Metrics {
    /// Metrics at zero, of the node of this name.
    pub fn new(node: &str) -> Self {
        let mut registry = Registry::default();
        let mut at = MetricNames(&mut registry);
        let build: Family<Build, Gauge> = at.add("kubernetes_build_info", BUILD_HELP);
        build.get_or_create(&build_labels()).set(1);
        let node_name: Family<NodeName, Gauge> =
            at.add("kubelet_node_name", "[ALPHA] The node's name. The count is always 1.");
        node_name.get_or_create(&NodeName { node: node.to_owned() }).set(1);
        at.put(
            "pintle_main_loop_stall_seconds",
            "How long the deciding thread was away: one round of all its tasks.",
            tasks::stalls().clone(),
        );
        at.put(
            "pintle_main_loop_busy_seconds",
            "The same without the time for which it was ready and others had the processors.",
            tasks::busy().clone(),
        );
        Self {
            operations: Operations::register(&mut at),
            pod_gauges: pod_gauges::PodGauges::register(&mut at),
            lifecycle: lifecycle::LifecycleMetrics::register(&mut at),
            node: node::NodeMetrics::register(&mut at),
            image_use: image_use::ImageUse::register(&mut at),
            start: start::StartMetrics::register(&mut at, booted_at(), clock::now()),
            sync_loop: sync_loop::SyncLoopMetrics::register(&mut at),
            own: OwnMetrics::register(&mut at),
            process: ProcessMetrics::register(&mut at),
            requests: requests::RequestMetrics::register(&mut at),
            probes: ProbeCounts::default(),
            api_requests: ApiRequests::register(&mut at),
            credential_providers: CredentialProviders::register(&mut at),
            images: ImageMetrics::register(&mut at),
            volumes: volumes::VolumeMetrics::register(&mut at),
            certificates: certificates::Certificates::default(),
            blocking: blocking::Blocking::register(&mut at),
            flight: FlightCounts::register(&mut at),
            registry,
        }
    }

    /// An action of a sync ended.
    pub fn action_ended(&self, action: &Action, failure: Option<&Failure>) {
        self.sync_loop.action_ended(action, failure);
    }

    /// A decision that is counted.
    pub fn counted(&self, count: &DecisionCount) {
        self.sync_loop.counted(count);
    }

    /// A sync of a pod begins; returns the operation for `sync_ended`.
    pub fn sync_begins(
        &self,
        uid: &PodUid,
        pod: Option<&Pod>,
        actions: &[Action],
        now: UnixNanos,
    ) -> &'static str {
        self.lifecycle.sync_begins(uid, pod, actions, now)
    }

    /// A sync ended.
    pub fn sync_ended(&self, operation: &str, took: Duration) {
        self.lifecycle.sync_ended(operation, took);
    }

    /// A pod's status was derived.
    pub fn published(&self, uid: &PodUid, pod: &Pod, status: &PodStatus, now: UnixNanos) {
        if !self.lifecycle.published(uid, pod, status, now) {
            self.limit_hit("timed pod starts");
        }
    }

    /// The API server shows a pod.
    pub fn shown(&self, copy: &Pod, now: UnixNanos) {
        self.lifecycle.shown(copy, now);
    }

    /// A pod waited this long for an image of this many bytes.
    pub fn pulled(&self, uid: &PodUid, took: Duration, bytes: u64) {
        self.lifecycle.pulled(uid, took);
        self.image_use.pulled(took, bytes);
    }

    /// A status was written to the API server, this long after it changed.
    pub fn status_written(&self, took: Duration) {
        self.lifecycle.written(took);
    }

    /// Nothing is left of a pod.
    pub fn gone(&self, uid: &PodUid) {
        self.lifecycle.gone(uid);
        self.probes.forget(uid);
    }

    /// A step of the node's start was reached.
    pub fn start_step(&self, step: StartStep) {
        self.start.step(step, clock::now());
    }

    /// Sets the host's cgroup version and the enabled features.
    pub fn settings(&self, cgroup_version: u8, gates: &FeatureGates) {
        self.node.cgroups(cgroup_version);
        self.node.features(gates);
    }

    /// Shows the requests of all pods that the node protects from reclaim.
    pub fn memory_protected(&self, requests: ClassRequests) {
        self.node.memory_qos.set_protected(requests);
    }

    /// A pod's cgroup was made (`create`), changed (`update`) or removed (`destroy`).
    pub fn cgroup(&self, operation: &str, took: Duration) {
        self.node.cgroup(operation, took);
    }

    /// A sandbox was asked for, of this runtime handler.
    pub fn sandbox(&self, handler: &str, took: Duration, good: bool) {
        self.node.sandbox(handler, took, good);
    }

    /// A pod with user ids of its own was begun; `good` when nothing of that failed.
    pub fn user_namespaced_pod(&self, good: bool) {
        self.node.user_namespaced_pod(good);
    }

    /// A pod's resize was carried out.
    pub fn resized(&self, took: Duration, good: bool) {
        self.node.resized(took, good);
    }

    /// A container was started, or could not be, that mounts this many image volumes in so many
    /// places.
    pub fn image_volumes(&self, requested: usize, mounted: usize, good: bool) {
        self.image_use.volumes(requested, mounted, good);
    }

    /// A hook over HTTPS was answered over HTTP.
    pub fn hook_fell_back(&self) {
        self.node.http_fallbacks.inc();
    }

    /// A sleeping hook was cut short.
    pub fn hook_cut(&self) {
        self.node.sleeps_cut.inc();
    }

    /// Directories of pods that are gone were looked for: how many went, how many could not go.
    pub fn orphan_dirs(&self, cleaned: usize, kept: usize) {
        self.node.orphans(cleaned, kept);
    }

    /// Records the stages of the node's last shutdown.
    pub fn shutdown(&self, record: &ShutdownRecord) {
        self.node.shutdown(record);
    }

    /// One pod was read.
    pub fn pod_read(&self, took: Duration) {
        self.sync_loop.pod_read(took);
    }

    /// The runtime's stream of events was opened, or could not be.
    pub fn event_stream(&self, good: bool) {
        self.sync_loop.event_stream(good);
    }

    /// An event of the runtime came in, this long after it happened.
    pub fn event_came(&self, took: Duration) {
        self.sync_loop.event_came(took);
    }

    /// All pods were listed at `now`.
    pub fn relisted(&self, now: UnixNanos, took: Duration) {
        self.sync_loop.relisted(now, took);
    }

    /// A bounded resource of this name was full.
    pub fn limit_hit(&self, limit: &str) {
        self.own.limit_hits.get_or_create(&Limit { limit: limit.to_owned() }).inc();
    }

    /// Number of times that this limit was reached.
    #[doc(hidden)]
    pub fn limit_hits(&self, limit: &str) -> u64 {
        self.own.limit_hits.get_or_create(&Limit { limit: limit.to_owned() }).get()
    }

    /// A request came in at a server (`readwrite`, `readonly`); to be dropped when it is answered.
    pub fn http_request(&self, server: &str, method: &str, path: &str) -> UnderWay {
        self.requests.begun(server, method, path)
    }

    /// A WebSocket to this subresource is translated here.
    pub fn websocket_stream(&self, subresource: &str) {
        self.requests.websocket(subresource);
    }

    /// Counts of credential provider plugins.
    pub fn credential_providers(&self) -> &CredentialProviders {
        &self.credential_providers
    }

    /// Counts of the flight recorder.
    pub fn flight(&self) -> &FlightCounts {
        &self.flight
    }

    /// Counts of images.
    pub fn images(&self) -> &ImageMetrics {
        &self.images
    }

    /// Counts of a certificate that is rotated.
    pub fn certificate(&self, which: CertificateOf) -> CertificateCounts {
        self.certificates.of(which)
    }

    /// A volume's use was counted.
    pub fn volume_counted(&self, from: CountedFrom<'_>, took: Duration) {
        self.volumes.counted(from, took);
    }

    /// A call to a CSI driver ended with this code of gRPC.
    pub fn driver_called(
        &self,
        of: OfDriver<'_>,
        method: &'static str,
        code: &'static str,
        took: Duration,
    ) {
        self.volumes.called(of, method, code, took);
    }

    /// An operation on a volume of a CSI driver ended, by the kubelet's name of it.
    pub fn volume_operated(
        &self,
        of: OfDriver<'_>,
        name: &'static str,
        good: bool,
        took: Duration,
    ) {
        self.volumes.operated(of, name, good, took);
    }

    /// Counts of probes, for the prober.
    pub fn probes(&self) -> ProbeCounts {
        self.probes.clone()
    }

    /// The exposition of probes alone.
    pub fn render_probes(&self, snapshot: &Snapshot) -> String {
        self.probes.render(snapshot, self.process.started_at())
    }

    /// When the process began, as the smaller expositions show it.
    pub fn render_start(&self) -> String {
        probes::start_of_process(self.process.started_at())
    }

    /// The exposition in Prometheus' text format 0.0.4.
    pub fn render(&self, scrape: &Scrape<'_>) -> String {
        self.pod_gauges.count(scrape.snapshot, scrape.has_api);
        self.own.event_source.clear();
        let mode = ModeLabel { mode: scrape.event_source.to_owned() };
        self.own.event_source.get_or_create(&mode).set(1);
        raise(&self.own.events_dropped, scrape.events_dropped);
        self.sync_loop.events_dropped(scrape.events_dropped);
        let timeline = Limit { limit: "timeline entries".to_owned() };
        raise(&self.own.limit_hits.get_or_create(&timeline), scrape.timeline_dropped);
        for (task, count) in tasks::panics() {
            raise(&self.own.panics.get_or_create(&Task { task: task.to_owned() }), count);
        }
        self.own.calls_in_flight.set(i64::try_from(scrape.calls_in_flight).unwrap_or(i64::MAX));
        self.process.read();
        self.blocking.read(&pintle_daemon::blocking::Pool::of_process());
        let certificates = self.certificates.render(jiff::Timestamp::now().as_second());
        exposition(&self.registry, &PLAIN_COUNTERS) + &certificates
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

    fn received(&self, method: &str, host: &str, bytes: u64) {
        self.api_requests.received(method, host, bytes);
    }

    fn limited(&self, method: &str, host: &str, waited: Duration) {
        self.api_requests.limited(method, host, waited);
    }

    fn plugin_ran(&self, run: pintle_api::PluginRun) {
        self.api_requests.plugin_ran(run);
    }
}

/// Raises a counter to a total from another source, which never goes down.
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

fn seen_at(pod: &Pod) -> Option<UnixNanos> {
    let text = pod::annotation(pod, pod::ANNOTATION_SEEN)?;
    let at: jiff::Timestamp = text.parse().ok()?;
    i64::try_from(at.as_nanosecond()).ok().map(UnixNanos)
}

#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
