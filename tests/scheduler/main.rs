//! The scheduler beside a real API server and the real kube-scheduler. Nodes exist in the API alone.
//!
//! Needs root, Go and the network once (see docs/TESTING.md). Run it with `cargo xtask test scheduler`
//! or `cargo test -p pintle-tests --test scheduler NAME`.

#![allow(unreachable_pub, reason = "modules of one test program")]

mod shadow;
mod stand;
mod world;
