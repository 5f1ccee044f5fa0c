//! The server: health, the read-only port, and the socket of the agent's own commands.
//!
//! Input: snapshots that the driver publishes, the timeline, the runtime calls in flight. Output:
//! HTTP on up to four listeners, on two threads with a current-thread runtime each, so that a slow
//! reader never delays a decision, and no client in the network the health check or the watchdog.
//! Thread `server`:
//!   HTTPS      all routes of the kubelet's port 10250, see `route`; `secure` controls access
//!   read-only  the routes of the HTTPS port that need no rights: health, pods, statistics, metrics
//! Thread `health`, which also feeds the service manager's watchdog:
//!   healthz    `/healthz`, `/healthz/ping`, `/healthz/syncloop`
//!   socket     `/pods`, `/explain`, `/timeline`, `/plan`, `/pressure`, `/dump` as JSON; root only
//! No route changes a pod but through the runtime, to which `server` has a connection of its own
//! for exec and the like: the only question that reaches the main thread is the dry run, through a
//! bounded channel. Bounds are in `listen`, `https`, `connections` and `open`. A listener that
//! cannot be bound is an error before anything starts.

#![forbid(unsafe_code)]

mod access;
mod answers;
mod api;
mod attributes;
pub mod client;
mod dump;
mod file_part;
mod health;
mod journal;
mod local;
mod logs;
mod node_logs;
mod node_query;
mod open;
mod pages;
mod pod_list;
mod pod_texts;
mod ports;
pub mod record;
mod renderings;
mod route;
mod routes;
mod rows;
mod run;
mod select;
mod shortage;
mod stats;
mod stream;
mod stuck;
#[cfg(test)]
mod tests;
mod views;
mod words;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use pintle_agent_config::Config;
use pintle_agent_core::api_health::ApiHealth;
use pintle_agent_core::eviction::rank::Uses;
use pintle_agent_core::eviction::report::EvictionReport;
use pintle_agent_core::garbage::images;
use pintle_agent_core::source::Problem;
use pintle_agent_core::sync::plan::SyncPlan;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::worker::Wait;
use pintle_agent_metrics::Metrics;
use pintle_agent_runtime::image::pull_queue::PullQueue;
use pintle_cri::{Client, Deadlines, InFlight};
use pintle_daemon::serve::https;
use pintle_daemon::serve::listen::{self, Listener, Takes};
use pintle_daemon::serve::notify::Notifier;
use pintle_daemon::serve::secure::{AccessGate, ApiReviews, Reviews, ServingCert, tls};
use pintle_daemon::tasks;
use tokio::sync::{mpsc, oneshot, watch};

pub use access::NeedsCluster;
use api::Api;
pub use health::HealthState;
pub use open::Streams;
use ports::{Addresses, Ports};
use stats::NodeStats;
pub use stats::{Gauges, PodGauge, VolumeSources};
pub use stream::{fuzz_spdy, fuzz_websocket};
pub use views::Views;

/// The current source of kernel events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventSourceState {
    /// `ebpf`, `pidfd` or `relist`.
    pub mode: &'static str,
    /// Events lost since the start.
    pub dropped: u64,
}

/// A question of the server to the driver.
pub enum Query {
    /// The commands that the pod's worker would issue now.
    Plan {
        /// The pod.
        uid: PodUid,
        /// Receives the answer.
        answer: oneshot::Sender<Option<SyncPlan>>,
    },
    /// End all waits of the pod.
    Retry {
        /// The pod.
        uid: PodUid,
        /// Receives the waits that were ended.
        answer: oneshot::Sender<Option<Vec<Wait>>>,
    },
    /// How close the node is to evicting a pod.
    Pressure {
        /// Usage of the pods, if it is known.
        uses: Option<Uses>,
        /// Receives the answer.
        answer: oneshot::Sender<EvictionReport>,
    },
    /// The images that garbage collection would delete.
    Images {
        /// Receives the answer.
        answer: oneshot::Sender<images::ImageReport>,
    },
}

