//! Gauges of the snapshot of all pods, counted at each scrape. Pure but for the gauges.
// k8s: pkg/kubelet/kubelet_pods.go HandlePodCleanups,
//      pkg/kubelet/volumemanager/metrics/metrics.go, pkg/kubelet/status/status_manager.go

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Volume;
use pintle_agent_core::observed::RunState;
use pintle_agent_core::view::{PodView, Snapshot};
use pintle_agent_core::worker::WorkerStage;
use pintle_api_types::pod;
use pintle_daemon::metrics::MetricNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::families::{State, Static};

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct Working {
    config: String,
    lifecycle: String,
    r#static: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Pending {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodVolumeGauges {
    plugin_name: String,
    state: String,
}

/// Handles of the families.
#[derive(Debug)]
pub(super) struct PodGauges {
    running: Gauge,
    containers: Family<State, Gauge>,
    desired: Family<Static, Gauge>,
    active: Family<Static, Gauge>,
    working: Family<Working, Gauge>,
    mirrors: Gauge,
    ephemeral: Gauge,
    pending_resizes: Family<Pending, Gauge>,
    resizes: Gauge,
    volumes: Family<PodVolumeGauges, Gauge>,
}

impl PodGauges {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            running: at.add(
                "kubelet_running_pods",
                "[ALPHA] Number of pods that have a running pod sandbox",
            ),
            containers: at.add(
                "kubelet_running_containers",
                "[ALPHA] Number of containers currently running",
            ),
            desired: at.add(
                "kubelet_desired_pods",
                "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if \
                 the pod is not from the apiserver.",
            ),
            active: at.add(
                "kubelet_active_pods",
                "[ALPHA] The number of pods the kubelet considers active and which are being \
                 considered when admitting new pods. static is true if the pod is not from the \
                 apiserver.",
            ),
            working: at.add(
                "kubelet_working_pods",
                "[ALPHA] Number of pods the kubelet is actually running, broken down by lifecycle \
                 phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and \
                 whether the pod is static. An orphaned pod has been removed from local configuration \
                 or force deleted in the API and consumes resources that are not otherwise visible.",
            ),
            mirrors: at.add(
                "kubelet_mirror_pods",
                "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted \
                 static pod)",
            ),
            ephemeral: at.add(
                "kubelet_managed_ephemeral_containers",
                "[ALPHA] Current number of ephemeral containers in pods managed by this kubelet.",
            ),
            pending_resizes: at
                .add("kubelet_pod_pending_resizes", "[ALPHA] Number of pending resizes for pods."),
            resizes: at.add(
                "kubelet_pod_in_progress_resizes",
                "[ALPHA] Number of in-progress resizes for pods.",
            ),
            volumes: at.add(
                "volume_manager_total_volumes",
                "[ALPHA] Number of volumes in Volume Manager",
            ),
        }
    }

    /// Counts; with `has_api` static pods have mirrors.
    pub(super) fn count(&self, snapshot: &Snapshot, has_api: bool) {
        self.count_observed(snapshot);
        let views = || snapshot.pods.values();
        let of_kind = |is_static| views().filter(move |v| pod::is_static(&v.pod) == is_static);
        for (is_static, name) in [(true, "true"), (false, "")] {
            let label = Static { r#static: name.to_owned() };
            let wanted = || of_kind(is_static).filter(|view| !view.removed);
            let active = wanted().filter(|view| view.stage < WorkerStage::Terminated).count();
            self.desired.get_or_create(&label).set(number(wanted().count()));
            self.active.get_or_create(&label).set(number(active));
        }
        // The mirror pod of a removed static pod is deleted when the pod has ended, and not before.
        let has_mirror = |view: &&PodView| !view.removed || view.stage < WorkerStage::Terminated;
        let mirrors = of_kind(true).filter(has_mirror).count();
        self.mirrors.set(if has_api { number(mirrors) } else { 0 });
        let debugged =
            views().filter_map(|view| view.pod.spec.as_ref()?.ephemeral_containers.as_ref());
        self.ephemeral.set(number(debugged.map(Vec::len).sum()));
        self.count_working(snapshot);
        self.count_resizes(snapshot);
        self.count_volumes(snapshot);
    }

    fn count_observed(&self, snapshot: &Snapshot) {
        let observed =
            || snapshot.pods.values().map(|view| &view.observed).chain(&snapshot.orphans);
        let with_sandbox = observed().filter(|o| o.sandboxes.iter().any(|s| s.ready)).count();
        self.running.set(number(with_sandbox));
        for (state, name) in [
            (RunState::Created, "created"),
            (RunState::Running, "running"),
            (RunState::Exited, "exited"),
            (RunState::Unknown, "unknown"),
        ] {
            let containers = observed().flat_map(|o| &o.containers);
            let count = containers.filter(|c| c.state == state).count();
            let label = State { container_state: name.to_owned() };
            // A state that no container was ever in has no series.
            if count > 0 || self.containers.get(&label).is_some() {
                self.containers.get_or_create(&label).set(number(count));
            }
        }
    }

    /// Every combination has its series, as in the kubelet.
    fn count_working(&self, snapshot: &Snapshot) {
        let mut counts: BTreeMap<Working, usize> = BTreeMap::new();
        let label = |config: &str, lifecycle: &str, r#static: &str| Working {
            config: config.to_owned(),
            lifecycle: lifecycle.to_owned(),
            r#static: r#static.to_owned(),
        };
        for lifecycle in ["sync", "terminating", "terminated"] {
            for (config, is_static) in [
                ("desired", "true"),
                ("desired", ""),
                ("orphan", "true"),
                ("orphan", ""),
                ("runtime_only", "unknown"),
            ] {
                counts.insert(label(config, lifecycle, is_static), 0);
            }
        }
        for view in snapshot.pods.values() {
            let config = if view.removed { "orphan" } else { "desired" };
            let is_static = if pod::is_static(&view.pod) { "true" } else { "" };
            *counts.entry(label(config, lifecycle(view.stage), is_static)).or_default() += 1;
        }
        *counts.entry(label("runtime_only", "terminating", "unknown")).or_default() +=
            snapshot.orphans.len();
        for (label, count) in counts {
            self.working.get_or_create(&label).set(number(count));
        }
    }

    fn count_resizes(&self, snapshot: &Snapshot) {
        let conditions =
            || snapshot.pods.values().flat_map(|v| v.status.conditions.iter().flatten());
        let under_way = conditions().filter(|c| c.type_ == "PodResizeInProgress");
        self.resizes.set(number(under_way.count()));
        self.pending_resizes.clear();
        for condition in conditions().filter(|c| c.type_ == "PodResizePending") {
            let reason = condition.reason.as_deref().unwrap_or_default().to_lowercase();
            self.pending_resizes.get_or_create(&Pending { reason }).inc();
        }
    }

    fn count_volumes(&self, snapshot: &Snapshot) {
        self.volumes.clear();
        for view in snapshot.pods.values() {
            // Volumes are set up before the sandbox is made, and stay until it is gone.
            let is_set_up = view.observed.sandboxes.iter().any(|sandbox| sandbox.ready);
            let is_wanted = !view.removed && view.stage < WorkerStage::Terminated;
            for volume in view.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
                let plugin = plugin(volume);
                for (is_in, state) in
                    [(is_set_up, "actual_state_of_world"), (is_wanted, "desired_state_of_world")]
                {
                    let (plugin_name, state) = (plugin.to_owned(), state.to_owned());
                    if is_in {
                        self.volumes.get_or_create(&PodVolumeGauges { plugin_name, state }).inc();
                    }
                }
            }
        }
    }
}

