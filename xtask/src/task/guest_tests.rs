//! `cargo xtask uml e2e|hostile [ARG...]`: end-to-end tests in a guest, on cgroup v2 with systemd.
//!
//! Input: arguments of the test program, such as parts of names. Output: its own, and the names of
//! tests that said that they cannot run there. Test program, agent and images are those that the
//! host builds; nothing is built in the guest. There `PINTLE_CGROUPS=systemd` has systemd make the
//! cgroups of all nodes, which are slices of their own.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::test::program;
use super::vm::{quote, quoted};
use super::{SKIPPED_FILE, uml};
use crate::image::set;
use crate::node::{agent, template};
use crate::runtime::{Runtime, Version};
use crate::shell::say;
use crate::uml::{Guest, Options};

/// The stages that have a test program which runs in a guest.
pub(super) const STAGES: [&str; 2] = ["e2e", "hostile"];
/// The guest's disks are memory, and each node has a copy of the images.
const MEMORY_MIB: u32 = 5120;
/// Waits are longer by this: a guest has one CPU of a host that may be busy.
const PATIENCE: &str = "5";
/// Why some tests are left out: a guest's kernel has no BTF.
const NEEDS_EBPF: &str = "sees a child that the OOM killer took, which only eBPF tells";
/// Tests that need more than a guest has.
const LEFT_OUT: [(&str, &str); 8] = [
    ("adoption::pods_of_another_cgroup_root", NEEDS_EBPF),
    ("ended::", "builds with cargo"),
    ("memory::", NEEDS_EBPF),
    ("shutdown::", "has a bus of its own, and here the runtime's cgroups need the real one"),
    ("stall::", "takes ten minutes and the whole guest; name it alone"),
    ("systemd::pods_live", NEEDS_EBPF),
    ("trouble::a_pod_is_kept_alive_with_every", NEEDS_EBPF),
    ("trouble::containerd_restart_under", "wants an exit code that only eBPF sees"),
];

/// Builds the stage's program and runs it in a guest.
pub(super) fn run(stage: &'static str, args: &[&str]) -> Result<ExitCode> {
    let program = program(stage)?;
    let agent = match std::env::var_os("PINTLE_AGENT") {
        Some(path) => fs::canonicalize(path).context("PINTLE_AGENT")?,
        None => agent::build("pintle-agent")?,
    };
    let testbox = set::testbox()?;
    for version in Version::sampled()? {
        Runtime::ensure(version)?;
        template(version)?;
    }
    let mut options = Options { memory_mib: MEMORY_MIB, ..Options::default() };
    options.shares = uml::shares()?;
    let guest = Guest::boot(&options)?;
    let mut words = vec![program.to_string_lossy().into_owned()];
    words.extend(args.iter().map(|arg| (*arg).to_owned()));
    words.extend(left_out(stage, args));
    let set = |name: &str, value: &str| format!("export {name}={}\n", quote(value));
    let patience = std::env::var("PINTLE_PATIENCE").unwrap_or_else(|_| PATIENCE.to_owned());
    let script = set("PINTLE_CGROUPS", "systemd")
        + &set("PINTLE_AGENT", &agent.to_string_lossy())
        + &set("PINTLE_TESTBOX", &testbox.to_string_lossy())
        + &set("PINTLE_PATIENCE", &patience)
        + &set(SKIPPED_FILE, "/host/skipped")
        + &uml::script(&quoted(&words))?;
    let code = guest.stream(&script, &mut std::io::stdout().lock())?;
    let skipped = fs::read_to_string(guest.dir().join("skipped")).unwrap_or_default();
    skipped.lines().for_each(|line| say("skipped", line));
    guest.power_off()?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}

/// Arguments that leave out what a guest cannot run and nobody named.
fn left_out(stage: &str, args: &[&str]) -> Vec<String> {
    if stage != "e2e" {
        return Vec::new();
    }
    let mut skips = Vec::new();
    for (part, why) in LEFT_OUT {
        if !args.iter().any(|arg| arg.starts_with(part)) {
            say("left out", &format!("{part} {why}"));
            skips.extend(["--skip".to_owned(), part.to_owned()]);
        }
    }
    skips
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_cannot_run_are_left_out_unless_they_are_named() {
        let skipped = |args: &[&str], part| left_out("e2e", args).iter().any(|arg| arg == part);
        assert!(skipped(&["logs::"], "ended::") && skipped(&["logs::"], "stall::"));
        assert!(skipped(&["stall::"], "ended::") && !skipped(&["stall::"], "stall::"));
        assert_eq!(left_out("hostile", &[]), [""; 0]);
    }
}
