//! Measurements of one agent from its start on: one phase after the other, all on one node.
//!
//! Output: numbers by measure. Phases clean up after themselves, so that the next agent finds the
//! node as this one did. A phase waits for what the API server says, and for fixed times only where
//! time itself is what a measure needs.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::RatioSize;
use super::load::AgentLoad;
use super::measure::{Measure, MeasuredNumbers};
use super::node::RatioNode;
use super::phases::Phase;
use super::pods::{self, NAMESPACE, NODE, WorkloadKind};
use super::watch::{PodWatch, Pods, SeenTimes};
use super::writes::Since;
use crate::cluster::Cluster;
use crate::shell::say;

/// Time until work after a start (first reads, delayed writes, garbage collection) is over.
const SETTLE: Duration = Duration::from_secs(12);
/// Time until the rest of a deleted pod is cleaned up (30 s with ours), which is not probe work.
const CLEANUP: Duration = Duration::from_secs(40);
/// Limit for the start or the deletion of the pods.
const LIMIT: Duration = Duration::from_secs(300);
const LIMIT_PER_POD: Duration = Duration::from_secs(2);
/// Distance of two kills: no multiple of a second, so that they meet a periodic list in every
/// phase.
const KILL_EVERY: Duration = Duration::from_millis(290);

/// One agent on the node.
pub(super) struct RatioSide<'a> {
    cluster: &'a Cluster,
    node: &'a dyn RatioNode,
    size: RatioSize,
    watch: PodWatch<'a>,
    figures: MeasuredNumbers,
}

impl<'a> RatioSide<'a> {
    /// The agent that runs on the node now.
    pub(super) fn of(
        cluster: &'a Cluster,
        node: &'a dyn RatioNode,
        size: RatioSize,
    ) -> Result<Self> {
        let watch = PodWatch::of(cluster, NAMESPACE)?;
        Ok(Self { cluster, node, size, watch, figures: MeasuredNumbers::default() })
    }

    /// Every phase.
    pub(super) fn measure(mut self) -> Result<MeasuredNumbers> {
        thread::sleep(SETTLE);
        let names = pods::names("idle", self.size.pods);
        self.burst(&names)?;
        let phases = self.size.phases;
        if phases.has(Phase::Idle) {
            self.idle()?;
        }
        let mut there = names;
        if phases.has(Phase::Deaths) {
            let victims = there.drain(..self.size.pods * 2 / 5).collect::<Vec<_>>();
            self.deaths(&victims)?;
            let again = pods::names("again", victims.len());
            self.run(&again, WorkloadKind::Idle)?;
            there.extend(again);
        }
        self.deletion(&there, phases.has(Phase::Deletion))?;
        if phases.has(Phase::Probes) {
            self.probes()?;
        }
        Ok(self.figures)
    }

    fn burst(&mut self, names: &[String]) -> Result<()> {
        say("burst", &format!("{} pods", names.len()));
        let since = Since::now(&self.cluster.layout().audit_log())?;
        let seen = self.run(names, WorkloadKind::Idle)?;
        let begin = seen.iter().filter_map(|pod| pod.added).min().context("a pod was made")?;
        let running = seen.iter().filter_map(|pod| pod.running).map(|at| at - begin);
        self.figures.note(Measure::Running, running.map(|took| took.as_secs_f64()));
        thread::sleep(SETTLE);
        let writes = since.of(NODE, NAMESPACE)?;
        let per_pod = |count: usize| count as f64 / names.len() as f64;
        let status = writes.get("patch pods/status").copied().unwrap_or_default();
        self.figures.note(Measure::Writes, [per_pod(writes.values().sum())]);
        self.figures.note(Measure::StatusWrites, [per_pod(status)]);
        let each = writes.iter().map(|(what, n)| format!("{what} {:.2}", per_pod(*n)));
        say("writes", &each.collect::<Vec<_>>().join(", "));
        Ok(())
    }

    /// CPU over a window without events, and memory at its end.
    fn idle(&mut self) -> Result<()> {
        say("idle", &format!("{} s", self.size.window.as_secs()));
        let (share, load) = self.cpu_share()?;
        self.figures.note(Measure::IdleCpu, [share]);
        self.figures.note(Measure::Memory, [load.resident_mib]);
        Ok(())
    }

