//! Streams that the HTTPS port has open: logs, execs, attaches and port-forwards.
//!
//! A stream begins with a turn and holds it until it ends. Input: what was asked for. Output: the
//! open streams, for `explain`. Clones share one table. Bound: `STREAMS_MAX`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Streams open at the same time.
pub(super) const STREAMS_MAX: usize = 512;

/// An open stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    /// `ExecStream`, `LogStream` and their like.
    pub(super) what: &'static str,
    /// Namespace and name of the pod.
    pub(super) pod: (String, String),
    /// The container; empty for a port-forward.
    pub(super) container: String,
    /// When it was asked for.
    pub(super) since: Instant,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Stream>,
}

/// The open streams and the room for more.
#[derive(Clone, Debug)]
pub struct Streams {
    room: Arc<Semaphore>,
    table: Arc<Mutex<Table>>,
}

impl Default for Streams {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(STREAMS_MAX)), table: Arc::default() }
    }
}

/// A place among the streams; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    streams: Streams,
    key: u64,
    _place: OwnedSemaphorePermit,
}

impl Streams {
    /// A place for a stream, if there is one.
    pub(super) fn enter(&self, stream: Stream) -> Option<Turn> {
        let place = Arc::clone(&self.room).try_acquire_owned().ok()?;
        let mut table = self.table();
        table.next += 1;
        let key = table.next;
        table.open.insert(key, stream);
        drop(table);
        Some(Turn { streams: self.clone(), key, _place: place })
    }

    /// Those that are open, oldest first.
    pub(super) fn open(&self) -> Vec<Stream> {
        self.table().open.values().cloned().collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.streams.table().open.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(container: &str) -> Stream {
        let pod = ("ns".to_owned(), "p".to_owned());
        Stream { what: "ExecStream", pod, container: container.to_owned(), since: Instant::now() }
    }

    #[test]
    fn a_stream_is_listed_for_as_long_as_its_turn_is_held() {
        let streams = Streams::default();
        let first = streams.enter(stream("a")).expect("room");
        let second = streams.enter(stream("b")).expect("room");
        let names = || streams.open().into_iter().map(|s| s.container).collect::<Vec<_>>();
        assert_eq!(names(), ["a", "b"]);
        drop(first);
        assert_eq!(names(), ["b"]);
        drop(second);
        let all: Vec<_> = (0..STREAMS_MAX).map(|_| streams.enter(stream("c"))).collect();
        assert!(all.iter().all(Option::is_some) && streams.enter(stream("d")).is_none());
    }
}
