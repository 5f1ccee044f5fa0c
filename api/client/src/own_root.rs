//! A server that shows one of the very certificates that are trusted.
//!
//! `openssl req -x509` makes certificates that are authorities. Such a certificate may be a
//! server's own and also be named as the authority; then no other certificate signs it. webpki
//! accepts no authority as a server, so this verifier does, after the same checks: the certificate
//! is within its validity period.
// k8s: Go's crypto/x509 Certificate.Verify, where a certificate among the roots is a chain of its own

use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{DigitallySignedStruct, Error, SignatureScheme};

use crate::tls::TlsRefusal;

/// Trusts certificates that the authorities signed, and the authorities themselves.
#[derive(Debug)]
pub(crate) struct OwnRoot {
    vouched: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl OwnRoot {
    /// A verifier that also trusts these certificates, which are the authorities of `vouched`.
    pub(crate) fn new(
        vouched: Arc<WebPkiServerVerifier>,
        trusted: Vec<CertificateDer<'static>>,
    ) -> Self {
        Self { vouched, trusted }
    }
}

impl ServerCertVerifier for OwnRoot {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verdict = self.vouched.verify_server_cert(shown, chain, name, ocsp, now);
        let is_authority = |error| TlsRefusal::of(error) == Some(TlsRefusal::Authority);
        if verdict.as_ref().err().is_some_and(is_authority) && self.trusted.contains(shown) {
            verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
            return Ok(ServerCertVerified::assertion());
        }
        verdict
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.vouched.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.vouched.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.vouched.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use tokio_rustls::rustls::RootCertStore;
    use tokio_rustls::rustls::crypto::ring;

    use super::*;

    fn authority() -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["api".to_owned()]).expect("a name");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().clone()
    }

    #[test]
    fn trusted_certificate_is_accepted_as_the_servers_own_if_name_and_time_match() {
        let (trusted, other) = (authority(), authority());
        let mut roots = RootCertStore::empty();
        roots.add(trusted.clone()).expect("an authority");
        let provider = Arc::new(ring::default_provider());
        let vouched = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
        let verifier = OwnRoot::new(vouched.build().expect("a verifier"), vec![trusted.clone()]);
        let now = UnixTime::now();
        let is_good = |shown: &CertificateDer<'_>, name: &'static str, now| {
            let name = ServerName::try_from(name).expect("a name");
            verifier.verify_server_cert(shown, &[], &name, &[], now).is_ok()
        };
        assert!(is_good(&trusted, "api", now));
        assert!(!is_good(&other, "api", now) && !is_good(&trusted, "other", now));
        let late = UnixTime::since_unix_epoch(Duration::from_secs(1 << 40));
        assert!(!is_good(&trusted, "api", late));
    }
}
