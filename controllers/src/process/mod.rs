//! The process: its parts in the order of their start, and their end.
//!
//! ```text
//!   log, signals ─> credentials ─> HTTPS port ─> lease ─> API server answers ─> tokens, discovery
//!                                                                                     │
//!   lease released <─ writes answered <─ stop <─ signal              run(Context) <───┘
//! ```
//! Input: [`Options`]. Output: the end of the process. Owner of the one thread that decides. A lost
//! lease ends the process at once; a signal lets writes under way end for
//! `--controller-shutdown-timeout`, and the lease is released only when all of them have answers.
// k8s: cmd/kube-controller-manager/app/controllermanager.go Run

mod context;
mod health;
mod metrics;
mod queue_metrics;
mod sample_metrics;
mod shadow_metrics;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use pintle_api::{Access, Clients};
use pintle_controllers_core::names::CONTROLLERS;
use pintle_daemon::program::ending::{self, Ending};
use pintle_daemon::program::lease::{LeaderLease, LeaseCandidate};
use pintle_daemon::program::{credentials, port, watchdog};
use pintle_daemon::{logging, own_code, tasks};
use tokio::sync::{mpsc, watch};

pub use self::context::{ControllerContext, DecisionQuery, StopFlag, WritesUnderWay};
pub use self::health::LoopHealth;
pub use self::metrics::ManagerMetrics;
pub use self::queue_metrics::QueueMetrics;
pub use self::sample_metrics::SampleMetrics;
pub use self::shadow_metrics::ShadowMetrics;
use self::state::State;
use crate::clients::ControllerClients;
use crate::discovery::Discoverer;
use crate::options::{COMPONENT, Options};

/// The wait for an API server that does not answer yet, and between two tries.
// k8s: staging/src/k8s.io/controller-manager/app/helper.go WaitForAPIServer
const SERVER_MAX: Duration = Duration::from_secs(10);
const SERVER_RETRY: Duration = Duration::from_secs(1);
/// Where credentials may come from.
const CREDENTIALS: &str = "--kubeconfig";

/// Runs controllers until a signal asks the process to end.
///
/// # Errors
/// When a file cannot be used, a port is taken, the API server does not answer, or the lease is
/// lost.
pub fn run(options: Options) -> Result<()> {
    let format = if options.logs_json { logging::Format::Json } else { logging::Format::Text };
    logging::init(format, options.verbosity);
    tasks::log_panics();
    tracing::info!("starting: version {}", pintle_config::help::version().trim());
    options.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let (ending, signals) = ending::listen()?;
    let master = options.master.as_deref();
    let access = credentials::access(options.kubeconfig.as_deref(), master, CREDENTIALS)?;
    let (state, questions) = State::new(&options);
    let state = Arc::new(state);
    port::start(&options.serving, "a kube-controller-manager", state::pages(&state, &options))?;
    let lease = lease(&access, &options, &state)?;
    let keeper = lease.as_ref().map(LeaderLease::keeper);
    signals.guard(Arc::clone(&state.turns), keeper.clone(), "writes");
    watchdog::start(Arc::clone(&state.turns), keeper)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(
        &runtime,
        work(DecisionInputs { options, access, state, questions }, lease, ending),
    )
}

/// The thread of the lease; `None` without an election.
fn lease(access: &Access, options: &Options, state: &Arc<State>) -> Result<Option<LeaderLease>> {
    let election = options.election.clone();
    if !election.is_on {
        return Ok(None);
    }
    state.metrics.set_leading(&election.name, false);
    let (reporter, rival) = (COMPONENT.to_owned(), "another controller manager");
    let candidate = LeaseCandidate { election, reporter, rival };
    Ok(Some(LeaderLease::begin(access, &candidate, Arc::clone(state) as Arc<_>)?))
}

/// Inputs of the deciding thread.
struct DecisionInputs {
    options: Options,
    access: Access,
    state: Arc<State>,
    questions: mpsc::Receiver<DecisionQuery>,
}

