//! A JSON value with its numbers as they are written, and JSON text as Go's decoder reads it.
//!
//! Numbers stay text, because a quantity is the written text and not the float next to it. Repeated
//! keys are merged as Go's decoder does into one struct: maps and lists into each other, any other
//! value over the earlier one.
// k8s: vendor/sigs.k8s.io/json, encoding/json

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use super::{Document, ReadLimits, Repeated, SyntaxError};

/// A JSON value.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Json {
    /// `null`.
    #[default]
    Null,
    /// A boolean.
    Bool(bool),
    /// The text of a number, as JSON has it.
    Number(String),
    /// A text.
    String(String),
    /// A list.
    Array(Vec<Self>),
    /// A map.
    Object(BTreeMap<String, Self>),
}

impl Json {
    /// The value of a key, if this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(entries) => entries.get(key),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// Merges a second value for a field, as Go's decoder does.
    fn merge(&mut self, other: Self) {
        match (self, other) {
            (Self::Object(own), Self::Object(other)) => {
                for (key, value) in other {
                    own.entry(key).or_default().merge(value);
                }
            }
            (Self::Array(own), Self::Array(other)) => {
                own.truncate(other.len());
                own.resize(other.len(), Self::Null);
                own.iter_mut().zip(other).for_each(|(own, other)| own.merge(other));
            }
            (own, other) => *own = other,
        }
    }
}

impl From<Json> for serde_json::Value {
    fn from(json: Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(value),
            Json::Number(text) => match (text.parse::<i64>(), text.parse::<u64>()) {
                (Ok(number), _) => number.into(),
                (_, Ok(number)) => number.into(),
                _ => text.parse::<f64>().unwrap_or_default().into(),
            },
            Json::String(text) => Self::String(text),
            Json::Array(items) => Self::Array(items.into_iter().map(Self::from).collect()),
            Json::Object(entries) => Self::Object(
                entries.into_iter().map(|(key, value)| (key, Self::from(value))).collect(),
            ),
        }
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(text) => f.write_str(text),
            Self::String(text) => write_text(text, f),
            Self::Array(items) => {
                f.write_char('[')?;
                for (index, item) in items.iter().enumerate() {
                    let comma = if index > 0 { "," } else { "" };
                    write!(f, "{comma}{item}")?;
                }
                f.write_char(']')
            }
            Self::Object(entries) => {
                f.write_char('{')?;
                for (index, (key, value)) in entries.iter().enumerate() {
                    f.write_str(if index > 0 { "," } else { "" })?;
                    write_text(key, f)?;
                    write!(f, ":{value}")?;
                }
                f.write_char('}')
            }
        }
    }
}

fn write_text(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_char('"')?;
    for character in text.chars() {
        match character {
            '"' | '\\' => write!(f, "\\{character}")?,
            '\0'..' ' => write!(f, "\\u{:04x}", u32::from(character))?,
            _ => f.write_char(character)?,
        }
    }
    f.write_char('"')
}

/// The first character and its bytes; a byte that is none becomes U+FFFD.
fn first_character(bytes: &[u8]) -> (char, usize) {
    let found = (1..=bytes.len().min(4)).find_map(|width| {
        let character = std::str::from_utf8(&bytes[..width]).ok()?.chars().next()?;
        Some((character, width))
    });
    found.unwrap_or((char::REPLACEMENT_CHARACTER, 1))
}

/// Bytes as the text that Go writes for them: each one that is no UTF-8 becomes U+FFFD.
pub fn utf8_of(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    while !bytes.is_empty() {
        let (character, width) = first_character(bytes);
        text.push(character);
        bytes = &bytes[width..];
    }
    text
}

