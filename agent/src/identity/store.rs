//! The files of a certificate that is replaced: dated ones, and a link to the current one.
//!
//! `NAME-current.pem` is a link to `NAME-DATE.pem`, which holds certificate and key. The link is
//! replaced as a whole, so that a crash leaves the old pair or the new one.
// k8s: staging/src/k8s.io/client-go/util/certificate/certificate_store.go

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::certificate::Validity;

/// The files of one certificate.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
    name: &'static str,
}

impl Store {
    /// `name` is `kubelet-client` or `kubelet-server`. Ends what a crash left half done.
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

    /// PEM of the pair in force, and what it says.
    pub fn read(&self) -> Option<(Vec<u8>, Validity)> {
        let pem = fs::read(self.current()).ok()?;
        let validity = Validity::of_pem(&pem)?;
        Some((pem, validity))
    }

    /// Puts a new pair in force. `stamp` dates its file.
    pub fn update(&self, certificate: &str, key: &str, stamp: jiff::Timestamp) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.dir)?;
        let date = stamp.strftime("%Y-%m-%d-%H-%M-%S");
        let path = std::path::absolute(self.dir.join(format!("{}-{date}.pem", self.name)))?;
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        let gap = if certificate.ends_with('\n') { "" } else { "\n" };
        file.write_all(format!("{certificate}{gap}{key}").as_bytes())?;
        file.sync_all()?;
        if fs::symlink_metadata(self.current()).is_ok_and(|meta| !meta.is_symlink()) {
            let problem = format!("{} is a file; a link belongs there", self.current().display());
            return Err(io::Error::other(problem));
        }
        let _ = fs::remove_file(self.updated());
        symlink(&path, self.updated())?;
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
        let store = Store::open(&dir.path().join("pki"), "kubelet-client");
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
    fn a_crash_between_the_links_is_mended() {
        let dir = tempfile::tempdir().expect("a folder");
        let target = dir.path().join("kubelet-server-x.pem");
        fs::write(&target, pair(&[], (2020, 2030)).0).expect("written");
        symlink(&target, dir.path().join("kubelet-server-updated.pem")).expect("a link");
        let store = Store::open(dir.path(), "kubelet-server");
        assert!(store.read().is_some());
        fs::remove_file(store.current()).expect("removed");
        fs::write(store.current(), "by hand").expect("written");
        let (certificate, key) = pair(&[], (2020, 2030));
        let error = store.update(&certificate, &key, jiff::Timestamp::UNIX_EPOCH);
        assert!(error.expect_err("not a link").to_string().contains("a link belongs there"));
    }
}
