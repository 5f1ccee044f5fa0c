//! State that the fake runtime's server thread and its control handle share, and the one way to
//! change it: under its lock, followed by delivery of events and a wake-up of waiting callers.
//! Bound: `CALLS_MAX` recorded calls, the oldest go first.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::sync::{mpsc::UnboundedReceiver, watch};
use tonic::{Code, Status};

use super::{
    events::EventBus,
    faults::{CallFault, FaultRules},
    flavor::Flavor,
    state::{Nanos, State},
};
use crate::{CriCall, Method, v1::ContainerEventResponse};

/// Calls kept for `calls()`.
const CALLS_MAX: usize = 100_000;

/// A call that the fake runtime received.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// Counts calls from 1.
    pub number: u64,
    /// The call.
    pub method: Method,
    /// `namespace/pod/container`, `namespace/pod`, an image; the id where no name is known.
    pub subject: String,
    /// Time of its arrival.
    pub at: Instant,
    /// Time and result of its end; `Cancelled` when the caller gave up.
    pub ended: Option<(Instant, Code)>,
    request: Vec<u8>,
}

impl CallRecord {
    /// The request, if it is one of that type.
    pub fn request<R: CriCall>(&self) -> Option<R> {
        (self.method == R::METHOD).then(|| R::decode(self.request.as_slice()).ok())?
    }
}

#[derive(Debug)]
pub(super) struct FakeShared {
    pub(super) flavor: Flavor,
    state: Mutex<State>,
    faults: Mutex<FaultRules>,
    events: Mutex<EventBus>,
    calls: Mutex<FakeCalls>,
    changes: watch::Sender<u64>,
    arrivals: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct FakeCalls {
    received: u64,
    kept: VecDeque<CallRecord>,
}

/// Notes the end of a call, also when its future is dropped.
pub(super) struct CallEnd<'a> {
    shared: &'a FakeShared,
    number: u64,
    code: Code,
}

impl FakeShared {
    pub(super) fn new(flavor: Flavor) -> Self {
        Self {
            flavor,
            state: Mutex::default(),
            faults: Mutex::default(),
            events: Mutex::default(),
            calls: Mutex::default(),
            changes: watch::Sender::new(0),
            arrivals: watch::Sender::new(0),
        }
    }

    /// Changes or reads the state, delivers the resulting events, wakes waiting callers.
    pub(super) fn apply<T>(&self, change: impl FnOnce(&mut State, Nanos) -> T) -> T {
        let mut state = lock(&self.state);
        state.advance(now());
        let result = change(&mut state, now());
        let outbox: Vec<_> = state.outbox.drain(..).collect();
        let mut events = lock(&self.events);
        drop(state); // events keep their order: their lock is held already
        outbox.into_iter().for_each(|event| events.publish(event));
        drop(events);
        self.changes.send_modify(|count| *count += 1);
        result
    }

    /// Waits until the state is as wanted.
    pub(super) async fn until(&self, wanted: impl Fn(&State) -> bool) {
        let mut changes = self.changes.subscribe();
        // The sender lives as long as self, so waiting cannot fail.
        _ = changes.wait_for(|_| wanted(&lock(&self.state))).await;
    }

    /// Makes containers exit at the times of their scripts. Runs until it is dropped.
    pub(super) async fn run_clock(&self) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            let due = lock(&self.state).next_due();
            let wait = due.map(|at| Duration::from_nanos(u64::try_from(at - now()).unwrap_or(0)));
            match wait {
                Some(wait) if wait.is_zero() => self.apply(|_, _| ()),
                Some(wait) => {
                    _ = tokio::time::timeout(wait, changes.changed()).await; // either is fine
                }
                None => _ = changes.changed().await, // the sender lives as long as self
            }
        }
    }

    pub(super) fn enter(
        &self,
        method: Method,
        subject: String,
        request: Vec<u8>,
    ) -> (CallEnd<'_>, Option<CallFault>) {
        let name = lock(&self.state).name_of(&subject);
        let fault = lock(&self.faults).take(method, &[&name, &subject]);
        let mut calls = lock(&self.calls);
        calls.received += 1;
        let (number, at) = (calls.received, Instant::now());
        let record = CallRecord { number, method, subject: name, at, ended: None, request };
        calls.kept.push_back(record);
        if calls.kept.len() > CALLS_MAX {
            calls.kept.pop_front();
        }
        drop(calls);
        self.arrivals.send_modify(|count| *count += 1);
        (CallEnd { shared: self, number, code: Code::Cancelled }, fault)
    }

    pub(super) fn calls(&self) -> Vec<CallRecord> {
        lock(&self.calls).kept.iter().cloned().collect()
    }

    pub(super) fn clear_calls(&self) {
        lock(&self.calls).kept.clear();
    }

    pub(super) fn arrivals(&self) -> watch::Receiver<u64> {
        self.arrivals.subscribe()
    }

    pub(super) fn faults(&self) -> MutexGuard<'_, FaultRules> {
        lock(&self.faults)
    }

    pub(super) fn events(&self) -> MutexGuard<'_, EventBus> {
        lock(&self.events)
    }

    pub(super) fn subscribe(&self) -> UnboundedReceiver<Result<ContainerEventResponse, Status>> {
        self.events().subscribe()
    }
}

impl CallEnd<'_> {
    pub(super) fn ended(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for CallEnd<'_> {
    fn drop(&mut self) {
        let mut calls = lock(&self.shared.calls);
        if let Some(call) = calls.kept.iter_mut().rev().find(|call| call.number == self.number) {
            call.ended = Some((Instant::now(), self.code));
        }
        drop(calls);
        self.shared.arrivals.send_modify(|count| *count += 1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A test that panicked elsewhere should still be able to look.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> Nanos {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX)
}
