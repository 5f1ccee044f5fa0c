//! The list of all KubeletConfiguration fields: type, whether the API has a pointer, and how far
//! the agent implements each.
//!
//! Output: [`FIELDS`]. Four things read it: the strict reading of files (unknown fields), the
//! defaulting ("zero means not set" holds for non-pointers only), the warnings about settings that
//! have no effect yet, and the tables of docs/COMPAT.md. A test keeps it equal to the struct in
//! `types.rs`. A change that implements a field changes its status here.

use super::acted_on::Status::{self, Done as DONE};

pub use pintle_config::field::{Field, FieldKind, FieldTable};

const fn value(path: &'static str, kind: FieldKind, status: Status) -> Field {
    Field::value(path, kind, status)
}

const fn pointer(path: &'static str, kind: FieldKind, status: Status) -> Field {
    Field::pointer(path, kind, status)
}

/// The field at `path`, if it is one.
pub fn find(path: &str) -> Option<&'static Field> {
    FieldTable(FIELDS).find(path)
}

const KLOG: Status = Status::Never("the log's verbosity cannot be changed while the agent runs");
const JSON: Status = Status::Never("requests and answers are JSON");
const QOS_RESERVED: Status = Status::NotYet("memory is not kept from lower classes yet");
const MANAGERS: Status = Status::NotYet("CPUs, memory and NUMA nodes are not assigned yet");
const LOGS: Status = Status::NotYet("all log lines go to standard error at one level");
const TRACING: Status =
    Status::NotYet("spans are not exported; `timeline` shows the stages of a pod");
const METRICS: Status = Status::NotYet("no metric is hidden yet");
const NO_EFFECT: Status = Status::Never("has no effect in the kubelet either");
const GO_ONLY: Status = Status::Never("profiles of the Go runtime do not exist here");
const UNBUFFERED: Status = Status::Never("log lines are written at once");
const BRIDGE: Status = Status::Never("the network plugin decides, as with every CRI runtime");
const RUN_ONCE: Status = Status::Never("refused, as the kubelet refuses it");
const FLEXVOLUME: Status = Status::Never("FlexVolume is deprecated in favour of CSI");

