//! The kernel's notice that memory gets short, so that memory need not be read all the time.
//!
//! Input: cgroups, and how much memory each may use before an observation is due. Output: `fired`,
//! which returns when one of them crossed that line (cgroup v1, `cgroup.event_control`), or when
//! its processes stalled for memory (v2, a trigger of `memory.pressure`). On v2 no notice covers
//! unlimited usage, and a fast process takes gigabytes before any process stalls: there usage
//! itself is read each `PEEK`. All are hints: the truth is read afterwards. Effects: files of
//! cgroups. Bounds: one watch for each cgroup, and one hint in `PAUSE` from all of them.
// k8s: pkg/kubelet/eviction/threshold_notifier_linux.go NewCgroupNotifier (v1 only)

use std::fs::{File, OpenOptions};
use std::future::poll_fn;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use pintle_daemon::blocking::{self, JobPlace};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Stall of some process within a second that makes a hint, in the kernel's format.
const STALL: &str = "some 100000 1000000";
/// The least tolerance, so that a look does not move a line each time.
const MOVED_MIN: u64 = 4 << 20;
/// How often the use of a cgroup of v2 is read: one file of one line.
const PEEK: Duration = Duration::from_secs(1);
/// Time between two hints: the kernel reports stall once in a second, usage each time it crosses
/// the line.
const PAUSE: Duration = Duration::from_millis(250);

/// Watches over the memory of some cgroups.
#[derive(Debug)]
pub struct MemoryWatch {
    is_v2: bool,
    watched: Vec<WatchedCgroup>,
    last: Option<Instant>,
}

#[derive(Debug)]
struct WatchedCgroup {
    dir: PathBuf,
    armed: Option<Armed>,
}

#[derive(Debug)]
enum Armed {
    Usage {
        event: AsyncFd<EventFd>,
        line: u64,
    },
    /// Either is `None` where the kernel has it not: no PSI, and the root has no use of its own.
    V2 {
        stall: Option<AsyncFd<File>>,
        usage: Option<Arc<File>>,
        line: u64,
    },
}

impl MemoryWatch {
    /// Nothing is watched before `arm`; `dirs` are the cgroups' directories.
    pub fn new(is_v2: bool, dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        let watched = dirs.into_iter().map(|dir| WatchedCgroup { dir, armed: None }).collect();
        Self { is_v2, watched, last: None }
    }

    /// Has cgroup `index` watched for a use of `line` bytes, page cache included. A line that moved by
    /// less than `tolerance` stays where it is.
    ///
    /// # Errors
    /// The kernel refuses; then the cgroup is read only periodically.
    pub fn arm(&mut self, index: usize, line: u64, tolerance: u64) -> io::Result<()> {
        let is_v2 = self.is_v2;
        let Some(watched) = self.watched.get_mut(index) else { return Ok(()) };
        match &mut watched.armed {
            Some(Armed::V2 { line: at, .. }) => {
                *at = line;
                return Ok(());
            }
            Some(Armed::Usage { line: at, .. }) if at.abs_diff(line) < tolerance.max(MOVED_MIN) => {
                return Ok(());
            }
            _ => {}
        }
        watched.armed = None;
        watched.armed = Some(match is_v2 {
            true => Armed::v2(&watched.dir, line)?,
            false => Armed::usage(&watched.dir, line)?,
        });
        Ok(())
    }

