//! The certificate that an HTTPS server shows: from files, self-signed, or somebody else's.
//!
//! Input: two files that settings name, or a pair in the certificate folder that is made when it is
//! missing, or a cell that a certificate rotation fills. Output: the current certificate for each
//! handshake. Files are looked at again when a connection comes and `CHECK_EVERY` has passed, on
//! another thread; a broken pair leaves the old one in force. Bounds: `PEM_BYTES_MAX` a file.
// k8s: cmd/kubelet/app/server.go InitializeTLS, pkg/kubelet/kubelet.go (ReloadKubeletServerCertificateFile)

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use crate::blocking::{self, Place};
use crate::durable;

/// Largest certificate or key file in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;
/// How long the files are not looked at again.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long a self-signed certificate holds.
// k8s: staging/src/k8s.io/client-go/util/cert/cert.go GenerateSelfSignedCertKey
const SELF_SIGNED_YEARS: i32 = 1;

/// Why there is no certificate to show.
#[derive(Debug, thiserror::Error)]
pub enum ServingCertError {
    /// A file cannot be read or used.
    #[error("{field} {path}: {reason}", path = path.display())]
    File {
        /// The field that names it.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The self-signed pair cannot be made.
    #[error("--cert-dir {path}: a self-signed certificate cannot be made there: {reason}",
        path = path.display())]
    SelfSigned {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// A certificate that a rotation replaces; empty before there is one.
pub type ServingCert = Arc<ArcSwapOption<CertifiedKey>>;

/// The certificate for each handshake.
#[derive(Debug)]
pub enum Serving {
    /// Two files.
    Files(Files),
    /// Whatever the cell holds.
    Rotated(ServingCert),
}

/// A pair of files and what was last read from it.
#[derive(Debug)]
pub struct Files(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    fields: Fields,
    certificate: PathBuf,
    key: PathBuf,
    now: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    certified: Arc<CertifiedKey>,
    stamps: [Option<Stamp>; 2],
    checked: Instant,
    is_checking: bool,
}

/// Tells one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Stamp {
    /// Of the file that is there now.
    pub fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        let changed = (meta.ctime(), meta.ctime_nsec());
        Some(Self { inode: meta.ino(), bytes: meta.len(), changed })
    }
}

/// What users call the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The setting that names the certificate's file.
    pub certificate: &'static str,
    /// The one of the key's.
    pub key: &'static str,
}

impl Serving {
    /// A pair of files that is there.
    pub fn files(
        fields: Fields,
        certificate: PathBuf,
        key: PathBuf,
    ) -> Result<Self, ServingCertError> {
        Files::open(fields, certificate, key).map(Self::Files)
    }

    /// The pair `NAME.crt` and `NAME.key` of a folder, made for `host` when it is missing.
    pub fn self_signed(
        fields: Fields,
        dir: &Path,
        name: &str,
        host: &str,
    ) -> Result<Self, ServingCertError> {
        let at = |end: &str| dir.join(format!("{name}.{end}"));
        let (certificate, key) = (at("crt"), at("key"));
        if !certificate.exists() || !key.exists() {
            self_signed(host, dir, &certificate, &key)
                .map_err(|reason| ServingCertError::SelfSigned { path: dir.to_owned(), reason })?;
        }
        Self::files(fields, certificate, key)
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match self {
            Self::Files(files) => Some(files.current()),
            Self::Rotated(cell) => cell.load_full(),
        }
    }
}

impl Files {
    fn open(fields: Fields, certificate: PathBuf, key: PathBuf) -> Result<Self, ServingCertError> {
        let stamps = [Stamp::of(&certificate), Stamp::of(&key)];
        let certified = read(fields, &certificate, &key)?;
        let (checked, is_checking) = (Instant::now(), false);
        let now = Mutex::new(Current { certified, stamps, checked, is_checking });
        Ok(Self(Arc::new(Shared { fields, certificate, key, now })))
    }

    /// The pair in force. A look at the files that is due begins; this handshake does not wait
    /// for it.
    fn current(&self) -> Arc<CertifiedKey> {
        let mut now = self.0.now();
        let certified = Arc::clone(&now.certified);
        if now.checked.elapsed() >= CHECK_EVERY && !now.is_checking {
            (now.checked, now.is_checking) = (Instant::now(), true);
            drop(now);
            let shared = Arc::clone(&self.0);
            off_thread(move || shared.check());
        }
        certified
    }
}

