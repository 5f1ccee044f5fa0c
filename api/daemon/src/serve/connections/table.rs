//! Decides which connection gets room, and which one is displaced. Pure: the caller passes the
//! time.
//!
//! Input: connections that open, ask, are allowed, become known and close. Output: the mark of the
//! displaced connection. Within a full class it belongs to the peer with the most connections. Only
//! a known connection is protected by a request in flight. Any unknown one may be displaced, so
//! that a newcomer always finds room. The order is: first a connection without a request, then one
//! with a request that is not allowed yet or an open answer that is being sent, then one with an
//! allowed request (of a client that proved its name when its share of the known ones was busy).
//! The last is one that was opened less than `SHAKE_TIME` ago, so that the handshake of a client
//! with a certificate completes during a flood. Among equals it is the one that has been idle for
//! longest. Bounds: `ConnectionLimits`; a scan of all entries for each connection that finds its
//! class full, some hundred comparisons.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::PeerKey;

/// How long an unknown connection that has not asked yet is displaced last.
const SHAKE_TIME: Duration = Duration::from_secs(1);

/// Limits of the connections of one class.
#[derive(Clone, Copy, Debug)]
pub struct ClassShare {
    /// Limit of all peers.
    pub total: usize,
    /// Limit of one peer.
    pub per_peer: usize,
}

/// Limits of the connections of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections of clients that have not proved a name.
    pub unknown: ClassShare,
    /// Connections of those that have.
    pub known: ClassShare,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ConnectionClass {
    Unknown,
    Known,
}

#[derive(Debug)]
struct ConnectionEntry<M> {
    peer: PeerKey,
    class: ConnectionClass,
    /// Requests that wait to be allowed, and open answers that are not taken yet.
    asking: usize,
    /// Requests that were allowed and have not ended.
    allowed: usize,
    asked_once: bool,
    idle_since: Instant,
    /// Orders events of one instant.
    turn: u64,
    mark: M,
}

/// State of a connection, for its idle timeout.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub class: ConnectionClass,
    pub is_busy: bool,
    pub asked_once: bool,
    pub idle_since: Instant,
}

/// The open connections; `M` is how the caller finds one again.
#[derive(Debug)]
pub(super) struct ConnectionTable<M> {
    limits: ConnectionLimits,
    entries: BTreeMap<u64, ConnectionEntry<M>>,
    counts: HashMap<(ConnectionClass, PeerKey), usize>,
    totals: [usize; 2],
    next: u64,
}

