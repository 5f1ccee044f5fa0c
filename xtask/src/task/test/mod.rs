//! `cargo xtask test`: everything that CI runs, in the order in which failures are cheapest. What
//! only computes runs beside the stages that mostly wait, see `beside`.
//!
//! A failed stage does not stop the next: one run shows all that is wrong. What counts is what
//! ran: a program that crashed, a test that was chosen and did not run, a test that was skipped
//! where nothing may be, are failures like any other. Where tests race with a real kernel and a
//! real runtime, a failed one is run once more, alone; if it is among those that pass then, it is
//! counted as flaky, which is a bug to be looked at. The last line is the summary, with the exit
//! code to match.

mod beside;
mod fuzz;
mod logged;
mod programs;
mod skips;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use self::beside::Beside;
use self::programs::{Choice, Outcome, Program};
use self::skips::Skips;
use super::{demo, prepare, tidy};
use crate::cluster::{Agent, Cluster};
use crate::conformance::{self, Selection};
use crate::image;
use crate::node::agent;
use crate::repository;
use crate::shell::{self, cargo};
use crate::upstream::Program as UpstreamProgram;

/// The stages, in order.
const STAGES: [Stage; 16] = [
    Stage { name: "fmt", needs_tools: false, run: fmt },
    Stage { name: "tidy", needs_tools: false, run: tidy },
    Stage { name: "clippy", needs_tools: true, run: clippy },
    Stage { name: "doc", needs_tools: true, run: doc },
    Stage { name: "build", needs_tools: true, run: build },
    Stage { name: "unit", needs_tools: true, run: unit },
    Stage { name: "parity", needs_tools: true, run: parity },
    Stage { name: "sim", needs_tools: true, run: sim },
    Stage { name: "loom", needs_tools: true, run: loom },
    Stage { name: "fuzz", needs_tools: true, run: fuzz::run },
    Stage { name: "release", needs_tools: true, run: release },
    Stage { name: "e2e", needs_tools: true, run: e2e },
    Stage { name: "hostile", needs_tools: true, run: hostile },
    Stage { name: "cluster", needs_tools: true, run: cluster },
    Stage { name: "scheduler", needs_tools: true, run: scheduler },
    Stage { name: "conformance", needs_tools: true, run: conformance },
];
/// Stages that run when they are named: what they show is in other stages as well.
const BY_NAME: [Stage; 1] = [Stage { name: "demo", needs_tools: true, run: demo }];
/// Stages made of tests: those that a name filter is applied to.
const FILTERED: [&str; 7] = ["unit", "parity", "sim", "e2e", "hostile", "cluster", "scheduler"];
/// How the simulator is told where its fresh worlds begin.
const FRESH_WORLDS: &str = "PINTLE_FRESH";
/// Digits of a tree's name that become a number.
const FRESH_DIGITS: usize = 12;
/// Failed tests of a stage that are worth a second try; more of them are no accident.
const RETRIED_MAX: usize = 4;

/// Half of the tests of the stage `cluster`, by their names.
const EVICTION: &str = "eviction";
/// How the tests of the stage `cluster` are told of the cluster they share.
const NAMED_CLUSTER: &str = "PINTLE_TEST_CLUSTER";
/// Tests of upstream's suite that run at once: they wait for most of their time.
const SUITE_PROCS: usize = 6;

struct Stage {
    name: &'static str,
    needs_tools: bool,
    run: fn(&Run) -> Result<Counts>,
}

/// What one invocation was asked for.
struct Run {
    filter: Option<String>,
    skips: Skips,
    /// The agent as it is shipped, once it was needed.
    agent: OnceLock<PathBuf>,
    /// The test programs, once all of them were built.
    built: OnceLock<Vec<Program>>,
}

impl Run {
    /// The agent that end-to-end tests are about: `PINTLE_AGENT`, else the release build.
    fn agent(&self) -> Result<&PathBuf> {
        if let Some(path) = self.agent.get() {
            return Ok(path);
        }
        let path = match std::env::var_os("PINTLE_AGENT") {
            Some(path) => fs::canonicalize(path).context("PINTLE_AGENT")?,
            None => agent::build_release()?,
        };
        Ok(self.agent.get_or_init(|| path))
    }

