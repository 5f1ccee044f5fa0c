//! KubeSchedulerConfiguration: the file that chooses profiles, plugins, weights and arguments.
//!
//! Input: YAML or JSON text of kubescheduler.config.k8s.io/v1. Output: the profile of a scheduler name.
//! Owner: pure functions. Bounds: one document.
//! Fields that a simulation has no use for (leader election, client connection) are accepted and
//! ignored; a plugin or an argument that is not known is an error, as upstream's.
// k8s: pkg/scheduler/apis/config/types.go, v1/defaults.go

use k8s_openapi::api::core::v1::{NodeAffinity, TopologySpreadConstraint};
use pintle_sched_core::config::{PLUGINS, SpreadDefaults, Strategy};
use pintle_sched_core::{Plugin, Profile};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Plugins that exist upstream without being columns here; naming them is no mistake.
const OTHER_PLUGINS: [&str; 6] = [
    "PrioritySort",
    "DefaultBinder",
    "DefaultPreemption",
    "GangScheduling",
    "TopologyPlacementGenerator",
    "PodGroupPodsCount",
];

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No YAML, or a field of the wrong type.
    #[error("configuration: {0}")]
    Syntax(String),
    /// A field with a value that is not allowed.
    #[error("configuration: {field}: {problem}")]
    Field {
        /// Path of the field.
        field: String,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    profiles: Vec<FileProfile>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct FileProfile {
    scheduler_name: Option<String>,
    #[serde(default)]
    plugins: Points,
    #[serde(default)]
    plugin_config: Vec<PluginConfig>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Points {
    #[serde(default)]
    multi_point: PluginSet,
    #[serde(default)]
    filter: PluginSet,
    #[serde(default)]
    score: PluginSet,
}

#[derive(Deserialize, Default)]
struct PluginSet {
    #[serde(default)]
    enabled: Vec<PluginRef>,
    #[serde(default)]
    disabled: Vec<PluginRef>,
}

#[derive(Deserialize)]
struct PluginRef {
    name: String,
    #[serde(default)]
    weight: i64,
}

#[derive(Deserialize)]
struct PluginConfig {
    name: String,
    #[serde(default)]
    args: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InterPodArgs {
    hard_pod_affinity_weight: Option<i32>,
    #[serde(default)]
    ignore_preferred_terms_of_existing_pods: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FitArgs {
    #[serde(default)]
    ignored_resources: Vec<String>,
    #[serde(default)]
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<ScoringStrategy>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScoringStrategy {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    resources: Vec<WeightedResource>,
    requested_to_capacity_ratio: Option<Ratio>,
}

#[derive(Deserialize)]
struct WeightedResource {
    name: String,
    #[serde(default)]
    weight: i64,
}

#[derive(Deserialize)]
struct Ratio {
    #[serde(default)]
    shape: Vec<Point>,
}

#[derive(Deserialize)]
struct Point {
    #[serde(default)]
    utilization: i64,
    #[serde(default)]
    score: i64,
}

#[derive(Deserialize)]
struct BalancedArgs {
    #[serde(default)]
    resources: Vec<WeightedResource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpreadArgs {
    defaulting_type: Option<String>,
    #[serde(default)]
    default_constraints: Vec<TopologySpreadConstraint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AffinityArgs {
    added_affinity: Option<NodeAffinity>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PreemptionArgs {
    min_candidate_nodes_percentage: Option<i32>,
    min_candidate_nodes_absolute: Option<i32>,
}

/// The profile of `scheduler_name`, or the first one of the file.
///
/// # Errors
/// When the text is no such configuration, or upstream would refuse it.
pub fn profile(text: &str, scheduler_name: Option<&str>) -> Result<Profile, ConfigError> {
    let value: Value =
        serde_saphyr::from_str(text).map_err(|e| ConfigError::Syntax(e.to_string()))?;
    let file: File =
        serde_json::from_value(value).map_err(|e| ConfigError::Syntax(e.to_string()))?;
    if file.kind != "KubeSchedulerConfiguration" {
        return Err(field("kind", "expected KubeSchedulerConfiguration"));
    }
    if file.api_version != "kubescheduler.config.k8s.io/v1" {
        return Err(field("apiVersion", "expected kubescheduler.config.k8s.io/v1"));
    }
    let name = |p: &FileProfile| p.scheduler_name.clone().unwrap_or("default-scheduler".into());
    let mut names: Vec<String> = file.profiles.iter().map(name).collect();
    names.sort_unstable();
    if names.windows(2).any(|w| w[0] == w[1]) {
        return Err(field("profiles[].schedulerName", "two profiles have the same name"));
    }
    let found = match scheduler_name {
        Some(wanted) => file.profiles.iter().position(|p| name(p) == wanted),
        None => (!file.profiles.is_empty()).then_some(0),
    };
    match (found, scheduler_name) {
        (Some(at), _) => of_profile(&file.profiles[at], at),
        (None, None) => Ok(Profile::default()),
        (None, Some(wanted)) => {
            Err(field("profiles[].schedulerName", &format!("no profile is named {wanted:?}")))
        }
    }
}

fn field(field: &str, problem: &str) -> ConfigError {
    ConfigError::Field { field: field.to_owned(), problem: problem.to_owned() }
}

fn of_profile(from: &FileProfile, at: usize) -> Result<Profile, ConfigError> {
    let mut profile = Profile::default();
    if let Some(name) = &from.scheduler_name {
        profile.scheduler_name.clone_from(name);
    }
    let defaults = Profile::default();
    for (set, filters, scores, point) in [
        (&from.plugins.multi_point, true, true, "multiPoint"),
        (&from.plugins.filter, true, false, "filter"),
        (&from.plugins.score, false, true, "score"),
    ] {
        let path = format!("profiles[{at}].plugins.{point}");
        for plugin in &set.disabled {
            let all = plugin.name == "*";
            for which in Plugin::ALL {
                if all || which.name() == plugin.name {
                    profile.filters[which as usize] &= !filters;
                    profile.weights[which as usize] *= i64::from(!scores);
                }
            }
            known(&plugin.name, &path)?;
        }
        for plugin in &set.enabled {
            known(&plugin.name, &path)?;
            let Some(which) = Plugin::from_name(&plugin.name) else { continue };
            let index = which as usize;
            profile.filters[index] |= filters && defaults.filters[index];
            if scores && defaults.weights[index] != 0 {
                // k8s: pkg/scheduler/framework/runtime/framework.go: a weight of zero means one
                profile.weights[index] = plugin.weight.max(1);
            }
        }
    }
    assert_eq!(profile.filters.len(), PLUGINS);
    for config in &from.plugin_config {
        let path = format!("profiles[{at}].pluginConfig[{}].args", config.name);
        arguments(&mut profile, config, &path)?;
    }
    profile.validate().map_err(|e| field(&e.field, &e.problem))?;
    Ok(profile)
}

fn known(name: &str, path: &str) -> Result<(), ConfigError> {
    let ok = name == "*" || Plugin::from_name(name).is_some() || OTHER_PLUGINS.contains(&name);
    if ok { Ok(()) } else { Err(field(path, &format!("plugin {name:?} is not known"))) }
}

fn args<T: DeserializeOwned>(config: &PluginConfig, path: &str) -> Result<T, ConfigError> {
    let value =
        if config.args.is_null() { Value::Object(Default::default()) } else { config.args.clone() };
    serde_json::from_value(value).map_err(|e| field(path, &e.to_string()))
}

fn arguments(profile: &mut Profile, config: &PluginConfig, path: &str) -> Result<(), ConfigError> {
    match config.name.as_str() {
        "InterPodAffinity" => {
            let a: InterPodArgs = args(config, path)?;
            profile.hard_pod_affinity_weight = a.hard_pod_affinity_weight.unwrap_or(1);
            profile.ignore_preferred_terms_of_existing_pods =
                a.ignore_preferred_terms_of_existing_pods;
        }
        "NodeResourcesFit" => fit(profile, args(config, path)?, path)?,
        "NodeResourcesBalancedAllocation" => {
            let a: BalancedArgs = args(config, path)?;
            if !a.resources.is_empty() {
                profile.balanced_resources = a.resources.into_iter().map(|r| r.name).collect();
            }
        }
        "PodTopologySpread" => {
            let a: SpreadArgs = args(config, path)?;
            match a.defaulting_type.as_deref().unwrap_or("System") {
                "System" if a.default_constraints.is_empty() => {}
                "System" => {
                    let problem = "must be empty when defaultingType is System";
                    return Err(field(&format!("{path}.defaultConstraints"), problem));
                }
                "List" => profile.spread_defaults = SpreadDefaults::List(a.default_constraints),
                other => {
                    let problem = format!("{other:?} is neither System nor List");
                    return Err(field(&format!("{path}.defaultingType"), &problem));
                }
            }
        }
        "NodeAffinity" => {
            profile.added_affinity = args::<AffinityArgs>(config, path)?.added_affinity
        }
        "DefaultPreemption" => {
            let a: PreemptionArgs = args(config, path)?;
            profile.preemption_candidates_percent = a.min_candidate_nodes_percentage.unwrap_or(10);
            profile.preemption_candidates_min = a.min_candidate_nodes_absolute.unwrap_or(100);
        }
        name => known(name, path)?,
    }
    Ok(())
}

fn fit(profile: &mut Profile, a: FitArgs, path: &str) -> Result<(), ConfigError> {
    profile.ignored_resources = a.ignored_resources;
    profile.ignored_resource_groups = a.ignored_resource_groups;
    let Some(strategy) = a.scoring_strategy else { return Ok(()) };
    if !strategy.resources.is_empty() {
        let weight = |r: WeightedResource| (r.name, if r.weight == 0 { 1 } else { r.weight });
        profile.fit_resources = strategy.resources.into_iter().map(weight).collect();
    }
    profile.strategy = match strategy.kind.as_deref().unwrap_or("LeastAllocated") {
        "LeastAllocated" => Strategy::LeastAllocated,
        "MostAllocated" => Strategy::MostAllocated,
        "RequestedToCapacityRatio" => {
            let shape = strategy.requested_to_capacity_ratio.map(|r| r.shape).unwrap_or_default();
            let points = shape.iter().map(|p| (p.utilization, p.score)).collect();
            Strategy::RequestedToCapacityRatio(points)
        }
        other => {
            let path = format!("{path}.scoringStrategy.type");
            return Err(field(&path, &format!("{other:?} is not a strategy")));
        }
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

    #[test]
    fn a_file_without_profiles_means_the_defaults() {
        assert_eq!(profile(HEAD, None).expect("valid"), Profile::default());
    }

    #[test]
    fn plugins_weights_and_arguments_are_taken_over() {
        let text = format!(
            "{HEAD}profiles:\n- schedulerName: mine\n  plugins:\n    score:\n      disabled:\n      \
             - name: ImageLocality\n      enabled:\n      - name: NodeResourcesFit\n        weight: 5\n  \
             pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      scoringStrategy:\n        \
             type: MostAllocated\n        resources:\n        - name: cpu\n          weight: 3\n"
        );
        let found = profile(&text, Some("mine")).expect("valid");
        assert_eq!(found.weight(Plugin::ImageLocality), 0);
        assert_eq!(found.weight(Plugin::NodeResourcesFit), 5);
        assert_eq!(found.strategy, Strategy::MostAllocated);
        assert_eq!(found.fit_resources, vec![("cpu".to_owned(), 3)]);
        assert!(profile(&text, Some("other")).is_err());
    }

    #[test]
    fn mistakes_name_their_field() {
        let text = format!(
            "{HEAD}profiles:\n- plugins:\n    score:\n      enabled:\n      - name: Nope\n"
        );
        let error = profile(&text, None).expect_err("unknown plugin").to_string();
        assert!(error.contains("profiles[0].plugins.score") && error.contains("Nope"), "{error}");
        assert!(profile("kind: Pod\napiVersion: v1\n", None).is_err());
    }
}
