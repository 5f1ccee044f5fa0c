//! The service below a `kube::Client`: the treatment of each request.
//!
//! In order: the limit of requests per second, a place among those in flight, the server's address,
//! headers, one try with its time limit, and another try when the server asks to retry later, does
//! not accept our plugin's credential, or the connection breaks under a read. Time limits begin
//! when the request's turn has come. A watch waits for no turn: a client that is busy writing must
//! not become blind. Bounds: `TRIES_MAX` tries, waits of `WAIT_MAX` between them.
// k8s: staging/src/k8s.io/client-go/rest/request.go, with_retry.go

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, RETRY_AFTER, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use kube::client::Body;
use tower::Service;

use crate::access::ClientOptions;
use crate::breakage::is_broken;
use crate::identity::ClientIdentity;
use crate::limit::Limiter;
use crate::observer::Sent;
use crate::places::TakenPlace;
use crate::pool::{AnswerBody, ByteMeasure, ConnectionPool};
use crate::turns::{Lane, TenantShare};

/// Tries of one request.
const TRIES_MAX: usize = 10;
/// The longest that one "later" of the server is waited for.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The longest wait for the head of this request's answer, from its turn on: an extension of the
/// request, which overrides the client's timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerWithin(pub Duration);

/// The pause before a read whose connection broke is sent again.
// k8s: staging/src/k8s.io/client-go/rest/with_retry.go retryAfterResponse
const BROKEN_WAIT: Duration = Duration::from_secs(1);

/// How one of several clients that share connections and limits treats its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) lane: Lane,
    /// The longest wait for an answer's head, from the request's turn on.
    pub(crate) timeout: Option<Duration>,
    /// The caller handles an answer that asks to retry later.
    pub(crate) tells_later: bool,
}

/// Carries requests; clones share everything but the manner.
#[derive(Clone)]
pub(crate) struct Carrier {
    parts: Arc<ServiceParts>,
    manner: Manner,
}

struct ServiceParts {
    server: Uri,
    host: Arc<str>,
    identity: Arc<ClientIdentity>,
    pool: Arc<ConnectionPool>,
    limiter: Option<Arc<Limiter>>,
    user_agent: Option<HeaderValue>,
    options: ClientOptions,
}

impl Carrier {
    pub(crate) fn new(server: Uri, identity: Arc<ClientIdentity>, options: ClientOptions) -> Self {
        let pool = Arc::new(ConnectionPool::new(Arc::clone(&identity)));
        Self::on(pool, server, identity, options)
    }

    /// A service that shares connections and identity with this one, and has a limit of its own.
    pub(crate) fn beside(&self, options: ClientOptions) -> Self {
        let ServiceParts { server, identity, pool, .. } = &*self.parts;
        Self::on(Arc::clone(pool), server.clone(), Arc::clone(identity), options)
    }

    /// A service on these connections; its own identity is used only for headers.
    pub(crate) fn on(
        pool: Arc<ConnectionPool>,
        server: Uri,
        identity: Arc<ClientIdentity>,
        options: ClientOptions,
    ) -> Self {
        let limiter = options.rate.map(Limiter::new);
        let (lane, timeout) = (Lane::Urgent, options.timeout);
        let manner = Manner { lane, timeout, tells_later: false };
        let host = server.authority().map_or("", |authority| authority.as_str()).into();
        let user_agent = HeaderValue::from_str(&options.user_agent).ok();
        let user_agent = user_agent.filter(|value| !value.is_empty());
        let parts = ServiceParts { server, host, identity, pool, limiter, user_agent, options };
        Self { parts: Arc::new(parts), manner }
    }

    /// The identity of requests.
    pub(crate) fn identity(&self) -> &ClientIdentity {
        &self.parts.identity
    }

    /// A service that shares connections and limits with this one.
    pub(crate) fn with(&self, change: impl FnOnce(&mut Manner)) -> Self {
        let mut other = self.clone();
        change(&mut other.manner);
        other
    }
}

