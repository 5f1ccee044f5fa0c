//! Run-time cost of operators and functions as upstream counts it; the cost limit ends an
//! evaluation.
//!
//! Input: a call with its values, and whether the checker knows the overload. Output: units. Owner:
//! pure functions; they charge for reading values. One of upstream's units may stand for any amount
//! of work, so that this cost does not bound an evaluation here: see `account`.
// k8s: vendor/github.com/google/cel-go/{interpreter/runtimecost.go,common/cost.go,ext/{lists,sets}.go},
// apiserver/pkg/cel/library/cost.go CallCost

use super::account::Account;
use super::error::CelError;
use super::value::Value;

/// Cost of creating a list.
pub(super) const LIST: u64 = 10;
/// Cost of creating a map.
pub(super) const MAP: u64 = 30;
/// Cost of a call for which upstream has no other.
pub(super) const CALL: u64 = 1;

/// Returns true if the second value is evaluated only when the first one is empty; upstream charges
/// nothing for it.
pub(super) fn is_choice(name: &str) -> bool {
    matches!(name, "or" | "orValue")
}

/// Returns true for a type conversion: a conversion of a literal is itself a literal, evaluated
/// once.
// k8s: vendor/github.com/google/cel-go/common/overloads/overloads.go IsTypeConversionFunction
pub(super) fn is_conversion(name: &str) -> bool {
    let numbers = ["int", "uint", "double", "bool"];
    numbers.contains(&name)
        || ["bytes", "duration", "dyn", "string", "timestamp", "type"].contains(&name)
}

/// Returns the number of entries of a list or a map, and 1 for any other value.
pub(super) fn length(value: &Value) -> usize {
    match value {
        Value::List(all) => all.len(),
        Value::Map(map) => map.entries.len(),
        _ => 1,
    }
}

/// Returns a value's size in upstream's units; `None` is an error, of size 1.
fn size(value: Option<&Value>, account: &Account) -> Result<u64, CelError> {
    let Some(value) = value else { return Ok(1) };
    Ok(match value {
        Value::Str(text) => {
            account.read(text.len())?;
            text.chars().count() as u64
        }
        Value::Bytes(bytes) => bytes.len() as u64,
        Value::List(_) | Value::Map(_) => length(value) as u64,
        Value::Address(address) => {
            if address.is_ipv4() {
                4
            } else {
                16
            }
        }
        Value::Network(network) => u64::from(network.bits()).div_ceil(8),
        Value::Optional(Some(value)) => account.deeper(|| size(Some(value), account))?,
        _ => 1,
    })
}

/// Returns the cost of traversing this many characters, `times` over.
fn traversal(characters: u64, times: u64) -> u64 {
    characters.saturating_mul(times).div_ceil(10)
}

/// Returns the cost of an operator between two values, either of which may be an error.
pub(super) fn operator(
    sign: &str,
    [left, right]: [Option<&Value>; 2],
    typed: bool,
    account: &Account,
) -> Result<u64, CelError> {
    let are_texts = [left, right]
        .iter()
        .all(|side| matches!(side, None | Some(Value::Str(_) | Value::Bytes(_))));
    let is_one = matches!(
        left,
        Some(
            Value::Quantity(_)
                | Value::Address(_)
                | Value::Network(_)
                | Value::Format(_)
                | Value::Url(_)
                | Value::Version(_)
        )
    );
    match sign {
        "==" if is_one => Ok(CALL),
        "==" | "!=" => Ok(traversal(size(left, account)?.min(size(right, account)?), 1)),
        "<" | "<=" | ">" | ">=" if typed && are_texts => {
            Ok(traversal(size(left, account)?.min(size(right, account)?), 1))
        }
        "+" if typed && are_texts => Ok(traversal(size(left, account)? + size(right, account)?, 1)),
        "in" if typed && matches!(right, Some(Value::List(_))) => size(right, account),
        _ => Ok(CALL),
    }
}

/// Returns the cost of a search for a regular expression.
pub(super) fn search(
    name: &str,
    is_member: bool,
    text: &str,
    pattern: &str,
    account: &Account,
) -> Result<u64, CelError> {
    account.read(text.len() + pattern.len())?;
    match (name, is_member) {
        // Upstream charges by overload, and only for that of the member function.
        ("matches", false) => Ok(CALL),
        _ => Ok(product(text.chars().count() as u64, pattern.chars().count() as u64)),
    }
}

fn product(text: u64, pattern: u64) -> u64 {
    traversal(text + 1, 1).saturating_mul(pattern.div_ceil(4))
}

