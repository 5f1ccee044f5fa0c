//! The agent as a node of a real cluster: etcd, API server, controllers, scheduler.
//!
//! Needs root, Go and the network once (see docs/TESTING.md). One test at a time has the cluster.
//! Run all with `cargo xtask test cluster`, one with
//! `cargo test -p pintle-agent-tests --test cluster NAME`.

#![allow(unreachable_pub, reason = "modules of one test program")]

mod certificates;
mod eviction;
mod eviction_beside;
mod eviction_cache;
mod eviction_disks;
mod eviction_ground;
mod eviction_stall;
mod explain;
mod handover;
mod handover_kinds;
mod killed;
mod metrics;
mod names;
mod node_object;
mod outage;
mod port;
mod proxied;
mod record;
mod secrets;
mod streams;
mod work;
