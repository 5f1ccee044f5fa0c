//! The cgroup hierarchy of the pods, and the kernel's id of a directory in it.
//!
//! Input: the caller's choice (v2, or a v1 controller), /proc/self/cgroup and /proc/self/mountinfo.
//! Output: the filter of the programs (hierarchy id and controller) and the device of the mounted
//! hierarchy.
//!
//! A cgroup's id is the inode of its directory, unique within one hierarchy only: on cgroup v1 each
//! hierarchy has its own ids, so exactly one is followed, and a directory on another device is
//! refused, because its inode would silently match a different cgroup.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The hierarchy that holds the pods' cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// The unified one.
    V2,
    /// A cgroup v1 hierarchy.
    V1(Controller),
}

/// A v1 controller that can be followed. The numbers are those of `enum controller` in
/// bpf/pods.bpf.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum Controller {
    Cpuset = 1,
    Cpu,
    Cpuacct,
    Blkio,
    Memory,
    Devices,
    Freezer,
    Pids,
}

impl Controller {
    const ALL: [(Self, &str); 8] = [
        (Self::Cpuset, "cpuset"),
        (Self::Cpu, "cpu"),
        (Self::Cpuacct, "cpuacct"),
        (Self::Blkio, "blkio"),
        (Self::Memory, "memory"),
        (Self::Devices, "devices"),
        (Self::Freezer, "freezer"),
        (Self::Pids, "pids"),
    ];

    /// The controller of this name in /proc/self/cgroup.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(controller, _)| *controller)
    }

    /// Its name in /proc/self/cgroup.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize - 1].1
    }
}

/// The reason for which a hierarchy or a directory in it cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum HierarchyError {
    /// A file of /proc or a cgroup directory could not be read.
    #[error("reading {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The kernel does not have it mounted.
    #[error("the cgroup hierarchy {0:?} is not mounted")]
    Absent(Hierarchy),
    /// The directory is in another hierarchy than the one that is followed.
    #[error("{} is not in the cgroup hierarchy {hierarchy:?}", path.display())]
    Elsewhere {
        /// The directory.
        path: PathBuf,
        /// The one that is followed.
        hierarchy: Hierarchy,
    },
}

/// A mounted hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    pub(crate) hierarchy: Hierarchy,
    /// `cgroup_root.hierarchy_id` in the kernel; 0 for v2.
    pub(crate) id: u32,
    device: u64,
}

impl Mounted {
    pub(crate) fn find(hierarchy: Hierarchy) -> Result<Self, HierarchyError> {
        let cgroups = read_text(Path::new("/proc/self/cgroup"))?;
        let mounts = read_text(Path::new("/proc/self/mountinfo"))?;
        let absent = HierarchyError::Absent(hierarchy);
        let id = line_of(hierarchy, &cgroups).map(|(id, _)| id);
        let device = device_of(hierarchy, &mounts);
        match (id, device) {
            (Some(id), Some(device)) => Ok(Self { hierarchy, id, device }),
            _ => Err(absent),
        }
    }

    /// Number of the controller in the programs' configuration; 0 for v2.
    pub(crate) fn controller(&self) -> u32 {
        match self.hierarchy {
            Hierarchy::V2 => 0,
            Hierarchy::V1(controller) => controller as u32,
        }
    }

    /// The kernel's id of a cgroup directory.
    pub(crate) fn cgroup_id(&self, dir: &Path) -> Result<u64, HierarchyError> {
        let metadata = fs::metadata(dir)
            .map_err(|source| HierarchyError::Read { path: dir.to_owned(), source })?;
        if metadata.dev() != self.device || !metadata.is_dir() {
            let (path, hierarchy) = (dir.to_owned(), self.hierarchy);
            return Err(HierarchyError::Elsewhere { path, hierarchy });
        }
        Ok(metadata.ino())
    }

    /// The id of the container's cgroup, directly below this pod's, in which a process is; `None`
    /// when it has ended or is elsewhere.
    pub(crate) fn container_of(&self, pod: &Path, pid: u32) -> Option<u64> {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let name = child_below(line_of(self.hierarchy, &cgroups)?.1, pod.file_name()?.to_str()?)?;
        self.cgroup_id(&pod.join(name)).ok()
    }
}

/// The name of the child of the cgroup `parent` through which this path leads.
fn child_below<'a>(path: &'a str, parent: &str) -> Option<&'a str> {
    let mut parts = path.split('/').skip_while(|part| *part != parent);
    parts.next();
    parts.next().filter(|name| !name.is_empty())
}

fn read_text(path: &Path) -> Result<String, HierarchyError> {
    fs::read_to_string(path)
        .map_err(|source| HierarchyError::Read { path: path.to_owned(), source })
}

/// Id of a hierarchy, and the path in it, among the lines of /proc/PID/cgroup. These are
/// `id:controllers:path`; v2 is `0::path`.
fn line_of(hierarchy: Hierarchy, cgroups: &str) -> Option<(u32, &str)> {
    cgroups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found = match hierarchy {
            Hierarchy::V2 => id == "0" && controllers.is_empty(),
            Hierarchy::V1(wanted) => controllers.split(',').any(|name| name == wanted.name()),
        };
        if found { Some((id.parse().ok()?, path)) } else { None }
    })
}

/// Lines are `id parent major:minor root mountpoint options [tags] - type source
/// superblock-options`.
fn device_of(hierarchy: Hierarchy, mounts: &str) -> Option<u64> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let found = match hierarchy {
            Hierarchy::V2 => kind == "cgroup2",
            Hierarchy::V1(wanted) => {
                kind == "cgroup" && options.split(',').any(|name| name == wanted.name())
            }
        };
        let (major, minor) = before.split(' ').nth(2)?.split_once(':')?;
        let device = nix::sys::stat::makedev(major.parse().ok()?, minor.parse().ok()?);
        found.then_some(device)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_of_a_container_is_the_first_below_its_pod() {
        let path = "/kubepods/burstable/pod1/abc/nested";
        for (parent, child) in [("pod1", Some("abc")), ("abc", Some("nested")), ("pod2", None)] {
            assert_eq!(child_below(path, parent), child, "{parent}");
        }
        assert_eq!(child_below("/kubepods/pod1", "pod1"), None, "the pod's own");
    }

    const CGROUPS: &str = "9:name=systemd:/\n4:memory:/some/where\n2:cpu,cpuacct:/\n0::/\n";
    const MOUNTS: &str = "\
        20 1 0:18 / /sys rw - sysfs sysfs rw\n\
        31 20 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
        32 20 0:29 /x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        33 20 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn cgroup_hierarchy_is_found_by_its_controller() {
        let table = [
            (Hierarchy::V2, Some(0), Some(30)),
            (Hierarchy::V1(Controller::Memory), Some(4), Some(29)),
            (Hierarchy::V1(Controller::Cpu), Some(2), Some(28)),
            (Hierarchy::V1(Controller::Pids), None, None),
        ];
        for (hierarchy, id, device) in table {
            assert_eq!(line_of(hierarchy, CGROUPS).map(|(id, _)| id), id, "{hierarchy:?}");
            assert_eq!(device_of(hierarchy, MOUNTS), device, "{hierarchy:?}");
        }
    }

    #[test]
    fn every_controller_is_known_by_its_own_name() {
        for (controller, name) in Controller::ALL {
            assert_eq!(controller.name(), name);
            assert_eq!(Controller::from_name(name), Some(controller));
        }
        assert_eq!(Controller::from_name("misc"), None);
    }
}
