//! The order of turns among peers. Pure: the caller passes the time.
//!
//! ```text
//!   enter ─> waits ─ next: round robin over peers ─> under way ─ end
//!              └──── leave ────> forgotten
//! ```
//! Input: peers that want a turn, turns that end, peers that have proved their names. Output: the
//! next turn, or how long there is none. Peers that proved themselves within `PROVEN_FOR` come
//! first, but each `PROVEN_IN_A_ROW` turns of theirs another peer has one, so that neither side
//! starves. Bounds: `TurnLimits`; accounts of `PEERS_MAX` peers, `PROVEN_MAX` of them proven.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pintle_api_types::rate::{Bucket, Rate};

use crate::serve::connections::PeerKey;
use pintle_api_types::fair::FairQueue;

/// Peers with an account.
const PEERS_MAX: usize = 4096;
/// How long a peer counts as proven.
const PROVEN_FOR: Duration = Duration::from_secs(3600);
/// Proven peers that are remembered; the one proven longest ago makes room.
const PROVEN_MAX: usize = 1024;
/// Turns of proven peers in a row while another peer waits.
const PROVEN_IN_A_ROW: u32 = 3;

/// Limits of turns.
#[derive(Clone, Copy, Debug)]
pub(in crate::serve) struct TurnLimits {
    /// Turns of all peers in a time.
    pub(in crate::serve) rate: Rate,
    /// Turns of one peer in a time.
    pub(in crate::serve) peer_rate: Rate,
    /// Turns of all peers that have not ended.
    pub(in crate::serve) under_way: usize,
    /// Turns of one peer that have not ended.
    pub(in crate::serve) under_way_per_peer: usize,
    /// Turns of one peer that have not begun.
    pub(in crate::serve) waiting_per_peer: usize,
}

/// The number of a turn that has not begun.
pub(super) type Ticket = u64;

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextTurn {
    /// This one of this peer.
    Begins(PeerKey, Ticket),
    /// Nothing before this time has passed.
    After(Duration),
    /// Nothing before a turn ends or a peer enters.
    None,
}

struct PeerAccount {
    bucket: Bucket,
    under_way: usize,
    waiting: usize,
}

/// Turns that wait and turns in flight.
pub(super) struct Rota {
    limits: TurnLimits,
    all: Bucket,
    accounts: HashMap<PeerKey, PeerAccount>,
    under_way: usize,
    proven: HashMap<PeerKey, Instant>,
    /// Tickets of proven peers, and of the others.
    lines: [FairQueue<PeerKey, Ticket>; 2],
    proven_in_a_row: u32,
    next: Ticket,
}

impl Rota {
    pub(super) fn new(limits: TurnLimits) -> Self {
        Self {
            limits,
            all: Bucket::new(limits.rate),
            accounts: HashMap::new(),
            under_way: 0,
            proven: HashMap::new(),
            lines: [FairQueue::default(), FairQueue::default()],
            proven_in_a_row: 0,
            next: 0,
        }
    }

    /// A place among those that wait; `None` when the peer has too many, or there are too many
    /// peers.
    pub(super) fn enter(&mut self, peer: PeerKey, now: Instant) -> Option<Ticket> {
        if self.accounts.len() >= PEERS_MAX && !self.accounts.contains_key(&peer) {
            self.accounts.retain(|_, account| {
                account.under_way + account.waiting > 0 || !account.bucket.is_full(now)
            });
            if self.accounts.len() >= PEERS_MAX {
                return None;
            }
        }
        let account = self.accounts.entry(peer).or_insert_with(|| PeerAccount {
            bucket: Bucket::new(self.limits.peer_rate),
            under_way: 0,
            waiting: 0,
        });
        if account.waiting >= self.limits.waiting_per_peer {
            return None;
        }
        account.waiting += 1;
        self.next += 1;
        let is_proven = self.proven.get(&peer).is_some_and(|at| now < *at + PROVEN_FOR);
        self.lines[usize::from(!is_proven)].push(peer, self.next);
        Some(self.next)
    }

    /// Removes a waiting turn.
    pub(super) fn leave(&mut self, peer: PeerKey, ticket: Ticket) {
        let mut lines = self.lines.iter_mut();
        if lines.any(|line| line.remove(&peer, |waits| *waits == ticket).is_some())
            && let Some(account) = self.accounts.get_mut(&peer)
        {
            account.waiting -= 1;
        }
    }

