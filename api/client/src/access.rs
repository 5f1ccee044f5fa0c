//! What a kubeconfig's current context says, checked: where the server is and who we are.
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
use http::Uri;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use pintle_api_types::rate::Rate;
use pintle_api_types::url::without_password;
use secrecy::ExposeSecret as _;

use crate::account::AccountToken;
use crate::error::ConnectError;
use crate::exec::Plugin;
use crate::files::Source;
use crate::identity::{Certificate, Identity, Secret};
use crate::observer::Observer;
use crate::pool::Pool;
use crate::proxy::Proxy;
use crate::service::{Carrier, Manner};
use crate::tls::{self, Trust};
use crate::turns::Lane;

/// Where a pod finds its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Where the server is and who we are.
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
    pub(crate) proxy: Option<Proxy>,
    pub(crate) namespace: String,
}

/// How a client behaves.
#[derive(Clone, Default)]
pub struct ClientOptions {
    /// What it calls itself: `kubelet/v1.36.2 (linux/amd64)`.
    pub user_agent: String,
    /// Most requests per second; `None` is no limit.
    pub rate: Option<Rate>,
    /// The longest that a request may wait for its answer's head once its turn has come; `None`
    /// is for ever.
    pub timeout: Option<Duration>,
    /// Told of every request.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Access {
    /// Reads a kubeconfig and every file that it names.
    pub fn read(path: &Path) -> Result<Self, ConnectError> {
        Self::read_for(path, None)
    }

    /// The same at another server than it names, if one is given, whose certificate is of its own name.
    ///
    /// # Errors
    /// When the file, a file that it names, or the address cannot be used.
    // k8s: staging/src/k8s.io/client-go/tools/clientcmd/client_config.go getCluster
    pub fn read_for(path: &Path, server: Option<&str>) -> Result<Self, ConnectError> {
        let broken = |problem: String| ConnectError::Kubeconfig { path: path.to_owned(), problem };
        let file = Kubeconfig::read_from(path).map_err(|error| broken(one_line(&whole(&error))))?;
        let fail =
            |field, problem: String, remedy| Err(ConnectError::field(path, field, problem, remedy));
        let Some(current) = file.current_context.clone().filter(|name| !name.is_empty()) else {
            return fail("current-context", "it is not set".to_owned(), "name one of contexts");
        };
        let context = file.contexts.into_iter().find(|context| context.name == current);
        let Some(context) = context.and_then(|named| named.context) else {
            let problem = format!("there is no context {current:?}");
            return fail("current-context", problem, "name one of contexts");
        };
        let cluster = file.clusters.into_iter().find(|cluster| cluster.name == context.cluster);
        let Some(mut cluster) = cluster.and_then(|named| named.cluster) else {
            let problem = format!("there is no cluster {:?}", context.cluster);
            return fail("contexts.context.cluster", problem, "name one of clusters");
        };
        if let Some(server) = server {
            (cluster.server, cluster.tls_server_name) = (Some(server.to_owned()), None);
        }
        let user = context.user.clone().unwrap_or_default();
        let found = file.auth_infos.into_iter().find(|named| named.name == user);
        let user = match found {
            Some(named) => named.auth_info.unwrap_or_default(),
            None if user.is_empty() => AuthInfo::default(),
            None => {
                let problem = format!("there is no user {user:?}");
                return fail("contexts.context.user", problem, "name one of users");
            }
        };
        let mut access = Self::of(path, &cluster, &user)?;
        access.namespace = context.namespace.unwrap_or_else(|| "default".to_owned());
        access.check()?;
        Ok(access)
    }

    /// What the service account of the pod that this process runs in may do; `None` outside of pods.
    // k8s: staging/src/k8s.io/client-go/rest/config.go InClusterConfig
    pub fn of_pod() -> Option<Result<Self, ConnectError>> {
        let of = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let (host, port) = (of("KUBERNETES_SERVICE_HOST")?, of("KUBERNETES_SERVICE_PORT")?);
        Some(Self::of_account(Path::new(ACCOUNT), &host, &port))
    }

    /// The same with the account's folder and the address given.
    pub(crate) fn of_account(dir: &Path, host: &str, port: &str) -> Result<Self, ConnectError> {
        let file = |name: &str| Some(dir.join(name).display().to_string());
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let cluster = Cluster {
            server: Some(format!("https://{host}:{port}")),
            certificate_authority: file("ca.crt"),
            ..Cluster::default()
        };
        let user = AuthInfo { token_file: file("token"), ..AuthInfo::default() };
        let mut access = Self::of(dir, &cluster, &user)?;
        access.namespace = "default".to_owned();
        access.check()?;
        Ok(access)
    }

