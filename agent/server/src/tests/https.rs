//! The HTTPS port over real TLS on loopback: access control, and the cost of a stalled client.

use std::collections::HashMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};
use k8s_openapi::api::authorization::v1::{SubjectAccessReviewSpec, SubjectAccessReviewStatus};
use pintle_agent_config::modes::AuthorizationMode;
use pintle_agent_core::testing::{snapshot_of, view};
use pintle_api::AnyServer;
use pintle_daemon::serve::connections::PeerKey;
use pintle_daemon::serve::secure::{ReviewError, Reviews};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::json;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::super::open::OpenStream;
use super::super::route::TABLE;
use super::super::{Addresses, Handle, spawn_at};
use super::{ServerReply, TestServer};

/// An API server that knows tokens by their user's name and lets `admin` do everything.
#[derive(Default)]
struct TokenServer {
    tokens: AtomicUsize,
    /// Reviews that never end and are waited for.
    hanging: Arc<AtomicUsize>,
    asked: Mutex<Vec<(String, String, String)>>,
    /// User and subresource that are allowed besides.
    rights: Mutex<HashMap<String, String>>,
}

struct Hanging(Arc<AtomicUsize>);

impl Hanging {
    fn new(all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(all))
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Reviews for TokenServer {
    fn token(&self, token: String) -> BoxFuture<'_, Result<TokenReviewStatus, ReviewError>> {
        self.tokens.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            if token.starts_with("hang") {
                let _hanging = Hanging::new(&self.hanging);
                std::future::pending::<()>().await;
            }
            assert_ne!(token, "panic", "as a test wants it");
            if token == "down" {
                return Err(ReviewError::Failed("the API server is down".to_owned()));
            }
            let known = token != "unknown";
            let user = UserInfo { username: Some(token), ..UserInfo::default() };
            Ok(TokenReviewStatus {
                authenticated: Some(known),
                user: Some(user),
                ..TokenReviewStatus::default()
            })
        })
    }

    fn access(
        &self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ReviewError>> {
        let user = spec.user.unwrap_or_default();
        let wanted = spec.resource_attributes.unwrap_or_default();
        assert_eq!(wanted.resource.as_deref(), Some("nodes"));
        assert!(wanted.name.is_some_and(|name| !name.is_empty()));
        let (verb, sub) = (wanted.verb.unwrap_or_default(), wanted.subresource.unwrap_or_default());
        let right = self.rights.lock().expect("no panic").get(&user).is_some_and(|s| *s == sub);
        let allowed = user == "admin" || right;
        let undecided = user == "lost";
        self.asked.lock().expect("no panic").push((user, verb, sub));
        Box::pin(async move {
            if undecided {
                return Err(ReviewError::Failed("the API server is down".to_owned()));
            }
            Ok(SubjectAccessReviewStatus { allowed, ..SubjectAccessReviewStatus::default() })
        })
    }
}

/// A server with every check on.
pub(super) struct Secured {
    pub(super) world: TestServer,
    cluster: Arc<TokenServer>,
    pub(super) ca: ClientAuthority,
    pub(super) server: Handle,
}

/// Signs client certificates.
pub(super) struct ClientAuthority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl ClientAuthority {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("signed").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn client(&self, name: &str, usage: rcgen::ExtendedKeyUsagePurpose) -> ClientConfig {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        builder()
            .with_client_auth_cert(vec![certificate.der().clone()], key)
            .expect("a usable certificate")
    }

    pub(super) fn user(&self, name: &str) -> ClientConfig {
        self.client(name, rcgen::ExtendedKeyUsagePurpose::ClientAuth)
    }
}

impl Secured {
    pub(super) fn new(configure: impl FnOnce(&mut pintle_agent_config::Config)) -> Self {
        let mut world = TestServer::new();
        let (ca, cluster) = (ClientAuthority::new(), Arc::new(TokenServer::default()));
        let ca_file = world.dir.path().join("ca.crt");
        fs::write(&ca_file, &ca.pem).expect("written");
        let mut config = (*world.parts.config).clone();
        config.flags.cert_dir = world.dir.path().join("pki");
        let kubelet = &mut config.kubelet;
        kubelet.authentication.x509.client_ca_file = ca_file.display().to_string();
        kubelet.authentication.webhook.enabled = true;
        kubelet.authentication.anonymous.enabled = false;
        kubelet.authorization.mode = AuthorizationMode::Webhook;
        kubelet.container_runtime_endpoint =
            format!("unix://{}", world.dir.path().join("cri.sock").display());
        configure(&mut config);
        world.parts.config = Arc::new(config);
        let at = Addresses {
            https: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            ..Addresses::default()
        };
        let reviews = Arc::clone(&cluster) as Arc<dyn Reviews>;
        let server = spawn_at(world.parts.clone(), at, reviews).expect("a server");
        Self { world, cluster, ca, server }
    }

