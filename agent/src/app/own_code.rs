//! The agent's own code in memory: what was not used for a minute does not count as resident.
//!
//! Owner: one task. Reading the command line, the kernel's types and credentials, and the start of
//! many pods, use code that an idle agent never comes back to; see `pintle_heap::code`. It costs an
//! idle agent some 250 faults a minute, each of microseconds and without a disk.

use std::time::Duration;

use pintle_daemon::blocking;
use pintle_daemon::blocking::Place;
use pintle_daemon::tasks;

/// How long code that is not used again stays.
const EVERY: Duration = Duration::from_secs(60);

/// Begins with it.
pub(super) fn start() {
    tasks::singleton("own code", async {
        loop {
            tokio::time::sleep(EVERY).await;
            // It never blocks for long: the place is free again by the next turn.
            let _ = blocking::run(Place::own("own code"), pintle_heap::code::forget).await;
        }
    });
}
