//! Waits for a condition with a generous limit, and panics with the last state seen.
//!
//! Tests never sleep for a fixed time: they poll quickly until the condition holds. Limits are for
//! machines under load; no test asserts that something took long. `PINTLE_PATIENCE=5` makes every
//! limit five times as long, for a guest that is emulated.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Enough for anything a pod does on a busy host with two cores.
pub const LONG: Duration = Duration::from_secs(90);
/// Polling period, unless a poll takes long.
const PERIOD: Duration = Duration::from_millis(20);

/// Polls until the answer is `Ok`; panics with the last error when `limit` has passed.
///
/// The closure's error should describe the state, because it becomes the test's message.
pub fn until<T>(limit: Duration, what: &str, mut ask: impl FnMut() -> Result<T>) -> T {
    let limit = limit * patience();
    let deadline = Instant::now() + limit;
    loop {
        let begin = Instant::now();
        match ask() {
            Ok(answer) => return answer,
            Err(error) if Instant::now() > deadline => {
                panic!("not within {limit:?}: {what}\nlast seen: {error:#}")
            }
            // The longer it takes, the rarer the polls, so that they do not slow the observed
            // program.
            Err(_) => thread::sleep(PERIOD.max(begin.elapsed() * 2)),
        }
    }
}

/// How many times as long as usual this machine may take: `PINTLE_PATIENCE`, else 1.
pub fn patience() -> u32 {
    std::env::var("PINTLE_PATIENCE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}
