//! The checked content of a kubeconfig's current context: the server's address and our credentials.
//!
//! Input: the file. Output: [`Access`], of which any number of clients can be made. Every error
//! names file, field and remedy. Files that it names are read once here, so that a start fails
//! early; later reads are the identity's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, Uri};
use pintle_api_types::rate::Rate;
use pintle_api_types::url::without_password;
use serde_json::{Value, json};

use crate::account::AccountToken;
use crate::error::ConnectError;
use crate::files::FileSource;
use crate::identity::{Certificate, ClientIdentity, Secret};
use crate::kubeconfig::{self, Kubeconfig, KubeconfigCluster, User};
use crate::observer::Observer;
use crate::pool::ConnectionPool;
use crate::proxy::{Proxy, ProxyUrlError};
use crate::service::{Carrier, Manner};
use crate::tls::{self, Trust};
use crate::turns::Lane;
use crate::user;

/// Directory in which a pod finds its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The server's address and our credentials.
#[derive(Clone)]
pub struct Access {
    /// The kubeconfig.
    pub path: PathBuf,
    /// The server's address, without a slash at the end.
    pub server: Uri,
    pub(crate) server_name: Option<String>,
    pub(crate) trust: Trust,
    pub(crate) certificate: Option<Certificate>,
    pub(crate) secret: Secret,
    /// Headers of impersonation (`as`, `as-groups`, ..).
    pub(crate) impersonation: HeaderMap,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) namespace: String,
}

/// Behaviour of a client.
#[derive(Clone, Default)]
pub struct ClientOptions {
    /// The user agent: `kubelet/v1.36.2 (linux/amd64)`.
    pub user_agent: String,
    /// Most requests per second; `None` is no limit.
    pub rate: Option<Rate>,
    /// The longest that a request may wait for its answer's head once its turn has come; `None`
    /// is for ever.
    pub timeout: Option<Duration>,
    /// Receives every request's outcome.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Access {
    /// Reads a kubeconfig and every file that it names.
    pub fn read(path: &Path) -> Result<Self, ConnectError> {
        Self::read_for(path, None)
    }

    /// Reads a kubeconfig; with `server`, connects to that address instead, and expects a
    /// certificate for that address's own name.
    ///
    /// # Errors
    /// When the file, a file that it names, or the address cannot be used.
    // k8s: staging/src/k8s.io/client-go/tools/clientcmd/client_config.go getCluster
    pub fn read_for(path: &Path, server: Option<&str>) -> Result<Self, ConnectError> {
        let broken = |problem: String| ConnectError::Kubeconfig { path: path.to_owned(), problem };
        let bytes = crate::files::read(path).map_err(|error| broken(error.to_string()))?;
        let absolute = std::path::absolute(path).map_err(|error| broken(error.to_string()))?;
        let folder = absolute.parent().unwrap_or(Path::new("/"));
        let config =
            kubeconfig::decode(&bytes, folder).map_err(|error| broken(error.to_string()))?;
        let mut chosen = ChosenContext::of(path, config, server)?;
        user::validate(path, &chosen.user)?;
        validate_cluster(path, &chosen.cluster)?;
        let impersonation = user::impersonation(path, &chosen.user)?;
        let address = server_of_file(path, &chosen.cluster.server)?;
        if address.scheme_str() != Some("https") {
            // No credentials go over a connection without TLS.
            // k8s: client_config.go ClientConfig, rest/config.go IsConfigTransportTLS
            chosen.user = User::default();
            chosen.cluster.insecure_skip_tls_verify = false;
            chosen.cluster.tls_server_name.clear();
            chosen.cluster.certificate_authority.clear();
            chosen.cluster.certificate_authority_data.0.clear();
        }
        let mut access = Self::at(path, address, &chosen)?;
        access.impersonation = impersonation;
        access.namespace = match chosen.namespace {
            namespace if namespace.is_empty() => "default".to_owned(),
            namespace => namespace,
        };
        access.check()?;
        Ok(access)
    }

