//! One identity per controller: its own limit of requests, its own user agent, and with
//! `--use-service-account-credentials` its own service account.
//!
//! Input: the manager's credentials. Output: [`Clients`] by the name of an identity. Owner: the
//! process. Bounds: the connections of the manager and those of all accounts are one pool each; one
//! token is requested by identity, when it is needed or by [`ControllerClients::authenticate`].
// k8s: cmd/kube-controller-manager/app/controllermanager.go createClientBuilders;
// staging/src/k8s.io/controller-manager/pkg/clientbuilder

use std::sync::Arc;

use futures_util::future::join_all;
use pintle_api::{Access, Accounts, ClientOptions, Clients, Observer, Rate};

use crate::options::{COMPONENT, Options};

/// The namespace of the service accounts.
const NAMESPACE: &str = "kube-system";
/// Discovery asks much at once and seldom.
// k8s: client_builder.go DiscoveryClient
const DISCOVERY: Rate = Rate { per_second: 20.0, burst: 200 };

/// All tokens are requested at once, and an account may have to be created for each.
const TOKENS_BURST: u32 = 120;

/// Gives each controller its clients.
#[derive(Clone)]
pub struct ControllerClients {
    /// The manager's own.
    root: Clients,
    /// `None` where all controllers use the manager's credentials.
    accounts: Option<Accounts>,
    rate: Option<Rate>,
    observer: Arc<dyn Observer>,
}

impl ControllerClients {
    /// Nothing is sent yet. Must be called on a tokio runtime.
    pub fn new(access: &Access, options: &Options, observer: Arc<dyn Observer>) -> Self {
        let rate = options.rate;
        let settings = |user_agent| ClientOptions {
            user_agent,
            rate,
            timeout: None,
            observer: Some(Arc::clone(&observer)),
        };
        let root = access.clients(settings(user_agent("")));
        let accounts = options.uses_accounts.then(|| {
            let rate = rate.map(|rate| Rate { burst: rate.burst.max(TOKENS_BURST), ..rate });
            let tokens = root.beside(ClientOptions { rate, ..settings(user_agent("")) });
            access.accounts(tokens.urgent(), NAMESPACE)
        });
        Self { root, accounts, rate, observer }
    }

    /// The clients of the controller with this identity; an empty one is the manager's. Each call
    /// makes clients with a limit of their own.
    pub fn of(&self, identity: &str) -> Clients {
        match &self.accounts {
            Some(accounts) if !identity.is_empty() => {
                let user = format!("system:serviceaccount:{NAMESPACE}:{identity}");
                accounts.clients(identity, self.settings(user_agent(&user), self.rate))
            }
            _ => self.root(identity),
        }
    }

    /// Clients with the manager's own credentials, under this name: `shared-informers`,
    /// `metadata-informers`.
    pub fn root(&self, name: &str) -> Clients {
        self.root.beside(self.settings(user_agent(name), self.rate))
    }

    /// The manager's clients for discovery.
    pub fn discovery(&self) -> Clients {
        self.root.beside(self.settings(user_agent("controller-discovery"), Some(DISCOVERY)))
    }

    /// Asks for the tokens of these identities, all at once, so that no controller waits for its
    /// own. One that gets none is logged: its requests ask again.
    pub async fn authenticate(&self, identities: impl IntoIterator<Item = &'static str>) {
        let Some(accounts) = &self.accounts else { return };
        let mut identities: Vec<_> = identities.into_iter().filter(|one| !one.is_empty()).collect();
        identities.sort_unstable();
        identities.dedup();
        join_all(identities.into_iter().map(async |identity| {
            let clients = accounts.clients(identity, ClientOptions::default());
            if let Err(error) = clients.authenticate().await {
                tracing::warn!(%error, "a controller has no token yet");
            }
        }))
        .await;
    }

    fn settings(&self, user_agent: String, rate: Option<Rate>) -> ClientOptions {
        let observer = Some(Arc::clone(&self.observer));
        ClientOptions { user_agent, rate, timeout: None, observer }
    }
}

/// The User-Agent of requests. Its first word is the field manager of their writes.
// k8s: staging/src/k8s.io/client-go/rest/config.go AddUserAgent
fn user_agent(name: &str) -> String {
    let manager = pintle_config::help::user_agent(COMPONENT);
    match name {
        "" => manager,
        name => format!("{manager}/{name}"),
    }
}
