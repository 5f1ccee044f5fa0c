//! The kernel's count of OOM victims.
//!
//! Input: the folder of a cgroup. Output: how many processes in it and below the OOM killer has
//! taken since the cgroup was made. The kernel counts a victim before it kills it, and a cgroup keeps
//! the count of those that were removed below it: after the end of a process the count says whether
//! it can have been one.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use super::stats::known_field;

/// Option of a mount of cgroup v2 with which a cgroup's events leave out those below it.
const LOCAL_EVENTS: &str = "memory_localevents";

/// OOM victims in the cgroup with this folder and below; `None` where the kernel does not count them
/// so: on cgroup v1, without the memory controller, and with `memory_localevents`.
pub fn victims(dir: &Path) -> Option<u64> {
    static COUNTS_BELOW: OnceLock<bool> = OnceLock::new();
    let counts_below = || {
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo");
        mounts.is_ok_and(|mounts| counts_below(&mounts))
    };
    let events = fs::read_to_string(dir.join("memory.events")).ok()?;
    let counted = known_field(&events, "oom_kill");
    counted.filter(|_| *COUNTS_BELOW.get_or_init(counts_below))
}

/// True if v2 is mounted without `LOCAL_EVENTS`; all its mounts have the same options.
fn counts_below(mountinfo: &str) -> bool {
    let options = |line: &str| {
        let (kind, rest) = line.split_once(" - ")?.1.split_once(' ')?;
        (kind == "cgroup2").then(|| rest.split([' ', ',']).any(|option| option == LOCAL_EVENTS))
    };
    let local: Vec<bool> = mountinfo.lines().filter_map(options).collect();
    local.contains(&false) && !local.contains(&true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn victims_below_a_cgroup_are_counted_only_on_v2_without_local_events() {
        let local = V2.replace("nsdelegate", "nsdelegate,memory_localevents");
        for (mounts, want) in [
            (V2.to_owned(), true),
            (format!("{V1}{V2}"), true),
            (V1.to_owned(), false),
            (local.clone(), false),
            (format!("{V2}{local}"), false),
            (String::new(), false),
        ] {
            assert_eq!(counts_below(&mounts), want, "{mounts}");
        }
    }

    #[test]
    fn cgroup_without_a_count_has_no_number_of_victims() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(victims(dir.path()), None);
    }
}
