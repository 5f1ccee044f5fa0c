//! Tokens in secrets: secrets of the type `kubernetes.io/service-account-token` get a token, a CA
//! bundle and their namespace, and go with their service account.
//!
//! Reads service accounts and these secrets. Writes: updates and deletions of these secrets, and
//! updates of service accounts that reference a deleted secret. Such tokens never expire;
//! pods get theirs from TokenRequest.
// k8s: pkg/controller/serviceaccount/tokens_controller.go

mod der;
mod signer;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{Kind, SERVICE_ACCOUNTS, TOKEN_SECRETS};
use pintle_api_types::request::{ApiError, DeleteOptions, Request, Target};
use pintle_controllers_core::frame::{
    Controller, Now, QueueKey, Retry, SyncError, SyncOutcome, Transcript, TranscriptStop, Wakes,
};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::TokenSecret;
use pintle_controllers_core::meta::{Meta, Uid};
use pintle_controllers_core::tables::{Change, Tables};
use serde_json::{Value, json};

pub use signer::{SigningKeyError, TokenSigner};

const NAME_ANNOTATION: &str = "kubernetes.io/service-account.name";
const UID_ANNOTATION: &str = "kubernetes.io/service-account.uid";
/// Attempts to remove a reference upon conflicts.
// k8s: pkg/controller/serviceaccount/tokens_controller.go RemoveTokenBackoff
const REMOVAL_ATTEMPTS: usize = 10;

/// The controller.
#[derive(Debug)]
pub struct ServiceAccountTokens {
    /// `--concurrent-serviceaccount-token-syncs`.
    pub workers: usize,
    /// The key of `--service-account-private-key-file`.
    pub signer: Rc<TokenSigner>,
    /// The bundle of `--root-ca-file`; empty when none is given.
    pub root_ca: Rc<[u8]>,
}

/// The unit of a sync: an account or a secret; either may be deleted already.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TokenKey {
    /// A service account.
    Account {
        /// Namespace and name.
        key: ObjectKey,
        /// The UID.
        uid: Uid,
    },
    /// A secret with a token.
    Secret {
        /// Namespace and name.
        key: ObjectKey,
        /// The UID.
        uid: Uid,
        /// The name of its account.
        account: Box<str>,
        /// The UID of its account; empty while it is not known.
        account_uid: Uid,
    },
}

impl QueueKey for TokenKey {
    fn tenant(&self) -> &str {
        let (Self::Account { key, .. } | Self::Secret { key, .. }) = self;
        key.namespace()
    }
}

/// The state that one sync reads.
#[derive(Debug)]
pub enum TokenWork {
    /// The account was deleted: delete these secrets.
    Purge(Vec<Target>, Vec<Uid>),
    /// The secret was deleted: its account may still reference it.
    Unreference {
        /// The account.
        account: AccountRef,
        /// The name of the secret.
        secret: String,
    },
    /// The secret may lack something.
    Fill(Box<Fill>),
}

/// The account that a secret names.
#[derive(Debug)]
pub struct AccountRef {
    key: ObjectKey,
    /// Empty when any will do.
    uid: Uid,
}

impl AccountRef {
    fn is(&self, uid: &str) -> bool {
        self.uid.as_str().is_empty() || self.uid.as_str() == uid
    }
}

/// A secret, its account, and what it is filled with.
#[derive(Debug)]
pub struct Fill {
    secret: Rc<KeptObject<TokenSecret>>,
    account: AccountRef,
    /// The UID of the account that is known by the name.
    known: Option<Uid>,
    /// The CA bundle in Base64.
    root_ca: String,
    signer: Rc<TokenSigner>,
    /// The token that was signed for some claims: signatures on curves are never the same twice.
    signed: RefCell<Option<SignedToken>>,
}

#[derive(Clone, Debug)]
struct SignedToken {
    claims: Value,
    token: String,
}

impl Controller for ServiceAccountTokens {
    type Key = TokenKey;
    type Snapshot = TokenWork;
    type Note = ();

    const NAME: &'static str = "serviceaccount-token-controller";
    const RETRIES_MAX: Option<u32> = Some(10);

    fn kinds(&self) -> Vec<Kind> {
        vec![SERVICE_ACCOUNTS, TOKEN_SECRETS]
    }

    // Upstream has as many workers for accounts as for secrets.
    fn workers(&self) -> usize {
        self.workers * 2
    }

    fn handle_change(&mut self, change: &Change, _: &Tables, _: Now, wake: &mut Wakes<TokenKey>) {
        match change {
            Change::ServiceAccount(delta) => {
                for account in [&delta.old, &delta.new].into_iter().flatten() {
                    let meta = &account.metadata;
                    wake.now(TokenKey::Account { key: meta.key(), uid: meta.uid.clone() });
                }
            }
            Change::TokenSecret(delta) => {
                let secret = delta.object();
                // k8s: tokens_controller.go parseSecretQueueKey
                if !secret.account_name().is_empty() {
                    wake.now(secret_key(secret));
                }
            }
            _ => {}
        }
    }

