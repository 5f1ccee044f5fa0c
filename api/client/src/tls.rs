//! TLS towards the API server: trusted authorities, and our certificate.
//!
//! rustls with ring. Input: an [`Access`]. Output: a client configuration, `None` for plain HTTP.
//! Certificates that rustls refuses and upstream accepts are reported in words ([`TlsRefusal`]).

use std::sync::Arc;
use std::{fmt, io};

use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, Error, InconsistentKeys, RootCertStore,
};

use crate::access::Access;
use crate::any_server::AnyServer;
use crate::error::ConnectError;
use crate::files::FileSource;
use crate::identity::Certificate;
use crate::own_root::OwnRoot;

/// Proof that the server is the right one.
#[derive(Clone)]
pub(crate) enum Trust {
    /// These authorities; `None` for those of the system.
    Authorities(Option<FileSource>),
    /// None: `insecure-skip-tls-verify`.
    Anyone,
}

/// TLS towards any other server: trusts the authorities of the system (`SSL_CERT_FILE` and
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

/// Reports faults of certificates and keys before anything is connected.
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
        Trust::Authorities(None) => builder.with_root_certificates(roots_of_system()),
        Trust::Authorities(Some(source)) => {
            let verifier = Arc::new(verifier(access, source, &provider)?);
            builder.dangerous().with_custom_certificate_verifier(verifier)
        }
        Trust::Anyone => {
            let anyone = Arc::new(AnyServer::new(&provider));
            builder.dangerous().with_custom_certificate_verifier(anyone)
        }
    };
    let mut config = match pair(access, plugged)? {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let pair = certified(access, pair, &provider)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
        }
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

fn roots_of_system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// The verifier of the server's certificate, with these authorities.
fn verifier(
    access: &Access,
    source: &FileSource,
    provider: &Arc<CryptoProvider>,
) -> Result<OwnRoot, ConnectError> {
    let fail = |problem: &dyn fmt::Display| {
        let problem = named(source, problem);
        ConnectError::field(&access.path, "certificate-authority", problem, AUTHORITY)
    };
    let (mut roots, mut trusted) = (RootCertStore::empty(), Vec::new());
    let pem = source.read().map_err(|error| fail(&error))?;
    for found in CertificateDer::pem_slice_iter(&pem) {
        let certificate = found.map_err(|error| fail(&error))?;
        roots.add(certificate.clone()).map_err(|error| fail(&explained(&error)))?;
        trusted.push(certificate);
    }
    if roots.is_empty() {
        return Err(fail(&"there is no certificate in it"));
    }
    let vouched = WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(provider));
    Ok(OwnRoot::new(vouched.build().map_err(|error| fail(&error))?, trusted))
}

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The pair, if certificate and key belong together. Only the server can read a certificate of
/// version 1, and it may accept it.
fn certified(
    access: &Access,
    (chain, key): Pair,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, ConnectError> {
    let fail = |field, problem| ConnectError::field(&access.path, field, problem, PAIR);
    let key = provider.key_provider.load_private_key(key).map_err(|error| {
        let problem = format!("it cannot be used: {error}; {}", TlsRefusal::Kind.words());
        fail("client-key", problem)
    })?;
    let pair = CertifiedKey::new(chain, key);
    match pair.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(pair),
        Err(error) if TlsRefusal::of(&error) == Some(TlsRefusal::Version) => Ok(pair),
        Err(error) => {
            let problem = format!("it does not fit its key: {}", explained(&error));
            Err(fail("client-certificate", problem))
        }
    }
}

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

/// Certificates that rustls refuses and Go's TLS accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsRefusal {
    /// X.509 before version 3.
    Version,
    /// A certificate of an authority, where one of a server is required.
    Authority,
    /// A key or a signature of another kind.
    Kind,
}

impl TlsRefusal {
    /// Finds the refusal in an error, if it is one of these.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        let Error::InvalidCertificate(problem) = error else { return None };
        match problem {
            CertificateError::UnsupportedSignatureAlgorithmContext { .. }
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
                Some(Self::Kind)
            }
            // webpki's own errors, which cannot be named here, show their names.
            CertificateError::Other(other) => match other.0.to_string().as_str() {
                "UnsupportedCertVersion" => Some(Self::Version),
                "CaUsedAsEndEntity" => Some(Self::Authority),
                _ => None,
            },
            _ => None,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Version => "it is of X.509 version 1: make it anew with extensions (version 3)",
            Self::Authority => {
                "it is one of an authority: make one for the server alone (CA:FALSE)"
            }
            Self::Kind => {
                "keys on P-521 and those of RSA below 2048 bits are not supported: make it anew on \
                 P-256 or P-384, or with RSA of 2048 bits or more"
            }
        }
    }
}

/// An error and, where it is one of those, its meaning.
fn explained(error: &Error) -> String {
    match TlsRefusal::of(error) {
        Some(refusal) => format!("{error}; {}", refusal.words()),
        None => error.to_string(),
    }
}