    /// The test programs of a stage, built now or with all others.
    fn programs(&self, choice: Choice) -> Result<Vec<Program>> {
        let Some(built) = self.built.get() else { return programs::build(&choice.args()?) };
        let chosen: Vec<Program> = built.iter().filter(|p| choice.has(p)).cloned().collect();
        ensure!(!chosen.is_empty(), "there is no test program of {choice:?}");
        Ok(chosen)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// Of those that passed: at the second try.
    flaky: usize,
}

impl Counts {
    /// One yes.
    const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0, flaky: 0 };

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.flaky += other.flaky;
    }
}

fn all() -> impl Iterator<Item = &'static Stage> {
    STAGES.iter().chain(&BY_NAME)
}

/// Runs all stages but those of `BY_NAME`, the named ones, or the tests whose name contains the word.
pub(super) fn run(args: &[&str]) -> Result<ExitCode> {
    let (named, filter) = match args {
        [] => (Vec::new(), None),
        ["help" | "--help" | "-h"] => {
            println!("{}", usage());
            return Ok(ExitCode::SUCCESS);
        }
        [option] if option.starts_with('-') => bail!("test has no option {option}\n{}", usage()),
        names if names.iter().all(|n| all().any(|s| s.name == *n)) => (names.to_vec(), None),
        [filter] => (FILTERED.to_vec(), Some((*filter).to_owned())),
        _ => bail!("`cargo xtask test` takes names of stages, or one part of a test's name"),
    };
    let is_everything = named.is_empty();
    let chosen: Vec<&Stage> = match is_everything {
        true => STAGES.iter().filter(|s| !beside::STAGES.contains(&s.name)).collect(),
        false => all().filter(|s| named.contains(&s.name)).collect(),
    };
    if chosen.iter().any(|s| s.needs_tools) {
        prepare::build_tools()?;
    }
    if is_everything {
        thread::spawn(build_upstream);
    }
    let run =
        Run { filter, skips: Skips::of("tests"), agent: OnceLock::new(), built: OnceLock::new() };
    let mut times = Vec::new();
    let mut lane = None;
    for stage in chosen {
        times.push(timed(stage.name, || (stage.run)(&run)));
        if is_everything && stage.name == beside::AFTER {
            lane = Some(Beside::start());
        }
    }
    times.extend(lane.map(|lane| timed("beside", || lane?.end())));
    report(&times);
    let mut total = Counts::default();
    times.iter().for_each(|(_, counts, _)| total.add(*counts));
    println!("{}", summary(&total));
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The last line of a run.
fn summary(total: &Counts) -> String {
    let Counts { passed, failed, skipped, flaky } = total;
    format!("{passed} passed ({flaky} of them flaky), {failed} failed, {skipped} skipped")
}

/// Builds upstream's programs and the images of its suites beside the stages that come before those
/// that need them. Whoever needs one waits for it.
fn build_upstream() {
    let programs = || UpstreamProgram::TESTED.iter().try_for_each(|p| p.ensure().map(drop));
    let images = || image::e2e::layout().map(drop);
    if let Err(error) = programs().and_then(|()| images()) {
        // It is tried again, and counts, where it is needed.
        shell::say("", &format!("not built yet: {error:#}"));
    }
}

fn usage() -> String {
    let names: Vec<_> = all().map(|stage| stage.name).collect();
    format!(
        "usage: cargo xtask test [STAGE]... | PART-OF-A-NAME\n\
         Runs all stages, those that are named, or the tests whose name has this part.\n\
         Stages: {}",
        names.join(", ")
    )
}

/// What a stage comes to and how long it takes; one that cannot be run has failed.
fn timed(
    name: &'static str,
    stage: impl FnOnce() -> Result<Counts>,
) -> (&'static str, Counts, Duration) {
    shell::say("stage", name);
    let begin = Instant::now();
    let counts = stage().unwrap_or_else(|error| {
        shell::say("failed", &format!("{name}: {error:#}"));
        Counts { failed: 1, ..Counts::default() }
    });
    (name, counts, begin.elapsed())
}

fn report(times: &[(&str, Counts, Duration)]) {
    println!(
        "\n{:>11}  {:>7}  {:>6}  {:>6}  {:>7}  {:>5}",
        "stage", "seconds", "passed", "failed", "skipped", "flaky"
    );
    for (name, counts, took) in times {
        let Counts { passed, failed, skipped, flaky } = counts;
        let seconds = took.as_secs_f64();
        println!("{name:>11}  {seconds:>7.1}  {passed:>6}  {failed:>6}  {skipped:>7}  {flaky:>5}");
    }
}

fn fmt(_: &Run) -> Result<Counts> {
    check(cargo(&["fmt", "--all", "--check"]))
}

fn tidy(_: &Run) -> Result<Counts> {
    ended_well(tidy::run()?, "something is over a hard limit")
}

fn clippy(_: &Run) -> Result<Counts> {
    let all = ["clippy", "--locked", "--quiet", "--workspace", "--all-targets"];
    let mut cmd = cargo(&all);
    cmd.args(["--", "-D", "warnings"]);
    check(cmd)
}

/// The documentation of all crates: links that lead nowhere, markup that is broken.
fn doc(_: &Run) -> Result<Counts> {
    let mut cmd = cargo(&["doc", "--locked", "--quiet", "--no-deps", "--workspace"]);
    cmd.env("RUSTDOCFLAGS", "-D warnings").env_remove("CARGO_ENCODED_RUSTDOCFLAGS");
    check(cmd)
}

/// All programs and all tests, so that later stages find them built.
fn build(run: &Run) -> Result<Counts> {
    shell::run(&mut cargo(&["build", "--locked", "--quiet", "--workspace"]))?;
    let programs = programs::build(&Choice::All.args()?)?;
    run.built.get_or_init(|| programs);
    Ok(Counts::PASSED)
}

/// Every test that no later stage runs. All stages select the whole workspace, because cargo
/// unites the features of what is selected: another selection would compile half of it again.
fn unit(run: &Run) -> Result<Counts> {
    let mut counts = each(Choice::Unit, run)?;
    let mut docs = cargo(&["test", "--locked", "--no-fail-fast", "--workspace", "--doc"]);
    if let Some(filter) = &run.filter {
        docs.args(["--", filter]);
    }
    counts.add(whole(programs::watch(&mut docs, &run.skips)?, "tests in comments"));
    Ok(counts)
}

fn parity(run: &Run) -> Result<Counts> {
    each(Choice::Stage("parity"), run)
}

/// Thousands of worlds. The fresh ones are others for each version of the agent and the same for all
/// who test that one: what is found once is found again.
fn sim(run: &Run) -> Result<Counts> {
    let first = first_fresh_world().to_string();
    shell::say("sim", &format!("fresh worlds from {first}; {FRESH_WORLDS}={first} repeats them"));
    running(&run.programs(Choice::Stage("sim"))?, run, &[(FRESH_WORLDS, &first)])
}

/// Where the fresh worlds begin: where the caller says, else where the tree does, else anywhere.
fn first_fresh_world() -> u64 {
    let asked = std::env::var(FRESH_WORLDS).ok().and_then(|first| first.parse().ok());
    asked.or_else(|| fresh_worlds_of(&committed_tree()?)).unwrap_or_else(|| {
        shell::say("sim", "git knows no tree here: the clock says where the fresh worlds begin");
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
    })
}

/// The name of all of the agent's files of the last commit; an archive of the sources has none.
fn committed_tree() -> Option<String> {
    let mut git = Command::new("git");
    // Whoever owns the folder.
    git.args(["-c", "safe.directory=*", "rev-parse", "HEAD:agent"]).current_dir(repository());
    shell::capture(&mut git).ok()
}

/// Where the fresh worlds of a tree begin.
fn fresh_worlds_of(tree: &str) -> Option<u64> {
    u64::from_str_radix(tree.get(..FRESH_DIGITS)?, 16).ok()
}

/// The agent as it is shipped: what all later stages are about.
fn release(run: &Run) -> Result<Counts> {
    run.agent().map(|_| Counts::PASSED)
}

fn demo(_: &Run) -> Result<Counts> {
    ended_well(demo::run()?, "an example does not do what it is an example of")
}

fn e2e(run: &Run) -> Result<Counts> {
    twice("e2e", run)
}

fn hostile(run: &Run) -> Result<Counts> {
    twice("hostile", run)
}

/// The agent in a real cluster, which tests share: one at a time has it, and leaves it as it found
/// it. As they wait for most of their time, there are two, for half of the tests each.
fn cluster(run: &Run) -> Result<Counts> {
    if run.filter.is_some() {
        // Perhaps none is chosen; those that are start their own.
        return twice("cluster", run);
    }
    run.programs(Choice::Stage("cluster"))?;
    let half = |purpose: &str, args: &[&str]| {
        let cluster = Cluster::of_this_run(purpose)?.with_nodes(1)?;
        let name = cluster.layout().name().to_owned();
        let (env, skips) = ([(NAMED_CLUSTER, &*name)], Skips::of(purpose));
        on(&cluster, run, || tried_again("cluster", run, (args, &env), &skips))
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| half("eviction", &[EVICTION]));
        let mut counts = half("test", &["--skip", EVICTION])?;
        let other = other.join().map_err(|_| anyhow::anyhow!("the other half panicked"))?;
        counts.add(other?);
        Ok(counts)
    })
}

