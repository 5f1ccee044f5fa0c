//! Access rules of the HTTPS port from the kubelet's configuration; denials in the kubelet's words.

use std::path::PathBuf;
use std::sync::Arc;

use pintle_agent_config::Config;
use pintle_agent_config::modes::AuthorizationMode;
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::secure::serving::{PairFields, Serving};
use pintle_daemon::serve::secure::tls::Settings;
use pintle_daemon::serve::secure::{
    Denial, RequiredRights, ReviewedObject, Rules, ServingCert, ServingCertError,
};

use crate::attributes::attributes;

/// The settings that name the serving certificate.
const SERVING: PairFields = PairFields { certificate: "tlsCertFile", key: "tlsPrivateKeyFile" };
/// Name of the files of a pair that is made.
const SELF_SIGNED: &str = "kubelet";

/// A configuration whose rules need an API server, where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NeedsCluster {
    /// Token reviews need an API server.
    // k8s: cmd/kubelet/app/auth.go BuildAuthn
    #[error(
        "authentication.webhook.enabled: no client provided, cannot use webhook authentication; \
         give --kubeconfig or set it to false"
    )]
    TokenReviews,
    /// Access reviews need an API server.
    // k8s: cmd/kubelet/app/auth.go BuildAuthz
    #[error(
        "authorization.mode: no client provided, cannot use webhook authorization; \
         give --kubeconfig or set it to AlwaysAllow"
    )]
    AccessReviews,
}

/// Checks that the configuration can be served without an API server.
pub(crate) fn check(config: &Config) -> Result<(), NeedsCluster> {
    if !config.is_standalone() {
        return Ok(());
    }
    let rules = rules(config);
    match (rules.tokens, rules.rights) {
        (Some(_), _) => Err(NeedsCluster::TokenReviews),
        (None, Some(_)) => Err(NeedsCluster::AccessReviews),
        (None, None) => Ok(()),
    }
}

/// The rules that the configuration asks for.
pub(crate) fn rules(config: &Config) -> Rules {
    let (authn, authz) = (&config.kubelet.authentication, &config.kubelet.authorization);
    let ca = Some(&authn.x509.client_ca_file).filter(|path| !path.is_empty());
    let asks = authz.mode != AuthorizationMode::AlwaysAllow;
    let ttls = &authz.webhook;
    Rules {
        anonymous: authn.anonymous.enabled,
        client_ca: ca.map(|path| ("authentication.x509.clientCAFile", PathBuf::from(path))),
        tokens: authn.webhook.enabled.then(|| authn.webhook.cache_ttl.to_std()),
        rights: asks
            .then(|| (ttls.cache_authorized_ttl.to_std(), ttls.cache_unauthorized_ttl.to_std())),
        ..Rules::default()
    }
}

/// TLS versions and suites that may be negotiated.
pub(crate) fn tls(config: &Config) -> Settings<'_> {
    let kubelet = &config.kubelet;
    Settings {
        min_version: &kubelet.tls_min_version,
        suites: &kubelet.tls_cipher_suites,
        curves: &kubelet.tls_curve_preferences,
    }
}

/// The certificate of the HTTPS port. `rotated` is used with `serverTLSBootstrap`.
// k8s: cmd/kubelet/app/server.go InitializeTLS
pub(crate) fn serving(config: &Config, rotated: &ServingCert) -> Result<Serving, ServingCertError> {
    let kubelet = &config.kubelet;
    let (certificate, key) = (&kubelet.tls_cert_file, &kubelet.tls_private_key_file);
    if !certificate.is_empty() || !key.is_empty() {
        return Serving::files(SERVING, certificate.into(), key.into());
    }
    if kubelet.server_tls_bootstrap {
        return Ok(Serving::Rotated(Arc::clone(rotated)));
    }
    Serving::self_signed(SERVING, &config.flags.cert_dir, SELF_SIGNED, &config.node_name)
}

/// The permissions that a request needs.
pub(crate) fn wanted(method: &str, path: &str, node: &Arc<str>) -> RequiredRights {
    let asked = attributes(method, path);
    let object = |subresource| ReviewedObject::Node { name: Arc::clone(node), subresource };
    RequiredRights {
        verb: asked.verb,
        objects: asked.subresources.into_iter().map(object).collect(),
    }
}

/// A denial as the kubelet words it.
// k8s: pkg/kubelet/server/server.go InstallAuthFilter
pub(crate) fn denied(denial: Denial, wanted: &RequiredRights) -> HttpAnswer {
    let verb = wanted.verb;
    match denial {
        Denial::Unauthenticated => HttpAnswer::text(401, "Unauthorized"),
        Denial::Busy => HttpAnswer::text(429, "too many requests wait for a review, try again\n"),
        Denial::Forbidden { user } => {
            let all: Vec<_> = wanted.objects.iter().map(subresource).collect();
            let all = all.join(" ");
            let text = format!(
                "Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{all}])\n"
            );
            HttpAnswer::text(403, text)
        }
        Denial::Undecided { user, object } => HttpAnswer::text(
            500,
            format!(
                "Authorization error (user={user}, verb={verb}, resource=nodes, subresource={})",
                subresource(&object)
            ),
        ),
    }
}

fn subresource(object: &ReviewedObject) -> &str {
    match object {
        ReviewedObject::Node { subresource, .. } => subresource,
        ReviewedObject::Path(path) => path,
    }
}
