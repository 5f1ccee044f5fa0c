//! The first client certificate: from a bootstrap kubeconfig to a kubeconfig of the node's own.
//!
//! Input: `--bootstrap-kubeconfig`, `--kubeconfig`, `--cert-dir`. Output: the kubeconfig exists,
//! names the current pair in the certificate folder, and that pair is there (or, with rotation,
//! will be). A key that was made for a request is kept until the request succeeds, so that a
//! restart asks for the same certificate again.
// k8s: pkg/kubelet/certificate/bootstrap/bootstrap.go

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pintle_api::{Access, ConnectError};
use pintle_daemon::durable;
use rcgen::KeyPair;
use serde_json::json;

use super::certificate::Validity;
use super::request::{self, CertificateNames, RequestError, WantedCertificate};
use super::store::CertificateStore;

/// Longest wait for the first certificate.
const SIGN_MAX: Duration = Duration::from_secs(3600);
/// Holds the key until the request succeeds.
const KEY_FILE: &str = "kubelet-client.key.tmp";
/// Pause between attempts while the API server does not answer.
const PAUSE: Duration = Duration::from_secs(2);
/// The largest key file that is read.
const KEY_BYTES_MAX: u64 = 64 << 10;

/// Reason why the node has no identity.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The bootstrap kubeconfig cannot be used.
    #[error("--bootstrap-kubeconfig")]
    Access(#[from] ConnectError),
    /// No certificate.
    #[error("--bootstrap-kubeconfig: no client certificate")]
    Request(#[from] RequestError),
    /// The key cannot be made.
    #[error("--bootstrap-kubeconfig: no key: {0}")]
    Key(#[from] rcgen::Error),
    /// A file cannot be written.
    #[error("{what} {}: {source}; make the folder writable", path.display())]
    Write {
        /// The flag.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// True if a kubeconfig can be used and its certificate has not expired.
// k8s: isClientConfigStillValid
pub fn is_valid(kubeconfig: &Path, now: i64) -> bool {
    Access::read(kubeconfig).is_ok_and(|access| holds(&access, now))
}

/// True if there is a certificate and it has not expired.
pub fn holds(access: &Access, now: i64) -> bool {
    let validity = access.certificate_pem().and_then(|pem| Validity::of_pem(&pem));
    validity.is_some_and(|validity| validity.not_after > now)
}

/// Prefers the stored pair to the kubeconfig's own. If the stored pair has expired and the
/// kubeconfig's pair has not, an administrator has renewed the latter: the stored pair is removed.
// k8s: staging/src/k8s.io/client-go/util/certificate/certificate_manager.go
//      getCurrentCertificateOrBootstrap
pub fn prefer_stored(access: &mut Access, store: &CertificateStore, now: i64) {
    let expired = store.read().is_some_and(|(_, validity)| validity.not_after <= now);
    if expired && holds(access, now) {
        let path = store.current();
        tracing::info!(path = %path.display(), "it has expired; the kubeconfig's own pair holds");
        if let Err(error) = store.unlink() {
            return tracing::warn!(%error, "the stored pair stays, and is not used");
        }
    }
    access.prefer_certificate(store.current());
}

/// The node that gets its first certificate, and where the certificate goes.
pub struct BootstrapTarget<'a> {
    /// The kubeconfig to be written.
    pub kubeconfig: &'a Path,
    /// The store of the certificate.
    pub store: &'a CertificateStore,
    /// The folder of the key until there is a certificate.
    pub cert_dir: &'a Path,
    /// The node's name.
    pub node: &'a str,
}

/// Requests the first certificate, stores it and writes the kubeconfig. Waits for an API server
/// that does not answer yet.
pub async fn request(
    bootstrap: &Access,
    client: kube::Client,
    of: BootstrapTarget<'_>,
) -> Result<(), BootstrapError> {
    let BootstrapTarget { kubeconfig, store, cert_dir, node } = of;
    let path = cert_dir.join(KEY_FILE);
    let key = key(&path)?;
    let names = CertificateNames { node: node.to_owned(), ..CertificateNames::default() };
    let (signer, names) = (request::CLIENT_SIGNER, &names);
    let wanted = WantedCertificate { signer, names, key: &key, digested: true };
    let pem = loop {
        match request::certificate(client.clone(), wanted, SIGN_MAX).await {
            Ok(pem) => break pem,
            Err(error) if error.is_answer() => return Err(error.into()),
            Err(error) => {
                tracing::warn!("{error}; trying again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    };
    store.update(&pem, &key.serialize_pem(), jiff::Timestamp::now()).map_err(|source| {
        BootstrapError::Write { what: "--cert-dir", path: store.current(), source }
    })?;
    let _ = fs::remove_file(&path);
    write_kubeconfig(bootstrap, kubeconfig, &store.current())
}

/// The key of an earlier attempt, or a new one that is kept for later attempts.
fn key(path: &Path) -> Result<KeyPair, BootstrapError> {
    let small = fs::metadata(path).is_ok_and(|meta| meta.len() <= KEY_BYTES_MAX);
    let kept = small.then(|| fs::read_to_string(path).ok()).flatten();
    if let Some(key) = kept.and_then(|pem| KeyPair::from_pem(&pem).ok()) {
        return Ok(key);
    }
    let key = KeyPair::generate()?;
    write(path, key.serialize_pem().as_bytes(), 0o600).map_err(|source| BootstrapError::Write {
        what: "--cert-dir",
        path: path.to_owned(),
        source,
    })?;
    Ok(key)
}

/// Writes a kubeconfig for the server of `bootstrap` that names the pair at `pem`.
pub fn write_kubeconfig(
    bootstrap: &Access,
    kubeconfig: &Path,
    pem: &Path,
) -> Result<(), BootstrapError> {
    let text = kubeconfig_text(bootstrap, pem);
    write(kubeconfig, text.as_bytes(), 0o600).map_err(|source| BootstrapError::Write {
        what: "--kubeconfig",
        path: kubeconfig.to_owned(),
        source,
    })
}

fn kubeconfig_text(bootstrap: &Access, pem: &Path) -> String {
    let mut cluster = json!({"server": bootstrap.server.to_string().trim_end_matches('/')});
    match bootstrap.authority_pem() {
        Some(pem) => cluster["certificate-authority-data"] = STANDARD.encode(pem).into(),
        None if bootstrap.trusts_anyone() => cluster["insecure-skip-tls-verify"] = true.into(),
        None => {}
    }
    // JSON is YAML.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "contexts": [{"name": "default-context", "context": {
            "cluster": "default-cluster", "namespace": "default", "user": "default-auth",
        }}],
        "current-context": "default-context",
        "users": [{"name": "default-auth", "user": {
            "client-certificate": pem, "client-key": pem,
        }}],
    });
    format!("{config:#}\n")
}

/// Replaces a file as a whole; its folder is made when it is missing.
fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    durable::replace(path, bytes, mode)
}

#[cfg(test)]
mod tests {
    use super::super::certificate::tests::pair;
    use super::*;

    fn bootstrap(dir: &Path) -> Access {
        let path = dir.join("bootstrap");
        let text = "current-context: c\n\
            contexts: [{name: c, context: {cluster: k, user: u}}]\n\
            clusters: [{name: k, cluster: {server: 'https://api.test:6443', \
            insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: {token: abc.def}}]\n";
        fs::write(&path, text).expect("written");
        Access::read(&path).expect("usable")
    }

    #[test]
    fn expired_stored_pair_is_replaced_by_a_valid_pair_of_the_kubeconfig() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = CertificateStore::open(&dir.path().join("pki"), "kubelet-client");
        let stored = pair(&[], (2020, 2030));
        store.update(&stored.0, &stored.1, jiff::Timestamp::UNIX_EPOCH).expect("stored");
        let (certificate, key) = pair(&[], (2020, 2040));
        let mut config = serde_json::from_str::<serde_json::Value>(&kubeconfig_text(
            &bootstrap(dir.path()),
            &store.current(),
        ))
        .expect("JSON");
        config["users"][0]["user"] = json!({
            "client-certificate-data": STANDARD.encode(&certificate),
            "client-key-data": STANDARD.encode(key),
        });
        let path = dir.path().join("kubelet.conf");
        fs::write(&path, config.to_string()).expect("written");
        let used = |now| {
            let mut access = Access::read(&path).expect("usable");
            prefer_stored(&mut access, &store, now);
            let pem = access.certificate_pem().expect("a certificate");
            String::from_utf8(pem).expect("PEM")
        };
        assert!(used(1_600_000_000).starts_with(&stored.0), "both hold");
        assert!(used(2_300_000_000).starts_with(&stored.0), "neither holds");
        assert_eq!(used(2_000_000_000), certificate);
        assert!(store.read().is_none(), "a new pair is requested at once");
    }

    #[test]
    fn the_kubeconfig_that_is_written_can_be_used() {
        let dir = tempfile::tempdir().expect("a folder");
        let (kubeconfig, pem) = (dir.path().join("etc/kubelet.conf"), dir.path().join("pair.pem"));
        let bootstrap = bootstrap(dir.path());
        write_kubeconfig(&bootstrap, &kubeconfig, &pem).expect("written");
        let now = jiff::Timestamp::now().as_second();
        assert!(!is_valid(&kubeconfig, now), "there is no certificate yet");
        let (certificate, key) = pair(&[], (2020, 2030));
        fs::write(&pem, format!("{certificate}{key}")).expect("written");
        assert!(is_valid(&kubeconfig, 1_600_000_000));
        assert!(!is_valid(&kubeconfig, 2_000_000_000), "it has expired");
        let access = Access::read(&kubeconfig).expect("usable");
        assert_eq!(access.server.to_string(), "https://api.test:6443/");
        assert!(!is_valid(&dir.path().join("none"), now));
    }

    #[test]
    fn a_key_is_kept_for_the_next_attempt() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("pki").join(KEY_FILE);
        let first = key(&path).expect("a key").serialize_pem();
        assert_eq!(key(&path).expect("a key").serialize_pem(), first);
        fs::write(&path, "nonsense").expect("written");
        assert_ne!(key(&path).expect("a key").serialize_pem(), first);
    }
}
