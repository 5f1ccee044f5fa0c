//! A container's environment.
//!
//! Input: the container, its pod, and referenced objects through `EnvSources`. Output: variables in
//! the order in which they are declared (`envFrom`, then `env`, then services), or the error that
//! keeps the container waiting with `CreateContainerConfigError`, with the kubelet's text. Upstream
//! sends them in random order; a fixed order makes requests comparable. A later declaration of the
//! same name replaces the value and keeps the place. Pure: look-ups are answered from memory.
//! References and prefixes can expand a small spec without bound, so all bytes are counted: a
//! container gets at most `ENVIRONMENT_BYTES_MAX`, and a longer environment is not built.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapKeySelector, Container, EnvFromSource, EnvVar, EnvVarSource,
    FileKeySelector, Pod, Secret, SecretKeySelector, Service,
};

use super::downward::{self, DownwardError};
use super::expand::{self, TooLong};
use crate::env::{file as env_file, services as service_env};
use crate::types::NodeFacts;
use pintle_api_types::pod;

/// Most bytes of a container's variables, command, arguments and sub-paths, with expanded
/// references. A request to the runtime is limited to as much, and Linux takes 6 MiB at most.
pub const ENVIRONMENT_BYTES_MAX: usize = 16 << 20;
/// Overhead of a variable besides its name and value, counted with it.
const VARIABLE_BYTES: usize = 64;

/// Why an object could not be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// The agent runs without an API server.
    NoApi,
    /// There is no such object.
    NotFound,
    /// Anything else, in words.
    Failed(String),
}

/// The values that a file within a volume has for the variables of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvFile {
    /// Path on the node, for messages.
    pub host_path: String,
    /// The keys that could be searched; none when the file could not be read.
    pub values: env_file::Values,
}

/// The objects that a container's environment may refer to. Implementations answer from memory.
pub trait EnvSources {
    /// A config map.
    fn config_map(&self, namespace: &str, name: &str) -> Result<&ConfigMap, LookupError>;
    /// A secret.
    fn secret(&self, namespace: &str, name: &str) -> Result<&Secret, LookupError>;
    /// All services known; `None` until they were listed once. Without an API server: empty.
    fn services(&self) -> Option<&[Service]>;
    /// The file of a `fileKeyRef`; `None` when the volume is not mounted. See `files_needed`.
    fn env_file(&self, volume: &str, path: &str) -> Option<&EnvFile>;
}

/// Sources of an agent without an API server: no objects, no services.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSources;

impl EnvSources for NoSources {
    fn config_map(&self, _: &str, _: &str) -> Result<&ConfigMap, LookupError> {
        Err(LookupError::NoApi)
    }
    fn secret(&self, _: &str, _: &str) -> Result<&Secret, LookupError> {
        Err(LookupError::NoApi)
    }
    fn services(&self) -> Option<&[Service]> {
        Some(&[])
    }
    fn env_file(&self, _: &str, _: &str) -> Option<&EnvFile> {
        None
    }
}

/// Why a container has no environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// A pod that was never defaulted.
    #[error("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")]
    ServiceLinksUnset,
    /// Services are not known yet.
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesNotSynced,
    /// The object cannot exist without an API server.
    #[error("couldn't get {kind} {namespace}/{name}, no kubeClient defined")]
    NoApi {
        /// `configMap` or `secret`.
        kind: &'static str,
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// The object does not exist.
    #[error("{kind} {name:?} not found")]
    NotFound {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Name.
        name: String,
    },
    /// The look-up failed.
    #[error("{0}")]
    Lookup(String),
    /// The object has no such key.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey {
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// The key.
        key: String,
    },
    /// A field or resource reference without a value.
    #[error(transparent)]
    Downward(#[from] DownwardError),
    /// The volume of a file is missing.
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    NoVolume(String),
    /// The file breaks its grammar or cannot be read.
    #[error("couldn't parse env file")]
    EnvFile,
    /// The file has no such key.
    #[error("environment variable key {key:?} not found in file {path:?}")]
    NoFileKey {
        /// The key.
        key: String,
        /// Path on the node.
        path: String,
    },
    /// Far more than any process could be given.
    #[error(
        "environment variables, command and arguments have more than {} MiB with what their \
         references stand for",
        ENVIRONMENT_BYTES_MAX >> 20
    )]
    TooLong,
}

