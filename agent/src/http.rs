//! A small HTTP client for what runs in pods: probes and hooks. One request, one connection.
//!
//! No keep-alive, no proxy, no compression, TLS without verification (what a pod serves is
//! self-signed as a rule, and the kubelet does not verify it either). The body is read up to
//! `body_bytes_max` and the rest dropped. Redirects to the same host are followed, up to
//! `REQUESTS_MAX` requests in all; one to another host is returned as it is. No time limit here:
//! callers have one, and see by a `Watch` how far a request came within it.
// k8s: pkg/probe/http/http.go, pkg/kubelet/lifecycle/handlers.go

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{HOST, HeaderName, HeaderValue, LOCATION};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::rustls;

/// Requests made before giving up on redirects.
// k8s: pkg/probe/http/http.go RedirectChecker
const REQUESTS_MAX: usize = 10;
/// Statuses whose `Location` is followed.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// A GET request.
#[derive(Clone, Debug, Default)]
pub struct Get {
    /// HTTPS.
    pub tls: bool,
    /// Address or name to connect to.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path with query, with or without the leading slash.
    pub path: String,
    /// Headers; a `Host` among them replaces the default one.
    pub headers: Vec<(String, String)>,
    /// Longest body that is kept.
    pub body_bytes_max: usize,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// The first bytes of the body.
    pub body: Vec<u8>,
    /// Status text, for messages.
    pub reason: &'static str,
    /// Why the body ended early; empty when it did not.
    pub body_error: String,
}

/// How far a request has come, for a caller that gives it up.
#[derive(Debug, Default)]
pub struct Watch {
    /// When the last connection stood.
    pub connected: Cell<Option<Instant>>,
    /// When the last answer's status and headers were there.
    pub answered: Cell<Option<Instant>>,
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is no URL.
    #[error("bad URL {url:?}")]
    Url {
        /// The URL.
        url: String,
    },
    /// No connection.
    #[error("dial tcp {address}")]
    Connect {
        /// Where to.
        address: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// No TLS session.
    #[error("TLS handshake with {address}")]
    Tls {
        /// Where to.
        address: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The connection broke or its content is not HTTP.
    #[error("Get {url:?}")]
    Http {
        /// The URL.
        url: String,
        /// Cause.
        #[source]
        source: hyper::Error,
    },
    /// Too many redirects.
    #[error("stopped after {REQUESTS_MAX} redirects")]
    Redirects,
}

impl Error {
    /// True when the peer answered a TLS handshake with something that is not TLS.
    pub fn is_plain_text_answer(&self) -> bool {
        let Self::Tls { source, .. } = self else { return false };
        let inner = source.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
        matches!(inner, Some(rustls::Error::InvalidMessage(_)))
    }

    /// The whole chain in one line.
    pub fn line(&self) -> String {
        let mut line = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            line = format!("{line}: {error}");
            cause = error.source();
        }
        line
    }
}

/// Sends the request, following redirects to the same host.
pub async fn get(request: &Get) -> Result<Answer, Error> {
    get_watched(request, &Watch::default()).await
}

/// As `get`; `watch` shows how far it has come.
pub async fn get_watched(request: &Get, watch: &Watch) -> Result<Answer, Error> {
    let mut request = request.clone();
    for _ in 0..REQUESTS_MAX {
        let (answer, location) = once(&request, watch).await?;
        let target = location.filter(|_| REDIRECTS.contains(&answer.status));
        let Some(target) = target.and_then(|to| same_host(&request, &to)) else {
            return Ok(answer);
        };
        request = target;
    }
    Err(Error::Redirects)
}

/// The request to a redirect's target, if it stays with the host.
fn same_host(from: &Get, location: &str) -> Option<Get> {
    let absolute = match location {
        _ if location.contains("://") => location.to_owned(),
        _ if location.starts_with("//") => {
            format!("{}:{location}", if from.tls { "https" } else { "http" })
        }
        _ => return Some(Get { path: resolve(&from.path, location), ..from.clone() }),
    };
    let uri: Uri = absolute.parse().ok()?;
    if uri.host()?.trim_matches(['[', ']']) != from.host {
        return None;
    }
    let tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let path = uri.path_and_query().map_or("/", |p| p.as_str()).to_owned();
    let mut target = Get { tls, port, path, ..from.clone() };
    // The location names its host in full: the name that the first request was given is over.
    target.headers.retain(|(name, _)| !name.eq_ignore_ascii_case(HOST.as_str()));
    Some(target)
}

/// A location without a host, seen from the path that answered with it.
fn resolve(from: &str, location: &str) -> String {
    let location = location.split('#').next().unwrap_or_default();
    let own = from.split(['?', '#']).next().unwrap_or_default();
    match location.chars().next() {
        None => from.to_owned(),
        Some('/') => location.to_owned(),
        Some('?') => format!("{own}{location}"),
        Some(_) => {
            let folder = own.rfind('/').map_or("/", |end| &own[..=end]);
            format!("{folder}{location}")
        }
    }
}

async fn once(request: &Get, watch: &Watch) -> Result<(Answer, Option<String>), Error> {
    let address = authority(&request.host, request.port);
    let scheme = if request.tls { "https" } else { "http" };
    let slash = if request.path.starts_with('/') { "" } else { "/" };
    let url = format!("{scheme}://{address}{slash}{}", request.path);
    let uri: Uri = url.parse().map_err(|_| Error::Url { url: url.clone() })?;
    let socket = TcpStream::connect((request.host.as_str(), request.port))
        .await
        .map_err(|source| Error::Connect { address: address.clone(), source })?;
    watch.connected.set(Some(Instant::now()));
    watch.answered.set(None);
    let _ = socket.set_nodelay(true);
    let wire = build(request, &uri, &address).ok_or(Error::Url { url: url.clone() })?;
    let limit = request.body_bytes_max;
    if request.tls {
        let name = rustls::pki_types::ServerName::try_from(request.host.clone())
            .map_err(|_| Error::Url { url: url.clone() })?;
        let connector = tokio_rustls::TlsConnector::from(insecure_tls());
        let stream = connector
            .connect(name, socket)
            .await
            .map_err(|source| Error::Tls { address: address.clone(), source })?;
        return exchange(TokioIo::new(stream), wire, limit, watch)
            .await
            .map_err(|source| Error::Http { url, source });
    }
    let exchanged = exchange(TokioIo::new(socket), wire, limit, watch).await;
    exchanged.map_err(|source| Error::Http { url, source })
}

/// `host:port`, an IPv6 address in brackets.
pub fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn build(request: &Get, uri: &Uri, address: &str) -> Option<Request<Empty<Bytes>>> {
    let target = uri.path_and_query().map_or("/", |p| p.as_str());
    let mut wire = Request::builder().method(Method::GET).uri(target);
    let headers = wire.headers_mut()?;
    headers.insert(hyper::header::CONNECTION, HeaderValue::from_static("close"));
    for (name, value) in &request.headers {
        let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value))
        else {
            continue;
        };
        headers.append(name, value);
    }
    if !headers.contains_key(HOST) {
        headers.insert(HOST, HeaderValue::try_from(address).ok()?);
    }
    wire.body(Empty::new()).ok()
}