    pub(super) fn connect(&self, config: ClientConfig) -> StreamOwned<ClientConnection, TcpStream> {
        let socket = TcpStream::connect(self.server.https.expect("a port")).expect("connected");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        let name = ServerName::try_from("node").expect("a name");
        let tls = ClientConnection::new(Arc::new(config), name).expect("a client");
        StreamOwned::new(tls, socket)
    }

    pub(super) fn ask_as(&self, config: ClientConfig, request: &str, header: &str) -> ServerReply {
        let mut stream = self.connect(config);
        write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n")
            .expect("sent");
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes); // without close_notify when it is cut
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        ServerReply { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    /// Sends a request with that token, or without any.
    pub(super) fn ask(&self, request: &str, token: &str) -> ServerReply {
        let header = match token {
            "" => String::new(),
            token => format!("Authorization: Bearer {token}\r\n"),
        };
        self.ask_as(anybody(), request, &header)
    }
}

fn builder()
-> tokio_rustls::rustls::ConfigBuilder<ClientConfig, tokio_rustls::rustls::client::WantsClientCert>
{
    let provider = Arc::new(default_provider());
    // The server's certificate is self-signed, and not the subject of this test.
    let any_server = Arc::new(AnyServer::new(&provider));
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(any_server)
}

pub(super) fn anybody() -> ClientConfig {
    builder().with_no_client_auth()
}

/// A path of each route.
fn path(root: &str) -> String {
    match root {
        "/run" | "/exec" | "/attach" | "/containerLogs" | "/checkpoint" => {
            format!("{root}/default/web/c")
        }
        "/portForward" => format!("{root}/default/web"),
        root => root.to_owned(),
    }
}

#[test]
fn every_route_authenticates_and_authorizes_its_requests() {
    let secured = Secured::new(|_| {});
    for row in TABLE {
        let (method, path) = (&row.methods[0], path(row.root));
        let request = format!("{method} {path}");
        let nobody = secured.ask(&request, "");
        assert_eq!((nobody.status, nobody.body.as_str()), (401, "Unauthorized"), "{request}");
        assert_eq!(secured.ask(&request, "unknown").status, 401, "{request}");
        let wanted = crate::attributes::attributes(method.as_str(), &path);
        let refused = secured.ask(&request, "eve");
        let text = format!(
            "Forbidden (user=eve, verb={}, resource=nodes, subresource(s)=[{}])\n",
            wanted.verb,
            wanted.subresources.join(" ")
        );
        assert_eq!((refused.status, refused.body), (403, text), "{request}");
        let status = secured.ask(&request, "admin").status;
        assert!(status != 401 && status != 403, "{request}: {status}");
    }
    // A path that is not served reveals nothing to a client without rights.
    assert_eq!(secured.ask("GET /nothing", "").status, 401);
    assert_eq!(secured.ask("GET /nothing", "eve").status, 403);
    assert_eq!(secured.ask("GET /nothing", "admin").status, 404);
    assert_eq!(secured.ask("HEAD /pods", "eve").status, 403);
}

#[test]
fn request_is_refused_while_the_api_server_cannot_review_it() {
    let secured = Secured::new(|_| {});
    assert_eq!(secured.ask("GET /pods", "down").status, 401);
    let undecided = secured.ask("GET /pods", "lost");
    assert_eq!(undecided.status, 500);
    assert_eq!(
        undecided.body,
        "Authorization error (user=lost, verb=get, resource=nodes, subresource=pods)"
    );
}

#[test]
fn right_to_any_subresource_of_a_path_is_sufficient_and_reviews_are_cached() {
    let secured = Secured::new(|_| {});
    let allow = |user: &str, sub: &str| {
        secured.cluster.rights.lock().expect("no panic").insert(user.to_owned(), sub.to_owned());
    };
    allow("fine", "pods");
    allow("old", "proxy");
    for user in ["fine", "old"] {
        for _ in 0..3 {
            assert_eq!(secured.ask("GET /pods", user).status, 200, "{user}");
        }
    }
    assert_eq!(secured.ask("GET /configz", "fine").status, 403);
    assert_eq!(secured.cluster.tokens.load(Ordering::Relaxed), 2, "each token once");
    let asked = secured.cluster.asked.lock().expect("no panic");
    let of = |user: &str| asked.iter().filter(|(u, _, sub)| u == user && sub == "pods").count();
    assert_eq!((of("fine"), of("old")), (1, 1));
}

#[test]
fn client_certificates_are_judged_by_the_authorities_of_the_moment() {
    let secured = Secured::new(|_| {});
    let get = |config| secured.ask_as(config, "GET /pods", "");
    assert_eq!(get(secured.ca.user("admin")).status, 200);
    assert_eq!(get(secured.ca.user("eve")).status, 403);
    let server = rcgen::ExtendedKeyUsagePurpose::ServerAuth;
    assert_eq!(get(secured.ca.client("admin", server)).status, 401, "not meant for clients");
    let other = ClientAuthority::new();
    assert_eq!(get(other.user("admin")).status, 401, "another authority");
    let both = format!("{}{}", secured.ca.pem, other.pem);
    fs::write(&secured.world.parts.config.kubelet.authentication.x509.client_ca_file, both)
        .expect("written");
    let end = Instant::now() + Duration::from_secs(30);
    while get(other.user("admin")).status != 200 {
        assert!(Instant::now() < end, "the new authority is never read");
    }
    assert_eq!(get(secured.ca.user("admin")).status, 200);
}

#[test]
fn anonymous_requests_may_be_enabled_but_invalid_credentials_are_never_anonymous() {
    let secured = Secured::new(|config| config.kubelet.authentication.anonymous.enabled = true);
    let anonymous = secured.ask("GET /pods", "");
    assert_eq!(anonymous.status, 403);
    assert!(anonymous.body.contains("user=system:anonymous"), "{}", anonymous.body);
    assert_eq!(secured.ask("GET /pods", "unknown").status, 401);
}

#[test]
fn disabled_debug_routes_answer_authorized_clients_with_405() {
    let secured = Secured::new(|config| config.kubelet.enable_debugging_handlers = false);
    let refused = secured.ask("POST /exec/default/web/c", "admin");
    assert_eq!((refused.status, refused.body.as_str()), (405, "Debug endpoints are disabled.\n"));
    assert_eq!(secured.ask("POST /exec/default/web/c", "").status, 401);
    assert_eq!(secured.ask("GET /pods", "admin").status, 200);
}

#[test]
fn h2_is_negotiated_if_the_client_offers_it() {
    let secured = Secured::new(|_| {});
    let chosen = |protocols: &[&[u8]]| {
        let mut config = anybody();
        config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
        let mut stream = secured.connect(config);
        let _ = stream.flush();
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).expect("a handshake");
        }
        stream.conn.alpn_protocol().map(<[u8]>::to_vec)
    };
    assert_eq!(chosen(&[b"h2", b"http/1.1"]).as_deref(), Some(&b"h2"[..]));
    assert_eq!(chosen(&[b"http/1.1"]).as_deref(), Some(&b"http/1.1"[..]));
}

