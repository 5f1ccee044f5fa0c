//! Lexer of expressions.
//!
//! Input: a text of at most [`TEXT_BYTES_MAX`]. Output: tokens, each with the offset in bytes at
//! which it starts.
//! Owner: pure functions.

use std::rc::Rc;

use super::TEXT_BYTES_MAX;
use super::error::CelError;
use super::value::Value;

/// A token of an expression.
#[derive(Clone, Debug)]
pub(super) enum Token {
    /// A name.
    Name(Rc<str>),
    /// A number, a string or bytes.
    Literal(Value),
    /// An operator, a bracket or another punctuation mark.
    Sign(&'static str),
}

/// Signs of two characters come first, because the first match is used.
const SIGNS: [&str; 25] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",",
    "(", ")", "[", "]", "{", "}", "=",
];

/// Splits a text into tokens.
///
/// # Errors
/// The first invalid token, as a sentence.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, CelError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("expression has more than {TEXT_BYTES_MAX} bytes").into());
    }
    let mut lexer = Lexer { text, at: 0 };
    let mut found = Vec::new();
    while lexer.skip_space() {
        let from = lexer.at;
        found.push((from, lexer.token()?));
    }
    Ok(found)
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Skips blanks and comments; returns false at the end of the text.
    fn skip_space(&mut self) -> bool {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start().len();
            self.at += blank;
            if !self.rest().starts_with("//") {
                return !self.rest().is_empty();
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    fn token(&mut self) -> Result<Token, CelError> {
        if let Some(text) = self.text_literal()? {
            return Ok(Token::Literal(text));
        }
        let rest = self.rest();
        let digits = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        if digits(rest) || (rest.starts_with('.') && digits(&rest[1..])) {
            return self.number().map(Token::Literal);
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if end > 0 {
            self.at += end;
            return Ok(Token::Name(rest[..end].into()));
        }
        let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) else {
            let odd = rest.chars().next().unwrap_or_default();
            return Err(format!("Syntax error: token recognition error at: '{odd}'").into());
        };
        self.at += sign.len();
        Ok(Token::Sign(sign))
    }

    fn number(&mut self) -> Result<Value, CelError> {
        let rest = self.rest();
        let bad = |text: &str| CelError::from(format!("Syntax error: invalid number '{text}'"));
        if let Some(hex) = rest.strip_prefix("0x") {
            let end = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
            let number = u64::from_str_radix(&hex[..end], 16).map_err(|_| bad(&rest[..end + 2]))?;
            self.at += end + 2;
            return self.whole(number).ok_or_else(|| bad(&rest[..end + 2]));
        }
        let end = number_end(rest);
        let text = &rest[..end];
        self.at += end;
        if text.bytes().all(|b| b.is_ascii_digit()) {
            let number = text.parse().map_err(|_| bad(text))?;
            return self.whole(number).ok_or_else(|| bad(text));
        }
        text.parse().map(Value::Double).map_err(|_| bad(text))
    }

    /// Parses the suffix of a whole number. 2^63 becomes `i64::MIN`, because the parser applies a
    /// minus sign later, and by wrapping.
    fn whole(&mut self, number: u64) -> Option<Value> {
        if self.rest().starts_with(['u', 'U']) {
            self.at += 1;
            return Some(Value::Uint(number));
        }
        match i64::try_from(number) {
            Ok(number) => Some(Value::Int(number)),
            Err(_) if number == i64::MIN.unsigned_abs() => Some(Value::Int(i64::MIN)),
            Err(_) => None,
        }
    }

    fn text_literal(&mut self) -> Result<Option<Value>, CelError> {
        let rest = self.rest();
        let marks = rest.find(['"', '\'']).filter(|at| *at <= 2);
        let Some(marks) = marks else { return Ok(None) };
        let (prefix, body) = rest.split_at(marks);
        let prefix = prefix.to_ascii_lowercase();
        let (raw, bytes) = match prefix.as_str() {
            "" => (false, false),
            "r" => (true, false),
            "b" => (false, true),
            "rb" | "br" => (true, true),
            _ => return Ok(None),
        };
        let one = &body[..1];
        let mark = if body.starts_with(&one.repeat(3)) { one.repeat(3) } else { one.to_owned() };
        let body = &body[mark.len()..];
        let end = text_end(body, &mark, raw)
            .ok_or(CelError::from("Syntax error: unterminated string"))?;
        self.at += marks + mark.len() * 2 + end;
        let read =
            if raw { body.as_bytes()[..end].to_vec() } else { unescape(&body[..end], bytes)? };
        if bytes {
            return Ok(Some(Value::Bytes(read.into())));
        }
        let text =
            String::from_utf8(read).map_err(|_| CelError::from("Syntax error: invalid UTF-8"))?;
        Ok(Some(Value::Str(text.into())))
    }
}

fn number_end(text: &str) -> usize {
    let digits = |from: usize| {
        let rest = &text[from..];
        from + rest.bytes().take_while(u8::is_ascii_digit).count()
    };
    let mut end = digits(0);
    if text[end..].starts_with('.') && digits(end + 1) > end + 1 {
        end = digits(end + 1);
    }
    if text[end..].starts_with(['e', 'E']) {
        let sign = usize::from(text[end + 1..].starts_with(['+', '-']));
        if digits(end + 1 + sign) > end + 1 + sign {
            end = digits(end + 1 + sign);
        }
    }
    end
}

/// Returns the position of the closing quote.
fn text_end(body: &str, mark: &str, raw: bool) -> Option<usize> {
    let mut at = 0;
    while at < body.len() {
        let rest = &body[at..];
        if rest.starts_with(mark) {
            return Some(at);
        }
        let mut chars = rest.chars();
        let first = chars.next()?;
        if mark.len() == 1 && first == '\n' {
            return None;
        }
        at += first.len_utf8();
        if first == '\\' && !raw {
            at += chars.next()?.len_utf8();
        }
    }
    None
}

fn unescape(body: &str, bytes: bool) -> Result<Vec<u8>, CelError> {
    let mut read = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = rest.find('\\') {
        read.extend_from_slice(&rest.as_bytes()[..at]);
        let (code, after) = escape(&rest[at + 1..])
            .ok_or_else(|| CelError::from("Syntax error: unable to unescape string"))?;
        match code {
            Escape::Number(number) if bytes => read.push(number),
            Escape::Number(number) => push(&mut read, char::from(number)),
            Escape::Char(c) => push(&mut read, c),
        }
        rest = after;
    }
    read.extend_from_slice(rest.as_bytes());
    Ok(read)
}

fn push(read: &mut Vec<u8>, c: char) {
    read.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

enum Escape {
    Char(char),
    Number(u8),
}

/// Parses the part of an escape after its backslash; returns the escape and the rest of the text.
fn escape(text: &str) -> Option<(Escape, &str)> {
    let first = text.chars().next()?;
    let rest = &text[first.len_utf8()..];
    let plain = |c: char| Some((Escape::Char(c), rest));
    let hex = |count: usize| {
        let digits = rest.get(..count)?;
        let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u32::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
        Some((number, &rest[count..]))
    };
    match first {
        'a' => plain('\u{7}'),
        'b' => plain('\u{8}'),
        'f' => plain('\u{c}'),
        'n' => plain('\n'),
        'r' => plain('\r'),
        't' => plain('\t'),
        'v' => plain('\u{b}'),
        '\\' | '\'' | '"' | '`' | '?' => plain(first),
        'x' | 'X' => hex(2).map(|(n, rest)| (Escape::Number(n as u8), rest)),
        'u' => hex(4).and_then(|(n, rest)| Some((Escape::Char(char::from_u32(n)?), rest))),
        'U' => hex(8).and_then(|(n, rest)| Some((Escape::Char(char::from_u32(n)?), rest))),
        '0'..='3' => {
            let number = u8::from_str_radix(text.get(..3)?, 8).ok()?;
            Some((Escape::Number(number), &text[3..]))
        }
        _ => None,
    }
}