/// Reads JSON text, all of it.
pub fn parse_json(bytes: &[u8], limits: &ReadLimits) -> Result<Document, SyntaxError> {
    let mut reader = Reader { bytes, at: 0, depth: 0, nodes: 0, limits, repeated: Vec::new() };
    let value = reader.value()?;
    reader.skip_space();
    match reader.bytes.get(reader.at) {
        None => Ok(Document { value, repeated: reader.repeated }),
        Some(_) => reader.error("unexpected text after the value"),
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    depth: usize,
    nodes: usize,
    limits: &'b ReadLimits,
    repeated: Vec<Repeated>,
}

impl Reader<'_> {
    fn line(&self) -> usize {
        self.bytes[..self.at.min(self.bytes.len())].iter().filter(|it| **it == b'\n').count()
    }

    fn error<T>(&self, message: &str) -> Result<T, SyntaxError> {
        Err(SyntaxError::at(self.line(), message))
    }

    fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\r' | b'\n') {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Result<Json, SyntaxError> {
        self.skip_space();
        self.nodes += 1;
        if self.nodes > self.limits.nodes_max {
            return self.error(&format!("more than {} values", self.limits.nodes_max));
        }
        match self.peek() {
            b'{' | b'[' => {
                self.depth += 1;
                if self.depth > self.limits.depth_max {
                    return self.error(&format!("exceeded max depth of {}", self.limits.depth_max));
                }
                let value = if self.peek() == b'{' { self.object() } else { self.array() };
                self.depth -= 1;
                value
            }
            b'"' => Ok(Json::String(self.text()?)),
            b't' => self.word("true", Json::Bool(true)),
            b'f' => self.word("false", Json::Bool(false)),
            b'n' => self.word("null", Json::Null),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &str, value: Json) -> Result<Json, SyntaxError> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return self.error("looking for the beginning of a value");
        }
        self.at += word.len();
        Ok(value)
    }

    fn digits(&mut self) -> usize {
        let from = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        self.at - from
    }

    fn number(&mut self) -> Result<Json, SyntaxError> {
        let from = self.at;
        self.at += usize::from(self.peek() == b'-');
        let is_zero = self.peek() == b'0';
        let whole = self.digits();
        let mut is_number = whole == 1 || (whole > 1 && !is_zero);
        if self.peek() == b'.' {
            self.at += 1;
            is_number &= self.digits() > 0;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), b'+' | b'-'));
            is_number &= self.digits() > 0;
        }
        if !is_number {
            return self.error("looking for the beginning of a value");
        }
        let text = std::str::from_utf8(&self.bytes[from..self.at]).unwrap_or_default();
        Ok(Json::Number(text.to_owned()))
    }

    /// Takes a comma and is true, or the end and is false.
    fn has_more(&mut self, end: u8) -> Result<bool, SyntaxError> {
        self.skip_space();
        let found = self.peek();
        self.at += 1;
        match found {
            b',' => Ok(true),
            _ if found == end => Ok(false),
            _ => self.error(&format!("expected a comma or '{}'", char::from(end))),
        }
    }

    /// Takes the opening bracket; true if the closing one follows, which is taken as well.
    fn is_empty(&mut self, end: u8) -> bool {
        self.at += 1;
        self.skip_space();
        let is_empty = self.peek() == end;
        self.at += usize::from(is_empty);
        is_empty
    }

    fn array(&mut self) -> Result<Json, SyntaxError> {
        let mut items = Vec::new();
        if self.is_empty(b']') {
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value()?);
            if !self.has_more(b']')? {
                return Ok(Json::Array(items));
            }
        }
    }

    fn object(&mut self) -> Result<Json, SyntaxError> {
        let mut entries = BTreeMap::new();
        if self.is_empty(b'}') {
            return Ok(Json::Object(entries));
        }
        loop {
            self.skip_space();
            let key = self.text()?;
            self.skip_space();
            if self.peek() != b':' {
                return self.error("expected a colon after a key");
            }
            self.at += 1;
            let line = self.line() as u64 + 1;
            let value = self.value()?;
            match entries.entry(key) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(value);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    self.repeated.push(Repeated { line, key: entry.key().clone() });
                    Json::merge(entry.get_mut(), value);
                }
            }
            if !self.has_more(b'}')? {
                return Ok(Json::Object(entries));
            }
        }
    }

    fn text(&mut self) -> Result<String, SyntaxError> {
        if self.peek() != b'"' {
            return self.error("expected a text in quotes");
        }
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                b'"' => {
                    self.at += 1;
                    return Ok(text);
                }
                b'\\' => self.escape(&mut text)?,
                0..b' ' => return self.error("a control character or the end inside a text"),
                _ => self.character(&mut text),
            }
        }
    }

    fn character(&mut self, text: &mut String) {
        let (character, width) = first_character(&self.bytes[self.at..]);
        text.push(character);
        self.at += width;
    }

    fn escape(&mut self, text: &mut String) -> Result<(), SyntaxError> {
        let character = match self.bytes.get(self.at + 1) {
            Some(own @ (b'"' | b'\\' | b'/')) => char::from(*own),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(text),
            _ => return self.error("an unknown escape in a text"),
        };
        self.at += 2;
        text.push(character);
        Ok(())
    }

    /// `\u0000`, or a pair of them; half a pair becomes U+FFFD.
    fn unicode_escape(&mut self, text: &mut String) -> Result<(), SyntaxError> {
        let Some(first) = self.unit(self.at) else {
            return self.error("an unknown escape in a text");
        };
        self.at += 6;
        if let Some(second) = self.unit(self.at)
            && let Some(Ok(pair)) = char::decode_utf16([first, second]).next()
            && first & 0xfc00 == 0xd800
        {
            self.at += 6;
            text.push(pair);
            return Ok(());
        }
        text.push(char::from_u32(first.into()).unwrap_or(char::REPLACEMENT_CHARACTER));
        Ok(())
    }

    fn unit(&self, at: usize) -> Option<u16> {
        let digits = self.bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
        is_hex.then(|| u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok())?
    }
}