    /// Access with the service account of the pod that runs this process; `None` outside of pods.
    // k8s: staging/src/k8s.io/client-go/rest/config.go InClusterConfig
    pub fn of_pod() -> Option<Result<Self, ConnectError>> {
        let of = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let (host, port) = (of("KUBERNETES_SERVICE_HOST")?, of("KUBERNETES_SERVICE_PORT")?);
        Some(Self::of_account(Path::new(ACCOUNT), &host, &port))
    }

    /// `of_pod` with the account's folder and the server's address.
    pub(crate) fn of_account(dir: &Path, host: &str, port: &str) -> Result<Self, ConnectError> {
        let file = |name: &str| dir.join(name).display().to_string();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let cluster = KubeconfigCluster {
            server: format!("https://{host}:{port}"),
            certificate_authority: file("ca.crt"),
            ..KubeconfigCluster::default()
        };
        let user = User { token_file: file("token"), ..User::default() };
        let mut access = Self::of(dir, cluster, user)?;
        access.namespace = "default".to_owned();
        access.check()?;
        Ok(access)
    }

    /// Access to a server that no kubeconfig names, as `user`; errors call it `name`.
    ///
    /// # Errors
    /// When the address, a certificate or a key cannot be used.
    pub fn to_server(
        name: &Path,
        cluster: KubeconfigCluster,
        user: User,
    ) -> Result<Self, ConnectError> {
        let access = Self::of(name, cluster, user)?;
        access.check()?;
        Ok(access)
    }

    fn of(path: &Path, cluster: KubeconfigCluster, user: User) -> Result<Self, ConnectError> {
        let has_tls = cluster.insecure_skip_tls_verify
            || authority(&cluster).is_some()
            || user::certificate(&user).is_some();
        let address = server(path, &cluster.server, has_tls)?;
        Self::at(path, address, &ChosenContext { cluster, user, namespace: String::new() })
    }

    /// Access to the server at this address, with the kubeconfig's settings.
    fn at(path: &Path, server: Uri, chosen: &ChosenContext) -> Result<Self, ConnectError> {
        let (cluster, user) = (&chosen.cluster, &chosen.user);
        let trust = match (cluster.insecure_skip_tls_verify, authority(cluster)) {
            (true, None) => Trust::Anyone,
            (false, source) => Trust::Authorities(source),
            (true, Some(_)) => {
                let problem = "there is also a certificate-authority";
                let remedy = "set one of them";
                let field = "insecure-skip-tls-verify";
                return Err(ConnectError::field(path, field, problem, remedy));
            }
        };
        let proxy = match cluster.proxy_url.as_str() {
            "" => Proxy::from_env(&server),
            url => Some(proxy(path, url)?),
        };
        let server_name = Some(cluster.tls_server_name.clone()).filter(|name| !name.is_empty());
        Ok(Self {
            path: path.to_owned(),
            server,
            server_name,
            trust,
            certificate: user::certificate(user),
            secret: user::secret(path, user, cluster)?,
            impersonation: HeaderMap::new(),
            proxy,
            namespace: String::new(),
        })
    }

