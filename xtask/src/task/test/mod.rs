//! `cargo xtask test`: everything that CI runs, in the order in which failures are cheapest.
//! Computing stages run beside the stages that mostly wait, see `beside`; artefacts of later stages
//! are built beside the earlier ones, see `ahead`.
//!
//! A failed stage does not stop the next: one run shows all failures. A program that crashed, a
//! chosen test that did not run, and a test that was skipped where none may be, are failures like
//! any other. Where tests race with a real kernel and a real runtime, a failed test runs once more,
//! alone; if it passes then, it is counted as flaky, which is a bug to be fixed. The last line is
//! the summary, with the exit code to match. The run is supervised: whatever ends it ends its
//! processes.

mod ahead;
mod beside;
mod checks;
mod fuzz;
mod logged;
mod nodes;
mod programs;
mod report;
mod sample;
mod sanity;
mod skips;
mod suites;
mod vectors;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use self::checks::ended_well;
use self::programs::{Choice, ProgramOutcome, StageProgram};
use self::report::{TestCounts, report, summary, timed};
use self::skips::Skips;
use super::{demo, prepare};
use crate::node::agent;
use crate::shell::{self, cargo};
use crate::supervisor;

/// The stages, in order.
const STAGES: [Stage; 20] = [
    Stage { name: "fmt", needs_tools: false, run: checks::fmt },
    Stage { name: "tidy", needs_tools: false, run: checks::tidy },
    Stage { name: "clippy", needs_tools: true, run: checks::clippy },
    Stage { name: "doc", needs_tools: true, run: checks::doc },
    Stage { name: "build", needs_tools: true, run: build },
    Stage { name: "unit", needs_tools: true, run: unit },
    Stage { name: "parity", needs_tools: true, run: parity },
    Stage { name: "sim", needs_tools: true, run: sim },
    Stage { name: "loom", needs_tools: true, run: checks::loom },
    Stage { name: "fuzz", needs_tools: true, run: fuzz::run },
    Stage { name: "agent", needs_tools: true, run: agent },
    Stage { name: "e2e", needs_tools: true, run: nodes::e2e },
    Stage { name: "hostile", needs_tools: true, run: nodes::hostile },
    Stage { name: "cluster", needs_tools: true, run: nodes::cluster },
    Stage { name: "storage", needs_tools: true, run: nodes::storage },
    Stage { name: "uml", needs_tools: true, run: nodes::uml },
    Stage { name: "scheduler", needs_tools: true, run: nodes::scheduler },
    Stage { name: "controllers", needs_tools: true, run: nodes::controllers },
    Stage { name: "vectors", needs_tools: true, run: vectors::run },
    Stage { name: "conformance", needs_tools: true, run: nodes::conformance },
];
/// Stages that run only when they are named: other stages cover them, or, for `csi-sanity`, they
/// check a program of the tests alone.
const BY_NAME: [Stage; 5] = [
    Stage { name: "suites", needs_tools: true, run: suites::run },
    Stage { name: "kubeadm", needs_tools: true, run: nodes::kubeadm },
    Stage { name: "pure", needs_tools: false, run: pure },
    Stage { name: "demo", needs_tools: true, run: demo },
    Stage { name: "csi-sanity", needs_tools: true, run: csi_sanity },
];
/// Stages made of tests: those that a name filter is applied to.
const FILTERED: [&str; 10] = [
    "unit",
    "parity",
    "sim",
    "e2e",
    "hostile",
    "cluster",
    "storage",
    "uml",
    "scheduler",
    "controllers",
];
/// Has every suite run whole.
const ALL: &str = "--all";
/// Has suites run as samples, as in a run of everything: for its lanes.
const SAMPLED: &str = "--sampled";
/// The name of the stages that need no root, no Go and no compiler but Rust's and a linker.
const QUICK: &str = "quick";
const QUICK_STAGES: [&str; 3] = ["fmt", "tidy", "pure"];
/// The deciding crates: their tests need only the CPU.
const DECIDING: [&str; 8] = [
    "pintle-api-types",
    "pintle-cel",
    "pintle-config",
    "pintle-agent-config",
    "pintle-agent-core",
    "pintle-sched-core",
    "pintle-scheduler-core",
    "pintle-scheduler",
];
/// Variable with the first seed of the simulator's fresh worlds.
const FRESH_WORLDS: &str = "PINTLE_FRESH";
/// How many worlds of each sort it runs, and how many for a sample.
const WORLDS: &str = "PINTLE_SEEDS";
const SAMPLED_WORLDS: &str = "150";
/// Digits of a tree's name that become a number.
const FRESH_DIGITS: usize = 12;

