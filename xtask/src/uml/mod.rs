//! Nodes with cgroup v2 and systemd, as processes of this host: User-Mode Linux guests.
//!
//! The host of the tests has cgroup v1, a user's node has not. A guest boots in seconds without
//! /dev/kvm, computes as fast as the host and starts processes four times slower.
//! - `kernel`: Debian's kernel, as it is: no cpuset, no iptables, no PSI, no eBPF with BTF
//! - `own_kernel`: a kernel that is built, and lacks only the last of these
//! - `image`: the guest's root, a Debian with systemd
//! - `guest`: one guest, its network, scripts in it
//! - `node`: containerd and the agent in a guest, both units of systemd

mod guest;
mod image;
mod kernel;
pub mod node;
mod own_kernel;

use anyhow::Result;

pub use guest::{Guest, Options, Output, Wire, sweep};
pub use node::{Node, WRITE_CPUINFO};

/// Fails unless guests have a kernel with iptables.
pub fn require_iptables() -> Result<()> {
    kernel::require_iptables()
}

/// Fetches and makes what guests are made of, so that a later guest finds it.
pub fn prepare() -> Result<()> {
    image::root(&kernel::kernel()?).map(drop)
}
