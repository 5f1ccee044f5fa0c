//! The HTTPS port: health checks, metrics, and what it runs with.
//!
//! Input: requests. Output: answers from a [`State`] that others keep current. Owner: a thread with a
//! runtime of its own, so that nobody who asks disturbs a decision. Bounds: those of `https`.
// k8s: cmd/kube-scheduler/app/server.go newEndpointsHandler, buildHandlerChain

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::{Method, Request};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use k8s_openapi::api::authorization::v1::{SubjectAccessReviewSpec, SubjectAccessReviewStatus};
use pintle_api::informer::ObjectKey;
use pintle_api::{Access, ClientOptions};
use pintle_daemon::metrics::go_float;
use pintle_daemon::serve::answer::Answer;
use pintle_daemon::serve::body::{self, Reply};
use pintle_daemon::serve::checks::Checks;
use pintle_daemon::serve::connections::Busy;
use pintle_daemon::serve::https::{self, Handler, Peer};
use pintle_daemon::serve::listen::{Port, bind_tcp};
use pintle_daemon::serve::query::{Query, decode_path};
use pintle_daemon::serve::secure::serving::{Fields, Serving as Certificate};
use pintle_daemon::serve::secure::tls;
use pintle_daemon::serve::secure::{ApiReviews, ClusterAuthorities, Reviews};
use pintle_daemon::serve::secure::{Denial, Gate, Object, Rules, Wanted};
use pintle_daemon::serve::zpages::{self, Encodings, Flagz, Statusz};
use pintle_daemon::tasks;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::metrics::SchedulerMetrics;
use super::{Serving, Settings, Tolerates, resources};
use crate::explain::{Explanation, Unexplained};
use crate::mirror::declared::Row;
use crate::run::watchdog::Turns;

const COMPONENT: &str = "kube-scheduler";
/// Its members may do everything.
// k8s: staging/src/k8s.io/apiserver/pkg/server/options/authorization.go
const MASTERS: &str = "system:masters";
/// Paths that `/statusz` names: those of kube-scheduler, which does not name itself.
const PATHS: [&str; 6] = ["/configz", "/flagz", "/healthz", "/livez", "/metrics", "/readyz"];
/// Why a pod has no node: `?pod=NAMESPACE/NAME`, and why not this one: `&node=NAME`; as text or, asked
/// for by `Accept`, as JSON.
const EXPLAIN: &str = "/pintle/explain";
/// What pods ask for and may use.
const RESOURCES: &str = "/metrics/resources";
/// Questions that wait, and how long one does.
const QUESTIONS_MAX: usize = 8;
const ANSWER_MAX: Duration = Duration::from_secs(10);
const PORT: Port =
    Port { what: "the HTTPS server", field: "--secure-port", rival: "a kube-scheduler" };
/// A leader that has not renewed for so long after its lease ended is not well.
// k8s: cmd/kube-scheduler/app/options/options.go makeLeaderElectionConfig, NewLeaderHealthzAdaptor
const LATE_MAX: Duration = Duration::from_secs(20);

/// What the thread that decides is asked, and where the answer goes.
#[derive(Debug)]
pub enum Question {
    /// Why has this pod no node, and why not this one?
    Explain {
        /// The pod.
        pod: ObjectKey,
        /// The node, if one is asked about.
        node: Option<String>,
        /// Where the answer goes.
        answer: oneshot::Sender<Result<Explanation, Unexplained>>,
    },
    /// What do all pods declare?
    Declared(oneshot::Sender<Vec<Row>>),
}

/// What is known of the process.
#[derive(Debug)]
pub struct State {
    questions: mpsc::Sender<Question>,
    /// What the deciding thread lets others know of itself.
    pub turns: Turns,
    /// What scrapers read.
    pub metrics: SchedulerMetrics,
    /// Who tells of the lease: the name of the first profile.
    pub reporter: String,
    configuration: Value,
    flags: BTreeMap<&'static str, String>,
    encodings: Encodings,
    started: Timestamp,
    is_synced: AtomicBool,
    works: AtomicBool,
    is_ending: AtomicBool,
    /// When the lease was renewed last, while it is held.
    lease: Mutex<Option<(Instant, Duration)>>,
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

impl State {
    /// Of a process that begins now, and the questions that it has to answer.
    pub fn new(settings: &Settings) -> (Self, mpsc::Receiver<Question>) {
        let (ask, questions) = mpsc::channel(QUESTIONS_MAX);
        let state = Self {
            questions: ask,
            turns: Turns::default(),
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
            lease: Mutex::new(None),
        };
        (state, questions)
    }

    /// The cluster is known.
    pub fn is_synced(&self) {
        self.is_synced.store(true, Ordering::Relaxed);
    }

    /// It decides: it leads, or nobody has to.
    pub fn works(&self) {
        self.works.store(true, Ordering::Relaxed);
    }

