//! A scheduler profile: the enabled plugins, their weights and their arguments.
//!
//! Input: the defaults of Kubernetes 1.36, overridden by a KubeSchedulerConfiguration.
//! Output: a `Profile`, valid once `validate` passed. Owner: the cluster that was made with it.
//! Why typed: a program compiled for a profile never looks a name up again.

use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeAffinity, TopologySpreadConstraint};

use crate::intern::Interner;
use crate::names;
use crate::program::node_terms::{is_empty_term, parse_term};

/// A plugin of the default profile, in the order in which its filters run.
// k8s: pkg/scheduler/apis/config/v1/default_plugins.go getDefaultPlugins
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the documentation
pub enum Plugin {
    NodeUnschedulable,
    NodeName,
    TaintToleration,
    NodeAffinity,
    NodePorts,
    NodeResourcesFit,
    VolumeRestrictions,
    NodeVolumeLimits,
    VolumeBinding,
    VolumeZone,
    PodTopologySpread,
    InterPodAffinity,
    DynamicResources,
    NodeResourcesBalancedAllocation,
    ImageLocality,
    NodeDeclaredFeatures,
    SchedulingGates,
    /// All out-of-tree plugins.
    OutOfTree,
    /// HTTP extenders: no plugin of a profile, and after all of them.
    Extender,
    /// Holds pods of a gang back until all of them exist: it filters no node.
    GangScheduling,
}

/// Number of plugins, including the placeholders for out-of-tree plugins, extenders and gangs.
pub const PLUGINS: usize = 20;

/// Position of a plugin at an extension point: of several rejections the one of the lowest rank is
/// reported. Zero precedes all plugins.
pub type Rank = u16;

/// The rank after all others.
pub const RANK_LAST: Rank = Rank::MAX;

/// Returns the ranks of upstream's plugins in this order of names; plugins not named come last.
#[must_use]
pub fn ranks<'a>(order: impl IntoIterator<Item = &'a str>) -> [Rank; PLUGINS] {
    let mut ranks = [RANK_LAST; PLUGINS];
    for (rank, name) in (1..RANK_LAST).zip(order) {
        if let Some(plugin) = Plugin::from_name(name) {
            ranks[plugin as usize] = rank;
        }
    }
    ranks
}

impl Plugin {
    /// Placeholders that are not upstream's plugins.
    pub(crate) const OTHERS: [Self; 2] = [Self::OutOfTree, Self::Extender];

    /// All of upstream's plugins for nodes or single pods, in the default order of filters.
    pub const ALL: [Self; PLUGINS - 3] = [
        Self::NodeUnschedulable,
        Self::NodeName,
        Self::TaintToleration,
        Self::NodeAffinity,
        Self::NodePorts,
        Self::NodeResourcesFit,
        Self::VolumeRestrictions,
        Self::NodeVolumeLimits,
        Self::VolumeBinding,
        Self::VolumeZone,
        Self::PodTopologySpread,
        Self::InterPodAffinity,
        Self::DynamicResources,
        Self::NodeResourcesBalancedAllocation,
        Self::ImageLocality,
        Self::NodeDeclaredFeatures,
        Self::SchedulingGates,
    ];

    /// Returns the name in configuration files and statuses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NodeUnschedulable => "NodeUnschedulable",
            Self::NodeName => "NodeName",
            Self::TaintToleration => "TaintToleration",
            Self::NodeAffinity => "NodeAffinity",
            Self::NodePorts => "NodePorts",
            Self::NodeResourcesFit => "NodeResourcesFit",
            Self::VolumeRestrictions => "VolumeRestrictions",
            Self::NodeVolumeLimits => "NodeVolumeLimits",
            Self::VolumeBinding => "VolumeBinding",
            Self::VolumeZone => "VolumeZone",
            Self::PodTopologySpread => "PodTopologySpread",
            Self::InterPodAffinity => "InterPodAffinity",
            Self::DynamicResources => "DynamicResources",
            Self::NodeResourcesBalancedAllocation => "NodeResourcesBalancedAllocation",
            Self::ImageLocality => "ImageLocality",
            Self::NodeDeclaredFeatures => "NodeDeclaredFeatures",
            Self::SchedulingGates => "SchedulingGates",
            Self::OutOfTree => "OutOfTree",
            Self::Extender => "Extender",
            Self::GangScheduling => "GangScheduling",
        }
    }

    /// Returns the plugin of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.name() == name)
    }
}

/// Scoring strategy of NodeResourcesFit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The emptier, the better.
    LeastAllocated,
    /// The fuller, the better.
    MostAllocated,
    /// Points of (utilisation 0..=100, score 0..=10), ascending, linear in between.
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

