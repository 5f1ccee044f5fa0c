//! `cargo xtask scheduler-suites`: upstream's integration tests and benchmarks of the scheduler,
//! pointed at ours.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::node::agent;
use crate::scheduler_suites::{self, Plan, perf};

const USAGE: &str = "\
usage: cargo xtask scheduler-suites [OPTION]...
  --scheduler S  pintle (default), kube-scheduler (upstream's own, in the tests' process), or a
                 program's path
  --focus TEXT   tests whose name, PACKAGE TEST, has this in it; scheduler_perf for its workloads as
                 tests, which do not run otherwise
  --jobs N       packages at once; otherwise as many as there are processors
  --record       write down what the tests come to with upstream's own scheduler
  --perf         workloads of scheduler_perf instead, with upstream's own and with ours
Prints what each package came to with upstream's own scheduler, as written down, and now. Fails
if a test that was chosen or a case that upstream's runs did not run, or failed without being named
in tests/upstream/scheduler-exceptions.txt, or passed although it is named there.";

/// Runs the suite as the arguments ask for.
pub(super) fn run(mut args: &[&str]) -> Result<ExitCode> {
    let (mut plan, mut scheduler, mut is_perf) = (Plan::default(), "pintle", false);
    plan.jobs = std::thread::available_parallelism().map_or(1, usize::from);
    loop {
        args = match args {
            [] => break,
            ["help" | "--help" | "-h", ..] => {
                println!("{USAGE}");
                return Ok(ExitCode::SUCCESS);
            }
            ["--record", rest @ ..] => {
                plan.record = true;
                rest
            }
            ["--perf", rest @ ..] => {
                is_perf = true;
                rest
            }
            ["--scheduler", value, rest @ ..] => {
                scheduler = *value;
                rest
            }
            ["--jobs", value, rest @ ..] => {
                plan.jobs = value
                    .parse()
                    .ok()
                    .filter(|jobs| *jobs > 0)
                    .with_context(|| format!("--jobs is a number above zero, not {value:?}"))?;
                rest
            }
            ["--focus", value, rest @ ..] => {
                plan.focus = (*value).to_owned();
                rest
            }
            [option @ ("--scheduler" | "--focus" | "--jobs")] => {
                bail!("{option} needs a value\n{USAGE}")
            }
            [wrong, ..] => bail!("scheduler-suites has no option {wrong}\n{USAGE}"),
        }
    }
    plan.scheduler = program(scheduler)?;
    let is_good = if is_perf { perf::run(&plan)? } else { scheduler_suites::run(&plan)? };
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads `kube-scheduler`, `pintle` or a path; builds ours when no file is named.
fn program(text: &str) -> Result<Option<PathBuf>> {
    Ok(match text {
        "kube-scheduler" => None,
        "pintle" => Some(agent::build("pintle-scheduler")?),
        path if path.contains('/') => {
            Some(fs::canonicalize(path).with_context(|| format!("find {path}"))?)
        }
        _ => bail!("a scheduler is `kube-scheduler`, `pintle` or the path of a program"),
    })
}
