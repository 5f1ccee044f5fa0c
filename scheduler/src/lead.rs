//! The lease, on a thread of its own: a long decision must not look like the end of the process.
//!
//! Input: credentials, the lease, timings. Output: that this process leads, and that it does not any
//! more. Owner: one thread with a client of its own. A process that lost the lease ends within
//! `LAST_WORDS`, whatever its other threads do.
// k8s: cmd/kube-scheduler/app/server.go Run

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use pintle_api::leader::Elector;
use pintle_api::{Access, ClientOptions};
use pintle_daemon::tasks;
use tokio::sync::{mpsc, oneshot};

use crate::config::Process;
use crate::daemon::serve::State;

/// For the thread that decides, to say how it ends.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// For the lease to be given up.
const RELEASE_MAX: Duration = Duration::from_secs(10);

/// What becomes of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Leads,
    Lost,
}

/// The thread that has the lease, or wants it.
pub(crate) struct Lead {
    words: mpsc::UnboundedReceiver<Word>,
    release: oneshot::Sender<()>,
    released: oneshot::Receiver<()>,
}

impl Lead {
    /// Begins to want the lease; `None` where nobody has to agree on who works.
    ///
    /// # Errors
    /// When the timings make no sense, or there is no thread to be had.
    pub(crate) fn begin(
        access: &Access,
        process: &Process,
        state: &Arc<State>,
    ) -> Result<Option<Self>> {
        if !process.leader_elect {
            return Ok(None);
        }
        state.metrics.leads(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let elector = {
            let _here = runtime.enter();
            elector(access, process)?
        };
        let (tell, words) = mpsc::unbounded_channel();
        let (release, asked) = oneshot::channel();
        let (done, released) = oneshot::channel();
        let (lease, state) = (process.timing.lease, Arc::clone(state));
        tasks::thread("lease", move || {
            runtime.block_on(lead(elector, &tell, asked, |leads| match leads {
                true => state.holds_lease(lease),
                false => state.metrics.leads(true),
            }));
            // Whoever waited for it may have gone.
            let _ = done.send(());
        })
        .context("the thread of the lease")?;
        Ok(Some(Self { words, release, released }))
    }

    /// Until this process leads. May be dropped and called again.
    pub(crate) async fn leads(&mut self) {
        while self.words.recv().await.is_some_and(|word| word != Word::Leads) {}
    }

    /// Until it does not lead any more.
    pub(crate) async fn is_lost(&mut self) {
        while self.words.recv().await.is_some_and(|word| word != Word::Lost) {}
    }

    /// Gives the lease up, so that another one can begin at once.
    pub(crate) async fn release(self) {
        let _ = self.release.send(());
        if tokio::time::timeout(RELEASE_MAX, self.released).await.is_err() {
            tracing::warn!("the lease could not be given up: others begin when it is over");
        }
    }
}

/// Takes the lease and holds it until it is lost, or until somebody asks for its release. `tell`
/// hears of each renewal (true) and, once, that this process leads (false).
async fn lead(
    mut elector: Elector,
    words: &mpsc::UnboundedSender<Word>,
    mut asked: oneshot::Receiver<()>,
    tell: impl Fn(bool),
) {
    tokio::select! {
        () = elector.acquire() => {}
        _ = &mut asked => return,
    }
    tell(false);
    // Nobody hears it only when the process is about to end.
    let _ = words.send(Word::Leads);
    tokio::select! {
        () = elector.hold(|| tell(true)) => {}
        is_asked = &mut asked => {
            if is_asked.is_ok() {
                elector.release().await;
            }
            return;
        }
    }
    let _ = words.send(Word::Lost);
    tokio::time::sleep(LAST_WORDS).await;
    tracing::error!("the lease was lost: another scheduler may work now");
    std::process::exit(1);
}

// k8s: cmd/kube-scheduler/app/options/options.go makeLeaderElectionConfig
fn elector(access: &Access, process: &Process) -> Result<Elector> {
    let user_agent = pintle_config::help::user_agent("leader-election");
    let client = access.client(ClientOptions { user_agent, ..Default::default() });
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let identity = format!("{}_{}", crate::run::host_name(), random.trim());
    let (namespace, name) = &process.lease;
    Ok(Elector::new(client, (namespace, name), identity, process.timing)?)
}
