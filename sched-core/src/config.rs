//! What a scheduler profile says: which plugins run, their weights and their arguments.
//!
//! Input: the defaults of Kubernetes 1.36, changed by whoever reads a KubeSchedulerConfiguration.
//! Output: a `Profile`, valid once `validate` passed. Owner: the cluster that was made with it.
//! Why typed: a program compiled for a profile never looks a name up again.

use k8s_openapi::api::core::v1::{NodeAffinity, TopologySpreadConstraint};

/// A plugin of the default profile, in the order in which filters run.
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
}

/// Number of plugins.
pub const PLUGINS: usize = 17;

impl Plugin {
    /// All plugins, in filter order.
    pub const ALL: [Self; PLUGINS] = [
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

    /// The name in configuration files and statuses.
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
        }
    }

    /// The plugin of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.name() == name)
    }
}

/// How NodeResourcesFit scores utilisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The emptier, the better.
    LeastAllocated,
    /// The fuller, the better.
    MostAllocated,
    /// Points of (utilisation 0..=100, score 0..=10), ascending, linear in between.
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

/// Where constraints come from for a pod that has none.
#[derive(Clone, Debug, PartialEq)]
pub enum SpreadDefaults {
    /// Hostname (skew 3) and zone (skew 5), soft, nodes without a zone included.
    System,
    /// These, for every pod.
    List(Vec<TopologySpreadConstraint>),
}

/// A scheduler profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Name that pods ask for.
    pub scheduler_name: String,
    /// Which plugins filter, by `Plugin as usize`.
    pub filters: [bool; PLUGINS],
    /// Score weights, by `Plugin as usize`; zero is off.
    pub weights: [i64; PLUGINS],
    /// Utilisation strategy.
    pub strategy: Strategy,
    /// Resources and weights of the utilisation score.
    pub fit_resources: Vec<(String, i64)>,
    /// Extended resources that the filter does not look at.
    pub ignored_resources: Vec<String>,
    /// As above, by the part before the slash.
    pub ignored_resource_groups: Vec<String>,
    /// Resources of the balance score.
    pub balanced_resources: Vec<String>,
    /// Weight of existing pods' required affinity in scores.
    pub hard_pod_affinity_weight: i32,
    /// Whether a pod without preferred terms ignores those of others.
    pub ignore_preferred_terms_of_existing_pods: bool,
    /// Default topology spread constraints.
    pub spread_defaults: SpreadDefaults,
    /// Node affinity added to every pod's.
    pub added_affinity: Option<NodeAffinity>,
    /// Candidate nodes of a preemption, percent of all.
    pub preemption_candidates_percent: i32,
    /// Candidate nodes of a preemption, at least.
    pub preemption_candidates_min: i32,
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
        Self {
            scheduler_name: "default-scheduler".into(),
            filters,
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
            preemption_candidates_percent: 10,
            preemption_candidates_min: 100,
        }
    }
}

/// A profile that upstream would refuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ProfileError {
    /// Path of the field within its plugin's arguments.
    pub field: String,
    /// What is wrong.
    pub problem: String,
}

impl Profile {
    /// Whether a plugin filters.
    #[must_use]
    pub fn filters(&self, plugin: Plugin) -> bool {
        self.filters[plugin as usize]
    }

    /// Weight of a plugin's score; zero when it does not score.
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
        if !(0..=100).contains(&self.hard_pod_affinity_weight) {
            return error("hardPodAffinityWeight", "must be between 0 and 100");
        }
        if self.fit_resources.iter().any(|(_, w)| !(1..=100).contains(w)) {
            return error("scoringStrategy.resources", "weights must be between 1 and 100");
        }
        if self.balanced_resources.is_empty() || self.fit_resources.is_empty() {
            return error("resources", "must not be empty");
        }
        if !(0..=100).contains(&self.preemption_candidates_percent)
            || self.preemption_candidates_min < 0
        {
            return error("minCandidateNodes", "percentage 0 to 100, absolute not negative");
        }
        if let Strategy::RequestedToCapacityRatio(shape) = &self.strategy {
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
}
