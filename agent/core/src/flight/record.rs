//! The recorder: makes frames of the inputs and results of decisions, and batches for their writer.
//!
//! Owner: the driver's loop, which gives the time, calls before each decision (`input`) and after
//! it (`commands`), and hands the result of `take` to a writer thread. Pure. Bounds: a waiting
//! batch holds `BATCH_BYTES_MAX` and one frame; `is_due` is true once it is full.

use serde::Serialize;

use crate::worker::{Command, PodsInput, State, Worker};
use pintle_api_types::ids::{Now, PodUid, UnixNanos};

use super::frame::{AgentStart, Digest, Frame, digest_of};
use super::pack::Packed;
use super::redact::{Redactor, Seal};
use super::segment::{BATCH_BYTES_MAX, Encoder, Header, SEGMENT_BYTES};

/// A state that is longer when packed is not recorded, because most of the record is for inputs.
/// Then a replay begins at the start of the agent.
pub const STATE_BYTES_MAX: u64 = SEGMENT_BYTES / 2;

/// Bytes to be appended to a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentBytes {
    /// The segment. One that is not there yet begins with these.
    pub segment: u64,
    /// The bytes, for one write.
    pub bytes: Vec<u8>,
}

/// The frames of `Frame`, borrowed; they are the same JSON.
#[derive(Serialize)]
enum FrameRef<'a> {
    Start(&'a AgentStart),
    Input { now: Now, input: &'a PodsInput },
    Worker(&'a PodUid, &'a Worker),
    State(&'a State),
}

/// See the module's header.
#[derive(Debug)]
pub struct Flight {
    redactor: Redactor,
    number: u64,
    encoder: Encoder,
    /// The beginning of the segment under way, until it is taken.
    opening: Vec<u8>,
    /// See the method.
    needs_state: bool,
}

impl Flight {
    /// Records into the segment of this number, which has to be greater than those of all that an
    /// earlier agent wrote.
    pub fn new(redactor: Redactor, number: u64, start: &AgentStart, at: UnixNanos) -> Self {
        let key_id = redactor.key_id();
        let header = Header { number, first_batch: 0, key_id, began_at: at };
        let (encoder, opening) = Encoder::begin(&header);
        let mut flight = Self { redactor, number, encoder, opening, needs_state: false };
        flight.put(&FrameRef::Start(start));
        flight
    }

    /// The decisions are given this next.
    pub fn input(&mut self, now: Now, input: &PodsInput) {
        self.put(&FrameRef::Input { now, input });
    }

    /// Records the resulting commands.
    pub fn commands(&mut self, commands: &[Command]) {
        let digests: Vec<Digest> =
            commands.iter().map(|command| digest_of(command, &self.redactor)).collect();
        self.push(&json_of(&Frame::Commands(digests)));
    }

    /// To be called between two inputs: a replay could not continue without a state. A segment has
    /// begun, or a frame could not be recorded.
    pub fn needs_state(&self) -> bool {
        self.needs_state
    }

    /// Records the state of the decisions when a segment needs it.
    pub fn state(&mut self, mut state: State) {
        self.needs_state = false;
        let (mut frames, mut bytes) = (Vec::new(), 0);
        for (uid, worker) in state.take_workers() {
            frames.push(self.packed(&FrameRef::Worker(&uid, &worker)));
            bytes += frames.last().map_or(0, Vec::len) as u64;
            if bytes > STATE_BYTES_MAX {
                return;
            }
        }
        frames.push(self.packed(&FrameRef::State(&state)));
        frames.iter().for_each(|frame| self.push(frame));
    }

    fn packed(&self, frame: &FrameRef<'_>) -> Vec<u8> {
        json_of(&Frame::Packed(Packed::of(&self.redactor.json(frame))))
    }

    /// There is enough for a batch.
    pub fn is_due(&self) -> bool {
        self.encoder.waiting() >= BATCH_BYTES_MAX
    }

    /// The record since the last call; `None` when there is none. `at` is the start of the next
    /// segment, if this batch fills the current one.
    pub fn take(&mut self, at: UnixNanos) -> Option<SegmentBytes> {
        let batch = self.encoder.take()?;
        let mut bytes = std::mem::take(&mut self.opening);
        bytes.extend(batch);
        let written = SegmentBytes { segment: self.number, bytes };
        if self.encoder.is_full() {
            self.next_segment(at);
        }
        Some(written)
    }

    /// A batch that was taken could not be written. Later frames can only be replayed from a state,
    /// so the state goes into the next segment; waiting frames are dropped.
    pub fn lost(&mut self, at: UnixNanos) {
        self.next_segment(at);
        self.push(&json_of(&Frame::Omitted { bytes: 0 }));
    }

    fn next_segment(&mut self, at: UnixNanos) {
        self.number += 1;
        let (number, first_batch) = (self.number, self.encoder.next_batch());
        let header = Header { number, first_batch, key_id: self.redactor.key_id(), began_at: at };
        (self.encoder, self.opening) = Encoder::begin(&header);
        self.needs_state = true;
    }

    fn put(&mut self, frame: &FrameRef<'_>) {
        let json = self.redactor.json(frame);
        self.push(&json);
    }

    fn push(&mut self, json: &[u8]) {
        if let Err(too_long) = self.encoder.push(json) {
            let omitted = json_of(&Frame::Omitted { bytes: too_long.bytes as u64 });
            self.encoder.push(&omitted).expect("it is short");
            self.needs_state = true;
        }
    }
}

fn json_of(of: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(of).expect("plain data serialises")
}