/// Returns the cost of comparing all keys in pairs.
// k8s: vendor/github.com/google/cel-go/ext/lists.go trackListSelfCompare
pub(super) fn of_comparing(keys: &[Value]) -> u64 {
    let count = keys.len() as u64;
    let square = count.saturating_mul(count);
    let of_texts = match keys.first() {
        Some(Value::Str(_) | Value::Bytes(_)) => square / 10,
        _ => 0,
    };
    square.saturating_mul(2).saturating_add(of_texts + CALL + LIST)
}

/// A call of a function.
pub(super) struct FunctionCall<'a> {
    pub(super) name: &'a str,
    pub(super) is_member: bool,
    pub(super) values: &'a [Value],
    pub(super) typed: bool,
}

impl FunctionCall<'_> {
    /// Returns the cost of a call, with its result if it has one.
    pub(super) fn cost(&self, result: Option<&Value>, account: &Account) -> Result<u64, CelError> {
        let size_of = |at: usize| size(self.values.get(at), account);
        let made = |times: u64| Ok(times + CALL + LIST);
        match (self.name, self.values) {
            ("isSorted" | "sum" | "min" | "max" | "indexOf" | "lastIndexOf", [of, ..]) => {
                walk(of, account)
            }
            ("url" | "lowerAscii" | "upperAscii" | "substring" | "trim", _)
            | ("cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity", _)
            | ("semver" | "isSemver" | "startsWith" | "endsWith" | "strings.quote" | "format", _) => {
                Ok(traversal(size_of(0)?, 1))
            }
            ("ip", _) if !self.is_member => Ok(traversal(size_of(0)?, 1)),
            ("bytes", [Value::Str(_)]) | ("string", [Value::Bytes(_)]) if self.typed => {
                Ok(traversal(size_of(0)?, 1))
            }
            ("replace" | "split" | "ip.isCanonical", _) => Ok(traversal(size_of(0)?, 2)),
            ("join", _) => Ok(traversal(size(result, account)?, 2)),
            ("contains", _) => {
                Ok(traversal(size_of(0)?, 1).saturating_mul(traversal(size_of(1)?, 1)))
            }
            ("containsIP" | "containsCIDR", [_, other, ..]) => {
                let is_text = matches!(other, Value::Str(_));
                let parsed = if is_text { traversal(size_of(1)?, 1) } else { 0 };
                let masked = traversal(size_of(0)?, 1) + 1;
                let masked = if self.name == "containsCIDR" { masked } else { 0 };
                Ok(traversal(size_of(0)?, 2) + masked + parsed)
            }
            ("validate", [Value::Format(format), _]) => {
                Ok(product(size_of(1)?, pattern_of(format)))
            }
            ("slice" | "lists.range" | "reverse", _) => made(size(result, account)?),
            ("flatten", [_]) => made(size_of(0)?),
            ("flatten", [_, Value::Int(levels)]) => {
                made(size_of(0)?.saturating_mul(u64::try_from(*levels).unwrap_or(0)))
            }
            ("distinct", [Value::List(all)]) => Ok(of_comparing(all)),
            ("sort", [Value::List(all)]) if self.typed => Ok(of_comparing(all)),
            ("sets.equivalent", _) => {
                Ok(CALL + size_of(0)?.saturating_mul(size_of(1)?).saturating_mul(2))
            }
            (name, _) if name.starts_with("sets.") => {
                Ok(CALL + size_of(0)?.saturating_mul(size_of(1)?))
            }
            (name, _) if is_choice(name) => Ok(0),
            _ => Ok(CALL),
        }
    }
}

/// Returns the length of a format's longest pattern, in characters.
// k8s: apiserver/pkg/cel/library/format.go
fn pattern_of(format: &str) -> u64 {
    match format {
        "dns1123Subdomain" | "dns1123SubdomainPrefix" | "qualifiedName" => 60,
        "labelValue" => 40,
        "uri" => 1_103,
        "uuid" => 70,
        "byte" => 84,
        "date" | "datetime" => 71,
        _ => 30,
    }
}

/// Returns the cost of visiting everything in a value; a shared part costs as often as it occurs.
// k8s: apiserver/pkg/cel/library/cost.go traversalCost
fn walk(value: &Value, account: &Account) -> Result<u64, CelError> {
    account.work(1)?;
    match value {
        Value::Str(_) | Value::Bytes(_) => Ok(value.text_bytes() as u64 / 10),
        Value::List(all) => account.deeper(|| {
            all.iter().try_fold(0u64, |sum, one| Ok(sum.saturating_add(walk(one, account)?)))
        }),
        Value::Map(map) => account.deeper(|| {
            map.entries.iter().try_fold(0u64, |sum, (key, value)| {
                let both = walk(&key.value(), account)?.saturating_add(walk(value, account)?);
                Ok(sum.saturating_add(both))
            })
        }),
        _ => Ok(CALL),
    }
}
