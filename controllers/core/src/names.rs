//! Names of all controllers of Kubernetes 1.36: in flags, events, metrics and credentials.
//!
//! Output: [`CONTROLLERS`], one table. The five names of a controller differ without a rule, so
//! each stands here once. A test compares names, aliases and gates with those that a real
//! kube-controller-manager lists. Pure.
// k8s: cmd/kube-controller-manager/app/controller_descriptor.go NewControllerDescriptors;
// cmd/kube-controller-manager/names/controller_names.go

/// A controller and its names.
#[derive(Debug, PartialEq, Eq)]
pub struct ControllerNames {
    /// The canonical name, as in `--controllers` and `/healthz`.
    pub name: &'static str,
    /// The name of older releases, which `--controllers` accepts too; empty for none.
    pub alias: &'static str,
    /// The client's name: the service account in `kube-system`, and the end of the user agent.
    /// Empty for a controller that uses the manager's own credentials, or has no client.
    pub identity: &'static str,
    /// The source of its events; empty for none.
    pub event_component: &'static str,
    /// Its work queues, as metrics name them, the main one first.
    pub queues: &'static [&'static str],
    /// Feature gates that must all be on.
    pub gates: &'static [&'static str],
    /// It runs when `--controllers` has `*` and does not name it.
    pub is_on_by_default: bool,
    /// How it starts.
    pub start: StartMode,
    /// The flag that sets the number of concurrent syncs; empty for a constant.
    pub workers_flag: &'static str,
    /// Concurrent syncs by default.
    pub workers: u32,
}

/// How a controller starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartMode {
    /// With all others.
    Usual,
    /// Before all others, regardless of `--controllers`: they may need the tokens that it creates.
    First,
    /// Never: it belongs to a cloud provider's manager.
    Cloud,
}

impl ControllerNames {
    /// The controller with this canonical name or alias.
    pub fn find(name: &str) -> Option<&'static Self> {
        CONTROLLERS.iter().find(|one| one.name == name || is_alias(one, name))
    }
}

fn is_alias(controller: &ControllerNames, name: &str) -> bool {
    !controller.alias.is_empty() && controller.alias == name
}

const USUAL: ControllerNames = ControllerNames {
    name: "",
    alias: "",
    identity: "",
    event_component: "",
    queues: &[],
    gates: &[],
    is_on_by_default: true,
    start: StartMode::Usual,
    workers_flag: "",
    workers: 1,
};

