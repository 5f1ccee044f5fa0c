//! Counts visits of pods, so that tests can measure the cost of an input.

use std::cell::Cell;

thread_local! {
    static VISITS: Cell<u64> = const { Cell::new(0) };
}

/// A pod is visited.
pub(super) fn count() {
    VISITS.set(VISITS.get() + 1);
}

/// Runs a test's own look without counting it.
pub(super) fn uncounted(look: impl FnOnce()) {
    let before = VISITS.get();
    look();
    VISITS.set(before);
}

/// How often that was, so far.
pub(super) fn so_far() -> u64 {
    VISITS.get()
}
