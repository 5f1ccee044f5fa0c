//! Directives, tags, anchors and aliases.
// k8s: vendor/go.yaml.in/yaml/v2/scannerc.go

use super::scanner::{Scanned, Scanner, Token, TokenKind};

/// Digits of a number of `%YAML`.
const VERSION_DIGITS_MAX: usize = 2;

impl Scanner<'_> {
    // k8s: scannerc.go yaml_parser_scan_directive
    pub(super) fn scan_directive(&mut self) -> Scanned<Token> {
        let mark = self.mark;
        self.skip();
        let name = self.scan_word();
        if name.is_empty() {
            return self.error("could not find expected directive name");
        }
        if !self.is_blank_or_end(0) {
            return self.error("found unexpected non-alphabetical character");
        }
        let kind = match name.as_str() {
            "YAML" => self.scan_version()?,
            "TAG" => self.scan_tag_directive()?,
            _ => return self.error("found unknown directive name"),
        };
        self.skip_blanks();
        if self.at(0) == b'#' {
            self.skip_comment();
        }
        self.check_unbroken(1)?;
        if !self.is_break_or_end(0) {
            return self.error("did not find expected comment or line break");
        }
        self.skip_break();
        Ok(Token { kind, mark })
    }

    fn scan_word(&mut self) -> String {
        let mut word = String::new();
        while self.is_word() {
            self.keep(&mut word);
        }
        word
    }

    fn skip_blanks(&mut self) {
        while self.is_blank(0) {
            self.skip();
        }
    }

    fn scan_version(&mut self) -> Scanned<TokenKind> {
        self.skip_blanks();
        let major = self.scan_version_number()?;
        if self.at(0) != b'.' {
            return self.error("did not find expected digit or '.' character");
        }
        self.skip();
        let minor = self.scan_version_number()?;
        Ok(TokenKind::VersionDirective { major, minor })
    }

    fn scan_version_number(&mut self) -> Scanned<u32> {
        let mut digits = String::new();
        while self.at(0).is_ascii_digit() {
            if digits.len() == VERSION_DIGITS_MAX {
                return self.error("found extremely long version number");
            }
            self.keep(&mut digits);
        }
        match digits.parse() {
            Ok(number) => Ok(number),
            Err(_) => self.error("did not find expected version number"),
        }
    }

    fn scan_tag_directive(&mut self) -> Scanned<TokenKind> {
        self.skip_blanks();
        let handle = self.scan_tag_handle()?;
        if handle != "!" && !handle[1..].ends_with('!') {
            return self.error("did not find expected '!'");
        }
        if !self.is_blank(0) {
            return self.error("did not find expected whitespace");
        }
        self.skip_blanks();
        let prefix = self.scan_tag_uri("")?;
        if !self.is_blank_or_end(0) {
            return self.error("did not find expected whitespace or line break");
        }
        let prefix = String::from_utf8_lossy(&prefix).into_owned();
        Ok(TokenKind::TagDirective { handle, prefix })
    }

    // k8s: scannerc.go yaml_parser_scan_anchor
    pub(super) fn scan_anchor(&mut self) -> Scanned<Token> {
        let mark = self.mark;
        let is_alias = self.at(0) == b'*';
        self.skip();
        let name = self.scan_word();
        self.check_unbroken(1)?;
        let is_ended = self.is_blank_or_end(0)
            || matches!(self.at(0), b'?' | b':' | b',' | b']' | b'}' | b'%' | b'@' | b'`');
        if name.is_empty() || !is_ended {
            return self.error("did not find expected alphabetic or numeric character");
        }
        let kind = if is_alias { TokenKind::Alias(name) } else { TokenKind::Anchor(name) };
        Ok(Token { kind, mark })
    }

    // k8s: scannerc.go yaml_parser_scan_tag
    pub(super) fn scan_tag(&mut self) -> Scanned<Token> {
        let mark = self.mark;
        let (handle, suffix) = if self.at(1) == b'<' {
            self.skip();
            self.skip();
            let suffix = self.scan_tag_uri("")?;
            if self.at(0) != b'>' {
                return self.error("did not find the expected '>'");
            }
            self.skip();
            (String::new(), suffix)
        } else {
            let handle = self.scan_tag_handle()?;
            if handle.len() > 1 && handle.ends_with('!') {
                let suffix = self.scan_tag_uri("")?;
                (handle, suffix)
            } else {
                let suffix = self.scan_tag_uri(&handle)?;
                // A `!` alone has no handle, and is its own suffix.
                if suffix.is_empty() {
                    (String::new(), b"!".to_vec())
                } else {
                    ("!".to_owned(), suffix)
                }
            }
        };
        self.check_unbroken(1)?;
        if !self.is_blank_or_end(0) {
            return self.error("did not find expected whitespace or line break");
        }
        Ok(Token { kind: TokenKind::Tag { handle, suffix }, mark })
    }

    fn scan_tag_handle(&mut self) -> Scanned<String> {
        if self.at(0) != b'!' {
            return self.error("did not find expected '!'");
        }
        let mut handle = String::new();
        self.keep(&mut handle);
        while self.is_word() {
            self.keep(&mut handle);
        }
        if self.at(0) == b'!' {
            self.keep(&mut handle);
        }
        Ok(handle)
    }

    /// The rest of a tag behind `head`, of which the first character is the `!`.
    // k8s: scannerc.go yaml_parser_scan_tag_uri
    fn scan_tag_uri(&mut self, head: &str) -> Scanned<Vec<u8>> {
        let mut uri = head.get(1..).unwrap_or_default().as_bytes().to_vec();
        let mut is_found = !head.is_empty();
        while self.is_word() || b";/?:@&=+$,.!~*'()[]%".contains(&self.at(0)) {
            if self.at(0) == b'%' {
                self.scan_uri_escapes(&mut uri)?;
            } else {
                uri.push(self.at(0));
                self.skip();
            }
            is_found = true;
        }
        if is_found { Ok(uri) } else { self.error("did not find expected tag URI") }
    }

    /// One character that is written as `%` and two digits for each byte.
    fn scan_uri_escapes(&mut self, uri: &mut Vec<u8>) -> Scanned<()> {
        let mut left = None;
        while left != Some(0) {
            let digit = |at: u8| char::from(at).to_digit(16);
            let digits = digit(self.at(1)).zip(digit(self.at(2)));
            let Some((high, low)) = digits.filter(|_| self.at(0) == b'%') else {
                return self.error("did not find URI escaped octet");
            };
            let octet = (high << 4 | low) as u8;
            left = Some(match (left, octet) {
                (None, 0..0x80) => 0,
                (None, 0xc0..0xe0) => 1,
                (None, 0xe0..0xf0) => 2,
                (None, 0xf0..0xf8) => 3,
                (Some(left), 0x80..0xc0) => left - 1,
                (None, _) => return self.error("found an incorrect leading UTF-8 octet"),
                (Some(_), _) => return self.error("found an incorrect trailing UTF-8 octet"),
            });
            uri.push(octet);
            (0..3).for_each(|_| self.skip());
        }
        Ok(())
    }
}
