//! The configuration as `/configz` shows it: upstream's tree, with what the flags say.
//!
//! Input: the flags that were given. Output: a JSON tree. [`FIELDS`] maps flags to fields; defaults
//! stand in `configuration.json`, as a real kube-controller-manager shows them. Pure.
// k8s: staging/src/k8s.io/kube-controller-manager/config/v1alpha1/types.go

use pintle_config::given::GivenFlags;
use serde_json::Value;

/// The default configuration of 1.36.3.
const DEFAULT: &str = include_str!("configuration.json");

/// Flags, and the field that each sets.
#[rustfmt::skip] // one flag a line, or two: a table to look things up in
const FIELDS: [(&str, &str); 101] = [
    ("allocate-node-cidrs", "KubeCloudShared.AllocateNodeCIDRs"),
    ("allow-untagged-cloud", "KubeCloudShared.AllowUntaggedCloud"),
    ("attach-detach-reconcile-sync-period", "AttachDetachController.ReconcilerSyncLoopPeriod"),
    ("cidr-allocator-type", "KubeCloudShared.CIDRAllocatorType"),
    ("cloud-config", "KubeCloudShared.CloudProvider.CloudConfigFile"),
    ("cloud-provider", "KubeCloudShared.CloudProvider.Name"),
    ("cluster-cidr", "KubeCloudShared.ClusterCIDR"),
    ("cluster-name", "KubeCloudShared.ClusterName"),
    ("cluster-signing-cert-file", "CSRSigningController.ClusterSigningCertFile"),
    ("cluster-signing-duration", "CSRSigningController.ClusterSigningDuration"),
    ("cluster-signing-key-file", "CSRSigningController.ClusterSigningKeyFile"),
    ("cluster-signing-kube-apiserver-client-cert-file",
        "CSRSigningController.KubeAPIServerClientSignerConfiguration.CertFile"),
    ("cluster-signing-kube-apiserver-client-key-file",
        "CSRSigningController.KubeAPIServerClientSignerConfiguration.KeyFile"),
    ("cluster-signing-kubelet-client-cert-file",
        "CSRSigningController.KubeletClientSignerConfiguration.CertFile"),
    ("cluster-signing-kubelet-client-key-file",
        "CSRSigningController.KubeletClientSignerConfiguration.KeyFile"),
    ("cluster-signing-kubelet-serving-cert-file",
        "CSRSigningController.KubeletServingSignerConfiguration.CertFile"),
    ("cluster-signing-kubelet-serving-key-file",
        "CSRSigningController.KubeletServingSignerConfiguration.KeyFile"),
    ("cluster-signing-legacy-unknown-cert-file",
        "CSRSigningController.LegacyUnknownSignerConfiguration.CertFile"),
    ("cluster-signing-legacy-unknown-key-file",
        "CSRSigningController.LegacyUnknownSignerConfiguration.KeyFile"),
    ("concurrent-cron-job-syncs", "CronJobController.ConcurrentCronJobSyncs"),
    ("concurrent-daemonset-syncs", "DaemonSetController.ConcurrentDaemonSetSyncs"),
    ("concurrent-deployment-syncs", "DeploymentController.ConcurrentDeploymentSyncs"),
    ("concurrent-device-taint-eviction-syncs", "DeviceTaintEvictionController.ConcurrentSyncs"),
    ("concurrent-endpoint-syncs", "EndpointController.ConcurrentEndpointSyncs"),
    ("concurrent-ephemeralvolume-syncs",
        "EphemeralVolumeController.ConcurrentEphemeralVolumeSyncs"),
    ("concurrent-gc-syncs", "GarbageCollectorController.ConcurrentGCSyncs"),
    ("concurrent-horizontal-pod-autoscaler-syncs",
        "HPAController.ConcurrentHorizontalPodAutoscalerSyncs"),
    ("concurrent-job-syncs", "JobController.ConcurrentJobSyncs"),
    ("concurrent-namespace-syncs", "NamespaceController.ConcurrentNamespaceSyncs"),
    ("concurrent-rc-syncs", "ReplicationController.ConcurrentRCSyncs"),
    ("concurrent-replicaset-syncs", "ReplicaSetController.ConcurrentRSSyncs"),
    ("concurrent-resource-quota-syncs", "ResourceQuotaController.ConcurrentResourceQuotaSyncs"),
    ("concurrent-resourceclaim-syncs", "ResourceClaimController.ConcurrentSyncs"),
    ("concurrent-service-endpoint-syncs", "EndpointSliceController.ConcurrentServiceEndpointSyncs"),
    ("concurrent-service-syncs", "ServiceController.ConcurrentServiceSyncs"),
    ("concurrent-serviceaccount-token-syncs", "SAController.ConcurrentSATokenSyncs"),
    ("concurrent-statefulset-syncs", "StatefulSetController.ConcurrentStatefulSetSyncs"),
    ("concurrent-ttl-after-finished-syncs", "TTLAfterFinishedController.ConcurrentTTLSyncs"),
    ("concurrent-validating-admission-policy-status-syncs",
        "ValidatingAdmissionPolicyStatusController.ConcurrentPolicySyncs"),
    ("configure-cloud-routes", "KubeCloudShared.ConfigureCloudRoutes"),
    ("contention-profiling", "Generic.Debugging.enableContentionProfiling"),
    ("controller-start-interval", "Generic.ControllerStartInterval"),
    ("disable-attach-detach-reconcile-sync",
        "AttachDetachController.DisableAttachDetachReconcilerSync"),
    ("disable-force-detach-on-timeout", "AttachDetachController.disableForceDetachOnTimeout"),
    ("enable-dynamic-provisioning",
        "PersistentVolumeBinderController.VolumeConfiguration.EnableDynamicProvisioning"),
    ("enable-garbage-collector", "GarbageCollectorController.EnableGarbageCollector"),
    ("enable-hostpath-provisioner",
        "PersistentVolumeBinderController.VolumeConfiguration.EnableHostPathProvisioning"),
    ("enable-leader-migration", "Generic.LeaderMigrationEnabled"),
    ("endpoint-updates-batch-period", "EndpointController.EndpointUpdatesBatchPeriod"),
    ("endpointslice-updates-batch-period", "EndpointSliceController.EndpointUpdatesBatchPeriod"),
    ("external-cloud-volume-plugin", "KubeCloudShared.ExternalCloudVolumePlugin"),
    ("flex-volume-plugin-dir",
        "PersistentVolumeBinderController.VolumeConfiguration.FlexVolumePluginDir"),
    ("horizontal-pod-autoscaler-cpu-initialization-period",
        "HPAController.HorizontalPodAutoscalerCPUInitializationPeriod"),
    ("horizontal-pod-autoscaler-downscale-stabilization",
        "HPAController.HorizontalPodAutoscalerDownscaleStabilizationWindow"),
    ("horizontal-pod-autoscaler-initial-readiness-delay",
        "HPAController.HorizontalPodAutoscalerInitialReadinessDelay"),
    ("horizontal-pod-autoscaler-sync-period", "HPAController.HorizontalPodAutoscalerSyncPeriod"),
    ("horizontal-pod-autoscaler-tolerance", "HPAController.HorizontalPodAutoscalerTolerance"),
    ("kube-api-burst", "Generic.ClientConnection.burst"),
    ("kube-api-content-type", "Generic.ClientConnection.contentType"),
    ("kube-api-qps", "Generic.ClientConnection.qps"),
    ("kubeconfig", "Generic.ClientConnection.kubeconfig"),
    ("large-cluster-size-threshold", "NodeLifecycleController.LargeClusterSizeThreshold"),
    ("leader-elect", "Generic.LeaderElection.leaderElect"),
    ("leader-elect-lease-duration", "Generic.LeaderElection.leaseDuration"),
    ("leader-elect-renew-deadline", "Generic.LeaderElection.renewDeadline"),
    ("leader-elect-resource-lock", "Generic.LeaderElection.resourceLock"),
    ("leader-elect-resource-name", "Generic.LeaderElection.resourceName"),
    ("leader-elect-resource-namespace", "Generic.LeaderElection.resourceNamespace"),
    ("leader-elect-retry-period", "Generic.LeaderElection.retryPeriod"),
    ("legacy-service-account-token-clean-up-period", "LegacySATokenCleaner.CleanUpPeriod"),
    ("max-endpoints-per-slice", "EndpointSliceController.MaxEndpointsPerSlice"),
    ("min-resync-period", "Generic.MinResyncPeriod"),
    ("mirroring-concurrent-service-endpoint-syncs",
        "EndpointSliceMirroringController.MirroringConcurrentServiceEndpointSyncs"),
    ("mirroring-endpointslice-updates-batch-period",
        "EndpointSliceMirroringController.MirroringEndpointUpdatesBatchPeriod"),
    ("mirroring-max-endpoints-per-subset",
        "EndpointSliceMirroringController.MirroringMaxEndpointsPerSubset"),
    ("namespace-sync-period", "NamespaceController.NamespaceSyncPeriod"),
    ("node-cidr-mask-size", "NodeIPAMController.NodeCIDRMaskSize"),
    ("node-cidr-mask-size-ipv4", "NodeIPAMController.NodeCIDRMaskSizeIPv4"),
    ("node-cidr-mask-size-ipv6", "NodeIPAMController.NodeCIDRMaskSizeIPv6"),
    ("node-eviction-rate", "NodeLifecycleController.NodeEvictionRate"),
    ("node-monitor-grace-period", "NodeLifecycleController.NodeMonitorGracePeriod"),
    ("node-monitor-period", "KubeCloudShared.NodeMonitorPeriod"),
    ("node-startup-grace-period", "NodeLifecycleController.NodeStartupGracePeriod"),
    ("node-sync-period", "KubeCloudShared.NodeSyncPeriod"),
    ("profiling", "Generic.Debugging.enableProfiling"),
    ("pv-recycler-increment-timeout-nfs", concat!(
            "PersistentVolumeBinderController.VolumeConfiguration.",
            "PersistentVolumeRecyclerConfiguration.IncrementTimeoutNFS")),
    ("pv-recycler-minimum-timeout-hostpath", concat!(
            "PersistentVolumeBinderController.VolumeConfiguration.",
            "PersistentVolumeRecyclerConfiguration.MinimumTimeoutHostPath")),
    ("pv-recycler-minimum-timeout-nfs", concat!(
            "PersistentVolumeBinderController.VolumeConfiguration.",
            "PersistentVolumeRecyclerConfiguration.MinimumTimeoutNFS")),
    ("pv-recycler-pod-template-filepath-hostpath", concat!(
            "PersistentVolumeBinderController.VolumeConfiguration.",
            "PersistentVolumeRecyclerConfiguration.PodTemplateFilePathHostPath")),
    ("pv-recycler-pod-template-filepath-nfs", concat!(
            "PersistentVolumeBinderController.VolumeConfiguration.",
            "PersistentVolumeRecyclerConfiguration.PodTemplateFilePathNFS")),
    ("pv-recycler-timeout-increment-hostpath", concat!(
            "PersistentVolumeBinderController.VolumeConfiguration.",
            "PersistentVolumeRecyclerConfiguration.IncrementTimeoutHostPath")),
    ("pvclaimbinder-sync-period", "PersistentVolumeBinderController.PVClaimBinderSyncPeriod"),
    ("resource-quota-sync-period", "ResourceQuotaController.ResourceQuotaSyncPeriod"),
    ("root-ca-file", "SAController.RootCAFile"),
    ("route-reconciliation-period", "KubeCloudShared.RouteReconciliationPeriod"),
    ("secondary-node-eviction-rate", "NodeLifecycleController.SecondaryNodeEvictionRate"),
    ("service-account-private-key-file", "SAController.ServiceAccountKeyFile"),
    ("service-cluster-ip-range", "NodeIPAMController.ServiceCIDR"),
    ("terminated-pod-gc-threshold", "PodGCController.TerminatedPodGCThreshold"),
    ("unhealthy-zone-threshold", "NodeLifecycleController.UnhealthyZoneThreshold"),
    ("use-service-account-credentials", "KubeCloudShared.UseServiceAccountCredentials"),
];

