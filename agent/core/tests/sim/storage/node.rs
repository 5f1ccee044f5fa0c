//! A node of a simulated world: the agent's state machine, its disk, its object.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pintle_agent_core::storage::csi::{self, AccessMode, ClaimSize, Lifecycle, Secrets};
use pintle_agent_core::storage::{
    Answer, Call, Command, Failure, FoundVolume, InUse, Input, Known, NodeVolumes, Outcome,
    Problem, Storage, Waiting, Wanted,
};
use pintle_agent_core::types::{Mono, PodUid};
use pintle_api_types::rng::Rng;

pub const NOT_ASKED: Problem = Problem::NotAsked;
pub const FINAL: Problem = Problem::Final;
pub const UNCERTAIN: Problem = Problem::Uncertain;

pub fn failure(problem: Problem) -> Failure {
    Failure { problem, is_of_attachment: false, text: format!("{problem:?}") }
}

/// A volume of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volume {
    /// Attached first, shared by the pods of a node.
    Disk,
    /// Staged without being attached, shared by all.
    Share,
    /// Attached first, of one pod.
    Single,
    /// Made for its pod.
    Inline,
}

impl Volume {
    /// All of them, in any order.
    pub fn all(rng: &mut Rng) -> Vec<Self> {
        let mut all = vec![Self::Disk, Self::Share, Self::Single, Self::Inline];
        let mut drawn = Vec::new();
        while !all.is_empty() {
            let at = rng.range(0, all.len() as u64) as usize;
            drawn.push(all.remove(at));
        }
        drawn
    }

    pub fn is_attached_first(self) -> bool {
        matches!(self, Self::Disk | Self::Single)
    }

    pub fn is_for_one_pod(self) -> bool {
        self == Self::Single
    }

    fn handle(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Share => "share",
            Self::Single => "single",
            Self::Inline => "inline",
        }
    }

    /// As a Node names it.
    pub fn name(self) -> String {
        format!("kubernetes.io/csi/d^{}", self.handle())
    }

    pub fn name_for(self, pod: &PodUid) -> String {
        name(&Known::of(&self.wanted(pod)), pod)
    }

    fn wanted(self, pod: &PodUid) -> Wanted {
        let lifecycle = match self {
            Self::Inline => Lifecycle::Ephemeral,
            _ => Lifecycle::Persistent,
        };
        let mode = match self {
            Self::Single => AccessMode::ReadWriteOncePod,
            Self::Share => AccessMode::ReadWriteMany,
            Self::Disk | Self::Inline => AccessMode::ReadWriteOnce,
        };
        let volume = csi::Volume {
            driver: "d".to_owned(),
            handle: self.handle().to_owned(),
            name: self.handle().to_owned(),
            lifecycle,
            is_block: false,
            is_read_only: false,
            fs_type: String::new(),
            attributes: BTreeMap::new(),
            access_modes: vec![mode],
            mount_options: Vec::new(),
            secrets: Secrets::default(),
            size: (self == Self::Share).then(size),
            disk: None,
            is_migrated: false,
            labels: Vec::new(),
        };
        Wanted {
            pod: pod.clone(),
            volume,
            is_attached_first: self.is_attached_first(),
            is_republished: self == Self::Inline,
            fs_group: None,
            selinux_label: None,
        }
    }
}

/// A claim that is smaller than its volume.
fn size() -> ClaimSize {
    ClaimSize {
        namespace: "ns".to_owned(),
        name: "claim".to_owned(),
        volume: "2".to_owned(),
        claimed_bytes: 1,
    }
}

/// The name of a volume on its node.
pub fn name(known: &Known, pod: &PodUid) -> String {
    match known.lifecycle {
        Lifecycle::Persistent => format!("kubernetes.io/csi/{}^{}", known.driver, known.handle),
        Lifecycle::Ephemeral => format!("kubernetes.io/csi/{pod}-{}", known.name),
    }
}

pub fn is_of_pod(known: &Known) -> bool {
    known.lifecycle == Lifecycle::Ephemeral
}

pub fn is_for_one_pod(wanted: &Wanted) -> bool {
    wanted.volume.access_modes == [AccessMode::ReadWriteOncePod]
}

