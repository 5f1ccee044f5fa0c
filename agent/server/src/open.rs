//! Streams that the HTTPS port has open: logs, execs, attaches and port-forwards.
//!
//! A stream begins with a turn and holds it until it ends. Input: what was asked for, and by whom.
//! Output: the open streams, for `explain`. Clones share one table. Bounds: `STREAMS_MAX`, of them
//! `STREAMS_PER_POD` of one pod (those of the node's own logs count as one pod), so that the readers
//! of one pod leave room for the others', and `STREAMS_PER_PEER` of one peer. A command whose output is
//! one answer holds all of it, up to a message of the runtime: of those there are `RUNS_MAX`, and
//! `RUNS_PER_POD` of one pod.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pintle_daemon::serve::connections::PeerKey;

/// Streams open at the same time.
pub(super) const STREAMS_MAX: usize = 512;
/// Those of one pod.
const STREAMS_PER_POD: usize = 128;
/// Those of one peer. The API server's are all users' streams, so it may have most of them.
const STREAMS_PER_PEER: usize = 384;
/// Commands that are answered in one piece, until their answers are taken.
const RUNS_MAX: usize = 8;
/// Those of one pod.
const RUNS_PER_POD: usize = 2;
/// What they are called.
pub(super) const RUN: &str = "RunStream";

/// An open stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    /// `ExecStream`, `LogStream` and their like.
    pub(super) what: &'static str,
    /// Namespace and name of the pod.
    pub(super) pod: (String, String),
    /// The container; empty for a port-forward.
    pub(super) container: String,
    /// Who asked for it.
    pub(super) peer: PeerKey,
    /// When it was asked for.
    pub(super) since: Instant,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Stream>,
}

/// The open streams and the room for more.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    table: Arc<Mutex<Table>>,
}

/// A place among the streams; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    streams: Streams,
    key: u64,
}

/// What there is no more room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// In all.
    #[error("{STREAMS_MAX} streams are open already")]
    Node,
    /// Of the pod.
    #[error("{STREAMS_PER_POD} streams of this pod are open already")]
    Pod,
    /// Of whoever asks.
    #[error("{STREAMS_PER_PEER} streams from this address are open already")]
    Peer,
    /// Of commands that are answered in one piece.
    #[error(
        "{RUNS_MAX} commands run already whose output is one answer, or {RUNS_PER_POD} of this pod"
    )]
    Runs,
}

impl Streams {
    /// A place for a stream, if there is one.
    pub(super) fn enter(&self, stream: Stream) -> Result<Turn, Full> {
        let mut table = self.table();
        let count = |same: fn(&Stream, &Stream) -> bool| {
            table.open.values().filter(|open| same(open, &stream)).count()
        };
        if table.open.len() >= STREAMS_MAX {
            return Err(Full::Node);
        }
        if count(|a, b| a.pod == b.pod) >= STREAMS_PER_POD {
            return Err(Full::Pod);
        }
        if count(|a, b| a.peer == b.peer) >= STREAMS_PER_PEER {
            return Err(Full::Peer);
        }
        let is_run = stream.what == RUN;
        if is_run
            && (count(|a, _| a.what == RUN) >= RUNS_MAX
                || count(|a, b| a.what == RUN && a.pod == b.pod) >= RUNS_PER_POD)
        {
            return Err(Full::Runs);
        }
        table.next += 1;
        let key = table.next;
        table.open.insert(key, stream);
        drop(table);
        Ok(Turn { streams: self.clone(), key })
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

    fn stream(pod: usize, container: &str, peer: u8) -> Stream {
        Stream {
            what: "ExecStream",
            pod: ("ns".to_owned(), format!("p{pod}")),
            container: container.to_owned(),
            peer: PeerKey::of([192, 0, 2, peer].into()),
            since: Instant::now(),
        }
    }

    #[test]
    fn a_stream_is_listed_for_as_long_as_its_turn_is_held() {
        let streams = Streams::default();
        let first = streams.enter(stream(1, "a", 1)).expect("room");
        let second = streams.enter(stream(1, "b", 1)).expect("room");
        let names = || streams.open().into_iter().map(|s| s.container).collect::<Vec<_>>();
        assert_eq!(names(), ["a", "b"]);
        drop(first);
        assert_eq!(names(), ["b"]);
        drop(second);
        assert_eq!(names(), Vec::<String>::new());
    }

    #[test]
    fn neither_a_pod_nor_a_peer_takes_all_of_them() {
        let streams = Streams::default();
        let mut turns = Vec::new();
        let fill = |turns: &mut Vec<Turn>, pod: usize, peer: u8| loop {
            match streams.enter(stream(pod, "c", peer)) {
                Ok(turn) => turns.push(turn),
                Err(full) => return full,
            }
        };
        for pod in 1..=3 {
            assert_eq!(fill(&mut turns, pod, 1), Full::Pod);
        }
        assert_eq!(fill(&mut turns, 4, 1), Full::Peer);
        assert_eq!(fill(&mut turns, 4, 2), Full::Node);
        assert_eq!(streams.open().len(), STREAMS_MAX);
        turns.clear();
        assert_eq!(fill(&mut turns, 1, 1), Full::Pod);
    }

    #[test]
    fn answers_that_are_held_whole_are_few_and_no_pod_has_them_all() {
        let streams = Streams::default();
        let run = |pod| streams.enter(Stream { what: RUN, ..stream(pod, "c", 1) });
        let mut turns: Vec<_> = (0..RUNS_PER_POD).map(|_| run(1).expect("room")).collect();
        assert_eq!(run(1).err(), Some(Full::Runs));
        assert!(streams.enter(stream(1, "c", 1)).is_ok(), "others are not held up");
        turns.extend((RUNS_PER_POD..RUNS_MAX).map(|pod| run(10 + pod).expect("room")));
        assert_eq!(run(2).err(), Some(Full::Runs));
        turns.pop();
        assert!(run(2).is_ok());
    }
}
