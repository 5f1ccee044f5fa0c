//! The machine's facts and disk counters. Effects: small reads of `/proc`, `/sys`, `/etc`.
// k8s: github.com/google/cadvisor machine/machine.go

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use pintle_agent_core::node::machine;
use pintle_agent_host::node::host;

use super::files::{FileSystem, file_system};

/// Disks that are shown.
const DISKS_MAX: usize = 32;
/// Devices whose names are known.
const DEVICES_MAX: usize = 1024;
/// Figures of one line of `/proc/diskstats`.
const DISK_FIGURES: usize = 11;

/// The machine.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineStats {
    /// As the Node object has it.
    pub(super) host: machine::MachineFacts,
    pub(super) cores: u64,
    pub(super) physical_cores: u64,
    pub(super) sockets: u64,
    pub(super) disks: Vec<MountedDisk>,
    /// Names of all devices by their numbers: `/dev/vda`.
    pub(super) devices: BTreeMap<(u32, u32), String>,
}

/// A mounted disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MountedDisk {
    pub(super) device: String,
    pub(super) fs: FileSystem,
    /// As the kernel lists them: reads, merged, sectors, ms, the same for writes, in flight, ms,
    /// weighted ms.
    pub(super) io: [u64; DISK_FIGURES],
}

/// Reads all of it; `root` is the agent's root folder.
pub(super) fn machine(root: &Path) -> MachineStats {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cpus = text("/proc/cpuinfo");
    let count = |field: &str| {
        let lines = cpus.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(name, _)| name.trim() == field).map(|(_, v)| v.trim()).collect::<Vec<_>>()
    };
    let (sockets, cores) = (count("physical id"), count("core id"));
    let physical: BTreeSet<_> = sockets.iter().zip(&cores).collect();
    let logical = u64::try_from(count("processor").len()).unwrap_or(0);
    let number = |len: usize| u64::try_from(len).unwrap_or(0);
    let stats = text("/proc/diskstats");
    MachineStats {
        host: host::read(root),
        cores: logical,
        physical_cores: number(physical.len()).max(u64::from(logical > 0)),
        sockets: number(sockets.iter().collect::<BTreeSet<_>>().len()).max(1),
        disks: disks(&text("/proc/self/mounts"), &stats),
        devices: devices(&stats),
    }
}

fn devices(stats: &str) -> BTreeMap<(u32, u32), String> {
    let device = |line: &str| {
        let mut words = line.split_whitespace();
        let numbers = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some((numbers, format!("/dev/{}", words.next()?)))
    };
    stats.lines().filter_map(device).take(DEVICES_MAX).collect()
}

fn disks(mounts: &str, stats: &str) -> Vec<MountedDisk> {
    let mut seen = BTreeSet::new();
    let mounted = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (device, path) = (words.next()?, words.next()?);
        device.starts_with("/dev/").then_some((device, path))
    });
    let first = mounted.filter(|(device, _)| seen.insert(device.to_owned()));
    let disks = first.filter_map(|(device, path)| {
        let fs = file_system(Path::new(path))?;
        Some(MountedDisk { device: device.to_owned(), fs, io: io(stats, device) })
    });
    disks.take(DISKS_MAX).collect()
}

fn io(stats: &str, device: &str) -> [u64; DISK_FIGURES] {
    let name = device.rsplit('/').next().unwrap_or(device);
    let mut figures = [0; DISK_FIGURES];
    let line = stats.lines().find(|line| line.split_whitespace().nth(2) == Some(name));
    let numbers = line.into_iter().flat_map(|line| line.split_whitespace().skip(3));
    for (figure, number) in figures.iter_mut().zip(numbers) {
        *figure = number.parse().unwrap_or(0);
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_is_found_by_its_mount_and_its_diskstats_line() {
        let stats = " 254 0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13\n 7 0 loop0 0 0 0 0\n";
        let found =
            disks("/dev/vda / ext4 rw 0 0\n/dev/vda /mnt ext4 rw 0 0\nproc /proc p\n", stats);
        assert_eq!(found.len(), 1, "each disk once");
        assert_eq!(found[0].io, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        assert!(found[0].fs.capacity_bytes > 0);
        assert_eq!(devices(stats)[&(254, 0)], "/dev/vda");
    }

    #[test]
    fn this_machine_has_cores_and_memory() {
        let machine = machine(Path::new("/"));
        assert!(machine.cores > 0 && machine.host.memory_bytes > 0);
        assert!(!machine.host.kernel_version.is_empty());
    }
}
