//! Upstream's end-to-end suite on a cluster of ours.
//!
//! Input: which tests, on which cluster. Output: a table of them in `target/conformance`, the names
//! of those that passed and failed, and whether the suite itself ran to its end.
//! `tests/upstream/base.txt` lists the tests that pass with upstream's kubelet on such a cluster:
//! only other tests may fail. Of the suites of volumes none may. The suite's own serial tests
//! run alone, after the others.

pub mod report;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::report::{Base, TestOutcome};
use crate::cluster::Cluster;
use crate::image::storage;
use crate::repository;
use crate::shell::{self, say, tail, timed};
use crate::upstream::Program;

/// The longest that a whole run may take.
const RUN_MAX: &str = "3h";
/// Period of progress lines of a run.
const PROGRESS_EVERY: Duration = Duration::from_secs(60);
/// Polling period of a run's end.
const POLL: Duration = Duration::from_millis(200);
/// Tests that pass with upstream's kubelet, a line each: seconds that it took, name.
const BASE: &str = "tests/upstream/base.txt";
/// Groups of tests that concern a node.
const FAST_GROUPS: [&str; 3] = ["[sig-node]", "[sig-storage]", "[sig-network]"];
/// Suites of volumes: those that deploy the host-path driver and the mock driver, and those of volumes
/// without a driver.
const STORAGE: &str = r"\[sig-storage\]";
/// Of these, tests that are conformance tests, take many minutes, break the node or need a feature that
/// is off, and tests of clouds, of other drivers and of servers for which there is no image.
const STORAGE_SKIPPED: [&str; 9] = [
    r"\[Conformance\]",
    r"\[Slow\]",
    r"\[Serial\]",
    r"\[Disruptive\]",
    r"\[Flaky\]",
    r"\[Feature:",
    r"\[Driver: (nfs|iscsi|vsphere|cinder|azure|pd)",
    "PersistentVolumes NFS",
    "NFSv",
];
/// Tests that take longer than this with the kubelet are left out of the fast subset.
const FAST_SECONDS_MAX: f64 = 40.0;

/// The tests to run.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Names that match are chosen.
    pub focus: String,
    /// Pattern of names to leave out; empty for none.
    pub skip: String,
    /// How many run at once.
    pub procs: usize,
    /// How many tests these are, where they are known by their names.
    pub count: Option<usize>,
    /// They deploy CSI drivers: nodes need the images, the cluster the controller of snapshots.
    pub deploys_drivers: bool,
}

impl Selection {
    /// The tests that CI runs, so many at once.
    pub fn fast(procs: usize) -> Result<Self> {
        Ok(Self::exactly(&fast_names()?, procs))
    }

    /// These tests, so many at once.
    pub fn exactly(names: &[String], procs: usize) -> Self {
        let focus = report::literally(names.iter().map(String::as_str));
        let count = Some(names.len());
        Self { focus, skip: String::new(), procs, count, deploys_drivers: false }
    }

    /// Upstream's suites of volumes, without slow and disruptive tests.
    pub fn storage(procs: usize) -> Self {
        let (focus, skip) = (STORAGE.to_owned(), STORAGE_SKIPPED.join("|"));
        Self { focus, skip, procs, count: None, deploys_drivers: true }
    }
}

/// The tests that CI runs: those that concern a node, without slow and serial ones.
pub fn fast_names() -> Result<Vec<String>> {
    let text = read_base()?;
    let base = report::parse_base(&text);
    let is_fast = |(name, seconds): &(&&str, &f64)| {
        **seconds <= FAST_SECONDS_MAX
            && FAST_GROUPS.iter().any(|group| name.starts_with(group))
            && !name.contains("[Serial]")
    };
    Ok(base.iter().filter(is_fast).map(|(name, _)| (*name).to_owned()).collect())
}

/// The list of what passes with upstream's kubelet.
fn read_base() -> Result<String> {
    fs::read_to_string(repository().join(BASE)).with_context(|| format!("read {BASE}"))
}

/// Builds the programs of a run.
pub fn prepare() -> Result<()> {
    Program::Ginkgo.ensure()?;
    Program::E2e.ensure().map(drop)
}

