//! Our current identity: TLS configuration and authorization header, from the current files and
//! plugins.
//!
//! Owner: one per client. `generation` grows whenever connections must be replaced: a new
//! certificate, key or authority. A pair that cannot be read leaves the one before in force.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use http::HeaderValue;
use tokio_rustls::rustls::ClientConfig;

use crate::access::Access;
use crate::account::AccountToken;
use crate::exec::ExecPlugin;
use crate::files::{self, FileSource, WatchedFiles};
use crate::observer::Observer;
use crate::tls::{self, Trust};

/// A client certificate with its key.
#[derive(Clone)]
pub(crate) enum Certificate {
    /// The kubeconfig's pair.
    Given { cert: FileSource, key: FileSource },
    /// A pair in one file that rotation replaces; before that file exists, the kubeconfig's pair.
    Rotated { pem: PathBuf, given: Option<Box<Certificate>> },
}

impl Certificate {
    /// PEM of certificate chain and key.
    pub(crate) fn read(&self) -> io::Result<(Vec<u8>, Vec<u8>)> {
        match self {
            Self::Given { cert, key } => Ok((cert.read()?, key.read()?)),
            Self::Rotated { pem, given } => match (files::read(pem), given) {
                (Ok(both), _) => Ok((both.clone(), both)),
                (Err(_), Some(given)) => given.read(),
                (Err(error), None) => Err(error),
            },
        }
    }

    fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::Given { cert, key } => {
                [cert, key].into_iter().filter_map(FileSource::path).map(PathBuf::from).collect()
            }
            Self::Rotated { pem, given } => {
                let mut paths = given.as_ref().map(|given| given.paths()).unwrap_or_default();
                paths.push(pem.clone());
                paths
            }
        }
    }
}

/// Content of the authorization header.
#[derive(Clone)]
pub(crate) enum Secret {
    /// Nothing.
    None,
    /// This token.
    Token(String),
    /// The token in this file, or another one until it can be read.
    File { path: PathBuf, fallback: Option<String> },
    /// Name and password, encoded.
    Basic(String),
    /// The output of this plugin.
    Plugin(Arc<ExecPlugin>),
    /// The token of this service account.
    Account(Arc<AccountToken>),
}

/// The authorization of one request.
#[derive(Default)]
pub(crate) struct Shown {
    /// The authorization header, if there is to be one.
    pub(crate) header: Option<HeaderValue>,
    /// The run of the plugin, or the token, that it came from; 0 for secrets that never change.
    pub(crate) run: u64,
}

/// Settings of a new connection.
#[derive(Clone)]
pub(crate) struct ConnectionSettings {
    /// Grows when connections must be replaced.
    pub(crate) generation: u64,
    /// `None` without TLS.
    pub(crate) tls: Option<Arc<ClientConfig>>,
}

/// Our identity towards the server.
pub(crate) struct ClientIdentity {
    pub(crate) access: Access,
    observer: Option<Arc<dyn Observer>>,
    state: Mutex<State>,
}

struct State {
    now: Option<ConnectionSettings>,
    generation: u64,
    certificates: WatchedFiles,
    token: Option<(WatchedFiles, HeaderValue)>,
    /// The pair that a plugin gave last.
    plugged: Option<(Vec<u8>, Vec<u8>)>,
}

impl ClientIdentity {
    pub(crate) fn new(access: Access, observer: Option<Arc<dyn Observer>>) -> Self {
        let state = State {
            now: None,
            generation: 0,
            certificates: WatchedFiles::new(watched_paths(&access)),
            token: None,
            plugged: None,
        };
        Self { access, observer, state: Mutex::new(state) }
    }

    /// Settings of new connections. An error is one of reading certificates; no request is sent
    /// before a requested certificate has come.
    pub(crate) fn now(&self) -> Result<ConnectionSettings, io::Error> {
        if let Some(Certificate::Rotated { pem, given: None }) = &self.access.certificate
            && !pem.exists()
        {
            return Err(io::Error::other(format!("there is no {} yet", pem.display())));
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = state.certificates.changed(Instant::now());
        if let (Some(now), false) = (&state.now, changed) {
            return Ok(now.clone());
        }
        match tls::config(&self.access, state.plugged.as_ref()) {
            Ok(tls) => {
                state.generation += 1;
                let now =
                    ConnectionSettings { generation: state.generation, tls: tls.map(Arc::new) };
                state.now = Some(now.clone());
                Ok(now)
            }
            Err(error) => match state.now.clone() {
                // Half of a pair may be written already, or it cannot be read for a moment.
                Some(now) => {
                    state.certificates.look_again();
                    tracing::warn!(%error, "the earlier client certificate stays in use");
                    Ok(now)
                }
                None => Err(io::Error::other(error.to_string())),
            },
        }
    }

    /// The authorization of a request that is sent now.
    pub(crate) async fn authorization(&self) -> Result<Shown, io::Error> {
        let header = match &self.access.secret {
            Secret::None => return Ok(Shown::default()),
            Secret::Token(token) => header("Bearer", token)?,
            Secret::Basic(both) => header("Basic", both)?,
            Secret::File { path, fallback } => self.token_of_file(path, fallback.as_deref())?,
            Secret::Plugin(plugin) => {
                let given = plugin.credential(self.observer.as_deref()).await?;
                self.plug(given.pair.clone());
                let header = given.token.as_deref().map(|token| header("Bearer", token));
                return Ok(Shown { header: header.transpose()?, run: given.run });
            }
            Secret::Account(account) => {
                let (token, run) = account.credential().await?;
                return Ok(Shown { header: Some(header("Bearer", &token)?), run });
            }
        };
        Ok(Shown { header: Some(header), run: 0 })
    }

    /// The server refused the credential of that run: a plugin, or the token's source, is asked
    /// again.
    pub(crate) fn refused(&self, run: u64) -> bool {
        match &self.access.secret {
            Secret::Plugin(plugin) => {
                plugin.refused(run);
                true
            }
            Secret::Account(account) => {
                account.refused(run);
                true
            }
            _ => false,
        }
    }

    fn plug(&self, pair: Option<(Vec<u8>, Vec<u8>)>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.plugged != pair {
            state.plugged = pair;
            state.now = None;
        }
    }

    /// The file's token, the one before if it cannot be read now, or the one of the kubeconfig.
    fn token_of_file(&self, path: &Path, fallback: Option<&str>) -> Result<HeaderValue, io::Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((watched, token)) = &mut state.token
            && !watched.changed(Instant::now())
        {
            return Ok(token.clone());
        }
        // Stamped before it is read: a change in between is seen next time.
        let watched = WatchedFiles::new(vec![path.to_owned()]);
        let read = files::read(path).and_then(|bytes| {
            let text = String::from_utf8(bytes).map_err(io::Error::other)?;
            match text.trim() {
                "" => Err(io::Error::other("it is empty")),
                token => header("Bearer", token),
            }
        });
        match (read, &mut state.token) {
            (Ok(token), _) => {
                state.token = Some((watched, token.clone()));
                Ok(token)
            }
            (Err(error), Some((watched, before))) => {
                watched.look_again();
                tracing::warn!(path = %path.display(), %error, "the earlier token stays in use");
                Ok(before.clone())
            }
            (Err(error), None) => match fallback {
                Some(fallback) => {
                    tracing::warn!(path = %path.display(), %error, "the token beside it is used");
                    header("Bearer", fallback)
                }
                None => Err(io::Error::other(format!("tokenFile {}: {error}", path.display()))),
            },
        }
    }
}

