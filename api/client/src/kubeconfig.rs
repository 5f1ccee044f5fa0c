//! A kubeconfig as client-go reads it.
//!
//! Input: the bytes of a file and the folder that it is in. Output: its contexts, clusters and
//! users by name, with relative paths resolved. Reading is lenient as upstream's is: YAML 1.1 or
//! JSON, unknown fields are ignored, the last of repeated keys wins, null is the zero value. A
//! value of another type, broken base64 and two entries of one name are refused wherever they are,
//! also in a user that no context names. Bounds: `LIMITS`; the size of the file is the caller's.
//!
//! The types are its own because the client library's are stricter than Go's in some fields and
//! laxer in others, and a node has to read the files that the kubelet read before it.
// k8s: staging/src/k8s.io/client-go/tools/clientcmd/api/v1/types.go, conversion.go, loader.go Load

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Component, Path, PathBuf};

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use pintle_api_types::yaml::{self, ReadLimits, TypeMeta};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A kubeconfig of 50 clusters has some thousand values.
const LIMITS: ReadLimits = ReadLimits { depth_max: 64, nodes_max: 100_000, replayed_max: 20_000 };
const KIND: &str = "Config";
const VERSION: &str = "v1";

/// Base64 as Go reads it: unused bits of the last character may be set.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// A kubeconfig by names.
#[derive(Debug, Default)]
pub(crate) struct Kubeconfig {
    pub(crate) current_context: String,
    pub(crate) contexts: BTreeMap<String, KubeconfigContext>,
    pub(crate) clusters: BTreeMap<String, KubeconfigCluster>,
    pub(crate) users: BTreeMap<String, User>,
}

/// A cluster and a user.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KubeconfigContext {
    pub(crate) cluster: String,
    pub(crate) user: String,
    pub(crate) namespace: String,
    pub(crate) extensions: Vec<NamedExtension>,
}

/// A server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct KubeconfigCluster {
    /// Its address.
    pub server: String,
    /// The name in its certificate, if it is not that of the address.
    pub tls_server_name: String,
    /// Accepts any certificate.
    pub insecure_skip_tls_verify: bool,
    /// File with the certificates of its authorities.
    pub certificate_authority: String,
    /// The authorities in PEM; wins over the file.
    pub certificate_authority_data: Data,
    /// The proxy between.
    pub proxy_url: String,
    /// Answers are not to be compressed.
    pub disable_compression: bool,
    pub(crate) extensions: Vec<NamedExtension>,
}

/// The client's credentials towards the server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct User {
    /// File with a certificate in PEM.
    pub client_certificate: String,
    /// The certificate in PEM.
    pub client_certificate_data: Data,
    /// File with the certificate's key in PEM.
    pub client_key: String,
    /// The key in PEM.
    pub client_key_data: Data,
    pub(crate) token: Hidden,
    #[serde(rename = "tokenFile")]
    pub(crate) token_file: String,
    #[serde(rename = "as")]
    pub(crate) as_user: String,
    pub(crate) as_uid: String,
    pub(crate) as_groups: Vec<String>,
    pub(crate) as_user_extra: BTreeMap<String, Vec<String>>,
    pub(crate) username: String,
    pub(crate) password: Hidden,
    pub(crate) auth_provider: Option<AuthProvider>,
    pub(crate) exec: Option<Exec>,
    pub(crate) extensions: Vec<NamedExtension>,
}

/// A text that no message shows.
#[derive(Clone, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Hidden(pub(crate) String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

/// Bytes in base64; no message shows them.
#[derive(Clone, Default)]
pub struct Data(pub Vec<u8>);

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// A provider of upstream's former plugins, all of which are gone.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AuthProvider {
    pub(crate) name: String,
    #[serde(rename = "config")]
    _config: BTreeMap<String, String>,
}

/// A credential plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Exec {
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<ExecVariable>,
    pub(crate) api_version: String,
    pub(crate) install_hint: String,
    pub(crate) provide_cluster_info: bool,
    pub(crate) interactive_mode: String,
}

/// An environment variable of a plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ExecVariable {
    pub(crate) name: String,
    pub(crate) value: String,
}

