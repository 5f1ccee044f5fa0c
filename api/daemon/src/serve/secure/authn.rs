//! Authenticates a request: by proxy headers, then client certificate, then bearer token, else
//! none.
//!
//! Input: a connection's certificates and a request's head. Output: the user, `None` without
//! credentials, or an error for invalid credentials: those never count as anonymous. Tokens are
//! cached by their digest, for `cacheTTL`; equal ones that come together are reviewed once. Bounds:
//! `TOKEN_BYTES_MAX`, those of `flights`.
// k8s: staging/src/k8s.io/apiserver/pkg/authentication/authenticatorfactory/delegating.go New

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use hyper::header::{AUTHORIZATION, HeaderMap};
use hyper::http::request;
use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use ring::digest::{SHA256, digest};
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::super::https::Peer;
use super::client_ca::{ClientCa, ClientCaError};
use super::flights::{Flights, NoAnswer};
use super::lookup::ClusterAuthorities;
use super::proxy::RequestProxy;
use super::reviews::Reviews;
use super::subject::subject;
use super::ttl_cache::{ENTRIES_MAX, TtlCache};
use super::user::User;
use super::websocket::{self, WebsocketTokenError};
use super::{AccessError, Rules};

/// Longest token that is reviewed, in bytes.
const TOKEN_BYTES_MAX: usize = 64 * 1024;
/// How long a refusal with a reason is cached.
const REFUSED_TTL: Duration = Duration::from_secs(10);
/// How long an invalid certificate is not verified again.
const REFUSED_SECONDS: i64 = 10;
/// The user's certificate, for the API server.
// k8s: staging/src/k8s.io/apiserver/pkg/authentication/user/user.go CredentialIDKey
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The result for the certificate of a connection's client.
#[derive(Default)]
pub struct CertificateVerdict(Mutex<Option<Judged>>);

#[derive(Clone)]
struct Judged {
    /// The authorities that it was held against.
    generation: u64,
    /// Unix time at which one of the authorities ends, so that the certificate must be verified
    /// again.
    until: i64,
    user: Result<Option<User>, ClientCaError>,
}

type Digest = [u8; 32];

/// Authenticates requests.
pub(super) struct Authenticator {
    client_ca: Option<ClientCa>,
    proxy: Option<Arc<RequestProxy>>,
    of_cluster: Option<Arc<ClusterAuthorities>>,
    tokens: Option<Tokens>,
    anonymous: bool,
}

struct Tokens {
    reviews: Arc<dyn Reviews>,
    ttl: Duration,
    known: Mutex<TtlCache<Digest, Option<Arc<User>>>>,
    flights: Flights<Digest, Reviewed>,
}

/// A review's answer: the user, or none and whether the API server gave a reason.
#[derive(Clone)]
struct Reviewed {
    user: Option<Arc<User>>,
    is_explained: bool,
}

/// Reason why a request has no user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AuthnError {
    /// Credentials that do not hold, or could not be reviewed.
    Invalid(String),
    /// Too many reviews wait.
    Busy,
}

impl From<NoAnswer> for AuthnError {
    fn from(none: NoAnswer) -> Self {
        match none {
            NoAnswer::Busy => Self::Busy,
            NoAnswer::Failed(error) => Self::Invalid(error.to_string()),
        }
    }
}

impl Authenticator {
    /// An authenticator with these rules.
    pub(super) fn new(rules: &Rules, reviews: Arc<dyn Reviews>) -> Result<Self, AccessError> {
        let tokens = rules.tokens.map(|ttl| Tokens {
            reviews,
            ttl,
            known: Mutex::new(TtlCache::new(ENTRIES_MAX)),
            flights: Flights::new(),
        });
        let ca = rules.client_ca.clone();
        let client_ca = ca.map(|(field, path)| ClientCa::open(field, path)).transpose()?;
        let proxy = rules.proxies.as_ref().map(RequestProxy::open).transpose()?.map(Arc::new);
        let of_cluster = rules.of_cluster.clone();
        Ok(Self { client_ca, proxy, of_cluster, tokens, anonymous: rules.anonymous })
    }

    /// The name in the client's certificate, if that holds.
    pub(super) fn name(&self, peer: &Peer) -> Option<String> {
        self.by_certificate(peer).ok().flatten().map(|user| user.name)
    }

