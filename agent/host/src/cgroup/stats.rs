//! Usage of a cgroup: CPU, memory, swap, tasks, pressure. Parsing is pure; `Sampler` reads.
//!
//! Input: absolute cgroup paths such as `/kubepods/burstable/pod<uid>`. Output: a `Sample` each,
//! the same on cgroup v1 and v2. The files of the basic figures stay open and are read in place,
//! which costs a quarter of opening them each time; the others are opened on request.
//! Owner: one thread of its own, since a read waits for the kernel's locks. Bounds: `FILES_MAX`
//! open files, `FILE_BYTES_MAX` of each.
//!
//! - `devices`: what was read and written. `holds`: what processes hold
// k8s: github.com/google/cadvisor container/libcontainer/handler.go

mod devices;
mod holds;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read as _, Take};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use pintle_agent_core::types::UnixNanos;
use pintle_daemon::clock;

use super::execute::{CgroupError, Cgroups};
use crate::node::facts;

pub use devices::DeviceIo;
pub use holds::Holds;

/// Files kept open.
const FILES_MAX: usize = 2048;
/// Bytes read of one file.
const FILE_BYTES_MAX: usize = 16 * 1024;
/// Bytes read of a list of processes, of which the kernel gives a page at a time.
const PROCS_BYTES_MAX: u64 = 4 << 20;
/// Nanoseconds of a tick of `cpuacct.stat`.
const TICK_NS: u64 = 10_000_000;
/// Limits above this are none: cgroup v1 shows the largest multiple of a page.
// k8s: pkg/kubelet/stats/helper.go isMemoryUnlimited
const UNLIMITED: u64 = 1 << 62;

/// Usage of a cgroup and everything below it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// When it was read.
    pub at: UnixNanos,
    /// CPU time in nanoseconds.
    pub cpu_ns: u64,
    /// Of that in user mode.
    pub cpu_user_ns: u64,
    /// Of that in the kernel.
    pub cpu_system_ns: u64,
    /// Bytes charged.
    pub memory_bytes: u64,
    /// Bytes that cannot easily be taken back: all but inactive file pages.
    pub working_set_bytes: u64,
    /// Anonymous bytes.
    pub rss_bytes: u64,
    /// Page cache.
    pub cache_bytes: u64,
    /// Mapped files.
    pub mapped_bytes: u64,
    /// File pages by their age: active, inactive.
    pub file_bytes: (u64, u64),
    /// Swap.
    pub swap_bytes: u64,
    /// Kernel memory; none on v2, where cAdvisor has no figure for it.
    pub kernel_bytes: u64,
    /// Page faults, and those that had to read.
    pub faults: (u64, u64),
    /// Tasks.
    pub tasks: u64,
    /// Memory limit; `None` without one.
    pub memory_limit_bytes: Option<u64>,
    /// Limit of swap, on v1 of memory and swap; `None` without one, 0 where swap is not counted.
    pub swap_limit_bytes: Option<u64>,
    /// Stalls: CPU, memory, I/O; `None` where the kernel does not account for them.
    pub pressure: Option<[Pressure; 3]>,
    /// Figures that are read on request only.
    pub more: Option<More>,
}

/// Figures of `/metrics/cadvisor` alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct More {
    /// Most bytes ever charged.
    pub memory_max_bytes: u64,
    /// Charges that hit the limit.
    pub memory_failures: u64,
    /// Soft limit or protection.
    pub memory_reservation_bytes: u64,
    /// Limit of swap.
    pub swap_limit_bytes: u64,
    /// CFS periods: all, throttled, and nanoseconds of throttling.
    pub throttled: Option<(u64, u64, u64)>,
    /// CPU shares.
    pub cpu_shares: u64,
    /// CFS period in microseconds.
    pub cpu_period_us: u64,
    /// CFS quota in microseconds; `None` without one.
    pub cpu_quota_us: Option<u64>,
    /// Limit of tasks; 0 without one.
    pub tasks_max: u64,
    /// Processes killed for lack of memory.
    pub oom_kills: u64,
    /// I/O by device.
    pub devices: Vec<DeviceIo>,
    /// Open files and sockets of its processes.
    pub holds: Holds,
}

