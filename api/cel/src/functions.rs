//! Operators and functions of values.
//!
//! Input: values. Output: a value, or upstream's error message. Owner: pure. Bounds: the size of
//! the values; functions that walk them charge each part before it is read or created.
// k8s: vendor/github.com/google/cel-go/{common/stdlib,ext}, apiserver/pkg/cel/library

use std::cmp::Ordering;
use std::rc::Rc;

use pintle_api_types::quantity::Amount;

use super::account::Account;
use super::error::CelError;
use super::eval::{Evaluated, no_overload};
use super::lists::{of_list, of_sets, position};
use super::quantity::{self, Quantity};
use super::signatures::INCLUDES;
use super::times::{self, Time};
use super::value::{MapKey, Value};
use super::version::SemanticVersion;
use super::{address, named, texts, url};

/// Limit of values of a device's attributes.
// k8s: staging/src/k8s.io/api/resource/v1/types.go ResourceSliceMaxAttributeValuesPerDevice
const VALUES_MAX: usize = 48;

/// An operator between two values.
pub(super) fn operate(sign: &str, left: &Value, right: &Value, account: &Account) -> Evaluated {
    account.read(left.text_bytes().min(right.text_bytes()))?;
    let ordered = |is: fn(Ordering) -> bool| match left.order(right) {
        Some(order) => Ok(Value::Bool(is(order))),
        // NaN is neither less nor more than any number.
        None if left.is_number() && right.is_number() => Ok(Value::Bool(false)),
        None if matches!(left, Value::List(_) | Value::Map(_)) => {
            Err(format!("no such overload: _{sign}_").into())
        }
        None => Err(no_overload()),
    };
    match sign {
        // Upstream's comparison fails there, and a failed comparison is not equal.
        "==" if matches!((left, right), (Value::Quantity(_), Value::Quantity(q)) if q.is_sum) => {
            Err(no_overload())
        }
        "!=" if matches!((left, right), (Value::Quantity(_), Value::Quantity(q)) if q.is_sum) => {
            Ok(Value::Bool(true))
        }
        "==" => Ok(Value::Bool(left.equals(right, account)?)),
        "!=" => Ok(Value::Bool(!left.equals(right, account)?)),
        "<" => ordered(Ordering::is_lt),
        "<=" => ordered(Ordering::is_le),
        ">" => ordered(Ordering::is_gt),
        ">=" => ordered(Ordering::is_ge),
        "in" => contains(left, right, account),
        "+" => add(left, right, account),
        _ => calculate(sign, left, right),
    }
}

fn contains(value: &Value, of: &Value, account: &Account) -> Evaluated {
    match of {
        Value::List(all) => Ok(Value::Bool(position(all.iter(), value, account)?.is_some())),
        Value::Map(map) => {
            account.read(value.text_bytes())?;
            Ok(Value::Bool(MapKey::of(value).is_some_and(|key| map.entries.contains_key(&key))))
        }
        _ => Err(no_overload()),
    }
}

/// Returns true if the attribute equals the value, or contains it.
// k8s: staging/src/k8s.io/dynamic-resource-allocation/cel/compile.go includesFunc
fn includes(of: &Value, value: &Value, account: &Account) -> Evaluated {
    let is_it = |one: &Value| matches!(operate("==", one, value, account), Ok(Value::Bool(true)));
    let Value::List(all) = of else { return Ok(Value::Bool(is_it(of))) };
    if all.iter().take(VALUES_MAX).any(is_it) {
        return Ok(Value::Bool(true));
    }
    match all.len() > VALUES_MAX {
        true => Err(format!(
            "'includes' function cannot be applied to lists longer than {VALUES_MAX} values"
        )
        .into()),
        false => Ok(Value::Bool(false)),
    }
}

