//! Runs the decisions again over the recorded inputs, and reports any different result.
//!
//! Input: frames in order. A replay begins at the start of an agent or at the state with which a
//! segment begins; frames before the first start are skipped, and frames behind a gap wait for the
//! next state. A later state is compared with the replay's own. An input that made the agent panic
//! panics here as well: the caller catches the panic and has its cause. Pure; bounds: those of
//! `Pods`, and one input.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::worker::{Command, Pods, PodsInput, State, Worker};
use pintle_api_types::ids::{Now, PodUid, UnixNanos};
use serde_json::Value;

use super::frame::{AgentStart, Digest, Frame, digest_of, plain};
use super::read::Segment;
use super::redact::Sealed;

/// The first input with a different result.
#[derive(Debug)]
pub struct ReplayDifference {
    /// Its number since the start of the agent, from 0.
    pub index: u64,
    /// When.
    pub now: Now,
    /// The input; its values are redacted.
    pub input: PodsInput,
    /// The recorded result.
    pub recorded: Vec<Digest>,
    /// The result of the replay.
    pub replayed: Vec<(Digest, Command)>,
}

/// An input that made the decisions panic.
#[derive(Debug)]
pub struct Panicked {
    /// When.
    pub now: Now,
    /// The input; its values are redacted.
    pub input: PodsInput,
    /// The panic's message.
    pub message: String,
}

/// How far the replay of one run of the agent came.
#[derive(Debug)]
pub struct ReplayOutcome {
    /// The version of the agent that was recorded; `None` when its start is not there.
    pub version: Option<String>,
    /// When its first input came; `None` when there was none.
    pub began_at: Option<UnixNanos>,
    /// When the last input came that was replayed.
    pub ended_at: Option<UnixNanos>,
    /// Inputs with the same result.
    pub equal: u64,
    /// The first one with a different result.
    pub difference: Option<Box<ReplayDifference>>,
    /// States on the way to which the replay came as well.
    pub states: u64,
    /// The place in the first state to which it did not, as a JSON pointer.
    pub state_differs: Option<String>,
    /// The input that made the decisions panic, the last one that was replayed.
    pub panicked: Option<Box<Panicked>>,
    /// The run went on and its frames were lost.
    pub torn: bool,
    /// The last input, if its result is unknown: the agent died of it or was ended.
    pub unanswered: Option<(Now, PodsInput)>,
}

impl ReplayOutcome {
    /// Everything that was replayed came out as it was recorded.
    pub fn is_equal(&self) -> bool {
        self.difference.is_none() && self.state_differs.is_none() && self.panicked.is_none()
    }
}

/// A run that is being replayed.
#[derive(Debug)]
struct ReplayRun {
    pods: Pods,
    outcome: ReplayOutcome,
    /// The result of the last input, until its record is compared.
    open: Option<OpenInput>,
}

/// An input before its recorded answer.
#[derive(Debug)]
struct OpenInput {
    now: Now,
    input: PodsInput,
    commands: Vec<Command>,
}

/// See the module's header.
#[derive(Debug, Default)]
pub struct Replay {
    run: Option<ReplayRun>,
    done: Vec<ReplayOutcome>,
    /// Frames of runs without a recorded start.
    passed: u64,
    next_batch: u64,
    /// Of the state that follows.
    workers: BTreeMap<PodUid, Worker>,
}

