//! The node under attack, its quiet state, and its limits.
//!
//! A node with an agent that trusts one client CA on its HTTPS port. It is guarded: an attack that
//! succeeds must harm the node, never the machine that the tests run on. Before the first attack a
//! bystander lives twice on it: the first warms everything up, the second is the baseline of later
//! ones. From then on a thread watches the agent's memory and threads.

use std::cell::Cell;
use std::fs;
use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, ensure};
use pintle_testbed::node::agent_binary;
use pintle_testbed::{LONG, Options, TestNode, patience, until};
use serde_json::{Value, json};

use crate::bystander::{self, Times};
use crate::port::NodePort;

/// Threads that the agent may have under any attack.
const THREADS_MAX: u64 = 40;
/// How many times its quiet memory the agent may take.
const MEMORY_FACTOR: f64 = 1.5;
/// Extra memory that it may take: pages of its program that an attack touches for the first time,
/// and the records of the attack's own pods, which are hundreds.
const MEMORY_FLOOR_KIB: u64 = 8 << 10;
/// How long the deciding thread may be busy in one turn, with one exception in so many turns
/// through all attacks; a build that is not optimized takes two to three times as long.
const BUSY_SECONDS_MAX: f64 = 0.010;
const BUSY_SECONDS_MAX_UNOPTIMIZED: f64 = 0.025;
const BUSY_TURNS: f64 = 1000.0;
/// How long the deciding thread may stall, with one exception in so many turns of an attack. A
/// stall includes time when other processes have the processors, and attacks keep both of a test
/// host's busy.
const AWAY_SECONDS_MAX: f64 = 0.050;
const AWAY_TURNS: f64 = 100.0;
/// The same in a guest with one processor: the attack has it in turn, and what the host takes away
/// counts as the thread's own.
const BUSY_SECONDS_MAX_ONE_PROCESSOR: f64 = 0.050;
const AWAY_SECONDS_MAX_ONE_PROCESSOR: f64 = 0.500;
/// Exceptions before there were enough turns to have a share of them.
const LONG_FEW: f64 = 3.0;
const BUSY: &str = "pintle_main_loop_busy_seconds";
const AWAY: &str = "pintle_main_loop_stall_seconds";
/// Sampling period of the agent.
const WATCH_PERIOD: Duration = Duration::from_millis(50);

/// A node under attack.
pub(crate) struct AttackedNode {
    // Ends before the node does.
    watch: AgentSampler,
    pub(crate) port: NodePort,
    pub(crate) node: TestNode,
    quiet: Times,
    quiet_kib: u64,
    quiet_stalls: Stalls,
    stalls: Cell<Stalls>,
}

impl AttackedNode {
    /// A quiet node with the usual agent, measured.
    pub(crate) fn prepare() -> Self {
        Self::prepare_with(json!({}), |_| ())
    }

