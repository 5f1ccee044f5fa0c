//! The feature gates a 1.36 kubelet accepts, with their stage and default.
//!
//! Output: [`GATES`], the known names with their defaults and whether they may be switched, also
//! for the tables of docs/COMPAT.md. The kubelet accepts the gates of all components, so they are
//! all here: one list for a whole cluster must not stop a node from starting.
//!
//! // k8s: test/compatibility_lifecycle/reference/versioned_feature_list.yaml

use super::acted_on::Status::{self, Done as DONE};

pub use pintle_config::gates::{Gate, Stage};

const fn on(name: &'static str, stage: Stage, status: Status) -> Gate {
    Gate::on(name, stage, status)
}

const fn off(name: &'static str, stage: Stage, status: Status) -> Gate {
    Gate::off(name, stage, status)
}

const fn locked_on(name: &'static str, stage: Stage, status: Status) -> Gate {
    Gate::on(name, stage, status).locked()
}

const fn locked_off(name: &'static str, stage: Stage, status: Status) -> Gate {
    Gate::off(name, stage, status).locked()
}

const NOT_YET: Status = Status::NotYet("the feature is not built");
const ALWAYS: Status = Status::Never("built, and always on: there is no older way to go back to");
const ELSEWHERE: Status = Status::Never("concerns other components");
const HINTS: Status = Status::Never("events are always hints here, with a read behind each");