    /// It was told to end.
    pub fn is_ending(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// The lease of this duration is held as of now.
    pub fn holds_lease(&self, duration: Duration) {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), duration));
    }

    // k8s: staging/src/k8s.io/client-go/tools/leaderelection/healthzadaptor.go
    fn leader_is_well(&self) -> Result<(), String> {
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        match *lease {
            Some((renewed, duration)) if renewed.elapsed() > duration + LATE_MAX => {
                Err("failed election to renew leadership on lease kube-scheduler".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Answers [`EXPLAIN`].
    pub(super) async fn explain(&self, query: &Query, accept: Option<&str>) -> Answer {
        let Some((namespace, name)) = query.first("pod").and_then(|pod| pod.split_once('/')) else {
            return Answer::text(400, "which pod? ask for ?pod=NAMESPACE/NAME\n");
        };
        let node = query.first("node").map(str::to_owned);
        if node.as_ref().is_some_and(String::is_empty) {
            return Answer::text(400, "which node? ask for &node=NAME\n");
        }
        let pod = ObjectKey::new(namespace, name);
        match self.ask(|answer| Question::Explain { pod, node, answer }).await {
            Err(answer) => answer,
            Ok(Ok(found)) if accept.is_some_and(|a| a.contains("application/json")) => {
                Answer::json(&found)
            }
            Ok(Ok(found)) => Answer::text(200, found.to_string()),
            Ok(Err(why)) => Answer::text(404, format!("{why}\n")),
        }
    }

    /// Asks the thread that decides.
    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Question,
    ) -> Result<T, Answer> {
        let (answer, answered) = oneshot::channel();
        if self.questions.try_send(question(answer)).is_err() {
            return Err(Answer::text(429, "too many questions wait, try again\n"));
        }
        match tokio::time::timeout(ANSWER_MAX, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(Answer::text(503, "the scheduler has no time to answer\n")),
        }
    }
}

/// Serves until the process ends.
///
/// # Errors
/// When the port, the certificate or an authority cannot be used.
pub fn start(serving: &Serving, elects: bool, state: &Arc<State>) -> Result<()> {
    let Some(address) = serving.address else { return Ok(()) };
    let tokens = asks(serving.authentication.as_deref()).context("--authentication-kubeconfig")?;
    let rights = asks(serving.authorization.as_deref()).context("--authorization-kubeconfig")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let of_cluster = look_up(serving, tokens.as_ref(), &runtime)?;
    let rules = Rules {
        anonymous: true,
        client_ca: serving.client_ca.clone().map(|path| ("--client-ca-file", path)),
        proxies: serving.proxies.clone(),
        of_cluster: of_cluster.as_ref().map(|(authorities, _)| Arc::clone(authorities)),
        tokens: tokens.is_some().then_some(serving.ttls[0]),
        rights: Some((serving.ttls[1], serving.ttls[2])),
        nobody_to_ask: rights.is_none(),
        may_all: &[MASTERS],
    };
    let reviews = |access| ApiReviews::new(access, pintle_config::help::user_agent(COMPONENT));
    let reviews = Reviewers { tokens: reviews(tokens), rights: reviews(rights) };
    let gate = Gate::new(&rules, Arc::new(reviews))?;
    let fields = Fields { certificate: "--tls-cert-file", key: "--tls-private-key-file" };
    let certificate = match &serving.files {
        Some((certificate, key)) => Certificate::files(fields, certificate.clone(), key.clone()),
        None => {
            let host = crate::run::host_name().to_lowercase();
            match &serving.cert_dir {
                Some(dir) => Certificate::self_signed(fields, dir, COMPONENT, &host),
                None => Certificate::in_memory(&host),
            }
        }
    };
    let curves = &[];
    let settings =
        tls::Settings { min_version: &serving.min_version, suites: &serving.suites, curves };
    let tls = tls::server_config(settings, Arc::new(certificate?)).context("TLS")?;
    let (listener, _) = bind_tcp(PORT, address)?;
    let pages = Pages::new(gate, serving.open_paths.clone(), elects, Arc::clone(state));
    let run = move || {
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, async {
            if let Some((authorities, access)) = of_cluster {
                tasks::singleton("authorities", authorities.follow(client(&access)));
            }
            https::accept(listener, tls, Arc::new(pages)).await;
        });
    };
    tasks::thread("server", run)?;
    Ok(())
}

/// With which credentials the API server is asked about tokens, or about rights: those of the file, or
/// of the pod that this process runs in; `None` where neither is.
// k8s: staging/src/k8s.io/apiserver/pkg/server/options/{authentication,authorization}.go getClient
fn asks(file: Option<&Path>) -> Result<Option<Access>> {
    match (file, Access::of_pod()) {
        (Some(file), _) => Ok(Some(Access::read(file)?)),
        (None, Some(Err(error))) => {
            tracing::warn!(%error, "the pod's account is not used to ask about tokens and rights");
            Ok(None)
        }
        (None, of_pod) => Ok(of_pod.transpose()?),
    }
}

fn client(access: &Access) -> kube::Client {
    let user_agent = pintle_config::help::user_agent(COMPONENT);
    access.client(ClientOptions { user_agent, ..ClientOptions::default() })
}

/// What the cluster says of those who are believed, and with which credentials that is watched; nothing
/// where the flags say all, or nobody may look.
// k8s: staging/src/k8s.io/apiserver/pkg/server/options/authentication.go ApplyTo
fn look_up(
    serving: &Serving,
    access: Option<&Access>,
    runtime: &tokio::runtime::Runtime,
) -> Result<Option<(Arc<ClusterAuthorities>, Access)>> {
    let says_all = serving.client_ca.is_some() && serving.proxies.is_some();
    let (Some(tolerates), Some(access), false) = (serving.lookup, access, says_all) else {
        return Ok(None);
    };
    let authorities = Arc::new(ClusterAuthorities::default());
    let looked = runtime.block_on(async { authorities.look(client(access)).await });
    match (looked, tolerates) {
        (Ok(()), _) => {}
        (Err(error), Tolerates::Failure) => {
            tracing::warn!(error, "the cluster's authorities are not known yet");
        }
        (Err(error), Tolerates::Nothing) => {
            anyhow::bail!(
                "--authentication-tolerate-lookup-failure=false: unable to load \
                configmap based request-header-client-ca-file: {error}"
            );
        }
    }
    Ok(Some((authorities, access.clone())))
}

/// Those of `/healthz`, `/livez`, `/readyz`. A process whose lease is late is not well, but it lives;
/// `ping` is where there is nothing else to check.
// k8s: cmd/kube-scheduler/app/server.go Run, newEndpointsHandler;
// staging/src/k8s.io/apiserver/pkg/server/healthz/healthz.go InstallPathHandlerWithHealthyFunc
pub(super) fn checks(elects: bool, state: &Arc<State>) -> [Checks; 3] {
    let with_leader = |checks: Checks| {
        let state = Arc::clone(state);
        checks.with("leaderElection", move || state.leader_is_well())
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
            true => Err("process is shutting down".to_owned()),
            false => Ok(()),
        })
        .with("sched-handler-sync", move || match is(&synced.is_synced) {
            true => Ok(()),
            false => Err("handlers are not fully synchronized".to_owned()),
        });
    [with_turns(healthz), with_turns(with_ping(livez)), readyz]
}