/// The scheduler beside an API server and kube-scheduler, without any node.
fn scheduler(run: &Run) -> Result<Counts> {
    twice("scheduler", run)
}

/// Upstream's tests of a node that end soon, on a cluster of our agent.
fn conformance(run: &Run) -> Result<Counts> {
    let cluster = Cluster::of_this_run("ci")?;
    conformance::prepare()?;
    on(&cluster, run, || fast(&cluster))
}

/// Starts a cluster with the agent under test, and removes it afterwards.
fn on(cluster: &Cluster, run: &Run, work: impl FnOnce() -> Result<Counts>) -> Result<Counts> {
    let agent = Agent::Pintle(Some(run.agent()?.clone()));
    for node in cluster.nodes() {
        cluster.choose_agent(node, &agent)?;
    }
    let result = cluster.up().and_then(|()| work());
    let result = result.and_then(|counts| cluster.replay_agents().map(|()| counts));
    cluster.down()?;
    result
}

/// The first run must run all that was chosen. What fails runs once more: these tests share a
/// small machine with five others and have limits of their own.
fn fast(cluster: &Cluster) -> Result<Counts> {
    let selection = Selection::fast(SUITE_PROCS)?;
    let first = conformance::run(cluster, &selection)?;
    let passed = first.passed.len();
    let mut counts = Counts { passed, failed: first.failed.len(), ..Counts::default() };
    if first.is_suite_broken {
        bail!("the suite itself failed; {passed} tests passed");
    }
    let chosen = selection.count.context("the fast selection is a list")?;
    ensure!(first.ran() == chosen, "{} of the {chosen} chosen tests ran", first.ran());
    if !first.failed.is_empty() && first.failed.len() <= RETRIED_MAX {
        let again = conformance::run(cluster, &Selection::exactly(&first.failed))?;
        if !again.is_suite_broken {
            forgive(&mut counts, &first.failed, &again.passed);
        }
    }
    Ok(counts)
}

