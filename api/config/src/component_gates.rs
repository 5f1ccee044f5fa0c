//! The feature gates that every component of a 1.36 control plane accepts, with stage and default.
//!
//! Output: [`GATES`] and [`with`], from which a component makes its table: its support of each
//! gate. Components accept the gates of all components, because one list for a whole cluster must
//! not stop one of them from starting.
// k8s: test/compatibility_lifecycle/reference/versioned_feature_list.yaml

use crate::gates::{FeatureGate, FeatureStage};
use crate::status::Status;

/// Status of gates that a component does not name.
const ELSEWHERE: Status = Status::Never("concerns other components");

/// The number of gates.
pub const COUNT: usize = 240;

const fn on(name: &'static str, stage: FeatureStage) -> FeatureGate {
    FeatureGate::on(name, stage, ELSEWHERE)
}

const fn off(name: &'static str, stage: FeatureStage) -> FeatureGate {
    FeatureGate::off(name, stage, ELSEWHERE)
}

const fn locked_on(name: &'static str, stage: FeatureStage) -> FeatureGate {
    FeatureGate::on(name, stage, ELSEWHERE).locked()
}

const fn locked_off(name: &'static str, stage: FeatureStage) -> FeatureGate {
    FeatureGate::off(name, stage, ELSEWHERE).locked()
}

/// All gates, for a component that does these things with those it names.
///
/// # Panics
/// When compiled with a name that no gate has.
pub const fn with(named: &[(&str, Status)]) -> [FeatureGate; COUNT] {
    let mut gates = GATES;
    let mut next = 0;
    while next < named.len() {
        let (name, status) = named[next];
        let mut at = 0;
        while at < COUNT && !is_equal(gates[at].name, name) {
            at += 1;
        }
        assert!(at < COUNT, "no gate has this name");
        gates[at].status = status;
        next += 1;
    }
    gates
}

