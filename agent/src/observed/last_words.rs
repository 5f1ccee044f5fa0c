//! What a container said before it ended: its termination message, or the end of its log.
//!
//! Read once, when the container is first seen exited, and joined to the runtime's message.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go convertToKubeContainerStatus

use std::path::Path;

use crate::observed::ObservedContainer;
use crate::runtime::termination::LastWords;
use crate::runtime::{log_read, termination};

/// What a container has said that ended with this code, before the runtime shows its end; `None`
/// when its log would have to be asked, which the runtime may not have written to the end yet.
pub(super) fn at_end(container: &ObservedContainer, code: i32) -> Option<String> {
    let words = asked(container, code, "");
    (!words.log_if_empty).then(|| said(container, &words))
}

/// Appends the container's last words to its message.
pub(super) fn append(container: &mut ObservedContainer) {
    let words = asked(container, container.exit_code, &container.reason);
    container.message = termination::joined(&container.message, &said(container, &words));
}

/// Where the words of a container with such an end are.
fn asked(container: &ObservedContainer, code: i32, reason: &str) -> LastWords {
    let mounts = container.mounts.iter().map(|m| (m.container_path.as_str(), m.host_path.as_str()));
    termination::last_words(&container.annotations, mounts, code, reason)
}

fn said(container: &ObservedContainer, words: &LastWords) -> String {
    let file = words.file.as_deref().map(Path::new);
    log_read::termination_message(file, Path::new(&container.log_path), words.log_if_empty)
}