fn with_log(secured: &Secured, log: &Path) {
    let mut pod = view(json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "u"},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "c", "ready": true,
            "restartCount": 0, "image": "x", "imageID": "", "containerID": "containerd://id",
            "state": {"running": {}}}]},
    }));
    let mut observed = (*pod.observed).clone();
    let mut container = pintle_agent_core::status::testing::container("c", "id");
    container.log_path = log.display().to_string();
    observed.containers.push(container);
    pod.observed = Arc::new(observed);
    secured.world.parts.views.store(snapshot_of(vec![pod]));
}

#[test]
fn logs_are_refused_in_the_kubelets_words() {
    let secured = Secured::new(|_| {});
    let log = secured.world.dir.path().join("0.log");
    fs::write(&log, "2026-01-01T00:00:00Z stdout F hello\n").expect("written");
    with_log(&secured, &log);
    for (path, status, text) in [
        ("default/web/c", 200, "hello"),
        ("default/web/c?timestamps=true", 200, "2026-01-01T00:00:00.000000000Z hello"),
        ("default/nope/c", 404, "pod \"nope\" does not exist"),
        ("default/web/x", 404, "container \"x\" not found in pod \"web\""),
        ("default/web/c?tailLines=x", 400, "{\"message\": \"Unable to decode query.\"}"),
        ("default/web/c?limitBytes=0", 422, "{\"message\": \"Invalid request.\"}"),
        (
            "default/web/c?previous=true",
            400,
            "previous terminated container \"c\" in pod \"web\" not found",
        ),
    ] {
        let answer = secured.ask(&format!("GET /containerLogs/{path}"), "admin");
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.body.contains(text), "{path}: {}", answer.body);
    }
}

