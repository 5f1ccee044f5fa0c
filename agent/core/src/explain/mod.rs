//! `explain`: one sentence with the reason why a pod is not running or not ready, and the remedy.
//!
//! Input: a pod's view, the runtime calls under way, its timeline, the time. Output: a sentence, a
//! stable PascalCase reason, a remedy and details. Pure: processes behind a hanging call are looked
//! up by the caller. The first rule that applies wins, in this order:
//!
//! 1. an earlier pod of the same name has not ended;  2. the pod has ended;  3. it is being ended;
//! 4. a runtime call hangs;  5. an image is being pulled, or waits for its turn;
//! 6. a postStart hook runs and runs;  7. volumes of drivers are waited for;
//! 8. volumes, cgroup, network or sandbox fail;  9. a container does;  10. all is well.
//!
//! While the API server has not accepted the status, a pod is not explained as healthy or ended.

mod calls;
#[cfg(test)]
mod cluster_tests;
mod containers;
mod ending;
#[cfg(test)]
mod pull_tests;
mod remedies;
#[cfg(test)]
mod tests;
pub mod volumes;
mod words;
mod writes;

use std::time::Duration;

use k8s_openapi::api::core::v1::ContainerStatus;
use serde::Serialize;

use crate::api_health::{Task, Trouble, Unwritten};
use crate::observed::ObservedPod;
use crate::status::is_terminal;
use crate::sync::plan::Action;
use crate::timeline::TimelineEntry;
use crate::view::PodView;
use crate::worker::{NO_SANDBOX_STATUS, WorkerStage};
pub use calls::{COMMAND, CallProcess, PULL_TURN, RuntimeCall};
pub use containers::PROBE_TIMED_OUT;
use pintle_api_types::ids::UnixNanos;
pub use words::span;

/// Timeline entries among the details.
const RECENT_MAX: usize = 5;
/// Most details.
const DETAILS_MAX: usize = 40;

/// The facts known about a pod.
#[derive(Clone, Copy, Debug)]
pub struct ExplainSubject<'a> {
    /// The pod as the driver published it.
    pub view: &'a PodView,
    /// Runtime calls under way, also those of other pods.
    pub calls: &'a [RuntimeCall],
    /// Its timeline, oldest first.
    pub timeline: &'a [TimelineEntry],
    /// The pending write that the API server has not accepted.
    pub unwritten: Option<&'a Unwritten>,
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
    /// The remedy; absent when waiting is right.
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
pub fn explain(subject: &ExplainSubject<'_>) -> Explanation {
    let mut explanation = writes::with_unwritten(subject, verdict(subject));
    explanation.details = details(subject);
    explanation
}

fn verdict(subject: &ExplainSubject<'_>) -> Explanation {
    let view = subject.view;
    match view.stage {
        WorkerStage::Waiting => return waiting_for_name(subject),
        WorkerStage::Terminating => return ending::terminating(subject),
        WorkerStage::Terminated | WorkerStage::Finished => return ending::ended(subject),
        WorkerStage::Syncing => {}
    }
    if is_terminal(view.status.phase.as_deref()) {
        return ending::ended(subject);
    }
    calls::hanging(subject)
        .or_else(|| calls::pulling(subject))
        .or_else(|| calls::starting_hook(subject))
        .or_else(|| volumes::waiting(subject))
        .or_else(|| pod_failure(subject))
        .or_else(|| containers::failing(subject))
        .or_else(|| containers::unready(subject))
        .unwrap_or_else(|| containers::healthy(subject))
}

