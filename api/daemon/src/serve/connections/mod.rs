//! The connections of one listener: who gets room, who makes room, who has been silent too long.
//!
//! `table` is pure and decides; this file carries it out. A connection begins as unknown and becomes
//! known when its client has proved who it is (a client certificate that holds, or a request that
//! was allowed). The two classes never compete: unknown connections only ever displace unknown ones,
//! so nobody without credentials takes anything away from the API server, and known ones have a share
//! for each name, so that no other name does. Accepting never waits for room: the newcomer gets it
//! at once and the idle connection that is least worth keeping goes.
//!
//! `io` meters what is read, so that one connection cannot keep the thread. Owner: the listener's
//! task makes a `Connection` for each socket; dropping it gives the room back. Bounds: `Limits`.

mod io;
mod peer;
mod table;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

pub use io::Metered;
pub use peer::PeerKey;
use table::{Class, Table};
pub use table::{Limits, Share};

/// Bytes that a stalled client has to take within one idle time to count as reading.
const PROGRESS_BYTES: u64 = 4096;

/// Pause after the kernel refused a connection, as when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why `accept` gave no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The client has given up, or its network has: the next one may be there.
    Client,
    /// Descriptors or memory have run out.
    Short,
    /// Anything else.
    Other,
}

impl Refusal {
    // accept(2), "Error handling"
    fn of(error: &std::io::Error) -> Self {
        use nix::errno::Errno::{
            ECONNABORTED, ECONNRESET, EHOSTDOWN, EHOSTUNREACH, EINTR, EMFILE, ENETDOWN,
            ENETUNREACH, ENFILE, ENOBUFS, ENOMEM, ENONET, ENOPROTOOPT, EOPNOTSUPP, EPERM, EPROTO,
        };
        match error.raw_os_error().map(nix::errno::Errno::from_raw) {
            Some(EMFILE | ENFILE | ENOBUFS | ENOMEM) => Self::Short,
            Some(
                ECONNABORTED | ECONNRESET | EHOSTDOWN | EHOSTUNREACH | EINTR | ENETDOWN
                | ENETUNREACH | ENONET | ENOPROTOOPT | EOPNOTSUPP | EPERM | EPROTO,
            ) => Self::Client,
            _ => Self::Other,
        }
    }
}

/// How long a connection may do nothing.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From being accepted to the end of the first request.
    pub first_request: Duration,
    /// Between two requests, while nobody knows who it is.
    pub unknown: Duration,
    /// Between two requests of a known client.
    pub known: Duration,
}

/// All connections of a listener; clones share them.
#[derive(Clone)]
pub struct Connections {
    table: Arc<Mutex<Table<Arc<Notify>>>>,
    patience: Patience,
    /// Told when somebody had to go or was turned away.
    full: Arc<dyn Fn() + Send + Sync>,
}

/// One connection's place.
pub struct Connection {
    all: Connections,
    id: u64,
    peer: PeerKey,
    displaced: Arc<Notify>,
    opened: Instant,
    /// Bytes written to the client so far.
    written: AtomicU64,
    /// The client is known, or was allowed something: it may send what it likes.
    is_free: AtomicBool,
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Its room is needed.
    Displaced,
    /// It did nothing for too long.
    Idle,
}

/// A request under way on a connection; dropping it ends it.
pub struct Busy(Arc<Connection>, Stage);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asked,
    Allowed,
}

impl Connections {
    /// No connection yet.
    pub fn new(
        limits: Limits,
        patience: Patience,
        full: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self { table: Arc::new(Mutex::new(Table::new(limits))), patience, full: Arc::new(full) }
    }

    /// Room for a new connection; `None` when everybody there is busy.
    pub fn open(&self, peer: PeerKey) -> Option<Arc<Connection>> {
        let displaced = Arc::new(Notify::new());
        let now = Instant::now();
        let opened = self.table().open(peer, Arc::clone(&displaced), now);
        let Some((id, gone)) = opened else {
            (self.full)();
            return None;
        };
        self.displace(gone);
        Some(Arc::new(Connection {
            all: self.clone(),
            id,
            peer,
            displaced,
            opened: now,
            written: AtomicU64::new(0),
            is_free: AtomicBool::new(false),
        }))
    }

