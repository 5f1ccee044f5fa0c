//! Points at which tests make the scheduler panic.
//!
//! Input: a point and the number of passes before it panics. Output: a panic there, once. Owner:
//! tests, by thread; empty in builds without tests.

/// Points, in the order in which an attempt passes them.
#[cfg(any(test, feature = "testing"))]
pub const POINTS: [&str; 8] =
    ["filter", "beside", "score", "dry run", "devices", "permit", "make", "event"];

#[cfg(any(test, feature = "testing"))]
thread_local! {
    static ARMED: std::cell::Cell<Option<(&'static str, usize)>> =
        const { std::cell::Cell::new(None) };
}

/// Makes the point panic after so many passes.
#[cfg(any(test, feature = "testing"))]
pub fn arm(point: &'static str, after: usize) {
    ARMED.set(Some((point, after)));
}

/// Disarms the point; true if the panic has not happened.
#[cfg(any(test, feature = "testing"))]
pub fn disarm() -> bool {
    ARMED.take().is_some()
}

/// A point is passed.
#[inline]
pub(crate) fn pass(_point: &str) {
    #[cfg(any(test, feature = "testing"))]
    match ARMED.get() {
        Some((point, 0)) if point == _point => {
            ARMED.set(None);
            panic!("injected at {point}");
        }
        Some((point, left)) if point == _point => ARMED.set(Some((point, left - 1))),
        _ => {}
    }
}