/// Tokens and rights may be looked up with different credentials.
struct Reviewers {
    tokens: ApiReviews,
    rights: ApiReviews,
}

impl Reviews for Reviewers {
    fn token(&self, token: String) -> BoxFuture<'_, Result<TokenReviewStatus, String>> {
        self.tokens.token(token)
    }

    fn access(
        &self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, String>> {
        self.rights.access(spec)
    }
}

/// What is behind the port.
struct Pages {
    gate: Gate,
    open_paths: Vec<String>,
    checks: [Checks; 3],
    state: Arc<State>,
}

impl Handler for Pages {
    fn name(&self, peer: &Peer) -> Option<String> {
        self.gate.name(peer)
    }

    fn reply(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Arc<Peer>,
        busy: Arc<Busy>,
    ) -> BoxFuture<'static, Reply> {
        Box::pin(async move { self.reply_to(request, &peer, &busy).await })
    }

    fn is_full(&self) {
        tracing::debug!("a connection found no room");
    }
}

impl Pages {
    fn new(gate: Gate, open_paths: Vec<String>, elects: bool, state: Arc<State>) -> Self {
        Self { gate, open_paths, checks: checks(elects, &state), state }
    }

    async fn reply_to(&self, request: Request<Incoming>, peer: &Peer, busy: &Busy) -> Reply {
        let (head, _) = request.into_parts();
        let Some(path) = decode_path(head.uri.path()) else {
            return Answer::text(400, "400 Bad Request: the path cannot be decoded\n").into();
        };
        if self.is_open(&path) {
            busy.open();
            return self.answer(&head, &path).await;
        }
        let verb = match head.method {
            Method::GET => "get",
            Method::HEAD => "head",
            Method::POST => "post",
            Method::PUT => "put",
            Method::DELETE => "delete",
            _ => "",
        };
        let wanted = Wanted { verb, objects: vec![Object::Path(path.clone())] };
        match self.gate.admit(&head, (&path, &wanted), peer).await {
            Err(denial) => denied(denial, &wanted, &path).into(),
            Ok(user) => {
                busy.admit(user.proven_name());
                self.answer(&head, &path).await
            }
        }
    }