/// Runs the tests on a running cluster, prints and returns the results.
pub fn run(cluster: &Cluster, selection: &Selection) -> Result<Summary> {
    cluster
        .kubectl(&[
            "-n",
            "kube-system",
            "rollout",
            "status",
            "deployment/coredns",
            "--timeout=120s",
        ])
        .context("wait for the cluster's DNS")?;
    if selection.deploys_drivers {
        provide_drivers(cluster)?;
    }
    let dir = repository().join("target/conformance");
    fs::create_dir_all(&dir)?;
    let log = dir.join("log.txt");
    let report = dir.join("report.json");
    let _ = fs::remove_file(&report);
    let mut cmd = suite(cluster, selection)?;
    cmd.args(["--json-report=report.json"]).arg(format!("--output-dir={}", dir.display()));
    cmd.arg(Program::E2e.ensure()?).arg("--").args(["--provider=local"]);
    cmd.arg(format!("--kubeconfig={}", cluster.layout().kubeconfig("admin").display()));
    say("run", &format!("the suite, {} at once; {}", selection.procs, log.display()));
    let status = follow(&mut cmd, &log)?;
    let end = || tail(&fs::read_to_string(&log).unwrap_or_default(), 20);
    let Ok(json) = fs::read_to_string(&report) else {
        bail!("the suite did not run:\n{}", end());
    };
    let base = read_base()?;
    let mut summary = summary(report::parse(&json)?, &report::parse_base(&base), &dir)?;
    if selection.deploys_drivers {
        // The list has none of these tests.
        summary.regressions = summary.failed.len();
    }
    if !status.success() && summary.failed.is_empty() && !summary.is_suite_broken {
        say("failed", &format!("no test failed, but the suite: {status}\n{}", end()));
        summary.is_suite_broken = true;
    }
    Ok(summary)
}

/// Gives the cluster what upstream's deployments of CSI drivers need.
fn provide_drivers(cluster: &Cluster) -> Result<()> {
    let images = storage::layout()?;
    timed("import", "images of CSI drivers", || {
        cluster.nodes().iter().try_for_each(|node| cluster.import_images(node, &images))
    })?;
    cluster.start("snapshots")
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Names of the tests that passed.
    pub passed: Vec<String>,
    /// Names of the tests that failed.
    pub failed: Vec<String>,
    /// How many of them pass with the original, or have to pass.
    pub regressions: usize,
    /// A set-up or an end of the whole suite failed, or the program that runs it: whatever passed,
    /// the rest did not run.
    pub is_suite_broken: bool,
}

impl Summary {
    /// How many tests ran.
    pub fn ran(&self) -> usize {
        self.passed.len() + self.failed.len()
    }
}

fn summary(all: Vec<TestOutcome>, base: &Base, dir: &Path) -> Result<Summary> {
    let table = report::table(&all, base);
    fs::write(dir.join("results.txt"), &table)?;
    fs::write(dir.join("failures.txt"), report::failures(&all))?;
    print!("{table}\n{}", report::totals(&all, base));
    let regressions = report::regressions(&all, base);
    if all.iter().any(|o| !o.passed) {
        println!("\nwhy:\n{}", report::failures(&all));
    }
    if !regressions.is_empty() {
        println!("these pass with upstream's kubelet:\n    {}", regressions.join("\n    "));
    }
    let regressions = regressions.len();
    let is_suite_broken = all.iter().any(|o| !o.is_test);
    let tests = all.into_iter().filter(|o| o.is_test);
    let (passed, failed): (Vec<_>, Vec<_>) = tests.partition(|o| o.passed);
    let names = |all: Vec<TestOutcome>| all.into_iter().map(|o| o.name).collect();
    let (passed, failed) = (names(passed), names(failed));
    Ok(Summary { passed, failed, regressions, is_suite_broken })
}

fn suite(cluster: &Cluster, selection: &Selection) -> Result<Command> {
    let mut cmd = cluster.control_command(Path::new("setpriv"))?;
    // The suite ends when this process does.
    cmd.args(["--pdeathsig", "TERM"]).arg(Program::Ginkgo.ensure()?);
    // The suite calls kubectl by its name.
    let path = std::env::var("PATH").unwrap_or_default();
    let kubectl = Program::Components.ensure()?;
    cmd.env("PATH", format!("{}:{path}", kubectl.display()));
    cmd.arg(format!("--procs={}", selection.procs)).arg(format!("--timeout={RUN_MAX}"));
    cmd.args(["--no-color", "--keep-going", &format!("--focus={}", selection.focus)]);
    if !selection.skip.is_empty() {
        cmd.arg(format!("--skip={}", selection.skip));
    }
    Ok(cmd)
}

/// Runs the suite into its log, prints its progress, and returns its exit status.
pub(crate) fn follow(cmd: &mut Command, log: &Path) -> Result<ExitStatus> {
    let out = File::create(log).with_context(|| format!("create {}", log.display()))?;
    cmd.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    let mut child = cmd.spawn().with_context(|| format!("start {}", shell::line(cmd)))?;
    let mut said = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(POLL);
        if said.elapsed() > PROGRESS_EVERY {
            said = Instant::now();
            // Its end may be a part of a character.
            let log = fs::read(log).unwrap_or_default();
            let text = String::from_utf8_lossy(&log);
            say("", &report::progress(&text));
        }
    }
}