    fn snapshot(&mut self, key: &TokenKey, tables: &Tables, _: Now) -> Option<TokenWork> {
        match key {
            TokenKey::Account { key, uid } => purge(key, uid, tables),
            TokenKey::Secret { key, uid, account, account_uid } => {
                let account_key = ObjectKey::new(key.namespace(), account);
                let account = AccountRef { key: account_key, uid: account_uid.clone() };
                let known = tables.service_accounts.get(&account.key);
                let known = known.map(|known| known.metadata.uid.clone());
                let known = known.filter(|uid| account.is(uid.as_str()));
                let secret = tables.token_secrets.get(key);
                let Some(secret) = secret.filter(|secret| secret.metadata.uid == *uid) else {
                    let secret = key.name().to_owned();
                    return known.map(|_| TokenWork::Unreference { account, secret });
                };
                Some(TokenWork::Fill(Box::new(Fill {
                    secret: Rc::clone(secret),
                    account,
                    known,
                    root_ca: STANDARD.encode(&self.root_ca),
                    signer: Rc::clone(&self.signer),
                    signed: RefCell::default(),
                })))
            }
        }
    }

    fn sync(
        work: &TokenWork,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        match work {
            TokenWork::Purge(secrets, uids) => delete_all(secrets, uids, transcript)?,
            TokenWork::Unreference { account, secret } => unreference(account, secret, transcript)?,
            TokenWork::Fill(fill) => fill.sync(transcript)?,
        }
        Ok(SyncOutcome::done())
    }
}

fn secret_key(secret: &TokenSecret) -> TokenKey {
    TokenKey::Secret {
        key: secret.metadata.key(),
        uid: secret.metadata.uid.clone(),
        account: secret.account_name().into(),
        account_uid: secret.account_uid(),
    }
}

/// The secrets of a deleted account.
// k8s: tokens_controller.go listTokenSecrets
fn purge(key: &ObjectKey, uid: &Uid, tables: &Tables) -> Option<TokenWork> {
    let account = tables.service_accounts.get(key);
    if account.is_some_and(|account| account.metadata.uid == *uid) {
        return None;
    }
    let secrets = tables.token_secrets.in_namespace(key.namespace());
    let own = secrets
        .filter(|secret| secret.account_name() == key.name() && secret.account_uid() == *uid);
    let own: Vec<&Meta> = own.map(|secret| &secret.metadata).collect();
    let targets = own.iter().map(|meta| Target::object(TOKEN_SECRETS, meta.key())).collect();
    let uids = own.iter().map(|meta| meta.uid.clone()).collect();
    (!own.is_empty()).then_some(TokenWork::Purge(targets, uids))
}

// k8s: tokens_controller.go deleteToken
fn delete_all(
    targets: &[Target],
    uids: &[Uid],
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    transcript.because("the service account is gone");
    let requests = targets.iter().zip(uids).map(|(target, uid)| Request::Delete {
        target: target.clone(),
        options: DeleteOptions { uid: Some(uid.to_string()), ..DeleteOptions::default() },
    });
    let answers = transcript.send_all(requests.collect())?;
    let failures = answers.into_iter().filter_map(Result::err);
    let failures = failures.filter(|error| !error.is_not_found() && !error.is_conflict());
    let failures: Vec<_> = failures.map(|error| error.message).collect();
    match failures.is_empty() {
        true => Ok(()),
        false => Err(TranscriptStop::failed(failures.join(", "))),
    }
}

/// Removes the reference to a secret from its account.
// k8s: tokens_controller.go removeSecretReference
fn unreference(
    account: &AccountRef,
    secret: &str,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let target = Target::object(SERVICE_ACCOUNTS, account.key.clone());
    for _ in 0..REMOVAL_ATTEMPTS {
        let read = Request::Read { target: target.clone(), only_metadata: false };
        let mut live = match transcript.send(read)? {
            Ok(live) => live,
            Err(error) => return finally(error),
        };
        let references = live["secrets"].as_array().cloned().unwrap_or_default();
        let (removed, kept): (Vec<_>, Vec<_>) =
            references.into_iter().partition(|reference| reference["name"] == secret);
        if removed.is_empty() || !account.is(uid_of(&live)) {
            return Ok(());
        }
        transcript.because(format!("the secret {secret} is gone, and its account references it"));
        live["secrets"] = kept.into();
        match transcript.send(Request::Replace { target: target.clone(), body: live })? {
            Err(error) if error.is_conflict() => {}
            Err(error) => return finally(error),
            Ok(_) => return Ok(()),
        }
    }
    Ok(())
}