/// Every gate, by name.
pub const GATES: &[Gate] = &[
    locked_on("AggregatedDiscoveryRemoveBetaType", Stage::Deprecated, ELSEWHERE),
    off("AllowDNSOnlyNodeCSR", Stage::Deprecated, NOT_YET),
    off("AllowInsecureKubeletCertificateSigningRequests", Stage::Deprecated, ELSEWHERE),
    locked_off("AllowOverwriteTerminationGracePeriodSeconds", Stage::Deprecated, ELSEWHERE),
    on("AllowParsingUserUIDFromCertAuth", Stage::Beta, ELSEWHERE),
    on("AllowServiceExternalIPs", Stage::Ga, ELSEWHERE),
    off("AllowUnsafeMalformedObjectDeletion", Stage::Alpha, ELSEWHERE),
    locked_on("AnonymousAuthConfigurableEndpoints", Stage::Ga, ELSEWHERE),
    locked_on("AnyVolumeDataSource", Stage::Ga, ELSEWHERE),
    on("APIResponseCompression", Stage::Beta, ELSEWHERE),
    on("APIServerIdentity", Stage::Beta, ELSEWHERE),
    locked_on("APIServerTracing", Stage::Ga, ELSEWHERE),
    off("APIServingWithRoutine", Stage::Alpha, ELSEWHERE),
    on("AtomicFIFO", Stage::Beta, ELSEWHERE),
    locked_on("AuthorizeNodeWithSelectors", Stage::Ga, ELSEWHERE),
    on("AuthorizePodWebsocketUpgradeCreatePermission", Stage::Beta, ELSEWHERE),
    locked_on("AuthorizeWithSelectors", Stage::Ga, ELSEWHERE),
    locked_on("BtreeWatchCache", Stage::Ga, ELSEWHERE),
    off("CBORServingAndStorage", Stage::Alpha, ELSEWHERE),
    off("ChangeContainerStatusOnKubeletRestart", Stage::Deprecated, NOT_YET),
    on("ClearingNominatedNodeNameAfterBinding", Stage::Beta, ELSEWHERE),
    on("ClientsAllowCARotation", Stage::Beta, ELSEWHERE),
    off("ClientsAllowCBOR", Stage::Alpha, ELSEWHERE),
    on("ClientsAllowTLSCacheGC", Stage::Beta, ELSEWHERE),
    off("ClientsPreferCBOR", Stage::Alpha, ELSEWHERE),
    off("CloudControllerManagerWatchBasedRoutesReconciliation", Stage::Alpha, ELSEWHERE),
    off("CloudControllerManagerWebhook", Stage::Alpha, ELSEWHERE),
    off("ClusterTrustBundle", Stage::Beta, ELSEWHERE),
    off("ClusterTrustBundleProjection", Stage::Beta, DONE),
    on("ComponentFlagz", Stage::Beta, DONE),
    on("ComponentStatusz", Stage::Beta, DONE),
    off("ConcurrentWatchObjectDecode", Stage::Beta, ELSEWHERE),
    locked_on("ConsistentListFromCache", Stage::Ga, ELSEWHERE),
    on("ConstrainedImpersonation", Stage::Beta, ELSEWHERE),
    on("ContainerCheckpoint", Stage::Beta, DONE),
    on("ContainerRestartRules", Stage::Beta, DONE),
    off("ContainerStopSignals", Stage::Alpha, DONE),
    on("ContextualLogging", Stage::Beta, DONE),
    off("ControllerManagerReleaseLeaderElectionLockOnExit", Stage::Alpha, ELSEWHERE),
    off("CoordinatedLeaderElection", Stage::Beta, ELSEWHERE),
    off("CPUManagerPolicyAlphaOptions", Stage::Alpha, NOT_YET),
    on("CPUManagerPolicyBetaOptions", Stage::Beta, NOT_YET),
    locked_on("CPUManagerPolicyOptions", Stage::Ga, NOT_YET),
    on("CRDObservedGenerationTracking", Stage::Beta, ELSEWHERE),
    locked_on("CRDValidationRatcheting", Stage::Ga, ELSEWHERE),
    off("CRIListStreaming", Stage::Alpha, NOT_YET),
    off("CrossNamespaceVolumeDataSource", Stage::Alpha, ELSEWHERE),
    locked_on("CSIServiceAccountTokenSecrets", Stage::Ga, DONE),
    off("CSIVolumeHealth", Stage::Alpha, DONE),
    on("CustomCPUCFSQuotaPeriod", Stage::Ga, DONE),
    locked_on("CustomResourceFieldSelectors", Stage::Ga, ELSEWHERE),
    locked_on("DeclarativeValidation", Stage::Ga, ELSEWHERE),
    on("DeclarativeValidationBeta", Stage::Beta, ELSEWHERE),
    off("DeclarativeValidationTakeover", Stage::Deprecated, ELSEWHERE),
    on("DeploymentReplicaSetTerminatingReplicas", Stage::Beta, ELSEWHERE),
    on("DetectCacheInconsistency", Stage::Beta, ELSEWHERE),
    locked_on("DisableAllocatorDualWrite", Stage::Ga, ELSEWHERE),
    on("DisableCPUQuotaWithExclusiveCPUs", Stage::Deprecated, NOT_YET),
    locked_on("DisableNodeKubeProxyVersion", Stage::Deprecated, DONE),
    locked_on("DRAAdminAccess", Stage::Ga, NOT_YET),
    on("DRAConsumableCapacity", Stage::Beta, NOT_YET),
    on("DRADeviceBindingConditions", Stage::Beta, ELSEWHERE),
    off("DRADeviceTaintRules", Stage::Beta, ELSEWHERE),
    on("DRADeviceTaints", Stage::Beta, ELSEWHERE),
    on("DRAExtendedResource", Stage::Beta, NOT_YET),
    off("DRAListTypeAttributes", Stage::Alpha, ELSEWHERE),
    off("DRANodeAllocatableResources", Stage::Alpha, NOT_YET),
    on("DRAPartitionableDevices", Stage::Beta, ELSEWHERE),
    on("DRAPrioritizedList", Stage::Ga, NOT_YET),
    on("DRAResourceClaimDeviceStatus", Stage::Beta, ELSEWHERE),
    on("DRAResourceClaimGranularStatusAuthorization", Stage::Beta, ELSEWHERE),
    off("DRAResourcePoolStatus", Stage::Alpha, ELSEWHERE),
    on("DRASchedulerFilterTimeout", Stage::Beta, ELSEWHERE),
    off("DRAWorkloadResourceClaims", Stage::Alpha, ELSEWHERE),
    locked_on("DynamicResourceAllocation", Stage::Ga, NOT_YET),
    on("EnvFiles", Stage::Beta, DONE),
    off("EventedPLEG", Stage::Alpha, HINTS),
    locked_on("ExecProbeTimeout", Stage::Ga, DONE),
    on("ExtendWebSocketsToKubelet", Stage::Beta, ALWAYS),
    locked_on("ExternalServiceAccountTokenSigner", Stage::Ga, ELSEWHERE),
    off("GangScheduling", Stage::Alpha, ELSEWHERE),
    off("GenericWorkload", Stage::Alpha, ELSEWHERE),
    locked_off("GitRepoVolumeDriver", Stage::Deprecated, Status::Never("withdrawn upstream")),
    on("GracefulNodeShutdown", Stage::Beta, DONE),
    on("GracefulNodeShutdownBasedOnPodPriority", Stage::Beta, DONE),
    on("HostnameOverride", Stage::Beta, DONE),
    on("HPAConfigurableTolerance", Stage::Beta, ELSEWHERE),
    off("HPAScaleToZero", Stage::Alpha, ELSEWHERE),
    locked_on("ImageMaximumGCAge", Stage::Ga, DONE),
    locked_on("ImageVolume", Stage::Ga, DONE),
    off("ImageVolumeWithDigest", Stage::Alpha, NOT_YET),
    on("InformerResourceVersion", Stage::Ga, ELSEWHERE),
    locked_on("InOrderInformers", Stage::Ga, ELSEWHERE),
    on("InOrderInformersBatchProcess", Stage::Beta, ELSEWHERE),
    on("InPlacePodLevelResourcesVerticalScaling", Stage::Beta, DONE),
    locked_on("InPlacePodVerticalScaling", Stage::Ga, DONE),
    off("InPlacePodVerticalScalingExclusiveCPUs", Stage::Alpha, NOT_YET),
    off("InPlacePodVerticalScalingExclusiveMemory", Stage::Alpha, NOT_YET),
    on("InPlacePodVerticalScalingInitContainers", Stage::Beta, DONE),
    locked_on("JobBackoffLimitPerIndex", Stage::Ga, ELSEWHERE),
    locked_on("JobManagedBy", Stage::Ga, ELSEWHERE),
    locked_on("JobPodReplacementPolicy", Stage::Ga, ELSEWHERE),
    locked_on("JobSuccessPolicy", Stage::Ga, ELSEWHERE),
    off("KMSv1", Stage::Deprecated, ELSEWHERE),
    locked_on("KubeletCgroupDriverFromCRI", Stage::Ga, DONE),
    on("KubeletCrashLoopBackOffMax", Stage::Beta, DONE),
    on("KubeletEnsureSecretPulledImages", Stage::Beta, DONE),
    locked_on("KubeletFineGrainedAuthz", Stage::Ga, DONE),
    off("KubeletInUserNamespace", Stage::Alpha, NOT_YET),
    locked_on("KubeletPodResourcesDynamicResources", Stage::Ga, NOT_YET),
    locked_on("KubeletPodResourcesGet", Stage::Ga, NOT_YET),
    on("KubeletPodResourcesListUseActivePods", Stage::Deprecated, NOT_YET),
    locked_on("KubeletPSI", Stage::Ga, DONE),
    off("KubeletRegistrationGetOnExistsOnly", Stage::Deprecated, NOT_YET),
    on("KubeletSeparateDiskGC", Stage::Beta, ALWAYS),
    on("KubeletServiceAccountTokenForCredentialProviders", Stage::Beta, DONE),
    locked_on("KubeletTracing", Stage::Ga, NOT_YET),
    on("ListFromCacheSnapshot", Stage::Beta, ELSEWHERE),
    off("LocalStorageCapacityIsolationFSQuotaMonitoring", Stage::Beta, DONE),
    locked_on("LogarithmicScaleDown", Stage::Ga, ELSEWHERE),
    off("LoggingAlphaOptions", Stage::Alpha, NOT_YET),
    on("LoggingBetaOptions", Stage::Beta, DONE),
    off("ManifestBasedAdmissionControlConfig", Stage::Alpha, ELSEWHERE),
    locked_on("MatchLabelKeysInPodAffinity", Stage::Ga, ELSEWHERE),
    on("MatchLabelKeysInPodTopologySpread", Stage::Beta, ELSEWHERE),
    on("MatchLabelKeysInPodTopologySpreadSelectorMerge", Stage::Beta, ELSEWHERE),
    off("MaxUnavailableStatefulSet", Stage::Beta, ELSEWHERE),
    off("MemoryQoS", Stage::Alpha, DONE),
    locked_on("MultiCIDRServiceAllocator", Stage::Ga, ELSEWHERE),
    locked_on("MutableCSINodeAllocatableCount", Stage::Ga, DONE),
    on("MutablePodResourcesForSuspendedJobs", Stage::Beta, ELSEWHERE),
    off("MutablePVNodeAffinity", Stage::Alpha, ELSEWHERE),
    on("MutableSchedulingDirectivesForSuspendedJobs", Stage::Beta, ELSEWHERE),
    on("MutatingAdmissionPolicy", Stage::Ga, ELSEWHERE),
    off("NativeHistograms", Stage::Alpha, ELSEWHERE),
    locked_on("NFTablesProxyMode", Stage::Ga, ELSEWHERE),
    on("NodeDeclaredFeatures", Stage::Beta, DONE),
    locked_on("NodeInclusionPolicyInPodTopologySpread", Stage::Ga, ELSEWHERE),
    locked_on("NodeLogQuery", Stage::Ga, DONE),
    locked_on("NodeSwap", Stage::Ga, DONE),
    on("NominatedNodeNameForExpectation", Stage::Beta, ELSEWHERE),
    on("OpenAPIEnums", Stage::Beta, ELSEWHERE),
    on("OpportunisticBatching", Stage::Beta, ELSEWHERE),
    locked_on("OrderedNamespaceDeletion", Stage::Ga, ELSEWHERE),
    off("PersistentVolumeClaimUnusedSinceTime", Stage::Alpha, ELSEWHERE),
    on("PLEGOnDemandRelist", Stage::Beta, HINTS),
    off("PodAndContainerStatsFromCRI", Stage::Alpha, NOT_YET),
    off("PodCertificateRequest", Stage::Beta, DONE),
    on("PodDeletionCost", Stage::Beta, ELSEWHERE),
    off("PodLevelResourceManagers", Stage::Alpha, NOT_YET),
    on("PodLevelResources", Stage::Beta, DONE),
    locked_on("PodLifecycleSleepAction", Stage::Ga, DONE),
    locked_on("PodLifecycleSleepActionAllowZero", Stage::Ga, DONE),
    off("PodLogsQuerySplitStreams", Stage::Alpha, NOT_YET),
    locked_on("PodObservedGenerationTracking", Stage::Ga, DONE),
    on("PodReadyToStartContainersCondition", Stage::Beta, DONE),
    off("PodsAPI", Stage::Alpha, NOT_YET),
    locked_on("PodSchedulingReadiness", Stage::Ga, ELSEWHERE),
    on("PodTopologyLabelsAdmission", Stage::Beta, ELSEWHERE),
    on("PortForwardWebsockets", Stage::Beta, ELSEWHERE),
    locked_on("PreferSameTrafficDistribution", Stage::Ga, ELSEWHERE),
    on("PreventStaticPodAPIReferences", Stage::Beta, DONE),
    locked_on("ProcMountType", Stage::Ga, DONE),
    off("QOSReserved", Stage::Alpha, NOT_YET),
    locked_on("RecoverVolumeExpansionFailure", Stage::Ga, DONE),
    locked_on("RecursiveReadOnlyMounts", Stage::Ga, DONE),
    off("ReduceDefaultCrashLoopBackOffDecay", Stage::Alpha, DONE),
    locked_on("RelaxedDNSSearchValidation", Stage::Ga, DONE),
    locked_on("RelaxedEnvironmentVariableValidation", Stage::Ga, DONE),
    on("RelaxedServiceNameValidation", Stage::Beta, ELSEWHERE),
    on("ReloadKubeletClientCAFile", Stage::Beta, ALWAYS),
    on("ReloadKubeletServerCertificateFile", Stage::Beta, ALWAYS),
    on("RemoteRequestHeaderUID", Stage::Beta, ELSEWHERE),
    locked_on("ResilientWatchCacheInitialization", Stage::Ga, ELSEWHERE),
    on("ResourceHealthStatus", Stage::Beta, NOT_YET),
    on("ResourceHealthStatusMessage", Stage::Beta, NOT_YET),
    on("RestartAllContainersOnContainerExits", Stage::Beta, DONE),
    locked_on("RetryGenerateName", Stage::Ga, ELSEWHERE),
    on("RotateKubeletServerCertificate", Stage::Beta, DONE),
    off("RuntimeClassInImageCriApi", Stage::Alpha, NOT_YET),
    off("SchedulerAsyncAPICalls", Stage::Beta, ELSEWHERE),
    on("SchedulerAsyncPreemption", Stage::Beta, ELSEWHERE),
    on("SchedulerPopFromBackoffQ", Stage::Beta, ELSEWHERE),
    locked_on("SchedulerQueueingHints", Stage::Ga, ELSEWHERE),
    locked_on("SELinuxChangePolicy", Stage::Ga, NOT_YET),
    off("SELinuxMount", Stage::Beta, NOT_YET),
    locked_on("SELinuxMountReadWriteOncePod", Stage::Ga, NOT_YET),
    locked_off("SeparateCacheWatchRPC", Stage::Deprecated, ELSEWHERE),
    locked_on("SeparateTaintEvictionController", Stage::Ga, ELSEWHERE),
    on("ServiceAccountNodeAudienceRestriction", Stage::Beta, ELSEWHERE),
    locked_on("ServiceAccountTokenJTI", Stage::Ga, ELSEWHERE),
    locked_on("ServiceAccountTokenNodeBinding", Stage::Ga, ELSEWHERE),
    locked_on("ServiceAccountTokenNodeBindingValidation", Stage::Ga, ELSEWHERE),
    locked_on("ServiceAccountTokenPodNodeInfo", Stage::Ga, ELSEWHERE),
    on("ServiceCIDRStatusFieldWiping", Stage::Deprecated, ELSEWHERE),
    off("ShardedListAndWatch", Stage::Alpha, ELSEWHERE),
    locked_on("SidecarContainers", Stage::Ga, DONE),
    on("SizeBasedListCostEstimate", Stage::Beta, ELSEWHERE),
    on("StaleControllerConsistencyDaemonSet", Stage::Beta, ELSEWHERE),
    on("StaleControllerConsistencyJob", Stage::Beta, ELSEWHERE),
    on("StaleControllerConsistencyReplicaSet", Stage::Beta, ELSEWHERE),
    on("StaleControllerConsistencyStatefulSet", Stage::Beta, ELSEWHERE),
    on("StatefulSetSemanticRevisionComparison", Stage::Beta, ELSEWHERE),
    off("StorageCapacityScoring", Stage::Alpha, ELSEWHERE),
    on("StorageNamespaceIndex", Stage::Deprecated, ELSEWHERE),
    off("StorageVersionAPI", Stage::Alpha, ELSEWHERE),
    on("StorageVersionHash", Stage::Beta, ELSEWHERE),
    off("StorageVersionMigrator", Stage::Beta, ELSEWHERE),
    locked_on("StreamingCollectionEncodingToJSON", Stage::Ga, ELSEWHERE),
    locked_on("StreamingCollectionEncodingToProtobuf", Stage::Ga, ELSEWHERE),
    on("StrictIPCIDRValidation", Stage::Beta, ELSEWHERE),
    locked_on("StructuredAuthenticationConfiguration", Stage::Ga, ELSEWHERE),
    on("StructuredAuthenticationConfigurationEgressSelector", Stage::Beta, ELSEWHERE),
    on("StructuredAuthenticationConfigurationJWKSMetrics", Stage::Beta, ELSEWHERE),
    locked_on("SupplementalGroupsPolicy", Stage::Ga, DONE),
    locked_on("SystemdWatchdog", Stage::Ga, DONE),
    off("TaintTolerationComparisonOperators", Stage::Alpha, NOT_YET),
    on("TokenRequestServiceAccountUIDValidation", Stage::Beta, ELSEWHERE),
    off("TopologyAwareWorkloadScheduling", Stage::Alpha, ELSEWHERE),
    off("TopologyManagerPolicyAlphaOptions", Stage::Alpha, NOT_YET),
    on("TopologyManagerPolicyBetaOptions", Stage::Beta, NOT_YET),
    locked_on("TopologyManagerPolicyOptions", Stage::Ga, NOT_YET),
    on("TranslateStreamCloseWebsocketRequests", Stage::Beta, ELSEWHERE),
    on("UnauthenticatedHTTP2DOSMitigation", Stage::Beta, ELSEWHERE),
    on("UnknownVersionInteroperabilityProxy", Stage::Beta, ELSEWHERE),
    on("UnlockWhileProcessingFIFO", Stage::Beta, ELSEWHERE),
    off("UserNamespacesHostNetworkSupport", Stage::Alpha, NOT_YET),
    locked_on("UserNamespacesSupport", Stage::Ga, DONE),
    locked_on("VolumeAttributesClass", Stage::Ga, ELSEWHERE),
    off("VolumeLimitScaling", Stage::Alpha, ELSEWHERE),
    on("WatchCacheInitializationPostStartHook", Stage::Beta, ELSEWHERE),
    on("WatchList", Stage::Beta, ELSEWHERE),
    on("WatchListClient", Stage::Beta, ELSEWHERE),
    off("WindowsCPUAndMemoryAffinity", Stage::Alpha, ELSEWHERE),
    on("WindowsGracefulNodeShutdown", Stage::Beta, ELSEWHERE),
    off("WindowsHostNetwork", Stage::Deprecated, ELSEWHERE),
    locked_on("WinDSR", Stage::Ga, ELSEWHERE),
    locked_on("WinOverlay", Stage::Ga, ELSEWHERE),
    off("WorkloadAwarePreemption", Stage::Alpha, ELSEWHERE),
    off("WorkloadWithJob", Stage::Alpha, ELSEWHERE),
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
    fn gates_need_others() {
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
                assert!(matches!(gate.stage, Stage::Ga | Stage::Deprecated), "{}", gate.name);
            }
        }
    }
}
