//! The node: usage of pods, observations of it, results of reclaims, and deaths of the agent.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use pintle_agent_core::eviction::evictor::Evictor;
use pintle_agent_core::eviction::observed::{
    ContainerUse, DiskLayout, DiskUse, Freed, Observation, PodUse, ResourceReading, Scope, Unread,
};
use pintle_agent_core::eviction::rank::Evictable;
use pintle_agent_core::eviction::signal::Signal;
use pintle_agent_core::eviction::step::{EvictionSnapshot, EvictionStep};
use pintle_agent_core::eviction::threshold::{STALL_MIN, Settings, Threshold, ThresholdLevel};
use pintle_api_types::ids::{Mono, Now, PodUid, UnixNanos};
use pintle_api_types::quantity::Amount;
use pintle_api_types::rng::Rng;

use crate::check::Check;

/// All there is of memory, and of the disk.
const CAPACITY: u64 = 100_000;
/// The granularity of time.
const TICK: Duration = Duration::from_millis(250);
const SECOND: u64 = 4;
/// Ticks with pods that eat, and after it without.
const EATING: u64 = 900 * SECOND;
const CALM: u64 = 600 * SECOND;
/// Longest delay, in seconds, with which a disk shows its content.
const LAG_SECONDS_MAX: u64 = 20;

/// Usage of a pod.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    pub memory: u64,
    pub disk: u64,
}

/// A pod of the node.
#[derive(Clone, Debug)]
pub struct SimPod {
    pub uid: PodUid,
    pub priority: i32,
    pub seen: Taken,
    object: Pod,
    taken: Taken,
    eats: Taken,
    eats_until: u64,
    goes_at: Option<u64>,
    is_gone: bool,
}

impl SimPod {
    /// It runs, and was not evicted.
    pub fn is_evictable(&self) -> bool {
        !self.is_gone && self.goes_at.is_none()
    }
}

/// Counts over worlds.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub evicted: u64,
    pub soft: u64,
    pub reclaims: u64,
    pub deaths: u64,
    pub oom_kills: u64,
    pub stuck: u64,
    pub lost: u64,
    /// Victims of memory where stall decides.
    pub stalled: u64,
    /// Victims of memory before any stall: there was not even cache left.
    pub hogs: u64,
    /// Observations with page cache alone, which caused no eviction.
    pub cached: u64,
}

impl Stats {
    pub fn add(&mut self, other: &Self) {
        self.evicted += other.evicted;
        self.soft += other.soft;
        self.reclaims += other.reclaims;
        self.deaths += other.deaths;
        self.oom_kills += other.oom_kills;
        self.stuck += other.stuck;
        self.lost += other.lost;
        self.stalled += other.stalled;
        self.hogs += other.hogs;
        self.cached += other.cached;
    }
}

/// A look that is under way.
#[derive(Clone, Debug)]
struct Look {
    ticket: u64,
    asked: Mono,
    reads_at: u64,
    answers_at: u64,
    pods: Scope,
    seen: Option<Observation>,
}

/// See the module's header.
pub struct EvictionWorld {
    rng: Rng,
    tick: u64,
    settings: Settings,
    evictor: Evictor,
    pods: Vec<SimPod>,
    images: u64,
    /// Page cache that counts as used and can be had back at once, where stall decides.
    cache: u64,
    /// Processes stall for memory when less is left than this, the cache aside.
    stalls_below: u64,
    lag: u64,
    /// The amounts left of the disk, the newest first.
    disk_before: VecDeque<u64>,
    looks: Vec<Look>,
    reclaims: Vec<(u64, u64)>,
    is_calm: bool,
    lost_last: bool,
    check: Check,
    stats: Stats,
}

fn bytes(of: u64) -> ThresholdLevel {
    ThresholdLevel::Amount(Amount::from_bytes(i64::try_from(of).expect("small")))
}

fn settings(rng: &mut Rng) -> Settings {
    let mut thresholds = Vec::new();
    for signal in [Signal::MemoryAvailable, Signal::NodeFsAvailable] {
        let least = rng.range(2_000, 8_000);
        let min_reclaim = rng.chance(40).then(|| bytes(rng.range(1, 4_000)));
        let one = |level, grace| Threshold { signal, level, grace, min_reclaim };
        thresholds.push(one(bytes(least), Duration::ZERO));
        if rng.chance(60) {
            let grace = Duration::from_secs(rng.range(1, 120));
            thresholds.push(one(bytes(least + rng.range(1_000, 20_000)), grace));
        }
    }
    Settings {
        thresholds,
        transition: Duration::from_secs(*rng.pick(&[5, 10, 60, 300])),
        grace_seconds_max: i64::try_from(rng.range(0, 20)).expect("small"),
        local_storage: false,
        stall_min: rng.chance(40).then_some(STALL_MIN),
    }
}