async fn exchange<S>(
    stream: S,
    request: Request<Empty<Bytes>>,
    limit: usize,
    watch: &Watch,
) -> Result<(Answer, Option<String>), hyper::Error>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let talk = async {
        let answer = sender.send_request(request).await?;
        watch.answered.set(Some(Instant::now()));
        let status = answer.status();
        let location = answer.headers().get(LOCATION);
        let location = location.and_then(|l| l.to_str().ok()).map(str::to_owned);
        let (body, body_error) = read_body(answer.into_body(), limit).await;
        let reason = status.canonical_reason().unwrap_or_default();
        Ok((Answer { status: status.as_u16(), body, reason, body_error }, location))
    };
    tokio::pin!(talk);
    tokio::pin!(connection);
    tokio::select! {
        answer = &mut talk => answer,
        ended = &mut connection => match ended {
            // The peer may close right after its answer.
            Ok(()) => talk.await,
            Err(error) => Err(error),
        },
    }
}

/// The first bytes of a body, and why it ended early if it did.
async fn read_body(body: hyper::body::Incoming, limit: usize) -> (Vec<u8>, String) {
    let mut bytes = Vec::new();
    let mut frames = Limited::new(body, limit.saturating_add(64 * 1024));
    let mut error = String::new();
    while bytes.len() < limit {
        match frames.frame().await {
            None => break,
            Some(Ok(frame)) => bytes.extend_from_slice(frame.data_ref().map_or(&[], |d| &d[..])),
            Some(Err(cause)) => {
                error = cause.to_string();
                break;
            }
        }
    }
    bytes.truncate(limit);
    (bytes, error)
}

/// TLS that accepts any certificate, as the kubelet's probes and hooks do.
fn insecure_tls() -> Arc<rustls::ClientConfig> {
    static CONFIG: std::sync::OnceLock<Arc<rustls::ClientConfig>> = std::sync::OnceLock::new();
    let make = || {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let schemes = provider.signature_verification_algorithms.supported_schemes();
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring supports the default TLS versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(schemes)))
            .with_no_client_auth();
        Arc::new(config)
    };
    Arc::clone(CONFIG.get_or_init(make))
}

#[derive(Debug)]
struct AnyCertificate(Vec<rustls::SignatureScheme>);

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &rustls::pki_types::CertificateDer<'_>,
        _intermediates: &[rustls::pki_types::CertificateDer<'_>],
        _server_name: &rustls::pki_types::ServerName<'_>,
        _ocsp_response: &[u8],
        _now: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &rustls::pki_types::CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &rustls::pki_types::CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_is_followed_within_its_host_only() {
        let from = Get {
            host: "10.0.0.1".to_owned(),
            port: 8080,
            path: "/a/b?q=1".to_owned(),
            headers: vec![("Host".to_owned(), "shop.example".to_owned())],
            ..Get::default()
        };
        for (location, expected) in [
            ("/ready", Some((false, 8080, "/ready", true))),
            ("ready", Some((false, 8080, "/a/ready", true))),
            ("?q=2", Some((false, 8080, "/a/b?q=2", true))),
            ("/x#y", Some((false, 8080, "/x", true))),
            ("https://10.0.0.1/s", Some((true, 443, "/s", false))),
            ("http://10.0.0.1", Some((false, 80, "/", false))),
            ("//10.0.0.1:81/s", Some((false, 81, "/s", false))),
            ("http://shop.example/", None),
            ("//other/", None),
            ("http://[bad", None),
        ] {
            let got = same_host(&from, location);
            let got = got.as_ref().map(|g| (g.tls, g.port, &*g.path, !g.headers.is_empty()));
            assert_eq!(got, expected, "{location}");
        }
    }
}
