//! Tokens of service accounts, bound to their pods, renewed before they expire.
//!
//! A token is requested when it is first needed, and again after four fifths of its life or a day,
//! whichever comes first. There is one timer for all tokens: when a token is due, its pod is
//! notified, and the refresh of the pod's volumes requests the token here again. If a renewal
//! fails, the old token is used until it expires. Tokens are kept only in memory and never logged.
//!
//! Effects, except for `refresh_at`. Owner: `Objects`. Bound: the tokens of registered pods.
// k8s: pkg/kubelet/token/token_manager.go

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use pintle_agent_core::types::{PodUid, UnixNanos};
use pintle_agent_core::volume::payload::TokenRequest;
use pintle_agent_core::worker::PodsInput;
use pintle_api::TenantShare;
use pintle_daemon::clock;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Notify, mpsc};

use super::wire::{self, RetryPace, WireError};

/// Longest use of a token, however long its life.
// k8s: pkg/kubelet/token/token_manager.go maxTTL
const USE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Life of a token if the request has none.
// k8s: pkg/apis/authentication/v1/defaults.go SetDefaults_TokenRequestSpec
const DEFAULT_SECONDS: i64 = 3600;
/// Renewals of many pods are spread over this time.
// k8s: pkg/kubelet/token/token_manager.go maxJitter
const JITTER_MAX: Duration = Duration::from_secs(10);
/// Wait before a pod with a due token is notified again. Where the clocks of node and API server
/// differ by more than a fifth of a token's life, each token is due as soon as it is issued.
const NOTIFY_AGAIN: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 60_000 });
/// Longest sleep of the timer; a changed wall clock is noticed after it at the latest.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Attempts while the API server does not know the pod yet, and the waits between them.
const ATTEMPTS_MAX: u32 = 5;
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(800));

/// The answer to a request.
#[derive(Deserialize)]
struct TokenWire {
    spec: SpecWire,
    status: TokenRequestStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecWire {
    expiration_seconds: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenRequestStatus {
    token: String,
    expiration_timestamp: jiff::Timestamp,
}

/// Reason why a service account has no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The API server does not issue one.
    #[error("failed to fetch token: {0}")]
    Fetch(String),
    /// The last token has expired, and the API server does not issue another.
    #[error("token expired and refresh failed: {0}")]
    Expired(String),
}

struct PodToken {
    text: Rc<str>,
    ends_at: UnixNanos,
    due_at: UnixNanos,
    /// Time of the next notification of its pod.
    notify_at: UnixNanos,
}

/// Identifies a token of a pod; the account's name follows from the pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TokenKey {
    /// The audience; empty for the API server's default.
    pub(super) audience: String,
    /// The requested life; `None` leaves it to the API server. No file contains such a token, so
    /// its pod is not notified when it is due.
    pub(super) expiration_seconds: Option<i64>,
    /// The uid that the account must have; empty for any.
    pub(super) account_uid: String,
}

impl TokenKey {
    /// The token of a volume.
    pub(super) fn of_volume(request: &TokenRequest) -> Self {
        Self {
            audience: request.audience.clone(),
            expiration_seconds: Some(request.expiration_seconds),
            account_uid: String::new(),
        }
    }
}

type OfPod = BTreeMap<TokenKey, PodToken>;

#[derive(Default)]
struct State {
    tokens: RefCell<BTreeMap<PodUid, OfPod>>,
    changed: Notify,
}

/// The tokens of all pods.
pub(super) struct Tokens {
    client: Client,
    state: Rc<State>,
}

/// The time to renew a token that expires at `ends_at` after `seconds` of life.
// k8s: pkg/kubelet/token/token_manager.go requiresRefresh
pub(super) fn refresh_at(ends_at: UnixNanos, seconds: i64, jitter: Duration) -> UnixNanos {
    let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    let life = seconds.saturating_mul(1_000_000_000);
    let fifth = (seconds / 5).saturating_mul(1_000_000_000);
    let day = ends_at.0.saturating_sub(life).saturating_add(nanos(USE_MAX));
    UnixNanos(day.min(ends_at.0.saturating_sub(fifth)).saturating_sub(nanos(jitter)))
}

