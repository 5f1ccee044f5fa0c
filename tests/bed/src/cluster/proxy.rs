//! A proxy between the agent and the API server that injects a test's faults.
//!
//! It listens beside the API server, with the API server's own certificate, and forwards requests
//! with the node's credentials: the agent needs only another address. Each connection of the agent
//! has one of its own to the API server. A test's rule chooses a [`RequestFault`] for each request;
//! `cut` and `lose_packets` affect whole connections. Injected faults are counted, so that a test
//! can check that it has broken something.

mod body;
mod tls;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, Uri, client, server};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use socket2::{SockFilter, SockRef};
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;
use xtask::cluster::Cluster;
use xtask::cluster::layout::CONTROL;

use self::body::Broken;

/// The proxy's port on the control plane's machine.
const PORT: u16 = 7443;
/// Bytes of one connection that may be on their way through the proxy, in each direction.
const BUFFER_BYTES: usize = 64 << 10;
/// The packet filter's instruction that returns how many bytes of a packet to keep.
const RETURN: u16 = 6;

/// Fault of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestFault {
    /// No fault.
    None,
    /// The API server does not see it; the answer is this status, with Retry-After in seconds.
    Refuse(u16, Option<u32>),
    /// The API server handles it, and the answer is lost.
    Lose,
    /// It is delayed before it reaches the API server.
    Slow(Duration),
    /// The answer breaks off after this number of bytes, with an error.
    Truncate(usize),
    /// The answer ends after this number of bytes, as if it were complete.
    End(usize),
    /// A watch ends in order instead of sending an event.
    Swallow,
    /// A watch sends 410 Gone in an event of type ERROR, and ends.
    Gone,
}

impl RequestFault {
    fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Refuse(..) => "refuse",
            Self::Lose => "lose",
            Self::Slow(_) => "slow",
            Self::Truncate(_) => "truncate",
            Self::End(_) => "end",
            Self::Swallow => "swallow",
            Self::Gone => "gone",
        }
    }
}

/// A request, as a rule sees it.
#[derive(Clone, Debug)]
pub struct ProxiedRequest {
    /// Its method.
    pub method: Method,
    /// Path and query.
    pub path: String,
}

impl ProxiedRequest {
    /// Returns whether it is a watch.
    pub fn is_watch(&self) -> bool {
        self.path.contains("watch=true") || self.path.contains("watch=1")
    }

    /// Returns whether it changes the status of the pod of this name.
    pub fn is_status_of(&self, pod: &str) -> bool {
        self.method == Method::PATCH && self.path.contains(&format!("/pods/{pod}/status"))
    }
}

/// How the agent's side speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2: many requests on one connection.
    Http2,
    /// HTTP/1.1: one connection for each request.
    Http1,
}

type Rule = Box<dyn FnMut(&ProxiedRequest) -> RequestFault + Send>;

/// A running proxy; it ends with the value.
pub struct Proxy {
    shared: Arc<ProxyState>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct ProxyState {
    rule: Mutex<Option<Rule>>,
    counts: Mutex<BTreeMap<&'static str, usize>>,
    lines: Mutex<Vec<watch::Sender<Line>>>,
}

/// Treatment of a connection's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Open,
    /// The agent's packets are lost and nothing is closed, as behind a router that forgot the
    /// connection.
    Lost,
    Cut,
}

impl Proxy {
    /// Starts it; requests pass unbroken.
    pub fn start(cluster: &Cluster, protocol: Protocol) -> Result<Self> {
        let acceptor = tls::acceptor(cluster, protocol)?;
        let connector = tls::connector(cluster)?;
        let rule = Mutex::new(None);
        let shared = ProxyState { rule, counts: Mutex::default(), lines: Mutex::default() };
        let shared = Arc::new(shared);
        let (end, ended) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (for_thread, cluster) = (Arc::clone(&shared), cluster.clone());
        let thread = thread::spawn(move || {
            let serve = async {
                let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await;
                let listener = match listener {
                    Ok(listener) => listener,
                    Err(error) => return drop(ready.send(Err(error))),
                };
                let _ = ready.send(Ok(()));
                let side = ConnectionState { shared: for_thread, acceptor, connector, protocol };
                tokio::select! {
                    () = accept(listener, Arc::new(side)) => {}
                    _ = ended => {}
                }
            };
            let ran = cluster.in_control_network(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(serve);
            });
            ran.expect("the control plane's machine is there");
        });
        is_ready.recv().context("the proxy ended at once")??;
        Ok(Self { shared, end: Some(end), thread: Some(thread) })
    }

    /// Address at which the agent finds it.
    pub fn server(&self) -> String {
        format!("https://{CONTROL}:{PORT}")
    }

    /// Decides from now on what happens to requests.
    pub fn on(&self, rule: impl FnMut(&ProxiedRequest) -> RequestFault + Send + 'static) {
        *locked(&self.shared.rule) = Some(Box::new(rule));
    }

    /// Lets requests pass.
    pub fn clear(&self) {
        *locked(&self.shared.rule) = None;
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.all_lines(Line::Cut);
    }

    /// All connections of now lose the agent's packets and do not end; later ones are fine.
    pub fn lose_packets(&self) {
        self.all_lines(Line::Lost);
    }

    fn all_lines(&self, line: Line) {
        let lines = locked(&self.shared.lines);
        for one in lines.iter() {
            one.send_replace(line);
        }
    }

    /// How often each fault happened.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        locked(&self.shared.counts).clone()
    }

    /// How often this fault happened.
    pub fn count(&self, fault: &RequestFault) -> usize {
        self.counts().get(fault.name()).copied().unwrap_or(0)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// State that every connection uses.
struct ConnectionState {
    shared: Arc<ProxyState>,
    acceptor: TlsAcceptor,
    connector: tls::Upstream,
    protocol: Protocol,
}

async fn accept(listener: TcpListener, side: Arc<ConnectionState>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (line, state) = watch::channel(Line::Open);
        {
            let mut lines = locked(&side.shared.lines);
            lines.retain(|one| !one.is_closed());
            lines.push(line);
        }
        let (outer, inner) = duplex(BUFFER_BYTES);
        let pumped = tokio::spawn(pump(stream, outer, state));
        let side = Arc::clone(&side);
        tokio::spawn(async move {
            // A closed connection of the agent, or a missing API server, is no error of the proxy.
            let _ = connection(inner, side).await;
            pumped.abort();
        });
    }
}

