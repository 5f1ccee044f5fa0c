//! Fields of a certificate: its validity, its subject and its addresses.
//!
//! Input: PEM or DER. Output: [`Validity`]. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use x509_parser::error::X509Error;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::request::CertificateNames;

/// The fields that decide when a certificate must be replaced. Times are Unix seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validity {
    /// Begin of its validity.
    pub not_before: i64,
    /// End of its validity.
    pub not_after: i64,
    common_name: String,
    organizations: BTreeSet<String>,
    names: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
}

impl Validity {
    /// The validity of the first certificate in a PEM text.
    pub fn of_pem(pem: &[u8]) -> Option<Self> {
        let first = CertificateDer::pem_slice_iter(pem).next()?.ok()?;
        Self::of_der(&first)
    }

    fn of_der(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let text = |value: Result<&str, X509Error>| value.ok().map(str::to_owned);
        let mut validity = Self {
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            common_name: subject
                .iter_common_name()
                .filter_map(|value| text(value.as_str()))
                .last()
                .unwrap_or_default(),
            organizations: subject
                .iter_organization()
                .filter_map(|value| text(value.as_str()))
                .collect(),
            ..Self::default()
        };
        let names = certificate.subject_alternative_name().ok().flatten();
        for name in names.map(|names| names.value.general_names.as_slice()).unwrap_or_default() {
            match name {
                GeneralName::DNSName(name) => {
                    validity.names.insert((*name).to_owned());
                }
                GeneralName::IPAddress(bytes) => {
                    let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                    let v6 = || <[u8; 16]>::try_from(*bytes).map(IpAddr::from);
                    validity.addresses.extend(v4.or_else(|_| v6()).ok());
                }
                _ => {}
            }
        }
        Some(validity)
    }

    /// True if it names everything that is wanted; more does no harm.
    // k8s: staging/src/k8s.io/client-go/util/certificate/certificate_manager.go
    //      certSatisfiesTemplateLocked
    pub fn satisfies(&self, wanted: &CertificateNames) -> bool {
        self.common_name == wanted.common_name()
            && self.organizations.contains(super::request::ORGANIZATION)
            && wanted.names.is_subset(&self.names)
            && wanted.addresses.is_subset(&self.addresses)
    }

    /// When to replace it: after 70 to 90 % of its life, by `part` from 0 to 1.
    // k8s: certificate_manager.go jitteryDuration
    pub fn deadline(&self, part: f64) -> i64 {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
        let used = ((self.not_after - self.not_before) as f64 * (0.7 + 0.2 * part)).round() as i64;
        self.not_before + used
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, date_time_ymd};

    /// A pair for the node n; `years` are those in which it begins and ends.
    pub(in crate::identity) fn pair(names: &[&str], years: (i32, i32)) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, "system:node:n");
        params.not_before = date_time_ymd(years.0, 1, 1);
        params.not_after = date_time_ymd(years.1, 1, 1);
        (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
    }

    #[test]
    fn certificate_satisfies_only_the_node_names_and_addresses_that_it_names() {
        let (pem, _) = pair(&["n", "192.0.2.1", "2001:db8::1"], (2020, 2021));
        let validity = Validity::of_pem(pem.as_bytes()).expect("a certificate");
        let wanted = |node: &str, names: &[&str], ips: &[&str]| CertificateNames {
            node: node.to_owned(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            addresses: ips.iter().map(|ip| ip.parse().expect("an address")).collect(),
        };
        assert!(validity.satisfies(&wanted("n", &["n"], &["2001:db8::1"])));
        assert!(validity.satisfies(&wanted("n", &[], &[])));
        assert!(!validity.satisfies(&wanted("m", &[], &[])));
        assert!(!validity.satisfies(&wanted("n", &["x"], &[])));
        assert!(!validity.satisfies(&wanted("n", &[], &["192.0.2.2"])));
        assert_eq!(Validity::of_pem(b"nonsense"), None);
    }

    #[test]
    fn rotation_deadline_is_late_in_the_life_of_the_certificate() {
        let validity = Validity { not_before: 1000, not_after: 2000, ..Validity::default() };
        assert_eq!((validity.deadline(0.0), validity.deadline(1.0)), (1700, 1900));
    }
}
