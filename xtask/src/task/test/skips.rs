//! Tests that could not run on this host.
//!
//! A test that lacks something names itself in the file of `PINTLE_SKIPPED` (`xtask::skip`) and
//! returns; it must not count as passed. Where `CI` is set, only the tests of the list below may be
//! skipped, each for the reason given; elsewhere a skipped test is only reported.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{repository, shell};

/// Tests that CI's hosts cannot run: the beginning of the name, and why.
const ALLOWED: [(&str, &str); 8] = [
    ("systemd::", "CI's hosts run no systemd; `cargo xtask vm --systemd` does"),
    ("stall::", "CI's hosts have cgroup v1; docs/TESTING.md has the guest's command"),
    ("power_off::", "it switches the machine off; docs/TESTING.md has the guest's command"),
    (
        "pressure::memory_watch::tests::cgroup_with_memory_stalls_wakes_the_watch:",
        "CI's hosts tell no stalls of memory; the guest of `cargo xtask vm` does",
    ),
    ("cgroup::execute::tests::slices_are_made_limited_and_stopped_by_systemd:", "the same"),
    ("volume::san::real::", "CI's kernel has no iSCSI target; the guest's has"),
    ("volume::project::tests::on_ext4_", "CI's kernel has no CONFIG_QFMT_V2; the guest's has"),
    (
        "volume::tests::local::file_system_of_a_local_disk_grows_with_the_disk",
        "CI's hosts lack CAP_SYS_RESOURCE; `growth::` of the stage `uml` grows one in a guest",
    ),
];

/// The file that lists skipped tests, and whether any may be skipped.
pub(super) struct Skips {
    file: PathBuf,
    is_ci: bool,
}

/// How many were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Skipped {
    /// Skipped tests that the list allows.
    pub(super) allowed: usize,
    /// Against the rule, which makes them failures.
    pub(super) failed: usize,
}

impl Skips {
    /// Skipped tests of some tests of this run; other tests may run beside them.
    pub(super) fn of(tests: &str) -> Self {
        let file = repository().join(format!("target/skipped-{tests}-{}", std::process::id()));
        let is_ci = std::env::var_os("CI").is_some_and(|v| !v.is_empty());
        Self { file, is_ci }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Prints why tests were skipped since it did so last.
    pub(super) fn take(&self) -> Skipped {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let _ = fs::remove_file(&self.file);
        let mut skipped = Skipped::default();
        for line in text.lines() {
            if is_allowed(line) {
                shell::say("skipped", line);
                skipped.allowed += 1;
            } else if self.is_ci {
                shell::say("failed", &format!("skipped where nothing may be: {line}"));
                skipped.failed += 1;
            } else {
                shell::say("skipped", &format!("{line} (a failure where CI is set)"));
                skipped.allowed += 1;
            }
        }
        skipped
    }
}

fn is_allowed(line: &str) -> bool {
    ALLOWED.iter().any(|(name, _)| line.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_ci_a_skipped_test_is_a_failure_unless_it_is_listed() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join("skipped");
        let skips = |is_ci| Skips { file: file.clone(), is_ci };
        assert_eq!(skips(true).take(), Skipped::default());
        fs::write(&file, "a::b: no BTF\nsystemd::c: no systemd\n").expect("written");
        assert_eq!(skips(false).take(), Skipped { allowed: 2, failed: 0 });
        assert_eq!(skips(false).take(), Skipped::default(), "taken already");
        fs::write(&file, "a::b: no BTF\nsystemd::c: no systemd\n").expect("written");
        assert_eq!(skips(true).take(), Skipped { allowed: 1, failed: 1 });
    }
}
