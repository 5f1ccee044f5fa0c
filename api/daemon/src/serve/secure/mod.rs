//! Access control: TLS, then authentication, then authorisation.
//!
//! Input: a connection's client certificate, a request's head, and the daemon's mapping of the
//! request to permissions. Output: the user, or a denial. `subject` and `ttl_cache` are pure;
//! `reviews` asks the API server, `serving` and `client_ca` read files. Owner: the server's thread.
//! Bounds: `ttl_cache::ENTRIES_MAX` answers of each kind, `TOKEN_BYTES_MAX` a token.

mod authn;
mod authorities;
mod authz;
mod client_ca;
mod flights;
mod lookup;
mod old_forms;
mod proxy;
mod reviews;
mod self_signed;
pub mod serving;
mod subject;
pub mod tls;
mod trusted_path;
mod ttl_cache;
mod user;
mod websocket;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap};
use hyper::http::request;

use super::https::Peer;

pub use authn::CertificateVerdict;
use authn::{Authenticator, AuthnError};
use authz::{Authorizer, AuthzError};
pub use lookup::{ClusterAuthorities, LookupError};
pub use proxy::{Headers, Proxies};
pub use reviews::{ApiReviews, ReviewError, Reviews};
pub use serving::{ServingCert, ServingCertError};
pub use subject::fuzz as fuzz_certificate;
pub use user::User;
pub use websocket::fuzz as fuzz_token;

/// Reason why the rules of access cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The authorities of client certificates cannot be read.
    #[error("{field} {path}: {reason}", path = path.display())]
    ClientCa {
        /// The setting that names the file.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
}

/// A daemon's settings for access control.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// A client without credentials is `system:anonymous`, and not refused at once.
    pub anonymous: bool,
    /// The authorities of client certificates: the setting, and the file it names.
    pub client_ca: Option<(&'static str, PathBuf)>,
    /// Trusted proxies; `None` for those that the cluster publishes, if any.
    pub proxies: Option<Proxies>,
    /// The authorities that the cluster publishes, where the settings have none.
    pub of_cluster: Option<Arc<ClusterAuthorities>>,
    /// Cache TTL of token reviews; `None` when tokens are ignored.
    pub tokens: Option<Duration>,
    /// Cache TTLs of "yes" and "no" of the API server; `None` when every user may do everything.
    pub rights: Option<(Duration, Duration)>,
    /// There is no API server to ask: a request that needs a permission is refused.
    pub nobody_to_ask: bool,
    /// Groups that may do everything, without a review.
    pub may_all: &'static [&'static str],
}

/// The object of a request, in the terms of an access review.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReviewedObject {
    /// A subresource of a node.
    Node {
        /// The node.
        name: Arc<str>,
        /// `metrics`, `proxy`.
        subresource: &'static str,
    },
    /// A path that is no object of the API.
    Path(String),
}

/// The permissions that a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredRights {
    /// `get`, `create`, ...; empty for methods without a verb, which no rule allows.
    pub verb: &'static str,
    /// One allowed object is enough; they are reviewed in this order.
    pub objects: Vec<ReviewedObject>,
}

/// Lets requests in or turns them away.
pub struct AccessGate {
    authenticator: Authenticator,
    authorizer: Authorizer,
}

/// A request that was turned away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// No known user.
    Unauthenticated,
    /// Too many questions to the API server wait.
    Busy,
    /// The user lacks the permission.
    Forbidden {
        /// The user.
        user: String,
    },
    /// The API server could not be asked.
    Undecided {
        /// The user.
        user: String,
        /// The object.
        object: ReviewedObject,
    },
}

impl AccessGate {
    /// Reads the authorities of client certificates.
    pub fn new(rules: &Rules, reviews: Arc<dyn Reviews>) -> Result<Self, AccessError> {
        let authenticator = Authenticator::new(rules, Arc::clone(&reviews))?;
        Ok(Self { authenticator, authorizer: Authorizer::new(rules, reviews) })
    }

    /// The name in the client's certificate, if that holds.
    pub fn name(&self, peer: &Peer) -> Option<String> {
        self.authenticator.name(peer)
    }

    /// Decides about one request. `path` is the decoded path, by which it is routed, too.
    // k8s: staging/src/k8s.io/apiserver/pkg/endpoints/filters/{authentication,authorization}.go,
    //      pkg/kubelet/server/server.go InstallAuthFilter
    pub async fn admit(
        &self,
        head: &request::Parts,
        path: &str,
        wanted: &RequiredRights,
        peer: &Peer,
    ) -> Result<User, Denial> {
        let user = match self.authenticator.user(head, peer).await {
            Ok(Some(user)) => user,
            Ok(None) => return Err(Denial::Unauthenticated),
            Err(AuthnError::Busy) => return Err(Denial::Busy),
            Err(AuthnError::Invalid(error)) => {
                tracing::info!(error, peer = %peer.address, "a request is not authenticated");
                return Err(Denial::Unauthenticated);
            }
        };
        for object in &wanted.objects {
            match self.authorizer.allows(&user, wanted.verb, object, path).await {
                Ok(true) => return Ok(user),
                Ok(false) => {}
                Err(AuthzError::Busy) => return Err(Denial::Busy),
                Err(AuthzError::Undecided(error)) => {
                    tracing::warn!(error, user = user.name, "access cannot be decided");
                    return Err(Denial::Undecided { user: user.name, object: object.clone() });
                }
            }
        }
        tracing::debug!(user = user.name, verb = wanted.verb, ?wanted.objects, "forbidden");
        Err(Denial::Forbidden { user: user.name })
    }
}

/// Removes a request's credentials once it is decided about: no later code needs them.
pub fn strip_credentials(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    websocket::strip(headers);
}

impl std::fmt::Debug for AccessGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}