impl<M: Clone> ConnectionTable<M> {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        let (entries, counts) = (BTreeMap::new(), HashMap::new());
        Self { limits, entries, counts, totals: [0; 2], next: 0 }
    }

    /// A new connection and the one that it displaces.
    pub(super) fn open(&mut self, peer: PeerKey, mark: M, now: Instant) -> (u64, Option<M>) {
        let gone = self.room(ConnectionClass::Unknown, peer, now).flatten();
        self.next += 1;
        let id = self.next;
        let entry = ConnectionEntry {
            peer,
            class: ConnectionClass::Unknown,
            asking: 0,
            allowed: 0,
            asked_once: false,
            idle_since: now,
            turn: id,
            mark,
        };
        self.entries.insert(id, entry);
        self.count(ConnectionClass::Unknown, peer, true);
        (id, gone)
    }

    /// The client proved its name, under which its share is counted from now on. Returns the
    /// displaced known connection.
    pub(super) fn set_known(&mut self, id: u64, name: PeerKey, now: Instant) -> Option<M> {
        let before = self.entries.get(&id).filter(|e| e.class == ConnectionClass::Unknown)?.peer;
        // Every known connection is busy: this one stays in its class.
        let gone = self.room(ConnectionClass::Known, name, now)?;
        let entry = self.entries.get_mut(&id)?;
        (entry.class, entry.peer) = (ConnectionClass::Known, name);
        self.count(ConnectionClass::Unknown, before, false);
        self.count(ConnectionClass::Known, name, true);
        gone
    }

    /// A request came in.
    pub(super) fn ask(&mut self, id: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.asking += 1;
            entry.asked_once = true;
        }
    }

    /// A request that came in was allowed.
    pub(super) fn allow(&mut self, id: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.asking -= 1;
            entry.allowed += 1;
        }
    }

    /// A request has ended.
    pub(super) fn end(&mut self, id: u64, was_allowed: bool, now: Instant) {
        self.next += 1;
        if let Some(entry) = self.entries.get_mut(&id) {
            let count = if was_allowed { &mut entry.allowed } else { &mut entry.asking };
            *count -= 1;
            (entry.idle_since, entry.turn) = (now, self.next);
        }
    }

    pub(super) fn close(&mut self, id: u64) {
        if let Some(entry) = self.entries.remove(&id) {
            self.count(entry.class, entry.peer, false);
        }
    }

    /// Displaces an idle unknown connection without a newcomer.
    pub(super) fn shed(&mut self, now: Instant) -> Option<M> {
        self.displace(ConnectionClass::Unknown, None, now)
    }

    #[cfg(test)]
    fn class(&self, id: u64) -> Option<ConnectionClass> {
        self.entries.get(&id).map(|entry| entry.class)
    }

    pub(super) fn state(&self, id: u64) -> Option<State> {
        self.entries.get(&id).map(|entry| State {
            class: entry.class,
            is_busy: entry.asking + entry.allowed > 0,
            asked_once: entry.asked_once,
            idle_since: entry.idle_since,
        })
    }

    /// `None` without room, else the displaced connection, if any.
    fn room(&mut self, class: ConnectionClass, peer: PeerKey, now: Instant) -> Option<Option<M>> {
        let share = match class {
            ConnectionClass::Unknown => self.limits.unknown,
            ConnectionClass::Known => self.limits.known,
        };
        if self.of_peer(class, peer) >= share.per_peer {
            return self.displace(class, Some(peer), now).map(Some);
        }
        if self.totals[class as usize] >= share.total {
            return self.displace(class, None, now).map(Some);
        }
        Some(None)
    }

    fn displace(
        &mut self,
        class: ConnectionClass,
        only: Option<PeerKey>,
        now: Instant,
    ) -> Option<M> {
        let may_go = self.entries.iter().filter(|(_, entry)| {
            let is_protected = class == ConnectionClass::Known && entry.allowed > 0;
            entry.class == class && !is_protected && only.is_none_or(|peer| entry.peer == peer)
        });
        let (&id, _) = may_go.max_by_key(|(_, entry)| {
            let shakes = class == ConnectionClass::Unknown
                && !entry.asked_once
                && now.saturating_duration_since(entry.idle_since) < SHAKE_TIME;
            let work = (entry.allowed > 0, entry.asking > 0);
            (self.of_peer(class, entry.peer), !shakes, Reverse(work), Reverse(entry.turn))
        })?;
        let entry = self.entries.remove(&id)?;
        self.count(class, entry.peer, false);
        Some(entry.mark)
    }

    fn of_peer(&self, class: ConnectionClass, peer: PeerKey) -> usize {
        self.counts.get(&(class, peer)).copied().unwrap_or(0)
    }

    fn count(&mut self, class: ConnectionClass, peer: PeerKey, more: bool) {
        let count = self.counts.entry((class, peer)).or_default();
        let total = &mut self.totals[class as usize];
        if more {
            (*count, *total) = (*count + 1, *total + 1);
        } else {
            (*count, *total) = (*count - 1, *total - 1);
        }
        if *count == 0 {
            self.counts.remove(&(class, peer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: ConnectionLimits = ConnectionLimits {
        unknown: ClassShare { total: 6, per_peer: 4 },
        known: ClassShare { total: 3, per_peer: 2 },
    };

    fn peer(last: u8) -> PeerKey {
        PeerKey::of([192, 0, 2, last].into())
    }

    /// A table that marks connections by names.
    struct TestNames(ConnectionTable<&'static str>, Instant);

    impl TestNames {
        fn new() -> Self {
            Self(ConnectionTable::new(LIMITS), Instant::now())
        }

        fn open(&mut self, from: u8, name: &'static str) -> (u64, Option<&'static str>) {
            self.0.open(peer(from), name, self.1)
        }
    }

    #[test]
    fn oldest_idle_connection_of_the_peer_with_most_is_displaced_first() {
        let mut names = TestNames::new();
        names.open(2, "lone");
        for name in ["a", "b", "c", "d"] {
            assert_eq!(names.open(1, name).1, None);
        }
        assert_eq!(names.open(1, "e").1, Some("a"), "the peer's own share is full");
        assert_eq!(names.open(3, "f").1, None);
        assert_eq!(names.open(4, "g").1, Some("b"), "all are full: the peer with most gives");
        assert_eq!(names.open(2, "h").1, Some("c"));
    }

    #[test]
    fn idle_connections_are_displaced_before_connections_with_requests() {
        let mut names = TestNames::new();
        let ids: Vec<u64> = ["a", "b", "c", "d"].map(|name| names.open(1, name).0).to_vec();
        names.0.ask(ids[0]);
        names.0.allow(ids[0]);
        names.0.ask(ids[1]);
        names.1 += SHAKE_TIME;
        assert_eq!(names.open(1, "e").1, Some("c"));
        assert_eq!(names.open(1, "f").1, Some("d"));
        names.1 += SHAKE_TIME;
        names.0.end(ids[0], true, names.1);
        assert_eq!(names.open(1, "g").1, Some("e"), "idle for longer than the first");
        assert_eq!(names.open(1, "h").1, Some("f"));
        assert_eq!(names.open(1, "i").1, Some("a"));
    }

    #[test]
    fn new_connection_finds_room_although_all_unknown_connections_are_busy() {
        let mut names = TestNames::new();
        for name in ["a", "b", "c", "d"] {
            let id = names.open(1, name).0;
            names.0.ask(id);
            names.0.allow(id);
        }
        let asking = names.open(2, "e").0;
        names.0.ask(asking);
        assert_eq!(names.open(1, "f").1, Some("a"), "its peer's share");
        assert_eq!(names.open(2, "g").1, None);
        assert_eq!(names.open(3, "h").1, Some("b"), "one of the peer with most");
    }

    #[test]
    fn recent_handshake_is_displaced_after_requests_of_unknown_clients() {
        let mut names = TestNames::new();
        for (from, name) in [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")] {
            let id = names.open(from, name).0;
            names.0.ask(id);
        }
        names.open(6, "newcomer");
        for (from, gone) in [(7, "a"), (8, "b"), (9, "c"), (10, "d"), (11, "e")] {
            assert_eq!(names.open(from, "flood").1, Some(gone));
        }
        names.1 += SHAKE_TIME;
        assert_eq!(names.open(12, "late").1, Some("newcomer"), "it had its time");
    }

    #[test]
    fn known_and_unknown_connections_do_not_compete() {
        let mut names = TestNames::new();
        let known = names.open(1, "known").0;
        assert_eq!(names.0.set_known(known, peer(1), names.1), None);
        for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            assert_ne!(names.open(1, name).1, Some("known"));
        }
        let second = names.open(1, "second").0;
        let third = names.open(1, "third").0;
        assert_eq!(names.0.set_known(second, peer(1), names.1), None);
        assert_eq!(
            names.0.set_known(third, peer(1), names.1),
            Some("known"),
            "the peer's known share is full"
        );
        names.0.ask(second);
        names.0.allow(second);
        names.0.ask(third);
        names.0.allow(third);
        let fourth = names.open(1, "fourth").0;
        assert_eq!(names.0.set_known(fourth, peer(1), names.1), None);
        assert_eq!(
            names.0.class(fourth),
            Some(ConnectionClass::Unknown),
            "busy ones do not make room"
        );
    }

    proptest! {
        #[test]
        fn connection_limits_hold_under_any_sequence_of_operations(
            steps in proptest::collection::vec((0_u8..6, 0_u8..4, 0_usize..12), 0..300)
        ) {
            let (mut table, now) = (ConnectionTable::new(LIMITS), Instant::now());
            let mut busy: Vec<(u64, bool)> = Vec::new();
            for (what, from, which) in steps {
                let ids: Vec<u64> = table.entries.keys().copied().collect();
                let id = ids.get(which).copied().unwrap_or(0);
                let is_known = |id: &u64| table.class(*id) == Some(ConnectionClass::Known);
                let mut protected: Vec<u64> =
                    busy.iter().map(|(id, _)| *id).filter(is_known).collect();
                match what {
                    0 | 1 => drop(table.open(peer(from), (), now)),
                    2 => drop(table.set_known(id, peer(from), now)),
                    3 if id != 0 => {
                        table.ask(id);
                        table.allow(id);
                        busy.push((id, true));
                    }
                    4 => busy.drain(..).for_each(|(id, was)| table.end(id, was, now)),
                    _ => {
                        busy.retain(|(of, _)| *of != id);
                        protected.retain(|of| *of != id);
                        table.close(id);
                    }
                }
                for class in [ConnectionClass::Unknown, ConnectionClass::Known] {
                    let of = |e: &&ConnectionEntry<()>| e.class == class;
                    let share =
                        if class == ConnectionClass::Known { LIMITS.known } else { LIMITS.unknown };
                    prop_assert!(table.entries.values().filter(of).count() <= share.total);
                    for from in 0..4 {
                        let of = table.entries.values().filter(of);
                        let count = of.filter(|e| e.peer == peer(from)).count();
                        prop_assert!(count <= share.per_peer);
                        prop_assert_eq!(count, table.of_peer(class, peer(from)));
                    }
                }
                let there = |id: &u64| table.entries.contains_key(id);
                prop_assert!(protected.iter().all(there), "a busy known one was displaced");
                busy.retain(|(id, _)| there(id));
            }
        }
    }
}
