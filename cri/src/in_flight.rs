//! The calls that are in flight now.
//!
//! Input: the client enters each call and drops its ticket when the call ends, also when the caller
//! gives up. Output: `list` names the calls, oldest first, so that `explain` can name the hung
//! call, its subject and its duration; an `Observer` gets the duration of each one for metrics.
//! Owner: one table per client, shared by its clones. Bound: `CALLS_MAX`; a call beyond it is
//! refused, because so many open calls mean that the runtime no longer answers.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{Code, Method};

/// Calls in flight at the same time: several for each of 1,000 pods.
pub const CALLS_MAX: usize = 4096;

/// A call in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The call.
    pub method: Method,
    /// Its subject: a container or sandbox id, `namespace/pod`, an image; may be empty.
    pub subject: String,
    /// Its begin.
    pub started: Instant,
    /// Its timeout in all; none for pulls and streams.
    pub deadline: Option<Duration>,
}

/// Receives each call's end; must not block.
pub trait Observer: Send + Sync {
    /// `outcome` is `None` for a call that its caller dropped before an answer came.
    fn call_ended(&self, method: Method, outcome: Option<Code>, took: Duration);
}

/// The table. Cloning shares it.
#[derive(Clone, Default)]
pub(crate) struct Calls {
    table: Arc<Mutex<CallTable>>,
    observer: Option<Arc<dyn Observer>>,
}

#[derive(Default)]
struct CallTable {
    next: u64,
    calls: BTreeMap<u64, InFlight>, // by order of entry, hence oldest first
}

/// Held by a call for as long as it is in flight.
#[derive(Debug)]
pub(crate) struct CallTicket {
    calls: Calls,
    key: u64,
    method: Method,
    started: Instant,
    outcome: Option<Code>,
}

impl Calls {
    pub(crate) fn with_observer(observer: Arc<dyn Observer>) -> Self {
        Self { table: Arc::default(), observer: Some(observer) }
    }

    /// Enters a call; `None` when the table is full.
    pub(crate) fn enter(
        &self,
        method: Method,
        subject: String,
        deadline: Option<Duration>,
    ) -> Option<CallTicket> {
        let started = Instant::now();
        let mut table = self.lock();
        if table.calls.len() >= CALLS_MAX {
            return None;
        }
        let key = table.next;
        table.next += 1;
        table.calls.insert(key, InFlight { method, subject, started, deadline });
        drop(table);
        Some(CallTicket { calls: self.clone(), key, method, started, outcome: None })
    }

    /// All calls in flight, oldest first.
    pub(crate) fn list(&self) -> Vec<InFlight> {
        self.lock().calls.values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, CallTable> {
        // No code that holds the lock can panic half way through a change.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

impl CallTicket {
    pub(crate) fn method(&self) -> Method {
        self.method
    }

    /// Records how the call ended; a ticket dropped without it counts as given up.
    pub(crate) fn ended(&mut self, outcome: Code) {
        self.outcome = Some(outcome);
    }
}

impl Drop for CallTicket {
    fn drop(&mut self) {
        self.calls.lock().calls.remove(&self.key);
        if let Some(observer) = &self.calls.observer {
            observer.call_ended(self.method, self.outcome, self.started.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct SeenCall(Mutex<Vec<(Method, Option<Code>)>>);

    impl Observer for SeenCall {
        fn call_ended(&self, method: Method, outcome: Option<Code>, _took: Duration) {
            self.0.lock().expect("not poisoned").push((method, outcome));
        }
    }

    #[test]
    fn calls_are_listed_oldest_first_until_the_ticket_of_the_call_is_dropped() {
        let calls = Calls::default();
        let first = calls.enter(Method::StopContainer, "c1".into(), None);
        let second = calls.enter(Method::Version, String::new(), Some(Duration::from_secs(1)));
        let methods = || calls.list().iter().map(|call| call.method).collect::<Vec<_>>();
        assert_eq!(methods(), [Method::StopContainer, Method::Version]);
        assert_eq!(calls.list()[0].subject, "c1");
        drop(first);
        assert_eq!(methods(), [Method::Version]);
        drop(second);
        assert!(methods().is_empty());
    }

    #[test]
    fn observer_distinguishes_a_response_from_an_abandoned_call() {
        let seen = Arc::new(SeenCall::default());
        let calls = Calls::with_observer(seen.clone());
        let mut answered = calls.enter(Method::Version, String::new(), None).expect("room");
        answered.ended(Code::Ok);
        drop(answered);
        drop(calls.enter(Method::PullImage, "busybox".into(), None));
        assert_eq!(
            *seen.0.lock().expect("not poisoned"),
            [(Method::Version, Some(Code::Ok)), (Method::PullImage, None)]
        );
    }

    #[test]
    fn a_full_table_refuses_further_calls_and_recovers() {
        let calls = Calls::default();
        let mut tickets: Vec<_> =
            (0..CALLS_MAX).map(|_| calls.enter(Method::Version, String::new(), None)).collect();
        assert!(tickets.iter().all(Option::is_some));
        assert!(calls.enter(Method::Version, String::new(), None).is_none());
        tickets.pop();
        assert!(calls.enter(Method::Version, String::new(), None).is_some());
    }
}
