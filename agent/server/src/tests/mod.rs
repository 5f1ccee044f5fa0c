//! The server over real sockets: loopback ports that the kernel chooses, a socket in a folder of
//! its own.

mod floods;
mod https;
mod streams;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use pintle_agent_config as config;
use pintle_agent_config::{
    ClientCommand, Color, Command, OutputFormat, PodFilter, ReplayOf, Subcommand,
};
use pintle_agent_core::source::{Problem, ProblemCause};
use pintle_agent_core::sync::plan::{Action, SyncPlan};
use pintle_agent_core::testing::{snapshot_of, view};
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::worker::Wait;
use pintle_agent_metrics::Metrics;
use pintle_cri::fake::FakeRuntime;
use pintle_cri::{Client, Code, Deadlines, Method};
use pintle_daemon::serve::body::Body;
use pintle_daemon::serve::listen::ServeError;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Addresses, ApiReviews, EventSourceState, Handle, HealthState, ServerParts, spawn_at};
use crate::Query;
use crate::Views;
use crate::record::testing::Agent;

struct TestServer {
    parts: ServerParts,
    queries: mpsc::Receiver<Query>,
    dir: tempfile::TempDir,
}

impl TestServer {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let args =
            ["pintle-agent", &format!("--root-dir={}", dir.path().display())].map(Into::into);
        let Ok(Command::Run(config)) = config::parse(args.into_iter()) else {
            panic!("the defaults are a configuration")
        };
        let (sender, queries) = mpsc::channel(4);
        let metrics = Arc::new(Metrics::new("n"));
        let parts = ServerParts {
            views: Views::default(),
            recorder: Recorder::default(),
            calls: Arc::new(Vec::new),
            pull_queue: Default::default(),
            events: Arc::new(|| EventSourceState { mode: "pidfd", dropped: 5 }),
            queries: sender,
            api_health: Default::default(),
            own_runtime: Arc::default(),
            gauges: super::Gauges::start(&config, &metrics, super::VolumeSources::default()),
            streams: Default::default(),
            problems: Arc::default(),
            metrics,
            config: Arc::new(*config),
            health: Arc::new(HealthState::new(Duration::from_secs(60))),
            serving_cert: super::ServingCert::default(),
            api: None,
        };
        Self { parts, queries, dir }
    }

    fn with_pods(self, pods: &[Value]) -> Self {
        let views = pods.iter().cloned().map(view).collect();
        self.parts.views.store(snapshot_of(views));
        self
    }

    fn spawn(&self) -> Result<Handle, ServeError> {
        let any = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let at = Addresses { healthz: any, read_only: any, https: None };
        spawn_at(self.parts.clone(), at, Arc::new(ApiReviews::new(None, String::new())))
    }

    fn socket(&self) -> &Path {
        &self.parts.config.flags.socket
    }
}

struct ServerReply {
    status: u16,
    head: String,
    body: String,
}

impl ServerReply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }
}

fn ask(mut stream: impl Read + Write, request: &str) -> ServerReply {
    write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    ServerReply { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

fn get(address: Option<SocketAddr>, path: &str) -> ServerReply {
    let stream = TcpStream::connect(address.expect("a port")).expect("connected");
    ask(stream, &format!("GET {path}"))
}

fn local(world: &TestServer, path: &str) -> ServerReply {
    ask(UnixStream::connect(world.socket()).expect("connected"), &format!("GET {path}"))
}

fn web() -> Value {
    json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "u1"},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "c", "ready": true, "started": true,
                "restartCount": 0, "image": "x", "imageID": "", "state": {"running": {}}}]},
    })
}

#[test]
fn health_is_ok_with_the_kubelets_words_and_types() {
    let world = TestServer::new();
    let server = world.spawn().expect("a server");
    for path in ["/healthz", "/healthz/ping", "/healthz/syncloop"] {
        let answer = get(server.healthz, path);
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok"), "{path}");
        assert!(answer.head.contains("content-type: text/plain; charset=utf-8"), "{}", answer.head);
        assert_eq!(get(server.read_only, path).status, 200, "{path}");
    }
    assert_eq!(get(server.healthz, "/pods").status, 404, "pods are not the health check's");
}

