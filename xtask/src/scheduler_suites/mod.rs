//! Upstream's integration tests and benchmarks of the scheduler, pointed at ours.
//!
//! Input: which tests, and which scheduler. Output: a table of every test and case beside what it
//! came to with upstream's own scheduler, logs in `target/scheduler-suites`, and whether the run is
//! good. The tests are Go programs that start an API server and etcd; a small patch
//! (`tests/upstream/_scheduler`) has the scheduler that they start in their own process keep its
//! caches and leave all decisions to the program that `PINTLE_SCHEDULER` names. Tests that call
//! into the scheduler's process are listed by name in `tests/upstream/scheduler-exceptions.txt`.

mod judge;
mod modules;
mod patch;
pub mod perf;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use self::judge::{Ends, Exceptions};
use self::modules::Patched;
use crate::repository;
use crate::shell::{self, say};
use crate::upstream::Program;

/// Where the tests are in upstream's module.
const TESTS: &str = "test/integration/scheduler";
/// What the tests come to with upstream's own scheduler.
const LIST: &str = "tests/upstream/scheduler.txt";
/// What cannot be pointed at another program, and what is known to fail, with why.
const EXCEPTIONS: &str = "tests/upstream/scheduler-exceptions.txt";
/// The longest that the tests of one package may take.
const PACKAGE_MAX: &str = "30m";
/// Nobody listens there: each test program starts an etcd of its own.
const NO_ETCD: &str = "http://127.0.0.1:1";

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The scheduler that decides; none for upstream's own, in the tests' process.
    pub scheduler: Option<PathBuf>,
    /// Tests whose name (`PACKAGE TEST`) has this in it; empty for all.
    pub focus: String,
    /// Whether what comes out is written down as upstream's.
    pub record: bool,
}

/// Runs the tests, prints what came out and returns whether it is good.
pub fn run(plan: &Plan) -> Result<bool> {
    ensure!(
        !plan.record || plan.scheduler.is_none(),
        "only upstream's own results are written down"
    );
    let read = |path: &str| fs::read_to_string(repository().join(path));
    let exceptions = Exceptions::parse(&read(EXCEPTIONS).context("read the exceptions")?)?;
    let upstream = judge::parse_list(&read(LIST).unwrap_or_default())?;
    let patched = Patched::ensure()?;
    let all = tests(&patched.package(TESTS), "")?;
    exceptions.check(&all)?;
    let is_chosen =
        |name: &&String| !exceptions.inside.contains_key(*name) && name.contains(&plan.focus);
    let chosen: BTreeSet<String> = all.iter().filter(is_chosen).cloned().collect();
    ensure!(!chosen.is_empty(), "no test is chosen");
    let (came, why) = run_all(&patched, &chosen, plan.scheduler.as_deref())?;
    if plan.record {
        let mut ends = upstream;
        // What is written down of a test is replaced as a whole.
        let is_of_run = |name: &str| chosen.contains(name.split('/').next().unwrap_or(name));
        ends.retain(|name, _| all.contains(test_of(name)) && !is_of_run(test_of(name)));
        ends.extend(came);
        fs::write(repository().join(LIST), judge::list(&ends)).context("write the list")?;
        return conclude(&chosen, &ends, &ends, &Exceptions::default(), &why);
    }
    let none = Exceptions::default();
    let own = if plan.scheduler.is_some() { &exceptions } else { &none };
    conclude(&chosen, &came, &upstream, own, &why)
}

/// The test that a case is one of: package names have slashes too, so only behind the space.
fn test_of(name: &str) -> &str {
    let space = name.find(' ').unwrap_or(0);
    name[space..].find('/').map_or(name, |at| &name[..space + at])
}

