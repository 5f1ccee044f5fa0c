//! The HTTPS port of a component: its authentication and authorization, and its thread.
//!
//! Input: [`Serving`], [`Pages`]. Output: answers until the process ends. Owner: a thread with a
//! runtime of its own, so that requests do not disturb the work. Bounds: those of `https`.
// k8s: cmd/kube-scheduler/app/server.go buildHandlerChain; staging/src/k8s.io/controller-manager/
// app/serve.go BuildHandlerChain

mod pages;

use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use k8s_openapi::api::authorization::v1::{SubjectAccessReviewSpec, SubjectAccessReviewStatus};
use pintle_api::{Access, ClientOptions};

pub use self::pages::{ComponentPages, Pages, denied};
use super::StartError;
use super::serving::{Serving, Tolerates};
use crate::serve::https;
use crate::serve::listen::{PortName, bind_tcp};
use crate::serve::secure::serving::{PairFields, Serving as Certificate};
use crate::serve::secure::{
    AccessGate, ApiReviews, ClusterAuthorities, ReviewError, Reviews, Rules, tls,
};
use crate::tasks;

/// Its members may do everything.
// k8s: staging/src/k8s.io/apiserver/pkg/server/options/authorization.go
const MASTERS: &str = "system:masters";

/// Serves until the process ends. `rival` often has the port already: `a kube-scheduler`.
///
/// # Errors
/// When the port, the certificate or an authority cannot be used.
pub fn start(serving: &Serving, rival: &'static str, pages: Pages) -> Result<(), StartError> {
    let Some(address) = serving.address else { return Ok(()) };
    let component = pages.component;
    let tokens = reviewer(serving.authentication.as_deref(), "--authentication-kubeconfig")?;
    let rights = reviewer(serving.authorization.as_deref(), "--authorization-kubeconfig")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let of_cluster = look_up(serving, tokens.as_ref(), component, &runtime)?;
    let rules = Rules {
        anonymous: true,
        client_ca: serving.client_ca.clone().map(|path| ("--client-ca-file", path)),
        proxies: serving.proxies.clone(),
        of_cluster: of_cluster.as_ref().map(|(authorities, _)| Arc::clone(authorities)),
        tokens: tokens.is_some().then_some(serving.ttls[0]),
        rights: Some((serving.ttls[1], serving.ttls[2])),
        nobody_to_ask: rights.is_none(),
        may_all: &[MASTERS],
    };
    let reviews = |access| ApiReviews::new(access, pintle_config::help::user_agent(component));
    let reviews = Reviewers { tokens: reviews(tokens), rights: reviews(rights) };
    let gate = AccessGate::new(&rules, Arc::new(reviews))?;
    let certificate = Arc::new(certificate(serving, component)?);
    let curves = &[];
    let settings =
        tls::Settings { min_version: &serving.min_version, suites: &serving.suites, curves };
    let tls = tls::server_config(settings, certificate)?;
    let port = PortName { what: "the HTTPS server", field: "--secure-port", rival };
    let (listener, _) = bind_tcp(port, address)?;
    let handler = Arc::new(pages::Guarded::new(gate, serving.open_paths.clone(), pages));
    let run = move || {
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, async {
            if let Some((authorities, access)) = of_cluster {
                tasks::singleton("authorities", authorities.follow(client(&access, component)));
            }
            https::accept(listener, tls, handler).await;
        });
    };
    let started = tasks::thread("server", run);
    started.map(drop).map_err(|source| StartError::Thread { name: "server", source })
}

fn certificate(serving: &Serving, component: &str) -> Result<Certificate, StartError> {
    let fields = PairFields { certificate: "--tls-cert-file", key: "--tls-private-key-file" };
    Ok(match &serving.files {
        Some((certificate, key)) => Certificate::files(fields, certificate.clone(), key.clone())?,
        None => {
            let host = super::host_name().to_lowercase();
            match &serving.cert_dir {
                Some(dir) => Certificate::self_signed(fields, dir, component, &host)?,
                None => Certificate::in_memory(&host)?,
            }
        }
    })
}

/// The credentials with which the API server is asked for reviews: those of the file, or of the pod
/// that this process runs in; `None` where neither is.
// k8s: staging/src/k8s.io/apiserver/pkg/server/options/{authentication,authorization}.go getClient
fn reviewer(file: Option<&Path>, flag: &str) -> Result<Option<Access>, StartError> {
    let named = |source| StartError::Credentials { flag: flag.to_owned(), source };
    match (file, Access::of_pod()) {
        (Some(file), _) => Access::read(file).map(Some).map_err(named),
        (None, Some(Err(error))) => {
            tracing::warn!(%error, "the pod's account is not used to ask about tokens and rights");
            Ok(None)
        }
        (None, of_pod) => of_pod.transpose().map_err(named),
    }
}

fn client(access: &Access, component: &str) -> kube::Client {
    let user_agent = pintle_config::help::user_agent(component);
    access.client(ClientOptions { user_agent, ..ClientOptions::default() })
}

/// The authorities that the cluster publishes, and the credentials with which they are watched;
/// nothing where the flags name all of them, or there are no credentials.
// k8s: staging/src/k8s.io/apiserver/pkg/server/options/authentication.go ApplyTo
fn look_up(
    serving: &Serving,
    access: Option<&Access>,
    component: &str,
    runtime: &tokio::runtime::Runtime,
) -> Result<Option<(Arc<ClusterAuthorities>, Access)>, StartError> {
    let names_all = serving.client_ca.is_some() && serving.proxies.is_some();
    let (Some(tolerates), Some(access), false) = (serving.lookup, access, names_all) else {
        return Ok(None);
    };
    let authorities = Arc::new(ClusterAuthorities::default());
    let looked = runtime.block_on(async { authorities.look(client(access, component)).await });
    match (looked, tolerates) {
        (Ok(()), _) => {}
        (Err(error), Tolerates::Failure) => {
            tracing::warn!(%error, "the cluster's authorities are not known yet");
        }
        (Err(error), Tolerates::Nothing) => return Err(StartError::Lookup(error.to_string())),
    }
    Ok(Some((authorities, access.clone())))
}

/// Tokens and rights may be looked up with different credentials.
struct Reviewers {
    tokens: ApiReviews,
    rights: ApiReviews,
}

impl Reviews for Reviewers {
    fn token(&self, token: String) -> BoxFuture<'_, Result<TokenReviewStatus, ReviewError>> {
        self.tokens.token(token)
    }

    fn access(
        &self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ReviewError>> {
        self.rights.access(spec)
    }
}
