//! Feature gates: the enabled ones, from the file and the flags.
//!
//! Input: `name=bool` pairs merged key by key, flags over file. Output: [`FeatureGates`], or one
//! error for each name that 1.36 does not know and each locked gate that was to be switched, or
//! else for each gate that is on without one that it needs. `AllAlpha` and `AllBeta` switch their
//! stage as a whole, before single gates do.
//!
//! // k8s: staging/src/k8s.io/component-base/featuregate/feature_gate.go SetFromMap

use std::collections::BTreeMap;
use std::marker::PhantomData;

use crate::daemon::Daemon;
use crate::error::ConfigError;
use crate::status::Status;
use crate::suggest;

/// The stage of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureStage {
    /// Off unless asked for.
    Alpha,
    /// Mostly on.
    Beta,
    /// Part of the product.
    Ga,
    /// A switch back to an old behaviour.
    Deprecated,
}

impl FeatureStage {
    /// Its name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alpha => "alpha",
            Self::Beta => "beta",
            Self::Ga => "GA",
            Self::Deprecated => "deprecated",
        }
    }
}

/// One feature gate.
#[derive(Clone, Copy, Debug)]
pub struct FeatureGate {
    /// Its name in `featureGates`.
    pub name: &'static str,
    /// Its stage in 1.36.
    pub stage: FeatureStage,
    /// True if it is on by default.
    pub default: bool,
    /// The default cannot be changed any more.
    pub locked: bool,
    /// How far the daemon implements it.
    pub status: Status,
}

impl FeatureGate {
    /// A gate that is on by default.
    pub const fn on(name: &'static str, stage: FeatureStage, status: Status) -> Self {
        Self { name, stage, default: true, locked: false, status }
    }

    /// A gate that is off by default.
    pub const fn off(name: &'static str, stage: FeatureStage, status: Status) -> Self {
        Self { name, stage, default: false, locked: false, status }
    }

    /// A gate with a default that cannot be changed any more.
    #[must_use]
    pub const fn locked(self) -> Self {
        Self { locked: true, ..self }
    }
}

/// A feature gate as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateState {
    /// Its name.
    pub name: &'static str,
    /// Upstream's word for the stage; empty for a feature that is generally available.
    pub stage: &'static str,
    /// It is on.
    pub is_on: bool,
}

/// Gates that switch a whole stage.
const GROUPS: [(&str, FeatureStage); 2] =
    [("AllAlpha", FeatureStage::Alpha), ("AllBeta", FeatureStage::Beta)];

/// Gates that are of no use without others; left out are those that cannot be switched apart.
// k8s: pkg/features/kube_features.go defaultKubernetesFeatureGateDependencies
pub const NEEDS: &[(&str, &[&str])] = &[
    ("ClusterTrustBundleProjection", &["ClusterTrustBundle"]),
    ("DRADeviceBindingConditions", &["DRAResourceClaimDeviceStatus"]),
    ("DRADeviceTaintRules", &["DRADeviceTaints"]),
    ("DRAResourceClaimGranularStatusAuthorization", &["DRAResourceClaimDeviceStatus"]),
    ("DRAWorkloadResourceClaims", &["GenericWorkload"]),
    ("ExtendWebSocketsToKubelet", &["NodeDeclaredFeatures"]),
    ("GangScheduling", &["GenericWorkload"]),
    ("GracefulNodeShutdownBasedOnPodPriority", &["GracefulNodeShutdown"]),
    ("InPlacePodLevelResourcesVerticalScaling", &["PodLevelResources", "NodeDeclaredFeatures"]),
    ("InPlacePodVerticalScalingInitContainers", &["NodeDeclaredFeatures"]),
    ("MatchLabelKeysInPodTopologySpreadSelectorMerge", &["MatchLabelKeysInPodTopologySpread"]),
    ("PodLevelResourceManagers", &["PodLevelResources"]),
    ("ResourceHealthStatusMessage", &["ResourceHealthStatus"]),
    ("RestartAllContainersOnContainerExits", &["ContainerRestartRules", "NodeDeclaredFeatures"]),
    ("StaleControllerConsistencyDaemonSet", &["AtomicFIFO"]),
    ("StaleControllerConsistencyJob", &["AtomicFIFO"]),
    ("StaleControllerConsistencyReplicaSet", &["AtomicFIFO"]),
    ("StaleControllerConsistencyStatefulSet", &["AtomicFIFO"]),
    ("StorageVersionAPI", &["APIServerIdentity"]),
    ("TopologyAwareWorkloadScheduling", &["GenericWorkload"]),
    ("UnknownVersionInteroperabilityProxy", &["APIServerIdentity"]),
    ("UserNamespacesHostNetworkSupport", &["NodeDeclaredFeatures"]),
    ("WindowsGracefulNodeShutdown", &["GracefulNodeShutdown"]),
    ("WorkloadAwarePreemption", &["GangScheduling"]),
    ("WorkloadWithJob", &["GenericWorkload"]),
];

