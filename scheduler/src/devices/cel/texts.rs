//! Functions of texts.
//!
//! Places are counted in characters. Input: values. Output: a value, or why there is none.
//! Owner: pure functions.
// k8s: vendor/github.com/google/cel-go/ext/strings.go, apiserver/pkg/cel/library/regex.go

use regex::Regex;

use super::eval::{Evaluated, no_overload};
use super::functions::position;
use super::value::Value;

/// Most memory of a pattern that was compiled, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 18;

/// Calls a function of a text.
pub(super) fn call(name: &str, text: &str, rest: &[Value]) -> Evaluated {
    match (name, rest) {
        ("contains", [Value::Str(part)]) => Ok(text.contains(&**part).into()),
        ("startsWith", [Value::Str(part)]) => Ok(text.starts_with(&**part).into()),
        ("endsWith", [Value::Str(part)]) => Ok(text.ends_with(&**part).into()),
        ("matches", [Value::Str(pattern)]) => Ok(compile(pattern)?.is_match(text).into()),
        ("find", [Value::Str(pattern)]) => {
            let found = compile(pattern)?.find(text).map_or("", |found| found.as_str());
            Ok(found.into())
        }
        ("findAll", [Value::Str(pattern), most @ ..]) => {
            let most = limit(most)?;
            let pattern = compile(pattern)?;
            let found = pattern.find_iter(text).take(most);
            Ok(list(found.map(|found| found.as_str())))
        }
        ("lowerAscii", []) => Ok(text.to_ascii_lowercase().as_str().into()),
        ("upperAscii", []) => Ok(text.to_ascii_uppercase().as_str().into()),
        ("trim", []) => Ok(text.trim().into()),
        ("replace", [Value::Str(old), Value::Str(new), most @ ..]) => {
            Ok(text.replacen(&**old, new, limit(most)?).as_str().into())
        }
        ("split", [Value::Str(by), most @ ..]) => split(text, by, limit(most)?),
        _ => placed(name, text, rest),
    }
}

fn compile(pattern: &str) -> Result<Regex, String> {
    let built = regex::RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build();
    built.map_err(|_| format!("error parsing regexp: `{pattern}`"))
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
        let mut ends = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
        return Ok(list(ends.by_ref().take(most)));
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
            let (from_at, to_at) = (at(from)?, at(to)?);
            if from_at > to_at {
                return Err(format!("invalid substring range. start: {from}, end: {to}"));
            }
            Ok(part(from_at, to_at).as_str().into())
        }
        ("indexOf", [Value::Str(wanted), from @ ..]) => {
            let wanted: Vec<char> = wanted.chars().collect();
            let from = match from {
                [Value::Int(from)] => at(from)?,
                _ => 0,
            };
            let mut places = from..=chars.len().saturating_sub(wanted.len());
            Ok(position(places.find(|at| chars[*at..].starts_with(&wanted))))
        }
        ("lastIndexOf", [Value::Str(wanted), until @ ..]) => {
            let wanted: Vec<char> = wanted.chars().collect();
            let Some(last) = chars.len().checked_sub(wanted.len()) else {
                return Ok(position(None));
            };
            let until = match until {
                [Value::Int(until)] => at(until)?.min(last),
                _ => last,
            };
            Ok(position((0..=until).rev().find(|at| chars[*at..].starts_with(&wanted))))
        }
        _ => Err(no_overload()),
    }
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
