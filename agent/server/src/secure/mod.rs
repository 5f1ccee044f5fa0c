//! Who may ask the HTTPS server what: TLS, then authentication, then authorisation.
//!
//! Input: a connection's client certificate and a request's head. Output: the user, or a denial
//! in the kubelet's words. `attributes`, `subject` and `ttl_cache` are pure; `reviews` asks the
//! API server, `serving` and `client_ca` read files. Owner: the server's thread. Bounds:
//! `ttl_cache::ENTRIES_MAX` answers of each kind, `TOKEN_BYTES_MAX` a token.

mod attributes;
mod authn;
mod authz;
mod client_ca;
mod flights;
mod reviews;
pub(super) mod serving;
mod subject;
pub(super) mod tls;
mod ttl_cache;
mod user;
mod websocket;

use std::sync::Arc;

use hyper::header::{AUTHORIZATION, HeaderMap};
use hyper::http::request;
use pintle_agent_config::Config;

use crate::answer::Answer;
use crate::https::Peer;

pub(super) use attributes::attributes;
use authn::Authenticator;
use authn::AuthnError;
pub(super) use authn::Verdict;
use authz::{Authorizer, AuthzError};
pub(super) use reviews::{ApiReviews, Reviews};
pub use serving::{ServingCert, ServingCertError};
pub use subject::fuzz as fuzz_certificate;
use user::User;
pub use websocket::fuzz as fuzz_token;

/// Why the rules of access cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Tokens are to be reviewed by an API server that there is none of.
    // k8s: cmd/kubelet/app/auth.go BuildAuthn
    #[error(
        "authentication.webhook.enabled: no client provided, cannot use webhook authentication; \
         give --kubeconfig or set it to false"
    )]
    NoTokenReviews,
    /// Access is to be reviewed by an API server that there is none of.
    // k8s: cmd/kubelet/app/auth.go BuildAuthz
    #[error(
        "authorization.mode: no client provided, cannot use webhook authorization; \
         give --kubeconfig or set it to AlwaysAllow"
    )]
    NoAccessReviews,
    /// The authorities of client certificates cannot be read.
    #[error("authentication.x509.clientCAFile {path}: {reason}")]
    ClientCa {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Lets requests in or turns them away.
pub(super) struct Gate {
    authenticator: Authenticator,
    authorizer: Authorizer,
}

/// A request that was turned away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Denial {
    /// Nobody that is known.
    Unauthenticated,
    /// Too many questions to the API server wait.
    Busy,
    /// Somebody without the right.
    Forbidden { user: String, verb: &'static str, subresources: Vec<&'static str> },
    /// The API server could not be asked.
    Undecided { user: String, verb: &'static str, subresource: &'static str },
}

impl Gate {
    /// The rules that the configuration asks for.
    pub(super) fn new(config: &Config, reviews: Arc<dyn Reviews>) -> Result<Self, AccessError> {
        let authentication = &config.kubelet.authentication;
        let authenticator = Authenticator::new(authentication, reviews.clone())?;
        Ok(Self {
            authenticator,
            authorizer: Authorizer::new(
                &config.kubelet.authorization,
                config.node_name.clone(),
                reviews,
            ),
        })
    }

    /// Whether the configuration can be served without an API server.
    pub(super) fn check(config: &Config) -> Result<(), AccessError> {
        if !config.is_standalone() {
            return Ok(());
        }
        if config.kubelet.authentication.webhook.enabled {
            return Err(AccessError::NoTokenReviews);
        }
        if authz::asks(&config.kubelet.authorization) {
            return Err(AccessError::NoAccessReviews);
        }
        Ok(())
    }

    /// The name in the client's certificate, if that holds.
    pub(super) fn name(&self, peer: &Peer) -> Option<String> {
        self.authenticator.name(peer)
    }

    /// Decides about one request. `path` is the decoded path, by which it is routed, too.
    // k8s: pkg/kubelet/server/server.go InstallAuthFilter
    pub(super) async fn admit(
        &self,
        head: &request::Parts,
        path: &str,
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
        let wanted = attributes(head.method.as_str(), path);
        for &subresource in &wanted.subresources {
            let asked = (wanted.verb, subresource, path);
            match self.authorizer.allows(&user, asked).await {
                Ok(true) => return Ok(user),
                Ok(false) => {}
                Err(AuthzError::Busy) => return Err(Denial::Busy),
                Err(AuthzError::Undecided(error)) => {
                    tracing::warn!(error, user = user.name, "access cannot be decided");
                    let (user, verb) = (user.name, wanted.verb);
                    return Err(Denial::Undecided { user, verb, subresource });
                }
            }
        }
        let (verb, subresources) = (wanted.verb, wanted.subresources);
        tracing::debug!(user = user.name, verb, ?subresources, "forbidden");
        Err(Denial::Forbidden { user: user.name, verb, subresources })
    }
}

/// Takes a request's credentials away once it is decided about: nobody behind needs them.
pub(super) fn strip_credentials(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    websocket::strip(headers);
}

impl From<Denial> for Answer {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::Unauthenticated => Self::text(401, "Unauthorized"),
            Denial::Busy => Self::text(429, "too many requests wait for a review, try again\n"),
            Denial::Forbidden { user, verb, subresources } => Self::text(
                403,
                format!(
                    "Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
                    subresources.join(" ")
                ),
            ),
            Denial::Undecided { user, verb, subresource } => Self::text(
                500,
                format!(
                    "Authorization error (user={user}, verb={verb}, resource=nodes, \
                     subresource={subresource})"
                ),
            ),
        }
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}
