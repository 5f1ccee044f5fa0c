//! `cargo xtask test`: everything that CI runs, in the order in which failures are cheapest.
//!
//! fmt, clippy, build, unit, parity, sim, loom, e2e, cluster, conformance. A failed stage does not stop the next: one
//! run shows all that is wrong. Test counts are read from the lines that the test programs print;
//! a test that cannot run on this host names itself in the file of `PINTLE_SKIPPED` and is counted
//! as skipped. The last line is the summary, with the exit code to match.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::prepare;
use crate::cluster::{Agent, Cluster};
use crate::conformance::{self, Selection};
use crate::node::agent;
use crate::repository;
use crate::shell::{self, cargo};

/// The stages, in order.
const STAGES: [Stage; 10] = [
    Stage { name: "fmt", needs_tools: false, run: fmt },
    Stage { name: "clippy", needs_tools: true, run: clippy },
    Stage { name: "build", needs_tools: true, run: build },
    Stage { name: "unit", needs_tools: true, run: unit },
    Stage { name: "parity", needs_tools: true, run: parity },
    Stage { name: "sim", needs_tools: true, run: sim },
    Stage { name: "loom", needs_tools: true, run: loom },
    Stage { name: "e2e", needs_tools: true, run: e2e },
    Stage { name: "cluster", needs_tools: true, run: cluster },
    Stage { name: "conformance", needs_tools: true, run: conformance },
];
/// Stages made of tests: those that a name filter is applied to.
const FILTERED: [&str; 5] = ["unit", "parity", "sim", "e2e", "cluster"];
/// Stages made of test targets of their own.
const INTEGRATION: [&str; 4] = ["parity", "sim", "e2e", "cluster"];

/// Failed end-to-end tests that are worth a second try; more of them are no accident.
const RETRIED_MAX: usize = 4;

/// The cluster of the stage that has our own tests, and how these are told of it.
const TESTS_CLUSTER: &str = "test";
const NAMED_CLUSTER: &str = "PINTLE_TEST_CLUSTER";
/// The cluster of the stage that runs upstream's suite.
const CI_CLUSTER: &str = "ci";
/// Tests of that suite that run at once: they wait for most of their time.
const SUITE_PROCS: usize = 6;

struct Stage {
    name: &'static str,
    needs_tools: bool,
    run: fn(&Run) -> Result<Counts>,
}

