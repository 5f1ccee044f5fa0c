//! Attempts against real servers on the loopback interface and commands in a fake runtime.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::prelude::{BASE64_STANDARD, Engine};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pintle_cri::Method;
use pintle_cri::fake::ExecAnswer;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::{self, pki_types::PrivatePkcs8KeyDer};

use super::super::testing::{self, HealthServer, ProbedRuntime};
use super::*;

/// For attempts that end by themselves: far beyond the time that they need.
const LONG: Duration = Duration::from_secs(30);
/// For attempts that are to be given up.
const SHORT: Duration = Duration::from_millis(100);

/// An HTTP server with one answer for each request in turn; it holds the connection after the last
/// byte when `holds`. Returns its port and the received requests.
async fn server(answers: Vec<String>, holds: bool) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    tokio::spawn(async move {
        let mut held = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.expect("a connection comes");
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n")
                && stream.read_buf(&mut request).await.unwrap_or(0) > 0
            {}
            heard
                .lock()
                .expect("no test panics with it")
                .push(String::from_utf8_lossy(&request).into_owned());
            let _ = stream.write_all(answer.as_bytes()).await;
            if holds {
                held.push(stream);
            }
        }
        if holds {
            std::future::pending::<()>().await;
        }
    });
    (port, asked)
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

/// A port without a listener.
async fn closed_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    listener.local_addr().expect("it has an address").port()
}

async fn asks(probe: Value, limit: Duration) -> AttemptVerdict {
    let runtime = ProbedRuntime::start().await;
    let target = runtime.target(&json!({"livenessProbe": probe}));
    let probe = target.container.liveness_probe.clone().expect("it has one");
    runtime.tools().once(&target, &probe, limit).await
}

async fn gets(port: u16, limit: Duration) -> AttemptVerdict {
    asks(json!({"httpGet": {"port": port, "path": "/live?full=1"}}), limit).await
}

fn failure(verdict: AttemptVerdict) -> String {
    match verdict {
        AttemptVerdict::Failure(output) | AttemptVerdict::TimedOut(output, _) => output,
        other => panic!("not a failure: {other:?}"),
    }
}

