//! Functions of texts.
//!
//! Places are counted in characters. Input: values. Output: a value, or why there is none.
//! Owner: pure functions.
// k8s: vendor/github.com/google/cel-go/ext/strings.go, apiserver/pkg/cel/library/regex.go

use regex::Regex;

use super::eval::{Evaluated, no_overload};
use super::functions::position;
use super::value::Value;

/// Calls a function of a text.
pub(super) fn call(name: &str, text: &str, rest: &[Value]) -> Evaluated {
    match (name, rest) {
        ("contains", [Value::Str(part)]) => Ok(text.contains(&**part).into()),
        ("startsWith", [Value::Str(part)]) => Ok(text.starts_with(&**part).into()),
        ("endsWith", [Value::Str(part)]) => Ok(text.ends_with(&**part).into()),
        ("lowerAscii", []) => Ok(text.to_ascii_lowercase().as_str().into()),
        ("upperAscii", []) => Ok(text.to_ascii_uppercase().as_str().into()),
        ("format", [Value::List(values)]) => super::format::format(text, values),
        ("trim", []) => Ok(text.trim().into()),
        ("replace", [Value::Str(old), Value::Str(new), most @ ..]) => {
            Ok(text.replacen(&**old, new, limit(most)?).as_str().into())
        }
        ("split", [Value::Str(by), most @ ..]) => split(text, by, limit(most)?.min(LIST_MAX)),
        _ => placed(name, text, rest),
    }
}

/// Most entries of a list: more than anybody can pay for.
const LIST_MAX: usize = super::COST_MAX as usize + 1;

/// Calls a function of a text and a pattern.
pub(super) fn search(name: &str, text: &str, pattern: &Regex, most: &[Value]) -> Evaluated {
    match name {
        "matches" => Ok(pattern.is_match(text).into()),
        "find" => Ok(pattern.find(text).map_or("", |found| found.as_str()).into()),
        _ => {
            let found = pattern.find_iter(text).take(limit(most)?.min(LIST_MAX));
            Ok(list(found.map(|found| found.as_str())))
        }
    }
}

/// How long a text is that a function of these makes, where it may be far longer than they are.
pub(super) fn bytes_of(name: &str, values: &[Value]) -> Option<u64> {
    let bytes = match (name, values) {
        ("replace", [Value::Str(text), Value::Str(old), Value::Str(new), most @ ..]) => {
            let count = text.matches(&**old).count().min(limit(most).ok()?);
            (text.len() - count * old.len()).saturating_add(count.saturating_mul(new.len()))
        }
        ("join", [Value::List(all), between @ ..]) => {
            let bytes = |value: &Value| if let Value::Str(text) = value { text.len() } else { 0 };
            let between = between.iter().map(bytes).sum::<usize>().saturating_mul(all.len());
            all.iter().map(bytes).sum::<usize>().saturating_add(between)
        }
        _ => return None,
    };
    u64::try_from(bytes).ok()
}

/// How many are wanted; a negative number wants all.
fn limit(most: &[Value]) -> Result<usize, String> {
    match most {
        [] => Ok(usize::MAX),
        [Value::Int(most)] => Ok(usize::try_from(*most).unwrap_or(usize::MAX)),
        _ => Err(no_overload()),
    }
}

fn list<'a>(texts: impl Iterator<Item = &'a str>) -> Value {
    Value::List(texts.map(Value::from).collect())
}

fn split(text: &str, by: &str, most: usize) -> Evaluated {
    if by.is_empty() {
        // The last one is the rest.
        let starts = text.char_indices().map(|(at, _)| at).take(most);
        let starts: Vec<usize> = starts.collect();
        let ends = starts.iter().skip(1).copied().chain([text.len()]);
        return Ok(list(starts.iter().zip(ends).map(|(from, to)| &text[*from..to])));
    }
    Ok(list(text.splitn(most, by)))
}

/// Functions that count characters.
fn placed(name: &str, text: &str, rest: &[Value]) -> Evaluated {
    let chars: Vec<char> = text.chars().collect();
    let out = |at: i64| format!("index out of range: {at}");
    let at =
        |n: &i64| usize::try_from(*n).ok().filter(|n| *n <= chars.len()).ok_or_else(|| out(*n));
    let part = |from: usize, to: usize| chars[from..to].iter().collect::<String>();
    match (name, rest) {
        ("charAt", [Value::Int(n)]) => {
            let from = at(n)?;
            Ok(part(from, (from + 1).min(chars.len())).as_str().into())
        }
        ("substring", [Value::Int(from)]) => Ok(part(at(from)?, chars.len()).as_str().into()),
        ("substring", [Value::Int(from), Value::Int(to)]) => {
            if from > to {
                return Err(format!("invalid substring range. start: {from}, end: {to}"));
            }
            Ok(part(at(from)?, at(to)?).as_str().into())
        }
        ("indexOf", [Value::Str(wanted), from @ ..]) => {
            let from = if let [Value::Int(from)] = from { *from } else { 0 };
            place(text, wanted, from, false)
        }
        ("lastIndexOf", [Value::Str(wanted)]) if wanted.len() > text.len() => Ok(position(None)),
        ("lastIndexOf", [Value::Str(wanted), until @ ..]) => {
            let last = chars.len() - usize::from(!wanted.is_empty());
            let until = match until {
                [Value::Int(until)] => *until,
                _ => i64::try_from(last).unwrap_or(i64::MAX),
            };
            place(text, wanted, until, true)
        }
        _ => Err(no_overload()),
    }
}

pub(super) use pintle_daemon::metrics::go_float as shortest;

/// A text between quotes, as expressions have it: only what has a name of its own is escaped.
// k8s: vendor/github.com/google/cel-go/ext/strings.go quote
pub(super) fn quote_cel(text: &str) -> String {
    format!("\"{}\"", escaped(text))
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out
}

/// A text between quotes as Go's errors have it.
// k8s: strconv.Quote
pub(super) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in escaped(text).chars() {
        match c {
            c if c < ' ' || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Where a text is in another, the places being limited by `at`. Nothing is at any place, even one
/// that is not there.
// k8s: vendor/github.com/google/cel-go/ext/strings.go indexOfOffset, lastIndexOfOffset
fn place(text: &str, wanted: &str, at: i64, is_last: bool) -> Evaluated {
    if wanted.is_empty() {
        return Ok(Value::Int(at));
    }
    let limit = usize::try_from(at).map_err(|_| format!("index out of range: {at}"))?;
    let Some((from, _)) = text.char_indices().nth(limit) else { return Ok(position(None)) };
    let found = match is_last {
        true => {
            let mut ends = (from..=text.len().min(from + wanted.len())).rev();
            let end = ends.find(|end| text.is_char_boundary(*end));
            text[..end.unwrap_or(from)].rfind(wanted)
        }
        false => text[from..].find(wanted).map(|at| from + at),
    };
    Ok(position(found.map(|at| text[..at].chars().count())))
}

/// The texts of a list in one.
pub(super) fn join(all: &[Value], between: &[Value]) -> Evaluated {
    let between = match between {
        [] => "",
        [Value::Str(between)] => &**between,
        _ => return Err(no_overload()),
    };
    let text = |value: &Value| match value {
        Value::Str(text) => Ok(text.to_string()),
        _ => Err(no_overload()),
    };
    let texts: Result<Vec<String>, String> = all.iter().map(text).collect();
    Ok(texts?.join(between).as_str().into())
}
