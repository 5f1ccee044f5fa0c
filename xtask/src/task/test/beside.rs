//! Stages that only compute, beside those that mostly wait for a kernel, a runtime or a server.
//!
//! One more process of this program runs them with what the others leave of the processors. What it
//! prints goes to a file, because two runs that print in turns can be read by nobody, and is shown
//! when it has ended.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Counts;
use super::logged::Logged;
use crate::repository;
use crate::shell;

/// Stages of which nothing is measured in time.
pub(super) const STAGES: [&str; 5] = ["clippy", "doc", "sim", "loom", "fuzz"];
/// The stage behind which they begin: from there on nobody else needs cargo, which does one thing
/// at a time.
pub(super) const AFTER: &str = "release";

/// The process that runs them.
pub(super) struct Beside(Logged);

impl Beside {
    pub(super) fn start() -> Result<Self> {
        let log = repository().join("target/beside.log");
        let mut cmd = Command::new("nice");
        // As it runs: an earlier stage has built its file anew.
        cmd.args(["-n", "19"]).arg(format!("/proc/{}/exe", std::process::id()));
        cmd.arg("test").args(STAGES);
        let process = Logged::start(&mut cmd, &log)?;
        shell::say("beside", &format!("{}: {}", STAGES.join(", "), log.display()));
        Ok(Self(process))
    }

    /// Waits for its end, shows what it printed, and returns what its last line counts.
    pub(super) fn end(mut self) -> Result<Counts> {
        let (status, text) = self.0.end()?;
        print!("{text}");
        let counts = text.lines().next_back().and_then(counts);
        let counts = counts.with_context(|| format!("{status}, and no counts at its end"))?;
        ensure!(status.success() == (counts.failed == 0), "{status}, and {counts:?}");
        Ok(counts)
    }
}

/// Reads the line of `super::summary`.
fn counts(line: &str) -> Option<Counts> {
    let (passed, rest) = line.split_once(" passed (")?;
    let (flaky, rest) = rest.split_once(" of them flaky), ")?;
    let (failed, rest) = rest.split_once(" failed, ")?;
    let skipped = rest.strip_suffix(" skipped")?;
    Some(Counts {
        passed: passed.parse().ok()?,
        failed: failed.parse().ok()?,
        skipped: skipped.parse().ok()?,
        flaky: flaky.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::test::{all, summary};

    #[test]
    fn what_was_counted_beside_is_read_from_its_last_line() {
        let told = Counts { passed: 12, failed: 3, skipped: 4, flaky: 1 };
        assert_eq!(counts(&summary(&told)), Some(told));
        for broken in ["", "12 passed", "a passed (1 of them flaky), 3 failed, 4 skipped"] {
            assert_eq!(counts(broken), None, "{broken}");
        }
    }

    #[test]
    fn they_are_stages_and_begin_behind_one() {
        let names: Vec<&str> = all().map(|stage| stage.name).collect();
        assert!(STAGES.iter().all(|stage| names.contains(stage)), "{names:?}");
        assert!(names.contains(&AFTER) && !STAGES.contains(&AFTER));
    }
}
