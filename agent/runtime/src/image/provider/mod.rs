//! Credential provider plugins: programs that know the password of a registry.
//!
//! ```text
//!   config ─> validate ─> Settings          once, at the start
//!   image, pod ─> Provider ─> account ─> cache ─> exec ─> wire ─> Keyring     for each pull
//! ```
//! Input: an image that has to be pulled or verified, and the pod that wants it. Output: the
//! answers of the plugins configured for the image, as a keyring, which is tried after the pod's
//! secrets and the node's files. A plugin that fails adds nothing; the log has the reason. One run
//! of a program for an image and account is under way at a time, shared by all waiters.
//!
//! Effects: runs programs, reads service accounts and requests their tokens. Owner: `Images`.
//! Bounds: `exec::TIMEOUT` and `exec::OUTPUT_BYTES_MAX` a run, `cache::ENTRIES_MAX` answers a
//! plugin. Neither tokens nor passwords get into logs.
// k8s: pkg/credentialprovider/plugin/plugin.go, plugins.go

mod account;
mod cache;
mod config;
mod exec;
#[cfg(test)]
mod tests;
mod validate;
mod wire;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

pub use config::{ProviderDecodeError, ProviderWire, Settings, SettingsError, read, read_alone};
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared};
use k8s_openapi::api::core::v1::Pod;
use pintle_agent_cluster::objects::{AccountError, Accounts};

use account::AccountKey;
use cache::Cache;
use config::ProviderSettings;
use exec::PluginRunError;
use wire::{CacheKeyType, ProviderRequest, Response};

use pintle_agent_core::image::keyring::Keyring;
use pintle_agent_core::image::pull_credential::{Coordinates, CredentialSource, sha256_hex};
use pintle_agent_core::image::registry_match;
use pintle_agent_metrics::Metrics;
use pintle_api_types::pod;
use pintle_daemon::tasks;

/// User and password by registry, from a plugin.
type Logins = BTreeMap<String, (String, String)>;
type RunResult = Result<Rc<Response>, PluginRunError>;

/// Reason why a plugin gives no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ProviderError {
    #[error("failed to get credential from external registry credential provider: {0}")]
    Run(#[from] PluginRunError),
    #[error("failed to get service account: {0}")]
    Account(AccountError),
    #[error("failed to get service account token: {0}")]
    Token(AccountError),
    #[error(
        "credential provider plugin returned the service account token as the password which is \
         not allowed when service account cache type is not set to 'Token'"
    )]
    Echo,
    #[error("credential provider plugin did not return a valid cacheKeyType: {0}")]
    CacheKey(String),
}

/// Image, hash of the token, annotations: equal requests share the run.
type RunKey = (String, String, BTreeMap<String, String>);

/// All plugins of this node, in the order of their configuration.
pub struct Providers {
    all: Vec<Provider>,
    accounts: Box<dyn Accounts>,
}

impl Providers {
    /// The plugins that were configured.
    pub fn new(settings: &Settings, accounts: Box<dyn Accounts>, metrics: &Arc<Metrics>) -> Self {
        if let Some(hash) = &settings.hash {
            metrics.credential_providers().configured(hash);
        }
        let providers = settings.providers.iter();
        let all = providers.map(|settings| Provider::new(settings.clone(), metrics)).collect();
        Self { all, accounts }
    }

    /// The plugins' credentials for an image, which `of` of the keyring finds again.
    // k8s: pkg/credentialprovider/plugin/plugins.go Lookup
    pub async fn keyring(&self, image: &str, pod: &Pod) -> Keyring {
        let image = registry_match::repository(image);
        let mut keyring = Keyring::default();
        for provider in &self.all {
            match provider.provide(&image, pod, &*self.accounts).await {
                Ok((logins, source)) => {
                    for (registry, (username, password)) in &*logins {
                        keyring.add_login(registry, username, password, &source);
                    }
                }
                Err(error) => {
                    let (provider, pod) = (&provider.settings.name, pod::name(pod));
                    tracing::error!(provider, image, pod, "no credentials for an image: {error}");
                }
            }
        }
        keyring
    }
}

/// One plugin.
struct Provider {
    settings: Rc<ProviderSettings>,
    metrics: Arc<Metrics>,
    cache: RefCell<Cache>,
    runs: Rc<RefCell<BTreeMap<RunKey, SharedRun>>>,
}

type SharedRun = Shared<LocalBoxFuture<'static, RunResult>>;

/// A service account for which a plugin is called.
struct Caller {
    key: AccountKey,
    token: Rc<str>,
    token_hash: String,
    source: CredentialSource,
}

impl Provider {
    fn new(settings: ProviderSettings, metrics: &Arc<Metrics>) -> Self {
        Self {
            settings: Rc::new(settings),
            metrics: Arc::clone(metrics),
            cache: RefCell::new(Cache::new(Instant::now())),
            runs: Rc::default(),
        }
    }