    /// The kernel gave no connection. Where it is short of something an idle unknown one makes
    /// room, and the listener comes back after a pause, because it would be refused again at once.
    pub async fn refused(&self, error: &std::io::Error) {
        tracing::debug!(%error, "a connection was not accepted");
        match Refusal::of(error) {
            Refusal::Client => return,
            Refusal::Short => {
                let gone = self.table().shed();
                self.displace(gone);
            }
            Refusal::Other => {}
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }

    fn displace(&self, gone: Option<Arc<Notify>>) {
        if let Some(gone) = gone {
            gone.notify_one();
            (self.full)();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table<Arc<Notify>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Whose connection it is.
    pub fn peer(&self) -> PeerKey {
        self.peer
    }

    /// The client has proved its name. Without room among the known ones it stays unknown.
    pub fn set_known(&self, name: &str) {
        self.is_free.store(true, Ordering::Relaxed);
        let gone = self.all.table().set_known(self.id, PeerKey::named(name));
        self.all.displace(gone);
    }

    /// A request came in that nobody has allowed yet.
    pub fn ask(self: &Arc<Self>) -> Busy {
        self.all.table().ask(self.id);
        Busy(Arc::clone(self), Stage::Asked)
    }

    /// Ends when the connection is to be closed.
    pub async fn over(&self) -> Over {
        let patience = self.all.patience;
        let mut written = 0;
        loop {
            let state = self.all.table().state(self.id);
            let Some(state) = state else { return Over::Displaced };
            let wait = match state.class {
                Class::Known => patience.known,
                Class::Unknown if state.asked_once => patience.unknown,
                Class::Unknown => patience.first_request,
            };
            let since = if state.asked_once { state.idle_since } else { self.opened };
            let silent = since.elapsed();
            let progress = self.written.load(Ordering::Relaxed);
            let reads = progress >= written + PROGRESS_BYTES;
            written = progress;
            let left = match wait.checked_sub(silent).filter(|left| !left.is_zero()) {
                Some(left) => left,
                None if state.is_busy || reads => wait,
                None => return Over::Idle,
            };
            tokio::select! {
                () = self.displaced.notified() => return Over::Displaced,
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.table().close(self.id);
    }
}

impl Busy {
    /// The request is allowed: its connection is not displaced before it has ended.
    pub fn allow(&mut self) {
        if self.1 == Stage::Asked {
            self.1 = Stage::Allowed;
            self.0.is_free.store(true, Ordering::Relaxed);
            self.0.all.table().allow(self.0.id);
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut table = self.0.all.table();
        table.end(self.0.id, self.1 == Stage::Allowed, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections() -> Connections {
        let share = Share { total: 4, per_peer: 2 };
        let wait = Duration::from_secs(10);
        let patience = Patience { first_request: wait, unknown: wait, known: 3 * wait };
        Connections::new(Limits { unknown: share, known: share }, patience, || {})
    }

    fn peer(last: u8) -> PeerKey {
        PeerKey::of([192, 0, 2, last].into())
    }

    #[tokio::test]
    async fn room_comes_back_when_a_connection_is_dropped() {
        let all = connections();
        let first = all.open(peer(1)).expect("room");
        let mut asked = first.ask();
        asked.allow();
        let second = all.open(peer(1)).expect("room");
        second.ask().allow();
        let third = all.open(peer(1)).expect("the idle second one makes room");
        assert_eq!(second.over().await, Over::Displaced);
        let mut busy = third.ask();
        busy.allow();
        assert!(all.open(peer(1)).is_none(), "nobody is idle");
        drop((third, busy));
        assert!(all.open(peer(1)).is_some());
    }

    #[test]
    fn a_client_that_gives_up_costs_nobody_a_pause() {
        use nix::errno::Errno;
        let table = [
            (Errno::EMFILE, Refusal::Short),
            (Errno::ENFILE, Refusal::Short),
            (Errno::ENOBUFS, Refusal::Short),
            (Errno::ENOMEM, Refusal::Short),
            (Errno::ECONNABORTED, Refusal::Client),
            (Errno::EPERM, Refusal::Client),
            (Errno::EINVAL, Refusal::Other),
        ];
        for (errno, refusal) in table {
            assert_eq!(Refusal::of(&errno.into()), refusal, "{errno}");
        }
    }

    #[tokio::test]
    async fn without_descriptors_an_idle_stranger_goes_and_the_listener_pauses() {
        use futures_util::FutureExt as _;
        let share = Share { total: 4, per_peer: 4 };
        let wait = Duration::from_secs(3600);
        let patience = Patience { first_request: wait, unknown: wait, known: wait };
        let all = Connections::new(Limits { unknown: share, known: share }, patience, || {});
        let idle = all.open(peer(1)).expect("room");
        let refused = |errno: nix::errno::Errno| {
            let error = errno.into();
            all.refused(&error).now_or_never()
        };
        assert!(refused(nix::errno::Errno::ECONNABORTED).is_some(), "the next one may be there");
        assert!(idle.over().now_or_never().is_none());
        assert!(refused(nix::errno::Errno::EMFILE).is_none(), "it would be refused at once");
        assert_eq!(idle.over().await, Over::Displaced);
    }

    #[tokio::test]
    async fn a_busy_connection_is_not_idle_and_one_that_reads_is_not_either() {
        let share = Share { total: 4, per_peer: 2 };
        let wait = Duration::from_millis(20);
        let patience = Patience { first_request: wait, unknown: wait, known: wait };
        let all = Connections::new(Limits { unknown: share, known: share }, patience, || {});
        let idle = all.open(peer(1)).expect("room");
        assert_eq!(idle.over().await, Over::Idle);
        let busy = all.open(peer(2)).expect("room");
        let asked = busy.ask();
        let more = tokio::time::timeout(4 * wait, busy.over()).await;
        assert!(more.is_err(), "it has a request under way");
        drop(asked);
        assert_eq!(busy.over().await, Over::Idle);
    }
}