    /// The same with fields of the agent's configuration, and with `first` done to the node before
    /// the agent starts.
    pub(crate) fn prepare_with(extra: Value, first: impl FnOnce(&TestNode)) -> Self {
        let keys = crate::port::ClientKeys::make();
        let mut config = json!({
            "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": false},
                "x509": {"clientCAFile": keys.authority_file()}},
        });
        let fields = config.as_object_mut().expect("an object");
        fields.extend(extra.as_object().expect("fields are an object").clone());
        let options = Options { config, agent: false, is_guarded: true, ..Options::default() };
        let mut node = TestNode::start(options);
        first(&node);
        node.start_agent();
        let port = NodePort::of(&node, keys);
        let watch = AgentSampler::start(node.agent_pid());
        let (quiet, quiet_stalls, stalls) = Default::default();
        let mut ground = Self { watch, port, node, quiet, quiet_kib: 0, quiet_stalls, stalls };
        ground.live("warm-up", |_, _| ());
        let mut quiet = Times::default();
        ground.live("quiet", |part, took| quiet.push((part, took)));
        ground.quiet = quiet;
        ground.node.clean();
        ground.watch.forget();
        ground.quiet_kib = memory(ground.node.agent_pid()).expect("the agent runs").0;
        // The start of the agent is over and is no attack.
        ground.quiet_stalls = ground.stalls();
        ground.stalls.set(ground.quiet_stalls);
        eprintln!("    quiet: {:?}, {} KiB", ground.quiet, ground.quiet_kib);
        ground
    }

    fn live(&self, name: &str, seen: impl FnMut(&'static str, Duration)) {
        bystander::live(&self.node, &self.port, name, LONG, seen);
    }

    /// A bystander lives now; each part of its life has its limit.
    pub(crate) fn bystander(&self, what: &str) {
        let longest = self.quiet.iter().map(|(part, _)| self.limit(part)).max().expect("parts");
        let mut late = Vec::new();
        bystander::live(&self.node, &self.port, "bystander", longest, |part, took| {
            let limit = self.limit(part) * patience();
            if took > limit {
                late.push(format!("{part}: {took:.2?} instead of {limit:.2?}"));
            }
        });
        assert!(late.is_empty(), "{what}: the bystander waited\n{}", late.join("\n"));
    }

    /// The HTTPS port answers its known client, and the health port any client, now.
    pub(crate) fn answers(&self, what: &str) {
        for part in ["is listed", "finds the node healthy"] {
            until(self.limit(part), &format!("{what}: {part}"), || match part {
                "is listed" => self.port.get(&self.node, "/pods").map(drop),
                _ => bystander::healthy(&self.node),
            });
        }
    }

    /// How long this part of a bystander's life may take.
    pub(crate) fn limit(&self, part: &str) -> Duration {
        let quiet = self.quiet.iter().find(|(name, _)| *name == part);
        bystander::limit(quiet.expect("each part was measured").1)
    }

    /// Removes the attack's pods, and checks that nothing is left of them and that the agent is as
    /// before.
    pub(crate) fn recover(&self) {
        for entry in fs::read_dir(self.node.manifests()).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
            let removed = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.expect("a manifest can be removed");
        }
        self.node.clean();
        self.check_vitals();
    }

    fn check_vitals(&self) {
        let (threads, kib) = self.watch.most();
        self.watch.forget();
        eprintln!("    at most {threads} threads, {kib} KiB");
        assert!(threads <= THREADS_MAX, "{threads} threads");
        let kib_max = (self.quiet_kib as f64 * MEMORY_FACTOR) as u64 + MEMORY_FLOOR_KIB;
        assert!(kib <= kib_max, "{kib} KiB where {} were quiet", self.quiet_kib);
        let all = self.stalls();
        let attack = all.since(self.stalls.replace(all));
        eprintln!("    {attack:?}");
        attack.check_away().expect("the deciding thread is never away for long");
    }

    /// How long the deciding thread was away through all attacks on this node.
    pub(crate) fn all_stalls(&self) -> Stalls {
        self.stalls.get().since(self.quiet_stalls)
    }

    fn stalls(&self) -> Stalls {
        let metrics = until(LONG, "metrics are served", || self.node.metrics());
        Stalls::of(&metrics)
    }

    /// The end of the agent's log, for a failure's reader.
    pub(crate) fn show_log(&self) {
        eprintln!("end of the agent's log:\n{}", self.node.agent_log());
    }
}

/// Turns of the deciding thread, and how many of them were too long.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stalls {
    turns: f64,
    busy_long: f64,
    away_long: f64,
    /// Stalls longer than the limit of busy turns: printed, not checked.
    away_short: f64,
}

impl Stalls {
    /// Since the agent began.
    fn of(metrics: &str) -> Self {
        let (turns, busy_long) = longer_than(busy_seconds_max(), BUSY, metrics);
        let (_, away_long) = longer_than(away_seconds_max(), AWAY, metrics);
        let (_, away_short) = longer_than(BUSY_SECONDS_MAX, AWAY, metrics);
        Self { turns, busy_long, away_long, away_short }
    }

