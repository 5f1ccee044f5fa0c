//! The flight recorder: bytes written, time until a batch is durable, losses.

use std::time::Duration;

use pintle_daemon::metrics::MetricNames;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

/// Upper bounds of the buckets, in seconds.
const BUCKETS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0, 10.0];

/// Counts of the recorder; clones count together.
#[derive(Clone, Debug)]
pub struct FlightCounts {
    bytes: Counter,
    seconds: Histogram,
    lost: Counter,
    failures: Counter,
}

impl FlightCounts {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            bytes: at.add("pintle_flight_recorder_bytes", "Bytes that the flight recorder wrote."),
            seconds: at.put(
                "pintle_flight_recorder_write_seconds",
                "How long a batch of the flight recorder took to be on the disk.",
                Histogram::new(BUCKETS),
            ),
            lost: at.add(
                "pintle_flight_recorder_lost",
                "Inputs, and batches of them, that the flight recorder had no room for.",
            ),
            failures: at.add(
                "pintle_flight_recorder_failures",
                "Batches of the flight recorder that could not be written.",
            ),
        }
    }

    /// A batch is on the disk.
    pub fn written(&self, bytes: usize, took: Duration) {
        self.bytes.inc_by(bytes as u64);
        self.seconds.observe(took.as_secs_f64());
    }

    /// Data was dropped for lack of room.
    pub fn lost(&self) {
        self.lost.inc();
    }

    /// The disk refused a batch.
    pub fn failed(&self) {
        self.failures.inc();
    }
}
