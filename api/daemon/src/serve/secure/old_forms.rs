//! Client certificates that the TLS library refuses and Go accepts: those of version 1, as OpenSSL
//! makes them without an extension file, those that are marked as authorities, and those that are
//! in the bundle themselves.
//!
//! Input: a certificate, authorities, or a client's signature in its handshake. Output: whether an
//! authority signed the certificate itself, with nothing between, and whether the client has its
//! key. Any other form is left to the library. Pure: the time is given.
// k8s: staging/src/k8s.io/apiserver/pkg/authentication/request/x509/x509.go; Go's crypto/x509 verify.go

use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use tokio_rustls::rustls::pki_types::SignatureVerificationAlgorithm;
use tokio_rustls::rustls::{DigitallySignedStruct, ProtocolVersion};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::x509::{SubjectPublicKeyInfo, X509Version};

use super::subject::{SEQUENCE, Value};

/// Verifies a certificate of an old form for a client; `None` for any other certificate. `signers`
/// are subject and certificate of each trusted authority.
pub(super) fn verify<'a>(
    leaf: &[u8],
    signers: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    now: i64,
) -> Option<Result<(), &'static str>> {
    let parsed = parsed(leaf)?;
    let is_old = is_version_1(&parsed) || parsed.is_ca();
    if !is_old && !signers.clone().any(|(_, certificate)| certificate == leaf) {
        return None;
    }
    Some(judged(leaf, &parsed, signers, now))
}

fn judged<'a>(
    leaf: &[u8],
    parsed: &X509Certificate<'_>,
    mut signers: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    now: i64,
) -> Result<(), &'static str> {
    let validity = parsed.validity();
    if now < validity.not_before.timestamp() || now > validity.not_after.timestamp() {
        return Err("it has expired, or is not valid yet");
    }
    if !is_for_clients(parsed) {
        return Err("it is not for clients");
    }
    // One that is in the bundle itself needs no other.
    let issuer = parsed.issuer().as_raw();
    let vouches = |(subject, signer): (&[u8], &[u8])| {
        signer == leaf || (subject == issuer && has_signed(signer, leaf, parsed))
    };
    match signers.any(vouches) {
        true => Ok(()),
        false => Err("no authority has signed it"),
    }
}

/// True if clients may show it, or if it may sign theirs; false if it has an unknown critical
/// extension.
fn is_for_clients(certificate: &X509Certificate<'_>) -> bool {
    let is_known = |extension: &ParsedExtension<'_>| {
        matches!(
            extension,
            ParsedExtension::BasicConstraints(_)
                | ParsedExtension::KeyUsage(_)
                | ParsedExtension::ExtendedKeyUsage(_)
                | ParsedExtension::SubjectAlternativeName(_)
        )
    };
    let mut extensions = certificate.extensions().iter();
    extensions.all(|extension| !extension.critical || is_known(extension.parsed_extension()))
        && match certificate.extended_key_usage() {
            Ok(usage) => usage.is_none_or(|usage| usage.value.client_auth || usage.value.any),
            Err(_) => false,
        }
}

/// True for an authority; of version 1 each may be one.
// k8s: Go's crypto/x509 x509.go CheckSignatureFrom
pub(super) fn may_sign(certificate: &X509Certificate<'_>) -> bool {
    let usage = certificate.key_usage();
    is_version_1(certificate)
        || certificate.is_ca()
            && usage.is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()))
}

fn has_signed(signer: &[u8], leaf: &[u8], certificate: &X509Certificate<'_>) -> bool {
    let Some(signer) = parsed(signer) else { return false };
    // Whether it may vouch for such a name is the library's to decide.
    matches!(signer.name_constraints(), Ok(None))
        && may_sign(&signer)
        && is_for_clients(&signer)
        && certificate.signature_algorithm == certificate.tbs_certificate.signature
        && signature_algorithm(leaf).is_some_and(|algorithm| {
            let mut all = default_provider().signature_verification_algorithms.all.iter();
            all.any(|known| {
                let signature = &certificate.signature_value.data;
                known.signature_alg_id().as_ref() == algorithm
                    && holds(
                        *known,
                        signer.public_key(),
                        certificate.tbs_certificate.as_ref(),
                        signature,
                    )
            })
        })
}

/// True if the client with a certificate of version 1 has its key, by its signature in the
/// handshake.
pub(super) fn has_key(
    certificate: &[u8],
    message: &[u8],
    signature: &DigitallySignedStruct,
    version: ProtocolVersion,
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    let Some(certificate) = parsed(certificate).filter(is_version_1) else { return false };
    let key = certificate.public_key();
    if version == ProtocolVersion::TLSv1_3 {
        let key = key.raw.into();
        return verify_tls13_signature_with_raw_key(message, &key, signature, algorithms).is_ok();
    }
    let mut candidates = algorithms.mapping.iter().filter(|(name, _)| *name == signature.scheme);
    let signed = signature.signature();
    candidates.any(|(_, all)| all.iter().any(|known| holds(*known, key, message, signed)))
}

fn holds(
    algorithm: &dyn SignatureVerificationAlgorithm,
    key: &SubjectPublicKeyInfo<'_>,
    message: &[u8],
    signature: &[u8],
) -> bool {
    let kind = Value::expect(key.raw, SEQUENCE).and_then(|(_, key)| Value::expect(key, SEQUENCE));
    kind.is_some_and(|(_, kind)| kind == algorithm.public_key_alg_id().as_ref())
        && algorithm.verify_signature(&key.subject_public_key.data, message, signature).is_ok()
}

/// The signature algorithm of a certificate, as its authority wrote it.
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    let (_, parts) = Value::expect(certificate, SEQUENCE)?;
    let (rest, _) = Value::expect(parts, SEQUENCE)?;
    Value::expect(rest, SEQUENCE).map(|(_, algorithm)| algorithm)
}

fn parsed(certificate: &[u8]) -> Option<X509Certificate<'_>> {
    let (rest, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    rest.is_empty().then_some(parsed)
}

/// True for version 1 or 2; version 2 is not used in practice.
fn is_version_1(certificate: &X509Certificate<'_>) -> bool {
    certificate.version().0 < X509Version::V3.0
}

#[cfg(test)]
#[path = "old_forms_tests.rs"]
mod tests;