/// The server's inputs. The main thread shares all of them.
#[derive(Clone)]
pub struct ServerParts {
    /// The configuration: which addresses, which socket.
    pub config: Arc<Config>,
    /// Snapshots of all pods.
    pub views: Views,
    /// Timeline.
    pub recorder: Recorder,
    /// Lists the runtime calls in flight: `Client::in_flight` of every client.
    pub calls: Arc<dyn Fn() -> Vec<InFlight> + Send + Sync>,
    /// Pulls that wait for their turn.
    pub pull_queue: PullQueue,
    /// The kernel event source: `EventSource::mode` and `EventSource::dropped`.
    pub events: Arc<dyn Fn() -> EventSourceState + Send + Sync>,
    /// Questions to the driver.
    pub queries: mpsc::Sender<Query>,
    /// Failed requests to the API server.
    pub api_health: ApiHealth,
    /// The server's own connection to the runtime, once it has one.
    pub own_runtime: Arc<OnceLock<Client>>,
    /// Streams that the HTTPS port has open.
    pub streams: Streams,
    /// Broken manifests; the main thread replaces the list.
    pub problems: Arc<ArcSwap<Vec<Arc<Problem>>>>,
    /// Reads cgroups and counts volumes.
    pub gauges: Gauges,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Heartbeat of the driver.
    pub health: Arc<HealthState>,
    /// The HTTPS port's certificate with `serverTLSBootstrap`; the certificate rotation fills this.
    pub serving_cert: ServingCert,
    /// The API server, which is asked about tokens and rights; `None` in standalone mode.
    pub api: Option<pintle_api::Access>,
}

impl fmt::Debug for ServerParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct Handle {
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    notifier: Option<Arc<Notifier>>,
    socket: PathBuf,
    /// Address of the health check, with the port that was really bound.
    pub healthz: Option<SocketAddr>,
    /// Address of the read-only port, with the port that was really bound.
    pub read_only: Option<SocketAddr>,
    /// Address of the HTTPS port, with the port that was really bound.
    pub https: Option<SocketAddr>,
}

/// Threads for library calls that can only block: the look-up of the runtime's host name.
const BLOCKING_THREADS_MAX: usize = 2;

/// Reason why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration asks for an API server.
    #[error(transparent)]
    Needs(#[from] NeedsCluster),
    /// A port, a socket, the certificate or the rules.
    #[error(transparent)]
    Serve(#[from] listen::ServeError),
}

/// Binds every listener and starts the server's thread.
pub fn spawn(parts: ServerParts) -> Result<Handle, ServeError> {
    let config = &parts.config;
    let at = Addresses {
        healthz: config.healthz_address(),
        read_only: config.read_only_address(),
        https: config.https_address(),
    };
    // As the kubelet, which refuses to start even when its server is off.
    access::check(config)?;
    let agent = pintle_agent_config::user_agent();
    let reviews = Arc::new(ApiReviews::new(parts.api.clone(), agent));
    Ok(spawn_at(parts, at, reviews)?)
}

/// Parts of the HTTPS listener besides its socket.
struct Secure {
    gate: AccessGate,
    tls: tokio_rustls::rustls::ServerConfig,
}

impl Secure {
    fn new(parts: &ServerParts, reviews: Arc<dyn Reviews>) -> Result<Self, listen::ServeError> {
        let gate = AccessGate::new(&access::rules(&parts.config), reviews)?;
        let serving = Arc::new(access::serving(&parts.config, &parts.serving_cert)?);
        let settings = access::tls(&parts.config);
        let tls = tls::server_config(settings, serving).map_err(listen::ServeError::Tls)?;
        Ok(Self { gate, tls })
    }
}

fn spawn_at(
    parts: ServerParts,
    at: Addresses,
    reviews: Arc<dyn Reviews>,
) -> Result<Handle, listen::ServeError> {
    let socket = parts.config.flags.socket.clone();
    let secure = at.https.map(|_| Secure::new(&parts, reviews)).transpose()?;
    let ports = Ports::bind(at, &socket)?;
    let address = |of: &Option<Listener>| of.as_ref().and_then(Listener::address);
    let (healthz, read_only) = (address(&ports.healthz), address(&ports.read_only));
    let https = ports.https.as_ref().map(|(_, address)| *address);
    let notifier = Notifier::from_env().map(Arc::new);
    let (stop, stopped) = watch::channel(false);
    let Ports { healthz: checks, read_only: plain, https: port, socket: commands } = ports;
    let parts = Arc::new(parts);
    let near = serve_near(Arc::clone(&parts), checks, commands, notifier.clone(), stopped.clone());
    let far = serve_far(parts, plain, port.zip(secure), stopped);
    let threads = vec![thread("health", near)?, thread("server", far)?];
    Ok(Handle { stop, threads, notifier, socket, healthz, read_only, https })
}

/// A thread with a runtime of its own that runs `all` to its end.
fn thread(
    name: &'static str,
    all: impl Future<Output = ()> + Send + 'static,
) -> Result<JoinHandle<()>, listen::ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_name(format!("{name}-files"))
        .build()
        .map_err(listen::ServeError::Thread)?;
    let run = move || {
        runtime.block_on(all);
        // A file operation that hangs must not delay the end.
        runtime.shutdown_background();
    };
    tasks::thread(name, run).map_err(listen::ServeError::Thread)
}

