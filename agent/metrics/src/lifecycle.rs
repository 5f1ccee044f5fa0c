//! A pod's lifecycle in numbers: seen, set up, running, status written, ended.
//!
//! Input: the driver's syncs and statuses, the API server's copies. Output: durations and counts.
//! Bounds: `PODS_MAX` pods are followed; what is known of one goes with it.
// k8s: pkg/kubelet/pod_workers.go, pkg/kubelet/util/pod_startup_latency_tracker.go,
//      pkg/kubelet/status/status_manager.go

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    ContainerStateTerminated, ContainerStatus, Pod, PodStatus, Volume,
};
use pintle_agent_core::status::{RUNNING, is_terminal};
use pintle_agent_core::sync::plan::Action;
use pintle_agent_core::types::{PodUid, UnixNanos};
use pintle_api_types::pod;
use pintle_daemon::metrics::MetricNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::families::{POD_START_SECONDS, SECONDS};
use super::seen_at;

/// Pods that are followed at once.
const PODS_MAX: usize = 4096;
/// Upper bounds of the time until a status is written, in seconds.
const STATUS_SECONDS: [f64; 11] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
const START_HELP: &str = "including time to pull images and run init containers, measured from pod \
                          creation timestamp to when all its containers are reported as started \
                          and observed via watch";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SyncOf {
    operation_type: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndedPod {
    container_type: String,
    exit_code: String,
    reason: String,
}

/// A label set without labels: the kubelet's family is a vector of none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NoLabels {}

/// The known state of a pod.
#[derive(Debug, Default)]
struct FollowedPod {
    /// Its start was counted.
    ran: bool,
    /// A status was derived.
    published: bool,
    /// A sync was begun for it.
    began: bool,
    /// The generation of its spec at the last sync.
    generation: Option<i64>,
    /// Containers with a counted end, by kind and name.
    ended: BTreeMap<(&'static str, String), bool>,
    /// Its start as the API server shows it.
    start: PodStart,
    /// Time that it spent pulling images and in init containers.
    spared: Duration,
}

/// The start of a pod that the API server shows to us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PodStart {
    /// Not seen, or seen when it had begun already: its duration is unknown.
    #[default]
    Unknown,
    /// Seen before it was begun.
    Seen,
    /// Its time was noted.
    Counted,
}

/// Handles of the families.
#[derive(Debug)]
pub(super) struct LifecycleMetrics {
    pod_seconds: Histogram,
    containers_per_pod: Histogram,
    sync_seconds: Family<SyncOf, Histogram, fn() -> Histogram>,
    begin_seconds: Histogram,
    sli_seconds: Family<NoLabels, Histogram, fn() -> Histogram>,
    total_seconds: Family<NoLabels, Histogram, fn() -> Histogram>,
    first_network: Gauge<f64, AtomicU64>,
    status_seconds: Histogram,
    ended: Family<EndedPod, Counter>,
    followed: Mutex<BTreeMap<PodUid, FollowedPod>>,
}

impl LifecycleMetrics {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        let starts = || -> Family<NoLabels, Histogram, fn() -> Histogram> {
            Family::new_with_constructor(|| Histogram::new(POD_START_SECONDS))
        };
        let sli_help = START_HELP.replace("including", "excluding");
        Self {
            pod_seconds: at.put(
                "kubelet_pod_start_duration_seconds",
                "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod \
                 starting to run",
                Histogram::new(POD_START_SECONDS),
            ),
            containers_per_pod: at.put(
                "kubelet_containers_per_pod_count",
                "[ALPHA] The number of containers per pod.",
                Histogram::new(exponential_buckets(1.0, 2.0, 5)),
            ),
            sync_seconds: at.put(
                "kubelet_pod_worker_duration_seconds",
                "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: \
                 create, update, or sync",
                Family::new_with_constructor(|| Histogram::new(SECONDS)),
            ),
            begin_seconds: at.put(
                "kubelet_pod_worker_start_duration_seconds",
                "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.",
                Histogram::new(SECONDS),
            ),
            sli_seconds: at.put(
                "kubelet_pod_start_sli_duration_seconds",
                &format!("[ALPHA] Duration in seconds to start a pod, {sli_help}"),
                starts(),
            ),
            total_seconds: at.put(
                "kubelet_pod_start_total_duration_seconds",
                &format!("[ALPHA] Duration in seconds to start a pod since creation, {START_HELP}"),
                starts(),
            ),
            first_network: at.add(
                "kubelet_first_network_pod_start_sli_duration_seconds",
                &format!("[INTERNAL] Duration in seconds to start the first network pod, {sli_help}"),
            ),
            status_seconds: at.put(
                "kubelet_pod_status_sync_duration_seconds",
                "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection \
                 of a change to pod status until the API is successfully updated for that pod, even if \
                 multiple intevening changes to pod status occur.",
                Histogram::new(STATUS_SECONDS),
            ),
            ended: at.add(
                "kubelet_terminated_containers",
                "[ALPHA] Cumulative number of container terminations.",
            ),
            followed: Mutex::default(),
        }
    }

    /// A sync begins; returns the name under which its duration is counted.
    pub(super) fn sync_begins(
        &self,
        uid: &PodUid,
        pod: Option<&Pod>,
        actions: &[Action],
        now: UnixNanos,
    ) -> &'static str {
        let ends = |action: &Action| matches!(action, Action::KillPod { .. } | Action::Teardown);
        let generation = pod.and_then(|pod| pod.metadata.generation);
        let first = self.with(uid, |followed| {
            let first = !std::mem::replace(&mut followed.began, true);
            let changed = std::mem::replace(&mut followed.generation, generation) != generation;
            (first, changed)
        });
        if let (Some((true, _)), Some(pod)) = (first, pod) {
            let containers = u32::try_from(pod::spec(pod).containers.len()).unwrap_or(u32::MAX);
            self.containers_per_pod.observe(f64::from(containers));
            if let Some(seen) = seen_at(pod) {
                self.begin_seconds.observe(now.since(seen).as_secs_f64());
            }
        }
        match first {
            _ if actions.iter().any(ends) => "kill",
            _ if actions.iter().any(|action| matches!(action, Action::Cleanup)) => "terminated",
            Some((true, _)) => "create",
            Some((_, true)) => "update",
            _ => "sync",
        }
    }

    /// A sync ended.
    pub(super) fn sync_ended(&self, operation: &str, took: Duration) {
        let label = SyncOf { operation_type: operation.to_owned() };
        self.sync_seconds.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// A pod's status was derived: times its way to running, counts ends of containers. False when
    /// there are too many pods to follow.
    // k8s: pkg/kubelet/kubelet.go SyncPod; status_manager.go updateStatusInternal
    pub(super) fn published(
        &self,
        uid: &PodUid,
        pod: &Pod,
        status: &PodStatus,
        now: UnixNanos,
    ) -> bool {
        let runs = status.phase.as_deref() == Some(RUNNING);
        let mut ends = Vec::new();
        let begins_to_run = self.with(uid, |followed| {
            if !std::mem::replace(&mut followed.published, true) {
                // Ends in a status from before the agent started were already counted.
                let told = pod.status.as_ref().into_iter().flat_map(containers);
                let told = told.map(|(kind, c)| ((kind, c.name.clone()), end_of(c).is_some()));
                followed.ended.extend(told);
            }
            for (kind, container) in containers(status) {
                let end = end_of(container);
                let known = followed.ended.insert((kind, container.name.clone()), end.is_some());
                ends.extend(end.filter(|_| known != Some(true)).map(|end| (kind, end.clone())));
            }
            let first = runs && !followed.ran;
            followed.ran |= runs;
            first
        });
        for (kind, end) in ends {
            let label = EndedPod {
                container_type: kind.to_owned(),
                exit_code: end.exit_code.to_string(),
                reason: end.reason.unwrap_or_default(),
            };
            self.ended.get_or_create(&label).inc();
        }
        if let (Some(true), Some(seen)) = (begins_to_run, seen_at(pod)) {
            self.pod_seconds.observe(now.since(seen).as_secs_f64());
        }
        begins_to_run.is_some()
    }

    /// The API server shows a pod: the only measure of how long its users waited.
    // k8s: pkg/kubelet/util/pod_startup_latency_tracker.go ObservedPodOnWatch
    pub(super) fn shown(&self, copy: &Pod, now: UnixNanos) {
        let none = PodStatus::default();
        let status = copy.status.as_ref().unwrap_or(&none);
        if is_terminal(status.phase.as_deref()) || pod::is_mirror(copy) {
            return;
        }
        let spared = self.with(&pod::uid(copy), |followed| match followed.start {
            PodStart::Unknown if status.start_time.is_none() => {
                followed.start = PodStart::Seen;
                None
            }
            PodStart::Seen if all_started(status) => {
                followed.start = PodStart::Counted;
                Some(followed.spared + init_time(status))
            }
            _ => None,
        });
        let created = copy.metadata.creation_timestamp.as_ref();
        let created = created.and_then(|at| i64::try_from(at.0.as_nanosecond()).ok());
        let (Some(Some(spared)), Some(created)) = (spared, created) else { return };
        let total = now.since(UnixNanos(created));
        let sli = total.saturating_sub(spared).as_secs_f64();
        self.total_seconds.get_or_create(&NoLabels {}).observe(total.as_secs_f64());
        if pod::spec(copy).volumes.iter().flatten().any(holds_state) {
            return;
        }
        self.sli_seconds.get_or_create(&NoLabels {}).observe(sli);
        if !pod::uses_host_network(copy) && self.first_network.get() == 0.0 {
            self.first_network.set(sli);
        }
    }

    /// The pod waited this long for an image.
    pub(super) fn pulled(&self, uid: &PodUid, took: Duration) {
        self.with(uid, |followed| followed.spared += took);
    }

    /// A status was written, this long after it changed.
    pub(super) fn written(&self, took: Duration) {
        self.status_seconds.observe(took.as_secs_f64());
    }

    /// Nothing is left of a pod.
    pub(super) fn gone(&self, uid: &PodUid) {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// `None` when there are too many pods already.
    fn with<T>(&self, uid: &PodUid, change: impl FnOnce(&mut FollowedPod) -> T) -> Option<T> {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if followed.len() >= PODS_MAX && !followed.contains_key(uid) {
            return None;
        }
        Some(change(followed.entry(uid.clone()).or_default()))
    }
}

fn containers(status: &PodStatus) -> impl Iterator<Item = (&'static str, &ContainerStatus)> {
    let lists = [
        ("init_container", &status.init_container_statuses),
        ("container", &status.container_statuses),
        ("ephemeral_container", &status.ephemeral_container_statuses),
    ];
    lists.into_iter().flat_map(|(kind, list)| list.iter().flatten().map(move |c| (kind, c)))
}

fn end_of(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

fn all_started(status: &PodStatus) -> bool {
    let mut all = status.container_statuses.iter().flatten().peekable();
    let runs = |c: &ContainerStatus| c.state.as_ref().is_some_and(|state| state.running.is_some());
    all.peek().is_some() && all.all(runs)
}

/// Time in init containers that have ended, one after the other.
fn init_time(status: &PodStatus) -> Duration {
    let ends = status.init_container_statuses.iter().flatten();
    let ends = ends.filter_map(|c| c.state.as_ref()?.terminated.as_ref());
    ends.filter_map(|end| {
        let (begun, ended) = (end.started_at.as_ref()?, end.finished_at.as_ref()?);
        u64::try_from(ended.0.as_second() - begun.0.as_second()).ok().map(Duration::from_secs)
    })
    .sum()
}

/// A volume with data of its own: upstream leaves such pods out of its startup objective.
// k8s: pkg/kubelet/util/pod_startup_latency_tracker.go isStatefulPod
fn holds_state(volume: &Volume) -> bool {
    volume.secret.is_none()
        && volume.config_map.is_none()
        && volume.downward_api.is_none()
        && volume.empty_dir.is_none()
        && volume.projected.is_none()
}
