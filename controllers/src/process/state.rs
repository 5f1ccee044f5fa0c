//! State shared with other threads: health, metrics, and questions to the deciding thread.
//!
//! Input: the deciding thread's and the lease's reports, requests of clients. Output: the pages of
//! the HTTPS port. Bounds: `QUESTIONS_MAX` questions wait, `ANSWER_MAX` each.
// k8s: cmd/kube-controller-manager/app/controllermanager.go Run

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::request::Parts;
use hyper::Method;
use jiff::Timestamp;
use pintle_controllers_core::names::CONTROLLERS;
use pintle_daemon::program::lease::{LeaderHealth, LeaseObserver};
use pintle_daemon::program::port::{ComponentPages, Pages};
use pintle_daemon::program::watchdog::DecisionTurns;
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::body::Reply;
use pintle_daemon::serve::checks::{CheckFault, Checks};
use tokio::sync::{mpsc, oneshot};

use super::context::DecisionQuery;
use super::health::LoopHealth;
use super::metrics::ManagerMetrics;
use crate::options::{COMPONENT, Options};

/// Questions that wait, and how long one does.
const QUESTIONS_MAX: usize = 8;
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Paths that `/statusz` names: those of kube-controller-manager, which does not name itself.
const PATHS: [&str; 5] = ["/configz", "/flagz", "/healthz", "/metrics", "/metrics/slis"];
/// The name of the configuration.
// k8s: cmd/kube-controller-manager/app/controllermanager.go ConfigzName
const CONFIGURATION: &str = "kubecontrollermanager.config.k8s.io";
/// Paths that the deciding thread answers.
const ASKED: [&str; 2] = ["/debug/controllers/", "/pintle/"];

/// State of the process that other threads read.
#[derive(Debug)]
pub(super) struct State {
    questions: mpsc::Sender<DecisionQuery>,
    pub(super) turns: Arc<DecisionTurns>,
    pub(super) metrics: Arc<ManagerMetrics>,
    pub(super) loops: Arc<LoopHealth>,
    lease: LeaderHealth,
    lease_name: String,
    is_working: AtomicBool,
    is_ending: AtomicBool,
}

impl State {
    /// Of a process that begins now, and the questions that it has to answer.
    pub(super) fn new(options: &Options) -> (Self, mpsc::Receiver<DecisionQuery>) {
        let (questions, receiver) = mpsc::channel(QUESTIONS_MAX);
        let election = &options.election;
        let state = Self {
            questions,
            turns: Arc::default(),
            metrics: Arc::new(ManagerMetrics::new(&options.gates.states())),
            loops: Arc::default(),
            lease: LeaderHealth::new(&election.name, election.timing.lease),
            lease_name: election.name.clone(),
            is_working: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
        };
        (state, receiver)
    }

    /// Controllers run from now on.
    pub(super) fn mark_working(&self) {
        self.is_working.store(true, Ordering::Relaxed);
    }

    /// The process ends because of a signal.
    pub(super) fn mark_ending(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    fn not_leading(&self) -> String {
        format!(
            "this manager does not lead, so it runs no controllers: ask the holder of the lease {}\n",
            self.lease_name
        )
    }

    /// Asks the deciding thread.
    async fn ask(&self, head: &Parts, path: &str) -> HttpAnswer {
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return HttpAnswer::not_allowed();
        }
        if !self.is_working.load(Ordering::Relaxed) {
            return match path.starts_with("/pintle/") {
                true => HttpAnswer::text(503, self.not_leading()),
                false => HttpAnswer::not_found(),
            };
        }
        let accept = head.headers.get(hyper::header::ACCEPT).and_then(|value| value.to_str().ok());
        let (answer, answered) = oneshot::channel();
        let question = DecisionQuery {
            path: path.to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            wants_json: accept.is_some_and(|accept| accept.contains("application/json")),
            answer,
        };
        if self.questions.try_send(question).is_err() {
            return HttpAnswer::text(429, "too many questions wait, try again\n");
        }
        match tokio::time::timeout(ANSWER_MAX, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => HttpAnswer::text(503, "the manager has no time to answer\n"),
        }
    }
}

impl LeaseObserver for State {
    fn acquired(&self) {
        self.metrics.set_leading(&self.lease_name, true);
    }

    fn renewed(&self) {
        self.lease.mark_renewed();
    }
}

impl pintle_api::Observer for State {
    fn sent(&self, sent: pintle_api::Sent<'_>) {
        self.metrics.requests.sent(sent);
    }

    fn received(&self, method: &str, host: &str, bytes: u64) {
        self.metrics.requests.received(method, host, bytes);
    }

    fn limited(&self, method: &str, host: &str, waited: Duration) {
        self.metrics.requests.limited(method, host, waited);
    }

    fn plugin_ran(&self, run: pintle_api::PluginRun) {
        self.metrics.requests.plugin_ran(run);
    }
}

impl ComponentPages for ManagerPages {
    fn metrics(&self) -> String {
        self.0.metrics.text()
    }

    fn answer<'a>(&'a self, head: &'a Parts, path: &'a str) -> BoxFuture<'a, Option<Reply>> {
        Box::pin(async move {
            let is_asked = ASKED.iter().any(|begin| path.starts_with(begin));
            if !is_asked {
                return None;
            }
            Some(self.0.ask(head, path).await.into())
        })
    }
}

/// The pages that only a controller manager has.
struct ManagerPages(Arc<State>);

/// The pages of the HTTPS port.
pub(super) fn pages(state: &Arc<State>, options: &Options) -> Pages {
    Pages {
        component: COMPONENT,
        paths: &PATHS,
        checks: checks(options.election.is_on, state),
        configuration: (CONFIGURATION, options.configuration.clone()),
        flags: options.flags.clone(),
        encodings: options.serving.encodings,
        started: Timestamp::now(),
        own: Arc::new(ManagerPages(Arc::clone(state))),
    }
}

/// The checks of `/healthz`, `/livez`, `/readyz`. Upstream has only the first, with the lease and
/// each started controller. A process with a late lease fails `/healthz` but not `/livez`.
fn checks(elects: bool, state: &Arc<State>) -> [Checks; 3] {
    let [mut healthz, livez, readyz] = ["healthz", "livez", "readyz"].map(Checks::new);
    if elects {
        let state = Arc::clone(state);
        healthz = healthz.with("leaderElection", move || state.lease.check());
    }
    for controller in &CONTROLLERS {
        let (here, check) = (Arc::clone(&state.loops), Arc::clone(&state.loops));
        let name = controller.name;
        let test = move || check.failure(name).map_or(Ok(()), |why| Err(CheckFault::Part(why)));
        healthz = healthz.with_while(name, move || here.is_running(name), test);
    }
    let turns = |checks: Checks| {
        let state = Arc::clone(state);
        checks.with("deciding-thread", move || state.turns.check())
    };
    let livez = livez.with("ping", || Ok(()));
    let state = Arc::clone(state);
    let readyz = readyz.with("shutdown", move || match state.is_ending.load(Ordering::Relaxed) {
        true => Err(CheckFault::Ending),
        false => Ok(()),
    });
    [turns(healthz), turns(livez), readyz]
}
