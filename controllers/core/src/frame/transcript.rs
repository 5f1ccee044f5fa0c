//! The requests of one sync and their answers, which make a sync a pure function.
//!
//! A sync makes requests in order. The transcript returns the answer if it is recorded; otherwise
//! it stops the sync, which is rerun from its first line after the answer arrives. So a sync is
//! straight-line code, and the same snapshot with the same answers gives the same requests, which
//! the simulator replays and explain reads. Bounds: `BATCH_MAX` requests at once.

use std::ops::Range;

use jiff::Timestamp;
use pintle_api_types::request::{Answer, Request};

use super::event::ObjectEvent;

/// Requests that are sent at once, at most.
pub const BATCH_MAX: usize = 500;

/// The reason for which a sync ends before its last line.
#[derive(Clone, Debug, PartialEq)]
pub enum TranscriptStop {
    /// Requests have to be answered first.
    Pending,
    /// The sync failed.
    Failed(SyncError),
}

/// The failure of a sync.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct SyncError {
    /// The sentence for the log and for explain.
    pub message: String,
    /// When it is retried, if at all.
    pub retry: Retry,
}

/// When a failed sync is retried, if at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// After the back-off of its key.
    Backoff,
    /// After the back-off, and it is no problem worth a line in the log.
    Quietly,
    /// Only when something changes.
    Never,
    /// Only when something changes, and it is no failure to report: nothing can be done, such as in
    /// a namespace that is being deleted.
    NeverSilently,
}

impl TranscriptStop {
    /// A failed sync that is retried after the back-off of its key.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(SyncError { message: message.into(), retry: Retry::Backoff })
    }
}

impl From<pintle_api_types::request::ApiError> for TranscriptStop {
    fn from(error: pintle_api_types::request::ApiError) -> Self {
        // A conflict means that the tables lag behind: no line in the log.
        let retry = if error.is_conflict() { Retry::Quietly } else { Retry::Backoff };
        let message = match error.is_unknown() {
            true => format!("the API server did not answer: {}", error.message),
            false => error.message,
        };
        Self::Failed(SyncError { message, retry })
    }
}

/// Requests that were asked for at once, and their answers.
#[derive(Clone, Debug, PartialEq)]
pub struct TranscriptStep {
    /// The requests.
    pub requests: Vec<Request>,
    /// An answer for each.
    pub answers: Vec<Answer>,
}

/// The requests and answers of one sync so far.
#[derive(Clone, Debug)]
pub struct Transcript {
    now: Timestamp,
    steps: Vec<TranscriptStep>,
    /// Steps that this run has passed.
    passed: usize,
    wanted: Vec<Request>,
    events: Vec<ObjectEvent>,
    reasons: Vec<String>,
}

impl Transcript {
    /// Of a sync that begins now.
    pub fn new(now: Timestamp) -> Self {
        Self {
            now,
            steps: Vec::new(),
            passed: 0,
            wanted: Vec::new(),
            events: Vec::new(),
            reasons: Vec::new(),
        }
    }

    /// When the sync began.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Sends a request and returns its answer.
    ///
    /// # Errors
    /// [`TranscriptStop::Pending`] until it is answered.
    pub fn send(&mut self, request: Request) -> Result<Answer, TranscriptStop> {
        let mut answers = self.send_all(vec![request])?;
        Ok(answers.pop().expect("one answer for one request"))
    }

    /// The same; the request is made only if it has to be sent, which a replay does not.
    ///
    /// # Errors
    /// As [`Transcript::send`].
    pub fn send_with(
        &mut self,
        request: impl FnOnce() -> Request,
    ) -> Result<Answer, TranscriptStop> {
        let mut answers = self.send_batch(1, || vec![request()])?;
        Ok(answers.pop().expect("one answer for one request"))
    }

