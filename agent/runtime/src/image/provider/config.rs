//! CredentialProviderConfig: a file, or a folder of them, and the folder of the programs.
//!
//! Effects: reads files and checks programs, once at the start. Output: the plugins in order, or a
//! sentence. Files are read strictly. Bounds: `FILE_BYTES_MAX`, `FILES_MAX`.
// k8s: pkg/credentialprovider/plugin/config.go readCredentialProviderConfig

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use pintle_agent_core::image::pull_credential::sha256_hex;
use pintle_api_types::duration::GoDuration;
use pintle_api_types::yaml::{self, ReadLimits, Repeated, TypeMeta};
use serde::{Deserialize, Serialize};

use super::validate;

/// Longest file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most files of a folder.
const FILES_MAX: usize = 1000;
/// A plugin needs some twenty values.
const LIMITS: ReadLimits = ReadLimits { depth_max: 64, nodes_max: 100_000, replayed_max: 20_000 };
const GROUP: &str = "kubelet.config.k8s.io";
const KIND: &str = "CredentialProviderConfig";
/// The only version with `tokenAttributes`.
const V1: &str = "kubelet.config.k8s.io/v1";

/// Why the plugins cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file or folder that cannot be read, or an entry in it.
    #[error("--image-credential-provider-config: {0}")]
    Config(String),
    /// The folder of the programs, or one of them.
    #[error("--image-credential-provider-bin-dir: {0}")]
    BinDir(String),
}

/// The plugins of this node.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// In the order in which they are called.
    pub(super) providers: Vec<ProviderSettings>,
    /// Of the files, for the metric that shows it; `None` when there are none.
    pub(super) hash: Option<String>,
}

/// A plugin.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProviderSettings {
    pub(super) name: String,
    /// Its program.
    pub(super) program: PathBuf,
    pub(super) match_images: Vec<String>,
    pub(super) default_cache_duration: GoDuration,
    /// Of request and answer.
    pub(super) api_version: String,
    pub(super) args: Vec<String>,
    /// Added to the agent's own.
    pub(super) env: Vec<(String, String)>,
    pub(super) token: Option<TokenSettings>,
}

/// The token of a pod's service account that a plugin wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TokenSettings {
    pub(super) audience: String,
    /// Not called for pods without an account.
    pub(super) require_service_account: bool,
    /// An answer is good for one token only, not for all of an account.
    pub(super) per_token: bool,
    pub(super) required_keys: Vec<String>,
    pub(super) optional_keys: Vec<String>,
}

/// A file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ConfigWire {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    providers: Option<Vec<ProviderWire>>,
}

/// A plugin as it is written.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProviderWire {
    pub(super) name: String,
    pub(super) match_images: Option<Vec<String>>,
    pub(super) default_cache_duration: Option<GoDuration>,
    pub(super) api_version: String,
    pub(super) args: Option<Vec<String>>,
    pub(super) env: Option<Vec<EnvWire>>,
    pub(super) token_attributes: Option<TokenWire>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EnvWire {
    name: String,
    value: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct TokenWire {
    pub(super) service_account_token_audience: String,
    pub(super) cache_type: String,
    pub(super) require_service_account: Option<bool>,
    pub(super) required_service_account_annotation_keys: Option<Vec<String>>,
    pub(super) optional_service_account_annotation_keys: Option<Vec<String>>,
}

/// Reads and checks everything; `accounts` is the gate of service accounts' tokens.
// k8s: pkg/credentialprovider/plugin/plugin.go RegisterCredentialProviderPlugins
pub fn read(config: &Path, bin_dir: &Path, accounts: bool) -> Result<Settings, SettingsError> {
    if let Err(error) = fs::metadata(bin_dir) {
        let shown = bin_dir.display();
        return Err(SettingsError::BinDir(match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("plugin binary directory {shown} did not exist")
            }
            _ => format!("error inspecting binary directory {shown}: {error}"),
        }));
    }
    let (providers, hash) =
        files(config).map_err(|error| SettingsError::Config(error.to_string()))?;
    let wrong = validate::check(&providers, accounts);
    if !wrong.is_empty() {
        let texts: Vec<_> = wrong.iter().map(ToString::to_string).collect();
        let text = match texts.as_slice() {
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        };
        let shown = config.display();
        let text = format!("failed to validate credential provider config: {text} (in {shown})");
        return Err(SettingsError::Config(text));
    }
    let providers: Result<Vec<_>, _> =
        providers.into_iter().map(|provider| settings(provider, bin_dir)).collect();
    Ok(Settings { providers: providers?, hash: Some(hash) })
}

