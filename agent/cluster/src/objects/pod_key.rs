//! A pod's private key, and the proof that we have it: an empty certificate request.
// k8s: pkg/kubelet/podcertificate/podcertificatemanager.go generateKeyAndProof, pemEncodeKey

use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
    PKCS_ED25519,
};

use super::trust_bundles::pem;

/// Ed25519 in PKCS#8 version 1 up to the seed, which Go writes and every reader takes; version 2
/// has the public key behind it.
const ED25519_HEAD: [u8; 5] = [0x30, 0x2e, 0x02, 0x01, 0x00];
/// Offsets of the algorithm's beginning and the seed's end in version 2.
const ED25519_PART: std::ops::Range<usize> = 5..48;

/// A key with its proof.
pub(super) struct PodKey {
    /// PKCS#8.
    pub(super) pem: String,
    /// PKCS#10 in DER.
    pub(super) request: Vec<u8>,
}

/// Reason why there is no key.
#[derive(Debug, thiserror::Error)]
pub(super) enum PodKeyError {
    #[error("keys of type {0:?} are not made by this agent; use ECDSAP256, ECDSAP384 or ED25519")]
    Unsupported(String),
    #[error("unknown key type {0:?}")]
    Unknown(String),
    #[error(transparent)]
    Make(#[from] rcgen::Error),
}

/// Makes a key of this kind; RSA and P-521 are not made here.
pub(super) fn make(kind: &str) -> Result<PodKey, PodKeyError> {
    let algorithm = match kind {
        "ECDSAP256" => &PKCS_ECDSA_P256_SHA256,
        "ECDSAP384" => &PKCS_ECDSA_P384_SHA384,
        "ED25519" => &PKCS_ED25519,
        "RSA3072" | "RSA4096" | "ECDSAP521" => {
            return Err(PodKeyError::Unsupported(kind.to_owned()));
        }
        _ => return Err(PodKeyError::Unknown(kind.to_owned())),
    };
    let key = KeyPair::generate_for(algorithm)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key)?;
    let mut der = key.serialize_der();
    if kind == "ED25519"
        && let Some(part) = der.get(ED25519_PART)
    {
        der = [&ED25519_HEAD, part].concat();
    }
    let pem = String::from_utf8(pem("PRIVATE KEY", &der)).unwrap_or_default();
    Ok(PodKey { pem, request: request.der().to_vec() })
}

#[cfg(test)]
mod tests {
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::prelude::FromDer as _;

    use super::*;

    #[test]
    fn key_matches_its_certificate_request_and_an_unsupported_key_type_is_rejected() {
        for kind in ["ECDSAP256", "ECDSAP384", "ED25519"] {
            let key = make(kind).expect(kind);
            let pair = KeyPair::from_pem(&key.pem).expect("a key");
            let (_, request) = X509CertificationRequest::from_der(&key.request).expect("a request");
            let info = &request.certification_request_info;
            assert_eq!(info.subject_pki.raw, rcgen::PublicKeyData::subject_public_key_info(&pair));
            assert!(info.subject.iter().next().is_none(), "{kind}");
        }
        let refusal = |kind: &str| make(kind).err().map(|error| error.to_string());
        assert!(refusal("RSA3072").is_some_and(|text| text.contains("use ECDSAP256")));
        assert_eq!(refusal("x").as_deref(), Some("unknown key type \"x\""));
    }
}
