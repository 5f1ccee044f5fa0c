//! `cargo xtask bench [NAME...]`: the benchmarks, each a comparison made in one run on one machine.
//!
//! What is run are the bench targets of the crate `pintle-benches` in the release profile, found by
//! asking cargo, so that a new file needs no entry here. Those whose name starts with `node_` start
//! a private containerd and need root. Without names all run, one after the other: two cores cannot
//! measure two things.

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::prepare;
use crate::apt;
use crate::shell::{cargo, run as run_command, say};

/// Benchmarks on a real containerd.
const ON_A_NODE: &str = "node_";

/// Runs the named benchmarks, or all.
pub(super) fn run(names: &[&str]) -> Result<ExitCode> {
    let known = super::targets("bench")?;
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
        run_command(&mut cargo(&["bench", "--package", "pintle-benches", "--bench", name]))?;
    }
    Ok(ExitCode::SUCCESS)
}
