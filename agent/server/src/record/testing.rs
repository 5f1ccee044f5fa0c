//! A record of a few inputs of one pod, for the tests of what reads it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pintle_agent_core::admit::Node;
use pintle_agent_core::flight::{Flight, Redactor, Start, Written};
use pintle_agent_core::ledger::Entries;
use pintle_agent_core::observed::ObservedPod;
use pintle_agent_core::sync::backoff::Curve;
use pintle_agent_core::types::{Mono, NodeFacts, Now, PodUid, UnixNanos};
use pintle_agent_core::worker::{Command, Failure, Input, Pods, Settings};
use serde_json::json;

/// When the first agent began: 2026-01-01T00:00:00Z.
pub(super) const BEGAN: i64 = 1_767_225_600_000_000_000;
const SECOND: i64 = 1_000_000_000;
/// What the pod has in its environment.
pub(super) const SECRET: &str = "hunter2";

/// So many seconds after the first agent began.
pub(super) fn at(seconds: i64) -> UnixNanos {
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
        admission: Arc::new(Node::roomy("node")),
        has_node_object: false,
    }
}

pub(super) fn uid() -> PodUid {
    PodUid::from("u")
}

/// The pod `ns/web`.
pub(super) fn desired() -> Input {
    let pod = json!({
        "metadata": {"uid": "u", "name": "web", "namespace": "ns"},
        "spec": {"containers": [{"name": "c", "image": "i",
            "env": [{"name": "TOKEN", "value": SECRET}]}]},
    });
    let pod = serde_json::from_value(pod).expect("a pod");
    Input::Desired { uid: uid(), pod: Arc::new(pod) }
}

/// An agent that records; each input ends a batch.
pub(super) struct Agent<'a> {
    dir: &'a Path,
    flight: Flight,
    pods: Pods,
    seconds: i64,
    /// What came of the last input.
    pub(super) commands: Vec<Command>,
}

impl<'a> Agent<'a> {
    /// Begins so many seconds after the first.
    pub(super) fn begins(dir: &'a Path, number: u64, seconds: i64, version: &str) -> Self {
        let start = Start {
            version: version.to_owned(),
            settings: settings(),
            allocated: Entries::new(),
            actuated: Entries::new(),
        };
        let flight = Flight::new(Redactor::new(&[7; 32]), number, &start, at(seconds));
        Self { dir, flight, pods: Pods::new(settings()), seconds, commands: Vec::new() }
    }

    /// Takes an input a second after the one before, and records what comes of it.
    pub(super) fn takes(&mut self, input: Input) {
        self.takes_other(input.clone(), input);
    }

    /// The same, of an agent that decides upon another input than it records.
    pub(super) fn takes_other(&mut self, recorded: Input, decided: Input) {
        self.seconds += 1;
        self.flight.input(now(self.seconds), &recorded);
        self.commands = self.pods.handle(now(self.seconds), decided);
        self.flight.commands(&self.commands);
        self.write();
    }

    /// Dies of the input.
    pub(super) fn dies_of(mut self, input: &Input) {
        self.flight.input(now(self.seconds + 1), input);
        self.write();
    }

    fn write(&mut self) {
        if let Some(Written { segment, bytes }) = self.flight.take(at(self.seconds)) {
            let path = self.dir.join(format!("{segment:010}.segment"));
            let mut whole = fs::read(&path).unwrap_or_default();
            whole.extend(bytes);
            fs::write(path, whole).expect("it is written");
        }
    }

    /// Nothing runs, and every source has told its pods.
    pub(super) fn gets_ready(&mut self) {
        self.takes(Input::Tick);
        self.lists_nothing();
        self.takes(Input::SourcesReady);
        self.lists_nothing();
    }

    fn lists_nothing(&mut self) {
        let stamp = self.commands.iter().find_map(|command| match command {
            Command::List { stamp } => Some(*stamp),
            _ => None,
        });
        self.takes(Input::Listed {
            stamp: stamp.expect("a list was asked for"),
            result: Ok(Vec::new()),
        });
    }

    /// The read that was asked for finds nothing of the pod.
    pub(super) fn reads_nothing(&mut self) {
        let stamp = self.commands.iter().find_map(|command| match command {
            Command::Read { stamp, .. } => Some(*stamp),
            _ => None,
        });
        let stamp = stamp.expect("a read was asked for");
        let result = Ok(ObservedPod::empty(uid(), "ns", "web"));
        self.takes(Input::Observed { uid: uid(), stamp, result });
    }

    /// The sync that began fails at once with this.
    pub(super) fn fails(&mut self, reason: &str, message: &str) {
        let ticket = self.commands.iter().find_map(|command| match command {
            Command::Run { ticket, .. } => Some(*ticket),
            _ => None,
        });
        let ticket = ticket.expect("a sync began");
        let outcome = Err(Failure::new(reason, message));
        self.takes(Input::Progress { uid: uid(), ticket, index: 0, outcome });
        self.takes(Input::SyncDone { uid: uid(), ticket });
    }
}
