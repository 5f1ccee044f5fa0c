//! Contents of the files of a configMap, secret, downwardAPI or projected volume. Pure.
//!
//! Input: the volume's sources and the objects they name, which `content` fetches. Output: a map
//! from relative path to bytes, mode and owner, for `atomic` to write. Bounds: paths as upstream
//! bounds them; sizes are the API's. Bytes are shared: a value of many files is stored once.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::KeyToPath;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::env::downward::DownwardError;

/// Longest relative path in bytes.
// k8s: pkg/volume/util/atomic_writer.go
const PATH_BYTES_MAX: usize = 4096;
/// Longest component in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Mode of a token or certificate, before fsGroup opens it to the group.
const PRIVATE_MODE: u32 = 0o600;

/// One file to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadFile {
    /// Content.
    pub data: Arc<[u8]>,
    /// Permission bits.
    pub mode: u32,
    /// Owner, when it is not root.
    pub owner: Option<u32>,
}

/// Files by relative path.
pub type Payload = BTreeMap<String, PayloadFile>;

/// Key and value pairs of a config map or secret.
pub type KeyValues = BTreeMap<String, Arc<[u8]>>;

/// A source of a payload volume, with nothing left to look up in the pod.
#[derive(Clone, Debug, PartialEq)]
pub enum PayloadSource {
    /// Keys of a config map.
    ConfigMap(Keys),
    /// Keys of a secret.
    Secret(Keys),
    /// One file with content from the pod itself.
    Field {
        /// Relative path.
        path: String,
        /// Own mode.
        mode: Option<u32>,
        /// Content.
        data: Result<Arc<[u8]>, DownwardError>,
    },
    /// A token of the pod's service account.
    Token(TokenRequest),
    /// Certificates of trust bundles.
    TrustBundle(TrustRequest),
    /// A certificate of the pod.
    Certificate(CertificateRequest),
}

/// Keys of a named object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Keys {
    /// Name of the object.
    pub name: String,
    /// Which keys go where; all of them under their own names when empty.
    pub items: Vec<KeyToPath>,
    /// True when object and keys may be missing.
    pub optional: bool,
}

/// A token of the pod's service account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenRequest {
    /// Relative path of its file.
    pub path: String,
    /// Audience; the API server's own when empty.
    pub audience: String,
    /// Wanted lifetime in seconds.
    pub expiration_seconds: i64,
}

/// Certificates of trust bundles.
#[derive(Clone, Debug, PartialEq)]
pub struct TrustRequest {
    /// Relative path of their file.
    pub path: String,
    /// One bundle.
    pub name: Option<String>,
    /// All bundles of a signer with matching labels.
    pub signer: Option<String>,
    /// Nothing matches without.
    pub labels: Option<LabelSelector>,
    /// True when there may be none.
    pub optional: bool,
}

/// A certificate of the pod, with its key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CertificateRequest {
    /// The volume.
    pub volume: String,
    /// Which of its sources.
    pub source: usize,
    /// The signer's name.
    pub signer: String,
    /// Kind of the key.
    pub key_type: String,
    /// Longest lifetime in seconds; the signer's default when absent.
    pub expiration_seconds_max: Option<i32>,
    /// Annotations for the signer.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Relative path of the file with key and certificates.
    pub bundle_path: Option<String>,
    /// Relative path of the key's file.
    pub key_path: Option<String>,
    /// Relative path of the certificates' file.
    pub chain_path: Option<String>,
}

/// A private key with its certificates, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// PKCS#8.
    pub key: String,
    /// The pod's own first.
    pub chain: String,
}

/// Everything that is needed to fill one volume.
#[derive(Clone, Debug, PartialEq)]
pub struct PayloadSources {
    /// Namespace of the named objects.
    pub namespace: String,
    /// Mode of files without their own.
    pub default_mode: u32,
    /// In the order of the spec: later ones win.
    pub list: Vec<PayloadSource>,
    /// `fsUser` of tokens: the one user of all containers.
    pub owner: Option<u32>,
    /// True when the pod has an fsGroup.
    pub has_group: bool,
}

/// The reason for which content is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// No such object; harmless for an optional reference.
    #[error("{kind} {name:?} not found")]
    NotFound {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The object could not be read.
    #[error("{0}")]
    Failed(String),
}