    /// Access to that server without credentials; errors call it `name`.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub fn anonymous(name: &Path, address: &str) -> Result<Self, ConnectError> {
        let cluster =
            KubeconfigCluster { server: address.to_owned(), ..KubeconfigCluster::default() };
        Self::to_server(name, cluster, User::default())
    }

    /// Reads certificates and keys once.
    fn check(&self) -> Result<(), ConnectError> {
        tls::check(self)
    }

    /// Has the certificate and key of this file win over those of the kubeconfig, as soon as it
    /// is there: where certificate rotation puts its newest pair.
    pub fn prefer_certificate(&mut self, pem: PathBuf) {
        let given = self.certificate.take().map(Box::new);
        self.certificate = Some(Certificate::Rotated { pem, given });
    }

    /// False without a certificate, token or plugin: only a server's public answers are available
    /// then.
    pub fn has_identity(&self) -> bool {
        self.certificate.is_some() || !matches!(self.secret, Secret::None)
    }

    /// PEM of the certificate that is used now, if there is one.
    pub fn certificate_pem(&self) -> Option<Vec<u8>> {
        self.certificate.as_ref().and_then(|certificate| certificate.read().ok()).map(|pair| pair.0)
    }

    /// This access without its own identity, with the pair that will be in that file: for a node
    /// that has asked for its first certificate.
    pub fn with_certificate(&self, pem: PathBuf) -> Self {
        let certificate = Some(Certificate::Rotated { pem, given: None });
        Self { certificate, secret: Secret::None, impersonation: HeaderMap::new(), ..self.clone() }
    }

    /// The namespace of the kubeconfig's context.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Accepts the certificate of any server: for a port whose certificate no authority signed.
    pub fn trust_any_server(&mut self) {
        self.trust = Trust::Anyone;
    }

    /// True if the certificate of any server is accepted.
    pub fn trusts_anyone(&self) -> bool {
        matches!(self.trust, Trust::Anyone)
    }

    /// PEM of the authorities that the server's certificate must be of; `None` for the system's.
    pub fn authority_pem(&self) -> Option<Vec<u8>> {
        match &self.trust {
            Trust::Authorities(Some(source)) => source.read().ok(),
            Trust::Authorities(None) | Trust::Anyone => None,
        }
    }

    /// All settings of the kubeconfig for server and client, secrets included: for comparisons with
    /// other readers, never for a log.
    #[doc(hidden)]
    pub fn contents(&self) -> Value {
        let source = |source: Option<&FileSource>| match source {
            None => Value::Null,
            Some(FileSource::File(path)) => json!(path),
            Some(FileSource::Inline(bytes)) => json!({"data": STANDARD.encode(bytes)}),
        };
        let authority = match &self.trust {
            Trust::Authorities(authority) => authority.as_ref(),
            Trust::Anyone => None,
        };
        let (cert, key) = match &self.certificate {
            Some(Certificate::Given { cert, key }) => (Some(cert), Some(key)),
            _ => (None, None),
        };
        let mut contents = json!({
            "server": self.server.to_string().trim_end_matches('/'),
            "insecure": self.trusts_anyone(),
            "serverName": self.server_name,
            "ca": source(authority),
            "cert": source(cert),
            "key": source(key),
            "as": user::impersonated(&self.impersonation),
        });
        match &self.secret {
            Secret::Token(token) => contents["token"] = json!(token),
            Secret::File { path, fallback } => {
                contents["tokenFile"] = json!(path);
                contents["token"] = json!(fallback);
            }
            Secret::Basic(both) => {
                let both = STANDARD.decode(both).unwrap_or_default();
                contents["basic"] = json!(String::from_utf8_lossy(&both));
            }
            Secret::Plugin(plugin) => contents["exec"] = plugin.contents(),
            Secret::None | Secret::Account(_) => {}
        }
        contents
    }

    /// A client with connections of its own. Nothing is sent yet. Must be called on a tokio
    /// runtime.
    pub fn client(&self, options: ClientOptions) -> kube::Client {
        self.clients(options).urgent()
    }

    /// Clients of service accounts in this namespace; `root` creates accounts and tokens. Must be
    /// called on a tokio runtime.
    pub fn accounts(&self, root: kube::Client, namespace: &str) -> Accounts {
        let access = Self {
            certificate: None,
            secret: Secret::None,
            impersonation: HeaderMap::new(),
            ..self.clone()
        };
        let pool =
            Arc::new(ConnectionPool::new(Arc::new(ClientIdentity::new(access.clone(), None))));
        let namespace = namespace.to_owned();
        Accounts { access, pool, root, namespace, known: Arc::default() }
    }

    /// Clients that share connections and limits, for requests of different weight.
    pub fn clients(&self, options: ClientOptions) -> Clients {
        let identity = Arc::new(ClientIdentity::new(self.clone(), options.observer.clone()));
        let carrier = Carrier::new(self.server.clone(), identity, options);
        Clients { carrier, namespace: self.namespace.clone() }
    }
}

