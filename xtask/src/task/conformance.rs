//! `cargo xtask conformance`: upstream's end-to-end tests on a cluster of ours or on a running one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::cluster::name;
use crate::cluster::{Agent, Cluster};
use crate::conformance::{self, Selection};
use crate::node::agent;

/// What is run when nothing else is asked for.
const CONFORMANCE: &str = r"\[Conformance\]";
/// Tests at once: they wait for most of their time.
const PROCS: usize = 6;
const USAGE: &str = "\
usage: cargo xtask conformance [--name NAME] [OPTION]...
  --focus RE     tests whose name matches (default: \\[Conformance\\])
  --skip RE      but not those
  --fast         the subset that CI runs
  --procs N      how many at once (default 6)
  --agent A      the nodes' agent: pintle (default), kubelet, or a program's path
  --scheduler S  kube-scheduler (default), pintle, or a program's path
  --keep         leave the cluster running
Uses the cluster of that name if it is up, with the agents that it has unless --agent is there, and
with its scheduler unless --scheduler is.";

/// Runs the suite as the arguments ask for; fails if a test fails that the original passes, or if
/// tests that were chosen did not run.
pub(super) fn run(args: &[&str]) -> Result<ExitCode> {
    let (name, mut args) = name(args)?;
    let mut selection =
        Selection { focus: CONFORMANCE.to_owned(), skip: String::new(), procs: PROCS, count: None };
    let (mut agent, mut scheduler, mut keep) = (None, None, false);
    loop {
        args = match args {
            [] => break,
            ["help" | "--help" | "-h", ..] => {
                println!("{USAGE}");
                return Ok(ExitCode::SUCCESS);
            }
            ["--fast", rest @ ..] => {
                selection = Selection::fast(selection.procs)?;
                rest
            }
            ["--keep", rest @ ..] => {
                keep = true;
                rest
            }
            ["--focus", value, rest @ ..] => {
                selection.focus = (*value).to_owned();
                selection.count = None;
                rest
            }
            ["--skip", value, rest @ ..] => {
                selection.skip = (*value).to_owned();
                selection.count = None;
                rest
            }
            ["--procs", value, rest @ ..] => {
                selection.procs = value.parse().context("--procs takes a number")?;
                rest
            }
            ["--agent", value, rest @ ..] => {
                agent = Some(Agent::parse(value)?);
                rest
            }
            ["--scheduler", value, rest @ ..] => {
                scheduler = Some(Scheduler::parse(value)?);
                rest
            }
            [wrong, ..] => bail!("conformance has no option {wrong}\n{USAGE}"),
        }
    }
    on_cluster(&name, (agent, scheduler), keep, &selection)
}

/// Who schedules.
#[derive(Clone, Debug)]
enum Scheduler {
    Upstream,
    Ours(PathBuf),
}

impl Scheduler {
    /// Reads `kube-scheduler`, `pintle` or a path; builds ours when no file is named.
    fn parse(text: &str) -> Result<Self> {
        Ok(match text {
            "kube-scheduler" => Self::Upstream,
            "pintle" => Self::Ours(agent::build("pintle-scheduler")?),
            path if path.contains('/') => {
                Self::Ours(fs::canonicalize(path).with_context(|| format!("find {path}"))?)
            }
            _ => bail!("a scheduler is `kube-scheduler`, `pintle` or the path of a program"),
        })
    }

    fn program(&self) -> Option<&Path> {
        match self {
            Self::Upstream => None,
            Self::Ours(path) => Some(path),
        }
    }
}

fn on_cluster(
    name: &str,
    (agent, scheduler): (Option<Agent>, Option<Scheduler>),
    keep: bool,
    selection: &Selection,
) -> Result<ExitCode> {
    conformance::prepare()?;
    let cluster = Cluster::named(name)?;
    let is_ours = !cluster.is_up();
    let wanted = agent.or_else(|| is_ours.then_some(Agent::Pintle(None)));
    if let Some(agent) = wanted {
        for node in cluster.nodes() {
            cluster.choose_agent(node, &agent)?;
            cluster.stop(&format!("{node}-agent"))?;
        }
    }
    if let Some(scheduler) = scheduler {
        cluster.choose_scheduler(scheduler.program())?;
        cluster.stop("scheduler")?;
    }
    let result = cluster.up().and_then(|()| conformance::run(&cluster, selection));
    if is_ours && !keep {
        cluster.down()?;
    }
    let summary = result?;
    let all_ran = selection.count.is_none_or(|count| count == summary.ran());
    let is_good = summary.regressions == 0 && !summary.is_suite_broken && all_ran;
    if summary.ran() == 0 || !is_good {
        println!(
            "{} tests ran; the suite got through: {}",
            summary.ran(),
            !summary.is_suite_broken
        );
    }
    Ok(if is_good && summary.ran() > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
