//! Joins a client's upgraded connection to the runtime's, byte for byte.
//!
//! Effects. Input: a request to upgrade and the runtime's URL. Output: the runtime's answer; after
//! a 101 a task that copies both ways. Bounds: `BUFFER_BYTES` each way, `DIAL_WAIT` to reach the
//! runtime, `REFUSAL_BYTES_MAX` of its refusal, `HALF_CLOSED_MAX` for the runtime to finish after the
//! client has. A stream has no age, as none has with the kubelet: its two ends decide.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/proxy/upgradeaware.go tryUpgrade

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::body::{Body, Reply, whole};
use pintle_daemon::tasks;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::StreamRequest;

/// Buffer of one direction of a stream.
pub(super) const BUFFER_BYTES: usize = 16 * 1024;
/// Timeout of a connection to the runtime and its answer.
const DIAL_WAIT: Duration = Duration::from_secs(30);
/// Timeout of the runtime's answer, including the whole of a refusal.
const REFUSAL_WAIT: Duration = Duration::from_secs(60);
/// Largest refusal that is passed on.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
/// How long the runtime may go on after the client has closed its side.
const HALF_CLOSED_MAX: Duration = Duration::from_secs(10);
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Passes a request on and joins the connections.
pub(super) async fn open(wanted: StreamRequest) -> Reply {
    let StreamRequest { mut request, url, turn, peer, .. } = wanted;
    if !request.headers().contains_key(hyper::header::UPGRADE) {
        return HttpAnswer::text(500, "Upgrade request required\n").into();
    }
    let headers = forwarded(request.headers(), peer);
    let mut answer = match dial(&url, request.method().clone(), headers).await {
        Ok(answer) => answer,
        Err(error) => return HttpAnswer::text(500, format!("{error}\n")).into(),
    };
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return refused(answer).await;
    }
    let runtime = hyper::upgrade::on(&mut answer);
    let client = hyper::upgrade::on(&mut request);
    tasks::serve("stream", async move {
        turn.hold(join(client, runtime)).await;
    });
    let (mut parts, _) = answer.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, whole(Bytes::new()))
}

/// The client's headers as the runtime sees them: without its credentials, with its address.
fn forwarded(headers: &HeaderMap, peer: std::net::IpAddr) -> HeaderMap {
    let mut headers = headers.clone();
    headers.remove(AUTHORIZATION);
    headers.remove(CONTENT_LENGTH);
    let text = match headers.get(FORWARDED_FOR).and_then(|value| value.to_str().ok()) {
        Some(before) => format!("{before}, {peer}"),
        None => peer.to_string(),
    };
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.insert(FORWARDED_FOR, value);
    }
    headers
}

/// Reason why the runtime's stream cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// The runtime gave a URL that cannot be used.
    #[error("the runtime's streaming URL cannot be used: {0}")]
    Url(String),
    /// No connection.
    #[error("error dialing backend: {0}")]
    Connect(#[from] std::io::Error),
    /// No answer.
    #[error("error dialing backend: {0}")]
    Http(#[from] hyper::Error),
    /// No answer in time.
    #[error("error dialing backend: no answer within {DIAL_WAIT:?}")]
    Timeout,
}

/// Sends an upgrade request to a URL of the runtime.
pub(super) async fn dial(
    url: &str,
    method: Method,
    headers: HeaderMap,
) -> Result<Response<Incoming>, DialError> {
    timeout(DIAL_WAIT, send(url, method, headers)).await.unwrap_or(Err(DialError::Timeout))
}

async fn send(
    url: &str,
    method: Method,
    mut headers: HeaderMap,
) -> Result<Response<Incoming>, DialError> {
    let uri: Uri = url.parse().map_err(|_| DialError::Url("it is no URL".to_owned()))?;
    let is_secure = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(DialError::Url("it is neither http:// nor https://".to_owned())),
    };
    let host = uri.host().ok_or_else(|| DialError::Url("it has no host".to_owned()))?;
    let host = host.trim_matches(['[', ']']);
    let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
    let socket = TcpStream::connect((host, port)).await?;
    let _ = socket.set_nodelay(true);
    let socket: Box<dyn ProxyStream> = match is_secure {
        false => Box::new(socket),
        true => {
            // Files are read for it, and exec over TLS is rare.
            let read = blocking::run(JobPlace::serve_node("streaming TLS"), pintle_api::system_tls);
            let trust = read.await.map_err(std::io::Error::from)?.map_err(std::io::Error::other)?;
            Box::new(secured(socket, host, trust).await?)
        }
    };
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(256 * 1024)
        .handshake(TokioIo::new(socket))
        .await?;
    // Ends with the upgrade, or with the refusal's last byte.
    tasks::serve("stream connection", async move {
        let _ = timeout(REFUSAL_WAIT, connection.with_upgrades()).await;
    });
    if !headers.contains_key(HOST)
        && let Some(authority) = uri.authority()
        && let Ok(value) = HeaderValue::from_str(authority.as_str())
    {
        headers.insert(HOST, value);
    }
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = method;
    *request.uri_mut() =
        uri.path_and_query().map_or_else(|| Uri::from_static("/"), |path| Uri::from(path.clone()));
    *request.headers_mut() = headers;
    Ok(sender.send_request(request).await?)
}

