//! A process that answers nothing for a while.

use nix::sys::signal::Signal;
use xtask::node::process;

/// A stopped process; it continues when this is dropped.
#[derive(Debug)]
pub struct FrozenProcess(i32);

impl FrozenProcess {
    /// Stops the process with this pid.
    pub fn freeze(pid: i32) -> Self {
        process::signal(pid, Signal::SIGSTOP);
        Self(pid)
    }
}

impl Drop for FrozenProcess {
    fn drop(&mut self) {
        process::signal(self.0, Signal::SIGCONT);
    }
}
