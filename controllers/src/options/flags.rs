//! The command line: every flag of a 1.36 kube-controller-manager, its form, and its help line.
//!
//! Output: [`TABLE`], which the command line is read by. A test compares names and defaults with
//! those that a real kube-controller-manager lists.

use pintle_config::component_flags::{self, FEATURES, GO_ONLY, JSON, METRICS_AND_LOGS};
use pintle_config::flag::{Flag, FlagKind, FlagTable, Group};
use pintle_config::status::Status::{self, Done as DONE};

/// All flags.
pub const TABLE: FlagTable = FlagTable { parts: &[GROUPS], removed: &REMOVED };

/// Flags that a kube-controller-manager does not have.
#[cfg(test)]
pub(super) const OWN: [&str; 2] = ["shadow", "shadow-first"];

/// Flags of older managers, and what took their place.
const REMOVED: [(&str, &str); 11] = [
    ("address", "use --bind-address"),
    ("port", "use --secure-port; there is no insecure port any more"),
    ("pod-eviction-timeout", "pods tolerate the taint of a failed node for so long as they say"),
    ("enable-taint-manager", "use --controllers=-taint-eviction-controller"),
    ("experimental-cluster-signing-duration", "use --cluster-signing-duration"),
    ("deleting-pods-qps", "remove it: taints have pods evicted"),
    ("deleting-pods-burst", "remove it: taints have pods evicted"),
    ("register-retry-count", "remove it: kubelets register their nodes"),
    ("horizontal-pod-autoscaler-use-rest-clients", "remove it: the metrics APIs are always used"),
    ("horizontal-pod-autoscaler-upscale-delay", "use spec.behavior of the autoscaler"),
    (
        "horizontal-pod-autoscaler-downscale-delay",
        "use --horizontal-pod-autoscaler-downscale-stabilization",
    ),
];

const fn own(name: &'static str, kind: FlagKind, status: Status, help: &'static str) -> Flag {
    Flag::own(name, kind, status, help)
}

const CLOUD: Status = Status::Never("cloud providers have managers of their own");
const LOOP: Status = Status::NotYet("its controller is not built");
const MIGRATION: Status = Status::NotYet("all controllers run under one lease");
const RECYCLER: Status = Status::Never("volumes of CSI drivers need none of it");
const RESYNC: Status = Status::Never("what was missed is found by version, not by time");

const SERVING: [Flag; 13] = component_flags::serving("10257");
const DELEGATED: [Flag; 15] = component_flags::delegated("false");
const ELECTION: [Flag; 7] = component_flags::leader_election("kube-controller-manager");

/// Groups in the order of `--help`.
const GROUPS: &[Group] = &[
    Group { title: "Start and credentials", flags: &START },
    Group { title: "Serving", flags: &SERVING },
    Group { title: "Who may ask", flags: &DELEGATED },
    Group { title: "Leader election", flags: &ELECTION },
    Group { title: "Cloud providers", flags: &CLOUD_FLAGS },
    Group { title: "Workloads", flags: &WORKLOADS },
    Group { title: "Metadata", flags: &METADATA },
    Group { title: "Services", flags: &SERVICES },
    Group { title: "Nodes", flags: &NODES },
    Group { title: "Certificates", flags: &CERTIFICATES },
    Group { title: "Volumes", flags: &VOLUMES },
    Group { title: "Features", flags: &FEATURES },
    Group { title: "Metrics and logs", flags: &METRICS_AND_LOGS },
];

