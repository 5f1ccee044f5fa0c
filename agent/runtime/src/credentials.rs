//! Registry credentials that the node itself has: Docker's configuration files.
//!
//! Effects: reads small files at each pull, so that a changed password is used at once. Files are
//! looked for where the kubelet looks; the first one of each kind that can be read counts. Nothing
//! of their content goes into logs or messages. Bound: `FILE_BYTES_MAX`.
// k8s: pkg/credentialprovider/config.go, keyring.go

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use pintle_agent_core::image::keyring::Keyring;
use pintle_agent_core::image::pull_credential::{Credential, Source};

/// Longest configuration file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

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

    fn keyring(&self) -> Keyring {
        let read = |name: &str| self.folders.iter().find_map(|folder| read(&folder.join(name)));
        let mut keyring = Keyring::default();
        if let Some(text) = read("config.json") {
            // One that cannot be read counts as none, as for the kubelet.
            let _ = keyring.add_config_json(&text, &Source::Node);
        }
        if let Some(text) = keyring.is_empty().then(|| read(".dockercfg")).flatten() {
            let _ = keyring.add_dockercfg(&text, &Source::Node);
        }
        keyring
    }

    /// What to try for this image, in order.
    pub fn of(&self, image: &str) -> Vec<Credential> {
        self.keyring().of(image)
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_file_gives_user_and_password() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = r#"{"auths": {"reg.example": {"auth": "dTpwOnc="}}}"#;
        std::fs::write(dir.path().join("config.json"), file).expect("written");
        let credentials = NodeCredentials { folders: vec![dir.path().to_owned()] };
        let found = credentials.of("reg.example/a:1");
        assert_eq!((&*found[0].auth.username, &*found[0].auth.password), ("u", "p:w"));
        assert!(credentials.of("other.example/a:1").is_empty());
    }
}
