//! The certificate that an HTTPS server shows: from files, self-signed, or from another component.
//!
//! Input: two files that settings name, or a pair in the certificate folder that is made when it is
//! missing and again before it ends, or one in memory, or a cell that a certificate rotation fills.
//! Output: the current certificate for each handshake. A new connection checks the files when
//! `CHECK_EVERY` has passed, on another thread; a broken pair leaves the old one in force. A pair
//! of the folder that another user can have written is refused. Bounds: `PEM_BYTES_MAX` a file.
// k8s: cmd/kubelet/app/server.go InitializeTLS, pkg/kubelet/kubelet.go (ReloadKubeletServerCertificateFile)

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use super::self_signed::{self, CertificatePair, MemoryPair, PairError, RENEW_RETRY};
use crate::blocking::{self, JobPlace};

/// Largest certificate or key file in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;
/// Shortest time between two checks of the files.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Reason why there is no certificate to show.
#[derive(Debug, thiserror::Error)]
pub enum ServingCertError {
    /// A file cannot be read or used.
    #[error("{field} {path}: {reason}", path = path.display())]
    File {
        /// The field that names it.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// Another user can have put the pair there.
    #[error(
        "--cert-dir {path}: {reason}, so that the certificate there may be another's; give a \
         folder and a pair of this process' user or root that no other user may write",
        path = path.display()
    )]
    Untrusted {
        /// The folder.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// No pair could be made in memory.
    #[error("a self-signed certificate cannot be made: {0}")]
    Memory(String),
    /// The self-signed pair cannot be made.
    #[error("--cert-dir {path}: a self-signed certificate cannot be made there: {reason}",
        path = path.display())]
    SelfSigned {
        /// The folder.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
}

/// A certificate that a rotation replaces; empty before there is one.
pub type ServingCert = Arc<ArcSwapOption<CertifiedKey>>;

/// The certificate for each handshake.
#[derive(Debug)]
pub enum Serving {
    /// Two files.
    Files(PairFiles),
    /// The pair in the cell.
    Rotated(ServingCert),
    /// A pair in memory.
    Memory(MemoryPair),
}

/// A pair of files and its last content.
#[derive(Debug)]
pub struct PairFiles(Arc<CurrentPair>);

#[derive(Debug)]
struct CurrentPair {
    fields: PairFields,
    certificate: PathBuf,
    key: PathBuf,
    /// For a pair that is made: its folder and host.
    made_for: Option<MadeFor>,
    now: Mutex<Current>,
}

#[derive(Debug)]
struct MadeFor {
    dir: PathBuf,
    host: String,
}

#[derive(Debug)]
struct Current {
    certified: Arc<CertifiedKey>,
    stamps: [Option<FileStamp>; 2],
    checked: Instant,
    is_checking: bool,
    /// When the pair is renewed, in seconds since the epoch.
    due_at: i64,
}

/// Distinguishes one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of the present file.
    pub fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        let changed = (meta.ctime(), meta.ctime_nsec());
        Some(Self { inode: meta.ino(), bytes: meta.len(), changed })
    }
}

/// The settings' names of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairFields {
    /// The setting that names the certificate's file.
    pub certificate: &'static str,
    /// The one of the key's.
    pub key: &'static str,
}

impl Serving {
    /// A pair of files that is there.
    pub fn files(
        fields: PairFields,
        certificate: PathBuf,
        key: PathBuf,
    ) -> Result<Self, ServingCertError> {
        PairFiles::open(fields, certificate, key, None).map(Self::Files)
    }

    /// A pair made for `host` that is never written.
    pub fn in_memory(host: &str) -> Result<Self, ServingCertError> {
        MemoryPair::new(host)
            .map(Self::Memory)
            .map_err(|error| ServingCertError::Memory(error.to_string()))
    }

