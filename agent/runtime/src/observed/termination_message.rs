//! A container's termination message: the file's text, or the end of its log.
//!
//! Read once, when the container is first seen exited, and joined to the runtime's message. The
//! files are the container's: they are read where that may block, and one that does not answer
//! costs the message and nothing else.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go convertToKubeContainerStatus

use std::path::Path;

use pintle_agent_core::observed::ObservedContainer;
use pintle_agent_core::observed::termination;
use pintle_agent_core::observed::termination::TerminationMessage;
use pintle_agent_core::types::PodUid;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;

use crate::logs::log_read;

/// The termination message of a container that ended with this code, before the runtime shows its
/// end; `None` if it would come from the log, which the runtime may not have written to the end
/// yet.
pub(crate) async fn at_end(
    uid: &PodUid,
    container: &ObservedContainer,
    code: i32,
) -> Option<String> {
    let words = source_of(container, code, "");
    match words.log_if_empty {
        true => None,
        false => Some(read_text(uid, container, words).await),
    }
}

/// Appends the container's termination message to its status message.
pub(super) async fn append(uid: &PodUid, container: &mut ObservedContainer) {
    let words = source_of(container, container.exit_code, &container.reason);
    let text = read_text(uid, container, words).await;
    container.message = termination::joined(&container.message, &text);
}

/// The source of the termination message of a container with such an end.
fn source_of(container: &ObservedContainer, code: i32, reason: &str) -> TerminationMessage {
    let mounts = container.mounts.iter().map(|m| (m.container_path.as_str(), m.host_path.as_str()));
    termination::termination_message(&container.annotations, mounts, code, reason)
}

async fn read_text(
    uid: &PodUid,
    container: &ObservedContainer,
    words: TerminationMessage,
) -> String {
    if words.file.is_none() && !words.log_if_empty {
        return String::new();
    }
    let log = container.log_path.clone();
    let file = words.file.clone();
    let read = move || {
        let file = words.file.as_deref().map(Path::new);
        log_read::termination_message(file, Path::new(&log), words.log_if_empty)
    };
    match blocking::run(JobPlace::look(uid), read).await {
        Ok(text) => text,
        Err(error) => {
            let path = file.as_deref().unwrap_or(&container.log_path);
            format!("Error on reading termination log {path}: {error}")
        }
    }
}