/// All controllers, in upstream's order.
pub static CONTROLLERS: [ControllerNames; 52] = [
    ControllerNames {
        name: "serviceaccount-token-controller",
        alias: "serviceaccount-token",
        queues: &["serviceaccount_tokens_service"],
        start: StartMode::First,
        workers_flag: "concurrent-serviceaccount-token-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "endpoints-controller",
        alias: "endpoint",
        identity: "endpoint-controller",
        event_component: "endpoint-controller",
        queues: &["endpoint"],
        workers_flag: "concurrent-endpoint-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "endpointslice-controller",
        alias: "endpointslice",
        identity: "endpointslice-controller",
        event_component: "endpoint-slice-controller",
        queues: &["endpoint_slice"],
        workers_flag: "concurrent-service-endpoint-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "endpointslice-mirroring-controller",
        alias: "endpointslicemirroring",
        identity: "endpointslicemirroring-controller",
        event_component: "endpoint-slice-mirroring-controller",
        queues: &["endpoint_slice_mirroring"],
        workers_flag: "mirroring-concurrent-service-endpoint-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "replicationcontroller-controller",
        alias: "replicationcontroller",
        identity: "replication-controller",
        event_component: "replication-controller",
        queues: &["replicationmanager"],
        workers_flag: "concurrent-rc-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "pod-garbage-collector-controller",
        alias: "podgc",
        identity: "pod-garbage-collector",
        queues: &["orphaned_pods_nodes"],
        ..USUAL
    },
    ControllerNames {
        name: "resourcequota-controller",
        alias: "resourcequota",
        identity: "resourcequota-controller",
        queues: &[
            "resourcequota_primary",
            "resourcequota_priority",
            "resource_quota_controller_resource_changes",
        ],
        workers_flag: "concurrent-resource-quota-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "namespace-controller",
        alias: "namespace",
        identity: "namespace-controller",
        queues: &["namespace"],
        workers_flag: "concurrent-namespace-syncs",
        workers: 10,
        ..USUAL
    },
    ControllerNames {
        name: "serviceaccount-controller",
        alias: "serviceaccount",
        identity: "service-account-controller",
        queues: &["serviceaccount"],
        ..USUAL
    },
    ControllerNames {
        name: "garbage-collector-controller",
        alias: "garbagecollector",
        identity: "generic-garbage-collector",
        event_component: "garbage-collector-controller",
        queues: &[
            "garbage_collector_attempt_to_delete",
            "garbage_collector_attempt_to_orphan",
            "garbage_collector_graph_changes",
        ],
        workers_flag: "concurrent-gc-syncs",
        workers: 20,
        ..USUAL
    },
    ControllerNames {
        name: "daemonset-controller",
        alias: "daemonset",
        identity: "daemon-set-controller",
        event_component: "daemonset-controller",
        queues: &["daemonset", "daemonset-node-updates"],
        workers_flag: "concurrent-daemonset-syncs",
        workers: 2,
        ..USUAL
    },
    ControllerNames {
        name: "job-controller",
        alias: "job",
        identity: "job-controller",
        event_component: "job-controller",
        queues: &["job", "job_orphan_pod"],
        workers_flag: "concurrent-job-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "podgroup-protection-controller",
        identity: "podgroup-protection-controller",
        queues: &["podgroupprotection"],
        gates: &["GenericWorkload"],
        ..USUAL
    },
    ControllerNames {
        name: "deployment-controller",
        alias: "deployment",
        identity: "deployment-controller",
        event_component: "deployment-controller",
        queues: &["deployment"],
        workers_flag: "concurrent-deployment-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "replicaset-controller",
        alias: "replicaset",
        identity: "replicaset-controller",
        event_component: "replicaset-controller",
        queues: &["replicaset"],
        workers_flag: "concurrent-replicaset-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "horizontal-pod-autoscaler-controller",
        alias: "horizontalpodautoscaling",
        identity: "horizontal-pod-autoscaler",
        event_component: "horizontal-pod-autoscaler",
        queues: &["horizontalpodautoscaler"],
        workers_flag: "concurrent-horizontal-pod-autoscaler-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "disruption-controller",
        alias: "disruption",
        identity: "disruption-controller",
        event_component: "controllermanager",
        queues: &["disruption", "disruption_recheck", "stale_pod_disruption"],
        ..USUAL
    },
    ControllerNames {
        name: "statefulset-controller",
        alias: "statefulset",
        identity: "statefulset-controller",
        event_component: "statefulset-controller",
        queues: &["statefulset"],
        workers_flag: "concurrent-statefulset-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "cronjob-controller",
        alias: "cronjob",
        identity: "cronjob-controller",
        event_component: "cronjob-controller",
        queues: &["cronjob"],
        workers_flag: "concurrent-cron-job-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "certificatesigningrequest-signing-controller",
        alias: "csrsigning",
        identity: "certificate-controller",
        queues: &["certificate"],
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "certificatesigningrequest-approving-controller",
        alias: "csrapproving",
        identity: "certificate-controller",
        queues: &["certificate"],
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "certificatesigningrequest-cleaner-controller",
        alias: "csrcleaner",
        identity: "certificate-controller",
        ..USUAL
    },
    ControllerNames {
        name: "podcertificaterequest-cleaner-controller",
        identity: "podcertificaterequestcleaner",
        gates: &["PodCertificateRequest"],
        ..USUAL
    },
    ControllerNames {
        name: "ttl-controller",
        alias: "ttl",
        identity: "ttl-controller",
        queues: &["ttlcontroller"],
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "bootstrap-signer-controller",
        alias: "bootstrapsigner",
        identity: "bootstrap-signer",
        queues: &["bootstrap_signer_queue"],
        is_on_by_default: false,
        ..USUAL
    },
    ControllerNames {
        name: "token-cleaner-controller",
        alias: "tokencleaner",
        identity: "token-cleaner",
        queues: &["token_cleaner"],
        is_on_by_default: false,
        ..USUAL
    },
    ControllerNames {
        name: "node-ipam-controller",
        alias: "nodeipam",
        identity: "node-controller",
        event_component: "cidrAllocator",
        queues: &["cidrallocator_node"],
        workers: 30,
        ..USUAL
    },
    ControllerNames {
        name: "node-lifecycle-controller",
        alias: "nodelifecycle",
        identity: "node-controller",
        event_component: "node-controller",
        queues: &["node_lifecycle_controller", "node_lifecycle_controller_pods"],
        workers: 8,
        ..USUAL
    },
    ControllerNames {
        name: "service-lb-controller",
        alias: "service",
        start: StartMode::Cloud,
        workers_flag: "concurrent-service-syncs",
        ..USUAL
    },
    ControllerNames {
        name: "node-route-controller",
        alias: "route",
        start: StartMode::Cloud,
        ..USUAL
    },
    ControllerNames {
        name: "cloud-node-lifecycle-controller",
        alias: "cloud-node-lifecycle",
        start: StartMode::Cloud,
        ..USUAL
    },
    ControllerNames {
        name: "persistentvolume-binder-controller",
        alias: "persistentvolume-binder",
        identity: "persistent-volume-binder",
        event_component: "persistentvolume-controller",
        queues: &["claims", "volumes"],
        ..USUAL
    },
    ControllerNames {
        name: "persistentvolume-attach-detach-controller",
        alias: "attachdetach",
        identity: "attachdetach-controller",
        event_component: "attachdetach-controller",
        queues: &["pvcs"],
        ..USUAL
    },
    ControllerNames {
        name: "persistentvolume-expander-controller",
        alias: "persistentvolume-expander",
        identity: "expand-controller",
        event_component: "volume_expand",
        queues: &["volume_expand"],
        workers: 10,
        ..USUAL
    },
    ControllerNames {
        name: "clusterrole-aggregation-controller",
        alias: "clusterrole-aggregation",
        identity: "clusterrole-aggregation-controller",
        queues: &["ClusterRoleAggregator"],
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "persistentvolumeclaim-protection-controller",
        alias: "pvc-protection",
        identity: "pvc-protection-controller",
        queues: &["pvcprotection"],
        ..USUAL
    },
    ControllerNames {
        name: "persistentvolume-protection-controller",
        alias: "pv-protection",
        identity: "pv-protection-controller",
        queues: &["pvprotection"],
        ..USUAL
    },
    ControllerNames {
        name: "volumeattributesclass-protection-controller",
        identity: "volumeattributesclass-protection-controller",
        queues: &["vacprotection"],
        gates: &["VolumeAttributesClass"],
        ..USUAL
    },
    ControllerNames {
        name: "ttl-after-finished-controller",
        alias: "ttl-after-finished",
        identity: "ttl-after-finished-controller",
        event_component: "ttl-after-finished-controller",
        queues: &["ttl_jobs_to_delete"],
        workers_flag: "concurrent-ttl-after-finished-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "root-ca-certificate-publisher-controller",
        alias: "root-ca-cert-publisher",
        identity: "root-ca-cert-publisher",
        queues: &["root_ca_cert_publisher"],
        ..USUAL
    },
    ControllerNames {
        name: "kube-apiserver-serving-clustertrustbundle-publisher-controller",
        identity: "kube-apiserver-serving-clustertrustbundle-publisher",
        queues: &["ca_cert_publisher_cluster_trust_bundles"],
        gates: &["ClusterTrustBundle"],
        ..USUAL
    },
    ControllerNames {
        name: "ephemeral-volume-controller",
        alias: "ephemeral-volume",
        identity: "ephemeral-volume-controller",
        event_component: "ephemeral_volume",
        queues: &["ephemeral_volume"],
        workers_flag: "concurrent-ephemeralvolume-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "storageversion-garbage-collector-controller",
        alias: "storage-version-gc",
        identity: "storage-version-garbage-collector",
        queues: &[
            "storage_version_garbage_collector_leases",
            "storage_version_garbage_collector_storageversions",
        ],
        gates: &["APIServerIdentity", "StorageVersionAPI"],
        ..USUAL
    },
    ControllerNames {
        name: "resourceclaim-controller",
        alias: "resource-claim-controller",
        identity: "resource-claim-controller",
        event_component: "resource_claim",
        queues: &["resource_claim"],
        gates: &["DynamicResourceAllocation"],
        workers_flag: "concurrent-resourceclaim-syncs",
        workers: 50,
        ..USUAL
    },
    ControllerNames {
        name: "resourcepoolstatusrequest-controller",
        identity: "resourcepoolstatusrequest-controller",
        gates: &["DRAResourcePoolStatus"],
        ..USUAL
    },
    ControllerNames {
        name: "device-taint-eviction-controller",
        identity: "device-taint-eviction-controller",
        event_component: "device-taint-eviction-controller",
        queues: &["device-taint-eviction-controller"],
        gates: &["DynamicResourceAllocation", "DRADeviceTaints"],
        workers_flag: "concurrent-device-taint-eviction-syncs",
        workers: 8,
        ..USUAL
    },
    ControllerNames {
        name: "legacy-serviceaccount-token-cleaner-controller",
        alias: "legacy-service-account-token-cleaner",
        identity: "legacy-service-account-token-cleaner",
        ..USUAL
    },
    ControllerNames {
        name: "validatingadmissionpolicy-status-controller",
        identity: "validatingadmissionpolicy-status-controller",
        queues: &["validatingadmissionpolicy-status"],
        workers_flag: "concurrent-validating-admission-policy-status-syncs",
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "taint-eviction-controller",
        identity: "node-controller",
        event_component: "taint-eviction-controller",
        queues: &["noexec_taint_node", "noexec_taint_pod"],
        gates: &["SeparateTaintEvictionController"],
        workers: 8,
        ..USUAL
    },
    ControllerNames {
        name: "service-cidr-controller",
        identity: "service-cidrs-controller",
        event_component: "service-cidr-controller",
        queues: &["ipaddresses"],
        gates: &["MultiCIDRServiceAllocator"],
        workers: 5,
        ..USUAL
    },
    ControllerNames {
        name: "storage-version-migrator-controller",
        alias: "svm",
        identity: "storage-version-migrator-controller",
        gates: &["StorageVersionMigrator"],
        ..USUAL
    },
    ControllerNames {
        name: "selinux-warning-controller",
        identity: "selinux-warning-controller",
        event_component: "selinux_warning",
        queues: &["selinux_warning"],
        gates: &["SELinuxChangePolicy"],
        is_on_by_default: false,
        ..USUAL
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Registrations of `NewControllerDescriptors` of 1.36.3: name, alias, gates, `off` if it is
    /// off by default, `cloud`, `first`.
    const UPSTREAM: &str = include_str!("upstream_names.txt");

    #[test]
    fn controller_table_matches_the_upstream_manager() {
        let mut theirs: Vec<String> = UPSTREAM.lines().map(str::to_owned).collect();
        theirs.sort_unstable();
        let mut ours: Vec<String> = CONTROLLERS.iter().map(line).collect();
        ours.sort_unstable();
        assert_eq!(ours, theirs);
    }

    fn line(controller: &ControllerNames) -> String {
        // The migrator checks its gate itself, instead of naming it.
        let gates = match controller.name {
            "storage-version-migrator-controller" => String::new(),
            _ => controller.gates.join(","),
        };
        let start = match controller.start {
            StartMode::Usual if controller.is_on_by_default => "on",
            StartMode::Usual => "off",
            StartMode::First => "first",
            StartMode::Cloud => "cloud",
        };
        format!("{} {} {} {start}", controller.name, or_dash(controller.alias), or_dash(&gates))
    }

    fn or_dash(text: &str) -> &str {
        if text.is_empty() { "-" } else { text }
    }

    #[test]
    fn names_and_aliases_are_unique() {
        let names = CONTROLLERS.iter().map(|one| one.name);
        let aliases = CONTROLLERS.iter().map(|one| one.alias).filter(|alias| !alias.is_empty());
        let all: Vec<&str> = names.chain(aliases).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn controller_is_found_by_name_and_by_alias() {
        let found = |name| ControllerNames::find(name).map(|one| one.name);
        assert_eq!(found("podgc"), Some("pod-garbage-collector-controller"));
        assert_eq!(found("job-controller"), Some("job-controller"));
        assert_eq!(found(""), None);
    }
}
