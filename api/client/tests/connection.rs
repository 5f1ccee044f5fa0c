//! Connections to a server that counts requests, changes its behaviour and goes away.

mod server;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use pintle_api::{
    Access, AnswerWithin, ClientOptions, DEAD_AFTER, Observer, PluginRun, Rate, Sent, TenantShare,
};
use pintle_memory_http::SharedServer;

use server::{Authority, Server};

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn client(server: &Server, options: ClientOptions) -> kube::Client {
    Access::read(&server.kubeconfig()).expect("a kubeconfig").client(options)
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !done().await {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn requests_share_a_connection_and_send_user_agent_and_certificate() {
    let server = Server::start(Authority::new()).await;
    let agent = "kubelet/v1 (linux/amd64)".to_owned();
    let client = client(&server, ClientOptions { user_agent: agent.clone(), ..Default::default() });
    let nodes: Api<Node> = Api::all(client);
    for _ in 0..5 {
        nodes.get("n").await.expect("an answer");
    }
    assert_eq!(server.connections(), 1);
    let seen = server.last();
    assert_eq!((seen.path.as_str(), seen.user_agent), ("/api/v1/nodes/n", agent));
    assert_eq!(seen.client.as_deref(), Some("first"), "the client's certificate");
}

#[tokio::test]
async fn many_streams_get_another_connection() {
    let server = Server::start(Authority::new()).await;
    let client = client(&server, ClientOptions::default());
    server.hold(true);
    let mut held = Vec::new();
    for _ in 0..130 {
        let nodes: Api<Node> = Api::all(client.clone());
        held.push(tokio::spawn(async move { nodes.get("n").await }));
    }
    until("every request has arrived", async || server.requests() == 130).await;
    assert_eq!(server.connections(), 2);
    server.hold(false);
    for request in held {
        request.await.expect("no panic").expect("an answer");
    }
}

#[tokio::test]
async fn a_server_that_leaves_on_all_connections_costs_no_request() {
    let server = Server::start(Authority::new()).await;
    let client = client(&server, ClientOptions::default());
    let mut watches = Vec::new();
    for _ in 0..120 {
        watches.push(watching(&client).await);
    }
    // Both connections have room, and stay as long as their watches.
    watches.drain(..50);
    assert_eq!(server.connections(), 2);
    server.leave();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let nodes: Api<Node> = Api::all(client);
    nodes.get("n").await.expect("it was not sent, so it can be sent again");
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_new_client_certificate_gets_a_new_connection() {
    let server = Server::start(Authority::new()).await;
    let nodes: Api<Node> = Api::all(client(&server, ClientOptions::default()));
    nodes.get("n").await.expect("an answer");
    // A request that waits for its answer is ended, too: its connection has the old certificate.
    server.hold(true);
    let waiting = tokio::spawn({
        let nodes = nodes.clone();
        async move { nodes.get("waits").await }
    });
    until("the request has arrived", async || server.requests() == 2).await;
    server.hold(false);
    server.write_certificate("second");
    until("the new certificate is shown", async || {
        let _ = nodes.get("n").await;
        server.last().client.as_deref() == Some("second")
    })
    .await;
    let _ = waiting.await.expect("no panic");
}

#[tokio::test]
async fn a_token_file_is_read_again() {
    let server = Server::start(Authority::new()).await;
    let token = server.path("token");
    std::fs::write(&token, "one\n").expect("written");
    server.write_kubeconfig(&format!("tokenFile: {}", token.display()));
    let nodes: Api<Node> = Api::all(client(&server, ClientOptions::default()));
    nodes.get("n").await.expect("an answer");
    assert_eq!(server.last().authorization.as_deref(), Some("Bearer one"));
    std::fs::write(&token, "two-2").expect("written");
    until("the new token is sent", async || {
        nodes.get("n").await.expect("an answer");
        server.last().authorization.as_deref() == Some("Bearer two-2")
    })
    .await;
}

#[tokio::test]
async fn account_client_sends_its_token_and_no_certificate() {
    let server = Server::start(Authority::new()).await;
    let issuer = SharedServer::new(1);
    let access = Access::read(&server.kubeconfig()).expect("a kubeconfig");
    let accounts = access.accounts(issuer.client(), "kube-system");
    let user_agent = "kube-controller-manager/v1/job".to_owned();
    let options = ClientOptions { user_agent: user_agent.clone(), ..ClientOptions::default() };
    let clients = accounts.clients("job-controller", options);
    clients.authenticate().await.expect("a token");
    let nodes: Api<Node> = Api::all(clients.urgent());
    nodes.get("n").await.expect("an answer");
    let seen = server.last();
    let first = seen.authorization.expect("a token");
    assert!(first.starts_with("Bearer token-1-of-"), "{first}");
    assert_eq!((seen.client, seen.user_agent), (None, user_agent));

    // Other clients of the account share connection and token.
    let others = accounts.clients("job-controller", ClientOptions::default());
    let nodes: Api<Node> = Api::all(others.urgent());
    nodes.get("n").await.expect("an answer");
    assert_eq!((server.connections(), server.last().authorization), (1, Some(first)));

    server.refuse_once(401, None);
    nodes.get("n").await.expect("an answer to another token");
    let second = server.last().authorization.expect("a token");
    assert!(second.starts_with("Bearer token-2-of-"), "{second}");
    let created = issuer.count("POST /api/v1/namespaces/kube-system/serviceaccounts?");
    assert_eq!(created, 1, "{:?}", issuer.requests());
}

#[tokio::test]
async fn derived_clients_share_a_connection_and_send_their_own_user_agents() {
    let server = Server::start(Authority::new()).await;
    let access = Access::read(&server.kubeconfig()).expect("a kubeconfig");
    let root = access.clients(ClientOptions::default());
    for name in ["one", "two"] {
        let user_agent = name.to_owned();
        let clients = root.beside(ClientOptions { user_agent, ..ClientOptions::default() });
        let nodes: Api<Node> = Api::all(clients.urgent());
        nodes.get("n").await.expect("an answer");
        let seen = server.last();
        assert_eq!((seen.user_agent.as_str(), seen.client.as_deref()), (name, Some("first")));
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_dead_server_is_found_and_replaced() {
    let server = Server::start(Authority::new()).await;
    let client = client(&server, ClientOptions::default());
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.get("n").await.expect("an answer");
    // From now on no bytes get through, without an error.
    server.silence();
    let begun = Instant::now();
    let delete = Request::delete("/api/v1/nodes/n").body(Vec::new()).expect("a request");
    let (read, written) = tokio::join!(nodes.get("n"), client.request_text(delete));
    read.expect("a read is sent again");
    assert!(written.is_err(), "the outcome of a write is unknown");
    let found = begun.elapsed();
    assert!(found < 4 * DEAD_AFTER, "{found:?}");
    assert_eq!((server.connections(), server.requests()), (2, 2));
}

/// A watch that has delivered its first event.
async fn watching(client: &kube::Client) -> kube::client::Body {
    let request = Request::get("/api/v1/nodes?watch=true").body(Vec::new()).expect("a request");
    let answer = client.send(request.map(Into::into)).await.expect("an answer");
    let mut body = answer.into_body();
    body.frame().await.expect("an event").expect("an event");
    body
}

/// Loses every packet of a quiet watch and of a request that waits for its answer.
async fn loses_packets(server: Server) {
    let client = client(&server, ClientOptions::default());
    let nodes: Api<Node> = Api::all(client.clone());
    let mut watch = watching(&client).await;
    server.hold(true);
    let (one, before) = (nodes.clone(), server.requests());
    let waiting = tokio::spawn(async move { one.get("n").await });
    until("the request has arrived", async || server.requests() > before).await;
    server.lose();
    // Without probes it would take until TCP gives up, a quarter of an hour.
    let begun = Instant::now();
    let in_time = |what: &str| {
        let found = begun.elapsed();
        assert!(found < 4 * DEAD_AFTER, "{what}: {found:?}");
    };
    let told = watch.frame().await;
    assert!(told.is_some_and(|told| told.is_err()), "a watch that breaks off does not just end");
    in_time("the watch");
    until("the request is sent again", async || server.requests() > before + 1).await;
    in_time("the request");
    server.hold(false);
    waiting.await.expect("no panic").expect("an answer");
}

#[tokio::test]
async fn connection_with_lost_packets_is_detected_and_replaced() {
    // The connection of a server with nothing to send meanwhile stays open.
    let quiet = Server::start_http1(Authority::new()).await;
    let client = client(&quiet, ClientOptions::default());
    let mut watch = watching(&client).await;
    tokio::join!(
        loses_packets(Server::start(Authority::new()).await),
        loses_packets(Server::start_http1(Authority::new()).await),
    );
    let told = tokio::time::timeout(Duration::ZERO, watch.frame()).await;
    assert!(told.is_err(), "{told:?}");
    assert_eq!(quiet.connections(), 1);
}

#[tokio::test]
async fn later_is_obeyed_and_limits_hold() {
    let server = Server::start(Authority::new()).await;
    let rate = Some(Rate { per_second: 20.0, burst: 2 });
    let nodes: Api<Node> = Api::all(client(&server, ClientOptions { rate, ..Default::default() }));
    server.refuse_once(429, Some("0"));
    nodes.get("n").await.expect("asked again");
    assert_eq!(server.requests(), 2);
    let begun = Instant::now();
    for _ in 0..10 {
        nodes.get("n").await.expect("an answer");
    }
    assert!(begun.elapsed() >= Duration::from_millis(450), "ten requests at 20 a second");
}

/// A read of one pod in the bulk lane.
fn bulk_read(client: &kube::Client, share: &str) -> tokio::task::JoinHandle<kube::Result<String>> {
    let mut request = Request::get("/api/v1/namespaces/a/configmaps/c");
    request.extensions_mut().expect("a good path").insert(TenantShare::of(share));
    let (client, request) = (client.clone(), request.body(Vec::new()).expect("a request"));
    tokio::spawn(async move { client.request_text(request).await })
}

#[tokio::test]
async fn a_pods_many_reads_hold_up_neither_writes_nor_other_pods() {
    let server = Server::start(Authority::new()).await;
    let rate = Some(Rate { per_second: 20.0, burst: 1 });
    let options = ClientOptions { rate, ..Default::default() };
    let clients = Access::read(&server.kubeconfig()).expect("a kubeconfig").clients(options);
    let bulk = clients.bulk();
    let greedy: Vec<_> = (0..2_000).map(|_| bulk_read(&bulk, "greedy")).collect();
    until("reads have begun", async || server.requests() > 1).await;
    // 2,000 reads take 100 s; the write's own time limit is far below that.
    let nodes: Api<Node> = Api::all(clients.writes(Duration::from_secs(10)));
    nodes.get("n").await.expect("a write's turn comes first");
    bulk_read(&bulk, "other").await.expect("no panic").expect("the other pod's turn");
    assert!(server.requests() < 200, "{} requests went before", server.requests());
    greedy.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn write_time_limit_starts_at_its_turn_and_retry_after_is_returned() {
    let server = Server::start(Authority::new()).await;
    let rate = Some(Rate { per_second: 1.0, burst: 1 });
    let options = ClientOptions { rate, ..Default::default() };
    let clients = Access::read(&server.kubeconfig()).expect("a kubeconfig").clients(options);
    let nodes: Api<Node> = Api::all(clients.writes(Duration::from_millis(900)));
    nodes.get("n").await.expect("an answer");
    let (one, other) = tokio::join!(nodes.get("n"), nodes.get("n"));
    one.and(other).expect("their turns come after 1 and 2 s, later than the limit");
    server.refuse_once(429, Some("7"));
    let request = Request::get("/api/v1/nodes/n").body(kube::client::Body::empty());
    let client = clients.writes(Duration::from_secs(10));
    let answer = client.send(request.expect("a request")).await.expect("an answer");
    let after = pintle_api::retry_after(answer.status(), answer.headers());
    assert_eq!(after, Some(Duration::from_secs(7)), "it is not waited for here");
}

#[tokio::test]
async fn a_watch_waits_for_no_turn_behind_writes() {
    let server = Server::start(Authority::new()).await;
    let rate = Some(Rate { per_second: 0.01, burst: 1 });
    let client = client(&server, ClientOptions { rate, ..Default::default() });
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.get("n").await.expect("the first turn");
    let waits = tokio::spawn(async move { nodes.get("n").await });
    // The next turn comes after 100 s.
    tokio::time::timeout(PATIENCE, watching(&client)).await.expect("it goes on at once");
    assert!(!waits.is_finished(), "a read has its turn");
    waits.abort();
}

#[tokio::test]
async fn time_limit_of_a_single_request_starts_at_its_turn() {
    let server = Server::start(Authority::new()).await;
    let rate = Some(Rate { per_second: 1.0, burst: 1 });
    let client = client(&server, ClientOptions { rate, ..Default::default() });
    let get = || {
        let request = Request::get("/api/v1/nodes/n");
        let request = request.extension(AnswerWithin(Duration::from_millis(900)));
        client.request_text(request.body(Vec::new()).expect("a request"))
    };
    get().await.expect("an answer");
    let (one, other) = tokio::join!(get(), get());
    one.and(other).expect("their turns come after 1 and 2 s, later than the limit");
    server.hold(true);
    let held = tokio::time::timeout(PATIENCE, get()).await.expect("in time");
    let error = format!("{:?}", held.expect_err("no answer"));
    assert!(error.contains("no answer within"), "{error}");
}

#[tokio::test]
async fn a_request_that_gets_no_answer_ends_in_time() {
    let server = Server::start(Authority::new()).await;
    let timeout = Some(Duration::from_millis(200));
    let nodes: Api<Node> =
        Api::all(client(&server, ClientOptions { timeout, ..Default::default() }));
    server.hold(true);
    let error = nodes.get("n").await.expect_err("no answer");
    assert!(format!("{error:?}").contains("no answer within"), "{error:?}");
    server.hold(false);
    nodes.get("n").await.expect("an answer");
}

#[tokio::test]
async fn a_server_of_a_stranger_is_refused() {
    let server = Server::start(Authority::new()).await;
    std::fs::write(server.path("ca.crt"), Authority::new().pem()).expect("written");
    let nodes: Api<Node> = Api::all(client(&server, ClientOptions::default()));
    let error = format!("{:?}", nodes.get("n").await.expect_err("not to be trusted"));
    assert!(error.contains("InvalidCertificate"), "{error}");
    server.write_kubeconfig_insecure();
    let nodes: Api<Node> = Api::all(client(&server, ClientOptions::default()));
    nodes.get("n").await.expect("no certificate is verified");
}

#[tokio::test]
async fn http1_does_as_well() {
    let server = Arc::new(Server::start_http1(Authority::new()).await);
    let nodes: Api<Node> = Api::all(client(&server, ClientOptions::default()));
    for _ in 0..3 {
        nodes.get("n").await.expect("an answer");
    }
    assert_eq!(server.last().path, "/api/v1/nodes/n");
}

#[tokio::test]
async fn connections_are_shared_again_after_a_server_returns_to_http2() {
    let server = Server::start_http1_first(Authority::new()).await;
    let nodes: Api<Node> = Api::all(client(&server, ClientOptions::default()));
    for _ in 0..20 {
        nodes.get("n").await.expect("an answer");
    }
    assert_eq!(server.connections(), 2);
}

/// The observed sizes: of sent bodies, where known, and of read bodies.
#[derive(Default)]
struct BodySizes {
    sent: Mutex<Vec<Option<u64>>>,
    received: Mutex<Vec<u64>>,
}

impl Observer for BodySizes {
    fn sent(&self, sent: Sent<'_>) {
        self.sent.lock().expect("not poisoned").push(sent.bytes);
    }

    fn received(&self, _: &str, _: &str, bytes: u64) {
        self.received.lock().expect("not poisoned").push(bytes);
    }

    fn limited(&self, _: &str, _: &str, _: Duration) {}

    fn plugin_ran(&self, _: PluginRun) {}
}

/// Sends requests of known sizes and reads answers to their ends, or not.
async fn counts_sizes(server: Server) {
    let sizes = Arc::new(BodySizes::default());
    let observer = Some(Arc::clone(&sizes) as Arc<dyn Observer>);
    let client = client(&server, ClientOptions { observer, ..Default::default() });
    let take = || {
        let sent = std::mem::take(&mut *sizes.sent.lock().expect("not poisoned"));
        (sent, std::mem::take(&mut *sizes.received.lock().expect("not poisoned")))
    };
    let node = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#;
    let read = node.len() as u64;
    let request = |body: &str| {
        let request = Request::put("/api/v1/nodes/n").body(body.as_bytes().to_vec());
        request.expect("a request").map(kube::client::Body::from)
    };
    let answer = client.send(request("12345")).await.expect("an answer");
    assert_eq!(take(), (vec![Some(5)], vec![]), "nothing was read yet");
    let text = answer.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!((text.len() as u64, take()), (read, (vec![], vec![read])));
    // A request that is repeated after a while is sent twice, and one answer is read.
    server.refuse_once(429, Some("0"));
    let answer = client.send(request("123")).await.expect("asked again");
    answer.into_body().collect().await.expect("a body");
    assert_eq!(take(), (vec![Some(3), Some(3)], vec![read]));
    // An error answer without a body.
    server.refuse_once(404, None);
    let answer = client.send(request("")).await.expect("an answer");
    answer.into_body().collect().await.expect("a body");
    assert_eq!(take(), (vec![Some(0)], vec![0]));
    // An answer that is not read to its end.
    drop(client.send(request("1")).await.expect("an answer"));
    assert_eq!(take(), (vec![Some(1)], vec![]));
    drop(watching(&client).await);
    assert_eq!(take(), (vec![None], vec![]), "a watch has no size");
}

#[tokio::test]
async fn request_and_answer_sizes_are_reported() {
    counts_sizes(Server::start(Authority::new()).await).await;
    counts_sizes(Server::start_http1(Authority::new()).await).await;
}
