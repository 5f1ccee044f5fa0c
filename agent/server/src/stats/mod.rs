//! Usage of the node, its pods and containers: `/stats/summary` and the metrics endpoints.
//!
//! Input: cgroup files (a thread of its own, `sweep`), the runtime's figures for images and
//! writable layers, file systems, volumes (another thread, `volumes`), snapshots. Output: JSON and
//! Prometheus' text. `summary`, `resource`, `cadvisor`, `targets`, `network` and `text` are pure.
//! Nothing is read without a request; a reading is reused for `FRESH_FOR`. Concurrent requests
//! share one reading.

mod cadvisor;
mod claim_metrics;
mod claimed;
mod driver_stats;
mod du;
mod figures;
mod files;
mod known;
mod layers;
mod logs;
mod machine;
mod network;
mod pods;
mod resource;
mod summary;
mod sweep;
mod targets;
#[cfg(test)]
mod testing;
mod text;
mod volumes;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use pintle_agent_config::Config;
use pintle_agent_core::cgroup::names::CgroupSetup;
use pintle_agent_core::request::runtime::RuntimeFacts;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::UnixNanos;
use pintle_agent_core::view::Snapshot;
use pintle_agent_core::volume::ClaimViews;
use pintle_agent_host::node::context::cgroup_setup;
use pintle_agent_host::node::facts::kib;
use pintle_agent_host::pressure;
use pintle_agent_host::volume::project;
use pintle_agent_metrics::Metrics;
use pintle_agent_plugins::Drivers;
use pintle_cri::{Client, v1};
use pintle_daemon::clock;
use pintle_daemon::serve::answer::HttpAnswer;
use tokio::sync::{Mutex, OnceCell};

use super::ServerParts;
use crate::Views;
use figures::VolumeFigures;
use files::{FileSystem, FileUsage};
use known::NodeFileValue;
use layers::Layers;
use machine::MachineStats;
pub use pods::PodGauge;
use summary::{NodeFigures, StorageStats};
use sweep::{RATE_MIN, ReadingKind, Sweep, Sweeper};

/// How long a reading is reused.
const FRESH_FOR: Duration = Duration::from_secs(5);
/// How long figures of the runtime and of file systems are reused.
const STORAGE_FRESH_FOR: Duration = Duration::from_secs(10);

/// The threads that read cgroups and count volumes, and the query for writable layers, for the
/// statistics and for eviction ranking.
#[derive(Clone, Debug)]
pub struct Gauges {
    /// Absent without cgroups.
    sweeper: Option<Sweeper>,
    /// Absent when volumes are not to be counted.
    volumes: Option<Arc<volumes::Counter>>,
    layers: Arc<Layers>,
    /// Absent when volumes are not to be counted.
    figures: Option<VolumeFigures>,
}

/// Feature gate of the health of volumes, as CSI drivers report it.
const HEALTH_GATE: &str = "CSIVolumeHealth";

/// The volumes of pods, for their figures.
#[derive(Clone, Debug, Default)]
pub struct VolumeSources {
    /// Resolved claims.
    pub claims: ClaimViews,
    /// Registered drivers, from the moment at which the agent looks for them.
    pub drivers: Arc<OnceLock<Drivers>>,
    /// Takes events of abnormal volumes.
    pub recorder: Recorder,
}

impl Gauges {
    /// Starts the threads.
    pub fn start(config: &Config, metrics: &Arc<Metrics>, of: VolumeSources) -> Self {
        let period = config.kubelet.volume_stats_agg_period.to_std();
        let by_project = config.gates.enabled(project::GATE);
        let volumes = volumes::Counter::start(period, by_project, Arc::clone(metrics));
        let layers = Arc::default();
        let with_health = config.gates.enabled(HEALTH_GATE);
        let ask = driver_stats::registered(of.drivers, Arc::clone(metrics), with_health);
        let figures = VolumeFigures::new(of.claims, period, ask, of.recorder, Arc::clone(metrics));
        let figures = volumes.is_some().then_some(figures);
        let volumes = volumes.map(Arc::new);
        Self { sweeper: Sweeper::start(), volumes, layers, figures }
    }
}

/// The statistics of the node.
pub(super) struct NodeStats {
    config: Arc<Config>,
    views: Views,
    runtime: Client,
    gauges: Gauges,
    setup: OnceCell<CgroupSetup>,
    swept: Mutex<Option<Cached<Sweep>>>,
    /// Sweeps with processes.
    swept_processes: Mutex<Option<Cached<Sweep>>>,
    /// Sweeps with all readings of `/metrics/cadvisor`.
    swept_more: Mutex<Option<Cached<Sweep>>>,
    stored: Mutex<Option<Cached<StorageStats>>>,
    disks: NodeFileValue<NodeDisks>,
    log_sizes: NodeFileValue<logs::Sizes>,
    hosts_sizes: NodeFileValue<HashMap<String, FileUsage>>,
    machine: NodeFileValue<MachineStats>,
    started_at: UnixNanos,
}

