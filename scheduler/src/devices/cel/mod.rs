//! Selectors of devices: expressions of CEL about one device.
//!
//! ```text
//!   text ─lex─> words ─parse─> tree ─check─> Selector ─eval, functions─> yes, no or an error
//! ```
//! Input: an expression of a claim or a class, a device as a [`Value`]. Output: whether it fits.
//! Owner: pure. Bounds: `TEXT_BYTES_MAX` bytes, a tree `DEPTH_MAX` deep, `COST_MAX` steps for one
//! answer, which ends when its caller says that it is late. Why not a crate: docs/adr/0105-cel-of-our-own.md.
// k8s: staging/src/k8s.io/dynamic-resource-allocation/cel/compile.go

mod address;
mod check;
mod eval;
mod format;
mod functions;
mod lex;
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

pub(crate) use self::patterns::Patterns;
pub(crate) use self::quantity::Quantity;
pub(crate) use self::value::{Map, Value};
pub(crate) use self::version::Version;

/// Longest expression.
// k8s: staging/src/k8s.io/api/resource/v1/types.go CELSelectorExpressionMaxLength
const TEXT_BYTES_MAX: usize = 10 * 1024;
/// Most steps of one answer.
// k8s: staging/src/k8s.io/api/resource/v1/types.go CELSelectorExpressionMaxCost
const COST_MAX: u64 = 1_000_000;
/// Deepest tree.
const DEPTH_MAX: usize = 128;

/// An expression that was read.
#[derive(Clone, Debug)]
pub(crate) struct Selector {
    tree: parse::Tree,
}

/// Why an expression has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// It took too long.
    Late,
    Error(String),
}

impl Selector {
    /// Reads an expression, of devices whose attributes may be lists, or may not.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn compile(text: &str, lists: bool) -> Result<Self, String> {
        let failed = |error: String| format!("compilation failed: ERROR: <input>: {error}");
        let tree = parse::parse(text).map_err(failed)?;
        let kind = check::kind(&tree, lists).map_err(failed)?;
        match kind {
            None | Some("bool") => Ok(Self { tree }),
            Some(other) => Err(format!("must evaluate to bool or the unknown type, not {other}")),
        }
    }

    /// Whether a device fits.
    ///
    /// # Errors
    /// When the expression has no answer for it, or none in time.
    pub(crate) fn matches(
        &self,
        device: &Value,
        patterns: &Patterns,
        is_late: &dyn Fn() -> bool,
    ) -> Result<bool, Unanswered> {
        match eval::evaluate(&self.tree, device, patterns, is_late)? {
            Value::Bool(answer) => Ok(answer),
            other => {
                let kind = other.kind();
                let why = match other {
                    Value::List(_) => "type conversion error from list to 'bool'".to_owned(),
                    _ => format!("unsupported type conversion from '{kind}' to bool"),
                };
                Err(Unanswered::Error(format!(
                    "CEL result of type {kind} could not be converted to bool: {why}"
                )))
            }
        }
    }
}