    /// Begins the next turn, if there is one.
    pub(super) fn next(&mut self, now: Instant) -> NextTurn {
        if self.under_way >= self.limits.under_way || self.lines.iter().all(FairQueue::is_empty) {
            return NextTurn::None;
        }
        let wait = self.all.wait(now);
        if !wait.is_zero() {
            return NextTurn::After(wait);
        }
        let others_first = self.proven_in_a_row >= PROVEN_IN_A_ROW;
        let order = if others_first { [1, 0] } else { [0, 1] };
        let mut soonest: Option<Duration> = None;
        for line in order {
            let (accounts, limits) = (&mut self.accounts, &self.limits);
            let found = self.lines[line].pop_where(|peer, _| {
                let account = accounts.get_mut(peer)?;
                if account.under_way >= limits.under_way_per_peer {
                    return None;
                }
                let wait = account.bucket.wait(now);
                if !wait.is_zero() {
                    soonest = Some(soonest.map_or(wait, |soonest| soonest.min(wait)));
                }
                wait.is_zero().then_some(0)
            });
            if let Some((peer, ticket)) = found {
                self.proven_in_a_row = if line == 0 { self.proven_in_a_row + 1 } else { 0 };
                self.begin(peer);
                return NextTurn::Begins(peer, ticket);
            }
        }
        soonest.map_or(NextTurn::None, NextTurn::After)
    }

    fn begin(&mut self, peer: PeerKey) {
        self.all.spend();
        self.under_way += 1;
        if let Some(account) = self.accounts.get_mut(&peer) {
            account.bucket.spend();
            (account.waiting, account.under_way) = (account.waiting - 1, account.under_way + 1);
        }
    }

    /// A turn ended.
    pub(super) fn end(&mut self, peer: PeerKey) {
        self.under_way -= 1;
        if let Some(account) = self.accounts.get_mut(&peer) {
            account.under_way -= 1;
        }
    }

    /// The peer has proved its name.
    pub(super) fn prove(&mut self, peer: PeerKey, now: Instant) {
        if self.proven.len() >= PROVEN_MAX && !self.proven.contains_key(&peer) {
            let oldest = self.proven.iter().min_by_key(|(_, at)| **at).map(|(peer, _)| *peer);
            if let Some(oldest) = oldest {
                self.proven.remove(&oldest);
            }
        }
        self.proven.insert(peer, now);
    }

    #[cfg(test)]
    pub(super) fn accounts(&self) -> usize {
        self.accounts.len()
    }
}

#[cfg(test)]
mod tests {
    use pintle_api_types::rng::Rng;

    use super::*;

    const WAIT_MAX: Duration = Duration::from_secs(10);
    const LIMITS: TurnLimits = TurnLimits {
        rate: Rate { per_second: 50.0, burst: 100 },
        peer_rate: Rate { per_second: 10.0, burst: 30 },
        under_way: 32,
        under_way_per_peer: 4,
        waiting_per_peer: 64,
    };

    fn peer(number: u16) -> PeerKey {
        let [a, b] = number.to_be_bytes();
        PeerKey::of([10, 0, a, b].into())
    }