#[test]
fn read_only_port_serves_only_routes_that_need_no_authorization() {
    let world = TestServer::new().with_pods(&[web()]);
    let server = world.spawn().expect("a server");
    let pods = get(server.read_only, "/pods");
    assert!(pods.head.contains("content-type: application/json"), "{}", pods.head);
    assert_eq!(pods.json()["items"][0]["metadata"]["name"], "web");
    let disabled = get(server.read_only, "/runningpods/");
    assert_eq!((disabled.status, disabled.body.as_str()), (405, "Debug endpoints are disabled.\n"));
    let metrics = get(server.read_only, "/metrics");
    assert!(metrics.head.contains("text/plain; version=0.0.4"), "{}", metrics.head);
    assert!(metrics.body.contains("\npintle_event_source{mode=\"pidfd\"} 1\n"), "{}", metrics.body);
    assert!(metrics.body.contains("\npintle_event_drops_total 5\n"));
    for (path, status) in [
        ("/stats/summary?only_cpu_and_memory=true", 200),
        ("/metrics/resource", 200),
        ("/metrics/cadvisor", 200),
        ("/metrics/probes", 200),
        ("/exec/default/web/c", 405),
        ("/configz", 404),
        ("/explain?pod=web", 404),
        ("/", 404),
    ] {
        assert_eq!(get(server.read_only, path).status, status, "{path}");
    }
    for path in ["/pods", "/retry?pod=web"] {
        for address in [server.read_only, server.healthz] {
            let post = TcpStream::connect(address.expect("a port")).expect("connected");
            assert_eq!(ask(post, &format!("POST {path}")).status, 405, "{path}");
        }
    }
}

#[tokio::test]
async fn summary_is_an_error_while_the_runtime_returns_no_stats() {
    let world = TestServer::new();
    let runtime = FakeRuntime::start(&world.dir.path().join("c.sock")).await.expect("it starts");
    let client = Client::connect(&runtime.endpoint(), Deadlines::default()).expect("a path");
    let stats = crate::stats::NodeStats::new(&world.parts, client);
    for (method, why) in [
        (Method::ListContainerStats, "failed to list pod stats: "),
        (Method::ImageFsInfo, "failed to get imageFs stats: "),
    ] {
        let down = runtime.on(method).fail(Code::Internal, "not now");
        let answer = stats.summary(false).await;
        let body = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, 500, "{body}");
        assert!(body.starts_with(&format!("Internal Error: {why}")), "{body}");
        assert_eq!(stats.summary(true).await.status, 200, "CPU and memory alone need no such call");
        down.lift();
    }
    let answer = stats.summary(false).await;
    assert_eq!(answer.status, 200);
    let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert!(told["node"]["cpu"]["usageNanoCores"].is_u64(), "the first answer has it as well");
}

#[test]
fn a_taken_port_is_an_error_that_names_address_reason_and_remedy() {
    let world = TestServer::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let at = Addresses { healthz: Some(address), ..Addresses::default() };
    let spawned = spawn_at(world.parts.clone(), at, Arc::new(ApiReviews::new(None, String::new())));
    let error = spawned.expect_err("taken").to_string();
    for part in [&address.to_string(), "another process listens there", "healthzPort"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn socket_is_accessible_only_to_its_owner_and_removed_with_the_server() {
    let world = TestServer::new();
    let server = world.spawn().expect("a server");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(world.socket()), 0o600);
    assert_eq!(mode(world.socket().parent().expect("a folder")), 0o700);
    drop(server);
    assert!(!world.socket().exists());
}

#[test]
fn socket_of_a_killed_agent_is_replaced_and_that_of_a_running_agent_is_not() {
    let world = TestServer::new();
    fs::create_dir_all(world.socket().parent().expect("a folder")).expect("made");
    drop(UnixListener::bind(world.socket()).expect("bound")); // leaves its file behind
    let server = world.spawn().expect("a server in its place");
    assert_eq!(local(&world, "/pods").status, 200);
    let error = world.spawn().expect_err("a second one").to_string();
    assert!(error.contains("another process answers there"), "{error}");
    assert_eq!(local(&world, "/pods").status, 200, "the first one goes on");
    drop(server);
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let world = TestServer::new();
    fs::create_dir_all(world.socket().parent().expect("a folder")).expect("made");
    fs::write(world.socket(), "precious").expect("written");
    let error = world.spawn().expect_err("no socket").to_string();
    assert!(error.contains("a file that is no socket"), "{error}");
    assert_eq!(fs::read_to_string(world.socket()).expect("there"), "precious");
}

#[test]
fn idle_connections_do_not_block_the_health_check_or_the_read_only_port() {
    let world = TestServer::new();
    let server = world.spawn().expect("a server");
    let addresses = [server.healthz.expect("a port"), server.read_only.expect("a port")];
    let idle: Vec<_> = addresses
        .iter()
        .flat_map(|address| [address; 200])
        .map(|address| TcpStream::connect(address).expect("connected"))
        .collect();
    let commands: Vec<_> =
        (0..200).map(|_| UnixStream::connect(world.socket()).expect("connected")).collect();
    for address in addresses {
        assert_eq!(get(Some(address), "/healthz").status, 200);
    }
    assert_eq!(local(&world, "/pods").status, 200);
    drop((idle, commands));
}

/// All of a body, each piece dropped once it is read, as a connection does.
pub(crate) async fn read(mut body: Body) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        bytes.extend_from_slice(&frame.expect("never fails").into_data().expect("data"));
    }
    bytes
}

