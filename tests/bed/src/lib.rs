//! Harness of the end-to-end tests: real containerd, real kernel, real agent.
//!
//! - `attacks`: runs the attacks of a test program in order
//! - `manifest`: building pods, and reading their status
//! - `node`: a private containerd and the agent inside its namespaces; manifests in, pods out
//! - `cluster`: a real control plane and one node with the agent; objects in, objects out
//! - `cri`: raw calls to the runtime, beside or without the agent
//! - `frozen`: a process that answers nothing
//! - `late`: a disk with slow reads
//! - `recorded`: the folder of recordings of the originals
//! - `registry`: a docker-registry beside the node, and a slow way to it
//! - `wait`: waiting for a condition, and the message when it does not hold in time
//!
//! A test creates a `TestNode`, writes manifests, waits for the state that its name promises, and
//! drops it. At most `NODES_MAX` nodes run at once in one process, whatever the number of test
//! threads.

#![deny(unsafe_code)]

pub mod attacks;
pub mod cluster;
pub mod cri;
pub mod disks;
pub mod frozen;
pub mod late;
pub mod manifest;
pub mod node;
pub mod record;
pub mod recorded;
pub mod registry;
#[allow(unsafe_code)]
pub mod seccomp;
pub mod wait;

pub use cri::{RawCri, RawPod};
pub use frozen::FrozenProcess;
pub use node::{Options, TestNode};
pub use wait::{LONG, patience, until};
pub use xtask::skip;

/// A recording or a part of one is missing: nothing can be compared. That is allowed in another
/// folder than our own, which is complete.
pub fn lacks(what: &str) {
    assert!(std::env::var_os("PINTLE_RECORDED").is_some(), "not there to compare with: {what}");
    println!("not compared: {what}");
}
