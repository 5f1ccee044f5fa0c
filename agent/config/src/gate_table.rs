//! The feature gates a 1.36 kubelet accepts, with their stage and default.
//!
//! Output: [`GATES`], the known names with their defaults and whether they may be switched, also
//! for the tables of docs/COMPAT.md. The kubelet accepts the gates of all components, so they are
//! all here: one list for a whole cluster must not stop a node from starting.
//!
//! // k8s: test/compatibility_lifecycle/reference/versioned_feature_list.yaml

use super::acted_on::Status::{self, Done as DONE};

pub use pintle_config::gates::{FeatureGate, FeatureStage};

const fn on(name: &'static str, stage: FeatureStage, status: Status) -> FeatureGate {
    FeatureGate::on(name, stage, status)
}

const fn off(name: &'static str, stage: FeatureStage, status: Status) -> FeatureGate {
    FeatureGate::off(name, stage, status)
}

const fn locked_on(name: &'static str, stage: FeatureStage, status: Status) -> FeatureGate {
    FeatureGate::on(name, stage, status).locked()
}

const fn locked_off(name: &'static str, stage: FeatureStage, status: Status) -> FeatureGate {
    FeatureGate::off(name, stage, status).locked()
}

const NOT_YET: Status = Status::NotYet("the feature is not built");
const ALWAYS: Status = Status::Never("built, and always on: there is no older way to go back to");
const ELSEWHERE: Status = Status::Never("concerns other components");
const HINTS: Status = Status::Never("events are always hints here, with a read behind each");