#[rustfmt::skip] // one flag a line, or two: a table to look things up in
const START: [Flag; 18] = [
    own("kubeconfig", FlagKind::Text, DONE,
        "How to reach the API server; without it, the pod's service account"),
    own("master", FlagKind::Text, DONE, "Address of the API server, over the kubeconfig's"),
    own("use-service-account-credentials", FlagKind::Bool, DONE,
        "Each controller has a service account of its own"),
    own("kube-api-qps", FlagKind::Float, DONE,
        "Requests of one controller to the API server a second").default("20"),
    own("kube-api-burst", FlagKind::Int32, DONE,
        "Requests of one controller to the API server at once").default("30"),
    own("kube-api-content-type", FlagKind::Text, JSON,
        "Form of requests and answers").default("application/vnd.kubernetes.protobuf"),
    own("controllers", FlagKind::TextList, DONE,
        "Controllers to run: * for all that are on by default, NAME, -NAME; the first match counts").default("[*]"),
    own("controller-start-interval", FlagKind::Duration, DONE,
        "Wait up to twice as long before a controller starts"),
    own("controller-shutdown-timeout", FlagKind::Duration, DONE,
        "Wait so long for writes under way at the end").default("10s"),
    own("min-resync-period", FlagKind::Duration, RESYNC,
        "Look at every object again after so long, or up to twice as long").default("12h0m0s"),
    own("enable-leader-migration", FlagKind::Bool, MIGRATION,
        "Hand controllers over to another manager by a second lease"),
    own("leader-migration-config", FlagKind::Text, MIGRATION,
        "File that says which controllers move"),
    own("shadow", FlagKind::Bool, DONE,
        "Write nothing and never lead: compare with the manager that acts"),
    own("shadow-first", FlagKind::Duration, DONE,
        "Garbage collection and namespace deletion act after so long in shadow without a difference"),
    own("profiling", FlagKind::Bool, GO_ONLY, "Serve profiles of the process").default("true"),
    own("contention-profiling", FlagKind::Bool, GO_ONLY, "Serve profiles of locks"),
    own("help", FlagKind::Help, DONE, "Show this text"),
    own("version", FlagKind::Version, DONE, "Show the version"),
];

#[rustfmt::skip] // one flag a line, or two: a table to look things up in
const CLOUD_FLAGS: [Flag; 9] = [
    own("cloud-provider", FlagKind::Text, DONE,
        "external, or nothing: providers are not part of a manager any more"),
    own("cloud-config", FlagKind::Text, CLOUD, "Configuration of a provider"),
    own("cluster-name", FlagKind::Text, CLOUD,
        "Prefix for what a provider makes").default("kubernetes"),
    own("allow-untagged-cloud", FlagKind::Bool, CLOUD,
        "Run without a tag of the cluster").deprecated("it will be removed, clouds need a tag of the cluster"),
    own("configure-cloud-routes", FlagKind::Bool, CLOUD,
        "Give the ranges of nodes to a provider").default("true"),
    own("route-reconciliation-period", FlagKind::Duration, CLOUD,
        "Look at routes so often").default("10s"),
    own("external-cloud-volume-plugin", FlagKind::Text, CLOUD, "Plugin for volumes of a provider"),
    own("node-sync-period", FlagKind::Duration, CLOUD,
        "Nothing").deprecated("it has no effect and will be removed"),
    own("concurrent-service-syncs", FlagKind::Int32, CLOUD,
        "Concurrent syncs of load balancers").default("1"),
];

#[rustfmt::skip] // one flag a line, or two: a table to look things up in
const WORKLOADS: [Flag; 15] = [
    own("concurrent-deployment-syncs", FlagKind::Int32, DONE,
        "Concurrent syncs of Deployments").default("5"),
    own("concurrent-replicaset-syncs", FlagKind::Int32, DONE,
        "Concurrent syncs of ReplicaSets").default("5"),
    own("concurrent-rc-syncs", FlagKind::Int32, DONE,
        "Concurrent syncs of ReplicationControllers").default("5"),
    own("concurrent-statefulset-syncs", FlagKind::Int32, DONE,
        "Concurrent syncs of StatefulSets").default("5"),
    own("concurrent-daemonset-syncs", FlagKind::Int32, DONE,
        "Concurrent syncs of DaemonSets").default("2"),
    own("concurrent-job-syncs", FlagKind::Int32, DONE, "Concurrent syncs of Jobs").default("5"),
    own("concurrent-cron-job-syncs", FlagKind::Int32, DONE,
        "Concurrent syncs of CronJobs").default("5"),
    own("concurrent-ttl-after-finished-syncs", FlagKind::Int32, DONE,
        "Concurrent deletions of finished Jobs").default("5"),
    own("concurrent-horizontal-pod-autoscaler-syncs", FlagKind::Int32, LOOP,
        "Concurrent syncs of HorizontalPodAutoscalers").default("5"),
    own("horizontal-pod-autoscaler-sync-period", FlagKind::Duration, LOOP,
        "Sync each HorizontalPodAutoscaler so often").default("15s"),
    own("horizontal-pod-autoscaler-downscale-stabilization", FlagKind::Duration, LOOP,
        "Scale down only below all recommendations of so long").default("5m0s"),
    own("horizontal-pod-autoscaler-tolerance", FlagKind::Float, LOOP,
        "Do not scale for a smaller deviation of the ratio from 1").default("0.1"),
    own("horizontal-pod-autoscaler-cpu-initialization-period", FlagKind::Duration, LOOP,
        "Samples of CPU may be skipped for so long after a pod's start").default("5m0s"),
    own("horizontal-pod-autoscaler-initial-readiness-delay", FlagKind::Duration, LOOP,
        "Readiness counts as initial for so long after a pod's start").default("30s"),
    own("terminated-pod-gc-threshold", FlagKind::Int32, LOOP,
        "Delete terminated pods beyond so many; 0 deletes none").default("12500"),
];