fn broken(place: &str, why: &str) -> Arc<Vec<Arc<Problem>>> {
    let error = ProblemCause::Read(why.to_owned());
    let problem = Problem { place: place.to_owned(), error, keeps_previous: false };
    Arc::new(vec![Arc::new(problem)])
}

#[test]
fn pods_on_the_socket_are_rows_with_their_failure_reasons() {
    let mut sick = web();
    sick["metadata"] = json!({"namespace": "default", "name": "sick", "uid": "u2"});
    sick["status"] = json!({"phase": "Pending", "containerStatuses": [{"name": "c", "ready": false,
        "restartCount": 0, "image": "x", "imageID": "", "state": {"waiting":
        {"reason": "ErrImageNeverPull", "message": "no image"}}}]});
    let world = TestServer::new().with_pods(&[web(), sick]);
    world.parts.problems.store(broken("/m/x.yaml", "kind is missing"));
    let _server = world.spawn().expect("a server");
    let answer = local(&world, "/pods").json();
    let why = |index: usize| answer["pods"][index]["why"].as_str().unwrap_or_default().to_owned();
    assert_eq!(why(0), "");
    assert_eq!(why(1), "Image x of container c is not on this node: no image.");
    assert_eq!(answer["brokenManifests"], json!(["/m/x.yaml: cannot read: kind is missing"]));
}

#[test]
fn explain_of_an_unknown_pod_lists_the_broken_manifests() {
    let world = TestServer::new().with_pods(&[web()]);
    world.parts.problems.store(broken("/m/x.yaml", "kind is missing"));
    let _server = world.spawn().expect("a server");
    let answer = local(&world, "/explain?pod=x");
    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["error"], "this node has no pod x");
    let more = [
        "broken manifest: /m/x.yaml: cannot read: kind is missing",
        "all pods of this node: pintle-agent pods",
        "a pod that is gone: pintle-agent explain POD --at TIME, or timeline POD --at TIME, of a \
         time when it was there",
    ];
    assert_eq!(answer.json()["more"], json!(more));
}

#[test]
fn timeline_of_a_deleted_pod_is_found_by_its_uid() {
    let world = TestServer::new();
    world.parts.recorder.stage(&"gone".into(), "Seen", None, "");
    let _server = world.spawn().expect("a server");
    let answer = local(&world, "/timeline?pod=gone").json();
    assert_eq!(answer["entries"][0]["what"], "Seen");
    assert_eq!(local(&world, "/timeline?pod=other").status, 404);
}

#[test]
fn dry_run_is_answered_by_the_main_thread_and_refused_during_shutdown() {
    let mut world = TestServer::new().with_pods(&[web()]);
    let _server = world.spawn().expect("a server");
    let (_, empty) = mpsc::channel(1);
    let mut queries = std::mem::replace(&mut world.queries, empty);
    let driver = std::thread::spawn(move || {
        let Some(Query::Plan { uid, answer }) = queries.blocking_recv() else {
            panic!("a question")
        };
        assert_eq!(uid.as_str(), "u1");
        let plan = SyncPlan { actions: vec![Action::Prepare], held: Vec::new() };
        answer.send(Some(plan)).expect("asked");
    });
    let planned = local(&world, "/plan?pod=web").json();
    assert_eq!(planned["actions"][0]["action"], "Prepare");
    driver.join().expect("no panic");
    let ended = local(&world, "/plan?pod=web");
    assert_eq!(
        (ended.status, ended.json()["error"].as_str()),
        (503, Some("the agent is shutting down"))
    );
}

#[test]
fn retry_is_a_post_that_returns_the_waits_it_ended() {
    let mut world = TestServer::new().with_pods(&[web()]);
    let _server = world.spawn().expect("a server");
    let (_, empty) = mpsc::channel(1);
    let mut queries = std::mem::replace(&mut world.queries, empty);
    let driver = std::thread::spawn(move || {
        let Some(Query::Retry { uid, answer }) = queries.blocking_recv() else {
            panic!("a question")
        };
        assert_eq!(uid.as_str(), "u1");
        let (what, reason) = ("container c".to_owned(), "CrashLoopBackOff".to_owned());
        let wait = Wait { what, reason, left: Duration::from_millis(252_900) };
        answer.send(Some(vec![wait])).expect("asked");
    });
    let post = |path: &str| {
        let stream = UnixStream::connect(world.socket()).expect("connected");
        ask(stream, &format!("POST {path}"))
    };
    assert_eq!(local(&world, "/retry?pod=web").status, 405, "a GET changes nothing");
    assert_eq!(post("/plan?pod=web").status, 405);
    let missing = post("/retry?pod=wep");
    let refusal =
        json!({"error": "this node has no pod wep; did you mean default/web?", "more": []});
    assert_eq!((missing.status, missing.json()), (404, refusal));
    let told = post("/retry?pod=web");
    let wait = json!({"what": "container c", "reason": "CrashLoopBackOff", "leftSeconds": 252});
    assert_eq!((told.status, &told.json()["waits"]), (200, &json!([wait])));
    driver.join().expect("no panic");
}

