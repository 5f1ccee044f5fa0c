//! `cargo xtask bench [NAME...]`: the benchmarks, each a comparison made in one run on one machine.
//!
//! It runs the workspace's bench targets in the release profile and asks cargo for them, so that a
//! new file needs no entry here. Those whose name starts with `node_` start a
//! private containerd and need root; the agent inside is a release build, or the program that
//! `PINTLE_AGENT` names. Without names all run, one after the other: two cores cannot measure two
//! things.
//! `node_cluster` is xtask's own, see `ratio`: it needs a cluster and nothing of the agent's code.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::prepare;
use crate::cluster::Agent;
use crate::node::agent;
use crate::shell::{cargo, run as run_command, say};
use crate::{apt, ratio, supervisor};

/// Benchmarks on a real containerd.
const ON_A_NODE: &str = "node_";
/// The comparison with the kubelet.
const IN_A_CLUSTER: &str = "node_cluster";
/// Names the agent's program to the test harness.
const AGENT: &str = "PINTLE_AGENT";

/// Runs the named benchmarks, or all.
pub(super) fn run(names: &[&str]) -> Result<ExitCode> {
    let targets = super::targets("bench")?;
    let mut known: Vec<_> = targets.iter().map(|target| target.name.as_str()).collect();
    known.push(IN_A_CLUSTER);
    if let Some(wrong) = names.iter().find(|name| !known.contains(*name)) {
        bail!("there is no benchmark {wrong}; there are: {}", known.join(" "));
    }
    if let Some(code) = supervisor::rerun("bench", names)? {
        return Ok(code);
    }
    prepare::build_tools()?;
    for name in known.into_iter().filter(|known| names.is_empty() || names.contains(known)) {
        if name.starts_with(ON_A_NODE) {
            apt::require_root("name the other benchmarks")?;
            prepare::node_tools()?;
        }
        say("bench", name);
        if name == IN_A_CLUSTER {
            in_a_cluster()?;
            continue;
        }
        let package = targets.iter().find(|target| target.name == name).map(|t| &t.package);
        let package = package.context("each benchmark but one is a target")?;
        let mut bench = cargo(&["bench", "--package", package, "--bench", name]);
        if name.starts_with(ON_A_NODE) && std::env::var_os(AGENT).is_none() {
            bench.env(AGENT, agent::build_release("pintle-agent")?);
        }
        run_command(&mut bench)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn in_a_cluster() -> Result<()> {
    let size = ratio::RatioSize::asked()?;
    let ours = match std::env::var(AGENT) {
        Ok(path) => Agent::parse(&path)?,
        Err(_) => Agent::Pintle(Some(agent::build_release("pintle-agent")?)),
    };
    ratio::run(&ours, size)
}
