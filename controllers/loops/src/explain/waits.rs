//! Describes a controller's state of a key, in sentences.
//!
//! Input: a [`KeyReport`]. Output: sentences in an [`ObjectExplanation`]. Pure.

use std::time::Duration;

use pintle_controllers_core::frame::KeyWait;

use super::writes::phrases;
use super::{KeyReport, ObjectExplanation, sentence};

/// Parts of reasons that the counts and conditions say already.
const REPEATS: [&str; 7] = [
    "which is not wanted any more",
    "to become available",
    "are of the current template",
    "the rollout is paused",
    "pods are not created or deleted",
    "no progress within the deadline",
    "is suspended",
];

/// Adds what a controller says.
pub(super) fn add_report(report: &KeyReport, explanation: &mut ObjectExplanation) {
    let findings = &report.findings;
    let is_new = |reason: &&String| !REPEATS.iter().any(|said| reason.contains(said));
    let reasons: Vec<_> = findings.reasons.iter().filter(is_new).collect();
    let writes = phrases(&findings.writes);
    if writes.is_empty() {
        for reason in reasons {
            let reason = sentence(reason);
            if !explanation.state.contains(&reason) {
                explanation.state.push(reason);
            }
        }
    } else {
        explanation.is_settled = false;
        let why = reasons.last().map(|why| format!(", because {why}")).unwrap_or_default();
        let next = format!("Next write of {}: {}{why}.", report.controller, writes.join(", "));
        explanation.next_writes.push(next);
    }
    if let Some(failure) = &findings.failure {
        explanation.is_settled = false;
        explanation.state.push(format!("A sync fails: {}", sentence(failure)));
    }
    if let Some(again) = findings.again.filter(|_| report.waits.is_empty()) {
        explanation.waits_for.push(format!("The next check is in {}.", time(again)));
    }
    for wait in &report.waits {
        explanation.is_settled &= matches!(wait, KeyWait::Timer(_));
        explanation.waits_for.push(waiting(report.controller, wait));
    }
}

fn waiting(controller: &str, wait: &KeyWait) -> String {
    match wait {
        KeyWait::Answers { requests, since } => {
            let writes = phrases(requests);
            let what = match writes.is_empty() {
                true => "its reads".to_owned(),
                false => writes.join(", "),
            };
            format!("{controller} has waited {} for its turn or an answer: {what}.", time(*since))
        }
        KeyWait::OwnWrites(what) => {
            format!("{controller} waits for its own last write to appear: {what}.")
        }
        KeyWait::Backoff { left, failures, message } => {
            let failures = match failures {
                1 => "once".to_owned(),
                count => format!("{count} times in a row"),
            };
            format!(
                "{controller} failed {failures}, and tries again in {}: {}",
                time(*left),
                sentence(message)
            )
        }
        KeyWait::Timer(left) => format!("The next check is in {}.", time(*left)),
        KeyWait::Queue(depth) => {
            format!("The object is in the queue of {controller}, which has {depth} keys.")
        }
        KeyWait::Lists => format!("{controller} waits for its first lists to be complete."),
    }
}

/// A time in the largest units that matter.
pub(super) fn time(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}
