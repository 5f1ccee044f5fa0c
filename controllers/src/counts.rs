//! When metrics show what the frame has counted: at most so often, and at last when it is idle.
//!
//! Input: turns of the deciding thread. Output: metrics. Bounds: one update in `EVERY`.

use std::time::{Duration, Instant};

use pintle_controllers_core::frame::{Frame, Now};

use crate::process::{ManagerMetrics, QueueMetrics, SampleMetrics};

/// Metrics show counts of so long ago at most.
const EVERY: Duration = Duration::from_millis(500);

/// The counts of all controllers, as metrics.
pub(crate) struct ControllerCounts {
    queues: QueueMetrics,
    samples: SampleMetrics,
    updated: Instant,
    is_current: bool,
}

impl ControllerCounts {
    pub(crate) fn register(metrics: &ManagerMetrics) -> Self {
        Self {
            queues: QueueMetrics::register(metrics),
            samples: SampleMetrics::register(metrics),
            updated: Instant::now(),
            is_current: false,
        }
    }

    /// When the metrics have to be updated; `None` when nothing happened since they were.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        (!self.is_current).then_some(self.updated + EVERY)
    }

    /// A turn has ended; nothing happened in it if it was quiet.
    pub(crate) fn mark_turn(&mut self, frame: &Frame, is_quiet: bool, now: Now) {
        self.is_current &= is_quiet;
        if self.is_current || now.instant < self.updated + EVERY {
            return;
        }
        (self.updated, self.is_current) = (now.instant, true);
        self.queues.update(&frame.stats(now));
        frame.totals().for_each(|totals| self.samples.update(totals));
    }
}
