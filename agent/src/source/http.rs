//! Static pods from a URL: effects of the HTTP source.
//!
//! Input: a URL and headers. Output: a `SourceReading` whenever the answer's bytes changed. A
//! failed request changes nothing: the pods of the last good answer stay. Owner: the task of `run`.
//! Bounds: one request at a time, 10 s each, 10 MiB of body. HTTPS trusts the authorities of the
//! system.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use pintle_agent_core::types::UnixNanos;
use pintle_api_types::url;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::manifest::{MANIFEST_BYTES_MAX, decode_pods};
use super::static_pod::ManifestOrigin;
use super::{Problem, ProblemCause, SourceKind, SourceReading};

/// Longest time of one request.
// k8s: pkg/kubelet/config/http.go NewSourceURL
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a URL gave no pods.
#[derive(Debug, Error)]
pub(crate) enum HttpError {
    /// No absolute `http` or `https` URL.
    #[error("{url}: {reason}")]
    Url {
        /// The URL.
        url: String,
        /// The error in it.
        reason: &'static str,
    },
    /// A header that HTTP does not allow.
    #[error("header {0:?} is invalid")]
    Header(String),
    /// No connection.
    #[error("{url}: cannot connect")]
    Connect {
        /// The URL.
        url: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// No TLS: as a rule an untrusted certificate.
    #[error("{url}: TLS failed: {source}")]
    Tls {
        /// The URL.
        url: String,
        /// Cause, shown because it has to be fixed.
        source: std::io::Error,
    },
    /// TLS cannot be used at all.
    #[error("{url}: TLS cannot be set up: {reason}")]
    NoTls {
        /// The URL.
        url: String,
        /// Cause.
        reason: String,
    },
    /// The exchange failed.
    #[error("{url}: request failed")]
    Request {
        /// The URL.
        url: String,
        /// Cause.
        #[source]
        source: hyper::Error,
    },
    /// The body could not be read, or is beyond the bound.
    #[error("{url}: cannot read body: {reason}")]
    Body {
        /// The URL.
        url: String,
        /// Cause; erased by the body's bound.
        reason: String,
    },
    /// Another status than success.
    #[error("{url}: {status}")]
    Status {
        /// The URL.
        url: String,
        /// The status.
        status: hyper::StatusCode,
    },
    /// An empty body.
    #[error("zero-length data received from {url}")]
    Empty {
        /// The URL.
        url: String,
    },
    /// No answer in time.
    #[error("{url}: no answer within {REQUEST_TIMEOUT:?}")]
    Timeout {
        /// The URL.
        url: String,
    },
}

/// A URL and the headers to send.
#[derive(Clone)]
pub(crate) struct ManifestEndpoint {
    /// As it may be shown.
    url: String,
    uri: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// For HTTPS.
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl fmt::Debug for ManifestEndpoint {
    /// Without headers, which may hold a token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.url).finish()
    }
}

/// A connection of either kind.
trait AnyConnection: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> AnyConnection for T {}

impl ManifestEndpoint {
    /// Checks a URL and headers (name and value).
    pub(crate) fn new(url: &str, headers: &[(String, String)]) -> Result<Self, HttpError> {
        Self::with_tls(url, headers, pintle_api::system_tls)
    }

