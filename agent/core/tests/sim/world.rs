//! One world: a queue of events in simulated time, chance from one seed.
//!
//! The world itself is on the monotonic clock; the wall clock is a number beside it that a user may
//! set. Events are decided by the seed and the set of faults alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use pintle_agent_core::eviction::observed::PodUse;
use pintle_agent_core::ledger as checkpoint;
use pintle_agent_core::observed::{ObservedPod, RunState, TaskExit};
use pintle_agent_core::sync::backoff::Curve;
use pintle_agent_core::types::{ContainerId, Mono, NodeFacts, Now, PodUid, UnixNanos};
use pintle_agent_core::worker::reads::Reads;
use pintle_agent_core::worker::{
    Command, Hint, ListedPod, Pods, PodsInput, ProbeKind, ReadFailure, Settings,
};

use crate::agent::SyncRun;
use crate::apiserver::{ApiServer, Wire};
use crate::check::Checker;
use crate::faults::{Fault, Faults};
use crate::flight::Recording;
use crate::machine::{Machine, MachineNews};
use crate::node::{Node, NodeNews};
use crate::pods::{Behaviour, Manifest};
use crate::rng::Rng;
use crate::runtime::Runtime;
use crate::shortage::{self, Shortage};

pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000 * MS;
/// Time during which manifests change and faults happen.
pub const BUSY: u64 = 240 * S;
/// Time that the node has afterwards.
const QUIET: u64 = 900 * S;
/// How much longer it lasts while a write is pending.
const SETTLE: u64 = 20 * S;
/// The wall clock when a world begins.
pub const START: UnixNanos = UnixNanos(1_800_000_000_000_000_000);
/// Steps of a world; more means a busy loop.
const STEPS_MAX: u64 = 400_000;

/// Counts of events.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub worlds: u64,
    pub steps: u64,
    pub started: u64,
    pub exited: u64,
    pub crashes: u64,
    pub crashes_in_sync: u64,
    pub failed_calls: u64,
    pub completed: u64,
    /// Machines that went down, that stayed up, and agents that died in between.
    pub shutdowns: u64,
    pub given_up: u64,
    pub crashed_in_shutdown: u64,
    /// Pods that were evicted for want of memory.
    pub evicted: u64,
    /// Those of them that took nothing, because the look was overtaken.
    pub evicted_late: u64,
}

impl Stats {
    pub fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.steps += other.steps;
        self.started += other.started;
        self.exited += other.exited;
        self.crashes += other.crashes;
        self.crashes_in_sync += other.crashes_in_sync;
        self.failed_calls += other.failed_calls;
        self.completed += other.completed;
        self.shutdowns += other.shutdowns;
        self.given_up += other.given_up;
        self.crashed_in_shutdown += other.crashed_in_shutdown;
        self.evicted += other.evicted;
        self.evicted_late += other.evicted_late;
    }
}

/// An event at a time.
#[derive(Debug)]
pub enum Event {
    /// To this run of the agent, if it still lives.
    ToAgent(u64, PodsInput),
    /// The source of manifests reports this one as it starts.
    Source { run: u64, uid: PodUid },
    /// A read is due.
    TakeRead { run: u64, uid: PodUid, pod: String, stamp: u64 },
    /// A read ends; its answer arrives later.
    ReadEnds {
        run: u64,
        pod: String,
        stamp: u64,
        uid: PodUid,
        result: Result<ObservedPod, ReadFailure>,
    },
    /// A list is taken now.
    TakeList { run: u64, stamp: u64 },
    /// A sync continues; it contains its own run of the agent.
    SyncRun { run: u64, ticket: u64 },
    /// A container's process ends by itself.
    Exit { id: String, code: i32 },
    /// A stop's grace period is over.
    Kill { id: String },
    /// A manifest changes.
    Edit,
    /// The agent starts.
    Boot,
    /// A user sets the wall clock.
    SetClock { by_ns: i64 },
    /// Hints are lost until the stream is opened again.
    Deaf { on: bool },
    /// Files that a pod refers to change.
    Content,
    /// A user requests that a pod's waits end.
    Retry,
    /// The prober runs on a container.
    Probe { run: u64, uid: PodUid, id: String },
    /// The agent's news of the node.
    Node(NodeNews),
    /// The driver's sweep for unknown volumes and cgroups.
    Sweep,
    /// Every container of a sandbox dies with it.
    SandboxDies,
    /// Between the agent and the API server.
    Wire(Wire),
    /// The machine's notice.
    Machine(MachineNews),
    /// A pod begins to take too much memory.
    Greed,
    /// An observation of the node ends, with the usage of pods at its start.
    Looked { run: u64, ticket: u64, pods: Option<BTreeMap<PodUid, PodUse>> },
}

