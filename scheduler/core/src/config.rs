//! KubeSchedulerConfiguration: the file that chooses profiles, plugins, weights and arguments.
//!
//! Input: YAML or JSON text of kubescheduler.config.k8s.io/v1. Output: the profile of a scheduler
//! name. Owner: pure functions. Bounds: one document. Decoding is strict, as upstream's: an unknown
//! field or argument is an error, and so is an unknown enabled plugin; null counts as absent. A
//! setting that would change decisions and is not supported is rejected with a message.
// k8s: pkg/scheduler/apis/config/types.go, v1/defaults.go, scheme/scheme.go (strict codec)

mod arguments;
mod mistake;
mod others;
mod points;
mod process;

use pintle_sched_core::config::ranks;
use pintle_sched_core::{Profile, names};
use serde::Deserialize;
use serde_json::Value;

use self::points::{
    PREPARE_FILTERS, PREPARE_SCORES, Point, is_known, multi_point, one_point, other_points,
    preparation,
};
pub use self::process::ProcessSettings;
use crate::extender::{self, Extender, ExtenderError};
use crate::framework::{EnabledPlugins, Registry};

/// The supported apiVersion.
pub const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";

/// Fields that are shown as they were written.
const AS_WRITTEN: [&str; 6] = [
    "profiles",
    "extenders",
    "parallelism",
    "delayCacheUntilActive",
    "enableProfiling",
    "enableContentionProfiling",
];