    fn with_tls<E: fmt::Display>(
        url: &str,
        headers: &[(String, String)],
        tls: impl FnOnce() -> Result<ClientConfig, E>,
    ) -> Result<Self, HttpError> {
        let shown = url::without_password(url);
        let wrong = |reason| HttpError::Url { url: shown.clone(), reason };
        let uri: Uri = url.parse().map_err(|_| wrong("no URL"))?;
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("no http or https URL")),
        };
        if uri.host().is_none_or(str::is_empty) {
            return Err(wrong("no host"));
        }
        let tls = match is_https {
            false => None,
            true => {
                let config = tls().map_err(|error| HttpError::NoTls {
                    url: shown.clone(),
                    reason: error.to_string(),
                })?;
                let name = ServerName::try_from(host(&uri).to_owned());
                let name = name.map_err(|_| wrong("no host that a certificate could name"))?;
                Some((TlsConnector::from(Arc::new(config)), name))
            }
        };
        let headers = headers.iter().map(|(name, value)| {
            let invalid = || HttpError::Header(name.clone());
            let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
            Ok((parsed, HeaderValue::from_str(value).map_err(|_| invalid())?))
        });
        let mut headers = headers.collect::<Result<Vec<_>, HttpError>>()?;
        if !headers.iter().any(|(name, _)| *name == AUTHORIZATION)
            && let Some(user) = url::basic_authorization(url)
        {
            let user = HeaderValue::from_str(&user).map_err(|_| wrong("no user"))?;
            headers.push((AUTHORIZATION, user));
        }
        Ok(Self { url: shown, uri, headers, tls })
    }

    /// The bytes behind the URL.
    // k8s: pkg/kubelet/config/http.go extractFromURL
    pub(crate) async fn fetch(&self) -> Result<Bytes, HttpError> {
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, self.exchange()).await;
        answer.map_err(|_| HttpError::Timeout { url: self.url.clone() })?
    }

    async fn exchange(&self) -> Result<Bytes, HttpError> {
        let url = || self.url.clone();
        let stream = self.connect().await?;
        let failed = |source| HttpError::Request { url: url(), source };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let request = self.request();
        let exchange = async {
            let response = sender.send_request(request).await.map_err(failed)?;
            let status = response.status();
            if !status.is_success() {
                return Err(HttpError::Status { url: url(), status });
            }
            let body = Limited::new(response.into_body(), MANIFEST_BYTES_MAX).collect().await;
            let body =
                body.map_err(|error| HttpError::Body { url: url(), reason: error.to_string() })?;
            Ok(body.to_bytes())
        };
        // The connection is driven here and dropped with the exchange: nothing runs on behind it.
        tokio::pin!(exchange);
        let bytes = tokio::select! {
            bytes = &mut exchange => bytes?,
            ended = connection => {
                ended.map_err(failed)?;
                exchange.await?
            }
        };
        if bytes.is_empty() { Err(HttpError::Empty { url: url() }) } else { Ok(bytes) }
    }

    async fn connect(&self) -> Result<Box<dyn AnyConnection>, HttpError> {
        let port = self.uri.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let stream = TcpStream::connect((host(&self.uri), port)).await;
        let stream =
            stream.map_err(|source| HttpError::Connect { url: self.url.clone(), source })?;
        let Some((connector, name)) = &self.tls else { return Ok(Box::new(stream)) };
        match connector.connect(name.clone(), stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(source) => Err(HttpError::Tls { url: self.url.clone(), source }),
        }
    }

    fn request(&self) -> Request<Empty<Bytes>> {
        let target = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = target.parse().unwrap_or_else(|_| Uri::from_static("/"));
        let headers = request.headers_mut();
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        let host = authority.rsplit('@').next().unwrap_or_default();
        if let Ok(host) = HeaderValue::from_str(host) {
            headers.insert(HOST, host);
        }
        for (name, value) in &self.headers {
            headers.append(name, value.clone());
        }
        request
    }
}

/// The host without the brackets of an IPv6 address.
fn host(uri: &Uri) -> &str {
    uri.host().unwrap_or_default().trim_matches(['[', ']'])
}

/// Delivers readings until the receiver is gone: once at the start, then every `check_every`.
pub(crate) async fn run(
    endpoint: ManifestEndpoint,
    node_name: String,
    check_every: Duration,
    readings: mpsc::Sender<SourceReading>,
) {
    let mut poll = Poll { endpoint, node_name, last: None };
    loop {
        if let Some(reading) = poll.step().await
            && readings.send(reading).await.is_err()
        {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(check_every) => {}
            () = readings.closed() => return,
        }
    }
}

/// The URL and its last answer.
struct Poll {
    endpoint: ManifestEndpoint,
    node_name: String,
    /// Bytes of the last answer that was taken and its pods.
    last: Option<(Bytes, SourceReading)>,
}

impl Poll {
    /// Makes one request; returns a reading after a change. Before the first good answer a failure
    /// returns nothing, or the running pods would be taken for orphans.
    async fn step(&mut self) -> Option<SourceReading> {
        let cause = match self.endpoint.fetch().await {
            Ok(bytes) if self.last.as_ref().is_some_and(|(last, _)| *last == bytes) => return None,
            Ok(bytes) => match self.decode(&bytes) {
                Ok(reading) => {
                    self.last = Some((bytes, reading.clone()));
                    return Some(reading);
                }
                Err(cause) => cause,
            },
            Err(error) => ProblemCause::Read(error.to_string()),
        };
        tracing::warn!(url = %self.endpoint.url, error = %cause, "cannot use manifests");
        let (_, last) = self.last.as_ref()?;
        let problem =
            Problem { place: self.endpoint.url.clone(), error: cause, keeps_previous: true };
        Some(SourceReading {
            pods: last.pods.clone(),
            problems: vec![Arc::new(problem)],
            ..SourceReading::default()
        })
    }

