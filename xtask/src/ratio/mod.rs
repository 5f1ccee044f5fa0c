//! `cargo xtask bench node_cluster`: our agent beside the kubelet as the node of one real cluster.
//!
//! Input: a release build of ours, upstream's kubelet, built alone as users install it. Both run on
//! the same node, one after the other, with the same runtime, API server and pods; all pods go in
//! between. A warm-up round, which counts for neither, comes before the first; the agent that
//! begins alternates from round to round. Output: one table of ratios, a JSON file with its
//! circumstances, and a chart. Here and not in `pintle-system-benches`, because nothing of it needs
//! the agent's code: it watches the API server, reads `/proc` and the audit log.
//!
//! - `pods`, `watch`: the pods, and the times at which the API server reports their states
//! - `node`: the node, in namespaces or as a guest
//! - `load`, `writes`: CPU and memory of the agent, and its write requests
//! - `side`: the phases. `phases`: which of them are asked for. `measure`: the numbers and their
//!   goals

mod load;
mod measure;
mod node;
mod phases;
mod pods;
mod side;
pub mod watch;
mod writes;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use self::measure::MeasuredNumbers;
use self::node::{RatioGuest, RatioNamespaces, RatioNode};
pub use self::phases::Phases;
use self::side::RatioSide;
use crate::cluster::{Agent, Cluster};
use crate::shell::{say, timed};
use crate::{bench_report, chart, uml};

/// The cluster's name; it is started for this and removed afterwards.
const CLUSTER: &str = "bench";
/// As many as a node takes by default, with those of the cluster itself, and its network has room.
const PODS_USUAL: usize = 105;
/// With the node's own network and `maxPods` raised.
const PODS_MAX: usize = 500;

/// Rounds that count: one with each of the two at the beginning.
const ROUNDS: usize = 2;

/// How long the controllers may take to fill a new namespace.
const PREPARE_MAX: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(200);

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct RatioSize {
    /// Pods on the node, `PINTLE_BENCH_PODS`; more than usual ones have the node's network.
    pub pods: usize,
    /// The phases to measure, `PINTLE_BENCH_PHASES`: all of them unless some are named.
    pub phases: Phases,
    /// Repetitions, `PINTLE_BENCH_ROUNDS`.
    pub rounds: usize,
    /// How long CPU time is counted, `PINTLE_BENCH_SECONDS`.
    pub window: Duration,
    /// True if the node is a guest with cgroup v2 and systemd: `PINTLE_BENCH_NODE=guest`.
    pub in_guest: bool,
}

impl RatioSize {
    /// The size in the environment, else that of the goals.
    pub fn asked() -> Result<Self> {
        let pods = number("PINTLE_BENCH_PODS", 100)?;
        ensure!((5..=PODS_MAX).contains(&pods), "PINTLE_BENCH_PODS is 5 to {PODS_MAX}, not {pods}");
        let rounds = number("PINTLE_BENCH_ROUNDS", ROUNDS)?.max(1);
        let seconds = number("PINTLE_BENCH_SECONDS", 60)?.max(1);
        let phases = Phases::asked()?;
        let window = Duration::from_secs(seconds as u64);
        let in_guest = match std::env::var("PINTLE_BENCH_NODE").as_deref() {
            Err(_) | Ok("namespaces") => false,
            Ok("guest") => true,
            Ok(other) => bail!("PINTLE_BENCH_NODE is namespaces or guest, not {other}"),
        };
        let size = Self { pods, phases, rounds, window, in_guest };
        ensure!(
            size.is_usual() || !in_guest,
            "PINTLE_BENCH_PODS is at most {PODS_USUAL} with PINTLE_BENCH_NODE=guest"
        );
        Ok(size)
    }

    fn is_usual(self) -> bool {
        self.pods <= PODS_USUAL
    }
}

fn number(name: &str, usual: usize) -> Result<usize> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name} is a number, not {text:?}")),
        Err(_) => Ok(usual),
    }
}

/// Ends the cluster with the run, however that ends.
struct RatioCluster(Cluster);

impl Drop for RatioCluster {
    fn drop(&mut self) {
        if let Err(error) = self.0.down() {
            eprintln!("the cluster {CLUSTER} was not removed: {error:#}");
        }
    }
}

/// Measures both agents and prints the table.
pub fn run(ours: &Agent, size: RatioSize) -> Result<()> {
    let own = RatioCluster(Cluster::of_this_run(CLUSTER)?.with_nodes(1)?);
    let cluster = &own.0;
    // Removes leftovers of a killed run.
    cluster.down()?;
    if size.in_guest {
        uml::require_iptables()?;
        cluster.up_control_plane()?;
        let node = timed("boot", "a guest", || RatioGuest::join(cluster, &Agent::KubeletAlone))?;
        return compare(cluster, &node, ours, size);
    }
    cluster.choose_agent(pods::NODE, &Agent::KubeletAlone)?;
    if !size.is_usual() {
        cluster.configure_agent(pods::NODE, &json!({"maxPods": 2 * size.pods}))?;
    }
    cluster.up()?;
    compare(cluster, &RatioNamespaces(cluster), ours, size)
}

/// Measures both agents on a node that runs.
fn compare(cluster: &Cluster, node: &dyn RatioNode, ours: &Agent, size: RatioSize) -> Result<()> {
    prepare(cluster)?;
    let (mut our_figures, mut kubelets) = (MeasuredNumbers::default(), MeasuredNumbers::default());
    for round in 0..=size.rounds {
        let mut sides =
            [(&Agent::KubeletAlone, "kubelet", &mut kubelets), (ours, "ours", &mut our_figures)];
        if round % 2 == 0 {
            sides.reverse();
        }
        for (agent, name, figures) in sides {
            let text = format!("{name}, round {round} of {}", size.rounds);
            timed("measure", &text, || {
                node.restart(agent)?;
                let measured = RatioSide::of(cluster, node, size)?.measure()?;
                say(name, &measure::summary(&measured));
                if round > 0 {
                    figures.extend(measured);
                }
                Ok(())
            })?;
        }
    }
    println!("{} pods, {} s of CPU time counted", size.pods, size.window.as_secs());
    let rows = measure::rows(&our_figures, &kubelets);
    let name = if size.in_guest { "node_cluster_guest" } else { "node_cluster" };
    let kept = bench_report::show(name, "kubelet", &rows)?;
    let chart = kept.with_extension("svg");
    fs::write(&chart, chart::bars("kubelet", &rows))
        .with_context(|| format!("write {}", chart.display()))?;
    say("kept", &format!("{} and {}", kept.display(), chart.display()));
    Ok(())
}

/// The namespace, with the account and the certificate that every pod of it is given.
fn prepare(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["create", "namespace", pods::NAMESPACE])?;
    let given =
        ["get", "-n", pods::NAMESPACE, "serviceaccount/default", "configmap/kube-root-ca.crt"];
    let deadline = Instant::now() + PREPARE_MAX;
    while let Err(error) = cluster.kubectl(&given) {
        ensure!(Instant::now() < deadline, "the controllers did not fill the namespace: {error:#}");
        thread::sleep(ASK_EVERY);
    }
    Ok(())
}
