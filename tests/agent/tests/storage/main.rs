//! Claims on a node of a real cluster: volumes of every kind that the node serves, and how a pod
//! waits for one.
//!
//! Needs root, Go and the network once (see docs/TESTING.md). One test at a time has the cluster.
//! Run all with `cargo xtask test storage`, one with
//! `cargo test -p pintle-agent-tests --test storage NAME`.

#![allow(unreachable_pub, reason = "modules of one test program")]

mod claims;
mod disks;
mod drivers;
mod expansion;
mod fabric;
mod fleet;
mod folders;
mod ground;
mod hostile;
mod in_tree;
mod journal;
mod killed;
mod kinds;
mod liars;
mod public_bugs;
mod record;
mod stats;
mod takeover;