/// Spread constraints of a pod that has none.
#[derive(Clone, Debug, PartialEq)]
pub enum SpreadDefaults {
    /// Hostname (skew 3) and zone (skew 5), soft, nodes without a zone included.
    System,
    /// These, for every pod.
    List(Vec<TopologySpreadConstraint>),
}

/// Number of candidate nodes of a preemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CandidateLimits {
    /// In percent of all nodes.
    pub percent: i32,
    /// At least so many.
    pub min: i32,
}

/// Time limits of a profile's plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileTimeouts {
    /// For binding a pod's volumes, in seconds.
    pub volume_bind_seconds: u64,
    /// For allocating devices on one node; zero for none.
    pub device_filter: Duration,
    /// Until a pod's devices are ready.
    pub device_binding: Duration,
}

/// A scheduler profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Scheduler name that pods specify.
    pub scheduler_name: String,
    /// Enabled filter plugins, by `Plugin as usize`.
    pub filters: [bool; PLUGINS],
    /// The order of filters, by `Plugin as usize`.
    pub filter_ranks: [Rank; PLUGINS],
    /// The order of PreFilter, by `Plugin as usize`.
    pub pre_filter_ranks: [Rank; PLUGINS],
    /// Score weights, by `Plugin as usize`; zero is off.
    pub weights: [i64; PLUGINS],
    /// Utilisation strategy.
    pub strategy: Strategy,
    /// Resources and weights of the utilisation score.
    pub fit_resources: Vec<(String, i64)>,
    /// Extended resources that the filter ignores.
    pub ignored_resources: Vec<String>,
    /// Groups of ignored extended resources: the part before the slash.
    pub ignored_resource_groups: Vec<String>,
    /// Resources of the balance score.
    pub balanced_resources: Vec<String>,
    /// Weight of existing pods' required affinity in scores.
    pub hard_pod_affinity_weight: i32,
    /// True if a pod without preferred terms ignores those of existing pods.
    pub ignore_preferred_terms_of_existing_pods: bool,
    /// Default topology spread constraints.
    pub spread_defaults: SpreadDefaults,
    /// Node affinity added to every pod's.
    pub added_affinity: Option<NodeAffinity>,
    /// True if pods of a gang wait for each other (only if pod groups are enabled).
    pub gangs: bool,
    /// True if a pod that fits no node may preempt other pods.
    pub preemption: bool,
    /// Number of candidate nodes of a preemption.
    pub preemption_candidates: CandidateLimits,
    /// Time limits of volumes and devices.
    pub timeouts: ProfileTimeouts,
    /// Percent of the nodes that suffice as feasible nodes; 0 is all of them.
    pub percentage_of_nodes: u32,
    /// True if tolerations compare numbers (`Gt`, `Lt`), a feature that is off by default.
    pub compares_tolerations: bool,
}

impl Default for Profile {
    fn default() -> Self {
        let mut filters = [true; PLUGINS];
        filters[Plugin::NodeResourcesBalancedAllocation as usize] = false;
        filters[Plugin::ImageLocality as usize] = false;
        let mut weights = [0; PLUGINS];
        for (plugin, weight) in [
            (Plugin::TaintToleration, 3),
            (Plugin::NodeAffinity, 2),
            (Plugin::NodeResourcesFit, 1),
            (Plugin::PodTopologySpread, 2),
            (Plugin::InterPodAffinity, 2),
            (Plugin::DynamicResources, 2),
            (Plugin::NodeResourcesBalancedAllocation, 1),
            (Plugin::ImageLocality, 1),
        ] {
            weights[plugin as usize] = weight;
        }
        let ranks = ranks(Plugin::ALL.map(Plugin::name));
        Self {
            scheduler_name: "default-scheduler".into(),
            filters,
            filter_ranks: ranks,
            pre_filter_ranks: ranks,
            weights,
            strategy: Strategy::LeastAllocated,
            fit_resources: vec![("cpu".into(), 1), ("memory".into(), 1)],
            ignored_resources: Vec::new(),
            ignored_resource_groups: Vec::new(),
            balanced_resources: vec!["cpu".into(), "memory".into()],
            hard_pod_affinity_weight: 1,
            ignore_preferred_terms_of_existing_pods: false,
            spread_defaults: SpreadDefaults::System,
            added_affinity: None,
            gangs: true,
            preemption: true,
            preemption_candidates: CandidateLimits { percent: 10, min: 100 },
            timeouts: ProfileTimeouts {
                volume_bind_seconds: 600,
                device_filter: Duration::from_secs(10),
                device_binding: Duration::from_secs(600),
            },
            percentage_of_nodes: 0,
            compares_tolerations: false,
        }
    }
}

/// Highest score of a node.
const SCORE_MAX: i64 = 100;
/// Greatest total of a node: the scores add up in 32 bits.
const TOTAL_MAX: i64 = i32::MAX as i64;

