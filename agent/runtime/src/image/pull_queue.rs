//! The pulls that wait for their turn, for `explain`: a pod cannot see that it waits for others.
//!
//! Input: the puller enters an image and holds its place until the pull begins or is given up.
//! Output: images and since when they wait, in their order, for readers on any thread. Bound: one
//! place a pull, and a pod pulls one image at a time. Nothing is decided here; the turns are the
//! puller's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The queue. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct PullQueue(Arc<Mutex<PullPlaces>>);

#[derive(Debug, Default)]
struct PullPlaces {
    next: u64,
    taken: BTreeMap<u64, (String, Instant)>,
}

/// A place in the queue; dropping it leaves.
#[derive(Debug)]
pub struct PullPlace {
    queue: PullQueue,
    key: u64,
}

impl PullQueue {
    /// Enters an image at the end.
    pub fn enter(&self, image: &str) -> PullPlace {
        let mut places = self.lock();
        let key = places.next;
        places.next += 1;
        places.taken.insert(key, (image.to_owned(), Instant::now()));
        PullPlace { queue: self.clone(), key }
    }

    /// Images that wait, and since when; the first in the queue is the first here.
    pub fn waiting(&self) -> Vec<(String, Instant)> {
        self.lock().taken.values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, PullPlaces> {
        // No code that holds the lock can panic half way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PullPlace {
    fn drop(&mut self) {
        self.queue.lock().taken.remove(&self.key);
    }
}