#[rustfmt::skip] // one flag a line, or two: a table to look things up in
const METADATA: [Flag; 11] = [
    own("enable-garbage-collector", FlagKind::Bool, DONE,
        "Delete objects whose owners are gone").default("true"),
    own("concurrent-gc-syncs", FlagKind::Int32, DONE,
        "Concurrent syncs of the garbage collector").default("20"),
    own("concurrent-namespace-syncs", FlagKind::Int32, DONE,
        "Concurrent deletions of namespaces").default("10"),
    own("namespace-sync-period", FlagKind::Duration, RESYNC,
        "Look at namespaces so often").default("5m0s"),
    own("concurrent-resource-quota-syncs", FlagKind::Int32, DONE,
        "Concurrent syncs of ResourceQuotas").default("5"),
    own("resource-quota-sync-period", FlagKind::Duration, DONE,
        "Count the usage of quotas anew so often").default("5m0s"),
    own("concurrent-serviceaccount-token-syncs", FlagKind::Int32, DONE,
        "Concurrent syncs of token Secrets").default("5"),
    own("service-account-private-key-file", FlagKind::Text, DONE,
        "Key that signs tokens of token Secrets; without it none are made"),
    own("root-ca-file", FlagKind::Text, DONE,
        "Authority of the API server, for ConfigMaps and token Secrets"),
    own("legacy-service-account-token-clean-up-period", FlagKind::Duration, LOOP,
        "Delete token Secrets that were not used for so long").default("8760h0m0s"),
    own("concurrent-validating-admission-policy-status-syncs", FlagKind::Int32, LOOP,
        "Concurrent type checks of admission policies").default("5"),
];

#[rustfmt::skip] // one flag a line, or two: a table to look things up in
const SERVICES: [Flag; 8] = [
    own("concurrent-endpoint-syncs", FlagKind::Int32, LOOP,
        "Concurrent syncs of Endpoints").default("5"),
    own("endpoint-updates-batch-period", FlagKind::Duration, LOOP,
        "Collect changes of pods for so long"),
    own("concurrent-service-endpoint-syncs", FlagKind::Int32, LOOP,
        "Concurrent syncs of EndpointSlices").default("5"),
    own("endpointslice-updates-batch-period", FlagKind::Duration, LOOP,
        "Collect changes of pods for so long"),
    own("max-endpoints-per-slice", FlagKind::Int32, LOOP, "Endpoints of one slice").default("100"),
    own("mirroring-concurrent-service-endpoint-syncs", FlagKind::Int32, LOOP,
        "Concurrent syncs of mirrored Endpoints").default("5"),
    own("mirroring-endpointslice-updates-batch-period", FlagKind::Duration, LOOP,
        "Collect changes of Endpoints for so long"),
    own("mirroring-max-endpoints-per-subset", FlagKind::Int32, LOOP,
        "Mirrored endpoints of one subset").default("1000"),
];

#[rustfmt::skip] // one flag a line, or two: a table to look things up in
const NODES: [Flag; 16] = [
    own("node-monitor-period", FlagKind::Duration, LOOP,
        "Look at the state of nodes so often").default("5s"),
    own("node-monitor-grace-period", FlagKind::Duration, LOOP,
        "A silent node counts as unhealthy after so long").default("50s"),
    own("node-startup-grace-period", FlagKind::Duration, LOOP,
        "The same for a node that has just started").default("1m0s"),
    own("node-eviction-rate", FlagKind::Float, LOOP,
        "Nodes a second whose pods are evicted in a healthy zone").default("0.1"),
    own("secondary-node-eviction-rate", FlagKind::Float, LOOP,
        "The same in an unhealthy zone").default("0.01"),
    own("unhealthy-zone-threshold", FlagKind::Float, LOOP,
        "Share of failed nodes that makes a zone unhealthy").default("0.55"),
    own("large-cluster-size-threshold", FlagKind::Int32, LOOP,
        "Up to so many nodes nothing is evicted in an unhealthy zone").default("50"),
    own("allocate-node-cidrs", FlagKind::Bool, LOOP, "Give each node a range of pod addresses"),
    own("cidr-allocator-type", FlagKind::Text, LOOP, "RangeAllocator").default("RangeAllocator"),
    own("cluster-cidr", FlagKind::Text, LOOP, "Ranges of pod addresses"),
    own("service-cluster-ip-range", FlagKind::Text, LOOP,
        "Ranges of service addresses, which no node gets"),
    own("node-cidr-mask-size", FlagKind::Int32, LOOP, "Prefix length of a node's range"),
    own("node-cidr-mask-size-ipv4", FlagKind::Int32, LOOP,
        "The same of IPv4 in a cluster of both families"),
    own("node-cidr-mask-size-ipv6", FlagKind::Int32, LOOP, "The same of IPv6"),
    own("concurrent-device-taint-eviction-syncs", FlagKind::Int32, LOOP,
        "Concurrent evictions for tainted devices").default("8"),
    own("concurrent-resourceclaim-syncs", FlagKind::Int32, LOOP,
        "Concurrent syncs of ResourceClaims").default("50"),
];

