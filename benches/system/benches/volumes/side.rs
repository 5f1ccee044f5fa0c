//! Measurements of one agent, one phase after the other. Phases leave no pod behind.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pintle_csi_driver::log::{Line, Phase};
use pintle_system_benches::load::{Cpu, memory_mib};
use serde_json::Value;
use xtask::ratio::watch::{PodWatch, Pods, SeenTimes};
use xtask::shell::say;

use super::ground::{AGENT, DriverCluster, NAMESPACE, VolumeSourceKind, claim, names, pod};
use super::{Figures, VolumeLoad};

/// Longest wait for all pods of a phase.
const LIMIT: Duration = Duration::from_secs(240);
/// Time until what a start brings with it is over.
const SETTLE: Duration = Duration::from_secs(12);
const ASK_EVERY: Duration = Duration::from_millis(10);
/// Calls that are repeated as time passes.
const STATISTICS: &str = "NodeGetVolumeStats";

/// A thing that is measured of both agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    /// From a pod and its claim, which is not bound yet, to Running: a folder of the node.
    HostPath,
    /// The same with a volume of the driver.
    Csi,
    /// From the first pod of a burst to each pod's phase Running.
    Running,
    /// From the first pod's deletion to each pod's end.
    Gone,
    /// From the first pod's deletion to the end of the last call that unstages.
    Unstaged,
    /// Calls of the node service for a pod's start and end.
    Calls,
    /// From the start of an agent to the last volume that it has published again.
    Known,
    /// Share of a core while nothing happens.
    IdleCpu,
    /// Resident memory then.
    Memory,
}

/// One agent on the node.
pub(crate) struct AgentSide<'a> {
    ground: &'a DriverCluster<'a>,
    name: &'a str,
    size: &'a VolumeLoad,
    watch: PodWatch<'a>,
    figures: Figures,
}

impl<'a> AgentSide<'a> {
    /// The agent that runs on the node now.
    pub(crate) fn new(
        ground: &'a DriverCluster<'a>,
        name: &'a str,
        size: &'a VolumeLoad,
    ) -> Result<Self> {
        let watch = PodWatch::of(ground.cluster, NAMESPACE)?;
        Ok(Self { ground, name, size, watch, figures: Figures::default() })
    }

    /// Every phase that was asked for.
    pub(crate) fn measure(mut self) -> Result<Figures> {
        thread::sleep(SETTLE);
        let warm = [self.own("warm-0"), self.own("warm-1")];
        self.time_claim(&warm[0], VolumeSourceKind::HostPath)?;
        self.time_claim(&warm[1], VolumeSourceKind::Csi)?;
        if self.size.has("claims") {
            self.claims()?;
        }
        if self.size.has("burst") {
            let log = Tail::from_end(self.ground)?;
            let names = self.burst("burst")?;
            self.teardown(&names, log)?;
        }
        if self.size.has("restart") || self.size.has("idle") {
            let held = [self.start("first")?, self.start("second")?].concat();
            if self.size.has("restart") {
                self.restart(held.len())?;
            }
            if self.size.has("idle") {
                self.idle()?;
            }
            self.delete_all()?;
            self.gone(&held)?;
        }
        Ok(self.figures)
    }

