//! Credentials by registry, as Docker's configuration files and pull secrets hold them: pure.
//!
//! Input: the text of a file or a secret. Output: the credentials to try for an image, the most
//! specific entry first. An entry is a host, which may have `*` within a label, and the beginning
//! of a path; the port must be the same. Logs and messages never contain its content.
// k8s: pkg/credentialprovider/keyring.go, config.go, secrets/secrets.go

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use k8s_openapi::api::core::v1::Secret;
use pintle_api_types::yaml::utf8_of;
use pintle_cri_v1 as v1;

use super::docker_config::{self, DockerConfig, RegistryEntries, RegistryEntry};
use super::pull_credential::{Coordinates, Credential, CredentialSource};
use super::registry_match::{DEFAULT_REGISTRY, is_default_registry, matches, repository};

/// Base64 as Go reads it: unused bits of the last character may be set.
const BASE64: GeneralPurpose = base64_with(DecodePaddingMode::RequireCanonical);
const BASE64_NO_PAD: GeneralPurpose = base64_with(DecodePaddingMode::RequireNone);

const fn base64_with(padding: DecodePaddingMode) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new();
    let config = config.with_decode_allow_trailing_bits(true).with_decode_padding_mode(padding);
    GeneralPurpose::new(&alphabet::STANDARD, config)
}

/// Credentials by registry.
#[derive(Clone, Default)]
pub struct Keyring(BTreeMap<String, Vec<Credential>>);

impl fmt::Debug for Keyring {
    /// Registries only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Keyring {
    /// True without any entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds `config.json`; the error names the place of the fault.
    pub fn add_config_json(
        &mut self,
        text: &[u8],
        source: &CredentialSource,
    ) -> Result<(), KeyringError> {
        self.add(logins_of_config_json(text)?, source);
        Ok(())
    }

    /// Adds `.dockercfg`, which is the inner part of the other.
    pub fn add_dockercfg(
        &mut self,
        text: &[u8],
        source: &CredentialSource,
    ) -> Result<(), KeyringError> {
        self.add(logins_of_dockercfg(text)?, source);
        Ok(())
    }

    /// Adds user and password for a registry, as an entry of a file would.
    pub fn add_login(
        &mut self,
        registry: &str,
        username: &str,
        password: &str,
        source: &CredentialSource,
    ) {
        let auth = v1::AuthConfig {
            username: username.to_owned(),
            password: password.to_owned(),
            ..v1::AuthConfig::default()
        };
        let credential = Credential { auth, email: String::new(), source: source.clone() };
        self.0.entry(place(registry)).or_default().push(credential);
    }

