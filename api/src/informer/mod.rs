//! Shared informers: what the API server has of a kind, kept current, for any number of readers.
//!
//! ```text
//!   API server ──list, watch──> task ──> reflector (pure): what to ask for next
//!                                │ pages, lines (pure): bytes to objects, one at a time
//!                                v
//!                              store ──Arc<T>──> readers, by key or index
//!                                │ changes
//!                                v
//!                              pending (pure) ──ObjectChange──> one subscriber each
//! ```
//! The type of the objects is the user's and names the fields that it reads; nothing else is kept,
//! and no generic value is made in between. Changes are told per object in order, with what the
//! subscriber was told last; a slow subscriber gets fewer of them and holds up nobody. An outage
//! changes nothing: what was known stays until the API server says otherwise.
//! Owner: whoever spawns [`Informer::run`]. Bounds: see `lines`, `reflector`, `pending`, `task`.
// k8s: staging/src/k8s.io/client-go/tools/cache/{reflector,shared_informer}.go

mod backoff;
mod error;
mod lines;
mod object;
mod observer;
mod pages;
mod pending;
mod reflector;
#[cfg(test)]
mod reflector_tests;
mod store;
mod subscription;
mod symbol;
mod task;
mod wire;
#[cfg(test)]
mod world_tests;

use std::sync::Arc;

use kube::Client;

pub use error::InformerError;
pub use object::{Object, ObjectKey, PrunedMeta};
pub use observer::InformerObserver;
pub use pending::ObjectChange;
pub use reflector::FirstList;
pub use store::{IndexBy, IndexValues, ObjectStore};
pub use subscription::Subscription;
pub use symbol::Symbol;
pub use wire::ObjectSource;

use observer::Nobody;
use task::InformerTask;

/// What an informer is to follow.
pub struct InformerSpec<T> {
    /// For messages and metrics: `pods`.
    pub name: String,
    /// Where the objects are.
    pub source: ObjectSource,
    /// Which state the first list has to have.
    pub first_list: FirstList,
    /// How objects can be found but by key.
    pub indexes: Vec<IndexBy<T>>,
    /// Told of lists, watches and failures.
    pub observer: Arc<dyn InformerObserver>,
}

impl<T> InformerSpec<T> {
    /// All objects below a path, such as `/api/v1/pods`.
    pub fn new(name: &str, path: &str) -> Self {
        let source = ObjectSource { paths: vec![path.to_owned()], ..Default::default() };
        Self {
            name: name.to_owned(),
            source,
            first_list: FirstList::default(),
            indexes: Vec::new(),
            observer: Arc::new(Nobody),
        }
    }
}

/// Follows the objects of a kind. Clones share everything.
pub struct Informer<T> {
    spec: Arc<InformerSpec<T>>,
    store: Arc<ObjectStore<T>>,
}

impl<T> Clone for Informer<T> {
    fn clone(&self) -> Self {
        Self { spec: Arc::clone(&self.spec), store: Arc::clone(&self.store) }
    }
}

impl<T: Object> Informer<T> {
    /// One that knows nothing until it is run.
    pub fn new(spec: InformerSpec<T>) -> Self {
        let store = Arc::new(ObjectStore::new(&spec.indexes));
        Self { spec: Arc::new(spec), store }
    }

    /// Lists and watches until it is dropped. To be run once.
    pub fn run(&self, client: Client) -> impl Future<Output = ()> + Send + use<T> {
        InformerTask::new(client, Arc::clone(&self.spec), Arc::clone(&self.store)).run()
    }

    /// What is known.
    pub fn store(&self) -> &Arc<ObjectStore<T>> {
        &self.store
    }

    /// Changes from now on, after what is known.
    pub fn subscribe(&self) -> Subscription<T> {
        Subscription::new(&self.store)
    }
}
