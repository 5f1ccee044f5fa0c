//! Taints of nodes, interned.
//!
//! Input: texts of API objects. Output: values that filters compare. Owner: the parser of nodes and
//! pods. Bounds: a taint is 32 bytes. Why a number beside the value: tolerations compare it
//! for every node.

use crate::intern::Str;

/// Effect of a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Effect {
    /// Filters.
    NoSchedule,
    /// Filters, and evicts.
    NoExecute,
    /// Scores.
    PreferNoSchedule,
    /// Something else: ignored.
    Other,
}

/// A taint of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeTaint {
    /// Key.
    pub key: Str,
    /// Value.
    pub value: Str,
    /// The value as a number, if it is one.
    pub number: Option<i64>,
    /// Effect.
    pub effect: Effect,
}

/// Parses the value of a taint or a toleration as a number in canonical form: no plus and no
/// leading zeros.
// k8s: apimachinery/pkg/api/validate/content/decimal_int.go IsDecimalInteger
pub(crate) fn whole_number(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_plain = digits.bytes().all(|c| c.is_ascii_digit());
    let is_only = text == "0" || !digits.starts_with('0');
    if is_plain && is_only { text.parse().ok() } else { None }
}
