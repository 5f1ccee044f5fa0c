//! Which plugins are registered: the effects.
//!
//! Carries out the registry's commands, each in a task of its own, and publishes what is registered
//! when it changes. Owner: one task of the main thread. Bounds: one command a socket under way,
//! `REFUSALS_MAX` refusals, `REFRESHES_MAX` queued refreshes. A refresh that has begun counts to no
//! bound but its time limit, `csi::FACTS_MAX` for each of its two calls.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::{
    CommandTicket, InspectError, Inspected, PluginInfoError, RegistryCommand, RegistryInput,
    SocketRegistry,
};
use crate::csi::{Node, NodeFacts};
use crate::drivers::{Drivers, Plugins, changes};
use crate::registration;
use crate::scan::Socket;
use crate::watch::WatchThread;

/// Notifications of refusals under way.
const REFUSALS_MAX: usize = 64;
/// Queued requests to inspect a driver again.
const REFRESHES_MAX: usize = 64;

/// Watches a folder for plugins. Nothing is registered before `Registrar::run`.
pub fn start(root: &Path) -> io::Result<(Drivers, Refresher, Registrar)> {
    let watch = WatchThread::start(root)?;
    let (publisher, plugins) = watch::channel(Arc::default());
    let (refresher, refreshes) = mpsc::channel(REFRESHES_MAX);
    let registrar = Registrar {
        sockets: watch.sockets(),
        _watch: watch,
        registry: SocketRegistry::default(),
        publisher,
        refreshes,
        calls: JoinSet::new(),
        handles: BTreeMap::new(),
        refusals: JoinSet::new(),
    };
    Ok((Drivers::new(plugins), Refresher(refresher), registrar))
}

/// Requests that the registrar inspect a driver again, for instance for its volume limit.
#[derive(Clone, Debug)]
pub struct Refresher(mpsc::Sender<String>);

impl Refresher {
    /// Creates a refresher without a registrar, for tests: nothing is refreshed.
    pub fn none() -> Self {
        Self(mpsc::channel(1).0)
    }

    /// Enqueues an inspection of the driver of that name. It is dropped while the queue is full,
    /// and repeated by the driver's next period or by the next pod that its limit rejects.
    pub fn refresh(&self, driver: &str) {
        let _ = self.0.try_send(driver.to_owned());
    }
}

/// Registers plugins while it runs.
#[derive(Debug)]
pub struct Registrar {
    _watch: WatchThread,
    sockets: watch::Receiver<Vec<Socket>>,
    registry: SocketRegistry,
    publisher: watch::Sender<Arc<Plugins>>,
    refreshes: mpsc::Receiver<String>,
    calls: JoinSet<RegistryInput>,
    handles: BTreeMap<CommandTicket, AbortHandle>,
    refusals: JoinSet<()>,
}

impl Registrar {
    /// Runs until it is dropped, which also ends the thread that watches the folder, or until that
    /// thread dies.
    pub async fn run(mut self) {
        loop {
            let due = self.registry.due();
            let tick = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                changed = self.sockets.changed() => match changed {
                    Ok(()) => RegistryInput::Sockets(self.sockets.borrow_and_update().clone()),
                    Err(_) => return,
                },
                Some(ended) = self.calls.join_next() => match ended {
                    Ok(input) => input,
                    Err(_) => continue, // cancelled
                },
                Some(_) = self.refusals.join_next() => continue,
                Some(driver) = self.refreshes.recv() => {
                    self.refresh(&driver);
                    continue;
                }
                () = tick => RegistryInput::Tick,
            };
            self.handle(input);
        }
    }

    fn handle(&mut self, input: RegistryInput) {
        if let RegistryInput::Asked(ticket, _)
        | RegistryInput::Inspected(ticket, _)
        | RegistryInput::Confirmed(ticket, _) = &input
        {
            self.handles.remove(ticket);
        }
        let commands = self.registry.handle(Instant::now(), input);
        for command in commands {
            self.carry_out(command);
        }
        let plugins = self.registry.plugins();
        self.publisher.send_if_modified(|last| {
            let is_same =
                last.unregistered == plugins.unregistered && changes(last, &plugins).is_empty();
            *last = Arc::new(plugins);
            !is_same
        });
    }

    fn carry_out(&mut self, command: RegistryCommand) {
        let (ticket, handle) = match command {
            RegistryCommand::Ask(ticket, socket) => (ticket, self.calls.spawn(ask(ticket, socket))),
            RegistryCommand::Inspect(ticket, node) => {
                let call = async move { RegistryInput::Inspected(ticket, inspect(&node).await) };
                (ticket, self.calls.spawn(call))
            }
            RegistryCommand::Confirm(ticket, socket) => {
                let call = async move {
                    RegistryInput::Confirmed(ticket, registration::notify(&socket, "").await)
                };
                (ticket, self.calls.spawn(call))
            }
            RegistryCommand::Refuse(socket, why) => return self.refuse(socket, why),
            RegistryCommand::Cancel(ticket) => {
                if let Some(handle) = self.handles.remove(&ticket) {
                    handle.abort();
                }
                return;
            }
        };
        self.handles.insert(ticket, handle);
    }

    fn refuse(&mut self, socket: PathBuf, why: String) {
        tracing::info!(socket = %socket.display(), why, "plugin is not registered");
        if self.refusals.len() < REFUSALS_MAX {
            self.refusals.spawn(async move {
                let _ = registration::notify(&socket, &why).await; // it may be gone already
            });
        }
    }

    /// Inspects a registered driver again. A driver that does not answer keeps its known facts.
    fn refresh(&mut self, name: &str) {
        let Some(driver) = self.registry.plugins().drivers.remove(name) else { return };
        self.calls.spawn(async move {
            match inspect(&driver.node).await {
                Ok(inspected) => RegistryInput::Refreshed(driver.registration, inspected),
                Err(error) => {
                    tracing::info!(driver = driver.name, %error, "could not read the driver again");
                    RegistryInput::Tick
                }
            }
        });
    }
}

async fn ask(ticket: CommandTicket, socket: PathBuf) -> RegistryInput {
    let answer = match registration::ask(&socket).await {
        Ok(info) => registration::check(&info, &socket).map_err(PluginInfoError::Refused),
        Err(error) => Err(PluginInfoError::Unreached(error)),
    };
    RegistryInput::Asked(ticket, answer)
}

/// Reads what a driver says about the node, and its capabilities.
async fn inspect(node: &Node) -> Result<Inspected, InspectError> {
    let facts = NodeFacts::read(node.info().await?)?;
    Ok(Inspected { facts, capabilities: node.capabilities().await? })
}
