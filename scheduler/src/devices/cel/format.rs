//! `format` of texts: `'%s has %d'.format(['a', 2])`.
//!
//! Input: a text with clauses, values. Output: the text with the values in it, or why there is none.
//! Owner: pure functions. Bounds: `PRECISION_MAX` digits behind a point. Numbers with a point are
//! written as people read them in English, as upstream writes them.
// k8s: vendor/github.com/google/cel-go/ext/formatting.go

use super::eval::Evaluated;
use super::functions::convert;
use super::texts::quote;
use super::value::{Key, Value};

/// Most digits behind a point.
// k8s: fmt tooLarge
const PRECISION_MAX: usize = 1_000_000;
/// Digits behind a point where nothing else is said.
const PRECISION: usize = 6;

/// Puts values in the places of a text's clauses.
pub(super) fn format(text: &str, values: &[Value]) -> Evaluated {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut at) = (text, 0);
    while let Some(place) = rest.find('%') {
        out.push_str(&rest[..place]);
        rest = &rest[place + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let value = values.get(at).ok_or_else(|| format!("index {at} out of range"))?;
        if rest.is_empty() {
            return Err("unexpected end of string".to_owned());
        }
        let (clause, precision, after) =
            clause(rest).map_err(|why| format!("could not parse formatting clause: {why}"))?;
        let written = write(clause, precision, value);
        out.push_str(&written.map_err(|why| format!("error during formatting: {why}"))?);
        (rest, at) = (after, at + 1);
    }
    out.push_str(rest);
    Ok(out.as_str().into())
}

/// The letter of a clause, its precision, and what follows.
fn clause(text: &str) -> Result<(char, Option<usize>, &str), String> {
    let of_precision = |why: &str| Err(format!("error while parsing precision: {why}"));
    let (mut precision, mut rest) = (None, text);
    if let Some(after) = text.strip_prefix('.') {
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        if digits == after.len() {
            return of_precision("could not find end of precision specifier");
        }
        let (number, after) = after.split_at(digits);
        let converting = "error while converting precision to integer: strconv.Atoi: parsing";
        match number.parse::<usize>() {
            Ok(number) if number > PRECISION_MAX => {
                let most = format!("exceeds maximum allowed precision {PRECISION_MAX}");
                return of_precision(&format!("precision {number} {most}"));
            }
            Ok(number) => precision = Some(number),
            Err(_) if number.is_empty() => {
                return of_precision(&format!("{converting} \"\": invalid syntax"));
            }
            Err(_) => {
                return of_precision(&format!("{converting} \"{number}\": value out of range"));
            }
        }
        rest = after;
    }
    // Upstream looks at bytes; a letter of several is none that it knows.
    let byte = rest.as_bytes().first().copied().unwrap_or_default();
    match char::from(byte) {
        letter @ ('s' | 'd' | 'f' | 'e' | 'b' | 'x' | 'X' | 'o') => {
            Ok((letter, precision, &rest[1..]))
        }
        other => Err(format!("unrecognized formatting clause \"{other}\"")),
    }
}

type Written = Result<String, String>;

fn write(clause: char, precision: Option<usize>, value: &Value) -> Written {
    let kind = value.kind();
    match (clause, value) {
        ('s', _) => text(value),
        ('d', Value::Int(_) | Value::Uint(_)) => text(value),
        ('d', _) => Err(format!("decimal clause can only be used on integers, was given {kind}")),
        ('f', _) => match double(value) {
            Some(number) => Ok(fixed(number, precision.unwrap_or(PRECISION))),
            None => {
                Err(format!("fixed-point clause can only be used on doubles, was given {kind}"))
            }
        },
        ('e', _) => match double(value) {
            // What should be digits behind the point is the width to upstream.
            Some(number) => {
                Ok(format!("{:>1$}", scientific(number), precision.unwrap_or(PRECISION)))
            }
            None => Err(format!("scientific clause can only be used on doubles, was given {kind}")),
        },
        ('b', Value::Bool(b)) => Ok(u8::from(*b).to_string()),
        ('b', Value::Int(n)) => Ok(signed(*n, format!("{:b}", n.unsigned_abs()))),
        ('b', Value::Uint(n)) => Ok(format!("{n:b}")),
        ('b', _) => {
            Err(format!("only integers and bools can be formatted as binary, was given {kind}"))
        }
        ('o', Value::Int(n)) => Ok(signed(*n, format!("{:o}", n.unsigned_abs()))),
        ('o', Value::Uint(n)) => Ok(format!("{n:o}")),
        ('o', _) => Err(format!("octal clause can only be used on integers, was given {kind}")),
        (_, Value::Int(n)) => Ok(cased(clause, signed(*n, format!("{:x}", n.unsigned_abs())))),
        (_, Value::Uint(n)) => Ok(cased(clause, format!("{n:x}"))),
        (_, Value::Str(text)) => Ok(cased(clause, hex(text.as_bytes()))),
        (_, Value::Bytes(bytes)) => Ok(cased(clause, hex(bytes))),
        _ => Err(format!(
            "only integers, byte buffers, and strings can be formatted as hex, was given {kind}"
        )),
    }
}