/// Every leaf field of the configuration, in the order of the API.
pub const FIELDS: &[Field] = &[
    pointer("enableServer", FieldKind::Bool, DONE),
    value("staticPodPath", FieldKind::Text, DONE),
    value("podLogsDir", FieldKind::Text, DONE),
    value("syncFrequency", FieldKind::Duration, DONE),
    value("fileCheckFrequency", FieldKind::Duration, DONE),
    value("httpCheckFrequency", FieldKind::Duration, DONE),
    value("staticPodURL", FieldKind::Text, DONE),
    value("staticPodURLHeader", FieldKind::Map, DONE),
    value("address", FieldKind::Text, DONE),
    value("port", FieldKind::Int32, DONE),
    value("readOnlyPort", FieldKind::Int32, DONE),
    value("tlsCertFile", FieldKind::Text, DONE),
    value("tlsPrivateKeyFile", FieldKind::Text, DONE),
    value("tlsCipherSuites", FieldKind::TextList, DONE),
    value("tlsCurvePreferences", FieldKind::List, DONE),
    value("tlsMinVersion", FieldKind::Text, DONE),
    value("rotateCertificates", FieldKind::Bool, DONE),
    value("serverTLSBootstrap", FieldKind::Bool, DONE),
    value("authentication.x509.clientCAFile", FieldKind::Text, DONE),
    pointer("authentication.webhook.enabled", FieldKind::Bool, DONE),
    value("authentication.webhook.cacheTTL", FieldKind::Duration, DONE),
    pointer("authentication.anonymous.enabled", FieldKind::Bool, DONE),
    value("authorization.mode", FieldKind::Word, DONE),
    value("authorization.webhook.cacheAuthorizedTTL", FieldKind::Duration, DONE),
    value("authorization.webhook.cacheUnauthorizedTTL", FieldKind::Duration, DONE),
    pointer("registryPullQPS", FieldKind::Int32, DONE),
    value("registryBurst", FieldKind::Int32, DONE),
    value("imagePullCredentialsVerificationPolicy", FieldKind::Word, DONE),
    value("preloadedImagesVerificationAllowlist", FieldKind::TextList, DONE),
    pointer("eventRecordQPS", FieldKind::Int32, DONE),
    value("eventBurst", FieldKind::Int32, DONE),
    pointer("enableDebuggingHandlers", FieldKind::Bool, DONE),
    value("enableContentionProfiling", FieldKind::Bool, GO_ONLY),
    pointer("healthzPort", FieldKind::Int32, DONE),
    value("healthzBindAddress", FieldKind::Text, DONE),
    pointer("oomScoreAdj", FieldKind::Int32, DONE),
    value("clusterDomain", FieldKind::Text, DONE),
    value("clusterDNS", FieldKind::TextList, DONE),
    value("streamingConnectionIdleTimeout", FieldKind::Duration, NO_EFFECT),
    value("nodeStatusUpdateFrequency", FieldKind::Duration, DONE),
    value("nodeStatusReportFrequency", FieldKind::Duration, DONE),
    value("nodeLeaseDurationSeconds", FieldKind::Int32, DONE),
    value("imageMinimumGCAge", FieldKind::Duration, DONE),
    value("imageMaximumGCAge", FieldKind::Duration, DONE),
    pointer("imageGCHighThresholdPercent", FieldKind::Int32, DONE),
    pointer("imageGCLowThresholdPercent", FieldKind::Int32, DONE),
    value("volumeStatsAggPeriod", FieldKind::Duration, DONE),
    value("kubeletCgroups", FieldKind::Text, DONE),
    value("systemCgroups", FieldKind::Text, DONE),
    value("cgroupRoot", FieldKind::Text, DONE),
    pointer("cgroupsPerQOS", FieldKind::Bool, DONE),
    value("cgroupDriver", FieldKind::Word, DONE),
    value("cpuManagerPolicy", FieldKind::Word, MANAGERS),
    pointer("singleProcessOOMKill", FieldKind::Bool, DONE),
    value("cpuManagerPolicyOptions", FieldKind::TextMap, MANAGERS),
    value("cpuManagerReconcilePeriod", FieldKind::Duration, MANAGERS),
    value("memoryManagerPolicy", FieldKind::Word, MANAGERS),
    value("topologyManagerPolicy", FieldKind::Word, MANAGERS),
    value("topologyManagerScope", FieldKind::Word, MANAGERS),
    value("topologyManagerPolicyOptions", FieldKind::TextMap, MANAGERS),
    value("qosReserved", FieldKind::TextMap, QOS_RESERVED),
    value("runtimeRequestTimeout", FieldKind::Duration, DONE),
    value("hairpinMode", FieldKind::Word, BRIDGE),
    value("maxPods", FieldKind::Int32, DONE),
    value("podCIDR", FieldKind::Text, DONE),
    pointer("podPidsLimit", FieldKind::Int64, DONE),
    pointer("resolvConf", FieldKind::Text, DONE),
    value("runOnce", FieldKind::Bool, RUN_ONCE),
    pointer("cpuCFSQuota", FieldKind::Bool, DONE),
    pointer("cpuCFSQuotaPeriod", FieldKind::Duration, DONE),
    pointer("nodeStatusMaxImages", FieldKind::Int32, DONE),
    value("maxOpenFiles", FieldKind::Int64, DONE),
    value("contentType", FieldKind::Text, JSON),
    pointer("kubeAPIQPS", FieldKind::Int32, DONE),
    value("kubeAPIBurst", FieldKind::Int32, DONE),
    pointer("serializeImagePulls", FieldKind::Bool, DONE),
    pointer("maxParallelImagePulls", FieldKind::Int32, DONE),
    value("evictionHard", FieldKind::TextMap, DONE),
    value("evictionSoft", FieldKind::TextMap, DONE),
    value("evictionSoftGracePeriod", FieldKind::TextMap, DONE),
    value("evictionPressureTransitionPeriod", FieldKind::Duration, DONE),
    value("evictionMaxPodGracePeriod", FieldKind::Int32, DONE),
    value("evictionMinimumReclaim", FieldKind::TextMap, DONE),
    pointer("mergeDefaultEvictionSettings", FieldKind::Bool, DONE),
    value("podsPerCore", FieldKind::Int32, DONE),
    pointer("enableControllerAttachDetach", FieldKind::Bool, DONE),
    value("protectKernelDefaults", FieldKind::Bool, DONE),
    pointer("makeIPTablesUtilChains", FieldKind::Bool, DONE),
    pointer("iptablesMasqueradeBit", FieldKind::Int32, NO_EFFECT),
    pointer("iptablesDropBit", FieldKind::Int32, NO_EFFECT),
    value("featureGates", FieldKind::Map, DONE),
    pointer("failSwapOn", FieldKind::Bool, DONE),
    value("memorySwap.swapBehavior", FieldKind::Word, DONE),
    value("containerLogMaxSize", FieldKind::Quantity, DONE),
    pointer("containerLogMaxFiles", FieldKind::Int32, DONE),
    pointer("containerLogMaxWorkers", FieldKind::Int32, DONE),
    pointer("containerLogMonitorInterval", FieldKind::Duration, DONE),
    value("configMapAndSecretChangeDetectionStrategy", FieldKind::Word, DONE),
    value("systemReserved", FieldKind::TextMap, DONE),
    value("kubeReserved", FieldKind::TextMap, DONE),
    value("reservedSystemCPUs", FieldKind::Text, DONE),
    value("showHiddenMetricsForVersion", FieldKind::Text, METRICS),
    value("systemReservedCgroup", FieldKind::Text, DONE),
    value("kubeReservedCgroup", FieldKind::Text, DONE),
    value("enforceNodeAllocatable", FieldKind::TextList, DONE),
    value("allowedUnsafeSysctls", FieldKind::TextList, DONE),
    value("volumePluginDir", FieldKind::Text, FLEXVOLUME),
    value("providerID", FieldKind::Text, DONE),
    value("kernelMemcgNotification", FieldKind::Bool, DONE),
    value("logging.format", FieldKind::Word, DONE),
    value("logging.flushFrequency", FieldKind::Duration, UNBUFFERED),
    value("logging.verbosity", FieldKind::Int32, DONE),
    value("logging.vmodule", FieldKind::List, LOGS),
    value("logging.options.text.splitStream", FieldKind::Bool, LOGS),
    value("logging.options.text.infoBufferSize", FieldKind::Quantity, LOGS),
    value("logging.options.json.splitStream", FieldKind::Bool, LOGS),
    value("logging.options.json.infoBufferSize", FieldKind::Quantity, LOGS),
    pointer("enableSystemLogHandler", FieldKind::Bool, DONE),
    pointer("enableSystemLogQuery", FieldKind::Bool, DONE),
    value("shutdownGracePeriod", FieldKind::Duration, DONE),
    value("shutdownGracePeriodCriticalPods", FieldKind::Duration, DONE),
    value("shutdownGracePeriodByPodPriority", FieldKind::List, DONE),
    pointer("crashLoopBackOff.maxContainerRestartPeriod", FieldKind::Duration, DONE),
    value("reservedMemory", FieldKind::List, MANAGERS),
    pointer("enableProfilingHandler", FieldKind::Bool, GO_ONLY),
    pointer("enableDebugFlagsHandler", FieldKind::Bool, KLOG),
    pointer("seccompDefault", FieldKind::Bool, DONE),
    pointer("memoryThrottlingFactor", FieldKind::Float, DONE),
    value("memoryReservationPolicy", FieldKind::Word, DONE),
    value("registerWithTaints", FieldKind::List, DONE),
    pointer("registerNode", FieldKind::Bool, DONE),
    pointer("tracing.endpoint", FieldKind::Text, TRACING),
    pointer("tracing.samplingRatePerMillion", FieldKind::Int32, TRACING),
    pointer("localStorageCapacityIsolation", FieldKind::Bool, DONE),
    value("containerRuntimeEndpoint", FieldKind::Text, DONE),
    value("imageServiceEndpoint", FieldKind::Text, DONE),
    pointer("failCgroupV1", FieldKind::Bool, DONE),
    pointer("userNamespaces.idsPerPod", FieldKind::Int64, DONE),
];
