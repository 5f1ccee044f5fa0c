//! Registry credentials that the node itself has: Docker's configuration files.
//!
//! Effects: reads small files at each pull, so that a changed password is used at once. Files are
//! looked for where the kubelet looks; the first one of each kind that can be read counts. Nothing
//! of their content goes into logs or messages. Bound: `FILE_BYTES_MAX`.
// k8s: pkg/credentialprovider/config.go, keyring.go

use std::path::{Path, PathBuf};

use pintle_agent_core::image::keyring::Keyring;
use pintle_agent_core::image::pull_credential::{Credential, Source};
use pintle_daemon::blocking::Place;
use pintle_ring::{FileError, small};

/// Longest configuration file in bytes.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Credentials from the node's files.
#[derive(Clone, Debug)]
pub struct NodeCredentials {
    folders: Vec<PathBuf>,
}

impl NodeCredentials {
    /// Looks in the agent's root directory, the working directory, `$HOME` and `/`.
    pub fn new(root: &Path) -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let mut folders = vec![root.to_owned(), PathBuf::from(".")];
        folders.extend(home.iter().map(|home| home.join(".docker")));
        folders.push(PathBuf::from("/.docker"));
        folders.extend(home);
        folders.push(PathBuf::from("/"));
        Self { folders }
    }

    async fn keyring(&self) -> Result<Keyring, FileError> {
        let mut keyring = Keyring::default();
        if let Some(text) = self.first("config.json").await? {
            // One that cannot be read counts as none, as for the kubelet.
            let _ = keyring.add_config_json(&text, &Source::Node);
        }
        if keyring.is_empty()
            && let Some(text) = self.first(".dockercfg").await?
        {
            let _ = keyring.add_dockercfg(&text, &Source::Node);
        }
        Ok(keyring)
    }

    /// The first file of this name that can be read.
    async fn first(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        let paths: Vec<_> = self.folders.iter().map(|folder| folder.join(name)).collect();
        let all = small::read_all(Place::own("credentials"), &paths, FILE_BYTES_MAX).await?;
        Ok(all.into_iter().find_map(Result::ok))
    }

    /// What to try for this image, in order.
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
        let file = r#"{"auths": {"reg.example": {"auth": "dTpwOnc="}}}"#;
        std::fs::write(dir.path().join("config.json"), file).expect("written");
        let credentials = NodeCredentials { folders: vec!["/none".into(), dir.path().to_owned()] };
        let found = credentials.of("reg.example/a:1").await.expect("answered");
        assert_eq!((&*found[0].auth.username, &*found[0].auth.password), ("u", "p:w"));
        assert!(credentials.of("other.example/a:1").await.expect("answered").is_empty());
        std::fs::write(dir.path().join("config.json"), "").expect("written");
        let older = r#"{"reg.example": {"auth": "dTpxOnc="}}"#;
        std::fs::write(dir.path().join(".dockercfg"), older).expect("written");
        let found = credentials.of("reg.example/a:1").await.expect("answered");
        assert_eq!(&*found[0].auth.password, "q:w", "where the newer one says nothing");
    }
}
