//! The fuzz targets of `tests/fuzz`, for five seconds each, as many at a time as there are cores.
//!
//! One program, a process for each target. libFuzzer with the compiler's own coverage and no
//! sanitizer: that needs no nightly compiler, and safe Rust needs none. Each begins
//! with its seeds and with what earlier runs on this machine found worth keeping (`corpus`, which
//! git ignores). An input that breaks something is left in `target/fuzz/finds`; it becomes a seed
//! with the fix.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::logged::Logged;
use super::report::TestCounts;
use super::{TestRun, prepare, sample};
use crate::repository;
use crate::shell::{self, capture, capture_shown, cargo, tail};

/// Folder of the fuzz targets.
const DIR: &str = "tests/fuzz";
/// Names the target that the program is to run.
const CHOICE: &str = "PINTLE_FUZZ";
/// How long each target runs, in seconds.
const SECONDS: &str = "5";
/// The same for a sample.
const SAMPLED_SECONDS: &str = "3";
/// Limit for one input, in seconds, on a machine that runs other things, too.
const INPUT_SECONDS_MAX: &str = "20";
/// Memory limit, in MiB.
const MEMORY_MIB_MAX: &str = "1024";
/// Coverage as libFuzzer reads it; all of this is in the stable compiler.
const COVERAGE: [&str; 5] = [
    "--cfg fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
];

pub(super) fn run(run: &TestRun) -> Result<TestCounts> {
    let extent = sample::FUZZ.extent(run);
    let seconds = if extent.drawn_by().is_some() { SAMPLED_SECONDS } else { SECONDS };
    extent.conclude(run_targets(seconds), BTreeSet::new())
}

fn run_targets(seconds: &str) -> Result<TestCounts> {
    prepare::fuzz_tools()?;
    let dir = repository().join(DIR);
    let finds = repository().join("target/fuzz/finds");
    fs::create_dir_all(&finds).with_context(|| format!("create {}", finds.display()))?;
    let program = build(&dir)?;
    let seeds = fs::read_dir(dir.join("seeds")).context("read the folders of seeds")?.flatten();
    let mut names: Vec<_> =
        seeds.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let mut counts = TestCounts::default();
    for together in names.chunks(thread::available_parallelism().map_or(1, NonZero::get)) {
        let started: Result<Vec<FuzzProcess>> = together
            .iter()
            .map(|name| FuzzProcess::start(&program, name, seconds, &finds))
            .collect();
        for mut running in started? {
            match running.end() {
                Ok(inputs) => {
                    shell::say("fuzz", &format!("{}: {inputs} inputs", running.name));
                    counts.passed += 1;
                }
                Err(error) => {
                    shell::say("failed", &format!("{}: {error:#}", running.name));
                    counts.failed += 1;
                }
            }
        }
    }
    Ok(counts)
}

/// Builds the program of all targets, of the versions that the product is built of. With a target
/// triple, so that build scripts and macros stay as they are.
fn build(dir: &Path) -> Result<PathBuf> {
    fs::copy(repository().join("Cargo.lock"), dir.join("Cargo.lock")).context("copy Cargo.lock")?;
    let version = capture(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|l| l.strip_prefix("host: "));
    let mut cmd = cargo(&["build", "--message-format=json-render-diagnostics"]);
    cmd.arg("--manifest-path").arg(dir.join("Cargo.toml"));
    cmd.args(["--target", host.context("rustc names its host")?]);
    cmd.arg("--target-dir").arg(repository().join("target/fuzz"));
    cmd.env("RUSTFLAGS", COVERAGE.join(" ")).env_remove("CARGO_ENCODED_RUSTFLAGS");
    let text = capture_shown(&mut cmd).context("build the fuzz targets")?;
    let messages = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    let built = messages.filter_map(|m| m["executable"].as_str().map(PathBuf::from)).next_back();
    built.context("cargo names the program that it built")
}

/// A target at work.
struct FuzzProcess {
    name: String,
    process: Logged,
}

impl FuzzProcess {
    fn start(program: &Path, name: &str, seconds: &str, finds: &Path) -> Result<Self> {
        let dir = repository().join(DIR);
        let (corpus, seeds) = (dir.join("corpus").join(name), dir.join("seeds").join(name));
        fs::create_dir_all(&corpus)?;
        let mut cmd = Command::new(program);
        cmd.env(CHOICE, name).arg(format!("-max_total_time={seconds}"));
        cmd.arg(format!("-timeout={INPUT_SECONDS_MAX}"));
        cmd.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}")).arg("-print_final_stats=1");
        cmd.arg(format!("-artifact_prefix={}/{name}-", finds.display()));
        cmd.arg(corpus).arg(seeds).current_dir(dir);
        let process = Logged::start(&mut cmd, &finds.join(format!("{name}.log")))?;
        Ok(Self { name: name.to_owned(), process })
    }

    /// Waits for its end and returns the number of inputs it tried; none is an error.
    fn end(&mut self) -> Result<u64> {
        let (status, text) = self.process.end()?;
        ensure!(status.success(), "{status}\n{}", tail(&text, 30));
        let inputs = inputs(&text).with_context(|| tail(&text, 30))?;
        ensure!(inputs > 0, "it tried nothing");
        Ok(inputs)
    }
}

fn inputs(log: &str) -> Option<u64> {
    let line = log.lines().find_map(|l| l.strip_prefix("stat::number_of_executed_units:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_inputs_is_read_from_the_statistics() {
        let log = "Done 12 runs\nstat::number_of_executed_units: 1234\nstat::average: 3\n";
        assert_eq!(inputs(log), Some(1234));
        assert_eq!(inputs("nothing"), None);
    }
}
