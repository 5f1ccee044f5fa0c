//! The same pods on a node of the kubelet and on one of ours, and everything about them compared.
//!
//! Input: the cases in `tests/differential`, each a file of objects with states to wait for and
//! actions that follow. Every case runs twice at the same time, on both nodes of one cluster, in a
//! namespace of its own. Output: a table of cases, and a line for each difference that
//! `tests/differential/expected.txt` does not list. Observations are kept in `target/differential`.
//!
//! - `case`: files; `api`: the API server's objects as they change; `drive`: one pod's life
//! - `look`: the current state. `observe`: the pod's state on its node, with `runtime`, `files`,
//!   `cgroups`; `calls`: the CRI calls that the runtime received; `access`: ways to a node.
//!   `events`: the pod's events in the API server
//! - `normal`: values that differ in any two runs; `flat`: objects as lines; `expected`, `report`
//!
//! A case that differs runs once more, alone, because a busy machine can cause a difference that
//! does not repeat. The second run counts; the first one is printed and its files stay as
//! `CASE.first.NODE.txt`.
//!
//! Text is compared: paths and values. A time, an id, an address become placeholders.

mod access;
mod api;
mod calls;
mod case;
mod cgroups;
mod drive;
mod events;
mod expected;
mod files;
mod flat;
mod look;
mod normal;
mod observe;
mod report;
mod runtime;

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use regex::Regex;

pub use self::access::observe_here;
use self::access::{GuestNode, NamespacedNode, NodeAccess};
use self::api::ApiConnection;
pub use self::case::Case;
use self::drive::CaseSide;
use self::expected::Expected;
use self::flat::Lines;
use crate::cluster::{Agent, Cluster};
use crate::repository;
use crate::shell::{say, timed};

/// Cases at once: they wait for most of their time.
pub const PROCS: usize = 8;
/// The nodes: the kubelet's and ours.
const NODES: [&str; 2] = ["n1", "n2"];
/// Folder of cases and expected differences.
const FOLDER: &str = "tests/differential";
/// containerd logs commands inside containers at this level only.
const CONTAINERD: &str = "[debug]\nlevel = \"debug\"\n";

/// Result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Differences that `expected.txt` does not list.
    pub unexplained: usize,
}

/// One case as both nodes had it.
struct Compared {
    case: Case,
    seconds: f64,
    aspects: usize,
    differences: Vec<flat::Difference>,
    /// Differences of an earlier run of the case that `expected.txt` does not list.
    earlier: Vec<flat::Difference>,
}

/// The cases with matching names.
pub fn cases(focus: &Regex) -> Result<Vec<Case>> {
    let mut cases = case::read_all(&repository().join(FOLDER))?;
    cases.retain(|c| focus.is_match(&c.name));
    ensure!(!cases.is_empty(), "no case in {FOLDER} has a name that matches {focus}");
    Ok(cases)
}

/// Chooses the agents and how much the runtimes log; before the cluster starts.
pub fn prepare(cluster: &Cluster, agent: Option<Agent>) -> Result<()> {
    let [theirs, ours] = NODES;
    if !cluster.is_up() {
        cluster.choose_agent(theirs, &Agent::Kubelet)?;
        cluster.choose_agent(ours, &agent.unwrap_or(Agent::Pintle(None)))?;
        for node in NODES {
            fs::write(cluster.layout().node(node).join("containerd-extra.toml"), CONTAINERD)?;
        }
    } else {
        if let Some(agent) = agent {
            cluster.choose_agent(ours, &agent)?;
        }
        // An agent remembers which events it has emitted, and static pods have the same ids again.
        for node in NODES {
            cluster.stop(&crate::cluster::node::agent_process(node))?;
        }
    }
    Ok(())
}

/// Runs the cases on a running cluster and prints the results.
pub fn on_cluster(cluster: &Cluster, cases: Vec<Case>, procs: usize) -> Result<Outcome> {
    let nodes = NODES.map(|name| NamespacedNode { cluster, name });
    let [theirs, ours] = &nodes;
    Comparison::start(cluster, [theirs, ours])?.run(cases, procs)
}

/// Boots guests with the kubelet and with our agent as nodes of a cluster that does not run, runs
/// the cases there and prints the results.
pub fn on_guests(
    cluster: &Cluster,
    agent: Option<Agent>,
    cases: Vec<Case>,
    procs: usize,
) -> Result<Outcome> {
    // The program of all components is called by the name of its unit in a guest.
    let agents = [Agent::KubeletAlone, agent.unwrap_or(Agent::Pintle(None))];
    let programs = agents.iter().map(|agent| cluster.agent_program(agent));
    let programs = programs.collect::<Result<Vec<_>>>()?;
    cluster.up_control_plane()?;
    let join = |(name, program): (&str, &PathBuf)| {
        timed("boot", &format!("guest {name}"), || GuestNode::join(cluster, name, program))
    };
    let nodes = NODES.into_iter().zip(&programs).map(join).collect::<Result<Vec<_>>>()?;
    let outcome = Comparison::start(cluster, [&nodes[0], &nodes[1]])?.run(cases, procs);
    for (name, node) in NODES.iter().zip(&nodes) {
        let path = repository().join(format!("target/differential/{name}-agent.log"));
        fs::write(&path, node.agent_log()).with_context(|| format!("write {}", path.display()))?;
    }
    outcome
}

/// State shared by the cases of a run.
struct Comparison<'a> {
    nodes: [&'a dyn NodeAccess; 2],
    api: ApiConnection,
    expected: Expected,
    /// The folder of observations.
    kept: PathBuf,
}