struct Stage {
    name: &'static str,
    needs_tools: bool,
    run: fn(&TestRun) -> Result<TestCounts>,
}

/// Options of one invocation.
struct TestRun {
    filter: Option<String>,
    /// True if suites that passed with the same inputs may run as samples.
    may_sample: bool,
    skips: Skips,
    /// The agent of the end-to-end tests, once it was needed; locked while it is built.
    agent: Mutex<Option<PathBuf>>,
    /// The test programs, once all of them were built.
    built: OnceLock<Vec<StageProgram>>,
}

impl TestRun {
    fn new(filter: Option<String>, may_sample: bool) -> Self {
        let skips = Skips::of("tests");
        Self { filter, may_sample, skips, agent: Mutex::default(), built: OnceLock::new() }
    }

    /// The agent of the end-to-end tests: `PINTLE_AGENT`, else a build for them.
    fn agent(&self) -> Result<PathBuf> {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = &*agent {
            return Ok(path.clone());
        }
        let path = match std::env::var_os("PINTLE_AGENT") {
            Some(path) => fs::canonicalize(path).context("PINTLE_AGENT")?,
            None => agent::build_tested("pintle-agent")?,
        };
        Ok(agent.insert(path).clone())
    }

    /// The test programs of a stage, built now or with all others.
    fn programs(&self, choice: Choice) -> Result<Vec<StageProgram>> {
        let Some(built) = self.built.get() else { return programs::build(&choice.args()?) };
        let chosen: Vec<StageProgram> = built.iter().filter(|p| choice.has(p)).cloned().collect();
        ensure!(!chosen.is_empty(), "there is no test program of {choice:?}");
        Ok(chosen)
    }
}

/// The test program of a stage that has one alone, built now.
pub(super) fn program(stage: &'static str) -> Result<PathBuf> {
    let args = ["--test".to_owned(), stage.to_owned()];
    let programs = programs::build(&args)?;
    programs.into_iter().next().map(StageProgram::into_path).context("cargo names the program")
}

fn all() -> impl Iterator<Item = &'static Stage> {
    STAGES.iter().chain(&BY_NAME)
}