/// Clients of service accounts: they share connections, on which no certificate of ours is shown,
/// because the API server would take its name for the client's and ignore the token.
#[derive(Clone)]
pub struct Accounts {
    /// The server, without an identity.
    access: Access,
    pool: Arc<ConnectionPool>,
    /// Creates accounts and tokens.
    root: kube::Client,
    namespace: String,
    known: Arc<Mutex<BTreeMap<String, Arc<ClientIdentity>>>>,
}

impl Accounts {
    /// Clients of the service account with this name, which is created when it is missing. Those of
    /// one account share its token.
    // k8s: staging/src/k8s.io/controller-manager/pkg/clientbuilder/client_builder_dynamic.go Config
    pub fn clients(&self, name: &str, options: ClientOptions) -> Clients {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let identity = known.entry(name.to_owned()).or_insert_with(|| {
            let token = AccountToken::new(self.root.clone(), &self.namespace, name);
            let mut access = self.access.clone();
            access.secret = Secret::Account(Arc::new(token));
            Arc::new(ClientIdentity::new(access, None))
        });
        let (pool, server) = (Arc::clone(&self.pool), self.access.server.clone());
        let carrier = Carrier::on(pool, server, Arc::clone(identity), options);
        Clients { carrier, namespace: self.access.namespace.clone() }
    }
}

/// Clients that share connections and limits.
#[derive(Clone)]
pub struct Clients {
    carrier: Carrier,
    namespace: String,
}

impl Clients {
    /// A client for requests of the whole node: before the bulk.
    pub fn urgent(&self) -> kube::Client {
        self.with(|_| {})
    }

    /// A client for requests of single pods: in turn by their `TenantShare`s, behind urgent
    /// requests.
    pub fn bulk(&self) -> kube::Client {
        self.with(|manner| manner.lane = Lane::Bulk)
    }

    /// An urgent client with this timeout for an answer once the request's turn has come.
    pub fn within(&self, timeout: Duration) -> kube::Client {
        self.with(|manner| manner.timeout = Some(timeout))
    }

    /// A bulk client with this timeout.
    pub fn bulk_within(&self, timeout: Duration) -> kube::Client {
        self.with(|manner| (manner.lane, manner.timeout) = (Lane::Bulk, Some(timeout)))
    }

    /// A client for urgent writes. Each waits up to `timeout` for its answer once its turn has
    /// come. A response that asks to retry later is returned to the caller, with `Retry-After` in
    /// its headers.
    pub fn writes(&self, timeout: Duration) -> kube::Client {
        self.with(|manner| {
            manner.timeout = Some(timeout);
            manner.tells_later = true;
        })
    }

    /// Clients on the same connections, with a name and a limit of their own.
    pub fn beside(&self, options: ClientOptions) -> Self {
        Self { carrier: self.carrier.beside(options), namespace: self.namespace.clone() }
    }

    /// Obtains the credentials of requests, so that the first one does not wait for them.
    ///
    /// # Errors
    /// When there are none, as when a service account gets no token.
    pub async fn authenticate(&self) -> std::io::Result<()> {
        self.carrier.identity().authorization().await.map(drop)
    }

    fn with(&self, change: impl FnOnce(&mut Manner)) -> kube::Client {
        kube::Client::new(self.carrier.with(change), self.namespace.clone())
    }
}

/// Cluster and user of a kubeconfig's current context.
struct ChosenContext {
    cluster: KubeconfigCluster,
    user: User,
    namespace: String,
}

