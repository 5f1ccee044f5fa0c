//! Asks the API server about tokens and rights. Effects.
//!
//! The client is made on the server's thread when it is first needed, so that its connection runs
//! there, and made again, once a review, when the API server no longer accepts it. Reviews that
//! fail for a transient reason are repeated: `TRIES` attempts with growing pauses. A caller waits
//! meanwhile, so all other failures are returned at once.
// k8s: staging/src/k8s.io/apiserver/pkg/server/options/authentication.go
//      DefaultAuthWebhookRetryBackoff; apiserver/pkg/util/webhook/webhook.go DefaultShouldRetry

use std::time::Duration;

use futures_util::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::authorization::v1::{
    SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::Client;
use kube::api::{Api, PostParams};
use pintle_api::{Access, ClientOptions, is_broken};
use tokio::sync::Mutex;

/// Attempts of a review.
const TRIES: u32 = 5;
/// Pause after the first failure; half as long again after each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// Timeout of one attempt.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);
/// Too many requests, an error of the API server, no answer of those that it asked.
const PASSING: [u16; 3] = [429, 500, 504];
/// The API server does not accept our credentials.
const UNAUTHORIZED: u16 = 401;

/// Reason why a review has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// The daemon has no API server.
    #[error("there is no API server to ask")]
    NoServer,
    /// An attempt took this long.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The API server refused, or could not be reached; with all causes.
    #[error("{0}")]
    Failed(String),
    /// The answer is empty.
    #[error("the access review has no answer")]
    Empty,
}

/// Answers questions about tokens and permissions.
pub trait Reviews: Send + Sync {
    /// The user of a token.
    fn token(&self, token: String) -> BoxFuture<'_, Result<TokenReviewStatus, ReviewError>>;
    /// Checks a user's permission.
    fn access(
        &self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ReviewError>>;
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

    async fn client(&self) -> Result<Client, ReviewError> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let access = self.access.as_ref().ok_or(ReviewError::NoServer)?;
        let user_agent = self.user_agent.clone();
        let options = ClientOptions { user_agent, ..ClientOptions::default() };
        Ok(client.insert(access.client(options)).clone())
    }

    async fn review<R, F>(&self, ask: impl Fn(Client) -> F) -> Result<R, ReviewError>
    where
        F: Future<Output = kube::Result<R>>,
    {
        let mut pause = PAUSE_FIRST;
        let mut tried = 1;
        loop {
            let client = self.client().await?;
            let answer = tokio::time::timeout(ATTEMPT_MAX, ask(client)).await;
            let error = match answer.map_err(|_| ReviewError::Late(ATTEMPT_MAX))? {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let unknown = matches!(&error, kube::Error::Api(s) if s.code == UNAUTHORIZED);
            if unknown && let Ok(mut client) = self.client.try_lock() {
                *client = None;
            }
            if tried == TRIES || !(may_pass(&error) || (unknown && tried == 1)) {
                return Err(ReviewError::Failed(describe(&error)));
            }
            tokio::time::sleep(pause).await;
            pause = pause * 3 / 2;
            tried += 1;
        }
    }
}

impl Reviews for ApiReviews {
    fn token(&self, token: String) -> BoxFuture<'_, Result<TokenReviewStatus, ReviewError>> {
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
    ) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ReviewError>> {
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        Box::pin(async move {
            let review = &review;
            let answer = self.review(|client| async move {
                Api::all(client).create(&PostParams::default(), review).await
            });
            answer.await?.status.ok_or(ReviewError::Empty)
        })
    }
}

/// True if another attempt may succeed. A `Retry-After` was obeyed already.
fn may_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => PASSING.contains(&status.code),
        error => is_broken(error),
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Requests that one review costs at a server that answers all with this code; 0 for one that
    /// closes the connection.
    async fn requests(code: u16) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let count = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&count);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                counts.fetch_add(1, Ordering::SeqCst);
                let body = format!(r#"{{"kind":"Status","status":"Failure","code":{code}}}"#);
                let length = body.len();
                let answer = format!("HTTP/1.1 {code} X\r\ncontent-length: {length}\r\n\r\n{body}");
                if code > 0 {
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            }
        });
        let access = Access::anonymous(Path::new("x"), &format!("http://{address}"));
        let reviews = ApiReviews::new(Some(access.expect("a server")), String::new());
        let answer = reviews.access(SubjectAccessReviewSpec::default()).await;
        answer.expect_err("no answer");
        count.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn permanent_review_errors_are_reported_without_backoff() {
        for (code, want) in [(403, 1), (404, 1), (422, 1), (503, 1), (401, 2)] {
            assert_eq!(requests(code).await, want, "{code}");
        }
        let nobody = ApiReviews::new(None, String::new());
        let begun = tokio::time::Instant::now();
        nobody.token("t".to_owned()).await.expect_err("no API server");
        assert!(begun.elapsed() < PAUSE_FIRST);
    }

    #[tokio::test]
    async fn transient_review_errors_are_retried() {
        let tries = usize::try_from(TRIES).expect("few");
        let (busy, broken) = tokio::join!(requests(500), requests(0));
        assert_eq!((busy, broken), (tries, tries));
    }
}
