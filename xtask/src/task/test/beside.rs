//! Stages that run beside the main line: computing stages beside waiting ones, and the reverse.
//!
//! A lane is one more process of this program. Its output goes to a file and is shown at its end,
//! because the mixed output of two runs cannot be read.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::logged::Logged;
use super::report::{TestCounts, parse_summary};
use crate::repository;
use crate::shell;

/// Stages, the time at which they start, and the processors that they leave to others.
pub(super) struct StageLane {
    pub(super) name: &'static str,
    pub(super) stages: &'static [&'static str],
    /// The stage after which it starts.
    pub(super) after: &'static str,
    niceness: u8,
}

/// In the order in which they are waited for.
pub(super) const LANES: [StageLane; 3] = [
    // API servers, schedulers and controllers wait for most of their time, and need no agent: they
    // run while the agent is compiled.
    StageLane {
        name: "waits",
        stages: &["scheduler", "controllers", "vectors"],
        after: "build",
        niceness: 0,
    },
    // Pods with volumes and guests as nodes wait for most of their time, like the tests in clusters.
    // After the stage that measures how long other pods take.
    StageLane { name: "volumes", stages: &["storage", "uml"], after: "hostile", niceness: 0 },
    // No stage here measures time. After the last stage that compiles, because cargo locks its
    // folder.
    StageLane {
        name: "computes",
        stages: &["clippy", "doc", "sim", "loom", "fuzz"],
        after: "agent",
        niceness: 19,
    },
];

/// Returns whether a run of everything leaves the stage to a lane.
pub(super) fn has(stage: &str) -> bool {
    LANES.iter().any(|lane| lane.stages.contains(&stage))
}

impl StageLane {
    /// Starts its process, with an option of this run.
    pub(super) fn start(&'static self, option: &str) -> Result<LaneProcess> {
        let log = repository().join(format!("target/beside-{}.log", self.name));
        let mut cmd = Command::new("nice");
        // The running program: an earlier stage has rebuilt its file.
        let program = format!("/proc/{}/exe", std::process::id());
        cmd.args(["-n", &self.niceness.to_string(), &program, "test"]);
        cmd.arg(option).args(self.stages);
        let process = Logged::start(&mut cmd, &log)?;
        shell::say("beside", &format!("{}: {}", self.stages.join(", "), log.display()));
        Ok(LaneProcess(process))
    }
}

/// The process of a lane.
pub(super) struct LaneProcess(Logged);

impl LaneProcess {
    /// Waits for its end, prints its output, and returns the counts in the last line.
    pub(super) fn end(mut self) -> Result<TestCounts> {
        let (status, text) = self.0.end()?;
        print!("{text}");
        let counts = text.lines().next_back().and_then(parse_summary);
        let counts = counts.with_context(|| format!("{status}, and no counts at its end"))?;
        ensure!(status.success() == (counts.failed == 0), "{status}, and {counts:?}");
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::test::all;

    #[test]
    fn lanes_consist_of_stages_and_start_after_a_stage_of_the_main_line() {
        let names: Vec<&str> = all().map(|stage| stage.name).collect();
        for lane in &LANES {
            assert!(lane.stages.iter().all(|stage| names.contains(stage)), "{names:?}");
            assert!(names.contains(&lane.after) && !has(lane.after), "{}", lane.after);
        }
    }
}
