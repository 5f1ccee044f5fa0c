//! The end of a container: the runtime's answer, completed by the kernel's evidence.
//!
//! Input: an `ObservedContainer`. Output: `Ended`, or `None` while it has not ended. Rules:
//! - The runtime's exit code, reason and time stand whenever it has them.
//! - When it lost them (exit 255 with reason `Unknown`, or no state at all) the kernel's count.
//! - `OOMKilled` needs the first process to be a victim, or the runtime to report it itself. A
//!   plain SIGKILL in a container that once lost a child to the OOM killer stays `Error`.
//! - A child taken by the OOM killer never changes code or reason; the message names it when the
//!   container left none, so that the user sees it whatever the first process returned.

use crate::observed::{Evidence, ObservedContainer, OomKill, RunState};
use pintle_api_types::ids::UnixNanos;

/// Exit code of a process that SIGKILL ended.
const EXIT_SIGKILL: i32 = 137;
/// Exit code with which a runtime reports that it does not know the code.
const EXIT_LOST: i32 = 255;
/// Reason with which a runtime reports that it does not know.
const REASON_LOST: &str = "Unknown";
/// Reason of a container with a first process killed by the OOM killer.
const REASON_OOM: &str = "OOMKilled";

/// The end of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerEnd {
    /// Exit code.
    pub exit_code: i32,
    /// `Completed`, `Error`, `OOMKilled`, …
    pub reason: String,
    /// Message for users; may be empty.
    pub message: String,
    /// When.
    pub finished_at: UnixNanos,
}

/// The container's end, when runtime or kernel know of it.
pub fn ended(container: &ObservedContainer) -> Option<ContainerEnd> {
    let lost = container.exit_code == EXIT_LOST && container.reason == REASON_LOST;
    let mut end = match (container.state, container.evidence.end()) {
        (RunState::Exited, Some(exit)) if lost => from_kernel(exit.code, exit.at, container),
        (RunState::Unknown, Some(exit)) => from_kernel(exit.code, exit.at, container),
        (RunState::Exited, _) => ContainerEnd {
            exit_code: container.exit_code,
            reason: container.reason.clone(),
            message: container.message.clone(),
            finished_at: container.finished_at,
        },
        _ => return None,
    };
    apply_oom(&mut end, &container.evidence);
    Some(end)
}

fn from_kernel(code: i32, at: UnixNanos, container: &ObservedContainer) -> ContainerEnd {
    let message = container.message.clone();
    ContainerEnd { exit_code: code, reason: reason_of(code).to_owned(), message, finished_at: at }
}

/// The reason that a runtime gives to an end if it knows only the code.
pub(super) fn reason_of(code: i32) -> &'static str {
    if code == 0 { "Completed" } else { "Error" }
}

fn apply_oom(end: &mut ContainerEnd, evidence: &Evidence) {
    let Some(oom) = &evidence.oom else {
        return;
    };
    if oom.init && end.exit_code == EXIT_SIGKILL && end.reason == "Error" {
        end.reason = REASON_OOM.to_owned();
    }
    if !oom.init && end.message.is_empty() {
        end.message = child_message(oom);
    }
}

fn child_message(oom: &OomKill) -> String {
    let comm = if oom.comm.is_empty() { String::new() } else { format!(" ({})", oom.comm) };
    let victims = if oom.count > 1 { format!(", {} in all", oom.count) } else { String::new() };
    format!(
        "The OOM killer took process {}{comm}{victims} of this container, not its first process",
        oom.pid
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::KernelExit;
    use crate::status::testing;

    fn exited(code: i32, reason: &str) -> ObservedContainer {
        let mut container = testing::container("c", "1");
        container.state = RunState::Exited;
        container.exit_code = code;
        container.reason = reason.to_owned();
        container.finished_at = UnixNanos(5_000_000_000);
        container
    }

    fn oom(init: bool) -> Option<OomKill> {
        Some(OomKill { init, count: 1, pid: 7, comm: "hog".into(), at: UnixNanos(4_000_000_000) })
    }

    fn exit(code: i32) -> Option<KernelExit> {
        Some(KernelExit { code, at: UnixNanos(3_000_000_000) })
    }

    #[test]
    fn exit_code_lost_by_the_runtime_comes_from_the_kernel() {
        let mut lost = exited(255, "Unknown");
        lost.evidence.exit = exit(3);
        let end = ended(&lost).expect("ended");
        assert_eq!((end.exit_code, &*end.reason, end.finished_at.0), (3, "Error", 3_000_000_000));
        lost.state = RunState::Unknown;
        lost.evidence.exit = exit(0);
        assert_eq!(ended(&lost).expect("ended").reason, "Completed");
    }

    #[test]
    fn a_known_exit_code_is_never_replaced() {
        let mut known = exited(255, "Error");
        known.evidence.exit = exit(3);
        assert_eq!(ended(&known).expect("ended").exit_code, 255);
    }

    #[test]
    fn running_container_has_not_ended_despite_a_kernel_exit_record() {
        let mut running = testing::container("c", "1");
        running.evidence.exit = exit(3);
        assert_eq!(ended(&running), None);
    }

    #[test]
    fn only_the_first_process_as_victim_makes_an_oom_kill() {
        for (code, reason, init, want) in [
            (137, "Error", true, "OOMKilled"),
            (137, "Error", false, "Error"),
            (137, "OOMKilled", true, "OOMKilled"),
            (1, "Error", true, "Error"),
            (0, "Completed", false, "Completed"),
        ] {
            let mut container = exited(code, reason);
            container.evidence.oom = oom(init);
            let end = ended(&container).expect("ended");
            assert_eq!((end.exit_code, &*end.reason), (code, want), "{code} {reason} {init}");
        }
        let plain = ended(&exited(137, "Error")).expect("ended");
        assert_eq!((&*plain.reason, &*plain.message), ("Error", ""));
    }

    #[test]
    fn oom_killed_child_keeps_the_runtimes_exit_and_is_named_in_the_message() {
        let mut container = exited(0, "OOMKilled");
        container.evidence.oom = oom(false);
        let end = ended(&container).expect("ended");
        assert_eq!((end.exit_code, &*end.reason), (0, "OOMKilled"));
        assert!(end.message.contains("process 7 (hog)"), "{}", end.message);
        container.message = "own words".into();
        assert_eq!(ended(&container).expect("ended").message, "own words");
    }

    #[test]
    fn a_lost_end_with_an_oom_killed_first_process_is_an_oom_kill() {
        let mut lost = exited(255, "Unknown");
        lost.evidence.exit = exit(137);
        lost.evidence.oom = oom(true);
        assert_eq!(ended(&lost).expect("ended").reason, "OOMKilled");
    }
}
