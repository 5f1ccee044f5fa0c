//! The agent as a unit of systemd on cgroup v2, in guests of User-Mode Linux.
//!
//! Expected values are the kubelet's with the systemd driver. Each test boots a guest. All are one
//! program, so that a test that waits has another one beside it.

mod api;
mod attacks;
mod growth;
mod lost;
mod memory;
mod slices;
