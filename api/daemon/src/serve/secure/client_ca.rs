//! The authorities of client certificates, read again when their file changes.
//!
//! Input: a bundle of certificates. Output: whether a certificate chain leads to one of them and is meant
//! for clients. The file is looked at when somebody asks and `CHECK_EVERY` has passed, so that
//! nothing wakes up for it, and on another thread, because its disk may hang; a broken new file
//! leaves the old authorities in force. Without a file they are what somebody tells.
//! Bounds: `BUNDLE_BYTES_MAX`.
// k8s: staging/src/k8s.io/apiserver/pkg/server/dynamiccertificates/dynamic_cafile_content.go

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;

use super::AccessError;
use super::serving::{Stamp, off_thread, read_bounded};

/// Largest bundle in bytes.
const BUNDLE_BYTES_MAX: u64 = 4 << 20;
/// How long the file is not looked at again.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The authorities.
pub(super) struct ClientCa {
    /// The setting that names the file, and the file.
    file: Option<(&'static str, PathBuf)>,
    now: Arc<Mutex<Current>>,
}

struct Current {
    /// `None` until there are any.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// Grows with each change of the authorities.
    generation: u64,
    stamp: Option<Stamp>,
    checked: Instant,
    is_checking: bool,
}

impl ClientCa {
    /// Reads the file.
    pub(super) fn open(field: &'static str, path: PathBuf) -> Result<Self, AccessError> {
        let stamp = Stamp::of(&path);
        let fail = |reason| AccessError::ClientCa { field, path: path.clone(), reason };
        let verifier = read(&path).map_err(fail)?;
        let (generation, checked, verifier) = (1, Instant::now(), Some(verifier));
        let now = Current { verifier, generation, stamp, checked, is_checking: false };
        Ok(Self { file: Some((field, path)), now: Arc::new(Mutex::new(now)) })
    }

    /// None yet: they will be told.
    pub(super) fn told() -> Self {
        let (generation, checked, verifier, stamp) = (0, Instant::now(), None, None);
        let now = Current { verifier, generation, stamp, checked, is_checking: false };
        Self { file: None, now: Arc::new(Mutex::new(now)) }
    }

    /// These are the authorities from now on.
    pub(super) fn put(&self, pem: &[u8]) -> Result<(), String> {
        let verifier = verifier(pem)?;
        let mut now = lock(&self.now);
        now.verifier = Some(verifier);
        now.generation += 1;
        Ok(())
    }

    /// Whether there are any.
    pub(super) fn is_known(&self) -> bool {
        lock(&self.now).verifier.is_some()
    }

    /// Which authorities are in force. A look at the file that is due begins; until it has ended
    /// the authorities of before are.
    pub(super) fn generation(&self) -> u64 {
        let mut now = lock(&self.now);
        let generation = now.generation;
        if let Some((field, path)) = self.file.clone()
            && now.checked.elapsed() >= CHECK_EVERY
            && !now.is_checking
        {
            (now.checked, now.is_checking) = (Instant::now(), true);
            let (shared, known) = (Arc::clone(&self.now), now.stamp);
            drop(now);
            off_thread(move || check((field, &path), &shared, known));
        }
        generation
    }

    /// Whether the certificate holds now, for a client.
    pub(super) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
    ) -> Result<(), String> {
        let verifier = lock(&self.now).verifier.clone();
        let verifier = verifier.ok_or("no authorities of client certificates are known")?;
        let verified = verifier.verify_client_cert(leaf, chain, UnixTime::now());
        verified.map(drop).map_err(|error| format!("the client certificate: {error}"))
    }
}

/// Looks at the file, on a thread that may wait for its disk.
fn check((field, path): (&str, &Path), shared: &Mutex<Current>, known: Option<Stamp>) {
    let stamp = Stamp::of(path);
    let read = (stamp != known).then(|| read(path));
    let mut now = lock(shared);
    (now.stamp, now.is_checking) = (stamp, false);
    match read {
        None => {}
        Some(Ok(verifier)) => {
            now.verifier = Some(verifier);
            now.generation += 1;
        }
        Some(Err(error)) => {
            let path = path.display();
            tracing::warn!(error, %path, "{field}: the earlier authorities stay in force");
        }
    }
}

fn lock(of: &Mutex<Current>) -> MutexGuard<'_, Current> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(path: &Path) -> Result<Arc<dyn ClientCertVerifier>, String> {
    verifier(&read_bounded(path, BUNDLE_BYTES_MAX).map_err(|error| error.to_string())?)
}

fn verifier(pem: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    let provider = Arc::new(default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| error.to_string())
}