/// Reason why there are no statistics of files; follows "failed to".
#[derive(Debug, thiserror::Error)]
enum StorageStatsError {
    #[error("get imageFs stats: {0}")]
    Images(String),
    #[error("get imageFs stats: imageFs information is unavailable")]
    NoImageDisk,
    #[error("list pod stats: failed to list all container stats")]
    Containers,
    #[error("get rootFs stats: the disk does not tell them")]
    RootDisk,
}

/// File systems of the node.
#[derive(Default)]
struct NodeDisks {
    node: Option<FileSystem>,
    images: Option<FileSystem>,
}

struct Cached<T> {
    at: Instant,
    value: Arc<T>,
}

impl<T> Cached<T> {
    fn fresh(of: &Option<Self>, max: Duration) -> Option<Arc<T>> {
        of.as_ref().filter(|cached| cached.at.elapsed() < max).map(|c| Arc::clone(&c.value))
    }
}

impl NodeStats {
    pub(super) fn new(parts: &ServerParts, runtime: Client) -> Self {
        Self {
            config: Arc::clone(&parts.config),
            views: parts.views.clone(),
            runtime,
            gauges: parts.gauges.clone(),
            setup: OnceCell::new(),
            swept: Mutex::default(),
            swept_processes: Mutex::default(),
            swept_more: Mutex::default(),
            stored: Mutex::default(),
            disks: NodeFileValue::new("file systems"),
            log_sizes: NodeFileValue::new("sizes of logs"),
            hosts_sizes: NodeFileValue::new("sizes of hosts files"),
            machine: NodeFileValue::new("the machine"),
            started_at: clock::now(),
        }
    }

    /// `/stats/summary`.
    // k8s: pkg/kubelet/server/stats/handler.go handleSummary
    pub(super) async fn summary(&self, only_cpu_and_memory: bool) -> HttpAnswer {
        let kind = if only_cpu_and_memory { ReadingKind::Shown } else { ReadingKind::Processes };
        // The runtime may take its time: current usage is read after it.
        let storage = match only_cpu_and_memory {
            true => None,
            false => match self.storage(&self.views.load()).await {
                Ok(storage) => Some(storage),
                Err(why) => {
                    return HttpAnswer::text(500, format!("Internal Error: failed to {why}"));
                }
            },
        };
        let snapshot = self.views.load();
        let Some(sweep) = self.with_rates(&snapshot, kind).await else {
            return HttpAnswer::text(500, "Internal Error: failed to get root cgroup stats");
        };
        let node = self.node();
        HttpAnswer::json(&summary::summary(&snapshot, &sweep, &node, storage.as_deref()))
    }

    /// `/metrics/resource`.
    pub(super) async fn resource(&self) -> HttpAnswer {
        let snapshot = self.views.load();
        let sweep = self.sweep(&snapshot, ReadingKind::Shown, FRESH_FOR).await;
        HttpAnswer::metrics(resource::exposition(&snapshot, sweep.as_deref()))
    }

    /// `/metrics/cadvisor`.
    pub(super) async fn cadvisor(&self) -> HttpAnswer {
        let snapshot = self.views.load();
        match self.sweep(&snapshot, ReadingKind::More, FRESH_FOR).await {
            Some(sweep) => {
                let root = self.config.flags.root_dir.clone();
                let machine = self.machine.get(move || machine::machine(&root)).await;
                let machine = machine.unwrap_or_default();
                HttpAnswer::metrics(cadvisor::exposition(&snapshot, &sweep, &machine))
            }
            None => HttpAnswer::text(500, "there are no cgroups to be read\n"),
        }
    }

    /// The part of `/metrics` that is read from disks.
    pub(super) async fn logs(&self, snapshot: &Snapshot) -> String {
        let sizes = self.log_sizes(snapshot).await;
        logs::exposition(snapshot, &sizes)
    }

    /// Usage of claims, for `/metrics`.
    pub(super) async fn claims(&self, snapshot: &Snapshot) -> String {
        let Some(all) = &self.gauges.figures else { return String::new() };
        let root = &self.config.flags.root_dir;
        claim_metrics::exposition(&*all.add_to(Arc::default(), snapshot, root).await)
    }

