//! Building test programs and running them one by one.
//!
//! Input: a selection of targets. Output: the results of each program's tests. Cargo builds and
//! names the programs; they are run from here, because `cargo test` folds all of them into one exit
//! code: a crashed program would hide behind another one's failed test. A program that ends without
//! its result line, or that failed without naming a test, is a failure by itself.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::report::TestCounts;
use super::skips::Skips;
use crate::shell::{self, capture_shown, cargo};
use crate::task::SKIPPED_FILE;

/// Stages made of test targets of their own.
const INTEGRATION: [&str; 10] = [
    "parity",
    "sim",
    "e2e",
    "hostile",
    "cluster",
    "storage",
    "scheduler",
    "controllers",
    "uml",
    "kubeadm",
];

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StageProgram {
    /// Its package and target, such as `pintle-agent lib`.
    pub(super) name: String,
    /// Its target, where that is one of tests; libraries and programs have their tests inside.
    target: Option<String>,
    path: PathBuf,
    /// The package's folder, where cargo runs it.
    dir: PathBuf,
}

/// The test programs to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// All but the simulators, which are built optimized.
    All,
    /// Those that are of no stage of their own.
    Unit,
    /// Those of a stage, whose names have the stage's name as a word.
    Stage(&'static str),
}

impl Choice {
    /// Arguments with which cargo builds the same targets; fails if there are none.
    pub(super) fn args(self) -> Result<Vec<String>> {
        let targets = crate::task::targets("test")?.into_iter().map(|target| target.name);
        let chosen = targets.filter(|target| self.has_target(target));
        let tests: Vec<String> = chosen.flat_map(|t| ["--test".to_owned(), t]).collect();
        ensure!(!tests.is_empty(), "there is no test target of {self:?}");
        let inside: &[&str] = if self.has_inside() { &["--lib", "--bins"] } else { &[] };
        Ok(inside.iter().map(|arg| (*arg).to_owned()).chain(tests).collect())
    }

    pub(super) fn has(self, program: &StageProgram) -> bool {
        program.target.as_ref().map_or_else(|| self.has_inside(), |target| self.has_target(target))
    }

    /// Returns whether it has the tests inside of libraries and programs.
    fn has_inside(self) -> bool {
        matches!(self, Self::All | Self::Unit)
    }

    fn has_target(self, target: &str) -> bool {
        match self {
            Self::All => !is_of(target, "sim"),
            Self::Unit => !INTEGRATION.iter().any(|stage| is_of(target, stage)),
            Self::Stage(stage) => is_of(target, stage),
        }
    }
}

/// Returns whether a target such as `sched_parity` belongs to a stage such as `parity`.
fn is_of(target: &str, stage: &str) -> bool {
    target.split('_').any(|word| word == stage)
}

/// Result of one run of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProgramOutcome {
    pub(super) counts: TestCounts,
    pub(super) passed: Vec<String>,
    pub(super) failed: Vec<String>,
    /// True if its output ends as a test program's does.
    pub(super) is_whole: bool,
}

/// Builds the test programs of the workspace that these arguments of `cargo test` select.
pub(super) fn build(args: &[String]) -> Result<Vec<StageProgram>> {
    build_with(cargo(&["test", "--locked", "--no-run", "--workspace"]).args(args))
}

/// Builds the test programs of these packages alone, with what they depend on and nothing else.
pub(super) fn build_packages(packages: &[&str]) -> Result<Vec<StageProgram>> {
    let mut cmd = cargo(&["test", "--locked", "--no-run", "--lib", "--tests"]);
    build_with(cmd.args(packages.iter().flat_map(|package| ["--package", package])))
}

fn build_with(cmd: &mut Command) -> Result<Vec<StageProgram>> {
    cmd.arg("--message-format=json-render-diagnostics");
    let programs = named(&capture_shown(cmd).context("build the tests")?);
    ensure!(!programs.is_empty(), "no test program: {}", shell::line(cmd));
    Ok(programs)
}

/// The programs that cargo's messages name.
fn named(messages: &str) -> Vec<StageProgram> {
    let messages = messages.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    let program = |message: Value| {
        let path = PathBuf::from(message["executable"].as_str()?);
        if message["profile"]["test"] != true {
            return None;
        }
        let dir = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let package = dir.file_name()?.to_string_lossy().into_owned();
        let target = message["target"]["name"].as_str()?;
        let (name, target) = match message["target"]["kind"][0].as_str()? {
            "lib" => (format!("{package} lib"), None),
            "test" => (format!("{package} {target}"), Some(target.to_owned())),
            _ => (format!("{package} {target}"), None),
        };
        Some(StageProgram { name, target, path, dir })
    };
    messages.filter_map(program).collect()
}

impl StageProgram {
    /// Where the program is.
    pub(super) fn into_path(self) -> PathBuf {
        self.path
    }

    /// The names of its tests.
    pub(super) fn list(&self) -> Result<Vec<String>> {
        let text = capture_shown(Command::new(&self.path).arg("--list").current_dir(&self.dir))?;
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }

    /// Runs it with these arguments, shows its output and counts.
    pub(super) fn run(
        &self,
        args: &[&str],
        env: &[(&str, &str)],
        skips: &Skips,
    ) -> Result<ProgramOutcome> {
        shell::say("run", &self.name);
        let mut cmd = Command::new(&self.path);
        cmd.args(args).current_dir(&self.dir).envs(env.iter().copied());
        let mut outcome = watch(&mut cmd, skips)?;
        if !outcome.is_whole {
            shell::say("failed", &format!("{}: it ended without a result", self.name));
            outcome.counts.failed += 1;
        }
        Ok(outcome)
    }
}

