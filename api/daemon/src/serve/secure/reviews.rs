//! Asks the API server about tokens and rights. Effects.
//!
//! The client is made on the server's thread when it is first needed, so that its connection runs
//! there, and made again when the API server no longer knows it. Failed reviews are repeated
//! `TRIES` times with growing pauses, as the kubelet's are.
// k8s: staging/src/k8s.io/apiserver/pkg/server/options/authentication.go
//      DefaultAuthWebhookRetryBackoff

use std::time::Duration;

use futures_util::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::authorization::v1::{
    SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::Client;
use kube::api::{Api, PostParams};
use pintle_api::{Access, ClientOptions};
use tokio::sync::Mutex;

/// Attempts of a review.
const TRIES: u32 = 5;
/// Pause after the first failure; half as long again after each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// How long one attempt may take.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);
/// The API server does not know who asks.
const UNAUTHORIZED: u16 = 401;

/// Who answers about tokens and rights.
pub trait Reviews: Send + Sync {
    /// Whose token it is.
    fn token(&self, token: String) -> BoxFuture<'_, Result<TokenReviewStatus, String>>;
    /// Whether somebody may do something.
    fn access(
        &self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, String>>;
}

/// The cluster's API server.
pub struct ApiReviews {
    access: Option<Access>,
    user_agent: String,
    client: Mutex<Option<Client>>,
}

impl ApiReviews {
    /// Nothing is read or sent yet.
    pub fn new(access: Option<Access>, user_agent: String) -> Self {
        Self { access, user_agent, client: Mutex::default() }
    }

    async fn client(&self) -> Result<Client, String> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let access = self.access.as_ref().ok_or("there is no API server to ask")?;
        let user_agent = self.user_agent.clone();
        let options = ClientOptions { user_agent, ..ClientOptions::default() };
        Ok(client.insert(access.client(options)).clone())
    }

    async fn review<R, F>(&self, ask: impl Fn(Client) -> F) -> Result<R, String>
    where
        F: Future<Output = kube::Result<R>>,
    {
        let mut pause = PAUSE_FIRST;
        let mut tried = 1;
        loop {
            let attempt = async {
                ask(self.client().await?).await.map_err(|error| {
                    let unknown = matches!(&error, kube::Error::Api(s) if s.code == UNAUTHORIZED);
                    if unknown && let Ok(mut client) = self.client.try_lock() {
                        *client = None;
                    }
                    describe(&error)
                })
            };
            let error = match tokio::time::timeout(ATTEMPT_MAX, attempt).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(_) => format!("no answer within {ATTEMPT_MAX:?}"),
            };
            if tried == TRIES {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = pause * 3 / 2;
            tried += 1;
        }
    }
}

impl Reviews for ApiReviews {
    fn token(&self, token: String) -> BoxFuture<'_, Result<TokenReviewStatus, String>> {
        let spec = TokenReviewSpec { token, audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        Box::pin(async move {
            let review = &review;
            let answer = self.review(|client| async move {
                Api::all(client).create(&PostParams::default(), review).await
            });
            Ok(answer.await?.status.unwrap_or_default())
        })
    }

    fn access(
        &self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, String>> {
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        Box::pin(async move {
            let review = &review;
            let answer = self.review(|client| async move {
                Api::all(client).create(&PostParams::default(), review).await
            });
            answer.await?.status.ok_or_else(|| "the access review has no answer".to_owned())
        })
    }
}

/// An error and its causes in one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