/// Every file whose change requires new connections.
fn watched_paths(access: &Access) -> Vec<PathBuf> {
    let mut paths = access.certificate.as_ref().map(Certificate::paths).unwrap_or_default();
    if let Trust::Authorities(Some(source)) = &access.trust {
        paths.extend(source.path().map(PathBuf::from));
    }
    paths
}

/// A header that no log shows.
fn header(scheme: &str, secret: &str) -> Result<HeaderValue, io::Error> {
    let mut value = HeaderValue::from_str(&format!("{scheme} {secret}"))
        .map_err(|_| io::Error::other("the token has characters that no header may have"))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Identity from the cluster and the user of a kubeconfig.
    fn identity(dir: &Path, cluster: &str, user: &str) -> ClientIdentity {
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        );
        let path = dir.join("kubeconfig");
        std::fs::write(&path, text).expect("written");
        ClientIdentity::new(Access::read(&path).expect("a kubeconfig"), None)
    }

    async fn token(identity: &ClientIdentity) -> String {
        let shown = identity.authorization().await.expect("a token");
        shown.header.expect("a header").to_str().expect("text").to_owned()
    }

    #[tokio::test]
    async fn a_token_file_that_cannot_be_read_once_is_read_again() {
        let dir = tempfile::tempdir().expect("a folder");
        // A service account's token as a kubelet's kubeconfig names it.
        let file = dir.path().join("token");
        std::fs::write(&file, "first").expect("written");
        let user = format!("tokenFile: '{}'", file.display());
        let cluster = "server: 'https://127.0.0.1:1', insecure-skip-tls-verify: true";
        let identity = identity(dir.path(), cluster, &user);
        assert_eq!(token(&identity).await, "Bearer first");
        std::fs::remove_file(&file).expect("removed");
        std::fs::create_dir(&file).expect("made");
        let changed = || {
            let mut state = identity.state.lock().expect("not poisoned");
            let (watched, _) = state.token.as_mut().expect("a token");
            watched.age(Duration::from_secs(10));
            let changed = watched.changed(Instant::now());
            if changed {
                watched.look_again();
            }
            watched.age(Duration::from_secs(10));
            changed
        };
        assert!(changed());
        assert_eq!(token(&identity).await, "Bearer first", "a folder is no token");
        assert!(changed(), "nothing changed, but what is there was not read");
    }

    #[test]
    fn invalid_key_pair_leaves_the_previous_pair_in_use() {
        let dir = tempfile::tempdir().expect("a folder");
        let (cert, key) = (dir.path().join("client.crt"), dir.path().join("client.key"));
        let write_pair = || {
            let pair = rcgen::generate_simple_self_signed(["n".to_owned()]).expect("a pair");
            std::fs::write(&key, pair.signing_key.serialize_pem()).expect("written");
            std::fs::write(&cert, pair.cert.pem()).expect("written");
        };
        write_pair();
        let (cert_path, key_path) = (cert.display(), key.display());
        let user = format!("client-certificate: '{cert_path}', client-key: '{key_path}'");
        let cluster = "server: 'https://127.0.0.1:1', insecure-skip-tls-verify: true";
        let identity = identity(dir.path(), cluster, &user);
        let generation = || {
            let mut state = identity.state.lock().expect("not poisoned");
            state.certificates.age(Duration::from_secs(10));
            drop(state);
            identity.now().expect("a pair").generation
        };
        assert_eq!(generation(), 1);
        std::fs::write(&cert, "nonsense").expect("written");
        assert_eq!((generation(), generation()), (1, 1), "seen, and seen again");
        write_pair();
        assert_eq!(generation(), 2);
    }
}
