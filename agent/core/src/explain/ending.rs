//! Pods that have ended or are being ended. Pure.

use super::{
    ExplainSubject, Explanation, calls, container_statuses, containers, grace, remedies, span,
    words, writes,
};
use crate::eviction;
use crate::shutdown::{self, Window};
use crate::status::{FAILED, REJECTED, SUCCEEDED};
use crate::timeline::TimelineEntry;
use crate::worker::WorkerStage;
use pintle_api_types::ids::UnixNanos;

/// The pod is being ended.
pub(crate) fn terminating(subject: &ExplainSubject<'_>) -> Explanation {
    if let Some(hanging) = calls::hanging_end(subject) {
        return hanging;
    }
    let view = subject.view;
    let running: Vec<_> = words::running(&view.observed).collect();
    if let Some(failure) = &view.failure {
        let again = words::in_time(subject.now, view.wake_at);
        let again = again.map(|at| format!("; tried again {at}")).unwrap_or_default();
        let message = words::one_line(&failure.message);
        let sentence = format!("Is being ended, but stopping it failed: {message}{again}");
        return Explanation::trouble(&failure.reason, sentence)
            .with_remedy("look at the runtime's log; it is tried again by itself");
    }
    if running.is_empty() {
        return Explanation::trouble(
            "Terminating",
            "Is being ended: no container runs any more, its sandbox is being stopped",
        );
    }
    let allowed = grace(view);
    let left = match stopping_since(subject.timeline) {
        Some(began) => {
            let left = allowed.saturating_sub(subject.now.since(began));
            format!("{} of {} grace left", span(left), span(allowed))
        }
        None => format!("{} grace", span(allowed)),
    };
    let hook = calls::command(subject)
        .map(|(call, what)| {
            let age = span(call.age);
            format!(", a command in {what} has run for {age}{}", calls::command_process(call))
        })
        .unwrap_or_default();
    let still = words::list("container", &running);
    let why = match (&view.ends_with, &view.evicted) {
        (Some(_), _) => format!(" because the node shuts down{}", group(subject)),
        (None, Some(eviction)) => format!(", evicted for {}", eviction.why()),
        (None, None) => String::new(),
    };
    Explanation::trouble(
        "Terminating",
        format!("Is being ended{why}: {still} still running, {left}{hook}"),
    )
}

/// When the pod's containers were first asked to stop.
fn stopping_since(timeline: &[TimelineEntry]) -> Option<UnixNanos> {
    let is_stop =
        |e: &&TimelineEntry| e.what == "Killing" && e.text.starts_with("Stopping container");
    timeline.iter().find(is_stop).map(|entry| UnixNanos(entry.at))
}

/// Nothing of the pod runs any more.
pub(crate) fn ended(subject: &ExplainSubject<'_>) -> Explanation {
    let view = subject.view;
    if let Some(failure) = view.failure.as_ref().filter(|_| view.stage == WorkerStage::Terminated) {
        let message = words::one_line(&failure.message);
        let sentence = format!("Has ended, but its remains cannot be taken away: {message}");
        return Explanation::trouble(&failure.reason, sentence)
            .with_remedy(remedies::of_remains(&failure.message));
    }
    let status = &view.status;
    if let Some(kept) = writes::kept(subject).filter(|_| view.stage == WorkerStage::Finished) {
        return kept;
    }
    match status.phase.as_deref() {
        Some(SUCCEEDED) => {
            Explanation::fine("Succeeded", "Has finished: every container ended with exit code 0")
        }
        Some(FAILED) => failed(subject),
        _ if view.stage == WorkerStage::Finished => {
            Explanation::trouble("Ended", "Has ended and is not wanted any more")
        }
        _ => Explanation::trouble(
            "Ended",
            "Has ended; its volumes and its cgroup are being taken away",
        ),
    }
}

/// In which group of the shutdown it ends; an agent that came later does not know.
fn group(subject: &ExplainSubject<'_>) -> String {
    let shown = |window: Window| {
        let (priority, seconds) = (window.priority, window.seconds);
        format!(", with the pods from priority {priority} on, which had {seconds} s together")
    };
    subject.view.ends_with.map(shown).unwrap_or_default()
}

fn failed(subject: &ExplainSubject<'_>) -> Explanation {
    let status = &subject.view.status;
    if status.reason.as_deref() == Some(shutdown::REASON) {
        let sentence = format!("Has ended because the node was shut down{}", group(subject));
        return Explanation::trouble(shutdown::REASON, sentence)
            .with_remedy(remedies::of_reason(shutdown::REASON));
    }
    if let Some(eviction) = &subject.view.evicted {
        let message = words::one_line(&eviction.message);
        let sentence = format!("Was evicted for {}; it was told: {message}", eviction.why());
        return Explanation::trouble(eviction::REASON, sentence)
            .with_remedy(remedies::of_eviction(eviction.rule));
    }
    if let Some(reason) = status.reason.as_deref().filter(|reason| !reason.is_empty()) {
        let message = words::one_line(status.message.as_deref().unwrap_or_default());
        let sentence = match message.strip_prefix(REJECTED) {
            Some(why) => format!("Was refused by this node ({reason}): {why}"),
            None if message.is_empty() => format!("Has failed: {reason}"),
            None => format!("Has failed: {reason}: {message}"),
        };
        return Explanation::trouble(reason, sentence).with_remedy(remedies::of_reason(reason));
    }
    let mut ends = Vec::new();
    let mut remedy = None;
    for container in container_statuses(subject.view) {
        let end = container.state.as_ref().and_then(|state| state.terminated.as_ref());
        if let Some(end) = end.filter(|end| end.exit_code != 0) {
            ends.push(containers::end_text(subject, &container.name, end));
            remedy = remedy.or_else(|| containers::end_remedy(subject, &container.name, end));
        }
    }
    let how = if ends.is_empty() { "a container failed".to_owned() } else { ends.join("; ") };
    let explanation = Explanation::trouble("Failed", format!("Has failed: {how}"));
    Explanation { remedy, ..explanation }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::explain::tests::{ExplainCase, check};
    use crate::status::testing::container;
    use crate::sync::plan::Action;

    #[test]
    fn pods_that_end_with_the_node_and_in_which_group() {
        let window = Some(Window { priority: 1_000, seconds: 20 });
        let status = json!({"phase": "Failed", "reason": "Terminated", "message": "Pod was ..."});
        let ended = || {
            ExplainCase::new(json!({"containers": []}), status.clone()).stage(WorkerStage::Finished)
        };
        let mut known = ended();
        known.view.ends_with = window;
        let stopping = Action::KillPod { grace_seconds: Some(20) };
        let mut ending = ExplainCase::of(json!({"ready": true, "state": {"running": {}}}))
            .with(container("c", "c1"))
            .stage(WorkerStage::Terminating)
            .doing(stopping);
        ending.view.ends_with = window;
        let group = "with the pods from priority 1000 on, which had 20 s together";
        check(vec![
            (known, "Terminated", &format!("Has ended because the node was shut down, {group}.")),
            (ended(), "Terminated", "Has ended because the node was shut down."),
            (
                ending,
                "Terminating",
                &format!(
                    "Is being ended because the node shuts down, {group}: container c is still \
                     running, 20 s grace."
                ),
            ),
        ]);
    }
}
