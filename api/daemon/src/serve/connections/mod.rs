//! The connections of one listener: admission, displacement, idle timeouts.
//!
//! `table` is pure and decides; this file carries it out. A connection begins as unknown and
//! becomes known when its client has proved its name (a client certificate that holds, or an
//! allowed request of a user with a name). The two classes never compete: unknown connections only
//! ever displace unknown ones, so no client without credentials takes room away from the API
//! server, and known ones have a share for each name, so that no other name does. Accepting never
//! waits for room: the newcomer gets it at once and the connection that is least worth keeping is
//! closed. A request protects its connection only when the client proved a name: an answer of an
//! open path never does, and is cut at its deadline, whether the client reads or not.
//!
//! `io` meters what is read, so that one connection cannot keep the thread. Owner: the listener's
//! task makes a `Connection` for each socket; dropping it gives the room back. Bounds:
//! `ConnectionLimits`.

mod io;
mod peer;
mod table;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

pub use io::Metered;
pub use peer::PeerKey;
pub use table::{ClassShare, ConnectionLimits};
use table::{ConnectionClass, ConnectionTable};

/// Bytes that a stalled client has to take within one idle time to count as reading.
const PROGRESS_BYTES: u64 = 4096;

/// Pause after the kernel refused a connection, as when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Reason why `accept` gave no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptRefusal {
    /// The client has given up, or its network has: the next one may be there.
    Client,
    /// Descriptors or memory have run out.
    Short,
    /// Anything else.
    Other,
}

impl AcceptRefusal {
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

/// Idle timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From being accepted to the end of the first request.
    pub first_request: Duration,
    /// Between two requests of an unknown client.
    pub unknown: Duration,
    /// Between two requests of a known client.
    pub known: Duration,
}

/// All connections of a listener; clones share them.
#[derive(Clone)]
pub struct Connections {
    table: Arc<Mutex<ConnectionTable<Arc<Notify>>>>,
    patience: Patience,
    /// Called when a connection was displaced or refused.
    full: Arc<dyn Fn() + Send + Sync>,
}

/// One connection, with its place in the table.
pub struct Connection {
    all: Connections,
    id: u64,
    peer: PeerKey,
    displaced: Arc<Notify>,
    opened: Instant,
    /// Bytes written to the client so far.
    written: AtomicU64,
    /// The client is known, or was admitted: it may send any number of bytes.
    is_free: AtomicBool,
    /// The client has proved its name.
    is_proven: AtomicBool,
    /// An open answer has ended: the client may send as much again as at first.
    is_renewed: AtomicBool,
    /// When answers have to be taken, with the number of their requests.
    deadlines: Mutex<BTreeSet<(Instant, u64)>>,
    /// A deadline moved to the front.
    deadline_moved: Notify,
    requests: AtomicU64,
}

/// Reason to close a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Its room is needed.
    Displaced,
    /// The connection was idle for too long.
    Idle,
    /// The client has not taken an answer in time.
    Overdue,
}

/// A request in flight on a connection; dropping it ends it.
pub struct Busy {
    connection: Arc<Connection>,
    number: u64,
    stage: AtomicU8,
}

/// Nothing is decided about the request.
const ASKED: u8 = 0;
/// The path is open.
const OPEN: u8 = 1;
/// A client without a name was admitted.
const ADMITTED: u8 = 2;
/// A client that proved its name was admitted.
const ALLOWED: u8 = 3;