impl Tokens {
    /// Tokens from the API server behind `client`.
    pub(super) fn new(client: Client, inputs: mpsc::Sender<PodsInput>) -> Self {
        let state = Rc::<State>::default();
        pintle_daemon::tasks::singleton("tokens", remind(Rc::downgrade(&state), inputs));
        Self { client, state }
    }

    /// A token of a pod's service account.
    pub(super) async fn token(
        &self,
        uid: &PodUid,
        pod: &Pod,
        key: &TokenKey,
    ) -> Result<Rc<str>, TokenError> {
        self.token_with_end(uid, pod, key).await.map(|(text, _)| text)
    }

    /// A token of a pod's service account, and when it expires.
    pub(super) async fn token_with_end(
        &self,
        uid: &PodUid,
        pod: &Pod,
        key: &TokenKey,
    ) -> Result<(Rc<str>, UnixNanos), TokenError> {
        let now = clock::now();
        let old = {
            let tokens = self.state.tokens.borrow();
            let token = tokens.get(uid).and_then(|tokens| tokens.get(key));
            token.map(|token| (Rc::clone(&token.text), token.due_at, token.ends_at))
        };
        if let Some((text, _, ends_at)) = old.as_ref().filter(|(_, due_at, _)| now < *due_at) {
            return Ok((Rc::clone(text), *ends_at));
        }
        match self.request(uid, pod, key).await {
            Ok(token) => {
                let (text, ends_at) = (Rc::clone(&token.text), token.ends_at);
                let mut tokens = self.state.tokens.borrow_mut();
                tokens.entry(uid.clone()).or_default().insert(key.clone(), token);
                self.state.changed.notify_one();
                Ok((text, ends_at))
            }
            Err(error) => match old {
                None => Err(TokenError::Fetch(error.to_string())),
                Some((text, _, ends_at)) if now < ends_at => {
                    tracing::warn!(pod = %uid, %error, "could not renew a valid token");
                    Ok((text, ends_at))
                }
                Some(_) => Err(TokenError::Expired(error.to_string())),
            },
        }
    }

    /// Forgets the tokens of a pod.
    pub(super) fn forget(&self, uid: &PodUid) {
        self.state.tokens.borrow_mut().remove(uid);
    }

    async fn request(
        &self,
        uid: &PodUid,
        pod: &Pod,
        key: &TokenKey,
    ) -> Result<PodToken, WireError> {
        let account =
            pintle_api_types::pod::spec(pod).service_account_name.as_deref().unwrap_or_default();
        let namespace = pintle_api_types::pod::namespace(pod);
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let audiences: &[&str] = match key.audience.as_str() {
            "" => &[],
            audience => &[audience],
        };
        let metadata = match key.account_uid.as_str() {
            "" => json!({}),
            uid => json!({"uid": uid}),
        };
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": metadata,
            "spec": {
                "audiences": audiences,
                "expirationSeconds": key.expiration_seconds,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pintle_api_types::pod::name(pod),
                    "uid": uid.as_str(),
                },
            },
        });
        let answer =
            self.ask(&TenantShare::of(uid.as_str()), &path, body.to_string().into_bytes()).await?;
        let ends_at = answer.status.expiration_timestamp.as_nanosecond();
        let ends_at = UnixNanos(i64::try_from(ends_at).unwrap_or(i64::MAX));
        let asked = key.expiration_seconds.unwrap_or(DEFAULT_SECONDS);
        let seconds = answer.spec.expiration_seconds.unwrap_or(asked);
        let due_at = refresh_at(ends_at, seconds, jitter(uid));
        let notify_at = match key.expiration_seconds {
            Some(_) => due_at.max(clock::now().plus(NOTIFY_AGAIN)),
            None => UnixNanos(i64::MAX),
        };
        Ok(PodToken { text: answer.status.token.into(), ends_at, due_at, notify_at })
    }

    /// Requests a token, again if the API server forbids it: its node authorizer allows the request
    /// only after it has observed that the pod is bound, which may be later than in this agent.
    async fn ask(
        &self,
        share: &TenantShare,
        path: &str,
        body: Vec<u8>,
    ) -> Result<TokenWire, WireError> {
        let mut pace = RetryPace::new(RETRY.0, RETRY.1);
        for _ in 1..ATTEMPTS_MAX {
            match wire::create::<TokenWire>(&self.client, share, path, body.clone()).await {
                Err(WireError::Forbidden(_)) => pace.wait().await,
                done => return done,
            }
        }
        wire::create(&self.client, share, path, body).await
    }
}

