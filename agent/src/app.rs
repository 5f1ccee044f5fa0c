//! Wiring only: every part, every channel with its bound, and who owns it.
//!
//! ```text
//!   file, http ──Reading(16)──> intake ──┐
//!   kernel, cri, containerd hints ───────┼──Input(4096)──> driver ──commands──> reads, passes
//!   reads, passes, prober ───────────────┘                   ├─> views (arc-swap) ──> server thread
//!                                                            └─> LogCommand(256) ──> log rotator
//! ```
//! All of it runs on the main thread inside `tokio_uring::start`, but for the server, which has a
//! thread of its own. SIGTERM and SIGINT end the agent and leave every pod as it is.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use arc_swap::ArcSwap;
use pintle_cri::containerd::Containerd;
use pintle_cri::{Client, Deadlines, InFlight, v1};
use pintle_ebpf::{Controller, Hierarchy, Mode, Options, Programs};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::admit::Admission;
use crate::cgroup::Cgroups;
use crate::config::{Config, EventSource};
use crate::event;
use crate::event::kernel::Tracker;
use crate::intake::Intake;
use crate::metrics::Metrics;
use crate::node::context::{self, Runtime};
use crate::observed::Reader;
use crate::probe::Prober;
use crate::runtime::credentials::NodeCredentials;
use crate::runtime::execute::{Executor, RuntimeInfo};
use crate::runtime::hooks::Hooks;
use crate::runtime::image::{Images, PullLimits};
use crate::runtime::kill::Killer;
use crate::runtime::log_rotate::RotatePolicy;
use crate::runtime::logs::{self, LogCommand, Rotator};
use crate::runtime::sysctl::AllowList;
use crate::runtime::turns::Turns;
use crate::server;
use crate::source::{self, SourceKind};
use crate::status::timeline::{self, Recorder};
use crate::status::view::Views;
use crate::types::ContainerId;
use crate::worker::task::{Driver, INPUTS_MAX, Query};
use crate::worker::{Input, Pods, Settings};

/// Readings of a source that may wait.
const READINGS_MAX: usize = 16;
/// Questions of the server that may wait.
const QUERIES_MAX: usize = 64;
/// Calls that create or start something at the same time, for each CPU.
const STARTS_PER_CPU: usize = 4;
/// Listing of everything behind a kernel source that works, and without one.
const RELIST: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1));
/// After this long without an answer of the runtime the log says so.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(5);

/// Runs the agent until it is told to stop.
pub async fn run(config: Config) -> Result<()> {
    let config = Arc::new(config);
    let started_at = timeline::now();
    prepare_host(&config)?;
    let (inputs, queue) = mpsc::channel(INPUTS_MAX);
    let (ask, queries) = mpsc::channel::<Query>(QUERIES_MAX);
    let (recorder, views) = (Recorder::default(), Views::default());
    let metrics = Arc::new(Metrics::new(&config.node_name));
    let health = Arc::new(server::Health::new(config.kubelet.sync_frequency.to_std()));
    let client = connect(&config, &metrics)?;
    let (problems, kernel) = (Arc::<ArcSwap<Vec<String>>>::default(), Arc::default());
    let server = server::spawn(server::Parts {
        config: Arc::clone(&config),
        views: views.clone(),
        recorder: recorder.clone(),
        calls: calls_of(&client),
        events: events_of(&kernel),
        queries: ask,
        problems: Arc::clone(&problems),
        metrics: Arc::clone(&metrics),
        health: Arc::clone(&health),
    })?;
    let mut stop = stop_signals()?;
    // As the kubelet: the agent is up before its runtime is, and says so.
    server.ready();
    let Some(runtime) = stop.unless(runtime_info(&client, &health)).await else {
        return Ok(());
    };

    let mut node = context::build(&config, &runtime);
    node.facts.agent_started_at = started_at;
    let cgroups = cgroups(&config);
    let tracker = Tracker::start(&kernel_options(&config, cgroups.as_deref()), inputs.clone());
    // The only value that this cell ever gets.
    let _ = kernel.set(tracker.clone());
    let reader = Reader::new(client.clone());
    let hooks = Hooks::new(client.clone(), recorder.clone());
    let host_ips = node.facts.host_ips.clone();
    let pods = Pods::new(Settings {
        sync_period: config.kubelet.sync_frequency.to_std(),
        relist_period: if tracker.mode() == Mode::Relist { RELIST.1 } else { RELIST.0 },
        crash_loop_max: context::crash_loop_max(&config),
        node: node.facts.clone(),
    });
    let executor = Executor {
        images: images(&config, &client, &recorder),
        killer: Killer::new(client.clone(), hooks.clone(), recorder.clone()),
        hooks,
        recorder: recorder.clone(),
        node_limits: context::node_limits(&config, &node),
        resolv_conf: Some(config.kubelet.resolv_conf.clone())
            .filter(|path| !path.is_empty())
            .map(PathBuf::from),
        runtime: RuntimeInfo { name: runtime.name.clone(), handlers: runtime.handlers.clone() },
        cgroups,
        metrics: Arc::clone(&metrics),
        tracker,
        starts: Turns::new(STARTS_PER_CPU * cpus()),
        burstable: std::cell::RefCell::default(),
        node,
        client: client.clone(),
    };
    let prober =
        Prober::start(client.clone(), recorder.clone(), inputs.clone(), host_ips, started_at);
    let logs = start_rotator(&config, &client);
    tokio::task::spawn_local(event::cri::run(client.clone(), inputs.clone()));
    if runtime.name == "containerd" {
        let containerd = Containerd::connect(&config.kubelet.container_runtime_endpoint)?;
        tokio::task::spawn_local(event::containerd::run(containerd, inputs.clone()));
    }
    start_sources(&config, &reader, &recorder, &inputs, problems)?;
    let driver = Driver {
        pods,
        inputs: queue,
        back: inputs,
        queries,
        reader,
        executor: Rc::new(executor),
        prober,
        recorder,
        views,
        logs,
        health,
        metrics,
        root_dir: config.flags.root_dir.clone(),
    };
    tracing::info!(node = config.node_name, runtime = runtime.name, "pintle-agent is up");
    driver.run(stop.asked()).await;
    server.stopping();
    Ok(())
}