pub struct World {
    pub now: Mono,
    /// How far the wall clock is from where it began.
    skew_ns: i64,
    pub rng: Rng,
    pub faults: Faults,
    pub runtime: Runtime,
    pub check: Checker,
    pub stats: Stats,
    queue: BinaryHeap<Reverse<(Mono, u64, usize)>>,
    events: Vec<Option<Event>>,
    order: u64,
    pub manifests: BTreeMap<String, Manifest>,
    versions: u64,
    pub run: u64,
    pub agent: Option<Pods>,
    pub syncs: BTreeMap<u64, SyncRun>,
    /// Failures so far of a container that fails first.
    pub failures: BTreeMap<(PodUid, String), u32>,
    /// When a pull last failed, and how long it is not tried again.
    pub pulls: BTreeMap<(PodUid, String), (Mono, Duration)>,
    /// Containers that are probed, and the last result of each.
    pub probing: Probing,
    pub node: Node,
    /// Steps until the agent dies.
    crash_in: Option<u64>,
    /// Lists that are still to fail.
    list_failures: u64,
    /// No hint comes through.
    deaf: bool,
    /// Which reads are made.
    pub reads: Reads,
    /// Both checkpoints as they are on the disk.
    disk: Option<(String, String)>,
    /// Prints events, for a study of one seed.
    trace: bool,
    /// Volumes and cgroups of pods that are ready.
    pub prepared: BTreeSet<PodUid>,
    /// The API server of a world that has one.
    pub api: Option<ApiServer>,
    recording: Option<Recording>,
    pub machine: Machine,
    pub shortage: Shortage,
}

/// By pod: a container's id, and the last results of its probes.
pub type Probing = BTreeMap<PodUid, BTreeMap<String, BTreeMap<ProbeKind, bool>>>;

impl World {
    pub fn new(seed: u64, faults: Faults) -> Self {
        let mut world = Self {
            now: Mono::default(),
            skew_ns: 0,
            rng: Rng::new(seed),
            faults,
            runtime: Runtime::default(),
            check: Checker::default(),
            stats: Stats { worlds: 1, ..Stats::default() },
            queue: BinaryHeap::new(),
            events: Vec::new(),
            order: 0,
            manifests: BTreeMap::new(),
            versions: 0,
            run: 0,
            agent: None,
            syncs: BTreeMap::new(),
            failures: BTreeMap::new(),
            pulls: BTreeMap::new(),
            probing: BTreeMap::new(),
            node: Node::default(),
            crash_in: None,
            list_failures: 0,
            deaf: false,
            reads: Reads::default(),
            disk: None,
            trace: std::env::var_os("PINTLE_TRACE").is_some(),
            prepared: BTreeSet::new(),
            api: faults.has(Fault::Api).then(ApiServer::new),
            recording: None,
            machine: Machine::default(),
            shortage: Shortage::default(),
        };
        world.plan_events();
        world
    }

    /// The agent dies after this many steps.
    pub fn dying_after(mut self, steps: u64) -> Self {
        self.crash_in = Some(steps);
        self
    }

    /// All that its agents decide is recorded, and decided again at its end.
    pub fn recorded(mut self) -> Self {
        self.recording = Some(Recording::default());
        self
    }

