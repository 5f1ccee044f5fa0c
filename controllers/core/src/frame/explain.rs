//! A controller's state of one object: the waits of its key, and the writes of its next sync.
//!
//! Input: a key, the tables, the queue. Output: [`KeyState`], and a [`DrySync`] that runs the sync
//! up to its first write. Reads are answered by the caller; a write is never made. Bounds: the
//! reads of one sync up to its first write.

use std::time::Duration;

use pintle_api_types::request::{Answer, Request};

use super::controller::Controller;
use super::running::catch;
use super::transcript::{Transcript, TranscriptStop};

/// The state of an object's key.
pub struct KeyState {
    /// The controller.
    pub controller: &'static str,
    /// The reasons for which the key waits.
    pub waits: Vec<KeyWait>,
    /// The next sync, run without its writes; `None` when the controller has nothing to decide.
    pub dry: Option<Box<dyn DrySync>>,
}

/// A reason for which a key waits.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyWait {
    /// These requests were sent and have no answer yet.
    Answers {
        /// The requests.
        requests: Vec<Request>,
        /// Time since they were sent.
        since: Duration,
    },
    /// The tables do not show the controller's own writes yet.
    OwnWrites(String),
    /// Syncs failed; the next one comes after a back-off.
    Backoff {
        /// Time until the next sync.
        left: Duration,
        /// Failures in a row.
        failures: u32,
        /// The last failure.
        message: String,
    },
    /// The next sync comes after this time, as the controller requested.
    Timer(Duration),
    /// The key is in the queue, behind at most this many other keys.
    Queue(usize),
    /// The lists of the controller's kinds are not complete.
    Lists,
}

/// A sync that is run without its writes.
pub trait DrySync {
    /// Runs until a write would be made or the sync ends. Returns the reads that have to be
    /// answered first, none when it is over.
    fn advance(&mut self) -> Vec<Request>;
    /// Records the answers to these reads, one for each.
    fn answer(&mut self, answers: Vec<Answer>);
    /// The outcome of the sync.
    fn findings(&self) -> &Findings;
}

/// The outcome of a sync without writes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// The controller's reasons.
    pub reasons: Vec<String>,
    /// The writes that come next, made at once.
    pub writes: Vec<Request>,
    /// The sync fails before any write.
    pub failure: Option<String>,
    /// Without a change, the next sync comes after so long.
    pub again: Option<Duration>,
}

/// The sync of one key, run without its writes.
pub(super) struct Dry<C: Controller> {
    snapshot: C::Snapshot,
    transcript: Transcript,
    findings: Findings,
}

impl<C: Controller> Dry<C> {
    pub(super) fn new(snapshot: C::Snapshot, transcript: Transcript) -> Self {
        Self { snapshot, transcript, findings: Findings::default() }
    }
}

impl<C: Controller> DrySync for Dry<C> {
    fn advance(&mut self) -> Vec<Request> {
        let result = catch(|| C::sync(&self.snapshot, &mut self.transcript));
        let mut found = Findings::default();
        let mut reads = Vec::new();
        match result {
            Ok(Ok(outcome)) => {
                found.again = outcome.again;
                found.failure = outcome.failed.map(|error| error.message);
            }
            Ok(Err(TranscriptStop::Failed(error))) | Err(error) => {
                found.failure = Some(error.message)
            }
            Ok(Err(TranscriptStop::Pending)) => {
                let wanted = self.transcript.wanted().to_vec();
                match wanted.iter().any(is_write) {
                    true => found.writes = wanted,
                    false => reads = wanted,
                }
            }
        }
        found.reasons = self.transcript.reasons().to_vec();
        self.findings = found;
        reads
    }

    fn answer(&mut self, answers: Vec<Answer>) {
        self.transcript.answer(answers);
    }

    fn findings(&self) -> &Findings {
        &self.findings
    }
}

/// The request changes something.
pub fn is_write(request: &Request) -> bool {
    !matches!(request, Request::Read { .. } | Request::List { .. } | Request::Get { .. })
}