fn add(left: &Value, right: &Value, account: &Account) -> Evaluated {
    match (left, right) {
        (Value::Str(a), Value::Str(b)) => {
            account.text(a.len() + b.len())?;
            Ok(Value::Str(format!("{a}{b}").into()))
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            account.text(a.len() + b.len())?;
            Ok(Value::Bytes([&a[..], &b[..]].concat().into()))
        }
        (Value::List(a), Value::List(b)) => {
            account.list(a.len() + b.len())?;
            Ok(Value::List([&a[..], &b[..]].concat().into()))
        }
        _ => calculate("+", left, right),
    }
}

pub(super) fn calculate(sign: &str, left: &Value, right: &Value) -> Evaluated {
    let zero = |is_zero: bool| match sign {
        "/" if is_zero => Err(CelError::from("division by zero")),
        "%" if is_zero => Err(CelError::from("modulus by zero")),
        _ => Ok(()),
    };
    match (left, right) {
        (Value::Int(a), Value::Int(b)) => {
            zero(*b == 0)?;
            let found = match sign {
                "+" => a.checked_add(*b),
                "-" => a.checked_sub(*b),
                "*" => a.checked_mul(*b),
                "/" => a.checked_div(*b),
                _ => a.checked_rem(*b),
            };
            found.map(Value::Int).ok_or_else(|| CelError::from("integer overflow"))
        }
        (Value::Uint(a), Value::Uint(b)) => {
            zero(*b == 0)?;
            let found = match sign {
                "+" => a.checked_add(*b),
                "-" => a.checked_sub(*b),
                "*" => a.checked_mul(*b),
                "/" => a.checked_div(*b),
                _ => a.checked_rem(*b),
            };
            found.map(Value::Uint).ok_or_else(|| CelError::from("unsigned integer overflow"))
        }
        (Value::Double(a), Value::Double(b)) => match sign {
            "+" => Ok(Value::Double(a + b)),
            "-" => Ok(Value::Double(a - b)),
            "*" => Ok(Value::Double(a * b)),
            "/" => Ok(Value::Double(a / b)),
            _ => Err(no_overload()),
        },
        _ => times::calculate(sign, left, right),
    }
}

/// Negates a number.
pub(super) fn negate(value: &Value) -> Evaluated {
    match value {
        Value::Int(n) => {
            n.checked_neg().map(Value::Int).ok_or_else(|| CelError::from("integer overflow"))
        }
        Value::Double(n) => Ok(Value::Double(-n)),
        _ => Err(no_overload()),
    }
}

/// Memory of a URL's query as a map, for each byte of it.
const QUERY_BYTES: u64 = 128;
/// Functions of texts that create no text.
const READS: [&str; 6] = ["size", "contains", "startsWith", "endsWith", "indexOf", "lastIndexOf"];

