//! `cargo xtask suites NAME`: upstream's integration tests of a component, and benchmarks of its
//! scheduler, pointed at ours.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use crate::node::agent;
use crate::suites::{self, Plan, SCHEDULER, Suite, perf};

const USAGE: &str = "\
usage: cargo xtask suites scheduler|controllers [OPTION]...
  --program P    pintle (default), upstream (its own component, in the tests' process), or a
                 program's path
  --focus TEXT   tests whose name, PACKAGE TEST, has this in it; scheduler_perf for the scheduler's
                 workloads as tests, which do not run otherwise
  --jobs N       packages at once; otherwise as many as there are processors
  --record       write down what the tests come to with upstream's own component
  --perf         workloads of scheduler_perf instead, with upstream's own scheduler and with ours
Prints what each package came to with upstream's own component, as written down, and now. Fails
if a test that was chosen or a case that upstream's runs did not run, or failed without being named
in tests/upstream/NAME-exceptions.txt, or passed although it is named there.";

/// Runs the suite as the arguments ask for.
pub(super) fn run(args: &[&str]) -> Result<ExitCode> {
    let (suite, mut args) = match args {
        ["help" | "--help" | "-h", ..] => {
            println!("{USAGE}");
            return Ok(ExitCode::SUCCESS);
        }
        [name, rest @ ..] => match Suite::find(name) {
            Some(suite) => (suite, rest),
            None => bail!("no suite {name}\n{USAGE}"),
        },
        [] => bail!("which suite?\n{USAGE}"),
    };
    let (mut plan, mut program, mut is_perf) = (Plan::of(suite), "pintle", false);
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
            ["--program", value, rest @ ..] => {
                program = *value;
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
            [option @ ("--program" | "--focus" | "--jobs")] => {
                bail!("{option} needs a value\n{USAGE}")
            }
            [wrong, ..] => bail!("suites has no option {wrong}\n{USAGE}"),
        }
    }
    ensure!(!is_perf || suite == &SCHEDULER, "--perf is for the scheduler\n{USAGE}");
    plan.program = find(program, suite)?;
    let is_good = if is_perf { perf::run(&plan)? } else { suites::run(&plan)? };
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads `upstream`, `pintle` or a path; builds ours when no file is named.
fn find(text: &str, suite: &Suite) -> Result<Option<PathBuf>> {
    Ok(match text {
        "upstream" => None,
        "pintle" => Some(agent::build_with_features(suite.ours, suite.features)?),
        path if path.contains('/') => {
            Some(fs::canonicalize(path).with_context(|| format!("find {path}"))?)
        }
        _ => bail!("a program is `upstream`, `pintle` or a path with a slash in it"),
    })
}