    /// Kills first processes one after the other, each from its kill to its terminated status.
    fn deaths(&mut self, victims: &[String]) -> Result<()> {
        say("deaths", &victims.len().to_string());
        let mut kills = Vec::new();
        for name in victims {
            let seen = self.seen(name)?;
            let id = seen.container.with_context(|| format!("{name} has a container"))?;
            let at = self.node.kill(&id).with_context(|| format!("kill {name}"))?;
            kills.push((name, id, at));
            thread::sleep(KILL_EVERY);
        }
        let end = |pods: &Pods, name: &str, id: &str| pods.get(name)?.ended.get(id).copied();
        let limit = self.limit();
        let pods = self.watch.until("all ends are in the status", limit, |pods| {
            let untold = kills.iter().filter(|(name, id, _)| end(pods, name, id).is_none());
            untold.map(|(name, ..)| (*name).clone()).collect()
        })?;
        let took = kills.iter().filter_map(|(name, id, at)| Some(end(pods, name, id)? - *at));
        let took: Vec<f64> = took.map(|took| took.as_secs_f64() * 1000.0).collect();
        self.figures.note(Measure::Death, took);
        let mut delete = vec!["delete", "pod", "-n", NAMESPACE, "--wait=false"];
        delete.extend(victims.iter().map(String::as_str));
        self.cluster.kubectl(&delete)?;
        self.gone(victims)
    }

    /// Deletes all pods, so that the next agent finds none, and records the duration if `is_asked`.
    fn deletion(&mut self, names: &[String], is_asked: bool) -> Result<()> {
        say("delete", &format!("{} pods", names.len()));
        pods::delete_all(self.cluster)?;
        self.gone(names)?;
        if !is_asked {
            return Ok(());
        }
        let seen: Vec<SeenTimes> =
            names.iter().map(|name| self.seen(name)).collect::<Result<_>>()?;
        let begin = seen.iter().filter_map(|pod| pod.deleting).min().context("one had to go")?;
        let gone = seen.iter().filter_map(|pod| pod.gone).map(|at| (at - begin).as_secs_f64());
        self.figures.note(Measure::Gone, gone);
        Ok(())
    }

    /// CPU per attempt, because on a busy machine one agent may make fewer attempts than the other.
    fn probes(&mut self) -> Result<()> {
        let names = pods::names("probed", self.size.pods / 2);
        say("probes", &format!("{} a second", names.len()));
        thread::sleep(CLEANUP);
        self.run(&names, WorkloadKind::Probed)?;
        thread::sleep(SETTLE);
        let (before, begin) = (self.attempts()?, Instant::now());
        let (share, _) = self.cpu_share()?;
        let rate = (self.attempts()? - before) / begin.elapsed().as_secs_f64();
        self.figures.note(Measure::ProbeRate, [rate]);
        self.figures.note(Measure::ProbeCpu, [share]);
        self.figures.note(Measure::CpuPerProbe, [share * 10.0 / rate]);
        pods::delete_all(self.cluster)?;
        self.gone(&names)
    }

    /// Share of a core in percent over the window, and the load at its end.
    fn cpu_share(&self) -> Result<(f64, AgentLoad)> {
        let (begin, before) = (Instant::now(), self.node.load()?);
        thread::sleep(self.size.window);
        let after = self.node.load()?;
        let spent = after.cpu_seconds - before.cpu_seconds;
        Ok((spent / begin.elapsed().as_secs_f64() * 100.0, after))
    }

    /// Attempts of probes so far, by the agent's own count.
    fn attempts(&self) -> Result<f64> {
        let path = format!("/api/v1/nodes/{NODE}/proxy/metrics/probes");
        Ok(total(&self.cluster.kubectl(&["get", "--raw", &path])?))
    }

    /// Makes pods and waits until all run.
    fn run(&mut self, names: &[String], kind: WorkloadKind) -> Result<Vec<SeenTimes>> {
        pods::create(self.cluster, names, kind, !self.size.is_usual())?;
        self.watch
            .until("all run", self.limit(), |pods| without(pods, names, |pod| pod.running))?;
        names.iter().map(|name| self.seen(name)).collect()
    }

    fn gone(&mut self, names: &[String]) -> Result<()> {
        let gone = |pods: &Pods| without(pods, names, |pod| pod.gone);
        self.watch.until("all are gone", self.limit(), gone).map(drop)
    }

    fn limit(&self) -> Duration {
        LIMIT.max(LIMIT_PER_POD * u32::try_from(self.size.pods).unwrap_or(u32::MAX))
    }

    fn seen(&mut self, name: &str) -> Result<SeenTimes> {
        let pods = self.watch.until("", Duration::ZERO, |_| Vec::new())?;
        pods.get(name).cloned().with_context(|| format!("{name} was seen"))
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

/// Sum of a counter over all its labels.
fn total(metrics: &str) -> f64 {
    let lines = metrics.lines().filter(|line| line.starts_with("prober_probe_total{"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::total;

    #[test]
    fn attempts_are_counted_over_all_containers() {
        let text = "# TYPE prober_probe_total counter\n\
                    prober_probe_total{pod=\"a\",result=\"successful\"} 3\n\
                    prober_probe_total{pod=\"b\",result=\"failed\"} 1.5e+01\n\
                    prober_probe_duration_seconds_count{pod=\"a\"} 7\n";
        assert_eq!(total(text), 18.0);
    }
}
