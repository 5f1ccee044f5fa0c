//! Work on a thread that is inside a process's network: sockets made there stay there.

use std::fs::File;
use std::thread;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};

/// Runs `work` on a thread of its own in the network of the process, and waits for it.
pub(crate) fn within<T: Send>(pid: u32, work: impl FnOnce() -> T + Send) -> Result<T> {
    let path = format!("/proc/{pid}/ns/net");
    let net = File::open(&path).with_context(|| format!("open {path}"))?;
    thread::scope(|scope| {
        let joined = scope.spawn(move || {
            setns(net, CloneFlags::CLONE_NEWNET).context("enter the network")?;
            Ok(work())
        });
        joined.join().map_err(|_| anyhow!("work in another network panicked"))?
    })
}
