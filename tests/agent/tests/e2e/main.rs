//! End to end: the agent on a real containerd and a real kernel, one folder of tests by subject.
//!
//! Needs root. Each test makes its own node (see `pintle_testbed::TestNode`) and leaves nothing
//! behind. Run all with `cargo xtask test e2e`, one with
//! `cargo test -p pintle-agent-tests --test e2e NAME`.

mod adoption;
mod containerd;
mod credentials;
mod ended;
mod features;
mod garbage;
mod harness;
mod images;
mod lifecycle;
mod logs;
mod manifests;
mod memory;
mod network;
mod power_off;
mod probes;
mod program;
mod record;
mod restarts;
mod runtimes;
mod security;
mod shutdown;
mod stall;
mod support;
mod systemd;
mod trouble;
mod volumes;
