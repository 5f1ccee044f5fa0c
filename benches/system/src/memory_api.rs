//! An API server of pods and nodes that live in memory, for what a scheduler can do when nothing
//! behind it is slow.
//!
//! Input: how many nodes and pods. Output: lists, watches, bindings, statuses and events over
//! HTTP/2 and TLS, as JSON, to any client; the time at which each pod was bound. Owner: a thread of
//! its own. Bounds: those of the benchmark. It serves the requests of the two schedulers and
//! nothing else: no authorization, no validation, no other kinds' objects.
//!
//! Not `api/memory`, which keeps objects as JSON values and their history: here a pod is a row of
//! numbers whose text is written when it is sent, because the server shares the machine with the
//! scheduler that it measures.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Result;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Requested kinds without objects.
const EMPTY: [(&str, &str); 19] = [
    ("services", "Service"),
    ("replicationcontrollers", "ReplicationController"),
    ("persistentvolumes", "PersistentVolume"),
    ("persistentvolumeclaims", "PersistentVolumeClaim"),
    ("configmaps", "ConfigMap"),
    ("replicasets", "ReplicaSet"),
    ("statefulsets", "StatefulSet"),
    ("poddisruptionbudgets", "PodDisruptionBudget"),
    ("storageclasses", "StorageClass"),
    ("csinodes", "CSINode"),
    ("csidrivers", "CSIDriver"),
    ("csistoragecapacities", "CSIStorageCapacity"),
    ("volumeattachments", "VolumeAttachment"),
    ("resourceclaims", "ResourceClaim"),
    ("resourceslices", "ResourceSlice"),
    ("deviceclasses", "DeviceClass"),
    ("devicetaintrules", "DeviceTaintRule"),
    ("namespaces", "Namespace"),
    ("podgroups", "PodGroup"),
];

/// Events that are remembered.
const LOG_MAX: usize = 4096;

/// Topology key over which pods spread.
const ZONE: &str = "topology.kubernetes.io/zone";

/// The initial objects.
#[derive(Clone, Copy, Debug)]
pub struct InitialObjects {
    /// Nodes with 64 CPUs and room for 250 pods.
    pub nodes: usize,
    /// Pods on them, in turn.
    pub bound: usize,
    /// Pods without a node.
    pub waiting: usize,
    /// True if these fit anywhere.
    pub fits: bool,
    /// Number of pods that share a label to spread by; the next ones have another label.
    pub batch: Option<usize>,
}

/// A pod: its node, and its status.
#[derive(Default)]
struct PodState {
    node: Option<String>,
    version: u64,
    status: Value,
    bound: Option<Instant>,
    is_gone: bool,
}

