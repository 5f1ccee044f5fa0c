//! `cargo xtask bench [NAME...]`: the benchmarks, each a comparison made in one run on one machine.
//!
//! What is run are the bench targets of the crate `pintle-benches` in the release profile, found by
//! asking cargo, so that a new file needs no entry here. Those whose name starts with `node_` start
//! a private containerd and need root. Without names all run, one after the other: two cores cannot
//! measure two things.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::prepare;
use crate::shell::{capture, run as run_command, say};
use crate::{apt, repository};

/// Benchmarks on a real containerd.
const ON_A_NODE: &str = "node_";

/// Runs the named benchmarks, or all.
pub(super) fn run(names: &[&str]) -> Result<ExitCode> {
    let known = known()?;
    if let Some(wrong) = names.iter().find(|n| !known.iter().any(|k| k == *n)) {
        bail!("there is no benchmark {wrong}; there are: {}", known.join(" "));
    }
    prepare::build_tools()?;
    let chosen = known.iter().filter(|k| names.is_empty() || names.contains(&k.as_str()));
    for name in chosen {
        if name.starts_with(ON_A_NODE) {
            apt::require_root("name the other benchmarks")?;
            prepare::node_tools()?;
        }
        say("bench", name);
        run_command(cargo().args(["bench", "--package", "pintle-benches", "--bench", name]))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn known() -> Result<Vec<String>> {
    let text = capture(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&text).context("read cargo metadata")?;
    let packages = metadata["packages"].as_array().context("packages")?;
    let benches = packages.iter().find(|p| p["name"] == "pintle-benches");
    let targets = benches.and_then(|p| p["targets"].as_array()).context("pintle-benches")?;
    let is_bench =
        |t: &&Value| t["kind"].as_array().is_some_and(|k| k.iter().any(|k| k == "bench"));
    let names = targets.iter().filter(is_bench).filter_map(|t| t["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

fn cargo() -> Command {
    let mut cmd = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cmd.current_dir(repository());
    cmd
}
