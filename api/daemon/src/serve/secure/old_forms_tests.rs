//! Certificates of old forms against authorities, and in handshakes.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SigningKey as _,
};
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _,
};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{ClientConfig, SupportedProtocolVersion, version};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::serve::secure::authorities::{Authorities, AuthorityError};
use crate::serve::secure::tls::{Settings, server_config};

fn params(name: &str, is_ca: bool, usage: &[ExtendedKeyUsagePurpose]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = usage.to_vec();
    if is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    params
}

struct OldAuthority {
    pem: String,
    key: KeyPair,
    params: CertificateParams,
}

impl OldAuthority {
    fn new(name: &str) -> Self {
        let (params, key) = (params(name, true, &[]), KeyPair::generate().expect("a key"));
        Self { pem: params.self_signed(&key).expect("signed").pem(), key, params }
    }

    fn sign(&self, of: &CertificateParams, key: &KeyPair) -> CertificateDer<'static> {
        let issuer = Issuer::from_params(&self.params, &self.key);
        of.signed_by(key, &issuer).expect("signed").der().clone()
    }

    /// The same certificate as one of version 1: without its version and its extensions.
    fn as_version_1(&self, certificate: &[u8]) -> CertificateDer<'static> {
        let (_, parts) = Value::expect(certificate, SEQUENCE).expect("a certificate");
        let (_, body) = Value::expect(parts, SEQUENCE).expect("a body");
        let (begin, _) = Value::read(body).expect("a version");
        let mut end = begin;
        for _ in 0..6 {
            end = Value::read(end).expect("a field").0;
        }
        let body = sequence(&[&begin[..begin.len() - end.len()]]);
        let signature = self.key.sign(&body).expect("signed");
        let algorithm = sequence(&[signature_algorithm(certificate).expect("an algorithm")]);
        let bits =
            [&[3, u8::try_from(signature.len() + 1).expect("short"), 0], &*signature].concat();
        sequence(&[&body, &algorithm, &bits]).into()
    }
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let [high, low] = u16::try_from(content.len()).expect("short").to_be_bytes();
    [&[SEQUENCE, 0x82, high, low], &*content].concat()
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

#[test]
fn version_1_client_certificate_is_accepted_only_from_its_authority() {
    let (ca, other) = (OldAuthority::new("ca"), OldAuthority::new("ca"));
    let all = Authorities::read(ca.pem.as_bytes(), now()).expect("authorities");
    let key = KeyPair::generate().expect("a key");
    let modern = ca.sign(&params("client", false, &[ExtendedKeyUsagePurpose::ClientAuth]), &key);
    let leaf = ca.as_version_1(&modern);
    assert!(all.verify(&leaf, &[], now()).is_ok());
    let refused = |leaf: &CertificateDer<'_>, now| all.verify(leaf, &[], now).expect_err("refused");
    let unsigned = AuthorityError::OldForm("no authority has signed it");
    assert_eq!(refused(&other.as_version_1(&modern), now()), unsigned);
    let (_, parsed) = x509_parser::parse_x509_certificate(&leaf).expect("a certificate");
    let before = parsed.validity().not_before.timestamp() - 1;
    assert!(all.verify(&leaf, &[], before).is_err());
    for at in [leaf.len() / 2, leaf.len() - 1] {
        let mut changed = leaf.to_vec();
        changed[at] ^= 1;
        assert!(all.verify(&changed.into(), &[], now()).is_err(), "{at}");
    }
}

#[test]
fn client_certificate_marked_as_ca_is_accepted_if_meant_for_clients() {
    let ca = OldAuthority::new("ca");
    let alone = OldAuthority::new("alone");
    let bundle = format!("{}{}", ca.pem, alone.pem);
    let all = Authorities::read(bundle.as_bytes(), now()).expect("authorities");
    let key = KeyPair::generate().expect("a key");
    let verify = |leaf: &CertificateDer<'_>| all.verify(leaf, &[], now()).map(drop);
    let itself = CertificateDer::from_pem_slice(alone.pem.as_bytes()).expect("a certificate");
    assert_eq!(verify(&itself), Ok(()));
    assert_eq!(verify(&ca.sign(&params("client", true, &[]), &key)), Ok(()));
    let servers = params("server", true, &[ExtendedKeyUsagePurpose::ServerAuth]);
    let other_use = AuthorityError::OldForm("it is not for clients");
    assert_eq!(verify(&ca.sign(&servers, &key)), Err(other_use));
    let stranger = OldAuthority::new("ca");
    let stranger = stranger.sign(&params("client", true, &[]), &key);
    assert_eq!(verify(&stranger), Err(AuthorityError::OldForm("no authority has signed it")));
    // Any other form is the library's.
    let plain = ca.sign(&params("client", false, &[]), &key);
    assert!(super::verify(&plain, std::iter::empty(), now()).is_none());
}

#[test]
fn client_certificate_in_the_bundle_is_trusted_but_signs_no_other_certificate() {
    let key = KeyPair::generate().expect("a key");
    let own = params("client", false, &[ExtendedKeyUsagePurpose::ClientAuth]);
    let itself = own.self_signed(&key).expect("signed");
    let all = Authorities::read(itself.pem().as_bytes(), now()).expect("read");
    assert!(all.verify(itself.der(), &[], now()).is_ok());
    let other = KeyPair::generate().expect("a key");
    for is_ca in [false, true] {
        let forged = params("admin", is_ca, &[ExtendedKeyUsagePurpose::ClientAuth]);
        let issuer = Issuer::from_params(&own, &key);
        let forged = forged.signed_by(&other, &issuer).expect("signed");
        assert!(all.verify(forged.der(), &[], now()).is_err(), "{is_ca}");
    }
}

/// The server's result for a client that shows a certificate and signs with a key.
async fn shaken(
    certificate: &CertificateDer<'static>,
    key: &KeyPair,
    version: &'static SupportedProtocolVersion,
) -> bool {
    let pair = rcgen::generate_simple_self_signed(["node".to_owned()]).expect("a pair");
    let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der()));
    let provider = Arc::new(default_provider());
    let own = CertifiedKey::from_der(vec![pair.cert.der().clone()], private, &provider);
    let server = Arc::new(SingleCertAndKey::from(own.expect("a certificate")));
    let server = server_config(Settings::default(), server).expect("a configuration");
    let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let signer = provider.key_provider.load_private_key(private).expect("a key");
    let shown = SingleCertAndKey::from(CertifiedKey::new(vec![certificate.clone()], signer));
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[version])
        .expect("a version")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pintle_api::AnyServer::new(&provider)))
        .with_client_cert_resolver(Arc::new(shown));
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let name = "node".try_into().expect("a name");
    let connecting = tokio::spawn(TlsConnector::from(Arc::new(client)).connect(name, theirs));
    let accepted = TlsAcceptor::from(Arc::new(server)).accept(ours).await;
    let shown = accepted.is_ok_and(|stream| stream.get_ref().1.peer_certificates().is_some());
    connecting.abort();
    shown
}

#[tokio::test]
async fn version_1_client_must_prove_possession_of_its_key() {
    let ca = OldAuthority::new("ca");
    let key = KeyPair::generate().expect("a key");
    let leaf = ca.as_version_1(&ca.sign(&params("client", false, &[]), &key));
    let thief = KeyPair::generate().expect("a key");
    for version in [&version::TLS12, &version::TLS13] {
        assert!(shaken(&leaf, &key, version).await, "{version:?}");
        assert!(!shaken(&leaf, &thief, version).await, "{version:?}");
    }
}