/// Finds the refusal in the error of a handshake.
pub(crate) fn of_handshake(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner.filter(|inner| TlsRefusal::of(inner).is_some()) {
        Some(inner) => io::Error::new(error.kind(), explained(inner)),
        None => error,
    }
}

/// The one of the two that cannot be read.
fn unreadable(certificate: &Certificate) -> (&'static str, Option<&FileSource>) {
    match certificate {
        Certificate::Given { cert, key } => match cert.read() {
            Err(_) => ("client-certificate", Some(cert)),
            Ok(_) => ("client-key", Some(key)),
        },
        Certificate::Rotated { given: Some(given), .. } => unreadable(given),
        Certificate::Rotated { given: None, .. } => ("client-certificate", None),
    }
}

fn named(source: &FileSource, problem: &dyn fmt::Display) -> String {
    match source.path() {
        Some(path) => format!("{}: {problem}", path.display()),
        None => problem.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate as `openssl x509 -req` makes it without extensions; good until 2126.
    const VERSION_1: &str = "-----BEGIN CERTIFICATE-----
MIIBFDCBuwIUYWydexMmODiH5m13qfKY4XW47m8wCgYIKoZIzj0EAwIwDDEKMAgG
A1UEAwwBbjAgFw0yNjExMjYxNDU4MTdaGA8yMTI2MTEwMjE0NTgxN1owDDEKMAgG
A1UEAwwBbjBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABDGIVhN5meiD4TGakflD
pO9v3jUa6US2PskCPp+sEO94iyQB8dENLvDzhn18g9pIxVWcqqn0zx8t9m7sn1uf
x2UwCgYIKoZIzj0EAwIDSAAwRQIhAMUM6TKi6qfEjTHv/SPxQWyNdPPLWZeNBH84
Qy13qcjYAiAtY01holjs8iWWp8O5IoCoyG/yPGUjmCRKkMel/l7RoQ==
-----END CERTIFICATE-----";
    /// A key on P-521, and in no use.
    const P521: &str = "-----BEGIN PRIVATE KEY-----
MIHuAgEAMBAGByqGSM49AgEGBSuBBAAjBIHWMIHTAgEBBEIAxuyvOMByZ7tkGiqy
nIsqRLL1nsMQQSt70qyTHbUWy+QhtwwTFaxYVPMiB7E572aY4HgXxqRFdq8i5fhJ
dSRfSwahgYkDgYYABAEgLN1IkdkwGMq3E6T/Gqh2mO+bAHnz8bWHdkygFn8jK8bT
iygPqxgDH8uG6l2QyqBu+Z3wHAFx4zJQ6xHCLGhe8gDQ4IlYXF85rQw0EWruvyY/
R2G3oD4pBHfKzI6HyggQkWrJXx3bJD4gK5NWJKXghijFId7eE7ABfUOJa5riyoaf
3A==
-----END PRIVATE KEY-----";

    /// The error for this certificate with this key.
    fn said(certificate: &str, key: &str) -> Result<(), ConnectError> {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("crt"), certificate).expect("written");
        std::fs::write(path("key"), key).expect("written");
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://a', \
             insecure-skip-tls-verify: true}}}}]\n\
             users: [{{name: u, user: {{client-certificate: '{}', client-key: '{}'}}}}]\n",
            path("crt").display(),
            path("key").display(),
        );
        std::fs::write(path("config"), text).expect("written");
        Access::read(&path("config")).map(drop)
    }

    #[test]
    fn mismatched_or_unsupported_client_key_is_rejected_with_the_reason() {
        let pair = || rcgen::generate_simple_self_signed(["n".to_owned()]).expect("a pair");
        let (one, other) = (pair(), pair());
        let key = one.signing_key.serialize_pem();
        said(&one.cert.pem(), &key).expect("its own key");
        let error = said(&other.cert.pem(), &key).expect_err("the key of another").to_string();
        assert!(error.contains("client-certificate: it does not fit its key"), "{error}");
        said(VERSION_1, &key).expect("the server looks at it");
        let error = said(&one.cert.pem(), P521).expect_err("no such key here").to_string();
        assert!(error.contains("client-key: it cannot be used"), "{error}");
        assert!(error.contains("P-521"), "{error}");
    }

    #[test]
    fn failed_handshake_error_names_the_certificate_problem() {
        let version = CertificateDer::from_pem_slice(VERSION_1.as_bytes()).expect("a certificate");
        let parsed = tokio_rustls::rustls::server::ParsedCertificate::try_from(&version);
        let error = parsed.map(drop).expect_err("version 1");
        let error = of_handshake(io::Error::new(io::ErrorKind::InvalidData, error));
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("X.509 version 1"), "{error}");
        let other = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(of_handshake(other).kind(), io::ErrorKind::ConnectionReset);
    }
}
