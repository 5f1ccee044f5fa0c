//! SIGTERM and SIGINT, on a thread of their own, because a stuck deciding thread handles none.
//!
//! ```text
//!   first signal ── nothing begun: exit 0
//!        └──> deciding thread: acknowledges, ends what is under way ──> exit 0
//!                 │ no answer for ACKNOWLEDGE_MAX, or not over in END_MAX, or a second signal
//!                 v
//!             exit 1; without an answer the lease ends first
//! ```
//! Input: signals. Output: the wish to end, and the end of the process. Owner: one thread. Bounds:
//! `ACKNOWLEDGE_MAX` and `END_MAX`: less than the 30 s that a pod has by default.
// k8s: staging/src/k8s.io/apiserver/pkg/server/signal.go SetupSignalContext

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::StartError;
use super::lease::LeaseKeeper;
use super::watchdog::DecisionTurns;
use crate::tasks;

/// A deciding thread that does not answer for so long is stuck.
const ACKNOWLEDGE_MAX: Duration = Duration::from_secs(5);
/// Limit of ending the writes and releasing the lease, from the first signal on.
const END_MAX: Duration = Duration::from_secs(25);

/// The process as the signals' thread knows it; empty until it works.
#[derive(Debug, Default)]
pub struct Signals {
    guarded: OnceLock<Guarded>,
    is_acknowledged: AtomicBool,
}

#[derive(Debug)]
struct Guarded {
    turns: Arc<DecisionTurns>,
    lease: Option<LeaseKeeper>,
    /// Writes, in the words of the component: `bindings`.
    writes: &'static str,
}

impl Signals {
    /// From now on the process has work to end: the deciding thread is asked first. `writes` names
    /// the writes that may be in flight.
    pub fn guard(
        &self,
        turns: Arc<DecisionTurns>,
        lease: Option<LeaseKeeper>,
        writes: &'static str,
    ) {
        // It is called once.
        let _ = self.guarded.set(Guarded { turns, lease, writes });
    }

    async fn obey(&self, tell: watch::Sender<bool>, [end, interrupt]: &mut [Signal; 2]) -> i32 {
        either(end, interrupt).await;
        let Some(guarded) = self.guarded.get() else { return 0 };
        tell.send_replace(true);
        let patience = async {
            tokio::time::sleep(ACKNOWLEDGE_MAX).await;
            if self.is_acknowledged.load(Ordering::SeqCst) {
                tokio::time::sleep(END_MAX - ACKNOWLEDGE_MAX).await;
            }
        };
        tokio::select! {
            () = patience => {}
            () = either(end, interrupt) => {
                let writes = guarded.writes;
                tracing::error!("second signal: ending at once; {writes} may have no answer yet");
                return 1;
            }
        }
        match self.is_acknowledged.load(Ordering::SeqCst) {
            true => tracing::error!("ending: what was under way did not end within {END_MAX:?}"),
            false => {
                tracing::error!("ending: the deciding thread is stuck");
                guarded.turns.give_up(guarded.lease.as_ref());
            }
        }
        1
    }
}

async fn either(end: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = end.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// The deciding thread's end of it.
#[derive(Debug)]
pub struct Ending {
    requested: watch::Receiver<bool>,
    signals: Arc<Signals>,
    /// Keeps the channel open where no thread listens.
    _tell: Option<watch::Sender<bool>>,
}

impl Ending {
    /// Waits for the first signal.
    pub async fn requested(&mut self) {
        if self.requested.wait_for(|is_requested| *is_requested).await.is_err() {
            std::future::pending().await
        }
    }

    /// Marks the deciding thread as not stuck: it ends its work.
    pub fn acknowledge(&self) {
        self.signals.is_acknowledged.store(true, Ordering::SeqCst);
    }

    /// An end that is never requested, for tests.
    pub fn never() -> Self {
        let (tell, requested) = watch::channel(false);
        Self { requested, signals: Arc::default(), _tell: Some(tell) }
    }
}

/// Takes signals from now on.
///
/// # Errors
/// When they cannot be taken, or there is no thread to be had.
pub fn listen() -> Result<(Ending, Arc<Signals>), StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut kinds = {
        let _here = runtime.enter();
        [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?]
    };
    let (tell, requested) = watch::channel(false);
    let signals = Arc::new(Signals::default());
    let ending = Ending { requested, signals: Arc::clone(&signals), _tell: None };
    let shared = Arc::clone(&signals);
    let obeys = move || {
        let code = runtime.block_on(shared.obey(tell, &mut kinds));
        std::process::exit(code);
    };
    let started = tasks::thread("signals", obeys);
    started.map_err(|source| StartError::Thread { name: "signals", source })?;
    Ok((ending, signals))
}