/// The configuration with these flags. `controllers` has canonical names.
pub(super) fn configuration(given: &GivenFlags, controllers: &[String]) -> Value {
    let mut tree: Value = serde_json::from_str(DEFAULT).expect("a test reads it");
    for (flag, path) in FIELDS {
        if let Some(value) = given.value(flag) {
            put(&mut tree, path, value.clone());
        }
    }
    put(&mut tree, "Generic.Controllers", controllers.into());
    tree
}

fn put(tree: &mut Value, path: &str, value: Value) {
    let field = path.split('.').fold(tree, |at, name| &mut at[name]);
    *field = value;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::flags::TABLE;

    #[test]
    fn fields_exist_and_have_the_default_of_their_flag() {
        let tree: Value = serde_json::from_str(DEFAULT).expect("JSON");
        for (flag, path) in FIELDS {
            let found = TABLE.find(flag).unwrap_or_else(|| panic!("no flag {flag}"));
            let value = path.split('.').fold(&tree, |at, name| &at[name]);
            assert!(!value.is_null(), "{path}");
            let default = match found.default {
                "" => found.kind.zero(),
                default => default,
            };
            assert_eq!(pintle_config::listing::text(value), default, "{flag}");
        }
    }

    #[test]
    fn flag_changes_only_its_own_field() {
        let args = ["--concurrent-job-syncs=7".to_owned()];
        let given = TABLE.read(&args).expect("a flag");
        let with = configuration(&given, &["*".to_owned()]);
        let mut without = configuration(&GivenFlags::default(), &["*".to_owned()]);
        assert_eq!(without["JobController"]["ConcurrentJobSyncs"], 5);
        without["JobController"]["ConcurrentJobSyncs"] = 7.into();
        assert_eq!(with, without);
    }
}