#[tokio::test]
async fn an_http_probe_asks_as_upstream_does_and_200_is_well() {
    let (port, asked) = server(vec![answer("200 OK", "", "fine")], false).await;
    assert_eq!(gets(port, LONG).await, AttemptVerdict::Success);
    let asked = asked.lock().expect("no test panics with it")[0].clone();
    let expected = format!(
        "GET /live?full=1 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: kube-probe/1.36\r\n\
         Accept: */*\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn an_http_status_from_400_on_is_a_failure_that_does_not_show_the_body() {
    let (port, _) = server(vec![answer("500 Oops", "", "secret")], false).await;
    let text = "HTTP probe failed with statuscode: 500";
    assert_eq!(gets(port, LONG).await, AttemptVerdict::Failure(text.to_owned()));
}

#[tokio::test]
async fn a_redirect_within_the_host_is_followed() {
    let moved = answer("302 Found", "Location: ready\r\n", "");
    let (port, asked) = server(vec![moved, answer("404 Not Found", "", "")], false).await;
    assert_eq!(failure(gets(port, LONG).await), "HTTP probe failed with statuscode: 404");
    let asked = asked.lock().expect("no test panics with it")[1].clone();
    assert!(asked.starts_with("GET /ready HTTP/1.1\r\n"), "{asked}");
    let referer = format!("\r\nReferer: http://127.0.0.1:{port}/live?full=1\r\n");
    assert!(asked.contains(&referer), "{asked}");
}

#[tokio::test]
async fn a_redirect_to_another_host_is_a_warning() {
    let moved = answer("301 Moved", "Location: http://elsewhere.example/\r\n", "over there");
    let (port, asked) = server(vec![moved], false).await;
    let text = "Probe terminated redirects, Response body: over there";
    assert_eq!(gets(port, LONG).await, AttemptVerdict::Warning(text.to_owned()));
    assert_eq!(asked.lock().expect("no test panics with it").len(), 1);
}

#[tokio::test]
async fn redirects_without_end_are_a_failure_after_ten_requests() {
    let moved = answer("302 Found", "Location: /again\r\n", "");
    let (port, asked) = server(vec![moved; 12], false).await;
    assert!(failure(gets(port, LONG).await).ends_with(": stopped after 10 redirects"));
    assert_eq!(asked.lock().expect("no test panics with it").len(), 10);
}

#[tokio::test]
async fn refused_connection_is_reported_in_upstreams_wording() {
    let port = closed_port().await;
    let expected = format!(
        "Get \"http://127.0.0.1:{port}/live?full=1\": dial tcp 127.0.0.1:{port}: connect: \
         connection refused"
    );
    assert_eq!(failure(gets(port, LONG).await), expected);
    let tcp = asks(json!({"tcpSocket": {"port": port}}), LONG).await;
    let expected = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(failure(tcp), expected);
}

#[tokio::test]
async fn a_server_that_does_not_speak_http_is_a_failure() {
    let (port, _) = server(vec![String::new()], false).await;
    let text = failure(gets(port, LONG).await);
    assert!(text.ends_with(": EOF") || text.ends_with("connection reset by peer"), "{text}");
    let (port, _) = server(vec!["SSH-2.0-x\r\n\r\n".to_owned()], false).await;
    let text = failure(gets(port, LONG).await);
    assert!(text.contains(": net/http: HTTP/1.x transport connection broken: "), "{text}");
}

/// A self-made key and certificate for "test", for these tests only; DER in base64.
const KEY: &str = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg/TvcnMhIJizuxhSu9mQfj2/l+rTX\
g3S77hVdhcdEPwmhRANCAATUlwg42l2z2FP6ohCSmPc4pw06MUaX9SYsKzSfuyhHenAFZuvwBLFN7F2HBlpG+ts7DDXhQfWi\
h6rbFZL24bsi";
const CERTIFICATE: &str = "MIIBdjCCARugAwIBAgIUa4e2M65IKK2wcWzyJQqqdEy9AsswCgYIKoZIzj0EAwIwDzENMAsG\
A1UEAwwEdGVzdDAgFw0yNjExMjExMzI4MDZaGA8yMTI2MTAyODEzMjgwNlowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49\
AgEGCCqGSM49AwEHA0IABNSXCDjaXbPYU/qiEJKY9zinDToxRpf1JiwrNJ+7KEd6cAVm6/AEsU3sXYcGWkb62zsMNeFB9aKH\
qtsVkvbhuyKjUzBRMB0GA1UdDgQWBBS1fCUoA0BpklKWC5MBthgRqcBUljAfBgNVHSMEGDAWgBS1fCUoA0BpklKWC5MBthgR\
qcBUljAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0kAMEYCIQDZI3UpIIozKStGXMZR4F+wxFAvsJv04NijsMZNAUns\
DQIhAPoGVLsftZJNa39QavRR4EbIuqjmbAZ6laWvxRFu4EIa";

fn der(text: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(text).expect("it is base64")
}

fn tls_server() -> rustls::ConfigBuilder<rustls::ServerConfig, rustls::server::WantsServerCert> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the default versions are supported")
        .with_no_client_auth()
}

#[tokio::test]
async fn an_https_probe_takes_any_certificate() {
    let key = PrivatePkcs8KeyDer::from(der(KEY)).into();
    let config = tls_server()
        .with_single_cert(vec![der(CERTIFICATE).into()], key)
        .expect("the key is the certificate's");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection comes");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let mut stream = acceptor.accept(stream).await.expect("it speaks TLS");
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(answer("418 Teapot", "", "").as_bytes()).await;
        let _ = stream.shutdown().await;
    });
    let probe = json!({"httpGet": {"port": port, "scheme": "HTTPS"}});
    assert_eq!(failure(asks(probe, LONG).await), "HTTP probe failed with statuscode: 418");
}

/// A key of a curve that ring lacks; its signatures are not verified.
#[derive(Clone, Debug)]
struct P521;

impl rustls::sign::SigningKey for P521 {
    fn choose_scheme(
        &self,
        offered: &[rustls::SignatureScheme],
    ) -> Option<Box<dyn rustls::sign::Signer>> {
        offered.contains(&rustls::sign::Signer::scheme(self)).then(|| Box::new(self.clone()) as _)
    }

    fn algorithm(&self) -> rustls::SignatureAlgorithm {
        rustls::SignatureAlgorithm::ECDSA
    }
}

impl rustls::sign::Signer for P521 {
    fn sign(&self, _: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        Ok(vec![0; 139])
    }

    fn scheme(&self) -> rustls::SignatureScheme {
        rustls::SignatureScheme::ECDSA_NISTP521_SHA512
    }
}

