//! Which plugins are registered: the decisions.
//!
//! ```text
//!   sockets ─> Sockets ─┐                             ┌─> Ask, Inspect, Confirm, Refuse, Cancel
//!   answers ─> Asked .. ┴─> SocketRegistry::handle ───┴─> `plugins`, published when it changes
//! ```
//! Pure: time is an argument. `task` carries out each command and returns its answer under the
//! command's ticket. Sockets are independent: one that hangs delays no other. Each waits for its
//! turn to be asked, so that a flood of sockets keeps the thread free (`turns`). A driver name
//! belongs to the newest socket that claims it, by the change time of the file, which no tenant can
//! set. An older socket is refused, and gets the name back when the newer one is removed. Bounds:
//! `scan::SOCKETS_MAX` sockets, one command each under way.
// k8s: pkg/kubelet/pluginmanager/reconciler/reconciler.go, operationexecutor

mod socket;
mod task;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::csi::{Capabilities, Node, NodeFacts, RefusedFacts};
use crate::drivers::{Plugins, RegisteredDriver, Unregistered};
use crate::error::CallError;
use crate::registration::{DriverCandidate, RegistrationRefusal};
use crate::scan::Socket;

use socket::{SocketEntry, State};
use turns::{CallTurns, WaitingSocket};

pub use task::{Refresher, Registrar, start};

/// Identifies a command until its answer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CommandTicket(u64);

/// The facts of the node that a driver reports, and its capabilities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inspected {
    pub(crate) facts: NodeFacts,
    pub(crate) capabilities: Capabilities,
}

/// Reason why a plugin did not become a candidate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PluginInfoError {
    /// GetInfo failed.
    #[error("RegisterPlugin error -- failed to get plugin info using RPC GetInfo: {0}")]
    Unreached(CallError),
    /// Its answer is invalid.
    #[error(transparent)]
    Refused(#[from] RegistrationRefusal),
}

/// Reason why a driver could not be inspected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InspectError {
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// An answer has values that no object of the API can hold.
    #[error(transparent)]
    Facts(#[from] RefusedFacts),
}

/// An event for the registry.
#[derive(Debug)]
pub(crate) enum RegistryInput {
    /// These sockets are in the folder.
    Sockets(Vec<Socket>),
    /// The result of `Ask`.
    Asked(CommandTicket, Result<DriverCandidate, PluginInfoError>),
    /// The result of `Inspect`.
    Inspected(CommandTicket, Result<Inspected, InspectError>),
    /// The result of `Confirm`.
    Confirmed(CommandTicket, Result<(), CallError>),
    /// New facts of the driver with that registration.
    Refreshed(u64, Inspected),
    /// Time has passed.
    Tick,
}

/// A call to carry out.
#[derive(Clone, Debug)]
pub(crate) enum RegistryCommand {
    /// Call GetInfo of the plugin behind a socket.
    Ask(CommandTicket, PathBuf),
    /// Read a driver's facts of the node and its capabilities.
    Inspect(CommandTicket, Node),
    /// Notify a plugin that it is registered.
    Confirm(CommandTicket, PathBuf),
    /// Notify a plugin of the reason for its refusal; the answer is ignored.
    Refuse(PathBuf, String),
    /// Abort the command of this ticket: its answer is no longer needed.
    Cancel(CommandTicket),
}

/// All sockets and the state of their registration.
#[derive(Debug, Default)]
pub(crate) struct SocketRegistry {
    entries: BTreeMap<PathBuf, SocketEntry>,
    drivers: BTreeMap<String, Registered>,
    turns: CallTurns,
    tickets: u64,
    registrations: u64,
}

/// The driver that has a name.
#[derive(Debug)]
struct Registered {
    socket: PathBuf,
    driver: Arc<RegisteredDriver>,
}

impl SocketRegistry {
    /// Handles an input; returns the commands that follow from it.
    pub(crate) fn handle(&mut self, now: Instant, input: RegistryInput) -> Vec<RegistryCommand> {
        let mut commands = Vec::new();
        if let RegistryInput::Asked(ticket, _)
        | RegistryInput::Inspected(ticket, _)
        | RegistryInput::Confirmed(ticket, _) = &input
        {
            self.turns.end(*ticket);
        }
        match input {
            RegistryInput::Sockets(sockets) => self.observe(now, sockets, &mut commands),
            RegistryInput::Tick => self.retry(now),
            RegistryInput::Asked(ticket, answer) => {
                if let Some(path) = self.awaited(ticket) {
                    self.asked(now, &path, answer, &mut commands);
                }
            }
            RegistryInput::Inspected(ticket, answer) => {
                if let Some(path) = self.awaited(ticket) {
                    self.inspected(now, &path, answer, &mut commands);
                }
            }
            RegistryInput::Confirmed(ticket, answer) => {
                if let Some(path) = self.awaited(ticket) {
                    self.confirmed(now, &path, answer);
                }
            }
            RegistryInput::Refreshed(registration, inspected) => {
                self.refresh(registration, inspected)
            }
        }
        self.take_turns(now, &mut commands);
        commands
    }