/// Waits for the lease, runs controllers, and ends them in good order.
async fn work(
    start: DecisionInputs,
    mut lease: Option<LeaderLease>,
    mut ending: Ending,
) -> Result<()> {
    own_code::start(pintle_heap::code::forget);
    let state = Arc::clone(&start.state);
    let clients =
        ControllerClients::new(&start.access, &start.options, Arc::clone(&state) as Arc<_>);
    tokio::select! {
        () = wait_until_leading(&mut lease) => {}
        () = ending.requested() => return Ok(()),
    }
    let timeout = start.options.shutdown_timeout;
    let (stop, stopped) = watch::channel(false);
    let mut running = Box::pin(lead(start, clients, StopFlag::new(stopped)));
    let end = tokio::select! {
        ended = &mut running => {
            // Nothing ends controllers but a signal.
            ended?;
            bail!("controllers ended by themselves")
        }
        () = wait_until_lost(&mut lease) => {
            bail!("the lease was lost: another controller manager may work now")
        }
        () = ending.requested() => {
            ending.acknowledge();
            state.mark_ending();
            stop.send_replace(true);
            match timeout {
                Duration::ZERO => running.await?,
                timeout => match tokio::time::timeout(timeout, running).await {
                    Ok(end) => end?,
                    Err(_) => {
                        tracing::warn!("controllers did not end within {timeout:?}");
                        WritesUnderWay::Some
                    }
                },
            }
        }
    };
    // A write without an answer may still take effect: others wait until the lease is over.
    if end == WritesUnderWay::None
        && let Some(lease) = lease
    {
        lease.release().await;
    }
    Ok(())
}

/// Does the work of a leader until it has to stop.
async fn lead(
    start: DecisionInputs,
    clients: ControllerClients,
    stop: StopFlag,
) -> Result<WritesUnderWay> {
    let DecisionInputs { options, access, state, questions } = start;
    let frame = crate::registry::frame(&options, access.authority_pem().as_deref())?;
    let is_stopped = {
        let mut stop = stop.clone();
        async move { stop.requested().await }
    };
    let prepares = async {
        wait_for_server(&clients.root("shared-informers")).await?;
        ask_for_tokens(&clients, &options);
        let discoverer = Discoverer::new(clients.discovery().urgent());
        Ok::<_, anyhow::Error>(discoverer.start().await)
    };
    let discovery = tokio::select! {
        discovery = prepares => discovery?,
        () = is_stopped => return Ok(WritesUnderWay::None),
    };
    log_absent(&options);
    state.mark_working();
    let context = ControllerContext {
        options: Arc::new(options),
        clients,
        discovery,
        stop,
        questions,
        turns: Arc::clone(&state.turns),
        metrics: Arc::clone(&state.metrics),
        health: Arc::clone(&state.loops),
    };
    Ok(match context.options.is_shadow {
        true => crate::shadow::run(frame, context).await,
        false => crate::run::run(frame, context).await,
    })
}

/// Asks for the tokens of all controllers that run, beside everything else: informers begin with
/// the manager's own credentials.
fn ask_for_tokens(clients: &ControllerClients, options: &Options) {
    let is_on = |gate: &str| options.gates.enabled(gate);
    let runs = CONTROLLERS.iter().filter(|one| options.selection.absence(one, is_on).is_none());
    let identities: Vec<_> = runs.map(|one| one.identity).collect();
    let clients = clients.clone();
    tasks::spawn("tokens", async move { clients.authenticate(identities).await });
}

/// Says which controllers do not run and why, as upstream does.
fn log_absent(options: &Options) {
    use crate::options::selection::Absence;
    for controller in &CONTROLLERS {
        let name = controller.name;
        match options.selection.absence(controller, |gate| options.gates.enabled(gate)) {
            None => {}
            Some(Absence::Disabled) => tracing::info!(controller = name, "controller is disabled"),
            Some(Absence::Gate(gate)) => {
                tracing::info!(controller = name, gate, "controller is disabled by a feature gate");
            }
            Some(Absence::Cloud) => {
                tracing::info!(controller = name, "skipping a controller of cloud providers");
            }
        }
    }
}

/// Waits until the API server is healthy.
async fn wait_for_server(clients: &Clients) -> Result<()> {
    let client = clients.within(SERVER_MAX);
    let mut last = String::new();
    let healthy = async {
        loop {
            let request = http::Request::get("/healthz").body(Vec::new());
            match client.request_text(request.expect("a path")).await {
                Ok(_) => return,
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(SERVER_RETRY).await;
        }
    };
    let waited = tokio::time::timeout(SERVER_MAX, healthy).await;
    waited.map_err(|_| anyhow::anyhow!("{last}")).with_context(|| {
        format!(
            "the API server is not healthy after {} s: check it, or --kubeconfig",
            SERVER_MAX.as_secs()
        )
    })
}

async fn wait_until_leading(lease: &mut Option<LeaderLease>) {
    if let Some(lease) = lease {
        lease.wait_until_leading().await;
    }
}

async fn wait_until_lost(lease: &mut Option<LeaderLease>) {
    match lease {
        Some(lease) => lease.wait_until_lost().await,
        None => std::future::pending().await,
    }
}