#[test]
fn stalled_log_followers_use_little_memory_and_other_clients_are_served() {
    let secured = Secured::new(|_| {});
    let log = secured.world.dir.path().join("0.log");
    let line = format!("2026-01-01T00:00:00Z stdout F {}\n", "x".repeat(8000));
    fs::write(&log, line.repeat(4000)).expect("32 MB");
    with_log(&secured, &log);
    let before = resident_kib();
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let mut stream = secured.connect(anybody());
        write!(
            stream,
            "GET /containerLogs/default/web/c?follow=true HTTP/1.1\r\nHost: x\r\n\
             Authorization: Bearer admin\r\n\r\n"
        )
        .expect("sent");
        let mut first = [0; 16];
        stream.read_exact(&mut first).expect("an answer has begun");
        assert!(first.starts_with(b"HTTP/1.1 200"));
        stalled.push(stream);
    }
    assert_eq!(secured.ask("GET /pods", "admin").status, 200);
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 20 * 2048, "{grown} KiB for {} stalled readers", stalled.len());
}

#[test]
fn log_stream_displaced_by_another_namespace_does_not_end_like_a_complete_log() {
    let secured = Secured::new(|_| {});
    let log = secured.world.dir.path().join("0.log");
    fs::write(&log, "2026-01-01T00:00:00Z stdout F hello\n").expect("written");
    with_log(&secured, &log);
    let follow = || {
        let mut stream = secured.connect(anybody());
        let path = "GET /containerLogs/default/web/c?follow=true";
        write!(stream, "{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer admin\r\n\r\n")
            .expect("sent");
        let mut text = Vec::new();
        while !text.ends_with(b"hello\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("the log");
            text.push(byte[0]);
        }
        stream
    };
    let mut follows = [follow(), follow(), follow()];
    // Other namespaces fill the rest of this client's share, as they would through the API server.
    let peer = PeerKey::of([127, 0, 0, 1].into());
    let mut others = Vec::new();
    loop {
        let pod = (format!("ns-{}", others.len()), "web".to_owned());
        let since = Instant::now();
        let stream = OpenStream { what: "ExecStream", pod, container: "c".to_owned(), peer, since };
        let (turn, is_displacing) = secured.world.parts.streams.enter(stream).expect("room");
        others.push(turn);
        if is_displacing {
            break;
        }
    }
    let mut rest = Vec::new();
    let _ = follows[2].read_to_end(&mut rest);
    assert!(!rest.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&rest));
    let open = secured.world.parts.streams.open();
    let logs = open.iter().filter(|stream| stream.pod.0 == "default").count();
    assert_eq!(logs, 2, "the newest made room");
}

pub(super) fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("read");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("there");
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number")
}

#[test]
fn small_pages_are_there() {
    let secured = Secured::new(|_| {});
    for (path, text) in [
        ("/configz", "{\"kubeletconfig\":{\"kind\":\"KubeletConfiguration\""),
        ("/statusz", "kubelet statusz"),
        ("/flagz", "authorization-mode=Webhook"),
        ("/flagz", "\nhousekeeping-interval=10s\n"),
        ("/healthz/ping", "ok"),
        ("/runningpods/", "\"kind\":\"PodList\""),
        ("/healthz", "ok"),
        ("/metrics/slis", "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1"),
        ("/metrics", "kubelet_http_requests_total{"),
    ] {
        let answer = secured.ask(&format!("GET {path}"), "admin");
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.body.contains(text), "{path}: {}", answer.body);
    }
    assert_eq!(secured.ask("GET /debug/pprof/heap", "admin").status, 405);
    let statusz = secured.ask_as(
        anybody(),
        "GET /statusz",
        "Authorization: Bearer admin\r\n\
         Accept: application/json;v=v1beta1;g=config.k8s.io;as=Statusz\r\n",
    );
    assert!(statusz.body.contains("\"kind\":\"Statusz\""), "{}", statusz.body);
}