/// Calls a function; a receiver is the first argument.
pub(super) fn call(name: &str, is_member: bool, args: &[Value], account: &Account) -> Evaluated {
    // Most create texts about as long as these, if only in an error message.
    let texts: usize = args.iter().map(Value::text_bytes).sum();
    match READS.contains(&name) {
        true => account.read(texts)?,
        false => account.bytes(2 * texts as u64)?,
    }
    match (name, args) {
        ("size", [of]) => size(of),
        ("type", [of]) => Ok(Value::Type(of.kind())),
        ("dyn", [of]) => Ok(of.clone()),
        (INCLUDES, [of, value]) => includes(of, value, account),
        ("bool" | "int" | "uint" | "double" | "string" | "bytes", [of]) if !is_member => {
            convert(name, of, account)
        }
        ("quantity", [Value::Str(text)]) => match Quantity::parse(text) {
            Some(quantity) => Ok(Value::Quantity(quantity)),
            None => Err(quantity::why_not(text).into()),
        },
        ("isQuantity", [Value::Str(text)]) => Ok(Value::Bool(Quantity::parse(text).is_some())),
        ("sign", [Value::Quantity(a)]) => Ok(Value::Int(a.amount.cmp(&Amount::ZERO) as i64)),
        ("optional.none", []) => Ok(Value::Optional(None)),
        ("timestamp" | "duration", [of]) => convert(name, of, account),
        (_, [Value::Str(text)]) if !is_member && LIBRARY.contains(&name) => library(name, text),
        (_, []) => {
            let format = name.strip_prefix("format.").and_then(named::named);
            format.map(Value::Format).ok_or_else(no_overload)
        }
        (_, [Value::Time(time), rest @ ..]) => times::call(name, *time, rest),
        (_, [Value::Duration(nanos), rest @ ..]) => times::call_duration(name, *nanos, rest),
        (_, [Value::Address(of), rest @ ..]) => address::call(name, *of, rest),
        (_, [Value::Network(of), rest @ ..]) => address::call_network(name, *of, rest),
        (_, [Value::Url(of), rest @ ..]) => {
            let each = if name == "getQuery" { QUERY_BYTES } else { 4 };
            account.bytes(each * of.bytes() as u64)?;
            of.call(name, rest)
        }
        ("validate", [Value::Format(format), Value::Str(text)]) => {
            account.bytes(4 * text.len() as u64)?;
            let wrong = named::validate(format, text);
            let list = || Value::List(wrong.iter().map(|why| why.as_str().into()).collect());
            Ok(Value::Optional((!wrong.is_empty()).then(|| Rc::new(list()))))
        }
        ("semver", _) => version(args).map(|version| Value::Version(Rc::new(version))),
        ("isSemver", [Value::Str(_), ..]) => Ok(Value::Bool(version(args).is_ok())),
        ("optional.of", [of]) => Ok(Value::Optional(Some(Rc::new(of.clone())))),
        ("optional.ofNonZeroValue", [of]) => {
            Ok(Value::Optional((!is_zero(of)).then(|| Rc::new(of.clone()))))
        }
        (_, [Value::Quantity(a), rest @ ..]) => of_quantity(name, *a, rest),
        (_, [Value::Version(a), rest @ ..]) => of_version(name, a, rest),
        (_, [Value::Optional(of), rest @ ..]) => of_optional(name, of.as_ref(), rest),
        (_, [Value::List(a), Value::List(b)]) if name.starts_with("sets.") => {
            of_sets(name, a, b, account).map(Value::Bool)
        }
        (_, [Value::List(all), rest @ ..]) => of_list(name, all, rest, account),
        (_, [Value::Str(text), rest @ ..]) => texts::call(name, text, rest, account),
        ("lists.range", [Value::Int(end)]) => {
            account.list(usize::try_from(*end).unwrap_or(0))?;
            Ok(Value::List((0..*end).map(Value::Int).collect()))
        }
        _ => Err(no_overload()),
    }
}

/// Library functions of one text.
const LIBRARY: [&str; 9] = [
    "ip",
    "isIP",
    "ip.isCanonical",
    "cidr",
    "isCIDR",
    "url",
    "isURL",
    "strings.quote",
    "format.named",
];

fn library(name: &str, text: &str) -> Evaluated {
    match name {
        "ip" => address::address(text).map(Value::Address),
        "isIP" => Ok(Value::Bool(address::address(text).is_ok())),
        "ip.isCanonical" => Ok(Value::Bool(address::address(text)?.to_string() == *text)),
        "cidr" => address::network(text).map(Value::Network),
        "isCIDR" => Ok(Value::Bool(address::network(text).is_ok())),
        "url" => match url::parse(text) {
            Ok(url) => Ok(Value::Url(Rc::new(url))),
            Err(error) => {
                Err(format!("URL parse error during conversion from string: {error}").into())
            }
        },
        "isURL" => Ok(Value::Bool(url::why_not(text).is_none())),
        "strings.quote" => Ok(texts::quote_cel(text).as_str().into()),
        "format.named" => {
            let found = named::named(text).map(|format| Rc::new(Value::Format(format)));
            Ok(Value::Optional(found))
        }
        _ => Err(no_overload()),
    }
}