/// Reason why the configuration files of the plugins cannot be used.
#[derive(Debug, thiserror::Error)]
enum ProviderFileError {
    #[error("unable to access path {0:?}: {1}")]
    Access(String, std::io::Error),
    #[error("unable to read file {0:?}: {1}")]
    Read(String, std::io::Error),
    #[error("error decoding config {0:?}: {1}")]
    Decode(String, ProviderDecodeError),
    #[error("duplicate provider name {0:?} found in configuration file(s)")]
    Repeated(String),
    #[error("unable to read directory {0:?}: {1}")]
    Folder(String, std::io::Error),
    #[error("no configuration files found in directory {0:?}")]
    NoFiles(String),
    #[error("directory {0:?} has more than {FILES_MAX} files")]
    ManyFiles(String),
}

/// Reason why the text of a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProviderDecodeError {
    /// The text is not of the type, or not valid.
    #[error("{0}")]
    Text(String),
    /// Another kind, or a version that is not served.
    #[error(
        "no kind {kind:?} is registered for version {api_version:?}; write kind: {KIND} and \
         apiVersion: {V1}"
    )]
    Kind {
        /// The kind that it names.
        kind: String,
        /// The version that it names.
        api_version: String,
    },
    /// A key that is set twice.
    #[error("strict decoding error: line {line}: key {key:?} already set in map")]
    RepeatedKey {
        /// The line of the second value.
        line: u64,
        /// The key.
        key: String,
    },
    /// A field that only the newest version has.
    #[error("strict decoding error: unknown field {0:?}; it needs {V1}")]
    Field(String),
    /// Two plugins of one name.
    #[error("duplicate provider name")]
    RepeatedName,
}

/// The plugins of all files, and the hash over the files.
fn files(path: &Path) -> Result<(Vec<ProviderWire>, String), ProviderFileError> {
    let meta = fs::metadata(path)
        .map_err(|error| ProviderFileError::Access(path.display().to_string(), error))?;
    let paths = if meta.is_dir() { folder(path)? } else { vec![path.to_owned()] };
    let (mut all, mut names, mut hashed) = (Vec::new(), BTreeSet::new(), Vec::new());
    for path in paths {
        let shown = path.display().to_string();
        let bytes =
            read_file(&path).map_err(|error| ProviderFileError::Read(shown.clone(), error))?;
        hashed.extend((bytes.len() as u64).to_be_bytes());
        hashed.extend(&bytes);
        let providers =
            decode(&bytes).map_err(|error| ProviderFileError::Decode(shown.clone(), error))?;
        for provider in providers {
            if !names.insert(provider.name.clone()) {
                return Err(ProviderFileError::Repeated(provider.name));
            }
            all.push(provider);
        }
    }
    Ok((all, format!("sha256:{}", sha256_hex(&hashed))))
}

/// The configuration files of a folder in their order; folders in it are not entered.
fn folder(path: &Path) -> Result<Vec<PathBuf>, ProviderFileError> {
    let shown = path.display().to_string();
    let unreadable = |error: std::io::Error| ProviderFileError::Folder(shown.clone(), error);
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let path = entry.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        let is_dir = entry.file_type().map_err(unreadable)?.is_dir();
        if !is_dir && matches!(ending, Some("json" | "yaml" | "yml")) {
            found.push(path);
        }
    }
    match found.len() {
        0 => return Err(ProviderFileError::NoFiles(shown)),
        1..=FILES_MAX => found.sort(),
        _ => return Err(ProviderFileError::ManyFiles(shown)),
    }
    Ok(found)
}

fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > FILE_BYTES_MAX {
        let text = format!("it has more than {FILE_BYTES_MAX} bytes");
        return Err(std::io::Error::other(text));
    }
    fs::read(path)
}

/// The plugins of one file, decoded strictly: unknown and repeated fields are refused.
fn decode(bytes: &[u8]) -> Result<Vec<ProviderWire>, ProviderDecodeError> {
    let document = yaml::read(bytes, &LIMITS).map_err(|error| match error.line {
        Some(line) => ProviderDecodeError::Text(format!("line {line}: {error}")),
        None => ProviderDecodeError::Text(error.to_string()),
    })?;
    let TypeMeta { kind, api_version } = TypeMeta::of(&document.value)
        .map_err(|error| ProviderDecodeError::Text(error.to_string()))?;
    let (group, version) = api_version.split_once('/').unwrap_or_default();
    if group != GROUP || !matches!(version, "v1" | "v1beta1" | "v1alpha1") || kind != KIND {
        return Err(ProviderDecodeError::Kind { kind, api_version });
    }
    if let Some(Repeated { line, key }) = document.repeated.first() {
        return Err(ProviderDecodeError::RepeatedKey { line: *line, key: key.clone() });
    }
    let config: ConfigWire = yaml::from_json(&document.value)
        .map_err(|error| ProviderDecodeError::Text(error.to_string()))?;
    let providers = config.providers.unwrap_or_default();
    let with_token = providers.iter().position(|provider| provider.token_attributes.is_some());
    match with_token.filter(|_| api_version != V1) {
        Some(at) => {
            let field = format!("providers[{at}].tokenAttributes");
            Err(ProviderDecodeError::Field(field))
        }
        None => Ok(providers),
    }
}

/// The plugins of one file's bytes as they are written, once they are valid.
///
/// # Errors
/// Checks one file alone; an error describes it.
pub fn read_alone(bytes: &[u8]) -> Result<Vec<ProviderWire>, ProviderDecodeError> {
    let providers = decode(bytes)?;
    let names: BTreeSet<_> = providers.iter().map(|provider| &provider.name).collect();
    if names.len() < providers.len() {
        return Err(ProviderDecodeError::RepeatedName);
    }
    match validate::check(&providers, true).first() {
        Some(error) => Err(ProviderDecodeError::Text(error.to_string())),
        None => Ok(providers),
    }
}

/// A checked plugin, once its program is there.
fn settings(provider: ProviderWire, bin_dir: &Path) -> Result<ProviderSettings, SettingsError> {
    let program = bin_dir.join(&provider.name);
    let shown = program.display();
    match fs::metadata(&program) {
        Ok(meta) if meta.is_file() && meta.permissions().mode() & 0o111 != 0 => {}
        Ok(_) => {
            let text = format!("error inspecting binary executable {shown}: permission denied");
            return Err(SettingsError::BinDir(text));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = format!("plugin binary executable {shown} did not exist");
            return Err(SettingsError::BinDir(text));
        }
        Err(error) => {
            let text = format!("error inspecting binary executable {shown}: {error}");
            return Err(SettingsError::BinDir(text));
        }
    }
    let env = provider.env.into_iter().flatten();
    Ok(ProviderSettings {
        name: provider.name,
        program,
        match_images: provider.match_images.unwrap_or_default(),
        default_cache_duration: provider.default_cache_duration.unwrap_or_default(),
        api_version: provider.api_version,
        args: provider.args.unwrap_or_default(),
        env: env.map(|env| (env.name, env.value)).collect(),
        token: provider.token_attributes.map(|token| TokenSettings {
            audience: token.service_account_token_audience,
            require_service_account: token.require_service_account.unwrap_or_default(),
            per_token: token.cache_type == validate::PER_TOKEN,
            required_keys: token.required_service_account_annotation_keys.unwrap_or_default(),
            optional_keys: token.optional_service_account_annotation_keys.unwrap_or_default(),
        }),
    })
}