    /// Attackers that keep so many questions each waiting, answered after `review`, and one honest
    /// peer that asks after a while: how long it waits for its turn.
    fn wait_of_the_honest(seed: u64, is_proven: bool, review: Duration) -> Duration {
        const ATTACKERS: u16 = 380;
        const EACH: usize = 4;
        const HONEST: u16 = 1000;
        let (mut rng, begun) = (Rng::new(seed), Instant::now());
        let mut rota = Rota::new(LIMITS);
        if is_proven {
            rota.prove(peer(HONEST), begun);
        }
        let mut order: Vec<u16> = (0..ATTACKERS).flat_map(|number| [number; EACH]).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, usize::try_from(rng.number() % (at as u64 + 1)).expect("small"));
        }
        for number in order {
            rota.enter(peer(number), begun).expect("room");
        }
        let asked = begun + Duration::from_millis(rng.number() % 5000);
        let (mut now, mut ticket) = (begun, None);
        let mut ends: Vec<(Instant, PeerKey)> = Vec::new();
        loop {
            let ended = |(end, _): &(Instant, PeerKey)| *end <= now;
            let over: Vec<_> = ends.iter().filter(|e| ended(e)).map(|(_, peer)| *peer).collect();
            ends.retain(|end| !ended(end));
            for peer in over {
                rota.end(peer);
                rota.enter(peer, now); // another random token at once
            }
            if ticket.is_none() && now >= asked {
                ticket = rota.enter(peer(HONEST), now);
            }
            while let NextTurn::Begins(peer, begins) = rota.next(now) {
                if Some(begins) == ticket {
                    return now - asked;
                }
                ends.push((now + review, peer));
            }
            now += Duration::from_millis(1);
            assert!(now < begun + 4 * WAIT_MAX, "seed {seed}: it never has its turn");
        }
    }

    #[test]
    fn a_real_token_is_reviewed_in_time_beside_380_peers_that_have_four_random_ones_each() {
        for seed in 0..20 {
            let wait = wait_of_the_honest(seed, false, Duration::from_millis(20));
            assert!(wait < WAIT_MAX, "seed {seed}: {wait:?}");
        }
    }

    #[test]
    fn a_peer_with_a_proven_token_does_not_wait_for_those_with_random_ones() {
        for seed in 0..20 {
            // Slow reviews: turns in flight are the bottleneck.
            let wait = wait_of_the_honest(seed, true, Duration::from_millis(900));
            assert!(wait < Duration::from_secs(1), "seed {seed}: {wait:?}");
        }
    }

    #[test]
    fn proven_peers_yield_each_fourth_turn_and_are_forgotten_after_an_hour() {
        let now = Instant::now();
        let mut rota = Rota::new(LIMITS);
        rota.prove(peer(1), now);
        let names = |rota: &mut Rota, now| {
            std::iter::from_fn(|| match rota.next(now) {
                NextTurn::Begins(peer, _) => {
                    rota.end(peer);
                    Some(peer)
                }
                _ => None,
            })
            .collect::<Vec<_>>()
        };
        for number in [2, 2, 1, 1, 1, 1, 1] {
            rota.enter(peer(number), now).expect("room");
        }
        let first = [1, 1, 1, 2, 1, 1, 2].map(peer);
        assert_eq!(names(&mut rota, now), first);
        let later = now + PROVEN_FOR;
        for number in [2, 1, 2] {
            rota.enter(peer(number), later).expect("room");
        }
        assert_eq!(names(&mut rota, later), [2, 1, 2].map(peer));
    }

    #[test]
    fn peer_has_its_own_rate_and_limits_of_waiting_and_running_turns() {
        let now = Instant::now();
        let mut rota = Rota::new(LIMITS);
        let begins = |rota: &mut Rota, now| {
            std::iter::from_fn(|| match rota.next(now) {
                NextTurn::Begins(of, _) => Some(of),
                _ => None,
            })
            .count()
        };
        for _ in 0..LIMITS.waiting_per_peer {
            rota.enter(peer(1), now).expect("room");
        }
        assert_eq!(rota.enter(peer(1), now), None);
        assert_eq!(begins(&mut rota, now), LIMITS.under_way_per_peer);
        assert_eq!(rota.next(now), NextTurn::None, "until a turn ends");
        for begun in LIMITS.under_way_per_peer..30 {
            rota.end(peer(1));
            assert_eq!(begins(&mut rota, now), 1, "{begun}");
        }
        rota.end(peer(1));
        let NextTurn::After(wait) = rota.next(now) else { panic!("its burst is spent") };
        assert_eq!(begins(&mut rota, now + wait), 1);
    }

    #[test]
    fn a_ticket_that_is_given_back_is_nobodys_turn() {
        let now = Instant::now();
        let mut rota = Rota::new(LIMITS);
        let first = rota.enter(peer(1), now).expect("room");
        let second = rota.enter(peer(1), now).expect("room");
        rota.leave(peer(1), first);
        rota.leave(peer(1), first);
        assert_eq!(rota.next(now), NextTurn::Begins(peer(1), second));
        assert_eq!(rota.next(now), NextTurn::None);
    }

    #[test]
    fn peers_and_proofs_are_bounded_and_idle_accounts_make_room() {
        let now = Instant::now();
        let mut rota = Rota::new(LIMITS);
        let peers = u16::try_from(PEERS_MAX).expect("few");
        for number in 0..peers {
            rota.enter(peer(number), now).expect("room");
            rota.prove(peer(number), now);
        }
        assert_eq!(rota.enter(peer(peers), now), None, "each has one that waits");
        assert_eq!((rota.accounts(), rota.proven.len()), (PEERS_MAX, PROVEN_MAX));
        let ticket = 1;
        rota.leave(peer(0), ticket);
        assert!(rota.enter(peer(peers), now).is_some());
    }
}
