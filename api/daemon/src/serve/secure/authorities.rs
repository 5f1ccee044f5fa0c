//! Authorities of client certificates: those of a bundle that are valid at the moment.
//!
//! Input: a bundle, a certificate chain. Output: whether the chain leads to one of them and is
//! meant for clients, and until when that is so. The TLS library uses only an authority's name and
//! key and never checks whether it has expired, so invalid ones are kept from it. `old_forms`
//! verifies certificates with a form that the library refuses. Pure but for the log: the time is
//! given.
// k8s: staging/src/k8s.io/apiserver/pkg/authentication/request/x509/x509.go

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;

use super::old_forms;

/// Reason why a bundle has no authorities, or why these do not vouch for a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AuthorityError {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    #[error("there is no certificate in it")]
    Empty,
    /// A certificate cannot be decoded.
    #[error("{0}")]
    Malformed(String),
    /// The TLS library refuses an authority or a certificate.
    #[error("{0}")]
    Refused(String),
    #[error("no authority may sign others, or all have ended or not begun")]
    NoneHolds,
    /// A certificate of an old form does not hold.
    #[error("{0}")]
    OldForm(&'static str),
}

/// All authorities of a bundle.
pub(super) struct Authorities {
    roots: Vec<Root>,
    in_force: Mutex<InForce>,
}

/// An authority. Times are seconds since 1970; at both of them it is still valid.
struct Root {
    certificate: CertificateDer<'static>,
    /// The subject in DER.
    subject: Vec<u8>,
    /// False for a certificate that is trusted itself, but may not sign others.
    may_sign: bool,
    from: i64,
    to: i64,
}

/// The valid authorities, until one begins or ends.
#[derive(Clone)]
struct InForce {
    from: i64,
    to: i64,
    /// `None` when there is none.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl Authorities {
    /// Reads a bundle, of authorities that hold or not.
    pub(super) fn read(pem: &[u8], now: i64) -> Result<Self, AuthorityError> {
        let mut roots = Vec::new();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.push(Root::new(certificate.map_err(malformed)?)?);
        }
        if roots.is_empty() {
            return Err(AuthorityError::Empty);
        }
        let in_force = Mutex::new(in_force(&roots, now)?);
        Ok(Self { roots, in_force })
    }

    /// Until when the certificate is known to hold, for a client.
    pub(super) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: i64,
    ) -> Result<i64, AuthorityError> {
        let InForce { to, verifier, .. } = self.at(now)?;
        let seconds = Duration::from_secs(u64::try_from(now).unwrap_or(0));
        let time = UnixTime::since_unix_epoch(seconds);
        let error = match verifier.map(|by| by.verify_client_cert(leaf, chain, time)) {
            Some(Ok(_)) => return Ok(to),
            Some(Err(error)) => refused(error),
            None => AuthorityError::NoneHolds,
        };
        let holding = self.roots.iter().filter(|root| root.from <= now && now <= root.to);
        let signers = holding.map(|root| (&*root.subject, &*root.certificate));
        match old_forms::verify(leaf, signers, now) {
            Some(verified) => verified.map(|()| to).map_err(AuthorityError::OldForm),
            None => Err(error),
        }
    }

    fn at(&self, now: i64) -> Result<InForce, AuthorityError> {
        let mut known = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        if now < known.from || now > known.to {
            *known = in_force(&self.roots, now)?;
        }
        Ok(known.clone())
    }
}

impl Root {
    fn new(certificate: CertificateDer<'static>) -> Result<Self, AuthorityError> {
        // As an authority, too: it may begin later.
        let added = RootCertStore::empty().add(certificate.clone());
        added.map_err(refused)?;
        let parsed = x509_parser::parse_x509_certificate(&certificate);
        let (_, parsed) = parsed.map_err(malformed)?;
        let validity = parsed.validity();
        let (from, to) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        let subject = parsed.subject().as_raw().to_vec();
        let may_sign = old_forms::may_sign(&parsed);
        Ok(Self { certificate, subject, may_sign, from, to })
    }
}

fn malformed(error: impl std::fmt::Display) -> AuthorityError {
    AuthorityError::Malformed(error.to_string())
}

fn refused(error: impl std::fmt::Display) -> AuthorityError {
    AuthorityError::Refused(error.to_string())
}

fn in_force(roots: &[Root], now: i64) -> Result<InForce, AuthorityError> {
    let (mut from, mut to) = (i64::MIN, i64::MAX);
    let mut store = RootCertStore::empty();
    let mut out = 0;
    for root in roots {
        if now < root.from {
            to = to.min(root.from - 1);
            out += 1;
        } else if root.to < now {
            from = from.max(root.to + 1);
            out += 1;
        } else {
            (from, to) = (from.max(root.from), to.min(root.to));
            if root.may_sign {
                store.add(root.certificate.clone()).map_err(refused)?;
            }
        }
    }
    if out > 0 {
        let all = roots.len();
        tracing::warn!(out, all, "authorities of client certificates have ended or not begun");
    }
    if store.is_empty() {
        return Ok(InForce { from, to, verifier: None });
    }
    let provider = Arc::new(default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider).build();
    Ok(InForce { from, to, verifier: Some(verifier.map_err(refused)?) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };
    use std::time::SystemTime;

    /// An authority that holds so many seconds before and after this moment, and a client of it.
    fn pair(before: i64, after: i64) -> (String, CertificateDer<'static>) {
        let at = |seconds: i64| {
            let from_now = Duration::from_secs(seconds.unsigned_abs());
            let now = SystemTime::now();
            (if seconds < 0 { now - from_now } else { now + from_now }).into()
        };
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, format!("{before} {after}"));
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (ca.not_before, ca.not_after) = (at(-before), at(after));
        let key = KeyPair::generate().expect("a key");
        let pem = ca.self_signed(&key).expect("a certificate").pem();
        let mut leaf = CertificateParams::default();
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let own = KeyPair::generate().expect("a key");
        let leaf = leaf.signed_by(&own, &Issuer::new(ca, key)).expect("a certificate");
        (pem, leaf.der().clone())
    }

    #[test]
    fn expired_and_future_authorities_verify_no_certificate() {
        let now = jiff::Timestamp::now().as_second();
        let ((ended, of_ended), (holding, of_holding)) = (pair(7200, -3600), pair(3600, 7200));
        let (later, of_later) = pair(-3600, 9000);
        let all = Authorities::read(format!("{ended}{holding}{later}").as_bytes(), now);
        let all = all.expect("authorities");
        let holds = |leaf, at| all.verify(leaf, &[], now + at).is_ok();
        assert_eq!([-5400, 0, 5400].map(|at| holds(&of_ended, at)), [true, false, false]);
        assert_eq!([-5400, 0, 5400].map(|at| holds(&of_holding, at)), [false, true, true]);
        assert_eq!([-5400, 0, 5400].map(|at| holds(&of_later, at)), [false, false, true]);
        // The result holds until the next one begins.
        let until = all.verify(&of_holding, &[], now).expect("it holds") - now;
        assert!((3590..3610).contains(&until), "{until}");
    }

    #[test]
    fn bundle_of_expired_authorities_is_read_and_an_empty_bundle_is_rejected() {
        let now = jiff::Timestamp::now().as_second();
        let (ended, leaf) = pair(7200, -3600);
        let all = Authorities::read(ended.as_bytes(), now).expect("authorities");
        let refused = all.verify(&leaf, &[], now).expect_err("no valid authority");
        assert_eq!(refused, AuthorityError::NoneHolds);
        assert!(Authorities::read(b"", now).is_err());
    }
}
