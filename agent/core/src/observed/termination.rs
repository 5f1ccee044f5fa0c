//! A container's termination message: its source and its text.
//!
//! Input: the annotations, mounts and exit of a container. Output: which file to read, whether the
//! log may stand in, and the message for the status. Pure: the output names the file and the number
//! of bytes, and the reader hands the bytes back.

use std::collections::BTreeMap;

use crate::labels;

/// Most bytes of the file that are read, from its end.
pub const MESSAGE_BYTES_MAX: u64 = 4096;
/// Most bytes of the log that stand in for it.
pub const LOG_BYTES_MAX: usize = 2048;
/// Most lines of the log that stand in for it.
pub const LOG_LINES_MAX: usize = 80;

const POLICY_LOGS_ON_ERROR: &str = "FallbackToLogsOnError";
const REASON_CANNOT_RUN: &str = "ContainerCannotRun";

/// The source of an exited container's termination message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminationMessage {
    /// The file on the node; `None` when the container has none.
    pub file: Option<String>,
    /// True if the log is read when the file is empty, absent or none.
    pub log_if_empty: bool,
}

/// The source of an exited container's termination message; `mounts` are pairs of container and
/// host path.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go getTerminationMessage
pub fn termination_message<'a>(
    annotations: &BTreeMap<String, String>,
    mounts: impl IntoIterator<Item = (&'a str, &'a str)>,
    exit_code: i32,
    reason: &str,
) -> TerminationMessage {
    let notes = labels::container_notes(annotations);
    let path = absolute(&notes.termination_path);
    let file = path.and_then(|path| {
        let mut mounts = mounts.into_iter();
        mounts.find(|(inside, _)| *inside == path).map(|(_, host)| host.to_owned())
    });
    let log_if_empty = notes.termination_policy == POLICY_LOGS_ON_ERROR
        && exit_code != 0
        && reason != REASON_CANNOT_RUN;
    TerminationMessage { file, log_if_empty }
}

/// The status message: the runtime's own, then the container's.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go convertToKubeContainerStatus
pub fn joined(from_runtime: &str, from_container: &str) -> String {
    match (from_runtime, from_container) {
        (runtime, "") => runtime.to_owned(),
        ("", container) => container.to_owned(),
        (runtime, container) => format!("{runtime}: {container}"),
    }
}

/// The message when the file cannot be read for another reason than that it is gone.
pub fn unreadable(path: &str, error: &std::io::Error) -> String {
    format!("Error on reading termination log {path}: {error}")
}

/// The path within the container; a relative one counts from the root. `None` for no path.
pub fn absolute(path: &str) -> Option<String> {
    match path {
        "" => None,
        path if path.starts_with('/') => Some(path.to_owned()),
        path => Some(format!("/{path}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(policy: &str, path: &str, exit_code: i32, reason: &str) -> TerminationMessage {
        let notes = [(labels::TERMINATION_POLICY, policy), (labels::TERMINATION_PATH, path)];
        let notes = notes.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mounts = [("/etc/hosts", "/h"), ("/dev/termination-log", "/host/0123abcd")];
        termination_message(&BTreeMap::from(notes), mounts, exit_code, reason)
    }

    #[test]
    fn termination_log_is_found_by_its_mount() {
        let path = "/dev/termination-log";
        assert_eq!(words("File", path, 1, "Error").file.as_deref(), Some("/host/0123abcd"));
        assert_eq!(words("File", "", 1, "Error").file, None);
        assert_eq!(words("File", "/other", 1, "Error").file, None);
        let relative = words("File", "dev/termination-log", 1, "Error").file;
        assert_eq!(relative.as_deref(), Some("/host/0123abcd"));
    }

    #[test]
    fn the_log_stands_in_only_after_a_failure_and_when_asked_for() {
        for (policy, exit, reason, want) in [
            ("FallbackToLogsOnError", 1, "Error", true),
            ("FallbackToLogsOnError", 0, "Completed", false),
            ("FallbackToLogsOnError", 128, "ContainerCannotRun", false),
            ("File", 1, "Error", false),
        ] {
            assert_eq!(words(policy, "/x", exit, reason).log_if_empty, want, "{policy} {exit}");
        }
    }

    #[test]
    fn the_runtimes_message_comes_first() {
        assert_eq!(joined("a", "b"), "a: b");
        assert_eq!(joined("", "b"), "b");
        assert_eq!(joined("a", ""), "a");
    }
}