/// Key and certificates of the pod as files.
pub fn certificate_files(
    sources: &PayloadSources,
    request: &CertificateRequest,
    found: &Credentials,
) -> Payload {
    let Credentials { key, chain } = found;
    let files = [
        (&request.bundle_path, format!("{key}{chain}")),
        (&request.key_path, key.clone()),
        (&request.chain_path, chain.clone()),
    ];
    let wanted = files.into_iter().filter_map(|(path, text)| {
        let path = path.as_deref().filter(|path| !path.is_empty())?;
        Some(private_file(sources, path, text.into_bytes().into()))
    });
    wanted.flatten().collect()
}

/// A file of the pod's one user, or of its group.
pub fn private_file(sources: &PayloadSources, path: &str, data: Arc<[u8]>) -> Payload {
    let private = sources.owner.is_some() || sources.has_group;
    let mode = if private { PRIVATE_MODE } else { sources.default_mode };
    let file = PayloadFile { data, mode, owner: sources.owner };
    Payload::from([(clean(path), file)])
}

/// The reason for which the files of a volume cannot be laid out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The object could not be read.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// The object lacks a key that is not optional.
    #[error("{problem}: {key}")]
    NoKey {
        /// The problem in the kubelet's words.
        problem: String,
        /// The key.
        key: String,
    },
    /// A path that a volume cannot have.
    #[error("invalid path: {problem}: {path}")]
    Path {
        /// The problem.
        problem: &'static str,
        /// The path.
        path: String,
    },
    /// A path without a name.
    #[error("invalid path: must not be empty: \"\"")]
    EmptyPath,
    /// A path that another path leads through.
    #[error("invalid path: {0} is both a file and a directory")]
    Overlap(String),
}

/// Keys of one object as files.
// k8s: pkg/volume/configmap/configmap.go MakePayload; pkg/volume/secret/secret.go MakePayload
pub fn lay_out(
    missing_key: &str,
    keys: &Keys,
    found: &Result<KeyValues, ContentError>,
    default_mode: u32,
) -> Result<Payload, PayloadError> {
    let nothing = KeyValues::new();
    let values = match found {
        Ok(values) => values,
        Err(ContentError::NotFound { .. }) if keys.optional => &nothing,
        Err(error) => return Err(error.clone().into()),
    };
    let file = |data: &Arc<[u8]>, mode| PayloadFile { data: Arc::clone(data), mode, owner: None };
    if keys.items.is_empty() {
        return Ok(values.iter().map(|(k, v)| (k.clone(), file(v, default_mode))).collect());
    }
    let mut payload = Payload::new();
    for item in &keys.items {
        match values.get(&item.key) {
            Some(value) => {
                let mode = item.mode.map_or(default_mode, mode_bits);
                payload.insert(clean(&item.path), file(value, mode));
            }
            None if keys.optional => {}
            None => {
                let (problem, key) = (missing_key.to_owned(), item.key.clone());
                return Err(PayloadError::NoKey { problem, key });
            }
        }
    }
    Ok(payload)
}

/// Permission bits of a mode of the API.
pub fn mode_bits(mode: i32) -> u32 {
    mode.unsigned_abs() & 0o777
}

/// Removes empty and `.` components.
pub fn clean(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    match path.starts_with('/') {
        true => format!("/{}", parts.join("/")),
        false => parts.join("/"),
    }
}

/// Refuses paths that would leave the volume, collide with the writer's own names, or be a
/// directory of another file.
// k8s: pkg/volume/util/atomic_writer.go validatePath
pub fn checked(payload: Payload) -> Result<Payload, PayloadError> {
    for path in payload.keys() {
        check_path(path)?;
        let mut above = path.as_str();
        while let Some((parent, _)) = above.rsplit_once('/') {
            if payload.contains_key(parent) {
                return Err(PayloadError::Overlap(parent.to_owned()));
            }
            above = parent;
        }
    }
    Ok(payload)
}

fn check_path(path: &str) -> Result<(), PayloadError> {
    let bad = |problem| Err(PayloadError::Path { problem, path: path.to_owned() });
    if path.is_empty() {
        return Err(PayloadError::EmptyPath);
    }
    if path.starts_with('/') {
        return bad("must be relative path");
    }
    if path.len() > PATH_BYTES_MAX {
        return bad("must be less than or equal to 4096 characters");
    }
    if path.contains('\0') {
        return bad("must not contain a zero byte");
    }
    for part in path.split('/') {
        match part {
            ".." => return bad("must not contain '..'"),
            _ if part.len() > NAME_BYTES_MAX => {
                return bad("filenames must be less than or equal to 255 characters");
            }
            _ => {}
        }
    }
    if path.starts_with("..") {
        return bad("must not start with '..'");
    }
    Ok(())
}
