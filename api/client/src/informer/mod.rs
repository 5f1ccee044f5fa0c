//! Shared informers: a cache of a kind's objects at the API server, for any number of readers.
//!
//! ```text
//!   API server ──list, watch──> task ──> reflector (pure): what to ask for next
//!                                │ pages, lines, head (pure): bytes to objects, one at a time
//!                                v
//!                              store ──Arc<T>──> readers, by key or index
//!                                │ changes
//!                                v
//!                              pending (pure) ──ObjectChange──> one subscriber each
//! ```
//! The type of the objects is the caller's and names the fields that it reads; no other field is
//! kept, and no generic value is made in between. A subscriber receives the changes of an object in
//! order, each with the state that it received last; a slow subscriber gets fewer changes and
//! delays no other. An outage changes nothing: the cache stays until the API server reports a
//! change. A caller that keeps a record of its own instead of a store receives one object after the
//! other from [`follow`]. Owner: the caller that spawns [`Informer::run`]. Bounds: see `head`,
//! `lines`, `reflector`, `pending`, `task`.
// k8s: staging/src/k8s.io/client-go/tools/cache/{reflector,shared_informer}.go

mod backoff;
mod error;
mod head;
mod lines;
mod observer;
mod pages;
mod pending;
mod reflector;
#[cfg(test)]
mod reflector_tests;
mod sink;
mod store;
mod subscription;
mod task;
mod wire;
#[cfg(test)]
mod world_tests;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use pintle_api_types::object::Object;

pub use backoff::REFLECTOR_BACKOFF;
pub use error::InformerError;
pub use observer::InformerObserver;
pub use pending::ObjectChange;
pub use reflector::FirstList;
pub use sink::ObjectSink;
pub use store::{IndexBy, IndexValues, ObjectStore};
pub use subscription::Subscription;
pub use wire::ObjectSource;

use observer::NoObserver;
use sink::StoreSink;
use task::FollowTask;

/// The kind to list and watch, and how.
#[derive(Clone)]
pub struct FollowSpec {
    /// Its name in messages and metrics: `pods`.
    pub name: String,
    /// The paths of the objects.
    pub source: ObjectSource,
    /// The state that the first list must have.
    pub first_list: FirstList,
    /// First and longest wait after failures; jitter makes each up to twice as long.
    pub retry: (Duration, Duration),
    /// Receives lists, watches and failures.
    pub observer: Arc<dyn InformerObserver>,
    /// True for one of very many informers: its outages are logged at debug level.
    pub quiet: bool,
}

impl FollowSpec {
    /// All objects below a path, such as `/api/v1/pods`.
    pub fn new(name: &str, path: &str) -> Self {
        let source = ObjectSource { paths: vec![path.to_owned()], ..Default::default() };
        Self {
            name: name.to_owned(),
            source,
            first_list: FirstList::default(),
            retry: REFLECTOR_BACKOFF,
            observer: Arc::new(NoObserver),
            quiet: false,
        }
    }
}

/// Lists and watches, and passes each object to the sink, until the future is dropped.
pub fn follow<T: Object, S: ObjectSink<T>>(
    client: Client,
    spec: FollowSpec,
    sink: S,
) -> impl Future<Output = ()> + use<T, S> {
    FollowTask::new(client, Arc::new(spec), sink).run()
}

/// Follows the objects of a kind and keeps them for many readers. Clones share everything.
pub struct Informer<T> {
    spec: Arc<FollowSpec>,
    store: Arc<ObjectStore<T>>,
}

impl<T> Clone for Informer<T> {
    fn clone(&self) -> Self {
        Self { spec: Arc::clone(&self.spec), store: Arc::clone(&self.store) }
    }
}

impl<T: Object> Informer<T> {
    /// An informer that is empty until it runs; `indexes` are the lookups in addition to that by
    /// key.
    pub fn new(spec: FollowSpec, indexes: &[IndexBy<T>]) -> Self {
        Self { spec: Arc::new(spec), store: Arc::new(ObjectStore::new(indexes)) }
    }

    /// Lists and watches until the future is dropped. To be called once.
    pub fn run(&self, client: Client) -> impl Future<Output = ()> + Send + use<T> {
        let sink = StoreSink::new(Arc::clone(&self.store));
        FollowTask::new(client, Arc::clone(&self.spec), sink).run()
    }

    /// The cache.
    pub fn store(&self) -> &Arc<ObjectStore<T>> {
        &self.store
    }

    /// Changes from now on, after every current object.
    pub fn subscribe(&self) -> Subscription<T> {
        Subscription::new(&self.store)
    }
}