impl Replay {
    /// Replays the readable parts of segments, oldest first.
    pub fn of<'a>(segments: impl IntoIterator<Item = &'a Segment>) -> Self {
        let mut replay = Self::default();
        let mut take = |replay: &mut Self, frame: &Frame| {
            replay.take(frame);
            ControlFlow::Continue(())
        };
        for segment in segments {
            let _ = replay.segment(segment, &mut take);
        }
        replay
    }

    /// Replays the readable parts of the next segment. `each` is called with every frame, and has
    /// it taken; it may look before and after, catch a panic, and end the replay.
    pub fn segment(
        &mut self,
        segment: &Segment,
        each: &mut impl FnMut(&mut Self, &Frame) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for batch in &segment.batches {
            let begins = matches!(batch.frames.first(), Some(Frame::Start(_)));
            let lost = segment.losses.iter().any(|loss| loss.batches.1 == Some(batch.number));
            if !begins && (lost || batch.number != self.next_batch) {
                self.gap();
            }
            self.next_batch = batch.number + 1;
            batch.frames.iter().try_for_each(|frame| each(self, frame))?;
        }
        if segment.losses.last().is_some_and(|loss| loss.batches.1.is_none()) {
            self.gap();
        }
        ControlFlow::Continue(())
    }

    /// Takes the next frame.
    pub fn take(&mut self, frame: &Frame) {
        match frame {
            Frame::Start(start) => {
                self.end();
                self.run = Some(ReplayRun::of(start));
            }
            Frame::Omitted { .. } | Frame::Unknown { .. } => self.gap(),
            Frame::Worker(uid, worker) => {
                self.workers.insert(uid.clone(), (**worker).clone());
            }
            Frame::State(state) => {
                let state = (**state).clone().with_workers(std::mem::take(&mut self.workers));
                match &mut self.run {
                    Some(run) => run.compare_state(&state),
                    None => self.run = Some(ReplayRun::new(Pods::from(state), None)),
                }
            }
            // A reader has unpacked it.
            Frame::Packed(_) => {}
            Frame::Input { .. } | Frame::Commands(_) => match &mut self.run {
                Some(run) => run.take(frame),
                None => self.passed += 1,
            },
        }
    }

    /// Frames are missing here.
    pub fn gap(&mut self) {
        self.workers.clear();
        if let Some(mut run) = self.run.take() {
            run.outcome.torn = true;
            self.done.push(run.end());
        }
    }

    /// The decisions of the run under way, after the last frame; none behind a gap.
    pub fn pods(&mut self) -> Option<&mut Pods> {
        self.run.as_mut().map(|run| &mut run.pods)
    }

    /// The commands of the last input, until the frame with the recorded commands is taken.
    pub fn commands(&self) -> &[Command] {
        let open = self.run.as_ref().and_then(|run| run.open.as_ref());
        open.map_or(&[], |open| &open.commands)
    }

    /// Ends the run at this input, which made the replay panic; the caller has caught the panic.
    pub fn panicked(&mut self, now: Now, input: PodsInput, message: String) {
        if let Some(mut run) = self.run.take() {
            run.outcome.panicked = Some(Box::new(Panicked { now, input, message }));
            self.done.push(ReplayRun { open: None, ..run }.end());
        }
    }

    /// Ends the run at the last frame taken.
    fn end(&mut self) {
        self.done.extend(self.run.take().map(ReplayRun::end));
    }

    /// The outcome of each run of the agent, and the number of frames without a run.
    pub fn finish(mut self) -> (Vec<ReplayOutcome>, u64) {
        self.end();
        (self.done, self.passed)
    }
}

impl ReplayRun {
    fn of(start: &AgentStart) -> Self {
        let mut pods = Pods::new(start.settings.clone());
        pods.restore(start.allocated.clone(), start.actuated.clone());
        Self::new(pods, Some(start.version.clone()))
    }

    fn new(pods: Pods, version: Option<String>) -> Self {
        let outcome = ReplayOutcome {
            version,
            began_at: None,
            ended_at: None,
            equal: 0,
            difference: None,
            states: 0,
            state_differs: None,
            panicked: None,
            torn: false,
            unanswered: None,
        };
        Self { pods, outcome, open: None }
    }

    fn compare_state(&mut self, recorded: &State) {
        if self.outcome.difference.is_some() || self.outcome.state_differs.is_some() {
            return;
        }
        let (recorded, own) = (plain(recorded), plain(&self.pods.state()));
        self.outcome.state_differs = differing(&recorded, &own, String::new());
        self.outcome.states += u64::from(self.outcome.state_differs.is_none());
    }

    fn take(&mut self, frame: &Frame) {
        // Behind a difference everything differs.
        if self.outcome.difference.is_some() {
            return;
        }
        match frame {
            Frame::Input { now, input } => {
                self.outcome.began_at = self.outcome.began_at.or(Some(now.wall));
                self.outcome.ended_at = Some(now.wall);
                let commands = self.pods.handle(*now, (**input).clone());
                self.open = Some(OpenInput { now: *now, input: (**input).clone(), commands });
            }
            Frame::Commands(recorded) => self.compare(recorded),
            _ => {}
        }
    }

    fn compare(&mut self, recorded: &[Digest]) {
        let Some(OpenInput { now, input, commands }) = self.open.take() else { return };
        let with_digest = |command: Command| (digest_of(&command, &Sealed), command);
        let replayed: Vec<_> = commands.into_iter().map(with_digest).collect();
        if replayed.iter().map(|(digest, _)| digest).eq(recorded) {
            self.outcome.equal += 1;
            return;
        }
        let (index, recorded) = (self.outcome.equal, recorded.to_vec());
        let difference = ReplayDifference { index, now, input, recorded, replayed };
        self.outcome.difference = Some(Box::new(difference));
    }

    fn end(self) -> ReplayOutcome {
        let unanswered = self.open.map(|open| (open.now, open.input));
        ReplayOutcome { unanswered, ..self.outcome }
    }
}

/// The first place in which two values differ.
fn differing(a: &Value, b: &Value, at: String) -> Option<String> {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => a
            .iter()
            .zip(b.values())
            .find_map(|((name, a), b)| differing(a, b, format!("{at}/{name}"))),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.find_map(|(index, (a, b))| differing(a, b, format!("{at}/{index}")))
        }
        (a, b) => (a != b).then_some(at),
    }
}