/// A stage whose failed tests are tried again.
fn twice(stage: &'static str, run: &Run) -> Result<Counts> {
    let filter: Vec<&str> = run.filter.as_deref().into_iter().collect();
    tried_again(stage, run, (&filter, &[]), &run.skips)
}

/// The same with arguments and variables of the environment for the test programs.
fn tried_again(
    stage: &'static str,
    run: &Run,
    (args, env): (&[&str], &[(&str, &str)]),
    skips: &Skips,
) -> Result<Counts> {
    prepare::node_tools()?;
    let programs = run.programs(Choice::Stage(stage))?;
    let agent = run.agent()?.to_string_lossy().into_owned();
    let mut env = env.to_vec();
    env.push(("PINTLE_AGENT", &agent));
    let mut total = Counts::default();
    for program in &programs {
        let first = program.run(args, &env, skips)?;
        let mut counts = first.counts;
        if first.is_whole && !first.failed.is_empty() && first.failed.len() <= RETRIED_MAX {
            let mut args = vec!["--exact", "--test-threads=1"];
            args.extend(first.failed.iter().map(String::as_str));
            let again = program.run(&args, &env, skips)?;
            forgive(&mut counts, &first.failed, &again.passed);
        }
        total.add(counts);
    }
    Ok(total)
}

