//! One writer at a time for each volume that pods of this node share.
//!
//! Input: the volume's name. Output: a guard; no other task mounts or unmounts that volume while it
//! lives. The lock is of the process, because set-up waits for programs in a task and teardown runs
//! on a thread of the pool. Bounds: an entry lives as long as a guard or a waiter of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

type Locks = BTreeMap<String, Arc<tokio::sync::Mutex<()>>>;

/// Locks of volumes in use.
static LOCKS: Mutex<Locks> = Mutex::new(BTreeMap::new());

/// Holds a volume's lock until it is dropped.
#[derive(Debug)]
pub(super) struct VolumeGuard {
    guard: Option<OwnedMutexGuard<()>>,
    name: String,
}

/// Waits for the volume's lock.
pub(super) async fn lock(name: &str) -> VolumeGuard {
    let guard = entry(name).lock_owned().await;
    VolumeGuard { guard: Some(guard), name: name.to_owned() }
}

/// The volume's lock unless it is taken.
pub(super) fn try_lock(name: &str) -> Option<VolumeGuard> {
    let guard = entry(name).try_lock_owned().ok()?;
    Some(VolumeGuard { guard: Some(guard), name: name.to_owned() })
}

fn entry(name: &str) -> Arc<tokio::sync::Mutex<()>> {
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(locks.entry(name.to_owned()).or_default())
}

impl Drop for VolumeGuard {
    fn drop(&mut self) {
        let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.guard.take());
        // Only the table has it.
        if locks.get(&self.name).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn volume_lock_has_a_single_holder_and_leaves_no_entry() {
        let name = "keyed-lock-test";
        let first = lock(name).await;
        assert!(try_lock(name).is_none());
        assert!(try_lock("keyed-lock-other").is_some());
        drop(first);
        drop(try_lock(name).expect("free again"));
        let locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!locks.contains_key(name));
    }
}
