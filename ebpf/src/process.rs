//! A process by a descriptor instead of a number, which another process may have by the time it is
//! used.
//!
//! Input: a pid. Output: a signal to exactly the process that had it when it was opened. Needs
//! Linux 5.3.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use nix::errno::Errno;

/// A process, alive or not.
#[derive(Debug)]
pub struct Process(OwnedFd);

impl Process {
    /// The process that has this number now.
    pub fn open(pid: u32) -> Result<Self, Errno> {
        pidfd_open(pid).map(Self)
    }

    /// Sends it SIGKILL; an error when it has ended and was waited for.
    #[allow(unsafe_code)]
    pub fn kill(&self) -> Result<(), Errno> {
        let (fd, nothing) = (self.0.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
        // JUSTIFICATION: neither std nor nix offers this system call.
        // SAFETY: it takes integers and a null pointer, and touches no memory of ours.
        let done =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, nothing, 0) };
        Errno::result(done).map(drop)
    }
}

/// A descriptor that becomes readable when the process ends.
#[allow(unsafe_code)]
pub(crate) fn pidfd_open(pid: u32) -> Result<OwnedFd, Errno> {
    // JUSTIFICATION: neither std nor nix offers this system call.
    // SAFETY: it takes two integers and touches no memory of ours.
    let raw = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) })?;
    // SAFETY: the call succeeded, so it is a new descriptor (close-on-exec) without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as RawFd) })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn exited_process_gets_no_signal_even_if_its_pid_is_reused() {
        let mut sleeper = Command::new("sleep").arg("60").spawn().expect("started");
        let process = Process::open(sleeper.id()).expect("opened");
        process.kill().expect("killed");
        assert!(!sleeper.wait().expect("waited").success());
        assert_eq!(process.kill(), Err(Errno::ESRCH));
    }
}
