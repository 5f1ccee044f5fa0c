//! `cargo xtask differential`: the same pods on our agent and on the kubelet, everything compared.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use regex::Regex;

use super::cluster::name;
use crate::cluster::{Agent, Cluster};
use crate::differential::{self, Outcome};

const USAGE: &str = "\
usage: cargo xtask differential [--name NAME] [OPTION]...
  --focus RE     cases whose name matches
  --procs N      how many at once
  --agent A      ours: pintle (default, built now) or a program's path
  --keep         leave the cluster running
Uses the cluster of that name if it is up: n1 must have the kubelet, n2 our agent.";

/// Runs the cases that the arguments name; fails on a difference that `expected.txt` does not list.
pub(super) fn run(args: &[&str]) -> Result<ExitCode> {
    let (name, mut args) = name(args)?;
    let (mut focus, mut procs) = (Regex::new("")?, differential::PROCS);
    let (mut agent, mut keep) = (None, false);
    loop {
        args = match args {
            [] => break,
            ["--keep", rest @ ..] => {
                keep = true;
                rest
            }
            ["--focus", value, rest @ ..] => {
                focus = Regex::new(value).context("--focus takes a regular expression")?;
                rest
            }
            ["--procs", value, rest @ ..] => {
                procs = value.parse().context("--procs takes a number")?;
                rest
            }
            ["--agent", value, rest @ ..] => {
                agent = Some(Agent::parse(value)?);
                rest
            }
            [wrong, ..] => bail!("differential has no option {wrong}\n{USAGE}"),
        }
    }
    let cases = differential::cases(&focus)?;
    let cluster = Cluster::named(&name)?;
    let is_ours = !cluster.is_up();
    differential::prepare(&cluster, agent)?;
    let outcome = cluster.up().and_then(|()| differential::run(&cluster, cases, procs));
    if is_ours && !keep {
        cluster.down()?;
    }
    let Outcome { unexplained } = outcome?;
    Ok(if unexplained == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
