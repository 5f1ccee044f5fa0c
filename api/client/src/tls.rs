//! TLS towards the API server: whom we trust, and our certificate.
//!
//! rustls with ring. Input: an [`Access`]. Output: a client configuration, `None` for plain HTTP.

use std::fmt;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

use crate::access::Access;
use crate::any_peer::AnyPeer;
use crate::error::ConnectError;
use crate::files::Source;
use crate::identity::Certificate;

/// Whose word proves that the server is the right one.
#[derive(Clone)]
pub(crate) enum Trust {
    /// These authorities; `None` for those of the system.
    Authorities(Option<Source>),
    /// Nobody's: `insecure-skip-tls-verify`.
    Anyone,
}

/// TLS towards servers of anybody: trusts the authorities of the system (`SSL_CERT_FILE` and
/// `SSL_CERT_DIR` replace them), shows no certificate, speaks HTTP/1.1.
pub fn system_tls() -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Says what is wrong with certificates and keys before anything is connected.
pub(crate) fn check(access: &Access) -> Result<(), ConnectError> {
    config(access, None).map(drop)
}

/// The configuration for new connections. `plugged` is a pair that a plugin gave.
pub(crate) fn config(
    access: &Access,
    plugged: Option<&(Vec<u8>, Vec<u8>)>,
) -> Result<Option<ClientConfig>, ConnectError> {
    if access.server.scheme_str() != Some("https") {
        return Ok(None);
    }
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| ConnectError::Kubeconfig {
            path: access.path.clone(),
            problem: error.to_string(),
        })?;
    let builder = match &access.trust {
        Trust::Authorities(source) => {
            builder.with_root_certificates(roots(access, source.as_ref())?)
        }
        Trust::Anyone => {
            let anyone = Arc::new(AnyPeer::new(&provider));
            builder.dangerous().with_custom_certificate_verifier(anyone)
        }
    };
    let mut config = match pair(access, plugged)? {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| {
            let problem = format!("it does not fit its key: {error}");
            ConnectError::field(&access.path, "client-certificate", problem, PAIR)
        })?,
    };
    let http2 = std::env::var_os("DISABLE_HTTP2").is_none_or(|value| value.is_empty());
    config.alpn_protocols = match http2 {
        true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        false => vec![b"http/1.1".to_vec()],
    };
    Ok(Some(config))
}

const PAIR: &str = "give a PEM certificate and the private key that belongs to it";
const AUTHORITY: &str = "give the PEM certificates of the cluster's authority";

fn roots(access: &Access, source: Option<&Source>) -> Result<RootCertStore, ConnectError> {
    let fail = |problem: String| {
        ConnectError::field(&access.path, "certificate-authority", problem, AUTHORITY)
    };
    let mut roots = RootCertStore::empty();
    let Some(source) = source else {
        let system = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(system.certs);
        return Ok(roots);
    };
    let name = |problem: &dyn fmt::Display| named(source, problem);
    let pem = source.read().map_err(|error| fail(name(&error)))?;
    for found in CertificateDer::pem_slice_iter(&pem) {
        let certificate = found.map_err(|error| fail(name(&error)))?;
        roots.add(certificate).map_err(|error| fail(name(&error)))?;
    }
    match roots.is_empty() {
        true => Err(fail(name(&"there is no certificate in it"))),
        false => Ok(roots),
    }
}

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn pair(
    access: &Access,
    plugged: Option<&(Vec<u8>, Vec<u8>)>,
) -> Result<Option<Pair>, ConnectError> {
    let (cert, key) = match (plugged, &access.certificate) {
        (Some(pair), _) => pair.clone(),
        (None, None) => return Ok(None),
        (None, Some(certificate)) => match certificate.read() {
            Ok(pair) => pair,
            // Rotation will bring one.
            Err(_) if matches!(certificate, Certificate::Rotated { given: None, .. }) => {
                return Ok(None);
            }
            Err(error) => {
                let (field, source) = unreadable(certificate);
                let problem = match source {
                    Some(source) => named(source, &error),
                    None => error.to_string(),
                };
                return Err(ConnectError::field(&access.path, field, problem, PAIR));
            }
        },
    };
    let fail = |field, problem| ConnectError::field(&access.path, field, problem, PAIR);
    let chain = CertificateDer::pem_slice_iter(&cert)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| fail("client-certificate", error.to_string()))?;
    if chain.is_empty() {
        return Err(fail("client-certificate", "there is no certificate in it".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(&key)
        .map_err(|error| fail("client-key", error.to_string()))?;
    Ok(Some((chain, key)))
}

/// Which of the two cannot be read.
fn unreadable(certificate: &Certificate) -> (&'static str, Option<&Source>) {
    match certificate {
        Certificate::Given { cert, key } => match cert.read() {
            Err(_) => ("client-certificate", Some(cert)),
            Ok(_) => ("client-key", Some(key)),
        },
        Certificate::Rotated { given: Some(given), .. } => unreadable(given),
        Certificate::Rotated { given: None, .. } => ("client-certificate", None),
    }
}

fn named(source: &Source, problem: &dyn fmt::Display) -> String {
    match source.path() {
        Some(path) => format!("{}: {problem}", path.display()),
        None => problem.to_string(),
    }
}
