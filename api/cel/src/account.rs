//! Limits of one evaluation.
//!
//! Input: charges, each before the work or the memory that it pays for. Output: may the evaluation
//! continue? Owner: one evaluation. Bounds: `COST_MAX` of upstream's units, [`BYTES_MAX`] bytes,
//! `TEXT_BYTES` of one text, [`DEPTH_MAX`] calls within each other, and what the attempt has left.
//! Two accounts, because upstream's units count what an expression is written to do and not what it
//! takes here: they decide which answers there are, the attempt's budget decides how long it may
//! take. Once a limit is exceeded every later charge fails too.
// k8s: vendor/github.com/google/cel-go/interpreter/runtimecost.go

use std::cell::Cell;

use pintle_sched_core::attempt_budget::{AttemptBudget, Exhausted};

use super::error::CelError;
use super::value::{MapKey, Value};
use super::{COST_MAX, Unanswered};

/// Memory limit of one evaluation, in bytes: in sum, freed memory is not paid back.
const BYTES_MAX: u64 = 64 << 20;
/// Longest text that an expression can create, in bytes.
pub(super) const TEXT_BYTES: usize = 1 << 20;
/// Limit of nested calls: through parts of the tree, bound values and nested lists.
const DEPTH_MAX: usize = 1_000;
/// Work between two checks of the node's time limit.
const LATE_EVERY: u64 = 4_096;
/// Bytes read or copied for one unit of work.
const BYTES_OF_UNIT: u64 = 16;
/// Label of budget steps spent on evaluation.
const PURPOSE: &str = "evaluating CEL expressions";

/// Limits that an evaluation shares with others.
#[derive(Clone, Copy)]
pub struct EvaluationLimits<'a> {
    /// Budget of the attempt.
    pub budget: &'a AttemptBudget,
    /// Has the filter spent its time limit on this node?
    pub is_late: &'a dyn Fn() -> bool,
}

/// Reason why an evaluation ends without a value, even if `||` or `&&` could absorb an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvaluationEnd {
    Late,
    Exhausted(Exhausted),
    Error(&'static str),
}

/// The account of one evaluation.
pub(super) struct Account<'a> {
    limits: EvaluationLimits<'a>,
    cost: Cell<u64>,
    bytes: Cell<u64>,
    depth: Cell<usize>,
    work_since_late: Cell<u64>,
    end: Cell<Option<EvaluationEnd>>,
}

/// Result of a charge: accepted, or the text of the error.
pub(super) type Paid = Result<(), CelError>;

impl<'a> Account<'a> {
    pub(super) fn new(limits: EvaluationLimits<'a>) -> Self {
        Self {
            limits,
            cost: Cell::new(0),
            bytes: Cell::new(0),
            depth: Cell::new(0),
            work_since_late: Cell::new(0),
            end: Cell::new(None),
        }
    }

    /// Charges upstream's units.
    pub(super) fn charge(&self, cost: u64) -> Paid {
        self.cost.set(self.cost.get().saturating_add(cost));
        match self.cost.get() > COST_MAX {
            true => {
                self.end(EvaluationEnd::Error("operation cancelled: actual cost limit exceeded"))
            }
            false => self.still(),
        }
    }

    /// Charges work, in units of the attempt's budget.
    pub(super) fn work(&self, units: u64) -> Paid {
        let since = self.work_since_late.get().saturating_add(units);
        if since >= LATE_EVERY {
            return self.at_once(units);
        }
        self.work_since_late.set(since);
        self.took(self.limits.budget.pay(units, PURPOSE))
    }

    /// Charges work and reads the clocks first: before a call that cannot be interrupted.
    pub(super) fn at_once(&self, units: u64) -> Paid {
        self.work_since_late.set(0);
        if (self.limits.is_late)() {
            return self.end(EvaluationEnd::Late);
        }
        self.took(self.limits.budget.pay_at_once(units, PURPOSE))
    }

    /// Charges reading this many bytes.
    pub(super) fn read(&self, bytes: usize) -> Paid {
        self.work(1 + bytes as u64 / BYTES_OF_UNIT)
    }

    /// Charges memory, and the work to fill it.
    pub(super) fn bytes(&self, bytes: u64) -> Paid {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        if self.bytes.get() > BYTES_MAX {
            return self.end(EvaluationEnd::Error("operation cancelled: memory limit exceeded"));
        }
        self.took(self.limits.budget.pay_bytes(bytes, PURPOSE))?;
        self.work(1 + bytes / BYTES_OF_UNIT)
    }

    /// Charges a text of this length.
    pub(super) fn text(&self, bytes: usize) -> Paid {
        match bytes > TEXT_BYTES {
            true => {
                self.end(EvaluationEnd::Error("operation cancelled: text length limit exceeded"))
            }
            false => self.bytes(bytes as u64),
        }
    }

    /// Charges a list of this length.
    pub(super) fn list(&self, values: usize) -> Paid {
        self.bytes((values as u64).saturating_mul(size_of::<Value>() as u64))
    }

    /// Charges an entry of a map.
    pub(super) fn entry(&self, key: &MapKey) -> Paid {
        self.read(key.bytes())?;
        self.bytes(2 * (size_of::<MapKey>() + size_of::<Value>()) as u64)
    }

    /// Runs `inner` one level deeper.
    pub(super) fn deeper<T>(
        &self,
        inner: impl FnOnce() -> Result<T, CelError>,
    ) -> Result<T, CelError> {
        if self.depth.get() >= DEPTH_MAX {
            self.end(EvaluationEnd::Error("operation cancelled: recursion limit exceeded"))?;
        }
        self.depth.set(self.depth.get() + 1);
        let found = inner();
        self.depth.set(self.depth.get() - 1);
        found
    }

    /// Replaces a result by the limit that ended the evaluation, if one did.
    pub(super) fn ended(&self, found: Result<Value, CelError>) -> Result<Value, Unanswered> {
        match self.end.get() {
            None => found.map_err(Unanswered::Error),
            Some(EvaluationEnd::Late) => Err(Unanswered::Late),
            Some(EvaluationEnd::Exhausted(exhausted)) => Err(Unanswered::Exhausted(exhausted)),
            Some(EvaluationEnd::Error(error)) => Err(Unanswered::Error(error.into())),
        }
    }

    /// Returns the cost so far, in upstream's units.
    pub(super) fn cost(&self) -> u64 {
        self.cost.get()
    }

    /// Returns an error if a limit was exceeded.
    pub(super) fn still(&self) -> Paid {
        match self.end.get() {
            None => Ok(()),
            Some(end) => self.end(end),
        }
    }

    fn took(&self, paid: Result<(), Exhausted>) -> Paid {
        match paid {
            Ok(()) => self.still(),
            Err(exhausted) => self.end(EvaluationEnd::Exhausted(exhausted)),
        }
    }

    /// Records the first limit that was exceeded.
    fn end(&self, end: EvaluationEnd) -> Paid {
        let first = self.end.get().unwrap_or(end);
        self.end.set(Some(first));
        Err(match first {
            EvaluationEnd::Late => "operation interrupted".into(),
            EvaluationEnd::Exhausted(exhausted) => exhausted.to_string().into(),
            EvaluationEnd::Error(error) => error.into(),
        })
    }
}