/// Every gate, by name.
pub const GATES: &[FeatureGate] = &[
    locked_on("AggregatedDiscoveryRemoveBetaType", FeatureStage::Deprecated, ELSEWHERE),
    off("AllowDNSOnlyNodeCSR", FeatureStage::Deprecated, NOT_YET),
    off("AllowInsecureKubeletCertificateSigningRequests", FeatureStage::Deprecated, ELSEWHERE),
    locked_off("AllowOverwriteTerminationGracePeriodSeconds", FeatureStage::Deprecated, ELSEWHERE),
    on("AllowParsingUserUIDFromCertAuth", FeatureStage::Beta, ELSEWHERE),
    on("AllowServiceExternalIPs", FeatureStage::Ga, ELSEWHERE),
    off("AllowUnsafeMalformedObjectDeletion", FeatureStage::Alpha, ELSEWHERE),
    locked_on("AnonymousAuthConfigurableEndpoints", FeatureStage::Ga, ELSEWHERE),
    locked_on("AnyVolumeDataSource", FeatureStage::Ga, ELSEWHERE),
    on("APIResponseCompression", FeatureStage::Beta, ELSEWHERE),
    on("APIServerIdentity", FeatureStage::Beta, ELSEWHERE),
    locked_on("APIServerTracing", FeatureStage::Ga, ELSEWHERE),
    off("APIServingWithRoutine", FeatureStage::Alpha, ELSEWHERE),
    on("AtomicFIFO", FeatureStage::Beta, ELSEWHERE),
    locked_on("AuthorizeNodeWithSelectors", FeatureStage::Ga, ELSEWHERE),
    on("AuthorizePodWebsocketUpgradeCreatePermission", FeatureStage::Beta, ELSEWHERE),
    locked_on("AuthorizeWithSelectors", FeatureStage::Ga, ELSEWHERE),
    locked_on("BtreeWatchCache", FeatureStage::Ga, ELSEWHERE),
    off("CBORServingAndStorage", FeatureStage::Alpha, ELSEWHERE),
    off("ChangeContainerStatusOnKubeletRestart", FeatureStage::Deprecated, NOT_YET),
    on("ClearingNominatedNodeNameAfterBinding", FeatureStage::Beta, ELSEWHERE),
    on("ClientsAllowCARotation", FeatureStage::Beta, ELSEWHERE),
    off("ClientsAllowCBOR", FeatureStage::Alpha, ELSEWHERE),
    on("ClientsAllowTLSCacheGC", FeatureStage::Beta, ELSEWHERE),
    off("ClientsPreferCBOR", FeatureStage::Alpha, ELSEWHERE),
    off("CloudControllerManagerWatchBasedRoutesReconciliation", FeatureStage::Alpha, ELSEWHERE),
    off("CloudControllerManagerWebhook", FeatureStage::Alpha, ELSEWHERE),
    off("ClusterTrustBundle", FeatureStage::Beta, ELSEWHERE),
    off("ClusterTrustBundleProjection", FeatureStage::Beta, DONE),
    on("ComponentFlagz", FeatureStage::Beta, DONE),
    on("ComponentStatusz", FeatureStage::Beta, DONE),
    off("ConcurrentWatchObjectDecode", FeatureStage::Beta, ELSEWHERE),
    locked_on("ConsistentListFromCache", FeatureStage::Ga, ELSEWHERE),
    on("ConstrainedImpersonation", FeatureStage::Beta, ELSEWHERE),
    on("ContainerCheckpoint", FeatureStage::Beta, DONE),
    on("ContainerRestartRules", FeatureStage::Beta, DONE),
    off("ContainerStopSignals", FeatureStage::Alpha, DONE),
    on("ContextualLogging", FeatureStage::Beta, DONE),
    off("ControllerManagerReleaseLeaderElectionLockOnExit", FeatureStage::Alpha, ELSEWHERE),
    off("CoordinatedLeaderElection", FeatureStage::Beta, ELSEWHERE),
    off("CPUManagerPolicyAlphaOptions", FeatureStage::Alpha, NOT_YET),
    on("CPUManagerPolicyBetaOptions", FeatureStage::Beta, NOT_YET),
    locked_on("CPUManagerPolicyOptions", FeatureStage::Ga, NOT_YET),
    on("CRDObservedGenerationTracking", FeatureStage::Beta, ELSEWHERE),
    locked_on("CRDValidationRatcheting", FeatureStage::Ga, ELSEWHERE),
    off("CRIListStreaming", FeatureStage::Alpha, NOT_YET),
    off("CrossNamespaceVolumeDataSource", FeatureStage::Alpha, ELSEWHERE),
    locked_on("CSIServiceAccountTokenSecrets", FeatureStage::Ga, DONE),
    off("CSIVolumeHealth", FeatureStage::Alpha, DONE),
    on("CustomCPUCFSQuotaPeriod", FeatureStage::Ga, DONE),
    locked_on("CustomResourceFieldSelectors", FeatureStage::Ga, ELSEWHERE),
    locked_on("DeclarativeValidation", FeatureStage::Ga, ELSEWHERE),
    on("DeclarativeValidationBeta", FeatureStage::Beta, ELSEWHERE),
    off("DeclarativeValidationTakeover", FeatureStage::Deprecated, ELSEWHERE),
    on("DeploymentReplicaSetTerminatingReplicas", FeatureStage::Beta, ELSEWHERE),
    on("DetectCacheInconsistency", FeatureStage::Beta, ELSEWHERE),
    locked_on("DisableAllocatorDualWrite", FeatureStage::Ga, ELSEWHERE),
    on("DisableCPUQuotaWithExclusiveCPUs", FeatureStage::Deprecated, NOT_YET),
    locked_on("DisableNodeKubeProxyVersion", FeatureStage::Deprecated, DONE),
    locked_on("DRAAdminAccess", FeatureStage::Ga, NOT_YET),
    on("DRAConsumableCapacity", FeatureStage::Beta, NOT_YET),
    on("DRADeviceBindingConditions", FeatureStage::Beta, ELSEWHERE),
    off("DRADeviceTaintRules", FeatureStage::Beta, ELSEWHERE),
    on("DRADeviceTaints", FeatureStage::Beta, ELSEWHERE),
    on("DRAExtendedResource", FeatureStage::Beta, NOT_YET),
    off("DRAListTypeAttributes", FeatureStage::Alpha, ELSEWHERE),
    off("DRANodeAllocatableResources", FeatureStage::Alpha, NOT_YET),
    on("DRAPartitionableDevices", FeatureStage::Beta, ELSEWHERE),
    on("DRAPrioritizedList", FeatureStage::Ga, NOT_YET),
    on("DRAResourceClaimDeviceStatus", FeatureStage::Beta, ELSEWHERE),
    on("DRAResourceClaimGranularStatusAuthorization", FeatureStage::Beta, ELSEWHERE),
    off("DRAResourcePoolStatus", FeatureStage::Alpha, ELSEWHERE),
    on("DRASchedulerFilterTimeout", FeatureStage::Beta, ELSEWHERE),
    off("DRAWorkloadResourceClaims", FeatureStage::Alpha, ELSEWHERE),
    locked_on("DynamicResourceAllocation", FeatureStage::Ga, NOT_YET),
    on("EnvFiles", FeatureStage::Beta, DONE),
    off("EventedPLEG", FeatureStage::Alpha, HINTS),
    locked_on("ExecProbeTimeout", FeatureStage::Ga, DONE),
    on("ExtendWebSocketsToKubelet", FeatureStage::Beta, ALWAYS),
    locked_on("ExternalServiceAccountTokenSigner", FeatureStage::Ga, ELSEWHERE),
    off("GangScheduling", FeatureStage::Alpha, ELSEWHERE),
    off("GenericWorkload", FeatureStage::Alpha, ELSEWHERE),
    locked_off(
        "GitRepoVolumeDriver",
        FeatureStage::Deprecated,
        Status::Never("withdrawn upstream"),
    ),
    on("GracefulNodeShutdown", FeatureStage::Beta, DONE),
    on("GracefulNodeShutdownBasedOnPodPriority", FeatureStage::Beta, DONE),
    on("HostnameOverride", FeatureStage::Beta, DONE),
    on("HPAConfigurableTolerance", FeatureStage::Beta, ELSEWHERE),
    off("HPAScaleToZero", FeatureStage::Alpha, ELSEWHERE),
    locked_on("ImageMaximumGCAge", FeatureStage::Ga, DONE),
    locked_on("ImageVolume", FeatureStage::Ga, DONE),
    off("ImageVolumeWithDigest", FeatureStage::Alpha, NOT_YET),
    on("InformerResourceVersion", FeatureStage::Ga, ELSEWHERE),
    locked_on("InOrderInformers", FeatureStage::Ga, ELSEWHERE),
    on("InOrderInformersBatchProcess", FeatureStage::Beta, ELSEWHERE),
    on("InPlacePodLevelResourcesVerticalScaling", FeatureStage::Beta, DONE),
    locked_on("InPlacePodVerticalScaling", FeatureStage::Ga, DONE),
    off("InPlacePodVerticalScalingExclusiveCPUs", FeatureStage::Alpha, NOT_YET),
    off("InPlacePodVerticalScalingExclusiveMemory", FeatureStage::Alpha, NOT_YET),
    on("InPlacePodVerticalScalingInitContainers", FeatureStage::Beta, DONE),
    locked_on("JobBackoffLimitPerIndex", FeatureStage::Ga, ELSEWHERE),
    locked_on("JobManagedBy", FeatureStage::Ga, ELSEWHERE),
    locked_on("JobPodReplacementPolicy", FeatureStage::Ga, ELSEWHERE),
    locked_on("JobSuccessPolicy", FeatureStage::Ga, ELSEWHERE),
    off("KMSv1", FeatureStage::Deprecated, ELSEWHERE),
    locked_on("KubeletCgroupDriverFromCRI", FeatureStage::Ga, DONE),
    on("KubeletCrashLoopBackOffMax", FeatureStage::Beta, DONE),
    on("KubeletEnsureSecretPulledImages", FeatureStage::Beta, DONE),
    locked_on("KubeletFineGrainedAuthz", FeatureStage::Ga, DONE),
    off("KubeletInUserNamespace", FeatureStage::Alpha, NOT_YET),
    locked_on("KubeletPodResourcesDynamicResources", FeatureStage::Ga, NOT_YET),
    locked_on("KubeletPodResourcesGet", FeatureStage::Ga, NOT_YET),
    on("KubeletPodResourcesListUseActivePods", FeatureStage::Deprecated, NOT_YET),
    locked_on("KubeletPSI", FeatureStage::Ga, DONE),
    off("KubeletRegistrationGetOnExistsOnly", FeatureStage::Deprecated, NOT_YET),
    on("KubeletSeparateDiskGC", FeatureStage::Beta, ALWAYS),
    on("KubeletServiceAccountTokenForCredentialProviders", FeatureStage::Beta, DONE),
    locked_on("KubeletTracing", FeatureStage::Ga, NOT_YET),
    on("ListFromCacheSnapshot", FeatureStage::Beta, ELSEWHERE),
    off("LocalStorageCapacityIsolationFSQuotaMonitoring", FeatureStage::Beta, DONE),
    locked_on("LogarithmicScaleDown", FeatureStage::Ga, ELSEWHERE),
    off("LoggingAlphaOptions", FeatureStage::Alpha, NOT_YET),
    on("LoggingBetaOptions", FeatureStage::Beta, DONE),
    off("ManifestBasedAdmissionControlConfig", FeatureStage::Alpha, ELSEWHERE),
    locked_on("MatchLabelKeysInPodAffinity", FeatureStage::Ga, ELSEWHERE),
    on("MatchLabelKeysInPodTopologySpread", FeatureStage::Beta, ELSEWHERE),
    on("MatchLabelKeysInPodTopologySpreadSelectorMerge", FeatureStage::Beta, ELSEWHERE),
    off("MaxUnavailableStatefulSet", FeatureStage::Beta, ELSEWHERE),
    off("MemoryQoS", FeatureStage::Alpha, DONE),
    locked_on("MultiCIDRServiceAllocator", FeatureStage::Ga, ELSEWHERE),
    locked_on("MutableCSINodeAllocatableCount", FeatureStage::Ga, DONE),
    on("MutablePodResourcesForSuspendedJobs", FeatureStage::Beta, ELSEWHERE),
    off("MutablePVNodeAffinity", FeatureStage::Alpha, ELSEWHERE),
    on("MutableSchedulingDirectivesForSuspendedJobs", FeatureStage::Beta, ELSEWHERE),
    on("MutatingAdmissionPolicy", FeatureStage::Ga, ELSEWHERE),
    off("NativeHistograms", FeatureStage::Alpha, ELSEWHERE),
    locked_on("NFTablesProxyMode", FeatureStage::Ga, ELSEWHERE),
    on("NodeDeclaredFeatures", FeatureStage::Beta, DONE),
    locked_on("NodeInclusionPolicyInPodTopologySpread", FeatureStage::Ga, ELSEWHERE),
    locked_on("NodeLogQuery", FeatureStage::Ga, DONE),
    locked_on("NodeSwap", FeatureStage::Ga, DONE),
    on("NominatedNodeNameForExpectation", FeatureStage::Beta, ELSEWHERE),
    on("OpenAPIEnums", FeatureStage::Beta, ELSEWHERE),
    on("OpportunisticBatching", FeatureStage::Beta, ELSEWHERE),
    locked_on("OrderedNamespaceDeletion", FeatureStage::Ga, ELSEWHERE),
    off("PersistentVolumeClaimUnusedSinceTime", FeatureStage::Alpha, ELSEWHERE),
    on("PLEGOnDemandRelist", FeatureStage::Beta, HINTS),
    off("PodAndContainerStatsFromCRI", FeatureStage::Alpha, NOT_YET),
    off("PodCertificateRequest", FeatureStage::Beta, DONE),
    on("PodDeletionCost", FeatureStage::Beta, ELSEWHERE),
    off("PodLevelResourceManagers", FeatureStage::Alpha, NOT_YET),
    on("PodLevelResources", FeatureStage::Beta, DONE),
    locked_on("PodLifecycleSleepAction", FeatureStage::Ga, DONE),
    locked_on("PodLifecycleSleepActionAllowZero", FeatureStage::Ga, DONE),
    off("PodLogsQuerySplitStreams", FeatureStage::Alpha, NOT_YET),
    locked_on("PodObservedGenerationTracking", FeatureStage::Ga, DONE),
    on("PodReadyToStartContainersCondition", FeatureStage::Beta, DONE),
    off("PodsAPI", FeatureStage::Alpha, NOT_YET),
    locked_on("PodSchedulingReadiness", FeatureStage::Ga, ELSEWHERE),
    on("PodTopologyLabelsAdmission", FeatureStage::Beta, ELSEWHERE),
    on("PortForwardWebsockets", FeatureStage::Beta, ELSEWHERE),
    locked_on("PreferSameTrafficDistribution", FeatureStage::Ga, ELSEWHERE),
    on("PreventStaticPodAPIReferences", FeatureStage::Beta, DONE),
    locked_on("ProcMountType", FeatureStage::Ga, DONE),
    off("QOSReserved", FeatureStage::Alpha, NOT_YET),
    locked_on("RecoverVolumeExpansionFailure", FeatureStage::Ga, DONE),
    locked_on("RecursiveReadOnlyMounts", FeatureStage::Ga, DONE),
    off("ReduceDefaultCrashLoopBackOffDecay", FeatureStage::Alpha, DONE),
    locked_on("RelaxedDNSSearchValidation", FeatureStage::Ga, DONE),
    locked_on("RelaxedEnvironmentVariableValidation", FeatureStage::Ga, DONE),
    on("RelaxedServiceNameValidation", FeatureStage::Beta, ELSEWHERE),
    on("ReloadKubeletClientCAFile", FeatureStage::Beta, ALWAYS),
    on("ReloadKubeletServerCertificateFile", FeatureStage::Beta, ALWAYS),
    on("RemoteRequestHeaderUID", FeatureStage::Beta, ELSEWHERE),
    locked_on("ResilientWatchCacheInitialization", FeatureStage::Ga, ELSEWHERE),
    on("ResourceHealthStatus", FeatureStage::Beta, NOT_YET),
    on("ResourceHealthStatusMessage", FeatureStage::Beta, NOT_YET),
    on("RestartAllContainersOnContainerExits", FeatureStage::Beta, DONE),
    locked_on("RetryGenerateName", FeatureStage::Ga, ELSEWHERE),
    on("RotateKubeletServerCertificate", FeatureStage::Beta, DONE),
    off("RuntimeClassInImageCriApi", FeatureStage::Alpha, NOT_YET),
    off("SchedulerAsyncAPICalls", FeatureStage::Beta, ELSEWHERE),
    on("SchedulerAsyncPreemption", FeatureStage::Beta, ELSEWHERE),
    on("SchedulerPopFromBackoffQ", FeatureStage::Beta, ELSEWHERE),
    locked_on("SchedulerQueueingHints", FeatureStage::Ga, ELSEWHERE),
    locked_on("SELinuxChangePolicy", FeatureStage::Ga, DONE),
    off("SELinuxMount", FeatureStage::Beta, DONE),
    locked_on("SELinuxMountReadWriteOncePod", FeatureStage::Ga, DONE),
    locked_off("SeparateCacheWatchRPC", FeatureStage::Deprecated, ELSEWHERE),
    locked_on("SeparateTaintEvictionController", FeatureStage::Ga, ELSEWHERE),
    on("ServiceAccountNodeAudienceRestriction", FeatureStage::Beta, ELSEWHERE),
    locked_on("ServiceAccountTokenJTI", FeatureStage::Ga, ELSEWHERE),
    locked_on("ServiceAccountTokenNodeBinding", FeatureStage::Ga, ELSEWHERE),
    locked_on("ServiceAccountTokenNodeBindingValidation", FeatureStage::Ga, ELSEWHERE),
    locked_on("ServiceAccountTokenPodNodeInfo", FeatureStage::Ga, ELSEWHERE),
    on("ServiceCIDRStatusFieldWiping", FeatureStage::Deprecated, ELSEWHERE),
    off("ShardedListAndWatch", FeatureStage::Alpha, ELSEWHERE),
    locked_on("SidecarContainers", FeatureStage::Ga, DONE),
    on("SizeBasedListCostEstimate", FeatureStage::Beta, ELSEWHERE),
    on("StaleControllerConsistencyDaemonSet", FeatureStage::Beta, ELSEWHERE),
    on("StaleControllerConsistencyJob", FeatureStage::Beta, ELSEWHERE),
    on("StaleControllerConsistencyReplicaSet", FeatureStage::Beta, ELSEWHERE),
    on("StaleControllerConsistencyStatefulSet", FeatureStage::Beta, ELSEWHERE),
    on("StatefulSetSemanticRevisionComparison", FeatureStage::Beta, ELSEWHERE),
    off("StorageCapacityScoring", FeatureStage::Alpha, ELSEWHERE),
    on("StorageNamespaceIndex", FeatureStage::Deprecated, ELSEWHERE),
    off("StorageVersionAPI", FeatureStage::Alpha, ELSEWHERE),
    on("StorageVersionHash", FeatureStage::Beta, ELSEWHERE),
    off("StorageVersionMigrator", FeatureStage::Beta, ELSEWHERE),
    locked_on("StreamingCollectionEncodingToJSON", FeatureStage::Ga, ELSEWHERE),
    locked_on("StreamingCollectionEncodingToProtobuf", FeatureStage::Ga, ELSEWHERE),
    on("StrictIPCIDRValidation", FeatureStage::Beta, ELSEWHERE),
    locked_on("StructuredAuthenticationConfiguration", FeatureStage::Ga, ELSEWHERE),
    on("StructuredAuthenticationConfigurationEgressSelector", FeatureStage::Beta, ELSEWHERE),
    on("StructuredAuthenticationConfigurationJWKSMetrics", FeatureStage::Beta, ELSEWHERE),
    locked_on("SupplementalGroupsPolicy", FeatureStage::Ga, DONE),
    locked_on("SystemdWatchdog", FeatureStage::Ga, DONE),
    off("TaintTolerationComparisonOperators", FeatureStage::Alpha, NOT_YET),
    on("TokenRequestServiceAccountUIDValidation", FeatureStage::Beta, ELSEWHERE),
    off("TopologyAwareWorkloadScheduling", FeatureStage::Alpha, ELSEWHERE),
    off("TopologyManagerPolicyAlphaOptions", FeatureStage::Alpha, NOT_YET),
    on("TopologyManagerPolicyBetaOptions", FeatureStage::Beta, NOT_YET),
    locked_on("TopologyManagerPolicyOptions", FeatureStage::Ga, NOT_YET),
    on("TranslateStreamCloseWebsocketRequests", FeatureStage::Beta, ELSEWHERE),
    on("UnauthenticatedHTTP2DOSMitigation", FeatureStage::Beta, ELSEWHERE),
    on("UnknownVersionInteroperabilityProxy", FeatureStage::Beta, ELSEWHERE),
    on("UnlockWhileProcessingFIFO", FeatureStage::Beta, ELSEWHERE),
    off("UserNamespacesHostNetworkSupport", FeatureStage::Alpha, NOT_YET),
    locked_on("UserNamespacesSupport", FeatureStage::Ga, DONE),
    locked_on("VolumeAttributesClass", FeatureStage::Ga, ELSEWHERE),
    off("VolumeLimitScaling", FeatureStage::Alpha, ELSEWHERE),
    on("WatchCacheInitializationPostStartHook", FeatureStage::Beta, ELSEWHERE),
    on("WatchList", FeatureStage::Beta, ELSEWHERE),
    on("WatchListClient", FeatureStage::Beta, ELSEWHERE),
    off("WindowsCPUAndMemoryAffinity", FeatureStage::Alpha, ELSEWHERE),
    on("WindowsGracefulNodeShutdown", FeatureStage::Beta, ELSEWHERE),
    off("WindowsHostNetwork", FeatureStage::Deprecated, ELSEWHERE),
    locked_on("WinDSR", FeatureStage::Ga, ELSEWHERE),
    locked_on("WinOverlay", FeatureStage::Ga, ELSEWHERE),
    off("WorkloadAwarePreemption", FeatureStage::Alpha, ELSEWHERE),
    off("WorkloadWithJob", FeatureStage::Alpha, ELSEWHERE),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigError, FeatureGates};
    use pintle_config::gates::NEEDS;

    fn gates(asked: &[(&str, bool)]) -> Result<FeatureGates, Vec<ConfigError>> {
        FeatureGates::new(&asked.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect())
    }

    #[test]
    fn defaults_hold_until_a_gate_is_switched() {
        let gates = gates(&[("EventedPLEG", true), ("EnvFiles", false)]).expect("valid");
        assert!(gates.enabled("EventedPLEG"));
        assert!(!gates.enabled("EnvFiles"));
        assert!(gates.enabled("SidecarContainers"));
        assert!(!gates.enabled("NoSuchGate"));
    }

    #[test]
    fn a_whole_stage_is_switched_before_single_gates() {
        let gates = gates(&[("AllAlpha", true), ("EventedPLEG", false)]).expect("valid");
        assert!(gates.enabled("MemoryQoS"));
        assert!(!gates.enabled("EventedPLEG"));
    }

    #[test]
    fn unknown_and_locked_gates_are_reported_together() {
        let asked = [("SideCarContainers", true), ("NodeSwap", false), ("KubeletPSI", true)];
        let errors = gates(&asked).expect_err("two are wrong");
        let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(text.len(), 2, "{text:?}");
        assert!(text[0].contains("NodeSwap is locked to true"), "{text:?}");
        assert!(text[1].contains("did you mean SidecarContainers"), "{text:?}");
    }

    #[test]
    fn gate_with_a_disabled_dependency_is_rejected() {
        let default = gates(&[]).expect("the defaults need nothing that is off");
        let parts = NEEDS.iter().flat_map(|(gate, needs)| needs.iter().chain([gate]));
        for name in parts {
            assert!(GATES.iter().any(|gate| gate.name == *name), "{name}");
        }
        for (gate, needs) in NEEDS {
            let off = (needs[0], false);
            let errors = gates(&[(*gate, true), off]).expect_err("it lacks one");
            let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            let (gate, needed) =
                (format!("{gate}=true"), format!("depends on {}, which", needs[0]));
            assert!(text.contains(&gate) && text.contains(&needed), "{text}");
        }
        assert!(gates(&[("ClusterTrustBundleProjection", true)]).is_err());
        let without: Vec<(&str, bool)> = NEEDS
            .iter()
            .filter(|(gate, needs)| {
                default.enabled(gate) && needs.contains(&"NodeDeclaredFeatures")
            })
            .map(|(gate, _)| (*gate, false))
            .chain([("NodeDeclaredFeatures", false)])
            .collect();
        assert!(gates(&without).is_ok(), "{without:?}");
    }

    #[test]
    fn names_are_unique_and_only_finished_gates_are_locked() {
        for (index, gate) in GATES.iter().enumerate() {
            assert!(GATES[..index].iter().all(|other| other.name != gate.name), "{}", gate.name);
            if gate.locked {
                assert!(
                    matches!(gate.stage, FeatureStage::Ga | FeatureStage::Deprecated),
                    "{}",
                    gate.name
                );
            }
        }
    }
}