/// Time stalled on a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Stall,
    /// All tasks waited.
    pub full: Stall,
}

/// One line of a pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Percent of the last 10 s.
    pub avg10: f64,
    /// Percent of the last 60 s.
    pub avg60: f64,
    /// Percent of the last 300 s.
    pub avg300: f64,
    /// Microseconds since the start.
    pub total_us: u64,
}

/// Reads cgroups.
#[derive(Debug)]
pub struct Sampler {
    cgroups: Cgroups,
    open: HashMap<PathBuf, KeptFiles>,
    round: u64,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct KeptFiles {
    file: File,
    round: u64,
}

impl Sampler {
    /// A sampler of this host's hierarchies.
    pub fn new() -> Result<Self, CgroupError> {
        Ok(Self::over(Cgroups::open("/")?))
    }

    fn over(cgroups: Cgroups) -> Self {
        Self { cgroups, open: HashMap::new(), round: 0, buffer: vec![0; FILE_BYTES_MAX] }
    }

    /// True on cgroup v2.
    pub fn is_v2(&self) -> bool {
        self.cgroups.is_v2()
    }

    /// Begins a round: files that the last two did not read are closed.
    pub fn begin(&mut self) {
        let round = self.round;
        self.open.retain(|_, kept| kept.round + 1 >= round);
        self.round += 1;
    }

    /// Closes every file: an open one keeps a removed cgroup in the kernel's memory.
    pub fn close(&mut self) {
        self.open.clear();
    }

    /// Reads a cgroup; `None` when it no longer exists.
    pub fn sample(&mut self, path: &str, more: bool) -> Option<Sample> {
        let mut sample = match self.is_v2() {
            true => self.sample_v2(path)?,
            false => self.sample_v1(path)?,
        };
        sample.at = clock::now();
        sample.more = more.then(|| match self.is_v2() {
            true => self.more_v2(path),
            false => self.more_v1(path),
        });
        Some(sample)
    }