#[test]
fn routes_of_disabled_feature_gates_are_404() {
    let off = [
        ("ComponentStatusz", "GET /statusz"),
        ("ComponentFlagz", "GET /flagz"),
        ("ContainerCheckpoint", "POST /checkpoint/default/web/c"),
    ];
    let gates = off.map(|(gate, _)| (gate.to_owned(), false)).into();
    let gates = pintle_agent_config::FeatureGates::new(&gates).expect("gates");
    let secured = Secured::new(|config| config.gates = gates);
    for (_, request) in off {
        assert_eq!(secured.ask(request, "admin").status, 404, "{request}");
    }
}

#[test]
fn streams_of_unknown_pods_and_containers_are_refused() {
    let secured = Secured::new(|_| {});
    with_log(&secured, Path::new("/none"));
    for (request, status, text) in [
        ("POST /exec/default/nope/c?output=1", 404, "pod does not exist"),
        ("POST /exec/default/web/x?output=1", 500, "container not found (\"x\")"),
        ("POST /exec/default/web/c", 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("POST /exec/default/web/other/c?output=1", 500, "container not found (\"c\")"),
        ("POST /attach/default/web/x?output=1", 500, "container x not found in pod web_default"),
        ("POST /portForward/default/web/other", 404, "pod not found"),
        ("POST /portForward/default/web", 500, "pod not found (\"web_default\")"),
        ("POST /run/default/web/x?cmd=ls", 500, "container not found (\"x\")"),
        ("POST /checkpoint/default/web/x", 404, "container x does not exist"),
        ("POST /checkpoint/default/web/c?timeout=x", 404, "cannot parse value of timeout"),
    ] {
        let answer = secured.ask(request, "admin");
        assert_eq!(answer.status, status, "{request}: {}", answer.body);
        assert!(answer.body.contains(text), "{request}: {}", answer.body);
    }
}

#[test]
fn flood_of_unknown_tokens_has_bounded_reviews_and_a_known_token_is_served() {
    let secured = Secured::new(|_| {});
    assert_eq!(secured.ask("GET /pods", "admin").status, 200);
    let waiting: Vec<_> = (0..100)
        .map(|number| {
            let mut stream = secured.connect(anybody());
            let _ = write!(
                stream,
                "GET /pods HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hang{number}\r\n\r\n"
            );
            stream
        })
        .collect();
    assert_eq!(secured.ask("GET /pods", "admin").status, 200, "its review is remembered");
    assert_eq!(secured.ask_as(secured.ca.user("admin"), "GET /pods", "").status, 200);
    let hanging = secured.cluster.hanging.load(Ordering::Relaxed);
    assert!((1..=4).contains(&hanging), "{hanging} reviews at the same time for one address");
    drop(waiting);
}

#[test]
fn a_checkpoint_that_may_take_for_ever_is_no_panic() {
    let secured = Secured::new(|_| {});
    with_log(&secured, Path::new("/none"));
    let huge = i64::MAX;
    let path = format!("POST /checkpoint/default/web/c?timeout={huge}");
    // There is no runtime behind this server: it must answer with an error.
    assert_eq!(secured.ask(&path, "admin").status, 500);
}

#[test]
fn panic_ends_only_its_request() {
    let secured = Secured::new(|_| {});
    let mut stream = secured.connect(anybody());
    for (token, status) in [("panic", "500"), ("admin", "200"), ("panic", "500")] {
        write!(
            stream,
            "GET /healthz/ping HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        .expect("sent");
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).expect("the connection goes on");
        assert_eq!(answer, format!("HTTP/1.1 {status}").as_bytes(), "{token}");
        let end: &[u8] = if status == "200" { b"\r\n\r\nok" } else { b"server error\n" };
        while !answer.ends_with(end) {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("the rest");
            answer.push(byte[0]);
        }
    }
}

#[test]
fn a_hundred_scrapes_at_once_are_all_answered() {
    let secured = Secured::new(|_| {});
    std::thread::scope(|scope| {
        let asks: Vec<_> = (0..100)
            .map(|number| {
                let path = ["/metrics", "/pods"][number % 2];
                let secured = &secured;
                scope.spawn(move || secured.ask(&format!("GET {path}"), "admin").status)
            })
            .collect();
        for ask in asks {
            assert_eq!(ask.join().expect("no panic"), 200);
        }
    });
    let zipped = secured.ask_as(
        anybody(),
        "GET /metrics",
        "Authorization: Bearer admin\r\nAccept-Encoding: gzip\r\n",
    );
    assert!(zipped.head.contains("content-encoding: gzip"), "{}", zipped.head);
}
