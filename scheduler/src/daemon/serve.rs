//! The HTTPS port: health checks, metrics, and what it runs with.
//!
//! Input: requests. Output: answers from a [`State`] that others keep current. Owner: a thread with
//! a runtime of its own, so that requests never delay a decision. Bounds: those of `https`.
// k8s: cmd/kube-scheduler/app/server.go newEndpointsHandler, buildHandlerChain

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use futures_util::future::BoxFuture;
use hyper::Method;
use hyper::http::request::Parts;
use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_daemon::program::lease::{LeaderHealth, LeaseObserver};
use pintle_daemon::program::port::{self, ComponentPages, Pages};
use pintle_daemon::program::serving::Serving;
use pintle_daemon::program::watchdog::DecisionTurns;
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::body::{self, Reply};
use pintle_daemon::serve::checks::{CheckFault, Checks};
use pintle_daemon::serve::query::Query;
use pintle_daemon::serve::zpages::Encodings;
use pintle_daemon::tasks;
use pintle_scheduler_core::declared::DeclaredRow;
use pintle_scheduler_core::explain::{Explanation, Unexplained};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::metrics::SchedulerMetrics;
use super::{Settings, resources};

const COMPONENT: &str = "kube-scheduler";
/// Paths that `/statusz` lists: those of kube-scheduler, which omits itself.
const PATHS: [&str; 6] = ["/configz", "/flagz", "/healthz", "/livez", "/metrics", "/readyz"];
/// Explains why a pod has no node: `?pod=NAMESPACE/NAME`, and why not this one: `&node=NAME`; as
/// text or, if `Accept` says so, as JSON.
const EXPLAIN: &str = "/pintle/explain";
/// Requests and limits of pods.
const RESOURCES: &str = "/metrics/resources";
/// Waiting questions, and the time limit of one.
const QUESTIONS_MAX: usize = 8;
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A request to the deciding thread, with the channel of its answer.
#[derive(Debug)]
pub enum SchedulerQuery {
    /// Why has this pod no node, and why not this one?
    Explain {
        /// The pod.
        pod: ObjectKey,
        /// The node, if the question names one.
        node: Option<String>,
        /// Channel of the answer.
        answer: oneshot::Sender<Result<Explanation, Unexplained>>,
    },
    /// List the resources that all pods declare.
    Declared(oneshot::Sender<Vec<DeclaredRow>>),
}

/// State of the process.
#[derive(Debug)]
pub struct State {
    questions: mpsc::Sender<SchedulerQuery>,
    /// Progress of the deciding thread.
    pub turns: Arc<DecisionTurns>,
    /// Metrics to scrape.
    pub metrics: SchedulerMetrics,
    /// Reporting component of lease events: the name of the first profile.
    pub reporter: String,
    configuration: Value,
    flags: BTreeMap<&'static str, String>,
    encodings: Encodings,
    started: Timestamp,
    is_synced: AtomicBool,
    works: AtomicBool,
    is_ending: AtomicBool,
    /// The health of the lease.
    pub lease: LeaderHealth,
}

impl pintle_api::Observer for State {
    fn sent(&self, sent: pintle_api::Sent<'_>) {
        self.metrics.sent(sent);
    }

    fn received(&self, method: &str, host: &str, bytes: u64) {
        self.metrics.received(method, host, bytes);
    }

    fn limited(&self, method: &str, host: &str, waited: Duration) {
        self.metrics.limited(method, host, waited);
    }

    fn plugin_ran(&self, run: pintle_api::PluginRun) {
        self.metrics.plugin_ran(run);
    }
}

impl LeaseObserver for State {
    fn acquired(&self) {
        self.metrics.leads(true);
    }

    fn renewed(&self) {
        self.lease.mark_renewed();
    }
}

impl State {
    /// Creates the state of a starting process, and the channel of its questions.
    pub fn new(settings: &Settings) -> (Self, mpsc::Receiver<SchedulerQuery>) {
        let (ask, questions) = mpsc::channel(QUESTIONS_MAX);
        let state = Self {
            questions: ask,
            turns: Arc::default(),
            metrics: SchedulerMetrics::new(
                &settings.profiles,
                &settings.gates,
                settings.groups.is_some(),
            ),
            reporter: settings
                .profiles
                .first()
                .map_or_else(String::new, |profile| profile.scheduler_name.clone()),
            configuration: settings.configuration.clone(),
            flags: settings.flags.clone(),
            encodings: settings.serving.encodings,
            started: Timestamp::now(),
            is_synced: AtomicBool::new(false),
            works: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            lease: LeaderHealth::new(COMPONENT, settings.process.election.timing.lease),
        };
        (state, questions)
    }

    /// Marks that the cache is synced.
    pub fn mark_synced(&self) {
        self.is_synced.store(true, Ordering::Relaxed);
    }

    /// Marks that it decides: it leads, or needs no lease.
    pub fn mark_working(&self) {
        self.works.store(true, Ordering::Relaxed);
    }

