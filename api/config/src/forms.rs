//! Forms of a flag's value: text in, the JSON that its configuration field has in a file out.
//!
//! The error of each names the fault without the text. Also parts for forms of a single daemon.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::flag::FlagKind;
use pintle_api_types::duration::{DurationError, GoDuration};
use pintle_api_types::quantity::{Amount, QuantityError};

/// The fault of a text that is no value of a flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// No boolean.
    #[error("it is neither true nor false")]
    Bool,
    /// No whole number, or one out of range.
    #[error("it is not a whole number from {min} to {max}")]
    Number {
        /// The least one.
        min: i64,
        /// The greatest one.
        max: i64,
    },
    /// No number.
    #[error("it is not a number")]
    Real,
    /// No address.
    #[error("it is not an IP address")]
    Ip,
    /// An odd number of quotation marks.
    #[error("a quotation mark is not closed")]
    Quotation,
    /// No pair of key and value.
    #[error("{item:?} is not of the form key{separator}value")]
    Pair {
        /// The item.
        item: String,
        /// The text between key and value.
        separator: char,
    },
    /// The value of a feature gate.
    #[error("{0}: {1}")]
    Gate(String, Box<FormError>),
    /// No quantity.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    /// No duration.
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// An item that is not of a form that only one daemon has.
    #[error("{item:?} is not of the form {form}")]
    Item {
        /// The item.
        item: String,
        /// The form.
        form: &'static str,
    },
}

/// The value of a flag in the form its configuration field has in a file.
pub(crate) fn value_of(kind: FlagKind, text: &str) -> Result<Value, FormError> {
    Ok(match kind {
        FlagKind::Bool | FlagKind::Help => Value::Bool(bool_of(text)?),
        FlagKind::Version => Value::Bool(text == "raw" || bool_of(text)?),
        FlagKind::Int32 => json!(number(text, i32::MIN.into(), i32::MAX.into())?),
        FlagKind::Int64 => json!(number(text, i64::MIN, i64::MAX)?),
        FlagKind::Float => json!(real(text)?),
        FlagKind::Level => json!(number(text, 0, i32::MAX.into())?),
        FlagKind::Text => json!(text),
        FlagKind::Quantity => {
            text.parse::<Amount>()?;
            json!(text)
        }
        FlagKind::Duration => {
            json!(text.parse::<GoDuration>()?)
        }
        FlagKind::Ip => json!(ip(text)?),
        // A word that is no address stays as it is: readers of the list skip it.
        FlagKind::Ips => json!(items(text).map(ip_or_word).collect::<Vec<_>>()),
        FlagKind::TextList => json!(comma_list(text)?),
        FlagKind::Pairs => json!(pairs(items(text), '=')?),
        FlagKind::Pair => json!(pairs([text].into_iter(), '=')?),
        FlagKind::Labels => labels(text),
        FlagKind::Gates => gates(text)?,
        FlagKind::Vmodule => vmodule(text)?,
        FlagKind::Own(form) => (form.read)(text)?,
    })
}

// k8s: strconv.ParseBool
fn bool_of(text: &str) -> Result<bool, FormError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(FormError::Bool),
    }
}

/// Decimal, `0x`, `0o` or `0b`, as the kubelet's parser reads numbers.
pub fn number(text: &str, min: i64, max: i64) -> Result<i64, FormError> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        _ if lower.len() > 1 && lower.starts_with('0') => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    let unsigned = !digits.starts_with(['+', '-']);
    let number = i128::from_str_radix(digits, radix).ok().filter(|_| unsigned);
    let number = number.and_then(|n| i64::try_from(n * sign).ok());
    number.filter(|n| (min..=max).contains(n)).ok_or(FormError::Number { min, max })
}

fn real(text: &str) -> Result<f64, FormError> {
    let number = text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or(FormError::Real)
}

fn ip(text: &str) -> Result<String, FormError> {
    let address = sloppy_ip(text.trim());
    address.map(|ip| ip.to_string()).ok_or(FormError::Ip)
}

fn ip_or_word(text: &str) -> String {
    sloppy_ip(text).map_or_else(|| text.to_owned(), |ip| ip.to_string())
}

/// Numbers of IPv4 may begin with zeros, and are decimal then, too.
// k8s: staging/src/k8s.io/utils/net/parse.go ParseIPSloppy
fn sloppy_ip(text: &str) -> Option<IpAddr> {
    let (head, tail) = text.rfind(':').map_or(("", text), |at| text.split_at(at + 1));
    let plain = |number: &str| match number.trim_start_matches('0') {
        "" if !number.is_empty() => "0".to_owned(),
        plain => plain.to_owned(),
    };
    if !tail.contains('.') {
        return text.parse().ok();
    }
    let tail: Vec<String> = tail.split('.').map(plain).collect();
    format!("{head}{}", tail.join(".")).parse().ok()
}

/// Comma-separated values where `"a,b"` in quotes is one.
fn comma_list(text: &str) -> Result<Vec<String>, FormError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut list = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        match (c, list.last_mut()) {
            ('"', _) => quoted = !quoted,
            (',', _) if !quoted => list.push(String::new()),
            (c, Some(last)) => last.push(c),
            (_, None) => {}
        }
    }
    if quoted { Err(FormError::Quotation) } else { Ok(list) }
}

/// Non-empty parts between commas.
pub fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Items of the form `key SEPARATOR value`, the last of a key.
pub fn pairs<'a>(
    items: impl Iterator<Item = &'a str>,
    separator: char,
) -> Result<BTreeMap<String, String>, FormError> {
    items
        .map(|item| {
            let (key, value) = item
                .split_once(separator)
                .ok_or_else(|| FormError::Pair { item: item.to_owned(), separator })?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        })
        .collect()
}

fn labels(text: &str) -> Value {
    let label = |item: &str| match item.split_once('=') {
        Some((key, value)) => (key.trim().to_owned(), json!(value.trim())),
        None => (item.to_owned(), json!("")),
    };
    Value::Object(items(text).map(label).collect())
}

fn gates(text: &str) -> Result<Value, FormError> {
    let pairs = pairs(items(text), '=')?;
    let gates: Result<Map<_, _>, FormError> = pairs
        .into_iter()
        .map(|(name, on)| {
            let on =
                bool_of(&on).map_err(|error| FormError::Gate(name.clone(), Box::new(error)))?;
            Ok((name, Value::Bool(on)))
        })
        .collect();
    gates.map(Value::Object)
}

/// Adds a value to those that came before it: lists and maps grow, anything else is replaced.
pub fn add_up(old: &mut Value, new: Value) {
    match (old, new) {
        (Value::Array(old), Value::Array(new)) => old.extend(new),
        (Value::Object(old), Value::Object(new)) => {
            new.into_iter().for_each(|(key, value)| add_to(old, key, value));
        }
        (old, new) => *old = new,
    }
}

/// Adds an entry; a list grows by that of an entry of the same name.
pub fn add_to(map: &mut Map<String, Value>, key: String, value: Value) {
    match (map.get_mut(&key), value) {
        (Some(Value::Array(old)), Value::Array(new)) => old.extend(new),
        (_, value) => {
            map.insert(key, value);
        }
    }
}

fn vmodule(text: &str) -> Result<Value, FormError> {
    let item = |(pattern, level): (String, String)| {
        let level = number(&level, 0, i32::MAX.into())?;
        Ok(json!({ "filePattern": pattern, "verbosity": level }))
    };
    let pairs = pairs(items(text), '=')?;
    pairs.into_iter().map(item).collect::<Result<Vec<_>, FormError>>().map(Value::Array)
}