    /// The user of a request.
    // k8s: staging/src/k8s.io/apiserver/pkg/authentication/request/union/union.go
    pub(super) async fn user(
        &self,
        head: &request::Parts,
        peer: &Peer,
    ) -> Result<Option<User>, AuthnError> {
        let mut failed = None;
        match self.by_proxy(head, peer) {
            Ok(Some(user)) => return Ok(Some(user.authenticated())),
            Ok(None) => {}
            Err(error) => failed = Some(AuthnError::Invalid(error.to_string())),
        }
        match self.by_certificate(peer) {
            Ok(Some(user)) => return Ok(Some(user.authenticated())),
            Ok(None) => {}
            Err(error) => failed = Some(AuthnError::Invalid(error.to_string())),
        }
        if let Some(tokens) = &self.tokens {
            for token in [Ok(bearer(&head.headers)), websocket::token(&head.headers)] {
                match tokens.user(token, peer).await {
                    Ok(Some(user)) => return Ok(Some(user.authenticated())),
                    Ok(None) => {}
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(self.anonymous.then(User::anonymous)),
        }
    }

    /// The user that a proxy names. Chains are verified for each request that comes from a proxy.
    fn by_proxy(&self, head: &request::Parts, peer: &Peer) -> Result<Option<User>, ClientCaError> {
        let of_cluster = || self.of_cluster.as_ref().and_then(|all| all.proxy());
        match self.proxy.clone().or_else(of_cluster) {
            Some(proxy) => proxy.user(&head.headers, &peer.certificates),
            None => Ok(None),
        }
    }

    /// Chains are verified once for a connection and each change of the authorities.
    fn by_certificate(&self, peer: &Peer) -> Result<Option<User>, ClientCaError> {
        let of_cluster = self.of_cluster.as_ref().map(|all| &all.client_ca);
        let Some(ca) = self.client_ca.as_ref().or(of_cluster) else { return Ok(None) };
        if peer.certificates.is_empty() || !ca.is_known() {
            return Ok(None);
        }
        let (generation, now) = (ca.generation(), jiff::Timestamp::now().as_second());
        let mut verdict = peer.verdict.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(judged) = &*verdict
            && judged.generation == generation
            && now < judged.until
        {
            return judged.user.clone();
        }
        let (user, until) = match judge(ca, &peer.certificates) {
            Ok((user, until)) => (Ok(user), until.min(end_of(&peer.certificates))),
            Err(error) => (Err(error), now.saturating_add(REFUSED_SECONDS)),
        };
        *verdict = Some(Judged { generation, until, user: user.clone() });
        user
    }
}

/// The user, and until when its certificate is valid.
fn judge(
    ca: &ClientCa,
    certificates: &[CertificateDer<'static>],
) -> Result<(Option<User>, i64), ClientCaError> {
    let Some((leaf, chain)) = certificates.split_first() else { return Ok((None, i64::MAX)) };
    let until = ca.verify(leaf, chain)?;
    let Some(subject) = subject(leaf) else { return Ok((None, until)) };
    let mut id = "X509SHA256=".to_owned();
    for byte in digest(&SHA256, leaf).as_ref() {
        let _ = write!(id, "{byte:02x}"); // to a string: cannot fail
    }
    let extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![id])]);
    let (name, groups) = (subject.name, subject.groups);
    Ok((Some(User { name, uid: String::new(), groups, extra }), until))
}

/// When the first of them ends, in seconds; at once for an unreadable one.
fn end_of(certificates: &[CertificateDer<'static>]) -> i64 {
    let ends = certificates.iter().map(|der| {
        let parsed = x509_parser::parse_x509_certificate(der);
        parsed.map_or(0, |(_, certificate)| certificate.validity().not_after.timestamp())
    });
    ends.min().unwrap_or(0)
}

impl Tokens {
    async fn user(
        &self,
        token: Result<Option<String>, WebsocketTokenError>,
        peer: &Peer,
    ) -> Result<Option<User>, AuthnError> {
        let invalid = |why: &str| Err(AuthnError::Invalid(why.to_owned()));
        let token = token.map_err(|error| AuthnError::Invalid(error.to_string()))?;
        let Some(token) = token else { return Ok(None) };
        if token.len() > TOKEN_BYTES_MAX {
            return invalid("the bearer token is too long");
        }
        match self.reviewed(token, peer).await? {
            Some(user) => Ok(Some((*user).clone())),
            None => invalid("invalid bearer token"),
        }
    }

    async fn reviewed(&self, token: String, peer: &Peer) -> Result<Option<Arc<User>>, AuthnError> {
        let mut key = Digest::default();
        key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(user) = known().get(&key, Instant::now()) {
            return Ok(user);
        }
        let reviews = Arc::clone(&self.reviews);
        let ask = || async move { reviews.token(token).await.map(reviewed) }.boxed();
        let from = peer.connection.peer();
        let answer = self.flights.answer(key, from, ask).await?;
        if answer.user.is_some() {
            self.flights.prove(from);
        }
        let ttl = match answer {
            // Upstream takes such an answer for an error and does not cache it: the API server may
            // not know the token yet.
            Reviewed { user: None, is_explained: true } => self.ttl.min(REFUSED_TTL),
            _ => self.ttl,
        };
        known().put(key, answer.user.clone(), ttl, Instant::now());
        Ok(answer.user)
    }
}

// k8s: staging/src/k8s.io/apiserver/plugin/pkg/authenticator/token/webhook/webhook.go
fn reviewed(status: TokenReviewStatus) -> Reviewed {
    let is_explained = status.error.is_some_and(|error| !error.is_empty());
    let user = status.authenticated.unwrap_or(false).then(|| status.user.unwrap_or_default());
    Reviewed { user: user.map(|user| Arc::new(User::of(user))), is_explained }
}

/// `Authorization: Bearer TOKEN`.
// k8s: staging/src/k8s.io/apiserver/pkg/authentication/request/bearertoken/bearertoken.go
fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).expect("a value"));
        headers
    }

    #[test]
    fn a_bearer_token_is_read_in_any_spelling_of_its_scheme() {
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            (" Bearer abc ", Some("abc")),
            ("Basic abc", None),
            ("Bearer ", None),
            ("Bearer", None),
        ] {
            assert_eq!(bearer(&headers("authorization", value)).as_deref(), token, "{value:?}");
        }
    }
}
