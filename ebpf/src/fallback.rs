//! Where eBPF is not available: a pidfd for each container's first process, and on cgroup v2 the
//! `populated` line of each pod's cgroup.events.
//!
//! Input: the pods and processes that the caller names. Output: the same events as the kernel
//! source gives, with less in them: no exec, no OOM victim, no new cgroups, and an exit without its
//! code, because only the parent of a process may collect that. Owner: [`crate::EventSource`].
//!
//! One epoll set holds all pidfds and the one inotify instance, and tokio polls that set: no
//! thread, and no task each. Bounds: [`PIDFDS_MAX`]; the kernel's own limit on inotify watches
//! shows as an error of `track`. The kernel announces a change of cgroup.events at most once in 10
//! ms, so a short populated period may go unseen.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::decode::{EventKind, Exit, KernelEvent, Monotonic, Slot};
use crate::hierarchy::{Hierarchy, Mounted};
use crate::process::pidfd_open;
use crate::{TrackError, Watched};

/// Processes watched at once.
pub const PIDFDS_MAX: usize = 4_096;

const INOTIFY_TOKEN: u64 = u64::MAX;
const READY_MAX: usize = 64;

struct EpollFd(Epoll);

impl AsRawFd for EpollFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.0.as_raw_fd()
    }
}

struct PolledPod {
    cgroup_id: u64,
    events_file: PathBuf,
    watch: Option<WatchDescriptor>,
    populated: Option<bool>,
}

pub(crate) struct ProcessWatch {
    epoll: AsyncFd<EpollFd>,
    inotify: Option<Inotify>,
    mounted: Mounted,
    pods: BTreeMap<Slot, PolledPod>,
    inits: BTreeMap<u32, (OwnedFd, Slot)>,
}

impl ProcessWatch {
    /// Must be called on a tokio runtime with I/O enabled. Fails where the kernel has no pidfd
    /// (before 5.3).
    pub(crate) fn open(mounted: Mounted) -> io::Result<Self> {
        pidfd_open(std::process::id())?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let inotify = match mounted.hierarchy {
            Hierarchy::V2 => {
                let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
                epoll.add(&inotify, EpollEvent::new(EpollFlags::EPOLLIN, INOTIFY_TOKEN))?;
                Some(inotify)
            }
            Hierarchy::V1(_) => None,
        };
        // JUSTIFICATION: tokio's only way to poll a descriptor of ours.
        // SAFETY: the set owns its descriptor and is neither replaced nor closed while it is
        // registered.
        #[allow(unsafe_code)]
        let epoll = unsafe { AsyncFd::register_with_interest(EpollFd(epoll), Interest::READABLE)? };
        Ok(Self { epoll, inotify, mounted, pods: BTreeMap::new(), inits: BTreeMap::new() })
    }

    pub(crate) fn track(&mut self, slot: Slot, dir: &Path) -> Result<(), TrackError> {
        let cgroup_id = self.mounted.cgroup_id(dir)?;
        let is_whole = |pod: &PolledPod| pod.watch.is_some() || self.inotify.is_none();
        if self.pods.get(&slot).is_some_and(|pod| pod.cgroup_id == cgroup_id && is_whole(pod)) {
            return Ok(());
        }
        self.untrack(slot);
        let events_file = dir.join("cgroup.events");
        let watched = match &self.inotify {
            Some(inotify) => inotify.add_watch(&events_file, AddWatchFlags::IN_MODIFY).map(Some),
            None => Ok(None),
        };
        // Read after the watch is set: what changes from here on is announced.
        let populated = read_populated(&events_file);
        let (path, watch) = (events_file.clone(), watched.ok().flatten());
        // Its processes can be watched all the same.
        self.pods.insert(slot, PolledPod { cgroup_id, events_file, watch, populated });
        watched.map(drop).map_err(|errno| TrackError::Watch { path, errno })
    }

