//! The HTTPS server's TLS: versions, ciphers, curves, and client certificates that are asked for.
//!
//! Input: `tlsMinVersion`, `tlsCipherSuites`, `tlsCurvePreferences`, where the serving certificate
//! comes from. Output: a rustls configuration. A client certificate is not judged here: the
//! handshake only proves that the client has its key, and each request is judged against the
//! authorities of that moment, so that a bad certificate is answered with 401 as by the kubelet.
//! Sessions are not resumed: they would outlive a change of the authorities.
// k8s: cmd/kubelet/app/server.go InitializeTLS

use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use tokio_rustls::rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, Error, NamedGroup, ProtocolVersion,
    ServerConfig, SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion, version,
};

use super::old_forms;

/// Go's names of the cipher suites of TLS 1.2 that this server has.
const SUITES: [(&str, CipherSuite); 6] = [
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];
/// Go's other names: of suites that are too weak to be offered, and of TLS 1.3's, which cannot be
/// chosen.
// k8s: staging/src/k8s.io/component-base/cli/flag/ciphersuites_flag.go allCiphers
const NOT_OFFERED: [&str; 19] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];
/// Go's numbers of curves, which are those of TLS.
const CURVES: [(i32, NamedGroup); 3] =
    [(23, NamedGroup::secp256r1), (24, NamedGroup::secp384r1), (29, NamedGroup::X25519)];

/// Versions and suites that may be negotiated; empty is the library's choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings<'a> {
    /// `VersionTLS12` and the like.
    pub min_version: &'a str,
    /// Go's names of cipher suites.
    pub suites: &'a [String],
    /// Go's numbers of curves.
    pub curves: &'a [i32],
}

/// Reason why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A misspelt suite would leave fewer suites than the settings list.
    #[error("tlsCipherSuites: there is no cipher suite {0:?}; correct its name")]
    Suite(String),
    /// The library's reason.
    #[error("tlsMinVersion, tlsCipherSuites or tlsCurvePreferences leave nothing to agree on")]
    Nothing(#[from] Error),
}

/// The first of these that names no cipher suite of Go's.
// k8s: staging/src/k8s.io/component-base/cli/flag/ciphersuites_flag.go TLSCipherSuites
pub fn unknown_suite(names: &[String]) -> Option<&str> {
    let is_known = |name: &str| {
        let short = name.strip_suffix("_SHA256").filter(|short| short.ends_with("POLY1305"));
        let is_offered =
            |(offered, _): &(&str, CipherSuite)| *offered == name || Some(*offered) == short;
        NOT_OFFERED.contains(&name) || SUITES.iter().any(is_offered)
    };
    names.iter().map(String::as_str).find(|name| !is_known(name))
}

/// The server's configuration.
pub fn server_config(
    settings: Settings<'_>,
    certificate: Arc<dyn ResolvesServerCert>,
) -> Result<ServerConfig, TlsError> {
    if let Some(name) = unknown_suite(settings.suites) {
        return Err(TlsError::Suite(name.to_owned()));
    }
    let provider = Arc::new(provider(settings));
    let verifier = Arc::new(AnyClient::new(&provider));
    let mut tls = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions(settings.min_version))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificate);
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    Ok(tls)
}

/// TLS below 1.2 does not exist here; asking for it gives 1.2 and up.
fn versions(min: &str) -> &'static [&'static SupportedProtocolVersion] {
    static FROM_12: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
    if min == "VersionTLS13" { &FROM_12[..1] } else { &FROM_12 }
}

