//! `cargo xtask e2e-node`: upstream's suite for one node, with our agent or the kubelet.

use std::path::absolute;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::cluster::Agent;
use crate::e2e_node::{self, NodeTestPlan, Set};

const USAGE: &str = "\
usage: cargo xtask e2e-node [OPTION]...
  --agent A      the agent: pintle (default), kubelet, or a program's path
  --serial       tests that run alone, instead of NodeConformance && !Serial && !Slow && !Flaky:
                 one by one, on a disk of the node's own that some of them fill
  --guest        tests that want systemd or a whole machine: one by one, in an emulated one
  --cgroup-v2    NodeConformance in a guest with cgroup v2 and systemd, see `cargo xtask uml`
  --focus RE     of those, tests whose name matches
  --skip RE      but not those
  --label EXPR   of all that the suite has, tests with these labels
  --parallel N   how many at once (default 4, or 1 with --serial or --guest)
  --reports DIR  keep logs and results there (default: below target/e2e-node)
  --record       write down what the tests come to with the kubelet (with --agent kubelet)
Prints what each test came to with the kubelet, as written down, and now. Fails if a test that was
chosen did not run, or failed without being named in tests/upstream/node-exceptions.txt, or did not
fail although it is named there.";

/// Runs the suite as the arguments ask for.
pub(super) fn run(mut args: &[&str]) -> Result<ExitCode> {
    let mut plan = NodeTestPlan::default();
    loop {
        args = match args {
            [] => break,
            ["help" | "--help" | "-h", ..] => {
                println!("{USAGE}");
                return Ok(ExitCode::SUCCESS);
            }
            ["--serial", rest @ ..] => {
                (plan.set, plan.procs) = (Set::Serial, 1);
                rest
            }
            ["--guest", rest @ ..] => {
                (plan.set, plan.procs) = (Set::Guest, 1);
                rest
            }
            ["--cgroup-v2", rest @ ..] => {
                plan.set = Set::CgroupV2;
                rest
            }
            ["--record", rest @ ..] => {
                plan.record = true;
                rest
            }
            ["--agent", value, rest @ ..] => {
                plan.agent = Agent::parse(value)?;
                rest
            }
            ["--reports", value, rest @ ..] => {
                plan.reports = Some(absolute(value)?);
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