/// The records next to volumes, which outlive the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk(BTreeMap<(String, Option<PodUid>), Known>);

impl Disk {
    /// The disk after a call, by the rules of its caller.
    pub fn called(&mut self, call: &Call, outcome: &Outcome) {
        let problem = outcome.as_ref().err().map(|failure| failure.problem);
        if problem == Some(Problem::NotAsked) {
            return;
        }
        match (call, problem) {
            (Call::Stage { wanted, again: false }, Some(Problem::Final)) => {
                self.remove(&Known::of(wanted), None);
            }
            (Call::Publish { wanted, again: false }, Some(Problem::Final)) => {
                self.remove(&Known::of(wanted), Some(&wanted.pod));
            }
            (_, None) => self.done(call),
            _ => self.begun(call),
        }
    }

    fn begun(&mut self, call: &Call) {
        match call {
            Call::Stage { wanted, .. } => self.put(&Known::of(wanted), None),
            Call::Publish { wanted, .. } => self.put(&Known::of(wanted), Some(&wanted.pod)),
            Call::Expand { .. } | Call::Unpublish { .. } | Call::Unstage(_) => {}
        }
    }

    pub fn done(&mut self, call: &Call) {
        self.begun(call);
        match call {
            Call::Unpublish { pod, known } => self.remove(known, Some(pod)),
            Call::Unstage(known) => self.remove(known, None),
            Call::Stage { .. } | Call::Publish { .. } | Call::Expand { .. } => {}
        }
    }

    fn put(&mut self, known: &Known, pod: Option<&PodUid>) {
        let none = PodUid::from("");
        let key = (name(known, pod.unwrap_or(&none)), pod.cloned());
        self.0.insert(key, known.clone());
    }

    fn remove(&mut self, known: &Known, pod: Option<&PodUid>) {
        let none = PodUid::from("");
        self.0.remove(&(name(known, pod.unwrap_or(&none)), pod.cloned()));
    }

    fn found(&self) -> Vec<FoundVolume> {
        let found = self
            .0
            .iter()
            .map(|((_, pod), known)| FoundVolume { known: known.clone(), pod: pod.clone() });
        found.collect()
    }
}

/// The Node object, with its earlier state.
#[derive(Clone, Debug, Default)]
pub struct Object {
    now: NodeVolumes,
    before: Vec<NodeVolumes>,
}

impl Object {
    pub fn change(&mut self, change: impl FnOnce(&mut NodeVolumes)) {
        self.before.push(self.now.clone());
        self.now.version += 1;
        change(&mut self.now);
    }

    pub fn in_use(&self) -> &BTreeSet<String> {
        &self.now.in_use
    }
}

/// A call on its way.
#[derive(Clone, Debug)]
pub struct OnItsWay {
    volume: csi::VolumeId,
    ticket: u64,
    pub call: Call,
    /// The driver has done it, whatever its answer.
    pub is_done: bool,
}

#[derive(Debug)]
pub struct Node {
    number: usize,
    storage: Storage,
    now: Mono,
    pub disk: Disk,
    pub object: Object,
    /// The intended content of the object.
    report: Option<InUse>,
    calls: Vec<OnItsWay>,
    pub answers: Vec<(OnItsWay, Outcome)>,
    /// Pods that are on their way out.
    released: BTreeSet<PodUid>,
}

impl Node {
    pub fn new(number: usize) -> Self {
        let mut node = Self {
            number,
            storage: Storage::default(),
            now: Mono(1_000_000_000),
            disk: Disk::default(),
            object: Object::default(),
            report: None,
            calls: Vec::new(),
            answers: Vec::new(),
            released: BTreeSet::new(),
        };
        node.begin();
        node.sources_ready(&BTreeSet::new());
        node
    }

    /// A new agent reads the disk.
    pub fn begin(&mut self) {
        let volumes = self.disk.found();
        self.give(Input::Found { volumes, is_whole: true });
    }

    /// The agent is gone; returns the calls that it had made.
    pub fn die(&mut self) -> Vec<Call> {
        self.storage = Storage::default();
        self.report = None;
        self.answers.clear();
        self.calls.drain(..).map(|call| call.call).collect()
    }