    /// The pair `NAME.crt` and `NAME.key` of a folder, made for `host` when it is missing or, if it
    /// is one that was made, is about to end.
    pub fn self_signed(
        fields: PairFields,
        dir: &Path,
        name: &str,
        host: &str,
    ) -> Result<Self, ServingCertError> {
        let at = |end: &str| dir.join(format!("{name}.{end}"));
        let (certificate, key) = (at("crt"), at("key"));
        let untrusted = |error: PairError| ServingCertError::Untrusted {
            path: dir.to_owned(),
            reason: error.to_string(),
        };
        let failed = |error: PairError| ServingCertError::SelfSigned {
            path: dir.to_owned(),
            reason: error.to_string(),
        };
        if !self_signed::is_there(dir, &certificate, &key).map_err(untrusted)? {
            let made = CertificatePair::new(host).and_then(|pair| pair.write(&certificate, &key));
            made.map_err(failed)?;
        }
        let made_for = MadeFor { dir: dir.to_owned(), host: host.to_owned() };
        let files = PairFiles::open(fields, certificate, key, Some(made_for))?;
        files.0.renew();
        Ok(Self::Files(files))
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match self {
            Self::Files(files) => Some(files.current()),
            Self::Rotated(cell) => cell.load_full(),
            Self::Memory(memory) => Some(memory.current()),
        }
    }
}

impl PairFiles {
    fn open(
        fields: PairFields,
        certificate: PathBuf,
        key: PathBuf,
        made_for: Option<MadeFor>,
    ) -> Result<Self, ServingCertError> {
        let stamps = [FileStamp::of(&certificate), FileStamp::of(&key)];
        let certified = read(fields, &certificate, &key)?;
        let (checked, is_checking) = (Instant::now(), false);
        let due_at = self_signed::due_at(&certified);
        let now = Mutex::new(Current { certified, stamps, checked, is_checking, due_at });
        Ok(Self(Arc::new(CurrentPair { fields, certificate, key, made_for, now })))
    }

    /// The pair in force. Starts a check of the files if one is due; this handshake does not wait
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

impl CurrentPair {
    fn now(&self) -> MutexGuard<'_, Current> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the files, on a thread that may wait for their disk.
    fn check(&self) {
        let stamps = [FileStamp::of(&self.certificate), FileStamp::of(&self.key)];
        let read = (stamps != self.now().stamps).then(|| self.read());
        let mut now = self.now();
        match read {
            None => {}
            Some(Ok(certified)) => {
                now.due_at = self_signed::due_at(&certified);
                (now.certified, now.stamps) = (certified, stamps);
            }
            // Half of a pair may be written already: checked again in a moment.
            Some(Err(error)) => tracing::warn!(%error, "the earlier certificate stays in use"),
        }
        drop(now);
        self.renew();
        self.now().is_checking = false;
    }

    fn read(&self) -> Result<Arc<CertifiedKey>, ServingCertError> {
        if let Some(MadeFor { dir, .. }) = &self.made_for {
            let there = self_signed::is_there(dir, &self.certificate, &self.key);
            there.map_err(|error| ServingCertError::Untrusted {
                path: dir.clone(),
                reason: error.to_string(),
            })?;
        }
        read(self.fields, &self.certificate, &self.key)
    }