    fn decode(&self, bytes: &[u8]) -> Result<SourceReading, ProblemCause> {
        let origin = ManifestOrigin {
            kind: SourceKind::Http,
            place: self.endpoint.url.clone(),
            changed_at: UnixNanos::NEVER,
        };
        let pods = decode_pods(bytes, &origin, &self.node_name)?;
        let pods = pods.into_iter().map(|pod| (Arc::new(pod), UnixNanos::NEVER)).collect();
        Ok(SourceReading { pods, ..SourceReading::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;

    const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},
        "spec":{"containers":[{"name":"c","image":"i"}]}}"#;

    /// Answers each request with the next of these bodies; returns the requests.
    async fn serve(listener: TcpListener, answers: Vec<(u16, String)>) -> Vec<String> {
        let mut requests = Vec::new();
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut head = vec![0; 4096];
            let read = stream.read(&mut head).await.expect("a request");
            requests.push(String::from_utf8_lossy(&head[..read]).into_owned());
            let answer =
                format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.expect("answered");
        }
        requests
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_failure_keeps_the_pods_of_the_last_good_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let url = format!("http://{}/pods?x=1", listener.local_addr().expect("an address"));
        let list = format!(r#"{{"apiVersion":"v1","kind":"PodList","items":[{POD}]}}"#);
        let answers = vec![
            (500, String::new()),
            (200, POD.to_owned()),
            (200, POD.to_owned()),
            (404, String::new()),
            (200, "{".to_owned()),
            (200, String::new()),
            (200, list),
        ];
        let server = tokio::spawn(serve(listener, answers));
        let headers = [("X-Token".to_owned(), "t".to_owned())];
        let endpoint = ManifestEndpoint::new(&url, &headers).expect("an endpoint");
        let mut poll = Poll { endpoint, node_name: "n".into(), last: None };
        assert_eq!(poll.step().await, None, "not ready before a good answer");
        let good = poll.step().await.expect("a reading");
        assert_eq!((good.pods.len(), good.problems.len()), (1, 0));
        assert_eq!(
            pintle_api_types::pod::annotation(&good.pods[0].0, "kubernetes.io/config.source"),
            Some("http")
        );
        assert_eq!(good.pods[0].0.spec.as_ref().and_then(|s| s.tolerations.clone()), None);
        assert_eq!(poll.step().await, None, "unchanged bytes");
        for _ in 0..3 {
            let kept = poll.step().await.expect("a reading");
            assert_eq!((kept.pods, kept.problems.len()), (good.pods.clone(), 1));
        }
        assert_eq!(poll.step().await.expect("a list").pods.len(), 1);
        let requests = server.await.expect("the server ends");
        assert!(requests[0].starts_with("GET /pods?x=1 HTTP/1.1\r\n"), "{}", requests[0]);
        assert!(requests[0].to_lowercase().contains("x-token: t\r\n"), "{}", requests[0]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn url_credentials_are_sent_to_the_server_and_appear_in_no_error() {
        for (name, value, want) in [
            ("X-Other", "t", "authorization: basic dtpw\r\n"),
            ("Authorization", "Bearer t", "authorization: bearer t\r\n"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
            let address = listener.local_addr().expect("an address");
            let server = tokio::spawn(serve(listener, vec![(401, String::new())]));
            let headers = [(name.to_owned(), value.to_owned())];
            let endpoint = ManifestEndpoint::new(&format!("http://u:p@{address}/x"), &headers);
            let error = endpoint.expect("an endpoint").fetch().await.expect_err("refused");
            let text = error.to_string();
            assert!(text.starts_with(&format!("http://u:xxxxx@{address}/x: ")), "{text}");
            let request = server.await.expect("the server ends")[0].to_lowercase();
            assert_eq!(request.matches("authorization:").count(), 1, "{request}");
            assert!(request.contains(want), "{request}");
        }
        let error =
            ManifestEndpoint::new("ftp://u:hunter2@h/", &[]).expect_err("no URL for manifests");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    /// A server that shows a certificate for this name, and a client that trusts it.
    fn pair(name: &str) -> (TlsAcceptor, ClientConfig) {
        let cert = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::try_from(cert.signing_key.serialize_der()).expect("a key");
        let chain = vec![cert.cert.der().clone()];
        let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain.clone(), key)
            .expect("a pair");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(chain[0].clone()).expect("an authority");
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        (TlsAcceptor::from(Arc::new(server)), client)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn https_server_with_an_untrusted_certificate_is_refused() {
        let (acceptor, trusting) = pair("127.0.0.1");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let url = format!("https://{}/pods", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A client that does not trust us disconnects.
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut head = vec![0; 4096];
                let _ = stream.read(&mut head).await;
                let answer =
                    format!("HTTP/1.1 200 X\r\nContent-Length: {}\r\n\r\n{POD}", POD.len());
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        let trusting = ManifestEndpoint::with_tls(&url, &[], || Ok::<_, String>(trusting));
        let bytes = trusting.expect("an endpoint").fetch().await.expect("an answer");
        assert_eq!(bytes, POD.as_bytes());
        let (_, other) = pair("127.0.0.1");
        let other = ManifestEndpoint::with_tls(&url, &[], || Ok::<_, String>(other));
        let error = other.expect("an endpoint").fetch().await.expect_err("a stranger");
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("{url}: TLS failed: invalid peer certificate")),
            "{text}"
        );
        let by_system = ManifestEndpoint::new(&url, &[]).expect("an endpoint").fetch().await;
        assert!(matches!(by_system, Err(HttpError::Tls { .. })), "{by_system:?}");
    }

    #[test]
    fn only_http_urls_with_a_host_are_taken() {
        for (url, want) in [
            ("http://h/p", None),
            ("http://h:1234", None),
            ("https://h/p", None),
            ("https://[::1]:8443", None),
            ("ftp://h/p", Some("ftp://h/p: no http or https URL")),
            ("/p", Some("/p: no http or https URL")),
        ] {
            let error = ManifestEndpoint::new(url, &[]).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), want, "{url}");
        }
    }
}
