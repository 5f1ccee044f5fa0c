//! One task per object: reads it when somebody asks, watches it while it can change.
//!
//! A read comes first, straight from the store, so that a pod waits for one short request only.
//! The watch begins behind it, at whatever the API server has in memory; what that tells of the
//! past is older than the read and is dropped. A watch that ends goes on at its last version; one
//! whose place is gone begins anew, with a read, since a deletion may have been missed. An
//! immutable object is not watched. Without `Watch` as strategy there are only reads.
//!
//! Effects. Owner: `Objects`, which drops the `Follower` when no pod refers to the object any more.
//! Bounds: one read, one watch; failures are repeated after `RETRY`.
// k8s: pkg/kubelet/util/manager/watch_based_manager.go

use std::rc::{Rc, Weak};
use std::time::Duration;

use pintle_agent_config::modes::ChangeDetectionStrategy;
use pintle_agent_core::env::variables::LookupError;
use pintle_agent_core::types::PodUid;
use pintle_api::Share;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::object::{ConfigMapWire, Object, SecretWire, Written};
use super::references::{Key, Kind};
use super::wire::{self, Event, Events, Pace, WireError};
use super::{Objects, Shared};

/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// How long a watch is asked to last, in seconds.
// k8s: pkg/kubelet/util/manager/watch_based_manager.go MinWatchTimeout
const WATCH_SECONDS: u32 = 1800;
/// A watch that lasted this long was a good one.
const PROVEN: Duration = Duration::from_secs(2);
/// How long somebody waits for an object of which nothing is known yet.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A watch that has to wait for its turn for so long: the object is read in the meantime.
const TURN_MAX: Duration = Duration::from_secs(300);
/// How long somebody waits for a newer copy of one that is known.
const WAIT_NEWER_MAX: Duration = Duration::from_secs(1);

