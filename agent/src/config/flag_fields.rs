//! The flags that set a field of the configuration file; the larger half of the command line.
//!
//! Output: [`FIELD_GROUPS`], part of [`super::flag_table::groups`]. Upstream calls nearly all of
//! them deprecated in favour of the file; every installer still uses some. They share default,
//! checks and status with their field in `fields.rs`.
//!
//! // k8s: cmd/kubelet/app/options/options.go AddKubeletConfigFlags

use super::flag_table::{Flag, FlagKind, Group, Target};

const fn field(name: &'static str, kind: FlagKind, path: &'static str, help: &'static str) -> Flag {
    Flag { name, kind, target: Target::Field(path), help }
}

/// Flags of configuration fields, in the order of `--help`.
pub(super) const FIELD_GROUPS: &[Group] = &[
    Group {
        title: "Pod sources",
        flags: &[
            field(
                "pod-manifest-path",
                FlagKind::Text,
                "staticPodPath",
                "Folder of static pod manifests, or one manifest file",
            ),
            field(
                "manifest-url",
                FlagKind::Text,
                "staticPodURL",
                "Address from which more pod manifests are read",
            ),
            field(
                "manifest-url-header",
                FlagKind::Headers,
                "staticPodURLHeader",
                "HTTP headers for it, key:value",
            ),
            field(
                "sync-frequency",
                FlagKind::Duration,
                "syncFrequency",
                "Longest time between two looks at a running pod",
            ),
            field(
                "file-check-frequency",
                FlagKind::Duration,
                "fileCheckFrequency",
                "Time between two full listings of the manifest folder",
            ),
            field(
                "http-check-frequency",
                FlagKind::Duration,
                "httpCheckFrequency",
                "Time between two reads of the manifest address",
            ),
            field("runonce", FlagKind::Bool, "runOnce", "Refused, as the kubelet refuses it"),
        ],
    },
    Group {
        title: "Container runtime and images",
        flags: &[
            field(
                "container-runtime-endpoint",
                FlagKind::Text,
                "containerRuntimeEndpoint",
                "Socket of the container runtime",
            ),
            field(
                "image-service-endpoint",
                FlagKind::Text,
                "imageServiceEndpoint",
                "Socket of the image service; the runtime's when empty",
            ),
            field(
                "runtime-request-timeout",
                FlagKind::Duration,
                "runtimeRequestTimeout",
                "Deadline of runtime calls other than pull, logs, exec, attach",
            ),
            field(
                "serialize-image-pulls",
                FlagKind::Bool,
                "serializeImagePulls",
                "Pull one image at a time",
            ),
            field(
                "registry-qps",
                FlagKind::Int32,
                "registryPullQPS",
                "Pulls a second; 0 is no limit",
            ),
            field(
                "registry-burst",
                FlagKind::Int32,
                "registryBurst",
                "Pulls at once above that rate",
            ),
            field(
                "minimum-image-ttl-duration",
                FlagKind::Duration,
                "imageMinimumGCAge",
                "Youngest age at which an unused image may be removed",
            ),
            field(
                "image-gc-high-threshold",
                FlagKind::Int32,
                "imageGCHighThresholdPercent",
                "Disk usage in percent that starts image removal",
            ),
            field(
                "image-gc-low-threshold",
                FlagKind::Int32,
                "imageGCLowThresholdPercent",
                "Disk usage in percent that ends image removal",
            ),
            field(
                "container-log-max-size",
                FlagKind::Quantity,
                "containerLogMaxSize",
                "Size at which a container's log file is rotated",
            ),
            field(
                "container-log-max-files",
                FlagKind::Int32,
                "containerLogMaxFiles",
                "Log files kept for a container, at least 2",
            ),
            field(
                "seccomp-default",
                FlagKind::Bool,
                "seccompDefault",
                "Use the runtime's seccomp profile where a pod names none",
            ),
        ],
    },
    Group {
        title: "DNS and network",
        flags: &[
            field("cluster-dns", FlagKind::TextList, "clusterDNS", "DNS servers of the cluster"),
            field("cluster-domain", FlagKind::Text, "clusterDomain", "Domain of the cluster"),
            field(
                "resolv-conf",
                FlagKind::Text,
                "resolvConf",
                "File that pods' DNS settings are derived from; empty for none",
            ),
            field(
                "hairpin-mode",
                FlagKind::Text,
                "hairpinMode",
                "promiscuous-bridge, hairpin-veth or none",
            ),
            field(
                "make-iptables-util-chains",
                FlagKind::Bool,
                "makeIPTablesUtilChains",
                "Create the iptables hint chain",
            ),
            field("pod-cidr", FlagKind::Text, "podCIDR", "Addresses of pods in standalone mode"),
        ],
    },
    Group {
        title: "Servers",
        flags: &[
            field("enable-server", FlagKind::Bool, "enableServer", "Serve HTTPS"),
            field(
                "address",
                FlagKind::Ip,
                "address",
                "IP address to serve on; 0.0.0.0 or :: for all",
            ),
            field("port", FlagKind::Int32, "port", "HTTPS port"),
            field(
                "read-only-port",
                FlagKind::Int32,
                "readOnlyPort",
                "Plain HTTP port without authentication; 0 is off",
            ),
            field(
                "healthz-port",
                FlagKind::Int32,
                "healthzPort",
                "Port of the health check; 0 is off",
            ),
            field(
                "healthz-bind-address",
                FlagKind::Ip,
                "healthzBindAddress",
                "IP address of the health check",
            ),
            field("tls-cert-file", FlagKind::Text, "tlsCertFile", "Server certificate"),
            field(
                "tls-private-key-file",
                FlagKind::Text,
                "tlsPrivateKeyFile",
                "Key of the server certificate",
            ),
            field(
                "tls-cipher-suites",
                FlagKind::TextList,
                "tlsCipherSuites",
                "Cipher suites for TLS 1.2",
            ),
            field("tls-min-version", FlagKind::Text, "tlsMinVersion", "Oldest TLS version"),
            field(
                "rotate-certificates",
                FlagKind::Bool,
                "rotateCertificates",
                "Renew the client certificate through the API",
            ),
            field(
                "rotate-server-certificates",
                FlagKind::Bool,
                "serverTLSBootstrap",
                "Request the server certificate through the API",
            ),
            field(
                "client-ca-file",
                FlagKind::Text,
                "authentication.x509.clientCAFile",
                "Authorities of client certificates",
            ),
            field(
                "anonymous-auth",
                FlagKind::Bool,
                "authentication.anonymous.enabled",
                "Accept requests without credentials",
            ),
            field(
                "authentication-token-webhook",
                FlagKind::Bool,
                "authentication.webhook.enabled",
                "Check bearer tokens with the API server",
            ),
            field(
                "authentication-token-webhook-cache-ttl",
                FlagKind::Duration,
                "authentication.webhook.cacheTTL",
                "How long its answers are remembered",
            ),
            field(
                "authorization-mode",
                FlagKind::Text,
                "authorization.mode",
                "AlwaysAllow or Webhook",
            ),
            field(
                "authorization-webhook-cache-authorized-ttl",
                FlagKind::Duration,
                "authorization.webhook.cacheAuthorizedTTL",
                "How long \"yes\" is remembered",
            ),
            field(
                "authorization-webhook-cache-unauthorized-ttl",
                FlagKind::Duration,
                "authorization.webhook.cacheUnauthorizedTTL",
                "How long \"no\" is remembered",
            ),
            field(
                "enable-debugging-handlers",
                FlagKind::Bool,
                "enableDebuggingHandlers",
                "Serve logs, exec, attach and port-forward",
            ),
            field(
                "contention-profiling",
                FlagKind::Bool,
                "enableContentionProfiling",
                "Profile lock contention",
            ),
            field(
                "streaming-connection-idle-timeout",
                FlagKind::Duration,
                "streamingConnectionIdleTimeout",
                "Without effect",
            ),
        ],
    },
    Group {
        title: "Cgroups and resources",
        flags: &[
            field(
                "cgroups-per-qos",
                FlagKind::Bool,
                "cgroupsPerQOS",
                "Keep a cgroup for each QoS class and pod",
            ),
            field("cgroup-driver", FlagKind::Text, "cgroupDriver", "cgroupfs or systemd"),
            field("cgroup-root", FlagKind::Text, "cgroupRoot", "Cgroup below which pods live"),
            field(
                "kubelet-cgroups",
                FlagKind::Text,
                "kubeletCgroups",
                "Cgroup of the agent itself",
            ),
            field(
                "system-cgroups",
                FlagKind::Text,
                "systemCgroups",
                "Cgroup for processes that have none",
            ),
            field(
                "system-reserved",
                FlagKind::Pairs,
                "systemReserved",
                "Resources kept for the system, cpu=200m,memory=500Mi",
            ),
            field(
                "system-reserved-cgroup",
                FlagKind::Text,
                "systemReservedCgroup",
                "Cgroup they are enforced on",
            ),
            field(
                "kube-reserved",
                FlagKind::Pairs,
                "kubeReserved",
                "Resources kept for Kubernetes daemons",
            ),
            field(
                "kube-reserved-cgroup",
                FlagKind::Text,
                "kubeReservedCgroup",
                "Cgroup they are enforced on",
            ),
            field(
                "reserved-cpus",
                FlagKind::Text,
                "reservedSystemCPUs",
                "CPUs kept for the system, 0-1,4",
            ),
            field(
                "enforce-node-allocatable",
                FlagKind::TextList,
                "enforceNodeAllocatable",
                "none, pods, system-reserved, kube-reserved",
            ),
            field(
                "qos-reserved",
                FlagKind::Pairs,
                "qosReserved",
                "Share of a resource kept for Guaranteed pods",
            ),
            field("cpu-cfs-quota", FlagKind::Bool, "cpuCFSQuota", "Enforce CPU limits"),
            field(
                "cpu-cfs-quota-period",
                FlagKind::Duration,
                "cpuCFSQuotaPeriod",
                "Period of CPU limits, 1ms to 1s",
            ),
            field("cpu-manager-policy", FlagKind::Text, "cpuManagerPolicy", "none or static"),
            field(
                "cpu-manager-policy-options",
                FlagKind::Pair,
                "cpuManagerPolicyOptions",
                "An option of it, key=value",
            ),
            field(
                "cpu-manager-reconcile-period",
                FlagKind::Duration,
                "cpuManagerReconcilePeriod",
                "Time between its checks",
            ),
            field("memory-manager-policy", FlagKind::Text, "memoryManagerPolicy", "None or Static"),
            field(
                "reserved-memory",
                FlagKind::ReservedMemory,
                "reservedMemory",
                "Memory kept per NUMA node, 0:memory=1Gi",
            ),
            field(
                "topology-manager-policy",
                FlagKind::Text,
                "topologyManagerPolicy",
                "none, best-effort, restricted or single-numa-node",
            ),
            field(
                "topology-manager-scope",
                FlagKind::Text,
                "topologyManagerScope",
                "container or pod",
            ),
            field(
                "topology-manager-policy-options",
                FlagKind::Pair,
                "topologyManagerPolicyOptions",
                "An option of it, key=value",
            ),
            field(
                "pod-max-pids",
                FlagKind::Int64,
                "podPidsLimit",
                "Processes a pod may have; -1 for the node's limit",
            ),
            field("max-pods", FlagKind::Int32, "maxPods", "Pods this node takes"),
            field(
                "pods-per-core",
                FlagKind::Int32,
                "podsPerCore",
                "Pods this node takes per core; 0 is no limit",
            ),
            field(
                "oom-score-adj",
                FlagKind::Int32,
                "oomScoreAdj",
                "The agent's own OOM score adjustment",
            ),
            field(
                "max-open-files",
                FlagKind::Int64,
                "maxOpenFiles",
                "Files the agent may have open",
            ),
            field("fail-swap-on", FlagKind::Bool, "failSwapOn", "Do not start while swap is on"),
            field("fail-cgroupv1", FlagKind::Bool, "failCgroupV1", "Do not start on cgroup v1"),
            field(
                "protect-kernel-defaults",
                FlagKind::Bool,
                "protectKernelDefaults",
                "Fail instead of changing kernel settings",
            ),
            field(
                "allowed-unsafe-sysctls",
                FlagKind::TextList,
                "allowedUnsafeSysctls",
                "Unsafe sysctls that pods may set",
            ),
            field(
                "local-storage-capacity-isolation",
                FlagKind::Bool,
                "localStorageCapacityIsolation",
                "Account for local storage of pods",
            ),
        ],
    },
    Group {
        title: "Eviction",
        flags: &[
            field(
                "eviction-hard",
                FlagKind::Thresholds,
                "evictionHard",
                "Thresholds that evict at once, memory.available<1Gi",
            ),
            field(
                "eviction-soft",
                FlagKind::Thresholds,
                "evictionSoft",
                "Thresholds that evict after a grace period",
            ),
            field(
                "eviction-soft-grace-period",
                FlagKind::Pairs,
                "evictionSoftGracePeriod",
                "Those grace periods, memory.available=1m30s",
            ),
            field(
                "eviction-max-pod-grace-period",
                FlagKind::Int32,
                "evictionMaxPodGracePeriod",
                "Most seconds a pod is given on soft eviction",
            ),
            field(
                "eviction-minimum-reclaim",
                FlagKind::Pairs,
                "evictionMinimumReclaim",
                "Least that an eviction frees",
            ),
            field(
                "eviction-pressure-transition-period",
                FlagKind::Duration,
                "evictionPressureTransitionPeriod",
                "How long a pressure condition stays",
            ),
            field(
                "kernel-memcg-notification",
                FlagKind::Bool,
                "kernelMemcgNotification",
                "Let the kernel report memory thresholds",
            ),
        ],
    },
    Group {
        title: "API server and node object",
        flags: &[
            field("register-node", FlagKind::Bool, "registerNode", "Register this node"),
            field(
                "register-with-taints",
                FlagKind::Taints,
                "registerWithTaints",
                "Taints to register with, key=value:effect",
            ),
            field(
                "provider-id",
                FlagKind::Text,
                "providerID",
                "Id of the machine at its cloud provider",
            ),
            field(
                "node-status-update-frequency",
                FlagKind::Duration,
                "nodeStatusUpdateFrequency",
                "Time between two looks at the node's state",
            ),
            field(
                "node-status-max-images",
                FlagKind::Int32,
                "nodeStatusMaxImages",
                "Images listed in the node's status; -1 for all",
            ),
            field(
                "kube-api-content-type",
                FlagKind::Text,
                "contentType",
                "Content type of requests",
            ),
            field("kube-api-qps", FlagKind::Int32, "kubeAPIQPS", "Requests a second"),
            field(
                "kube-api-burst",
                FlagKind::Int32,
                "kubeAPIBurst",
                "Requests at once above that rate",
            ),
            field("event-qps", FlagKind::Int32, "eventRecordQPS", "Events a second"),
            field("event-burst", FlagKind::Int32, "eventBurst", "Events at once above that rate"),
            field(
                "enable-controller-attach-detach",
                FlagKind::Bool,
                "enableControllerAttachDetach",
                "Leave attaching volumes to the controller",
            ),
        ],
    },
    Group {
        title: "Volumes",
        flags: &[
            field(
                "volume-plugin-dir",
                FlagKind::Text,
                "volumePluginDir",
                "Folder of FlexVolume plugins",
            ),
            field(
                "volume-stats-agg-period",
                FlagKind::Duration,
                "volumeStatsAggPeriod",
                "Time between two looks at volume usage",
            ),
        ],
    },
    Group {
        title: "Features and logging",
        flags: &[
            field(
                "feature-gates",
                FlagKind::Gates,
                "featureGates",
                "Feature gates, name=true|false",
            ),
            field("logging-format", FlagKind::Text, "logging.format", "text or json"),
            field("v", FlagKind::Level, "logging.verbosity", "klog level of detail"),
            field(
                "vmodule",
                FlagKind::Vmodule,
                "logging.vmodule",
                "klog levels per module, pattern=N",
            ),
            field(
                "log-flush-frequency",
                FlagKind::Duration,
                "logging.flushFrequency",
                "Longest time a line is buffered",
            ),
            field(
                "log-text-split-stream",
                FlagKind::Bool,
                "logging.options.text.splitStream",
                "Text: errors to standard error, the rest to standard output",
            ),
            field(
                "log-text-info-buffer-size",
                FlagKind::Quantity,
                "logging.options.text.infoBufferSize",
                "Text: bytes buffered when split",
            ),
            field(
                "log-json-split-stream",
                FlagKind::Bool,
                "logging.options.json.splitStream",
                "JSON: errors to standard error, the rest to standard output",
            ),
            field(
                "log-json-info-buffer-size",
                FlagKind::Quantity,
                "logging.options.json.infoBufferSize",
                "JSON: bytes buffered when split",
            ),
        ],
    },
];
