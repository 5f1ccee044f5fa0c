//! The memory of a world: now and then a pod takes nearly all of it, until nothing of it runs.
//!
//! Rules: only pods that take too much are evicted, as far as an observation can show, one at a
//! time, and no spared pod; soon after, the node has enough again and reports it. Observations take
//! time, and some are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pintle_agent_core::eviction::observed::{Observation, PodUse, ResourceReading, Scope};
use pintle_agent_core::eviction::signal::Signal;
use pintle_agent_core::eviction::threshold::{Settings, Threshold, ThresholdLevel};
use pintle_agent_core::node::conditions::Pressure;
use pintle_agent_core::observed::RunState;
use pintle_agent_core::types::{Mono, PodUid};
use pintle_agent_core::worker::PodsInput;
use pintle_api_types::quantity::Amount;

use crate::faults::Fault;
use crate::world::{BUSY, Event, MS, S, World};

/// All memory, the eviction threshold, and the usage of a greedy pod, in bytes.
const CAPACITY: u64 = 1_000;
const LEAST: i64 = 100;
const TAKEN: u64 = 950;
/// How long pressure stays reported after its last observation.
const TRANSITION: Duration = Duration::from_secs(30);
/// How long a greedy pod may run: periodic observations, the ends of pods evicted before it, its
/// own end.
const SOON: Duration = Duration::from_secs(120);

/// See the module's header.
#[derive(Debug, Default)]
pub struct Shortage {
    /// Pods that take too much whenever they run.
    greedy: BTreeSet<PodUid>,
    /// The pods in the last observation with usage; true for those that took too much.
    weighed: BTreeMap<PodUid, bool>,
    /// The last victim of this run of the agent.
    victim: Option<PodUid>,
    /// The agent's report of the node's memory pressure.
    is_told: bool,
}

/// Hard, for all of the node's memory.
pub fn settings(faults: crate::faults::Faults) -> Settings {
    if !faults.has(Fault::Memory) {
        return Settings::default();
    }
    let memory = Threshold {
        signal: Signal::MemoryAvailable,
        level: ThresholdLevel::Amount(Amount::from_bytes(LEAST)),
        grace: Duration::ZERO,
        min_reclaim: None,
    };
    Settings { thresholds: vec![memory], transition: TRANSITION, ..Settings::default() }
}

impl World {
    pub fn plan_shortage(&mut self) {
        for _ in 0..self.rng.range(1, 6) {
            let when = self.rng.range(0, BUSY);
            self.at(when, Event::Greed);
        }
    }

    /// One of the running pods takes too much from now on; the kernel may report it.
    pub fn greed(&mut self) {
        let running: BTreeSet<_> = self.running().map(|(uid, _)| uid.clone()).collect();
        let running: Vec<_> = running.into_iter().collect();
        if running.is_empty() {
            return;
        }
        let uid = self.rng.pick(&running).clone();
        self.shortage.greedy.insert(uid);
        if self.rng.chance(70) {
            self.send(PodsInput::MemoryLow);
        }
    }

    /// An observation of the node, pods first; the memory left is read later, or never.
    pub fn measure(&mut self, ticket: u64, pods: &Scope) {
        if self.trouble(Fault::Calls, 10) {
            return;
        }
        let pods = (*pods != Scope::Nobody).then(|| self.uses());
        if let Some(uses) = &pods {
            let takes = |of: &PodUse| of.working_set == Some(TAKEN);
            let weighed = uses.iter().map(|(uid, of)| (uid.clone(), takes(of)));
            self.shortage.weighed = weighed.collect();
        }
        let delay = self.rng.range(MS, 2 * S);
        self.at(delay, Event::Looked { run: self.run, ticket, pods });
    }

    /// The observation ends with the memory left.
    pub fn looked(&mut self, ticket: u64, pods: Option<BTreeMap<PodUid, PodUse>>) {
        let at = self.clocks().wall;
        let reading = ResourceReading { available: self.memory_left(), capacity: CAPACITY, at };
        let readings = BTreeMap::from([(Signal::MemoryAvailable, reading)]);
        let observation = Observation { at, readings, pods, ..Observation::default() };
        self.send(PodsInput::Pressure { ticket, observation: Box::new(observation) });
    }

    /// Checks the eviction of a pod: it takes too much, and some pod does.
    pub fn told_to_go(&mut self, uid: &PodUid) {
        let (known, shortage) = (&self.check.known[uid], &self.shortage);
        assert!(!known.of_folder, "{uid} is evicted, and it is a static pod");
        assert!(self.memory_left() < CAPACITY, "{uid} is evicted without a shortage");
        // Every pod that took too much at ranking has ended, and now another one does.
        let runs = |of: &PodUid| self.running().any(|(running, _)| running == of);
        let is_overtaken = !shortage.weighed.iter().any(|(of, takes)| *takes && runs(of));
        let is_greedy = shortage.greedy.contains(uid);
        assert!(is_greedy || is_overtaken, "{uid} is evicted, and takes nothing");
        self.stats.evicted_late += u64::from(!is_greedy);
        if let Some(before) = shortage.victim.as_ref().filter(|before| *before != uid) {
            let runs = self.running().any(|(of, _)| of == before);
            assert!(!runs, "{uid} is evicted while {before} has still to end");
        }
        self.shortage.victim = Some(uid.clone());
        self.stats.evicted += 1;
    }

    pub fn pressure_is(&mut self, pressure: Pressure) {
        self.shortage.is_told = pressure.memory;
    }

    /// The agent is another one.
    pub fn shortage_boot(&mut self) {
        (self.shortage.victim, self.shortage.is_told) = (None, false);
    }

    /// No evictable pod takes too much for long, and the node's pressure is true.
    pub fn enough_is_left(&self) {
        let greedy = self.running().filter(|(uid, _)| self.shortage.greedy.contains(*uid));
        let (mut spared, mut fresh) = (false, false);
        for (uid, since) in greedy {
            let (is_static, age) = (self.check.known[uid].of_folder, self.now.since(since));
            assert!(is_static || age < SOON, "{uid} takes too much for {age:?} and goes on");
            spared |= is_static && age > SOON;
            fresh |= age <= SOON;
        }
        let ended = |uid: &PodUid, at: Mono| {
            self.shortage.greedy.contains(uid) && self.now.since(at) < SOON
        };
        fresh |= self.runtime.containers.values().any(|c| ended(&c.uid, c.finished_at));
        let is_told = self.shortage.is_told;
        assert!(fresh || is_told == spared, "pressure is reported as {is_told}, not {spared}");
    }

    /// Pods that run, with the start of each of their containers.
    fn running(&self) -> impl Iterator<Item = (&PodUid, Mono)> {
        let containers = self.runtime.containers.values();
        let running = containers.filter(|c| c.state == RunState::Running);
        running.map(|c| (&c.uid, c.started_at))
    }

    fn uses(&self) -> BTreeMap<PodUid, PodUse> {
        let mut uses = BTreeMap::new();
        for uid in self.check.known.keys() {
            let use_of = |bytes| PodUse { working_set: Some(bytes), ..PodUse::default() };
            uses.insert(uid.clone(), use_of(0));
        }
        for (uid, _) in self.running().filter(|(uid, _)| self.shortage.greedy.contains(*uid)) {
            if let Some(of) = uses.get_mut(uid) {
                of.working_set = Some(TAKEN);
            }
        }
        uses
    }

    fn memory_left(&self) -> u64 {
        let takes = self.running().any(|(uid, _)| self.shortage.greedy.contains(uid));
        CAPACITY - if takes { TAKEN } else { 0 }
    }
}