    /// Adds a pull secret; ignores one of another type.
    // k8s: pkg/credentialprovider/secrets/secrets.go secretsToTrackedDockerConfigs
    pub fn add_secret(&mut self, secret: &Secret) -> Result<(), KeyringError> {
        let value = |key: &str| {
            let value = secret.data.as_ref().and_then(|data| data.get(key));
            value.map(|value| value.0.as_slice()).filter(|value| !value.is_empty())
        };
        let meta = secret.metadata.clone();
        let source = CredentialSource::Secret(Coordinates {
            namespace: meta.namespace.unwrap_or_default(),
            name: meta.name.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default(),
        });
        match secret.type_.as_deref() {
            Some("kubernetes.io/dockerconfigjson") => value(".dockerconfigjson")
                .map_or(Ok(()), |text| self.add_config_json(text, &source)),
            Some("kubernetes.io/dockercfg") => {
                value(".dockercfg").map_or(Ok(()), |text| self.add_dockercfg(text, &source))
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, logins: BTreeMap<String, Login>, source: &CredentialSource) {
        for (registry, Login { auth, email }) in logins {
            let credential = Credential { auth, email, source: source.clone() };
            self.0.entry(place(&registry)).or_default().push(credential);
        }
    }

    /// The credentials to try for an image, in order.
    pub fn of(&self, image: &str) -> Vec<Credential> {
        let image = repository(image);
        let found: Vec<_> =
            self.0.iter().rev().filter(|(place, _)| matches(place, &image)).collect();
        if found.is_empty() && is_default_registry(&image) {
            return self.0.get(DEFAULT_REGISTRY).cloned().unwrap_or_default();
        }
        found.into_iter().flat_map(|(_, auths)| auths.clone()).collect()
    }
}

/// The place of the error, but not its text: serde's own text may quote a value.
fn unreadable(error: &serde_json::Error) -> KeyringError {
    KeyringError::Unreadable { line: error.line(), column: error.column() }
}

/// Host and path of an entry, without scheme and API version.
fn place(registry: &str) -> String {
    let bare = registry.strip_prefix("https://").or_else(|| registry.strip_prefix("http://"));
    let bare = bare.unwrap_or(registry);
    let (host, path) = bare.find('/').map_or((bare, ""), |at| bare.split_at(at));
    let versioned = path.starts_with("/v1/") || path.starts_with("/v2/");
    let path = if versioned { &path[3..] } else { path };
    match path {
        "" | "/" => host.to_owned(),
        path => format!("{host}{path}"),
    }
}

/// Reason why a text holds no logins; what it shows of the text is a place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyringError {
    /// The text is not of the type.
    #[error("registry credentials cannot be read at {line}:{column}")]
    Unreadable {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// The field `auth` of an entry.
    #[error("unable to parse auth field, must be formatted as base64(username:password)")]
    Login,
}

/// A file's entry for one registry.
#[derive(Clone, Debug, PartialEq)]
pub struct Login {
    /// User, password and token.
    pub auth: v1::AuthConfig,
    /// The address that belongs to the login.
    pub email: String,
}

/// The logins of a `config.json`, by registry as they are written.
///
/// # Errors
/// An error names the place of the fault.
pub fn logins_of_config_json(text: &[u8]) -> Result<BTreeMap<String, Login>, KeyringError> {
    let config: DockerConfig = docker_config::read(text).map_err(|error| unreadable(&error))?;
    logins(config.auths)
}

/// The logins of a `.dockercfg`.
///
/// # Errors
/// An error names the place of the fault.
pub fn logins_of_dockercfg(text: &[u8]) -> Result<BTreeMap<String, Login>, KeyringError> {
    logins(docker_config::read(text).map_err(|error| unreadable(&error))?)
}

fn logins(entries: RegistryEntries) -> Result<BTreeMap<String, Login>, KeyringError> {
    let RegistryEntries { by_registry, replaced } = entries;
    for entry in replaced {
        login(entry)?;
    }
    by_registry.into_iter().map(|(registry, entry)| Ok((registry, login(entry)?))).collect()
}

// k8s: pkg/credentialprovider/config.go decodeDockerConfigFieldAuth
fn login(entry: RegistryEntry) -> Result<Login, KeyringError> {
    let mut auth = v1::AuthConfig {
        username: entry.username,
        password: entry.password,
        identity_token: entry.identity_token,
        ..v1::AuthConfig::default()
    };
    if entry.auth.is_empty() {
        return Ok(Login { auth, email: entry.email });
    }
    // Go ignores the line breaks that `base64` makes, and no other space.
    let is_padded = entry.auth.trim().ends_with('=');
    let engine = if is_padded { BASE64 } else { BASE64_NO_PAD };
    let decoded = engine.decode(entry.auth.replace(['\r', '\n'], ""));
    let decoded = decoded.map(|bytes| utf8_of(&bytes)).ok();
    let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
    let Some((user, password)) = pair else {
        return Err(KeyringError::Login);
    };
    auth.username = user.to_owned();
    auth.password = password.to_owned();
    Ok(Login { auth, email: entry.email })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::{Value, json};

    fn users(keyring: &Keyring, image: &str) -> Vec<String> {
        keyring.of(image).into_iter().map(|found| found.auth.username).collect()
    }

    fn keyring(entries: &[&str]) -> Keyring {
        let mut keyring = Keyring::default();
        for entry in entries {
            let auths = json!({*entry: {"username": *entry, "password": "p"}});
            let text = json!({"auths": auths}).to_string();
            keyring.add_config_json(text.as_bytes(), &CredentialSource::Node).expect("read");
        }
        keyring
    }

    #[test]
    fn credential_entry_matches_its_host_and_images_below_its_path() {
        let table = [
            ("https://index.docker.io/v1/", "busybox:1", true),
            ("index.docker.io", "docker.io/library/busybox", true),
            ("docker.io", "busybox", true),
            ("docker.io/library", "busybox", true),
            ("docker.io/me", "busybox", false),
            ("https://index.docker.io/v1/", "reg.example/a", false),
            ("reg.example", "reg.example/a/b:1", true),
            ("http://reg.example/v2/", "reg.example/a/b:1", true),
            ("reg.example", "reg.example:5000/a", false),
            ("reg.example:5000", "reg.example:5000/a", true),
            ("reg.example:5000", "reg.example/a", false),
            ("reg.example/team", "reg.example/team/a", true),
            ("reg.example/team", "reg.example/other/a", false),
            ("*.example", "eu.example/a", true),
            ("*.example", "a.eu.example/a", false),
            ("r*g-*.example", "reg-eu.example/a", true),
            ("localhost:5000", "localhost:5000/a@sha256:00", true),
        ];
        for (entry, image, want) in table {
            assert_eq!(!users(&keyring(&[entry]), image).is_empty(), want, "{entry} {image}");
        }
    }

    #[test]
    fn the_most_specific_entry_comes_first_and_the_default_last_of_all() {
        let ring = keyring(&["reg.example", "reg.example/team/a", "reg.example/team"]);
        let want = ["reg.example/team/a", "reg.example/team", "reg.example"];
        assert_eq!(users(&ring, "reg.example/team/a:1"), want);
        let ring = keyring(&["index.docker.io", "docker.io/me"]);
        assert_eq!(users(&ring, "me/app"), ["docker.io/me"]);
        assert_eq!(users(&ring, "busybox"), ["index.docker.io"]);
    }

    fn secret(type_: &str, key: &str, value: &Value) -> Secret {
        let data = STANDARD.encode(value.to_string());
        let metadata = json!({"namespace": "ns", "name": "s", "uid": "1"});
        let secret = json!({"metadata": metadata, "type": type_, "data": {key: data}});
        serde_json::from_value(secret).expect("a secret")
    }

    #[test]
    fn both_pull_secret_types_are_read_and_other_secrets_are_ignored() {
        let entry = json!({"reg.example": {"auth": "dTpwOnc="}});
        let table = [
            ("kubernetes.io/dockerconfigjson", ".dockerconfigjson", json!({"auths": entry}), 1),
            ("kubernetes.io/dockercfg", ".dockercfg", entry.clone(), 1),
            ("kubernetes.io/dockercfg", ".dockerconfigjson", json!({"auths": entry}), 0),
            ("Opaque", ".dockercfg", entry, 0),
        ];
        for (type_, key, value, want) in table {
            let mut ring = Keyring::default();
            ring.add_secret(&secret(type_, key, &value)).expect("read");
            let found = ring.of("reg.example/a:1");
            assert_eq!(found.len(), want, "{type_} {key}");
            for Credential { auth, source, .. } in found {
                assert_eq!((&*auth.username, &*auth.password), ("u", "p:w"));
                let [namespace, name, uid] = ["ns", "s", "1"].map(str::to_owned);
                assert_eq!(source, CredentialSource::Secret(Coordinates { namespace, name, uid }));
            }
        }
    }

    #[test]
    fn docker_config_is_accepted_or_rejected_as_in_go() {
        let pair = Some(("u", "p:w"));
        let table = [
            (r#"{"r.io": {"auth": "dTpw\nOnc="}}"#, pair),
            (r#"{"r.io": {"auth": "dTpwOnc"}}"#, pair),
            (r#"{"r.io": {"auth": "\r\ndTpwOnc=\r\n"}}"#, pair),
            // The last bits are unused.
            (r#"{"r.io": {"auth": "dTpwOnd="}}"#, pair),
            (r#"{"r.io": {"auth": "dTpwOnc=", "email": null, "username": null}}"#, pair),
            (r#"{"r.io": {"auth": null, "username": "u", "password": "p:w"}}"#, pair),
            (r#"{"r.io": {"Auth": "dTpwOnc=", "EMAIL": "e"}}"#, pair),
            (r#"{"r.io": {"auth": "x", "auth": "dTpwOnc=", "other": {"a": [1]}}}"#, pair),
            (r#"{"r.io": {"u\u017fername": "u", "password": "p:w"}}"#, pair),
            (r#"{"r.io": {"auth": "dTpwOnc=", "email": "\ud800"}}"#, pair),
            (r#"{"r.io": null}"#, Some(("", ""))),
            ("null", None),
        ];
        for (text, want) in table {
            let whole =
                [format!(r#"{{"auths": {text}}}"#), format!(r#"{{"AUTHS": {text}, "x": 1}}"#)];
            for (whole, at) in [(&whole[0], 0), (&whole[1], 1), (&text.to_owned(), 2)] {
                let mut ring = Keyring::default();
                let added = match at {
                    2 => ring.add_dockercfg(whole.as_bytes(), &CredentialSource::Node),
                    _ => ring.add_config_json(whole.as_bytes(), &CredentialSource::Node),
                };
                assert_eq!(added, Ok(()), "{whole}");
                let found = ring.of("r.io/a");
                let pairs = found.iter().map(|of| (&*of.auth.username, &*of.auth.password));
                assert_eq!(pairs.collect::<Vec<_>>(), Vec::from_iter(want), "{whole}");
            }
        }
        for text in [
            "[]",
            "1",
            r#"{"auths": 1}"#,
            r#"{"auths": {"r.io": {"auth": 1}}}"#,
            r#"{"auths": {"r.io": {"auth": " dTpwOnc="}}}"#,
            "{\"auths\": {\"r.io\": {\"email\": \"\n\"}}}",
        ] {
            let mut ring = Keyring::default();
            assert!(
                ring.add_config_json(text.as_bytes(), &CredentialSource::Node).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn docker_config_error_does_not_reveal_the_content() {
        let mut ring = Keyring::default();
        let broken = ring.add_config_json(
            br#"{"auths": {"r": {"password": hunter2}}}"#,
            &CredentialSource::Node,
        );
        let text = broken.expect_err("no JSON").to_string();
        assert!(text.contains("cannot be read at 1:"), "{text}");
        assert!(!text.contains("hunter2"));
        let broken =
            ring.add_dockercfg(br#"{"r": {"auth": "aHVudGVyMg=="}}"#, &CredentialSource::Node);
        assert!(broken.expect_err("no pair").to_string().starts_with("unable to parse auth field"));
        ring.add_config_json(
            br#"{"auths": {"r": {"auth": "aTpodW50ZXIy"}}}"#,
            &CredentialSource::Node,
        )
        .expect("read");
        assert_eq!(format!("{ring:?}"), r#"{"r"}"#);
    }
}
