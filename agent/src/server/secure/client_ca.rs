//! The authorities of client certificates, read again when their file changes.
//!
//! Input: `clientCAFile`. Output: whether a certificate chain leads to one of them and is meant
//! for clients. The file is looked at when a certificate is verified and `CHECK_EVERY` has passed,
//! so that nothing wakes up for it; a broken new file leaves the old authorities in force.
//! Bounds: `BUNDLE_BYTES_MAX`.
// k8s: staging/src/k8s.io/apiserver/pkg/server/dynamiccertificates/dynamic_cafile_content.go

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;

use super::AccessError;
use super::serving::{Stamp, read_bounded};

/// Largest bundle in bytes.
const BUNDLE_BYTES_MAX: u64 = 4 << 20;
/// How long the file is not looked at again.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The authorities.
pub(super) struct ClientCa {
    path: PathBuf,
    now: Mutex<Current>,
}

struct Current {
    verifier: Arc<dyn ClientCertVerifier>,
    stamp: Option<Stamp>,
    checked: Instant,
}

impl ClientCa {
    /// Reads the file.
    pub(super) fn open(path: PathBuf) -> Result<Self, AccessError> {
        let stamp = Stamp::of(&path);
        let verifier =
            read(&path).map_err(|reason| AccessError::ClientCa { path: path.clone(), reason })?;
        let now = Mutex::new(Current { verifier, stamp, checked: Instant::now() });
        Ok(Self { path, now })
    }

    /// Whether the certificate holds now, for a client.
    pub(super) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
    ) -> Result<(), String> {
        let verifier = self.current();
        let verified = verifier.verify_client_cert(leaf, chain, UnixTime::now());
        verified.map(drop).map_err(|error| format!("the client certificate: {error}"))
    }

    fn current(&self) -> Arc<dyn ClientCertVerifier> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.checked.elapsed() < CHECK_EVERY {
            return Arc::clone(&now.verifier);
        }
        now.checked = Instant::now();
        let stamp = Stamp::of(&self.path);
        if stamp != now.stamp {
            now.stamp = stamp;
            match read(&self.path) {
                Ok(verifier) => now.verifier = verifier,
                Err(error) => {
                    let path = self.path.display();
                    tracing::warn!(error, %path, "clientCAFile: the earlier ones stay in force");
                }
            }
        }
        Arc::clone(&now.verifier)
    }
}

fn read(path: &std::path::Path) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let pem = read_bounded(path, BUNDLE_BYTES_MAX).map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    let provider = Arc::new(default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| error.to_string())
}