    /// The first of these cgroups that there is.
    pub fn first_of<'a>(&self, paths: impl IntoIterator<Item = &'a String>) -> Option<&'a String> {
        let memory = |path: &String| self.cgroups.dir(path.trim_start_matches('/'), "memory");
        paths.into_iter().find(|path| memory(path).is_some_and(|dir| dir.is_dir()))
    }

    /// Where a cgroup's memory is accounted, whether it exists or not.
    pub fn memory_dir(&self, path: &str) -> Option<PathBuf> {
        self.cgroups.dir(path.trim_start_matches('/'), "memory")
    }

    /// A process of the cgroup itself.
    pub fn first_pid(&mut self, path: &str) -> Option<u32> {
        let text = self.once(path, "memory", "cgroup.procs")?;
        text.lines().next()?.trim().parse().ok()
    }

    /// Number of processes in the cgroup itself, without threads and without cgroups below it.
    // k8s: github.com/google/cadvisor container/libcontainer/handler.go processStatsFromProcs
    pub fn processes(&self, path: &str) -> Option<u64> {
        let (mut list, mut page) = (self.procs(path)?, [0; 4096]);
        let mut count = 0_u64;
        loop {
            match list.read(&mut page).ok()? {
                0 => return Some(count),
                read => {
                    let lines = page[..read].iter().filter(|byte| **byte == b'\n').count();
                    count += u64::try_from(lines).unwrap_or(0);
                }
            }
        }
    }

    fn procs(&self, path: &str) -> Option<Take<File>> {
        let file = File::open(self.file(path, "cpu", "cgroup.procs")?).ok()?;
        Some(file.take(PROCS_BYTES_MAX))
    }

    fn holds(&self, path: &str) -> Holds {
        let list = self.procs(path).map(|list| holds::of(BufReader::new(list)));
        list.unwrap_or_default()
    }

    fn sample_v1(&mut self, path: &str) -> Option<Sample> {
        let cpu_ns = number(&self.kept(path, "cpuacct", "cpuacct.usage")?)?;
        let mut sample = Sample { cpu_ns, ..Sample::default() };
        let times = self.kept(path, "cpuacct", "cpuacct.stat").unwrap_or_default();
        sample.cpu_user_ns = field(&times, "user") * TICK_NS;
        sample.cpu_system_ns = field(&times, "system") * TICK_NS;
        if let Some(usage) = self.kept(path, "memory", "memory.usage_in_bytes") {
            let stat = self.kept(path, "memory", "memory.stat").unwrap_or_default();
            memory_v1(&mut sample, number(&usage).unwrap_or(0), &stat);
        }
        // Its own, and not what `memory.stat` has, which may be that of all pods.
        let limit = self.kept(path, "memory", "memory.limit_in_bytes");
        sample.memory_limit_bytes =
            limit.and_then(|text| number(&text)).filter(|limit| *limit < UNLIMITED);
        let tasks = self.kept(path, "pids", "pids.current");
        sample.tasks = tasks.and_then(|text| number(&text)).unwrap_or(0);
        Some(sample)
    }

    fn sample_v2(&mut self, path: &str) -> Option<Sample> {
        let times = self.kept(path, "", "cpu.stat")?;
        let mut sample = Sample {
            cpu_ns: field(&times, "usage_usec") * 1000,
            cpu_user_ns: field(&times, "user_usec") * 1000,
            cpu_system_ns: field(&times, "system_usec") * 1000,
            ..Sample::default()
        };
        let stat = self.kept(path, "", "memory.stat").unwrap_or_default();
        let usage = self.kept(path, "", "memory.current").and_then(|text| number(&text));
        memory_v2(&mut sample, usage, &stat);
        let swap = self.kept(path, "", "memory.swap.current").and_then(|text| number(&text));
        // The root has no such file: all swap that is in use is its.
        let of_root = || facts::meminfo("SwapTotal:").saturating_sub(facts::meminfo("SwapFree:"));
        sample.swap_bytes = swap.unwrap_or_else(|| if path == "/" { of_root() } else { 0 });
        let limit = self.kept(path, "", "memory.max").and_then(|text| number(&text));
        sample.memory_limit_bytes = limit.filter(|limit| *limit < UNLIMITED);
        let most = self.kept(path, "", "memory.swap.max");
        sample.swap_limit_bytes = most.map_or(Some(0), |text| number(&text));
        let tasks = self.kept(path, "", "pids.current");
        sample.tasks = tasks.and_then(|text| number(&text)).unwrap_or(0);
        sample.pressure = self.pressure(path);
        Some(sample)
    }

    fn pressure(&mut self, path: &str) -> Option<[Pressure; 3]> {
        let cpu = self.kept(path, "", "cpu.pressure")?;
        let memory = self.kept(path, "", "memory.pressure")?;
        let io = self.kept(path, "", "io.pressure")?;
        Some([parse_pressure(&cpu), parse_pressure(&memory), parse_pressure(&io)])
    }

    fn more_v1(&mut self, path: &str) -> More {
        let mut one =
            |controller, file| self.once(path, controller, file).and_then(|text| number(&text));
        let bounded = |value: Option<u64>| value.filter(|v| *v < UNLIMITED).unwrap_or(0);
        let mut more = More {
            memory_max_bytes: one("memory", "memory.max_usage_in_bytes").unwrap_or(0),
            memory_failures: one("memory", "memory.failcnt").unwrap_or(0),
            memory_reservation_bytes: bounded(one("memory", "memory.soft_limit_in_bytes")),
            swap_limit_bytes: bounded(one("memory", "memory.memsw.limit_in_bytes")),
            cpu_shares: one("cpu", "cpu.shares").unwrap_or(0),
            cpu_period_us: one("cpu", "cpu.cfs_period_us").unwrap_or(0),
            cpu_quota_us: one("cpu", "cpu.cfs_quota_us"),
            tasks_max: one("pids", "pids.max").unwrap_or(0),
            ..More::default()
        };
        more.devices = self.devices_v1(path);
        more.holds = self.holds(path);
        let oom = self.once(path, "memory", "memory.oom_control").unwrap_or_default();
        more.oom_kills = field(&oom, "oom_kill");
        if more.cpu_quota_us.is_some() {
            let stat = self.once(path, "cpu", "cpu.stat").unwrap_or_default();
            let throttled = field(&stat, "throttled_time");
            more.throttled =
                Some((field(&stat, "nr_periods"), field(&stat, "nr_throttled"), throttled));
        }
        more
    }

    /// Of the scheduler that counts, if there is one.
    fn devices_v1(&mut self, path: &str) -> Vec<DeviceIo> {
        for by in ["bfq", "throttle"] {
            let mut file = |what: &str| {
                let name = format!("blkio.{by}.{what}_recursive");
                self.once(path, "blkio", &name).unwrap_or_default()
            };
            let found = devices::parse_v1(&file("io_service_bytes"), &file("io_serviced"));
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    fn more_v2(&mut self, path: &str) -> More {
        let holds = self.holds(path);
        let mut one = |file| self.once(path, "", file).unwrap_or_default();
        let bounded = |text: &str| number(text).filter(|v| *v < UNLIMITED).unwrap_or(0);
        let (events, max, stat) = (one("memory.events"), one("cpu.max"), one("cpu.stat"));
        let devices = devices::parse_v2(&one("io.stat"));
        let mut quota = max.split_whitespace();
        let cpu_quota_us = quota.next().and_then(|text| text.parse().ok());
        More {
            memory_max_bytes: bounded(&one("memory.peak")),
            // cAdvisor has no figure for v2 and shows none.
            memory_failures: 0,
            memory_reservation_bytes: bounded(&one("memory.min")),
            swap_limit_bytes: bounded(&one("memory.swap.max")),
            cpu_shares: shares_of_weight(number(&one("cpu.weight")).unwrap_or(0)),
            cpu_period_us: quota.next().and_then(|text| text.parse().ok()).unwrap_or(0),
            cpu_quota_us,
            throttled: cpu_quota_us.map(|_| {
                let ns = field(&stat, "throttled_usec") * 1000;
                (field(&stat, "nr_periods"), field(&stat, "nr_throttled"), ns)
            }),
            tasks_max: bounded(&one("pids.max")),
            oom_kills: field(&events, "oom_kill"),
            devices,
            holds,
        }
    }

    /// Reads a file that stays open.
    fn kept(&mut self, path: &str, controller: &str, name: &str) -> Option<String> {
        let file = self.file(path, controller, name)?;
        let round = self.round;
        if let Some(kept) = self.open.get_mut(&file) {
            kept.round = round;
            // An open file of a removed cgroup fails; one of the same name may be there again.
            if let Ok(text) = read(&kept.file, &mut self.buffer) {
                return Some(text);
            }
            self.open.remove(&file);
        }
        let opened = File::open(&file).ok()?;
        let text = read(&opened, &mut self.buffer).ok()?;
        if self.open.len() < FILES_MAX {
            self.open.insert(file, KeptFiles { file: opened, round });
        }
        Some(text)
    }

    fn once(&mut self, path: &str, controller: &str, name: &str) -> Option<String> {
        let file = self.file(path, controller, name)?;
        read(&File::open(file).ok()?, &mut self.buffer).ok()
    }

    fn file(&self, path: &str, controller: &str, name: &str) -> Option<PathBuf> {
        let dir = self.cgroups.dir(path.trim_start_matches('/'), controller)?;
        Some(dir.join(Path::new(name)))
    }
}

fn read(file: &File, buffer: &mut [u8]) -> io::Result<String> {
    let read = file.read_at(buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..read]).into_owned())
}

