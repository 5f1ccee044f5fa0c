//! The controllers beside a real API server, and beside the real kube-controller-manager. Nodes
//! exist in the API alone; the tests write the statuses and bindings of a kubelet and a scheduler.
//!
//! Needs root, Go and the network once (see docs/TESTING.md). Run it with `cargo xtask test
//! controllers` or `cargo test -p pintle-controllers-tests --test controllers NAME`. `PINTLE_CONTROLLERS` names
//! another program to test, such as upstream's; all cases pass with upstream's.

#![allow(unreachable_pub, reason = "modules of one test program")]

mod broken_apis;
mod cases;
mod kit;
mod process;
mod server;
mod shadow_first;
mod take_over;