    /// Makes a pair again that was made and is about to end.
    fn renew(&self) {
        let Some(MadeFor { host, .. }) = &self.made_for else { return };
        let at = jiff::Timestamp::now().as_second();
        if at < self.now().due_at {
            return;
        }
        let made =
            CertificatePair::new(host).and_then(|pair| pair.write(&self.certificate, &self.key));
        let made = made.map_err(|error| error.to_string()).and_then(|()| {
            let stamps = [FileStamp::of(&self.certificate), FileStamp::of(&self.key)];
            Ok((stamps, self.read().map_err(|error| error.to_string())?))
        });
        let mut now = self.now();
        match made {
            Ok((stamps, certified)) => {
                now.due_at = self_signed::due_at(&certified);
                (now.certified, now.stamps) = (certified, stamps);
            }
            Err(error) => {
                now.due_at = at.saturating_add(RENEW_RETRY);
                let path = self.certificate.display();
                tracing::warn!(error, %path, "a certificate about to expire cannot be made again");
            }
        }
    }
}

/// Runs work that reads files on a thread that no request waits for. The caller ensures that only
/// one runs at a time.
pub fn off_thread(work: impl FnOnce() + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(async {
            if let Err(error) = blocking::run(JobPlace::own("tls"), work).await {
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
    fields: PairFields,
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

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: PairFields = PairFields { certificate: "tlsCertFile", key: "tlsPrivateKeyFile" };
    use std::os::unix::fs::PermissionsExt as _;

    fn make(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let at = |end: &str| dir.join(format!("{name}.{end}"));
        let (certificate, key) = (at("crt"), at("key"));
        CertificatePair::new("n").and_then(|pair| pair.write(&certificate, &key)).expect("made");
        (certificate, key)
    }

    fn files(serving: Serving) -> PairFiles {
        let Serving::Files(files) = serving else { panic!("{serving:?}") };
        files
    }

    /// The certificate after a check of the files.
    fn shown(files: &PairFiles) -> CertificateDer<'static> {
        files.0.now().checked = Instant::now() - 2 * CHECK_EVERY;
        files.current(); // begins to look, and without a runtime ends it
        files.current().cert[0].clone()
    }

    fn open(dir: &Path) -> Result<PairFiles, ServingCertError> {
        Serving::self_signed(FIELDS, dir, "kubelet", "node-1").map(files)
    }

    #[test]
    fn a_self_signed_pair_is_made_once_and_used_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let below = dir.path().join("pki");
        let first = open(&below).expect("made");
        let mode = |name| fs::metadata(below.join(name)).expect("there").permissions().mode();
        assert_eq!((mode("kubelet.crt") & 0o777, mode("kubelet.key") & 0o777), (0o644, 0o600));
        assert_eq!(first.current().cert.len(), 2, "the certificate and its authority");
        let second = open(&below).expect("it is there");
        assert_eq!(first.current().cert, second.current().cert);
    }

    #[test]
    fn new_key_pair_is_served_and_a_broken_pair_is_ignored() {
        let dir = tempfile::tempdir().expect("a folder");
        let (certificate, key) = make(dir.path(), "a");
        let files = files(Serving::files(FIELDS, certificate.clone(), key).expect("a pair"));
        let first = shown(&files);
        fs::write(&certificate, "junk").expect("written");
        assert_eq!(shown(&files), first, "a broken file changes nothing");
        make(dir.path(), "a");
        assert_ne!(shown(&files), first);
    }

    #[test]
    fn a_pair_that_another_user_can_have_written_is_refused_in_a_sentence() {
        let dir = tempfile::tempdir().expect("a folder");
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
        };
        let (_, key) = make(dir.path(), "kubelet");
        let files = open(dir.path()).expect("a pair");
        let first = shown(&files);
        set(&key, 0o666);
        let error = open(dir.path()).expect_err("any user may write it").to_string();
        assert!(error.contains("kubelet.key (mode 0666), so that"), "{error}");
        assert!(error.starts_with("--cert-dir /") && error.contains("; give a folder"), "{error}");
        make(dir.path(), "kubelet");
        set(dir.path(), 0o777);
        open(dir.path()).expect_err("any user may put another one there");
        assert_eq!(shown(&files), first, "while running the earlier one stays");
        open(&dir.path().join("below")).expect_err("no folder is made there");
        assert!(!dir.path().join("below").exists());
    }

    #[test]
    fn self_signed_pair_is_renewed_before_expiry_at_start_and_while_running() {
        let dir = tempfile::tempdir().expect("a folder");
        let (certificate, key) = (dir.path().join("kubelet.crt"), dir.path().join("kubelet.key"));
        let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
        let ends = |last| {
            CertificatePair::until("n", last)
                .and_then(|pair| pair.write(&certificate, &key))
                .expect("made");
            fs::read(&certificate).expect("there")
        };
        let old = ends(today.yesterday().expect("there is one"));
        let files = open(dir.path()).expect("made again");
        let first = shown(&files);
        assert_ne!(fs::read(&certificate).expect("there"), old);
        // Another process wrote one that is about to end.
        let old = ends(today.tomorrow().expect("there is one"));
        let second = shown(&files);
        assert_ne!(first, second);
        assert_ne!(fs::read(&certificate).expect("there"), old, "made again on the disk as well");
        assert_eq!(shown(&files), second);
    }

    #[test]
    fn expired_pair_not_made_by_this_program_is_left_unchanged() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut params = rcgen::CertificateParams::new(vec!["n".to_owned()]).expect("parameters");
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        let key = rcgen::KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        fs::write(dir.path().join("kubelet.crt"), &pem).expect("written");
        fs::write(dir.path().join("kubelet.key"), key.serialize_pem()).expect("written");
        let path = dir.path().join("kubelet.key");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("set");
        shown(&open(dir.path()).expect("a pair"));
        assert_eq!(fs::read_to_string(dir.path().join("kubelet.crt")).expect("there"), pem);
    }

    #[test]
    fn a_missing_file_is_named_with_its_field() {
        let (certificate, key) = ("/no/such.crt".into(), "/no/such.key".into());
        let error = PairFiles::open(FIELDS, certificate, key, None).expect_err("none");
        assert!(error.to_string().starts_with("tlsCertFile /no/such.crt: "), "{error}");
    }
}