    /// Plans the certain events.
    fn plan_events(&mut self) {
        let faults = self.faults;
        self.plan_node();
        for _ in 0..self.rng.range(1, 4) {
            self.edit();
        }
        self.at(0, Event::Boot);
        self.at(30 * S, Event::Sweep);
        for _ in 0..self.rng.range(2, 10) {
            let when = self.rng.range(0, BUSY);
            self.at(when, Event::Edit);
        }
        if faults.has(Fault::Api) {
            for _ in 0..self.rng.range(0, 3) {
                let (when, long) = (self.rng.range(0, BUSY), self.rng.range(S, 60 * S));
                self.at(when, Event::Wire(Wire::Outage { on: true }));
                self.at(when + long, Event::Wire(Wire::Outage { on: false }));
            }
        }
        if faults.has(Fault::Api) && faults.has(Fault::Restored) {
            let (when, long) = (self.rng.range(0, BUSY / 2), self.rng.range(S, 90 * S));
            self.at(when, Event::Wire(Wire::Saved));
            self.at(when + long, Event::Wire(Wire::Restored));
        }
        if faults.has(Fault::Shutdown) {
            self.plan_shutdown();
        }
        if faults.has(Fault::Memory) {
            self.plan_shortage();
        }
        if faults.has(Fault::Crashes) {
            self.crash_in = Some(self.rng.range(1, 400));
        }
        if faults.has(Fault::Sandboxes) {
            for _ in 0..self.rng.range(1, 4) {
                let when = self.rng.range(0, BUSY);
                self.at(when, Event::SandboxDies);
            }
        }
        if faults.has(Fault::Clock) {
            for _ in 0..self.rng.range(1, 5) {
                let when = self.rng.range(0, BUSY);
                let by = *self.rng.pick(&[-8 * 3600, -3600, -60, -1, 1, 60, 3600, 8 * 3600_i64]);
                self.at(when, Event::SetClock { by_ns: by * S as i64 });
            }
        }
        if faults.has(Fault::Streams) {
            for _ in 0..self.rng.range(1, 4) {
                let (when, long) = (self.rng.range(0, BUSY), self.rng.range(MS, 20 * S));
                self.at(when, Event::Deaf { on: true });
                self.at(when + long, Event::Deaf { on: false });
            }
        }
        if faults.has(Fault::Volumes) {
            for _ in 0..self.rng.range(1, 6) {
                let when = self.rng.range(0, BUSY);
                self.at(when, Event::Content);
            }
        }
        if faults.has(Fault::Retries) {
            for _ in 0..self.rng.range(1, 8) {
                let when = self.rng.range(0, BUSY);
                self.at(when, Event::Retry);
            }
        }
    }

    /// Both clocks of the node.
    pub fn clocks(&self) -> Now {
        let wall = UnixNanos(START.0 + self.skew_ns + self.now.0);
        Now { wall, mono: self.now }
    }

    /// A fault of a kind that the world has; faults happen only while it is busy.
    pub fn trouble(&mut self, fault: Fault, percent: u64) -> bool {
        self.faults.has(fault) && self.busy() && self.rng.chance(percent)
    }

    fn busy(&self) -> bool {
        self.now < Mono::default().plus(Duration::from_nanos(BUSY))
    }

    pub fn at(&mut self, after_ns: u64, event: Event) {
        let when = self.now.plus(Duration::from_nanos(after_ns));
        self.order += 1;
        self.events.push(Some(event));
        self.queue.push(Reverse((when, self.order, self.events.len() - 1)));
    }

