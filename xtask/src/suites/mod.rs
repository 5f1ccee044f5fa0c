//! Upstream's integration tests of a component, pointed at ours; and benchmarks of the scheduler.
//!
//! Input: a [`Suite`], which tests, and which program. Output: a table of every test and case
//! compared with what it came to with upstream's own component, logs in `target/NAME-suites`, and
//! whether the run is good. The tests are Go programs that start an API server and etcd; a small
//! patch (`tests/upstream/_NAME`) has the component that they start in their own process leave its
//! work to another program, which an environment variable names. Tests that call into the
//! component's process are listed by name in `tests/upstream/NAME-exceptions.txt`.

mod judge;
mod packages;
pub mod perf;
mod suite;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use nix::fcntl::{Flock, FlockArg};

use self::judge::{Ends, Exceptions};
pub use self::suite::{CONTROLLERS, SCHEDULER, SUITES, Suite};
use crate::shell::say;
use crate::upstream::Patched;

/// The tests to run, the program, and the output.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of which component.
    pub suite: &'static Suite,
    /// The program that does the work; none for upstream's own component, in the tests' process.
    pub program: Option<PathBuf>,
    /// Tests whose name (`PACKAGE TEST`) contains this; empty for all.
    pub focus: String,
    /// Tests of these packages; empty for all.
    pub packages: Vec<String>,
    /// True if the results are recorded as upstream's.
    pub record: bool,
    /// Packages at once.
    pub jobs: usize,
}

impl Plan {
    /// All tests of a suite, with upstream's own component.
    pub fn of(suite: &'static Suite) -> Self {
        let (focus, packages) = (String::new(), Vec::new());
        Self { suite, program: None, focus, packages, record: false, jobs: 1 }
    }
}

/// Runs the tests, prints the results and returns whether they are good.
pub fn run(plan: &Plan) -> Result<bool> {
    ensure!(!plan.record || plan.program.is_none(), "only upstream's own results are written down");
    let suite = plan.suite;
    let path = suite.exceptions();
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let exceptions = Exceptions::parse(&text)?;
    let text = fs::read_to_string(suite.list()).unwrap_or_default();
    let mut upstream = judge::parse_list(&text)?;
    upstream.retain(|name, _| !exceptions.leaves_out(name, plan.program.is_some()));
    let patched = Patched::ensure(suite.name)?;
    let mut all = BTreeSet::new();
    for one in suite.tests {
        let found = tests(&patched.package(one.path), one.name)?;
        all.extend(found.into_iter().filter(|test| one.has(test)));
    }
    exceptions.check(&all)?;
    let is_unbuilt = |name: &str| plan.program.is_some() && exceptions.unbuilt.contains_key(name);
    let is_chosen = |name: &&String| {
        let is_left_out = exceptions.inside.contains_key(*name) || is_unbuilt(name);
        let is_of = |package: &String| name.split(' ').next() == Some(package);
        let is_in = plan.packages.is_empty() || plan.packages.iter().any(is_of);
        !is_left_out && is_in && suite.is_asked(name, plan) && name.contains(&plan.focus)
    };
    let chosen: BTreeSet<String> = all.iter().filter(is_chosen).cloned().collect();
    ensure!(
        !chosen.is_empty(),
        "no test has {:?} in its name, PACKAGE TEST, but such that {} leaves out",
        plan.focus,
        path.display()
    );
    let _only = alone(suite)?;
    let begun = Instant::now();
    let (came, why) =
        packages::run(&patched, packages::queue(&chosen, &upstream), plan, &exceptions)?;
    if !why.is_empty() {
        println!("why tests failed:\n{}", judge::reasons(&why));
    }
    say("", &format!("all done in {:.0} s", begun.elapsed().as_secs_f64()));
    if plan.record {
        let mut ends = upstream;
        // The recorded results of a test are replaced as a whole.
        let is_of_run = |name: &str| chosen.contains(name.split('/').next().unwrap_or(name));
        ends.retain(|name, _| {
            all.contains(judge::test_of(name)) && !is_of_run(judge::test_of(name))
        });
        ends.extend(came);
        fs::write(suite.list(), judge::list(&ends)).context("write the list")?;
        return conclude(suite, &chosen, &ends, &ends, &Exceptions::default());
    }
    let none = Exceptions::default();
    let own = if plan.program.is_some() { &exceptions } else { &none };
    conclude(suite, &chosen, &came, &upstream, own)
}

fn conclude(
    suite: &Suite,
    chosen: &BTreeSet<String>,
    came: &Ends,
    upstream: &Ends,
    exceptions: &Exceptions,
) -> Result<bool> {
    let path = reports(suite)?.join("results.txt");
    fs::write(&path, judge::table(chosen, came, upstream))?;
    print!("{}", judge::by_package(chosen, came, upstream));
    println!("each test and case: {}", path.display());
    let faults = judge::faults(chosen, came, upstream, exceptions);
    if !faults.is_empty() {
        println!("wrong with this run:\n    {}", faults.join("\n    "));
    }
    Ok(faults.is_empty())
}

/// The folder of logs and results.
fn reports(suite: &Suite) -> Result<PathBuf> {
    let dir = suite.results();
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    Ok(dir)
}

/// Two runs would write to the same files: the second one is refused.
fn alone(suite: &Suite) -> Result<Flock<File>> {
    let path = reports(suite)?.join(".lock");
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
    }
}
