//! The controllers beside a real API server, and beside the real kube-controller-manager. Nodes
//! exist in the API alone; what a kubelet and a scheduler do is written by the tests.
//!
//! Needs root, Go and the network once (see docs/TESTING.md). Run it with `cargo xtask test
//! controllers` or `cargo test -p pintle-tests --test controllers NAME`. `PINTLE_CONTROLLERS` names
//! another program to test, such as upstream's, which passes all cases.

#![allow(unreachable_pub, reason = "modules of one test program")]

mod broken_apis;
mod cases;
mod kit;
mod process;
mod server;
mod shadow_first;
mod take_over;