#[tokio::test]
async fn https_probe_negotiates_http2_and_accepts_any_certificate_key() {
    let pair = rustls::sign::CertifiedKey::new(vec![der(CERTIFICATE).into()], Arc::new(P521));
    let mut config =
        tls_server().with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(pair)));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection comes");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let stream = acceptor.accept(stream).await.expect("it speaks TLS");
        let reply = hyper::service::service_fn(|request: hyper::Request<_>| {
            let _ = tell.send((request.uri().to_string(), request.headers().len()));
            let body = http_body_util::Full::new(hyper::body::Bytes::from(vec![b'x'; 1 << 20]));
            let answer = hyper::Response::builder().status(418).body(body);
            async { answer }
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(TokioIo::new(stream), reply).await;
    });
    let named = json!([{"name": "Host", "value": "shop.example"}]);
    let probe = json!({"httpGet":
        {"port": port, "scheme": "HTTPS", "path": "/live?x", "httpHeaders": named}});
    assert_eq!(failure(asks(probe, LONG).await), "HTTP probe failed with statuscode: 418");
    let asked = ("https://shop.example/live?x".to_owned(), 2);
    assert_eq!(told.recv().await, Some(asked), "its agent and what it accepts are all headers");
}

#[tokio::test]
async fn https_probe_of_a_server_without_tls_reports_the_http_response() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection comes");
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        std::future::pending::<()>().await;
    });
    let text = failure(asks(json!({"httpGet": {"port": port, "scheme": "HTTPS"}}), LONG).await);
    assert!(text.ends_with(": http: server gave HTTP response to HTTPS client"), "{text}");
}

#[tokio::test]
async fn silent_server_is_a_probe_failure_with_upstreams_timeout_message() {
    let (port, _) = server(vec![String::new()], true).await;
    let url = format!("http://127.0.0.1:{port}/live?full=1");
    let text = format!(
        "Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    );
    assert_eq!(failure(gets(port, SHORT).await), text);
}

#[tokio::test]
async fn where_the_time_went_is_in_the_timeline_and_not_in_the_event() {
    let runtime = ProbedRuntime::start().await;
    let (port, _) = server(vec![String::new(); 2], true).await;
    let target = runtime.target(&json!({"livenessProbe": {"httpGet": {"port": port}}}));
    let tools = runtime.tools();
    for _ in 0..2 {
        let outcome = tools.attempt(&target, ProbeKind::Liveness, SHORT).await;
        assert_eq!(outcome, ProbeOutcome::Failure);
    }
    let entries = tools.recorder.entries(&target.uid);
    let texts: Vec<_> = entries.iter().map(|e| (&*e.what, &*e.text, e.event, e.count)).collect();
    let event = format!(
        "Liveness probe failed: Get \"http://127.0.0.1:{port}/\": context deadline exceeded \
         (Client.Timeout exceeded while awaiting headers)"
    );
    assert_eq!(texts[0], ("Unhealthy", &*event, true, 2));
    let (what, text, is_event, _) = texts[1];
    assert_eq!((what, is_event), ("ProbeTimedOut", false));
    assert!(text.starts_with("Liveness probe: connected within "), "{text}");
    assert!(text.contains("then no answer for 100ms"), "{text}");
}

/// A server that answers a request with these bytes, and with others again and again for as long as
/// the client reads; counts them.
async fn endless(first: &'static [u8], again: &'static [u8], pause: Duration) -> (u16, Count) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    let count = Count::default();
    let counted = count.clone();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection comes");
        let _ = stream.read(&mut [0; 1024]).await;
        let mut next = first;
        while stream.write_all(next).await.is_ok() {
            counted.0.fetch_add(next.len(), Ordering::SeqCst);
            next = again;
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        counted.1.notify_one();
    });
    (port, count)
}

/// Bytes that a server got rid of, and that its client hung up.
#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>, Arc<tokio::sync::Notify>);

impl Count {
    /// Bytes written until the client hung up; the kernel's own buffers are part of them.
    async fn at_the_end(&self) -> usize {
        tokio::time::timeout(LONG, self.1.notified()).await.expect("the client hangs up");
        self.0.load(Ordering::SeqCst)
    }
}

/// Far above the kernel's buffers between two sockets, far below the amount that a server could
/// send.
const SENT_MAX: usize = 24 << 20;

