//! Upstream's integration tests and benchmarks of the scheduler, pointed at ours.
//!
//! Input: which tests, and which scheduler. Output: a table of every test and case beside what it
//! came to with upstream's own scheduler, logs in `target/scheduler-suites`, and whether the run is
//! good. The tests are Go programs that start an API server and etcd; a small patch
//! (`tests/upstream/_scheduler`) has the scheduler that they start in their own process keep its
//! caches and leave all decisions to the program that `PINTLE_SCHEDULER` names. Tests that call
//! into the scheduler's process are listed by name in `tests/upstream/scheduler-exceptions.txt`.

mod judge;
mod packages;
pub mod perf;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use nix::fcntl::{Flock, FlockArg};

use self::judge::{Ends, Exceptions, Reasons};
use crate::repository;
use crate::shell::say;
use crate::upstream::Patched;

/// The patch that has the tests leave decisions to another program.
const PATCH: &str = "scheduler";
/// Where the tests are in upstream's module.
const TESTS: &str = "test/integration/scheduler";
/// Where its workloads are, and how their packages are called here: as tests they are short, and it
/// counts that all pods are bound.
const PERF: &str = "test/integration/scheduler_perf";
const PERF_NAME: &str = "scheduler_perf";
/// Where its tests of devices are, and how their packages are called here: those that start a
/// scheduler, with all of the features on, with the usual ones, and with those that are final.
const DRA: &str = "test/integration/dra";
const DRA_NAME: &str = "dra";
const DRA_PACKAGES: [&str; 3] = ["dra/all ", "dra/default ", "dra/ga "];
/// What the tests come to with upstream's own scheduler.
const LIST: &str = "tests/upstream/scheduler.txt";
/// What cannot be pointed at another program, and what is known to fail, with why.
const EXCEPTIONS: &str = "tests/upstream/scheduler-exceptions.txt";

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The scheduler that decides; none for upstream's own, in the tests' process.
    pub scheduler: Option<PathBuf>,
    /// Tests whose name (`PACKAGE TEST`) has this in it; empty for all.
    pub focus: String,
    /// Whether what comes out is written down as upstream's.
    pub record: bool,
    /// Packages at once.
    pub jobs: usize,
}

/// Runs the tests, prints what came out and returns whether it is good.
pub fn run(plan: &Plan) -> Result<bool> {
    ensure!(
        !plan.record || plan.scheduler.is_none(),
        "only upstream's own results are written down"
    );
    let read = |path: &str| fs::read_to_string(repository().join(path));
    let exceptions = Exceptions::parse(&read(EXCEPTIONS).context("read the exceptions")?)?;
    let mut upstream = judge::parse_list(&read(LIST).unwrap_or_default())?;
    upstream.retain(|name, _| !exceptions.leaves_out(name, plan.scheduler.is_some()));
    let patched = Patched::ensure(PATCH)?;
    let mut all = tests(&patched.package(TESTS), "")?;
    let of_perf = tests(&patched.package(PERF), PERF_NAME)?;
    // The topmost package has the tests of the runner itself.
    let is_runners = format!("{PERF_NAME} ");
    all.extend(of_perf.into_iter().filter(|name| !name.starts_with(&is_runners)));
    let of_devices = tests(&patched.package(DRA), DRA_NAME)?;
    let has_scheduler = |name: &String| DRA_PACKAGES.iter().any(|of| name.starts_with(of));
    all.extend(of_devices.into_iter().filter(has_scheduler));
    exceptions.check(&all)?;
    let is_unbuilt = |name: &str| plan.scheduler.is_some() && exceptions.unbuilt.contains_key(name);
    let is_chosen = |name: &&String| {
        let is_left_out = exceptions.inside.contains_key(*name) || is_unbuilt(name);
        // The workloads are long: they run when they are asked for.
        let is_asked = !name.starts_with(PERF_NAME) || plan.focus.starts_with(PERF_NAME);
        !is_left_out && is_asked && name.contains(&plan.focus)
    };
    let chosen: BTreeSet<String> = all.iter().filter(is_chosen).cloned().collect();
    ensure!(
        !chosen.is_empty(),
        "no test has {:?} in its name, PACKAGE TEST, but such that {EXCEPTIONS} leaves out",
        plan.focus
    );
    let _only = alone()?;
    let begun = Instant::now();
    let (came, why) =
        packages::run(&patched, packages::queue(&chosen, &upstream), plan, &exceptions)?;
    say("", &format!("all done in {:.0} s", begun.elapsed().as_secs_f64()));
    if plan.record {
        let mut ends = upstream;
        // What is written down of a test is replaced as a whole.
        let is_of_run = |name: &str| chosen.contains(name.split('/').next().unwrap_or(name));
        ends.retain(|name, _| {
            all.contains(judge::test_of(name)) && !is_of_run(judge::test_of(name))
        });
        ends.extend(came);
        fs::write(repository().join(LIST), judge::list(&ends)).context("write the list")?;
        return conclude(&chosen, &ends, &ends, &Exceptions::default(), &why);
    }
    let none = Exceptions::default();
    let own = if plan.scheduler.is_some() { &exceptions } else { &none };
    conclude(&chosen, &came, &upstream, own, &why)
}

