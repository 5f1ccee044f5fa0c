//! Test programs of packages, run several at once.
//!
//! Input: the chosen tests, by package. Output: the result of each test and case, and the reason of
//! failures. Effects. Each program is the first process of a PID namespace, so that etcd and our
//! programs end with it, and it ends with this process in any case; its files are in a folder of
//! this run. Bounds: `Plan::jobs` programs at once, one build at a time, `PACKAGE_MAX` for a
//! package.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::judge::{self, Ends, Exceptions, Reasons};
use super::{Plan, Suite, reports};
use crate::shell::{self, say};
use crate::upstream::{Patched, Program};

/// The longest that the tests of one package may take.
const PACKAGE_MAX: &str = "30m";
/// No server listens there: each test program starts an etcd of its own.
const NO_ETCD: &str = "http://127.0.0.1:1";
/// Polling period of a program, and period of progress messages.
const LOOK: Duration = Duration::from_millis(200);
const TELL: Duration = Duration::from_secs(60);
/// Folders of runs begin so, before the id of the process.
const FOLDER: &str = "pintle-suites-";

/// Packages with their tests, the slowest first, so that a slow one does not start last.
pub(super) fn queue(chosen: &BTreeSet<String>, upstream: &Ends) -> VecDeque<Package> {
    let mut packages = BTreeMap::<&str, Package>::new();
    for (package, test) in chosen.iter().filter_map(|name| name.split_once(' ')) {
        let entry = packages.entry(package).or_insert_with(|| Package {
            name: package.to_owned(),
            tests: Vec::new(),
            seconds: 0.0,
        });
        entry.tests.push(test.to_owned());
        entry.seconds += upstream.get(&format!("{package} {test}")).map_or(0.0, |(_, took)| *took);
    }
    let mut queue: Vec<Package> = packages.into_values().collect();
    queue.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    queue.into()
}

/// Tests of one package.
#[derive(Debug)]
pub(super) struct Package {
    name: String,
    tests: Vec<String>,
    /// Their duration with upstream's own component.
    seconds: f64,
}

/// The test program of a package.
struct TestProgram {
    file: PathBuf,
    /// The package's path in upstream's module.
    path: String,
}

