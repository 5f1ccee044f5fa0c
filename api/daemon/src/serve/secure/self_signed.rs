//! The pairs that a daemon makes for itself, and when they must be renewed.
//!
//! Input: the host's name. Output: a certificate of an authority of its own, as client-go makes it,
//! in memory or in a folder. One that ends within `RENEW_BEFORE` is due: a process that runs for a
//! year does not show an expired one. Only pairs with the name that client-go and this file give
//! their authority are renewed; a pair of the administrator's is left as it is.
// k8s: staging/src/k8s.io/client-go/util/cert/cert.go GenerateSelfSignedCertKey

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use jiff::civil::Date;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use tokio_rustls::rustls;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;

use super::serving::off_thread;
use super::trusted_path::{self, TrustError};
use crate::durable;

/// Validity of a certificate.
const YEARS: i32 = 1;
/// Seconds before its end at which a pair is renewed.
pub(super) const RENEW_BEFORE: i64 = 30 * 24 * 3600;
/// Seconds until the next attempt to renew a pair that could not be renewed.
pub(super) const RENEW_RETRY: i64 = 600;

/// Reason why there is no pair.
#[derive(Debug, thiserror::Error)]
pub(super) enum PairError {
    #[error(transparent)]
    Sign(#[from] rcgen::Error),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Write(#[from] io::Error),
    #[error(transparent)]
    Pem(#[from] pem::Error),
    #[error(transparent)]
    Key(#[from] rustls::Error),
}

/// Certificate and authority, and the key, as PEM.
pub(super) struct CertificatePair {
    certificate: String,
    key: String,
}

impl CertificatePair {
    /// Makes an authority of its own and a certificate of it, both in one text, as the kubelet
    /// does.
    pub(super) fn new(host: &str) -> Result<Self, PairError> {
        let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
        Self::until(host, today.saturating_add(jiff::Span::new().years(YEARS)))
    }

    pub(super) fn until(host: &str, last: Date) -> Result<Self, PairError> {
        Ok(signed(host, last)?)
    }

    /// Writes both files, into a folder that no other user may write to.
    pub(super) fn write(&self, certificate: &Path, key: &Path) -> Result<(), PairError> {
        if let Some(dir) = certificate.parent() {
            trusted_path::folder(dir)?;
        }
        let write = || -> io::Result<()> {
            durable::replace(certificate, self.certificate.as_bytes(), 0o644)?;
            durable::replace(key, self.key.as_bytes(), 0o600)
        };
        Ok(write()?)
    }

    fn certified(&self) -> Result<CertifiedKey, PairError> {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        let chain = chain?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        Ok(CertifiedKey::from_der(chain, key, &default_provider())?)
    }
}

fn signed(host: &str, last: Date) -> Result<CertificatePair, rcgen::Error> {
    let now = jiff::Timestamp::now();
    let today = now.to_zoned(jiff::tz::TimeZone::UTC).date();
    let date = |date: Date| {
        // The numbers of a civil date are positive and small.
        let part = |number: i8| number.unsigned_abs();
        rcgen::date_time_ymd(i32::from(date.year()), part(date.month()), part(date.day()))
    };
    let (from, until) = (date(today.yesterday().unwrap_or(today)), date(last));
    let at = now.as_second();

    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::default();
    (ca.not_before, ca.not_after) = (from, until);
    ca.distinguished_name.push(DnType::CommonName, format!("{host}-ca@{at}"));
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let ca_pem = ca.self_signed(&ca_key)?.pem();

    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(vec![host.to_owned()])?;
    (leaf.not_before, leaf.not_after) = (from, until);
    leaf.distinguished_name = rcgen::DistinguishedName::new();
    leaf.distinguished_name.push(DnType::CommonName, format!("{host}@{at}"));
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let leaf_pem = leaf.signed_by(&key, &Issuer::new(ca, ca_key))?.pem();
    Ok(CertificatePair { certificate: leaf_pem + &ca_pem, key: key.serialize_pem() })
}

/// When a pair must be renewed, in seconds since the epoch; never for one that was not made here.
pub(super) fn due_at(certified: &CertifiedKey) -> i64 {
    let leaf = certified.cert.first();
    let parsed = leaf.and_then(|leaf| x509_parser::parse_x509_certificate(leaf).ok());
    let Some((_, certificate)) = parsed else { return i64::MAX };
    let mut names = certificate.issuer().iter_common_name();
    let is_own = names.any(|name| {
        let made = name.as_str().ok().and_then(|name| name.rsplit_once("-ca@"));
        made.is_some_and(|(_, at)| !at.is_empty() && at.bytes().all(|b| b.is_ascii_digit()))
    });
    match is_own {
        true => certificate.validity().not_after.timestamp().saturating_sub(RENEW_BEFORE),
        false => i64::MAX,
    }
}

/// A pair that is nowhere but in memory.
#[derive(Debug)]
pub struct MemoryPair(Arc<KeptPair>);

#[derive(Debug)]
struct KeptPair {
    host: String,
    now: ArcSwap<MadePair>,
    is_making: AtomicBool,
}

#[derive(Debug)]
struct MadePair {
    certified: Arc<CertifiedKey>,
    /// When the pair must be renewed, in seconds since the epoch.
    due_at: i64,
}

impl MadePair {
    fn new(pair: &CertificatePair) -> Result<Self, PairError> {
        let certified = Arc::new(pair.certified()?);
        let due_at = due_at(&certified);
        Ok(Self { certified, due_at })
    }
}

impl MemoryPair {
    pub(super) fn new(host: &str) -> Result<Self, PairError> {
        Self::of(host, &CertificatePair::new(host)?)
    }

    fn of(host: &str, pair: &CertificatePair) -> Result<Self, PairError> {
        let (host, is_making) = (host.to_owned(), AtomicBool::new(false));
        Ok(Self(Arc::new(KeptPair {
            host,
            now: ArcSwap::from_pointee(MadePair::new(pair)?),
            is_making,
        })))
    }

    /// The pair in force. One that is due is renewed; this handshake does not wait for it.
    pub(super) fn current(&self) -> Arc<CertifiedKey> {
        let made = self.0.now.load();
        let is_due = jiff::Timestamp::now().as_second() >= made.due_at;
        if is_due && !self.0.is_making.swap(true, Ordering::Relaxed) {
            let kept = Arc::clone(&self.0);
            off_thread(move || {
                match CertificatePair::new(&kept.host).and_then(|pair| MadePair::new(&pair)) {
                    Ok(made) => kept.now.store(Arc::new(made)),
                    Err(error) => tracing::warn!(%error, "the certificate cannot be made again"),
                }
                kept.is_making.store(false, Ordering::Relaxed);
            });
        }
        Arc::clone(&made.certified)
    }
}

/// True if the pair exists, in files and folders that no other user can have written.
pub(super) fn is_there(dir: &Path, certificate: &Path, key: &Path) -> Result<bool, PairError> {
    if dir.exists() {
        trusted_path::folder(dir)?;
    }
    let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
    if !is_there(certificate) || !is_there(key) {
        return Ok(false);
    }
    trusted_path::file(certificate, trusted_path::FileUse::Public)?;
    trusted_path::file(key, trusted_path::FileUse::Secret)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tomorrow() -> Date {
        let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
        today.tomorrow().expect("there is one")
    }

    #[test]
    fn expiring_in_memory_pair_is_renewed_while_in_use() {
        let old = CertificatePair::until("n", tomorrow()).expect("made");
        let memory = MemoryPair::of("n", &old).expect("a pair");
        // Begins to make one, and without a runtime ends it.
        let first = memory.current().cert[0].clone();
        let second = memory.current().cert[0].clone();
        assert_ne!(first, second);
        assert_eq!(memory.current().cert[0], second, "it has a year");
    }

    #[test]
    fn only_pairs_with_the_name_of_our_own_are_ever_due() {
        let own = CertificatePair::new("node-1").expect("made").certified().expect("a pair");
        let now = jiff::Timestamp::now().as_second();
        assert!(due_at(&own) > now + 300 * 24 * 3600);
        let ended =
            CertificatePair::until("n", tomorrow()).expect("made").certified().expect("a pair");
        assert!(due_at(&ended) < now);
        let other = rcgen::generate_simple_self_signed(["n".to_owned()]).expect("a pair");
        let (certificate, key) = (other.cert.pem(), other.signing_key.serialize_pem());
        assert_eq!(
            due_at(&CertificatePair { certificate, key }.certified().expect("a pair")),
            i64::MAX
        );
    }
}