/// What one invocation was asked for.
struct Run {
    filter: Option<String>,
    skipped_file: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Runs all stages, the named ones, or the tests whose name contains the word.
pub(super) fn run(args: &[&str]) -> Result<ExitCode> {
    let (named, filter) = match args {
        [] => (Vec::new(), None),
        names if names.iter().all(|n| STAGES.iter().any(|s| s.name == *n)) => {
            (names.to_vec(), None)
        }
        [filter] => (FILTERED.to_vec(), Some((*filter).to_owned())),
        _ => bail!("`cargo xtask test` takes names of stages, or one part of a test's name"),
    };
    let chosen = STAGES.iter().filter(|s| named.is_empty() || named.contains(&s.name));
    let chosen: Vec<&Stage> = chosen.collect();
    if chosen.iter().any(|s| s.needs_tools) {
        prepare::build_tools()?;
    }
    let skipped_file = repository().join("target/skipped-tests");
    let run = Run { filter, skipped_file };
    let mut total = Counts::default();
    let mut times = Vec::new();
    for stage in chosen {
        let (counts, took) = one(stage, &run);
        times.push((stage.name, counts, took));
        total.add(counts);
    }
    report(&times);
    let Counts { passed, failed, skipped } = total;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn one(stage: &Stage, run: &Run) -> (Counts, Duration) {
    shell::say("stage", stage.name);
    let begin = Instant::now();
    let counts = (stage.run)(run).unwrap_or_else(|error| {
        shell::say("failed", &format!("{}: {error:#}", stage.name));
        Counts { failed: 1, ..Counts::default() }
    });
    (counts, begin.elapsed())
}

fn report(times: &[(&str, Counts, Duration)]) {
    println!(
        "\n{:>8}  {:>7}  {:>6}  {:>6}  {:>7}",
        "stage", "seconds", "passed", "failed", "skipped"
    );
    for (name, counts, took) in times {
        let Counts { passed, failed, skipped } = counts;
        let seconds = took.as_secs_f64();
        println!("{name:>8}  {seconds:>7.1}  {passed:>6}  {failed:>6}  {skipped:>7}");
    }
}

fn fmt(_: &Run) -> Result<Counts> {
    check(cargo(&["fmt", "--all", "--check"]))
}

fn clippy(_: &Run) -> Result<Counts> {
    check(cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

fn build(_: &Run) -> Result<Counts> {
    check(cargo(&["build", "--quiet", "--workspace"]))
}

/// Every test that no later stage runs. All stages select the whole workspace, because cargo
/// unites the features of what is selected: another selection would compile half of it again.
fn unit(run: &Run) -> Result<Counts> {
    let mut cmd = cargo(&["test", "--no-fail-fast", "--workspace", "--lib", "--bins"]);
    for target in super::targets("test")? {
        if !INTEGRATION.iter().any(|stage| is_of(&target, stage)) {
            cmd.args(["--test", &target]);
        }
    }
    let mut counts = tests(cmd, run)?;
    counts.add(tests(cargo(&["test", "--no-fail-fast", "--workspace", "--doc"]), run)?);
    Ok(counts)
}

fn parity(run: &Run) -> Result<Counts> {
    twice("parity", run, &[])
}

fn sim(run: &Run) -> Result<Counts> {
    integration("sim", run)
}

fn e2e(run: &Run) -> Result<Counts> {
    twice("e2e", run, &[])
}

/// The agent in a real cluster, which all the tests share: one at a time has it, and leaves it as
/// it found it.
fn cluster(run: &Run) -> Result<Counts> {
    if run.filter.is_some() {
        // Perhaps none is chosen; those that are start their own.
        return twice("cluster", run, &[]);
    }
    let cluster = Cluster::named(TESTS_CLUSTER)?;
    cluster.down()?;
    let cluster = cluster.with_nodes(1)?;
    let agent = Agent::Pintle(Some(agent::build()?));
    for node in cluster.nodes() {
        cluster.choose_agent(node, &agent)?;
    }
    let result = cluster.up();
    let result = result.and_then(|()| twice("cluster", run, &[(NAMED_CLUSTER, TESTS_CLUSTER)]));
    cluster.down()?;
    result
}

/// A stage whose failed tests are tried again; `env` is for the test programs.
fn twice(stage: &str, run: &Run, env: &[(&str, &str)]) -> Result<Counts> {
    prepare::node_tools()?;
    let mut failed = Vec::new();
    let mut first = integration_command(stage)?;
    first.envs(env.iter().copied());
    let mut counts = tests_noting(first, run, &mut failed)?;
    retry(&mut counts, &failed, |failed| {
        let mut again = integration_command(stage)?;
        again.envs(env.iter().copied());
        again.args(["--", "--exact", "--test-threads=1"]).args(failed);
        let unfiltered = Run { filter: None, skipped_file: run.skipped_file.clone() };
        let mut still = Vec::new();
        tests_noting(again, &unfiltered, &mut still)?;
        Ok(still)
    })?;
    Ok(counts)
}

/// What fails is run once more, alone: these tests race with a real kernel, a real runtime or a
/// recording's clock, on a host that others use too. A test that passes then is named as flaky, and
/// is a bug all the same; one that fails twice fails the stage. `again` runs the named tests and
/// returns those that failed.
fn retry(
    counts: &mut Counts,
    failed: &[String],
    again: impl FnOnce(&[String]) -> Result<Vec<String>>,
) -> Result<()> {
    if failed.is_empty() || failed.len() > RETRIED_MAX {
        return Ok(());
    }
    let still = again(failed)?;
    for name in failed.iter().filter(|name| !still.contains(name)) {
        shell::say("flaky", name);
        counts.passed += 1;
        counts.failed -= 1;
    }
    Ok(())
}

/// Upstream's tests of a node that end soon, on a cluster of our agent.
fn conformance(_: &Run) -> Result<Counts> {
    let cluster = Cluster::named(CI_CLUSTER)?;
    cluster.down()?;
    for node in cluster.nodes() {
        cluster.choose_agent(node, &Agent::Pintle(None))?;
    }
    conformance::prepare()?;
    let result = cluster.up().and_then(|()| fast(&cluster));
    cluster.down()?;
    result
}

fn fast(cluster: &Cluster) -> Result<Counts> {
    let selection = Selection::fast(SUITE_PROCS)?;
    let first = conformance::run(cluster, &selection)?;
    let mut counts = Counts { passed: first.passed, failed: first.failed.len(), skipped: 0 };
    retry(&mut counts, &first.failed, |failed| {
        Ok(conformance::run(cluster, &Selection::exactly(failed))?.failed)
    })?;
    Ok(counts)
}

/// Whether a target such as `sched_parity` belongs to a stage such as `parity`.
fn is_of(target: &str, stage: &str) -> bool {
    target.split('_').any(|word| word == stage)
}

/// The test targets that belong to the stage; there must be one.
fn integration(stage: &str, run: &Run) -> Result<Counts> {
    tests(integration_command(stage)?, run)
}

fn integration_command(stage: &str) -> Result<Command> {
    let targets = super::targets("test")?;
    let targets: Vec<_> = targets.into_iter().filter(|t| is_of(t, stage)).collect();
    ensure!(!targets.is_empty(), "there is no test target {stage}");
    let mut cmd = cargo(&["test", "--no-fail-fast", "--workspace"]);
    for target in targets {
        cmd.args(["--test", &target]);
    }
    Ok(cmd)
}

/// Every crate with a `cfg(loom)` dependency and models in `tests/loom.rs`, that target only: under
/// that configuration other tests would use the checked types outside of a model. Only the models
/// and the checker are optimised: they run for long, everything else just has to be there.
fn loom(run: &Run) -> Result<Counts> {
    let mut total = Counts::default();
    let packages = loom_packages()?;
    if packages.is_empty() {
        shell::say("skipped", "no crate has a loom model");
        total.skipped = 1;
    }
    for package in packages {
        let mut cmd = cargo(&["test", "--test", "loom", "--package", &package]);
        for optimised in ["loom", &package] {
            cmd.args(["--config", &format!("profile.dev.package.{optimised}.opt-level=3")]);
        }
        cmd.args(["--target-dir", "target/loom"]);
        cmd.env("RUSTFLAGS", "--cfg loom").env_remove("CARGO_ENCODED_RUSTFLAGS");
        total.add(tests(cmd, run)?);
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
    Ok(Counts { passed: 1, ..Counts::default() })
}

/// Runs `cargo test`, shows its output and counts the results.
fn tests(cmd: Command, run: &Run) -> Result<Counts> {
    tests_noting(cmd, run, &mut Vec::new())
}

/// The same, noting the names of the tests that failed.
fn tests_noting(mut cmd: Command, run: &Run, failed: &mut Vec<String>) -> Result<Counts> {
    if let Some(filter) = &run.filter {
        cmd.args(["--", filter]);
    }
    let _ = fs::remove_file(&run.skipped_file);
    cmd.env("PINTLE_SKIPPED", &run.skipped_file).stdout(Stdio::piped());
    let mut child = cmd.spawn().with_context(|| format!("start {}", shell::line(&cmd)))?;
    let stdout = child.stdout.take().expect("piped");
    let mut counts = Counts::default();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        counts.add(parse(&line));
        let name = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED"));
        failed.extend(name.map(str::to_owned));
    }
    let status = child.wait()?;
    let skipped = skipped(&run.skipped_file);
    counts.passed = counts.passed.saturating_sub(skipped);
    counts.skipped += skipped;
    if !status.success() && counts.failed == 0 {
        bail!("{status}: {}", shell::line(&cmd)); // it did not compile, or it crashed
    }
    Ok(counts)
}

/// Reads `test result: ok. 2 passed; 0 failed; 1 ignored; ...`.
fn parse(line: &str) -> Counts {
    let Some(rest) = line.strip_prefix("test result: ") else { return Counts::default() };
    let number = |what: &str| {
        let end = rest.find(what)?;
        rest[..end].trim_end().rsplit(' ').next()?.parse().ok()
    };
    Counts {
        passed: number("passed").unwrap_or(0),
        failed: number("failed").unwrap_or(0),
        skipped: number("ignored").unwrap_or(0),
    }
}

/// Prints why tests were skipped and returns how many.
fn skipped(file: &Path) -> usize {
    let text = fs::read_to_string(file).unwrap_or_default();
    for line in text.lines() {
        shell::say("skipped", line);
    }
    text.lines().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_the_line_that_a_test_program_ends_with() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; \
                    4 filtered out; finished in 0.01s";
        assert_eq!(parse(line), Counts { passed: 12, failed: 3, skipped: 1 });
        assert_eq!(parse("test a::b ... ok"), Counts::default());
    }

    #[test]
    fn a_target_belongs_to_the_stage_that_one_of_its_words_names() {
        assert!(is_of("parity_status", "parity") && is_of("sched_parity", "parity"));
        assert!(!is_of("simple", "sim"));
    }

    #[test]
    fn skipped_tests_are_counted_by_their_lines() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join("skipped");
        assert_eq!(skipped(&file), 0);
        fs::write(&file, "a: no BTF\nb: no swap\n").expect("written");
        assert_eq!(skipped(&file), 2);
    }
}