    /// Counts the calls that begin or end, and asks the next sockets.
    fn take_turns(&mut self, now: Instant, commands: &mut Vec<RegistryCommand>) {
        for command in commands.iter() {
            match command {
                RegistryCommand::Inspect(ticket, _) | RegistryCommand::Confirm(ticket, _) => {
                    self.turns.begin(now, *ticket);
                }
                RegistryCommand::Cancel(ticket) => self.turns.end(*ticket),
                RegistryCommand::Ask(..) | RegistryCommand::Refuse(..) => {}
            }
        }
        while let Some(path) = self.turns.next(now, waiting(&self.entries)) {
            let ticket = self.ticket();
            self.turns.begin(now, ticket);
            self.entry(&path).state = State::Asking(ticket);
            commands.push(RegistryCommand::Ask(ticket, path));
        }
    }

    /// When `RegistryInput::Tick` is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        let retries = self.entries.values().filter_map(SocketEntry::due);
        let turn = self.turns.free_at().filter(|_| waiting(&self.entries).next().is_some());
        retries.chain(turn).min()
    }

    /// What is registered and what is not.
    pub(crate) fn plugins(&self) -> Plugins {
        let driver = |(name, registered): (&String, &Registered)| {
            (name.clone(), Arc::clone(&registered.driver))
        };
        let unregistered = self.entries.iter().filter_map(|(path, entry)| {
            let problem = entry.problem()?;
            Some(Unregistered { socket: path.clone(), problem })
        });
        Plugins {
            drivers: self.drivers.iter().map(driver).collect(),
            unregistered: unregistered.collect(),
        }
    }

    /// Compares the folder with what is known.
    fn observe(&mut self, now: Instant, sockets: Vec<Socket>, commands: &mut Vec<RegistryCommand>) {
        let is_there = |path: &Path, entry: &SocketEntry| {
            sockets.iter().any(|socket| socket.path == path && socket.file == entry.file)
        };
        let known = self.entries.iter();
        let gone = known.filter(|(path, entry)| !is_there(path, entry));
        let gone: Vec<_> = gone.map(|(path, _)| path.clone()).collect();
        // Removals first: a recreated socket releases its name and claims it again.
        for path in gone {
            self.remove(now, &path, commands);
        }
        for socket in sockets {
            if self.entries.contains_key(&socket.path) {
                continue;
            }
            let arrived = self.ticket();
            self.entries.insert(socket.path.clone(), SocketEntry::new(&socket, now, arrived));
        }
    }

    fn remove(&mut self, now: Instant, path: &Path, commands: &mut Vec<RegistryCommand>) {
        let Some(entry) = self.entries.remove(path) else { return };
        commands.extend(entry.ticket().map(RegistryCommand::Cancel));
        self.release(now, path);
    }

    /// Releases the driver name of a socket; sockets that wait for the name ask again.
    fn release(&mut self, now: Instant, path: &Path) {
        let held = self.drivers.iter().find(|(_, registered)| registered.socket == path);
        let Some(name) = held.map(|(name, _)| name.clone()) else { return };
        self.drivers.remove(&name);
        tracing::info!(driver = name, socket = %path.display(), "CSI driver is gone");
        let waits =
            |entry: &SocketEntry| matches!(&entry.state, State::Older(other, _) if *other == name);
        let waiting = self.entries.iter().filter(|(_, entry)| waits(entry));
        let waiting: Vec<_> = waiting.map(|(path, _)| path.clone()).collect();
        for path in waiting {
            self.ask(now, &path);
        }
    }

    /// The plugins that are due for another attempt wait for their turn.
    fn retry(&mut self, now: Instant) {
        let is_due = |entry: &SocketEntry| entry.due().is_some_and(|due| due <= now);
        let due = self.entries.iter().filter(|(_, entry)| is_due(entry));
        let due: Vec<_> = due.map(|(path, _)| path.clone()).collect();
        for path in due {
            self.ask(now, &path);
        }
    }

    fn ask(&mut self, now: Instant, path: &Path) {
        self.entry(path).state = State::Waiting(now);
    }

    fn asked(
        &mut self,
        now: Instant,
        path: &Path,
        answer: Result<DriverCandidate, PluginInfoError>,
        commands: &mut Vec<RegistryCommand>,
    ) {
        let candidate = match answer {
            Ok(candidate) => candidate,
            // A plugin that did not answer would not take a notification either.
            Err(why @ PluginInfoError::Unreached(_)) => {
                return self.entry(path).fail(now, why.to_string());
            }
            Err(PluginInfoError::Refused(why)) => {
                return self.refuse(now, path, why.to_string(), commands);
            }
        };
        if !self.yields(path, &candidate.name, commands) {
            let ticket = self.ticket();
            let node = Node::new(&candidate.endpoint);
            commands.push(RegistryCommand::Inspect(ticket, node.clone()));
            self.entry(path).state = State::Inspecting(ticket, candidate.name, node);
        }
    }

    fn inspected(
        &mut self,
        now: Instant,
        path: &Path,
        answer: Result<Inspected, InspectError>,
        commands: &mut Vec<RegistryCommand>,
    ) {
        let State::Inspecting(_, name, node) = self.entry(path).state.clone() else { return };
        let inspected = match answer {
            Ok(inspected) => inspected,
            Err(why) => {
                let why =
                    format!("RegisterPlugin error -- plugin registration failed with err: {why}");
                return self.refuse(now, path, why, commands);
            }
        };
        if !self.yields(path, &name, commands) {
            self.register(path, name, node, inspected, commands);
        }
    }

    /// Gives a name to the driver behind a socket.
    fn register(
        &mut self,
        path: &Path,
        name: String,
        node: Node,
        inspected: Inspected,
        commands: &mut Vec<RegistryCommand>,
    ) {
        self.registrations += 1;
        let registration = self.registrations;
        let Inspected { facts, capabilities } = inspected;
        let socket = path.display();
        tracing::info!(driver = name, %socket, registration, "CSI driver is registered");
        let driver =
            RegisteredDriver { name: name.clone(), registration, facts, capabilities, node };
        let registered = Registered { socket: path.to_owned(), driver: Arc::new(driver) };
        let earlier = self.drivers.insert(name.clone(), registered);
        if let Some(earlier) = earlier.filter(|earlier| earlier.socket != path) {
            let entry = self.entry(&earlier.socket);
            commands.extend(entry.ticket().map(RegistryCommand::Cancel));
            entry.state = State::Older(name, taken(path));
        }
        let ticket = self.ticket();
        commands.push(RegistryCommand::Confirm(ticket, path.to_owned()));
        self.entry(path).state = State::Confirming(ticket);
    }

    fn confirmed(&mut self, now: Instant, path: &Path, answer: Result<(), CallError>) {
        match answer {
            Ok(()) => self.entry(path).succeed(),
            Err(why) => {
                // k8s: operation_generator.go GenerateRegisterPluginFunc: it counts as not registered
                self.entry(path).fail(now, format!("it was not told of its registration: {why}"));
                self.release(now, path);
            }
        }
    }

    fn refresh(&mut self, registration: u64, inspected: Inspected) {
        let mut all = self.drivers.values_mut();
        let found = all.find(|registered| registered.driver.registration == registration);
        if let Some(found) = found {
            let Inspected { facts, capabilities } = inspected;
            let driver =
                RegisteredDriver { facts, capabilities, ..RegisteredDriver::clone(&found.driver) };
            found.driver = Arc::new(driver);
        }
    }

    /// Returns whether a newer socket has the name, and lets this one wait for it then.
    fn yields(&mut self, path: &Path, name: &str, commands: &mut Vec<RegistryCommand>) -> bool {
        let Some(holder) = self.drivers.get(name).map(|registered| registered.socket.clone())
        else {
            return false;
        };
        if holder == path || self.entry(path).age() > self.entry(&holder).age() {
            return false;
        }
        let why = RegistrationRefusal::Taken(name.to_owned(), holder.display().to_string());
        commands.push(RegistryCommand::Refuse(path.to_owned(), why.to_string()));
        self.entry(path).state = State::Older(name.to_owned(), taken(&holder));
        true
    }

    fn refuse(
        &mut self,
        now: Instant,
        path: &Path,
        why: String,
        commands: &mut Vec<RegistryCommand>,
    ) {
        commands.push(RegistryCommand::Refuse(path.to_owned(), why.clone()));
        self.entry(path).fail(now, why);
    }

    /// The socket that waits for this answer, if it still does.
    fn awaited(&self, ticket: CommandTicket) -> Option<PathBuf> {
        let mut all = self.entries.iter();
        all.find(|(_, entry)| entry.ticket() == Some(ticket)).map(|(path, _)| path.clone())
    }

    fn entry(&mut self, path: &Path) -> &mut SocketEntry {
        self.entries.get_mut(path).expect("a name is held by, and answers come for, known sockets")
    }

    fn ticket(&mut self) -> CommandTicket {
        self.tickets += 1;
        CommandTicket(self.tickets)
    }
}

/// The sockets that wait for their turn.
fn waiting(entries: &BTreeMap<PathBuf, SocketEntry>) -> impl Iterator<Item = WaitingSocket<'_>> {
    entries.iter().filter_map(|(path, entry)| entry.waits(path))
}

/// Why a socket waits.
fn taken(holder: &Path) -> String {
    format!("the newer socket {} has its name", holder.display())
}