    /// A server that no kubeconfig names, and who we are there; `name` is what errors call it.
    ///
    /// # Errors
    /// When the address, a certificate or a key cannot be used.
    pub fn to_server(
        name: &Path,
        cluster: &Cluster,
        user: &AuthInfo,
    ) -> Result<Self, ConnectError> {
        let access = Self::of(name, cluster, user)?;
        access.check()?;
        Ok(access)
    }

    fn of(path: &Path, cluster: &Cluster, user: &AuthInfo) -> Result<Self, ConnectError> {
        let authority = inline(
            path,
            "certificate-authority-data",
            cluster.certificate_authority_data.as_deref(),
        )?;
        let trust = match cluster.insecure_skip_tls_verify.unwrap_or(false) {
            true => Trust::Anyone,
            false => Trust::Authorities(authority.or_else(|| file(&cluster.certificate_authority))),
        };
        let certificate = certificate(path, user)?;
        let has_tls = means_tls(&trust, certificate.as_ref());
        let server = server(path, cluster.server.as_deref().unwrap_or_default(), has_tls)?;
        let named = cluster.proxy_url.as_deref().filter(|url| !url.is_empty());
        let proxy = match named {
            None => Proxy::from_env(&server),
            Some(url) => Some(Proxy::parse(url).map_err(|problem| {
                let remedy = "use http://, https:// or socks5:// and a host";
                ConnectError::field(path, "proxy-url", problem, remedy)
            })?),
        };
        Ok(Self {
            path: path.to_owned(),
            server,
            server_name: cluster.tls_server_name.clone().filter(|name| !name.is_empty()),
            trust,
            certificate,
            secret: secret(path, user, cluster)?,
            proxy,
            namespace: String::new(),
        })
    }

    /// That server, and nobody in particular; `name` is what errors call it.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub fn anonymous(name: &Path, address: &str) -> Result<Self, ConnectError> {
        let cluster = Cluster { server: Some(address.to_owned()), ..Cluster::default() };
        Self::to_server(name, &cluster, &AuthInfo::default())
    }

    /// Reads everything once.
    fn check(&self) -> Result<(), ConnectError> {
        tls::check(self)?;
        if let Secret::File(file) = &self.secret {
            crate::files::read(file).map_err(|error| {
                let problem = format!("{}: {error}", file.display());
                ConnectError::field(&self.path, "tokenFile", problem, "make the file readable")
            })?;
        }
        Ok(())
    }

    /// Has the certificate and key of this file win over those of the kubeconfig, as soon as it
    /// is there: where certificate rotation puts its newest pair.
    pub fn prefer_certificate(&mut self, pem: PathBuf) {
        let given = self.certificate.take().map(Box::new);
        self.certificate = Some(Certificate::Rotated { pem, given });
    }

    /// Without a certificate, token or plugin: for a server's public answers.
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
        Self { certificate, secret: Secret::None, ..self.clone() }
    }

    /// The namespace of the kubeconfig's context.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Accepts the certificate of any server: for a port whose certificate no authority signed.
    pub fn trust_any_server(&mut self) {
        self.trust = Trust::Anyone;
    }

    /// Whether any server is taken for the right one.
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

    /// A client with connections of its own. Nothing is sent yet. Must be called on a tokio
    /// runtime.
    pub fn client(&self, options: ClientOptions) -> kube::Client {
        self.clients(options).urgent()
    }

    /// Clients of service accounts in this namespace; `root` creates accounts and tokens. Must be
    /// called on a tokio runtime.
    pub fn accounts(&self, root: kube::Client, namespace: &str) -> Accounts {
        let access = Self { certificate: None, secret: Secret::None, ..self.clone() };
        let pool = Arc::new(Pool::new(Arc::new(Identity::new(access.clone(), None))));
        let namespace = namespace.to_owned();
        Accounts { access, pool, root, namespace, known: Arc::default() }
    }

    /// Clients that share connections and limits, for requests of different weight.
    pub fn clients(&self, options: ClientOptions) -> Clients {
        let identity = Arc::new(Identity::new(self.clone(), options.observer.clone()));
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
    pool: Arc<Pool>,
    /// Creates accounts and tokens.
    root: kube::Client,
    namespace: String,
    known: Arc<Mutex<BTreeMap<String, Arc<Identity>>>>,
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
            Arc::new(Identity::new(access, None))
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
    /// For what the whole node lives on: goes before the bulk.
    pub fn urgent(&self) -> kube::Client {
        self.with(|_| {})
    }

    /// For what single pods need: in turn by the requests' `Share`s, behind urgent requests.
    pub fn bulk(&self) -> kube::Client {
        self.with(|manner| manner.lane = Lane::Bulk)
    }

    /// As urgent, but no answer is waited for longer than this once the request's turn has come.
    pub fn within(&self, timeout: Duration) -> kube::Client {
        self.with(|manner| manner.timeout = Some(timeout))
    }

    /// As bulk, with the same limit.
    pub fn bulk_within(&self, timeout: Duration) -> kube::Client {
        self.with(|manner| (manner.lane, manner.timeout) = (Lane::Bulk, Some(timeout)))
    }

    /// For urgent writes that wait for so long for an answer once their turn has come. The answer
    /// "later" comes back to whoever asks, with `retry_after` in its head.
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

    /// Obtains what requests are authenticated with, so that the first one does not wait for it.
    ///
    /// # Errors
    /// When there is no such thing, as when a service account gets no token.
    pub async fn authenticate(&self) -> std::io::Result<()> {
        self.carrier.identity().authorization().await.map(drop)
    }

    fn with(&self, change: impl FnOnce(&mut Manner)) -> kube::Client {
        kube::Client::new(self.carrier.with(change), self.namespace.clone())
    }
}