/// Follows one object until it is dropped.
pub(super) struct Follower {
    signals: Rc<Signals>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Signals {
    /// A read is due.
    due: Notify,
    /// Something is known that was not.
    answered: Notify,
    read_at: std::cell::Cell<Option<Instant>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Follower {
    /// Begins to follow an object.
    pub(super) fn start(shared: &Rc<Shared>, key: &Key) -> Self {
        let signals = Rc::<Signals>::default();
        let shared = Rc::downgrade(shared);
        let (key, own) = (key.clone(), Rc::clone(&signals));
        let task = pintle_daemon::tasks::spawn("object", async move {
            match key.kind {
                Kind::ConfigMap => follow::<ConfigMapWire>(shared, key, own).await,
                Kind::Secret => follow::<SecretWire>(shared, key, own).await,
            }
        });
        Self { signals, task }
    }

    /// A read is due.
    pub(super) fn wake(&self) {
        self.signals.due.notify_one();
    }
}

impl Objects {
    /// An object, at least as new as a read that began when the pod was registered. While the API
    /// server does not answer, an older copy if there is one.
    pub(super) async fn object(&self, uid: &PodUid, key: &Key) -> Result<Rc<Object>, LookupError> {
        let Some(shared) = &self.0 else { return Err(LookupError::NoApi) };
        let signals = shared.followers.borrow().get(key).map(|f| Rc::clone(&f.signals));
        let again = signals.as_deref().is_some_and(|signals| shared.is_stale(signals));
        let want = shared.table.borrow_mut().want(key, again);
        let (Some(signals), Some(want)) = (signals, want) else {
            return shared.table.borrow_mut().settle(uid, key);
        };
        if again {
            signals.due.notify_one();
        }
        let begun = Instant::now();
        loop {
            let answered = signals.answered.notified();
            if let Some(found) = shared.table.borrow_mut().look(uid, key, want) {
                return found;
            }
            let known = shared.table.borrow().is_known(key);
            let patience = if known { WAIT_NEWER_MAX } else { WAIT_MAX };
            if tokio::time::timeout_at(begun + patience, answered).await.is_err() {
                return shared.table.borrow_mut().settle(uid, key);
            }
        }
    }
}

impl Shared {
    /// Watches last, so they are counted apart: they must not stop a pod's reads.
    fn share(&self, key: &Key, of: &str) -> Share {
        let table = self.table.borrow();
        let payer = table.payer(key).map_or("", PodUid::as_str);
        Share::of(&format!("{payer}{of}"))
    }

    /// True when the strategy asks for a new read.
    fn is_stale(&self, signals: &Signals) -> bool {
        match self.settings.strategy {
            ChangeDetectionStrategy::Watch => false,
            ChangeDetectionStrategy::Get => true,
            ChangeDetectionStrategy::Cache => {
                signals.read_at.get().is_none_or(|at| at.elapsed() >= self.settings.ttl())
            }
        }
    }
}

async fn follow<T: Written>(shared: Weak<Shared>, key: Key, signals: Rc<Signals>) {
    let reads = keep_read::<T>(&shared, &key, &signals);
    let watches = async {
        let by_watch = |s: Rc<Shared>| s.settings.strategy == ChangeDetectionStrategy::Watch;
        if shared.upgrade().is_some_and(by_watch) {
            watch::<T>(&shared, &key, &signals).await;
        }
        // The reads go on: a pod that comes later may find another object of this name.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = reads => {}
        () = watches => {}
    }
}

fn object_path(key: &Key) -> String {
    format!("/api/v1/namespaces/{}/{}/{}", key.namespace, key.kind.plural(), key.name)
}

fn watch_path(key: &Key, from: &str) -> String {
    format!(
        "/api/v1/namespaces/{}/{}?watch=true&fieldSelector=metadata.name%3D{}\
         &resourceVersion={from}&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}",
        key.namespace,
        key.kind.plural(),
        key.name,
    )
}

/// Reads whenever somebody asks.
async fn keep_read<T: Written>(shared: &Weak<Shared>, key: &Key, signals: &Signals) {
    let mut pace = Pace::new(RETRY.0, RETRY.1);
    while let Some(shared) = shared.upgrade() {
        let due = shared.table.borrow().due(key);
        let Some(due) = due else {
            drop(shared);
            signals.due.notified().await;
            continue;
        };
        let share = shared.share(key, "");
        let told = match wire::read::<T>(&shared.client, &share, &object_path(key)).await {
            Ok(object) => shared.table.borrow_mut().answered(key, due, Some(object.keep())),
            Err(WireError::NotFound(_)) => shared.table.borrow_mut().answered(key, due, None),
            Err(error) => {
                tracing::debug!(%key, %error, "cannot be read");
                shared.table.borrow_mut().failed(key, error.to_string());
                drop(shared);
                pace.wait().await;
                continue;
            }
        };
        pace.reset();
        signals.read_at.set(Some(Instant::now()));
        signals.answered.notify_waiters();
        shared.tell(told).await;
    }
}

/// Watches until the object turns out to be immutable.
async fn watch<T: Written>(shared: &Weak<Shared>, key: &Key, signals: &Signals) {
    while signals.read_at.get().is_none() {
        signals.answered.notified().await;
    }
    let mut pace = Pace::new(RETRY.0, RETRY.1);
    let mut from = "0".to_owned();
    while let Some(shared) = shared.upgrade().filter(|s| !s.table.borrow().is_immutable(key)) {
        let begun = Instant::now();
        let (share, path) = (shared.share(key, " watches"), watch_path(key, &from));
        let opened = Events::<T>::open(&shared.client, &share, &path);
        let opened = tokio::time::timeout(TURN_MAX, opened).await;
        let shared = Rc::downgrade(&shared);
        let ended = match opened {
            Ok(Ok(events)) => drain(&shared, key, signals, events, &mut from).await,
            Ok(Err(error)) => Err(error),
            // A pod that refers to more than may be watched for it sees changes late.
            Err(_) => Err(WireError::Gone("its watch waits for a turn".to_owned())),
        };
        // A server that accepts watches and drops them again is not asked at once each time.
        if begun.elapsed() >= PROVEN {
            pace.reset();
        }
        match ended {
            Ok(Ended::Immutable) => return,
            Ok(Ended::Closed) => {}
            Err(WireError::Gone(_)) => {
                from = "0".to_owned();
                if let Some(shared) = shared.upgrade() {
                    shared.table.borrow_mut().want(key, true);
                    signals.due.notify_one();
                }
            }
            Err(error) => tracing::debug!(%key, %error, "cannot be watched"),
        }
        pace.wait().await;
    }
}

enum Ended {
    Closed,
    Immutable,
}

/// Takes events until the watch ends.
async fn drain<T: Written>(
    shared: &Weak<Shared>,
    key: &Key,
    signals: &Signals,
    mut events: Events<T>,
    from: &mut String,
) -> Result<Ended, WireError> {
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            // A read may have found that it is immutable.
            () = signals.answered.notified() => {
                match shared.upgrade().is_some_and(|s| s.table.borrow().is_immutable(key)) {
                    true => return Ok(Ended::Immutable),
                    false => continue,
                }
            }
        };
        let Some(event) = event else { return Ok(Ended::Closed) };
        let event = event?;
        let Some(shared) = shared.upgrade() else { return Ok(Ended::Closed) };
        let (told, version) = match event {
            Event::Applied(object) => {
                let object = object.keep();
                let version = object.version;
                (shared.table.borrow_mut().changed(key, object), version.to_string())
            }
            Event::Deleted(object) => {
                let version = object.keep().version;
                (shared.table.borrow_mut().deleted(key, version), version.to_string())
            }
            Event::Bookmark(version, _) => (Vec::new(), version),
        };
        *from = version;
        shared.tell(told).await;
        if shared.table.borrow().is_immutable(key) {
            return Ok(Ended::Immutable);
        }
    }
}