    fn since(self, before: Self) -> Self {
        Self {
            turns: self.turns - before.turns,
            busy_long: self.busy_long - before.busy_long,
            away_long: self.away_long - before.away_long,
            away_short: self.away_short - before.away_short,
        }
    }

    /// Through all attacks 999 of 1,000 turns are within the limit.
    pub(crate) fn check_all(self) -> Result<()> {
        let is_fine = self.busy_long <= LONG_FEW || self.busy_long * BUSY_TURNS <= self.turns;
        ensure!(is_fine, "busy for longer than {} s: {self:?}", busy_seconds_max());
        Ok(())
    }

    fn check_away(self) -> Result<()> {
        let is_fine = self.away_long <= LONG_FEW || self.away_long * AWAY_TURNS <= self.turns;
        ensure!(is_fine, "away for longer than {} s: {self:?}", away_seconds_max());
        Ok(())
    }
}

impl Add for Stalls {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            turns: self.turns + other.turns,
            busy_long: self.busy_long + other.busy_long,
            away_long: self.away_long + other.away_long,
            away_short: self.away_short + other.away_short,
        }
    }
}

fn busy_seconds_max() -> f64 {
    if has_one_processor() {
        return BUSY_SECONDS_MAX_ONE_PROCESSOR;
    }
    let is_in = |folder| agent_binary().parent().is_some_and(|path| path.ends_with(folder));
    let is_optimized = !is_in("debug") && !is_in("tested");
    if is_optimized { BUSY_SECONDS_MAX } else { BUSY_SECONDS_MAX_UNOPTIMIZED }
}

fn away_seconds_max() -> f64 {
    if has_one_processor() { AWAY_SECONDS_MAX_ONE_PROCESSOR } else { AWAY_SECONDS_MAX }
}

fn has_one_processor() -> bool {
    thread::available_parallelism().is_ok_and(|count| count.get() == 1)
}

/// Observations in a histogram, and how many of them are longer than `limit`.
fn longer_than(limit: f64, histogram: &str, metrics: &str) -> (f64, f64) {
    let value = |line: &str| line.rsplit(' ').next().and_then(|v| v.parse::<f64>().ok());
    let bucket = |line: &str| {
        let rest = line.strip_prefix(histogram)?.strip_prefix("_bucket{le=\"")?;
        let (le, _) = rest.split_once('"')?;
        Some((le.parse::<f64>().ok()?, value(line)?))
    };
    let buckets: Vec<(f64, f64)> = metrics.lines().filter_map(bucket).collect();
    let within = |limit: f64| {
        let at = buckets.iter().find(|(le, _)| *le == limit);
        at.unwrap_or_else(|| panic!("{histogram} has a bucket {limit}")).1
    };
    let all = within(f64::INFINITY);
    (all, all - within(limit))
}

/// Resident memory in KiB and threads of a process.
fn memory(pid: i32) -> Option<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    };
    Some((number("VmRSS:")?, number("Threads:")?))
}

/// Samples the agent all the time and keeps the maxima.
struct AgentSampler {
    most: Arc<[AtomicU64; 2]>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl AgentSampler {
    fn start(pid: i32) -> Self {
        let most = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = (most.clone(), is_over.clone());
        let thread = thread::spawn(move || {
            let (most, is_over) = seen;
            while !is_over.load(Ordering::Relaxed) {
                if let Some((kib, threads)) = memory(pid) {
                    most[0].fetch_max(threads, Ordering::Relaxed);
                    most[1].fetch_max(kib, Ordering::Relaxed);
                }
                thread::sleep(WATCH_PERIOD);
            }
        });
        Self { most, is_over, thread: Some(thread) }
    }

    /// Threads, and memory in KiB.
    fn most(&self) -> (u64, u64) {
        (self.most[0].load(Ordering::Relaxed), self.most[1].load(Ordering::Relaxed))
    }

    fn forget(&self) {
        self.most.iter().for_each(|m| m.store(0, Ordering::Relaxed));
    }
}

impl Drop for AgentSampler {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
