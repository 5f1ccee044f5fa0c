//! Violations of each rule; the defaults violate none.

use serde_json::json;

use super::*;

fn violations(gates: &[(&str, bool)], tree: serde_json::Value) -> Vec<ConfigError> {
    let config: KubeletConfiguration =
        serde_json::from_value(tree.clone()).unwrap_or_else(|error| panic!("{tree}: {error}"));
    let asked = gates.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
    check(&config, &FeatureGates::new(&asked).expect("known gates"))
}

#[test]
fn the_defaults_are_valid() {
    assert_eq!(violations(&[], json!({})), []);
}

#[test]
fn validation_error_names_the_field_and_has_a_remedy() {
    for (tree, field, said) in [
        (json!({ "port": 0 }), "port", "from 1 to 65535"),
        (
            json!({ "imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages",
                "preloadedImagesVerificationAllowlist": ["reg.example/a:1"] }),
            "preloadedImagesVerificationAllowlist",
            "neither tag nor digest is accepted",
        ),
        (json!({ "readOnlyPort": -1 }), "readOnlyPort", "from 0 to 65535"),
        (json!({ "healthzPort": 65536 }), "healthzPort", "from 0 to 65535"),
        (json!({ "address": "host" }), "address", "not an IP address"),
        (json!({ "healthzBindAddress": "x" }), "healthzBindAddress", "not an IP address"),
        (
            json!({ "enableSystemLogQuery": true, "enableSystemLogHandler": false }),
            "enableSystemLogQuery",
            "needs enableSystemLogHandler",
        ),
        (json!({ "tlsMinVersion": "TLS1.2" }), "tlsMinVersion", "no such TLS version"),
        (json!({ "tlsCertFile": "/c" }), "tlsCertFile", "belong together"),
        (json!({ "tlsPrivateKeyFile": "/k" }), "tlsPrivateKeyFile", "belong together"),
        (json!({ "eventBurst": -1 }), "eventBurst", "at least 0"),
        (json!({ "eventRecordQPS": -1 }), "eventRecordQPS", "at least 0"),
        (json!({ "kubeAPIBurst": -1 }), "kubeAPIBurst", "at least 0"),
        (json!({ "kubeAPIQPS": -1 }), "kubeAPIQPS", "at least 0"),
        (json!({ "registryBurst": -1 }), "registryBurst", "at least 0"),
        (json!({ "registryPullQPS": -1 }), "registryPullQPS", "at least 0"),
        (json!({ "maxPods": -1 }), "maxPods", "at least 0"),
        (json!({ "podsPerCore": -1 }), "podsPerCore", "at least 0"),
        (json!({ "maxOpenFiles": -1 }), "maxOpenFiles", "at least 0"),
        (json!({ "nodeLeaseDurationSeconds": -1 }), "nodeLeaseDurationSeconds", "at least 1"),
        (json!({ "nodeStatusMaxImages": -2 }), "nodeStatusMaxImages", "at least -1"),
        (json!({ "oomScoreAdj": -1001 }), "oomScoreAdj", "from -1000 to 1000"),
        (json!({ "iptablesDropBit": 32 }), "iptablesDropBit", "from 0 to 31"),
        (json!({ "iptablesMasqueradeBit": -1 }), "iptablesMasqueradeBit", "from 0 to 31"),
        (json!({ "syncFrequency": "-1s" }), "syncFrequency", "longer than zero"),
        (
            json!({ "imageGCHighThresholdPercent": 101 }),
            "imageGCHighThresholdPercent",
            "from 0 to 100",
        ),
        (json!({ "imageGCLowThresholdPercent": -1 }), "imageGCLowThresholdPercent", "0 to 100"),
        (
            json!({ "imageGCLowThresholdPercent": 85 }),
            "imageGCLowThresholdPercent",
            "less than imageGCHighThresholdPercent, which is 85",
        ),
        (json!({ "imageMinimumGCAge": "-1s" }), "imageMinimumGCAge", "not be negative"),
        (json!({ "imageMaximumGCAge": "-1s" }), "imageMaximumGCAge", "not be negative"),
        (json!({ "imageMaximumGCAge": "2m" }), "imageMaximumGCAge", "which is 2m0s"),
        (
            json!({ "maxParallelImagePulls": 0, "serializeImagePulls": false }),
            "maxParallelImagePulls",
            "at least 1",
        ),
        (json!({ "maxParallelImagePulls": 2 }), "maxParallelImagePulls", "serialised"),
        (
            json!({ "preloadedImagesVerificationAllowlist": ["a"] }),
            "preloadedImagesVerificationAllowlist",
            "NeverVerifyAllowlistedImages",
        ),
        (json!({ "runOnce": true }), "runOnce", "no longer exists"),
        (
            json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "301s" } }),
            "crashLoopBackOff.maxContainerRestartPeriod",
            "from 1s to 5m0s",
        ),
        (
            json!({ "tracing": { "samplingRatePerMillion": -1 } }),
            "tracing.samplingRatePerMillion",
            "from 0 to 1000000",
        ),
        (
            json!({ "userNamespaces": { "idsPerPod": 65537 } }),
            "userNamespaces.idsPerPod",
            "multiple of 65536",
        ),
        (
            json!({ "showHiddenMetricsForVersion": "1.20" }),
            "showHiddenMetricsForVersion",
            "use 1.35",
        ),
        (
            json!({ "shutdownGracePeriodCriticalPods": "2s" }),
            "shutdownGracePeriodCriticalPods",
            "not be longer than shutdownGracePeriod",
        ),
        (json!({ "shutdownGracePeriod": "10ms" }), "shutdownGracePeriod", "0s or at least 1s"),
        (
            json!({
                "shutdownGracePeriod": "5s",
                "shutdownGracePeriodByPodPriority":
                    [{ "priority": 0, "shutdownGracePeriodSeconds": 1 }],
            }),
            "shutdownGracePeriodByPodPriority",
            "cannot be combined",
        ),
        (json!({ "containerLogMaxWorkers": 0 }), "containerLogMaxWorkers", "at least 1"),
        (json!({ "containerLogMaxFiles": 1 }), "containerLogMaxFiles", "at least 2"),
        (
            json!({ "containerLogMonitorInterval": "2s" }),
            "containerLogMonitorInterval",
            "at least 3s",
        ),
        (json!({ "podLogsDir": "logs" }), "podLogsDir", "absolute"),
        (json!({ "podLogsDir": "/var/../log" }), "podLogsDir", "must not contain"),
        (json!({ "podLogsDir": "/var/log/" }), "podLogsDir", "end in /"),
        (json!({ "podLogsDir": "/pröd" }), "podLogsDir", "ASCII"),
        (
            json!({ "logging": { "format": "json", "vmodule":
                [{ "filePattern": "a", "verbosity": 1 }] } }),
            "logging.vmodule",
            "only exist for text",
        ),
        (
            json!({ "registerWithTaints": [{ "key": "-", "effect": "NoSchedule" }] }),
            "registerWithTaints",
            "not a taint",
        ),
        (
            json!({ "registerWithTaints":
                [{ "key": "a", "effect": "NoSchedule", "timeAdded": "2020-01-01T00:00:00Z" }] }),
            "registerWithTaints",
            "timeAdded",
        ),
        (
            json!({ "containerRuntimeEndpoint": "tcp://1.2.3.4:5" }),
            "containerRuntimeEndpoint",
            "unix socket",
        ),
        (json!({ "imageServiceEndpoint": "x" }), "imageServiceEndpoint", "unix socket"),
        (json!({ "systemCgroups": "/sys" }), "systemCgroups", "needs cgroupRoot"),
        (json!({ "cpuCFSQuotaPeriod": "500us" }), "cpuCFSQuotaPeriod", "from 1ms to 1s"),
        (
            json!({ "enforceNodeAllocatable": ["system-reserved"] }),
            "enforceNodeAllocatable",
            "needs systemReservedCgroup",
        ),
        (
            json!({ "enforceNodeAllocatable": ["none", "pods"] }),
            "enforceNodeAllocatable",
            "cannot be combined",
        ),
        (json!({ "enforceNodeAllocatable": ["pods", "pods"] }), "enforceNodeAllocatable", "twice"),
        (
            json!({ "enforceNodeAllocatable": ["nodes"] }),
            "enforceNodeAllocatable",
            "no such enforcement",
        ),
        (json!({ "cgroupsPerQOS": false }), "enforceNodeAllocatable", "needs cgroupsPerQOS"),
        (
            json!({
                "enforceNodeAllocatable": ["kube-reserved", "kube-reserved-compressible"],
                "kubeReservedCgroup": "/k",
            }),
            "enforceNodeAllocatable",
            "exclude each other",
        ),
        (json!({ "systemReserved": { "gpu": "1" } }), "systemReserved", "cannot be reserved"),
        (json!({ "kubeReserved": { "cpu": "-1" } }), "kubeReserved", "not a positive quantity"),
        (json!({ "qosReserved": { "memory": "50" } }), "qosReserved", "percentage"),
        (json!({ "reservedSystemCPUs": "3-1" }), "reservedSystemCPUs", "not a list of CPUs"),
        (
            json!({ "reservedSystemCPUs": "0-1", "kubeReservedCgroup": "/k" }),
            "reservedSystemCPUs",
            "cannot be combined with kubeReservedCgroup",
        ),
        (
            json!({ "reservedMemory": [{ "numaNode": 0, "limits": { "cpu": 1 } }] }),
            "reservedMemory",
            "only memory and hugepages",
        ),
        (
            json!({ "reservedMemory": [{ "numaNode": 0, "limits": { "memory": 0 } }] }),
            "reservedMemory",
            "reserves nothing",
        ),
        (json!({ "memoryManagerPolicy": "Static" }), "memoryManagerPolicy", "reservedMemory"),
        (json!({ "cpuManagerPolicy": "static" }), "cpuManagerPolicy", "CPUs reserved"),
        (json!({ "memoryThrottlingFactor": 0.0 }), "memoryThrottlingFactor", "above 0"),
        (
            json!({ "memoryReservationPolicy": "TieredReservation" }),
            "memoryReservationPolicy",
            "feature gate MemoryQoS",
        ),
        (
            json!({ "evictionHard": { "memory": "1" } }),
            "evictionHard",
            "unsupported eviction signal memory",
        ),
        (
            json!({ "evictionHard": { "memory.available": "101%" } }),
            "evictionHard",
            "eviction percentage threshold memory.available must be <= 100%: 101%",
        ),
        (
            json!({ "evictionHard": { "memory.available": "-1%" } }),
            "evictionHard",
            "eviction percentage threshold memory.available must be >= 0%: -1%",
        ),
        (
            json!({ "evictionHard": { "memory.available": "0" } }),
            "evictionHard",
            "eviction threshold memory.available must be positive: 0",
        ),
        (
            json!({ "evictionHard": { "memory.available": "much" } }),
            "evictionHard",
            "neither a positive quantity nor a percentage",
        ),
        (
            json!({ "evictionMinimumReclaim": { "memory.available": "0%" } }),
            "evictionMinimumReclaim",
            "eviction percentage minimum reclaim memory.available must be positive: 0%",
        ),
        (
            json!({ "evictionMinimumReclaim": { "memory.available": "-1" } }),
            "evictionMinimumReclaim",
            "negative eviction minimum reclaim specified for memory.available",
        ),
        (
            json!({ "evictionSoft": { "memory.available": "1Gi" } }),
            "evictionSoft",
            "grace period must be specified for the soft eviction threshold memory.available",
        ),
        (
            json!({ "evictionSoftGracePeriod": { "memory.available": "-1s" } }),
            "evictionSoftGracePeriod",
            "invalid eviction grace period specified: -1s, must be a positive value",
        ),
        (
            json!({ "evictionSoftGracePeriod": { "memory.available": "soon" } }),
            "evictionSoftGracePeriod",
            "not a duration",
        ),
    ] {
        let found = violations(&[], tree.clone());
        let hit = found.iter().any(|error| error.field == field && says(error, said));
        assert!(hit, "{tree} must be refused for {field} ({said}), got {found:?}");
        assert!(found.iter().all(|error| !error.remedy.is_empty()), "{found:?}");
    }
}

