//! `format` of texts: `'%s has %d'.format(['a', 2])`.
//!
//! Input: a format with clauses, values. Output: the formatted text, or an error. Owner: pure
//! functions. Bounds: `PRECISION_MAX` digits after the point, and texts of the account's length;
//! each part is charged before it is written. Numbers with a point have the English format, as
//! upstream writes them.
// k8s: vendor/github.com/google/cel-go/ext/formatting.go

use super::account::{Account, TEXT_BYTES};
use super::error::CelError;
use super::eval::Evaluated;
use super::functions::convert;
use super::texts::quote;
use super::value::{Map, Value};

/// Limit of digits after the point.
// k8s: fmt tooLarge
const PRECISION_MAX: usize = 1_000_000;
/// Default number of digits after the point.
const PRECISION: usize = 6;
/// Digits after the point that may be other than zero.
const DIGITS_MAX: usize = 1_074;

/// Replaces the clauses of a format by values.
pub(super) fn format(text: &str, values: &[Value], account: &Account) -> Evaluated {
    let mut out = Out { text: String::new(), account };
    let (mut rest, mut at) = (text, 0);
    while let Some(place) = rest.find('%') {
        out.push(&rest[..place])?;
        rest = &rest[place + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            out.push("%")?;
            rest = after;
            continue;
        }
        let value =
            values.get(at).ok_or_else(|| CelError::from(format!("index {at} out of range")))?;
        if rest.is_empty() {
            return Err("unexpected end of string".into());
        }
        let (clause, precision, after) = clause(rest)
            .map_err(|why| CelError::from(format!("could not parse formatting clause: {why}")))?;
        let written = out.write(clause, precision, value);
        written.map_err(|why| CelError::from(format!("error during formatting: {why}")))?;
        (rest, at) = (after, at + 1);
    }
    out.push(rest)?;
    Ok(out.text.as_str().into())
}

/// The text being written.
struct Out<'a> {
    text: String,
    account: &'a Account<'a>,
}

/// Parses a clause: its letter, its precision, and the rest.
fn clause(text: &str) -> Result<(char, Option<usize>, &str), CelError> {
    let of_precision =
        |why: &str| Err(CelError::from(format!("error while parsing precision: {why}")));
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
    // Upstream reads bytes, so that a multi-byte letter is unknown.
    let byte = rest.as_bytes().first().copied().unwrap_or_default();
    match char::from(byte) {
        letter @ ('s' | 'd' | 'f' | 'e' | 'b' | 'x' | 'X' | 'o') => {
            Ok((letter, precision, &rest[1..]))
        }
        other => Err(format!("unrecognized formatting clause \"{other}\"").into()),
    }
}

type Written = Result<(), CelError>;

