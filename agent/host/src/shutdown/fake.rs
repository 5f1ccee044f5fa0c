//! A system bus with nothing on it but logind and systemd, for tests.
//!
//! It listens on a socket that `DBUS_SYSTEM_BUS_ADDRESS` names, answers the calls of a client to a
//! bus and to logind, hands out locks as pipes and knows whether they are held, and announces
//! shutdowns. Real messages over a real socket; no bus daemon is needed.

#![allow(missing_docs, reason = "the macro makes methods that nobody can document")]

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;
use tokio::net::{UnixListener, UnixStream};
use zbus::object_server::SignalEmitter;
use zbus::zvariant;
use zbus::{Connection, connection, fdo, interface};

const LOGIND: &str = "/org/freedesktop/login1";

/// Its state and the requests it received.
#[derive(Debug, Default)]
struct LogindState {
    preparing: bool,
    delay_usec: u64,
    /// Its delay once it has read its configuration.
    delay_after_reload: Option<u64>,
    /// Ends of the pipes of all locks, in the order in which they were given.
    locks: Vec<File>,
    /// Received calls of `Inhibit`.
    asked: VecDeque<[String; 4]>,
    hangups: u32,
    /// Which signals clients want to hear, as rules of the bus.
    rules: Vec<String>,
    /// Refuses locks, as logind does in the middle of a shutdown.
    refuses: bool,
}

type Shared = Arc<Mutex<LogindState>>;

/// See the module's header.
#[derive(Debug)]
pub struct FakeLogind {
    facts: Shared,
    clients: Arc<Mutex<Vec<Connection>>>,
}

struct Bus(Shared);
struct Logind(Shared);
struct Systemd(Shared);

#[interface(name = "org.freedesktop.DBus")]
impl Bus {
    fn hello(&self) -> String {
        ":1.7".to_owned()
    }

    fn add_match(&self, rule: String) {
        locked(&self.0).rules.push(rule);
    }

    fn remove_match(&self, _rule: String) {}
}

#[interface(name = "org.freedesktop.login1.Manager")]
impl Logind {
    fn inhibit(
        &self,
        what: String,
        who: String,
        why: String,
        mode: String,
    ) -> fdo::Result<zvariant::OwnedFd> {
        let mut facts = locked(&self.0);
        facts.asked.push_back([what, who, why, mode]);
        if facts.refuses {
            return Err(fdo::Error::Failed("already running".to_owned()));
        }
        let (ours, theirs) =
            pipe2(OFlag::O_CLOEXEC).map_err(|error| fdo::Error::Failed(error.to_string()))?;
        facts.locks.push(File::from(ours));
        Ok(theirs.into())
    }

    /// How long it waits for locks, in microseconds.
    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn delay(&self) -> u64 {
        locked(&self.0).delay_usec
    }

    /// It is about to shut down.
    #[zbus(property)]
    fn preparing_for_shutdown(&self) -> bool {
        locked(&self.0).preparing
    }

    /// It is about to shut down, or stays up.
    #[zbus(signal)]
    async fn prepare_for_shutdown(emitter: &SignalEmitter<'_>, active: bool) -> zbus::Result<()>;
}

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Systemd {
    fn kill_unit(&self, unit: &str, who: &str, signal: i32) {
        if (unit, who, signal) == ("systemd-logind.service", "all", 1) {
            let mut facts = locked(&self.0);
            facts.hangups += 1;
            if let Some(delay) = facts.delay_after_reload.take() {
                facts.delay_usec = delay;
            }
        }
    }
}

fn locked(facts: &Shared) -> std::sync::MutexGuard<'_, LogindState> {
    facts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeLogind {
    /// Listens on the socket; waits this long for locks.
    pub fn start(socket: &Path, delay: Duration) -> std::io::Result<Self> {
        let listener = UnixListener::bind(socket)?;
        let usec = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        let facts = LogindState { delay_usec: usec, ..LogindState::default() };
        let this = Self { facts: Arc::new(Mutex::new(facts)), clients: Arc::default() };
        let (facts, clients) = (Arc::clone(&this.facts), Arc::clone(&this.clients));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (facts, clients) = (Arc::clone(&facts), Arc::clone(&clients));
                tokio::spawn(async move {
                    // A client that disconnects before it is served does not count.
                    if let Ok(client) = serve(stream, &facts).await {
                        clients.lock().unwrap_or_else(PoisonError::into_inner).push(client);
                    }
                });
            }
        });
        Ok(this)
    }

    /// Sets its delay for locks once it has been asked to read its configuration.
    pub fn delay_after_reload(&self, delay: Duration) {
        let usec = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        locked(&self.facts).delay_after_reload = Some(usec);
    }

    /// Sets whether it refuses locks.
    pub fn refuse(&self, refuses: bool) {
        locked(&self.facts).refuses = refuses;
    }

    /// How often it was asked to read its configuration.
    pub fn hangups(&self) -> u32 {
        locked(&self.facts).hangups
    }

    /// The next request for a lock: the four arguments of `Inhibit`, with its mode last.
    pub fn asked(&self) -> Option<[String; 4]> {
        locked(&self.facts).asked.pop_front()
    }

    /// The signals that clients want to hear, as rules of the bus.
    pub fn rules(&self) -> Vec<String> {
        locked(&self.facts).rules.clone()
    }

    /// How many of the locks that it has given are held.
    pub fn held(&self) -> usize {
        let is_held = |lock: &File| {
            let mut fds = [PollFd::new(lock.as_fd(), PollFlags::POLLIN)];
            let polled = poll(&mut fds, PollTimeout::ZERO);
            let hung = |fd: &PollFd<'_>| {
                fd.revents().is_some_and(|seen| seen.contains(PollFlags::POLLHUP))
            };
            !(polled.is_ok() && fds.iter().any(hung))
        };
        locked(&self.facts).locks.iter().filter(|lock| is_held(lock)).count()
    }

    /// How many clients are connected.
    pub fn clients(&self) -> usize {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Is about to shut down, or stays up after all.
    pub async fn prepare(&self, active: bool) -> zbus::Result<()> {
        locked(&self.facts).preparing = active;
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for client in clients {
            let emitter = SignalEmitter::new(&client, LOGIND)?;
            // Of a client that has gone nothing is expected.
            let _ = Logind::prepare_for_shutdown(&emitter, active).await;
        }
        Ok(())
    }

    /// Prepares to shut down without a signal, so that only the property shows it.
    pub fn prepare_silently(&self, active: bool) {
        locked(&self.facts).preparing = active;
    }

    /// Closes all connections.
    pub async fn hang_up(&self) {
        let clients =
            std::mem::take(&mut *self.clients.lock().unwrap_or_else(PoisonError::into_inner));
        for client in clients {
            // One that is closed already is as good.
            let _ = client.close().await;
        }
    }
}

async fn serve(stream: UnixStream, facts: &Shared) -> zbus::Result<Connection> {
    connection::Builder::unix_stream(stream)
        .server(zbus::Guid::generate())?
        .p2p()
        .serve_at("/org/freedesktop/DBus", Bus(Arc::clone(facts)))?
        .serve_at(LOGIND, Logind(Arc::clone(facts)))?
        .serve_at("/org/freedesktop/systemd1", Systemd(Arc::clone(facts)))?
        .build()
        .await
}