    pub fn run(mut self) -> Stats {
        let end = self.now.plus(Duration::from_nanos(BUSY + QUIET));
        let last = end.plus(Duration::from_nanos(SETTLE));
        loop {
            let wake = self.agent.as_ref().and_then(Pods::next_wake);
            let next = self.queue.peek().map(|Reverse((when, _, _))| *when);
            let tick_first = match (wake, next) {
                (Some(wake), Some(next)) => wake <= next,
                (wake, _) => wake.is_some(),
            };
            let when = if tick_first { wake } else { next };
            // The last change of a container in a crash loop is still to be written.
            let goes_on = |when: &Mono| *when < end || *when < last && !self.api_settled();
            let Some(when) = when.filter(goes_on).filter(|_| !self.machine.is_down) else { break };
            self.now = self.now.max(when);
            self.stats.steps += 1;
            self.count_down();
            assert!(self.stats.steps < STEPS_MAX, "the world spins at {:?}", self.now);
            if tick_first {
                self.send(PodsInput::Tick);
                continue;
            }
            let Reverse((_, _, index)) = self.queue.pop().expect("peeked");
            let event = self.events[index].take().expect("an event happens once");
            self.happen(event);
        }
        if let Some(recording) = self.recording.take() {
            recording.check();
        }
        if self.machine.is_down {
            return self.stats;
        }
        self.check.converged(&self.manifests, &self.runtime, self.now, self.faults);
        self.api_converged();
        self.told_the_truth();
        self.enough_is_left();
        self.stats.completed += self.api.as_ref().map_or(0, |api| api.completed);
        for uid in &self.prepared {
            let wanted = self.manifests.values().any(|m| m.uid == *uid);
            assert!(wanted, "volumes of {uid} are left over");
        }
        self.stats
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToAgent(run, input) if run == self.run => self.send(input),
            Event::ToAgent(..) => {}
            Event::Source { run, uid } if run == self.run => self.tell_wanted(&uid),
            Event::Source { .. } => {}
            Event::TakeRead { run, uid, pod, stamp } => {
                if run == self.run && self.reads.due(&uid, stamp) {
                    self.take_read(uid, pod, stamp);
                }
            }
            Event::ReadEnds { run, uid, pod, stamp, result } if run == self.run => {
                self.read_ends(uid, pod, stamp, result);
            }
            Event::ReadEnds { .. } => {}
            Event::TakeList { run, stamp } => self.take_list(run, stamp),
            Event::SyncRun { run, ticket } => self.step_sync(run, ticket),
            Event::Exit { id, code } => self.exit(&id, code, false),
            Event::Kill { id } => self.exit(&id, 137, true),
            Event::Edit => self.edit(),
            Event::Boot => self.boot(),
            Event::SandboxDies => self.sandbox_dies(),
            Event::Sweep => self.sweep(),
            Event::Wire(wire) => self.wire(wire),
            Event::Machine(news) => self.machine_says(news),
            Event::Greed => self.greed(),
            Event::Looked { run, ticket, pods } if run == self.run => self.looked(ticket, pods),
            Event::Looked { .. } => {}
            Event::SetClock { by_ns } => self.skew_ns += by_ns,
            Event::Deaf { on } => {
                self.deaf = on;
                if !on {
                    self.send(PodsInput::Lost);
                }
            }
            Event::Content => self.content(),
            Event::Retry => self.retry(),
            Event::Probe { run, uid, id } => self.look_at(run, &uid, &id),
            Event::Node(news) => self.learn(news),
        }
    }

    /// Gives the agent an input and executes its commands.
    pub fn send(&mut self, input: PodsInput) {
        let hint = matches!(input, PodsInput::Hint { .. } | PodsInput::ContainerHint { .. });
        if self.deaf && hint {
            return;
        }
        let Some(mut agent) = self.agent.take() else { return };
        if let PodsInput::Removed { uid } = &input {
            self.check.removed(uid);
        }
        if let PodsInput::Desired { uid, .. } = &input {
            self.check.wanted(uid);
        }
        let shown = self.trace.then(|| format!("{input:?}"));
        let now = self.clocks();
        if let Some(recording) = &mut self.recording {
            recording.input(now, &input);
        }
        let commands = agent.handle(now, input);
        if let Some(recording) = &mut self.recording {
            recording.commands(now, &commands, &agent);
        }
        // A write that fails leaves the old content.
        if agent.is_unsaved() {
            let (allocated, actuated) = agent.checkpoints();
            let records = (allocated.text(), actuated.text());
            if !self.trouble(Fault::Disk, 40) {
                self.disk = Some(records);
            }
        }
        self.agent = Some(agent);
        if let Some(input) = shown {
            self.print(&input, &commands);
        }
        for command in commands {
            self.execute(command);
        }
    }

    fn print(&self, input: &str, commands: &[Command]) {
        let cut = |text: &str| text.chars().take(400).collect::<String>();
        let ms = self.now.0 as f64 / MS as f64;
        println!("{ms:.3} > {}", cut(input));
        for command in commands {
            match command {
                Command::Run { uid, ticket, actions, .. } => {
                    println!("    run {uid} {ticket}: {}", cut(&format!("{actions:?}")));
                }
                Command::Publish { uid, status, .. } => println!("    {uid} is {:?}", status.phase),
                Command::Event { .. } | Command::Probe { .. } => {}
                other => println!("    {}", cut(&format!("{other:?}"))),
            }
        }
    }

    /// The read of the runtime happens now.
    fn take_read(&mut self, uid: PodUid, pod: String, stamp: u64) {
        let result: Result<ObservedPod, ReadFailure> = match self.trouble(Fault::Calls, 5) {
            true => Err(ReadFailure("unavailable".to_owned())),
            false => Ok(self.runtime.read(&uid, &pod, self.now)),
        };
        let (run, delay) = (self.run, self.rng.range(MS / 10, 5 * MS));
        self.at(delay, Event::ReadEnds { run, uid, pod, stamp, result });
    }

    /// The answer waits in a queue while the next read begins.
    fn read_ends(
        &mut self,
        uid: PodUid,
        pod: String,
        stamp: u64,
        result: Result<ObservedPod, ReadFailure>,
    ) {
        if let Some(next) = self.reads.ended(&uid, stamp) {
            self.take_read(uid.clone(), pod, next);
        }
        let delay = if self.rng.chance(20) { self.rng.range(MS / 10, 20 * MS) } else { 0 };
        self.at(delay, Event::ToAgent(self.run, PodsInput::Observed { uid, stamp, result }));
    }

    fn take_list(&mut self, run: u64, stamp: u64) {
        let result: Result<Vec<ListedPod>, ReadFailure> = match self.list_fails() {
            true => Err(ReadFailure("unavailable".to_owned())),
            false => Ok(self.runtime.list(self.now)),
        };
        let delay = self.rng.range(MS / 10, 20 * MS);
        self.at(delay, Event::ToAgent(run, PodsInput::Listed { stamp, result }));
    }

    fn list_fails(&mut self) -> bool {
        if self.list_failures > 0 {
            self.list_failures -= 1;
            return true;
        }
        self.trouble(Fault::Calls, 10)
    }

    /// The agent dies after some step, wherever it is.
    fn count_down(&mut self) {
        let Some(steps) = self.crash_in else { return };
        if steps > 1 {
            self.crash_in = Some(steps - 1);
            return;
        }
        self.crash_in = None;
        if self.busy() {
            self.crash();
        }
        if self.busy() && self.faults.has(Fault::Crashes) {
            self.crash_in = Some(self.rng.range(1, 400));
        }
    }

    /// Some pod that is wanted.
    fn any_wanted(&mut self) -> Option<PodUid> {
        let uids: Vec<_> = self.manifests.values().map(|m| m.uid.clone()).collect();
        (!uids.is_empty()).then(|| self.rng.pick(&uids).clone())
    }

    /// Files that some pod refers to change.
    fn content(&mut self) {
        let Some(uid) = self.any_wanted() else { return };
        let files = self.rng.chance(70);
        self.send(PodsInput::Content { uid, files });
    }

    /// A user has fixed the cause of some pod's wait, or believes so.
    fn retry(&mut self) {
        if let Some(uid) = self.any_wanted() {
            self.send(PodsInput::Retry { uid });
        }
    }

    /// A container has started: decides when it ends.
    pub fn started(&mut self, id: &str) {
        self.stats.started += 1;
        self.check.started(id, &self.runtime);
        let container = self.runtime.containers[id].clone();
        let me = self.check.known[&container.uid].get(&container.name).clone();
        self.at(MS, Event::Probe { run: self.run, uid: container.uid.clone(), id: id.to_owned() });
        let key = (container.uid.clone(), container.name.clone());
        let end = match me.behaviour {
            Behaviour::Forever => None,
            Behaviour::Ends { after_ms, code } => Some((after_ms, code)),
            Behaviour::FailsFirst { times } => {
                let failures = self.failures.entry(key).or_default();
                if *failures < times {
                    *failures += 1;
                    Some((20, 1))
                } else {
                    me.init.then_some((50, 0))
                }
            }
        };
        if let Some((after_ms, code)) = end {
            let id = id.to_owned();
            self.at(after_ms * MS, Event::Exit { id, code });
        }
    }

    pub fn exit(&mut self, id: &str, code: i32, killed: bool) {
        let lag = self.rng.range(1, 45) * MS;
        let shown = self.now.plus(Duration::from_nanos(lag));
        if !self.runtime.exit(id, code, self.clocks(), shown) {
            return;
        }
        self.stats.exited += 1;
        self.check.exited(id, &self.runtime, killed);
        self.hints(id, code, lag);
    }

    /// The kernel reports an exit at once, the runtime a little later; both may be lost or
    /// repeated.
    fn hints(&mut self, id: &str, code: i32, lag: u64) {
        let uid = self.runtime.containers[id].uid.clone();
        let at = self.clocks().wall;
        let lost = self.trouble(Fault::Hints, 20);
        let repeats = if lost { 0 } else { self.rng.range(1, 3) };
        for _ in 0..repeats {
            let named = !self.rng.chance(10);
            let container = named.then(|| ContainerId::from(id));
            let code = (!self.rng.chance(10)).then_some(code);
            let hint = Hint::Exited { container, code, at };
            let delay = self.rng.range(MS / 50, 2 * MS);
            let input = PodsInput::Hint { uid: uid.clone(), hint };
            self.at(delay, Event::ToAgent(self.run, input));
        }
        // Its event comes before its lists know of it, or after.
        if self.rng.chance(70) {
            let words = self.rng.chance(70).then(String::new);
            let end = TaskExit { code, at, words, no_oom_kill: self.rng.chance(50) };
            let hint = Hint::TaskExit { container: ContainerId::from(id), end };
            let delay = self.rng.range(MS / 10, 20 * MS);
            let input = PodsInput::Hint { uid: uid.clone(), hint };
            self.at(delay, Event::ToAgent(self.run, input));
        }
        if !self.trouble(Fault::Hints, 30) {
            let input = PodsInput::Hint { uid, hint: Hint::Changed };
            let delay = lag + self.rng.range(0, 5 * MS);
            self.at(delay, Event::ToAgent(self.run, input));
        }
    }

    /// One manifest appears, changes or is removed.
    fn edit(&mut self) {
        let name = format!("p{}", self.rng.range(0, 4));
        if self.api.is_some() {
            return self.edit_object(name);
        }
        let before = self.manifests.remove(&name);
        let goes = before.is_some() && self.rng.chance(40);
        if !goes {
            self.versions += 1;
            let manifest = Manifest::random(&name, self.versions, self.faults, &mut self.rng);
            self.check.know(&manifest);
            self.manifests.insert(name.clone(), manifest);
        } else if self.rng.chance(30) {
            // Gone and back in a moment: the same content, hence the same uid.
            let again = before.clone().expect("it was there");
            self.tell_removed(before.as_ref());
            self.manifests.insert(name.clone(), again.clone());
            self.send(PodsInput::Desired { uid: again.uid.clone(), pod: again.pod.clone() });
            return;
        }
        self.tell_removed(before.as_ref());
        if let Some(new) = self.manifests.get(&name).cloned() {
            self.send(PodsInput::Desired { uid: new.uid.clone(), pod: new.pod.clone() });
        }
    }

    /// A pod is created, changed, or deleted in one of the ways that there are.
    fn edit_object(&mut self, name: String) {
        if self.api.as_ref().is_some_and(|api| api.has(&name)) {
            if self.faults.has(Fault::Edits) && self.rng.chance(60) {
                return self.change_object(&name);
            }
            let own = self.manifests.remove(&name).map(|manifest| manifest.grace);
            let grace = match self.rng.range(0, 4) {
                0 => 0,
                1 => 1,
                _ => own.unwrap_or(1),
            };
            self.api_delete(&name, grace);
            return;
        }
        self.versions += 1;
        let mut manifest = Manifest::random(&name, self.versions, self.faults, &mut self.rng);
        // As a scheduler does it: nothing is sent where it has no place.
        if !self.has_room(manifest.cpu_millis()) {
            return;
        }
        if manifest.selective && !self.node.labelled {
            manifest.selective = false;
            manifest.write();
        }
        self.check.know(&manifest);
        self.api_create(&manifest, &name);
        self.manifests.insert(name, manifest);
    }

    /// The spec of a pod that is not being deleted changes.
    fn change_object(&mut self, name: &str) {
        let Some(mut manifest) = self.manifests.remove(name) else { return };
        manifest.change(&mut self.rng);
        self.check.know(&manifest);
        self.api_update(&manifest, name);
        self.manifests.insert(name.to_owned(), manifest);
    }

    fn tell_removed(&mut self, before: Option<&Manifest>) {
        if let Some(old) = before {
            self.send(PodsInput::Removed { uid: old.uid.clone() });
        }
    }

    fn crash(&mut self) {
        if self.agent.take().is_none() {
            return;
        }
        self.stats.crashes += 1;
        self.stats.crashed_in_shutdown += u64::from(self.machine.is_preparing);
        self.stats.crashes_in_sync += u64::from(!self.syncs.is_empty());
        self.run += 1;
        self.check.crashed(self.api.as_ref(), self.faults.has(Fault::Clock));
        if !self.machine.is_preparing {
            self.check.forgets_shutdown(self.api.as_ref());
        }
        self.forget_undone();
        self.orphan_calls();
        let pause = self.rng.range(MS, 5_000 * MS);
        self.at(pause, Event::Boot);
    }

    fn boot(&mut self) {
        self.run += 1;
        let node = NodeFacts { name: "node".to_owned(), ..NodeFacts::default() };
        // Without a source of hints everything is listed every second; that is slow to simulate.
        let relist = *self.rng.pick(&[1_u64, 60, 60, 60, 60, 60, 60, 60]);
        let settings = Settings {
            sync_period: Duration::from_secs(60),
            relist_period: Duration::from_secs(relist),
            crash_loop: Curve::default(),
            node,
            admission: Arc::new(self.node.unseen()),
            has_node_object: self.api.is_some(),
            eviction: shortage::settings(self.faults),
            garbage: Default::default(),
        };
        let read = |text: &String| checkpoint::decode(text.as_bytes()).expect("a checkpoint");
        let on_disk = self.disk.as_ref();
        let (allocated, actuated) = on_disk.map(|(a, b)| (read(a), read(b))).unwrap_or_default();
        let at = self.clocks().wall;
        if let Some(recording) = &mut self.recording {
            recording.boots(&settings, (&allocated, &actuated), at);
        }
        let mut agent = Pods::new(settings);
        agent.restore(allocated, actuated);
        self.agent = Some(agent);
        (self.pulls, self.probing, self.reads) = Default::default();
        self.machine_boot();
        self.shortage_boot();
        self.list_failures = match self.faults.has(Fault::Lists) && self.busy() {
            true => self.rng.range(0, 5),
            false => 0,
        };
        self.send(PodsInput::Tick);
        if self.api.is_some() {
            self.node_boot();
            return self.api_boot();
        }
        // Sources deliver in any order relative to the first list.
        let mut last = 0;
        let uids: Vec<_> = self.manifests.values().map(|m| m.uid.clone()).collect();
        for uid in uids {
            let delay = self.rng.range(0, 50 * MS);
            last = last.max(delay);
            self.at(delay, Event::Source { run: self.run, uid });
        }
        self.at(last + MS, Event::ToAgent(self.run, PodsInput::SourcesReady));
    }

    /// A source reports its current manifests: never one that it has reported as removed.
    fn tell_wanted(&mut self, uid: &PodUid) {
        let wanted = self.manifests.values().find(|manifest| manifest.uid == *uid);
        if let Some(pod) = wanted.map(|manifest| manifest.pod.clone()) {
            self.send(PodsInput::Desired { uid: uid.clone(), pod });
        }
    }

    /// Takes away volumes and cgroups of pods that the agent does not know.
    fn sweep(&mut self) {
        self.at(30 * S, Event::Sweep);
        let Some(agent) = self.agent.as_ref().filter(|agent| agent.knows_all()) else { return };
        let known: BTreeSet<_> = agent.workers().map(|worker| worker.uid().clone()).collect();
        let swept: Vec<_> = self.prepared.difference(&known).cloned().collect();
        for uid in swept {
            let mut alive = self.runtime.containers.values().filter(|c| c.uid == uid);
            let running = alive.any(|c| c.state == RunState::Running);
            assert!(!running, "volumes of {uid} are swept away while it runs");
            self.prepared.remove(&uid);
        }
    }

    fn sandbox_dies(&mut self) {
        let ids: Vec<_> = self.runtime.sandboxes.keys().cloned().collect();
        if ids.is_empty() {
            return;
        }
        let id = self.rng.pick(&ids).clone();
        self.stop_sandbox(&id);
    }

    /// The sandbox is no longer ready, and its containers are dead.
    pub fn stop_sandbox(&mut self, id: &str) {
        let Some(sandbox) = self.runtime.sandboxes.get_mut(id) else { return };
        sandbox.ready = false;
        let uid = sandbox.uid.clone();
        let inside: Vec<_> = self
            .runtime
            .containers
            .iter()
            .filter(|(_, c)| c.sandbox == id && c.state == RunState::Running)
            .map(|(id, _)| id.clone())
            .collect();
        for container in inside {
            self.exit(&container, 137, false);
        }
        let input = PodsInput::Hint { uid, hint: Hint::Changed };
        self.at(MS, Event::ToAgent(self.run, input));
    }
}