#[rustfmt::skip] // one flag a line, or two: a table to look things up in
const CERTIFICATES: [Flag; 11] = [
    own("cluster-signing-cert-file", FlagKind::Text, LOOP, "Authority that signs certificates"),
    own("cluster-signing-key-file", FlagKind::Text, LOOP, "Its key"),
    own("cluster-signing-duration", FlagKind::Duration, LOOP,
        "Longest life of a certificate").default("8760h0m0s"),
    own("cluster-signing-kubelet-serving-cert-file", FlagKind::Text, LOOP,
        "Authority of kubelets' serving certificates"),
    own("cluster-signing-kubelet-serving-key-file", FlagKind::Text, LOOP, "Its key"),
    own("cluster-signing-kubelet-client-cert-file", FlagKind::Text, LOOP,
        "Authority of kubelets' client certificates"),
    own("cluster-signing-kubelet-client-key-file", FlagKind::Text, LOOP, "Its key"),
    own("cluster-signing-kube-apiserver-client-cert-file", FlagKind::Text, LOOP,
        "Authority of other client certificates"),
    own("cluster-signing-kube-apiserver-client-key-file", FlagKind::Text, LOOP, "Its key"),
    own("cluster-signing-legacy-unknown-cert-file", FlagKind::Text, LOOP,
        "Authority of kubernetes.io/legacy-unknown"),
    own("cluster-signing-legacy-unknown-key-file", FlagKind::Text, LOOP, "Its key"),
];

#[rustfmt::skip] // one flag a line, or two: a table to look things up in
const VOLUMES: [Flag; 14] = [
    own("attach-detach-reconcile-sync-period", FlagKind::Duration, LOOP,
        "Compare attached volumes with nodes so often").default("1m0s"),
    own("disable-attach-detach-reconcile-sync", FlagKind::Bool, LOOP, "Do not compare them"),
    own("disable-force-detach-on-timeout", FlagKind::Bool, LOOP,
        "Do not detach from a node that does not answer"),
    own("pvclaimbinder-sync-period", FlagKind::Duration, LOOP,
        "Look at volumes and claims so often").default("15s"),
    own("enable-dynamic-provisioning", FlagKind::Bool, LOOP,
        "Make volumes for claims").default("true"),
    own("enable-hostpath-provisioner", FlagKind::Bool, RECYCLER,
        "Make volumes that are folders of a node"),
    own("flex-volume-plugin-dir", FlagKind::Text, RECYCLER,
        "Folder of FlexVolume plugins").default("/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"),
    own("pv-recycler-minimum-timeout-nfs", FlagKind::Int32, RECYCLER,
        "Least time for a pod that empties an NFS volume").default("300"),
    own("pv-recycler-increment-timeout-nfs", FlagKind::Int32, RECYCLER,
        "More time for each Gi").default("30"),
    own("pv-recycler-pod-template-filepath-nfs", FlagKind::Text, RECYCLER, "Its pod"),
    own("pv-recycler-minimum-timeout-hostpath", FlagKind::Int32, RECYCLER,
        "Least time for a pod that empties a folder").default("60"),
    own("pv-recycler-timeout-increment-hostpath", FlagKind::Int32, RECYCLER,
        "More time for each Gi").default("30"),
    own("pv-recycler-pod-template-filepath-hostpath", FlagKind::Text, RECYCLER, "Its pod"),
    own("concurrent-ephemeralvolume-syncs", FlagKind::Int32, LOOP,
        "Concurrent syncs of ephemeral volumes").default("5"),
];