    pub(crate) fn untrack(&mut self, slot: Slot) {
        if let Some(pod) = self.pods.remove(&slot)
            && let (Some(inotify), Some(watch)) = (&self.inotify, pod.watch)
        {
            // Fails if the directory was removed; then the kernel has removed the watch itself.
            let _ = inotify.rm_watch(watch);
        }
        let mine: Vec<u32> =
            self.inits.iter().filter(|(_, (_, s))| *s == slot).map(|(pid, _)| *pid).collect();
        for pid in mine {
            self.forget(pid);
        }
    }

    pub(crate) fn watch_init(&mut self, slot: Slot, pid: u32) -> Result<Watched, TrackError> {
        if !self.pods.contains_key(&slot) {
            return Err(TrackError::NotTracked(slot));
        }
        self.forget(pid);
        if self.inits.len() >= PIDFDS_MAX {
            return Err(TrackError::Full { limit: PIDFDS_MAX as u32 });
        }
        let fd = match pidfd_open(pid) {
            Ok(fd) => fd,
            Err(Errno::ESRCH) => return Ok(Watched::Gone),
            Err(errno) => return Err(TrackError::Pidfd { pid, errno }),
        };
        let interest = EpollEvent::new(EpollFlags::EPOLLIN, u64::from(pid));
        let epoll = &self.epoll.get_ref().0;
        epoll.add(&fd, interest).map_err(|errno| TrackError::Pidfd { pid, errno })?;
        self.inits.insert(pid, (fd, slot));
        Ok(Watched::Yes)
    }

    /// Waits for an event, then appends all available ones. Cancel-safe.
    pub(crate) async fn next_batch(&mut self, out: &mut Vec<KernelEvent>) -> io::Result<()> {
        let before = out.len();
        while out.len() == before {
            let mut ready = [EpollEvent::empty(); READY_MAX];
            let count = {
                let mut guard = self.epoll.readable().await?;
                let count = guard.get_inner().0.wait(&mut ready, EpollTimeout::ZERO)?;
                if count < READY_MAX {
                    guard.clear_ready();
                }
                count
            };
            for event in &ready[..count] {
                match event.data() {
                    INOTIFY_TOKEN => self.read_inotify(out),
                    pid => self.ended(pid as u32, out),
                }
            }
        }
        Ok(())
    }

    fn ended(&mut self, pid: u32, out: &mut Vec<KernelEvent>) {
        let Some((_, slot)) = self.inits.get(&pid) else { return };
        let kind = EventKind::Exit(Exit { status: None, oom: false });
        let (slot, time) = (Some(*slot), Monotonic::now());
        out.push(KernelEvent { slot, kind, pid, time, cgroup_id: 0 });
        self.forget(pid);
    }

    fn forget(&mut self, pid: u32) {
        if let Some((fd, _)) = self.inits.remove(&pid) {
            self.epoll.get_ref().0.delete(&fd).expect("each watched pidfd is in the set");
        }
    }

    fn read_inotify(&mut self, out: &mut Vec<KernelEvent>) {
        let Some(inotify) = &self.inotify else { return };
        let changes = inotify.read_events().unwrap_or_default();
        for (slot, pod) in &mut self.pods {
            if !changes.iter().any(|change| Some(change.wd) == pod.watch) {
                continue;
            }
            let now = read_populated(&pod.events_file);
            if now == pod.populated {
                continue;
            }
            pod.populated = now;
            let kind = now.map_or(EventKind::CgroupRemoved, EventKind::Populated);
            let (slot, cgroup_id) = (Some(*slot), pod.cgroup_id);
            out.push(KernelEvent { slot, kind, pid: 0, time: Monotonic::now(), cgroup_id });
        }
    }
}

/// `None` if the cgroup was removed.
fn read_populated(events_file: &Path) -> Option<bool> {
    parse_populated(&fs::read_to_string(events_file).ok()?)
}

fn parse_populated(text: &str) -> Option<bool> {
    let value = text.lines().find_map(|line| line.strip_prefix("populated "))?;
    Some(value.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn populated_is_parsed_on_any_line() {
        let table = [
            ("populated 1\nfrozen 0\n", Some(true)),
            ("frozen 1\npopulated 0\n", Some(false)),
            ("frozen 0\n", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse_populated(text), expected, "{text:?}");
        }
    }
}