impl Handle {
    /// Notifies the service manager that the agent is up.
    pub fn ready(&self) {
        self.notify_systemd("READY=1");
    }

    /// Notifies the service manager that the agent is about to end.
    pub fn stopping(&self) {
        self.notify_systemd("STOPPING=1");
    }

    fn notify_systemd(&self, message: &str) {
        if let Some(notifier) = &self.notifier {
            notifier.send(message);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        for thread in self.threads.drain(..) {
            // Connections are closed as they are; none is waited for.
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Counts connections that found no room.
fn full(metrics: &Arc<Metrics>) -> impl Fn() + Send + Sync + 'static {
    let metrics = Arc::clone(metrics);
    move || metrics.limit_hit("server connections")
}

/// Serves health check, commands and watchdog, which no network traffic may delay.
async fn serve_near(
    parts: Arc<ServerParts>,
    healthz: Option<Listener>,
    socket: Listener,
    notifier: Option<Arc<Notifier>>,
    stopped: watch::Receiver<bool>,
) {
    let (health, metrics) = (Arc::clone(&parts.health), Arc::clone(&parts.metrics));
    if let Some(listener) = healthz {
        let service = routes::healthz(Arc::clone(&parts));
        let accept = listen::accept(listener, Takes::Reads, service, full(&metrics));
        tokio::spawn(tasks::or_end("health check", accept));
    }
    let accept = listen::accept(socket, Takes::Changes, local::routes(parts), full(&metrics));
    tokio::spawn(tasks::or_end("command socket", accept));
    if let Some(notifier) = notifier {
        tokio::spawn(tasks::or_end("watchdog", feed_watchdog(notifier, health)));
    }
    until(stopped).await;
}

/// Serves the ports that the network reaches.
async fn serve_far(
    parts: Arc<ServerParts>,
    read_only: Option<Listener>,
    https: Option<((std::net::TcpListener, SocketAddr), Secure)>,
    stopped: watch::Receiver<bool>,
) {
    let needs_runtime = read_only.is_some() || https.is_some();
    let runtime = if needs_runtime { connect(&parts) } else { None };
    if let Some(listener) = read_only {
        let stats = runtime.as_ref().map(|(_, stats)| Arc::clone(stats));
        let service = routes::read_only(Arc::clone(&parts), stats);
        let accept = listen::accept(listener, Takes::Reads, service, full(&parts.metrics));
        tokio::spawn(tasks::or_end("read-only port", accept));
    }
    if let (Some(((listener, _), secure)), Some(runtime)) = (https, runtime) {
        let api = Arc::new(Api::new(Arc::clone(&parts), secure.gate, runtime));
        let accept = https::accept(listener, secure.tls, api);
        tokio::spawn(tasks::or_end("HTTPS port", accept));
    }
    until(stopped).await;
}

/// Waits for the handle to be dropped; then the runtime ends, and every task with it.
async fn until(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// The server's own connection to the runtime.
fn connect(parts: &ServerParts) -> Option<api::Runtime> {
    let kubelet = &parts.config.kubelet;
    let deadlines = Deadlines::from_request_timeout(kubelet.runtime_request_timeout.to_std());
    // The main thread has connected to the same endpoint before.
    let client = Client::connect(&kubelet.container_runtime_endpoint, deadlines)
        .inspect_err(|error| tracing::error!(%error, "the HTTPS port is not served"))
        .ok()?;
    let observer = Arc::clone(&parts.metrics) as Arc<dyn pintle_cri::Observer>;
    let client = client.with_observer(observer);
    let _ = parts.own_runtime.set(client.clone());
    let stats = Arc::new(NodeStats::new(parts, client.clone()));
    let watched = Arc::clone(&stats);
    drop(tasks::serve("volume health", async move { watched.watch_health().await }));
    Some((client, stats))
}

async fn feed_watchdog(notifier: Arc<Notifier>, health: Arc<HealthState>) {
    let Some(interval) = notifier.watchdog() else { return };
    loop {
        match health.check() {
            Ok(()) => notifier.send("WATCHDOG=1"),
            Err(error) => tracing::error!(%error, "cannot notify the service manager's watchdog"),
        }
        tokio::time::sleep(interval).await;
    }
}
