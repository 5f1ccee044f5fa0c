//! Functions of texts.
//!
//! Indexes count characters. Input: values. Output: a value, or an error. Owner: pure functions.
//! Bounds: texts of the account's length; a result longer than its inputs is charged before it is
//! created.
// k8s: vendor/github.com/google/cel-go/ext/strings.go, apiserver/pkg/cel/library/regex.go

use super::account::Account;
use super::error::CelError;
use super::eval::{Evaluated, no_overload};
use super::functions::placed as position;
use super::patterns::Pattern;
use super::value::Value;

/// Memory of a text in addition to its bytes.
const TEXT_BYTES_LEAST: usize = 16;

/// Calls a function of a text.
pub(super) fn call(name: &str, text: &str, rest: &[Value], account: &Account) -> Evaluated {
    match (name, rest) {
        ("contains", [Value::Str(part)]) => Ok(text.contains(&**part).into()),
        ("startsWith", [Value::Str(part)]) => Ok(text.starts_with(&**part).into()),
        ("endsWith", [Value::Str(part)]) => Ok(text.ends_with(&**part).into()),
        ("lowerAscii", []) => Ok(text.to_ascii_lowercase().as_str().into()),
        ("upperAscii", []) => Ok(text.to_ascii_uppercase().as_str().into()),
        ("format", [Value::List(values)]) => super::format::format(text, values, account),
        ("trim", []) => Ok(text.trim().into()),
        ("replace", [Value::Str(old), Value::Str(new), most @ ..]) => {
            let most = limit(most)?;
            let count = text.matches(&**old).count().min(most);
            let kept = text.len() - count * old.len();
            account.text(kept.saturating_add(count.saturating_mul(new.len())))?;
            Ok(text.replacen(&**old, new, most).as_str().into())
        }
        ("split", [Value::Str(by), most @ ..]) => split(text, by, limit(most)?, account),
        _ => placed(name, text, rest),
    }
}

/// Calls a function of a text and a pattern, after charging its largest cost: it cannot be
/// interrupted.
pub(super) fn search(
    name: &str,
    text: &str,
    pattern: &Pattern,
    most: &[Value],
    account: &Account,
) -> Evaluated {
    account.at_once(pattern.work(text.len()))?;
    match name {
        "matches" => Ok(pattern.regex.is_match(text).into()),
        "find" => {
            let found = pattern.regex.find(text).map_or("", |found| found.as_str());
            account.text(found.len())?;
            Ok(found.into())
        }
        _ => {
            let (mut all, mut at) = (Vec::new(), pattern.regex.find_iter(text));
            for _ in 0..limit(most)? {
                // Each search may read the rest of the text.
                let Some(found) = at.next() else { break };
                account.at_once(pattern.work(text.len() - found.start()))?;
                account.list(1)?;
                account.text(found.len())?;
                all.push(Value::from(found.as_str()));
            }
            Ok(Value::List(all.into()))
        }
    }
}

/// Returns the limit of parts; a negative number means all.
fn limit(most: &[Value]) -> Result<usize, CelError> {
    match most {
        [] => Ok(usize::MAX),
        [Value::Int(most)] => Ok(usize::try_from(*most).unwrap_or(usize::MAX)),
        _ => Err(no_overload()),
    }
}

fn split(text: &str, by: &str, most: usize, account: &Account) -> Evaluated {
    let mut all = Vec::new();
    let mut push = |part: &str| {
        account.list(1)?;
        account.text(TEXT_BYTES_LEAST + part.len())?;
        all.push(Value::from(part));
        Ok::<_, CelError>(())
    };
    if by.is_empty() {
        // The last part is the rest.
        let mut starts = text.char_indices().map(|(at, _)| at).take(most).peekable();
        while let Some(from) = starts.next() {
            push(&text[from..starts.peek().copied().unwrap_or(text.len())])?;
        }
    } else {
        text.splitn(most, by).try_for_each(push)?;
    }
    Ok(Value::List(all.into()))
}

/// Calls functions that count characters.
fn placed(name: &str, text: &str, rest: &[Value]) -> Evaluated {
    let out = |at: i64| format!("index out of range: {at}");
    // Returns the position of this character; the one after the last is the end of the text.
    let at = |n: &i64| {
        let mut places = text.char_indices().map(|(at, _)| at).chain([text.len()]);
        usize::try_from(*n).ok().and_then(|n| places.nth(n)).ok_or_else(|| out(*n))
    };
    match (name, rest) {
        ("charAt", [Value::Int(n)]) => {
            let rest = &text[at(n)?..];
            let end = rest.chars().next().map_or(0, char::len_utf8);
            Ok(rest[..end].into())
        }
        ("substring", [Value::Int(from)]) => Ok(text[at(from)?..].into()),
        ("substring", [Value::Int(from), Value::Int(to)]) => {
            if from > to {
                return Err(format!("invalid substring range. start: {from}, end: {to}").into());
            }
            Ok(text[at(from)?..at(to)?].into())
        }
        ("indexOf", [Value::Str(wanted), from @ ..]) => {
            let from = if let [Value::Int(from)] = from { *from } else { 0 };
            place(text, wanted, from, false)
        }
        ("lastIndexOf", [Value::Str(wanted)]) if wanted.len() > text.len() => Ok(position(None)),
        ("lastIndexOf", [Value::Str(wanted), until @ ..]) => {
            let last = text.chars().count() - usize::from(!wanted.is_empty());
            let until = match until {
                [Value::Int(until)] => *until,
                _ => i64::try_from(last).unwrap_or(i64::MAX),
            };
            place(text, wanted, until, true)
        }
        _ => Err(no_overload()),
    }
}

pub(super) use pintle_api_types::float::go_float as shortest;

/// Quotes a text as expressions do: only characters with short escapes are escaped.
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

/// Quotes a text as Go's errors do.
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

/// Returns the index of a text in another, limited by `at`. An empty text is found at any index,
/// even one that does not exist.
// k8s: vendor/github.com/google/cel-go/ext/strings.go indexOfOffset, lastIndexOfOffset
fn place(text: &str, wanted: &str, at: i64, is_last: bool) -> Evaluated {
    if wanted.is_empty() {
        return Ok(Value::Int(at));
    }
    let limit =
        usize::try_from(at).map_err(|_| CelError::from(format!("index out of range: {at}")))?;
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

/// Joins the texts of a list.
pub(super) fn join(all: &[Value], between: &[Value], account: &Account) -> Evaluated {
    let between = match between {
        [] => "",
        [Value::Str(between)] => &**between,
        _ => return Err(no_overload()),
    };
    account.work(all.len() as u64)?;
    let bytes: usize = all.iter().map(Value::text_bytes).sum();
    account.text(bytes.saturating_add(between.len().saturating_mul(all.len())))?;
    let mut joined = String::with_capacity(bytes);
    for (at, value) in all.iter().enumerate() {
        let Value::Str(text) = value else { return Err(no_overload()) };
        joined.push_str(if at == 0 { "" } else { between });
        joined.push_str(text);
    }
    Ok(joined.as_str().into())
}