impl<'a> Comparison<'a> {
    fn start(cluster: &Cluster, nodes: [&'a dyn NodeAccess; 2]) -> Result<Self> {
        let expected = Expected::read(&repository().join(FOLDER).join("expected.txt"))?;
        Ok(Self { nodes, expected, kept: kept()?, api: ApiConnection::start(cluster)? })
    }

    fn run(&self, cases: Vec<Case>, procs: usize) -> Result<Outcome> {
        let begin = Instant::now();
        let total = cases.len();
        let (alone, together): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|c| c.is_alone);
        let done: Mutex<Vec<Compared>> = Mutex::default();
        for (cases, procs) in [(together, procs.max(1)), (alone, 1)] {
            let waiting = Mutex::new(VecDeque::from(cases));
            thread::scope(|scope| {
                for _ in 0..procs {
                    scope.spawn(|| {
                        while let Some(case) = pop(&waiting) {
                            let compared = self.compare(case, "a");
                            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                            let which = format!("{}/{total}", done.len() + 1);
                            say(&which, &report::progress(&compared));
                            done.push(compared);
                        }
                    });
                }
            });
        }
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        for compared in &mut done {
            self.again(compared)?;
        }
        done.sort_by(|a, b| a.case.name.cmp(&b.case.name));
        let unexplained = report::print(&done, &self.expected);
        let kept = self.kept.display();
        say("done", &format!("in {:.0} s; see {kept}", begin.elapsed().as_secs_f64()));
        Ok(Outcome { unexplained })
    }

    /// Runs a differing case once more, alone; if it no longer differs, a third run decides.
    fn again(&self, compared: &mut Compared) -> Result<()> {
        let is_open = |compared: &Compared| !self.expected.sort(compared).1.is_empty();
        if !is_open(compared) {
            return Ok(());
        }
        let earlier: Vec<_> = self.expected.sort(compared).1.into_iter().cloned().collect();
        for (round, suffix) in [("b", ".first"), ("c", ".second")] {
            let case = compared.case.clone();
            for node in NODES {
                let file =
                    |suffix: &str| self.kept.join(format!("{}{suffix}.{node}.txt", case.name));
                fs::rename(file(""), file(suffix)).context("keep what was seen before")?;
            }
            let once_more = self.compare(case, round);
            *compared = Compared { earlier: earlier.clone(), ..once_more };
            say("again", &report::progress(compared));
            if is_open(compared) {
                return Ok(()); // two runs differed
            }
        }
        Ok(())
    }

    /// Runs one case on both nodes at once.
    fn compare(&self, case: Case, round: &str) -> Compared {
        let begin = Instant::now();
        let seen: Vec<Lines> = thread::scope(|scope| {
            let sides = [0, 1].map(|at| {
                let side = CaseSide::new(&self.api, &case, round, NODES[at], self.nodes[at]);
                scope.spawn(move || side.run())
            });
            sides.map(|s| lines(s.join().unwrap_or_else(|_| Err(anyhow!("it panicked"))))).into()
        });
        for (node, lines) in NODES.iter().zip(&seen) {
            let path = self.kept.join(format!("{}.{node}.txt", case.name));
            if let Err(error) = fs::write(&path, flat::text(lines)) {
                say("failed", &format!("write {}: {error}", path.display()));
            }
        }
        let mut differences = flat::differences(&seen[0], &seen[1]);
        differences.extend(never_came(&seen[0], &seen[1]));
        let aspects = flat::aspects(&seen[0], &seen[1]).len();
        let seconds = begin.elapsed().as_secs_f64();
        Compared { case, seconds, aspects, differences, earlier: Vec::new() }
    }
}

fn pop(waiting: &Mutex<VecDeque<Case>>) -> Option<Case> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

/// The folder of observations, emptied.
fn kept() -> Result<PathBuf> {
    let dir = repository().join("target/differential");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    Ok(dir)
}

/// Waits for a state that neither side reached: such a case compares two pods in an unknown state,
/// so it fails although both are alike.
fn never_came(theirs: &Lines, ours: &Lines) -> Vec<flat::Difference> {
    let missed = theirs.iter().filter(|((aspect, path), value)| {
        aspect.starts_with("wait") && path == "missing" && *value != drive::CAME
    });
    let alike = missed.filter(|(at, value)| ours.get(*at) == Some(*value));
    let told = |((aspect, path), value): (&(String, String), &String)| flat::Difference {
        aspect: aspect.clone(),
        path: path.clone(),
        theirs: Some(value.clone()),
        ours: Some(value.clone()),
    };
    alike.map(told).collect()
}

/// A failure of the driver itself is a difference, too, even when both sides fail alike.
fn lines(seen: Result<Lines>) -> Lines {
    seen.unwrap_or_else(|error| {
        let mut lines = Lines::new();
        let now = format!("{error:#} ({:?})", Instant::now());
        lines.insert(("run".to_owned(), "failed".to_owned()), now);
        lines
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awaited_state_reached_on_neither_side_is_a_difference() {
        let lines = |value: &str| {
            Lines::from([(("wait@2".to_owned(), "missing".to_owned()), value.to_owned())])
        };
        assert!(never_came(&lines(drive::CAME), &lines(drive::CAME)).is_empty());
        assert!(
            never_came(&lines(drive::CAME), &lines("ready")).is_empty(),
            "the difference is reported anyway"
        );
        let told = never_came(&lines("ready"), &lines("ready"));
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].ours.as_deref(), Some("ready"));
    }
}
