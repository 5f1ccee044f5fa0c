//! The files of a certificate that is replaced: dated ones, and a link to the current one.
//!
//! `NAME-current.pem` is a link to `NAME-DATE.pem`, which holds certificate and key. The link is
//! replaced as a whole and the folder synced, so that a crash or a power loss leaves the old pair
//! or the new one. A file is never written twice: of two updates within one second the later one
//! gets a number. Blocks.
// k8s: staging/src/k8s.io/client-go/util/certificate/certificate_store.go

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::certificate::Validity;

/// Updates with the same date.
const SAME_SECOND_MAX: u32 = 64;

/// The files of one certificate.
#[derive(Clone, Debug)]
pub struct CertificateStore {
    dir: PathBuf,
    name: &'static str,
}

impl CertificateStore {
    /// `name` is `kubelet-client` or `kubelet-server`. Completes an update that a crash
    /// interrupted.
    pub fn open(dir: &Path, name: &'static str) -> Self {
        let store = Self { dir: dir.to_owned(), name };
        if !store.current().exists() && fs::symlink_metadata(store.updated()).is_ok() {
            // Before this step nothing refers to the new pair, so losing it costs a request only.
            let _ = fs::rename(store.updated(), store.current());
        }
        store
    }

    /// Path of the pair in force, whether it exists or not.
    pub fn current(&self) -> PathBuf {
        self.dir.join(format!("{}-current.pem", self.name))
    }

    fn updated(&self) -> PathBuf {
        self.dir.join(format!("{}-updated.pem", self.name))
    }

    /// PEM of the pair in force, and its validity.
    pub fn read(&self) -> Option<(Vec<u8>, Validity)> {
        let pem = fs::read(self.current()).ok()?;
        let validity = Validity::of_pem(&pem)?;
        Some((pem, validity))
    }

    /// Has no pair be in force; its dated file stays.
    pub fn unlink(&self) -> io::Result<()> {
        self.check_link()?;
        fs::remove_file(self.current())
    }

    fn check_link(&self) -> io::Result<()> {
        if fs::symlink_metadata(self.current()).is_ok_and(|meta| !meta.is_symlink()) {
            let problem = format!("{} is a file; a link belongs there", self.current().display());
            return Err(io::Error::other(problem));
        }
        Ok(())
    }

    /// Puts a new pair in force. `stamp` dates its file.
    pub fn update(&self, certificate: &str, key: &str, stamp: jiff::Timestamp) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.dir)?;
        self.check_link()?;
        let gap = if certificate.ends_with('\n') { "" } else { "\n" };
        let path = self.write_new(&format!("{certificate}{gap}{key}"), stamp)?;
        let linked = self.link(&path);
        if linked.is_err() {
            // Nothing refers to it.
            let _ = fs::remove_file(&path);
        }
        linked?;
        fs::File::open(&self.dir)?.sync_all()
    }

    /// Writes a file that did not exist.
    fn write_new(&self, pem: &str, stamp: jiff::Timestamp) -> io::Result<PathBuf> {
        let date = stamp.strftime("%Y-%m-%d-%H-%M-%S");
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        for number in 0..SAME_SECOND_MAX {
            let number = if number == 0 { String::new() } else { format!("-{number}") };
            let name = format!("{}-{date}{number}.pem", self.name);
            let path = std::path::absolute(self.dir.join(name))?;
            let mut file = match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            let written = file.write_all(pem.as_bytes()).and_then(|()| file.sync_all());
            if written.is_err() {
                let _ = fs::remove_file(&path);
            }
            return written.map(|()| path);
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn link(&self, path: &Path) -> io::Result<()> {
        let _ = fs::remove_file(self.updated());
        symlink(path, self.updated())?;
        fs::rename(self.updated(), self.current())
    }
}

#[cfg(test)]
mod tests {
    use super::super::certificate::tests::pair;
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_link_follows_the_newest_pair() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = CertificateStore::open(&dir.path().join("pki"), "kubelet-client");
        assert!(store.read().is_none());
        for (second, year) in [(1, 2030), (2, 2040)] {
            let (certificate, key) = pair(&[], (2020, year));
            let stamp = jiff::Timestamp::from_second(second).expect("a time");
            store.update(&certificate, &key, stamp).expect("stored");
            let (pem, validity) = store.read().expect("a pair");
            assert_eq!(pem, format!("{certificate}{key}").into_bytes());
            assert!(validity.not_after > 0);
        }
        let target = fs::read_link(store.current()).expect("a link");
        assert!(target.ends_with("kubelet-client-1970-01-01-00-00-02.pem"), "{target:?}");
        let mode = fs::metadata(&target).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_second_update_within_a_second_leaves_the_first_pair_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = CertificateStore::open(dir.path(), "kubelet-client");
        let pairs = [pair(&[], (2020, 2030)), pair(&[], (2020, 2040))];
        let mut files = Vec::new();
        for (certificate, key) in &pairs {
            store.update(certificate, key, jiff::Timestamp::UNIX_EPOCH).expect("stored");
            files.push(fs::read_link(store.current()).expect("a link"));
        }
        assert_ne!(files[0], files[1]);
        for (file, (certificate, key)) in files.iter().zip(&pairs) {
            assert_eq!(fs::read_to_string(file).expect("a pair"), format!("{certificate}{key}"));
        }
    }

    #[test]
    fn a_full_disk_leaves_the_pair_in_force() {
        xtask::disk::with_private_mounts(|| {
            let dir = tempfile::tempdir().expect("a folder");
            pintle_agent_host::volume::mount::tmpfs(dir.path(), Some(64 << 10)).expect("tmpfs");
            let store = CertificateStore::open(dir.path(), "kubelet-client");
            let (certificate, key) = pair(&[], (2020, 2030));
            store.update(&certificate, &key, jiff::Timestamp::UNIX_EPOCH).expect("stored");
            let huge = format!("{certificate}{}", "#".repeat(128 << 10));
            let error = store.update(&huge, &key, jiff::Timestamp::now()).expect_err("no room");
            assert_eq!(error.raw_os_error(), Some(nix::libc::ENOSPC));
            assert_eq!(store.read().expect("a pair").0, format!("{certificate}{key}").into_bytes());
            store.update(&certificate, &key, jiff::Timestamp::now()).expect("room again");
        });
    }

    #[test]
    fn a_crash_between_the_links_is_mended() {
        let dir = tempfile::tempdir().expect("a folder");
        let target = dir.path().join("kubelet-server-x.pem");
        fs::write(&target, pair(&[], (2020, 2030)).0).expect("written");
        symlink(&target, dir.path().join("kubelet-server-updated.pem")).expect("a link");
        let store = CertificateStore::open(dir.path(), "kubelet-server");
        assert!(store.read().is_some());
        fs::remove_file(store.current()).expect("removed");
        fs::write(store.current(), "by hand").expect("written");
        let (certificate, key) = pair(&[], (2020, 2030));
        let error = store.update(&certificate, &key, jiff::Timestamp::UNIX_EPOCH);
        assert!(error.expect_err("not a link").to_string().contains("a link belongs there"));
        assert!(store.unlink().is_err());
    }
}
