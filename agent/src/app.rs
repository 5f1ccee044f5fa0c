//! Wiring only: every part, every channel with its bound, and its owner.
//!
//! ```text
//!   file, http, api ─Delivery(16)> intake ─┐
//!   kernel, cri, containerd hints ─────────┼─Input(4096)─> driver ─commands─> reads, passes
//!   reads, passes, prober, node ───────────┘                 ├─> views (arc-swap) ─> server thread
//!                                                            └─> LogCommand(256) ─> log rotator
//! ```
//! All of it runs on the main thread (`thread`), but for the server, which has a thread of its
//! own. SIGTERM and SIGINT end the agent and leave every pod as it is.
//!
//! [`StageInputs`] are the shared inputs of every stage; `host` prepares the machine and the
//! runtime, `sources` starts the sources of pods, `cluster` the clients of the API server.

mod alone;
mod cluster;
mod container_oom;
mod host;
mod host_processes;
mod kernel_tunables;
mod lock;
mod reserve;
mod shutdown;
mod sources;
mod startup;
pub mod thread;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use arc_swap::ArcSwap;
use pintle_agent_cluster::NodeCluster;
use pintle_agent_cluster::identity::rotate::ServingCell;
use pintle_agent_cluster::node::pleg::ListsSeen;
use pintle_agent_cluster::node::{csi_drivers, csi_limits};
use pintle_agent_cluster::objects;
use pintle_agent_cluster::objects::Objects;
use pintle_agent_cluster::status::event_recorder::EventRecorder;
use pintle_agent_cluster::status::writer::StatusWriter;
use pintle_agent_config::Config;
use pintle_agent_core::cgroup::names::CgroupSetup;
use pintle_agent_core::flight;
use pintle_agent_core::node::conditions::Pressure;
use pintle_agent_core::request::NodeContext;
use pintle_agent_core::request::runtime::RuntimeFacts;
use pintle_agent_core::source::Problem;
use pintle_agent_core::storage::selinux::LabelSettings;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::{NodeFacts, UnixNanos};
use pintle_agent_core::volume::ClaimViews;
use pintle_agent_core::worker::{Pods, PodsInput, Settings};
use pintle_agent_host::ledger;
use pintle_agent_host::ledger::Ledger;
use pintle_agent_host::node::{context, selinux};
use pintle_agent_host::shutdown::Progress;
use pintle_agent_metrics::Metrics;
use pintle_agent_plugins::Drivers;
use pintle_agent_runtime::event;
use pintle_agent_runtime::event::kernel::Tracker;
use pintle_agent_runtime::execute::{
    ClassLimits, Executor, ExecutorSettings, ForeignState, SyncTurns,
};
use pintle_agent_runtime::hooks::Hooks;
use pintle_agent_runtime::image::provider;
use pintle_agent_runtime::image::provider::Providers;
use pintle_agent_runtime::image::pull_queue::PullQueue;
use pintle_agent_runtime::kill::Killer;
use pintle_agent_runtime::observed::PodReader;
use pintle_agent_runtime::probe::Prober;
use pintle_agent_runtime::storage::{self, Volumes};
use pintle_agent_server as server;
use pintle_agent_server::{PodGauge, Query, Views};
use pintle_cri::containerd::Containerd;
use pintle_cri::{Client, InFlight};
use pintle_daemon::{clock, own_code, tasks};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use self::lock::Lock;
use self::startup::Startup;
use crate::driver::{self, INPUTS_MAX, NodeChannels, PodDriver, Tape};
use crate::pressure::{Lookout, PodSources, PressureLook};

/// Questions of the server that may wait.
const QUERIES_MAX: usize = 64;
/// Observations of the node that may wait; the decisions request one at a time.
const LOOKS_MAX: usize = 4;
/// Simultaneous calls that create or start a container or sandbox, for each CPU.
const STARTS_PER_CPU: usize = 4;
/// Pods that are removed from the runtime at the same time, for each CPU. A removal mostly waits
/// for the runtime's database; one at a time takes 1.7 times as long as the runtime needs.
const CLEANUPS_PER_CPU: usize = 4;

