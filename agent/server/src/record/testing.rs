//! A record of a few inputs of one pod, for the tests of its readers.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pintle_agent_core::admit::AdmissionNode;
use pintle_agent_core::flight::{AgentStart, Flight, Redactor, SegmentBytes};
use pintle_agent_core::ledger::Entries;
use pintle_agent_core::observed::ObservedPod;
use pintle_agent_core::sync::backoff::Curve;
use pintle_agent_core::types::{Mono, NodeFacts, Now, PodUid, UnixNanos};
use pintle_agent_core::worker::{Command, Failure, Pods, PodsInput, Settings};
use serde_json::json;

/// When the first agent began: 2026-01-01T00:00:00Z.
pub(crate) const BEGAN: i64 = 1_767_225_600_000_000_000;
const SECOND: i64 = 1_000_000_000;
/// A value in the pod's environment.
pub(crate) const SECRET: &str = "hunter2";

/// So many seconds after the first agent began.
pub(crate) fn at(seconds: i64) -> UnixNanos {
    UnixNanos(BEGAN + seconds * SECOND)
}

fn now(seconds: i64) -> Now {
    Now { wall: at(seconds), mono: Mono(seconds * SECOND) }
}

fn settings() -> Settings {
    Settings {
        sync_period: Duration::from_secs(60),
        relist_period: Duration::from_secs(60),
        crash_loop: Curve::default(),
        node: NodeFacts::default(),
        admission: Arc::new(AdmissionNode::roomy("node")),
        has_node_object: false,
        eviction: Default::default(),
        garbage: Default::default(),
    }
}

pub(crate) fn uid() -> PodUid {
    PodUid::from("u")
}

/// The pod `ns/web`.
pub(crate) fn desired() -> PodsInput {
    let pod = json!({
        "metadata": {"uid": "u", "name": "web", "namespace": "ns"},
        "spec": {"containers": [{"name": "c", "image": "i",
            "env": [{"name": "TOKEN", "value": SECRET}]}]},
    });
    let pod = serde_json::from_value(pod).expect("a pod");
    PodsInput::Desired { uid: uid(), pod: Arc::new(pod) }
}

/// An agent that records; each input ends a batch.
pub(crate) struct Agent<'a> {
    dir: &'a Path,
    flight: Flight,
    pods: Pods,
    seconds: i64,
    /// Its commands that were not executed yet.
    commands: VecDeque<Command>,
}

impl<'a> Agent<'a> {
    /// Begins so many seconds after the first.
    pub(crate) fn begins(dir: &'a Path, number: u64, seconds: i64, version: &str) -> Self {
        let start = AgentStart {
            version: version.to_owned(),
            settings: settings(),
            allocated: Entries::new(),
            actuated: Entries::new(),
        };
        let flight = Flight::new(Redactor::new(&[7; 32]), number, &start, at(seconds));
        Self { dir, flight, pods: Pods::new(settings()), seconds, commands: VecDeque::new() }
    }

    /// Takes an input a second after the one before, and records its commands.
    pub(crate) fn takes(&mut self, input: PodsInput) {
        self.takes_other(input.clone(), input);
    }

    /// Takes an input, as `takes`, of an agent that decides upon another input than it records.
    pub(crate) fn takes_other(&mut self, recorded: PodsInput, decided: PodsInput) {
        self.seconds += 1;
        self.flight.input(now(self.seconds), &recorded);
        let commands = self.pods.handle(now(self.seconds), decided);
        self.flight.commands(&commands);
        self.commands.extend(commands);
        self.write();
    }

    /// Dies of the input.
    pub(crate) fn dies_of(mut self, input: &PodsInput) {
        self.flight.input(now(self.seconds + 1), input);
        self.write();
    }

    fn write(&mut self) {
        if let Some(SegmentBytes { segment, bytes }) = self.flight.take(at(self.seconds)) {
            let path = self.dir.join(format!("{segment:010}.segment"));
            let mut whole = fs::read(&path).unwrap_or_default();
            whole.extend(bytes);
            fs::write(path, whole).expect("it is written");
        }
    }

    /// Nothing runs, and every source has delivered its pods.
    pub(crate) fn gets_ready(&mut self) {
        self.takes(PodsInput::Tick);
        self.lists_nothing();
        self.takes(PodsInput::SourcesReady);
        self.lists_nothing();
    }

    fn lists_nothing(&mut self) {
        self.does(|command| matches!(command, Command::List { .. }));
    }

    /// The read that was asked for finds nothing of the pod.
    pub(crate) fn reads_nothing(&mut self) {
        self.does(|command| matches!(command, Command::Read { .. }));
    }

    /// The sync that began fails at once with this.
    pub(crate) fn fails(&mut self, reason: &str, message: &str) {
        let command = self.asked(|command| matches!(command, Command::Run { .. }));
        let Command::Run { ticket, .. } = command else { panic!("{command:?}") };
        let outcome = Err(Failure::new(reason, message));
        self.takes(PodsInput::Progress { uid: uid(), ticket, index: 0, outcome });
        self.takes(PodsInput::SyncDone { uid: uid(), ticket });
    }

    /// The pod is not wanted any more, and all that is asked for to end it is done.
    pub(crate) fn removes_all(&mut self) {
        self.takes(PodsInput::Removed { uid: uid() });
        // The pod is gone after a handful; a bound, because the test would go on for ever
        // otherwise.
        for _ in 0..100 {
            match self.commands.pop_front() {
                Some(Command::Gone { .. }) => return,
                Some(command) => self.obeys(command),
                None => {
                    self.seconds += 60;
                    self.takes(PodsInput::Tick);
                }
            }
        }
        panic!("the pod does not go");
    }

    /// Does the first of these that was asked for.
    fn does(&mut self, which: impl Fn(&Command) -> bool) {
        let command = self.asked(which);
        self.obeys(command);
    }

    fn asked(&mut self, which: impl Fn(&Command) -> bool) -> Command {
        let place = self.commands.iter().position(which).expect("it was asked for");
        self.commands.remove(place).expect("it is there")
    }

    fn obeys(&mut self, command: Command) {
        match command {
            Command::Run { ticket, actions, .. } => {
                for index in 0..actions.len() {
                    self.takes(PodsInput::Progress { uid: uid(), ticket, index, outcome: Ok(()) });
                }
                self.takes(PodsInput::SyncDone { uid: uid(), ticket });
            }
            Command::Read { stamp, .. } => {
                let result = Ok(ObservedPod::empty(uid(), "ns", "web"));
                self.takes(PodsInput::Observed { uid: uid(), stamp, result });
            }
            Command::List { stamp } => {
                self.takes(PodsInput::Listed { stamp, result: Ok(Vec::new()) })
            }
            _ => {}
        }
    }
}
