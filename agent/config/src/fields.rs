//! The list of all KubeletConfiguration fields: type, whether the API has a pointer, and how far
//! the agent implements each.
//!
//! Output: [`FIELDS`]. Four things read it: the strict reading of files (unknown fields), the
//! defaulting ("zero means not set" holds for non-pointers only), the warnings about settings that
//! have no effect yet, and the tables of docs/COMPAT.md. A test keeps it equal to the struct in
//! `types.rs`. A change that implements a field changes its status here.

use super::acted_on::Status::{self, Done as DONE};

pub use pintle_config::field::{Field, FieldTable, Kind};

const fn value(path: &'static str, kind: Kind, status: Status) -> Field {
    Field::value(path, kind, status)
}

const fn pointer(path: &'static str, kind: Kind, status: Status) -> Field {
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
    pointer("enableServer", Kind::Bool, DONE),
    value("staticPodPath", Kind::Text, DONE),
    value("podLogsDir", Kind::Text, DONE),
    value("syncFrequency", Kind::Duration, DONE),
    value("fileCheckFrequency", Kind::Duration, DONE),
    value("httpCheckFrequency", Kind::Duration, DONE),
    value("staticPodURL", Kind::Text, DONE),
    value("staticPodURLHeader", Kind::Map, DONE),
    value("address", Kind::Text, DONE),
    value("port", Kind::Int32, DONE),
    value("readOnlyPort", Kind::Int32, DONE),
    value("tlsCertFile", Kind::Text, DONE),
    value("tlsPrivateKeyFile", Kind::Text, DONE),
    value("tlsCipherSuites", Kind::TextList, DONE),
    value("tlsCurvePreferences", Kind::List, DONE),
    value("tlsMinVersion", Kind::Text, DONE),
    value("rotateCertificates", Kind::Bool, DONE),
    value("serverTLSBootstrap", Kind::Bool, DONE),
    value("authentication.x509.clientCAFile", Kind::Text, DONE),
    pointer("authentication.webhook.enabled", Kind::Bool, DONE),
    value("authentication.webhook.cacheTTL", Kind::Duration, DONE),
    pointer("authentication.anonymous.enabled", Kind::Bool, DONE),
    value("authorization.mode", Kind::Word, DONE),
    value("authorization.webhook.cacheAuthorizedTTL", Kind::Duration, DONE),
    value("authorization.webhook.cacheUnauthorizedTTL", Kind::Duration, DONE),
    pointer("registryPullQPS", Kind::Int32, DONE),
    value("registryBurst", Kind::Int32, DONE),
    value("imagePullCredentialsVerificationPolicy", Kind::Word, DONE),
    value("preloadedImagesVerificationAllowlist", Kind::TextList, DONE),
    pointer("eventRecordQPS", Kind::Int32, DONE),
    value("eventBurst", Kind::Int32, DONE),
    pointer("enableDebuggingHandlers", Kind::Bool, DONE),
    value("enableContentionProfiling", Kind::Bool, GO_ONLY),
    pointer("healthzPort", Kind::Int32, DONE),
    value("healthzBindAddress", Kind::Text, DONE),
    pointer("oomScoreAdj", Kind::Int32, DONE),
    value("clusterDomain", Kind::Text, DONE),
    value("clusterDNS", Kind::TextList, DONE),
    value("streamingConnectionIdleTimeout", Kind::Duration, NO_EFFECT),
    value("nodeStatusUpdateFrequency", Kind::Duration, DONE),
    value("nodeStatusReportFrequency", Kind::Duration, DONE),
    value("nodeLeaseDurationSeconds", Kind::Int32, DONE),
    value("imageMinimumGCAge", Kind::Duration, DONE),
    value("imageMaximumGCAge", Kind::Duration, DONE),
    pointer("imageGCHighThresholdPercent", Kind::Int32, DONE),
    pointer("imageGCLowThresholdPercent", Kind::Int32, DONE),
    value("volumeStatsAggPeriod", Kind::Duration, DONE),
    value("kubeletCgroups", Kind::Text, DONE),
    value("systemCgroups", Kind::Text, DONE),
    value("cgroupRoot", Kind::Text, DONE),
    pointer("cgroupsPerQOS", Kind::Bool, DONE),
    value("cgroupDriver", Kind::Word, DONE),
    value("cpuManagerPolicy", Kind::Word, MANAGERS),
    pointer("singleProcessOOMKill", Kind::Bool, DONE),
    value("cpuManagerPolicyOptions", Kind::TextMap, MANAGERS),
    value("cpuManagerReconcilePeriod", Kind::Duration, MANAGERS),
    value("memoryManagerPolicy", Kind::Word, MANAGERS),
    value("topologyManagerPolicy", Kind::Word, MANAGERS),
    value("topologyManagerScope", Kind::Word, MANAGERS),
    value("topologyManagerPolicyOptions", Kind::TextMap, MANAGERS),
    value("qosReserved", Kind::TextMap, QOS_RESERVED),
    value("runtimeRequestTimeout", Kind::Duration, DONE),
    value("hairpinMode", Kind::Word, BRIDGE),
    value("maxPods", Kind::Int32, DONE),
    value("podCIDR", Kind::Text, DONE),
    pointer("podPidsLimit", Kind::Int64, DONE),
    pointer("resolvConf", Kind::Text, DONE),
    value("runOnce", Kind::Bool, RUN_ONCE),
    pointer("cpuCFSQuota", Kind::Bool, DONE),
    pointer("cpuCFSQuotaPeriod", Kind::Duration, DONE),
    pointer("nodeStatusMaxImages", Kind::Int32, DONE),
    value("maxOpenFiles", Kind::Int64, DONE),
    value("contentType", Kind::Text, JSON),
    pointer("kubeAPIQPS", Kind::Int32, DONE),
    value("kubeAPIBurst", Kind::Int32, DONE),
    pointer("serializeImagePulls", Kind::Bool, DONE),
    pointer("maxParallelImagePulls", Kind::Int32, DONE),
    value("evictionHard", Kind::TextMap, DONE),
    value("evictionSoft", Kind::TextMap, DONE),
    value("evictionSoftGracePeriod", Kind::TextMap, DONE),
    value("evictionPressureTransitionPeriod", Kind::Duration, DONE),
    value("evictionMaxPodGracePeriod", Kind::Int32, DONE),
    value("evictionMinimumReclaim", Kind::TextMap, DONE),
    pointer("mergeDefaultEvictionSettings", Kind::Bool, DONE),
    value("podsPerCore", Kind::Int32, DONE),
    pointer("enableControllerAttachDetach", Kind::Bool, DONE),
    value("protectKernelDefaults", Kind::Bool, DONE),
    pointer("makeIPTablesUtilChains", Kind::Bool, DONE),
    pointer("iptablesMasqueradeBit", Kind::Int32, NO_EFFECT),
    pointer("iptablesDropBit", Kind::Int32, NO_EFFECT),
    value("featureGates", Kind::Map, DONE),
    pointer("failSwapOn", Kind::Bool, DONE),
    value("memorySwap.swapBehavior", Kind::Word, DONE),
    value("containerLogMaxSize", Kind::Quantity, DONE),
    pointer("containerLogMaxFiles", Kind::Int32, DONE),
    pointer("containerLogMaxWorkers", Kind::Int32, DONE),
    pointer("containerLogMonitorInterval", Kind::Duration, DONE),
    value("configMapAndSecretChangeDetectionStrategy", Kind::Word, DONE),
    value("systemReserved", Kind::TextMap, DONE),
    value("kubeReserved", Kind::TextMap, DONE),
    value("reservedSystemCPUs", Kind::Text, DONE),
    value("showHiddenMetricsForVersion", Kind::Text, METRICS),
    value("systemReservedCgroup", Kind::Text, DONE),
    value("kubeReservedCgroup", Kind::Text, DONE),
    value("enforceNodeAllocatable", Kind::TextList, DONE),
    value("allowedUnsafeSysctls", Kind::TextList, DONE),
    value("volumePluginDir", Kind::Text, FLEXVOLUME),
    value("providerID", Kind::Text, DONE),
    value("kernelMemcgNotification", Kind::Bool, DONE),
    value("logging.format", Kind::Word, DONE),
    value("logging.flushFrequency", Kind::Duration, UNBUFFERED),
    value("logging.verbosity", Kind::Int32, DONE),
    value("logging.vmodule", Kind::List, LOGS),
    value("logging.options.text.splitStream", Kind::Bool, LOGS),
    value("logging.options.text.infoBufferSize", Kind::Quantity, LOGS),
    value("logging.options.json.splitStream", Kind::Bool, LOGS),
    value("logging.options.json.infoBufferSize", Kind::Quantity, LOGS),
    pointer("enableSystemLogHandler", Kind::Bool, DONE),
    pointer("enableSystemLogQuery", Kind::Bool, DONE),
    value("shutdownGracePeriod", Kind::Duration, DONE),
    value("shutdownGracePeriodCriticalPods", Kind::Duration, DONE),
    value("shutdownGracePeriodByPodPriority", Kind::List, DONE),
    pointer("crashLoopBackOff.maxContainerRestartPeriod", Kind::Duration, DONE),
    value("reservedMemory", Kind::List, MANAGERS),
    pointer("enableProfilingHandler", Kind::Bool, GO_ONLY),
    pointer("enableDebugFlagsHandler", Kind::Bool, KLOG),
    pointer("seccompDefault", Kind::Bool, DONE),
    pointer("memoryThrottlingFactor", Kind::Float, DONE),
    value("memoryReservationPolicy", Kind::Word, DONE),
    value("registerWithTaints", Kind::List, DONE),
    pointer("registerNode", Kind::Bool, DONE),
    pointer("tracing.endpoint", Kind::Text, TRACING),
    pointer("tracing.samplingRatePerMillion", Kind::Int32, TRACING),
    pointer("localStorageCapacityIsolation", Kind::Bool, DONE),
    value("containerRuntimeEndpoint", Kind::Text, DONE),
    value("imageServiceEndpoint", Kind::Text, DONE),
    pointer("failCgroupV1", Kind::Bool, DONE),
    pointer("userNamespaces.idsPerPod", Kind::Int64, DONE),
];
