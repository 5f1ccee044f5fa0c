//! A node's cgroups as systemd makes them: slices, whose names have their place in the tree.
//!
//! Input: names as cgroupfs has them, such as `a-1/b`. Output: `a_1.slice/a_1-b.slice` below the
//! root of the hierarchy. Slices are transient: nothing of them is left after `remove`, also when
//! processes or other units were in them.

use std::process::Command;

use anyhow::Result;

use super::cgroups;
use crate::shell::capture;

/// Where systemd answers on the system bus, and the call that makes a unit.
const MAKE: [&str; 6] = [
    "call",
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
    "StartTransientUnit",
    "ssa(sv)a(sa(sv))",
];
/// Its properties: those that have systemd enable the controllers of the slice.
const PROPERTIES: [&str; 10] =
    ["3", "CPUWeight", "t", "100", "MemoryAccounting", "b", "true", "TasksAccounting", "b", "true"];

/// The path of the slice below the root of its hierarchy.
// k8s: pkg/kubelet/cm/cgroup_manager_linux.go ToSystemd
pub(super) fn path(name: &str) -> String {
    let mut units: Vec<String> = Vec::new();
    for part in name.split('/').filter(|part| !part.is_empty()) {
        let part = part.replace('-', "_");
        let above = units.last().and_then(|unit| unit.strip_suffix(".slice"));
        units.push(match above {
            Some(above) => format!("{above}-{part}.slice"),
            None => format!("{part}.slice"),
        });
    }
    units.join("/")
}

fn unit(name: &str) -> String {
    path(name).rsplit('/').next().unwrap_or_default().to_owned()
}

/// Makes the slice and those above it.
pub(super) fn create(name: &str) -> Result<()> {
    let mut busctl = Command::new("busctl");
    busctl.args(MAKE).args([&unit(name), "replace"]).args(PROPERTIES).arg("0");
    capture(&mut busctl).map(drop)
}

/// Ends what runs in the slice, and removes it.
pub(super) fn remove(name: &str) -> Result<()> {
    cgroups::kill_below(&path(name))?;
    capture(Command::new("systemctl").args(["stop", &unit(name)]))?;
    cgroups::remove(&path(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_names_contain_their_parent_slices() {
        for (name, slices) in [
            ("", ""),
            ("a", "a.slice"),
            ("/a-1/b", "a_1.slice/a_1-b.slice"),
            ("a/b/c-d", "a.slice/a-b.slice/a-b-c_d.slice"),
        ] {
            assert_eq!(path(name), slices);
        }
        assert_eq!(unit("a/b"), "a-b.slice");
    }
}
