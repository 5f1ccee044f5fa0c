//! `cargo xtask uml [OPTION...] -- CMD`: runs a command in a guest with cgroup v2 and systemd.
//!
//! The guest is a User-Mode Linux kernel, see `uml`: it boots in seconds and computes as fast as
//! the host, ten times faster than the emulated one of `vm`, but has no eBPF with BTF and, with
//! Debian's kernel, no cpuset, no PSI and no iptables. It sees the shared folders and the cache at
//! the paths that they have here. The command's exit code is ours. `PINTLE_UML_KERNEL=own` takes a
//! kernel that has these, and builds it once, which takes half an hour.
//!
//! `cargo xtask uml e2e|hostile [ARG...]` runs end-to-end tests there, see `guest_tests`.
//!
//! Options: `--share DIR`, again for each folder (the current one); `--memory MIB` (2048). What
//! tests take from the environment is handed on, as by `vm`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use super::guest_tests;
use super::vm::{exports, quote, quoted};
use crate::uml::{Guest, Options};
use crate::{cache, shell, supervisor};

pub(super) fn run(args: &[&str]) -> Result<ExitCode> {
    let stage = args.first().and_then(|arg| guest_tests::STAGES.into_iter().find(|s| s == arg));
    if let Some(code) = supervisor::rerun("uml", args)? {
        return Ok(code);
    }
    if let Some(stage) = stage {
        return guest_tests::run(stage, &args[1..]);
    }
    let (options, command) = parse(args)?;
    let guest = Guest::boot(&options)?;
    let output = guest.stream(&script(&quoted(&command))?, &mut std::io::stdout().lock())?;
    guest.power_off()?;
    if output != 0 {
        shell::say("guest", &format!("{} ended with {output}", command.join(" ")));
    }
    Ok(ExitCode::from(u8::try_from(output).unwrap_or(u8::MAX)))
}

fn parse(args: &[&str]) -> Result<(Options, Vec<String>)> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} takes a value"));
        match *arg {
            "--share" => options.shares.push(fs::canonicalize(value()?)?),
            "--memory" => options.memory_mib = value()?.parse()?,
            "--" => break,
            other => bail!("cargo xtask uml knows no {other}; a command comes after --"),
        }
    }
    let command: Vec<String> = args.map(|a| (*a).to_owned()).collect();
    ensure!(!command.is_empty(), "cargo xtask uml [OPTION...] -- CMD");
    if options.shares.is_empty() {
        options.shares.push(std::env::current_dir()?);
    }
    options.shares.push(cache::dir()?);
    Ok((options, command))
}

/// What a guest sees of the host unless other folders are named.
pub(super) fn shares() -> Result<Vec<PathBuf>> {
    Ok(vec![std::env::current_dir()?, cache::dir()?])
}

/// A command of a shell in the current folder, with the variables that tests take.
pub(super) fn script(command: &str) -> Result<String> {
    let here = std::env::current_dir()?;
    let (here, cache) = (quote(&here.to_string_lossy()), quote(&cache::dir()?.to_string_lossy()));
    let home = format!("export HOME=/root PINTLE_CACHE={cache}\n");
    Ok(format!("cd {here}\n{}{home}{command}", exports()))
}