fn size(of: &Value) -> Evaluated {
    let count = match of {
        Value::Str(text) => text.chars().count(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(all) => all.len(),
        Value::Map(map) => map.entries.len(),
        _ => return Err(no_overload()),
    };
    Ok(Value::Int(i64::try_from(count).unwrap_or(i64::MAX)))
}

fn is_zero(of: &Value) -> bool {
    match of {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Int(n) => *n == 0,
        Value::Uint(n) => *n == 0,
        Value::Double(n) => *n == 0.0,
        _ => matches!(size(of), Ok(Value::Int(0))),
    }
}

pub(super) fn convert(to: &str, of: &Value, account: &Account) -> Evaluated {
    account.bytes(of.text_bytes() as u64)?;
    if to == of.kind() {
        return Ok(of.clone());
    }
    let out = || CelError::from("integer overflow");
    let wrong = |_: &str| CelError::from(format!("type conversion error from 'string' to '{to}'"));
    match (to, of) {
        ("bool", Value::Str(text)) => match &**text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            other => Err(wrong(other)),
        },
        ("int", Value::Uint(n)) => i64::try_from(*n).map(Value::Int).map_err(|_| out()),
        ("int", Value::Double(n)) if n.abs() < 9.2e18 => Ok(Value::Int(*n as i64)),
        ("int", Value::Str(text)) => text.parse().map(Value::Int).map_err(|_| wrong(text)),
        ("uint", Value::Int(n)) => u64::try_from(*n).map(Value::Uint).map_err(|_| out()),
        ("uint", Value::Double(n)) if (0.0..1.8e19).contains(n) => Ok(Value::Uint(*n as u64)),
        ("uint", Value::Str(text)) => text.parse().map(Value::Uint).map_err(|_| wrong(text)),
        ("int" | "uint", Value::Double(_)) => Err(out()),
        ("double", Value::Int(n)) => Ok(Value::Double(*n as f64)),
        ("double", Value::Uint(n)) => Ok(Value::Double(*n as f64)),
        ("double", Value::Str(text)) => text.parse().map(Value::Double).map_err(|_| wrong(text)),
        ("string", Value::Bool(b)) => Ok(b.to_string().as_str().into()),
        ("string", Value::Int(n)) => Ok(n.to_string().as_str().into()),
        ("string", Value::Uint(n)) => Ok(n.to_string().as_str().into()),
        ("string", Value::Double(n)) => Ok(texts::shortest(*n).as_str().into()),
        ("string", Value::Bytes(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.into()),
            Err(_) => Err("invalid UTF-8 in bytes, cannot convert to string".into()),
        },
        ("string", Value::Time(time)) => Ok(time.to_string().as_str().into()),
        ("string", Value::Duration(nanos)) => Ok(times::duration_text(*nanos).as_str().into()),
        ("string", Value::Address(of)) => Ok(of.to_string().as_str().into()),
        ("string", Value::Network(of)) => Ok(of.to_string().as_str().into()),
        ("int", Value::Time(time)) => Ok(Value::Int(time.seconds())),
        ("int", Value::Duration(nanos)) => Ok(Value::Int(*nanos)),
        ("timestamp", Value::Time(_)) | ("duration", Value::Duration(_)) => Ok(of.clone()),
        ("timestamp", Value::Int(seconds)) => Time::of(*seconds).map(Value::Time),
        ("timestamp", Value::Str(text)) => {
            let wrong = format!("type conversion error from 'string' to '{}'", times::TIME);
            Time::parse(text).ok_or(wrong)?.map(Value::Time)
        }
        ("duration", Value::Str(text)) => {
            let wrong = || {
                CelError::from(format!(
                    "type conversion error from 'string' to '{}'",
                    times::DURATION
                ))
            };
            times::duration(text).map(Value::Duration).ok_or_else(wrong)
        }
        ("duration", Value::Int(_)) => {
            Err(format!("type conversion error from 'int' to '{}'", times::DURATION).into())
        }
        ("bytes", Value::Str(text)) => Ok(Value::Bytes(text.as_bytes().into())),
        _ => Err(no_overload()),
    }
}

