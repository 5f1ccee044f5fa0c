//! Bytes of a file to text: byte order marks, UTF-16, and characters that YAML does not allow.
//!
//! A character that is not allowed ends the text, and is an error for a reader that gets there: the
//! text behind the first document is never read, except as far as it is read ahead.
// k8s: vendor/go.yaml.in/yaml/v2/readerc.go yaml_parser_update_buffer

use std::borrow::Cow;

use super::SyntaxError;

/// Bytes that go-yaml reads at a time; a wrong one spoils those before it.
const CHUNK_BYTES: usize = 512;

/// The text of a file up to the first unreadable byte.
pub(super) struct FileText<'b> {
    pub text: Cow<'b, str>,
    /// The error at the end of the text, unless the file ends there.
    pub broken: Option<SyntaxError>,
}

/// The encoding of the characters.
#[derive(Clone, Copy)]
enum Encoding {
    Utf8,
    Utf16 { is_little: bool },
}

impl<'b> FileText<'b> {
    /// The text of a file.
    pub(super) fn of(bytes: &'b [u8]) -> Self {
        let (encoding, mark) = match bytes {
            [0xff, 0xfe, ..] => (Encoding::Utf16 { is_little: true }, 2),
            [0xfe, 0xff, ..] => (Encoding::Utf16 { is_little: false }, 2),
            [0xef, 0xbb, 0xbf, ..] => (Encoding::Utf8, 3),
            _ => (Encoding::Utf8, 0),
        };
        if matches!(encoding, Encoding::Utf8)
            && let Ok(text) = std::str::from_utf8(&bytes[mark..])
            && text.chars().all(is_allowed)
        {
            return Self { text: Cow::Borrowed(text), broken: None };
        }
        Self::slowly(bytes, mark, encoding)
    }

    fn slowly(bytes: &[u8], mark: usize, encoding: Encoding) -> Self {
        let (mut text, mut at) = (String::new(), mark);
        // Where in bytes and text the part began that was read last, and where it ends.
        let (mut chunk_end, mut chunk_text) = (CHUNK_BYTES, 0);
        while at < bytes.len() {
            let decoded = match encoding {
                Encoding::Utf8 => utf8(&bytes[at..]),
                Encoding::Utf16 { is_little } => utf16(&bytes[at..], is_little),
            };
            let decoded = decoded.and_then(|(character, width)| match is_allowed(character) {
                true => Ok((character, width)),
                false => Err(("control characters are not allowed", width)),
            });
            let width = match decoded {
                Ok((_, width)) | Err((_, width)) => width,
            };
            if at + width > chunk_end {
                (chunk_end, chunk_text) = (at + CHUNK_BYTES, text.len());
            }
            match decoded {
                Ok((character, _)) => text.push(character),
                Err((message, _)) => {
                    let line = text.bytes().filter(|byte| *byte == b'\n').count();
                    text.truncate(chunk_text);
                    let broken = Some(SyntaxError::at(line, message));
                    return Self { text: Cow::Owned(text), broken };
                }
            }
            at += width;
        }
        Self { text: Cow::Owned(text), broken: None }
    }
}

// k8s: readerc.go, "Check the range of the value"
fn is_allowed(character: char) -> bool {
    matches!(
        character,
        '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{d7ff}'
            | '\u{e000}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}'
    )
}

/// The first character and its bytes, or its fault.
fn utf8(bytes: &[u8]) -> Result<(char, usize), (&'static str, usize)> {
    let width = match bytes[0] {
        0..0x80 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0..0xf8 => 4,
        _ => return Err(("invalid leading UTF-8 octet", 1)),
    };
    let Some(own) = bytes.get(..width) else {
        return Err(("incomplete UTF-8 octet sequence", bytes.len()));
    };
    let text = std::str::from_utf8(own).ok().and_then(|text| text.chars().next());
    text.map(|character| (character, width)).ok_or(("invalid UTF-8 octet sequence", width))
}

fn utf16(bytes: &[u8], is_little: bool) -> Result<(char, usize), (&'static str, usize)> {
    let unit = |at: usize| -> Option<u16> {
        let pair = [*bytes.get(at)?, *bytes.get(at + 1)?];
        Some(if is_little { u16::from_le_bytes(pair) } else { u16::from_be_bytes(pair) })
    };
    let Some(first) = unit(0) else {
        return Err(("incomplete UTF-16 character", bytes.len()));
    };
    if first & 0xfc00 != 0xd800 {
        let character = char::from_u32(first.into());
        return character.map(|it| (it, 2)).ok_or(("unexpected low surrogate area", 2));
    }
    let Some(second) = unit(2) else {
        return Err(("incomplete UTF-16 surrogate pair", bytes.len()));
    };
    match char::decode_utf16([first, second]).next() {
        Some(Ok(character)) => Ok((character, 4)),
        _ => Err(("expected low surrogate area", 4)),
    }
}
