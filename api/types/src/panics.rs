//! Panics that are caught: their message, their place, and how many there were.
//!
//! Input: work that may panic. Output: its result, or [`Panicked`]. Owner: the code that catches;
//! counts are the process's, by the name of a task. Bounds: a count for each name. A panic hook, if
//! the program has one, reports the place with [`set_place`]; without it the message has none.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::{Mutex, PoisonError};

static PANICS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// Depth of `catch` around the code that runs.
    static CATCHING: Cell<u32> = const { Cell::new(0) };
    /// Place of the last panic of this thread, for the code that catches it.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A panic that was caught: its message and where it happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("panic: {0}")]
pub struct Panicked(pub String);

/// Catches a panic of code that does not wait.
///
/// # Errors
/// When it panics.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    CATCHING.set(CATCHING.get() + 1);
    // Half-done state of the panic is dropped with the task, or the process ends.
    let done = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(CATCHING.get() - 1);
    done.map_err(|payload| {
        let place = PLACE.take().map(|place| format!(", at {place}")).unwrap_or_default();
        Panicked(format!("{}{place}", message(&*payload)))
    })
}

/// Counts the panic of a task that continues without the work that panicked.
pub fn counted(task: &'static str) {
    let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    *panics.entry(task).or_default() += 1;
}

/// Panics by the name of their task, since the start.
pub fn panics() -> BTreeMap<&'static str, u64> {
    PANICS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns true if a panic of this thread would be caught by `catch`.
pub fn is_catching() -> bool {
    CATCHING.get() > 0
}

/// Keeps the place of a panic for the code that catches it.
pub fn set_place(place: Option<&Location<'_>>) {
    PLACE.set(place.map(ToString::to_string));
}

/// The message of a panic.
pub fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caught_panic_has_its_message_and_its_location_if_known() {
        assert_eq!(catch(|| 7), Ok(7));
        let caught = catch(|| {
            assert!(is_catching());
            set_place(Some(Location::caller()));
            std::panic::resume_unwind(Box::new("torn"))
        });
        let Err::<(), _>(Panicked(text)) = caught else { panic!("it panicked") };
        assert!(text.starts_with("torn, at ") && text.contains("panics.rs"), "{text}");
        let caught = catch(|| std::panic::resume_unwind(Box::new("torn".to_owned())));
        assert_eq!(caught, Err::<(), _>(Panicked("torn".to_owned())));
        assert!(!is_catching());
    }

    #[test]
    fn panics_are_counted_by_task() {
        counted("of this test");
        counted("of this test");
        assert_eq!(panics().get("of this test"), Some(&2));
    }
}