/// A profile that upstream would reject.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ProfileError {
    /// Path of the field within its plugin's arguments.
    pub field: String,
    /// The problem.
    pub problem: String,
}

impl Profile {
    /// Returns true if a plugin filters.
    #[must_use]
    pub fn filters(&self, plugin: Plugin) -> bool {
        self.filters[plugin as usize]
    }

    /// Returns a plugin's position among the filters.
    #[must_use]
    pub fn filter_rank(&self, plugin: Plugin) -> Rank {
        self.filter_ranks[plugin as usize]
    }

    /// Returns a plugin's position in PreFilter.
    #[must_use]
    pub fn pre_filter_rank(&self, plugin: Plugin) -> Rank {
        self.pre_filter_ranks[plugin as usize]
    }

    /// Returns the weight of a plugin's score; zero if it does not score.
    #[must_use]
    pub fn weight(&self, plugin: Plugin) -> i64 {
        self.weights[plugin as usize]
    }

    /// Checks ranges as upstream's validation does.
    ///
    /// # Errors
    /// The first field out of range.
    // k8s: pkg/scheduler/apis/config/validation/validation_pluginargs.go
    pub fn validate(&self) -> Result<(), ProfileError> {
        let error = |field: &str, problem: &str| {
            Err(ProfileError { field: field.into(), problem: problem.into() })
        };
        self.validate_weights()?;
        if !(0..=100).contains(&self.hard_pod_affinity_weight) {
            return error("hardPodAffinityWeight", "must be between 0 and 100");
        }
        if self.fit_resources.iter().any(|(_, w)| !(1..=100).contains(w)) {
            return error("scoringStrategy.resources", "weights must be between 1 and 100");
        }
        if self.balanced_resources.is_empty() || self.fit_resources.is_empty() {
            return error("resources", "must not be empty");
        }
        if !(0..=100).contains(&self.preemption_candidates.percent)
            || self.preemption_candidates.min < 0
        {
            return error("minCandidateNodes", "percentage 0 to 100, absolute not negative");
        }
        if self.preemption_candidates.percent == 0 && self.preemption_candidates.min == 0 {
            let problem = "must not be zero together with minCandidateNodesAbsolute";
            return error("minCandidateNodesPercentage", problem);
        }
        self.validate_spread_defaults()?;
        self.validate_added_affinity()?;
        if let Strategy::RequestedToCapacityRatio(shape) = &self.strategy {
            // k8s: validation_pluginargs.go validateFunctionShape
            let ascending = shape.windows(2).all(|w| w[0].0 < w[1].0);
            let ranges = shape.iter().all(|(u, s)| (0..=100).contains(u) && (0..=10).contains(s));
            if shape.is_empty() || !ascending || !ranges {
                return error(
                    "requestedToCapacityRatio.shape",
                    "needs ascending utilisation 0 to 100 with scores 0 to 10",
                );
            }
        }
        Ok(())
    }

    /// Rejects weights with which scores could overflow; upstream's totals have 64 bits, ours 32.
    // k8s: pkg/scheduler/framework/runtime/framework.go getScoreWeights
    fn validate_weights(&self) -> Result<(), ProfileError> {
        let mut total = 0i64;
        for plugin in Plugin::ALL {
            let weight = self.weight(plugin);
            let field = || format!("plugins.score[{}].weight", plugin.name());
            if weight < 0 {
                let problem = format!("is {weight}, but a score is never subtracted");
                return Err(ProfileError { field: field(), problem });
            }
            total = total.saturating_add(weight.saturating_mul(SCORE_MAX));
            if total > TOTAL_MAX {
                let problem = format!(
                    "is {weight}: with it a node could score {total}, and the most that the scores \
                     of all plugins may add up to is {TOTAL_MAX}"
                );
                return Err(ProfileError { field: field(), problem });
            }
        }
        Ok(())
    }

    /// An invalid term would match no node, and so keep every pod off all nodes.
    // k8s: validation_pluginargs.go ValidateNodeAffinityArgs
    fn validate_added_affinity(&self) -> Result<(), ProfileError> {
        let Some(added) = &self.added_affinity else { return Ok(()) };
        let required = added.required_during_scheduling_ignored_during_execution.iter();
        let required = required.flat_map(|selector| &selector.node_selector_terms).enumerate();
        let path = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        let required = required.map(|(at, term)| (format!("{path}[{at}]"), term));
        let preferred = added.preferred_during_scheduling_ignored_during_execution.iter();
        let preferred = preferred.flatten().enumerate().filter(|(_, term)| term.weight != 0);
        let path = "preferredDuringSchedulingIgnoredDuringExecution";
        let preferred = preferred.map(|(at, term)| (format!("{path}[{at}]"), &term.preference));
        let mut interner = Interner::default();
        for (path, term) in required.chain(preferred).filter(|(_, term)| !is_empty_term(term)) {
            if let Err(errors) = parse_term(term, &path, &mut interner) {
                let field = "addedAffinity".to_owned();
                return Err(ProfileError { field, problem: errors.join(", ") });
            }
        }
        Ok(())
    }