fn conclude(
    chosen: &BTreeSet<String>,
    came: &Ends,
    upstream: &Ends,
    exceptions: &Exceptions,
    why: &Reasons,
) -> Result<bool> {
    let path = reports()?.join("results.txt");
    fs::write(&path, judge::table(chosen, came, upstream))?;
    print!("{}", judge::by_package(chosen, came, upstream));
    println!("each test and case: {}", path.display());
    if !why.is_empty() {
        println!("\nwhy:\n{}", judge::reasons(why));
    }
    let faults = judge::faults(chosen, came, upstream, exceptions);
    if !faults.is_empty() {
        println!("wrong with this run:\n    {}", faults.join("\n    "));
    }
    Ok(faults.is_empty())
}

/// The path of a package in upstream's module.
fn path_of(package: &str) -> String {
    let (first, below) = package.split_at(package.find('/').unwrap_or(package.len()));
    match first {
        PERF_NAME => format!("{PERF}{below}"),
        DRA_NAME => format!("{DRA}{below}"),
        "." => TESTS.to_owned(),
        _ => format!("{TESTS}/{package}"),
    }
}

/// The folder of logs and results.
fn reports() -> Result<PathBuf> {
    let dir = repository().join("target/scheduler-suites");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    Ok(dir)
}

/// Two runs would write to the same files: the second one is refused.
fn alone() -> Result<Flock<File>> {
    let path = reports()?.join(".lock");
    let file = File::create(&path).with_context(|| format!("open {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
        let dir = path.parent().unwrap_or(&path).display();
        anyhow!("another run writes to {dir}: wait for its end, or run in another checkout")
    })
}

/// All tests below a folder of upstream's, as `PACKAGE TEST`; the topmost package is `.`.
fn tests(dir: &Path, package: &str) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            let below = if package.is_empty() { name } else { format!("{package}/{name}") };
            all.extend(tests(&entry.path(), &below)?);
        } else if name.ends_with("_test.go") {
            let text = fs::read_to_string(entry.path())?;
            let package = if package.is_empty() { "." } else { package };
            all.extend(test_names(&text).map(|test| format!("{package} {test}")));
        }
    }
    Ok(all)
}

/// Names of the tests of a Go file.
fn test_names(text: &str) -> impl Iterator<Item = &str> {
    let names = text.lines().filter_map(|line| line.strip_prefix("func ")?.split_once('('));
    let tests =
        names.filter(|(name, rest)| name.starts_with("Test") && rest.contains("*testing.T)"));
    tests.map(|(name, _)| name)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn tests_are_found_in_upstreams_files() {
        let text = "func TestMain(m *testing.M) {\nfunc TestA(t *testing.T) {\n\
                    func TestB(t *testing.T, x int) {\nfunc testC(t *testing.T) {\n";
        assert_eq!(test_names(text).collect::<Vec<_>>(), ["TestA"]);
        assert_eq!(path_of("."), "test/integration/scheduler");
        assert_eq!(path_of("a/b"), "test/integration/scheduler/a/b");
        assert_eq!(path_of("scheduler_perf/dra"), "test/integration/scheduler_perf/dra");
        assert_eq!(path_of("scheduler_perf"), "test/integration/scheduler_perf");
        assert_eq!(path_of("dra/all"), "test/integration/dra/all");
    }
}
