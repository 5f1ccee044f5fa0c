//! SIGTERM and SIGINT, on a thread of their own: a deciding thread that is stuck does not hear them.
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

use anyhow::{Context as _, Result};
use pintle_daemon::tasks;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::daemon::serve::State;
use crate::lead::LeaseKeeper;

/// A deciding thread that does not answer for so long is stuck.
const ACKNOWLEDGE_MAX: Duration = Duration::from_secs(5);
/// What it may take to end bindings and to release the lease, from the first signal on.
const END_MAX: Duration = Duration::from_secs(25);

/// What the signals' thread has of the process; nothing before it works.
#[derive(Default)]
pub(super) struct Signals {
    guarded: OnceLock<(Arc<State>, Option<LeaseKeeper>)>,
    is_acknowledged: AtomicBool,
}

impl Signals {
    /// From now on there is something to be ended: the deciding thread is asked first.
    pub(super) fn guard(&self, state: &Arc<State>, lease: Option<LeaseKeeper>) {
        // It is called once.
        let _ = self.guarded.set((Arc::clone(state), lease));
    }

    async fn obey(&self, tell: watch::Sender<bool>, [end, interrupt]: &mut [Signal; 2]) -> i32 {
        either(end, interrupt).await;
        let Some((state, lease)) = self.guarded.get() else { return 0 };
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
                tracing::error!("second signal: ending at once; bindings may have no answer yet");
                return 1;
            }
        }
        match self.is_acknowledged.load(Ordering::SeqCst) {
            true => tracing::error!("ending: what was under way did not end within {END_MAX:?}"),
            false => {
                tracing::error!("ending: the deciding thread is stuck");
                state.turns.give_up(lease.as_ref());
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
pub(super) struct Ending {
    requested: watch::Receiver<bool>,
    signals: Arc<Signals>,
    /// Keeps the channel open where no thread listens.
    _tell: Option<watch::Sender<bool>>,
}

impl Ending {
    /// Waits for the first signal.
    pub(super) async fn requested(&mut self) {
        if self.requested.wait_for(|is_requested| *is_requested).await.is_err() {
            std::future::pending().await
        }
    }

    /// The deciding thread is not stuck: it ends what is under way.
    pub(super) fn acknowledge(&self) {
        self.signals.is_acknowledged.store(true, Ordering::SeqCst);
    }

    /// An end that is never requested.
    #[cfg(test)]
    pub(super) fn never() -> Self {
        let (tell, requested) = watch::channel(false);
        Self { requested, signals: Arc::default(), _tell: Some(tell) }
    }
}

/// Takes signals from now on.
///
/// # Errors
/// When they cannot be taken, or there is no thread to be had.
pub(super) fn listen() -> Result<(Ending, Arc<Signals>)> {
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
    tasks::thread("signals", obeys).context("the thread of signals")?;
    Ok((ending, signals))
}