/// The state of every gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates<D> {
    /// Only gates that differ from their default.
    changed: BTreeMap<&'static str, bool>,
    daemon: PhantomData<D>,
}

impl<D: Daemon> FeatureGates<D> {
    /// Checks and applies the requested gates.
    pub fn new(asked: &BTreeMap<String, bool>) -> Result<Self, Vec<ConfigError>> {
        let mut gates = Self::default();
        let mut errors = Vec::new();
        for (group, stage) in GROUPS {
            if let Some(on) = asked.get(group) {
                gates.switch_stage(stage, *on);
            }
        }
        for (name, on) in asked {
            if GROUPS.iter().any(|(group, _)| group == name) {
                continue;
            }
            match D::GATES.iter().find(|gate| gate.name == name) {
                None => errors.push(unknown(D::GATES, name, *on)),
                Some(gate) if gate.locked && gate.default != *on => errors.push(locked(gate, *on)),
                Some(gate) => gates.switch(gate, *on),
            }
        }
        if errors.is_empty() {
            errors = gates.without_theirs();
        }
        if errors.is_empty() { Ok(gates) } else { Err(errors) }
    }

    /// True if the feature is on; false for a name that no gate has.
    pub fn enabled(&self, name: &str) -> bool {
        self.changed.get(name).copied().unwrap_or_else(|| {
            D::GATES.iter().find(|gate| gate.name == name).is_some_and(|gate| gate.default)
        })
    }

    /// Every gate as it is.
    pub fn states(&self) -> Vec<GateState> {
        let state = |gate: &FeatureGate| {
            let stage = match gate.stage {
                FeatureStage::Alpha => "ALPHA",
                FeatureStage::Beta => "BETA",
                FeatureStage::Ga => "",
                FeatureStage::Deprecated => "DEPRECATED",
            };
            GateState { name: gate.name, stage, is_on: self.enabled(gate.name) }
        };
        D::GATES.iter().map(state).collect()
    }

    /// An error for each gate that is on without one that it needs.
    // k8s: staging/src/k8s.io/component-base/featuregate/feature_gate.go unsafeSetFromMap
    fn without_theirs(&self) -> Vec<ConfigError> {
        let pairs = NEEDS.iter().flat_map(|(gate, needs)| needs.iter().map(move |n| (*gate, *n)));
        let lacks = pairs.filter(|(gate, needed)| self.enabled(gate) && !self.enabled(needed));
        let error = |(gate, needed): (&str, &str)| {
            let problem = format!("it depends on {needed}, which is off");
            let remedy = format!("set {needed}=true or {gate}=false");
            ConfigError::new("featureGates", format!("{gate}=true"), problem, remedy)
        };
        lacks.map(error).collect()
    }

    fn switch_stage(&mut self, stage: FeatureStage, on: bool) {
        for gate in D::GATES.iter().filter(|gate| gate.stage == stage && !gate.locked) {
            self.switch(gate, on);
        }
    }

    fn switch(&mut self, gate: &'static FeatureGate, on: bool) {
        if gate.default == on {
            self.changed.remove(gate.name);
        } else {
            self.changed.insert(gate.name, on);
        }
    }
}

fn unknown(gates: &[FeatureGate], name: &str, on: bool) -> ConfigError {
    let names = gates.iter().map(|gate| gate.name);
    ConfigError::new(
        "featureGates",
        format!("{name}={on}"),
        format!("no feature gate of Kubernetes 1.36 is named {name}"),
        suggest::did_you_mean(name, names).unwrap_or_else(|| "remove it".to_owned()),
    )
}

fn locked(gate: &FeatureGate, on: bool) -> ConfigError {
    ConfigError::new(
        "featureGates",
        format!("{}={on}", gate.name),
        format!("{} is locked to {} in Kubernetes 1.36", gate.name, gate.default),
        "remove it".to_owned(),
    )
}
