//! Cgroups and processes for tests against the real kernel.
//!
//! Everything is made beneath the cgroup that the test itself runs in, and removed when its guard
//! is dropped, also when the test panics. Nothing is mounted or unmounted.
#![allow(dead_code, unreachable_pub)] // each test file uses its own part

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pintle_ebpf::{
    Controller, EventSource, Hierarchy, KernelEvent, Mode, Monotonic, Options, Slot,
};

/// Far above what any event needs, even on a busy emulated machine; a test that waits this long has
/// failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

static CGROUPS_MADE: AtomicU32 = AtomicU32::new(0);

/// Where a hierarchy is mounted, joined with this process' own path in it; `None` if it is not
/// mounted.
pub fn own_cgroup(hierarchy: Hierarchy) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let root = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let found = match hierarchy {
            Hierarchy::V2 => kind == "cgroup2",
            Hierarchy::V1(wanted) => {
                kind == "cgroup" && options.split(',').any(|name| name == wanted.name())
            }
        };
        found.then(|| PathBuf::from(before.split(' ').nth(4).expect("a mount point")))
    })?;
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = cgroups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found = match hierarchy {
            Hierarchy::V2 => names.is_empty(),
            Hierarchy::V1(wanted) => names.split(',').any(|name| name == wanted.name()),
        };
        found.then_some(path)
    })?;
    Some(root.join(path.trim_start_matches('/')))
}

/// The hierarchy that has the memory controller: v1 if it is mounted, else v2.
pub fn memory_hierarchy() -> Hierarchy {
    let v1 = Hierarchy::V1(Controller::Memory);
    if own_cgroup(v1).is_some() { v1 } else { Hierarchy::V2 }
}

/// A cgroup of our own, removed with all that is in it.
pub struct Cgroup(PathBuf);

impl Cgroup {
    pub fn new(hierarchy: Hierarchy) -> Self {
        let number = CGROUPS_MADE.fetch_add(1, Ordering::Relaxed);
        // The time as well: in a pid namespace of its own every run has the same process id.
        let started = Monotonic::now().0;
        let name = format!("pintle-ebpf-test-{}-{number}-{started}", std::process::id());
        let dir = own_cgroup(hierarchy).expect("mounted").join(name);
        fs::create_dir(&dir).expect("make a cgroup");
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A cgroup beneath it.
    pub fn child(&self, name: &str) -> PathBuf {
        let dir = self.0.join(name);
        fs::create_dir(&dir).expect("make a cgroup");
        dir
    }

    /// Memory and swap together end here, so that the OOM killer comes soon.
    pub fn limit_memory(&self, hierarchy: Hierarchy, bytes: u64) {
        let write = |file: &str, value: u64| fs::write(self.0.join(file), value.to_string());
        match hierarchy {
            Hierarchy::V1(_) => {
                write("memory.limit_in_bytes", bytes).expect("limit memory");
                // Absent without swap accounting.
                let _ = write("memory.memsw.limit_in_bytes", bytes);
            }
            Hierarchy::V2 => {
                write("memory.max", bytes).expect("limit memory");
                let _ = write("memory.swap.max", 0);
            }
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.0.exists() && Instant::now() < deadline {
            remove_tree(&self.0);
            thread::yield_now();
        }
    }
}

fn remove_tree(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let processes = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in processes.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    let _ = fs::remove_dir(dir);
}

pub fn id_of(dir: &Path) -> u64 {
    fs::metadata(dir).expect("the cgroup exists").ino()
}

/// A shell in a cgroup that waits for [`Gated::go`] before it runs its script.
pub struct Gated(Child);

impl Gated {
    pub fn new(cgroup: &Path, script: &str) -> Self {
        let mut child = Command::new("/bin/sh")
            .args(["-c", &format!("echo; exec >/dev/null; read go; {script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start a shell");
        // `spawn` returns a little before the kernel announces the exec: let that pass outside.
        let mut started = [0];
        let stdout = child.stdout.as_mut().expect("piped");
        stdout.read_exact(&mut started).expect("the shell starts");
        let gated = Self(child);
        fs::write(cgroup.join("cgroup.procs"), gated.pid().to_string()).expect("enter the cgroup");
        gated
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn go(&mut self) {
        self.0.stdin.take().expect("not gone yet").write_all(b"go\n").expect("the shell reads");
    }

    pub fn kill(&mut self) {
        self.0.kill().expect("it runs");
    }

    pub fn go_and_wait(&mut self) {
        self.go();
        self.wait();
    }

    pub fn wait(&mut self) {
        self.0.wait().expect("it is our child");
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Says why this test cannot run here, if it cannot.
pub fn impossible(hierarchy: Hierarchy) -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    match own_cgroup(hierarchy) {
        None => Some(format!("needs a mounted hierarchy {hierarchy:?}")),
        Some(_) => None,
    }
}

/// Reason why this machine cannot run a test.
pub struct Impossible(pub String);

impl std::ops::Deref for Impossible {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// The eBPF source, or why this machine can have none; where it can, anything less is a failure.
pub fn open_ebpf(options: &Options) -> Result<EventSource, Impossible> {
    if let Some(why) = impossible(options.hierarchy) {
        return Err(Impossible(why));
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(Impossible("needs a kernel with BTF".to_owned()));
    }
    let source = EventSource::open(options);
    let is_ebpf = matches!(source.mode(), Mode::Ebpf { .. });
    assert!(is_ebpf, "{} instead of eBPF: {:?}", source.mode(), source.reasons());
    Ok(source)
}

/// Unwraps, or counts the test as skipped with one line.
#[macro_export]
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(why) => {
                xtask::skip(&why);
                return;
            }
        }
    };
}

/// The pod's next event. Other slots' and the system's are passed over: the machine is not ours
/// alone.
pub async fn next_of(source: &mut EventSource, slot: Slot) -> KernelEvent {
    next_where(source, |event| event.slot == Some(slot)).await
}

/// The next event that is asked for.
pub async fn next_where(
    source: &mut EventSource,
    wanted: impl Fn(&KernelEvent) -> bool,
) -> KernelEvent {
    let search = async {
        loop {
            let event = source.next().await;
            if wanted(&event) {
                return event;
            }
        }
    };
    tokio::time::timeout(PATIENCE, search).await.expect("the event comes")
}
