//! The machine: facts that do not change while the agent runs, and the operating system's name.
//!
//! The facts are read once at the start, and the name again later. Effects: reads /proc, /sys and
//! /etc. An unreadable value is empty or zero; a zero capacity shows in the node's status.
// k8s: vendor/github.com/google/cadvisor/machine/info.go Info

use std::fs;
use std::path::Path;

use super::machine::MachineFacts;
use super::{facts, plugins, settings};

/// Files that may hold the machine's id; the first readable file is used.
const MACHINE_ID: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
/// Files that may hold the system's UUID.
const SYSTEM_UUID: [&str; 5] = [
    "/sys/class/dmi/id/product_uuid",
    "/proc/device-tree/system-id",
    "/proc/device-tree/vm,uuid",
    "/sys/hypervisor/uuid",
    "/etc/machine-id",
];
/// Files that may describe the operating system.
const OS_RELEASE: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];

/// Reads the machine; `root` is the agent's root folder.
pub fn read(root: &Path) -> MachineFacts {
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let release = nix::sys::utsname::uname().ok();
    let release = release.map(|name| name.release().to_string_lossy().into_owned());
    MachineFacts {
        machine_id: first_text(&MACHINE_ID).unwrap_or_default(),
        system_uuid: first_text(&SYSTEM_UUID).unwrap_or_default(),
        boot_id: first_text(&["/proc/sys/kernel/random/boot_id"]).unwrap_or_default(),
        kernel_version: release.unwrap_or_else(|| "Unknown".to_owned()),
        os_image: os_image(),
        architecture: architecture(std::env::consts::ARCH),
        cpus: cpus(),
        cpu_list: online_cpus(),
        tasks_max: tasks_max(),
        memory_bytes: signed(facts::meminfo("MemTotal:")),
        swap_bytes: signed(facts::meminfo("SwapTotal:")),
        hugepages: hugepages(Path::new("/sys/kernel/mm/hugepages")),
        storage_bytes: Some(facts::disk_bytes(root)).filter(|bytes| *bytes > 0).map(signed),
        plugin_resources: plugins::registered(root),
    }
}

fn first_text(files: &[&str]) -> Option<String> {
    let text = files.iter().find_map(|file| fs::read_to_string(file).ok())?;
    Some(text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
}

/// The operating system's name, which an upgrade changes.
pub fn os_image() -> String {
    os_image_of(&OS_RELEASE.map(Path::new))
}

fn os_image_of(files: &[&Path]) -> String {
    let text = files.iter().find_map(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    let name = text.lines().find_map(|line| line.trim().strip_prefix("PRETTY_NAME="));
    let name = name.map(|name| name.trim_matches(['"', '\'']).to_owned());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "Linux".to_owned())
}

/// Go's name of an architecture.
fn architecture(rust: &'static str) -> &'static str {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Online CPUs of the machine, or, if they cannot be read, the CPUs that this process may use.
fn cpus() -> i64 {
    let online = online_cpus();
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    match settings::cpu_count(&online) {
        0 => i64::try_from(usable).unwrap_or(1),
        count => count,
    }
}

fn online_cpus() -> String {
    first_text(&["/sys/devices/system/cpu/online"]).unwrap_or_default()
}

/// The most tasks of the machine: the smaller of the kernel's two limits.
// k8s: pkg/kubelet/stats/pidlimit/pidlimit_linux.go Stats
fn tasks_max() -> Option<i64> {
    let files = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    files.iter().filter_map(|file| first_text(&[*file])?.parse().ok()).min()
}

fn hugepages(dir: &Path) -> Vec<(i64, i64)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut sizes: Vec<(i64, i64)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<i64>().ok()?;
            let count = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
            Some((kib * 1024, count.trim().parse().ok()?))
        })
        .collect();
    sizes.sort_unstable();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_facts_of_the_test_machine_are_complete() {
        let machine = read(Path::new("/"));
        assert!(machine.cpus > 0 && machine.memory_bytes > 0, "{machine:?}");
        assert!(machine.storage_bytes.is_some(), "{machine:?}");
        assert_eq!(machine.boot_id.len(), 36, "{machine:?}");
        assert_eq!(settings::cpu_count(&machine.cpu_list), machine.cpus, "{machine:?}");
        assert!(machine.tasks_max.is_some_and(|max| max > 0), "{machine:?}");
    }

    #[test]
    fn os_image_is_the_pretty_name_without_its_quotes() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("os-release");
        fs::write(&file, "ID=x\nPRETTY_NAME=\"Some Linux 1 (a)\"\n").expect("written");
        assert_eq!(os_image_of(&[&dir.path().join("none"), &file]), "Some Linux 1 (a)");
        assert_eq!(os_image_of(&[&dir.path().join("none")]), "Linux");
    }

    #[test]
    fn hugepage_sizes_are_read_with_their_page_count() {
        let dir = tempfile::tempdir().expect("a folder");
        for (name, count) in [("hugepages-1048576kB", "0"), ("hugepages-2048kB", "8\n")] {
            fs::create_dir(dir.path().join(name)).expect("a folder");
            fs::write(dir.path().join(name).join("nr_hugepages"), count).expect("written");
        }
        assert_eq!(hugepages(dir.path()), [(2 << 20, 8), (1 << 30, 0)]);
    }
}