fn provider(settings: Settings<'_>) -> CryptoProvider {
    let mut provider = default_provider();
    let wanted = settings.suites;
    if !wanted.is_empty() {
        let name = |suite: &str| suite.trim_end_matches("_SHA256").to_owned();
        let known = |suite: CipherSuite| SUITES.iter().find(|(_, s)| *s == suite).map(|(n, _)| n);
        let asked = |suite: CipherSuite| {
            known(suite).is_some_and(|n| wanted.iter().any(|w| name(w) == name(n)))
        };
        // Those of TLS 1.3 cannot be chosen.
        let keep = |s: &SupportedCipherSuite| s.tls13().is_some() || asked(s.suite());
        provider.cipher_suites.retain(keep);
        let have = |w: &String| SUITES.iter().any(|(n, _)| name(n) == name(w));
        let missing: Vec<_> = wanted.iter().filter(|w| !have(w)).collect();
        if !missing.is_empty() {
            tracing::warn!(
                ?missing,
                "tlsCipherSuites: too weak to be offered, or not to be chosen"
            );
        }
    }
    let curves = settings.curves;
    if !curves.is_empty() {
        let asked = |group: NamedGroup| {
            CURVES.iter().any(|(number, curve)| *curve == group && curves.contains(number))
        };
        let kept: Vec<_> =
            provider.kx_groups.iter().copied().filter(|group| asked(group.name())).collect();
        if kept.is_empty() {
            tracing::warn!(?curves, "tlsCurvePreferences: none is known; the defaults are used");
        } else {
            provider.kx_groups = kept;
        }
    }
    provider
}

/// Accepts any certificate, also one of version 1, if the client has its key, or none: clients are
/// judged by each of their requests.
#[derive(Debug)]
struct AnyClient(WebPkiSupportedAlgorithms);

impl AnyClient {
    fn new(provider: &CryptoProvider) -> Self {
        Self(provider.signature_verification_algorithms)
    }
}

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let version = ProtocolVersion::TLSv1_2;
        verify_tls12_signature(message, certificate, signature, &self.0).or_else(|error| {
            let has_key = old_forms::has_key(certificate, message, signature, version, &self.0);
            has_key.then(HandshakeSignatureValid::assertion).ok_or(error)
        })
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let version = ProtocolVersion::TLSv1_3;
        verify_tls13_signature(message, certificate, signature, &self.0).or_else(|error| {
            let has_key = old_forms::has_key(certificate, message, signature, version, &self.0);
            has_key.then(HandshakeSignatureValid::assertion).ok_or(error)
        })
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::server::ResolvesServerCertUsingSni;

    use super::*;

    fn suites(names: &[&str]) -> Vec<CipherSuite> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let suites = provider(Settings { suites: &names, ..Settings::default() }).cipher_suites;
        suites.iter().filter(|s| s.tls13().is_none()).map(SupportedCipherSuite::suite).collect()
    }

    #[test]
    fn only_the_suites_that_were_asked_for_are_offered() {
        assert_eq!(suites(&[]).len(), 6);
        let one = [CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256];
        assert_eq!(suites(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]), one);
        let long = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256";
        assert_eq!(suites(&[long]).len(), 1, "with and without the suffix");
        assert_eq!(suites(&["TLS_RSA_WITH_AES_128_CBC_SHA"]), [], "too weak");
    }

    #[test]
    fn cipher_suite_unknown_to_go_is_rejected() {
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let long = SUITES.map(|(name, _)| match name.ends_with("POLY1305") {
            true => format!("{name}_SHA256"),
            false => name.to_owned(),
        });
        assert_eq!(unknown_suite(&long), None);
        assert_eq!(unknown_suite(&names(&SUITES.map(|(name, _)| name))), None);
        assert_eq!(unknown_suite(&names(&NOT_OFFERED)), None);
        for slip in ["FOO", "", "TLS_ECDHE_RSA_WITH_AES_128_GCM", "tls_aes_128_gcm_sha256"] {
            let all = names(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", slip]);
            assert_eq!(unknown_suite(&all), Some(slip));
            let settings = Settings { suites: &all, ..Settings::default() };
            let nobody = Arc::new(ResolvesServerCertUsingSni::new());
            let error = server_config(settings, nobody).expect_err("no such suite");
            assert!(error.to_string().contains(&format!("{slip:?}")), "{error}");
        }
    }

    #[test]
    fn curves_and_versions_are_those_of_the_configuration() {
        let settings = Settings { curves: &[29, 4588], ..Settings::default() };
        let groups: Vec<_> = provider(settings).kx_groups.iter().map(|g| g.name()).collect();
        assert_eq!(groups, [NamedGroup::X25519]);
        assert_eq!(versions("VersionTLS13").len(), 1);
        assert_eq!(versions("VersionTLS12").len(), 2);
        assert_eq!(versions("").len(), 2);
    }
}