fn says(error: &ConfigError, said: &str) -> bool {
    error.problem.contains(said) || error.remedy.contains(said)
}

#[test]
fn fields_of_features_that_are_off_are_refused() {
    for (gates, tree, field) in [
        (
            &["KubeletCrashLoopBackOffMax"][..],
            json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "10s" } }),
            "crashLoopBackOff.maxContainerRestartPeriod",
        ),
        (
            &["KubeletEnsureSecretPulledImages"],
            json!({ "imagePullCredentialsVerificationPolicy": "AlwaysVerify" }),
            "imagePullCredentialsVerificationPolicy",
        ),
        (
            &[
                "GracefulNodeShutdown",
                "GracefulNodeShutdownBasedOnPodPriority",
                "WindowsGracefulNodeShutdown",
            ],
            json!({ "shutdownGracePeriod": "5s" }),
            "shutdownGracePeriod",
        ),
        (
            &["GracefulNodeShutdownBasedOnPodPriority"],
            json!({ "shutdownGracePeriodByPodPriority":
                [{ "priority": 0, "shutdownGracePeriodSeconds": 1 }] }),
            "shutdownGracePeriodByPodPriority",
        ),
        (&["CustomCPUCFSQuotaPeriod"], json!({ "cpuCFSQuotaPeriod": "50ms" }), "cpuCFSQuotaPeriod"),
        (
            &["RotateKubeletServerCertificate"],
            json!({ "serverTLSBootstrap": true }),
            "serverTLSBootstrap",
        ),
    ] {
        let refused = |gates: &[(&str, bool)]| {
            violations(gates, tree.clone()).iter().any(|error| error.field == field)
        };
        let off: Vec<_> = gates.iter().map(|gate| (*gate, false)).collect();
        assert!(refused(&off), "{field} without {gates:?}");
        assert!(!refused(&[]), "{field} with {gates:?}");
    }
}