    // k8s: validation_pluginargs.go ValidatePodTopologySpreadArgs
    fn validate_spread_defaults(&self) -> Result<(), ProfileError> {
        let SpreadDefaults::List(list) = &self.spread_defaults else { return Ok(()) };
        for (at, c) in list.iter().enumerate() {
            let error = |field: &str, problem: String| {
                let field = format!("defaultConstraints[{at}]{field}");
                Err(ProfileError { field, problem })
            };
            if c.max_skew <= 0 {
                return error(".maxSkew", format!("is {}, but must be above zero", c.max_skew));
            }
            if c.topology_key.is_empty() {
                return error(".topologyKey", "must not be empty".into());
            }
            if let Some(problem) = names::mistake(&c.topology_key) {
                let problem = format!("{:?} is no name of a label: {problem}", c.topology_key);
                return error(".topologyKey", problem);
            }
            if !["DoNotSchedule", "ScheduleAnyway"].contains(&c.when_unsatisfiable.as_str()) {
                let problem = format!(
                    "is {:?}, which is neither DoNotSchedule nor ScheduleAnyway",
                    c.when_unsatisfiable
                );
                return error(".whenUnsatisfiable", problem);
            }
            if c.label_selector.is_some() {
                let problem = "must be absent: the selector is deduced for each pod";
                return error(".labelSelector", problem.into());
            }
            let same = |o: &TopologySpreadConstraint| {
                o.topology_key == c.topology_key && o.when_unsatisfiable == c.when_unsatisfiable
            };
            if list[..at].iter().any(same) {
                let problem = format!("repeats {} {}", c.topology_key, c.when_unsatisfiable);
                return error("", problem);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Profile)) -> String {
        let mut profile = Profile::default();
        change(&mut profile);
        profile.validate().expect_err("out of range").to_string()
    }

    #[test]
    fn negative_weights_and_weights_above_the_score_limit_are_rejected() {
        assert_eq!(Profile::default().validate(), Ok(()));
        let fit = Plugin::NodeResourcesFit as usize;
        let large = refused(|p| p.weights[fit] = i64::from(i32::MAX));
        assert!(
            large.starts_with("plugins.score[NodeResourcesFit].weight: is 2147483647"),
            "{large}"
        );
        assert!(refused(|p| p.weights[fit] = i64::MAX).contains("2147483647"));
        assert!(refused(|p| p.weights[fit] = -1).contains("never subtracted"));
        // Each weight alone is valid; their sum is not.
        let each = TOTAL_MAX / SCORE_MAX / 2;
        let both = refused(|p| p.weights = [each; PLUGINS]);
        assert!(both.contains("could score"), "{both}");
        let mut most = Profile { weights: [0; PLUGINS], ..Profile::default() };
        most.weights[fit] = TOTAL_MAX / SCORE_MAX;
        assert_eq!(most.validate(), Ok(()));
    }

    #[test]
    fn default_constraints_are_checked_as_upstream_does() {
        let good = TopologySpreadConstraint {
            max_skew: 1,
            topology_key: "zone".into(),
            when_unsatisfiable: "DoNotSchedule".into(),
            ..TopologySpreadConstraint::default()
        };
        let list = |list: &[TopologySpreadConstraint]| {
            let spread_defaults = SpreadDefaults::List(list.to_vec());
            Profile { spread_defaults, ..Profile::default() }.validate().map_err(|e| e.field)
        };
        assert_eq!(list(std::slice::from_ref(&good)), Ok(()));
        let wrong = |field: &str| Err(format!("defaultConstraints[0]{field}"));
        assert_eq!(
            list(&[TopologySpreadConstraint { max_skew: 0, ..good.clone() }]),
            wrong(".maxSkew")
        );
        let without = TopologySpreadConstraint { topology_key: String::new(), ..good.clone() };
        assert_eq!(list(&[without]), wrong(".topologyKey"));
        let nameless = TopologySpreadConstraint { topology_key: "a b".into(), ..good.clone() };
        assert_eq!(list(&[nameless]), wrong(".topologyKey"));
        let never = TopologySpreadConstraint { when_unsatisfiable: "Never".into(), ..good.clone() };
        assert_eq!(list(&[never]), wrong(".whenUnsatisfiable"));
        let selecting =
            TopologySpreadConstraint { label_selector: Some(Default::default()), ..good.clone() };
        assert_eq!(list(&[selecting]), wrong(".labelSelector"));
        assert_eq!(list(&[good.clone(), good]), Err("defaultConstraints[1]".to_owned()));
    }
}