/// An invalid configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Invalid YAML, or a field of the wrong type.
    #[error("configuration: {0}")]
    Syntax(String),
    /// A field with a value that is not allowed.
    #[error("configuration: {field}: {problem}")]
    Field {
        /// Path of the field.
        field: String,
        /// The problem with its value.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigFile {
    api_version: String,
    kind: String,
    percentage_of_nodes_to_score: Option<i32>,
    #[serde(default)]
    profiles: Vec<FileProfile>,
    #[serde(default)]
    extenders: Vec<Extender>,
    parallelism: Option<i32>,
    pod_initial_backoff_seconds: Option<i64>,
    pod_max_backoff_seconds: Option<i64>,
    #[serde(default)]
    leader_election: process::LeaderElection,
    #[serde(default)]
    client_connection: process::ClientConnection,
    // Profiling of the Go runtime: accepted and ignored.
    #[serde(rename = "enableProfiling")]
    _profiling: Option<bool>,
    #[serde(rename = "enableContentionProfiling")]
    _contention_profiling: Option<bool>,
    #[serde(rename = "delayCacheUntilActive")]
    delay_cache: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileProfile {
    scheduler_name: Option<String>,
    percentage_of_nodes_to_score: Option<i32>,
    #[serde(default)]
    plugins: Points,
    #[serde(default)]
    plugin_config: Vec<PluginConfig>,
    /// In-tree plugins that out-of-tree plugins replace.
    #[serde(skip)]
    replaced: Vec<&'static str>,
    /// Filter and PreFilter plugins in their order, out-of-tree ones included.
    #[serde(skip)]
    filter_order: Vec<String>,
    #[serde(skip)]
    pre_filter_order: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Points {
    multi_point: PluginSet,
    filter: PluginSet,
    score: PluginSet,
    pre_enqueue: PluginSet,
    queue_sort: PluginSet,
    pre_filter: PluginSet,
    post_filter: PluginSet,
    pre_score: PluginSet,
    reserve: PluginSet,
    permit: PluginSet,
    pre_bind: PluginSet,
    bind: PluginSet,
    post_bind: PluginSet,
    placement_generate: PluginSet,
    placement_score: PluginSet,
}

impl Points {
    /// Returns all sets, by point.
    fn sets(&self) -> [(&'static str, &PluginSet); 15] {
        [
            ("multiPoint", &self.multi_point),
            ("preEnqueue", &self.pre_enqueue),
            ("queueSort", &self.queue_sort),
            ("preFilter", &self.pre_filter),
            ("filter", &self.filter),
            ("postFilter", &self.post_filter),
            ("preScore", &self.pre_score),
            ("score", &self.score),
            ("reserve", &self.reserve),
            ("permit", &self.permit),
            ("preBind", &self.pre_bind),
            ("bind", &self.bind),
            ("postBind", &self.post_bind),
            ("placementGenerate", &self.placement_generate),
            ("placementScore", &self.placement_score),
        ]
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct PluginSet {
    #[serde(default)]
    enabled: Vec<PluginRef>,
    #[serde(default)]
    disabled: Vec<PluginRef>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginRef {
    name: String,
    weight: Option<i32>,
}

/// The type of an object.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    api_version: Option<String>,
    kind: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginConfig {
    name: String,
    #[serde(default)]
    args: Value,
}

/// Returns the profile of `scheduler_name`, or the first one, for commands that call no extenders.
///
/// # Errors
/// When the text is no such configuration, upstream would reject it, or it has extenders.
pub fn profile(text: &str, scheduler_name: Option<&str>) -> Result<Profile, ConfigError> {
    let mut all = without_extenders(text)?;
    let Some(wanted) = scheduler_name else { return Ok(all.swap_remove(0)) };
    let at = all.iter().position(|profile| profile.scheduler_name == wanted);
    let at = at.ok_or_else(|| {
        field("profiles[].schedulerName", &format!("no profile is named {wanted:?}"))
    })?;
    Ok(all.swap_remove(at))
}

/// Returns all profiles, for commands that call no extenders.
///
/// # Errors
/// When the text is no such configuration, upstream would reject it, or it has extenders.
pub fn without_extenders(text: &str) -> Result<Vec<Profile>, ConfigError> {
    let all = profiles(text)?;
    if !extenders(text, |_| Ok(()))?.is_empty() {
        let problem = "only the scheduler calls extenders: without their answers the result of \
            this command would be wrong; remove them from the file to get it nevertheless";
        return Err(field("extenders", problem));
    }
    Ok(all)
}

/// Returns all profiles, at least one: the default profile if the file has none.
///
/// # Errors
/// When the text is no such configuration, or upstream would reject it.
pub fn profiles(text: &str) -> Result<Vec<Profile>, ConfigError> {
    profiles_with(text, &Registry::default()).map(|(profiles, _)| profiles)
}

/// Returns all profiles, and each profile's choice of out-of-tree plugins in the registry.
///
/// # Errors
/// When the text is no such configuration, or upstream would reject it.
pub fn profiles_with(
    text: &str,
    registry: &Registry,
) -> Result<(Vec<Profile>, Vec<EnabledPlugins>), ConfigError> {
    let mut file = read(text)?;
    if file.profiles.is_empty() {
        file.profiles.push(FileProfile::default());
    }
    file.profiles.iter().enumerate().try_for_each(|(at, from)| no_arguments_twice(from, at))?;
    let chosen = file.profiles.iter_mut().map(|from| others::take(from, registry)).collect();
    if file.kind != "KubeSchedulerConfiguration" {
        return Err(field("kind", "expected KubeSchedulerConfiguration"));
    }
    if file.api_version != API_VERSION {
        return Err(field("apiVersion", &format!("expected {API_VERSION}")));
    }
    validate(&file)?;
    let all = file.profiles.iter().enumerate().map(|(at, from)| of_profile(&file, from, at));
    let all = all.collect::<Result<Vec<Profile>, ConfigError>>()?;
    let mut names: Vec<&str> = all.iter().map(|profile| profile.scheduler_name.as_str()).collect();
    names.sort_unstable();
    if names.windows(2).any(|w| w[0] == w[1]) {
        return Err(field("profiles[].schedulerName", "two profiles have the same name"));
    }
    // k8s: apis/config/validation/validation.go ValidateKubeSchedulerConfiguration
    let unnamed = |profile: &FileProfile| profile.scheduler_name.is_none();
    if file.profiles.len() > 1
        && let Some(at) = file.profiles.iter().position(unnamed)
    {
        let path = format!("profiles[{at}].schedulerName");
        return Err(field(&path, "must be given when there are several profiles"));
    }
    Ok((all, chosen))
}

/// Returns the extenders in the order of their calls: ignorable ones last. `access` checks address
/// and credentials of each.
///
/// # Errors
/// When the text is no such configuration, or upstream would reject it.
// k8s: pkg/scheduler/scheduler.go buildExtenders
pub fn extenders(
    text: &str,
    access: impl Fn(&Extender) -> Result<(), ExtenderError>,
) -> Result<Vec<Extender>, ConfigError> {
    let mut file = read(text)?;
    validate(&file)?;
    for (at, extender) in file.extenders.iter().enumerate() {
        let path = format!("extenders[{at}].urlPrefix");
        access(extender).map_err(|problem| field(&path, &problem.to_string()))?;
    }
    file.extenders.sort_by_key(|extender| extender.ignorable);
    Ok(file.extenders)
}

/// Returns percentageOfNodesToScore; 0 leaves it to the scheduler.
///
/// # Errors
/// When the text is no such configuration.
pub fn percentage(text: &str) -> Result<i32, ConfigError> {
    Ok(read(text)?.percentage_of_nodes_to_score.unwrap_or(0))
}

/// Returns the process settings: credentials, rate limits, the lease, backoff.
///
/// # Errors
/// When the text is no such configuration, or upstream would reject it.
pub fn process(text: &str) -> Result<ProcessSettings, ConfigError> {
    let file = read(text)?;
    validate(&file)?;
    ProcessSettings::of(&file)
}

/// Returns a message for each setting that has no effect here.
///
/// # Errors
/// When the text is no such configuration.
pub fn without_effect(text: &str, registry: &Registry) -> Result<Vec<String>, ConfigError> {
    let file = read(text)?;
    let content = file.client_connection.content_type.as_deref().unwrap_or_default();
    let found = [
        (
            file.parallelism.is_some_and(|threads| threads != 16),
            "parallelism has no effect: one thread looks at all nodes",
        ),
        (
            file.delay_cache == Some(true),
            "delayCacheUntilActive has no effect: a standby knows the cluster before it leads",
        ),
        (
            !matches!(content, "" | "application/json" | "application/vnd.kubernetes.protobuf"),
            "clientConnection.contentType has no effect: requests and answers are JSON",
        ),
    ];
    let found = found.into_iter().filter(|(is, _)| *is).map(|(_, text)| text.to_owned());
    let profiles = file.profiles.iter().enumerate();
    let of_plugins = profiles.flat_map(|(at, profile)| find_unknown_plugins(profile, at, registry));
    Ok(found.chain(of_plugins).collect())
}

/// Messages about disabled plugins that do not exist and arguments that no plugin reads. Most are
/// left from an older release, but one may be a typing error.
fn find_unknown_plugins(profile: &FileProfile, at: usize, registry: &Registry) -> Vec<String> {
    let is_there = |name: &str| is_known(name) || registry.has(name);
    let sets = profile.plugins.sets().into_iter();
    let disabled = sets.flat_map(|(point, set)| set.disabled.iter().map(move |p| (point, p)));
    let disabled = disabled.filter(|(_, plugin)| !is_there(&plugin.name));
    let disabled = disabled.map(|(point, plugin)| {
        let name = &plugin.name;
        format!(
            "profiles[{at}].plugins.{point}.disabled: {name:?} has no effect: no such plugin exists"
        )
    });
    let takes = |name: &str| arguments::WITH_ARGUMENTS.contains(&name) || registry.has(name);
    let unread = profile.plugin_config.iter().filter(|config| !takes(&config.name));
    let unread = unread.map(|config| {
        let name = &config.name;
        format!("profiles[{at}].pluginConfig: {name:?} has no effect: no plugin reads it")
    });
    disabled.chain(unread).collect()
}

/// Returns the fields of the file that are shown as written: profiles, extenders, and fields
/// without effect.
///
/// # Errors
/// When the text is no such configuration.
pub fn written(text: &str) -> Result<serde_json::Map<String, Value>, ConfigError> {
    read(text)?;
    let value: Value = serde_saphyr::from_str(text).map_err(|e| mistake::of_text(&e))?;
    let fields = match value {
        Value::Object(fields) => fields,
        _ => serde_json::Map::new(),
    };
    let is_empty =
        |value: &Value| value.is_null() || value.as_array().is_some_and(|items| items.is_empty());
    let taken = fields.into_iter();
    Ok(taken
        .filter(|(name, value)| AS_WRITTEN.contains(&name.as_str()) && !is_empty(value))
        .collect())
}

fn read(text: &str) -> Result<ConfigFile, ConfigError> {
    let mut value: Value = serde_saphyr::from_str(text).map_err(|e| mistake::of_text(&e))?;
    without_nulls(&mut value);
    ConfigFile::deserialize(&value).map_err(|e| mistake::of_tree(&value, &e))
}

/// Removes nulls, which are the zero value, as in Go: an absent field or an empty list item. Nulls
/// in arguments stay; the plugin decides about them.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.iter_mut().filter(|(name, _)| *name != "args").for_each(|(_, value)| {
                without_nulls(value);
            });
        }
        Value::Array(items) => items.iter_mut().for_each(|item| {
            if item.is_null() {
                *item = Value::Object(serde_json::Map::new());
            }
            without_nulls(item);
        }),
        _ => {}
    }
}

fn field(field: &str, problem: &str) -> ConfigError {
    ConfigError::Field { field: field.to_owned(), problem: problem.to_owned() }
}

/// Validates the fields outside profiles, and rejects what is not supported.
// k8s: pkg/scheduler/apis/config/validation/validation.go ValidateKubeSchedulerConfiguration
fn validate(file: &ConfigFile) -> Result<(), ConfigError> {
    let percent = |path: &str, value: Option<i32>| match value {
        Some(value) if !(0..=100).contains(&value) => {
            Err(field(path, &format!("is {value}, not in the range 0 to 100")))
        }
        _ => Ok(()),
    };
    percent("percentageOfNodesToScore", file.percentage_of_nodes_to_score)?;
    for (at, profile) in file.profiles.iter().enumerate() {
        let path = format!("profiles[{at}].percentageOfNodesToScore");
        percent(&path, profile.percentage_of_nodes_to_score)?;
    }
    if let Some(parallelism) = file.parallelism.filter(|p| *p <= 0) {
        return Err(field("parallelism", &format!("is {parallelism}, but must be above zero")));
    }
    let initial = file.pod_initial_backoff_seconds.unwrap_or(1);
    let most = file.pod_max_backoff_seconds.unwrap_or(10);
    if initial <= 0 {
        let problem = format!("is {initial}, but must be above zero");
        return Err(field("podInitialBackoffSeconds", &problem));
    }
    if most < initial {
        let problem =
            format!("is {most}, but must not be below podInitialBackoffSeconds ({initial})");
        return Err(field("podMaxBackoffSeconds", &problem));
    }
    for (at, extender) in file.extenders.iter().enumerate() {
        for (number, resource) in extender.managed_resources.iter().enumerate() {
            if let Some(problem) = names::mistake(&resource.name) {
                let path = format!("extenders[{at}].managedResources[{number}].name");
                return Err(field(&path, &format!("{:?} is no name: {problem}", resource.name)));
            }
        }
    }
    match extender::mistake(&file.extenders) {
        Some((path, problem)) => Err(field(&path, &problem)),
        None => Ok(()),
    }
}

// k8s: pkg/scheduler/apis/config/validation/validation.go validatePluginConfig
fn no_arguments_twice(profile: &FileProfile, at: usize) -> Result<(), ConfigError> {
    let mut seen: Vec<&str> = Vec::new();
    for config in &profile.plugin_config {
        if seen.contains(&config.name.as_str()) {
            let path = format!("profiles[{at}].pluginConfig[{}]", config.name);
            return Err(field(&path, "is given twice"));
        }
        seen.push(&config.name);
    }
    Ok(())
}

/// A validated percentage; zero if absent.
fn share(percent: Option<i32>) -> u32 {
    percent.and_then(|percent| u32::try_from(percent).ok()).unwrap_or(0)
}

fn of_profile(file: &ConfigFile, from: &FileProfile, at: usize) -> Result<Profile, ConfigError> {
    let mut profile = Profile::default();
    // k8s: pkg/scheduler/schedule_one.go numFeasibleNodesToFind
    let percent = from.percentage_of_nodes_to_score.or(file.percentage_of_nodes_to_score);
    profile.percentage_of_nodes = share(percent);
    if let Some(name) = &from.scheduler_name {
        if name.is_empty() {
            return Err(field(&format!("profiles[{at}].schedulerName"), "must not be empty"));
        }
        profile.scheduler_name.clone_from(name);
    }
    profile.filter_ranks = ranks(from.filter_order.iter().map(String::as_str));
    profile.pre_filter_ranks = ranks(from.pre_filter_order.iter().map(String::as_str));
    let path = format!("profiles[{at}].plugins");
    multi_point(&mut profile, from, &format!("{path}.multiPoint"))?;
    let filter = Point::Filter;
    one_point(&mut profile, &from.plugins.filter, filter, &format!("{path}.filter"))?;
    one_point(&mut profile, &from.plugins.score, Point::Score, &format!("{path}.score"))?;
    let (filters, weights) = (profile.filters, profile.weights);
    let path_of = |point: &str| format!("{path}.{point}");
    let (pre_filter, pre_score) = (&from.plugins.pre_filter, &from.plugins.pre_score);
    preparation(pre_filter, &PREPARE_FILTERS, |at| filters[at], &path_of("preFilter"))?;
    preparation(pre_score, &PREPARE_SCORES, |at| weights[at] != 0, &path_of("preScore"))?;
    other_points(&mut profile, &from.plugins, &path)?;
    for config in &from.plugin_config {
        let path = format!("profiles[{at}].pluginConfig[{}]", config.name);
        arguments::arguments(&mut profile, config, &format!("{path}.args"))?;
    }
    // k8s: pkg/scheduler/scheduler.go buildExtenders
    let managed = file.extenders.iter().flat_map(|extender| &extender.managed_resources);
    let ignored = managed.filter(|resource| resource.ignored_by_scheduler);
    let ignored: Vec<String> = ignored.map(|resource| resource.name.clone()).collect();
    if !ignored.is_empty() {
        if !points::takes_arguments("NodeResourcesFit", from) {
            let problem = "extenders have resources ignored, for which NodeResourcesFit must be \
                enabled or have arguments";
            return Err(field(&path_of("multiPoint"), problem));
        }
        // Extenders' ignored resources replace those of the plugin's argument.
        profile.ignored_resources = ignored;
    }
    profile.validate().map_err(|e| field(&format!("profiles[{at}].{}", e.field), &e.problem))?;
    Ok(profile)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