/// The kubelet's word for where a pod's worker stands.
// k8s: pkg/kubelet/pod_workers.go PodWorkerState
fn lifecycle(stage: WorkerStage) -> &'static str {
    match stage {
        WorkerStage::Waiting | WorkerStage::Syncing => "sync",
        WorkerStage::Terminating => "terminating",
        WorkerStage::Terminated | WorkerStage::Finished => "terminated",
    }
}

/// The kubelet's plugin that serves a volume; one that nothing here serves has none.
pub(super) fn plugin(volume: &Volume) -> &'static str {
    match volume {
        Volume { empty_dir: Some(_), .. } => "kubernetes.io/empty-dir",
        Volume { host_path: Some(_), .. } => "kubernetes.io/host-path",
        Volume { config_map: Some(_), .. } => "kubernetes.io/configmap",
        Volume { secret: Some(_), .. } => "kubernetes.io/secret",
        Volume { downward_api: Some(_), .. } => "kubernetes.io/downward-api",
        Volume { projected: Some(_), .. } => "kubernetes.io/projected",
        Volume { image: Some(_), .. } => "kubernetes.io/image",
        _ => "N/A",
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::testing::{snapshot_of, view};
    use serde_json::json;

    fn gauge<L: Clone + std::hash::Hash + Eq>(family: &Family<L, Gauge>, label: &L) -> Option<i64> {
        family.get(label).map(|gauge| gauge.get())
    }

    #[test]
    fn pods_are_counted_by_source_and_lifecycle_state() {
        let file = json!({"kubernetes.io/config.source": "file"});
        let mut registry = prometheus_client::registry::Registry::default();
        let pod_gauges = PodGauges::register(&mut MetricNames(&mut registry));
        let of_api = view(json!({"metadata": {"name": "a", "uid": "a"}, "spec": {"containers": [],
            "ephemeralContainers": [{"name": "d"}],
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]}}));
        let of_file = view(json!({"metadata": {"name": "f", "uid": "f", "annotations": file}}));
        let mut gone = view(json!({"metadata": {"name": "g", "uid": "g"}}));
        (gone.removed, gone.stage) = (true, WorkerStage::Terminating);
        let mut over =
            view(json!({"metadata": {"name": "o", "uid": "o"}, "spec": {"containers": [],
            "volumes": [{"name": "v", "emptyDir": {}}]}}));
        over.stage = WorkerStage::Finished;
        pod_gauges.count(&snapshot_of(vec![of_api, of_file, gone, over]), true);
        let of = |is_static: &str| Static { r#static: is_static.to_owned() };
        assert_eq!(gauge(&pod_gauges.desired, &of("")), Some(2), "the one that is over among them");
        assert_eq!(gauge(&pod_gauges.active, &of("")), Some(1));
        assert_eq!(gauge(&pod_gauges.active, &of("true")), Some(1));
        assert_eq!((pod_gauges.mirrors.get(), pod_gauges.ephemeral.get()), (1, 1));
        for (config, lifecycle, is_static, count) in [
            ("desired", "sync", "", 1),
            ("desired", "sync", "true", 1),
            ("desired", "terminated", "", 1),
            ("orphan", "terminating", "", 1),
            ("orphan", "sync", "", 0),
            ("runtime_only", "terminating", "unknown", 0),
        ] {
            let label = Working {
                config: config.to_owned(),
                lifecycle: lifecycle.to_owned(),
                r#static: is_static.to_owned(),
            };
            assert_eq!(gauge(&pod_gauges.working, &label), Some(count), "{label:?}");
        }
        let volumes = |state: &str| {
            let plugin_name = "kubernetes.io/empty-dir".to_owned();
            gauge(&pod_gauges.volumes, &PodVolumeGauges { plugin_name, state: state.to_owned() })
        };
        assert_eq!(volumes("desired_state_of_world"), Some(2), "not of the one that is over");
        assert_eq!(volumes("actual_state_of_world"), None, "there is no sandbox yet");
    }

    #[test]
    fn mirror_pod_is_counted_until_its_static_pod_is_removed_and_terminated() {
        let mut registry = prometheus_client::registry::Registry::default();
        let pod_gauges = PodGauges::register(&mut MetricNames(&mut registry));
        let file = json!({"kubernetes.io/config.source": "file"});
        for (removed, stage, mirrors) in [
            (false, WorkerStage::Syncing, 1),
            (false, WorkerStage::Finished, 1),
            (true, WorkerStage::Terminating, 1),
            (true, WorkerStage::Terminated, 0),
        ] {
            let pod = json!({"metadata": {"name": "f", "uid": "f", "annotations": file.clone()}});
            let view = PodView { removed, stage, ..view(pod) };
            pod_gauges.count(&snapshot_of(vec![view]), true);
            assert_eq!(pod_gauges.mirrors.get(), mirrors, "{removed} {stage:?}");
        }
    }

    #[test]
    fn resizes_are_counted_by_pending_reason_and_in_progress() {
        let mut registry = prometheus_client::registry::Registry::default();
        let pod_gauges = PodGauges::register(&mut MetricNames(&mut registry));
        let pod = |uid: &str, kind: &str, reason: &str| {
            view(json!({"metadata": {"name": uid, "uid": uid}, "status": {"conditions":
                [{"type": kind, "status": "True", "reason": reason}]}}))
        };
        let waiting = pod("a", "PodResizePending", "Deferred");
        let under_way = pod("b", "PodResizeInProgress", "");
        pod_gauges.count(&snapshot_of(vec![waiting, under_way]), false);
        let label = Pending { reason: "deferred".to_owned() };
        assert_eq!(gauge(&pod_gauges.pending_resizes, &label), Some(1));
        assert_eq!(pod_gauges.resizes.get(), 1);
        pod_gauges.count(&snapshot_of(Vec::new()), false);
        assert_eq!(gauge(&pod_gauges.pending_resizes, &label), None, "settled");
    }
}
