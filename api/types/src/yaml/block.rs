//! Block scalars and plain scalars.
// k8s: vendor/go.yaml.in/yaml/v2/scannerc.go

use super::scanner::{Scanned, Scanner, Token, TokenKind};

/// The treatment of line breaks at the end of a block scalar.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chomping {
    Clip,
    Strip,
    Keep,
}

/// The indicators behind `|` or `>`.
struct BlockHeader {
    chomping: Chomping,
    /// 0 if it is not given.
    increment: usize,
}

impl Scanner<'_> {
    // k8s: scannerc.go yaml_parser_scan_block_scalar
    pub(super) fn scan_block_scalar(&mut self) -> Scanned<Token> {
        let mark = self.mark;
        let is_literal = self.at(0) == b'|';
        self.skip();
        let header = self.scan_block_header()?;
        let outer = usize::try_from(self.indent).unwrap_or(0);
        let mut indent = if header.increment > 0 { outer + header.increment } else { 0 };
        let (mut value, mut newline, mut breaks) = (String::new(), String::new(), String::new());
        self.scan_block_breaks(&mut indent, &mut breaks)?;
        let mut was_blank = false;
        while self.mark.column == indent && self.at(0) != 0 {
            let is_blank = self.is_blank(0);
            if !is_literal && !was_blank && !is_blank && newline.starts_with('\n') {
                if breaks.is_empty() {
                    value.push(' ');
                }
            } else {
                value.push_str(&newline);
            }
            newline.clear();
            value.push_str(&breaks);
            breaks.clear();
            was_blank = is_blank;
            while !self.is_break_or_end(0) {
                self.keep(&mut value);
            }
            self.check_unbroken(1)?;
            if self.is_break(0) {
                self.keep_break(&mut newline);
            }
            self.scan_block_breaks(&mut indent, &mut breaks)?;
        }
        if header.chomping != Chomping::Strip {
            value.push_str(&newline);
        }
        if header.chomping == Chomping::Keep {
            value.push_str(&breaks);
        }
        Ok(Token { kind: TokenKind::Scalar { value, is_plain: false }, mark })
    }

    fn scan_block_header(&mut self) -> Scanned<BlockHeader> {
        let mut header = BlockHeader { chomping: Chomping::Clip, increment: 0 };
        self.scan_chomping(&mut header);
        let had_chomping = header.chomping != Chomping::Clip;
        if self.at(0).is_ascii_digit() {
            if self.at(0) == b'0' {
                return self.error("found an indentation indicator equal to 0");
            }
            header.increment = usize::from(self.at(0) - b'0');
            self.skip();
            if !had_chomping {
                self.scan_chomping(&mut header);
            }
        }
        while self.is_blank(0) {
            self.skip();
        }
        if self.at(0) == b'#' {
            self.skip_comment();
        }
        self.check_unbroken(1)?;
        if !self.is_break_or_end(0) {
            return self.error("did not find expected comment or line break");
        }
        self.skip_break();
        Ok(header)
    }

    fn scan_chomping(&mut self, header: &mut BlockHeader) {
        header.chomping = match self.at(0) {
            b'+' => Chomping::Keep,
            b'-' => Chomping::Strip,
            _ => return,
        };
        self.skip();
    }

    /// Skips indentation and empty lines; finds the indentation if it is 0.
    fn scan_block_breaks(&mut self, indent: &mut usize, breaks: &mut String) -> Scanned<()> {
        let mut widest = 0;
        loop {
            while (*indent == 0 || self.mark.column < *indent) && self.at(0) == b' ' {
                self.skip();
            }
            widest = widest.max(self.mark.column);
            if (*indent == 0 || self.mark.column < *indent) && self.at(0) == b'\t' {
                return self.error("found a tab character where an indentation space is expected");
            }
            self.check_unbroken(1)?;
            if !self.is_break(0) {
                break;
            }
            self.keep_break(breaks);
        }
        if *indent == 0 {
            let least = usize::try_from(self.indent + 1).unwrap_or(0).max(1);
            *indent = widest.max(least);
        }
        Ok(())
    }

    // k8s: scannerc.go yaml_parser_scan_plain_scalar
    pub(super) fn scan_plain(&mut self) -> Scanned<Token> {
        let mark = self.mark;
        let indent = usize::try_from(self.indent + 1).unwrap_or(0);
        let mut value = String::new();
        let mut space = Space::default();
        loop {
            if self.is_document_indicator() || self.at(0) == b'#' {
                break;
            }
            while !self.is_blank_or_end(0) && !self.is_plain_end() {
                space.join(&mut value);
                self.keep(&mut value);
            }
            self.check_unbroken(2)?;
            if !(self.is_blank(0) || self.is_break(0)) {
                break;
            }
            while self.is_blank(0) || self.is_break(0) {
                if space.has_break() && self.mark.column < indent && self.at(0) == b'\t' {
                    return self.error("found a tab character that violates indentation");
                }
                self.scan_space(&mut space);
            }
            if self.flow_level == 0 && self.mark.column < indent {
                break;
            }
        }
        if space.has_break() {
            self.is_key_allowed = true;
        }
        Ok(Token { kind: TokenKind::Scalar { value, is_plain: true }, mark })
    }

    fn is_plain_end(&self) -> bool {
        match self.at(0) {
            b':' => self.is_blank_or_end(1),
            b',' | b'?' | b'[' | b']' | b'{' | b'}' => self.flow_level > 0,
            _ => false,
        }
    }

    /// Takes a blank or a line break between two parts of a scalar.
    pub(super) fn scan_space(&mut self, space: &mut Space) {
        if self.is_blank(0) {
            if space.has_break() {
                self.skip();
            } else {
                self.keep(&mut space.blanks);
            }
        } else if space.has_break() {
            self.keep_break(&mut space.breaks);
        } else {
            space.blanks.clear();
            self.keep_break(&mut space.first_break);
            space.is_folded = true;
        }
    }
}

/// Blanks and line breaks inside a flow scalar, which fold.
#[derive(Default)]
pub(super) struct Space {
    blanks: String,
    first_break: String,
    breaks: String,
    /// Had a line break, maybe one that was escaped.
    pub is_folded: bool,
}

impl Space {
    pub(super) fn has_break(&self) -> bool {
        self.is_folded
    }

    /// Appends its line breaks, and is empty.
    pub(super) fn join(&mut self, value: &mut String) {
        if !self.is_folded {
            value.push_str(&self.blanks);
        } else if self.first_break.starts_with('\n') {
            value.push_str(if self.breaks.is_empty() { " " } else { &self.breaks });
        } else {
            value.push_str(&self.first_break);
            value.push_str(&self.breaks);
        }
        *self = Self::default();
    }
}
