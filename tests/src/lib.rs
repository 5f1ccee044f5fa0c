//! What the end-to-end tests stand on: real containerd, real kernel, real agent.
//!
//! - `node`: a private containerd and the agent inside its namespaces; manifests in, pods out
//! - `http`: GET over a connection made inside the node's network
//! - `registry`: a docker-registry beside the node, and a slow way to it
//! - `wait`: waiting for a condition, and what to say when it does not come
//!
//! A test makes a `TestNode`, writes manifests, waits for what its name promises, and drops it. At
//! most `NODES_MAX` nodes run at once in one process, whatever the number of test threads.

#![forbid(unsafe_code)]

pub mod http;
pub mod node;
pub mod registry;
pub mod wait;

pub use node::{Options, TestNode};
pub use wait::{LONG, until};
