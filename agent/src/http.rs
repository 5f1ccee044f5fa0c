//! A small HTTP client for what runs in pods: probes and hooks. One request, one connection.
//!
//! No keep-alive, no proxy, no compression, TLS without verification (what a pod serves is
//! self-signed as a rule, and the kubelet does not verify it either). The body is read up to
//! `body_bytes_max` and the rest dropped. Redirects to the same host are followed up to
//! `REDIRECTS_MAX`; one to another host is returned as it is. No time limit here: callers have one.
// k8s: pkg/probe/http/http.go, pkg/kubelet/lifecycle/handlers.go

use std::sync::Arc;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{HOST, HeaderName, HeaderValue, LOCATION};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::rustls;

/// Redirects followed before giving up.
const REDIRECTS_MAX: usize = 10;

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
    #[error("stopped after {REDIRECTS_MAX} redirects")]
    Redirects,
}

impl Error {
    /// True when the peer answered a TLS handshake with something that is not TLS.
    pub fn is_plain_text_answer(&self) -> bool {
        matches!(self, Self::Tls { source, .. } if source.kind() == std::io::ErrorKind::InvalidData)
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
    let mut request = request.clone();
    for _ in 0..=REDIRECTS_MAX {
        let (answer, location) = once(&request).await?;
        let target = location.filter(|_| (300..400).contains(&answer.status));
        let Some(target) = target.and_then(|to| same_host(&request, &to)) else {
            return Ok(answer);
        };
        request = target;
    }
    Err(Error::Redirects)
}

/// The request to a redirect's target, if it stays with the host.
fn same_host(from: &Get, location: &str) -> Option<Get> {
    let uri: Uri = location.parse().ok()?;
    let path = uri.path_and_query().map_or("/", |p| p.as_str()).to_owned();
    let Some(host) = uri.host() else { return Some(Get { path, ..from.clone() }) };
    if host.trim_matches(['[', ']']) != from.host {
        return None;
    }
    let tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    Some(Get { tls, port, path, ..from.clone() })
}

async fn once(request: &Get) -> Result<(Answer, Option<String>), Error> {
    let address = authority(&request.host, request.port);
    let scheme = if request.tls { "https" } else { "http" };
    let slash = if request.path.starts_with('/') { "" } else { "/" };
    let url = format!("{scheme}://{address}{slash}{}", request.path);
    let uri: Uri = url.parse().map_err(|_| Error::Url { url: url.clone() })?;
    let socket = TcpStream::connect((request.host.as_str(), request.port))
        .await
        .map_err(|source| Error::Connect { address: address.clone(), source })?;
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
        return exchange(TokioIo::new(stream), wire, limit)
            .await
            .map_err(|source| Error::Http { url, source });
    }
    exchange(TokioIo::new(socket), wire, limit).await.map_err(|source| Error::Http { url, source })
}

fn authority(host: &str, port: u16) -> String {
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
) -> Result<(Answer, Option<String>), hyper::Error>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let talk = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let location = answer.headers().get(LOCATION);
        let location = location.and_then(|l| l.to_str().ok()).map(str::to_owned);
        let mut body = Vec::new();
        let mut frames = Limited::new(answer.into_body(), limit.saturating_add(64 * 1024));
        while body.len() < limit {
            let Some(Ok(frame)) = frames.frame().await else { break };
            body.extend_from_slice(frame.data_ref().map_or(&[], |d| &d[..]));
        }
        body.truncate(limit);
        let reason = status.canonical_reason().unwrap_or_default();
        Ok((Answer { status: status.as_u16(), body, reason }, location))
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