impl From<TooLong> for EnvError {
    fn from(TooLong: TooLong) -> Self {
        Self::TooLong
    }
}

/// The inputs of the environment besides the container.
#[derive(Clone, Copy)]
pub struct EnvContext<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its addresses.
    pub pod_ips: &'a [IpAddr],
    /// The node.
    pub node: &'a NodeFacts,
    /// Referenced objects.
    pub sources: &'a dyn EnvSources,
    /// Feature gate `EnvFiles`.
    pub env_files: bool,
}

/// Variables in order, each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    variables: Vec<(String, String)>,
    places: HashMap<String, usize>,
    /// Values that are no text, by their place: a secret may hold any bytes.
    bytes: BTreeMap<usize, Vec<u8>>,
    /// Bytes added so far, overwritten values included.
    taken: usize,
}

impl Environment {
    fn set(&mut self, name: String, value: impl Into<Vec<u8>>) -> Result<(), EnvError> {
        let value = value.into();
        self.taken += name.len() + value.len() + VARIABLE_BYTES;
        if self.taken > ENVIRONMENT_BYTES_MAX {
            return Err(EnvError::TooLong);
        }
        let (text, bytes) = match String::from_utf8(value) {
            Ok(text) => (text, None),
            Err(other) => {
                let text = String::from_utf8_lossy(other.as_bytes()).into_owned();
                (text, Some(other.into_bytes()))
            }
        };
        let place = match self.places.get(&name) {
            Some(place) => {
                self.variables[*place].1 = text;
                *place
            }
            None => {
                self.places.insert(name.clone(), self.variables.len());
                self.variables.push((name, text));
                self.variables.len() - 1
            }
        };
        match bytes {
            Some(bytes) => drop(self.bytes.insert(place, bytes)),
            None => drop(self.bytes.remove(&place)),
        }
        Ok(())
    }

    /// Bytes left for the command, arguments and paths.
    pub fn room(&self) -> usize {
        ENVIRONMENT_BYTES_MAX - self.taken
    }

    /// All variables in order, with exactly the bytes that they were given.
    pub fn values(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.variables.iter().enumerate().map(|(place, (name, text))| {
            let bytes = self.bytes.get(&place).map_or(text.as_bytes(), Vec::as_slice);
            (name.as_str(), bytes)
        })
    }

    /// The value of a variable.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.places.get(name).map(|place| self.variables[*place].1.as_str())
    }

    /// All variables in order.
    pub fn variables(&self) -> &[(String, String)] {
        &self.variables
    }

    /// All variables by name.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.variables.iter().cloned().collect()
    }

    /// Replaces `$(NAME)` in the words of a command or in arguments, and takes them from the room.
    pub fn expand(&self, words: &[String], room: &mut usize) -> Result<Vec<String>, EnvError> {
        let expanded = words.iter().map(|word| {
            let word = expand::expand(word, *room, |name| self.value(name))?;
            *room -= word.len();
            Ok::<_, EnvError>(word)
        });
        expanded.collect()
    }
}

/// Files that the container's variables are read from, volume and path within it, and which of
/// each. The executor reads them before it builds the environment.
pub fn files_needed(container: &Container) -> BTreeMap<(&str, &str), BTreeSet<String>> {
    let variables = container.env.iter().flatten();
    let references = variables
        .filter(|variable| variable.value.as_deref().unwrap_or_default().is_empty())
        .filter_map(|variable| variable.value_from.as_ref()?.file_key_ref.as_ref());
    let mut files = BTreeMap::<_, BTreeSet<String>>::new();
    for file in references {
        let keys = files.entry((file.volume_name.as_str(), file.path.as_str())).or_default();
        keys.insert(file.key.clone());
    }
    files
}

