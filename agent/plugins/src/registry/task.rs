//! Which plugins are registered: the effects.
//!
//! Carries out the registry's commands, each in a task of its own, and publishes what is registered
//! when it changes. Owner: one task of the main thread. Bounds: one call a socket under way,
//! besides `REFUSALS_MAX` refusals; `REFRESHES_MAX` wishes to ask a driver again.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::{
    CommandTicket, Inspected, RegistryCommand, RegistryInput, SocketRegistry, Unasked, Uninspected,
};
use crate::csi::{Node, NodeFacts};
use crate::drivers::{Drivers, Plugins, changes};
use crate::registration;
use crate::scan::Socket;
use crate::watch::WatchThread;

/// Notifications of refusals under way.
const REFUSALS_MAX: usize = 64;
/// Drivers that wait to be asked again.
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

/// Has drivers asked again what they say about the node.
#[derive(Clone, Debug)]
pub struct Refresher(mpsc::Sender<String>);

impl Refresher {
    /// One without a registrar, for tests of what uses it: nothing is refreshed.
    pub fn none() -> Self {
        Self(mpsc::channel(1).0)
    }

    /// Asks the driver of that name again. A wish too many is dropped: one like it waits already,
    /// or comes with the next period.
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
    /// Runs until the watch of the folder ends, which it does with this.
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

    /// Asks a registered driver again; one that does not answer stays as it is.
    fn refresh(&mut self, name: &str) {
        let Some(driver) = self.registry.plugins().drivers.remove(name) else { return };
        self.calls.spawn(async move {
            match inspect(&driver.node).await {
                Ok(inspected) => RegistryInput::Refreshed(driver.registration, inspected),
                Err(error) => {
                    tracing::info!(driver = driver.name, %error, "driver does not tell its limit");
                    RegistryInput::Tick
                }
            }
        });
    }
}

async fn ask(ticket: CommandTicket, socket: PathBuf) -> RegistryInput {
    let answer = match registration::ask(&socket).await {
        Ok(info) => registration::check(&info, &socket).map_err(Unasked::Refused),
        Err(error) => Err(Unasked::Unreached(error)),
    };
    RegistryInput::Asked(ticket, answer)
}

/// Asks a driver about itself.
async fn inspect(node: &Node) -> Result<Inspected, Uninspected> {
    let facts = NodeFacts::read(node.info().await?)?;
    Ok(Inspected { facts, capabilities: node.capabilities().await? })
}