impl Connections {
    /// No connection yet.
    pub fn new(
        limits: ConnectionLimits,
        patience: Patience,
        full: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            table: Arc::new(Mutex::new(ConnectionTable::new(limits))),
            patience,
            full: Arc::new(full),
        }
    }

    /// Room for a new connection, which an unknown one may have to make.
    pub fn open(&self, peer: PeerKey) -> Arc<Connection> {
        let displaced = Arc::new(Notify::new());
        let now = Instant::now();
        let (id, gone) = self.table().open(peer, Arc::clone(&displaced), now);
        self.displace(gone);
        Arc::new(Connection {
            all: self.clone(),
            id,
            peer,
            displaced,
            opened: now,
            written: AtomicU64::new(0),
            is_free: AtomicBool::new(false),
            is_proven: AtomicBool::new(false),
            is_renewed: AtomicBool::new(false),
            deadlines: Mutex::default(),
            deadline_moved: Notify::new(),
            requests: AtomicU64::new(0),
        })
    }

    /// The kernel gave no connection. Where it is short of something an idle unknown one makes
    /// room, and the listener comes back after a pause, because it would be refused again at once.
    pub async fn refused(&self, error: &std::io::Error) {
        tracing::debug!(%error, "a connection was not accepted");
        match AcceptRefusal::of(error) {
            AcceptRefusal::Client => return,
            AcceptRefusal::Short => {
                let gone = self.table().shed(Instant::now());
                self.displace(gone);
            }
            AcceptRefusal::Other => {}
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }

    fn displace(&self, gone: Option<Arc<Notify>>) {
        if let Some(gone) = gone {
            gone.notify_one();
            (self.full)();
        }
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable<Arc<Notify>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// The connection's peer.
    pub fn peer(&self) -> PeerKey {
        self.peer
    }

    /// The client has proved its name. Without room among the known ones it stays unknown.
    pub fn set_known(&self, name: &str) {
        self.is_free.store(true, Ordering::Relaxed);
        self.is_proven.store(true, Ordering::Relaxed);
        let gone = self.all.table().set_known(self.id, PeerKey::named(name), Instant::now());
        self.all.displace(gone);
    }

    /// A request came in that is not allowed yet.
    pub fn ask(self: &Arc<Self>) -> Busy {
        self.all.table().ask(self.id);
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        Busy { connection: Arc::clone(self), number, stage: AtomicU8::new(ASKED) }
    }

    /// Ends when the connection is to be closed.
    pub async fn over(&self) -> Over {
        let patience = self.all.patience;
        let mut written = 0;
        loop {
            let state = self.all.table().state(self.id);
            let Some(state) = state else { return Over::Displaced };
            let wait = match state.class {
                ConnectionClass::Known => patience.known,
                ConnectionClass::Unknown if state.asked_once => patience.unknown,
                ConnectionClass::Unknown => patience.first_request,
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
                () = self.until_overdue() => return Over::Overdue,
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// Ends when an answer was not taken in time. A timer in the answer's body does not
    /// suffice: the body of a client that opens no window is never polled.
    async fn until_overdue(&self) {
        loop {
            let first = self.deadlines().first().map(|(at, _)| *at);
            let passed = async {
                match first {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.deadline_moved.notified() => {}
                // The answer may have ended meanwhile.
                () = passed => {
                    let now = Instant::now();
                    if self.deadlines().first().is_some_and(|(at, _)| *at <= now) {
                        return;
                    }
                }
            }
        }
    }

    fn deadlines(&self) -> MutexGuard<'_, BTreeSet<(Instant, u64)>> {
        self.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// The path is open: its answer needs no credentials, and its connection may be displaced.
    pub fn open(&self) {
        let _ = self.stage.compare_exchange(ASKED, OPEN, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The request is allowed to the user of this name, which the client has proved, or without a
    /// name to all clients. With one its connection is not displaced before the request has ended.
    pub fn admit(&self, name: Option<&str>) {
        self.connection.is_free.store(true, Ordering::Relaxed);
        let stage = if name.is_some() { ALLOWED } else { ADMITTED };
        let before = self.stage.fetch_max(stage, Ordering::Relaxed);
        if let Some(name) = name {
            self.connection.set_known(name);
            if before < ALLOWED {
                self.connection.all.table().allow(self.connection.id);
            }
        }
    }

    /// True if a request was allowed, or the client is known.
    pub(super) fn is_admitted(&self) -> bool {
        let is_proven = self.connection.is_proven.load(Ordering::Relaxed);
        is_proven || self.stage.load(Ordering::Relaxed) >= ADMITTED
    }

    /// Has the connection closed if the answer was not taken at that time. The connection of a
    /// client that proved its name is only bound by its age: it carries other users' answers as
    /// well.
    pub(super) fn end_by(&self, deadline: Instant) {
        if self.connection.is_proven.load(Ordering::Relaxed) {
            return;
        }
        let mut deadlines = self.connection.deadlines();
        deadlines.insert((deadline, self.number));
        if deadlines.first() == Some(&(deadline, self.number)) {
            self.connection.deadline_moved.notify_one();
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let stage = *self.stage.get_mut();
        if stage == OPEN {
            self.connection.is_renewed.store(true, Ordering::Relaxed);
        }
        self.connection.deadlines().retain(|(_, number)| *number != self.number);
        let mut table = self.connection.all.table();
        table.end(self.connection.id, stage == ALLOWED, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn connections() -> Connections {
        let share = ClassShare { total: 4, per_peer: 2 };
        let wait = Duration::from_secs(10);
        let patience = Patience { first_request: wait, unknown: wait, known: 3 * wait };
        Connections::new(ConnectionLimits { unknown: share, known: share }, patience, || {})
    }

    fn peer(last: u8) -> PeerKey {
        PeerKey::of([192, 0, 2, last].into())
    }

    #[tokio::test]
    async fn only_busy_connections_of_authenticated_clients_are_never_displaced() {
        let all = connections();
        let (anybody, named) = (all.open(peer(1)), all.open(peer(1)));
        let (open, busy) = (anybody.ask(), named.ask());
        open.open();
        busy.admit(Some("eve"));
        let third = all.open(peer(1));
        let admitted = third.ask();
        admitted.admit(None);
        let _fourth = all.open(peer(1));
        assert_eq!(anybody.over().await, Over::Displaced, "its path is open");
        let _fifth = all.open(peer(1));
        assert_eq!(third.over().await, Over::Displaced, "it has no name");
        let _flood: Vec<_> = (2..20).map(|last| all.open(peer(last))).collect();
        assert_eq!(named.over().now_or_never(), None);
    }

    #[tokio::test]
    async fn user_with_many_connections_does_not_displace_another_user() {
        let all = connections();
        let hold = |name: &str, last: u8| {
            let connection = all.open(peer(last));
            let busy = connection.ask();
            busy.admit(Some(name));
            (connection, busy)
        };
        let held: Vec<_> = (0..8).map(|last| hold("eve", last)).collect();
        let kept = held.iter().filter(|(one, _)| one.over().now_or_never().is_none()).count();
        assert!(kept >= 2, "two are known, the others unknown and may go");
        let other = hold("admin", 100);
        let _flood: Vec<_> = (101..120).map(|last| all.open(peer(last))).collect();
        assert_eq!(other.0.over().now_or_never(), None);
    }

    #[tokio::test]
    async fn unread_answer_of_an_unauthenticated_client_ends_its_connection() {
        let all = connections();
        let (slow, prompt, named) = (all.open(peer(1)), all.open(peer(2)), all.open(peer(3)));
        let soon = Instant::now() + Duration::from_millis(20);
        let (first, second, third) = (slow.ask(), prompt.ask(), named.ask());
        [&first, &second].into_iter().for_each(Busy::open);
        third.admit(Some("admin"));
        // A later request before it: the first one counts.
        let later = slow.ask();
        later.end_by(soon + Duration::from_secs(60));
        [&first, &second, &third].into_iter().for_each(|busy| busy.end_by(soon));
        drop(second);
        assert_eq!(slow.over().await, Over::Overdue);
        let (prompt, named) = (prompt.over(), named.over());
        let both = async { tokio::join!(prompt, named) };
        let both = tokio::time::timeout(Duration::from_millis(60), both).await;
        assert!(both.is_err(), "one was taken, the other is of a name");
    }

    #[test]
    fn accept_errors_of_clients_are_distinguished_from_resource_shortage() {
        use nix::errno::Errno;
        let table = [
            (Errno::EMFILE, AcceptRefusal::Short),
            (Errno::ENFILE, AcceptRefusal::Short),
            (Errno::ENOBUFS, AcceptRefusal::Short),
            (Errno::ENOMEM, AcceptRefusal::Short),
            (Errno::ECONNABORTED, AcceptRefusal::Client),
            (Errno::EPERM, AcceptRefusal::Client),
            (Errno::EINVAL, AcceptRefusal::Other),
        ];
        for (errno, refusal) in table {
            assert_eq!(AcceptRefusal::of(&errno.into()), refusal, "{errno}");
        }
    }

    #[tokio::test]
    async fn descriptor_shortage_displaces_an_idle_connection_and_pauses_the_listener() {
        let share = ClassShare { total: 4, per_peer: 4 };
        let wait = Duration::from_secs(3600);
        let patience = Patience { first_request: wait, unknown: wait, known: wait };
        let all =
            Connections::new(ConnectionLimits { unknown: share, known: share }, patience, || {});
        let idle = all.open(peer(1));
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
    async fn connection_with_a_request_under_way_is_not_idle() {
        let share = ClassShare { total: 4, per_peer: 2 };
        let wait = Duration::from_millis(20);
        let patience = Patience { first_request: wait, unknown: wait, known: wait };
        let all =
            Connections::new(ConnectionLimits { unknown: share, known: share }, patience, || {});
        let idle = all.open(peer(1));
        assert_eq!(idle.over().await, Over::Idle);
        let busy = all.open(peer(2));
        let asked = busy.ask();
        let more = tokio::time::timeout(4 * wait, busy.over()).await;
        assert!(more.is_err(), "it has a request under way");
        drop(asked);
        assert_eq!(busy.over().await, Over::Idle);
    }
}
