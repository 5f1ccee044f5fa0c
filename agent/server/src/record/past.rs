//! `explain` and `timeline` for a moment of a record: for pods as they were, and for pods that were
//! already gone.
//!
//! Output: the JSON that a running agent answers, with `record`: which record, of what moment, and
//! notes on its limits. A record does not contain the state that only the running agent has: calls
//! in flight, and writes that the API server rejected.

use std::collections::BTreeMap;
use std::path::Path;

use pintle_agent_core::explain::{ExplainSubject, explain};
use pintle_agent_core::flight::{Left, Past, Why};
use pintle_agent_core::types::UnixNanos;
use pintle_agent_core::view::{PodView, Snapshot};
use serde_json::{Value, json};

use super::report::time;
use super::{FlightRecordError, FolderReport, replay};
use crate::answers;
use crate::select::{Miss, full, select, uid};

/// A question about one pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastQuery<'a> {
    /// The pod as people name it.
    pub(crate) pod: &'a str,
    /// Explain why it was not running; else its history.
    pub(crate) explain: bool,
    /// When; `None` is the end of the record.
    pub(crate) at: Option<UnixNanos>,
}

/// A pod that was found.
struct FoundPod<'a> {
    view: &'a PodView,
    left: Option<&'a Left>,
}

/// Answers from the record in a folder.
pub(crate) fn answer(dir: &Path, query: PastQuery<'_>) -> Result<Value, FlightRecordError> {
    let mut past = Past::default();
    let report = replay(dir, query.at, &mut |replay, frame| past.see(replay, frame))?;
    let found = match find(&past, query.pod) {
        Ok(found) => found,
        Err(miss) => return Err(unknown(&report, query, &past, miss)),
    };
    // When there is more to come, it was as it was until the moment that was asked for.
    let now = report.until.unwrap_or(past.now());
    let entries = past.recorder().entries(&found.view.observed.uid);
    let mut answer = match query.explain {
        true => {
            let snapshot = past.snapshot();
            let explanation = explain(&ExplainSubject {
                view: found.view,
                calls: &[],
                timeline: &entries,
                unwritten: None,
                ahead: answers::ahead(snapshot, found.view),
                now: found.left.map_or(now, |left| left.at),
            });
            answers::explained(found.view, &explanation)
        }
        false => answers::timeline(&full(found.view), uid(found.view), &entries),
    };
    answer["record"] = json!({
        "folder": report.folder.display().to_string(),
        "unixNanos": now,
        "notes": notes(&report, &past, &found, query.at),
    });
    Ok(answers::versioned(answer))
}

/// The pod that is meant: one that was there, else one that had been there.
fn find<'a>(past: &'a Past, query: &str) -> Result<FoundPod<'a>, Miss> {
    let missed = match select(past.snapshot(), query) {
        Ok(view) => return Ok(FoundPod { view, left: None }),
        Err(miss @ Miss::Ambiguous(_)) => return Err(miss),
        Err(miss) => miss,
    };
    let of = |left: &'a Left| FoundPod { view: &left.view, left: Some(left) };
    if let Some(left) = past.left().get(query) {
        return Ok(of(left));
    }
    // Of pods of one name the one that left last.
    let mut last = BTreeMap::<String, &Left>::new();
    for left in past.left().values() {
        let known = last.entry(full(&left.view)).or_insert(left);
        if known.at < left.at {
            *known = left;
        }
    }
    let views =
        last.values().map(|left| (left.view.observed.uid.clone(), PodView::clone(&left.view)));
    let gone = Snapshot { pods: views.collect(), ..Snapshot::default() };
    match (select(&gone, query), missed) {
        (Ok(view), missed) => past.left().get(uid(view)).map(of).ok_or(missed),
        (Err(Miss::Unknown(mut near)), Miss::Unknown(present)) => {
            near.extend(present);
            Err(Miss::Unknown(near))
        }
        (Err(miss), _) => Err(miss),
    }
}

fn unknown(
    report: &FolderReport,
    query: PastQuery<'_>,
    past: &Past,
    miss: Miss,
) -> FlightRecordError {
    let (path, pod) = (report.folder.clone(), query.pod.to_owned());
    match miss {
        Miss::Ambiguous(pods) => FlightRecordError::AmbiguousPod { pod, pods },
        Miss::Unknown(near) => {
            let mut more: Vec<_> =
                near.iter().map(|name| format!("did you mean {name}?")).collect();
            more.extend(span(report).map(|(from, to)| {
                let to = report.until.unwrap_or(to.max(past.now()));
                format!("what was replayed is from {} to {}", time(from), time(to))
            }));
            FlightRecordError::UnknownPod { path, pod, more }
        }
    }
}

fn span(report: &FolderReport) -> Option<(UnixNanos, UnixNanos)> {
    let began = report.runs.iter().find_map(|run| run.began_at)?;
    Some((began, report.runs.iter().rev().find_map(|run| run.ended_at)?))
}

/// Notes on the limits of the answer.
fn notes(
    report: &FolderReport,
    past: &Past,
    found: &FoundPod<'_>,
    at: Option<UnixNanos>,
) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(left) = found.left {
        notes.push(match left.why {
            Why::Gone => format!("nothing was left of the pod by {}", time(left.at)),
            Why::Restart => format!(
                "the agent began anew after {} and had not heard of the pod again",
                time(left.at)
            ),
        });
    }
    if let Some(at) = at.filter(|_| report.until.is_none()) {
        let end = past.now();
        notes.push(format!("the record ends at {}, before {}", time(end), time(at)));
    }
    let differs = report.runs.iter().filter(|run| !run.is_equal()).count();
    if differs > 0 {
        notes.push(
            "what this program decides differs from what was recorded, so this may not be how it \
             was: see replay"
                .to_owned(),
        );
    }
    if report.passed > 0 || report.runs.iter().any(|run| run.torn) {
        notes.push("a part of the record is lost: see replay".to_owned());
    }
    notes
}