impl Service<Request<Body>> for Carrier {
    type Response = Response<AnswerBody>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Response<AnswerBody>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (parts, manner) = (Arc::clone(&self.parts), self.manner);
        Box::pin(async move { parts.carry(request, manner).await })
    }
}

/// One of several attempts to send a request.
struct SendAttempt {
    /// The limit of the request, for messages.
    timeout: Option<Duration>,
    /// The part of it that is left.
    left: Option<Duration>,
    is_watch: bool,
    is_repeated: bool,
}

impl ServiceParts {
    async fn carry(
        &self,
        request: Request<Body>,
        manner: Manner,
    ) -> io::Result<Response<AnswerBody>> {
        let (mut head, body) = request.into_parts();
        let share = head.extensions.remove::<TenantShare>().unwrap_or_default();
        let within = head.extensions.remove::<AnswerWithin>().map(|within| within.0);
        let timeout = within.or(manner.timeout);
        head.uri = joined(&self.server, &head.uri)?;
        if let Some(user_agent) = &self.user_agent {
            head.headers.insert(USER_AGENT, user_agent.clone());
        }
        let method = head.method.clone();
        let is_watch = is_watch(&head.uri);
        let reads = method == Method::GET && !is_watch;
        let (mut body, mut refused) = (Some(body), false);
        let (mut until, mut left) = (None, timeout);
        for attempt in 1.. {
            // k8s: client-go/rest/request.go Watch, with_retry.go Before: its repetition is limited
            if let Some(limiter) = self.limiter.as_ref().filter(|_| !is_watch || attempt > 1) {
                let waited = limiter.turn(manner.lane, &share).await;
                if let Some(observer) = &self.options.observer {
                    observer.limited(method.as_str(), &self.host, waited);
                }
            }
            let Some(whole) = body.take() else { break };
            body = whole.try_clone();
            let mut request = Request::from_parts(head.clone(), whole);
            let shown = self.identity.authorization().await?;
            if let Some(authorization) = shown.header {
                request.headers_mut().insert(AUTHORIZATION, authorization);
            }
            for (name, value) in &self.identity.access.impersonation {
                request.headers_mut().append(name, value.clone());
            }
            let room = self.pool.room(manner.lane, &share).await;
            let until = *until.get_or_insert(timeout.map(|limit| Instant::now() + limit));
            let sending = SendAttempt { timeout, left, is_watch, is_repeated: attempt > 1 };
            let mut answer = match self.attempt(request, room, sending).await {
                Err(error) if attempt < TRIES_MAX && reads && is_repeated(&error, until) => {
                    tokio::time::sleep(BROKEN_WAIT).await;
                    left = until.map(|until| until.saturating_duration_since(Instant::now()));
                    continue;
                }
                answer => answer?,
            };
            let again = match answer.status() {
                StatusCode::UNAUTHORIZED if !refused => {
                    refused = true;
                    self.identity.refused(shown.run).then_some(Duration::ZERO)
                }
                _ if manner.tells_later => None,
                status => retry_after(status, answer.headers()).map(|wait| wait.min(WAIT_MAX)),
            };
            match again {
                Some(wait) if attempt < TRIES_MAX && body.is_some() => {
                    drop(answer);
                    tokio::time::sleep(wait).await;
                }
                _ => {
                    if !is_watch && let Some(measure) = self.measure(&method) {
                        answer.body_mut().measure(measure);
                    }
                    return Ok(answer);
                }
            }
        }
        Err(io::Error::other("a request that cannot be sent again"))
    }

    fn measure(&self, method: &Method) -> Option<ByteMeasure> {
        let observer = self.options.observer.clone()?;
        Some(ByteMeasure::new(observer, method.clone(), Arc::clone(&self.host)))
    }