/// Runs a command whose output contains that of test programs.
pub(super) fn watch(cmd: &mut Command, skips: &Skips) -> Result<ProgramOutcome> {
    let _ = fs::remove_file(skips.file());
    cmd.env(SKIPPED_FILE, skips.file()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = cmd.spawn().with_context(|| format!("start {}", shell::line(cmd)))?;
    let mut reader = Reader::default();
    for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
        let line = line?;
        println!("{line}");
        reader.take(&line);
    }
    let mut outcome = reader.end(child.wait()?);
    let skipped = skips.take();
    outcome.counts.passed = outcome.counts.passed.saturating_sub(skipped.allowed + skipped.failed);
    outcome.counts.skipped += skipped.allowed;
    outcome.counts.failed += skipped.failed;
    Ok(outcome)
}

/// Reads the lines of one test program, or of several in a row.
#[derive(Default)]
struct Reader {
    outcome: ProgramOutcome,
    begun: usize,
    ended: usize,
}

impl Reader {
    fn take(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.ended += 1;
            self.outcome.counts.add(totals(rest));
        } else if line.starts_with("running ") && line.contains(" test") {
            self.begun += 1;
        } else if let Some((name, result)) =
            line.strip_prefix("test ").and_then(|l| l.split_once(" ... "))
        {
            let name = name.trim_end_matches(" - should panic").to_owned();
            match result.split([',', ' ']).next() {
                Some("ok") => self.outcome.passed.push(name),
                Some("FAILED") => self.outcome.failed.push(name),
                _ => {}
            }
        }
    }

    /// A program is whole when each of its beginnings has an end, and failed tests are the only
    /// reason for which it failed.
    fn end(mut self, status: ExitStatus) -> ProgramOutcome {
        let is_told = status.success() == (self.outcome.counts.failed == 0);
        self.outcome.is_whole = self.ended > 0 && self.begun == self.ended && is_told;
        self.outcome
    }
}

/// Reads `ok. 2 passed; 0 failed; 1 ignored; ...`.
fn totals(text: &str) -> TestCounts {
    let number = |what: &str| {
        let end = text.find(what)?;
        text[..end].trim_end().rsplit(' ').next()?.parse().ok()
    };
    TestCounts {
        passed: number("passed").unwrap_or(0),
        failed: number("failed").unwrap_or(0),
        skipped: number("ignored").unwrap_or(0),
        flaky: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use serde_json::json;

    use super::*;

    fn read(lines: &[&str], code: i32) -> ProgramOutcome {
        let mut reader = Reader::default();
        lines.iter().for_each(|line| reader.take(line));
        reader.end(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn tests_are_named_and_counted() {
        let result = "test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; \
                      4 filtered out; finished in 0.01s";
        let lines = [
            "running 4 tests",
            "test a::b ... ok",
            "test c - should panic ... ok",
            "test d ... FAILED",
            "test e ... ignored, slow",
            result,
        ];
        let outcome = read(&lines, 101);
        assert_eq!(outcome.passed, ["a::b", "c"]);
        assert_eq!(outcome.failed, ["d"]);
        assert_eq!(outcome.counts, TestCounts { passed: 2, failed: 1, skipped: 1, flaky: 0 });
        assert!(outcome.is_whole);
    }

    #[test]
    fn crashed_program_is_not_whole_regardless_of_its_earlier_output() {
        let good = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured";
        let bad = "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured";
        for (lines, code) in [
            (&["running 2 tests", "test a ... ok"][..], 134),
            (&["running 2 tests", "test a ... FAILED"], 134),
            (&["running 1 test", good, "running 1 test"], 101),
            (&["running 1 test", good], 1),
            (&["running 2 tests", bad], 0),
            (&[], 0),
            (&[], 101),
        ] {
            assert!(!read(lines, code).is_whole, "{lines:?} {code}");
        }
        assert!(read(&["running 1 test", good], 0).is_whole);
    }

    #[test]
    fn programs_are_those_that_cargo_built_as_tests() {
        let built = |executable: &str, test: bool, package: &str, name: &str, kind: &str| {
            let manifest = format!("/r/{package}/Cargo.toml");
            json!({"reason": "compiler-artifact", "executable": executable,
                "profile": {"test": test}, "manifest_path": manifest,
                "target": {"name": name, "kind": [kind]}})
        };
        let mut library = built("", true, "agent", "agent", "lib");
        library["executable"] = Value::Null;
        let messages = [
            built("/t/e2e-1", true, "tests", "e2e", "test"),
            built("/t/agent", false, "agent", "agent", "bin"),
            library,
            built("/t/agent-1", true, "agent", "pintle_agent", "lib"),
        ];
        let messages = messages.map(|message| message.to_string()).join("\n");
        let programs = named(&messages);
        let names: Vec<&str> = programs.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["tests e2e", "agent lib"]);
        let chosen = |choice: Choice| programs.iter().map(|p| choice.has(p)).collect::<Vec<_>>();
        assert_eq!(chosen(Choice::All), [true, true]);
        assert_eq!(chosen(Choice::Unit), [false, true]);
        assert_eq!(chosen(Choice::Stage("e2e")), [true, false]);
    }

    #[test]
    fn target_belongs_to_the_stage_named_by_a_word_of_its_name() {
        assert!(is_of("parity_status", "parity") && is_of("sched_parity", "parity"));
        assert!(!is_of("simple", "sim"));
        assert!(Choice::Unit.has_target("connection") && !Choice::Unit.has_target("sim"));
        assert!(Choice::All.has_target("e2e") && Choice::All.has_target("connection"));
        assert!(!Choice::All.has_target("sim"));
    }
}
