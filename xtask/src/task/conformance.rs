//! `cargo xtask conformance`: upstream's end-to-end tests on a cluster of ours or on a running one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use super::cluster::name;
use crate::cluster::controllers::{OURS, UPSTREAM};
use crate::cluster::{Agent, Cluster, Controllers};
use crate::conformance::{self, Selection, Summary};
use crate::node::agent;
use crate::shell::timed;
use crate::{repository, supervisor, uml};

/// The tests that run when the arguments name none.
const CONFORMANCE: &str = r"\[Conformance\]";
/// Tests at once: they wait for most of their time.
const PROCS: usize = 6;
const USAGE: &str = "\
usage: cargo xtask conformance [--name NAME] [OPTION]...
  --focus RE     tests whose name matches (default: \\[Conformance\\])
  --skip RE      but not those
  --fast         the subset that CI runs
  --storage      upstream's suites of volumes, with images of CSI drivers; --focus and --skip after it
                 select other tests
  --procs N      how many at once (default 6)
  --agent A      the nodes' agent: pintle (default), kubelet, or a program's path
  --scheduler S  kube-scheduler (default), pintle, or a program's path
  --controllers C  kube-controller-manager (default), or a manager of ours beside it for some of its
                 controllers: pintle or a program's path, then :LOOP,LOOP.. (default: all that it has)
  --guests       nodes are guests with cgroup v2 and systemd, see `cargo xtask uml`; they and the
                 cluster are removed afterwards, so it takes no --keep and no --name. Needs
                 PINTLE_UML_KERNEL=own, because kube-proxy needs iptables
  --keep         leave the cluster running
Uses the cluster of that name if it is up, with the agents that it has unless --agent is there, and
with its scheduler and controllers unless --scheduler or --controllers is.";

/// Runs the suite as the arguments ask for; fails if a test fails that the original passes, or if
/// tests that were chosen did not run.
pub(super) fn run(all: &[&str]) -> Result<ExitCode> {
    let is_named = all.first() == Some(&"--name");
    let (name, mut args) = name(all)?;
    let mut selection = Selection {
        focus: CONFORMANCE.to_owned(),
        skip: String::new(),
        procs: PROCS,
        count: None,
        deploys_drivers: false,
    };
    let (mut programs, mut keep, mut guests) = (Programs::default(), false, false);
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
            ["--storage", rest @ ..] => {
                selection = Selection::storage(selection.procs);
                rest
            }
            ["--keep", rest @ ..] => {
                keep = true;
                rest
            }
            ["--guests", rest @ ..] => {
                guests = true;
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
                programs.agent = Some(Agent::parse(value)?);
                rest
            }
            ["--scheduler", value, rest @ ..] => {
                programs.scheduler = Some(Scheduler::parse(value)?);
                rest
            }
            ["--controllers", value, rest @ ..] => {
                programs.controllers = Some(parse_controllers(value)?);
                rest
            }
            [wrong, ..] => bail!("conformance has no option {wrong}\n{USAGE}"),
        }
    }
    if guests {
        check_guests(keep, is_named)?;
        return on_guests(all, &programs, &selection);
    }
    on_cluster(&name, &programs, keep, &selection)
}

/// Refuses options that have no effect on a cluster with guests.
pub(super) fn check_guests(keep: bool, is_named: bool) -> Result<()> {
    ensure!(
        !(keep || is_named),
        "--guests takes no --keep and no --name: its cluster is removed with the run"
    );
    Ok(())
}

/// Programs that the arguments name; without one the cluster keeps its own.
#[derive(Default)]
struct Programs {
    agent: Option<Agent>,
    scheduler: Option<Scheduler>,
    /// `Some(None)` is upstream's manager alone.
    controllers: Option<Option<Controllers>>,
}

impl Programs {
    /// Records the choices and stops processes of other programs.
    fn choose(&self, cluster: &Cluster) -> Result<()> {
        let wanted =
            self.agent.clone().or_else(|| (!cluster.is_up()).then_some(Agent::Pintle(None)));
        if let Some(agent) = wanted {
            for node in cluster.nodes() {
                cluster.choose_agent(node, &agent)?;
                cluster.stop(&format!("{node}-agent"))?;
            }
        }
        if let Some(scheduler) = &self.scheduler {
            cluster.choose_scheduler(scheduler.program())?;
            cluster.stop("scheduler")?;
        }
        if let Some(controllers) = &self.controllers {
            cluster.choose_controllers(controllers.as_ref())?;
            cluster.stop(OURS)?;
            cluster.stop(UPSTREAM)?;
        }
        Ok(())
    }
}

/// Reads `kube-controller-manager`, `pintle` or a path, the latter two with `:LOOP,LOOP..`; builds
/// ours when no file is named.
fn parse_controllers(text: &str) -> Result<Option<Controllers>> {
    let (program, loops) = text.split_once(':').unwrap_or((text, ""));
    let program = match program {
        "kube-controller-manager" if loops.is_empty() => return Ok(None),
        "pintle" => agent::build("pintle-controllers")?,
        path if path.contains('/') => {
            fs::canonicalize(path).with_context(|| format!("find {path}"))?
        }
        _ => bail!(
            "controllers are `kube-controller-manager`, `pintle[:LOOP,..]` or `PATH[:LOOP,..]`"
        ),
    };
    Controllers::new(program, loops).map(Some)
}

/// The scheduler of the cluster.
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
    programs: &Programs,
    keep: bool,
    selection: &Selection,
) -> Result<ExitCode> {
    conformance::prepare()?;
    let cluster = Cluster::named(name)?;
    let is_ours = !cluster.is_up();
    programs.choose(&cluster)?;
    let result = cluster.up().and_then(|()| conformance::run(&cluster, selection));
    if is_ours && !keep {
        cluster.down()?;
    }
    conclude(&result?, selection)
}

/// Runs the suite on a cluster of this run with two nodes, which are guests.
fn on_guests(args: &[&str], programs: &Programs, selection: &Selection) -> Result<ExitCode> {
    if let Some(code) = supervisor::rerun("conformance", args)? {
        return Ok(code);
    }
    conformance::prepare()?;
    uml::require_iptables()?;
    let cluster = Cluster::of_this_run("guests")?;
    let result = in_guests(&cluster, programs, selection);
    cluster.down()?;
    conclude(&result?, selection)
}

fn in_guests(cluster: &Cluster, programs: &Programs, selection: &Selection) -> Result<Summary> {
    programs.choose(cluster)?;
    cluster.up_control_plane()?;
    let agent = programs.agent.clone().unwrap_or(Agent::Pintle(None));
    let agent = cluster.agent_program(&agent)?;
    let join = |name: &String| {
        timed("boot", &format!("guest {name}"), || uml::Node::join_whole(cluster, name, &agent))
    };
    let nodes = cluster.nodes().iter().map(join).collect::<Result<Vec<_>>>()?;
    let result = conformance::run(cluster, selection);
    for (name, node) in cluster.nodes().iter().zip(&nodes) {
        let log = repository().join(format!("target/conformance/{name}-agent.log"));
        fs::write(&log, node.journal("pintle-agent"))?;
    }
    result
}

fn conclude(summary: &Summary, selection: &Selection) -> Result<ExitCode> {
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
