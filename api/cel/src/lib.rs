//! CEL expressions of Kubernetes; for now selectors: expressions about one device of a claim.
//!
//! ```text
//!   text ─lex─> words ─parse─> tree ─check─> Selector ─eval, functions─> yes, no or an error
//! ```
//! Input: an expression of a claim or a class, a device as a [`Value`]. Output: does it match?
//! Owner: pure. Bounds: `TEXT_BYTES_MAX` bytes, a tree `DEPTH_MAX` deep, and for one answer
//! `COST_MAX` of upstream's units, the memory that `account` allows, and what the attempt has left.
//! Reasons for an evaluator of our own: docs/adr/0105-cel-of-our-own.md.
// k8s: staging/src/k8s.io/dynamic-resource-allocation/cel/compile.go

#![forbid(unsafe_code)]

mod account;
mod address;
mod check;
mod cost;
mod error;
mod eval;
mod folds;
mod format;
mod functions;
mod fuzz;
mod go_pattern;
mod lex;
#[cfg(test)]
mod limit_tests;
mod lists;
mod named;
mod parse;
mod patterns;
mod quantity;
mod signatures;
#[cfg(test)]
mod tests;
mod texts;
mod times;
mod url;
mod value;
mod version;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use pintle_sched_core::attempt_budget::Exhausted;
use prometheus_client::metrics::counter::Counter;

use self::account::Account;
pub use self::account::EvaluationLimits;
pub use self::error::CelError;
#[doc(hidden)]
pub use self::fuzz::fuzz as fuzz_cel;
pub use self::patterns::Patterns;
pub use self::quantity::Quantity;
pub use self::value::{Map, Value};
pub use self::version::SemanticVersion;

/// Longest expression.
// k8s: staging/src/k8s.io/api/resource/v1/types.go CELSelectorExpressionMaxLength
const TEXT_BYTES_MAX: usize = 10 * 1024;
/// Cost limit of one answer, in upstream's units.
// k8s: staging/src/k8s.io/api/resource/v1/types.go CELSelectorExpressionMaxCost
const COST_MAX: u64 = 1_000_000;
/// Deepest tree.
const DEPTH_MAX: usize = 128;

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Selector {
    tree: parse::Tree,
}

/// Reason why an expression has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The node's time limit is over.
    Late,
    /// The attempt has spent its budget.
    Exhausted(Exhausted),
    /// The evaluation failed with this error.
    Error(CelError),
}

impl Selector {
    /// Compiles an expression; `lists` says if attributes of devices may be lists.
    ///
    /// # Errors
    /// The expression does not compile.
    pub fn compile(text: &str, lists: bool) -> Result<Self, CelError> {
        let failed = |error: CelError| {
            CelError::from(format!("compilation failed: ERROR: <input>: {error}"))
        };
        let tree = parse::parse(text).map_err(failed)?;
        let kind = check::kind(&tree, lists).map_err(failed)?;
        match kind {
            None | Some("bool") => Ok(Self { tree }),
            Some(other) => {
                Err(format!("must evaluate to bool or the unknown type, not {other}").into())
            }
        }
    }

    /// Does the device match?
    ///
    /// # Errors
    /// The expression fails for it, or exceeds a limit. A panic is such an error too: it fails this
    /// expression, and the scheduler keeps running.
    pub fn matches(
        &self,
        device: &Value,
        patterns: &Patterns,
        limits: EvaluationLimits,
    ) -> Result<bool, Unanswered> {
        self.priced(device, patterns, limits).0
    }

    /// Like `matches`; also returns the cost in upstream's units.
    pub fn priced(
        &self,
        device: &Value,
        patterns: &Patterns,
        limits: EvaluationLimits,
    ) -> (Result<bool, Unanswered>, u64) {
        let account = Account::new(limits);
        let found = catch(|| eval::evaluate(&self.tree, device, patterns, &account));
        (found.and_then(truth), account.cost())
    }
}

/// Converts a value to the answer, or to an error if it is not a boolean.
fn truth(value: Value) -> Result<bool, Unanswered> {
    match value {
        Value::Bool(answer) => Ok(answer),
        other => {
            let kind = other.kind();
            let why = match other {
                Value::List(_) => "type conversion error from list to 'bool'".to_owned(),
                _ => format!("unsupported type conversion from '{kind}' to bool"),
            };
            let why = format!("CEL result of type {kind} could not be converted to bool: {why}");
            Err(Unanswered::Error(why.into()))
        }
    }
}

/// Evaluates, and turns a panic into an error. Values of the evaluation are dropped with it, and
/// shared ones have no state between two calls.
fn catch(evaluate: impl FnOnce() -> Result<Value, Unanswered>) -> Result<Value, Unanswered> {
    catch_unwind(AssertUnwindSafe(evaluate)).unwrap_or_else(panicked)
}

/// Turns a panic of an evaluation into an error; logs and counts it.
// k8s: vendor/github.com/google/cel-go/cel/program.go Eval
fn panicked(payload: Box<dyn Any + Send>) -> Result<Value, Unanswered> {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    let error = format!("internal error: {}", text.unwrap_or_else(|| "panic".to_owned()));
    PANICS.inc();
    tracing::error!(error, "a CEL expression could not be evaluated");
    Err(Unanswered::Error(error.into()))
}

/// Evaluations that ended in a panic, since the program started.
static PANICS: LazyLock<Counter> = LazyLock::new(Counter::default);

/// The count of evaluations that ended in a panic.
pub fn panics() -> Counter {
    PANICS.clone()
}
