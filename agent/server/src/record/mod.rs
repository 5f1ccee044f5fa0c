//! Reads the flight recorder's files, and replays the decisions.
//!
//! Input: the folder of a record. Output: a [`FolderReport`] with, for each run of the agent,
//! whether the decisions are equal, and the lost parts of the record; or the pods at a moment of
//! it. Effects: reads files. Blocking, for commands and tests; nothing of a running agent calls it.
//! A panic of the decisions is caught and is the report's finding. Bounds: one segment at a time,
//! and those of the decisions themselves.

mod folder;
pub(crate) mod past;
pub(crate) mod pod_inputs;
mod report;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::{ControlFlow, RangeInclusive};
use std::path::{Path, PathBuf};

use pintle_agent_core::flight::{Frame, Loss, Replay, ReplayOutcome, Segment};
use pintle_agent_core::types::{PodUid, UnixNanos};
use pintle_agent_core::worker::PodsInput;
use pintle_api_types::pod;
use pintle_daemon::tasks;

pub use folder::FlightRecordError;
use folder::RecordFolder;

use crate::words;

/// A missing part of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// No files of these numbers are there, between others.
    Segments(RangeInclusive<u64>),
    /// A file has no byte of its segment.
    Segment(u64),
    /// A file contains another segment than its name, and is skipped.
    Misnamed {
        /// The number in its name.
        name: u64,
        /// The number in its bytes.
        holds: u64,
    },
    /// The head of a segment, with its time.
    Head(u64),
    /// Batches of a segment.
    Batches {
        /// The segment.
        segment: u64,
        /// Place and kind of the loss.
        loss: Loss,
    },
    /// A state of which no decisions can be made.
    State {
        /// The segment.
        segment: u64,
        /// The panic.
        message: String,
    },
}

/// The result of the replay of a folder.
#[derive(Debug)]
pub struct FolderReport {
    /// The folder that has the segments.
    pub folder: PathBuf,
    /// The segments that were read.
    pub segments: Vec<u64>,
    /// Their length together.
    pub bytes: u64,
    /// Each run of the agent, oldest first.
    pub runs: Vec<ReplayOutcome>,
    /// Frames before the first start or state, or behind a gap: they cannot be replayed.
    pub passed: u64,
    /// Frames that are whole and of another version, which this one cannot read.
    pub unknown: u64,
    /// The missing parts.
    pub lost: Vec<Lost>,
    /// Names of the pods that inputs were about, as `NAMESPACE/NAME`.
    pub names: BTreeMap<PodUid, String>,
    /// The replay ended here because it was asked to, with more to come.
    pub until: Option<UnixNanos>,
}

impl FolderReport {
    /// True if at least one run was replayed, and every one equals the record. Losses do not count:
    /// `lost`, `passed` and [`ReplayOutcome::torn`] report them.
    pub fn is_equal(&self) -> bool {
        !self.runs.is_empty() && self.runs.iter().all(ReplayOutcome::is_equal)
    }
}

/// Replays the record in a folder, or in the folder `flight` of an agent's root directory.
pub fn replay_folder(dir: &Path) -> Result<FolderReport, FlightRecordError> {
    replay(dir, None, &mut |_, _| {})
}

/// Replays up to a moment; `seen` is called after each frame that was taken.
pub(crate) fn replay(
    dir: &Path,
    until: Option<UnixNanos>,
    seen: &mut dyn FnMut(&mut Replay, &Frame),
) -> Result<FolderReport, FlightRecordError> {
    let folder = RecordFolder::open(dir)?;
    let mut walk = ReplayWalk { until, ..ReplayWalk::default() };
    let mut replay = Replay::default();
    for &number in &folder.numbers {
        let Some((segment, bytes)) = folder.segment(number)? else { continue };
        walk.bytes += bytes;
        if !walk.begins(number, &segment) {
            continue;
        }
        let mut each = |replay: &mut Replay, frame: &Frame| {
            walk.frame(replay, frame)?;
            seen(replay, frame);
            ControlFlow::Continue(())
        };
        if replay.segment(&segment, &mut each).is_break() {
            walk.is_stopped = true;
            break;
        }
    }
    let (runs, passed) = replay.finish();
    let until = until.filter(|_| walk.is_stopped);
    let ReplayWalk { segments, bytes, unknown, lost, names, .. } = walk;
    Ok(FolderReport {
        folder: folder.path,
        segments,
        bytes,
        runs,
        passed,
        unknown,
        lost,
        names,
        until,
    })
}

/// The state of a replay on its way through the segments.
#[derive(Debug, Default)]
struct ReplayWalk {
    until: Option<UnixNanos>,
    is_stopped: bool,
    segments: Vec<u64>,
    bytes: u64,
    unknown: u64,
    lost: Vec<Lost>,
    names: BTreeMap<PodUid, String>,
}

impl ReplayWalk {
    /// Takes note of a segment; false for one that is not replayed.
    fn begins(&mut self, number: u64, segment: &Segment) -> bool {
        let last = self.segments.last().copied();
        if let Some(last) = last.filter(|last| last + 1 < number) {
            self.lost.push(Lost::Segments(last + 1..=number - 1));
        }
        self.segments.push(number);
        match segment.number {
            None => self.lost.push(Lost::Segment(number)),
            Some(holds) if holds != number => {
                self.lost.push(Lost::Misnamed { name: number, holds });
                return false;
            }
            Some(_) if segment.header.is_none() => self.lost.push(Lost::Head(number)),
            Some(_) => {}
        }
        let losses = segment.losses.iter().cloned();
        self.lost.extend(losses.map(|loss| Lost::Batches { segment: number, loss }));
        true
    }

    fn frame(&mut self, replay: &mut Replay, frame: &Frame) -> ControlFlow<()> {
        let input = match frame {
            Frame::Input { now, input } => Some((*now, &**input)),
            _ => None,
        };
        self.unknown += u64::from(matches!(frame, Frame::Unknown { .. }));
        if input.is_some_and(|(now, _)| self.until.is_some_and(|until| now.wall > until)) {
            return ControlFlow::Break(());
        }
        if let Some((_, PodsInput::Desired { uid, pod } | PodsInput::Reconciled { uid, pod })) =
            input
        {
            self.name(uid, || (pod::namespace(pod).to_owned(), pod::name(pod).to_owned()));
        }
        if let Err(panic) = tasks::catch(|| replay.take(frame)) {
            match input {
                Some((now, input)) => replay.panicked(now, input.clone(), panic.0),
                None => {
                    let segment = self.segments.last().copied().unwrap_or_default();
                    self.lost.push(Lost::State { segment, message: panic.0 });
                    replay.gap();
                }
            }
        }
        if let Some(uid) = input.and_then(|(_, input)| words::pod_of(input))
            && let Some(worker) = replay.pods().and_then(|pods| pods.worker(uid))
        {
            let observed = worker.observed();
            self.name(uid, || (observed.namespace.clone(), observed.name.clone()));
        }
        ControlFlow::Continue(())
    }

    fn name(&mut self, uid: &PodUid, name: impl FnOnce() -> (String, String)) {
        if !self.names.contains_key(uid) {
            let (namespace, name) = name();
            self.names.insert(uid.clone(), format!("{namespace}/{name}"));
        }
    }
}
