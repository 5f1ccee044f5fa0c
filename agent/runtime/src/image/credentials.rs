//! Registry credentials that the node itself has: Docker's configuration files.
//!
//! Effects: reads small files at each pull, so that a changed password is used at once. Files are
//! searched in the kubelet's places; the first valid one counts, and the older kind only without
//! one of the newer. Logs and messages never contain their content. Bound: `FILE_BYTES_MAX`.
// k8s: pkg/credentialprovider/config.go ReadDockerConfigFile

use std::path::{Path, PathBuf};

use pintle_agent_core::image::keyring::{Keyring, KeyringError};
use pintle_agent_core::image::pull_credential::{Credential, CredentialSource};
use pintle_daemon::blocking::JobPlace;
use pintle_ring::{FileError, small};

/// Longest configuration file in bytes.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Reason why the credentials for an image are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// A secret of the pod has none.
    #[error(transparent)]
    Secret(#[from] pintle_agent_cluster::objects::KeyringError),
    /// A file of the node cannot be read.
    #[error("{0}")]
    Files(String),
}

/// Reads a file of one kind.
type Read = fn(&mut Keyring, &[u8], &CredentialSource) -> Result<(), KeyringError>;

/// Credentials from the node's files.
#[derive(Clone, Debug)]
pub struct NodeCredentials {
    config_json: Vec<PathBuf>,
    dockercfg: Vec<PathBuf>,
}

impl NodeCredentials {
    /// Looks in the agent's root directory, the working directory, `$HOME` and `/`.
    pub fn new(root: &Path) -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let folders = |below: &str, file: &str| {
            let of_user = home.iter().map(|home| home.join(below));
            let own = [root.to_owned(), PathBuf::from(".")];
            let all = own.into_iter().chain(of_user).chain([Path::new("/").join(below)]);
            all.map(|folder| folder.join(file)).collect()
        };
        Self {
            config_json: folders(".docker", "config.json"),
            dockercfg: folders("", ".dockercfg"),
        }
    }

    async fn keyring(&self) -> Result<Keyring, FileError> {
        let kinds: [(_, Read); 2] = [
            (&self.config_json, Keyring::add_config_json),
            (&self.dockercfg, Keyring::add_dockercfg),
        ];
        for (paths, read) in kinds {
            let texts =
                small::read_all(JobPlace::own("credentials"), paths, FILE_BYTES_MAX).await?;
            let read = |text: Vec<u8>| {
                let mut keyring = Keyring::default();
                read(&mut keyring, &text, &CredentialSource::Node).is_ok().then_some(keyring)
            };
            if let Some(found) = texts.into_iter().filter_map(Result::ok).find_map(read) {
                return Ok(found);
            }
        }
        Ok(Keyring::default())
    }

    /// The credentials to try for this image, in order.
    pub async fn of(&self, image: &str) -> Result<Vec<Credential>, FileError> {
        Ok(self.keyring().await?.of(image))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_config_file_gives_user_and_password() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).expect("written");
        };
        let paths = |names: &[&str]| names.iter().map(|name| dir.path().join(name)).collect();
        let config_json = paths(&["none", "config.json", "second.json"]);
        let credentials = NodeCredentials { config_json, dockercfg: paths(&[".dockercfg"]) };
        let password = async || {
            let found = credentials.of("reg.example/a:1").await.expect("answered");
            found.first().map(|found| found.auth.password.clone())
        };
        write("config.json", r#"{"auths": {"reg.example": {"auth": "dTpwOnc="}}}"#);
        assert_eq!(password().await.as_deref(), Some("p:w"));
        assert!(credentials.of("other.example/a:1").await.expect("answered").is_empty());
        write("config.json", "");
        write(".dockercfg", r#"{"reg.example": {"auth": "dTpxOnc="}}"#);
        assert_eq!(password().await.as_deref(), Some("q:w"), "where the newer one is none");
        write("second.json", r#"{"auths": {"reg.example": {"auth": "dTpyOnc="}}}"#);
        assert_eq!(password().await.as_deref(), Some("r:w"), "the first that is one");
        write("config.json", r#"{"credsStore": "x"}"#);
        assert_eq!(password().await, None, "one that says nothing is one");
    }
}
