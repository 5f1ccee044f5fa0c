//! What waits and for how long, through the whole core: crash loops, deadlines, lists, whatever the
//! wall clock does meanwhile.

use std::time::Duration;

use serde_json::json;

use crate::worker::testing::{Host, plain};
use crate::worker::{Command, Input};
use pintle_api_types::ids::UnixNanos;

const HOUR: i64 = 3600 * 1_000_000_000;

impl Host {
    /// Somebody sets the wall clock.
    fn set_clock(&mut self, by: i64) {
        self.now.wall = UnixNanos(self.now.wall.0 + by);
    }
}

/// Where the wall clock is set before and after the end of a container.
const STEPS: [(i64, i64); 5] = [(0, 0), (8, 0), (-8, 0), (0, 8), (0, -8)];

#[test]
fn a_crash_loop_waits_as_long_as_it_should_whatever_the_wall_clock_does() {
    for (before, after) in STEPS {
        let mut host = Host::new();
        host.now.wall = UnixNanos(100 * HOUR);
        host.want(plain("p", "100m"));
        host.end("p", "c", 1);
        assert_eq!(host.take_starts(), ["c", "c"], "the first restart is at once");
        host.wait(Duration::from_secs(1));
        host.set_clock(before * HOUR);
        host.end("p", "c", 1);
        host.set_clock(after * HOUR);
        assert_eq!(host.take_starts(), [""; 0], "{before} {after}: it is in a crash loop");
        host.wait(Duration::from_secs(8));
        assert_eq!(host.take_starts(), [""; 0], "{before} {after}: rushed");
        host.wait(Duration::from_secs(2));
        assert_eq!(host.take_starts(), ["c"], "{before} {after}: frozen");
    }
}

#[test]
fn a_step_between_an_end_and_its_read_neither_freezes_nor_rushes_the_next_start() {
    for hours in [8, -8] {
        let mut host = Host::new();
        host.now.wall = UnixNanos(100 * HOUR);
        host.want(plain("p", "100m"));
        host.end("p", "c", 1);
        host.take_starts();
        host.wait(Duration::from_secs(1));
        let ended = host.now.wall;
        host.set_clock(hours * HOUR);
        host.end("p", "c", 1);
        let record = host.records.get_mut("p").expect("a pod");
        record.containers[0].finished_at = ended;
        assert_eq!(host.take_starts(), [""; 0], "{hours}: rushed");
        host.wait(Duration::from_secs(11));
        assert_eq!(host.take_starts(), ["c"], "{hours}: frozen");
    }
}

#[test]
fn a_pods_deadline_is_a_time_that_passes_and_not_one_that_a_clock_shows() {
    for hours in [8, -8] {
        let mut host = Host::new();
        host.now.wall = UnixNanos(100 * HOUR);
        let mut pod = plain("p", "100m");
        pod.spec.get_or_insert_default().active_deadline_seconds = Some(60);
        host.want(pod);
        host.set_clock(hours * HOUR);
        host.wait(Duration::from_secs(58));
        assert_eq!(host.status("p")["phase"], "Running", "{hours}");
        host.wait(Duration::from_secs(2));
        assert_eq!(host.status("p")["reason"], json!("DeadlineExceeded"), "{hours}");
    }
}

#[test]
fn everything_is_listed_in_its_time_whatever_the_wall_clock_does() {
    for hours in [8, -8] {
        let mut host = Host::new();
        host.now.wall = UnixNanos(100 * HOUR);
        host.set_clock(hours * HOUR);
        let mut lists = |by| {
            host.now = host.now.plus(Duration::from_secs(by));
            let commands = host.pods.handle(host.now, Input::Tick);
            commands.iter().any(|command| matches!(command, Command::List { .. }))
        };
        assert!(!lists(3590), "{hours}");
        assert!(lists(11), "{hours}");
    }
}