    /// Returns when one of the cgroups is due for a read; never without an armed one.
    pub async fn fired(&mut self) {
        if let Some(last) = self.last {
            tokio::time::sleep(PAUSE.saturating_sub(last.elapsed())).await;
        }
        let armed = self.watched.iter().filter_map(|watched| watched.armed.as_ref());
        let mut waits: Vec<_> = armed.map(|armed| Box::pin(armed.fired())).collect();
        poll_fn(|context| {
            let one = waits.iter_mut().any(|wait| wait.as_mut().poll(context).is_ready());
            if one { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.last = Some(Instant::now());
    }
}

impl Armed {
    fn usage(dir: &Path, line: u64) -> io::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let usage = File::open(dir.join("memory.usage_in_bytes"))?;
        let mut control = OpenOptions::new().write(true).open(dir.join("cgroup.event_control"))?;
        // One write is one order.
        let order = format!("{} {} {line}", event.as_raw_fd(), usage.as_raw_fd());
        control.write_all(order.as_bytes())?;
        #[allow(deprecated)] // as in `node::oom`: an owned descriptor
        let event = AsyncFd::with_interest(event, Interest::READABLE)?;
        Ok(Self::Usage { event, line })
    }

    fn v2(dir: &Path, line: u64) -> io::Result<Self> {
        let usage = File::open(dir.join("memory.current")).ok().map(Arc::new);
        match (stall(dir), usage) {
            (Err(error), None) => Err(error),
            (stall, usage) => Ok(Self::V2 { stall: stall.ok(), usage, line }),
        }
    }

    /// A watch that fails fires nothing more.
    async fn fired(&self) {
        match self {
            Self::Usage { event, .. } => {
                if let Ok(mut ready) = event.readable().await {
                    let _ = event.get_ref().read(); // takes it back
                    ready.clear_ready();
                    return;
                }
            }
            Self::V2 { stall, usage, line } => {
                tokio::select! {
                    () = stalled(stall.as_ref()) => return,
                    () = crossed(usage.as_ref(), *line) => return,
                }
            }
        }
        std::future::pending::<()>().await;
    }
}

fn stall(dir: &Path) -> io::Result<AsyncFd<File>> {
    let path = dir.join("memory.pressure");
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    file.write_all(STALL.as_bytes())?;
    #[allow(deprecated)] // as above
    AsyncFd::with_interest(file, Interest::PRIORITY)
}

/// Comes when processes of the cgroup stalled; never once it is gone.
async fn stalled(pressure: Option<&AsyncFd<File>>) {
    if let Some(file) = pressure
        && let Ok(mut ready) = file.ready(Interest::PRIORITY).await
    {
        let is_gone = ready.ready().is_error();
        ready.clear_ready();
        if !is_gone {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Resolves when the cgroup uses this many bytes; never once it is gone.
async fn crossed(usage: Option<&Arc<File>>, line: u64) {
    while let Some(usage) = usage.map(Arc::clone) {
        tokio::time::sleep(PEEK).await;
        match blocking::run(JobPlace::own("pressure").within(PEEK), move || used(&usage)).await {
            Ok(Some(used)) if used >= line => return,
            Ok(None) => break,
            _ => {}
        }
    }
    std::future::pending::<()>().await;
}

/// Bytes in `memory.current`.
fn used(file: &File) -> Option<u64> {
    let mut text = [0; 24];
    let length = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..length]).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::stats::Sampler;
    use std::fs;

    /// A cgroup of the memory hierarchy that is removed on drop.
    struct OwnCgroup(PathBuf);

    impl OwnCgroup {
        fn new(sampler: &Sampler, what: &str) -> Self {
            let name = format!("/pintle-memory-{what}-{}", std::process::id());
            let dir = sampler.memory_dir(&name).expect("a hierarchy");
            fs::create_dir(&dir).expect("made");
            Self(dir)
        }
    }

    impl Drop for OwnCgroup {
        fn drop(&mut self) {
            let _ = fs::remove_dir(&self.0);
        }
    }

    /// Has a shell in the cgroup fill a file in memory with 64 MiB and keep it, until the watch fires.
    async fn fires(own: &OwnCgroup, mut watch: MemoryWatch) {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        let file = folder.path().join("file");
        let fill = format!(
            "echo $$ > {}/cgroup.procs && head -c 64M /dev/zero > {} && exec sleep 600",
            own.0.display(),
            file.display()
        );
        let mut shell = tokio::process::Command::new("sh");
        let mut shell = shell.args(["-c", &fill]).kill_on_drop(true).spawn().expect("started");
        watch.fired().await;
        shell.kill().await.expect("it waited");
        let killed = own.0.join("cgroup.procs");
        while !fs::read_to_string(&killed).expect("a cgroup").is_empty() {
            for pid in fs::read_to_string(&killed).expect("a cgroup").lines() {
                let pid = nix::unistd::Pid::from_raw(pid.parse().expect("a process"));
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Below the line the kernel sends nothing: the watch fires when memory is used.
    #[tokio::test]
    async fn cgroup_that_crosses_its_memory_threshold_wakes_the_watch() {
        blocking::Pool::own();
        let sampler = Sampler::new().expect("this host has cgroups");
        let own = OwnCgroup::new(&sampler, "line");
        let mut watch = MemoryWatch::new(sampler.is_v2(), [own.0.clone()]);
        watch.arm(0, 32 << 20, 0).expect("armed");
        watch.arm(0, (32 << 20) + 1, 0).expect("near enough");
        watch.arm(7, 1, 0).expect("no such cgroup is no error");
        fires(&own, watch).await;
    }

    /// Far below any line: it needs more than it may have at once, so it has to wait.
    #[tokio::test]
    async fn cgroup_with_memory_stalls_wakes_the_watch() {
        blocking::Pool::own();
        let sampler = Sampler::new().expect("this host has cgroups");
        if !Path::new("/sys/fs/cgroup/memory.pressure").exists() {
            return xtask::skip("the kernel reports no stall of memory");
        }
        let own = OwnCgroup::new(&sampler, "stall");
        fs::write(own.0.join("memory.high"), "8M").expect("limited");
        let mut watch = MemoryWatch::new(sampler.is_v2(), [own.0.clone()]);
        watch.arm(0, u64::MAX, 0).expect("armed");
        fires(&own, watch).await;
    }
}