/// Passes bytes on while the line is open.
async fn pump(mut stream: TcpStream, mut inner: DuplexStream, mut line: watch::Receiver<Line>) {
    {
        let copy = copy_bidirectional(&mut stream, &mut inner);
        tokio::select! {
            _ = copy => return,
            _ = line.wait_for(|line| *line != Line::Open) => {}
        }
    }
    if *line.borrow() == Line::Lost {
        let nothing = [SockFilter::new(RETURN, 0, 0, 0)];
        SockRef::from(&stream).attach_filter(&nothing).expect("a filter");
    }
    // Both sockets stay open until the line is cut or the proxy ends.
    let _ = line.wait_for(|line| *line == Line::Cut).await;
}

/// One connection of the agent, with its own to the API server.
async fn connection(inner: DuplexStream, side: Arc<ConnectionState>) -> Result<()> {
    let downstream = TokioIo::new(side.acceptor.accept(inner).await?);
    let upstream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, 6443))).await?;
    let upstream = TokioIo::new(side.connector.connect(upstream).await?);
    let (sender, driver) = client::conn::http2::handshake(TokioExecutor::new(), upstream).await?;
    let driver = tokio::spawn(driver);
    let shared = Arc::clone(&side.shared);
    let service = service_fn(move |request| {
        let (sender, shared) = (sender.clone(), Arc::clone(&shared));
        async move { Ok::<_, Infallible>(answer(request, sender, shared).await) }
    });
    let served = match side.protocol {
        Protocol::Http2 => {
            let server = server::conn::http2::Builder::new(TokioExecutor::new());
            server.serve_connection(downstream, service).await
        }
        Protocol::Http1 => {
            server::conn::http1::Builder::new().serve_connection(downstream, service).await
        }
    };
    driver.abort();
    Ok(served?)
}

async fn answer(
    request: Request<Incoming>,
    sender: SendRequest<Incoming>,
    shared: Arc<ProxyState>,
) -> Response<Broken> {
    let path = request.uri().path_and_query().map_or("/", |p| p.as_str()).to_owned();
    let seen = ProxiedRequest { method: request.method().clone(), path };
    let fault = locked(&shared.rule).as_mut().map_or(RequestFault::None, |rule| rule(&seen));
    *locked(&shared.counts).entry(fault.name()).or_default() += 1;
    match fault {
        RequestFault::Refuse(code, again) => return refuse(code, again),
        RequestFault::Slow(time) => tokio::time::sleep(time).await,
        _ => {}
    }
    let Ok(answer) = forward(request, &seen, sender).await else {
        return refuse(502, None);
    };
    answer.map(|body| Broken::of(body, fault))
}

async fn forward(
    mut request: Request<Incoming>,
    seen: &ProxiedRequest,
    mut sender: SendRequest<Incoming>,
) -> Result<Response<Incoming>> {
    let uri: Uri = format!("https://{CONTROL}:6443{}", seen.path).parse()?;
    *request.uri_mut() = uri;
    request.headers_mut().remove(HOST);
    *request.version_mut() = hyper::Version::HTTP_2;
    sender.ready().await?;
    Ok(sender.send_request(request).await?)
}

/// An answer as the API server words it.
fn refuse(code: u16, again: Option<u32>) -> Response<Broken> {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "broken by the test", "reason": reason, "code": code,
    });
    let mut answer = Response::builder().status(code).header(CONTENT_TYPE, "application/json");
    if let Some(seconds) = again {
        answer = answer.header(RETRY_AFTER, seconds);
    }
    answer.body(Broken::whole(status.to_string())).expect("a good answer")
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
