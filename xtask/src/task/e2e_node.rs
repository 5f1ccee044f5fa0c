//! `cargo xtask e2e-node`: upstream's suite for one node, with our agent or the kubelet.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::cluster::Agent;
use crate::e2e_node::{self, Plan};

const USAGE: &str = "\
usage: cargo xtask e2e-node [OPTION]...
  --agent A      the agent: pintle (default), kubelet, or a program's path
  --focus RE     tests whose name matches
  --skip RE      but not those
  --label EXPR   tests with these labels
                 (default: NodeConformance && !Serial && !Slow && !Flaky)
  --parallel N   how many at once (default 4)
  --record       write down what the tests come to with the kubelet (with --agent kubelet)
Prints what each test came to with the kubelet, as written down, and now. Fails if a test that was
chosen did not run, or failed without being named in tests/upstream/node-exceptions.txt, or passed
although it is named there.";

/// Runs the suite as the arguments ask for.
pub(super) fn run(mut args: &[&str]) -> Result<ExitCode> {
    let mut plan = Plan::default();
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
            ["--agent", value, rest @ ..] => {
                plan.agent = Agent::parse(value)?;
                rest
            }
            ["--focus", value, rest @ ..] => {
                plan.focus = (*value).to_owned();
                rest
            }
            ["--skip", value, rest @ ..] => {
                plan.skip = (*value).to_owned();
                rest
            }
            ["--label", value, rest @ ..] => {
                plan.label = (*value).to_owned();
                rest
            }
            ["--parallel", value, rest @ ..] => {
                plan.procs = value.parse().context("--parallel takes a number")?;
                rest
            }
            [wrong, ..] => bail!("e2e-node has no option {wrong}\n{USAGE}"),
        }
    }
    Ok(if e2e_node::run(&plan)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