impl Out<'_> {
    /// Charges further text.
    fn pay(&self, bytes: usize) -> Written {
        match self.text.len().saturating_add(bytes) > TEXT_BYTES {
            true => self.account.text(usize::MAX),
            false => self.account.bytes(bytes as u64),
        }
    }

    fn push(&mut self, part: &str) -> Written {
        self.pay(part.len())?;
        self.text.push_str(part);
        Ok(())
    }

    /// Writes the same character many times.
    fn fill(&mut self, with: char, count: usize) -> Written {
        self.pay(count)?;
        self.text.extend(std::iter::repeat_n(with, count));
        Ok(())
    }

    fn write(&mut self, clause: char, precision: Option<usize>, value: &Value) -> Written {
        let kind = value.kind();
        match (clause, value) {
            ('s', _) => self.value(value),
            ('d', Value::Int(_) | Value::Uint(_)) => self.value(value),
            ('d', _) => {
                Err(format!("decimal clause can only be used on integers, was given {kind}").into())
            }
            ('f', _) => match double(value) {
                Some(number) => self.fixed(number, precision.unwrap_or(PRECISION)),
                None => {
                    Err(format!("fixed-point clause can only be used on doubles, was given {kind}")
                        .into())
                }
            },
            ('e', _) => match double(value) {
                // Upstream takes the digits after the point for the width.
                Some(number) => {
                    let text = scientific(number);
                    let width = precision.unwrap_or(PRECISION);
                    self.fill(' ', width.saturating_sub(text.chars().count()))?;
                    self.push(&text)
                }
                None => {
                    Err(format!("scientific clause can only be used on doubles, was given {kind}")
                        .into())
                }
            },
            ('b', Value::Bool(b)) => self.push(&u8::from(*b).to_string()),
            ('b', Value::Int(n)) => self.push(&signed(*n, format!("{:b}", n.unsigned_abs()))),
            ('b', Value::Uint(n)) => self.push(&format!("{n:b}")),
            ('b', _) => {
                Err(format!("only integers and bools can be formatted as binary, was given {kind}")
                    .into())
            }
            ('o', Value::Int(n)) => self.push(&signed(*n, format!("{:o}", n.unsigned_abs()))),
            ('o', Value::Uint(n)) => self.push(&format!("{n:o}")),
            ('o', _) => {
                Err(format!("octal clause can only be used on integers, was given {kind}").into())
            }
            (_, Value::Int(n)) => {
                self.push(&cased(clause, signed(*n, format!("{:x}", n.unsigned_abs()))))
            }
            (_, Value::Uint(n)) => self.push(&cased(clause, format!("{n:x}"))),
            (_, Value::Str(text)) => self.hex(clause, text.as_bytes()),
            (_, Value::Bytes(bytes)) => self.hex(clause, bytes),
            _ => Err(format!(
                "only integers, byte buffers, and strings can be formatted as hex, was given {kind}"
            )
            .into()),
        }
    }

    fn hex(&mut self, clause: char, bytes: &[u8]) -> Written {
        let digit = |four: u8| char::from_digit(u32::from(four), 16).unwrap_or('0');
        self.pay(2 * bytes.len())?;
        for byte in bytes {
            for digit in [digit(byte >> 4), digit(byte & 15)] {
                self.text.push(if clause == 'X' { digit.to_ascii_uppercase() } else { digit });
            }
        }
        Ok(())
    }

    /// Writes a comma between groups of three digits.
    fn fixed(&mut self, number: f64, precision: usize) -> Written {
        if let Some(text) = infinite(number) {
            return self.push(&text);
        }
        let digits = precision.min(DIGITS_MAX);
        let text = format!("{number:.digits$}");
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", &*text),
        };
        let (whole, part) = digits.split_once('.').map_or((digits, None), |(w, p)| (w, Some(p)));
        let mut grouped = sign.to_owned();
        for (at, digit) in whole.chars().enumerate() {
            if at > 0 && (whole.len() - at) % 3 == 0 {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        self.push(&grouped)?;
        let Some(part) = part else { return Ok(()) };
        self.push(".")?;
        self.push(part)?;
        self.fill('0', precision.saturating_sub(DIGITS_MAX))
    }

    /// A value as text.
    fn value(&mut self, value: &Value) -> Written {
        self.account.work(1)?;
        match value {
            Value::List(all) => {
                self.push("[")?;
                for (at, value) in all.iter().enumerate() {
                    self.push(if at == 0 { "" } else { ", " })?;
                    self.literal(value)?;
                }
                self.push("]")
            }
            Value::Map(map) => self.map(map),
            Value::Null => self.push("null"),
            Value::Type(name) => self.push(name),
            Value::Int(_)
            | Value::Uint(_)
            | Value::Double(_)
            | Value::Bool(_)
            | Value::Str(_)
            | Value::Bytes(_)
            | Value::Time(_)
            | Value::Duration(_) => match convert("string", value, self.account)? {
                Value::Str(text) => self.push(&text),
                _ => Err("no string".into()),
            },
            other => Err(format!(
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, \
                 types, durations, and timestamps, was given {}",
                other.kind()
            ).into()),
        }
    }

    /// Writes entries in the order of their texts.
    fn map(&mut self, map: &Map) -> Written {
        let mut all = Vec::new();
        for (key, value) in &map.entries {
            let mut entry = Out { text: String::new(), account: self.account };
            entry.literal(&key.value())?;
            entry.push(":")?;
            entry.literal(value)?;
            all.push(entry.text);
        }
        all.sort();
        self.push("{")?;
        for (at, entry) in all.iter().enumerate() {
            self.push(if at == 0 { "" } else { ", " })?;
            self.push(entry)?;
        }
        self.push("}")
    }

    /// Writes a value within a list or a map as a literal.
    fn literal(&mut self, value: &Value) -> Written {
        match value {
            Value::Str(text) => self.quoted(text),
            Value::Bytes(_) => self.called("b", "", value),
            Value::Time(_) => self.called("timestamp(", ")", value),
            Value::Duration(_) => self.called("duration(", ")", value),
            Value::Double(number) => self.push(&match infinite(*number) {
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
            | Value::Bool(_) => {
                let account = self.account;
                account.deeper(|| self.value(value))
            }
            other => Err(format!("no formatting function for {}", other.kind()).into()),
        }
    }

    fn quoted(&mut self, text: &str) -> Written {
        // A character becomes six at most.
        self.account.bytes(6 * text.len() as u64)?;
        self.push(&quote(text))
    }

    fn called(&mut self, before: &str, after: &str, value: &Value) -> Written {
        let mut inner = Out { text: String::new(), account: self.account };
        inner.value(value)?;
        self.push(before)?;
        self.quoted(&inner.text)?;
        self.push(after)
    }
}

fn signed(number: i64, digits: String) -> String {
    if number < 0 { format!("-{digits}") } else { digits }
}

fn cased(clause: char, text: String) -> String {
    if clause == 'X' { text.to_ascii_uppercase() } else { text }
}

/// Parses a number, including those that only a text can express.
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

/// Writes a number with a power of ten.
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