    /// Asks drivers for the health of volumes once a period, so that its events do not wait for a
    /// request; ends at once where that is off.
    // k8s: pkg/kubelet/server/stats/fs_resource_analyzer.go Start
    pub(super) async fn watch_health(&self) {
        let period = self.config.kubelet.volume_stats_agg_period.to_std();
        if period.is_zero() || !self.config.gates.enabled(HEALTH_GATE) {
            return;
        }
        loop {
            tokio::time::sleep(period).await;
            drop(self.claims(&self.views.load()).await);
        }
    }

    async fn log_sizes(&self, snapshot: &Snapshot) -> Arc<logs::Sizes> {
        let folders = logs::folders(snapshot);
        let read = move || folders.into_iter().map(|(id, dir)| (id, files::folder(&dir))).collect();
        self.log_sizes.get(read).await.unwrap_or_default()
    }

    /// A sweep with the use per second, which needs two sweeps: the first request after a while
    /// waits for the second one.
    async fn with_rates(&self, snapshot: &Snapshot, kind: ReadingKind) -> Option<Arc<Sweep>> {
        let swept = self.sweep(snapshot, kind, FRESH_FOR).await?;
        if swept.has_rates() {
            return Some(swept);
        }
        tokio::time::sleep(RATE_MIN).await;
        self.sweep(snapshot, kind, RATE_MIN).await
    }

    /// Not older than this.
    async fn sweep(
        &self,
        snapshot: &Snapshot,
        kind: ReadingKind,
        fresh_for: Duration,
    ) -> Option<Arc<Sweep>> {
        let cache = match kind {
            ReadingKind::Processes => &self.swept_processes,
            ReadingKind::More => &self.swept_more,
            ReadingKind::Shown | ReadingKind::Weighed => &self.swept,
        };
        let mut cached = cache.lock().await;
        if let Some(fresh) = Cached::fresh(&cached, fresh_for) {
            return Some(fresh);
        }
        let mut targets = targets::targets(snapshot, &self.setup().await);
        targets.extend(self.system());
        let value = self.gauges.sweeper.as_ref()?.sweep(targets, kind).await?;
        *cached = Some(Cached { at: Instant::now(), value: Arc::clone(&value) });
        Some(value)
    }

    /// The cgroups of the host's processes.
    fn system(&self) -> Vec<targets::CgroupTarget> {
        let (kubelet, flags) = (&self.config.kubelet, &self.config.flags);
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let (ours, misc) = (&kubelet.kubelet_cgroups, &kubelet.system_cgroups);
        targets::system(ours, &flags.runtime_cgroups, misc, &own)
    }

    /// The layout of cgroups; as configured while the runtime does not answer.
    async fn setup(&self) -> CgroupSetup {
        let ask = async || read_cgroup_setup(&self.config, &self.runtime).await.ok_or(());
        match self.setup.get_or_try_init(ask).await {
            Ok(setup) => setup.clone(),
            Err(()) => cgroup_setup(&self.config, &RuntimeFacts::default()),
        }
    }

    fn node(&self) -> NodeFigures {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let meminfo = text("/proc/meminfo");
        let stat = text("/proc/stat");
        let booted = stat.lines().find_map(|line| line.strip_prefix("btime "));
        let booted = booted.and_then(|text| text.trim().parse::<i64>().ok()).unwrap_or(0);
        let (pids_max, tasks) = pressure::node::pids().unwrap_or_default();
        NodeFigures {
            name: self.config.node_name.clone(),
            booted_at: UnixNanos(booted.saturating_mul(1_000_000_000)),
            memory_bytes: kib(&meminfo, "MemTotal:") * 1024,
            swap_bytes: kib(&meminfo, "SwapTotal:") * 1024,
            pids_max,
            tasks,
            started_at: self.started_at,
            now: clock::now(),
        }
    }

