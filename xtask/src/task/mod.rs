//! The tasks that `cargo xtask` offers, one file each.

mod bench;
mod prepare;
mod test;
mod tidy;
mod vm;

use std::process::ExitCode;

use anyhow::Result;

use crate::image::set;
use crate::runtime::{Runtime, Version};
use crate::shell::say;

const USAGE: &str = "\
usage: cargo xtask TASK
  test [fmt|clippy|build|unit|parity|sim|loom|e2e]...
                   everything that CI runs, or only these stages
  test NAME        the tests whose name contains NAME
  bench [NAME]...  the benchmarks, or only these
  vm [OPTION]... -- CMD
                   CMD in a guest with cgroup v2 (--seconds, --share, --memory, --cpus, --systemd)
  tidy             what is over the style's limits
  fetch            put every container runtime and test image into the cache";

/// Runs the task named by the first argument.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["test", rest @ ..] => test::run(rest),
        ["bench", names @ ..] => bench::run(names),
        ["vm", rest @ ..] => vm::run(rest),
        ["tidy"] => tidy::run(),
        ["fetch"] => fetch(),
        _ => {
            eprintln!("{USAGE}");
            Ok(ExitCode::from(64))
        }
    }
}

fn fetch() -> Result<ExitCode> {
    for version in Version::ALL {
        let runtime = Runtime::ensure(version)?;
        say("ready", &runtime.program("containerd").display().to_string());
    }
    say("ready", &set::archive()?.path.display().to_string());
    Ok(ExitCode::SUCCESS)
}
