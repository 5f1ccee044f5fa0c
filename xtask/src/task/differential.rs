//! `cargo xtask differential`: the same pods on our agent and on the kubelet, everything compared.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use regex::Regex;

use super::cluster::name;
use super::conformance::check_guests;
use crate::cluster::{Agent, Cluster};
use crate::differential::{self, Case, Outcome};
use crate::{supervisor, uml};

const USAGE: &str = "\
usage: cargo xtask differential [--name NAME] [OPTION]...
  --focus RE     cases whose name matches
  --procs N      how many at once
  --agent A      ours: pintle (default, built now) or a program's path
  --guests       nodes are guests with cgroup v2 and systemd, see `cargo xtask uml`; takes no --keep
                 and no --name, and needs PINTLE_UML_KERNEL=own
  --keep         leave the cluster running
Uses the cluster of that name if it is up: n1 must have the kubelet, n2 our agent.";

/// Runs the cases that the arguments name; fails on a difference that `expected.txt` does not list.
pub(super) fn run(all: &[&str]) -> Result<ExitCode> {
    if let ["observe", ctr, request] = all {
        // In a guest, for this program on the host.
        println!("{}", differential::observe_here(ctr, request)?);
        return Ok(ExitCode::SUCCESS);
    }
    let is_named = all.first() == Some(&"--name");
    let (name, mut args) = name(all)?;
    let (mut focus, mut procs) = (Regex::new("")?, differential::PROCS);
    let (mut agent, mut keep, mut guests) = (None, false, false);
    loop {
        args = match args {
            [] => break,
            ["--keep", rest @ ..] => {
                keep = true;
                rest
            }
            ["--guests", rest @ ..] => {
                guests = true;
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
    if guests {
        check_guests(keep, is_named)?;
        let code = supervisor::rerun("differential", all)?;
        return code.map_or_else(|| on_guests(agent, cases, procs), Ok);
    }
    let cluster = Cluster::named(&name)?;
    let is_ours = !cluster.is_up();
    differential::prepare(&cluster, agent)?;
    let outcome = cluster.up().and_then(|()| differential::on_cluster(&cluster, cases, procs));
    if is_ours && !keep {
        cluster.down()?;
    }
    conclude(outcome?)
}

/// Runs the cases on a cluster of this run with guests as nodes.
fn on_guests(agent: Option<Agent>, cases: Vec<Case>, procs: usize) -> Result<ExitCode> {
    uml::require_iptables()?;
    let cluster = Cluster::of_this_run("guests")?;
    let outcome = differential::on_guests(&cluster, agent, cases, procs);
    cluster.down()?;
    conclude(outcome?)
}

fn conclude(outcome: Outcome) -> Result<ExitCode> {
    let Outcome { unexplained } = outcome;
    Ok(if unexplained == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