/// What the host has to give, best effort: limits of this process, the root directory.
fn prepare_host(config: &Config) -> Result<()> {
    let root = &config.flags.root_dir;
    for dir in [root.clone(), root.join("pods"), PathBuf::from(&config.kubelet.pod_logs_dir)] {
        crate::volume::dir_fd::make_dir_all(&dir, 0o750)
            .with_context(|| format!("--root-dir or podLogsDir: cannot make {}", dir.display()))?;
    }
    if let Err(error) = crate::volume::execute::prepare_root(root) {
        tracing::warn!(%error, "mounts below --root-dir do not propagate into containers");
    }
    // Read-only or missing /var/log only costs the links for log collectors.
    let _ = std::fs::create_dir_all(crate::runtime::request::paths::LOG_LINKS_DIR);
    let adjust = config.kubelet.oom_score_adj.to_string();
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", adjust) {
        tracing::warn!(%error, "oomScoreAdj: the agent keeps its own; CAP_SYS_RESOURCE is missing");
    }
    Ok(())
}

fn connect(config: &Config, metrics: &Arc<Metrics>) -> Result<Client> {
    let deadlines =
        Deadlines::from_request_timeout(config.kubelet.runtime_request_timeout.to_std());
    let endpoint = &config.kubelet.container_runtime_endpoint;
    let client = Client::connect(endpoint, deadlines)
        .with_context(|| format!("containerRuntimeEndpoint {endpoint:?}"))?;
    Ok(client.with_observer(Arc::clone(metrics) as Arc<dyn pintle_cri::Observer>))
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

/// Waits for the runtime and asks what it is.
async fn runtime_info(client: &Client, health: &server::Health) -> Runtime {
    let ready = client.ready();
    tokio::pin!(ready);
    let version = loop {
        match tokio::time::timeout(RUNTIME_PATIENCE, &mut ready).await {
            Ok(version) => break version,
            Err(_) => {
                // Waiting is no reason for the watchdog to end the agent.
                health.beat();
                tracing::warn!("the container runtime does not answer yet; still waiting");
            }
        }
    };
    let status = client.status(v1::StatusRequest { verbose: false }).await.ok();
    let config = client.runtime_config(v1::RuntimeConfigRequest {}).await.ok();
    Runtime::of(&version, status.as_ref(), config.as_ref())
}

fn images(config: &Config, client: &Client, recorder: &Recorder) -> Images {
    let limits = PullLimits {
        parallel: config.parallel_pulls_max(),
        per_second: f64::from(config.kubelet.registry_pull_qps),
        burst: u32::try_from(config.kubelet.registry_burst).unwrap_or(0),
    };
    let credentials = NodeCredentials::new(&config.flags.root_dir);
    Images::new(client.clone(), recorder.clone(), Box::new(credentials), limits)
}

fn cgroups(config: &Config) -> Option<Rc<Cgroups>> {
    if !config.kubelet.cgroups_per_qos {
        return None;
    }
    match Cgroups::open(&config.kubelet.cgroup_root) {
        Ok(cgroups) => Some(Rc::new(cgroups)),
        Err(error) => {
            tracing::warn!(%error, "cgroupsPerQOS: pods run without cgroups of their own");
            None
        }
    }
}

fn kernel_options(config: &Config, cgroups: Option<&Cgroups>) -> Options {
    let v2 = cgroups.is_some_and(Cgroups::is_v2);
    let hierarchy = if v2 { Hierarchy::V2 } else { Hierarchy::V1(Controller::Memory) };
    let mut options = Options::new(hierarchy);
    match config.flags.event_source {
        EventSource::Auto | EventSource::Ebpf => {}
        EventSource::Pidfd => options.programs = Programs::NONE,
        EventSource::Relist => {
            options.programs = Programs::NONE;
            options.pidfd = false;
        }
    }
    options
}

struct ReopenLog(Client);

impl logs::Reopen for ReopenLog {
    async fn reopen(&self, id: &ContainerId) -> Result<(), String> {
        let request = v1::ReopenContainerLogRequest { container_id: id.as_str().to_owned() };
        self.0.reopen_container_log(request).await.map(drop).map_err(|error| error.to_string())
    }
}

fn start_rotator(config: &Config, client: &Client) -> Option<mpsc::Sender<LogCommand>> {
    let size = &config.kubelet.container_log_max_size;
    let max_bytes = crate::config::defaults::log_bytes_max(size)?;
    let max_files = usize::try_from(config.kubelet.container_log_max_files).unwrap_or(2);
    let policy = RotatePolicy { max_bytes, max_files };
    let (commands, queue) = mpsc::channel(logs::COMMANDS_MAX);
    let rotator = Rotator::new(policy, ReopenLog(client.clone()));
    tokio::task::spawn_local(rotator.run(queue));
    Some(commands)
}

/// What static pods may ask of this node.
fn admission(config: &Config) -> Result<Admission> {
    let release = nix::sys::utsname::uname().context("uname")?.release().to_owned();
    let release = release.to_string_lossy();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let kernel = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let sysctls = AllowList::new(kernel, &config.kubelet.allowed_unsafe_sysctls)
        .context("allowedUnsafeSysctls")?;
    Ok(Admission { sysctls })
}

fn start_sources(
    config: &Config,
    reader: &Reader,
    recorder: &Recorder,
    inputs: &mpsc::Sender<Input>,
    problems: Arc<ArcSwap<Vec<String>>>,
) -> Result<()> {
    let mut kinds = Vec::new();
    let mut intake =
        Intake::new(reader.clone(), recorder.clone(), inputs.clone(), problems, admission(config)?);
    let kubelet = &config.kubelet;
    if !kubelet.static_pod_path.is_empty() {
        let (readings, queue) = mpsc::channel(READINGS_MAX);
        let folder = source::file::Folder::new(&kubelet.static_pod_path, &config.node_name);
        let every = kubelet.file_check_frequency.to_std();
        tokio::task::spawn_local(source::file::run(folder, every, readings));
        intake.listen(SourceKind::File, queue);
        kinds.push(SourceKind::File);
    }
    if !kubelet.static_pod_url.is_empty() {
        let (readings, queue) = mpsc::channel(READINGS_MAX);
        let headers: Vec<(String, String)> = kubelet
            .static_pod_url_header
            .iter()
            .flat_map(|(name, values)| values.iter().map(|v| (name.clone(), v.clone())))
            .collect();
        let endpoint = source::http::Endpoint::new(&kubelet.static_pod_url, &headers)
            .context("staticPodURL")?;
        let every = kubelet.http_check_frequency.to_std();
        let node = config.node_name.clone();
        tokio::task::spawn_local(source::http::run(endpoint, node, every, readings));
        intake.listen(SourceKind::Http, queue);
        kinds.push(SourceKind::Http);
    }
    tokio::task::spawn_local(intake.run(kinds));
    Ok(())
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// SIGTERM and SIGINT.
struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

fn stop_signals() -> Result<Stop> {
    let terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    Ok(Stop { terminate, interrupt })
}

impl Stop {
    async fn either(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// `None` when the agent was told to stop before `work` ended.
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
