//! Fixtures of controllers' tests: times, tables and events.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use pintle_controllers_core::frame::Now;
use pintle_controllers_core::tables::{Decoded, Tables, WatchEvent};

/// This many seconds after an arbitrary start.
pub(crate) fn at(seconds: u64) -> Now {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    let wait = Duration::from_secs(seconds);
    let wall: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    Now { instant: *START.get_or_init(Instant::now) + wait, wall: wall + wait }
}

/// Tables after some events.
pub(crate) fn applied(events: Vec<WatchEvent>) -> Tables {
    let mut tables = Tables::default();
    for event in events {
        tables.apply(event);
    }
    tables
}

/// An object that was added or modified.
pub(crate) fn set(object: Result<Decoded, serde_json::Error>) -> WatchEvent {
    WatchEvent::Set(object.expect("a good object"))
}
