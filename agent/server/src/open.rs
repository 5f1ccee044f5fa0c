//! Streams that the HTTPS port has open: logs, execs, attaches and port-forwards.
//!
//! A stream begins with a turn and holds it until it ends. Input: the request and its peer. Output:
//! the open streams, for `explain`. Clones share one table. Bounds: `STREAMS_MAX`, of them
//! `STREAMS_PER_POD` of one pod (those of the node's own logs count as one pod), so that the
//! readers of one pod leave room for other pods, and `STREAMS_PER_PEER` of one peer. The API server
//! is one peer for all its users, so namespaces share its streams: at the limit, the namespace with
//! most streams loses one to a namespace that has fewer. Its newest ends: streams from before a
//! flood outlive it, and a client that reconnects at once finds its own namespace to have most. A
//! command whose output is one answer holds all of it, up to a message of the runtime: of those
//! there are `RUNS_MAX`, and `RUNS_PER_POD` of one pod. Beyond that a command is refused and
//! displaces none, because its callers have the node administrators' rights.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pintle_daemon::serve::connections::PeerKey;
use tokio::sync::Notify;

/// Streams open at the same time.
pub(super) const STREAMS_MAX: usize = 512;
/// Streams of one pod.
const STREAMS_PER_POD: usize = 128;
/// Streams of one peer. The API server's are all users' streams, so it may have most of them.
const STREAMS_PER_PEER: usize = 384;
/// Commands that are answered in one piece, until their answers are taken.
const RUNS_MAX: usize = 8;
/// Such commands of one pod.
const RUNS_PER_POD: usize = 2;
/// Their name.
pub(super) const RUN: &str = "RunStream";

/// An open stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenStream {
    /// `ExecStream`, `LogStream` and their like.
    pub(super) what: &'static str,
    /// Namespace and name of the pod.
    pub(super) pod: (String, String),
    /// The container; empty for a port-forward.
    pub(super) container: String,
    /// The peer that opened it.
    pub(super) peer: PeerKey,
    /// Time of the request.
    pub(super) since: Instant,
}

#[derive(Debug, Default)]
struct StreamTable {
    next: u64,
    open: BTreeMap<u64, StreamEntry>,
}

#[derive(Debug)]
struct StreamEntry {
    stream: OpenStream,
    displaced: Arc<Notify>,
}

/// The open streams and the room for more.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    table: Arc<Mutex<StreamTable>>,
}

/// A place among the streams; given back when it is dropped.
#[derive(Debug)]
pub(super) struct OpenTurn {
    streams: Streams,
    key: u64,
    displaced: Arc<Notify>,
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// The limit of all streams.
    #[error("{STREAMS_MAX} streams are open already")]
    Node,
    /// The limit of the pod.
    #[error("{STREAMS_PER_POD} streams of this pod are open already")]
    Pod,
    /// The limit of the requesting peer.
    #[error("{STREAMS_PER_PEER} streams from this address are open already")]
    Peer,
    /// The limit of commands that are answered in one piece.
    #[error(
        "{RUNS_MAX} commands run already whose output is one answer, or {RUNS_PER_POD} of this pod"
    )]
    Runs,
}

impl Streams {
    /// A place for a stream, if there is one, and whether another stream ends for it.
    pub(super) fn enter(&self, stream: OpenStream) -> Result<(OpenTurn, bool), Full> {
        let mut table = self.table();
        let gone = table.room(&stream)?.and_then(|key| table.open.remove(&key));
        table.next += 1;
        let key = table.next;
        let displaced = Arc::new(Notify::new());
        table.open.insert(key, StreamEntry { stream, displaced: Arc::clone(&displaced) });
        drop(table);
        if let Some(gone) = &gone {
            gone.displaced.notify_one();
        }
        Ok((OpenTurn { streams: self.clone(), key, displaced }, gone.is_some()))
    }

    /// The open streams, oldest first.
    pub(super) fn open(&self) -> Vec<OpenStream> {
        self.table().open.values().map(|open| open.stream.clone()).collect()
    }

    fn table(&self) -> MutexGuard<'_, StreamTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamTable {
    /// The stream that ends for this one, if one has to.
    fn room(&self, stream: &OpenStream) -> Result<Option<u64>, Full> {
        let all = || self.open.values().map(|open| &open.stream);
        let of_pod = || all().filter(|open| open.pod == stream.pod);
        if of_pod().count() >= STREAMS_PER_POD {
            return Err(Full::Pod);
        }
        let runs = all().filter(|open| open.what == RUN).count();
        let runs_of_pod = of_pod().filter(|open| open.what == RUN).count();
        if stream.what == RUN && (runs >= RUNS_MAX || runs_of_pod >= RUNS_PER_POD) {
            return Err(Full::Runs);
        }
        if all().filter(|open| open.peer == stream.peer).count() >= STREAMS_PER_PEER {
            let of_peer = |open: &OpenStream| open.peer == stream.peer;
            return self.crowded(&stream.pod.0, of_peer).ok_or(Full::Peer).map(Some);
        }
        if self.open.len() >= STREAMS_MAX {
            return self.crowded(&stream.pod.0, |_| true).ok_or(Full::Node).map(Some);
        }
        Ok(None)
    }