fn version(args: &[Value]) -> Result<SemanticVersion, CelError> {
    match args {
        [Value::Str(text)] | [Value::Str(text), Value::Bool(false)] => SemanticVersion::parse(text),
        [Value::Str(text), Value::Bool(true)] => SemanticVersion::normalise(text),
        _ => Err(no_overload()),
    }
}

fn compared(name: &str, order: Ordering) -> Evaluated {
    match name {
        "isLessThan" => Ok(Value::Bool(order.is_lt())),
        "isGreaterThan" => Ok(Value::Bool(order.is_gt())),
        "compareTo" => Ok(Value::Int(order as i64)),
        _ => Err(no_overload()),
    }
}

fn of_quantity(name: &str, a: Quantity, rest: &[Value]) -> Evaluated {
    let other = match rest {
        [Value::Quantity(b)] => Some(*b),
        [Value::Int(n)] => Quantity::whole(*n),
        _ => None,
    };
    match (name, other) {
        ("isInteger", None) => Ok(Value::Bool(a.integer().is_some())),
        ("asInteger", None) => {
            let error = "cannot convert value to integer";
            a.integer().map(Value::Int).ok_or_else(|| CelError::from(error))
        }
        ("asApproximateFloat", None) => {
            let whole =
                a.amount.is_whole().then(|| a.amount.units()).filter(|n| n.abs() < i64::MAX);
            let plain = || approximate(a.amount, &a.amount.canonical());
            Ok(Value::Double(whole.map_or_else(plain, |n| n as f64)))
        }
        ("add", Some(b)) => Ok(Value::Quantity(a.plus(b))),
        ("sub", Some(b)) => Ok(Value::Quantity(a.minus(b))),
        (_, Some(b)) if matches!(rest, [Value::Quantity(_)]) => {
            compared(name, a.amount.cmp(&b.amount))
        }
        _ => Err(no_overload()),
    }
}

fn approximate(a: Amount, canonical: &str) -> f64 {
    let end = canonical.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(canonical.len());
    let count: f64 = canonical[..end].parse().unwrap_or(0.0);
    let scale = match &canonical[end..] {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        _ => return a.units() as f64,
    };
    count * scale
}

fn of_version(name: &str, a: &SemanticVersion, rest: &[Value]) -> Evaluated {
    let number = |at: usize| Ok(Value::Int(i64::try_from(a.numbers[at]).unwrap_or(i64::MAX)));
    match (name, rest) {
        ("major", []) => number(0),
        ("minor", []) => number(1),
        ("patch", []) => number(2),
        (_, [Value::Version(b)]) => compared(name, a.cmp(b)),
        _ => Err(no_overload()),
    }
}

fn of_optional(name: &str, of: Option<&Rc<Value>>, rest: &[Value]) -> Evaluated {
    match (name, rest) {
        ("hasValue", []) => Ok(Value::Bool(of.is_some())),
        ("value", []) => of
            .map(|of| Value::clone(of))
            .ok_or_else(|| CelError::from("optional.none() dereference")),
        ("orValue", [other]) => Ok(of.map_or_else(|| other.clone(), |of| Value::clone(of))),
        ("or", [other]) => {
            Ok(of.map_or_else(|| other.clone(), |of| Value::Optional(Some(Rc::clone(of)))))
        }
        _ => Err(no_overload()),
    }
}

/// Converts an index in a list or a text; -1 for none.
pub(super) fn placed(at: Option<usize>) -> Value {
    Value::Int(at.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1))
}
