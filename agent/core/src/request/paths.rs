//! Paths of a pod's logs. Those below the root directory are in `volume::layout`.
//!
//! All of them are the kubelet's, because either agent must find the files of the other. Pure text.

use k8s_openapi::api::core::v1::Pod;

use pintle_api_types::pod;

/// Mode of log directories.
pub const LOG_DIR_MODE: u32 = 0o755;
/// Directory of links to logs for collectors that look there.
pub const LOG_LINKS_DIR: &str = "/var/log/containers";
/// Most bytes of a link's name before `.log`: with it, a file name's 255.
const LOG_LINK_BYTES_MAX: usize = 251;

/// `<logs>/<namespace>_<name>_<uid>`.
// k8s: pkg/kubelet/kuberuntime/helpers.go BuildPodLogsDirectory
pub fn pod_log_dir(logs: &str, pod: &Pod) -> String {
    format!("{logs}/{}_{}_{}", pod::namespace(pod), pod::name(pod), pod::uid(pod))
}

/// A container's log relative to the pod's log directory.
// k8s: pkg/kubelet/kuberuntime/helpers.go buildContainerLogsPath
pub fn container_log(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

/// ApiHealth to a container's log within `LOG_LINKS_DIR`.
// k8s: pkg/kubelet/kuberuntime/legacy.go legacyLogSymlink
pub fn log_link(pod: &Pod, container: &str, container_id: &str) -> String {
    let name = format!("{}_{}_{container}-{container_id}", pod::name(pod), pod::namespace(pod));
    let mut end = name.len().min(LOG_LINK_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{LOG_LINKS_DIR}/{}.log", &name[..end])
}