impl Shared {
    fn now(&self) -> MutexGuard<'_, Current> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the files, on a thread that may wait for their disk.
    fn check(&self) {
        let stamps = [Stamp::of(&self.certificate), Stamp::of(&self.key)];
        let read =
            (stamps != self.now().stamps).then(|| read(self.fields, &self.certificate, &self.key));
        let mut now = self.now();
        now.is_checking = false;
        match read {
            None => {}
            Some(Ok(certified)) => (now.certified, now.stamps) = (certified, stamps),
            // Half of a pair may be written already: looked at again in a moment.
            Some(Err(error)) => tracing::warn!(%error, "the earlier certificate stays in use"),
        }
    }
}

/// Runs what reads files where it holds up nobody. Whoever starts it sees to it that it runs once
/// at a time.
pub fn off_thread(work: impl FnOnce() + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(async {
            if let Err(error) = blocking::run(Place::own("tls"), work).await {
                tracing::warn!(%error, "certificate files");
            }
        })),
        Err(_) => work(), // no thread of a server
    }
}

/// A file's bytes, if it is not larger than `max`.
pub fn read_bounded(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::other(format!("it is larger than {max} bytes")));
    }
    Ok(bytes)
}

fn read(
    fields: Fields,
    certificate: &Path,
    key: &Path,
) -> Result<Arc<CertifiedKey>, ServingCertError> {
    let fail = |field, path: &Path, reason: String| ServingCertError::File {
        field,
        path: path.to_owned(),
        reason,
    };
    let (cert_field, key_field) = (fields.certificate, fields.key);
    let pem = read_bounded(certificate, PEM_BYTES_MAX)
        .map_err(|error| fail(cert_field, certificate, error.to_string()))?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| fail(cert_field, certificate, error.to_string()))?;
    let pem = read_bounded(key, PEM_BYTES_MAX)
        .map_err(|error| fail(key_field, key, error.to_string()))?;
    let private = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|error| fail(key_field, key, error.to_string()))?;
    CertifiedKey::from_der(chain, private, &default_provider())
        .map(Arc::new)
        .map_err(|error| fail(cert_field, certificate, error.to_string()))
}

/// Makes an authority of its own and a certificate of it, both in one file, as the kubelet does.
fn self_signed(host: &str, dir: &Path, certificate: &Path, key: &Path) -> Result<(), String> {
    let made = pair(host).map_err(|error| error.to_string())?;
    let write = || -> io::Result<()> {
        fs::create_dir_all(dir)?;
        durable::replace(certificate, made.0.as_bytes(), 0o644)?;
        durable::replace(key, made.1.as_bytes(), 0o600)
    };
    write().map_err(|error| error.to_string())
}

fn pair(host: &str) -> Result<(String, String), rcgen::Error> {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let date = |date: jiff::civil::Date| {
        // The numbers of a civil date are positive and small.
        let part = |number: i8| number.unsigned_abs();
        rcgen::date_time_ymd(i32::from(date.year()), part(date.month()), part(date.day()))
    };
    let from = date(now.yesterday().unwrap_or(now));
    let until = date(now.saturating_add(jiff::Span::new().years(SELF_SIGNED_YEARS)));
    let at = jiff::Timestamp::now().as_second();

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
    Ok((leaf_pem + &ca_pem, key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: Fields = Fields { certificate: "tlsCertFile", key: "tlsPrivateKeyFile" };
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_self_signed_pair_is_made_once_and_used_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let (certificate, key) = (dir.path().join("kubelet.crt"), dir.path().join("kubelet.key"));
        self_signed("node-1", dir.path(), &certificate, &key).expect("made");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&certificate), mode(&key)), (0o644, 0o600));
        let files = Files::open(FIELDS, certificate, key).expect("a pair");
        assert_eq!(files.current().cert.len(), 2, "the certificate and its authority");
    }

    #[test]
    fn a_new_pair_is_shown_and_a_broken_one_is_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let (certificate, key) = (dir.path().join("a.crt"), dir.path().join("a.key"));
        self_signed("n", dir.path(), &certificate, &key).expect("made");
        let files = Files::open(FIELDS, certificate.clone(), key.clone()).expect("a pair");
        let shown = || {
            files.0.now().checked = Instant::now() - 2 * CHECK_EVERY;
            files.current(); // begins to look, and without a runtime ends it
            files.current().cert[0].clone()
        };
        let first = shown();
        fs::write(&certificate, "junk").expect("written");
        assert_eq!(shown(), first, "a broken file changes nothing");
        self_signed("n", dir.path(), &certificate, &key).expect("made");
        assert_ne!(shown(), first);
    }

    #[test]
    fn a_missing_file_is_named_with_its_field() {
        let error =
            Files::open(FIELDS, "/no/such.crt".into(), "/no/such.key".into()).expect_err("none");
        assert!(error.to_string().starts_with("tlsCertFile /no/such.crt: "), "{error}");
    }
}