#[tokio::test]
async fn endless_response_is_neither_awaited_nor_buffered() {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\n";
    const HEADER: &[u8] = &[b'h'; 16 * 1024];
    const BODY: &[u8] = &[b'x'; 64 * 1024];
    // One header that never ends: a failure, long before the limit.
    let (port, count) = endless(HEAD, HEADER, Duration::ZERO).await;
    let text = failure(gets(port, LONG).await);
    assert!(text.contains("response headers exceeded 65536 bytes"), "{text}");
    assert!(count.at_the_end().await < SENT_MAX);
    // Headers without end.
    let (port, count) = endless(HEAD, b"a: b\r\n", Duration::ZERO).await;
    failure(gets(port, LONG).await);
    assert!(count.at_the_end().await < SENT_MAX);
    // A head and then gigabytes: well, after the first bytes.
    let first = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
    let (port, count) = endless(first, BODY, Duration::ZERO).await;
    assert_eq!(gets(port, LONG).await, AttemptVerdict::Success);
    assert!(count.at_the_end().await < SENT_MAX);
    // A byte now and then: over with the limit.
    let (port, count) = endless(HEAD, b"h", Duration::from_millis(5)).await;
    let text = failure(gets(port, SHORT).await);
    assert!(text.ends_with("(Client.Timeout exceeded while awaiting headers)"), "{text}");
    count.at_the_end().await;
}

#[tokio::test]
async fn a_grpc_server_that_never_answers_is_hung_up_on() {
    let settings = b"\0\0\0\x04\0\0\0\0\0";
    for first in [&b""[..], settings, b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection comes");
            stream.write_all(first).await.expect("it is taken");
            while stream.read(&mut [0; 1024]).await.is_ok_and(|length| length > 0) {}
        });
        failure(asks(json!({"grpc": {"port": port}}), SHORT).await);
        tokio::time::timeout(LONG, served).await.expect("the client hangs up").expect("it ran");
    }
}

#[tokio::test]
async fn unknown_host_is_a_failure_within_the_time_limit() {
    let probe = json!({"tcpSocket": {"port": 80, "host": "nobody.invalid"}});
    let text = failure(asks(probe, SHORT).await);
    assert!(text.starts_with("dial tcp"), "{text}");
}

#[tokio::test]
async fn exec_probe_output_is_truncated_to_10_kib() {
    let runtime = ProbedRuntime::start().await;
    let loud = "x".repeat(4 << 20);
    runtime.fake.script_exec("", "loud", ExecAnswer::exit(1, &loud));
    let target = runtime.target(&json!({"livenessProbe": {"exec": {"command": ["loud"]}}}));
    let probe = target.container.liveness_probe.clone().expect("it has one");
    let verdict = runtime.tools().once(&target, &probe, LONG).await;
    assert_eq!(verdict, AttemptVerdict::Failure(loud[..10 * 1024].to_owned()));
}

#[tokio::test]
async fn a_body_that_does_not_end_or_breaks_off_counts_as_neither() {
    let part = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart".to_owned();
    let (port, _) = server(vec![part.clone()], true).await;
    assert!(matches!(gets(port, SHORT).await, AttemptVerdict::Error { state: "failure", .. }));
    let (port, _) = server(vec![part], false).await;
    assert!(matches!(gets(port, LONG).await, AttemptVerdict::Error { state: "failure", .. }));
}

#[tokio::test]
async fn only_the_first_bytes_of_a_long_body_are_read() {
    let long = answer("200 OK", "", &"x".repeat(1 << 20));
    let (port, _) = server(vec![long], true).await;
    assert_eq!(gets(port, LONG).await, AttemptVerdict::Success);
}

#[tokio::test]
async fn tcp_probe_succeeds_once_connected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    let named = json!({"tcpSocket": {"port": port, "host": "localhost"}});
    assert_eq!(asks(named, LONG).await, AttemptVerdict::Success);
    assert_eq!(asks(json!({"tcpSocket": {"port": port}}), LONG).await, AttemptVerdict::Success);
    let (mut stream, _) = listener.accept().await.expect("it was connected");
    assert_eq!(stream.read(&mut [0; 8]).await.expect("an orderly end"), 0);
}

#[tokio::test]
async fn grpc_probe_succeeds_only_when_its_service_is_serving() {
    let port = testing::health(HealthServer::Says(vec![("", 1), ("shop", 2)])).await;
    let ask = |service: &str| asks(json!({"grpc": {"port": port, "service": service}}), LONG);
    assert_eq!(ask("").await, AttemptVerdict::Success);
    let text = "service unhealthy (responded with \"NOT_SERVING\")";
    assert_eq!(failure(ask("shop").await), text);
    let text = "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service";
    assert_eq!(failure(ask("other").await), text);
}

#[tokio::test]
async fn grpc_probe_redials_until_its_server_responds() {
    let health = testing::health(HealthServer::Says(vec![("", 1)])).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    let served = tokio::spawn(async move {
        // As a proxy with a server that has not started yet.
        drop(listener.accept().await.expect("a connection comes"));
        let (mut client, _) = listener.accept().await.expect("another one comes");
        let mut server = TcpStream::connect(("127.0.0.1", health)).await.expect("it listens");
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    });
    assert_eq!(asks(json!({"grpc": {"port": port}}), LONG).await, AttemptVerdict::Success);
    served.abort();
}