impl ChosenContext {
    /// The context's cluster and user, at another server if one is given. Without a current context
    /// the entries without a name are used, and without a user requests are anonymous.
    // k8s: staging/src/k8s.io/client-go/tools/clientcmd/client_config.go getContext, getCluster
    fn of(path: &Path, config: Kubeconfig, server: Option<&str>) -> Result<Self, ConnectError> {
        let fail =
            |field, problem: String, remedy| Err(ConnectError::field(path, field, problem, remedy));
        let Kubeconfig { current_context: current, mut contexts, mut clusters, mut users } = config;
        let context = contexts.remove(&current);
        if context.is_none() && !current.is_empty() {
            let problem = format!("there is no context {current:?}");
            return fail("current-context", problem, "name one of contexts");
        }
        let context = context.unwrap_or_default();
        let mut cluster = match (clusters.remove(&context.cluster), server) {
            (Some(cluster), _) => cluster,
            (None, Some(_)) => KubeconfigCluster::default(),
            (None, None) if current.is_empty() => {
                let problem = "it is not set".to_owned();
                return fail("current-context", problem, "name one of contexts");
            }
            (None, None) => {
                let problem = format!("there is no cluster {:?}", context.cluster);
                return fail("contexts.context.cluster", problem, "name one of clusters");
            }
        };
        if let Some(server) = server {
            server.clone_into(&mut cluster.server);
            cluster.tls_server_name.clear();
        }
        let user = users.remove(&context.user);
        if user.is_none() && !context.user.is_empty() {
            let (file, user) = (path.display(), &context.user);
            tracing::warn!(%file, %user, "the kubeconfig has no such user: requests are anonymous");
        }
        let user = user.unwrap_or_default();
        Ok(Self { cluster, user, namespace: context.namespace })
    }
}

// k8s: staging/src/k8s.io/client-go/tools/clientcmd/validation.go validateClusterInfo
fn validate_cluster(path: &Path, cluster: &KubeconfigCluster) -> Result<(), ConnectError> {
    let authority = &cluster.certificate_authority;
    if !authority.is_empty() && !cluster.certificate_authority_data.0.is_empty() {
        let problem = "there is also certificate-authority-data";
        return Err(ConnectError::field(path, "certificate-authority", problem, "set one of them"));
    }
    if !cluster.proxy_url.is_empty() {
        proxy(path, &cluster.proxy_url)?;
    }
    user::check_readable(path, "certificate-authority", authority)
}

fn authority(cluster: &KubeconfigCluster) -> Option<FileSource> {
    user::source(&cluster.certificate_authority, &cluster.certificate_authority_data)
}

// k8s: staging/src/k8s.io/client-go/tools/clientcmd/helpers.go parseProxyURL
fn proxy(path: &Path, url: &str) -> Result<Proxy, ConnectError> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    let parsed = match scheme.as_str() {
        "http" | "https" | "socks5" => Proxy::parse(url),
        _ => Err(ProxyUrlError::Scheme(scheme)),
    };
    parsed.map_err(|problem| {
        let remedy = "use http://, https:// or socks5:// and a host";
        ConnectError::field(path, "proxy-url", problem.to_string(), remedy)
    })
}

/// The address in a kubeconfig. Query and fragment are no part of it, and an address without a
/// scheme is that of a plain connection, even with settings for certificates.
fn server_of_file(path: &Path, text: &str) -> Result<Uri, ConnectError> {
    let without_query = text.split(['?', '#']).next().unwrap_or_default();
    server(path, without_query, false)
}

/// An address; one without a scheme has no path.
// k8s: staging/src/k8s.io/client-go/rest/url_utils.go DefaultServerUrlFor
fn server(path: &Path, text: &str, has_tls: bool) -> Result<Uri, ConnectError> {
    let remedy = "write it as https://HOST:PORT";
    let fail = |problem: String| ConnectError::field(path, "server", problem, remedy);
    if text.is_empty() {
        return Err(fail("it is not set".to_owned()));
    }
    let shown = without_password(text);
    let scheme = if has_tls { "https" } else { "http" };
    let whole = match text.contains("://") {
        true => text.to_owned(),
        false if text.trim_end_matches('/').contains('/') => {
            return Err(fail(format!("{shown:?} has a path but no scheme")));
        }
        false => format!("{scheme}://{text}"),
    };
    let whole = whole.trim_end_matches('/');
    let server: Uri = whole.parse().map_err(|error| fail(format!("{shown:?}: {error}")))?;
    match server.scheme_str() {
        Some("https" | "http") if server.host().is_some() => Ok(server),
        _ => Err(fail(format!("{shown:?} has no http or https scheme, or no host"))),
    }
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
