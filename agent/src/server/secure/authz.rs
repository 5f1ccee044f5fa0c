//! Who may do what: everything, or what the API server says in access reviews.
//!
//! Answers are remembered, "yes" for `cacheAuthorizedTTL` and "no" for `cacheUnauthorizedTTL`.
//! Bounds: `ENTRIES_MAX` answers; requests whose description is longer than `REMEMBERED_BYTES_MAX`
//! are asked about each time.
// k8s: staging/src/k8s.io/apiserver/plugin/pkg/authorizer/webhook/webhook.go Authorize

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};

use super::reviews::Reviews;
use super::ttl_cache::{ENTRIES_MAX, TtlCache};
use super::user::User;
use crate::config::modes::AuthorizationMode;
use crate::config::types::Authorization;

/// Longest description of who and what that is remembered.
// k8s: the same file, shouldCache (10000)
const REMEMBERED_BYTES_MAX: usize = 10_000;

type Question = (User, &'static str, &'static str);

/// Decides what a user may do.
pub(super) struct Authorizer {
    webhook: Option<Webhook>,
}

struct Webhook {
    node: String,
    reviews: Arc<dyn Reviews>,
    allowed_ttl: Duration,
    denied_ttl: Duration,
    known: Mutex<TtlCache<Question, bool>>,
}

/// Whether this mode asks the API server.
pub(super) fn asks(config: &Authorization) -> bool {
    config.mode != AuthorizationMode::AlwaysAllow
}

impl Authorizer {
    /// As the configuration asks for, about the node of this name.
    pub(super) fn new(config: &Authorization, node: String, reviews: Arc<dyn Reviews>) -> Self {
        let webhook = asks(config).then(|| Webhook {
            node,
            reviews,
            allowed_ttl: config.webhook.cache_authorized_ttl.to_std(),
            denied_ttl: config.webhook.cache_unauthorized_ttl.to_std(),
            known: Mutex::new(TtlCache::new(ENTRIES_MAX)),
        });
        Self { webhook }
    }

    /// Whether the user may; an error when nobody could be asked.
    pub(super) async fn allows(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
        path: &str,
    ) -> Result<bool, String> {
        let Some(webhook) = &self.webhook else { return Ok(true) };
        let question = (user.clone(), verb, subresource);
        let known = || webhook.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(allowed) = known().get(&question, Instant::now()) {
            return Ok(allowed);
        }
        let spec = webhook.spec(user, verb, subresource);
        let answer = webhook.reviews.access(spec).await?;
        if let Some(error) = answer.evaluation_error.filter(|e| !e.is_empty()) {
            tracing::debug!(error, "the access review was made in part");
        }
        let allowed = answer.allowed;
        let ttl = if allowed { webhook.allowed_ttl } else { webhook.denied_ttl };
        if bytes(user) + path.len() <= REMEMBERED_BYTES_MAX {
            known().put(question, allowed, ttl, Instant::now());
        }
        Ok(allowed)
    }
}

impl Webhook {
    fn spec(&self, user: &User, verb: &str, subresource: &str) -> SubjectAccessReviewSpec {
        SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
            groups: Some(user.groups.clone()),
            extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("nodes".to_owned()),
                subresource: Some(subresource.to_owned()),
                name: Some(self.node.clone()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        }
    }
}

fn bytes(user: &User) -> usize {
    let extra = user.extra.iter().flat_map(|(key, values)| values.iter().chain([key]));
    let texts = user.groups.iter().chain(extra).map(String::len).sum::<usize>();
    user.name.len() + user.uid.len() + texts
}
