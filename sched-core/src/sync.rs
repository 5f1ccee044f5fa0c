//! Synchronization primitives of the shared cluster, in a form that loom can explore.
//!
//! With `--cfg loom`, atomics and mutexes are loom's, and the cell that holds an epoch is a mutex
//! around a pointer, which behaves like `arc-swap`. Otherwise they are the real ones.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

pub(crate) use std::sync::Arc;

/// A pointer that is replaced as a whole.
#[derive(Debug)]
pub(crate) struct ArcCell<V>(#[cfg(not(loom))] arc_swap::ArcSwap<V>, #[cfg(loom)] Mutex<Arc<V>>);

impl<V> ArcCell<V> {
    #[cfg(not(loom))]
    pub(crate) fn new(value: Arc<V>) -> Self {
        Self(arc_swap::ArcSwap::new(value))
    }

    #[cfg(not(loom))]
    pub(crate) fn load(&self) -> Arc<V> {
        self.0.load_full()
    }

    #[cfg(not(loom))]
    pub(crate) fn store(&self, value: Arc<V>) {
        self.0.store(value);
    }

    #[cfg(loom)]
    pub(crate) fn new(value: Arc<V>) -> Self {
        Self(Mutex::new(value))
    }

    #[cfg(loom)]
    pub(crate) fn load(&self) -> Arc<V> {
        Arc::clone(&self.0.lock().expect("not poisoned"))
    }

    #[cfg(loom)]
    pub(crate) fn store(&self, value: Arc<V>) {
        *self.0.lock().expect("not poisoned") = value;
    }
}
