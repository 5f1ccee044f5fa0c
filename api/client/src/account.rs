//! The token of a service account, asked for when it is needed.
//!
//! Input: a client that may create tokens. Output: a bearer token that holds now. A token is
//! renewed after `RENEW_AFTER` of its life, and at once when the server refuses it. While a renewal
//! fails, the token before stays in use until its end. Owner: one per account. Bounds: one renewal
//! at a time, `TRIES` requests each.
// k8s: staging/src/k8s.io/controller-manager/pkg/clientbuilder/client_builder_dynamic.go

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};

/// The life that is asked for, in seconds.
const LIFE_SECS: i64 = 3600;
/// The least life that is believed: a shorter one means that two clocks differ.
const LIFE_LEAST: Duration = Duration::from_secs(600);
/// The part of its life after which a token is renewed.
const RENEW_AFTER: f64 = 0.8;
/// Pauses before each try.
const TRIES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// Pause after a renewal that failed while the token before still holds.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Longest wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The token of a service account.
pub(crate) struct AccountToken {
    client: kube::Client,
    namespace: String,
    name: String,
    state: Mutex<State>,
    renewal: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    token: Option<MountedToken>,
    /// Counts tokens: the last one's number.
    run: u64,
}

#[derive(Clone)]
struct MountedToken {
    text: Arc<str>,
    run: u64,
    renew_at: Instant,
    ends_at: Instant,
}

/// The step that a request needs at this moment.
enum Need {
    /// This token holds.
    Use(MountedToken),
    /// This token holds, and its renewal is due.
    Renew(MountedToken),
    /// There is no valid token.
    Ask,
}

impl State {
    fn need(&self, now: Instant) -> Need {
        match &self.token {
            Some(token) if now < token.renew_at => Need::Use(token.clone()),
            Some(token) if now < token.ends_at => Need::Renew(token.clone()),
            _ => Need::Ask,
        }
    }

    fn put(&mut self, text: &str, life: Duration, now: Instant) -> MountedToken {
        self.run += 1;
        let life = life.max(LIFE_LEAST);
        let token = MountedToken {
            text: text.into(),
            run: self.run,
            renew_at: now + life.mul_f64(RENEW_AFTER),
            ends_at: now + life,
        };
        self.token = Some(token.clone());
        token
    }
}

impl AccountToken {
    /// Nothing is asked yet.
    pub(crate) fn new(client: kube::Client, namespace: &str, name: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            state: Mutex::default(),
            renewal: tokio::sync::Mutex::new(()),
        }
    }

    /// A token that holds, and its number.
    pub(crate) async fn credential(&self) -> io::Result<(Arc<str>, u64)> {
        let renewing = match self.need() {
            Need::Use(token) => return Ok((token.text, token.run)),
            // The requests beside the one that renews go on with the token before.
            Need::Renew(token) => match self.renewal.try_lock() {
                Ok(renewing) => renewing,
                Err(_) => return Ok((token.text, token.run)),
            },
            Need::Ask => self.renewal.lock().await,
        };
        let token = match self.need() {
            Need::Use(token) => token,
            Need::Renew(before) => match self.renew().await {
                Ok(token) => token,
                Err(error) => {
                    tracing::warn!(%error, "the earlier token stays in use");
                    self.postpone();
                    before
                }
            },
            Need::Ask => self.renew().await?,
        };
        drop(renewing);
        Ok((token.text, token.run))
    }

    /// The server refused the token of that number.
    pub(crate) fn refused(&self, run: u64) {
        let mut state = self.state();
        if state.token.as_ref().is_some_and(|token| token.run == run) {
            state.token = None;
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn need(&self) -> Need {
        self.state().need(Instant::now())
    }

    fn postpone(&self) {
        if let Some(token) = &mut self.state().token {
            token.renew_at = Instant::now() + RETRY_AFTER;
        }
    }

    async fn renew(&self) -> io::Result<MountedToken> {
        let mut last = None;
        for pause in TRIES {
            tokio::time::sleep(pause).await;
            match tokio::time::timeout(ANSWER_MAX, self.ask()).await {
                Ok(Ok((text, life))) => return Ok(self.state().put(&text, life, Instant::now())),
                Ok(Err(error)) => last = Some(error.to_string()),
                Err(_) => last = Some(format!("no answer within {} s", ANSWER_MAX.as_secs())),
            }
        }
        let (namespace, name) = (&self.namespace, &self.name);
        let problem = last.unwrap_or_default();
        Err(io::Error::other(format!("no token for {namespace}/{name}: {problem}")))
    }

    /// Asks for a token; the account is created if there is none.
    async fn ask(&self) -> kube::Result<(String, Duration)> {
        let answer = match self.token().await {
            Err(error) if is_not_found(&error) => {
                self.create().await?;
                self.token().await?
            }
            answer => answer?,
        };
        let status = answer.status.unwrap_or_default();
        // Without an end it is renewed after the least life.
        let end = status.expiration_timestamp.map_or(0, |end| end.0.as_second());
        let life = end.saturating_sub(Timestamp::now().as_second());
        let life = Duration::from_secs(u64::try_from(life).unwrap_or(0));
        Ok((status.token.unwrap_or_default(), life))
    }

    async fn token(&self) -> kube::Result<TokenRequest> {
        let spec =
            TokenRequestSpec { expiration_seconds: Some(LIFE_SECS), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        accounts.create_subresource("token", &self.name, &PostParams::default(), &request).await
    }

    // k8s: client_builder_dynamic.go getOrCreateServiceAccount
    async fn create(&self) -> kube::Result<()> {
        let meta = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let params = PostParams::default();
        let account = ServiceAccount { metadata: meta(&self.name), ..ServiceAccount::default() };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        match accounts.create(&params, &account).await {
            Ok(_) => return Ok(()),
            Err(error) if is_conflict(&error) => return Ok(()),
            Err(error) if !is_not_found(&error) => return Err(error),
            Err(_) => {}
        }
        // The namespace is missing in a cluster that has just begun.
        let namespace = Namespace { metadata: meta(&self.namespace), ..Namespace::default() };
        let made = Api::<Namespace>::all(self.client.clone()).create(&params, &namespace).await;
        if let Err(error) = made.map(drop)
            && !is_conflict(&error)
        {
            tracing::warn!(%error, namespace = self.namespace, "the namespace cannot be created");
        }
        match accounts.create(&params, &account).await {
            Err(error) if !is_conflict(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_age_decides_between_use_renewal_and_discard() {
        let (mut state, start) = (State::default(), Instant::now());
        assert!(matches!(state.need(start), Need::Ask));
        let hour = Duration::from_secs(3600);
        let token = state.put("a", hour, start);
        for (seconds, expected) in [(0, "use"), (2879, "use"), (2881, "renew"), (3601, "ask")] {
            let need = match state.need(start + Duration::from_secs(seconds)) {
                Need::Use(found) if found.run == token.run => "use",
                Need::Renew(found) if found.run == token.run => "renew",
                Need::Ask => "ask",
                _ => "another token",
            };
            assert_eq!(need, expected, "{seconds} s");
        }
    }

    #[test]
    fn life_of_a_token_is_ten_minutes_at_least() {
        let (mut state, start) = (State::default(), Instant::now());
        state.put("a", Duration::ZERO, start);
        assert!(matches!(state.need(start + Duration::from_secs(400)), Need::Use(_)));
    }
}