/// Extensions of other programs in the file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NamedExtension {
    pub(crate) name: String,
    pub(crate) extension: Value,
}

/// The file as it is written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct ConfigWire {
    current_context: String,
    contexts: Vec<NamedContext>,
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
    preferences: Preferences,
    pub(crate) extensions: Vec<NamedExtension>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Preferences {
    #[serde(rename = "colors")]
    _colors: bool,
    pub(crate) extensions: Vec<NamedExtension>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: KubeconfigContext,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: KubeconfigCluster,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedUser {
    name: String,
    user: User,
}

/// Reason why a file is no kubeconfig. It quotes no values, which may be secrets.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeconfigError {
    /// The text is neither YAML nor JSON.
    #[error("{}{message}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
    Syntax {
        /// From 1.
        line: Option<u64>,
        /// The fault at that place.
        message: String,
    },
    /// A field has a value of another type.
    #[error("{path}: the value is not of the field's type")]
    Type {
        /// The field.
        path: String,
    },
    /// The object is of another kind.
    #[error("it is a {kind:?} of version {version:?}, not a Config of v1")]
    Kind {
        /// The kind that it names.
        kind: String,
        /// The version that it names.
        version: String,
    },
    /// Two entries of a list have one name.
    #[error("{field}: two entries are called {name:?}")]
    Duplicate {
        /// The list.
        field: &'static str,
        /// Both names.
        name: String,
    },
}

/// Reads a kubeconfig that is in this folder, an absolute one.
pub(crate) fn decode(bytes: &[u8], folder: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let document = yaml::read_yaml(bytes, &LIMITS)
        .map_err(|error| KubeconfigError::Syntax { line: error.line, message: error.message })?;
    let typed = |error: yaml::DecodeError| KubeconfigError::Type { path: error.path };
    let TypeMeta { kind, api_version: version } = TypeMeta::of(&document.value).map_err(typed)?;
    let is_config = kind.is_empty() || kind == KIND;
    if !is_config || !(version.is_empty() || version == VERSION) {
        return Err(KubeconfigError::Kind { kind, version });
    }
    let wire: ConfigWire = yaml::from_json(&document.value).map_err(typed)?;
    check_extensions(&wire)?;
    let contexts = wire.contexts.into_iter().map(|named| (named.name, named.context));
    let clusters = wire.clusters.into_iter().map(|named| (named.name, named.cluster));
    let users = wire.users.into_iter().map(|named| (named.name, named.user));
    let mut config = Kubeconfig {
        current_context: wire.current_context,
        contexts: by_name("contexts", contexts)?,
        clusters: by_name("clusters", clusters)?,
        users: by_name("users", users)?,
    };
    config.resolve_paths(folder);
    Ok(config)
}

/// Entries by name; a duplicate name is an error.
fn by_name<T>(
    field: &'static str,
    entries: impl Iterator<Item = (String, T)>,
) -> Result<BTreeMap<String, T>, KubeconfigError> {
    let mut found = BTreeMap::new();
    for (name, entry) in entries {
        if found.insert(name.clone(), entry).is_some() {
            return Err(KubeconfigError::Duplicate { field, name });
        }
    }
    Ok(found)
}

/// Extensions have names of their own in each of their lists; empty ones are ignored.
// k8s: conversion.go Convert_Slice_v1_NamedExtension_To_Map_string_To_runtime_Object
fn check_extensions(wire: &ConfigWire) -> Result<(), KubeconfigError> {
    let lists = [&wire.extensions, &wire.preferences.extensions].into_iter();
    let lists = lists
        .chain(wire.contexts.iter().map(|named| &named.context.extensions))
        .chain(wire.clusters.iter().map(|named| &named.cluster.extensions))
        .chain(wire.users.iter().map(|named| &named.user.extensions));
    for list in lists {
        let mut known = BTreeSet::new();
        for NamedExtension { name, extension } in list {
            if known.contains(name) {
                return Err(KubeconfigError::Duplicate { field: "extensions", name: name.clone() });
            }
            if !extension.is_null() {
                known.insert(name);
            }
        }
    }
    Ok(())
}