/// The shared inputs of every stage: the configuration, the connections, and the channel for
/// results.
pub struct StageInputs {
    /// The configuration.
    pub config: Arc<Config>,
    /// When this agent began.
    pub started_at: UnixNanos,
    /// Credential provider plugins.
    pub providers: provider::Settings,
    /// The container runtime.
    pub runtime: Client,
    /// The API server; `None` in standalone mode.
    pub cluster: Option<NodeCluster>,
    /// Inputs of the workers.
    pub inputs: mpsc::Sender<PodsInput>,
    /// Timeline.
    pub recorder: Recorder,
    /// Snapshots of all pods.
    pub views: Views,
    /// Readers of cgroups and counters of volumes.
    pub gauges: server::Gauges,
    /// Resolved claims of pods.
    pub claims: ClaimViews,
    /// Registered CSI drivers, once plugins are looked for.
    pub drivers: Arc<OnceLock<Drivers>>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Heartbeat of the driver.
    pub health: Arc<server::HealthState>,
    /// Broken manifests.
    pub problems: Arc<ArcSwap<Vec<Arc<Problem>>>>,
    /// The serving certificate that the cluster signed, with `serverTLSBootstrap`.
    pub serving_cert: ServingCell,
    /// When the runtime last listed its pods.
    pub lists: ListsSeen,
    /// The node's pressure conditions, from the driver.
    pub pressure: watch::Sender<Pressure>,
    /// Pulls that wait for their turn.
    pub pull_queue: PullQueue,
    /// The kernel's events, once the runtime is up.
    pub kernel: Arc<OnceLock<Tracker>>,
    /// How far a shutdown of the node has come.
    pub shutdown: Progress,
}

/// Runs the agent until it is stopped.
pub async fn run(config: Config) -> Result<()> {
    let config = Arc::new(config);
    let mut stop = stop_signals()?;
    let Some(lock) = stop.unless(Lock::take(&config.flags)).await else { return Ok(()) };
    stop.lock = lock?;
    host::prepare(&config)?;
    let metrics = Arc::new(Metrics::new(&config.node_name));
    let cluster = cluster::connect(&config, &metrics);
    let Some(cluster) = stop.unless(cluster).await else { return Ok(()) };
    let (inputs, queue) = mpsc::channel(INPUTS_MAX);
    let (ask, queries) = mpsc::channel::<Query>(QUERIES_MAX);
    let parts = StageInputs::new(config, metrics, cluster?, inputs)?;
    let server = server::spawn(parts.server(ask))?;
    // As the kubelet: the agent is up before its runtime is, and logs that.
    server.ready();
    let tell = cluster::node_events(parts.cluster.as_ref());
    let of_container = container_oom::start(&parts);
    let kernel_log = pintle_agent_host::node::oom::run(Rc::clone(&tell), of_container);
    tasks::singleton("system oom", kernel_log);
    let runtime = host::runtime_info(&parts.config, &parts.runtime, &parts.health);
    let Some(runtime) = stop.unless(runtime).await else {
        return Ok(());
    };
    let runtime = runtime?;
    let driver = parts.driver(&runtime, queue, queries).await?;
    let cgroups = driver.executor.cgroups.clone();
    reserve::enforce(&parts.config, &driver.executor.node.cgroup, cgroups, &tell).await?;
    host_processes::start(&parts.config, &driver.executor.node.cgroup).await?;
    if parts.config.kubelet.make_iptables_util_chains {
        tasks::singleton("iptables chains", pintle_agent_host::node::iptables::keep());
    }
    let Executor { node, tracker, .. } = &*driver.executor;
    Startup::new(&parts.config, &runtime, &node.cgroup, tracker.mode()).log();
    own_code::start(pintle_heap::code::forget);
    let ledger = Ledger::start(parts.config.flags.root_dir.clone());
    parts.health.started();
    driver.run(stop.asked(), ledger).await;
    server.stopping();
    Ok(())
}

impl StageInputs {
    fn new(
        config: Arc<Config>,
        metrics: Arc<Metrics>,
        cluster: Option<NodeCluster>,
        inputs: mpsc::Sender<PodsInput>,
    ) -> Result<Self> {
        let mut recorder = Recorder::new(clock::now);
        if let Some(cluster) = &cluster {
            recorder = recorder.announcing(EventRecorder::new(cluster.events.clone()));
        }
        let sync_every = config.kubelet.sync_frequency.to_std();
        let volumes = server::VolumeSources { recorder: recorder.clone(), ..Default::default() };
        Ok(Self {
            providers: host::providers(&config)?,
            runtime: host::connect(&config, &metrics)?,
            started_at: clock::now(),
            cluster,
            inputs,
            recorder,
            views: Views::default(),
            health: Arc::new(server::HealthState::new(sync_every)),
            problems: Arc::default(),
            serving_cert: Arc::default(),
            pull_queue: PullQueue::default(),
            kernel: Arc::default(),
            lists: ListsSeen::default(),
            pressure: watch::Sender::default(),
            shutdown: Progress::new(None),
            gauges: server::Gauges::start(&config, &metrics, volumes.clone()),
            claims: volumes.claims,
            drivers: volumes.drivers,
            metrics,
            config,
        })
    }

