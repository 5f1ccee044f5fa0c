//! Records the decisions of a world's agents, and replays them when the world is over: the result
//! must be the same, or a decision depends on something that is not in its inputs.

use std::collections::BTreeMap;

use pintle_agent_core::flight::{
    AgentStart, Flight, Frame, Redactor, Replay, ReplayOutcome, Segment, read,
};
use pintle_agent_core::ledger::Entries;
use pintle_agent_core::types::{Now, UnixNanos};
use pintle_agent_core::worker::{Command, Pods, PodsInput, Settings};

/// Inputs after which the state is recorded although no segment begins.
const STATE_EVERY: u64 = 200;

/// The recordings of one world, one agent after the other.
#[derive(Default)]
pub struct Recording {
    flight: Option<Flight>,
    segments: BTreeMap<u64, Vec<u8>>,
    agents: usize,
    inputs: u64,
}

impl Recording {
    /// An agent begins.
    pub fn boots(&mut self, settings: &Settings, records: (&Entries, &Entries), at: UnixNanos) {
        self.write(at);
        let start = AgentStart {
            version: "sim".to_owned(),
            settings: settings.clone(),
            allocated: records.0.clone(),
            actuated: records.1.clone(),
        };
        let number = self.segments.last_key_value().map_or(0, |(last, _)| last + 1);
        self.flight = Some(Flight::new(Redactor::new(&[1; 32]), number, &start, at));
        self.agents += 1;
    }

    /// It is given this.
    pub fn input(&mut self, now: Now, input: &PodsInput) {
        self.inputs += 1;
        if let Some(flight) = &mut self.flight {
            flight.input(now, input);
        }
    }

    /// Records the resulting commands.
    pub fn commands(&mut self, now: Now, commands: &[Command], pods: &Pods) {
        let Some(flight) = &mut self.flight else { return };
        flight.commands(commands);
        if flight.is_due() {
            self.write(now.wall);
        }
        let due = self.inputs.is_multiple_of(STATE_EVERY);
        if let Some(flight) = self.flight.as_mut().filter(|flight| due || flight.needs_state()) {
            flight.state(pods.state());
        }
    }

    fn write(&mut self, at: UnixNanos) {
        if let Some(written) = self.flight.as_mut().and_then(|flight| flight.take(at)) {
            self.segments.entry(written.segment).or_default().extend(written.bytes);
        }
    }

    /// Replays all of it.
    pub fn check(mut self) {
        self.write(UnixNanos::NEVER);
        let read: Vec<Segment> =
            self.segments.values().map(|bytes| read(bytes).expect("our own format")).collect();
        for segment in &read {
            assert!(segment.losses.is_empty(), "{:?}", segment.losses);
        }
        let (runs, passed) = Replay::of(&read).finish();
        runs.iter().for_each(check);
        assert_eq!((runs.len(), passed), (self.agents, 0), "runs of the agent");
        assert_eq!(runs.iter().map(|run| run.equal).sum::<u64>(), self.inputs, "inputs");
        from_the_middle(&read);
    }
}

fn check(run: &ReplayOutcome) {
    assert!(run.difference.is_none(), "a replay differs: {:#?}", run.difference);
    assert_eq!(run.state_differs, None, "a replay comes to another state");
    assert!(!run.torn && run.unanswered.is_none(), "{run:?}");
}

/// A run without its start has only its states left.
fn from_the_middle(segments: &[Segment]) {
    let batches = segments.iter().flat_map(|segment| &segment.batches);
    let frames: Vec<_> = batches.flat_map(|batch| &batch.frames).collect();
    let is_state = |frame: &&Frame| matches!(frame, Frame::Worker(..) | Frame::State(_));
    let Some(first) = frames.iter().position(is_state) else { return };
    let mut replay = Replay::default();
    frames[first..].iter().for_each(|frame| replay.take(frame));
    let (runs, passed) = replay.finish();
    assert_eq!(passed, 0, "frames without a run");
    assert!(runs.iter().any(|run| run.version.is_none()), "a run begins with a state");
    runs.iter().for_each(check);
}
