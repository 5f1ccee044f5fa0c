//! The clocks, read here and nowhere else; decisions are given the time.

use std::sync::OnceLock;
use std::time::Instant;

use pintle_api_types::ids::{Mono, Now, UnixNanos};

/// The wall clock.
pub fn now() -> UnixNanos {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    UnixNanos(since.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)))
}

/// Both clocks.
pub fn clocks() -> Now {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let elapsed = BEGAN.get_or_init(Instant::now).elapsed();
    Now { wall: now(), mono: Mono::default().plus(elapsed) }
}