    /// Every wanted pod is known: all other pods that were found are released.
    pub fn sources_ready(&mut self, wanted: &BTreeSet<PodUid>) {
        self.give(Input::SourcesReady);
        let orphans: Vec<_> = self.storage.pods().cloned().collect();
        let orphans = orphans.into_iter().filter(|pod| !wanted.contains(pod));
        // Pods that were ending still are: their end is requested again.
        let ending: BTreeSet<_> = self.released.iter().cloned().chain(orphans).collect();
        ending.iter().for_each(|pod| self.release(pod));
    }

    pub fn want(&mut self, uid: &PodUid, volumes: &[Volume]) {
        let volumes = volumes.iter().map(|volume| volume.wanted(uid)).collect();
        self.give(Input::Wanted { pod: uid.clone(), volumes });
    }

    pub fn release(&mut self, uid: &PodUid) {
        self.released.insert(uid.clone());
        self.give(Input::Released { pod: uid.clone() });
    }

    /// The Node's status is written where it differs; sometimes the answer is lost.
    pub fn write_status(&mut self, rng: &mut Rng) {
        let Some(report) = self.report.clone() else { return };
        if self.object.now.in_use != report.names {
            self.object.change(|node| node.in_use = report.names);
        }
        if rng.chance(70) {
            let node = self.object.now.clone();
            self.give(Input::InUseWritten { number: report.number, node });
        }
    }

    /// The watch brings the object, or an earlier state of it; an agent's first list is the newest.
    pub fn read_object(&mut self, rng: &mut Rng) {
        let before = self.object.before.len();
        let back = rng.range(0, 4) as usize;
        let node = match back {
            0 => &self.object.now,
            _ if self.report.is_none() => &self.object.now,
            _ if before == 0 => &self.object.now,
            _ => &self.object.before[before.saturating_sub(back)],
        };
        self.give(Input::Node(node.clone()));
    }

    pub fn take_call(&mut self, rng: &mut Rng) -> Option<OnItsWay> {
        if self.calls.is_empty() {
            return None;
        }
        let at = rng.range(0, self.calls.len() as u64) as usize;
        let call = self.calls.remove(at);
        Some(call)
    }

    /// One of the answers arrives, sometimes twice.
    pub fn answer(&mut self, rng: &mut Rng) {
        if self.answers.is_empty() {
            return;
        }
        let at = rng.range(0, self.answers.len() as u64) as usize;
        let (call, outcome) = self.answers.remove(at);
        let done = Input::Done { volume: call.volume, ticket: call.ticket, outcome };
        if rng.chance(10) {
            self.give(done.clone());
        }
        self.give(done);
    }

    pub fn pass(&mut self, by: Duration) {
        self.now = self.now.plus(by);
        self.give(Input::Tick);
        let due = self.storage.next_due();
        assert!(due.is_none_or(|due| due > self.now), "node {} has work and rests", self.number);
    }

    pub fn waiting(&self, uid: &PodUid) -> Vec<Waiting> {
        self.storage.waiting(uid)
    }

    /// True when nothing is left of any pod.
    pub fn is_empty(&self) -> bool {
        let rests = self.calls.is_empty() && self.answers.is_empty();
        let told = self.object.in_use().is_empty();
        rests
            && told
            && self.released.is_empty()
            && self.disk == Disk::default()
            && self.storage.pods().next().is_none()
    }

    fn give(&mut self, input: Input) {
        for command in self.storage.handle(self.now, input) {
            match command {
                Command::Call { volume, ticket, call } => {
                    let is_two = self.calls.iter().any(|other| other.volume == volume);
                    assert!(!is_two, "two calls are under way for {volume}");
                    self.calls.push(OnItsWay { volume, ticket, call, is_done: false });
                }
                Command::ReportInUse(report) => self.report = Some(report),
                Command::Answer { pod, answer: Answer::Gone } => {
                    self.released.remove(&pod);
                }
                Command::Answer { .. } | Command::Failed { .. } => {}
            }
        }
    }
}