/// The stages, or the tests, that the arguments choose.
#[derive(Debug, PartialEq, Eq)]
enum Chosen<'a> {
    Help,
    /// All but those of `BY_NAME`.
    Everything,
    Stages(Vec<&'a str>),
    /// The tests with the word in their names.
    Tests(&'a str),
}

impl<'a> Chosen<'a> {
    fn parse(args: &[&'a str]) -> Result<Self> {
        let is_stage = |name: &&str| all().any(|stage| stage.name == *name);
        Ok(match args {
            [] => Self::Everything,
            ["help" | "--help" | "-h"] => Self::Help,
            [option, ..] if option.starts_with('-') => {
                bail!("test has no option {option}\n{}", usage())
            }
            [QUICK] => Self::Stages(QUICK_STAGES.to_vec()),
            names if names.iter().all(is_stage) => Self::Stages(names.to_vec()),
            [filter] => Self::Tests(filter),
            _ => bail!("`cargo xtask test` takes names of stages, or one part of a test's name"),
        })
    }

    fn stages(&self) -> Vec<&'static Stage> {
        let of = |names: &[&str]| all().filter(|stage| names.contains(&stage.name)).collect();
        match self {
            Self::Help => Vec::new(),
            Self::Everything => STAGES.iter().filter(|stage| !beside::has(stage.name)).collect(),
            Self::Stages(names) => of(names),
            Self::Tests(_) => of(&FILTERED),
        }
    }
}

/// Runs what the arguments choose, under supervision.
pub(super) fn run(args: &[&str]) -> Result<ExitCode> {
    let (option, names) = match args {
        [option @ (ALL | SAMPLED), names @ ..] => (Some(*option), names),
        names => (None, names),
    };
    let chosen = Chosen::parse(names)?;
    if chosen == Chosen::Help {
        println!("{}", usage());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(code) = supervisor::rerun("test", args)? {
        return Ok(code);
    }
    let filter = match chosen {
        Chosen::Tests(filter) => Some(filter.to_owned()),
        _ => None,
    };
    let stages = chosen.stages();
    if stages.iter().any(|stage| stage.needs_tools) {
        prepare::build_tools()?;
    }
    let is_everything = chosen == Chosen::Everything;
    let may_sample = option == Some(SAMPLED) || (is_everything && option.is_none());
    let total = run_stages(&stages, &Arc::new(TestRun::new(filter, may_sample)), is_everything);
    println!("{}", summary(&total));
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the stages one after the other; a run of everything has the lanes beside them.
fn run_stages(stages: &[&'static Stage], run: &Arc<TestRun>, is_everything: bool) -> TestCounts {
    if is_everything {
        ahead::start();
    }
    let (mut rows, mut lanes) = (Vec::new(), Vec::new());
    for stage in stages {
        rows.push(timed(stage.name, || (stage.run)(run)));
        if !is_everything {
            continue;
        }
        if stage.name == "build" {
            ahead::build_agent(run);
        }
        let next = beside::LANES.iter().filter(|lane| lane.after == stage.name);
        let option = if run.may_sample { SAMPLED } else { ALL };
        lanes.extend(next.map(|lane| (lane.name, lane.start(option))));
    }
    rows.extend(lanes.into_iter().map(|(name, lane)| timed(name, || lane?.end())));
    report(&rows)
}

fn usage() -> String {
    let names: Vec<_> = all().map(|stage| stage.name).collect();
    format!(
        "usage: cargo xtask test [{ALL}] | STAGE... | {QUICK} | PART-OF-A-NAME\n\
         Runs all stages, those that are named, or the tests whose name has this part.\n\
         Of all stages, suites that passed here with the same inputs run as samples but for {ALL}.\n\
         {QUICK}: {}. Stages: {}",
        QUICK_STAGES.join(", "),
        names.join(", ")
    )
}

/// All programs and all tests, so that later stages find them built.
fn build(run: &TestRun) -> Result<TestCounts> {
    shell::run(&mut cargo(&["build", "--locked", "--quiet", "--workspace"]))?;
    let programs = programs::build(&Choice::All.args()?)?;
    run.built.get_or_init(|| programs);
    Ok(TestCounts::PASSED)
}

/// Every test that no later stage runs. All stages select the whole workspace, because cargo
/// unites the features of what is selected: another selection would compile half of it again.
fn unit(run: &TestRun) -> Result<TestCounts> {
    let mut counts = each(Choice::Unit, run)?;
    let mut docs = cargo(&["test", "--locked", "--no-fail-fast", "--workspace", "--doc"]);
    if let Some(filter) = &run.filter {
        docs.args(["--", filter]);
    }
    counts.add(whole(programs::watch(&mut docs, &run.skips)?, "tests in comments"));
    Ok(counts)
}

/// Tests of the pure crates, with the simulator's worlds.
fn pure(run: &TestRun) -> Result<TestCounts> {
    running(&programs::build_packages(&DECIDING)?, run, &[])
}

fn parity(run: &TestRun) -> Result<TestCounts> {
    each(Choice::Stage("parity"), run)
}

/// Thousands of worlds. The fresh ones differ for each version of the agent and are the same in all
/// runs of that version, so that a failure can be reproduced. A sample has others, and fewer.
fn sim(run: &TestRun) -> Result<TestCounts> {
    let extent = sample::SIM.extent(run);
    let first = first_fresh_world(extent.drawn_by()).to_string();
    shell::say("sim", &format!("fresh worlds from {first}; {FRESH_WORLDS}={first} repeats them"));
    let mut env = vec![(FRESH_WORLDS, &*first)];
    env.extend(extent.drawn_by().map(|_| (WORLDS, SAMPLED_WORLDS)));
    let mut args = Choice::Stage("sim").args()?;
    args.extend(["--config", agent::OPTIMIZED].map(str::to_owned));
    let counts = running(&programs::build(&args)?, run, &env);
    extent.conclude(counts, BTreeSet::new())
}

/// The first seed of the fresh worlds: from the variable, else from the tree, else random.
fn first_fresh_world(drawn_by: Option<&str>) -> u64 {
    let asked = std::env::var(FRESH_WORLDS).ok().and_then(|first| first.parse().ok());
    let tree = || drawn_by.map(str::to_owned).or_else(|| sample::git(&["rev-parse", "HEAD:agent"]));
    asked.or_else(|| fresh_worlds_of(&tree()?)).unwrap_or_else(|| {
        shell::say("sim", "git knows no tree here: the clock says where the fresh worlds begin");
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
    })
}

/// The first seed of the fresh worlds of a tree.
fn fresh_worlds_of(tree: &str) -> Option<u64> {
    u64::from_str_radix(tree.get(..FRESH_DIGITS)?, 16).ok()
}

/// Builds the agent of all later stages.
fn agent(run: &TestRun) -> Result<TestCounts> {
    run.agent().map(|_| TestCounts::PASSED)
}

fn demo(_: &TestRun) -> Result<TestCounts> {
    ended_well(demo::run()?, "an example does not do what it is an example of")
}

/// The CSI driver of the tests does what CSI demands of a driver.
fn csi_sanity(_: &TestRun) -> Result<TestCounts> {
    sanity::run()
}

/// Builds the selected programs and runs each once: what they test gives the same answer each
/// time, or is wrong.
fn each(choice: Choice, run: &TestRun) -> Result<TestCounts> {
    running(&run.programs(choice)?, run, &[])
}

/// Runs each program once; `env` is for them.
fn running(programs: &[StageProgram], run: &TestRun, env: &[(&str, &str)]) -> Result<TestCounts> {
    let filter: Vec<&str> = run.filter.as_deref().into_iter().collect();
    let mut total = TestCounts::default();
    for program in programs {
        total.add(program.run(&filter, env, &run.skips)?.counts);
    }
    Ok(total)
}

/// The counts of a run of cargo's, which has failed as a whole if it is not whole.
fn whole(outcome: ProgramOutcome, what: &str) -> TestCounts {
    let mut counts = outcome.counts;
    if !outcome.is_whole {
        shell::say("failed", &format!("{what}: a program ended without a result"));
        counts.failed += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_fresh_world_of_a_tree_is_derived_from_its_hash() {
        let tree = "0123456789abcdef0123456789abcdef01234567\n";
        assert_eq!(fresh_worlds_of(tree), Some(0x0123_4567_89ab));
        assert_eq!(fresh_worlds_of("0123"), None);
        assert_eq!(fresh_worlds_of("not a name at all"), None);
    }

    #[test]
    fn arguments_are_stages_a_group_or_one_part_of_a_name() {
        let parse = |args: &[&'static str]| Chosen::parse(args).expect("understood");
        assert_eq!(parse(&[]), Chosen::Everything);
        assert_eq!(parse(&["fmt", "unit"]), Chosen::Stages(vec!["fmt", "unit"]));
        assert_eq!(parse(&["quick"]), Chosen::Stages(QUICK_STAGES.to_vec()));
        assert_eq!(parse(&["evict"]), Chosen::Tests("evict"));
        for args in [&["--no"][..], &["fmt", "evict"]] {
            assert!(Chosen::parse(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn every_stage_runs_either_in_the_main_line_or_in_a_lane() {
        let main: Vec<_> = Chosen::Everything.stages().iter().map(|stage| stage.name).collect();
        for stage in &STAGES {
            assert_ne!(main.contains(&stage.name), beside::has(stage.name), "{}", stage.name);
        }
    }
}