/// A file of one number; `None` for `max` and `-1`.
fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The number behind a name in a file of `name number` lines; 0 when it is not there.
fn field(text: &str, name: &str) -> u64 {
    known_field(text, name).unwrap_or(0)
}

/// The number behind a name in a file of `name number` lines.
pub(super) fn known_field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(key, _)| *key == name).and_then(|(_, value)| number(value))
}

fn memory_v1(sample: &mut Sample, usage: u64, stat: &str) {
    sample.memory_bytes = usage;
    sample.working_set_bytes = usage.saturating_sub(field(stat, "total_inactive_file"));
    sample.rss_bytes = field(stat, "total_rss");
    sample.cache_bytes = field(stat, "total_cache");
    sample.mapped_bytes = field(stat, "total_mapped_file");
    sample.swap_bytes = field(stat, "total_swap");
    sample.file_bytes = (field(stat, "total_active_file"), field(stat, "total_inactive_file"));
    // Not those below: as cAdvisor counts them.
    sample.faults = (field(stat, "pgfault"), field(stat, "pgmajfault"));
    let most = field(stat, "hierarchical_memsw_limit");
    sample.swap_limit_bytes = Some(most).filter(|most| *most < UNLIMITED);
}

fn memory_v2(sample: &mut Sample, usage: Option<u64>, stat: &str) {
    let (anon, file) = (field(stat, "anon"), field(stat, "file"));
    // The root has no figure of its own.
    let usage = usage.unwrap_or(anon + file);
    sample.memory_bytes = usage;
    sample.working_set_bytes = usage.saturating_sub(field(stat, "inactive_file"));
    (sample.rss_bytes, sample.cache_bytes) = (anon, file);
    sample.mapped_bytes = field(stat, "file_mapped");
    sample.file_bytes = (field(stat, "active_file"), field(stat, "inactive_file"));
    sample.faults = (field(stat, "pgfault"), field(stat, "pgmajfault"));
}