    /// The newest stream of the namespace that has most, of those in question, unless `namespace`
    /// would have as many with its stream as that one without.
    fn crowded(&self, namespace: &str, is_meant: impl Fn(&OpenStream) -> bool) -> Option<u64> {
        let mut counts: HashMap<&str, (usize, u64)> = HashMap::new();
        for (key, StreamEntry { stream, .. }) in &self.open {
            if stream.what != RUN && is_meant(stream) {
                let (count, newest) = counts.entry(&stream.pod.0).or_default();
                (*count, *newest) = (*count + 1, *key);
            }
        }
        let own = counts.get(namespace).map_or(0, |(count, _)| *count);
        let (most, newest) = counts.into_values().max()?;
        (most > own + 1).then_some(newest)
    }
}

impl OpenTurn {
    /// Ends when the stream has to make room.
    pub(super) async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for OpenTurn {
    fn drop(&mut self) {
        self.streams.table().open.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(pod: usize, container: &str, peer: u8) -> OpenStream {
        OpenStream {
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
        let first = streams.enter(stream(1, "a", 1)).expect("room").0;
        let second = streams.enter(stream(1, "b", 1)).expect("room").0;
        let names = || streams.open().into_iter().map(|s| s.container).collect::<Vec<_>>();
        assert_eq!(names(), ["a", "b"]);
        drop(first);
        assert_eq!(names(), ["b"]);
        drop(second);
        assert_eq!(names(), Vec::<String>::new());
    }

    #[test]
    fn neither_a_pod_nor_a_peer_takes_all_streams() {
        let streams = Streams::default();
        let mut turns = Vec::new();
        let fill = |turns: &mut Vec<OpenTurn>, pod: usize, peer: u8| loop {
            match streams.enter(stream(pod, "c", peer)) {
                Ok((turn, _)) => turns.push(turn),
                Err(full) => return full,
            }
        };
        for pod in 1..=3 {
            assert_eq!(fill(&mut turns, pod, 1), Full::Pod);
        }
        assert_eq!(fill(&mut turns, 4, 1), Full::Peer);
        assert_eq!(fill(&mut turns, 4, 2), Full::Pod);
        assert_eq!(fill(&mut turns, 5, 2), Full::Node);
        assert_eq!(streams.open().len(), STREAMS_MAX);
        turns.clear();
        assert_eq!(fill(&mut turns, 1, 1), Full::Pod);
    }

    #[test]
    fn run_requests_are_limited_per_node_and_per_pod_without_blocking_streams() {
        let streams = Streams::default();
        let run = |pod| {
            let entered = streams.enter(OpenStream { what: RUN, ..stream(pod, "c", 1) });
            entered.map(|(turn, _)| turn)
        };
        let mut turns: Vec<_> = (0..RUNS_PER_POD).map(|_| run(1).expect("room")).collect();
        assert_eq!(run(1).err(), Some(Full::Runs));
        assert!(streams.enter(stream(1, "c", 1)).is_ok(), "others are not held up");
        turns.extend((RUNS_PER_POD..RUNS_MAX).map(|pod| run(10 + pod).expect("room")));
        assert_eq!(run(2).err(), Some(Full::Runs));
        turns.pop();
        assert!(run(2).is_ok());
    }

    fn of(namespace: &str, pod: usize) -> OpenStream {
        OpenStream { pod: (namespace.to_owned(), format!("p{pod}")), ..stream(pod, "c", 1) }
    }

    #[test]
    fn namespace_with_all_streams_yields_to_other_namespaces_up_to_an_equal_share() {
        use futures_util::FutureExt as _;
        let streams = Streams::default();
        let enter = |namespace: &str, pod| streams.enter(of(namespace, pod));
        // A user with three pods, behind the API server as all users are.
        let crowd: Vec<_> = (0..STREAMS_PER_PEER)
            .map(|number| enter("crowd", number % 3).expect("room").0)
            .collect();
        assert_eq!(enter("crowd", 3).err(), Some(Full::Peer), "a fourth pod of it gets none");
        let others: Vec<_> = (0..STREAMS_PER_PEER / 2)
            .map(|number| enter("other", number % 2).expect("a place of the crowd's"))
            .collect();
        assert!(others.iter().all(|(_, is_displacing)| *is_displacing));
        let gone: Vec<bool> =
            crowd.iter().map(|turn| turn.displaced().now_or_never().is_some()).collect();
        let (kept, displaced) = gone.split_at(STREAMS_PER_PEER / 2);
        assert!(!kept.contains(&true) && !displaced.contains(&false), "the newest ended");
        assert_eq!(enter("other", 5).err(), Some(Full::Peer), "both have as many");
        let third = enter("third", 1).expect("a place");
        assert!(third.1 && streams.open().len() == STREAMS_PER_PEER);
        // The displaced streams' turns free no second place.
        drop(crowd);
        assert_eq!(streams.open().len(), others.len() + 1 - usize::from(others_gave(&others)));
    }

    fn others_gave(others: &[(OpenTurn, bool)]) -> bool {
        use futures_util::FutureExt as _;
        others.iter().any(|(turn, _)| turn.displaced().now_or_never().is_some())
    }

    #[test]
    fn run_requests_are_not_displaced_to_make_room_for_another_namespace() {
        let streams = Streams::default();
        let run = |pod| OpenStream { what: RUN, ..of("crowd", pod) };
        let _runs: Vec<_> = (0..4).map(|pod| streams.enter(run(pod)).expect("room")).collect();
        let _other: Vec<_> = (0..STREAMS_PER_PEER - 4)
            .map(|number| streams.enter(of(&format!("ns-{number}"), 0)).expect("room"))
            .collect();
        assert_eq!(streams.enter(of("late", 0)).err(), Some(Full::Peer));
    }
}
