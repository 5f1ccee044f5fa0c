//! Plugin arguments: decoded from the file into the profile.
//!
//! Input: the arguments' object and its path in the file. Output: fields of the profile, or an
//! error that names the field. Pure.
// k8s: pkg/scheduler/apis/config/validation/validation_pluginargs.go

use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeAffinity, TopologySpreadConstraint};
use pintle_api_types::duration::GoDuration;
use pintle_sched_core::config::{SpreadDefaults, Strategy};
use pintle_sched_core::{Plugin, Profile, names};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{API_VERSION, ConfigError, PluginConfig, TypeMeta, field, without_nulls};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct InterPodArgs {
    hard_pod_affinity_weight: Option<i32>,
    #[serde(default)]
    ignore_preferred_terms_of_existing_pods: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FitArgs {
    #[serde(default)]
    ignored_resources: Vec<String>,
    #[serde(default)]
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<ScoringStrategy>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScoringStrategy {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    resources: Vec<WeightedResource>,
    requested_to_capacity_ratio: Option<Ratio>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightedResource {
    name: String,
    #[serde(default)]
    weight: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ratio {
    #[serde(default)]
    shape: Vec<ShapePoint>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShapePoint {
    #[serde(default)]
    utilization: i64,
    #[serde(default)]
    score: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BalancedArgs {
    #[serde(default)]
    resources: Vec<WeightedResource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SpreadArgs {
    defaulting_type: Option<String>,
    #[serde(default)]
    default_constraints: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AffinityArgs {
    added_affinity: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PreemptionArgs {
    min_candidate_nodes_percentage: Option<i32>,
    min_candidate_nodes_absolute: Option<i32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DeviceArgs {
    filter_timeout: Option<GoDuration>,
    binding_timeout: Option<GoDuration>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct VolumeBindingArgs {
    bind_timeout_seconds: Option<i64>,
    shape: Option<Vec<ShapePoint>>,
}

/// Plugins that upstream removed, so that it rejects their arguments.
// k8s: pkg/scheduler/apis/config/validation/validation.go invalidPluginsByVersion
const GONE: [&str; 4] = ["AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"];
/// Plugins that have arguments.
// k8s: staging/src/k8s.io/kube-scheduler/config/v1/register.go addKnownTypes
pub(super) const WITH_ARGUMENTS: [&str; 8] = [
    "DefaultPreemption",
    "DynamicResources",
    "InterPodAffinity",
    "NodeAffinity",
    "NodeResourcesBalancedAllocation",
    "NodeResourcesFit",
    "PodTopologySpread",
    "VolumeBinding",
];

fn args<T: DeserializeOwned>(config: &PluginConfig, path: &str) -> Result<T, ConfigError> {
    let mut value =
        if config.args.is_null() { Value::Object(Default::default()) } else { config.args.clone() };
    let meta: TypeMeta = serde_json::from_value(value.clone()).unwrap_or_default();
    let kind = format!("{}Args", config.name);
    if meta.kind.is_some_and(|k| k != kind) || meta.api_version.is_some_and(|v| v != API_VERSION) {
        return Err(field(path, &format!("is not a {kind} of {API_VERSION}")));
    }
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| name != "kind" && name != "apiVersion");
    }
    without_nulls(&mut value);
    serde_json::from_value(value).map_err(|e| field(path, &e.to_string()))
}

/// Decodes an API object within arguments. Its type does not reject unknown fields, so fields that
/// were not read are searched for afterwards.
fn strict<T: DeserializeOwned + Serialize>(value: &Value, path: &str) -> Result<T, ConfigError> {
    let error = |e: serde_json::Error| field(path, &e.to_string());
    let read: T = serde_json::from_value(value.clone()).map_err(error)?;
    let kept = serde_json::to_value(&read).map_err(error)?;
    match lost(value, &kept, path) {
        Some(unknown) => Err(field(&unknown, "is an unknown field")),
        None => Ok(read),
    }
}

/// Returns the path of a field that `kept` lacks.
fn lost(value: &Value, kept: &Value, path: &str) -> Option<String> {
    match (value, kept) {
        (Value::Object(fields), Value::Object(kept)) => fields.iter().find_map(|(name, value)| {
            let path = format!("{path}.{name}");
            let empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            match kept.get(name) {
                Some(kept) => lost(value, kept, &path),
                None => (!empty).then_some(path),
            }
        }),
        (Value::Array(items), Value::Array(kept)) => {
            let mut pairs = items.iter().zip(kept).enumerate();
            pairs.find_map(|(at, (item, kept))| lost(item, kept, &format!("{path}[{at}]")))
        }
        _ => None,
    }
}

pub(super) fn arguments(
    profile: &mut Profile,
    config: &PluginConfig,
    path: &str,
) -> Result<(), ConfigError> {
    match config.name.as_str() {
        "InterPodAffinity" => {
            let a: InterPodArgs = args(config, path)?;
            profile.hard_pod_affinity_weight = a.hard_pod_affinity_weight.unwrap_or(1);
            profile.ignore_preferred_terms_of_existing_pods =
                a.ignore_preferred_terms_of_existing_pods;
        }
        "NodeResourcesFit" => {
            let a = args(config, path)?;
            let which = Plugin::NodeResourcesFit;
            // A plugin that is disabled validates no arguments.
            // k8s: pkg/scheduler/framework/plugins/noderesources/fit.go NewFit
            if profile.filters(which) || profile.weight(which) != 0 {
                fit(profile, a, path)?;
            }
        }
        "NodeResourcesBalancedAllocation" => balanced(profile, args(config, path)?, path)?,
        "PodTopologySpread" => spread(profile, args(config, path)?, path)?,
        "NodeAffinity" => {
            let a: AffinityArgs = args(config, path)?;
            let path = format!("{path}.addedAffinity");
            let read = |value: Value| strict::<NodeAffinity>(&value, &path);
            profile.added_affinity = a.added_affinity.map(read).transpose()?;
        }
        "DefaultPreemption" => {
            let a: PreemptionArgs = args(config, path)?;
            profile.preemption_candidates.percent = a.min_candidate_nodes_percentage.unwrap_or(10);
            profile.preemption_candidates.min = a.min_candidate_nodes_absolute.unwrap_or(100);
        }
        "VolumeBinding" => volumes(profile, &args(config, path)?, path)?,
        "DynamicResources" => devices(profile, args(config, path)?, path)?,
        name if GONE.contains(&name) => return Err(field(path, "is of a plugin that is gone")),
        // Arguments of plugins that have none, and of unknown plugins, are ignored.
        // k8s: staging/src/k8s.io/kube-scheduler/config/v1/types.go decodeNestedObjects
        _ => {}
    }
    Ok(())
}

fn balanced(profile: &mut Profile, a: BalancedArgs, path: &str) -> Result<(), ConfigError> {
    // k8s: validation_pluginargs.go ValidateNodeResourcesBalancedAllocationArgs
    for (at, r) in a.resources.iter().enumerate() {
        let path = format!("{path}.resources[{at}]");
        if !matches!(r.weight, 0 | 1) {
            return Err(field(&format!("{path}.weight"), "must be 1"));
        }
        if a.resources[..at].iter().any(|other| other.name == r.name) {
            return Err(field(&format!("{path}.name"), "is given twice"));
        }
    }
    if !a.resources.is_empty() {
        profile.balanced_resources = a.resources.into_iter().map(|r| r.name).collect();
    }
    Ok(())
}

fn spread(profile: &mut Profile, a: SpreadArgs, path: &str) -> Result<(), ConfigError> {
    // k8s: pkg/scheduler/apis/config/v1/defaults.go SetDefaults_PodTopologySpreadArgs
    match a.defaulting_type.as_deref().unwrap_or_default() {
        "" | "System" if a.default_constraints.is_empty() => {}
        "" | "System" => {
            let problem = "must be empty when defaultingType is System";
            return Err(field(&format!("{path}.defaultConstraints"), problem));
        }
        "List" => {
            let path = format!("{path}.defaultConstraints");
            let read = |(at, c)| strict(c, &format!("{path}[{at}]"));
            let list: Result<Vec<TopologySpreadConstraint>, _> =
                a.default_constraints.iter().enumerate().map(read).collect();
            profile.spread_defaults = SpreadDefaults::List(list?);
        }
        other => {
            let problem = format!("{other:?} is neither System nor List");
            return Err(field(&format!("{path}.defaultingType"), &problem));
        }
    }
    Ok(())
}

fn volumes(profile: &mut Profile, a: &VolumeBindingArgs, path: &str) -> Result<(), ConfigError> {
    // k8s: validation_pluginargs.go ValidateVolumeBindingArgsWithOptions
    if a.shape.is_some() {
        let problem = "needs the feature gate StorageCapacityScoring, which this version does not \
            have: remove it";
        return Err(field(&format!("{path}.shape"), problem));
    }
    let seconds = a.bind_timeout_seconds.unwrap_or(600);
    profile.timeouts.volume_bind_seconds = u64::try_from(seconds).map_err(|_| {
        let problem = format!("is {seconds}, but must not be below zero");
        field(&format!("{path}.bindTimeoutSeconds"), &problem)
    })?;
    Ok(())
}

// k8s: validation_pluginargs.go ValidateDynamicResourcesArgs
fn devices(profile: &mut Profile, a: DeviceArgs, path: &str) -> Result<(), ConfigError> {
    let read = |name: &str, given: Option<GoDuration>, default: Duration, least: Duration| {
        let Some(time) = given else { return Ok(default) };
        let least = GoDuration::from_std(least);
        let problem = || format!("is {time}, but must be at least {least}");
        let path = format!("{path}.{name}");
        if time < least { Err(field(&path, &problem())) } else { Ok(time.to_std()) }
    };
    let filter = read("filterTimeout", a.filter_timeout, Duration::from_secs(10), Duration::ZERO)?;
    let second = Duration::from_secs(1);
    let binding = read("bindingTimeout", a.binding_timeout, Duration::from_secs(600), second)?;
    (profile.timeouts.device_filter, profile.timeouts.device_binding) = (filter, binding);
    Ok(())
}

// k8s: validation_pluginargs.go ValidateNodeResourcesFitArgs
fn fit(profile: &mut Profile, a: FitArgs, path: &str) -> Result<(), ConfigError> {
    for (list, names) in [
        ("ignoredResources", &a.ignored_resources),
        ("ignoredResourceGroups", &a.ignored_resource_groups),
    ] {
        let is_group = list == "ignoredResourceGroups";
        for (at, name) in names.iter().enumerate() {
            let path = format!("{path}.{list}[{at}]");
            if is_group && name.contains('/') {
                return Err(field(&path, &format!("{name:?} is no group: it has a slash")));
            }
            if let Some(problem) = names::mistake(name) {
                return Err(field(&path, &format!("{name:?} is no name: {problem}")));
            }
        }
    }
    profile.ignored_resources = a.ignored_resources;
    profile.ignored_resource_groups = a.ignored_resource_groups;
    let Some(mut strategy) = a.scoring_strategy else { return Ok(()) };
    if !strategy.resources.is_empty() {
        let weight = |r: WeightedResource| (r.name, if r.weight == 0 { 1 } else { r.weight });
        profile.fit_resources = strategy.resources.into_iter().map(weight).collect();
    }
    profile.strategy = match strategy.kind.as_deref().unwrap_or_default() {
        "LeastAllocated" => Strategy::LeastAllocated,
        "MostAllocated" => Strategy::MostAllocated,
        "RequestedToCapacityRatio" => {
            let shape = strategy.requested_to_capacity_ratio.take();
            let shape = shape.map(|r| r.shape).unwrap_or_default();
            let points = shape.iter().map(|p| (p.utilization, p.score)).collect();
            Strategy::RequestedToCapacityRatio(points)
        }
        other => {
            let path = format!("{path}.scoringStrategy.type");
            return Err(field(&path, &format!("{other:?} is not a strategy")));
        }
    };
    if strategy.requested_to_capacity_ratio.is_some() {
        let path = format!("{path}.scoringStrategy.requestedToCapacityRatio");
        return Err(field(&path, "must be absent unless the type is RequestedToCapacityRatio"));
    }
    Ok(())
}
