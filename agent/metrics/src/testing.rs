//! For tests, also of other crates: the exposition as a scraper reads it.

use pintle_agent_core::view::Snapshot;

use crate::{Metrics, Scrape};

impl Metrics {
    /// The exposition of an agent without pods, as a scraper reads it.
    pub fn scraped(&self) -> String {
        let snapshot = Snapshot::default();
        self.render(&Scrape {
            snapshot: &snapshot,
            has_api: true,
            event_source: "ebpf",
            events_dropped: 7,
            timeline_dropped: 2,
            calls_in_flight: 3,
        })
    }
}