    /// Names are used once: the watch keeps the first time of everything.
    fn own(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    fn note(&mut self, measure: Measure, numbers: impl IntoIterator<Item = f64>) {
        self.figures.entry(measure).or_default().extend(numbers);
    }

    fn claims(&mut self) -> Result<()> {
        let kinds = [
            (Measure::HostPath, VolumeSourceKind::HostPath, "folder"),
            (Measure::Csi, VolumeSourceKind::Csi, "claim"),
        ];
        for (measure, source, prefix) in kinds {
            for name in names(&self.own(prefix), self.size.claims) {
                let took = self.time_claim(&name, source)?;
                self.note(measure, [took]);
            }
        }
        Ok(())
    }

    /// Seconds from the creation of a claim and its pod until the pod runs; the pod ends
    /// afterwards.
    fn time_claim(&mut self, name: &str, source: VolumeSourceKind) -> Result<f64> {
        self.ground.create(&[self.ground.volume(name, source)?])?;
        self.ground.create(&[claim(name), pod(name)])?;
        let names = [name.to_owned()];
        let seen = self.run(&names)?;
        self.ground.cluster.kubectl(&[
            "delete",
            "pod",
            name,
            "--grace-period=1",
            "--wait=false",
        ])?;
        self.gone(&names)?;
        let began = seen[0].added.context("the pod was created")?;
        Ok((seen[0].running.context("the pod ran")? - began).as_secs_f64())
    }

    /// Creates pods with bound claims, and waits until they run.
    fn start(&mut self, prefix: &str) -> Result<Vec<String>> {
        let prefix = self.own(prefix);
        let names = names(&prefix, self.size.pods);
        say("start", &format!("{} pods with a volume each", names.len()));
        let mut items = Vec::new();
        for name in &names {
            items.push(self.ground.volume(name, VolumeSourceKind::Csi)?);
            items.push(claim(name));
        }
        self.ground.create(&items)?;
        wait("all claims are bound", || Ok(self.ground.claims_bound(&prefix)? == names.len()))?;
        let pods: Vec<Value> = names.iter().map(|name| pod(name)).collect();
        self.ground.create(&pods)?;
        self.run(&names)?;
        Ok(names)
    }

    fn burst(&mut self, prefix: &str) -> Result<Vec<String>> {
        let names = self.start(prefix)?;
        let seen = self.seen(&names)?;
        let began = seen.iter().filter_map(|pod| pod.added).min().context("a pod was created")?;
        let running = seen.iter().filter_map(|pod| pod.running);
        self.note(Measure::Running, running.map(|at| (at - began).as_secs_f64()));
        Ok(names)
    }

    /// Deletes all pods; counts the driver's calls for them since the log was there.
    fn teardown(&mut self, names: &[String], mut log: Tail) -> Result<()> {
        say("delete", &format!("{} pods", names.len()));
        let (mut unstaged, mut calls) = (BTreeSet::new(), 0);
        let began = Instant::now();
        self.delete_all()?;
        wait("every volume is unstaged", || {
            for line in log.read()? {
                calls += usize::from(is_call(&line));
                if line.method == "NodeUnstageVolume" && line.is_success() {
                    unstaged.insert(line.volume);
                }
            }
            Ok(unstaged.len() >= names.len())
        })?;
        self.note(Measure::Unstaged, [began.elapsed().as_secs_f64()]);
        self.note(Measure::Calls, [calls as f64 / names.len() as f64]);
        self.gone(names)?;
        let seen = self.seen(names)?;
        let began = seen.iter().filter_map(|pod| pod.deleting).min().context("one was deleted")?;
        let gone = seen.iter().filter_map(|pod| pod.gone);
        self.note(Measure::Gone, gone.map(|at| (at - began).as_secs_f64()));
        Ok(())
    }

    /// Restarts the agent while pods have volumes.
    fn restart(&mut self, volumes: usize) -> Result<()> {
        say("restart", &format!("{volumes} mounted volumes"));
        thread::sleep(SETTLE);
        let mut log = Tail::from_end(self.ground)?;
        self.ground.cluster.stop(AGENT)?;
        let began = Instant::now();
        self.ground.cluster.start(AGENT)?;
        let mut known = BTreeSet::new();
        wait("all volumes are published again", || {
            for line in log.read()? {
                if line.method == "NodePublishVolume" && line.is_success() {
                    known.insert(line.volume);
                }
            }
            Ok(known.len() >= volumes)
        })?;
        self.note(Measure::Known, [began.elapsed().as_secs_f64()]);
        Ok(())
    }

    /// CPU over a window without events, and memory at its end.
    fn idle(&mut self) -> Result<()> {
        let window = Duration::from_secs(self.size.seconds);
        say("idle", &format!("{} s", window.as_secs()));
        thread::sleep(SETTLE);
        let pid = self.ground.cluster.pid(AGENT).context("the agent runs")?;
        let (began, before) = (Instant::now(), Cpu::of(pid)?);
        thread::sleep(window);
        let spent = (Cpu::of(pid)? - before).seconds() / began.elapsed().as_secs_f64();
        self.note(Measure::IdleCpu, [spent * 100.0]);
        self.note(Measure::Memory, [memory_mib(pid, "VmRSS:")?]);
        Ok(())
    }

    fn delete_all(&self) -> Result<()> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        self.ground.cluster.kubectl(&["delete", "--raw", &path]).map(drop)
    }

    fn run(&mut self, names: &[String]) -> Result<Vec<SeenTimes>> {
        let lacks = |pods: &Pods| without(pods, names, |pod| pod.running);
        self.watch.until("all run", LIMIT, lacks)?;
        self.seen(names)
    }

    fn gone(&mut self, names: &[String]) -> Result<()> {
        self.watch.until("all are gone", LIMIT, |pods| without(pods, names, |pod| pod.gone))?;
        Ok(())
    }

    fn seen(&mut self, names: &[String]) -> Result<Vec<SeenTimes>> {
        let pods = self.watch.until("", Duration::ZERO, |_| Vec::new())?;
        let seen = |name: &String| pods.get(name).cloned().with_context(|| format!("no {name}"));
        names.iter().map(seen).collect()
    }
}

/// Names of the pods that were not seen so far as this.
fn without(
    pods: &Pods,
    names: &[String],
    at: impl Fn(&SeenTimes) -> Option<Instant>,
) -> Vec<String> {
    let lacks = |name: &&String| pods.get(*name).and_then(&at).is_none();
    names.iter().filter(lacks).cloned().collect()
}

/// True for the beginning of a call that a pod caused.
fn is_call(line: &Line) -> bool {
    line.phase == Phase::Begin && line.method.starts_with("Node") && line.method != STATISTICS
}

fn wait(what: &str, mut is_done: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !is_done()? {
        ensure!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        thread::sleep(ASK_EVERY);
    }
    Ok(())
}

/// The driver's log from a place on.
struct Tail {
    path: PathBuf,
    offset: u64,
}

impl Tail {
    fn from_end(ground: &DriverCluster<'_>) -> Result<Self> {
        let path = ground.state.join("calls.jsonl");
        let offset = std::fs::metadata(&path)?.len();
        Ok(Self { path, offset })
    }

    /// The complete lines that were added since the last call.
    fn read(&mut self) -> Result<Vec<Line>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let complete = text.rsplit_once('\n').map_or(0, |(lines, _)| lines.len() + 1);
        self.offset += complete as u64;
        let lines = text[..complete].lines();
        lines.map(|line| serde_json::from_str(line).context("read the log")).collect()
    }
}