    /// Sends requests at once and returns their answers in order.
    ///
    /// # Errors
    /// [`TranscriptStop::Pending`] until all are answered.
    ///
    /// # Panics
    /// In debug builds when a rerun of the sync makes another request.
    pub fn send_all(&mut self, requests: Vec<Request>) -> Result<Vec<Answer>, TranscriptStop> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let mut answers = Vec::with_capacity(requests.len());
        let mut rest = requests;
        while !rest.is_empty() {
            let after = rest.split_off(rest.len().min(BATCH_MAX));
            answers.extend(self.send_batch(rest.len(), || rest)?);
            rest = after;
        }
        Ok(answers)
    }

    /// The requests are as many as `count`.
    fn send_batch(
        &mut self,
        count: usize,
        requests: impl FnOnce() -> Vec<Request>,
    ) -> Result<Vec<Answer>, TranscriptStop> {
        let Some(step) = self.steps.get(self.passed) else {
            self.wanted = requests();
            return Err(TranscriptStop::Pending);
        };
        debug_assert_eq!(step.answers.len(), count, "a sync asks for as much each time");
        if cfg!(debug_assertions) {
            assert_eq!(step.requests, requests(), "a sync asks for the same each time");
        }
        self.passed += 1;
        Ok(step.answers.clone())
    }

    /// Sends 1, 2, 4 and so on requests at once until one of them fails. Returns the answers, fewer
    /// than requests if it stopped early.
    ///
    /// # Errors
    /// [`TranscriptStop::Pending`] until all that were sent are answered.
    pub fn slow_start(&mut self, requests: Vec<Request>) -> Result<Vec<Answer>, TranscriptStop> {
        self.slow_start_with(requests.len(), |batch| requests[batch].to_vec())
    }

    /// The same with so many equal requests, made when they have to be sent.
    ///
    /// # Errors
    /// As [`Transcript::slow_start`].
    pub fn slow_start_equal(
        &mut self,
        count: usize,
        request: impl Fn() -> Request,
    ) -> Result<Vec<Answer>, TranscriptStop> {
        self.slow_start_with(count, |batch| vec![request(); batch.len()])
    }

    // k8s: pkg/controller/replicaset/replica_set.go slowStartBatch
    fn slow_start_with(
        &mut self,
        count: usize,
        requests: impl Fn(Range<usize>) -> Vec<Request>,
    ) -> Result<Vec<Answer>, TranscriptStop> {
        let mut answers = Vec::with_capacity(count);
        let mut batch = 1;
        while answers.len() < count {
            let first = answers.len();
            let end = count.min(first + batch.min(BATCH_MAX));
            let batch_answers = self.send_batch(end - first, || requests(first..end))?;
            let is_failed = batch_answers.iter().any(Result::is_err);
            answers.extend(batch_answers);
            if is_failed {
                break;
            }
            batch *= 2;
        }
        Ok(answers)
    }

    /// Records an event.
    pub fn event(&mut self, event: ObjectEvent) {
        self.events.push(event);
    }

    /// Records for explain why something is or is not done, in one sentence.
    pub fn because(&mut self, reason: impl Into<String>) {
        self.reasons.push(reason.into());
    }

    /// The reasons of this run.
    pub fn reasons(&self) -> &[String] {
        &self.reasons
    }

    /// The events of this run.
    pub fn events(&self) -> &[ObjectEvent] {
        &self.events
    }

    /// The steps that were answered.
    pub fn steps(&self) -> &[TranscriptStep] {
        &self.steps
    }

    /// The requests that the last run stopped at.
    pub fn wanted(&self) -> &[Request] {
        &self.wanted
    }

    /// Begins the next run.
    pub(super) fn rewind(&mut self) {
        self.passed = 0;
        self.events.clear();
        self.reasons.clear();
    }

    /// Records the answers to what the last run stopped at.
    pub fn answer(&mut self, answers: Vec<Answer>) {
        let requests = std::mem::take(&mut self.wanted);
        assert_eq!(requests.len(), answers.len(), "an answer for each request");
        self.steps.push(TranscriptStep { requests, answers });
        self.rewind();
    }
}
