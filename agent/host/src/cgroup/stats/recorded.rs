//! Recorded files of cgroup v2 for a cgroup at its limits, and the expected figures.
//!
//! Recorded on Linux 6.1 with `psi=1`: 25 % of a CPU, 64 MiB, 100 tasks, after a process was killed
//! for lack of memory. Unread files were left out. The expected figures are those that cAdvisor
//! computes from the same files.

use super::*;

const FILES: [(&str, &str); 16] = [
    (
        "cpu.stat",
        "usage_usec 4693265\n\
         user_usec 535155\n\
         system_usec 4158110\n\
         nr_periods 190\n\
         nr_throttled 187\n\
         throttled_usec 13862859\n\
         nr_bursts 0\n\
         burst_usec 0\n",
    ),
    ("memory.current", "393216\n"),
    (
        "memory.stat",
        "anon 102400\n\
         file 49152\n\
         kernel 81920\n\
         file_mapped 0\n\
         inactive_anon 98304\n\
         active_anon 4096\n\
         inactive_file 40960\n\
         active_file 8192\n\
         pgfault 20822\n\
         pgmajfault 7\n",
    ),
    (
        "memory.events",
        "low 0\n\
         high 0\n\
         max 241\n\
         oom 7\n\
         oom_kill 1\n\
         oom_group_kill 0\n",
    ),
    ("memory.peak", "67108864\n"),
    ("memory.max", "67108864\n"),
    ("cpu.max", "25000 100000\n"),
    ("cpu.weight", "39\n"),
    ("pids.current", "1\n"),
    ("pids.max", "100\n"),
    ("memory.swap.current", "0\n"),
    ("memory.swap.max", "max\n"),
    ("memory.min", "0\n"),
    (
        "cpu.pressure",
        "some avg10=44.00 avg60=21.49 avg300=5.35 total=16572970\n\
         full avg10=37.17 avg60=18.09 avg300=4.50 total=13963004\n",
    ),
    (
        "memory.pressure",
        "some avg10=2.20 avg60=0.60 avg300=0.13 total=419183\n\
         full avg10=2.08 avg60=0.57 avg300=0.12 total=394030\n",
    ),
    (
        "io.pressure",
        "some avg10=0.01 avg60=0.02 avg300=0.00 total=33618\n\
         full avg10=0.01 avg60=0.02 avg300=0.00 total=31153\n",
    ),
];

/// A hierarchy in a folder, with the recorded cgroup `/rec` in it.
fn hierarchy() -> (tempfile::TempDir, Sampler) {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(dir.path().join("rec")).expect("made");
    for (name, text) in FILES {
        std::fs::write(dir.path().join("rec").join(name), text).expect("written");
    }
    let sampler = Sampler::over(Cgroups::unified_at(dir.path()));
    (dir, sampler)
}

#[test]
fn v2_usage_equals_that_of_cadvisor() {
    let (_dir, mut sampler) = hierarchy();
    sampler.begin();
    let sample = sampler.sample("/rec", false).expect("there");
    let want = Sample {
        at: sample.at,
        cpu_ns: 4_693_265_000,
        cpu_user_ns: 535_155_000,
        cpu_system_ns: 4_158_110_000,
        memory_bytes: 393_216,
        working_set_bytes: 393_216 - 40_960,
        rss_bytes: 102_400,
        cache_bytes: 49_152,
        mapped_bytes: 0,
        file_bytes: (8192, 40_960),
        swap_bytes: 0,
        swap_limit_bytes: None, // the recorded one is "max"
        kernel_bytes: 0,
        faults: (20_822, 7),
        tasks: 1,
        memory_limit_bytes: Some(64 << 20),
        pressure: sample.pressure,
        more: None,
    };
    assert_eq!(sample, want);
    let [cpu, memory, io] = sample.pressure.expect("accounted for");
    let some = Stall { avg10: 44.0, avg60: 21.49, avg300: 5.35, total_us: 16_572_970 };
    assert_eq!((cpu.some, cpu.full.total_us), (some, 13_963_004));
    assert_eq!((memory.some.total_us, memory.full.avg10), (419_183, 2.08));
    assert_eq!((io.some.total_us, io.full.total_us), (33_618, 31_153));
}

#[test]
fn v2_limits_equal_those_of_cadvisor() {
    let (dir, mut sampler) = hierarchy();
    let more = sampler.sample("/rec", true).expect("there").more.expect("asked for");
    let want = More {
        memory_max_bytes: 64 << 20,
        memory_failures: 0,
        memory_reservation_bytes: 0,
        swap_limit_bytes: 0,
        throttled: Some((190, 187, 13_862_859_000)),
        cpu_shares: 998,
        cpu_period_us: 100_000,
        cpu_quota_us: Some(25_000),
        tasks_max: 100,
        oom_kills: 1,
        ..More::default()
    };
    assert_eq!(more, want);
    for (name, text) in [("cpu.max", "max 100000\n"), ("pids.max", "max\n")] {
        std::fs::write(dir.path().join("rec").join(name), text).expect("written");
    }
    let more = sampler.sample("/rec", true).expect("there").more.expect("asked for");
    assert_eq!((more.cpu_quota_us, more.throttled, more.tasks_max), (None, None, 0));
}

#[test]
fn a_kernel_that_does_not_account_for_stalls_has_no_pressure() {
    let (dir, mut sampler) = hierarchy();
    std::fs::remove_file(dir.path().join("rec/io.pressure")).expect("removed");
    assert_eq!(sampler.sample("/rec", false).expect("there").pressure, None);
}

#[test]
fn limits_before_a_resize_are_read_back() {
    let (dir, sampler) = hierarchy();
    let figures = sampler.cgroups.figures("rec").expect("read");
    let have = (figures.memory_limit, figures.cpu_quota_us, figures.cpu_shares);
    assert_eq!(have, (64 << 20, 25_000, 998));
    for (name, text) in [("cpu.max", "max 100000\n"), ("memory.max", "max\n")] {
        std::fs::write(dir.path().join("rec").join(name), text).expect("written");
    }
    let figures = sampler.cgroups.figures("rec").expect("read");
    assert_eq!((figures.memory_limit, figures.cpu_quota_us), (i64::MAX, -1));
    assert_eq!(sampler.cgroups.memory_usage("rec").expect("read"), 393_216);
    std::fs::write(dir.path().join("rec/cpu.weight"), "idle\n").expect("written");
    assert!(sampler.cgroups.figures("rec").is_err(), "a word where a number belongs");
}
