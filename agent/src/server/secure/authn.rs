//! Who asks: client certificate, then bearer token, then nobody.
//!
//! Input: a connection's certificates and a request's head. Output: the user, `None` without
//! credentials, or an error for credentials that do not hold: those are never taken for nobody.
//! Tokens are remembered by their digest, for `cacheTTL`. Bounds: `TOKEN_BYTES_MAX`.
// k8s: staging/src/k8s.io/apiserver/pkg/authentication/authenticatorfactory/delegating.go New

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::header::{AUTHORIZATION, HeaderMap, SEC_WEBSOCKET_PROTOCOL};
use hyper::http::request;
use ring::digest::{SHA256, digest};
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::AccessError;
use super::client_ca::ClientCa;
use super::reviews::Reviews;
use super::subject::subject;
use super::ttl_cache::{ENTRIES_MAX, TtlCache};
use super::user::User;
use crate::config::types::Authentication;

/// Longest token that is looked at, in bytes.
const TOKEN_BYTES_MAX: usize = 64 * 1024;
/// How a browser sends a token, which cannot set headers of its own.
// k8s: staging/src/k8s.io/apiserver/pkg/authentication/request/websocket/protocol.go
const PROTOCOL_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";
/// Which certificate a user showed, in what the API server is told of them.
// k8s: staging/src/k8s.io/apiserver/pkg/authentication/user/user.go CredentialIDKey
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(in crate::server) struct Peer {
    pub(in crate::server) address: SocketAddr,
    /// Its certificate and those that lead to the authority; not verified yet.
    pub(in crate::server) certificates: Arc<[CertificateDer<'static>]>,
}

type Digest = [u8; 32];

/// Finds out who asks.
pub(super) struct Authenticator {
    client_ca: Option<ClientCa>,
    tokens: Option<Tokens>,
    anonymous: bool,
}

struct Tokens {
    reviews: Arc<dyn Reviews>,
    ttl: Duration,
    known: Mutex<TtlCache<Digest, Option<Arc<User>>>>,
}

impl Authenticator {
    /// As the configuration asks for.
    pub(super) fn new(
        config: &Authentication,
        reviews: Arc<dyn Reviews>,
    ) -> Result<Self, AccessError> {
        let ca = Some(&config.x509.client_ca_file).filter(|path| !path.is_empty());
        let tokens = Tokens {
            reviews,
            ttl: config.webhook.cache_ttl.to_std(),
            known: Mutex::new(TtlCache::new(ENTRIES_MAX)),
        };
        Ok(Self {
            client_ca: ca.map(|path| ClientCa::open(path.into())).transpose()?,
            tokens: config.webhook.enabled.then_some(tokens),
            anonymous: config.anonymous.enabled,
        })
    }

    /// The user of a request.
    pub(super) async fn user(
        &self,
        head: &request::Parts,
        peer: &Peer,
    ) -> Result<Option<User>, String> {
        let mut failed = None;
        match self.by_certificate(peer) {
            Ok(Some(user)) => return Ok(Some(user.authenticated())),
            Ok(None) => {}
            Err(error) => failed = Some(error),
        }
        match self.by_token(&head.headers).await {
            Ok(Some(user)) => return Ok(Some(user.authenticated())),
            Ok(None) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(self.anonymous.then(User::anonymous)),
        }
    }

    fn by_certificate(&self, peer: &Peer) -> Result<Option<User>, String> {
        let Some(ca) = &self.client_ca else { return Ok(None) };
        let Some((leaf, chain)) = peer.certificates.split_first() else { return Ok(None) };
        ca.verify(leaf, chain)?;
        let Some(subject) = subject(leaf) else { return Ok(None) };
        let mut id = "X509SHA256=".to_owned();
        for byte in digest(&SHA256, leaf).as_ref() {
            let _ = write!(id, "{byte:02x}"); // to a string: cannot fail
        }
        let extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![id])]);
        let (name, groups) = (subject.name, subject.groups);
        Ok(Some(User { name, uid: String::new(), groups, extra }))
    }

    async fn by_token(&self, headers: &HeaderMap) -> Result<Option<User>, String> {
        let Some(tokens) = &self.tokens else { return Ok(None) };
        let Some(token) = bearer(headers).or_else(|| in_protocols(headers)) else {
            return Ok(None);
        };
        if token.len() > TOKEN_BYTES_MAX {
            return Err("the bearer token is too long".to_owned());
        }
        let user = tokens.user(&token).await?;
        user.map(|user| Some((*user).clone())).ok_or_else(|| "invalid bearer token".to_owned())
    }
}

impl Tokens {
    async fn user(&self, token: &str) -> Result<Option<Arc<User>>, String> {
        let mut key = Digest::default();
        key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(user) = known().get(&key, Instant::now()) {
            return Ok(user);
        }
        let reviewed = self.reviews.token(token.to_owned()).await?;
        let user =
            reviewed.authenticated.unwrap_or(false).then(|| reviewed.user.unwrap_or_default());
        let user = user.map(|user| Arc::new(User::of(user)));
        known().put(key, user.clone(), self.ttl, Instant::now());
        Ok(user)
    }
}

/// `Authorization: Bearer TOKEN`.
// k8s: staging/src/k8s.io/apiserver/pkg/authentication/request/bearertoken/bearertoken.go
fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

/// A token among the sub-protocols that a WebSocket offers.
fn in_protocols(headers: &HeaderMap) -> Option<String> {
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let mut offered = offered.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(','));
    let encoded = offered.find_map(|protocol| protocol.trim().strip_prefix(PROTOCOL_TOKEN))?;
    String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok().filter(|t| !t.is_empty())
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

    #[test]
    fn a_websocket_may_carry_its_token_among_the_protocols() {
        let offered = "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWJj";
        let found = in_protocols(&headers("sec-websocket-protocol", offered));
        assert_eq!(found.as_deref(), Some("abc"));
        assert_eq!(in_protocols(&headers("sec-websocket-protocol", "v4.channel.k8s.io")), None);
    }
}
