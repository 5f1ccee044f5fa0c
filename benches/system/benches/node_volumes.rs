//! Our agent beside the kubelet, with volumes: from claim to Running, 50 pods with volumes of a CSI
//! driver at once, their teardown, a restart with 100 mounted volumes, and the cost of having them.
//!
//! One cluster with one node, on which the kubelet and then our agent run the same pods, with the
//! same driver: folders and bind mounts, so that what is measured is the agent. Times are those of
//! a watch of the API server and of the driver's own log. `PINTLE_BENCH_PHASES` names some of
//! `claims`,
//! `burst`, `restart`, `idle`; `PINTLE_BENCH_PODS` is the number of pods of a burst (50; twice as
//! many have a volume at the restart), `PINTLE_BENCH_SECONDS` how long CPU time is counted (60),
//! `PINTLE_BENCH_ROUNDS` the claims (8). `PINTLE_AGENT` and `PINTLE_CSI_DRIVER` name other
//! programs.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use pintle_system_benches::table::{Goal, Row, Spread};
use pintle_system_benches::{bench_report, count, release};
use xtask::cluster::{Agent, Cluster};
use xtask::shell::{say, timed};

#[path = "volumes/ground.rs"]
mod ground;
#[path = "volumes/side.rs"]
mod side;

use ground::{DriverCluster, NODE};
use side::{AgentSide, Measure};

/// The cluster's name; it is started for this and removed afterwards.
const CLUSTER: &str = "volumes";
/// The phases, in order.
const PHASES: [&str; 4] = ["claims", "burst", "restart", "idle"];

/// How much is measured.
#[derive(Clone, Debug)]
pub(crate) struct VolumeLoad {
    /// Pods of a burst.
    pub(crate) pods: usize,
    /// Claims, one after the other.
    pub(crate) claims: usize,
    /// How long CPU time is counted, in seconds.
    pub(crate) seconds: u64,
    phases: Vec<String>,
}

impl VolumeLoad {
    fn asked() -> Result<Self> {
        let named = std::env::var("PINTLE_BENCH_PHASES").unwrap_or_else(|_| PHASES.join(","));
        let phases: Vec<String> = named.split(',').map(|name| name.trim().to_owned()).collect();
        if let Some(wrong) = phases.iter().find(|name| !PHASES.contains(&name.as_str())) {
            bail!("PINTLE_BENCH_PHASES names phases of {}, not {wrong:?}", PHASES.join(", "));
        }
        let pods = count("PINTLE_BENCH_PODS", 50);
        let claims = count("PINTLE_BENCH_ROUNDS", 8);
        let seconds = count("PINTLE_BENCH_SECONDS", 60) as u64;
        Ok(Self { pods, claims, seconds, phases })
    }

    pub(crate) fn has(&self, phase: &str) -> bool {
        self.phases.iter().any(|name| name == phase)
    }

    /// Name of the report: a part does not replace the whole.
    fn report(&self) -> String {
        match self.phases.len() {
            all if all == PHASES.len() => "node_volumes".to_owned(),
            _ => format!("node_volumes_{}", self.phases.join("_")),
        }
    }
}

/// Ends the cluster with the run, however that ends.
struct VolumesCluster(Cluster);

impl Drop for VolumesCluster {
    fn drop(&mut self) {
        if let Err(error) = self.0.down() {
            eprintln!("the cluster {CLUSTER} was not removed: {error:#}");
        }
    }
}

/// Numbers of one side, by measure.
pub(crate) type Figures = BTreeMap<Measure, Vec<f64>>;

fn main() -> Result<()> {
    let size = VolumeLoad::asked()?;
    let ours = Agent::Pintle(Some(release("pintle-agent", "PINTLE_AGENT")?));
    let own = VolumesCluster(Cluster::of_this_run(CLUSTER)?.with_nodes(1)?);
    let cluster = &own.0;
    cluster.down()?; // what a killed run left
    cluster.choose_agent(NODE, &Agent::KubeletAlone)?;
    cluster.up()?;
    let ground = DriverCluster::start(cluster)?;
    let mut sides = Vec::new();
    for (agent, name) in [(&Agent::KubeletAlone, "kubelet"), (&ours, "ours")] {
        let figures = timed("measure", name, || {
            ground.choose_agent(agent)?;
            AgentSide::new(&ground, name, &size)?.measure()
        })?;
        for row in rows(&figures, None) {
            say(name, &format!("{} {:.3} {}", row.measure, row.ours, row.unit));
        }
        sides.push(figures);
    }
    let rows = rows(&sides[1], Some(&sides[0]));
    let kept = bench_report::show(&size.report(), "kubelet", &rows)?;
    say("kept", &kept.display().to_string());
    Ok(())
}

/// A line of the table.
struct TableLine {
    measure: Measure,
    /// The share of the numbers below the one that is shown: 0.5 is the median, 1 the last.
    share: f64,
    text: &'static str,
    unit: &'static str,
    goal: Goal,
}

const fn line(
    measure: Measure,
    share: f64,
    text: &'static str,
    unit: &'static str,
    goal: Goal,
) -> TableLine {
    TableLine { measure, share, text, unit, goal }
}

const LINES: [TableLine; 13] = [
    line(Measure::HostPath, 0.5, "claim of a hostPath to Running, p50", "s", Goal::Ratio(1.0)),
    line(Measure::HostPath, 1.0, "the same, last", "s", Goal::None),
    line(Measure::Csi, 0.5, "claim of a driver to Running, p50", "s", Goal::Ratio(1.0)),
    line(Measure::Csi, 1.0, "the same, last", "s", Goal::None),
    line(Measure::Running, 0.5, "burst: median Running", "s", Goal::None),
    line(Measure::Running, 1.0, "burst: last Running", "s", Goal::Ratio(0.8)),
    line(Measure::Gone, 0.5, "teardown: median gone", "s", Goal::None),
    line(Measure::Gone, 1.0, "teardown: last gone", "s", Goal::Ratio(0.7)),
    line(Measure::Unstaged, 1.0, "teardown: last unstaged", "s", Goal::Ratio(0.7)),
    line(Measure::Calls, 0.5, "calls to the driver for a pod", "", Goal::Ratio(1.0)),
    line(Measure::Known, 1.0, "restart: all volumes known", "s", Goal::Ratio(0.3)),
    line(Measure::IdleCpu, 0.5, "idle: share of a core", "%", Goal::Ratio(0.1)),
    line(Measure::Memory, 0.5, "idle: resident memory", "MiB", Goal::Ratio(0.25)),
];

/// The table's rows: what was measured.
fn rows(ours: &Figures, other: Option<&Figures>) -> Vec<Row> {
    let at = |figures: &Figures, line: &TableLine| {
        Some(Spread::of(figures.get(&line.measure)?.iter().copied()).at(line.share))
    };
    let row = |line: &TableLine| {
        let bound = other.and_then(|other| at(other, line));
        let (measure, unit, goal) = (line.text.to_owned(), line.unit, line.goal);
        Some(Row { measure, unit, goal, ours: at(ours, line)?, bound })
    };
    LINES.iter().filter_map(row).collect()
}