#[test]
fn dump_shows_state_without_the_secrets_of_pods() {
    let mut pod = web();
    pod["spec"]["containers"][0]["env"] = json!([{"name": "TOKEN", "value": "hunter2"}]);
    let world = TestServer::new().with_pods(&[pod]);
    let _server = world.spawn().expect("a server");
    let answer = local(&world, "/dump");
    assert_eq!(answer.json()["pods"][0]["pod"], "default/web");
    assert!(!answer.body.contains("hunter2"));
}

#[test]
fn queued_image_pull_is_among_the_calls_of_the_dump() {
    let world = TestServer::new().with_pods(&[web()]);
    let _place = world.parts.pull_queue.enter("nginx:1");
    let _server = world.spawn().expect("it starts");
    let dump = local(&world, "/dump").json();
    let calls = dump["runtimeCalls"].as_array().expect("a list");
    let calls: Vec<_> = calls.iter().map(|call| (&call["method"], &call["subject"])).collect();
    assert_eq!(calls, [(&json!("PullTurn"), &json!("nginx:1"))]);
}

#[test]
fn every_response_reports_a_missing_runtime() {
    let world = TestServer::new();
    let _server = world.spawn().expect("a server");
    world.parts.health.starting("no such socket; start it".to_owned());
    let why = "the agent is starting: no such socket; start it";
    let pressure = local(&world, "/pressure");
    assert_eq!((pressure.status, pressure.json()["error"].as_str()), (503, Some(why)));
    assert_eq!(local(&world, "/dump").json()["health"], "starting: no such socket; start it");
    assert_eq!(local(&world, "/pods").json()["startWaitsFor"], "no such socket; start it");
    assert_eq!(local(&world, "/explain?pod=x").json()["more"][0], why);
    world.parts.health.started();
    assert_eq!(local(&world, "/dump").json()["health"], "ok");
    assert_eq!(local(&world, "/pods").json()["startWaitsFor"], Value::Null);
}

#[test]
fn a_request_without_end_is_refused() {
    let world = TestServer::new();
    let server = world.spawn().expect("a server");
    let mut stream = TcpStream::connect(server.read_only.expect("a port")).expect("connected");
    let long = format!("GET /pods HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(64 << 10));
    let _ = stream.write_all(long.as_bytes());
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    assert!(!text.contains("200 OK"), "{text}");
    assert_eq!(get(server.read_only, "/healthz").status, 200, "others are served");
}

#[test]
fn commands_exit_with_a_failure_when_the_agent_refuses() {
    let world = TestServer::new().with_pods(&[web()]);
    let _server = world.spawn().expect("a server");
    let run = |subcommand, output| {
        let socket = world.socket().to_owned();
        crate::client::run(&ClientCommand {
            subcommand,
            output,
            watch: false,
            color: Color::Never,
            width: None,
            socket,
        })
    };
    let same = |a: ExitCode, b: ExitCode| format!("{a:?}") == format!("{b:?}");
    assert!(same(
        run(Subcommand::Pods(PodFilter::default()), OutputFormat::Table),
        ExitCode::SUCCESS
    ));
    assert!(same(run(Subcommand::Explain("web".into()), OutputFormat::Json), ExitCode::SUCCESS));
    assert!(same(run(Subcommand::Explain("nope".into()), OutputFormat::Table), ExitCode::FAILURE));
    assert!(same(run(Subcommand::Retry("nope".into()), OutputFormat::Table), ExitCode::FAILURE));
    assert!(world.dir.path().exists());
    let dir = tempfile::tempdir().expect("a folder");
    let replay = |dir: &Path| {
        let of = ReplayOf { dir: dir.to_owned(), pod: None, until: None };
        run(Subcommand::Replay(of), OutputFormat::Table)
    };
    assert!(same(replay(dir.path()), ExitCode::FAILURE));
    Agent::begins(dir.path(), 1, 0, "v1").gets_ready();
    assert!(same(replay(dir.path()), ExitCode::SUCCESS));
}
