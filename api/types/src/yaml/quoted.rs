//! Quoted scalars and their escapes.
// k8s: vendor/go.yaml.in/yaml/v2/scannerc.go yaml_parser_scan_flow_scalar

use super::block::Space;
use super::scanner::{Scanned, Scanner, Token, TokenKind};

impl Scanner<'_> {
    pub(super) fn scan_quoted(&mut self) -> Scanned<Token> {
        let mark = self.mark;
        let quote = self.at(0);
        self.skip();
        let mut value = String::new();
        loop {
            if self.is_document_indicator() {
                return self.error("found unexpected document indicator");
            }
            self.check_unbroken(1)?;
            if self.at(0) == 0 {
                return self.error("found unexpected end of stream");
            }
            let mut space = Space::default();
            self.scan_quoted_part(quote, &mut value, &mut space)?;
            if self.at(0) == quote {
                break;
            }
            while self.is_blank(0) || self.is_break(0) {
                self.scan_space(&mut space);
            }
            space.join(&mut value);
        }
        self.skip();
        Ok(Token { kind: TokenKind::Scalar { value, is_plain: false }, mark })
    }

    /// Takes all up to a blank, a line break or the closing quote.
    fn scan_quoted_part(
        &mut self,
        quote: u8,
        value: &mut String,
        space: &mut Space,
    ) -> Scanned<()> {
        let is_single = quote == b'\'';
        while !self.is_blank_or_end(0) {
            if is_single && self.at(0) == quote && self.at(1) == quote {
                value.push('\'');
                self.skip();
                self.skip();
            } else if self.at(0) == quote {
                break;
            } else if !is_single && self.at(0) == b'\\' && self.is_break(1) {
                self.skip();
                self.skip_break();
                space.is_folded = true;
                break;
            } else if !is_single && self.at(0) == b'\\' {
                self.scan_escape(value)?;
            } else {
                self.keep(value);
            }
        }
        Ok(())
    }

    fn scan_escape(&mut self, value: &mut String) -> Scanned<()> {
        let (character, digits) = match self.at(1) {
            b'0' => ('\0', 0),
            b'a' => ('\u{7}', 0),
            b'b' => ('\u{8}', 0),
            b't' | b'\t' => ('\t', 0),
            b'n' => ('\n', 0),
            b'v' => ('\u{b}', 0),
            b'f' => ('\u{c}', 0),
            b'r' => ('\r', 0),
            b'e' => ('\u{1b}', 0),
            b' ' => (' ', 0),
            b'"' => ('"', 0),
            b'\'' => ('\'', 0),
            b'\\' => ('\\', 0),
            b'N' => ('\u{85}', 0),
            b'_' => ('\u{a0}', 0),
            b'L' => ('\u{2028}', 0),
            b'P' => ('\u{2029}', 0),
            b'x' => ('\0', 2),
            b'u' => ('\0', 4),
            b'U' => ('\0', 8),
            _ => return self.error("found unknown escape character"),
        };
        self.skip();
        self.skip();
        if digits == 0 {
            value.push(character);
            return Ok(());
        }
        let mut code = 0_u32;
        for ahead in 0..digits {
            let Some(digit) = char::from(self.at(ahead)).to_digit(16) else {
                return self.error("did not find expected hexdecimal number");
            };
            code = code << 4 | digit;
        }
        let Some(character) = char::from_u32(code) else {
            return self.error("found invalid Unicode character escape code");
        };
        value.push(character);
        (0..digits).for_each(|_| self.skip());
        Ok(())
    }
}