/// Parses a file of the kernel's pressure stall information; missing figures are zero.
pub fn parse_pressure(text: &str) -> Pressure {
    let mut pressure = Pressure::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let stall = match words.next() {
            Some("some") => &mut pressure.some,
            Some("full") => &mut pressure.full,
            _ => continue,
        };
        for (name, value) in words.filter_map(|word| word.split_once('=')) {
            let float = || value.parse().unwrap_or(0.0);
            match name {
                "avg10" => stall.avg10 = float(),
                "avg60" => stall.avg60 = float(),
                "avg300" => stall.avg300 = float(),
                "total" => stall.total_us = value.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
    pressure
}

/// The shares that a weight stands for.
// k8s: github.com/google/cadvisor container/common/helpers.go convertCPUWeightToCPULimit
fn shares_of_weight(weight: u64) -> u64 {
    match weight {
        0 => 0,
        1..=10_000 => 2 + (weight - 1) * 262_142 / 9999,
        _ => 262_144,
    }
}

#[cfg(test)]
mod recorded;

#[cfg(test)]
mod tests {
    use super::*;

    const STAT_V1: &str = "cache 10\nrss 20\npgfault 7\npgmajfault 1\ninactive_file 1\n\
        total_cache 300\ntotal_rss 400\n\
        total_mapped_file 50\ntotal_swap 6\ntotal_inactive_file 100\ntotal_active_file 90\n";

    #[test]
    fn v1_memory_is_that_of_the_whole_tree_except_for_page_faults() {
        let mut sample = Sample::default();
        memory_v1(&mut sample, 1000, STAT_V1);
        assert_eq!((sample.memory_bytes, sample.working_set_bytes), (1000, 900));
        assert_eq!((sample.rss_bytes, sample.cache_bytes, sample.swap_bytes), (400, 300, 6));
        assert_eq!((sample.faults, sample.file_bytes), ((7, 1), (90, 100)));
        assert_eq!(sample.swap_limit_bytes, Some(0), "swap is not counted");
        memory_v1(&mut sample, 900, "hierarchical_memsw_limit 8192\ntotal_swap 6\n");
        assert_eq!(sample.swap_limit_bytes, Some(8192));
        memory_v1(&mut sample, 900, "hierarchical_memsw_limit 9223372036854771712\n");
        assert_eq!(sample.swap_limit_bytes, None);
        memory_v1(&mut sample, 50, "total_inactive_file 90\n");
        assert_eq!(sample.working_set_bytes, 0);
    }

    #[test]
    fn the_limit_of_v1_is_the_cgroups_own_and_not_that_of_all_pods() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            std::fs::write(dir.path().join("pod").join(name), text).expect("written");
        };
        std::fs::create_dir(dir.path().join("pod")).expect("made");
        write("cpuacct.usage", "7\n");
        write("memory.usage_in_bytes", "100\n");
        write("memory.stat", "hierarchical_memory_limit 4096\n");
        write("memory.limit_in_bytes", "9223372036854771712\n");
        let mut sampler = Sampler::over(Cgroups::legacy_at(dir.path()));
        let mut limit = || sampler.sample("/pod", false).expect("there").memory_limit_bytes;
        assert_eq!(limit(), None, "v1's largest number is no limit");
        write("memory.limit_in_bytes", "2048\n");
        assert_eq!(limit(), Some(2048));
    }

    #[test]
    fn processes_are_counted_however_many_there_are() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("c")).expect("made");
        let pids: String = (1..=9_000).map(|pid| format!("{}\n", 4_000_000 + pid)).collect();
        std::fs::write(dir.path().join("c/cgroup.procs"), &pids).expect("written");
        let sampler = Sampler::over(Cgroups::legacy_at(dir.path()));
        assert_eq!((sampler.processes("/c"), sampler.processes("/no")), (Some(9_000), None));
    }

    #[test]
    fn memory_of_v2_is_read_and_the_roots_is_added_up() {
        let stat = "anon 400\nfile 300\nkernel 20\nfile_mapped 50\ninactive_file 100\npgfault 7\n";
        let mut sample = Sample::default();
        memory_v2(&mut sample, None, stat);
        assert_eq!((sample.memory_bytes, sample.working_set_bytes), (700, 600));
        memory_v2(&mut sample, Some(900), stat);
        assert_eq!((sample.memory_bytes, sample.working_set_bytes), (900, 800));
        assert_eq!((sample.rss_bytes, sample.kernel_bytes, sample.faults), (400, 0, (7, 0)));
    }

    #[test]
    fn pressure_is_read_line_by_line() {
        let text = "some avg10=1.50 avg60=2.00 avg300=0.10 total=1234\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
        let pressure = parse_pressure(text);
        let some = Stall { avg10: 1.5, avg60: 2.0, avg300: 0.1, total_us: 1234 };
        assert_eq!((pressure.some, pressure.full.total_us), (some, 5));
        assert_eq!(parse_pressure("junk"), Pressure::default());
    }

    #[test]
    fn weights_are_shown_as_shares() {
        assert_eq!([0, 1, 10_000].map(shares_of_weight), [0, 2, 262_144]);
    }

    /// The root of this host's hierarchies is always there.
    #[test]
    fn the_hosts_root_can_be_sampled_again_and_again() {
        let mut sampler = Sampler::new().expect("this host has cgroups");
        sampler.begin();
        let first = sampler.sample("/", true).expect("the root");
        let open = sampler.open.len();
        assert!(first.cpu_ns > 0 && first.memory_bytes > 0 && open > 0, "{first:?}");
        sampler.begin();
        let second = sampler.sample("/", false).expect("the root");
        assert!(second.cpu_ns >= first.cpu_ns && second.at >= first.at);
        assert_eq!((sampler.open.len(), second.more), (open, None));
        for left in [open, open, 0] {
            sampler.begin();
            assert_eq!(sampler.open.len(), left, "what two rounds did not read is closed");
        }
        assert_eq!(sampler.sample("/no/such/cgroup", false), None);
        assert!(sampler.sample("/", false).is_some() && !sampler.open.is_empty());
        sampler.close();
        assert!(sampler.open.is_empty());
    }
}