    /// Whether anybody may ask for it.
    // k8s: staging/src/k8s.io/apiserver/pkg/authorization/path/path.go
    fn is_open(&self, path: &str) -> bool {
        self.open_paths.iter().any(|open| match open.strip_suffix('*') {
            Some(begin) => path.starts_with(begin),
            None => path == open,
        })
    }

    async fn answer(&self, head: &hyper::http::request::Parts, path: &str) -> Reply {
        match path {
            RESOURCES => self.resources(&head.method).await,
            _ => self.page(head, path).await.into(),
        }
    }

    /// Nothing of one who does not work.
    // k8s: cmd/kube-scheduler/app/server.go installMetricHandler
    async fn resources(&self, method: &Method) -> Reply {
        if !self.state.works.load(Ordering::Relaxed) {
            return Answer::text(200, "").into();
        }
        if *method == Method::DELETE {
            return Answer::text(200, "metrics reset\n").into();
        }
        let rows = match self.state.ask(Question::Declared).await {
            Ok(rows) => rows,
            Err(answer) => return answer.into(),
        };
        let (sink, text) = body::streamed();
        tasks::serve("resources", async move {
            // Whoever asked may have gone.
            let _ = resources::write(rows, &sink).await;
        });
        Reply::from(Answer::metrics(String::new())).map(|_| text)
    }

    async fn page(&self, head: &hyper::http::request::Parts, path: &str) -> Answer {
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return Answer::not_allowed();
        }
        let query = Query::parse(head.uri.query().unwrap_or_default());
        if let Some(answer) = self.checks.iter().find_map(|check| check.answer(path, &query)) {
            return answer;
        }
        let accept = head.headers.get(hyper::header::ACCEPT).and_then(|value| value.to_str().ok());
        match path {
            "/metrics" => Answer::metrics(self.state.metrics.text()),
            "/metrics/slis" => {
                let all: Vec<&Checks> = self.checks.iter().collect();
                Answer::metrics(Checks::slis(&all) + &self.start_time())
            }
            "/configz" => {
                Answer::json(&serde_json::json!({"componentconfig": self.state.configuration}))
            }
            "/flagz" => {
                let flags = self.state.flags.clone();
                Flagz { component: COMPONENT, flags }.answer(accept, self.state.encodings)
            }
            "/statusz" => self.statusz().answer(accept, self.state.encodings),
            EXPLAIN => self.state.explain(&query, accept).await,
            _ => Answer::not_found(),
        }
    }

    /// The one family that every registry of upstream's has.
    // k8s: staging/src/k8s.io/component-base/metrics/processstarttime.go
    fn start_time(&self) -> String {
        let name = "process_start_time_seconds";
        let began = go_float(self.state.started.as_millisecond() as f64 / 1e3);
        format!(
            "# HELP {name} [ALPHA] Start time of the process since unix epoch in seconds.\n\
             # TYPE {name} gauge\n{name} {began}\n"
        )
    }

    fn statusz(&self) -> Statusz {
        let started = self.state.started;
        let uptime = Timestamp::now().as_second().saturating_sub(started.as_second());
        let version = pintle_config::help::KUBERNETES_VERSION.trim_start_matches('v');
        let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
        Statusz {
            component: COMPONENT,
            start_time: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            uptime_seconds: uptime.max(0),
            go_version: "rustc".to_owned(),
            binary_version: version.to_owned(),
            emulation_version: minor.to_owned(),
            paths: zpages::folders(PATHS.into_iter()),
            started: started.strftime("%a %b %e %H:%M:%S UTC %Y").to_string(),
        }
    }
}

/// A denial as the API server's filters answer it.
// k8s: staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go
pub(super) fn denied(denial: Denial, wanted: &Wanted, path: &str) -> Answer {
    match denial {
        Denial::Unauthenticated => failure(401, "Unauthorized", "Unauthorized", ""),
        Denial::Busy => Answer::text(429, "too many requests wait for a review, try again\n"),
        Denial::Forbidden { user } => {
            let text = format!("User {user:?} cannot {} path {path:?}", wanted.verb);
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            failure(403, "Forbidden", &format!("forbidden: {text}"), r#""details":{},"#)
        }
        Denial::Undecided { .. } => {
            Answer::text(500, "Internal Server Error: the API server cannot be asked\n")
        }
    }
}

/// A Status, as Go writes it: it escapes what HTML reads.
fn failure(code: u16, reason: &str, message: &str, details: &str) -> Answer {
    let message = Value::from(message).to_string().replace('&', "\\u0026");
    let text = format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":{message},"#
    );
    let text = format!("{text}\"reason\":\"{reason}\",{details}\"code\":{code}}}\n");
    Answer { status: code, ..Answer::json_bytes(text.into_bytes()) }
}
