//! The server: health, the read-only port, and the socket of the agent's own commands.
//!
//! Input: snapshots that the driver publishes, the timeline, the runtime calls under way. Output:
//! HTTP/1.1 on up to three listeners, all of them on one thread of their own with a current-thread
//! runtime, so that a slow reader never delays a decision:
//!   healthz    `/healthz`, `/healthz/ping`, `/healthz/syncloop`
//!   read-only  `/healthz*`, `/pods`, `/runningpods/`, `/metrics`
//!   socket     `/pods`, `/explain`, `/timeline`, `/plan`, `/dump` as JSON; root only
//! The thread also feeds the service manager's watchdog. It never changes anything of a pod: the
//! only question that reaches the main thread is the dry run, through a bounded channel. Bounds
//! are in `listen`. A listener that cannot be bound is an error before anything starts.

mod answer;
mod dump;
pub mod health;
mod listen;
mod local;
mod notify;
mod pod_list;
mod routes;
mod rows;
mod select;
mod stuck;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use pintle_cri::InFlight;
use tokio::sync::{mpsc, watch};

use crate::config::Config;
use crate::metrics::Metrics;
use crate::status::timeline::Recorder;
use crate::status::view::Views;
use crate::worker::task::Query;
pub use health::Health;
pub use listen::ServeError;
use listen::{Listeners, Service};
use notify::Notifier;

/// Where kernel events come from, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventSourceState {
    /// `ebpf`, `pidfd` or `relist`.
    pub mode: &'static str,
    /// Events lost since the start.
    pub dropped: u64,
}

/// What the server is made of. Everything in it is shared with the main thread.
#[derive(Clone)]
pub struct Parts {
    /// The configuration: which addresses, which socket.
    pub config: Arc<Config>,
    /// Snapshots of all pods.
    pub views: Views,
    /// Timeline.
    pub recorder: Recorder,
    /// Lists the runtime calls under way: `Client::in_flight` of every client.
    pub calls: Arc<dyn Fn() -> Vec<InFlight> + Send + Sync>,
    /// The kernel event source: `Tracker::mode` and `Tracker::dropped`.
    pub events: Arc<dyn Fn() -> EventSourceState + Send + Sync>,
    /// Questions to the driver.
    pub queries: mpsc::Sender<Query>,
    /// Broken manifests, one sentence each; the main thread replaces the list.
    pub problems: Arc<ArcSwap<Vec<String>>>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Heartbeat of the driver.
    pub health: Arc<Health>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct Handle {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    notifier: Option<Arc<Notifier>>,
    socket: PathBuf,
    /// Address of the health check, with the port that was really bound.
    pub healthz: Option<SocketAddr>,
    /// Address of the read-only port, with the port that was really bound.
    pub read_only: Option<SocketAddr>,
}

/// Binds every listener and starts the server's thread.
pub fn spawn(parts: Parts) -> Result<Handle, ServeError> {
    let (healthz, read_only) = (parts.config.healthz_address(), parts.config.read_only_address());
    spawn_at(parts, healthz, read_only)
}

fn spawn_at(
    parts: Parts,
    healthz: Option<SocketAddr>,
    read_only: Option<SocketAddr>,
) -> Result<Handle, ServeError> {
    let socket = parts.config.flags.socket.clone();
    let listeners = Listeners::bind(healthz, read_only, &socket)?;
    let (healthz, read_only) = (listeners.healthz_address(), listeners.read_only_address());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ServeError::Thread)?;
    let notifier = Notifier::from_env().map(Arc::new);
    let (stop, stopped) = watch::channel(false);
    let fed = notifier.clone();
    let thread = std::thread::Builder::new()
        .name("server".to_owned())
        .spawn(move || runtime.block_on(serve(parts, listeners, fed, stopped)))
        .map_err(ServeError::Thread)?;
    Ok(Handle { stop, thread: Some(thread), notifier, socket, healthz, read_only })
}

impl Handle {
    /// Tells the service manager that the agent is up.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// Tells the service manager that the agent is about to end.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, message: &str) {
        if let Some(notifier) = &self.notifier {
            notifier.send(message);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            // It waits for nobody: connections are closed as they stand.
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

async fn serve(
    parts: Parts,
    listeners: Listeners,
    notifier: Option<Arc<Notifier>>,
    mut stopped: watch::Receiver<bool>,
) {
    let (health, metrics) = (Arc::clone(&parts.health), Arc::clone(&parts.metrics));
    let parts = Arc::new(parts);
    let services: [(_, Service); 3] = [
        (listeners.healthz, routes::healthz(Arc::clone(&parts))),
        (listeners.read_only, routes::read_only(Arc::clone(&parts))),
        (Some(listeners.socket), local::routes(Arc::clone(&parts))),
    ];
    for (listener, service) in services {
        if let Some(listener) = listener {
            tokio::spawn(listen::accept(listener, service, Arc::clone(&metrics)));
        }
    }
    if let Some(notifier) = notifier {
        tokio::spawn(feed_watchdog(notifier, health));
    }
    // Ends the runtime, and with it every task above, when the handle is dropped.
    let _ = stopped.wait_for(|stop| *stop).await;
}

async fn feed_watchdog(notifier: Arc<Notifier>, health: Arc<Health>) {
    let Some(interval) = notifier.watchdog() else { return };
    loop {
        match health.check() {
            Ok(()) => notifier.send("WATCHDOG=1"),
            Err(error) => tracing::error!(error, "the watchdog is not fed"),
        }
        tokio::time::sleep(interval).await;
    }
}
