//! The daemon's own code in memory: code that was not used for a minute does not count as resident.
//!
//! Owner: one task. Reading the command line, the kernel's types and credentials, the first lists
//! and the start of many pods use code that an idle daemon never comes back to; see
//! `pintle_heap::code`. It costs an idle agent some 250 faults a minute, each of microseconds and
//! without a disk.

use std::time::Duration;

use crate::blocking::{self, JobPlace};
use crate::tasks;

/// Interval after which unused code is dropped from memory.
const EVERY: Duration = Duration::from_secs(60);

/// Starts the task; `forget` is `pintle_heap::code::forget`, which comes with the daemon's
/// allocator.
pub fn start(forget: fn()) {
    tasks::singleton("own code", async move {
        loop {
            tokio::time::sleep(EVERY).await;
            // It never blocks for long: the place is free again by the next turn.
            let _ = blocking::run(JobPlace::own("own code"), forget).await;
        }
    });
}
