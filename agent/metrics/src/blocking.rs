//! File operations that may block, by class: how many run, are slow, wait; how many were given up.
//!
//! Read off the pool at each scrape. Labels: the classes, which are fixed.

use pintle_daemon::blocking::{Class, Pool};
use pintle_daemon::metrics::MetricNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::raise;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Jobs {
    class: String,
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Threads {
    class: String,
}

#[derive(Debug)]
pub(super) struct Blocking {
    jobs: Family<Jobs, Gauge>,
    threads: Family<Threads, Gauge>,
    given_up: Counter,
}

impl Blocking {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            jobs: at.add(
                "pintle_file_operations",
                "File operations under way (running), those of them that take longer than two \
                 seconds (slow), and those that wait for their pod's share or a thread (waiting)",
            ),
            threads: at.add("pintle_file_threads", "Threads for file operations"),
            given_up: at.add(
                "pintle_file_operations_given_up",
                "File operations that were not waited for any longer",
            ),
        }
    }

    pub(super) fn read(&self, pool: &Pool) {
        for class in Class::ALL {
            let counts = pool.counts(class);
            let numbers =
                [("running", counts.running), ("slow", counts.slow), ("waiting", counts.waiting)];
            for (state, number) in numbers {
                let label = Jobs { class: class.name().to_owned(), state: state.to_owned() };
                self.jobs.get_or_create(&label).set(i64::try_from(number).unwrap_or(i64::MAX));
            }
            let threads = i64::try_from(pool.threads(class)).unwrap_or(i64::MAX);
            self.threads.get_or_create(&Threads { class: class.name().to_owned() }).set(threads);
        }
        raise(&self.given_up, pool.given_up());
    }
}
