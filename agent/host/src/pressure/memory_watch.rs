//! The kernel's word that memory gets short, so that nobody has to look for it all the time.
//!
//! Input: cgroups, and how much memory each may use before somebody is to look. Output: `fired`,
//! which returns when one of them crossed that line (cgroup v1, `cgroup.event_control`), or when its
//! processes stalled for memory (v2, a trigger of `memory.pressure`). Both are hints: what is true is
//! read afterwards. Effects: files of cgroups. Bounds: one watch for each cgroup, and one hint in
//! `PAUSE` from all of them.
// k8s: pkg/kubelet/eviction/threshold_notifier_linux.go NewCgroupNotifier (v1 only)

use std::fs::{File, OpenOptions};
use std::future::poll_fn;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Stall of some process within a second that makes a hint, as the kernel wants it said.
const STALL: &str = "some 100000 1000000";
/// The least tolerance, so that a look does not move a line each time.
const MOVED_MIN: u64 = 4 << 20;
/// A cgroup that stalls all the time is no news each time.
const PAUSE: Duration = Duration::from_secs(1);

/// Watches over the memory of some cgroups.
#[derive(Debug)]
pub struct MemoryWatch {
    is_v2: bool,
    watched: Vec<Watched>,
    last: Option<Instant>,
}

#[derive(Debug)]
struct Watched {
    dir: PathBuf,
    armed: Option<Armed>,
}

#[derive(Debug)]
enum Armed {
    Usage { event: AsyncFd<EventFd>, line: u64 },
    Stall(AsyncFd<File>),
}

impl MemoryWatch {
    /// Nothing is watched before `arm`; `dirs` are the cgroups' directories.
    pub fn new(is_v2: bool, dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        let watched = dirs.into_iter().map(|dir| Watched { dir, armed: None }).collect();
        Self { is_v2, watched, last: None }
    }

    /// Has cgroup `index` watched for a use of `line` bytes, page cache included. A line that moved by
    /// less than `tolerance` stays where it is.
    ///
    /// # Errors
    /// The kernel refuses; then the cgroup is looked at by the clock alone.
    pub fn arm(&mut self, index: usize, line: u64, tolerance: u64) -> io::Result<()> {
        let is_v2 = self.is_v2;
        let Some(watched) = self.watched.get_mut(index) else { return Ok(()) };
        match &watched.armed {
            Some(Armed::Stall(_)) => return Ok(()),
            Some(Armed::Usage { line: at, .. }) if at.abs_diff(line) < tolerance.max(MOVED_MIN) => {
                return Ok(());
            }
            _ => {}
        }
        watched.armed = None;
        watched.armed = Some(match is_v2 {
            true => Armed::stall(&watched.dir)?,
            false => Armed::usage(&watched.dir, line)?,
        });
        Ok(())
    }

    /// Returns when one of the cgroups is to be looked at; never without an armed one.
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

    fn stall(dir: &Path) -> io::Result<Self> {
        let path = dir.join("memory.pressure");
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        file.write_all(STALL.as_bytes())?;
        #[allow(deprecated)]
        Ok(Self::Stall(AsyncFd::with_interest(file, Interest::PRIORITY)?))
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
            Self::Stall(file) => {
                if let Ok(mut ready) = file.ready(Interest::PRIORITY).await {
                    let is_gone = ready.ready().is_error();
                    ready.clear_ready();
                    if !is_gone {
                        return;
                    }
                }
            }
        }
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::stats::Sampler;
    use std::fs;

    /// A cgroup of the memory hierarchy that goes away with it.
    struct Own(PathBuf);

    impl Own {
        fn new(sampler: &Sampler) -> Self {
            let name = format!("/pintle-memory-watch-{}", std::process::id());
            let dir = sampler.memory_dir(&name).expect("a hierarchy");
            fs::create_dir(&dir).expect("made");
            Self(dir)
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            let _ = fs::remove_dir(&self.0);
        }
    }

    /// The kernel says nothing by itself below the line: the watch fires when memory is used, here
    /// by files of a file system in memory that a shell in the cgroup writes.
    #[tokio::test]
    async fn a_cgroup_that_crosses_its_line_is_told() {
        let sampler = Sampler::new().expect("this host has cgroups");
        let own = Own::new(&sampler);
        let mut watch = MemoryWatch::new(sampler.is_v2(), [own.0.clone()]);
        watch.arm(0, 32 << 20, 0).expect("armed");
        if sampler.is_v2() {
            return; // the kernel took the order; without a limit nothing stalls
        }
        watch.arm(0, (32 << 20) + 1, 0).expect("near enough");
        watch.arm(7, 1, 0).expect("nobody");
        let write = format!(
            "echo $$ > {}/cgroup.procs && head -c 64M /dev/zero | tail -c 64M | wc -c",
            own.0.display()
        );
        let mut shell =
            tokio::process::Command::new("sh").args(["-c", &write]).spawn().expect("started");
        watch.fired().await;
        assert!(shell.wait().await.expect("ended").success());
    }
}