const fn is_equal(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// Every gate, by name.
pub const GATES: [FeatureGate; COUNT] = [
    locked_on("AggregatedDiscoveryRemoveBetaType", FeatureStage::Deprecated),
    off("AllowDNSOnlyNodeCSR", FeatureStage::Deprecated),
    off("AllowInsecureKubeletCertificateSigningRequests", FeatureStage::Deprecated),
    locked_off("AllowOverwriteTerminationGracePeriodSeconds", FeatureStage::Deprecated),
    on("AllowParsingUserUIDFromCertAuth", FeatureStage::Beta),
    on("AllowServiceExternalIPs", FeatureStage::Ga),
    off("AllowUnsafeMalformedObjectDeletion", FeatureStage::Alpha),
    locked_on("AnonymousAuthConfigurableEndpoints", FeatureStage::Ga),
    locked_on("AnyVolumeDataSource", FeatureStage::Ga),
    on("APIResponseCompression", FeatureStage::Beta),
    on("APIServerIdentity", FeatureStage::Beta),
    locked_on("APIServerTracing", FeatureStage::Ga),
    off("APIServingWithRoutine", FeatureStage::Alpha),
    on("AtomicFIFO", FeatureStage::Beta),
    locked_on("AuthorizeNodeWithSelectors", FeatureStage::Ga),
    on("AuthorizePodWebsocketUpgradeCreatePermission", FeatureStage::Beta),
    locked_on("AuthorizeWithSelectors", FeatureStage::Ga),
    locked_on("BtreeWatchCache", FeatureStage::Ga),
    off("CBORServingAndStorage", FeatureStage::Alpha),
    off("ChangeContainerStatusOnKubeletRestart", FeatureStage::Deprecated),
    on("ClearingNominatedNodeNameAfterBinding", FeatureStage::Beta),
    on("ClientsAllowCARotation", FeatureStage::Beta),
    off("ClientsAllowCBOR", FeatureStage::Alpha),
    on("ClientsAllowTLSCacheGC", FeatureStage::Beta),
    off("ClientsPreferCBOR", FeatureStage::Alpha),
    off("CloudControllerManagerWatchBasedRoutesReconciliation", FeatureStage::Alpha),
    off("CloudControllerManagerWebhook", FeatureStage::Alpha),
    off("ClusterTrustBundle", FeatureStage::Beta),
    off("ClusterTrustBundleProjection", FeatureStage::Beta),
    on("ComponentFlagz", FeatureStage::Beta),
    on("ComponentStatusz", FeatureStage::Beta),
    off("ConcurrentWatchObjectDecode", FeatureStage::Beta),
    locked_on("ConsistentListFromCache", FeatureStage::Ga),
    on("ConstrainedImpersonation", FeatureStage::Beta),
    on("ContainerCheckpoint", FeatureStage::Beta),
    on("ContainerRestartRules", FeatureStage::Beta),
    off("ContainerStopSignals", FeatureStage::Alpha),
    on("ContextualLogging", FeatureStage::Beta),
    off("ControllerManagerReleaseLeaderElectionLockOnExit", FeatureStage::Alpha),
    off("CoordinatedLeaderElection", FeatureStage::Beta),
    off("CPUManagerPolicyAlphaOptions", FeatureStage::Alpha),
    on("CPUManagerPolicyBetaOptions", FeatureStage::Beta),
    locked_on("CPUManagerPolicyOptions", FeatureStage::Ga),
    on("CRDObservedGenerationTracking", FeatureStage::Beta),
    locked_on("CRDValidationRatcheting", FeatureStage::Ga),
    off("CRIListStreaming", FeatureStage::Alpha),
    off("CrossNamespaceVolumeDataSource", FeatureStage::Alpha),
    locked_on("CSIServiceAccountTokenSecrets", FeatureStage::Ga),
    off("CSIVolumeHealth", FeatureStage::Alpha),
    on("CustomCPUCFSQuotaPeriod", FeatureStage::Ga),
    locked_on("CustomResourceFieldSelectors", FeatureStage::Ga),
    locked_on("DeclarativeValidation", FeatureStage::Ga),
    on("DeclarativeValidationBeta", FeatureStage::Beta),
    off("DeclarativeValidationTakeover", FeatureStage::Deprecated),
    on("DeploymentReplicaSetTerminatingReplicas", FeatureStage::Beta),
    on("DetectCacheInconsistency", FeatureStage::Beta),
    locked_on("DisableAllocatorDualWrite", FeatureStage::Ga),
    on("DisableCPUQuotaWithExclusiveCPUs", FeatureStage::Deprecated),
    locked_on("DisableNodeKubeProxyVersion", FeatureStage::Deprecated),
    locked_on("DRAAdminAccess", FeatureStage::Ga),
    on("DRAConsumableCapacity", FeatureStage::Beta),
    on("DRADeviceBindingConditions", FeatureStage::Beta),
    off("DRADeviceTaintRules", FeatureStage::Beta),
    on("DRADeviceTaints", FeatureStage::Beta),
    on("DRAExtendedResource", FeatureStage::Beta),
    off("DRAListTypeAttributes", FeatureStage::Alpha),
    off("DRANodeAllocatableResources", FeatureStage::Alpha),
    on("DRAPartitionableDevices", FeatureStage::Beta),
    on("DRAPrioritizedList", FeatureStage::Ga),
    on("DRAResourceClaimDeviceStatus", FeatureStage::Beta),
    on("DRAResourceClaimGranularStatusAuthorization", FeatureStage::Beta),
    off("DRAResourcePoolStatus", FeatureStage::Alpha),
    on("DRASchedulerFilterTimeout", FeatureStage::Beta),
    off("DRAWorkloadResourceClaims", FeatureStage::Alpha),
    locked_on("DynamicResourceAllocation", FeatureStage::Ga),
    on("EnvFiles", FeatureStage::Beta),
    off("EventedPLEG", FeatureStage::Alpha),
    locked_on("ExecProbeTimeout", FeatureStage::Ga),
    on("ExtendWebSocketsToKubelet", FeatureStage::Beta),
    locked_on("ExternalServiceAccountTokenSigner", FeatureStage::Ga),
    off("GangScheduling", FeatureStage::Alpha),
    off("GenericWorkload", FeatureStage::Alpha),
    locked_off("GitRepoVolumeDriver", FeatureStage::Deprecated),
    on("GracefulNodeShutdown", FeatureStage::Beta),
    on("GracefulNodeShutdownBasedOnPodPriority", FeatureStage::Beta),
    on("HostnameOverride", FeatureStage::Beta),
    on("HPAConfigurableTolerance", FeatureStage::Beta),
    off("HPAScaleToZero", FeatureStage::Alpha),
    locked_on("ImageMaximumGCAge", FeatureStage::Ga),
    locked_on("ImageVolume", FeatureStage::Ga),
    off("ImageVolumeWithDigest", FeatureStage::Alpha),
    on("InformerResourceVersion", FeatureStage::Ga),
    locked_on("InOrderInformers", FeatureStage::Ga),
    on("InOrderInformersBatchProcess", FeatureStage::Beta),
    on("InPlacePodLevelResourcesVerticalScaling", FeatureStage::Beta),
    locked_on("InPlacePodVerticalScaling", FeatureStage::Ga),
    off("InPlacePodVerticalScalingExclusiveCPUs", FeatureStage::Alpha),
    off("InPlacePodVerticalScalingExclusiveMemory", FeatureStage::Alpha),
    on("InPlacePodVerticalScalingInitContainers", FeatureStage::Beta),
    locked_on("JobBackoffLimitPerIndex", FeatureStage::Ga),
    locked_on("JobManagedBy", FeatureStage::Ga),
    locked_on("JobPodReplacementPolicy", FeatureStage::Ga),
    locked_on("JobSuccessPolicy", FeatureStage::Ga),
    off("KMSv1", FeatureStage::Deprecated),
    locked_on("KubeletCgroupDriverFromCRI", FeatureStage::Ga),
    on("KubeletCrashLoopBackOffMax", FeatureStage::Beta),
    on("KubeletEnsureSecretPulledImages", FeatureStage::Beta),
    locked_on("KubeletFineGrainedAuthz", FeatureStage::Ga),
    off("KubeletInUserNamespace", FeatureStage::Alpha),
    locked_on("KubeletPodResourcesDynamicResources", FeatureStage::Ga),
    locked_on("KubeletPodResourcesGet", FeatureStage::Ga),
    on("KubeletPodResourcesListUseActivePods", FeatureStage::Deprecated),
    locked_on("KubeletPSI", FeatureStage::Ga),
    off("KubeletRegistrationGetOnExistsOnly", FeatureStage::Deprecated),
    on("KubeletSeparateDiskGC", FeatureStage::Beta),
    on("KubeletServiceAccountTokenForCredentialProviders", FeatureStage::Beta),
    locked_on("KubeletTracing", FeatureStage::Ga),
    on("ListFromCacheSnapshot", FeatureStage::Beta),
    off("LocalStorageCapacityIsolationFSQuotaMonitoring", FeatureStage::Beta),
    locked_on("LogarithmicScaleDown", FeatureStage::Ga),
    off("LoggingAlphaOptions", FeatureStage::Alpha),
    on("LoggingBetaOptions", FeatureStage::Beta),
    off("ManifestBasedAdmissionControlConfig", FeatureStage::Alpha),
    locked_on("MatchLabelKeysInPodAffinity", FeatureStage::Ga),
    on("MatchLabelKeysInPodTopologySpread", FeatureStage::Beta),
    on("MatchLabelKeysInPodTopologySpreadSelectorMerge", FeatureStage::Beta),
    off("MaxUnavailableStatefulSet", FeatureStage::Beta),
    off("MemoryQoS", FeatureStage::Alpha),
    locked_on("MultiCIDRServiceAllocator", FeatureStage::Ga),
    locked_on("MutableCSINodeAllocatableCount", FeatureStage::Ga),
    on("MutablePodResourcesForSuspendedJobs", FeatureStage::Beta),
    off("MutablePVNodeAffinity", FeatureStage::Alpha),
    on("MutableSchedulingDirectivesForSuspendedJobs", FeatureStage::Beta),
    on("MutatingAdmissionPolicy", FeatureStage::Ga),
    off("NativeHistograms", FeatureStage::Alpha),
    locked_on("NFTablesProxyMode", FeatureStage::Ga),
    on("NodeDeclaredFeatures", FeatureStage::Beta),
    locked_on("NodeInclusionPolicyInPodTopologySpread", FeatureStage::Ga),
    locked_on("NodeLogQuery", FeatureStage::Ga),
    locked_on("NodeSwap", FeatureStage::Ga),
    on("NominatedNodeNameForExpectation", FeatureStage::Beta),
    on("OpenAPIEnums", FeatureStage::Beta),
    on("OpportunisticBatching", FeatureStage::Beta),
    locked_on("OrderedNamespaceDeletion", FeatureStage::Ga),
    off("PersistentVolumeClaimUnusedSinceTime", FeatureStage::Alpha),
    on("PLEGOnDemandRelist", FeatureStage::Beta),
    off("PodAndContainerStatsFromCRI", FeatureStage::Alpha),
    off("PodCertificateRequest", FeatureStage::Beta),
    on("PodDeletionCost", FeatureStage::Beta),
    off("PodLevelResourceManagers", FeatureStage::Alpha),
    on("PodLevelResources", FeatureStage::Beta),
    locked_on("PodLifecycleSleepAction", FeatureStage::Ga),
    locked_on("PodLifecycleSleepActionAllowZero", FeatureStage::Ga),
    off("PodLogsQuerySplitStreams", FeatureStage::Alpha),
    locked_on("PodObservedGenerationTracking", FeatureStage::Ga),
    on("PodReadyToStartContainersCondition", FeatureStage::Beta),
    off("PodsAPI", FeatureStage::Alpha),
    locked_on("PodSchedulingReadiness", FeatureStage::Ga),
    on("PodTopologyLabelsAdmission", FeatureStage::Beta),
    on("PortForwardWebsockets", FeatureStage::Beta),
    locked_on("PreferSameTrafficDistribution", FeatureStage::Ga),
    on("PreventStaticPodAPIReferences", FeatureStage::Beta),
    locked_on("ProcMountType", FeatureStage::Ga),
    off("QOSReserved", FeatureStage::Alpha),
    locked_on("RecoverVolumeExpansionFailure", FeatureStage::Ga),
    locked_on("RecursiveReadOnlyMounts", FeatureStage::Ga),
    off("ReduceDefaultCrashLoopBackOffDecay", FeatureStage::Alpha),
    locked_on("RelaxedDNSSearchValidation", FeatureStage::Ga),
    locked_on("RelaxedEnvironmentVariableValidation", FeatureStage::Ga),
    on("RelaxedServiceNameValidation", FeatureStage::Beta),
    on("ReloadKubeletClientCAFile", FeatureStage::Beta),
    on("ReloadKubeletServerCertificateFile", FeatureStage::Beta),
    on("RemoteRequestHeaderUID", FeatureStage::Beta),
    locked_on("ResilientWatchCacheInitialization", FeatureStage::Ga),
    on("ResourceHealthStatus", FeatureStage::Beta),
    on("ResourceHealthStatusMessage", FeatureStage::Beta),
    on("RestartAllContainersOnContainerExits", FeatureStage::Beta),
    locked_on("RetryGenerateName", FeatureStage::Ga),
    on("RotateKubeletServerCertificate", FeatureStage::Beta),
    off("RuntimeClassInImageCriApi", FeatureStage::Alpha),
    off("SchedulerAsyncAPICalls", FeatureStage::Beta),
    on("SchedulerAsyncPreemption", FeatureStage::Beta),
    on("SchedulerPopFromBackoffQ", FeatureStage::Beta),
    locked_on("SchedulerQueueingHints", FeatureStage::Ga),
    locked_on("SELinuxChangePolicy", FeatureStage::Ga),
    off("SELinuxMount", FeatureStage::Beta),
    locked_on("SELinuxMountReadWriteOncePod", FeatureStage::Ga),
    locked_off("SeparateCacheWatchRPC", FeatureStage::Deprecated),
    locked_on("SeparateTaintEvictionController", FeatureStage::Ga),
    on("ServiceAccountNodeAudienceRestriction", FeatureStage::Beta),
    locked_on("ServiceAccountTokenJTI", FeatureStage::Ga),
    locked_on("ServiceAccountTokenNodeBinding", FeatureStage::Ga),
    locked_on("ServiceAccountTokenNodeBindingValidation", FeatureStage::Ga),
    locked_on("ServiceAccountTokenPodNodeInfo", FeatureStage::Ga),
    on("ServiceCIDRStatusFieldWiping", FeatureStage::Deprecated),
    off("ShardedListAndWatch", FeatureStage::Alpha),
    locked_on("SidecarContainers", FeatureStage::Ga),
    on("SizeBasedListCostEstimate", FeatureStage::Beta),
    on("StaleControllerConsistencyDaemonSet", FeatureStage::Beta),
    on("StaleControllerConsistencyJob", FeatureStage::Beta),
    on("StaleControllerConsistencyReplicaSet", FeatureStage::Beta),
    on("StaleControllerConsistencyStatefulSet", FeatureStage::Beta),
    on("StatefulSetSemanticRevisionComparison", FeatureStage::Beta),
    off("StorageCapacityScoring", FeatureStage::Alpha),
    on("StorageNamespaceIndex", FeatureStage::Deprecated),
    off("StorageVersionAPI", FeatureStage::Alpha),
    on("StorageVersionHash", FeatureStage::Beta),
    off("StorageVersionMigrator", FeatureStage::Beta),
    locked_on("StreamingCollectionEncodingToJSON", FeatureStage::Ga),
    locked_on("StreamingCollectionEncodingToProtobuf", FeatureStage::Ga),
    on("StrictIPCIDRValidation", FeatureStage::Beta),
    locked_on("StructuredAuthenticationConfiguration", FeatureStage::Ga),
    on("StructuredAuthenticationConfigurationEgressSelector", FeatureStage::Beta),
    on("StructuredAuthenticationConfigurationJWKSMetrics", FeatureStage::Beta),
    locked_on("SupplementalGroupsPolicy", FeatureStage::Ga),
    locked_on("SystemdWatchdog", FeatureStage::Ga),
    off("TaintTolerationComparisonOperators", FeatureStage::Alpha),
    on("TokenRequestServiceAccountUIDValidation", FeatureStage::Beta),
    off("TopologyAwareWorkloadScheduling", FeatureStage::Alpha),
    off("TopologyManagerPolicyAlphaOptions", FeatureStage::Alpha),
    on("TopologyManagerPolicyBetaOptions", FeatureStage::Beta),
    locked_on("TopologyManagerPolicyOptions", FeatureStage::Ga),
    on("TranslateStreamCloseWebsocketRequests", FeatureStage::Beta),
    on("UnauthenticatedHTTP2DOSMitigation", FeatureStage::Beta),
    on("UnknownVersionInteroperabilityProxy", FeatureStage::Beta),
    on("UnlockWhileProcessingFIFO", FeatureStage::Beta),
    off("UserNamespacesHostNetworkSupport", FeatureStage::Alpha),
    locked_on("UserNamespacesSupport", FeatureStage::Ga),
    locked_on("VolumeAttributesClass", FeatureStage::Ga),
    off("VolumeLimitScaling", FeatureStage::Alpha),
    on("WatchCacheInitializationPostStartHook", FeatureStage::Beta),
    on("WatchList", FeatureStage::Beta),
    on("WatchListClient", FeatureStage::Beta),
    off("WindowsCPUAndMemoryAffinity", FeatureStage::Alpha),
    on("WindowsGracefulNodeShutdown", FeatureStage::Beta),
    off("WindowsHostNetwork", FeatureStage::Deprecated),
    locked_on("WinDSR", FeatureStage::Ga),
    locked_on("WinOverlay", FeatureStage::Ga),
    off("WorkloadAwarePreemption", FeatureStage::Alpha),
    off("WorkloadWithJob", FeatureStage::Alpha),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_applies_only_to_the_named_gate() {
        let gates = with(&[("CBORServingAndStorage", Status::Done)]);
        let done: Vec<_> = gates.iter().filter(|gate| gate.status == Status::Done).collect();
        assert_eq!(done.len(), 1);
        assert_eq!((done[0].name, done[0].stage), ("CBORServingAndStorage", FeatureStage::Alpha));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = GATES.iter().map(|gate| gate.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COUNT);
    }
}
