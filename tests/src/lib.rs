//! What the end-to-end tests stand on: real containerd, real kernel, real agent.
//!
//! - `manifest`: building pods, and reading what became of them
//! - `node`: a private containerd and the agent inside its namespaces; manifests in, pods out
//! - `cluster`: a real control plane and one node with the agent; objects in, objects out
//! - `cri`: raw calls to the runtime, beside or without the agent
//! - `stand`: the agent in this process, on a fake runtime and the API server of `apiserver`
//! - `registry`: a docker-registry beside the node, and a slow way to it
//! - `rng`: chance that a seed repeats
//! - `wait`: waiting for a condition, and what to say when it does not come
//!
//! A test makes a `TestNode`, writes manifests, waits for what its name promises, and drops it. At
//! most `NODES_MAX` nodes run at once in one process, whatever the number of test threads.

#![forbid(unsafe_code)]

pub mod apiserver;
pub mod cluster;
pub mod cri;
pub mod manifest;
pub mod node;
pub mod registry;
pub mod rng;
pub mod stand;
pub mod strategic;
pub mod wait;

pub use cri::{RawCri, RawPod};
pub use node::{Options, TestNode};
pub use wait::{LONG, patience, until};

/// Counts the running test as skipped, because this host lacks something; then return from it.
pub fn skip(why: &str) {
    use std::io::Write;
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    eprint!("skipped: {line}");
    let Some(path) = std::env::var_os("PINTLE_SKIPPED") else { return };
    let file = std::fs::File::options().create(true).append(true).open(path);
    file.and_then(|mut f| f.write_all(line.as_bytes())).expect("the list of skipped tests");
}
