//! An end that is shown before the runtime's lists show it.
//!
//! Input: an `ObservedContainer` that runs by the last list. Output: the same as it is going to be
//! listed, or `None` while that is not certain. containerd reports an end by an event and then
//! cleans up, which takes it 30 to 45 ms on an idle machine, before its lists show the end; they
//! will have the event's code and time. Only the status is made of this: actions are planned on a
//! list. Rules:
//! - The kernel must have seen the end as well, with the same code: then an earlier kill by the OOM
//!   killer is known, too. Where it reports no ends (no eBPF), its count of the pod's OOM victims
//!   must have been 0 at the end.
//! - A victim of the OOM killer waits for the list: the runtime finds its own reason.
//! - So does a container with a termination message that may still be on its way.

use crate::observed::{ObservedContainer, RunState};
use crate::status::ended::reason_of;

/// The container as the runtime's lists are going to have it.
pub fn ending(container: &ObservedContainer) -> Option<ObservedContainer> {
    let told = container.certain_end()?;
    Some(ObservedContainer {
        state: RunState::Exited,
        exit_code: told.code,
        finished_at: told.at,
        reason: reason_of(told.code).to_owned(),
        message: told.words.clone().unwrap_or_default(),
        ..container.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::{Evidence, KernelExit, OomKill, TaskExit};
    use crate::status::testing;
    use pintle_api_types::ids::UnixNanos;

    fn seen(code: i32) -> Option<KernelExit> {
        Some(KernelExit { code, at: UnixNanos(3_000_000_000) })
    }

    fn told(code: i32, words: Option<&str>) -> Option<TaskExit> {
        let words = words.map(str::to_owned);
        Some(TaskExit { code, at: UnixNanos(4_000_000_000), words, no_oom_kill: false })
    }

    /// The runtime's report of an end in a pod without an OOM victim.
    fn spared(code: i32, words: Option<&str>) -> Option<TaskExit> {
        told(code, words).map(|end| TaskExit { no_oom_kill: true, ..end })
    }

    fn oom(init: bool) -> Option<OomKill> {
        Some(OomKill { init, count: 1, pid: 7, comm: "hog".into(), at: UnixNanos(2_000_000_000) })
    }

    #[test]
    fn exit_is_shown_before_its_listing_if_kernel_and_runtime_agree_without_oom_kill() {
        let table = [
            ("both", seen(3), told(3, Some("")), None, true),
            ("a success", seen(0), told(0, Some("")), None, true),
            ("killed", seen(137), told(137, Some("")), None, true),
            ("the kernel alone", seen(3), None, None, false),
            ("the runtime alone", None, told(3, Some("")), None, false),
            ("the runtime alone, without OOM victims", None, spared(3, Some("")), None, true),
            ("its words to come", None, spared(3, None), None, false),
            ("a victim after all", None, spared(137, Some("")), oom(true), false),
            ("two codes", seen(3), told(4, Some("")), None, false),
            ("two codes, without OOM victims", seen(3), spared(4, Some("")), None, false),
            ("words to come", seen(3), told(3, None), None, false),
            ("the first process a victim", seen(137), told(137, Some("")), oom(true), false),
            ("a child a victim", seen(0), told(0, Some("")), oom(false), false),
        ];
        for (what, exit, told, oom, want) in table {
            let mut container = testing::container("c", "1");
            container.evidence = Evidence { exit, told, oom };
            assert_eq!(ending(&container).is_some(), want, "{what}");
        }
    }

    #[test]
    fn exit_from_evidence_has_the_state_reason_and_message_of_the_listed_exit() {
        let mut container = testing::container("c", "1");
        let (exit, told) = (seen(3), told(3, Some("bye")));
        container.evidence = Evidence { exit, told, oom: None };
        let end = ending(&container).expect("certain");
        assert_eq!((end.state, end.exit_code, &*end.reason), (RunState::Exited, 3, "Error"));
        assert_eq!((end.finished_at, &*end.message), (UnixNanos(4_000_000_000), "bye"));
        assert_eq!(end.started_at, container.started_at);
        container.state = RunState::Exited;
        assert_eq!(ending(&container), None, "the list has it");
    }
}