struct State {
    version: u64,
    size: InitialObjects,
    pods: Vec<PodState>,
    /// Versions of nodes, 0 for a deleted one; each change is a label.
    nodes: Vec<u64>,
    watchers: HashMap<&'static str, Vec<UnboundedSender<Bytes>>>,
    /// The last events, for watches that begin where another one or a list ended.
    log: VecDeque<(u64, &'static str, Bytes)>,
    created: Vec<Instant>,
    bound: Vec<Instant>,
    statuses: usize,
    events: usize,
}

/// The server.
#[derive(Clone)]
pub struct MemoryApi {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
    certificate: String,
}

impl MemoryApi {
    /// Starts one on a thread of its own, which lives as long as the process.
    ///
    /// # Errors
    /// When no port is free or no certificate can be made.
    pub fn start(size: InitialObjects) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let certificate = made.cert.pem();
        let mut tls = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let api = Self { state: Arc::new(Mutex::new(State::new(size))), address, certificate };
        let served = api.clone();
        std::thread::Builder::new().name("memory-api".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            tokio::task::LocalSet::new()
                .block_on(&runtime, served.serve(listener, TlsAcceptor::from(Arc::new(tls))))
        })?;
        Ok(api)
    }

    /// A kubeconfig for it.
    #[must_use]
    pub fn kubeconfig(&self, certificate: &std::path::Path) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "m",
            "clusters": [{"name": "m", "cluster": {
                "server": format!("https://{}", self.address),
                "certificate-authority": certificate.display().to_string()}}],
            "users": [{"name": "m", "user": {"token": "bench"}}],
            "contexts": [{"name": "m", "context": {"cluster": "m", "user": "m"}}],
        })
    }

    /// The authority of its certificate, as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    fn held(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When pods were bound, in order.
    #[must_use]
    pub fn bound(&self) -> Vec<Instant> {
        self.held().bound.clone()
    }

    /// How many statuses and events were written.
    #[must_use]
    pub fn told(&self) -> (usize, usize) {
        let state = self.held();
        (state.statuses, state.events)
    }

    /// A pod is created; it has the next number.
    pub fn add_pod(&self) {
        self.held().add_pod();
    }

    /// A pod is deleted.
    pub fn remove_pod(&self, at: usize) {
        self.held().remove_pod(at);
    }

    /// Deletes a node and its pods, and creates one of another name.
    pub fn replace_node(&self, at: usize) {
        self.held().replace_node(at);
    }

    /// How long pods that were created waited for their binding, in milliseconds, in order of
    /// creation; those that were bound.
    #[must_use]
    pub fn waits(&self) -> Vec<f64> {
        let state = self.held();
        let first = state.pods.len() - state.created.len();
        let ms = |(at, created): (usize, &Instant)| {
            let bound = state.pods[first + at].bound?;
            Some(bound.duration_since(*created).as_secs_f64() * 1e3)
        };
        state.created.iter().enumerate().filter_map(ms).collect()
    }

    /// A node has another label than before.
    pub fn change_node(&self, at: usize) {
        self.held().change_node(at);
    }

    async fn serve(self, listener: std::net::TcpListener, tls: TlsAcceptor) -> Result<()> {
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (peer, _) = listener.accept().await?;
            peer.set_nodelay(true)?;
            let (api, tls) = (self.clone(), tls.clone());
            tokio::task::spawn_local(async move {
                let stream = tls.accept(peer).await?;
                let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let service = service_fn(move |request| api.clone().answer(request));
                let io = TokioIo::new(stream);
                if is_h2 {
                    let mut server = http2::Builder::new(TokioExecutor::new());
                    server.max_concurrent_streams(1000);
                    server.initial_stream_window_size(1 << 20);
                    server.initial_connection_window_size(1 << 24);
                    server.serve_connection(io, service).await?;
                } else {
                    http1::Builder::new().serve_connection(io, service).await?;
                }
                anyhow::Ok(())
            });
        }
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let (head, body) = request.into_parts();
        let path: Vec<String> =
            head.uri.path().split('/').filter(|p| !p.is_empty()).map(str::to_owned).collect();
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let query = head.uri.query().unwrap_or_default();
        if head.method == Method::GET {
            return Ok(self.read(&path, query));
        }
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        Ok(self.write(&head.method, &path, body))
    }

    fn read(&self, path: &[&str], query: &str) -> Response<Body> {
        let (version, resource) = match path {
            ["api", "v1", rest @ ..] => ("v1".to_owned(), rest),
            ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
            _ => return nothing(),
        };
        let ([resource] | ["namespaces", _, resource]) = resource else { return nothing() };
        let known = [("pods", "Pod"), ("nodes", "Node")];
        let kinds = known.iter().chain(&EMPTY);
        let Some((resource, kind)) = kinds.into_iter().find(|(name, _)| name == resource) else {
            return nothing();
        };
        match query.split('&').any(|part| part == "watch=true" || part == "watch=1") {
            true => self.watch(resource, kind, &version, query),
            false => full(StatusCode::OK, self.held().list(resource, kind, &version)),
        }
    }

    fn watch(&self, name: &'static str, kind: &str, of: &str, query: &str) -> Response<Body> {
        let (tell, told) = unbounded_channel();
        let mut state = self.held();
        if query.contains("sendInitialEvents=true") {
            state.items(name).into_iter().for_each(|item| _ = tell.send(line("ADDED", &item)));
            let mark = format!(
                "{{\"kind\":\"{kind}\",\"apiVersion\":\"{of}\",\"metadata\":{{\"resourceVersion\":\
                 \"{}\",\"annotations\":{{\"k8s.io/initial-events-end\":\"true\"}}}}}}",
                state.version
            );
            let _ = tell.send(line("BOOKMARK", &mark));
        } else if let Some(from) = version_of(query) {
            let missed = state.log.iter().filter(|(at, of, _)| *at > from && *of == name);
            missed.for_each(|(_, _, line)| _ = tell.send(line.clone()));
        }
        state.watchers.entry(name).or_default().push(tell);
        let next = async |mut told: UnboundedReceiver<Bytes>| Some((told.recv().await?, told));
        let lines = stream::unfold(told, next).map(|line| Ok(Frame::data(line)));
        response(StatusCode::OK, StreamBody::new(lines).boxed_unsync())
    }

    fn write(&self, method: &Method, path: &[&str], body: Bytes) -> Response<Body> {
        let mut state = self.held();
        match path {
            ["api", "v1", "namespaces", _, "pods", name, "binding"] => {
                let target = serde_json::from_slice::<Value>(&body).unwrap_or_default();
                let node = target["target"]["name"].as_str().unwrap_or_default();
                state.bind(name, node);
                let done = r#"{"kind":"Status","apiVersion":"v1","status":"Success","code":201}"#;
                full(StatusCode::CREATED, done.to_owned())
            }
            ["api", "v1", "namespaces", _, "pods", name, "status"] if method == Method::PATCH => {
                let patch = serde_json::from_slice::<Value>(&body).unwrap_or_default();
                match state.say(name, &patch["status"]) {
                    Some(pod) => full(StatusCode::OK, pod),
                    None => nothing(),
                }
            }
            [.., "events"] | [.., "events", _] => {
                state.events += 1;
                response(StatusCode::CREATED, Full::new(body).boxed_unsync())
            }
            _ => nothing(),
        }
    }
}

