//! The tasks that `cargo xtask` offers, one file each.

mod bench;
mod cluster;
mod conformance;
mod demo;
mod differential;
mod e2e_node;
mod guest_tests;
mod prepare;
mod suites;
mod test;
mod uml;
mod vectors;
mod vm;

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::image::set;
use crate::runtime::{Runtime, Version};
use crate::shell::{capture, cargo, say};
use crate::supervisor;

/// Variable with the file in which test programs list their skipped tests.
pub(crate) const SKIPPED_FILE: &str = "PINTLE_SKIPPED";

const USAGE: &str = "\
usage: cargo xtask TASK
  demo             run example pods on a private containerd, show them, stop them
  test [STAGE]...  everything that CI runs, or only these stages: fmt, tidy, clippy, doc, build, unit,
                   parity, sim, loom, fuzz, release, demo, e2e, hostile, cluster, storage, uml,
                   conformance
  test NAME        the tests whose name contains NAME
  bench [NAME]...  the benchmarks, or only these
  cluster          a real cluster on this machine: up, down, kubectl ... (alone: its usage)
  conformance      upstream's end-to-end tests on such a cluster (--focus RE, --fast, --agent A)
  e2e-node         upstream's suite for one node (--agent A, --focus RE, --guest)
  suites NAME      upstream's tests of the scheduler or of controllers (--program P, --focus TEXT)
  differential     pods on our agent and on the kubelet, everything compared (--focus RE, --keep)
  vectors [COUNT]  syncs of random objects by upstream's controllers and by ours (--only NAME)
  vm [OPTION]... -- CMD
                   CMD in a guest with cgroup v2 (--seconds, --memory, --cpus, --systemd, --disk)
  uml [OPTION]... -- CMD
                   CMD in a guest with cgroup v2 and systemd that boots in seconds (--share, --memory)
  uml e2e [ARG]... the end-to-end tests in such a guest; also uml hostile
  run -- CMD       CMD, and the end of all that it started when it or this ends
  tidy             what is over the style's limits, licences of dependencies; also `cargo tidy`
  fetch            put every container runtime and test image into the cache";

/// Runs the task named by the first argument.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["demo"] => demo::run(),
        ["test", rest @ ..] => test::run(rest),
        ["bench", names @ ..] => bench::run(names),
        ["cluster", rest @ ..] => cluster::run(rest),
        ["conformance", rest @ ..] => conformance::run(rest),
        ["e2e-node", rest @ ..] => e2e_node::run(rest),
        ["suites", rest @ ..] => suites::run(rest),
        ["differential", rest @ ..] => differential::run(rest),
        ["vectors", rest @ ..] => vectors::run(rest),
        ["vm", rest @ ..] => vm::run(rest),
        ["uml", rest @ ..] => uml::run(rest),
        ["run", "--", program, args @ ..] => supervisor::run(Command::new(program).args(args)),
        ["tidy"] => xtask_tidy::run(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        ["fetch"] => fetch(),
        _ => {
            eprintln!("{USAGE}");
            Ok(ExitCode::from(64))
        }
    }
}

/// A target of the workspace.
struct Target {
    package: String,
    name: String,
}

/// The workspace's targets of one kind (`test`, `bench`), as cargo knows them.
fn targets(kind: &str) -> Result<Vec<Target>> {
    let text = capture(&mut cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&text).context("read cargo metadata")?;
    let packages = metadata["packages"].as_array().context("packages")?;
    let is_kind = |t: &Value| t["kind"].as_array().is_some_and(|k| k.iter().any(|k| k == kind));
    let mut found = Vec::new();
    for package in packages {
        let all = package["targets"].as_array().into_iter().flatten();
        for target in all.filter(|target| is_kind(target)) {
            let text = |value: &Value| value.as_str().map(str::to_owned).context("a name");
            found.push(Target { package: text(&package["name"])?, name: text(&target["name"])? });
        }
    }
    Ok(found)
}

fn fetch() -> Result<ExitCode> {
    for version in Version::sampled()? {
        let runtime = Runtime::ensure(version)?;
        say("ready", &runtime.program("containerd").display().to_string());
    }
    say("ready", &set::archive()?.path.display().to_string());
    Ok(ExitCode::SUCCESS)
}