#[tokio::test]
async fn a_grpc_server_without_the_protocol_or_without_an_answer_is_a_failure() {
    let port = testing::health(HealthServer::Lacks).await;
    let text = failure(asks(json!({"grpc": {"port": port}}), LONG).await);
    assert!(text.starts_with("error: this server does not implement the grpc health"), "{text}");
    let port = testing::health(HealthServer::Hangs).await;
    let text = failure(asks(json!({"grpc": {"port": port}}), SHORT).await);
    assert!(text.starts_with("timeout: health rpc did not complete within 0s"), "{text}");
    let port = closed_port().await;
    let text = failure(asks(json!({"grpc": {"port": port}}), SHORT).await);
    let start = format!("timeout: failed to connect service \"127.0.0.1:{port}\" within 0s: ");
    assert!(text.starts_with(&start), "{text}");
}

#[tokio::test]
async fn exec_probe_succeeds_only_on_exit_code_0() {
    let runtime = ProbedRuntime::start().await;
    runtime.fake.script_exec("", "cat /ready", ExecAnswer::exit(1, "not yet"));
    runtime.fake.script_exec("", "sleep", ExecAnswer::takes(LONG));
    for (command, limit, expected) in [
        (json!(["true"]), LONG, AttemptVerdict::Success),
        (json!(["cat", "/ready"]), LONG, AttemptVerdict::Failure("not yet".to_owned())),
        (
            json!(["sleep", "30"]),
            Duration::from_secs(1),
            AttemptVerdict::Failure(
                "command timed out: \"sleep 30\" timed out after 1s".to_owned(),
            ),
        ),
    ] {
        let target = runtime.target(&json!({"livenessProbe": {"exec": {"command": command}}}));
        let probe = target.container.liveness_probe.clone().expect("it has one");
        assert_eq!(runtime.tools().once(&target, &probe, limit).await, expected);
    }
}

#[tokio::test]
async fn an_internal_error_is_tried_three_times_and_counts_as_neither() {
    let runtime = ProbedRuntime::start().await;
    runtime.fake.script_exec("", "nope", ExecAnswer::error("nope: not found"));
    let target = runtime.target(&json!({"livenessProbe": {"exec": {"command": ["nope"]}}}));
    let tools = runtime.tools();
    assert_eq!(tools.attempt(&target, ProbeKind::Liveness, LONG).await, ProbeOutcome::Unknown);
    assert_eq!(runtime.fake.calls_of(Method::ExecSync, "").len(), 3);
    let events = tools.recorder.entries(&target.uid);
    let text = "Liveness probe errored and resulted in unknown state: rpc error: code = Unknown \
                desc = nope: not found";
    assert_eq!((&*events[0].what, &*events[0].text), ("Unhealthy", text));
    assert_eq!(events.len(), 1);
}

#[tokio::test]
async fn failed_attempt_is_not_retried_and_its_event_names_probe_and_reason() {
    let runtime = ProbedRuntime::start().await;
    runtime.fake.script_exec("", "check", ExecAnswer::exit(2, "bad"));
    let probe = json!({"exec": {"command": ["check"]}});
    let target = runtime.target(&json!({"startupProbe": probe, "readinessProbe": probe}));
    let tools = runtime.tools();
    for kind in [ProbeKind::Startup, ProbeKind::Readiness] {
        assert_eq!(tools.attempt(&target, kind, LONG).await, ProbeOutcome::Failure);
    }
    assert_eq!(runtime.fake.calls_of(Method::ExecSync, "").len(), 2);
    let events = tools.recorder.entries(&target.uid);
    let texts: Vec<_> = events.iter().map(|e| (&*e.what, &*e.text, e.warning)).collect();
    let expected = [
        ("Unhealthy", "Startup probe failed: bad", true),
        ("Unhealthy", "Readiness probe failed: bad", true),
    ];
    assert_eq!(texts, expected);
    assert_eq!(events[0].container.as_deref(), Some("c"));
}

#[tokio::test]
async fn a_pod_without_an_address_is_not_asked_at_the_nodes() {
    let runtime = ProbedRuntime::start().await;
    let mut target = runtime.target(&json!({"livenessProbe": {"tcpSocket": {"port": 80}}}));
    target.host = None;
    let probe = target.container.liveness_probe.clone().expect("it has one");
    let verdict = runtime.tools().once(&target, &probe, LONG).await;
    assert_eq!(verdict, AttemptVerdict::unknown("the pod has no address yet".to_owned()));
}