    /// The parts that the server's thread shares with this one.
    fn server(&self, queries: mpsc::Sender<Query>) -> server::ServerParts {
        server::ServerParts {
            config: Arc::clone(&self.config),
            views: self.views.clone(),
            recorder: self.recorder.clone(),
            calls: calls_of(&self.runtime),
            pull_queue: self.pull_queue.clone(),
            events: events_of(&self.kernel),
            queries,
            serving_cert: Arc::clone(&self.serving_cert),
            api: self.cluster.as_ref().map(|cluster| cluster.access.clone()),
            api_health: self
                .cluster
                .as_ref()
                .map(|cluster| cluster.api_health.clone())
                .unwrap_or_default(),
            problems: Arc::clone(&self.problems),
            gauges: self.gauges.clone(),
            metrics: Arc::clone(&self.metrics),
            health: Arc::clone(&self.health),
            own_runtime: Arc::default(),
            streams: server::Streams::default(),
        }
    }

    /// Starts every stage; the driver remains to be run.
    async fn driver(
        &self,
        runtime: &RuntimeFacts,
        queue: mpsc::Receiver<PodsInput>,
        queries: mpsc::Receiver<Query>,
    ) -> Result<PodDriver> {
        let mut node = context::build(&self.config, runtime);
        node.facts.agent_started_at = self.started_at;
        let reader = PodReader::new(self.runtime.clone()).below(&self.config.flags.root_dir);
        let executor = self.executor(runtime, node, reader.clone())?;
        let facts = executor.node.facts.clone();
        let prober = Prober::start(
            self.runtime.clone(),
            self.recorder.clone(),
            self.inputs.clone(),
            self.started_at,
            Arc::clone(&self.metrics),
        );
        let looks = self.start_lookout(&executor.node.cgroup);
        let settings = self.settings(facts.clone(), executor.tracker.relist_period())?;
        let offered = Arc::clone(&settings.admission);
        let root_dir = self.config.flags.root_dir.clone();
        let restored = ledger::writer::load(&root_dir);
        let tape = self.record(&settings, &restored).await;
        let mut pods = Pods::new(settings);
        pods.restore(restored.allocated, restored.actuated);
        let logs = host::start_rotator(&self.config, &self.runtime);
        self.start_hints(runtime, &reader, &executor.tracker)?;
        let writer = self.writer();
        // Before any pod comes: no pod starts on a machine that shuts down.
        shutdown::start(self).await;
        sources::start(self, &reader, writer.clone(), offered.features)?;
        let own = self.cluster.as_ref().map(|cluster| cluster.node.clone());
        let kubelet = &self.config.kubelet;
        let (cidr, every) = (kubelet.pod_cidr.clone(), kubelet.node_status_update_frequency);
        let client = self.runtime.clone();
        tasks::singleton(
            "pod CIDR",
            pintle_agent_cluster::node::pod_cidr::follow(client, cidr, own, every.to_std()),
        );
        let reads = self.start_node(
            runtime,
            cluster::NodeKnown { facts, offered, volumes: executor.volumes.clone() },
        );
        let garbage = host::start_collector(&self.config, &executor);
        Ok(PodDriver {
            pods,
            inputs: queue,
            back: self.inputs.clone(),
            queries,
            node: NodeChannels { reads, looks, pressure: self.pressure.clone() },
            reader,
            executor: Rc::new(executor),
            prober,
            recorder: self.recorder.clone(),
            views: self.views.clone(),
            writer,
            logs,
            health: Arc::clone(&self.health),
            metrics: Arc::clone(&self.metrics),
            lists: self.lists.clone(),
            garbage,
            root_dir,
            tape,
            shutdown: self.shutdown.clone(),
        })
    }

    /// Starts the task that reports the node to the workers, and to the cluster if there is one;
    /// returns the channel for reads of the Node object.
    fn start_node(
        &self,
        runtime: &RuntimeFacts,
        known: cluster::NodeKnown,
    ) -> Option<mpsc::Sender<u64>> {
        if let Some(cluster) = &self.cluster {
            return Some(cluster::start(self, cluster, runtime, known));
        }
        let facts = known.facts;
        let (client, inputs, config) = (self.runtime.clone(), self.inputs.clone(), &self.config);
        let every = config.kubelet.node_status_update_frequency.to_std();
        let given = config.flags.node_ips.clone();
        tasks::singleton("node facts", alone::follow(client, facts, given, every, inputs));
        None
    }