    // k8s: pkg/credentialprovider/plugin/plugin.go provide
    async fn provide(
        &self,
        image: &str,
        pod: &Pod,
        accounts: &dyn Accounts,
    ) -> Result<(Rc<Logins>, CredentialSource), ProviderError> {
        let meant = |pattern: &String| registry_match::matches(pattern, image);
        if !self.settings.match_images.iter().any(meant) {
            return Ok((Rc::default(), CredentialSource::Node));
        }
        let account = pod::spec(pod).service_account_name.as_deref().unwrap_or_default();
        let caller = match &self.settings.token {
            None => None,
            Some(token) if account.is_empty() && token.require_service_account => {
                return Ok((Rc::default(), CredentialSource::Node));
            }
            Some(_) if account.is_empty() => None,
            Some(_) => match self.caller(pod, account, accounts).await? {
                Some(caller) => Some(caller),
                // An annotation by which accounts opt in is not there.
                None => return Ok((Rc::default(), CredentialSource::Node)),
            },
        };
        let key = caller.as_ref().map(|caller| caller.key.clone()).unwrap_or_default();
        let source = caller.as_ref().map_or(CredentialSource::Node, |caller| caller.source.clone());
        if let Some(logins) = self.cache.borrow_mut().find(image, &key, Instant::now()) {
            return Ok((logins, source));
        }
        let response = self.run(image, caller.as_ref()).await?;
        self.check_echo(&response, caller.as_ref())?;
        Ok((self.keep(image, key, &response)?, source))
    }

    /// The pod's service account with its token; `None` when a required annotation is missing.
    async fn caller(
        &self,
        pod: &Pod,
        name: &str,
        accounts: &dyn Accounts,
    ) -> Result<Option<Caller>, ProviderError> {
        let Some(attributes) = &self.settings.token else { return Ok(None) };
        let namespace = pod::namespace(pod);
        let account = accounts.account(namespace, name).await;
        let account = account.map_err(ProviderError::Account)?;
        let Some(annotations) = attributes.annotations(&account) else { return Ok(None) };
        let token = accounts.token(pod, &attributes.audience, &account.uid).await;
        let token = token.map_err(ProviderError::Token)?;
        let token_hash = format!("sha256:{}", sha256_hex(token.as_bytes()));
        let coordinates = Coordinates {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: account.uid,
        };
        let key = AccountKey {
            account: Some(coordinates.clone()),
            annotations,
            token_hash: attributes.per_token.then(|| token_hash.clone()),
        };
        Ok(Some(Caller {
            key,
            token,
            token_hash,
            source: CredentialSource::ServiceAccount(coordinates),
        }))
    }

    /// Joins the run for this image and account, or begins it.
    async fn run(&self, image: &str, caller: Option<&Caller>) -> RunResult {
        let hash = caller.map(|caller| caller.token_hash.clone()).unwrap_or_default();
        let annotations = caller.map(|caller| caller.key.annotations.clone()).unwrap_or_default();
        let key = (image.to_owned(), hash, annotations.clone());
        let under_way = self.runs.borrow().get(&key).cloned();
        if let Some(run) = under_way {
            return run.await;
        }
        let request = ProviderRequest {
            image: image.to_owned(),
            token: caller.map(|caller| Rc::clone(&caller.token)),
            annotations,
        };
        let (settings, metrics) = (Rc::clone(&self.settings), Arc::clone(&self.metrics));
        let (runs, own) = (Rc::clone(&self.runs), key.clone());
        let run = async move {
            let answer = tasks::caught(exec::run(&settings, &request, &metrics)).await;
            // Whatever the result, the next request starts a new run.
            runs.borrow_mut().remove(&own);
            match answer {
                Ok(answer) => answer.map(Rc::new),
                Err(panic) => {
                    tasks::counted("credential provider");
                    Err(PluginRunError::Panicked(panic.to_string()))
                }
            }
        };
        let run = run.boxed_local().shared();
        self.runs.borrow_mut().insert(key, run.clone());
        // Runs in a task of its own, so that the first waiter may give up without the others.
        tasks::spawn("credential provider", run.clone());
        run.await
    }

    /// A token that is returned as a password may not outlive itself in the cache.
    fn check_echo(
        &self,
        response: &Response,
        caller: Option<&Caller>,
    ) -> Result<(), ProviderError> {
        let per_token = self.settings.token.as_ref().is_some_and(|token| token.per_token);
        let Some(caller) = caller.filter(|_| !per_token) else { return Ok(()) };
        if response.logins.values().any(|(_, password)| **password == *caller.token) {
            return Err(ProviderError::Echo);
        }
        Ok(())
    }

    /// Caches an answer for as long as the plugin or the configuration allows.
    fn keep(
        &self,
        image: &str,
        key: AccountKey,
        response: &Response,
    ) -> Result<Rc<Logins>, ProviderError> {
        let base = match CacheKeyType::of(&response.cache_key_type) {
            Some(CacheKeyType::Image) => image,
            Some(CacheKeyType::Registry) => registry_match::registry(image),
            Some(CacheKeyType::Global) => cache::GLOBAL,
            None => {
                return Err(ProviderError::CacheKey(response.cache_key_type.clone()));
            }
        };
        let logins = Rc::new(response.logins.clone());
        let lasts = response.cache_duration.unwrap_or(self.settings.default_cache_duration);
        if !lasts.is_zero() && !lasts.is_negative() {
            let now = Instant::now();
            let kept =
                self.cache.borrow_mut().add(base, key, Rc::clone(&logins), lasts.to_std(), now);
            if !kept {
                self.metrics.limit_hit("answers of credential providers");
            }
        }
        Ok(logins)
    }
}