    /// Sends the request once, within the time limit.
    async fn attempt(
        &self,
        request: Request<Body>,
        room: TakenPlace,
        SendAttempt { timeout, left, is_watch, is_repeated }: SendAttempt,
    ) -> io::Result<Response<AnswerBody>> {
        let method = request.method().clone();
        let bytes = request.body().size_hint().exact().filter(|_| !is_watch);
        let begun = Instant::now();
        let sent = self.pool.send(request, room);
        let answer = match left {
            None => sent.await,
            Some(left) => tokio::time::timeout(left, sent).await.unwrap_or_else(|_| {
                let problem = format!("no answer within {} s", timeout.unwrap_or(left).as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, problem))
            }),
        };
        if let Some(observer) = &self.options.observer {
            let code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            let (method, took) = (method.as_str(), begun.elapsed());
            observer.sent(Sent { method, host: &self.host, code, took, bytes, again: is_repeated });
        }
        answer
    }
}

/// True if a read that got no answer is to be sent again; it must begin before `until`.
// k8s: client-go/rest/request.go request isErrRetryableFunc
fn is_repeated(error: &io::Error, until: Option<Instant>) -> bool {
    let in_time = until.is_none_or(|until| Instant::now() + BROKEN_WAIT < until);
    in_time && is_broken(error)
}

/// True for a request whose answer is a stream; client-go counts no sizes of those.
// k8s: client-go/rest/request.go Watch
fn is_watch(uri: &Uri) -> bool {
    let mut pairs = uri.query().into_iter().flat_map(|query| query.split('&'));
    pairs.any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

/// The wait that the server asks for; `None` when it asks for none.
pub fn retry_after(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    if status != StatusCode::TOO_MANY_REQUESTS && !status.is_server_error() {
        return None;
    }
    let seconds: u32 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.into()))
}

/// The server's address with the request's path behind its own.
fn joined(server: &Uri, path: &Uri) -> io::Result<Uri> {
    let base = server.path().trim_end_matches('/');
    let rest = path.path_and_query().map_or("/", PathAndQuery::as_str);
    let mut parts = server.clone().into_parts();
    let full = format!("{base}{rest}");
    parts.path_and_query = Some(full.parse().map_err(io::Error::other)?);
    Uri::from_parts(parts).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_own_path_comes_first() {
        for (server, path, want) in [
            ("https://a:1", "/api?x=1", "https://a:1/api?x=1"),
            ("https://a:1/k8s/c1", "/api/v1", "https://a:1/k8s/c1/api/v1"),
            ("https://a:1/k8s/", "/", "https://a:1/k8s/"),
        ] {
            let joined = joined(&server.parse().expect("a URI"), &path.parse().expect("a URI"));
            assert_eq!(joined.expect("a URI").to_string(), want);
        }
    }

    #[test]
    fn watch_request_is_recognised_by_its_query() {
        let is = |path: &str| is_watch(&path.parse().expect("a URI"));
        assert!(is("/a?watch=true&resourceVersion=1") && is("/a?x=1&watch=1"));
        assert!(!is("/watch") && !is("/a?watch=false") && !is("/a?labelSelector=watch%3Dtrue"));
    }

    #[test]
    fn only_429_and_5xx_with_a_valid_retry_after_are_retried() {
        let wait = |code: u16, after: Option<&'static str>| {
            let after = after.map(|after| (RETRY_AFTER, HeaderValue::from_static(after)));
            let status = StatusCode::from_u16(code).expect("a code");
            retry_after(status, &after.into_iter().collect())
        };
        assert_eq!(wait(429, Some("5")), Some(Duration::from_secs(5)));
        assert_eq!(wait(503, Some("5")), Some(Duration::from_secs(5)));
        assert_eq!(wait(503, None), None);
        assert_eq!(wait(404, Some("5")), None);
        assert_eq!(wait(429, Some("9999999999999")), None, "no time to wait for");
    }
}
