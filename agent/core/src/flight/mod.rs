//! The flight recorder: every input of the decisions and the digest of every command, as bounded
//! segments of bytes, and the replay of them.
//!
//! ```text
//!   Start ──┐                                                                  ┌─> differences
//!   Input ──┼─> redact ─> frame ─> segment::Encoder ─> bytes ... ─> read ─> replay
//!   Command ┘     (digest)                                          │
//!                                                                   └─> losses
//! ```
//! Pure: no files, no clock. The owner of the folder writes the bytes and drops the oldest
//! segments. [ADR 0006](../../../../docs/adr/0006-flight-recorder.md) has the reasons.
//!
//! # All that reaches the decisions
//!
//! `Pods` is a function of these and of nothing else; each is in a frame.
//!
//! | input | how it reaches `Pods` | recorded as |
//! |---|---|---|
//! | configuration, facts and capacity of the node at the start | `Pods::new(Settings)` | `Frame::Start` |
//! | allocated and actuated resources of an earlier agent | `Pods::restore` | `Frame::Start` |
//! | both clocks | `now` of `Pods::handle`, read once for each input | `Frame::Input` |
//! | everything else | `Input` of `Pods::handle` | `Frame::Input` |
//!
//! No other call of the driver changes a decision: `checkpoints` and `take_touched` take records
//! that no decision reads, `next_wake`, `worker`, `workers`, `knows_all` and `dry_run` only read.
//! Nothing in `Pods` is random: stamps and tickets are counted from 0, the jitter of a resync is
//! made of the uid. Maps that are walked are ordered; the unordered one (`index`: owners) is only
//! looked up. `Arc::ptr_eq` saves work and decides nothing: after a replay values are equal and not
//! the same.
//!
//! JSON does not carry fractions of a second in times of the API, which the API does not send
//! either. A static pod's manifest might have some; the replay cuts them, as every write to the API
//! server does.
//!
//! # Values that are not recorded
//!
//! See `redact`. The decisions only compare such values for equality, and the digests of commands
//! are made of their redacted form. So `decide(redact(inputs)) = redact(decide(inputs))`, and a
//! replay checks that. Hashes of containers are made of name and image, which are not redacted;
//! those that were observed come in their own field of `ObservedContainer`.
//!
//! If the start of an agent is no longer kept, a replay begins at the `State` with which a segment
//! begins: all of `Pods` but derived values.
//!
//! Bounds: `segment::SEGMENT_BYTES` for each segment, `segment::BATCH_BYTES_MAX`
//! that wait to be written, one frame of `segment::FRAME_BYTES_MAX`, a state of `STATE_BYTES_MAX`.

mod crc32c;
mod frame;
mod pack;
pub mod past;
#[cfg(test)]
mod proptests;
mod read;
mod record;
pub mod redact;
pub mod replay;
pub mod segment;

pub use frame::{AgentStart, Digest, Frame, digest_of};
pub use past::{Left, Past, Why};
pub use read::{Batch, Loss, ReadError, Segment, read};
pub use record::{Flight, STATE_BYTES_MAX, SegmentBytes};
pub use redact::{Redactor, Seal};
pub use replay::{Panicked, Replay, ReplayDifference, ReplayOutcome};