/// Runs all packages, `plan.jobs` at once.
pub(super) fn run(
    patched: &Patched,
    packages: VecDeque<Package>,
    plan: &Plan,
    exceptions: &Exceptions,
) -> Result<(Ends, Reasons)> {
    let run = Run {
        count: packages.len(),
        queue: Mutex::new(packages),
        came: Mutex::default(),
        patched,
        exceptions,
        suite: plan.suite,
        program: plan.program.as_deref(),
        folder: Folder::new()?,
    };
    thread::scope(|scope| {
        let worker = || {
            let done = run.work();
            // The results would not be used, so the other workers start nothing more.
            done.inspect_err(|_| locked(&run.queue).clear())
        };
        let workers: Vec<_> = (0..plan.jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        let joined = workers.into_iter().map(|worker| worker.join().expect("it does not panic"));
        joined.collect::<Result<Vec<()>>>()
    })?;
    Ok(run.came.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State that the workers share.
struct Run<'a> {
    queue: Mutex<VecDeque<Package>>,
    came: Mutex<(Ends, Reasons)>,
    count: usize,
    patched: &'a Patched,
    exceptions: &'a Exceptions,
    suite: &'static Suite,
    program: Option<&'a Path>,
    folder: Folder,
}

impl Run<'_> {
    fn work(&self) -> Result<()> {
        static BUILD: Mutex<()> = Mutex::new(());
        loop {
            let next = {
                let mut queue = locked(&self.queue);
                queue.pop_front().map(|package| (package, self.count - queue.len()))
            };
            let Some((package, at)) = next else { return Ok(()) };
            let path = self.suite.path_of(&package.name);
            let program = {
                let _one = locked(&BUILD);
                TestProgram { file: self.patched.test_program(&path)?, path }
            };
            let (ends, why) = self.package(&package, &program, at)?;
            let mut came = locked(&self.came);
            came.0.extend(ends);
            came.1.extend(why);
        }
    }

    /// Runs a package. Where its program died, as it does when its own API server does not start in
    /// time on a busy host, the tests that had not ended run once more.
    fn package(
        &self,
        package: &Package,
        program: &TestProgram,
        at: usize,
    ) -> Result<(Ends, Reasons)> {
        let Package { name, tests, .. } = package;
        let file = if name == "." { "topmost".to_owned() } else { name.replace('/', "_") };
        let log = reports(self.suite)?.join(format!("{file}.log"));
        say("run", &format!("{at} of {}: {name}; {}", self.count, log.display()));
        let begun = Instant::now();
        let (mut ends, mut why) = (Ends::new(), Reasons::new());
        let mut left = tests.clone();
        for log in [log.clone(), log.with_extension("again.log")] {
            let (came, reasons, status) = self.program(name, &left, program, &log)?;
            ends.extend(came);
            why.extend(reasons);
            left.retain(|test| !ends.contains_key(&format!("{name} {test}")));
            let took = begun.elapsed().as_secs_f64();
            say("", &format!("{name}: {}, {status}, {took:.0} s", judge::count(&ends)));
            if left.is_empty() {
                break;
            }
            say("", &format!("{name}: the program ended before {}", left.join(", ")));
        }
        Ok((ends, why))
    }

    /// Runs these tests of a package, once.
    fn program(
        &self,
        name: &str,
        tests: &[String],
        program: &TestProgram,
        log: &Path,
    ) -> Result<(Ends, Reasons, ExitStatus)> {
        let mut cmd =
            test_command(self.patched, &program.file, &self.patched.package(&program.path))?;
        self.suite.point(&mut cmd, self.program);
        cmd.env("TMPDIR", &self.folder.0);
        cmd.arg("-test.v").arg(format!("-test.timeout={PACKAGE_MAX}"));
        cmd.arg(format!("-test.run=^({})$", tests.join("|")));
        let skipped = self.exceptions.skipped(name, tests, self.program.is_some());
        if !skipped.is_empty() {
            cmd.arg(format!("-test.skip={skipped}"));
        }
        let mut child = start(&mut cmd, log)?;
        let status = watch(&mut child, name, log)?;
        let (ends, mut why) = judge::parse(name, &read(log)?);
        // The output of each test says more than the exit status, but for the reason of a crash.
        if let Some(last) = judge::death(&read(&log.with_extension("err"))?) {
            why.entry(format!("{name} (the program)")).or_default().push(last);
        }
        Ok((ends, why, status))
    }
}

/// Waits until it ends; prints failures as they occur, and progress.
fn watch(child: &mut Child, name: &str, log: &Path) -> Result<ExitStatus> {
    let (mut told, mut failed) = (Instant::now(), BTreeSet::new());
    let mut size = 0;
    loop {
        let ended = child.try_wait().context("wait for the test program")?;
        let now = fs::metadata(log).map_or(0, |file| file.len());
        if now != size || ended.is_some() {
            size = now;
            let (ends, _) = judge::parse(name, &read(log)?);
            for test in judge::failed(&ends) {
                if failed.insert(test.clone()) {
                    say("failed", &test);
                }
            }
            if told.elapsed() > TELL && ended.is_none() {
                say("", &format!("{name}: {} so far", judge::count(&ends)));
                told = Instant::now();
            }
        }
        if let Some(status) = ended {
            return Ok(status);
        }
        thread::sleep(LOOK);
    }
}

fn read(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A test program in the folder of its package, with etcd where it looks for it; not yet pointed at
/// a program.
pub(super) fn test_command(patched: &Patched, program: &Path, dir: &Path) -> Result<Command> {
    let path = std::env::var("PATH").unwrap_or_default();
    let components = Program::Components.ensure()?;
    // The kernel ends it and all its children when this process ends.
    let mut cmd = Command::new("setpriv");
    cmd.args(["--pdeathsig", "KILL"]);
    if nix::unistd::geteuid().is_root() {
        cmd.args(["unshare", "--pid", "--fork", "--kill-child", "--"]);
    }
    cmd.arg(program);
    cmd.current_dir(dir).env("PATH", format!("{}:{path}", components.display()));
    cmd.env("KUBE_INTEGRATION_ETCD_URL", NO_ETCD);
    // Upstream finds its sources by these, because the build has shortened paths.
    cmd.env("TEST_SRCDIR", patched.modules()).env("TEST_WORKSPACE", ".");
    Ok(cmd)
}

/// Starts it with stdout in `log`, and stderr (the log lines of all servers) in a file beside it.
pub(super) fn start(cmd: &mut Command, log: &Path) -> Result<Child> {
    let create =
        |path: &Path| File::create(path).with_context(|| format!("create {}", path.display()));
    let (out, err) = (create(log)?, create(&log.with_extension("err"))?);
    cmd.stdin(Stdio::null()).stdout(out).stderr(err);
    cmd.spawn().with_context(|| format!("start {}", shell::line(cmd)))
}

/// A folder for what the tests write, near the root: etcd's sockets have short names.
struct Folder(PathBuf);

impl Folder {
    /// Makes it, and removes those of runs that were killed.
    fn new() -> Result<Self> {
        let parent = std::env::temp_dir();
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_gone = |id: &str| !Path::new(&format!("/proc/{id}")).exists();
            if name.strip_prefix(FOLDER).is_some_and(is_gone) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let path = parent.join(format!("{FOLDER}{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_that_takes_longest_starts_first() {
        let chosen = ["a TestA", "a TestB", "b TestA", "c/d TestA"].map(str::to_owned).into();
        let list = "passed\t1.0\ta TestA\npassed\t2.0\ta TestB\npassed\t2.5\tb TestA\n";
        let queue = queue(&chosen, &judge::parse_list(list).expect("a list"));
        let names: Vec<(&str, usize)> =
            queue.iter().map(|package| (package.name.as_str(), package.tests.len())).collect();
        assert_eq!(names, [("a", 2), ("b", 1), ("c/d", 1)]);
    }

    #[test]
    fn folders_of_runs_that_were_killed_are_removed() {
        // No process has the id 0.
        let old = std::env::temp_dir().join(format!("{FOLDER}0"));
        fs::create_dir_all(old.join("etcd")).expect("made");
        let folder = Folder::new().expect("made");
        let path = folder.0.clone();
        assert!(!old.exists() && path.is_dir());
        drop(folder);
        assert!(!path.exists());
    }
}