impl State {
    fn new(size: InitialObjects) -> Self {
        let place = |at: usize| (at < size.bound).then(|| node_name(at % size.nodes));
        let pods = (0..size.bound + size.waiting).map(|at| PodState {
            node: place(at),
            version: 1,
            status: json!({}),
            ..PodState::default()
        });
        Self {
            version: 1,
            size,
            pods: pods.collect(),
            nodes: vec![1; size.nodes],
            watchers: HashMap::new(),
            log: VecDeque::new(),
            created: Vec::new(),
            bound: Vec::new(),
            statuses: 0,
            events: 0,
        }
    }

    fn items(&self, resource: &str) -> Vec<String> {
        match resource {
            "pods" => {
                let there = (0..self.pods.len()).filter(|at| !self.pods[*at].is_gone);
                there.map(|at| self.pod(at)).collect()
            }
            "nodes" => {
                let there = (0..self.nodes.len()).filter(|at| self.nodes[*at] > 0);
                there.map(|at| self.node(at)).collect()
            }
            "namespaces" => vec![
                json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "bench",
                    "uid": "ns", "resourceVersion": "1"}})
                .to_string(),
            ],
            _ => Vec::new(),
        }
    }

    fn list(&self, resource: &str, kind: &str, of: &str) -> String {
        let mut text = format!(
            "{{\"kind\":\"{kind}List\",\"apiVersion\":\"{of}\",\"metadata\":{{\"resourceVersion\":\
             \"{}\"}},\"items\":[",
            self.version
        );
        text.push_str(&self.items(resource).join(","));
        text.push_str("]}");
        text
    }

    fn node(&self, at: usize) -> String {
        let (name, version) = (node_name(at), self.nodes[at]);
        format!(
            r#"{{"kind":"Node","apiVersion":"v1","metadata":{{"name":"{name}","uid":"{name}",
            "resourceVersion":"{version}","labels":{{"kubernetes.io/hostname":"{name}",
            "{ZONE}":"z{}","changed":"{version}"}}}},"spec":{{}},"status":{{
            "allocatable":{{"cpu":"64","memory":"256Gi","pods":"250"}},"capacity":{{"cpu":"64",
            "memory":"256Gi","pods":"250"}},"conditions":[{{"type":"Ready","status":"True",
            "lastHeartbeatTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"
            }}]}}}}"#,
            at % 10
        )
        .replace("\n            ", "")
    }

    fn pod(&self, at: usize) -> String {
        let (name, pod) = (pod_name(at), &self.pods[at]);
        let mut spec = String::new();
        if let Some(node) = &pod.node {
            let _ = write!(spec, "\"nodeName\":\"{node}\",");
        } else if !self.size.fits {
            spec.push_str("\"nodeSelector\":{\"nowhere\":\"at-all\"},");
        }
        let mut labels = format!("\"app\":\"bench\",\"group\":\"g{}\"", at % 20);
        if let Some(batch) = self.size.batch {
            let batch = at / batch;
            let _ = write!(labels, ",\"batch\":\"b{batch}\"");
            let _ = write!(
                spec,
                "\"topologySpreadConstraints\":[{{\"maxSkew\":3,\"topologyKey\":\"{ZONE}\",\
                 \"whenUnsatisfiable\":\"DoNotSchedule\",\"labelSelector\":{{\"matchLabels\":\
                 {{\"batch\":\"b{batch}\"}}}}}}],"
            );
        }
        format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"bench",
            "uid":"{name}","resourceVersion":"{}","generation":1,"creationTimestamp":
            "2026-01-01T00:00:00Z","labels":{{{labels}}}}},"spec":{{{spec}
            "containers":[{{"name":"c","image":"registry.test/app:1","resources":{{"requests":{{
            "cpu":"100m","memory":"128Mi"}}}},"terminationMessagePath":"/dev/termination-log",
            "terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}}],"restartPolicy":
            "Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst",
            "serviceAccountName":"default","serviceAccount":"default","securityContext":{{}},
            "schedulerName":"default-scheduler","tolerations":[{{"key":
            "node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute",
            "tolerationSeconds":300}},{{"key":"node.kubernetes.io/unreachable","operator":"Exists",
            "effect":"NoExecute","tolerationSeconds":300}}],"priority":0,"enableServiceLinks":true,
            "preemptionPolicy":"PreemptLowerPriority"}},"status":{}}}"#,
            pod.version, pod.status
        )
        .replace("\n            ", "")
    }

    fn tell(&mut self, resource: &'static str, line: &Bytes) {
        if self.log.len() >= LOG_MAX {
            self.log.pop_front();
        }
        self.log.push_back((self.version, resource, line.clone()));
        if let Some(watchers) = self.watchers.get_mut(resource) {
            watchers.retain(|watcher| watcher.send(line.clone()).is_ok());
        }
    }

    fn pod_changed(&mut self, at: usize) -> String {
        self.version += 1;
        self.pods[at].version = self.version;
        let pod = self.pod(at);
        self.tell("pods", &line("MODIFIED", &pod));
        pod
    }

    fn bind(&mut self, name: &str, node: &str) {
        let Some(at) = self.pod_at(name) else { return };
        self.pods[at].node = Some(node.to_owned());
        self.pods[at].status = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled",
            "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let now = Instant::now();
        self.pods[at].bound = Some(now);
        self.bound.push(now);
        self.pod_changed(at);
    }

    /// Writes a status; returns the pod's new state.
    fn say(&mut self, name: &str, said: &Value) -> Option<String> {
        let at = self.pod_at(name)?;
        self.statuses += 1;
        self.pods[at].status["phase"] = "Pending".into();
        if said["conditions"].is_array() {
            self.pods[at].status["conditions"] = said["conditions"].clone();
        }
        Some(self.pod_changed(at))
    }

    fn pod_at(&self, name: &str) -> Option<usize> {
        pod_number(name).filter(|at| self.pods.get(*at).is_some_and(|pod| !pod.is_gone))
    }

    fn add_pod(&mut self) {
        self.version += 1;
        let status = json!({"phase": "Pending"});
        self.pods.push(PodState { version: self.version, status, ..PodState::default() });
        let pod = self.pod(self.pods.len() - 1);
        self.created.push(Instant::now());
        self.tell("pods", &line("ADDED", &pod));
    }

    fn remove_pod(&mut self, at: usize) {
        if std::mem::replace(&mut self.pods[at].is_gone, true) {
            return;
        }
        self.version += 1;
        self.pods[at].version = self.version;
        let pod = self.pod(at);
        // A deleted pod keeps only its name and version.
        (self.pods[at].node, self.pods[at].status) = (None, Value::Null);
        self.tell("pods", &line("DELETED", &pod));
    }

    fn replace_node(&mut self, at: usize) {
        let name = node_name(at);
        let on_it = |at: &usize| self.pods[*at].node.as_deref() == Some(&name);
        let pods: Vec<usize> = (0..self.pods.len()).filter(on_it).collect();
        pods.into_iter().for_each(|at| self.remove_pod(at));
        self.version += 1;
        self.nodes[at] = self.version;
        let node = self.node(at);
        self.tell("nodes", &line("DELETED", &node));
        self.nodes[at] = 0;
        self.version += 1;
        self.nodes.push(self.version);
        let node = self.node(self.nodes.len() - 1);
        self.tell("nodes", &line("ADDED", &node));
    }

    fn change_node(&mut self, at: usize) {
        self.version += 1;
        self.nodes[at] = self.version;
        let node = self.node(at);
        self.tell("nodes", &line("MODIFIED", &node));
    }
}

fn node_name(at: usize) -> String {
    format!("n{at:06}")
}

fn pod_name(at: usize) -> String {
    format!("p{at:07}")
}

fn pod_number(name: &str) -> Option<usize> {
    name.strip_prefix('p')?.parse().ok()
}

/// The version that a watch begins at.
fn version_of(query: &str) -> Option<u64> {
    let of = |part: &str| part.strip_prefix("resourceVersion=")?.parse().ok();
    query.split('&').find_map(of)
}

fn line(kind: &str, object: &str) -> Bytes {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into()
}

fn response(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
    response
}

fn full(status: StatusCode, text: String) -> Response<Body> {
    response(status, Full::new(Bytes::from(text)).boxed_unsync())
}

fn nothing() -> Response<Body> {
    let text = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
        "reason": "NotFound", "message": "not here"});
    full(StatusCode::NOT_FOUND, text.to_string())
}

/// Waits until as many pods are bound.
///
/// # Errors
/// When that takes too long.
pub fn wait_until_bound(api: &MemoryApi, count: usize, most: std::time::Duration) -> Result<()> {
    let begun = Instant::now();
    while api.bound().len() < count {
        anyhow::ensure!(begun.elapsed() < most, "{} of {count} are bound", api.bound().len());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Ok(())
}
