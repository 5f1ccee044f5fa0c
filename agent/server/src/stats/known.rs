//! A value that is read where a disk may hang: while it does, the last value is returned.
//!
//! Effects. Input: how to read it. Output: the value. A caller that comes during a reading waits
//! for it, but no longer than `READ_MAX`. Bounds: one reading at a time; after one that failed none
//! is begun for `PAUSE`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use tokio::sync::Mutex;

/// Longest wait for a reading.
const READ_MAX: Duration = Duration::from_secs(2);
/// Pause after a reading that failed.
const PAUSE: Duration = Duration::from_secs(10);

/// A value of this node's files.
#[derive(Debug)]
pub(super) struct NodeFileValue<T> {
    part: &'static str,
    read_max: Duration,
    last: Mutex<Last<T>>,
}

#[derive(Debug)]
struct Last<T> {
    value: Option<Arc<T>>,
    failed: Option<Instant>,
}

impl<T: Send + Sync + 'static> NodeFileValue<T> {
    /// Nothing is known yet; `part` has a share of the threads that read.
    pub(super) fn new(part: &'static str) -> Self {
        let last = Mutex::new(Last { value: None, failed: None });
        Self { part, read_max: READ_MAX, last }
    }

    /// The result of `read`, or the last known value.
    pub(super) async fn get(&self, read: impl FnOnce() -> T + Send + 'static) -> Option<Arc<T>> {
        let mut last = self.last.lock().await;
        if last.failed.is_some_and(|failed| failed.elapsed() < PAUSE) {
            return last.value.clone();
        }
        let place = JobPlace::serve_node(self.part).within(self.read_max);
        match blocking::run(place, read).await {
            Ok(value) => *last = Last { value: Some(Arc::new(value)), failed: None },
            Err(error) => {
                tracing::debug!(%error, part = self.part, "the last figures are shown");
                last.failed = Some(Instant::now());
            }
        }
        last.value.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[tokio::test]
    async fn hung_read_is_awaited_once_and_the_last_value_is_served() {
        let known =
            NodeFileValue { read_max: Duration::from_millis(50), ..NodeFileValue::new("a test") };
        assert_eq!(known.get(|| 1).await.as_deref(), Some(&1));
        let (release, held) = channel::<()>();
        let hang = move || {
            let _ = held.recv();
            2
        };
        assert_eq!(known.get(hang).await.as_deref(), Some(&1));
        assert_eq!(known.get(|| unreachable!("paused")).await.as_deref(), Some(&1));
        drop(release);
    }
}
