//! Turns that peers have to wait for: rates and shares, fair over peers.
//!
//! Effects. `rota` decides; here the waiting tasks are woken. Input: a peer that wants a turn.
//! Output: the turn, or none within `wait_max`. Owner: the server's thread. One task sleeps until
//! the next turn while any is to come, however many wait. Bounds: those of `rota`.

mod rota;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

pub(super) use rota::TurnLimits;
use rota::{NextTurn, Rota, Ticket};

use super::connections::PeerKey;
use crate::tasks;

/// Longest sleep of the task that begins turns: a peer that enters meanwhile may have its turn
/// sooner.
const STEP_MAX: Duration = Duration::from_millis(20);

/// There was no turn in time, or too many wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoTurn;

/// Turns of one kind; clones share them.
#[derive(Clone)]
pub(super) struct TurnKind {
    shared: Arc<Mutex<SharedRota>>,
    wait_max: Duration,
}

struct SharedRota {
    rota: Rota,
    waiting: HashMap<Ticket, oneshot::Sender<Turn>>,
    /// The task that begins turns runs.
    has_driver: bool,
}

/// A turn that has begun; dropping it ends it.
pub(super) struct Turn(TurnKind, PeerKey);

/// A place among those that wait.
struct WaitingPlace(TurnKind, PeerKey, Ticket);

impl TurnKind {
    pub(super) fn new(limits: TurnLimits, wait_max: Duration) -> Self {
        let shared =
            SharedRota { rota: Rota::new(limits), waiting: HashMap::new(), has_driver: false };
        Self { shared: Arc::new(Mutex::new(shared)), wait_max }
    }

    /// Waits for a turn of the peer's.
    pub(super) async fn turn(&self, peer: PeerKey) -> Result<Turn, NoTurn> {
        let (tell, told) = oneshot::channel();
        let place = {
            let mut shared = self.shared();
            let ticket = shared.rota.enter(peer, Instant::now()).ok_or(NoTurn)?;
            shared.waiting.insert(ticket, tell);
            WaitingPlace(self.clone(), peer, ticket)
        };
        self.begin_due();
        let turn = tokio::time::timeout(self.wait_max, told).await;
        drop(place);
        turn.ok().and_then(Result::ok).ok_or(NoTurn)
    }

    /// The peer has proved its name: it comes first for a while.
    pub(super) fn prove(&self, peer: PeerKey) {
        self.shared().rota.prove(peer, Instant::now());
    }

    /// Begins all turns that are due, and sees to it that later ones begin.
    fn begin_due(&self) {
        let (next, unheard) = self.shared().begin_due(self);
        // Outside the lock, which ending a turn takes.
        drop(unheard);
        let Some(mut wait) = next else { return };
        // A server that ends drops its turns, too.
        let is_served = tokio::runtime::Handle::try_current().is_ok();
        if !is_served || std::mem::replace(&mut self.shared().has_driver, true) {
            return;
        }
        let turns = self.clone();
        tasks::serve("turns", async move {
            loop {
                tokio::time::sleep(wait.min(STEP_MAX)).await;
                let (next, unheard) = {
                    let mut shared = turns.shared();
                    let begun = shared.begin_due(&turns);
                    shared.has_driver = begun.0.is_some();
                    begun
                };
                drop(unheard);
                let Some(next) = next else { return };
                wait = next;
            }
        });
    }

    fn shared(&self) -> MutexGuard<'_, SharedRota> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedRota {
    /// Begins the turns that are due. Returns the time until the next one, if it comes without a
    /// change, and turns whose waiters were gone.
    fn begin_due(&mut self, turns: &TurnKind) -> (Option<Duration>, Vec<Turn>) {
        let mut unheard = Vec::new();
        let now = Instant::now();
        loop {
            match self.rota.next(now) {
                NextTurn::Begins(peer, ticket) => {
                    let turn = Turn(turns.clone(), peer);
                    match self.waiting.remove(&ticket) {
                        Some(tell) => unheard.extend(tell.send(turn).err()),
                        None => unheard.push(turn),
                    }
                }
                NextTurn::After(wait) => return (Some(wait), unheard),
                NextTurn::None => return (None, unheard),
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.shared().rota.end(self.1);
        self.0.begin_due();
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        let mut shared = self.0.shared();
        if shared.waiting.remove(&self.2).is_some() {
            shared.rota.leave(self.1, self.2);
        }
    }
}