    /// Starts the lookout, which reads the node's resources left.
    fn start_lookout(&self, setup: &CgroupSetup) -> Option<mpsc::Sender<PressureLook>> {
        let (config, runtime) = (&self.config, &self.runtime);
        let pods = PodGauge::new(self.gauges.clone(), config, setup.clone(), runtime.clone());
        let root_dir = config.flags.root_dir.clone();
        let settings = pintle_agent_core::eviction::Settings::of(config);
        let of_pods = PodSources { runtime: runtime.clone(), views: self.views.clone() };
        let lookout = Lookout::new(root_dir, settings, setup, pods, of_pods)?;
        let (looks, orders) = mpsc::channel(LOOKS_MAX);
        tasks::singleton("lookout", lookout.run(orders, self.inputs.clone()));
        Some(looks)
    }

    /// The writer of statuses to the API server, if there is one.
    fn writer(&self) -> Option<Rc<StatusWriter>> {
        let cluster = self.cluster.as_ref()?;
        let (client, recorder) = (cluster.writes.clone(), self.recorder.clone());
        let writer =
            StatusWriter::start(client, &cluster.node_name, recorder, cluster.api_health.clone());
        writer.count_in(Arc::clone(&self.metrics));
        Some(writer)
    }

    /// Begins the record of decisions.
    async fn record(&self, settings: &Settings, restored: &ledger::writer::Restored) -> Tape {
        let start = flight::AgentStart {
            // Read from the program where that may block.
            version: String::new(),
            settings: settings.clone(),
            allocated: restored.allocated.clone(),
            actuated: restored.actuated.clone(),
        };
        let flags = &self.config.flags;
        let segments_max = flags.flight_recorder_bytes / flight::segment::SEGMENT_BYTES;
        let counts = self.metrics.flight().clone();
        driver::start_recording(&flags.root_dir, segments_max, start, counts).await
    }

    fn settings(&self, node: NodeFacts, relist: Duration) -> Result<Settings> {
        Ok(Settings {
            sync_period: self.config.kubelet.sync_frequency.to_std(),
            relist_period: relist,
            crash_loop: context::crash_loop(&self.config),
            admission: Arc::new(host::offer(&self.config, &node)?),
            has_node_object: self.cluster.is_some(),
            eviction: pintle_agent_core::eviction::Settings::of(&self.config),
            garbage: host::dead_containers(&self.config),
            node,
        })
    }

    /// The executor of the workers' syncs, with the kernel's events of the pods that it follows.
    fn executor(
        &self,
        runtime: &RuntimeFacts,
        node: NodeContext,
        reader: PodReader,
    ) -> Result<Executor> {
        let (config, client, recorder) = (&self.config, &self.runtime, &self.recorder);
        let cgroups = host::cgroups(config, &node.cgroup)?;
        let options = host::kernel_options(config, cgroups.as_deref());
        let tracker = Tracker::start(&options, self.inputs.clone());
        // The only value that this cell ever gets.
        let _ = self.kernel.set(tracker.clone());
        let metrics = &self.metrics;
        let hooks = Hooks::new(client.clone(), recorder.clone()).counted_in(Arc::clone(metrics));
        metrics.settings(host::cgroup_version(), &config.gates);
        let objects = self.objects();
        let accounts = Box::new(objects.clone());
        let providers = Providers::new(&self.providers, accounts, metrics);
        Ok(Executor {
            reader,
            users: host::users(config)?,
            images: host::images(self, providers)?,
            volumes: self.volumes(&objects)?,
            objects,
            killer: Killer::new(client.clone(), hooks.clone(), recorder.clone()),
            hooks,
            recorder: recorder.clone(),
            node_events: cluster::node_events(self.cluster.as_ref()),
            settings: ExecutorSettings {
                project_quotas: config.gates.enabled(pintle_agent_host::volume::project::GATE),
                resolv_conf: Some(config.kubelet.resolv_conf.clone())
                    .filter(|path| !path.is_empty())
                    .map(PathBuf::from),
            },
            facts: node.facts.clone().into(),
            cgroups,
            metrics: Arc::clone(&self.metrics),
            tracker,
            turns: SyncTurns::new(STARTS_PER_CPU * host::cpus(), CLEANUPS_PER_CPU * host::cpus()),
            class_limits: ClassLimits::default(),
            containerd: self.containerd(runtime)?,
            foreign: ForeignState::default(),
            node,
            client: client.clone(),
        })
    }