/// Of what failed, what is named among those that passed at the second try is flaky.
fn forgive(counts: &mut Counts, failed: &[String], passed: &[String]) {
    for name in failed.iter().filter(|name| passed.contains(name)) {
        shell::say("flaky", name);
        counts.passed += 1;
        counts.flaky += 1;
        counts.failed -= 1;
    }
}

/// Builds the selected programs and runs each once: what they test gives the same answer each
/// time, or is wrong.
fn each(choice: Choice, run: &Run) -> Result<Counts> {
    running(&run.programs(choice)?, run, &[])
}

/// Runs each program once; `env` is for them.
fn running(programs: &[Program], run: &Run, env: &[(&str, &str)]) -> Result<Counts> {
    let filter: Vec<&str> = run.filter.as_deref().into_iter().collect();
    let mut total = Counts::default();
    for program in programs {
        total.add(program.run(&filter, env, &run.skips)?.counts);
    }
    Ok(total)
}

/// The counts of a run of cargo's, which has failed as a whole if it is not whole.
fn whole(outcome: Outcome, what: &str) -> Counts {
    let mut counts = outcome.counts;
    if !outcome.is_whole {
        shell::say("failed", &format!("{what}: a program ended without a result"));
        counts.failed += 1;
    }
    counts
}

/// Every crate with a `cfg(loom)` dependency and models in `tests/loom.rs`, that target only: under
/// that configuration other tests would use the checked types outside of a model. Only the models
/// and the checker are optimised: they run for long, everything else just has to be there.
fn loom(run: &Run) -> Result<Counts> {
    let mut total = Counts::default();
    let packages = loom_packages()?;
    ensure!(!packages.is_empty(), "no crate has a loom model");
    for package in packages {
        let mut cmd = cargo(&["test", "--locked", "--test", "loom", "--package", &package]);
        for optimised in ["loom", &package] {
            cmd.args(["--config", &format!("profile.dev.package.{optimised}.opt-level=3")]);
        }
        cmd.args(["--target-dir", "target/loom"]);
        cmd.env("RUSTFLAGS", "--cfg loom").env_remove("CARGO_ENCODED_RUSTFLAGS");
        total.add(whole(programs::watch(&mut cmd, &run.skips)?, &package));
    }
    Ok(total)
}

fn loom_packages() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(repository())?.flatten() {
        let text = fs::read_to_string(entry.path().join("Cargo.toml")).unwrap_or_default();
        let name = text.lines().find_map(|l| l.strip_prefix("name = "));
        let (true, Some(name)) = (text.contains("cfg(loom)"), name) else { continue };
        if entry.path().join("tests/loom.rs").exists() {
            found.push(name.trim_matches('"').to_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// A stage that is one yes or no.
fn check(mut cmd: Command) -> Result<Counts> {
    shell::run(&mut cmd)?;
    Ok(Counts::PASSED)
}

/// The same of another task of ours.
fn ended_well(code: ExitCode, otherwise: &str) -> Result<Counts> {
    ensure!(code == ExitCode::SUCCESS, "{otherwise}");
    Ok(Counts::PASSED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fresh_worlds_of_a_tree_begin_where_its_name_says() {
        let tree = "0123456789abcdef0123456789abcdef01234567\n";
        assert_eq!(fresh_worlds_of(tree), Some(0x0123_4567_89ab));
        assert_eq!(fresh_worlds_of("0123"), None);
        assert_eq!(fresh_worlds_of("not a name at all"), None);
    }

    #[test]
    fn what_failed_is_forgiven_only_where_it_is_seen_to_pass() {
        let names = |all: &[&str]| all.iter().map(|n| (*n).to_owned()).collect::<Vec<String>>();
        let failed = names(&["a", "b", "c"]);
        let first = Counts { passed: 5, failed: 3, ..Counts::default() };
        // The second run: a passed, b failed again, c did not run at all.
        let mut counts = first;
        forgive(&mut counts, &failed, &names(&["a", "x"]));
        assert_eq!(counts, Counts { passed: 6, failed: 2, skipped: 0, flaky: 1 });
        // A second run that did not come to its tests forgives nothing.
        let mut counts = first;
        forgive(&mut counts, &failed, &[]);
        assert_eq!(counts, first);
    }
}