trait ProxyStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ProxyStream for T {}

/// TLS to a runtime that proves its name, as upstream's proxy wants it.
async fn secured(
    socket: TcpStream,
    host: &str,
    trust: ClientConfig,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
    TlsConnector::from(Arc::new(trust)).connect(name, socket).await
}

/// Passes on that the runtime did not upgrade.
pub(super) async fn refused(answer: Response<Incoming>) -> Reply {
    let status = answer.status();
    if status.as_u16() < 400 {
        let text = format!("invalid upgrade response: status code {}\n", status.as_u16());
        return HttpAnswer::text(500, text).into();
    }
    let (parts, body) = answer.into_parts();
    let body: Body = match Limited::new(body, REFUSAL_BYTES_MAX).collect().await {
        Ok(body) => whole(body.to_bytes()),
        Err(_) => whole(Bytes::new()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    if let Some(kind) = parts.headers.get(hyper::header::CONTENT_TYPE) {
        response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind.clone());
    }
    response
}

async fn join(client: OnUpgrade, runtime: OnUpgrade) {
    let (client, runtime) = match tokio::try_join!(client, runtime) {
        Ok(both) => both,
        Err(error) => return tracing::debug!(%error, "a stream was not upgraded"),
    };
    if let Err(error) = copy(TokioIo::new(client), TokioIo::new(runtime)).await {
        tracing::debug!(%error, "a stream broke");
    }
}

/// Copies both ways until the runtime ends, or some time after the client did.
async fn copy(
    client: impl AsyncRead + AsyncWrite + Unpin,
    runtime: impl AsyncRead + AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_runtime, mut to_runtime) = tokio::io::split(runtime);
    let up = async {
        let copied = pump(&mut from_client, &mut to_runtime).await;
        let _ = to_runtime.shutdown().await;
        copied
    };
    let down = async {
        let copied = pump(&mut from_runtime, &mut to_client).await;
        let _ = to_client.shutdown().await;
        copied
    };
    tokio::pin!(up, down);
    tokio::select! {
        ended = &mut up => {
            ended?;
            timeout(HALF_CLOSED_MAX, down).await.unwrap_or(Ok(()))
        }
        ended = &mut down => ended,
    }
}

async fn pump(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<()> {
    use tokio::io::AsyncReadExt as _;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn bytes_are_copied_both_ways_and_the_runtime_may_respond_after_the_client_closed() {
        let (mut user, client) = tokio::io::duplex(64);
        let (runtime, mut container) = tokio::io::duplex(64);
        let joined = tokio::spawn(copy(client, runtime));
        user.write_all(b"question").await.expect("written");
        user.shutdown().await.expect("closed");
        let mut asked = String::new();
        container.read_to_string(&mut asked).await.expect("read to its end");
        assert_eq!(asked, "question");
        container.write_all(b"answer").await.expect("written");
        drop(container);
        let mut answer = String::new();
        user.read_to_string(&mut answer).await.expect("read");
        assert_eq!(answer, "answer");
        joined.await.expect("no panic").expect("no error");
    }

    #[tokio::test]
    async fn stalled_client_blocks_its_runtime_stream_at_a_single_buffer() {
        let (_user, client) = tokio::io::duplex(64);
        let (runtime, mut container) = tokio::io::duplex(64);
        let joined = tokio::spawn(copy(client, runtime));
        // Bytes that do not fit into the two pipes and the buffer are never taken.
        let too_much = vec![0; 2 * 64 + BUFFER_BYTES + 1];
        let more = timeout(Duration::from_millis(50), container.write_all(&too_much)).await;
        assert!(more.is_err(), "the writer waits");
        joined.abort();
    }

    #[tokio::test]
    async fn runtime_over_tls_must_have_a_trusted_certificate_of_its_name() {
        use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto::ring, pki_types};
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a pair");
        let key = pki_types::PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der());
        let provider = Arc::new(ring::default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![pair.cert.der().clone()], key.into())
            .expect("a certificate");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                if let Ok(mut stream) = acceptor.accept(socket).await {
                    let _ = stream.write_all(b"hello").await;
                    let _ = stream.shutdown().await;
                }
            }
        });
        let mut roots = RootCertStore::empty();
        roots.add(pair.cert.der().clone()).expect("a root");
        let trust = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connect = async || TcpStream::connect(address).await.expect("connected");
        let mut stream =
            secured(connect().await, "localhost", trust.clone()).await.expect("proved");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("read");
        assert_eq!(text, "hello");
        assert!(secured(connect().await, "other", trust).await.is_err(), "another name");
        let url = format!("https://localhost:{}/exec/x", address.port());
        let error = dial(&url, Method::POST, HeaderMap::new()).await.expect_err("not trusted");
        assert!(error.to_string().contains("certificate"), "{error}");
    }

    #[test]
    fn the_runtime_learns_the_address_but_not_the_credentials() {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
        headers.insert(FORWARDED_FOR, HeaderValue::from_static("192.0.2.1"));
        let sent = forwarded(&headers, "192.0.2.2".parse().expect("an address"));
        assert!(!sent.contains_key(AUTHORIZATION));
        assert_eq!(sent[FORWARDED_FOR], "192.0.2.1, 192.0.2.2");
    }
}
