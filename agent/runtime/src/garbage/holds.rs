//! Images that must not be removed now, because a container is about to be made of them.
//!
//! ```text
//!   resolving ─> image found or pulled ─> hold ─> container created ─> hold dropped
//!                                          │ removed meanwhile? then once more, still holding
//!   look ─> containers listed ─> removal of one that is not held and was not held since the look
//! ```
//! Between the runtime's answer that an image is present and the container that keeps it, nothing
//! in the runtime marks it as needed. One thread has all of this, so each step above is whole.
//! Bounds: one removal at a time; ids of images that are held or were since the last look, and of
//! those removed since the oldest resolution in progress began.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tokio::sync::Notify;

/// The holds on images. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds(Rc<SharedHolds>);

#[derive(Debug, Default)]
struct SharedHolds {
    state: RefCell<State>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    held: BTreeMap<String, u32>,
    /// Held at some time since the last look.
    held_since: BTreeSet<String>,
    /// Names of the image that is being removed.
    removing: Vec<String>,
    /// Removals that have ended.
    removals: u64,
    /// How many are resolving, by the number of removals that had ended when they began.
    resolving: BTreeMap<u64, u32>,
    /// Images removed during a resolution: the number of the last removal of each.
    removed: BTreeMap<String, u64>,
    changed: bool,
}

impl Holds {
    /// Begins a resolution: the caller is about to find out which image it needs.
    pub(crate) fn resolving(&self) -> Resolving {
        let mut state = self.0.state.borrow_mut();
        let began = state.removals;
        *state.resolving.entry(began).or_default() += 1;
        Resolving { of: self.clone(), began }
    }

    /// Keeps an image until the hold is dropped.
    pub(crate) fn hold(&self, id: &str) -> Hold {
        let mut state = self.0.state.borrow_mut();
        *state.held.entry(id.to_owned()).or_default() += 1;
        state.held_since.insert(id.to_owned());
        state.changed = true;
        Hold { of: self.clone(), id: id.to_owned() }
    }

    /// Another event than a start changed the present or used images.
    pub(crate) fn changed(&self) {
        self.0.state.borrow_mut().changed = true;
    }

    /// True after a change since the last look.
    pub(super) fn has_changed(&self) -> bool {
        self.0.state.borrow().changed
    }

    /// A look at images and containers begins: images held from now on may be missing in it.
    pub(super) fn look(&self) {
        let mut state = self.0.state.borrow_mut();
        state.held_since = state.held.keys().cloned().collect();
        state.changed = false;
    }

    /// Begins the removal of the image with these names; `None` when it is or was held since the
    /// last look, or when another one is being removed.
    pub(super) fn remove(&self, names: Vec<String>) -> Option<Removal> {
        let mut state = self.0.state.borrow_mut();
        let needed = names.iter().any(|name| state.held_since.contains(name));
        if needed || !state.removing.is_empty() {
            return None;
        }
        state.removing = names;
        Some(Removal(self.clone()))
    }
}

/// A resolution in progress: its owner finds out which image it needs.
pub(crate) struct Resolving {
    of: Holds,
    /// The number of removals that had ended at the start: their images could not be found any
    /// more.
    began: u64,
}

impl Resolving {
    /// True if the image may have been removed since; returns once no removal of it is under way.
    pub(crate) async fn lost(&self, id: &str) -> bool {
        let shared = &self.of.0;
        while shared.state.borrow().removing.iter().any(|name| name == id) {
            // Nothing runs between the look above and the first poll of this.
            shared.ended.notified().await;
        }
        shared.state.borrow().removed.get(id).is_some_and(|removal| *removal > self.began)
    }
}

impl Drop for Resolving {
    fn drop(&mut self) {
        let mut state = self.of.0.state.borrow_mut();
        let left = state.resolving.get_mut(&self.began).map(|count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left == Some(0) {
            state.resolving.remove(&self.began);
        }
        let oldest = state.resolving.keys().next().copied().unwrap_or(u64::MAX);
        state.removed.retain(|_, removal| *removal > oldest);
    }
}

/// An image that stays.
#[derive(Debug)]
pub(crate) struct Hold {
    of: Holds,
    id: String,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.of.0.state.borrow_mut();
        let left = state.held.get_mut(&self.id).map(|count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left == Some(0) {
            state.held.remove(&self.id);
        }
    }
}

/// A removal under way. However it ends, the image may be gone afterwards.
pub(super) struct Removal(Holds);

impl Drop for Removal {
    fn drop(&mut self) {
        let mut state = self.0.0.state.borrow_mut();
        let names = std::mem::take(&mut state.removing);
        state.removals += 1;
        if !state.resolving.is_empty() {
            let number = state.removals;
            state.removed.extend(names.into_iter().map(|name| (name, number)));
        }
        self.0.0.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn image_held_now_or_since_the_last_listing_is_not_removed() {
        let holds = Holds::default();
        holds.look();
        let (first, second) = (holds.hold("a"), holds.hold("a"));
        assert!(holds.has_changed());
        drop(first);
        assert!(holds.remove(names(&["digest", "a"])).is_none(), "held by another one");
        drop(second);
        assert!(holds.remove(names(&["a"])).is_none(), "its container was not listed");
        holds.look();
        assert!(!holds.has_changed());
        let removal = holds.remove(names(&["a"])).expect("no hold is left");
        assert!(holds.remove(names(&["b"])).is_none(), "one at a time");
        drop(removal);
        assert!(holds.remove(names(&["b"])).is_some());
    }

    #[tokio::test]
    async fn resolution_racing_with_a_removal_reports_the_image_lost_after_the_removal() {
        let holds = Holds::default();
        let resolving = holds.resolving();
        let removal = holds.remove(names(&["a"])).expect("not held yet");
        let _hold = holds.hold("a");
        assert!(resolving.lost("a").now_or_never().is_none(), "under way");
        drop(removal);
        assert!(resolving.lost("a").await);
        assert!(!resolving.lost("b").await);
        drop(resolving);
        assert!(!holds.resolving().lost("a").await, "a later resolution sees the current images");
        assert!(holds.remove(names(&["a"])).is_none(), "still held");
    }

    #[tokio::test]
    async fn removal_before_a_resolution_began_is_ignored_while_an_older_resolution_runs() {
        let holds = Holds::default();
        let slow = holds.resolving();
        drop(holds.remove(names(&["a"])));
        let later = holds.resolving();
        assert!(!later.lost("a").await, "it was found after the removal");
        assert!(slow.lost("a").await);
        drop(holds.remove(names(&["b"])));
        drop(slow);
        assert!(later.lost("b").await, "kept until the older resolution ends");
        drop(later);
        assert!(holds.0.state.borrow().removed.is_empty(), "no resolution is under way");
    }
}