    /// Volumes of CSI drivers, with the sockets by which drivers register.
    fn volumes(&self, objects: &Objects) -> Result<Volumes> {
        let root = &self.config.flags.root_dir;
        let folder = root.join(pintle_agent_plugins::FOLDER);
        let (drivers, refresher, registrar) =
            pintle_agent_plugins::start(&folder).context("watching for plugins")?;
        // The only value that this cell ever gets.
        let _ = self.drivers.set(drivers.clone());
        tasks::singleton("plugins", registrar.run());
        if let Some(cluster) = &self.cluster {
            let (client, name) = (cluster.client.clone(), Arc::clone(&cluster.node_name));
            let written = csi_drivers::follow(client, name, cluster.node.clone(), drivers.clone());
            tasks::singleton("CSI drivers", written);
            let limits = csi_limits::refresh(objects.clone(), drivers.clone(), refresher.clone());
            tasks::singleton("CSI limits", limits);
        }
        Ok(Volumes::start(storage::StorageParts {
            root: root.clone(),
            node_name: self.config.node_name.as_str().into(),
            drivers,
            objects: objects.clone(),
            recorder: self.recorder.clone(),
            metrics: Arc::clone(&self.metrics),
            node: self.cluster.as_ref().map(|cluster| cluster.node.clone()),
            events: self.cluster.as_ref().map(|cluster| cluster.events.clone()),
            attaches_by_controller: self.cluster.is_some()
                && self.config.kubelet.enable_controller_attach_detach,
            refresher,
            labels: LabelSettings {
                files: selinux::file_label(),
                has_all_modes: self.config.gates.enabled("SELinuxMount"),
            },
            resync: self.config.kubelet.sync_frequency.to_std(),
        }))
    }

    /// The objects that pods refer to by name.
    fn objects(&self) -> Objects {
        let Some(cluster) = &self.cluster else { return Objects::none() };
        let kubelet = &self.config.kubelet;
        let settings = objects::Settings {
            strategy: kubelet.config_map_and_secret_change_detection_strategy,
            resync: kubelet.sync_frequency.to_std(),
            trust_bundles: self.config.gates.enabled("ClusterTrustBundleProjection"),
            pod_certificates: self.config.gates.enabled("PodCertificateRequest"),
            recorder: self.recorder.clone(),
            claims: self.claims.clone(),
            node: Some(cluster.node.clone()),
        };
        Objects::new(cluster.objects.clone(), settings, self.inputs.clone())
    }

    /// The runtime's own events; the kernel's come from the executor's tracker.
    fn start_hints(
        &self,
        runtime: &RuntimeFacts,
        reader: &PodReader,
        tracker: &Tracker,
    ) -> Result<()> {
        let events =
            event::cri::run(self.runtime.clone(), self.inputs.clone(), Arc::clone(&self.metrics));
        tasks::singleton("runtime events", events);
        if let Some((containerd, _)) = self.containerd(runtime)? {
            let (reader, inputs) = (reader.clone(), self.inputs.clone());
            let events = event::containerd::run(containerd, reader, tracker.clone(), inputs);
            tasks::singleton("containerd events", events);
        }
        Ok(())
    }

    /// containerd's own API, on the same socket as CRI.
    fn containerd(&self, runtime: &RuntimeFacts) -> Result<Option<(Containerd, String)>> {
        if runtime.name != "containerd" {
            return Ok(None);
        }
        let endpoint = &self.config.kubelet.container_runtime_endpoint;
        let socket = endpoint.strip_prefix("unix://").unwrap_or(endpoint).to_owned();
        Ok(Some((Containerd::connect(endpoint)?, socket)))
    }
}

fn calls_of(client: &Client) -> Arc<dyn Fn() -> Vec<InFlight> + Send + Sync> {
    let client = client.clone();
    Arc::new(move || client.in_flight())
}

fn events_of(
    kernel: &Arc<OnceLock<Tracker>>,
) -> Arc<dyn Fn() -> server::EventSourceState + Send + Sync> {
    let kernel = Arc::clone(kernel);
    Arc::new(move || server::EventSourceState {
        mode: kernel.get().map_or("relist", |tracker| tracker.mode().name()),
        dropped: kernel.get().map_or(0, Tracker::dropped),
    })
}

/// SIGTERM and SIGINT, and contenders for the lock.
struct StopSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    lock: Option<Lock>,
}

fn stop_signals() -> Result<StopSignals> {
    let terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    Ok(StopSignals { terminate, interrupt, lock: None })
}

impl StopSignals {
    async fn either(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = Lock::contended(&mut self.lock) => {}
        }
    }

    /// `None` when the agent was stopped before `work` ended.
    async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.either() => None,
        }
    }

    async fn asked(mut self) {
        self.either().await;
    }
}
