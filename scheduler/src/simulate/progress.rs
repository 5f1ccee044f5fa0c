//! A progress bar on standard error.
//!
//! Input: a stage, how far, out of how many. Output: one line that rewrites itself.
//! Owner: the command line. Bounds: at most `REDRAWS` redraws a stage, so that drawing costs
//! nothing.

use std::io::Write;

/// Redraws a stage.
const REDRAWS: usize = 100;
/// Characters of the bar.
const WIDTH: usize = 30;

/// The bar, or nothing.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// A bar that is drawn only when `shown`.
    #[must_use]
    pub fn new(shown: bool) -> Self {
        Self { shown }
    }

    /// `done` of `all` items of a stage.
    pub fn show(&self, stage: &str, done: usize, all: usize) {
        let step = (all / REDRAWS).max(1);
        if !self.shown || !done.is_multiple_of(step) {
            return;
        }
        let filled = (done * WIDTH).checked_div(all).unwrap_or(WIDTH).min(WIDTH);
        let bar = "#".repeat(filled) + &"-".repeat(WIDTH - filled);
        // A progress bar that cannot be drawn is no reason to fail.
        let _ = write!(std::io::stderr(), "\r{stage:<12} [{bar}] {done}/{all}\x1b[K");
    }

    /// Removes the bar.
    pub fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
