//! Budget of one scheduling attempt for work with a size that users decide.
//!
//! Input: the limits of an attempt, and charges from every loop with a length that depends on a
//! user's object (CEL steps, bytes, regexes, devices, victims, affinity terms, volumes). Output:
//! may the attempt continue? Owner: one attempt, one thread. A charge is made *before* the work it
//! pays for. Once a limit is exceeded every later charge fails too, so that a loop that ignores one
//! error ends at the next. Why not the clock alone: a single regex or list may take longer than the
//! whole deadline, so work and memory are priced as well; why not prices alone: they are estimates,
//! the deadline is a promise.

use std::cell::Cell;
use std::fmt;

/// Work after which the clock is read again, in units of [`Limits::work`].
const CLOCK_EVERY: u64 = 4096;

/// Limits of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Units of work. One unit is about ten nanoseconds: one element compared, one byte scanned.
    pub work: u64,
    /// Bytes allocated for values, texts and candidates, in sum: what is freed is not paid back.
    pub bytes: u64,
}

impl Limits {
    /// No limit on either.
    pub const NONE: Self = Self { work: u64::MAX, bytes: u64::MAX };
}

/// The limit of an attempt that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Its deadline.
    Time,
    /// [`Limits::work`].
    Work,
    /// [`Limits::bytes`].
    Memory,
}

/// An attempt exceeded a limit. `Display` is the end of a sentence about the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// The limit.
    pub limit: Limit,
    /// The work that was charged, as a gerund: "evaluating CEL expressions".
    pub purpose: &'static str,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = match self.limit {
            Limit::Time => "time",
            Limit::Work => "work",
            Limit::Memory => "memory",
        };
        write!(f, "the {limit} limit of one scheduling attempt was exceeded while {}", self.purpose)
    }
}

impl std::error::Error for Exhausted {}

/// The budget of one attempt.
pub struct AttemptBudget {
    work_left: Cell<u64>,
    bytes_left: Cell<u64>,
    work_since_clock: Cell<u64>,
    is_past_deadline: Box<dyn Fn() -> bool>,
    exhausted: Cell<Option<Exhausted>>,
}

impl fmt::Debug for AttemptBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptBudget")
            .field("work_left", &self.work_left.get())
            .field("bytes_left", &self.bytes_left.get())
            .field("exhausted", &self.exhausted.get())
            .finish_non_exhaustive()
    }
}

impl Default for AttemptBudget {
    /// Returns [`AttemptBudget::unlimited`].
    fn default() -> Self {
        Self::unlimited()
    }
}

impl AttemptBudget {
    /// Creates a budget with these limits; `is_past_deadline` is the clock.
    pub fn new(limits: Limits, is_past_deadline: impl Fn() -> bool + 'static) -> Self {
        Self {
            work_left: Cell::new(limits.work),
            bytes_left: Cell::new(limits.bytes),
            work_since_clock: Cell::new(0),
            is_past_deadline: Box::new(is_past_deadline),
            exhausted: Cell::new(None),
        }
    }

    /// Creates a budget that is never exhausted, for tools that answer a single question.
    pub fn unlimited() -> Self {
        Self::new(Limits::NONE, || false)
    }

    /// Charges work; reads the clock periodically.
    ///
    /// # Errors
    /// The attempt has exceeded a limit, by this charge or an earlier one.
    pub fn pay(&self, work: u64, purpose: &'static str) -> Result<(), Exhausted> {
        let since = self.work_since_clock.get().saturating_add(work);
        self.work_since_clock.set(since);
        if since >= CLOCK_EVERY {
            return self.pay_at_once(work, purpose);
        }
        self.take(work, purpose)
    }

    /// Charges work and reads the clock first: before a call that cannot be interrupted.
    ///
    /// # Errors
    /// As [`AttemptBudget::pay`].
    pub fn pay_at_once(&self, work: u64, purpose: &'static str) -> Result<(), Exhausted> {
        self.work_since_clock.set(0);
        if self.exhausted.get().is_none() && (self.is_past_deadline)() {
            return self.exhaust(Limit::Time, purpose);
        }
        self.take(work, purpose)
    }

    /// Charges memory before it is allocated.
    ///
    /// # Errors
    /// As [`AttemptBudget::pay`].
    pub fn pay_bytes(&self, bytes: u64, purpose: &'static str) -> Result<(), Exhausted> {
        match self.bytes_left.get().checked_sub(bytes) {
            Some(left) => self.bytes_left.set(left),
            None => return self.exhaust(Limit::Memory, purpose),
        }
        self.exhausted.get().map_or(Ok(()), Err)
    }

    /// Returns the limit that was exceeded first, if any was.
    pub fn exhausted(&self) -> Option<Exhausted> {
        self.exhausted.get()
    }

    fn take(&self, work: u64, purpose: &'static str) -> Result<(), Exhausted> {
        match self.work_left.get().checked_sub(work) {
            Some(left) => self.work_left.set(left),
            None => return self.exhaust(Limit::Work, purpose),
        }
        self.exhausted.get().map_or(Ok(()), Err)
    }

    /// Records the first limit that was exceeded.
    fn exhaust(&self, limit: Limit, purpose: &'static str) -> Result<(), Exhausted> {
        let first = self.exhausted.get().unwrap_or(Exhausted { limit, purpose });
        self.exhausted.set(Some(first));
        Err(first)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    const SEARCH: &str = "searching";

    #[test]
    fn charge_above_the_limit_fails_and_so_does_each_later_one() {
        let budget = AttemptBudget::new(Limits { work: 10, bytes: 10 }, || false);
        assert_eq!(budget.pay(10, SEARCH), Ok(()));
        let spent = Exhausted { limit: Limit::Work, purpose: SEARCH };
        assert_eq!(budget.pay(1, SEARCH), Err(spent));
        assert_eq!(budget.pay_bytes(1, "copying"), Err(spent));
        assert_eq!(budget.exhausted(), Some(spent));
    }

    #[test]
    fn clock_is_read_before_a_call_that_cannot_be_interrupted() {
        let late = Rc::new(Cell::new(false));
        let seen = Rc::clone(&late);
        let budget = AttemptBudget::new(Limits::NONE, move || seen.get());
        assert_eq!(budget.pay_at_once(1, SEARCH), Ok(()));
        late.set(true);
        assert_eq!(budget.pay(1, SEARCH), Ok(()), "the clock is read now and then");
        let spent = Exhausted { limit: Limit::Time, purpose: SEARCH };
        assert_eq!(budget.pay_at_once(1, SEARCH), Err(spent));
    }

    #[test]
    fn clock_is_read_after_enough_small_charges() {
        let budget = AttemptBudget::new(Limits::NONE, || true);
        let paid = (0..=CLOCK_EVERY).take_while(|_| budget.pay(1, SEARCH).is_ok()).count();
        assert_eq!(paid as u64, CLOCK_EVERY - 1);
    }

    #[test]
    fn sentence_names_the_limit_and_the_purpose() {
        let spent = Exhausted { limit: Limit::Memory, purpose: "formatting texts" };
        let says = "the memory limit of one scheduling attempt was exceeded while formatting texts";
        assert_eq!(spent.to_string(), says);
    }
}
