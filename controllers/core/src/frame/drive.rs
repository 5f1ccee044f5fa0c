//! Runs one sync to its end against any source of answers: what tests, explain and shadow need.

use jiff::Timestamp;
use pintle_api_types::request::{Answer, Request};

use super::controller::{Controller, SyncOutcome};
use super::event::ObjectEvent;
use super::transcript::{SyncError, Transcript, TranscriptStop};

/// A sync that was run to its end.
#[derive(Debug)]
pub struct Driven<N> {
    /// The outcome of the sync.
    pub outcome: Result<SyncOutcome<N>, SyncError>,
    /// The notes of a sync that failed.
    pub failed_notes: Vec<N>,
    /// Its requests, in order.
    pub requests: Vec<Request>,
    /// Its events, in order.
    pub events: Vec<ObjectEvent>,
    /// The reasons of its decisions.
    pub reasons: Vec<String>,
}

/// Runs a sync; `answer` is asked for each request.
pub fn drive<C: Controller>(
    snapshot: &C::Snapshot,
    now: Timestamp,
    mut answer: impl FnMut(&Request) -> Answer,
) -> Driven<C::Note> {
    let mut transcript = Transcript::new(now);
    let mut failed_notes = Vec::new();
    let outcome = loop {
        match C::sync(snapshot, &mut transcript) {
            Ok(SyncOutcome { failed: Some(error), notes, .. }) => {
                failed_notes = notes;
                break Err(error);
            }
            Ok(outcome) => break Ok(outcome),
            Err(TranscriptStop::Failed(error)) => break Err(error),
            Err(TranscriptStop::Pending) => {
                let answers = transcript.wanted().iter().map(&mut answer).collect();
                transcript.answer(answers);
            }
        }
    };
    let requests = transcript.steps().iter().flat_map(|step| step.requests.iter().cloned());
    Driven {
        outcome,
        failed_notes,
        requests: requests.collect(),
        events: transcript.events().to_vec(),
        reasons: transcript.reasons().to_vec(),
    }
}