fn conclude(
    chosen: &BTreeSet<String>,
    came: &Ends,
    upstream: &Ends,
    exceptions: &Exceptions,
    why: &BTreeMap<String, Vec<String>>,
) -> Result<bool> {
    let table = judge::table(chosen, came, upstream);
    fs::write(reports()?.join("results.txt"), &table)?;
    print!("{table}");
    if !why.is_empty() {
        println!("\nwhy:\n{}", judge::reasons(why));
    }
    let faults = judge::faults(chosen, came, upstream, exceptions);
    if !faults.is_empty() {
        println!("wrong with this run:\n    {}", faults.join("\n    "));
    }
    Ok(faults.is_empty())
}

/// The folder of logs and results.
fn reports() -> Result<PathBuf> {
    let dir = repository().join("target/scheduler-suites");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    Ok(dir)
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

/// Runs the chosen tests, package by package.
fn run_all(
    patched: &Patched,
    chosen: &BTreeSet<String>,
    scheduler: Option<&Path>,
) -> Result<(Ends, BTreeMap<String, Vec<String>>)> {
    let mut packages = BTreeMap::<&str, Vec<&str>>::new();
    for (package, test) in chosen.iter().filter_map(|name| name.split_once(' ')) {
        packages.entry(package).or_default().push(test);
    }
    let (mut came, mut why) = (Ends::new(), BTreeMap::new());
    for (package, tests) in packages {
        let path = format!("{TESTS}/{package}");
        let path = path.trim_end_matches("/.");
        let program = patched.test_program(path)?;
        let log = reports()?.join(format!("{}.log", package.replace('/', "_")));
        say("run", &format!("{} tests of {package}; {}", tests.len(), log.display()));
        let mut cmd = test_command(patched, &program, &patched.package(path), scheduler)?;
        cmd.arg("-test.v").arg(format!("-test.timeout={PACKAGE_MAX}"));
        cmd.arg(format!("-test.run=^({})$", tests.join("|")));
        // How the program ends says less than what it printed of each test.
        let status = to_log(&mut cmd, &log)?;
        let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        let (ends, reasons) = judge::parse(package, &text);
        say("", &format!("{status}, {} ended", ends.len()));
        came.extend(ends);
        why.extend(reasons);
    }
    Ok((came, why))
}

/// A test program in the folder of its package, with etcd where it looks for it.
fn test_command(
    patched: &Patched,
    program: &Path,
    dir: &Path,
    scheduler: Option<&Path>,
) -> Result<Command> {
    let path = std::env::var("PATH").unwrap_or_default();
    let components = Program::Components.ensure()?;
    let mut cmd = Command::new(program);
    cmd.current_dir(dir).env("PATH", format!("{}:{path}", components.display()));
    cmd.env("KUBE_INTEGRATION_ETCD_URL", NO_ETCD).env_remove("PINTLE_SCHEDULER");
    // What upstream reads of paths that the build has shortened.
    cmd.env("TEST_SRCDIR", patched.modules()).env("TEST_WORKSPACE", ".");
    if let Some(scheduler) = scheduler {
        cmd.env("PINTLE_SCHEDULER", scheduler);
    }
    Ok(cmd)
}

/// Runs with stdout in `log`, and stderr (the log lines of all servers) in a file beside it.
fn to_log(cmd: &mut Command, log: &Path) -> Result<std::process::ExitStatus> {
    let create =
        |path: &Path| File::create(path).with_context(|| format!("create {}", path.display()));
    let (out, err) = (create(log)?, create(&log.with_extension("err"))?);
    cmd.stdin(Stdio::null()).stdout(out).stderr(err);
    cmd.status().with_context(|| format!("start {}", shell::line(cmd)))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn tests_are_found_in_upstreams_files_and_cases_are_theirs() {
        let text = "func TestMain(m *testing.M) {\nfunc TestA(t *testing.T) {\n\
                    func TestB(t *testing.T, x int) {\nfunc testC(t *testing.T) {\n";
        assert_eq!(test_names(text).collect::<Vec<_>>(), ["TestA"]);
        assert_eq!(test_of("a/b TestA/one/two"), "a/b TestA");
        assert_eq!(test_of("a/b TestA"), "a/b TestA");
    }
}