    /// Marks that it is shutting down.
    pub fn mark_ending(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Answers [`EXPLAIN`].
    pub(super) async fn explain(&self, query: &Query, accept: Option<&str>) -> HttpAnswer {
        let Some((namespace, name)) = query.first("pod").and_then(|pod| pod.split_once('/')) else {
            return HttpAnswer::text(400, "which pod? ask for ?pod=NAMESPACE/NAME\n");
        };
        let node = query.first("node").map(str::to_owned);
        if node.as_ref().is_some_and(String::is_empty) {
            return HttpAnswer::text(400, "which node? ask for &node=NAME\n");
        }
        let pod = ObjectKey::new(namespace, name);
        match self.ask(|answer| SchedulerQuery::Explain { pod, node, answer }).await {
            Err(answer) => answer,
            Ok(Ok(found)) if accept.is_some_and(|a| a.contains("application/json")) => {
                HttpAnswer::json(&found)
            }
            Ok(Ok(found)) => HttpAnswer::text(200, found.to_string()),
            Ok(Err(why)) => HttpAnswer::text(404, format!("{why}\n")),
        }
    }

    /// Sends a question to the deciding thread.
    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> SchedulerQuery,
    ) -> Result<T, HttpAnswer> {
        let (answer, answered) = oneshot::channel();
        if self.questions.try_send(question(answer)).is_err() {
            return Err(HttpAnswer::text(429, "too many questions wait, try again\n"));
        }
        match tokio::time::timeout(ANSWER_MAX, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => {
                Err(HttpAnswer::text(503, "the scheduler has no time to answer\n"))
            }
        }
    }
}

/// Serves until the process ends.
///
/// # Errors
/// The port, the certificate or an authority cannot be used.
pub fn start(serving: &Serving, elects: bool, state: &Arc<State>) -> Result<()> {
    let pages = Pages {
        component: COMPONENT,
        paths: &PATHS,
        checks: checks(elects, state),
        configuration: ("componentconfig", state.configuration.clone()),
        flags: state.flags.clone(),
        encodings: state.encodings,
        started: state.started,
        own: Arc::new(SchedulerPages(Arc::clone(state))),
    };
    Ok(port::start(serving, "a kube-scheduler", pages)?)
}

/// Returns the checks of `/healthz`, `/livez`, `/readyz`. A late lease fails `/healthz`, not
/// `/livez`; `ping` is the check if there is no other.
// k8s: cmd/kube-scheduler/app/server.go Run, newEndpointsHandler;
// staging/src/k8s.io/apiserver/pkg/server/healthz/healthz.go InstallPathHandlerWithHealthyFunc
pub(super) fn checks(elects: bool, state: &Arc<State>) -> [Checks; 3] {
    let with_leader = |checks: Checks| {
        let state = Arc::clone(state);
        checks.with("leaderElection", move || state.lease.check())
    };
    let with_ping = |checks: Checks| checks.with("ping", || Ok(()));
    let with_turns = |checks: Checks| {
        let state = Arc::clone(state);
        checks.with("deciding-thread", move || state.turns.check())
    };
    let [healthz, livez, readyz] = ["healthz", "livez", "readyz"].map(Checks::new);
    let (healthz, readyz) = match elects {
        true => (with_leader(healthz), with_leader(readyz)),
        false => (with_ping(healthz), readyz),
    };
    let (ending, synced) = (Arc::clone(state), Arc::clone(state));
    let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
    let readyz = readyz
        .with("shutdown", move || match is(&ending.is_ending) {
            true => Err(CheckFault::Ending),
            false => Ok(()),
        })
        .with("sched-handler-sync", move || match is(&synced.is_synced) {
            true => Ok(()),
            false => Err(CheckFault::NotSynced),
        });
    [with_turns(healthz), with_turns(with_ping(livez)), readyz]
}

/// Pages that only a scheduler has.
struct SchedulerPages(Arc<State>);

impl ComponentPages for SchedulerPages {
    fn metrics(&self) -> String {
        self.0.metrics.text()
    }

    fn answer<'a>(&'a self, head: &'a Parts, path: &'a str) -> BoxFuture<'a, Option<Reply>> {
        Box::pin(async move {
            match path {
                RESOURCES => Some(self.resources(&head.method).await),
                EXPLAIN => Some(self.explain(head).await.into()),
                _ => None,
            }
        })
    }
}

impl SchedulerPages {
    async fn explain(&self, head: &Parts) -> HttpAnswer {
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return HttpAnswer::not_allowed();
        }
        let query = Query::parse(head.uri.query().unwrap_or_default());
        let accept = head.headers.get(hyper::header::ACCEPT).and_then(|value| value.to_str().ok());
        self.0.explain(&query, accept).await
    }

    /// Serves nothing before this process leads.
    // k8s: cmd/kube-scheduler/app/server.go installMetricHandler
    async fn resources(&self, method: &Method) -> Reply {
        if !self.0.works.load(Ordering::Relaxed) {
            return HttpAnswer::text(200, "").into();
        }
        if *method == Method::DELETE {
            return HttpAnswer::text(200, "metrics reset\n").into();
        }
        let rows = match self.0.ask(SchedulerQuery::Declared).await {
            Ok(rows) => rows,
            Err(answer) => return answer.into(),
        };
        let (sink, text) = body::streamed();
        tasks::serve("resources", async move {
            // The client may have disconnected.
            let _ = resources::write(rows, &sink).await;
        });
        Reply::from(HttpAnswer::metrics(String::new())).map(|_| text)
    }
}
