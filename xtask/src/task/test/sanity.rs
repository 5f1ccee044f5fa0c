//! csi-sanity, upstream's suite for CSI drivers, run against the CSI driver of the tests.
//!
//! Input: both programs, built now. Output: the counts of all runs, one for each set of
//! capabilities that our other tests use. The driver runs in a mount namespace of its own, so
//! nothing stays mounted; what its log calls a violation of the order of calls is a failure. Bound:
//! `RUN_MAX` a run.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::report::TestCounts;
use crate::node::agent;
use crate::shell::{self, say};
use crate::upstream::Program;

/// Sizes of volumes before and after their expansion: files of devices have holes, copies of
/// folders have not.
const SIZES: [&str; 2] = ["--csi.testvolumesize=16777216", "--csi.testvolumeexpandsize=33554432"];
/// How long the driver may take to listen.
const LISTEN_MAX: Duration = Duration::from_secs(60);
/// Limit of one run, in seconds.
const RUN_MAX: &str = "600";

/// One run: flags of the driver, flags of the suite.
const RUNS: [(&[&str], &[&str]); 5] = [
    (&[], &[]),
    (&[], &["--csi.testvolumeaccesstype=block"]),
    (&["--without=stage,attach"], &[]),
    (
        &["--without=controller-expand,snapshots,topology,writers"],
        &["--csi.testvolumeaccesstype=block"],
    ),
    (&["--max-volumes=3"], &["--csi.testnodevolumeattachlimit"]),
];

pub(super) fn run() -> Result<TestCounts> {
    let driver = agent::build("pintle-csi-driver")?;
    let suite = Program::CsiSanity.ensure()?;
    let mut total = TestCounts::default();
    for (driver_flags, suite_flags) in RUNS {
        let flags = [driver_flags, suite_flags].concat().join(" ");
        say("csi-sanity", if flags.is_empty() { "as it is" } else { &flags });
        let folder = tempfile::tempdir()?;
        let mut serving = SanityDriver::start(&driver, folder.path(), driver_flags)?;
        let counts = ask(&suite, folder.path(), suite_flags);
        serving.stop();
        total.add(counts?);
        total.failed += violations(folder.path())?;
    }
    Ok(total)
}

/// The driver, and the namespace that ends with it.
struct SanityDriver(Child);

impl SanityDriver {
    fn start(program: &Path, folder: &Path, flags: &[&str]) -> Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", "--fork", "--kill-child", "--"]);
        command.arg(program).arg("--endpoint").arg(folder.join("csi.sock"));
        command.arg("--state").arg(folder.join("state")).arg("--topology=test.pintle.dev/zone=a");
        let child = command.args(flags).spawn().context("start the CSI driver")?;
        let driver = Self(child);
        let begin = Instant::now();
        while !folder.join("csi.sock").exists() {
            ensure!(begin.elapsed() < LISTEN_MAX, "the CSI driver does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(driver)
    }

    fn stop(&mut self) {
        let _ = self.0.kill(); // it may have ended by itself, which the suite has seen
        let _ = self.0.wait();
    }
}

impl Drop for SanityDriver {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs the suite and reads its last lines.
fn ask(suite: &Path, folder: &Path, flags: &[&str]) -> Result<TestCounts> {
    let mut command = Command::new("timeout");
    command.arg(RUN_MAX).arg(suite).arg("--ginkgo.no-color");
    command.arg(format!("--csi.endpoint=unix://{}", folder.join("csi.sock").display()));
    command.arg(format!("--csi.mountdir={}", folder.join("mounts").display()));
    command.arg(format!("--csi.stagingdir={}", folder.join("staging").display()));
    let output = command.args(SIZES).args(flags).output().context("start csi-sanity")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let counts = counts(&text).with_context(|| shell::tail(&text, 20))?;
    if counts.failed > 0 || !output.status.success() {
        eprintln!("{}", shell::tail(&text, 60));
        ensure!(counts.failed > 0, "csi-sanity ended with {}", output.status);
    }
    Ok(counts)
}

/// Reads `.. 85 Passed | 0 Failed | 0 Pending | 18 Skipped`; what the driver lacks on purpose is
/// skipped, and is no test that a host cannot run.
fn counts(text: &str) -> Result<TestCounts> {
    let number = |word: &str| {
        let before = text.rsplit_once(&format!(" {word}")).map(|(before, _)| before);
        let digits = before?.rsplit(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    let passed = number("Passed").context("csi-sanity tells no counts")?;
    let failed = number("Failed").context("csi-sanity tells no counts")?;
    ensure!(passed + failed > 0, "csi-sanity ran nothing");
    Ok(TestCounts { passed, failed, skipped: 0, flaky: 0 })
}

/// How often the suite called out of order, as the driver sees it.
fn violations(folder: &Path) -> Result<usize> {
    let text = fs::read_to_string(folder.join("state/calls.jsonl"))?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found: Vec<Value> = lines.filter(|line| line["phase"] == "Violation").collect();
    for line in &found {
        say("failed", &format!("violation: {} {}", line["method"], line["text"]));
    }
    Ok(found.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_last_line() {
        let text = "Ran 85 of 103 Specs in 1.867 seconds\n\
                    SUCCESS! -- 84 Passed | 1 Failed | 0 Pending | 18 Skipped\n";
        let counts = counts(text).expect("counts");
        assert_eq!((counts.passed, counts.failed, counts.skipped), (84, 1, 0));
        assert!(super::counts("panic").is_err());
    }
}