fn pod(rng: &mut Rng, index: u64) -> SimPod {
    let priority = *rng.pick(&[-5, 0, 0, 0, 1_000]);
    let grace = i64::try_from(rng.range(0, 40)).expect("small");
    let spec = PodSpec {
        priority: Some(priority),
        termination_grace_period_seconds: Some(grace),
        ..PodSpec::default()
    };
    let eats = match rng.range(0, 4) {
        0 => Taken { memory: rng.range(1, 400), disk: 0 },
        1 => Taken { memory: 0, disk: rng.range(1, 400) },
        _ => Taken::default(),
    };
    SimPod {
        uid: PodUid::from(format!("pod-{index}")),
        priority,
        seen: Taken::default(),
        object: Pod { spec: Some(spec), ..Pod::default() },
        taken: Taken { memory: rng.range(0, 9_000), disk: rng.range(0, 9_000) },
        eats,
        eats_until: rng.range(0, EATING),
        goes_at: None,
        is_gone: false,
    }
}

impl EvictionWorld {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let settings = settings(&mut rng);
        let count = rng.range(3, 10);
        let pods = (0..count).map(|index| pod(&mut rng, index)).collect();
        let lag = if rng.chance(40) { rng.range(1, LAG_SECONDS_MAX) * SECOND } else { 0 };
        Self {
            pods,
            lag,
            images: rng.range(0, 20_000),
            cache: if settings.stall_min.is_some() { rng.range(0, CAPACITY) } else { 0 },
            stalls_below: rng.range(1_000, 12_000),
            settings,
            rng,
            tick: SECOND,
            evictor: Evictor::default(),
            disk_before: VecDeque::new(),
            looks: Vec::new(),
            reclaims: Vec::new(),
            is_calm: false,
            lost_last: false,
            check: Check::of(seed),
            stats: Stats::default(),
        }
    }

    pub fn run(mut self) -> Stats {
        while self.tick < EATING {
            self.step();
        }
        // All usage is given back, so no pod has to be evicted any more.
        self.is_calm = true;
        for pod in &mut self.pods {
            (pod.taken, pod.eats) = (Taken::default(), Taken::default());
        }
        let (before, mut at_rest) = (self.tick, None);
        let ends = self.settings.transition + Duration::from_secs(150);
        while self.tick < before + CALM {
            self.step();
            if self.tick == before + 60 * SECOND {
                at_rest = Some(self.stats.evicted);
            }
        }
        let seed = self.check.seed;
        assert_eq!(at_rest, Some(self.stats.evicted), "seed {seed}: an eviction at rest");
        assert!(ends < TICK * u32::try_from(CALM).expect("small"));
        let told = self.evictor.pressure();
        assert!(!told.memory && !told.disk, "seed {seed}: {told:?} never ends");
        assert!(self.evictor.victims().is_empty(), "seed {seed}: a victim has not ended");
        self.stats
    }

    fn now(&self) -> Now {
        let nanos = i64::try_from(self.tick).expect("small") * 250_000_000;
        Now { wall: UnixNanos(1_700_000_000_000_000_000 + nanos), mono: Mono(nanos) }
    }

    fn left(&self) -> Taken {
        let all = self.pods.iter().filter(|pod| !pod.is_gone);
        let (memory, disk) = all.fold((20_000, 20_000 + self.images), |(memory, disk), pod| {
            (memory + pod.taken.memory, disk + pod.taken.disk)
        });
        Taken { memory: CAPACITY.saturating_sub(memory), disk: CAPACITY.saturating_sub(disk) }
    }

    /// The memory left when the cache of files counts as used.
    fn memory_told(&self) -> u64 {
        self.left().memory - self.cache()
    }

    /// The cache that there is room for: the kernel drops as much as pods take.
    fn cache(&self) -> u64 {
        self.cache.min(self.left().memory)
    }

    fn stalls(&self) -> bool {
        self.left().memory < self.stalls_below
    }

    fn step(&mut self) {
        self.tick += 1;
        self.eat();
        if !self.is_calm && self.rng.range(0, 1_500) == 0 {
            self.die();
        }
        let now = self.now().mono;
        if !self.is_calm && self.rng.chance(1) {
            self.evictor.heed(now);
        }
        self.answer();
        self.answer_reclaims();
        let going = |uid: &PodUid| self.pods.iter().any(|pod| pod.uid == *uid && !pod.is_gone);
        let all_gone = !self.evictor.victims().iter().any(going);
        self.evictor.pass(all_gone, now);
        let (is_evictable, pods) = (SimPod::is_evictable, &self.pods);
        let all = || pods.iter().filter(|of| is_evictable(of)).map(|of| of.uid.clone()).collect();
        if let Some((ticket, pods, _)) = self.evictor.ask(Default::default, all, now) {
            self.begin_look(ticket, pods);
        }
        let (left, stalls) = (self.left(), self.stalls());
        let is_met = self.settings.thresholds.iter().any(|threshold| {
            // Where stall decides, the cache counts as used only while there is some.
            let counts = stalls || self.settings.stall_min.is_none();
            let left = match threshold.signal.is_of_disk() {
                true => left.disk,
                false if counts => self.memory_told(),
                false => left.memory,
            };
            threshold.is_hard() && ThresholdLevel::of(threshold.level, 0) > amount(left)
        });
        let could_go = self.pods.iter().any(SimPod::is_evictable);
        self.check.truth(is_met, could_go, now);
    }

    fn eat(&mut self) {
        let (tick, now) = (self.tick, self.now().mono);
        for pod in self.pods.iter_mut().filter(|pod| !pod.is_gone) {
            if tick < pod.eats_until && tick.is_multiple_of(SECOND) {
                pod.taken.memory += pod.eats.memory;
                pod.taken.disk += pod.eats.disk;
            }
            if pod.goes_at.is_some_and(|at| at <= tick) {
                pod.is_gone = true;
                self.check.goes(&pod.uid, now);
            }
        }
        let left = self.left();
        if left.memory == 0 {
            let alive = self.pods.iter_mut().filter(|pod| !pod.is_gone);
            if let Some(largest) = alive.max_by_key(|pod| pod.taken.memory) {
                largest.taken.memory = 0;
                self.stats.oom_kills += 1;
            }
        }
        self.disk_before.push_front(left.disk);
        self.disk_before.truncate(usize::try_from(self.lag).expect("small") + 1);
    }

    /// The next agent knows nothing of this one's plans. Its victims go on.
    fn die(&mut self) {
        self.evictor = Evictor::default();
        self.looks.clear();
        self.reclaims.clear();
        self.check.forget();
        self.stats.deaths += 1;
    }

    fn begin_look(&mut self, ticket: u64, pods: Scope) {
        // Two in a row would exceed the time that the checks allow.
        let may_be_lost = !self.is_calm && !std::mem::take(&mut self.lost_last);
        if may_be_lost && self.rng.chance(10) {
            self.lost_last = true;
            self.stats.lost += 1;
            return;
        }
        let reads_at = self.tick + 1 + self.rng.range(0, SECOND);
        let answers_at = reads_at + self.rng.range(0, 3 * SECOND);
        let asked = self.now().mono;
        self.looks.push(Look { ticket, asked, reads_at, answers_at, pods, seen: None });
    }

    fn answer(&mut self) {
        let (tick, now) = (self.tick, self.now());
        let (left, cached, stalls) = (self.memory_told(), self.cache(), self.stalls());
        let disk = self.disk_before.back().copied().unwrap_or(CAPACITY);
        for look in self.looks.iter_mut().filter(|look| look.reads_at == tick) {
            let reading =
                |available| ResourceReading { available, capacity: CAPACITY, at: now.wall };
            let readings = BTreeMap::from([
                (Signal::MemoryAvailable, reading(left)),
                (Signal::NodeFsAvailable, reading(disk)),
            ]);
            let pods = (look.pods == Scope::All).then(|| uses(&mut self.pods, &mut self.rng));
            let layout = DiskLayout::default();
            let least = if stalls { STALL_MIN } else { 0 };
            let stall = Some(self.rng.range(least.into(), u64::from(least) + 1_000) as u16);
            let cache = BTreeMap::from([(Signal::MemoryAvailable, cached)]);
            look.seen = Some(Observation { at: now.wall, readings, layout, stall, cache, pods });
        }
        let (due, later): (Vec<_>, _) =
            self.looks.drain(..).partition(|look| look.answers_at <= tick && look.seen.is_some());
        self.looks = later;
        for look in due {
            self.take(&look);
            if self.rng.chance(10) {
                // A second answer to the same question is none.
                let again = self.observe(&look);
                assert!(again.is_empty(), "{again:?}");
            }
        }
    }

    fn observe(&mut self, look: &Look) -> Vec<EvictionStep> {
        let evictable: Vec<_> = self.pods.iter().filter(|pod| pod.is_evictable()).collect();
        let pods: Vec<_> =
            evictable.iter().map(|of| Evictable { uid: &of.uid, pod: &of.object }).collect();
        let scene = EvictionSnapshot {
            settings: &self.settings,
            observation: look.seen.as_ref().expect("it was read"),
            pods: &pods,
            is_early: false,
            now: self.now(),
        };
        self.evictor.observe(look.ticket, &scene)
    }

    fn take(&mut self, look: &Look) {
        let (now, seen) = (self.now().mono, look.seen.as_ref().expect("it was read"));
        self.check.sees(&self.settings, seen, now);
        let steps = self.observe(look);
        let is_low = |with_cache: u64| {
            self.settings.thresholds.iter().filter(|of| !of.signal.is_of_disk()).any(|of| {
                let reading = seen.readings.get(&of.signal).expect("memory was read");
                let available = reading.available + with_cache;
                of.is_met(&ResourceReading { available, ..*reading }, true)
            })
        };
        let by_stall = self.settings.stall_min.is_some();
        let is_idle = seen.stall.is_some_and(|stall| stall < STALL_MIN);
        let cached = seen.cache.get(&Signal::MemoryAvailable).copied().unwrap_or(0);
        let is_gone = is_low(cached);
        self.stats.cached += u64::from(by_stall && is_idle && is_low(0) && !is_gone);
        self.check.says(self.evictor.pressure(), &self.settings, seen, now);
        let evictions = steps.iter().filter(|step| matches!(step, EvictionStep::Evict(_))).count();
        assert!(evictions <= 1, "seed {}: {steps:?}", self.check.seed);
        for step in steps {
            match step {
                EvictionStep::Tell(_) | EvictionStep::Age(..) => {}
                EvictionStep::Reclaim { ticket, .. } => {
                    self.stats.reclaims += 1;
                    if !self.rng.chance(10) {
                        let at = self.tick + self.rng.range(0, 40 * SECOND);
                        self.reclaims.push((at, ticket));
                    }
                }
                EvictionStep::Evict(victim) => {
                    let is_of_memory = victim.signal == Signal::MemoryAvailable.as_str();
                    if is_of_memory && self.settings.stall_min.is_some() {
                        assert!(!is_idle || is_gone, "seed {}", self.check.seed);
                        self.stats.stalled += u64::from(!is_idle);
                        self.stats.hogs += u64::from(is_idle);
                    }
                    self.check.evicts(&self.pods, &victim.uid, victim.signal, look.asked, now);
                    self.stats.evicted += 1;
                    self.stats.soft += u64::from(victim.grace_seconds > 1);
                    let mut takes = self.rng.range(0, 1 + victim.grace_seconds.unsigned_abs());
                    if self.rng.chance(5) {
                        takes = 200;
                        self.stats.stuck += 1;
                    }
                    self.goes(&victim.uid, takes);
                }
                EvictionStep::Hurry(victims) => {
                    victims.iter().for_each(|uid| self.goes(uid, 1));
                }
            }
        }
    }

    fn goes(&mut self, uid: &PodUid, seconds: u64) {
        let at = self.tick + 1 + seconds * SECOND;
        let pod = self.pods.iter_mut().find(|pod| pod.uid == *uid).expect("a pod of this node");
        pod.goes_at = Some(pod.goes_at.map_or(at, |before| before.min(at)));
    }

    fn answer_reclaims(&mut self) {
        let (tick, now) = (self.tick, self.now().mono);
        let (due, later): (Vec<_>, _) = self.reclaims.drain(..).partition(|(at, _)| *at <= tick);
        self.reclaims = later;
        for (_, ticket) in due {
            let freed = match self.rng.range(0, 4) {
                0 => {
                    Freed { error: Some("the runtime does not answer".into()), ..Freed::default() }
                }
                1 => Freed::default(),
                _ => {
                    let bytes = self.rng.range(0, self.images + 1);
                    self.images -= bytes;
                    Freed { bytes, images: 1, ..Freed::default() }
                }
            };
            self.evictor.reclaimed(ticket, &freed, now);
        }
    }
}

fn amount(of: u64) -> Amount {
    Amount::from_bytes(i64::try_from(of).expect("small"))
}

/// Usage of running pods at this moment. Sometimes the runtime reports no disk usage, or the disk
/// of a pod is still being counted: then its usage looks like zero.
fn uses(pods: &mut [SimPod], rng: &mut Rng) -> BTreeMap<PodUid, PodUse> {
    let is_down = rng.chance(5);
    let mut unread = || Unread { layers: is_down, volumes: rng.chance(5), ..Unread::default() };
    let alive = pods.iter_mut().filter(|pod| !pod.is_gone);
    let of = |pod: &mut SimPod| {
        pod.seen = pod.taken;
        let unread = unread();
        let bytes = if unread.is_none() { pod.taken.disk } else { 0 };
        let layer = Some(DiskUse { bytes, inodes: 1 });
        let container = ContainerUse { layer, ..ContainerUse::default() };
        let used = PodUse {
            working_set: Some(pod.taken.memory),
            containers: BTreeMap::from([("main".to_owned(), container)]),
            unread,
            ..PodUse::default()
        };
        (pod.uid.clone(), used)
    };
    alive.map(of).collect()
}