#[test]
fn valid_settings_that_look_odd_are_accepted() {
    for tree in [
        json!({ "port": 65535, "readOnlyPort": 0, "healthzPort": 0 }),
        json!({ "imageMaximumGCAge": "121s" }),
        json!({ "shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "30s" }),
        json!({ "enforceNodeAllocatable": ["none"], "cgroupsPerQOS": false }),
        json!({ "enforceNodeAllocatable": [], "cgroupsPerQOS": false }),
        json!({ "reservedSystemCPUs": "0,2-3,7" }),
        json!({ "containerRuntimeEndpoint": "/run/x.sock" }),
        json!({ "containerLogMaxSize": "-1" }),
        json!({ "volumeStatsAggPeriod": "-1s" }),
        json!({ "evictionHard": { "memory.available": "0%", "pid.available": "100%" } }),
        json!({ "evictionHard": { "memory.available": "10%%", "pid.available": "100.0%" } }),
        json!({ "maxParallelImagePulls": 1 }),
        json!({ "clusterDNS": ["10.0.0.1", "dns"] }),
        json!({ "cpuManagerPolicy": "static", "systemReserved": { "cpu": "500m" } }),
        json!({ "userNamespaces": { "idsPerPod": 131072 } }),
    ] {
        assert_eq!(violations(&[], tree.clone()), [], "{tree}");
    }
}
