//! `explain`: in one sentence, why a pod is not running or not ready, and what can be done.
//!
//! Input: a pod's view, the runtime calls under way, its timeline, the time. Output: a sentence, a
//! stable PascalCase reason, a remedy and details. Pure: processes behind a hanging call are looked
//! up by the caller. The first rule that applies wins, in this order:
//!
//! 1. an earlier pod of the same name has not ended;  2. the pod has ended;  3. it is being ended;
//! 4. a runtime call hangs;  5. an image is being pulled;  6. volumes, cgroup or sandbox fail;
//! 7. a container fails, waits, has not started or is not ready;  8. all is well.

mod calls;
mod containers;
mod ending;
#[cfg(test)]
mod tests;
mod words;

use std::time::Duration;

use k8s_openapi::api::core::v1::ContainerStatus;
use serde::Serialize;

use crate::observed::ObservedPod;
use crate::runtime::plan::Action;
use crate::status::is_terminal;
use crate::status::timeline::Entry;
use crate::status::view::PodView;
use crate::types::UnixNanos;
use crate::worker::Stage;
pub use calls::{Process, RuntimeCall};
pub use words::span;

/// Timeline entries among the details.
const RECENT_MAX: usize = 5;

/// What is known about a pod.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The pod as the driver published it.
    pub view: &'a PodView,
    /// Runtime calls under way, also those of other pods.
    pub calls: &'a [RuntimeCall],
    /// What happened to it, oldest first.
    pub timeline: &'a [Entry],
    /// Another pod of the same namespace and name that has not ended.
    pub ahead: Option<&'a ObservedPod>,
    /// Wall-clock time.
    pub now: UnixNanos,
}

/// Why a pod is not running, or that it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// True when there is nothing to explain: running and ready, or ended well.
    pub healthy: bool,
    /// One sentence.
    pub sentence: String,
    /// Stable PascalCase word for programs.
    pub reason: String,
    /// What can be done; absent when waiting is right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// More, one line each.
    pub details: Vec<String>,
}

impl Explanation {
    fn trouble(reason: &str, sentence: impl Into<String>) -> Self {
        let (reason, sentence) = (reason.to_owned(), finished(sentence.into()));
        Self { sentence, reason, ..Self::default() }
    }

    fn fine(reason: &str, sentence: impl Into<String>) -> Self {
        Self { healthy: true, ..Self::trouble(reason, sentence) }
    }

    fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

/// Explains one pod.
pub fn explain(subject: &Subject<'_>) -> Explanation {
    let mut explanation = verdict(subject);
    explanation.details = details(subject);
    explanation
}

fn verdict(subject: &Subject<'_>) -> Explanation {
    let view = subject.view;
    match view.stage {
        Stage::Waiting => return waiting_for_name(subject),
        Stage::Terminating => return ending::terminating(subject),
        Stage::Terminated | Stage::Finished => return ending::ended(subject),
        Stage::Syncing => {}
    }
    if is_terminal(view.status.phase.as_deref()) {
        return ending::ended(subject);
    }
    calls::hanging(subject)
        .or_else(|| calls::pulling(subject))
        .or_else(|| pod_failure(subject))
        .or_else(|| containers::failing(subject))
        .or_else(|| containers::unready(subject))
        .unwrap_or_else(|| containers::healthy(subject))
}

fn waiting_for_name(subject: &Subject<'_>) -> Explanation {
    let Some(ahead) = subject.ahead else {
        if let Some(silent) = calls::silent_runtime(subject) {
            return silent;
        }
        return Explanation::trouble(
            "WaitingForRuntime",
            "Waits for the first list of what runs on this node, so that nothing is started twice",
        );
    };
    let pod = format!("{}/{}", ahead.namespace, ahead.name);
    let running: Vec<_> = words::running(ahead).collect();
    let what = if running.is_empty() {
        "its remains are being taken away".to_owned()
    } else {
        format!("{} still there", words::list("container", &running))
    };
    Explanation::trouble(
        "WaitingForEarlierPod",
        format!("Waits for the earlier pod {pod} (uid {}) to end: {what}", ahead.uid),
    )
    .with_remedy(format!("wait, or see what holds it up: explain {}", ahead.uid))
}

/// What failed before any container had its turn.
fn pod_failure(subject: &Subject<'_>) -> Option<Explanation> {
    let failure = subject.view.failure.as_ref()?;
    let (what, remedy) = match failure.reason.as_str() {
        "FailedMount" => (
            "A volume cannot be made ready",
            "correct the volume that the message names; it is tried again by itself",
        ),
        "FailedToMakePodDataDirectories" => (
            "The pod's directories cannot be made",
            "check free space, free inodes and mode of the root directory",
        ),
        "FailedCreatePodContainer" => (
            "The pod's cgroup cannot be made",
            "check cgroupRoot, cgroupDriver and that the agent may write to the cgroup tree",
        ),
        "CreatePodSandboxError" => (
            "The pod's sandbox cannot be made",
            "check the network plug-in, the pause image and the runtime's log",
        ),
        _ => return None,
    };
    let again = words::in_time(subject.now, subject.view.wake_at);
    let again = again.map(|at| format!("; tried again {at}")).unwrap_or_default();
    let sentence = format!("{what}: {}{again}", words::one_line(&failure.message));
    Some(Explanation::trouble(&failure.reason, sentence).with_remedy(remedy))
}

fn details(subject: &Subject<'_>) -> Vec<String> {
    let view = subject.view;
    let mut out = Vec::new();
    for status in container_statuses(view) {
        out.push(containers::line(subject, status));
    }
    for action in &view.doing {
        let of = action.container().map(|name| format!(" {name}")).unwrap_or_default();
        out.push(format!("under way: {}{of}", action.verb()));
    }
    out.extend(calls::lines(subject));
    if let Some(at) = words::in_time(subject.now, view.wake_at) {
        out.push(format!("looked at again {at}"));
    }
    let warnings = subject.timeline.iter().filter(|entry| entry.warning);
    let recent: Vec<_> = warnings.rev().take(RECENT_MAX).collect();
    for entry in recent.into_iter().rev() {
        let ago = span(subject.now.since(UnixNanos(entry.at)));
        let times =
            if entry.count > 1 { format!(" ({} times)", entry.count) } else { String::new() };
        out.push(format!("{ago} ago{times}: {}: {}", entry.what, words::one_line(&entry.text)));
    }
    out
}

/// Statuses in the order in which containers are started.
fn container_statuses(view: &PodView) -> impl Iterator<Item = &ContainerStatus> {
    let status = &view.status;
    status
        .init_container_statuses
        .iter()
        .flatten()
        .chain(status.container_statuses.iter().flatten())
}

/// How long the pod may take to end.
fn grace(view: &PodView) -> Duration {
    let ordered = view.doing.iter().find_map(|action| match action {
        Action::KillPod { grace_seconds } => *grace_seconds,
        _ => None,
    });
    let of_pod = view.pod.metadata.deletion_grace_period_seconds;
    let of_spec = view.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    let seconds = ordered.or(of_pod).or(of_spec).unwrap_or_default();
    Duration::from_secs(seconds.max(0).unsigned_abs())
}

/// A sentence ends with one full stop.
fn finished(sentence: String) -> String {
    let bare = sentence.trim_end().trim_end_matches(['.', ':', ';']);
    format!("{bare}.")
}