    /// All figures of file systems; an error names the missing part that the summary needs.
    // k8s: pkg/kubelet/server/stats/summary.go Get
    async fn storage(&self, snapshot: &Snapshot) -> Result<Arc<StorageStats>, StorageStatsError> {
        let mut cached = self.stored.lock().await;
        if let Some(fresh) = Cached::fresh(&cached, STORAGE_FRESH_FOR) {
            return Ok(fresh);
        }
        let layers = self.gauges.layers.read(&self.runtime, layers::ASK_MAX);
        let (images, layers) = tokio::join!(self.images(), layers);
        let (mount, used) = images?;
        let layers = layers.ok_or(StorageStatsError::Containers)?;
        let root = self.config.flags.root_dir.clone();
        let disks = self.disks.get(move || NodeDisks {
            node: files::file_system(&root),
            images: files::file_system(&mount),
        });
        let disks = disks.await.unwrap_or_default();
        let node = disks.node.ok_or(StorageStatsError::RootDisk)?;
        let pods = self.config.flags.root_dir.join("pods");
        let uids = pods::uids(snapshot);
        let hosts = self.hosts_sizes.get(move || files::hosts_files(&pods, uids));
        let volumes = match &self.gauges.volumes {
            Some(counter) => {
                let targets = volumes::targets(snapshot, &self.config.flags.root_dir);
                counter.volumes(targets).await
            }
            None => Arc::default(),
        };
        let volumes = match &self.gauges.figures {
            Some(all) => all.add_to(volumes, snapshot, &self.config.flags.root_dir).await,
            None => volumes,
        };
        let storage = StorageStats {
            node,
            images: (disks.images, used),
            layers,
            volumes,
            logs: (*self.log_sizes(snapshot).await).clone(),
            pods: hosts.await.map(|hosts| (*hosts).clone()).unwrap_or_default(),
        };
        let value = Arc::new(storage);
        *cached = Some(Cached { at: Instant::now(), value: Arc::clone(&value) });
        Ok(value)
    }

    // k8s: pkg/kubelet/stats/cri_stats_provider.go ImageFsStats
    async fn images(&self) -> Result<(PathBuf, FileUsage), StorageStatsError> {
        let response = self.runtime.image_fs_info(v1::ImageFsInfoRequest {}).await;
        let response = response.map_err(|error| StorageStatsError::Images(error.to_string()))?;
        let fs = response.image_filesystems.into_iter().next();
        let fs = fs.ok_or(StorageStatsError::NoImageDisk)?;
        let usage = FileUsage {
            bytes: fs.used_bytes.map_or(0, |value| value.value),
            inodes: fs.inodes_used.map_or(0, |value| value.value),
        };
        let mount = fs.fs_id.map(|id| id.mountpoint).unwrap_or_default();
        Ok((PathBuf::from(mount), usage))
    }
}

/// The layout of pods' cgroups; as configured while the runtime does not answer.
pub(super) async fn setup(config: &Config, runtime: &Client) -> CgroupSetup {
    let reported = read_cgroup_setup(config, runtime).await;
    reported.unwrap_or_else(|| cgroup_setup(config, &RuntimeFacts::default()))
}

/// The runtime's cgroup driver, if it reports one; `None` when it does not answer.
async fn read_cgroup_setup(config: &Config, runtime: &Client) -> Option<CgroupSetup> {
    let response = match runtime.runtime_config(v1::RuntimeConfigRequest {}).await {
        Ok(response) => Some(response),
        Err(error) if error.is_unimplemented() => None,
        Err(_) => return None,
    };
    let runtime = RuntimeFacts::of(&v1::VersionResponse::default(), None, response.as_ref());
    Some(cgroup_setup(config, &runtime))
}

#[cfg(test)]
mod tests {
    use pintle_cri::fake::{FakeRuntime, Flavor};
    use pintle_cri::{Code, Deadlines, Method};

    use super::*;
    use pintle_agent_config as config;
    use pintle_agent_config::Command;
    use pintle_agent_core::cgroup::names::CgroupDriver;

    #[tokio::test]
    async fn unavailable_runtime_leaves_the_cgroup_driver_undecided() {
        let dir = tempfile::tempdir().expect("a folder");
        let args = ["pintle-agent".into(), "--cgroup-driver=systemd".into()];
        let Ok(Command::Run(config)) = config::parse(args.into_iter()) else {
            panic!("a configuration")
        };
        let connect = |runtime: &FakeRuntime| {
            Client::connect(&runtime.endpoint(), Deadlines::default()).expect("a path")
        };
        let new = FakeRuntime::start(&dir.path().join("new.sock")).await.expect("it starts");
        let client = connect(&new);
        let down = new.on(Method::RuntimeConfig).fail(Code::Internal, "not now");
        assert_eq!(read_cgroup_setup(&config, &client).await, None);
        down.lift();
        let driver =
            async |client| read_cgroup_setup(&config, &client).await.map(|setup| setup.driver);
        assert_eq!(driver(client).await, Some(CgroupDriver::Cgroupfs));
        let old = FakeRuntime::start_as(&dir.path().join("old.sock"), Flavor::Containerd17).await;
        let old = old.expect("it starts");
        assert_eq!(driver(connect(&old)).await, Some(CgroupDriver::Systemd), "it never says");
    }
}