/// Whether an address without a scheme is one of TLS.
// k8s: staging/src/k8s.io/client-go/rest/url_utils.go DefaultServerUrlFor
fn means_tls(trust: &Trust, certificate: Option<&Certificate>) -> bool {
    certificate.is_some() || !matches!(trust, Trust::Authorities(None))
}

fn server(path: &Path, text: &str, has_tls: bool) -> Result<Uri, ConnectError> {
    let remedy = "write it as https://HOST:PORT";
    let fail = |problem: String| ConnectError::field(path, "server", problem, remedy);
    if text.is_empty() {
        return Err(fail("it is not set".to_owned()));
    }
    let scheme = if has_tls { "https" } else { "http" };
    let text = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    let text = text.trim_end_matches('/');
    let shown = without_password(text);
    let server: Uri = text.parse().map_err(|error| fail(format!("{shown:?}: {error}")))?;
    match server.scheme_str() {
        Some("https" | "http") if server.host().is_some() => Ok(server),
        _ => Err(fail(format!("{shown:?} has no http or https scheme, or no host"))),
    }
}

fn file(path: &Option<String>) -> Option<Source> {
    path.as_deref().filter(|path| !path.is_empty()).map(|path| Source::File(path.into()))
}

/// Decodes base64 in a field; data wins over a file, as in client-go.
fn inline(
    path: &Path,
    field: &'static str,
    text: Option<&str>,
) -> Result<Option<Source>, ConnectError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let packed: String = text.split_whitespace().collect();
    let bytes = STANDARD.decode(packed).map_err(|error| {
        ConnectError::field(path, field, error.to_string(), "encode the PEM text in base64")
    })?;
    Ok(Some(Source::Inline(bytes)))
}

fn certificate(path: &Path, user: &AuthInfo) -> Result<Option<Certificate>, ConnectError> {
    let cert = inline(path, "client-certificate-data", user.client_certificate_data.as_deref())?
        .or_else(|| file(&user.client_certificate));
    let key = user.client_key_data.as_ref().map(|key| key.expose_secret());
    let key = inline(path, "client-key-data", key)?.or_else(|| file(&user.client_key));
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(Certificate::Given { cert, key })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(ConnectError::field(
            path,
            "client-key",
            "there is a client certificate but no key",
            "set client-key or client-key-data",
        )),
        (None, Some(_)) => Err(ConnectError::field(
            path,
            "client-certificate",
            "there is a client key but no certificate",
            "set client-certificate or client-certificate-data",
        )),
    }
}

/// Exactly one of token, token file, password, plugin; the order is client-go's.
fn secret(path: &Path, user: &AuthInfo, cluster: &Cluster) -> Result<Secret, ConnectError> {
    if let Some(provider) = &user.auth_provider {
        let problem = format!("{:?} is gone from Kubernetes", provider.name);
        return Err(ConnectError::field(path, "auth-provider", problem, "use exec"));
    }
    if let Some(exec) = &user.exec {
        return Plugin::new(path, exec, cluster).map(|plugin| Secret::Plugin(Arc::new(plugin)));
    }
    // k8s: staging/src/k8s.io/client-go/tools/clientcmd: the file is read again, so it wins
    if let Some(file) = user.token_file.as_deref().filter(|file| !file.is_empty()) {
        return Ok(Secret::File(file.into()));
    }
    if let Some(token) = &user.token
        && !token.expose_secret().is_empty()
    {
        return Ok(Secret::Token(token.expose_secret().to_owned()));
    }
    if let (Some(name), Some(password)) = (&user.username, &user.password) {
        let both = format!("{name}:{}", password.expose_secret());
        return Ok(Secret::Basic(STANDARD.encode(both)));
    }
    Ok(Secret::None)
}

/// An error with everything behind it.
pub(crate) fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text
}

/// The parser quotes the lines around a mistake; what it says of it stands in front of them.
fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
