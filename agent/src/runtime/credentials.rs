//! Registry credentials that the node itself has: Docker's configuration files.
//!
//! Effects: reads small files at each pull, so that a changed password is used at once. Files are
//! looked for where the kubelet looks; the first one of each kind that can be read counts. Nothing
//! of their content goes into logs or messages. Bound: `FILE_BYTES_MAX`.
// k8s: pkg/credentialprovider/config.go, keyring.go

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use base64::Engine;
use pintle_cri::v1;
use serde::Deserialize;

use crate::runtime::image::Credentials;

/// Longest configuration file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Registry of names without a host.
const DEFAULT_REGISTRY: &str = "index.docker.io";

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default, rename = "identitytoken")]
    identity_token: String,
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

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

    fn entries(&self) -> BTreeMap<String, Entry> {
        let read = |name: &str| self.folders.iter().find_map(|folder| read(&folder.join(name)));
        let config = read("config.json")
            .and_then(|bytes| serde_json::from_slice::<DockerConfig>(&bytes).ok())
            .map(|config| config.auths)
            .filter(|auths| !auths.is_empty());
        let legacy = || read(".dockercfg").and_then(|bytes| serde_json::from_slice(&bytes).ok());
        config.or_else(legacy).unwrap_or_default()
    }
}

impl Credentials for NodeCredentials {
    fn of(&self, image: &str) -> Vec<v1::AuthConfig> {
        let mut found: Vec<_> = self
            .entries()
            .into_iter()
            .filter(|(registry, _)| matches(registry, image))
            .filter_map(|(registry, entry)| Some((registry, auth(entry)?)))
            .collect();
        // The most specific entry first.
        found.sort_by(|a, b| b.0.cmp(&a.0));
        found.into_iter().map(|(_, auth)| auth).collect()
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn auth(entry: Entry) -> Option<v1::AuthConfig> {
    let decoded = base64::engine::general_purpose::STANDARD.decode(entry.auth.trim()).ok();
    let pair = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    let pair = pair.as_deref().and_then(|text| text.split_once(':'));
    let (username, password) = match pair {
        Some((user, password)) => (user.to_owned(), password.trim_end_matches('\0').to_owned()),
        None => (entry.username, entry.password),
    };
    let some = !username.is_empty() || !entry.identity_token.is_empty();
    some.then(|| v1::AuthConfig {
        username,
        password,
        identity_token: entry.identity_token,
        ..v1::AuthConfig::default()
    })
}

/// True when an entry of the file is for that image: same host, and the entry's path is a prefix.
fn matches(registry: &str, image: &str) -> bool {
    let bare = registry.split_once("://").map_or(registry, |(_, rest)| rest);
    let bare = bare.trim_end_matches('/');
    let bare = bare.strip_suffix("/v1").or_else(|| bare.strip_suffix("/v2")).unwrap_or(bare);
    let (host, path) = bare.split_once('/').unwrap_or((bare, ""));
    let (image_host, image_path) = match image.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
        _ => (DEFAULT_REGISTRY, image),
    };
    let same_host = host_matches(host, image_host);
    same_host && (path.is_empty() || image_path.starts_with(path))
}

/// Hosts are equal label by label; `*` stands for any part of one label.
fn host_matches(pattern: &str, host: &str) -> bool {
    let (pattern, pattern_port) = split_port(pattern);
    let (host, port) = split_port(host);
    let (left, right): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), host.split('.').collect());
    (pattern_port.is_none() || pattern_port == port)
        && left.len() == right.len()
        && left.iter().zip(right).all(|(pattern, label)| match pattern.split_once('*') {
            Some((before, after)) => label.starts_with(before) && label.ends_with(after),
            None => *pattern == label,
        })
}

fn split_port(host: &str) -> (&str, Option<&str>) {
    host.rsplit_once(':').map_or((host, None), |(name, port)| (name, Some(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_counts_for_its_host_and_below_its_path() {
        let table = [
            ("https://index.docker.io/v1/", "busybox:1", true),
            ("https://index.docker.io/v1/", "reg.example/a", false),
            ("reg.example", "reg.example/a/b:1", true),
            ("reg.example:5000", "reg.example:5000/a", true),
            ("reg.example:5000", "reg.example/a", false),
            ("reg.example/team", "reg.example/team/a", true),
            ("reg.example/team", "reg.example/other/a", false),
            ("*.example", "eu.example/a", true),
            ("*.example", "a.eu.example/a", false),
        ];
        for (registry, image, want) in table {
            assert_eq!(matches(registry, image), want, "{registry} {image}");
        }
    }

    #[test]
    fn a_config_file_gives_user_and_password() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = r#"{"auths": {"reg.example": {"auth": "dTpwOnc="}}}"#;
        std::fs::write(dir.path().join("config.json"), file).expect("written");
        let credentials = NodeCredentials { folders: vec![dir.path().to_owned()] };
        let found = credentials.of("reg.example/a:1");
        assert_eq!((&*found[0].username, &*found[0].password), ("u", "p:w"));
        assert!(credentials.of("other.example/a:1").is_empty());
    }
}