/// The jitter of a pod's renewals: always the same for a pod, and different between pods.
fn jitter(uid: &PodUid) -> Duration {
    let hash = uid.as_str().bytes().fold(7_u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
    JITTER_MAX * (hash % 1024) / 1024
}

/// Notifies pods with due tokens.
async fn remind(state: Weak<State>, inputs: mpsc::Sender<PodsInput>) {
    while let Some(strong) = state.upgrade() {
        let (due, next) = strong.due(clock::now());
        for uid in due {
            if inputs.send(PodsInput::Content { uid, files: true }).await.is_err() {
                return;
            }
        }
        let sleep = next.since(clock::now()).min(SLEEP_MAX);
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = strong.changed.notified() => {}
        }
    }
}

impl State {
    /// Pods to notify now, and the time of the next check.
    fn due(&self, now: UnixNanos) -> (BTreeSet<PodUid>, UnixNanos) {
        let (mut due, mut next) = (BTreeSet::new(), now.plus(SLEEP_MAX));
        for (uid, tokens) in self.tokens.borrow_mut().iter_mut() {
            for token in tokens.values_mut() {
                if token.notify_at <= now {
                    due.insert(uid.clone());
                    token.notify_at = now.plus(NOTIFY_AGAIN);
                }
                next = next.min(token.notify_at);
            }
        }
        (due, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_after_four_fifths_of_its_life_or_a_day() {
        let second = 1_000_000_000;
        let day = 24 * 3600;
        let table = [
            // life, jitter, seconds after its issue
            (3600, 0, 2880),
            (3607, 0, 2886),
            (600, 0, 480),
            (600, 10, 470),
            (day, 0, day * 4 / 5),
            (2 * day, 0, day),
            (365 * day, 10, day - 10),
        ];
        for (life, jitter, want) in table {
            let ends_at = UnixNanos((1_000_000 + life) * second);
            let at = refresh_at(ends_at, life, Duration::from_secs(jitter));
            assert_eq!(at, UnixNanos((1_000_000 + want) * second), "{life} s");
        }
    }

    #[test]
    fn renewal_time_of_an_extreme_life_does_not_overflow() {
        let end = UnixNanos(1_000_000_000);
        for seconds in [i64::MAX, i64::MIN] {
            let _ = refresh_at(end, seconds, Duration::ZERO);
        }
        assert!(refresh_at(end, i64::MAX, Duration::ZERO) < end);
    }

    #[test]
    fn jitter_is_fixed_for_a_pod_and_limited() {
        let of = |uid: &str| jitter(&PodUid::from(uid));
        assert_eq!(of("a"), of("a"));
        assert_ne!(of("aaaa-1"), of("aaaa-2"));
        assert!((0..200).all(|n| of(&format!("pod-{n}")) < JITTER_MAX));
    }

    #[test]
    fn pod_is_notified_of_its_due_token_and_again_only_after_an_interval() {
        let state = State::default();
        let token = |due_at: i64| PodToken {
            text: "t".into(),
            ends_at: UnixNanos(due_at * 2),
            due_at: UnixNanos(due_at),
            notify_at: UnixNanos(due_at),
        };
        let uid = PodUid::from("u");
        let key = TokenKey {
            audience: String::new(),
            expiration_seconds: Some(3600),
            account_uid: String::new(),
        };
        state.tokens.borrow_mut().entry(uid.clone()).or_default().insert(key, token(1_000));
        let (due, next) = state.due(UnixNanos(999));
        assert_eq!((due.len(), next), (0, UnixNanos(1_000)));
        let (due, next) = state.due(UnixNanos(1_000));
        assert_eq!(due, BTreeSet::from([uid]));
        assert_eq!(next, UnixNanos(1_000).plus(NOTIFY_AGAIN));
        assert_eq!(state.due(UnixNanos(1_001)).0.len(), 0);
    }
}