fn signed(number: i64, digits: String) -> String {
    if number < 0 { format!("-{digits}") } else { digits }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn cased(clause: char, text: String) -> String {
    if clause == 'X' { text.to_ascii_uppercase() } else { text }
}

/// A number, also one that only a text can name.
fn double(value: &Value) -> Option<f64> {
    match value {
        Value::Double(number) => Some(*number),
        Value::Str(text) => match &**text {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn infinite(number: f64) -> Option<String> {
    match number {
        n if n.is_nan() => Some("NaN".to_owned()),
        n if n == f64::INFINITY => Some("∞".to_owned()),
        n if n == f64::NEG_INFINITY => Some("-∞".to_owned()),
        _ => None,
    }
}

/// With a comma behind every three digits.
fn fixed(number: f64, precision: usize) -> String {
    if let Some(text) = infinite(number) {
        return text;
    }
    let text = format!("{number:.precision$}");
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", &*text),
    };
    let (whole, part) = digits.split_once('.').map_or((digits, None), |(w, p)| (w, Some(p)));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    part.map_or_else(|| format!("{sign}{grouped}"), |part| format!("{sign}{grouped}.{part}"))
}

/// A number times a power of ten.
fn scientific(number: f64) -> String {
    const RAISED: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    if let Some(text) = infinite(number) {
        return text;
    }
    let text = format!("{number:.PRECISION$e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, power) = match power.strip_prefix('-') {
        Some(power) => ("⁻", power),
        None => ("", power),
    };
    let power = format!("{power:0>2}");
    let raised = power.chars().filter_map(|digit| RAISED.get(digit.to_digit(10)? as usize));
    format!("{digits}×10{sign}{}", raised.collect::<String>())
}

/// A value as text.
fn text(value: &Value) -> Written {
    match value {
        Value::List(all) => {
            let all = all.iter().map(literal).collect::<Result<Vec<_>, _>>()?;
            Ok(format!("[{}]", all.join(", ")))
        }
        Value::Map(map) => {
            let entry = |(key, value): (&Key, &Value)| {
                Ok(format!("{}:{}", literal(&key.value())?, literal(value)?))
            };
            let mut all = map.entries.iter().map(entry).collect::<Result<Vec<_>, String>>()?;
            all.sort();
            Ok(format!("{{{}}}", all.join(", ")))
        }
        Value::Null => Ok("null".to_owned()),
        Value::Type(name) => Ok((*name).to_owned()),
        Value::Int(_)
        | Value::Uint(_)
        | Value::Double(_)
        | Value::Bool(_)
        | Value::Str(_)
        | Value::Bytes(_)
        | Value::Time(_)
        | Value::Duration(_) => match convert("string", value)? {
            Value::Str(text) => Ok(text.to_string()),
            _ => Err("no string".to_owned()),
        },
        other => Err(format!(
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, \
             types, durations, and timestamps, was given {}",
            other.kind()
        )),
    }
}

/// A value within a list or a map, as an expression has it.
fn literal(value: &Value) -> Written {
    match value {
        Value::Str(text) => Ok(quote(text)),
        Value::Bytes(_) => Ok(format!("b{}", quote(&text(value)?))),
        Value::Time(_) => Ok(format!("timestamp({})", quote(&text(value)?))),
        Value::Duration(_) => Ok(format!("duration({})", quote(&text(value)?))),
        Value::Double(number) => Ok(match infinite(*number) {
            Some(_) if number.is_nan() => "\"NaN\"".to_owned(),
            Some(_) if *number > 0.0 => "\"+Inf\"".to_owned(),
            Some(_) => "\"-Inf\"".to_owned(),
            None => format!("{number:.PRECISION$}"),
        }),
        Value::List(_)
        | Value::Map(_)
        | Value::Null
        | Value::Type(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Bool(_) => text(value),
        other => Err(format!("no formatting function for {}", other.kind())),
    }
}
