//! The user of a client certificate: common name and organisations of its subject. Pure.
//!
//! Input: a certificate in DER that the TLS library has verified. Output: name and groups. Only as
//! much of X.509 is read as leads to the subject; anything unexpected is `None`, never a guess.
// k8s: staging/src/k8s.io/apiserver/pkg/authentication/request/x509/x509.go CommonNameUserConversion

/// Tags of ASN.1 that are read here.
pub(super) const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const VERSION: u8 = 0xa0;
/// Object ids of attributes, in DER: 2.5.4.3 and 2.5.4.10.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];
/// Organisations that become groups; further ones are ignored.
const GROUPS_MAX: usize = 256;

/// The subject of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateSubject {
    /// Common name: the user.
    pub name: String,
    /// Organisations: the user's groups.
    pub groups: Vec<String>,
}

/// The subject; `None` if the bytes are no certificate or it has no common name.
pub(super) fn subject(certificate: &[u8]) -> Option<CertificateSubject> {
    let (_, certificate) = Value::expect(certificate, SEQUENCE)?;
    let (_, mut body) = Value::expect(certificate, SEQUENCE)?;
    if body.first() == Some(&VERSION) {
        body = Value::read(body)?.0;
    }
    // Serial number, signature algorithm, issuer, validity.
    for _ in 0..4 {
        body = Value::read(body)?.0;
    }
    let (_, mut names) = Value::expect(body, SEQUENCE)?;
    let (mut name, mut groups) = (None, Vec::new());
    while !names.is_empty() {
        let (rest, mut set) = Value::expect(names, SET)?;
        names = rest;
        while !set.is_empty() {
            let (rest, pair) = Value::expect(set, SEQUENCE)?;
            set = rest;
            let (value, id) = Value::expect(pair, OBJECT_ID)?;
            let text = || text(Value::read(value)?.1);
            match id {
                // The last of several common names counts, as in Go.
                _ if id == COMMON_NAME => name = Some(text()?),
                _ if id == ORGANIZATION && groups.len() < GROUPS_MAX => groups.push(text()?),
                _ => {}
            }
        }
    }
    Some(CertificateSubject { name: name.filter(|name| !name.is_empty())?, groups })
}

/// Reads any bytes as a certificate, for fuzzing: name and groups cannot be longer than the bytes.
pub fn fuzz(bytes: &[u8]) {
    if let Some(CertificateSubject { name, groups }) = subject(bytes) {
        assert!(!name.is_empty() && groups.len() <= GROUPS_MAX);
        let texts: usize = groups.iter().map(String::len).sum();
        assert!(name.len() + texts <= bytes.len());
    }
}

/// A value of ASN.1: tag and content.
pub(super) struct Value<'a> {
    tag: u8,
    content: &'a [u8],
}

impl<'a> Value<'a> {
    /// The first value of `bytes` and the bytes after it.
    pub(super) fn read(bytes: &'a [u8]) -> Option<(&'a [u8], Self)> {
        let (&tag, rest) = bytes.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut length = usize::from(first & 0x7f);
        if first & 0x80 != 0 {
            // An indefinite length, or one of more than four bytes, is not that of a certificate.
            let octets = rest.get(..length).filter(|_| (1..=4).contains(&length))?;
            rest = &rest[length..];
            length = octets.iter().fold(0, |sum, octet| (sum << 8) | usize::from(*octet));
        }
        let content = rest.get(..length)?;
        Some((&rest[length..], Self { tag, content }))
    }

    /// The bytes after the first value, and its content, if it has that tag.
    pub(super) fn expect(bytes: &'a [u8], tag: u8) -> Option<(&'a [u8], &'a [u8])> {
        let (rest, value) = Self::read(bytes)?;
        (value.tag == tag).then_some((rest, value.content))
    }
}

/// The text of a UTF8String, PrintableString or IA5String; other string types are refused.
fn text(value: Value<'_>) -> Option<String> {
    const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
    TEXTS.contains(&value.tag).then(|| String::from_utf8(value.content.to_vec()).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    fn certificate(names: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn name_and_organisation_are_user_and_group() {
        let der = certificate(&[
            (DnType::CountryName, "CH"),
            (DnType::OrganizationName, "system:masters"),
            (DnType::CommonName, "kube-apiserver-kubelet-client"),
        ]);
        let expected = CertificateSubject {
            name: "kube-apiserver-kubelet-client".to_owned(),
            groups: vec!["system:masters".to_owned()],
        };
        assert_eq!(subject(&der), Some(expected));
    }

    #[test]
    fn a_certificate_without_a_common_name_has_no_subject() {
        assert_eq!(subject(&certificate(&[(DnType::OrganizationName, "o")])), None);
        assert_eq!(subject(&certificate(&[])), None);
        assert_eq!(subject(b""), None);
    }

    proptest! {
        #[test]
        fn subject_parsing_never_panics_on_any_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            cut in 0_usize..400,
            flip in 0_usize..400,
        ) {
            let _ = subject(&bytes);
            let mut der = certificate(&[(DnType::CommonName, "n")]);
            let at = flip % der.len();
            der[at] ^= 0x41;
            let _ = subject(&der);
            der.truncate(cut);
            let _ = subject(&der);
        }
    }
}