fn waiting_for_name(subject: &ExplainSubject<'_>) -> Explanation {
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

/// A failure that precedes the start of any container.
fn pod_failure(subject: &ExplainSubject<'_>) -> Option<Explanation> {
    let failure = subject.view.failure.as_ref()?;
    let (what, remedy) = match failure.reason.as_str() {
        "FailedMount" => return Some(unmounted(subject, &failure.message)),
        "FailedToMakePodDataDirectories" => (
            "The pod's directories cannot be made",
            "check free space, free inodes and mode of the root directory",
        ),
        "FailedCreatePodContainer" => (
            "The pod's cgroup cannot be made",
            "check cgroupRoot, cgroupDriver and that the agent may write to the cgroup tree",
        ),
        "CreatePodSandboxError" | NO_SANDBOX_STATUS => (
            "The pod's sandbox cannot be made",
            "check the network plug-in, the pause image and the runtime's log",
        ),
        "NetworkNotReady" => (
            "Cannot be connected",
            "install or repair the network plug-in (/etc/cni/net.d, /opt/cni/bin) and see the \
             runtime's log; it goes on by itself when the network is ready",
        ),
        _ => return None,
    };
    let since = since(subject, event_of(&failure.reason));
    let again = tried_again(subject);
    let sentence = format!("{what}{since}: {}{again}", words::one_line(&failure.message));
    Some(Explanation::trouble(&failure.reason, sentence).with_remedy(remedy))
}

/// The reason of the event emitted for a failure.
fn event_of(reason: &str) -> &str {
    match reason {
        "CreatePodSandboxError" => "FailedCreatePodSandBox",
        "FailedToMakePodDataDirectories" => "Failed",
        reason => reason,
    }
}

/// Which volume or claim, why, since when.
fn unmounted(subject: &ExplainSubject<'_>, message: &str) -> Explanation {
    let (first, more) = message.split_once("; MountVolume.").unwrap_or((message, ""));
    let named = ["MountVolume.", "MapVolume."].iter().find_map(|step| first.strip_prefix(step));
    let named = named.and_then(|rest| rest.split_once(" failed for volume \""));
    let (what, why) = match named.and_then(|(_, rest)| rest.split_once("\" : ")) {
        Some((volume, why)) => (format!("Waits for volume {volume}"), why),
        None => match unusable_claim(first) {
            Some((claim, why)) => (format!("Waits for claim {claim}"), why),
            None => ("A volume cannot be made ready".to_owned(), first),
        },
    };
    let others = more.matches("MountVolume.").count() + usize::from(!more.is_empty());
    let others = match others {
        0 => String::new(),
        1 => " (and one more volume)".to_owned(),
        count => format!(" (and {count} more volumes)"),
    };
    let (since, again) = (since(subject, "FailedMount"), tried_again(subject));
    let sentence = format!("{what}{others}{since}: {}{again}", words::one_line(why));
    let namespace = pintle_api_types::pod::namespace(&subject.view.pod);
    let known = remedies::of_claim(why, namespace).or_else(|| remedies::of_missing(why, namespace));
    let remedy = known.unwrap_or_else(|| {
        "correct the volume that the message names; it is tried again by itself".to_owned()
    });
    Explanation::trouble("FailedMount", sentence).with_remedy(remedy)
}

/// The claim that a pod waits for, and why it cannot be used.
fn unusable_claim(message: &str) -> Option<(&str, &str)> {
    let (_, rest) = message.split_once("error processing PVC ")?;
    rest.split_once(": ")
}

/// `, for 2 min`: the time since the first such event.
fn since(subject: &ExplainSubject<'_>, event: &str) -> String {
    let told = subject.timeline.iter().find(|entry| entry.event && entry.what == event);
    let age = told.map(|entry| subject.now.since(UnixNanos(entry.at)));
    let age = age.filter(|age| age.as_secs() > 0);
    age.map(|age| format!(", for {}", span(age))).unwrap_or_default()
}

/// `; tried again in 8 s`.
fn tried_again(subject: &ExplainSubject<'_>) -> String {
    let again = words::in_time(subject.now, subject.view.wake_at);
    again.map(|at| format!("; tried again {at}")).unwrap_or_default()
}

/// The failing tasks of the whole node, one sentence each.
pub fn node_troubles(troubles: &[(Task, Trouble)], now: UnixNanos) -> Vec<String> {
    let told = |(task, trouble): &(Task, Trouble)| {
        let what = match task {
            Task::Registration => "this node is not registered",
            Task::Pods => "no pods are delivered by the API server; those that are known go on",
            Task::Heartbeat => "the status of this node is not written",
        };
        let (age, words) = (span(now.since(trouble.since)), words::one_line(&trouble.words));
        let remedy = remedies::of_api_server(&trouble.words);
        format!("{what}, for {age}: {words} (remedy: {remedy})")
    };
    troubles.iter().map(told).collect()
}

fn details(subject: &ExplainSubject<'_>) -> Vec<String> {
    let view = subject.view;
    let mut out = Vec::new();
    for status in container_statuses(view) {
        out.push(containers::line(subject, status));
    }
    for (index, action) in view.doing.iter().enumerate() {
        let of = action.container().map(|name| format!(" {name}")).unwrap_or_default();
        let when = if index == 0 { "under way" } else { "then" };
        out.push(format!("{when}: {}{of}", action.verb()));
    }
    out.extend(view.evicted.iter().flat_map(|eviction| eviction.others()));
    out.extend(place(&view.observed));
    out.extend(calls::lines(subject));
    out.extend(writes::line(subject));
    if let Some(at) = words::in_time(subject.now, view.wake_at) {
        out.push(format!("looked at again {at}"));
    }
    // A failure on the node has an event of its own.
    let told = |entry: &&TimelineEntry| entry.event || entry.what.ends_with("NotWritten");
    let warnings = subject.timeline.iter().filter(|entry| entry.warning).filter(told);
    let recent: Vec<_> = warnings.rev().take(RECENT_MAX).collect();
    for entry in recent.into_iter().rev() {
        let ago = span(subject.now.since(UnixNanos(entry.at)));
        let times =
            if entry.count > 1 { format!(" ({} times since)", entry.count) } else { String::new() };
        out.push(format!("{ago} ago{times}: {}: {}", entry.what, words::one_line(&entry.text)));
    }
    if out.len() > DETAILS_MAX {
        let more = out.len() - DETAILS_MAX;
        out.truncate(DETAILS_MAX);
        out.push(format!("and {more} lines more: see timeline and dump"));
    }
    out
}

/// The cgroup of an adopted pod, which this agent might have put elsewhere.
fn place(observed: &ObservedPod) -> Option<String> {
    let newest = observed.specs.get(observed.newest_sandbox()?.id.as_str())?;
    let path = newest.parent_cgroup()?;
    Some(format!("was adopted by this agent; its cgroup is {path}"))
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
