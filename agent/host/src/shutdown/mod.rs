//! Watches for shutdowns of the machine, and has it wait until the pods have ended.
//!
//! ```text
//!   logind ─PrepareForShutdown─> session ─Notice─> PodsInput::Shutdown ─> decisions
//!      ^                            │                                         │ Record
//!      └──── delay lock <───────────┴────────────── keep ─> state file <──────┘
//! ```
//! A delay lock makes logind wait with a shutdown until it is released, or until logind's own
//! `InhibitDelayMaxSec` is over, which is raised when it is too small. Both tasks run on the thread
//! that decides: they sleep on one socket and one cell, and their reports are inputs of the
//! decisions. Without configured time none of this runs. Bounds: one connection, one lock, calls of
//! `logind::CALL_MAX`, reconnects after `RECONNECT`.
// k8s: pkg/kubelet/nodeshutdown/nodeshutdown_manager_linux.go

#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod logind;
mod state;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use pintle_agent_core::node::conditions::{NodeEvent, NodeEvents};
use pintle_agent_core::shutdown::{self, Notice, ShutdownRecord, Window};
use pintle_agent_core::worker::PodsInput;
use pintle_daemon::{clock, tasks};
use tokio::sync::{mpsc, watch};

use self::logind::{Announcer, Logind, LogindError, ShutdownSignals};

/// Directory of logind's configuration.
pub const LOGIND_CONF: &str = "/etc/systemd/logind.conf.d";
/// How long the start of the agent waits to hear whether the machine is about to shut down.
const FIRST_LOOK_MAX: Duration = Duration::from_secs(2);
/// First and longest wait before logind is connected to again.
// k8s: pkg/kubelet/nodeshutdown/nodeshutdown_manager_linux.go dbusReconnectPeriod
const RECONNECT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The events to wait for, and the paths.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The groups of pods; without any nothing is watched.
    pub windows: Vec<Window>,
    /// Directory of the state file.
    pub root_dir: PathBuf,
    /// Directory of logind's configuration.
    pub logind_conf: PathBuf,
    /// The sender of shutdown signals that counts.
    pub announcer: Announcer,
    /// Address of the bus; `None` for the system bus, or what `DBUS_SYSTEM_BUS_ADDRESS` names.
    pub bus: Option<String>,
}

/// The progress of a shutdown, for all observers.
pub type Progress = watch::Sender<Option<ShutdownRecord>>;

/// The inhibitor lock of logind, and its last signal. A cancellation is recorded here before
/// anything is awaited.
#[derive(Debug, Default)]
struct DelayLock {
    held: RefCell<Option<OwnedFd>>,
    /// The machine is about to shut down.
    preparing: Cell<bool>,
}

struct Watcher {
    settings: Settings,
    inputs: mpsc::Sender<PodsInput>,
    events: NodeEvents,
    lock: Rc<DelayLock>,
    /// The record of an agent before this one, until it is known whether this shutdown continues
    /// it.
    before: Option<ShutdownRecord>,
}

/// A connection on which shutdown signals arrive.
struct SignalSession {
    logind: Logind,
    signals: ShutdownSignals,
}

/// The record of an agent before this one; `None` when nothing can be read.
pub fn last(root: &Path) -> Option<ShutdownRecord> {
    state::load(root)
}

/// Begins to watch. When it returns, a shutdown under way has been reported: no pod may start
/// before that.
pub async fn start(
    settings: Settings,
    inputs: mpsc::Sender<PodsInput>,
    events: NodeEvents,
    progress: &Progress,
) {
    if settings.windows.is_empty() {
        return;
    }
    let lock = Rc::<DelayLock>::default();
    let keeping = state::keep(settings.root_dir.clone(), progress.subscribe(), Rc::clone(&lock));
    tasks::singleton("shutdown state", keeping);
    let before = state::load(&settings.root_dir);
    let mut watcher = Watcher { settings, inputs, events, lock, before };
    let opened = match tokio::time::timeout(FIRST_LOOK_MAX, watcher.open()).await {
        Ok(opened) => opened,
        Err(_) => Err(LogindError::Slow("the first look")),
    };
    tasks::singleton("node shutdown", watcher.run(opened));
}

impl Watcher {
    async fn run(mut self, mut opened: Result<SignalSession, LogindError>) {
        let mut wait = RECONNECT.0;
        let mut warned = false;
        loop {
            match opened {
                Ok(session) => {
                    (wait, warned) = (RECONNECT.0, false);
                    let Err(error) = self.follow(session).await else { return };
                    tracing::warn!(%error, "shutdowns of the machine are not heard of any more");
                }
                Err(error) if !warned => {
                    warned = true;
                    tracing::warn!(%error, "shutdownGracePeriod: shutdowns of the machine cannot be \
                        watched yet, and pods would not end in order; trying again");
                }
                Err(error) => tracing::debug!(%error, "logind"),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RECONNECT.1);
            opened = self.open().await;
        }
    }

    /// Connects, and reports a shutdown under way. The signals are subscribed first, so that none
    /// is missed in between.
    async fn open(&mut self) -> Result<SignalSession, LogindError> {
        let logind = Logind::connect(self.settings.bus.as_deref()).await?;
        let signals = logind.signals(self.settings.announcer).await?;
        let preparing = logind.is_preparing().await?;
        self.say(preparing).await;
        Ok(SignalSession { logind, signals })
    }

    /// Runs until the connection ends; `Ok` when the receiver is gone.
    async fn follow(&mut self, mut session: SignalSession) -> Result<(), LogindError> {
        self.raise_delay(&session.logind).await;
        self.hold(&session.logind).await;
        loop {
            let preparing = session.signals.next().await?;
            if !self.say(preparing).await {
                return Ok(());
            }
            if !preparing {
                self.hold(&session.logind).await;
            }
        }
    }

    /// Takes the lock, unless it is held.
    async fn hold(&self, logind: &Logind) {
        if self.lock.held.borrow().is_some() {
            return;
        }
        match logind.inhibit().await {
            Ok(lock) => *self.lock.held.borrow_mut() = Some(lock),
            // In the middle of a shutdown logind grants no lock.
            Err(error) if self.lock.preparing.get() => {
                tracing::warn!(%error, "the machine does not wait for pods")
            }
            Err(error) => tracing::error!(%error, "the machine will not wait for pods to end"),
        }
    }

    /// Raises logind's delay. Less time than requested is better than none, so a shortfall is only
    /// logged.
    async fn raise_delay(&self, logind: &Logind) {
        let wanted = shutdown::total(&self.settings.windows);
        if let Err(error) = logind.raise_delay(wanted, &self.settings.logind_conf).await {
            tracing::error!(%error, "the machine may not wait long enough for pods to end");
        }
    }

    /// Reports a change; false when the receiver is gone.
    async fn say(&mut self, preparing: bool) -> bool {
        let before = self.before.take();
        if self.lock.preparing.replace(preparing) == preparing {
            return true;
        }
        let what = if preparing { "event" } else { "cancellation" };
        (self.events)(NodeEvent {
            warning: false,
            reason: shutdown::EVENT,
            message: format!("Shutdown manager detected shutdown {what}"),
        });
        let notice = match preparing {
            true => Notice::Begins {
                windows: self.settings.windows.clone(),
                resumed: before.filter(|record| record.is_of_this_boot(clock::now(), up_for())),
            },
            false => Notice::Cancelled,
        };
        self.inputs.send(PodsInput::Shutdown(notice)).await.is_ok()
    }
}

/// How long the machine is up.
fn up_for() -> Duration {
    let up = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
    // Every kernel that runs this has the clock.
    up.unwrap_or_default()
}