/// The environment of a container.
// k8s: pkg/kubelet/kubelet_pods.go makeEnvironmentVariables
pub fn environment(container: &Container, ctx: &EnvContext<'_>) -> Result<Environment, EnvError> {
    let namespace = pod::namespace(ctx.pod);
    let links = pod::spec(ctx.pod).enable_service_links.ok_or(EnvError::ServiceLinksUnset)?;
    let services = match ctx.sources.services() {
        Some(services) => services,
        // A static pod may bring the API server up, so it does not wait.
        None if pod::is_static(ctx.pod) => &[],
        None => return Err(EnvError::ServicesNotSynced),
    };
    let services = service_env::variables(services, namespace, links);
    let by_name: BTreeMap<&str, &str> =
        services.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();

    let mut environment = Environment::default();
    for from in container.env_from.iter().flatten() {
        add_all(&mut environment, from, ctx)?;
    }
    for variable in container.env.iter().flatten() {
        let value = match variable.value.as_deref().filter(|value| !value.is_empty()) {
            Some(text) => {
                let expanded = expand::expand(text, environment.room(), |name| {
                    environment.value(name).or_else(|| by_name.get(name).copied())
                });
                Some(expanded?.into_bytes())
            }
            None => value_from(variable, container, ctx)?,
        };
        if let Some(value) = value {
            environment.set(variable.name.clone(), value)?;
        }
    }
    for (name, value) in services {
        if environment.value(&name).is_none() {
            environment.set(name, value)?;
        }
    }
    Ok(environment)
}

fn add_all(
    environment: &mut Environment,
    from: &EnvFromSource,
    ctx: &EnvContext<'_>,
) -> Result<(), EnvError> {
    let prefix = from.prefix.as_deref().unwrap_or_default();
    if let Some(reference) = &from.config_map_ref {
        let optional = reference.optional == Some(true);
        if let Some(map) = config_map(&reference.name, optional, ctx)? {
            for (key, value) in map.data.iter().flatten() {
                environment.set(format!("{prefix}{key}"), value.clone())?;
            }
        }
    } else if let Some(reference) = &from.secret_ref {
        let optional = reference.optional == Some(true);
        if let Some(secret) = secret(&reference.name, optional, ctx)? {
            for (key, value) in secret.data.iter().flatten() {
                environment.set(format!("{prefix}{key}"), value.0.clone())?;
            }
        }
    }
    Ok(())
}

/// `None` leaves the variable out: its reference is optional and absent.
fn value_from(
    variable: &EnvVar,
    container: &Container,
    ctx: &EnvContext<'_>,
) -> Result<Option<Vec<u8>>, EnvError> {
    let Some(source) = &variable.value_from else {
        return Ok(Some(Vec::new()));
    };
    let EnvVarSource {
        config_map_key_ref,
        field_ref,
        file_key_ref,
        resource_field_ref,
        secret_key_ref,
    } = source;
    if let Some(field) = field_ref {
        return Ok(Some(downward::field(field, ctx.pod, ctx.pod_ips, ctx.node)?.into()));
    }
    if let Some(resource) = resource_field_ref {
        let text = downward::resource(resource, ctx.pod, Some(container), ctx.node)?;
        return Ok(Some(text.into()));
    }
    if let Some(key) = config_map_key_ref {
        return Ok(from_config_map(key, ctx)?.map(String::into_bytes));
    }
    if let Some(key) = secret_key_ref {
        return from_secret(key, ctx);
    }
    match file_key_ref {
        Some(key) if ctx.env_files => Ok(from_file(key, ctx)?.map(String::into_bytes)),
        _ => Ok(Some(Vec::new())),
    }
}

