//! Metrics of kube-scheduler, under upstream's names.
//!
//! Input: what the scheduler did. Output: families of Prometheus. Owner: shared; each is a few
//! atomics.
//! Bounds: labels are results, queues, plugins and the profile's name.
// k8s: pkg/scheduler/metrics/metrics.go

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use pintle_config::gates::GateState;
use pintle_daemon::metrics::{
    ApiRequests, Leading, MetricNames, ProcessMetrics, exposition, register_component,
};
use pintle_sched_core::{Plugin, Profile};
use pintle_scheduler_core::cycle::Batches;
use pintle_scheduler_core::queue::{Moved, QueuePlace};
use pintle_scheduler_core::watch_event::WatchedKind;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::attempt_metrics::{AttemptLabel, AttemptMetrics};
use super::batch_metrics::OfBatches;
use super::device_metrics::OfConditions;
use super::group_metrics::OfGroups;
pub use super::net_metrics::NetMetrics;
use super::plugin_metrics::OfPlugins;

const PENDING_HELP: &str = "[STABLE] Number of pending pods, by the queue type. 'active' means \
    number of pods in activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' means \
    number of pods in unschedulablePods that the scheduler attempted to schedule and failed; 'gated' \
    is the number of unschedulable pods that the scheduler never attempted to schedule because they \
    are gated.";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct In {
    queue: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Move {
    queue: &'static str,
    event: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RejectedBy {
    plugin: &'static str,
    profile: Arc<str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AtPoint {
    extension_point: &'static str,
    status: &'static str,
    profile: Arc<str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Doing {
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Of {
    r#type: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfKind {
    kind: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Permitted {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Handled {
    event: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EventCount {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Made {
    status: &'static str,
}

/// Buckets that double.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubling(pub(super) f64, pub(super) u16);

impl MetricConstructor<Histogram> for Doubling {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(self.0, 2.0, self.1))
    }
}

pub(super) type Histograms<L> = Family<L, Histogram, Doubling>;

impl pintle_api::Observer for SchedulerMetrics {
    fn sent(&self, sent: pintle_api::Sent<'_>) {
        self.requests.sent(sent);
    }

    fn received(&self, method: &str, host: &str, bytes: u64) {
        self.requests.received(method, host, bytes);
    }

    fn limited(&self, method: &str, host: &str, waited: Duration) {
        self.requests.limited(method, host, waited);
    }

    fn plugin_ran(&self, run: pintle_api::PluginRun) {
        self.requests.plugin_ran(run);
    }
}

/// Metrics of pending pods.
struct OfWaiting {
    permits: Histograms<Permitted>,
    moves: Family<Move, Counter>,
    rejected: Family<RejectedBy, Gauge<i64, AtomicI64>>,
    doing: Family<Doing, Gauge<i64, AtomicI64>>,
    pending: Family<In, Gauge<i64, AtomicI64>>,
    cache: Family<Of, Gauge<i64, AtomicI64>>,
    unreadable: Family<OfKind, Gauge<i64, AtomicI64>>,
}

impl OfWaiting {
    fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            permits: at.put(
                "scheduler_permit_wait_duration_seconds",
                "[BETA] Duration of waiting on permit.",
                Family::new_with_constructor(Doubling(0.001, 15)),
            ),
            moves: at.add(
                "scheduler_queue_incoming_pods",
                "[STABLE] Number of pods added to scheduling queues by event and queue type.",
            ),
            rejected: at.add(
                "scheduler_unschedulable_pods",
                "[BETA] The number of unschedulable pods broken down by plugin name. A pod will increment \
                 the gauge for all plugins that caused it to not schedule and so this metric have \
                 meaning only when broken down by plugin.",
            ),
            doing: at.add(
                "scheduler_goroutines",
                "[BETA] Number of running goroutines split by the work they do such as binding.",
            ),
            pending: at.add(
                "scheduler_pending_pods",
                PENDING_HELP,
            ),
            cache: at.add(
                "scheduler_cache_size",
                "[ALPHA] Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
            ),
            unreadable: at.add(
                "pintle_unreadable_objects",
                "Objects of the API of which something cannot be read, by kind; what can be read of pods \
                 counts.",
            ),
        }
    }
}

/// Metrics of watch events, and of preemption and claims in the API.
struct OfEvents {
    handled: Histograms<Handled>,
    kept: Family<Handled, Gauge<i64, AtomicI64>>,
    room_seconds: Histograms<EventCount>,
    room_made: Family<EventCount, Counter>,
    claims_made: Family<Made, Counter>,
}

impl OfEvents {
    fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            handled: at.put(
                "scheduler_event_handling_duration_seconds",
                "[ALPHA] Event handling latency in seconds.",
                Family::new_with_constructor(Doubling(0.0001, 12)),
            ),
            kept: at.add(
                "scheduler_inflight_events",
                "[ALPHA] Number of events currently tracked in the scheduling queue.",
            ),
            room_seconds: at.put(
                "scheduler_preemption_goroutines_duration_seconds",
                "[ALPHA] Duration in seconds for running goroutines for the preemption.",
                Family::new_with_constructor(Doubling(0.01, 20)),
            ),
            room_made: at.add(
                "scheduler_preemption_goroutines_execution",
                "[ALPHA] Number of preemption goroutines executed.",
            ),
            claims_made: at.add(
                "scheduler_resourceclaim_creates",
                "[ALPHA] Number of ResourceClaims creation requests within scheduler",
            ),
        }
    }
}

/// All metrics of the scheduler.
pub struct SchedulerMetrics {
    registry: Registry,
    process: ProcessMetrics,
    profiles: Vec<Arc<str>>,
    attempts: AttemptMetrics,
    preemptions: Counter,
    victims: Histogram,
    points: Histograms<AtPoint>,
    waiting: OfWaiting,
    events: OfEvents,
    plugins: OfPlugins,
    batches: OfBatches,
    conditions: OfConditions,
    groups: Option<OfGroups>,
    leads: Leading,
    /// Metrics of attempts that exceeded a limit or panicked.
    pub net: NetMetrics,
    requests: ApiRequests,
}

impl std::fmt::Debug for SchedulerMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SchedulerMetrics").finish_non_exhaustive()
    }
}

impl SchedulerMetrics {
    /// All at zero.
    pub fn new(profiles: &[Profile], gates: &[GateState], has_groups: bool) -> Self {
        let mut registry = Registry::default();
        let mut at = MetricNames(&mut registry);
        register_component(&mut at, gates);
        let metrics = Self {
            process: ProcessMetrics::register(&mut at),
            requests: ApiRequests::register(&mut at),
            profiles: profiles.iter().map(|p| p.scheduler_name.as_str().into()).collect(),
            net: NetMetrics::register(&mut at),
            attempts: AttemptMetrics::register(&mut at),
            preemptions: at.add(
                "scheduler_preemption_attempts",
                "[STABLE] Total preemption attempts in the cluster till now",
            ),
            victims: at.put(
                "scheduler_preemption_victims",
                "[STABLE] Number of selected preemption victims",
                Histogram::new(exponential_buckets(1.0, 2.0, 7)),
            ),
            points: at.put(
                "scheduler_framework_extension_point_duration_seconds",
                "[STABLE] Latency for running all plugins of a specific extension point.",
                Family::new_with_constructor(Doubling(0.0001, 12)),
            ),
            waiting: OfWaiting::register(&mut at),
            events: OfEvents::register(&mut at),
            plugins: OfPlugins::register(&mut at),
            batches: OfBatches::register(&mut at),
            conditions: OfConditions::register(&mut at),
            groups: has_groups.then(|| OfGroups::register(&mut at)),
            leads: Leading::register(&mut at),
            registry: Registry::default(),
        };
        Self { registry, ..metrics }
    }

    fn attempt(&self, profile: usize, result: &'static str, took: Duration) {
        let label = AttemptLabel { result, profile: Arc::clone(&self.profiles[profile]) };
        self.attempts.ended(&label, took);
    }

    /// A pod of the profile of this number was bound; `took` is the time since the successful
    /// attempt began, `all` the time since its first attempt.
    pub fn bound(
        &self,
        profile: usize,
        took: Duration,
        all: Duration,
        attempts: u32,
        was_flushed: bool,
    ) {
        self.attempt(profile, "scheduled", took);
        self.attempts.bound(all, attempts, was_flushed);
    }

    /// A pod got no node, because of an error or because no node fits.
    pub fn refused(&self, profile: usize, is_error: bool, took: Duration) {
        self.attempt(profile, if is_error { "error" } else { "unschedulable" }, took);
    }

    /// A search for a node ended.
    pub fn decided(&self, took: Duration) {
        self.attempts.decided(took);
    }

    /// A pod group of the profile of this number was decided.
    pub fn group(&self, profile: usize, result: &'static str, took: Duration) {
        if let Some(groups) = &self.groups {
            let label = AttemptLabel { result, profile: Arc::clone(&self.profiles[profile]) };
            groups.decided(&label, took);
        }
    }

    /// All plugins of a point have run for a pod of the profile of this number.
    pub fn at_point(
        &self,
        point: &'static str,
        status: &'static str,
        profile: usize,
        took: Duration,
    ) {
        let profile = Arc::clone(&self.profiles[profile]);
        let label = AtPoint { extension_point: point, status, profile };
        self.points.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// A plugin ran at a point, with this status.
    pub fn plugin(&self, plugin: &str, point: &'static str, status: &'static str, took: Duration) {
        self.plugins.ran(plugin, point, status, took);
    }

    /// A plugin of the profile of this number was called so many times at a point.
    pub fn evaluated(&self, plugin: &str, point: &'static str, profile: usize, times: u64) {
        self.plugins.evaluated(plugin, point, &self.profiles[profile], times);
    }

    /// Counts the results that decisions reused from earlier ones, by the number of their profile.
    pub fn batches(&self, all: &[Batches]) {
        for (batches, profile) in all.iter().zip(&self.profiles) {
            self.batches.count(batches, profile);
        }
    }

    /// Binding the volumes of a pod failed.
    pub fn volumes_failed(&self) {
        self.plugins.volumes_failed();
    }

    /// Counts moves of pods in the queue, pods rejected by plugins, and bindings in flight.
    pub fn queue(
        &self,
        moved: BTreeMap<Moved, u64>,
        rejected: &BTreeMap<(Plugin, usize), usize>,
        binding: usize,
    ) {
        for ((queue, event), count) in moved {
            self.waiting.moves.get_or_create(&Move { queue, event }).inc_by(count);
        }
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for ((plugin, profile), count) in rejected {
            let profile = Arc::clone(&self.profiles[*profile]);
            let label = RejectedBy { plugin: plugin.name(), profile };
            self.waiting.rejected.get_or_create(&label).set(signed(*count));
        }
        self.waiting.doing.get_or_create(&Doing { operation: "binding" }).set(signed(binding));
    }

    /// A search for victims was made.
    pub fn tried_to_preempt(&self) {
        self.preemptions.inc();
    }

    /// Room was made.
    pub fn preempted(&self, victims: usize) {
        self.victims.observe(victims as f64);
    }

    /// A pod has waited for Permit plugins.
    pub fn permitted(&self, result: &'static str, took: Duration) {
        self.waiting.permits.get_or_create(&Permitted { result }).observe(took.as_secs_f64());
    }

    /// Counts a pod of the profile of this number that has waited for binding conditions: the
    /// driver of each device, and true if it has any.
    pub fn prepared(
        &self,
        profile: usize,
        status: &'static str,
        took: Duration,
        devices: Vec<(String, bool)>,
    ) {
        self.conditions.ended(&self.profiles[profile], status, took, devices);
    }

    /// Sets the number of pods in each queue, and the number of cached nodes, bound pods and
    /// assumed pods. Upstream counts assumed pods as pods too.
    // k8s: pkg/scheduler/backend/cache/cache.go updateMetrics
    pub fn counts(&self, at: impl Fn(QueuePlace) -> usize, [nodes, bound, assumed]: [usize; 3]) {
        let put = |queue, count: usize| {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.waiting.pending.get_or_create(&In { queue }).set(count);
        };
        put("active", at(QueuePlace::Active));
        put("backoff", at(QueuePlace::Backoff) + at(QueuePlace::ErrorBackoff));
        put("unschedulable", at(QueuePlace::Unschedulable));
        put("gated", at(QueuePlace::Gated));
        let pods = bound + assumed;
        for (r#type, count) in [("nodes", nodes), ("pods", pods), ("assumed_pods", assumed)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.waiting.cache.get_or_create(&Of { r#type }).set(count);
        }
    }

    /// Records the handling of a watch event.
    pub fn handled(&self, event: &'static str, took: Duration) {
        self.events.handled.get_or_create(&Handled { event }).observe(took.as_secs_f64());
    }

    /// Sets the number of events kept for pods in an attempt.
    pub fn set_in_flight_events(&self, events: BTreeMap<&'static str, usize>) {
        self.events.kept.clear();
        for (event, count) in events {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.events.kept.get_or_create(&Handled { event }).set(count);
        }
    }

    /// Preemption succeeded or failed.
    pub fn made_room(&self, is_made: bool, took: Duration) {
        let came = EventCount { result: if is_made { "success" } else { "error" } };
        self.events.room_seconds.get_or_create(&came).observe(took.as_secs_f64());
        self.events.room_made.get_or_create(&came).inc();
    }

    /// A claim for extended resources was created, or that failed.
    pub fn made_claim(&self, is_made: bool) {
        let made = Made { status: if is_made { "success" } else { "failure" } };
        self.events.claims_made.get_or_create(&made).inc();
    }

    /// Sets the number of objects that could not be decoded completely.
    pub fn unreadable(&self, counts: BTreeMap<WatchedKind, usize>) {
        for (kind, count) in counts {
            let label = OfKind { kind: format!("{kind:?}") };
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.waiting.unreadable.get_or_create(&label).set(count);
        }
    }

    /// Sets whether this process leads. The name is upstream's, whatever that of the lease.
    // k8s: cmd/kube-scheduler/app/options/options.go makeLeaderElectionConfig
    pub fn leads(&self, leads: bool) {
        self.leads.set("kube-scheduler", leads);
    }

    /// Returns the text of a scrape.
    pub fn text(&self) -> String {
        self.process.read();
        self.net.read();
        exposition(&self.registry, &[])
    }
}
