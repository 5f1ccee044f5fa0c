//! The authorities of client certificates, read again when their file changes.
//!
//! Input: a bundle of certificates. Output: whether a certificate chain leads to one of them and is
//! meant for clients. A request checks the file when `CHECK_EVERY` has passed, so that no timer is
//! needed, and on another thread, because its disk may hang; a broken new file leaves the old
//! authorities in force. Without a file the caller sets the authorities. Bounds:
//! `BUNDLE_BYTES_MAX`.
// k8s: staging/src/k8s.io/apiserver/pkg/server/dynamiccertificates/dynamic_cafile_content.go

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_rustls::rustls::pki_types::CertificateDer;

use super::AccessError;
use super::authorities::{Authorities, AuthorityError};
use super::serving::{FileStamp, off_thread, read_bounded};

/// Largest bundle in bytes.
const BUNDLE_BYTES_MAX: u64 = 4 << 20;
/// Shortest time between two checks of the file.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The authorities.
pub(super) struct ClientCa {
    /// The setting that names the file, and the file.
    file: Option<(&'static str, PathBuf)>,
    now: Arc<Mutex<Current>>,
}

/// Reason why a client's certificate does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClientCaError {
    #[error("no authorities of client certificates are known")]
    Unknown,
    #[error("the client certificate: {0}")]
    Refused(AuthorityError),
    /// A proxy's certificate with another name.
    #[error("x509: subject with cn={0} is not in the allowed list")]
    NotAllowed(String),
}

struct Current {
    /// `None` until there are any.
    authorities: Option<Arc<Authorities>>,
    /// Grows with each change of the authorities.
    generation: u64,
    stamp: Option<FileStamp>,
    checked: Instant,
    is_checking: bool,
}

impl ClientCa {
    /// Reads the file.
    pub(super) fn open(field: &'static str, path: PathBuf) -> Result<Self, AccessError> {
        let stamp = FileStamp::of(&path);
        let fail = |reason: AuthorityError| AccessError::ClientCa {
            field,
            path: path.clone(),
            reason: reason.to_string(),
        };
        let authorities = read(&path).map_err(fail)?;
        let (generation, checked, authorities) = (1, Instant::now(), Some(authorities));
        let now = Current { authorities, generation, stamp, checked, is_checking: false };
        Ok(Self { file: Some((field, path)), now: Arc::new(Mutex::new(now)) })
    }

    /// None yet: the caller sets them later.
    pub(super) fn unset() -> Self {
        let (generation, checked, authorities, stamp) = (0, Instant::now(), None, None);
        let now = Current { authorities, generation, stamp, checked, is_checking: false };
        Self { file: None, now: Arc::new(Mutex::new(now)) }
    }

    /// Replaces the authorities.
    pub(super) fn put(&self, pem: &[u8]) -> Result<(), AuthorityError> {
        let authorities = parsed(pem)?;
        let mut now = lock(&self.now);
        now.authorities = Some(authorities);
        now.generation += 1;
        Ok(())
    }

    /// True if there are any.
    pub(super) fn is_known(&self) -> bool {
        lock(&self.now).authorities.is_some()
    }

    /// Generation of the authorities in force. Starts a check of the file if one is due; until it
    /// has ended the earlier authorities hold.
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
            off_thread(move || check(field, &path, &shared, known));
        }
        generation
    }

    /// Until when the certificate is known to hold for a client, in seconds; or why it does not.
    pub(super) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
    ) -> Result<i64, ClientCaError> {
        let authorities = lock(&self.now).authorities.clone();
        let authorities = authorities.ok_or(ClientCaError::Unknown)?;
        let verified = authorities.verify(leaf, chain, jiff::Timestamp::now().as_second());
        verified.map_err(ClientCaError::Refused)
    }
}

/// Checks the file, on a thread that may wait for its disk.
fn check(field: &str, path: &Path, shared: &Mutex<Current>, known: Option<FileStamp>) {
    let stamp = FileStamp::of(path);
    let read = (stamp != known).then(|| read(path));
    let mut now = lock(shared);
    (now.stamp, now.is_checking) = (stamp, false);
    match read {
        None => {}
        Some(Ok(authorities)) => {
            now.authorities = Some(authorities);
            now.generation += 1;
        }
        Some(Err(error)) => {
            let path = path.display();
            tracing::warn!(%error, %path, "{field}: the earlier authorities stay in force");
        }
    }
}

fn lock(of: &Mutex<Current>) -> MutexGuard<'_, Current> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(path: &Path) -> Result<Arc<Authorities>, AuthorityError> {
    let pem = read_bounded(path, BUNDLE_BYTES_MAX);
    parsed(&pem.map_err(|error| AuthorityError::Unreadable(error.to_string()))?)
}

fn parsed(pem: &[u8]) -> Result<Arc<Authorities>, AuthorityError> {
    Authorities::read(pem, jiff::Timestamp::now().as_second()).map(Arc::new)
}
