//! The feature gates that every component of a 1.36 control plane accepts, with stage and default.
//!
//! Output: [`GATES`] and [`with`], from which a component makes its table: its support of each
//! gate. Components accept the gates of all components, because one list for a whole cluster must
//! not stop one of them from starting.
// k8s: test/compatibility_lifecycle/reference/versioned_feature_list.yaml

use crate::gates::{Gate, Stage};
use crate::status::Status;

/// Status of gates that a component does not name.
const ELSEWHERE: Status = Status::Never("concerns other components");

/// The number of gates.
pub const COUNT: usize = 240;

const fn on(name: &'static str, stage: Stage) -> Gate {
    Gate::on(name, stage, ELSEWHERE)
}

const fn off(name: &'static str, stage: Stage) -> Gate {
    Gate::off(name, stage, ELSEWHERE)
}

const fn locked_on(name: &'static str, stage: Stage) -> Gate {
    Gate::on(name, stage, ELSEWHERE).locked()
}

const fn locked_off(name: &'static str, stage: Stage) -> Gate {
    Gate::off(name, stage, ELSEWHERE).locked()
}

/// All gates, for a component that does these things with those it names.
///
/// # Panics
/// When compiled with a name that no gate has.
pub const fn with(named: &[(&str, Status)]) -> [Gate; COUNT] {
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
pub const GATES: [Gate; COUNT] = [
    locked_on("AggregatedDiscoveryRemoveBetaType", Stage::Deprecated),
    off("AllowDNSOnlyNodeCSR", Stage::Deprecated),
    off("AllowInsecureKubeletCertificateSigningRequests", Stage::Deprecated),
    locked_off("AllowOverwriteTerminationGracePeriodSeconds", Stage::Deprecated),
    on("AllowParsingUserUIDFromCertAuth", Stage::Beta),
    on("AllowServiceExternalIPs", Stage::Ga),
    off("AllowUnsafeMalformedObjectDeletion", Stage::Alpha),
    locked_on("AnonymousAuthConfigurableEndpoints", Stage::Ga),
    locked_on("AnyVolumeDataSource", Stage::Ga),
    on("APIResponseCompression", Stage::Beta),
    on("APIServerIdentity", Stage::Beta),
    locked_on("APIServerTracing", Stage::Ga),
    off("APIServingWithRoutine", Stage::Alpha),
    on("AtomicFIFO", Stage::Beta),
    locked_on("AuthorizeNodeWithSelectors", Stage::Ga),
    on("AuthorizePodWebsocketUpgradeCreatePermission", Stage::Beta),
    locked_on("AuthorizeWithSelectors", Stage::Ga),
    locked_on("BtreeWatchCache", Stage::Ga),
    off("CBORServingAndStorage", Stage::Alpha),
    off("ChangeContainerStatusOnKubeletRestart", Stage::Deprecated),
    on("ClearingNominatedNodeNameAfterBinding", Stage::Beta),
    on("ClientsAllowCARotation", Stage::Beta),
    off("ClientsAllowCBOR", Stage::Alpha),
    on("ClientsAllowTLSCacheGC", Stage::Beta),
    off("ClientsPreferCBOR", Stage::Alpha),
    off("CloudControllerManagerWatchBasedRoutesReconciliation", Stage::Alpha),
    off("CloudControllerManagerWebhook", Stage::Alpha),
    off("ClusterTrustBundle", Stage::Beta),
    off("ClusterTrustBundleProjection", Stage::Beta),
    on("ComponentFlagz", Stage::Beta),
    on("ComponentStatusz", Stage::Beta),
    off("ConcurrentWatchObjectDecode", Stage::Beta),
    locked_on("ConsistentListFromCache", Stage::Ga),
    on("ConstrainedImpersonation", Stage::Beta),
    on("ContainerCheckpoint", Stage::Beta),
    on("ContainerRestartRules", Stage::Beta),
    off("ContainerStopSignals", Stage::Alpha),
    on("ContextualLogging", Stage::Beta),
    off("ControllerManagerReleaseLeaderElectionLockOnExit", Stage::Alpha),
    off("CoordinatedLeaderElection", Stage::Beta),
    off("CPUManagerPolicyAlphaOptions", Stage::Alpha),
    on("CPUManagerPolicyBetaOptions", Stage::Beta),
    locked_on("CPUManagerPolicyOptions", Stage::Ga),
    on("CRDObservedGenerationTracking", Stage::Beta),
    locked_on("CRDValidationRatcheting", Stage::Ga),
    off("CRIListStreaming", Stage::Alpha),
    off("CrossNamespaceVolumeDataSource", Stage::Alpha),
    locked_on("CSIServiceAccountTokenSecrets", Stage::Ga),
    off("CSIVolumeHealth", Stage::Alpha),
    on("CustomCPUCFSQuotaPeriod", Stage::Ga),
    locked_on("CustomResourceFieldSelectors", Stage::Ga),
    locked_on("DeclarativeValidation", Stage::Ga),
    on("DeclarativeValidationBeta", Stage::Beta),
    off("DeclarativeValidationTakeover", Stage::Deprecated),
    on("DeploymentReplicaSetTerminatingReplicas", Stage::Beta),
    on("DetectCacheInconsistency", Stage::Beta),
    locked_on("DisableAllocatorDualWrite", Stage::Ga),
    on("DisableCPUQuotaWithExclusiveCPUs", Stage::Deprecated),
    locked_on("DisableNodeKubeProxyVersion", Stage::Deprecated),
    locked_on("DRAAdminAccess", Stage::Ga),
    on("DRAConsumableCapacity", Stage::Beta),
    on("DRADeviceBindingConditions", Stage::Beta),
    off("DRADeviceTaintRules", Stage::Beta),
    on("DRADeviceTaints", Stage::Beta),
    on("DRAExtendedResource", Stage::Beta),
    off("DRAListTypeAttributes", Stage::Alpha),
    off("DRANodeAllocatableResources", Stage::Alpha),
    on("DRAPartitionableDevices", Stage::Beta),
    on("DRAPrioritizedList", Stage::Ga),
    on("DRAResourceClaimDeviceStatus", Stage::Beta),
    on("DRAResourceClaimGranularStatusAuthorization", Stage::Beta),
    off("DRAResourcePoolStatus", Stage::Alpha),
    on("DRASchedulerFilterTimeout", Stage::Beta),
    off("DRAWorkloadResourceClaims", Stage::Alpha),
    locked_on("DynamicResourceAllocation", Stage::Ga),
    on("EnvFiles", Stage::Beta),
    off("EventedPLEG", Stage::Alpha),
    locked_on("ExecProbeTimeout", Stage::Ga),
    on("ExtendWebSocketsToKubelet", Stage::Beta),
    locked_on("ExternalServiceAccountTokenSigner", Stage::Ga),
    off("GangScheduling", Stage::Alpha),
    off("GenericWorkload", Stage::Alpha),
    locked_off("GitRepoVolumeDriver", Stage::Deprecated),
    on("GracefulNodeShutdown", Stage::Beta),
    on("GracefulNodeShutdownBasedOnPodPriority", Stage::Beta),
    on("HostnameOverride", Stage::Beta),
    on("HPAConfigurableTolerance", Stage::Beta),
    off("HPAScaleToZero", Stage::Alpha),
    locked_on("ImageMaximumGCAge", Stage::Ga),
    locked_on("ImageVolume", Stage::Ga),
    off("ImageVolumeWithDigest", Stage::Alpha),
    on("InformerResourceVersion", Stage::Ga),
    locked_on("InOrderInformers", Stage::Ga),
    on("InOrderInformersBatchProcess", Stage::Beta),
    on("InPlacePodLevelResourcesVerticalScaling", Stage::Beta),
    locked_on("InPlacePodVerticalScaling", Stage::Ga),
    off("InPlacePodVerticalScalingExclusiveCPUs", Stage::Alpha),
    off("InPlacePodVerticalScalingExclusiveMemory", Stage::Alpha),
    on("InPlacePodVerticalScalingInitContainers", Stage::Beta),
    locked_on("JobBackoffLimitPerIndex", Stage::Ga),
    locked_on("JobManagedBy", Stage::Ga),
    locked_on("JobPodReplacementPolicy", Stage::Ga),
    locked_on("JobSuccessPolicy", Stage::Ga),
    off("KMSv1", Stage::Deprecated),
    locked_on("KubeletCgroupDriverFromCRI", Stage::Ga),
    on("KubeletCrashLoopBackOffMax", Stage::Beta),
    on("KubeletEnsureSecretPulledImages", Stage::Beta),
    locked_on("KubeletFineGrainedAuthz", Stage::Ga),
    off("KubeletInUserNamespace", Stage::Alpha),
    locked_on("KubeletPodResourcesDynamicResources", Stage::Ga),
    locked_on("KubeletPodResourcesGet", Stage::Ga),
    on("KubeletPodResourcesListUseActivePods", Stage::Deprecated),
    locked_on("KubeletPSI", Stage::Ga),
    off("KubeletRegistrationGetOnExistsOnly", Stage::Deprecated),
    on("KubeletSeparateDiskGC", Stage::Beta),
    on("KubeletServiceAccountTokenForCredentialProviders", Stage::Beta),
    locked_on("KubeletTracing", Stage::Ga),
    on("ListFromCacheSnapshot", Stage::Beta),
    off("LocalStorageCapacityIsolationFSQuotaMonitoring", Stage::Beta),
    locked_on("LogarithmicScaleDown", Stage::Ga),
    off("LoggingAlphaOptions", Stage::Alpha),
    on("LoggingBetaOptions", Stage::Beta),
    off("ManifestBasedAdmissionControlConfig", Stage::Alpha),
    locked_on("MatchLabelKeysInPodAffinity", Stage::Ga),
    on("MatchLabelKeysInPodTopologySpread", Stage::Beta),
    on("MatchLabelKeysInPodTopologySpreadSelectorMerge", Stage::Beta),
    off("MaxUnavailableStatefulSet", Stage::Beta),
    off("MemoryQoS", Stage::Alpha),
    locked_on("MultiCIDRServiceAllocator", Stage::Ga),
    locked_on("MutableCSINodeAllocatableCount", Stage::Ga),
    on("MutablePodResourcesForSuspendedJobs", Stage::Beta),
    off("MutablePVNodeAffinity", Stage::Alpha),
    on("MutableSchedulingDirectivesForSuspendedJobs", Stage::Beta),
    on("MutatingAdmissionPolicy", Stage::Ga),
    off("NativeHistograms", Stage::Alpha),
    locked_on("NFTablesProxyMode", Stage::Ga),
    on("NodeDeclaredFeatures", Stage::Beta),
    locked_on("NodeInclusionPolicyInPodTopologySpread", Stage::Ga),
    locked_on("NodeLogQuery", Stage::Ga),
    locked_on("NodeSwap", Stage::Ga),
    on("NominatedNodeNameForExpectation", Stage::Beta),
    on("OpenAPIEnums", Stage::Beta),
    on("OpportunisticBatching", Stage::Beta),
    locked_on("OrderedNamespaceDeletion", Stage::Ga),
    off("PersistentVolumeClaimUnusedSinceTime", Stage::Alpha),
    on("PLEGOnDemandRelist", Stage::Beta),
    off("PodAndContainerStatsFromCRI", Stage::Alpha),
    off("PodCertificateRequest", Stage::Beta),
    on("PodDeletionCost", Stage::Beta),
    off("PodLevelResourceManagers", Stage::Alpha),
    on("PodLevelResources", Stage::Beta),
    locked_on("PodLifecycleSleepAction", Stage::Ga),
    locked_on("PodLifecycleSleepActionAllowZero", Stage::Ga),
    off("PodLogsQuerySplitStreams", Stage::Alpha),
    locked_on("PodObservedGenerationTracking", Stage::Ga),
    on("PodReadyToStartContainersCondition", Stage::Beta),
    off("PodsAPI", Stage::Alpha),
    locked_on("PodSchedulingReadiness", Stage::Ga),
    on("PodTopologyLabelsAdmission", Stage::Beta),
    on("PortForwardWebsockets", Stage::Beta),
    locked_on("PreferSameTrafficDistribution", Stage::Ga),
    on("PreventStaticPodAPIReferences", Stage::Beta),
    locked_on("ProcMountType", Stage::Ga),
    off("QOSReserved", Stage::Alpha),
    locked_on("RecoverVolumeExpansionFailure", Stage::Ga),
    locked_on("RecursiveReadOnlyMounts", Stage::Ga),
    off("ReduceDefaultCrashLoopBackOffDecay", Stage::Alpha),
    locked_on("RelaxedDNSSearchValidation", Stage::Ga),
    locked_on("RelaxedEnvironmentVariableValidation", Stage::Ga),
    on("RelaxedServiceNameValidation", Stage::Beta),
    on("ReloadKubeletClientCAFile", Stage::Beta),
    on("ReloadKubeletServerCertificateFile", Stage::Beta),
    on("RemoteRequestHeaderUID", Stage::Beta),
    locked_on("ResilientWatchCacheInitialization", Stage::Ga),
    on("ResourceHealthStatus", Stage::Beta),
    on("ResourceHealthStatusMessage", Stage::Beta),
    on("RestartAllContainersOnContainerExits", Stage::Beta),
    locked_on("RetryGenerateName", Stage::Ga),
    on("RotateKubeletServerCertificate", Stage::Beta),
    off("RuntimeClassInImageCriApi", Stage::Alpha),
    off("SchedulerAsyncAPICalls", Stage::Beta),
    on("SchedulerAsyncPreemption", Stage::Beta),
    on("SchedulerPopFromBackoffQ", Stage::Beta),
    locked_on("SchedulerQueueingHints", Stage::Ga),
    locked_on("SELinuxChangePolicy", Stage::Ga),
    off("SELinuxMount", Stage::Beta),
    locked_on("SELinuxMountReadWriteOncePod", Stage::Ga),
    locked_off("SeparateCacheWatchRPC", Stage::Deprecated),
    locked_on("SeparateTaintEvictionController", Stage::Ga),
    on("ServiceAccountNodeAudienceRestriction", Stage::Beta),
    locked_on("ServiceAccountTokenJTI", Stage::Ga),
    locked_on("ServiceAccountTokenNodeBinding", Stage::Ga),
    locked_on("ServiceAccountTokenNodeBindingValidation", Stage::Ga),
    locked_on("ServiceAccountTokenPodNodeInfo", Stage::Ga),
    on("ServiceCIDRStatusFieldWiping", Stage::Deprecated),
    off("ShardedListAndWatch", Stage::Alpha),
    locked_on("SidecarContainers", Stage::Ga),
    on("SizeBasedListCostEstimate", Stage::Beta),
    on("StaleControllerConsistencyDaemonSet", Stage::Beta),
    on("StaleControllerConsistencyJob", Stage::Beta),
    on("StaleControllerConsistencyReplicaSet", Stage::Beta),
    on("StaleControllerConsistencyStatefulSet", Stage::Beta),
    on("StatefulSetSemanticRevisionComparison", Stage::Beta),
    off("StorageCapacityScoring", Stage::Alpha),
    on("StorageNamespaceIndex", Stage::Deprecated),
    off("StorageVersionAPI", Stage::Alpha),
    on("StorageVersionHash", Stage::Beta),
    off("StorageVersionMigrator", Stage::Beta),
    locked_on("StreamingCollectionEncodingToJSON", Stage::Ga),
    locked_on("StreamingCollectionEncodingToProtobuf", Stage::Ga),
    on("StrictIPCIDRValidation", Stage::Beta),
    locked_on("StructuredAuthenticationConfiguration", Stage::Ga),
    on("StructuredAuthenticationConfigurationEgressSelector", Stage::Beta),
    on("StructuredAuthenticationConfigurationJWKSMetrics", Stage::Beta),
    locked_on("SupplementalGroupsPolicy", Stage::Ga),
    locked_on("SystemdWatchdog", Stage::Ga),
    off("TaintTolerationComparisonOperators", Stage::Alpha),
    on("TokenRequestServiceAccountUIDValidation", Stage::Beta),
    off("TopologyAwareWorkloadScheduling", Stage::Alpha),
    off("TopologyManagerPolicyAlphaOptions", Stage::Alpha),
    on("TopologyManagerPolicyBetaOptions", Stage::Beta),
    locked_on("TopologyManagerPolicyOptions", Stage::Ga),
    on("TranslateStreamCloseWebsocketRequests", Stage::Beta),
    on("UnauthenticatedHTTP2DOSMitigation", Stage::Beta),
    on("UnknownVersionInteroperabilityProxy", Stage::Beta),
    on("UnlockWhileProcessingFIFO", Stage::Beta),
    off("UserNamespacesHostNetworkSupport", Stage::Alpha),
    locked_on("UserNamespacesSupport", Stage::Ga),
    locked_on("VolumeAttributesClass", Stage::Ga),
    off("VolumeLimitScaling", Stage::Alpha),
    on("WatchCacheInitializationPostStartHook", Stage::Beta),
    on("WatchList", Stage::Beta),
    on("WatchListClient", Stage::Beta),
    off("WindowsCPUAndMemoryAffinity", Stage::Alpha),
    on("WindowsGracefulNodeShutdown", Stage::Beta),
    off("WindowsHostNetwork", Stage::Deprecated),
    locked_on("WinDSR", Stage::Ga),
    locked_on("WinOverlay", Stage::Ga),
    off("WorkloadAwarePreemption", Stage::Alpha),
    off("WorkloadWithJob", Stage::Alpha),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_given_by_name_and_change_nothing_else() {
        let gates = with(&[("CBORServingAndStorage", Status::Done)]);
        let done: Vec<_> = gates.iter().filter(|gate| gate.status == Status::Done).collect();
        assert_eq!(done.len(), 1);
        assert_eq!((done[0].name, done[0].stage), ("CBORServingAndStorage", Stage::Alpha));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = GATES.iter().map(|gate| gate.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COUNT);
    }
}
