//! Kernel settings that a node is to have: set at the start, or demanded with
//! `protectKernelDefaults`.
//!
//! Input: the folder of the kernel's settings. Effects: writes those that differ.
// k8s: pkg/kubelet/cm/container_manager_linux.go setupKernelTunables
// k8s: staging/src/k8s.io/component-helpers/node/util/sysctl/sysctl.go

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};

/// The directory of the kernel's settings.
pub(super) const SETTINGS: &str = "/proc/sys";
/// Out of memory and a bug of the kernel are survived; keys suffice for a container each.
const WANTED: [(&str, i64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// Applies the settings. A setting that differs and must not be changed is an error; a setting that
/// cannot be changed is logged, and the start continues, because a container may lack the right.
pub(super) fn settle(dir: &Path, protect: bool) -> Result<()> {
    let mut wrong = Vec::new();
    for (name, wanted) in WANTED {
        let path = dir.join(name);
        let actual = match fs::read_to_string(&path) {
            Ok(text) => text.trim().to_owned(),
            Err(error) => {
                wrong.push(format!("open {}: {error}", path.display()));
                continue;
            }
        };
        if actual.parse() == Ok(wanted) {
            continue;
        }
        if protect {
            wrong.push(format!(
                "invalid kernel flag: {name}, expected value: {wanted}, actual value: {actual}"
            ));
        } else if let Err(error) = fs::write(&path, wanted.to_string()) {
            wrong.push(format!("{name} stays {actual} instead of {wanted}: {error}"));
        } else {
            tracing::info!(name, before = actual, now = wanted, "kernel setting changed");
        }
    }
    match &wrong[..] {
        [] => Ok(()),
        [one] if protect => bail!("protectKernelDefaults: {one}"),
        many if protect => bail!("protectKernelDefaults: [{}]", many.join(", ")),
        many => {
            tracing::warn!("kernel settings: {}", many.join("; "));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the settings as they should be, but for the first two.
    fn settings() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        for (at, (name, value)) in WANTED.into_iter().enumerate() {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            let value = if at < 2 { value + 1 } else { value };
            fs::write(path, format!("{value}\n")).expect("written");
        }
        dir
    }

    #[test]
    fn kernel_tunables_are_changed_unless_they_are_protected() {
        let dir = settings();
        let error = settle(dir.path(), true).expect_err("two differ").to_string();
        assert_eq!(
            error,
            "protectKernelDefaults: [invalid kernel flag: vm/overcommit_memory, expected value: 1, \
             actual value: 2, invalid kernel flag: vm/panic_on_oom, expected value: 0, actual \
             value: 1]"
        );
        settle(dir.path(), false).expect("changed");
        settle(dir.path(), true).expect("nothing differs any more");
        let text = fs::read_to_string(dir.path().join("vm/overcommit_memory")).expect("read");
        assert_eq!(text, "1");
        fs::remove_file(dir.path().join("kernel/panic")).expect("removed");
        settle(dir.path(), true).expect_err("the value is unreadable");
    }
}