fn from_config_map(
    key: &ConfigMapKeySelector,
    ctx: &EnvContext<'_>,
) -> Result<Option<String>, EnvError> {
    let optional = key.optional == Some(true);
    let Some(map) = config_map(&key.name, optional, ctx)? else {
        return Ok(None);
    };
    let value = map.data.as_ref().and_then(|data| data.get(&key.key)).cloned();
    required(value, optional, || no_key("ConfigMap", &key.name, &key.key, ctx))
}

fn from_secret(key: &SecretKeySelector, ctx: &EnvContext<'_>) -> Result<Option<Vec<u8>>, EnvError> {
    let optional = key.optional == Some(true);
    let Some(secret) = secret(&key.name, optional, ctx)? else {
        return Ok(None);
    };
    let value = secret.data.as_ref().and_then(|data| data.get(&key.key));
    let value = value.map(|value| value.0.clone());
    required(value, optional, || no_key("Secret", &key.name, &key.key, ctx))
}

fn from_file(key: &FileKeySelector, ctx: &EnvContext<'_>) -> Result<Option<String>, EnvError> {
    let file = ctx.sources.env_file(&key.volume_name, &key.path);
    let file = file.ok_or_else(|| EnvError::NoVolume(key.volume_name.clone()))?;
    let value = file.values.get(&key.key).ok_or(EnvError::EnvFile)?.clone();
    required(value, key.optional == Some(true), || EnvError::NoFileKey {
        key: key.key.clone(),
        path: file.host_path.clone(),
    })
}

fn required<T>(
    value: Option<T>,
    optional: bool,
    error: impl FnOnce() -> EnvError,
) -> Result<Option<T>, EnvError> {
    if value.is_some() || optional { Ok(value) } else { Err(error()) }
}

fn no_key(kind: &'static str, name: &str, key: &str, ctx: &EnvContext<'_>) -> EnvError {
    let namespace = pod::namespace(ctx.pod).to_owned();
    EnvError::NoKey { kind, namespace, name: name.to_owned(), key: key.to_owned() }
}

fn config_map<'a>(
    name: &str,
    optional: bool,
    ctx: &EnvContext<'a>,
) -> Result<Option<&'a ConfigMap>, EnvError> {
    let namespace = pod::namespace(ctx.pod);
    let found = ctx.sources.config_map(namespace, name);
    let object = NamedObject { kind: "configMap", resource: "configmap", namespace, name };
    looked_up(found, optional, object)
}

fn secret<'a>(
    name: &str,
    optional: bool,
    ctx: &EnvContext<'a>,
) -> Result<Option<&'a Secret>, EnvError> {
    let namespace = pod::namespace(ctx.pod);
    let object = NamedObject { kind: "secret", resource: "secret", namespace, name };
    looked_up(ctx.sources.secret(namespace, name), optional, object)
}

/// An object to which a variable refers, with the kind's names in messages.
struct NamedObject<'a> {
    kind: &'static str,
    resource: &'static str,
    namespace: &'a str,
    name: &'a str,
}

fn looked_up<T>(
    found: Result<T, LookupError>,
    optional: bool,
    object: NamedObject<'_>,
) -> Result<Option<T>, EnvError> {
    let NamedObject { kind, resource, namespace, name } = object;
    let name = name.to_owned();
    match found {
        Ok(object) => Ok(Some(object)),
        Err(LookupError::NotFound) if optional => Ok(None),
        Err(LookupError::NotFound) => Err(EnvError::NotFound { kind: resource, name }),
        Err(LookupError::NoApi) => {
            Err(EnvError::NoApi { kind, namespace: namespace.to_owned(), name })
        }
        Err(LookupError::Failed(text)) => Err(EnvError::Lookup(text)),
    }
}

#[cfg(test)]
mod tests;
