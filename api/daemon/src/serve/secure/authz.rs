//! Authorizes a user: everything, or the API server's answers to access reviews.
//!
//! Some groups may do everything; without an API server no other user may do anything. Answers are
//! cached, "yes" for `cacheAuthorizedTTL` and "no" for `cacheUnauthorizedTTL`. Equal questions that
//! come together are asked once. Bounds: `ENTRIES_MAX` answers; requests whose description is
//! longer than `REMEMBERED_BYTES_MAX` are reviewed each time.
// k8s: staging/src/k8s.io/apiserver/plugin/pkg/authorizer/webhook/webhook.go Authorize

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};

use super::super::connections::PeerKey;
use super::flights::{Flights, NoAnswer};
use super::reviews::Reviews;
use super::ttl_cache::{ENTRIES_MAX, TtlCache};
use super::user::User;
use super::{ReviewedObject, Rules};

/// Longest description of user and request that is cached.
// k8s: the same file, shouldCache (10000)
const REMEMBERED_BYTES_MAX: usize = 10_000;

type Question = (User, &'static str, ReviewedObject);

/// Decides what a user may do.
pub(super) struct Authorizer {
    may_all: &'static [&'static str],
    nobody_to_ask: bool,
    webhook: Option<Webhook>,
}

struct Webhook {
    reviews: Arc<dyn Reviews>,
    allowed_ttl: Duration,
    denied_ttl: Duration,
    known: Mutex<TtlCache<Question, bool>>,
    flights: Flights<Question, bool>,
}

/// Reason why there is no decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AuthzError {
    /// The API server could not be asked.
    Undecided(String),
    /// Too many reviews wait.
    Busy,
}

impl From<NoAnswer> for AuthzError {
    fn from(none: NoAnswer) -> Self {
        match none {
            NoAnswer::Busy => Self::Busy,
            NoAnswer::Failed(error) => Self::Undecided(error.to_string()),
        }
    }
}

impl Authorizer {
    /// An authorizer with these rules.
    pub(super) fn new(rules: &Rules, reviews: Arc<dyn Reviews>) -> Self {
        let webhook = rules.rights.map(|(allowed_ttl, denied_ttl)| Webhook {
            reviews,
            allowed_ttl,
            denied_ttl,
            known: Mutex::new(TtlCache::new(ENTRIES_MAX)),
            flights: Flights::new(),
        });
        Self { may_all: rules.may_all, nobody_to_ask: rules.nobody_to_ask, webhook }
    }

    /// Returns true if the user may; an error when no review was possible.
    pub(super) async fn allows(
        &self,
        user: &User,
        verb: &'static str,
        object: &ReviewedObject,
        path: &str,
    ) -> Result<bool, AuthzError> {
        let Some(webhook) = &self.webhook else { return Ok(true) };
        // k8s: staging/src/k8s.io/apiserver/pkg/server/options/authorization.go toAuthorizer
        if user.groups.iter().any(|group| self.may_all.contains(&group.as_str())) {
            return Ok(true);
        }
        if self.nobody_to_ask {
            return Ok(false);
        }
        let question = (user.clone(), verb, object.clone());
        let known = || webhook.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(allowed) = known().get(&question, Instant::now()) {
            return Ok(allowed);
        }
        let (spec, reviews) = (spec(user, verb, object), Arc::clone(&webhook.reviews));
        let ask = || async move { reviews.access(spec).await.map(allowed) }.boxed();
        let allowed =
            webhook.flights.answer(question.clone(), PeerKey::named(&user.name), ask).await?;
        let ttl = if allowed { webhook.allowed_ttl } else { webhook.denied_ttl };
        if bytes(user) + path.len() <= REMEMBERED_BYTES_MAX {
            known().put(question, allowed, ttl, Instant::now());
        }
        Ok(allowed)
    }
}

fn allowed(answer: SubjectAccessReviewStatus) -> bool {
    if let Some(error) = answer.evaluation_error.filter(|e| !e.is_empty()) {
        tracing::debug!(error, "the access review was made in part");
    }
    answer.allowed
}

fn spec(user: &User, verb: &str, object: &ReviewedObject) -> SubjectAccessReviewSpec {
    let verb = Some(verb.to_owned());
    let (resource_attributes, non_resource_attributes) = match object {
        ReviewedObject::Node { name, subresource } => {
            let attributes = ResourceAttributes {
                verb,
                version: Some("v1".to_owned()),
                resource: Some("nodes".to_owned()),
                subresource: Some((*subresource).to_owned()),
                name: Some(name.to_string()),
                ..ResourceAttributes::default()
            };
            (Some(attributes), None)
        }
        ReviewedObject::Path(path) => {
            (None, Some(NonResourceAttributes { path: Some(path.clone()), verb }))
        }
    };
    SubjectAccessReviewSpec {
        user: Some(user.name.clone()),
        uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
        groups: Some(user.groups.clone()),
        extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
        resource_attributes,
        non_resource_attributes,
    }
}

fn bytes(user: &User) -> usize {
    let extra = user.extra.iter().flat_map(|(key, values)| values.iter().chain([key]));
    let texts = user.groups.iter().chain(extra).map(String::len).sum::<usize>();
    user.name.len() + user.uid.len() + texts
}

#[cfg(test)]
mod tests {
    use super::super::reviews::ApiReviews;
    use super::*;

    async fn allows(group: &str, nobody_to_ask: bool) -> Result<bool, AuthzError> {
        let rights = Some((Duration::ZERO, Duration::ZERO));
        let rules = Rules { rights, nobody_to_ask, may_all: &["masters"], ..Rules::default() };
        let authorizer = Authorizer::new(&rules, Arc::new(ApiReviews::new(None, String::new())));
        let user = User { groups: vec![group.to_owned()], ..User::default() };
        let object = ReviewedObject::Path("/metrics".to_owned());
        authorizer.allows(&user, "get", &object, "/metrics").await
    }

    #[tokio::test]
    async fn masters_need_no_review_and_other_users_are_denied_without_an_api_server() {
        assert_eq!(allows("masters", false).await, Ok(true));
        assert_eq!(allows("others", true).await, Ok(false));
        let undecided = allows("others", false).await;
        assert!(matches!(undecided, Err(AuthzError::Undecided(_))), "{undecided:?}");
    }
}