/// An error that is not retried.
fn finally(error: ApiError) -> Result<(), TranscriptStop> {
    match error.is_not_found() {
        true => Ok(()),
        false => {
            Err(TranscriptStop::Failed(SyncError { message: error.message, retry: Retry::Never }))
        }
    }
}

fn uid_of(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// The data that a secret lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lacks {
    ca: bool,
    namespace: bool,
    token: bool,
}

impl Lacks {
    fn is_nothing(self) -> bool {
        !self.ca && !self.namespace && !self.token
    }
}

impl Fill {
    fn sync(&self, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        let Some(account_uid) = self.find_account(transcript)? else {
            let target = Target::object(TOKEN_SECRETS, self.secret.metadata.key());
            return delete_all(
                &[target],
                std::slice::from_ref(&self.secret.metadata.uid),
                transcript,
            );
        };
        let data = &self.secret.data;
        let known = Lacks {
            ca: !self.root_ca.is_empty() && *data.ca != *self.root_ca,
            namespace: !data.has_namespace,
            token: !data.has_token,
        };
        if known.is_nothing() {
            return Ok(());
        }
        let target = Target::object(TOKEN_SECRETS, self.secret.metadata.key());
        let read = Request::Read { target: target.clone(), only_metadata: false };
        let live = match transcript.send(read)? {
            Ok(live) => live,
            Err(error) => return if error.is_not_found() { Ok(()) } else { Err(error.into()) },
        };
        let version = live["metadata"]["resourceVersion"].as_str();
        if version != Some(&*self.secret.metadata.version.to_string()) {
            transcript.because("the secret has changed; the watch will show it");
            return Ok(());
        }
        let Some(body) = self.filled(live, &account_uid)? else { return Ok(()) };
        transcript.because("the secret lacks a token, a CA bundle or its namespace");
        match transcript.send(Request::Replace { target, body })? {
            Err(error) if !error.is_conflict() && !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// The UID of the account: the known one, else that of a live read.
    // k8s: tokens_controller.go getServiceAccount
    fn find_account(&self, transcript: &mut Transcript) -> Result<Option<Uid>, TranscriptStop> {
        if self.known.is_some() {
            return Ok(self.known.clone());
        }
        let target = Target::object(SERVICE_ACCOUNTS, self.account.key.clone());
        match transcript.send(Request::Read { target, only_metadata: false })? {
            Ok(live) => Ok(Some(uid_of(&live)).filter(|uid| self.account.is(uid)).map(Uid::of)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The secret with all that it lacks; `None` when that is nothing.
    // k8s: tokens_controller.go generateTokenIfNeeded
    fn filled(&self, mut live: Value, account_uid: &Uid) -> Result<Option<Value>, TranscriptStop> {
        let text = |field: &str| live["data"][field].as_str().unwrap_or_default();
        let lacks = Lacks {
            ca: !self.root_ca.is_empty() && text("ca.crt") != self.root_ca,
            namespace: text("namespace").is_empty(),
            token: text("token").is_empty(),
        };
        if lacks.is_nothing() {
            return Ok(None);
        }
        let namespace = self.account.key.namespace();
        if lacks.ca {
            live["data"]["ca.crt"] = self.root_ca.as_str().into();
        }
        if lacks.namespace {
            live["data"]["namespace"] = STANDARD.encode(namespace).into();
        }
        if lacks.token {
            live["data"]["token"] = STANDARD.encode(self.token(account_uid)?).into();
        }
        let annotations = &mut live["metadata"]["annotations"];
        annotations[NAME_ANNOTATION] = self.account.key.name().into();
        annotations[UID_ANNOTATION] = account_uid.as_str().into();
        Ok(Some(live))
    }

    /// The token of the secret.
    // k8s: pkg/serviceaccount/legacy.go LegacyClaims
    fn token(&self, account_uid: &Uid) -> Result<String, TranscriptStop> {
        let (namespace, name) = (self.account.key.namespace(), self.account.key.name());
        let claims = json!({
            "iss": "kubernetes/serviceaccount",
            "kubernetes.io/serviceaccount/namespace": namespace,
            "kubernetes.io/serviceaccount/secret.name": &*self.secret.metadata.name,
            "kubernetes.io/serviceaccount/service-account.name": name,
            "kubernetes.io/serviceaccount/service-account.uid": account_uid.as_str(),
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
        });
        let mut signed = self.signed.borrow_mut();
        if let Some(known) = signed.as_ref().filter(|known| known.claims == claims) {
            return Ok(known.token.clone());
        }
        let token = self.signer.sign(&claims).map_err(|error| {
            let message = error.to_string();
            TranscriptStop::Failed(SyncError { message, retry: Retry::Never })
        })?;
        *signed = Some(SignedToken { claims, token: token.clone() });
        Ok(token)
    }
}