impl Kubeconfig {
    /// Relative paths are relative to the kubeconfig; a plugin without a slash is looked for in
    /// `PATH`.
    // k8s: loader.go ResolveLocalPaths, GetAuthInfoFileReferences
    fn resolve_paths(&mut self, folder: &Path) {
        let resolve = |path: &mut String| {
            if !path.is_empty() && Path::new(path.as_str()).is_relative() {
                *path = cleaned(&folder.join(&*path)).display().to_string();
            }
        };
        for cluster in self.clusters.values_mut() {
            resolve(&mut cluster.certificate_authority);
        }
        for user in self.users.values_mut() {
            resolve(&mut user.client_certificate);
            resolve(&mut user.client_key);
            resolve(&mut user.token_file);
            if let Some(exec) = user.exec.as_mut().filter(|exec| exec.command.contains('/')) {
                resolve(&mut exec.command);
            }
        }
    }
}

/// A path without `.` and `..`, by its text alone, as Go joins paths.
fn cleaned(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut cleaned, component| {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                cleaned.pop();
            }
            other => cleaned.push(other),
        }
        cleaned
    })
}

/// Decodes base64 as Go does: line breaks are ignored, padding is required.
fn base64(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    BASE64.decode(text.replace(['\r', '\n'], ""))
}

impl Data {
    /// Decodes base64.
    ///
    /// # Errors
    /// When it is none.
    pub fn from_base64(text: &str) -> Result<Self, base64::DecodeError> {
        base64(text).map(Self)
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl<'de> Visitor<'de> for Bytes {
            type Value = Data;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes in base64")
            }

            fn visit_unit<E>(self) -> Result<Data, E> {
                Ok(Data::default())
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Data, E> {
                base64(text).map(Data).map_err(|_| E::custom("it is no base64"))
            }

            /// Go fills a slice of bytes from a list of numbers as well.
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Data, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = items.next_element()? {
                    bytes.push(byte);
                }
                Ok(Data(bytes))
            }
        }

        from.deserialize_any(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Kubeconfig, KubeconfigError> {
        decode(text.as_bytes(), Path::new("/etc/kubernetes"))
    }

    #[test]
    fn file_is_read_as_go_reads_it() {
        let config = read(
            "kind: Config\ncurrent-context: yes\ncurrent-context: c\nunknown: 1\nusers:\n- name: u\n  \
             user: {tokenFile: ../token, client-key-data: aGk=, username: null,\n    \
             exec: {command: bin/plugin}}\n- user: {exec: {command: plugin}}\nclusters: null\n---\na: 1\n",
        )
        .expect("a kubeconfig");
        assert_eq!(config.current_context, "c");
        let user = &config.users["u"];
        assert_eq!(user.token_file, "/etc/token");
        assert_eq!(user.client_key_data.0, b"hi");
        let command =
            |name: &str| config.users[name].exec.as_ref().expect("a plugin").command.clone();
        assert_eq!(command("u"), "/etc/kubernetes/bin/plugin");
        assert_eq!(command(""), "plugin", "looked for in PATH");
        assert!(read("").expect("nothing in it").contexts.is_empty());
    }

    #[test]
    fn malformed_file_is_rejected_without_printing_its_values() {
        for (text, want) in [
            ("current-context: [secret]", "current-context: the value is not of"),
            ("users: [{user: {client-key-data: secret}}]", "users[0].user.client-key-data: the"),
            ("users: [{name: a}, {name: a}]", "users: two entries are called \"a\""),
            ("extensions: [{name: a, extension: 1}, {name: a}]", "extensions: two entries"),
            ("kind: Pod", "it is a \"Pod\" of version \"\""),
            ("apiVersion: v2", "of version \"v2\""),
            ("a: [", "line "),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(want) && !error.contains("secret"), "{text}: {error}");
        }
        read("extensions: [{name: a}, {name: a, extension: 1}]").expect("the first says nothing");
        read("apiVersion: /v1").expect("the empty group");
        read("users: [{user: {client-key-data: [104, 105]}}]").expect("bytes as numbers");
    }
}
