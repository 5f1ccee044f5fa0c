//! One task per object: reads it on request, watches it while it can change.
//!
//! A read comes first, straight from etcd, so that a pod waits for one short request only. The
//! informers' watch begins behind it, at the state of the API server's watch cache; an object that
//! is older than the read is dropped. When the watch loses its version there is another read, since
//! a deletion may have been missed. An immutable object is not watched. Without `Watch` as strategy
//! there are only reads.
//!
//! Effects. Owner: `Objects`, which drops the `Follower` when no pod refers to the object any more.
//! Bounds: one read, one watch; failures are repeated after `RETRY`.
// k8s: pkg/kubelet/util/manager/watch_based_manager.go

use std::future::{Future, ready};
use std::rc::{Rc, Weak};
use std::time::Duration;

use pintle_agent_config::modes::ChangeDetectionStrategy;
use pintle_agent_core::env::variables::LookupError;
use pintle_agent_core::types::PodUid;
use pintle_api::TenantShare;
use pintle_api::informer::{self, FirstList, FollowSpec, ObjectSink};
use pintle_api_types::object::UnreadableObject;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::object::{ConfigMapWire, KeptObject, SecretWire, WrittenObject};
use super::references::{ObjectName, ReferenceKind};
use super::table::{ObjectTable, WaitingReader};
use super::wire::{self, RetryPace, WireError};
use super::{Objects, ObjectsCore};

/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// How long a caller waits for an object of which nothing is known yet.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a caller waits for a newer copy of a known object.
const WAIT_NEWER_MAX: Duration = Duration::from_secs(1);

/// Follows one object until it is dropped.
pub(super) struct Follower {
    signals: Rc<FollowSignals>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct FollowSignals {
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
    pub(super) fn start(shared: &Rc<ObjectsCore>, key: &ObjectName) -> Self {
        let signals = Rc::<FollowSignals>::default();
        let shared = Rc::downgrade(shared);
        let (key, own) = (key.clone(), Rc::clone(&signals));
        let task = pintle_daemon::tasks::spawn("object", async move {
            match key.kind {
                ReferenceKind::ConfigMap => follow::<ConfigMapWire>(shared, key, own).await,
                ReferenceKind::Secret => follow::<SecretWire>(shared, key, own).await,
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
    pub(super) async fn object(
        &self,
        uid: &PodUid,
        key: &ObjectName,
    ) -> Result<Rc<KeptObject>, LookupError> {
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

impl ObjectsCore {
    /// Watches last, so they are counted apart: they must not stop a pod's reads.
    fn share(&self, key: &ObjectName, of: &str) -> TenantShare {
        let table = self.table.borrow();
        let payer = table.payer(key).map_or("", PodUid::as_str);
        TenantShare::of(&format!("{payer}{of}"))
    }

    /// True when the strategy asks for a new read.
    fn is_stale(&self, signals: &FollowSignals) -> bool {
        match self.settings.strategy {
            ChangeDetectionStrategy::Watch => false,
            ChangeDetectionStrategy::Get => true,
            ChangeDetectionStrategy::Cache => {
                signals.read_at.get().is_none_or(|at| at.elapsed() >= self.settings.ttl())
            }
        }
    }
}

async fn follow<T: WrittenObject>(
    shared: Weak<ObjectsCore>,
    key: ObjectName,
    signals: Rc<FollowSignals>,
) {
    let reads = keep_read::<T>(&shared, &key, &signals);
    let watches = async {
        let by_watch = |s: Rc<ObjectsCore>| s.settings.strategy == ChangeDetectionStrategy::Watch;
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

fn object_path(key: &ObjectName) -> String {
    format!("/api/v1/namespaces/{}/{}/{}", key.namespace, key.kind.plural(), key.name)
}

fn watch_spec(key: &ObjectName) -> FollowSpec {
    let path = format!("/api/v1/namespaces/{}/{}", key.namespace, key.kind.plural());
    let mut spec = FollowSpec::new(key.kind.plural(), &path);
    spec.source.field_selector = format!("metadata.name={}", key.name);
    spec.first_list = FirstList::Never;
    (spec.retry, spec.quiet) = (RETRY, true);
    spec
}

/// Reads on each request.
async fn keep_read<T: WrittenObject>(
    shared: &Weak<ObjectsCore>,
    key: &ObjectName,
    signals: &FollowSignals,
) {
    let mut pace = RetryPace::new(RETRY.0, RETRY.1);
    while let Some(shared) = shared.upgrade() {
        let due = shared.table.borrow().due(key);
        let Some(due) = due else {
            drop(shared);
            signals.due.notified().await;
            continue;
        };
        let share = shared.share(key, "");
        // Boxed, for there may be thousands of tasks and few of them read.
        let path = object_path(key);
        let told = match Box::pin(wire::read::<T>(&shared.client, &share, &path)).await {
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
        shared.notify_workers(told).await;
    }
}

/// Watches until the object turns out to be immutable.
async fn watch<T: WrittenObject>(
    shared: &Weak<ObjectsCore>,
    key: &ObjectName,
    signals: &Rc<FollowSignals>,
) {
    while signals.read_at.get().is_none() {
        signals.answered.notified().await;
    }
    let is_over = || shared.upgrade().is_none_or(|s| s.table.borrow().is_immutable(key));
    let over = async {
        while !is_over() {
            signals.answered.notified().await;
        }
    };
    let Some(client) = shared.upgrade().map(|shared| shared.client.clone()) else { return };
    let sink =
        ObjectWatch { shared: shared.clone(), key: key.clone(), signals: Rc::clone(signals) };
    tokio::select! {
        biased;
        () = over => {}
        () = informer::follow::<T, _>(client, watch_spec(key), sink) => {}
    }
}

/// Receives the watch of one object.
struct ObjectWatch {
    shared: Weak<ObjectsCore>,
    key: ObjectName,
    signals: Rc<FollowSignals>,
}

impl ObjectWatch {
    async fn change(&self, change: impl FnOnce(&mut ObjectTable) -> Vec<WaitingReader>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let told = change(&mut shared.table.borrow_mut());
        shared.notify_workers(told).await;
        // It may be immutable now.
        self.signals.answered.notify_waiters();
    }
}

impl<T: WrittenObject> ObjectSink<T> for ObjectWatch {
    async fn applied(&mut self, object: T) {
        self.change(|table| table.changed(&self.key, object.keep())).await;
    }

    async fn deleted(&mut self, object: T) {
        self.change(|table| table.deleted(&self.key, object.keep().version)).await;
    }

    fn deleted_unreadable(&mut self, _: UnreadableObject) -> impl Future<Output = ()> {
        ObjectSink::<T>::read_again(self);
        ready(())
    }

    fn read_again(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.table.borrow_mut().want(&self.key, true);
            self.signals.due.notify_one();
        }
    }

    fn share(&self) -> TenantShare {
        let shared = self.shared.upgrade();
        shared.map_or_else(TenantShare::default, |shared| shared.share(&self.key, " watches"))
    }

    // There are no lists.
    fn begin(&mut self) {}
    fn listed(&mut self, _: T) {}
    fn listed_unreadable(&mut self, _: Option<UnreadableObject>) {}
    fn complete(&mut self) -> impl Future<Output = ()> {
        ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_task_of_an_object_is_small() {
        let key = ObjectName::new(ReferenceKind::Secret, "ns", "s");
        let task = follow::<SecretWire>(Weak::new(), key, Rc::default());
        assert!(size_of_val(&task) <= 3 << 10, "{} bytes", size_of_val(&task));
    }
}
