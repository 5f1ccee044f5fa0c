//! Text to tokens: indentation, simple keys, indicators.
//!
//! Input: the text. Output: one token at a time, as late as go-yaml makes them, because text behind
//! the first document is not read. Bounds: `ReadLimits::depth_max` of flow collections and of
//! indentation. Scalars, tags and directives are in files of their own.
// k8s: vendor/go.yaml.in/yaml/v2/scannerc.go

use std::collections::VecDeque;

use super::text::FileText;
use super::{ReadLimits, SyntaxError};

/// Longest simple key, in characters.
const KEY_CHARS_MAX: usize = 1024;

/// The tokens of the parser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    StreamEnd,
    VersionDirective { major: u32, minor: u32 },
    TagDirective { handle: String, prefix: String },
    DocumentStart,
    DocumentEnd,
    BlockSequenceStart,
    BlockMappingStart,
    BlockEnd,
    FlowSequenceStart,
    FlowSequenceEnd,
    FlowMappingStart,
    FlowMappingEnd,
    BlockEntry,
    FlowEntry,
    Key,
    Value,
    Alias(String),
    Anchor(String),
    Tag { handle: String, suffix: Vec<u8> },
    Scalar { value: String, is_plain: bool },
}

/// A token and where it begins.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub kind: TokenKind,
    pub mark: Mark,
}

/// A place in the text, all from 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    pub byte: usize,
    /// Offset in characters.
    pub index: usize,
    pub line: usize,
    pub column: usize,
}

/// A place at which a key may have begun without `?`.
#[derive(Clone, Copy, Default)]
struct SimpleKey {
    is_possible: bool,
    is_required: bool,
    token: usize,
    mark: Mark,
}

pub(super) struct Scanner<'t> {
    text: &'t [u8],
    broken: Option<&'t SyntaxError>,
    depth_max: usize,
    pub(super) mark: Mark,
    tokens: VecDeque<Token>,
    /// Tokens that were taken.
    taken: usize,
    is_ended: bool,
    pub(super) flow_level: usize,
    /// Column of the block collection, -1 outside of any.
    pub(super) indent: isize,
    indents: Vec<isize>,
    pub(super) is_key_allowed: bool,
    keys: Vec<SimpleKey>,
}

pub(super) type Scanned<T> = Result<T, SyntaxError>;

impl<'t> Scanner<'t> {
    pub(super) fn new(text: &'t FileText<'_>, limits: &ReadLimits) -> Self {
        Self {
            text: text.text.as_bytes(),
            broken: text.broken.as_ref(),
            depth_max: limits.depth_max,
            mark: Mark::default(),
            tokens: VecDeque::new(),
            taken: 0,
            is_ended: false,
            flow_level: 0,
            indent: -1,
            indents: Vec::new(),
            is_key_allowed: true,
            keys: vec![SimpleKey::default()],
        }
    }

    /// The next token, which stays.
    pub(super) fn peek(&mut self) -> Scanned<&Token> {
        while self.is_head_undecided()? {
            self.fetch()?;
        }
        Ok(&self.tokens[0])
    }

    /// Takes the token that was peeked at.
    pub(super) fn take(&mut self) -> Scanned<Token> {
        self.peek()?;
        self.taken += 1;
        let token = self.tokens.pop_front();
        token.ok_or_else(|| SyntaxError::new("the text has ended"))
    }

    /// Is there no token yet, or may the first one still turn out to be a key?
    fn is_head_undecided(&mut self) -> Scanned<bool> {
        if self.is_ended && !self.tokens.is_empty() {
            return Ok(false);
        }
        if self.tokens.is_empty() {
            return Ok(true);
        }
        let head = self.keys.iter().position(|key| key.is_possible && key.token == self.taken);
        match head {
            Some(key) => self.is_key_valid(key),
            None => Ok(false),
        }
    }

    /// Byte that many bytes ahead; 0 behind the end.
    pub(super) fn at(&self, ahead: usize) -> u8 {
        self.text.get(self.mark.byte + ahead).copied().unwrap_or(0)
    }

    /// The error that broke the text, if a scan reaches its end.
    pub(super) fn check_unbroken(&self, ahead: usize) -> Scanned<()> {
        match self.broken {
            Some(error) if self.mark.byte + ahead > self.text.len() => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Bytes of the line break that many bytes ahead; 0 if there is none.
    pub(super) fn break_bytes(&self, ahead: usize) -> usize {
        match (self.at(ahead), self.at(ahead + 1), self.at(ahead + 2)) {
            (b'\r', b'\n', _) | (0xc2, 0x85, _) => 2,
            (b'\r' | b'\n', _, _) => 1,
            (0xe2, 0x80, 0xa8 | 0xa9) => 3,
            _ => 0,
        }
    }

    pub(super) fn is_break(&self, ahead: usize) -> bool {
        self.break_bytes(ahead) > 0
    }

    pub(super) fn is_blank(&self, ahead: usize) -> bool {
        matches!(self.at(ahead), b' ' | b'\t')
    }

    pub(super) fn is_break_or_end(&self, ahead: usize) -> bool {
        self.at(ahead) == 0 || self.is_break(ahead)
    }

    pub(super) fn is_blank_or_end(&self, ahead: usize) -> bool {
        self.is_blank(ahead) || self.is_break_or_end(ahead)
    }

    /// Letters, digits, `_` and `-`.
    pub(super) fn is_word(&self) -> bool {
        matches!(self.at(0), b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'-')
    }

    /// Skips one character.
    pub(super) fn skip(&mut self) {
        let width = match self.at(0) {
            0..0x80 => 1,
            0x80..0xe0 => 2,
            0xe0..0xf0 => 3,
            _ => 4,
        };
        self.mark.byte = (self.mark.byte + width).min(self.text.len());
        self.mark.index += 1;
        self.mark.column += 1;
    }

    /// Skips one character and keeps it.
    pub(super) fn keep(&mut self, into: &mut String) {
        let from = self.mark.byte;
        self.skip();
        into.push_str(std::str::from_utf8(&self.text[from..self.mark.byte]).unwrap_or_default());
    }

    /// Skips a line break.
    pub(super) fn skip_break(&mut self) {
        let bytes = self.break_bytes(0);
        if bytes == 0 {
            return;
        }
        self.mark.index += if self.at(0) == b'\r' { bytes } else { 1 };
        self.mark.byte += bytes;
        self.mark.column = 0;
        self.mark.line += 1;
    }

    /// Skips a line break and keeps it, as `\n` but for the two of Unicode's own.
    pub(super) fn keep_break(&mut self, into: &mut String) {
        match (self.at(0), self.at(2)) {
            (0xe2, 0xa8) => into.push('\u{2028}'),
            (0xe2, _) => into.push('\u{2029}'),
            _ => into.push('\n'),
        }
        self.skip_break();
    }

    pub(super) fn skip_comment(&mut self) {
        while !self.is_break_or_end(0) {
            self.skip();
        }
    }

    /// `---` or `...` at the start of a line.
    pub(super) fn is_document_indicator(&self) -> bool {
        let three = (self.at(0), self.at(1), self.at(2));
        self.mark.column == 0
            && matches!(three, (b'-', b'-', b'-') | (b'.', b'.', b'.'))
            && self.is_blank_or_end(3)
    }

    pub(super) fn error<T>(&self, message: &str) -> Scanned<T> {
        Err(SyntaxError::at(self.mark.line, message))
    }

    fn push(&mut self, kind: TokenKind, mark: Mark) {
        self.tokens.push_back(Token { kind, mark });
    }

    // k8s: scannerc.go yaml_parser_fetch_next_token
    fn fetch(&mut self) -> Scanned<()> {
        self.check_unbroken(1)?;
        self.skip_to_token();
        self.unroll(self.mark.column as isize);
        self.check_unbroken(4)?;
        if self.at(0) == 0 {
            return self.fetch_end();
        }
        if self.mark.column == 0 && self.at(0) == b'%' {
            self.close_block()?;
            let token = self.scan_directive()?;
            self.tokens.push_back(token);
            return Ok(());
        }
        if self.is_document_indicator() {
            self.close_block()?;
            let is_start = self.at(0) == b'-';
            let kind = if is_start { TokenKind::DocumentStart } else { TokenKind::DocumentEnd };
            let mark = self.mark;
            (0..3).for_each(|_| self.skip());
            self.push(kind, mark);
            return Ok(());
        }
        self.fetch_content()
    }

    fn fetch_content(&mut self) -> Scanned<()> {
        let is_flow = self.flow_level > 0;
        match self.at(0) {
            b'[' => self.fetch_flow_start(TokenKind::FlowSequenceStart),
            b'{' => self.fetch_flow_start(TokenKind::FlowMappingStart),
            b']' => self.fetch_flow_end(TokenKind::FlowSequenceEnd),
            b'}' => self.fetch_flow_end(TokenKind::FlowMappingEnd),
            b',' => {
                self.remove_key()?;
                self.is_key_allowed = true;
                self.fetch_indicator(TokenKind::FlowEntry);
                Ok(())
            }
            b'-' if self.is_blank_or_end(1) => self.fetch_block_entry(),
            b'?' if is_flow || self.is_blank_or_end(1) => self.fetch_key(),
            b':' if is_flow || self.is_blank_or_end(1) => self.fetch_value(),
            b'*' | b'&' => self.fetch_scanned(Self::scan_anchor),
            b'!' => self.fetch_scanned(Self::scan_tag),
            b'|' | b'>' if !is_flow => {
                self.remove_key()?;
                self.is_key_allowed = true;
                let token = self.scan_block_scalar()?;
                self.tokens.push_back(token);
                Ok(())
            }
            b'\'' | b'"' => self.fetch_scanned(Self::scan_quoted),
            _ if self.is_plain_start() => self.fetch_scanned(Self::scan_plain),
            _ => self.error("found character that cannot start any token"),
        }
    }

    fn is_plain_start(&self) -> bool {
        match self.at(0) {
            b'-' => !self.is_blank(1),
            b'?' | b':' => self.flow_level == 0 && !self.is_blank_or_end(1),
            b',' | b'[' | b']' | b'{' | b'}' | b'#' | b'&' | b'*' | b'!' | b'|' | b'>' | b'\''
            | b'"' | b'%' | b'@' | b'`' => false,
            _ => !self.is_blank_or_end(0),
        }
    }

    /// Scans a token that may be a key, by a function of its own.
    fn fetch_scanned(&mut self, scan: fn(&mut Self) -> Scanned<Token>) -> Scanned<()> {
        self.save_key()?;
        self.is_key_allowed = false;
        let token = scan(self)?;
        self.tokens.push_back(token);
        Ok(())
    }

    fn fetch_indicator(&mut self, kind: TokenKind) {
        let mark = self.mark;
        self.skip();
        self.push(kind, mark);
    }

    fn fetch_end(&mut self) -> Scanned<()> {
        if self.mark.column != 0 {
            self.mark.column = 0;
            self.mark.line += 1;
        }
        self.close_block()?;
        self.push(TokenKind::StreamEnd, self.mark);
        self.is_ended = true;
        Ok(())
    }

    /// Ends all blocks, and a possible key.
    fn close_block(&mut self) -> Scanned<()> {
        self.unroll(-1);
        self.remove_key()?;
        self.is_key_allowed = false;
        Ok(())
    }

    fn fetch_flow_start(&mut self, kind: TokenKind) -> Scanned<()> {
        self.save_key()?;
        self.flow_level += 1;
        if self.flow_level > self.depth_max {
            return self.error(&format!("exceeded max depth of {}", self.depth_max));
        }
        self.keys.push(SimpleKey::default());
        self.is_key_allowed = true;
        self.fetch_indicator(kind);
        Ok(())
    }

    fn fetch_flow_end(&mut self, kind: TokenKind) -> Scanned<()> {
        self.remove_key()?;
        if self.flow_level > 0 {
            self.flow_level -= 1;
            self.keys.pop();
        }
        self.is_key_allowed = false;
        self.fetch_indicator(kind);
        Ok(())
    }

    fn fetch_block_entry(&mut self) -> Scanned<()> {
        if self.flow_level == 0 {
            if !self.is_key_allowed {
                return self.error("block sequence entries are not allowed in this context");
            }
            self.roll(self.mark, None, TokenKind::BlockSequenceStart)?;
        }
        self.remove_key()?;
        self.is_key_allowed = true;
        self.fetch_indicator(TokenKind::BlockEntry);
        Ok(())
    }

    fn fetch_key(&mut self) -> Scanned<()> {
        if self.flow_level == 0 {
            if !self.is_key_allowed {
                return self.error("mapping keys are not allowed in this context");
            }
            self.roll(self.mark, None, TokenKind::BlockMappingStart)?;
        }
        self.remove_key()?;
        self.is_key_allowed = self.flow_level == 0;
        self.fetch_indicator(TokenKind::Key);
        Ok(())
    }

    fn fetch_value(&mut self) -> Scanned<()> {
        let last = self.keys.len() - 1;
        if self.is_key_valid(last)? {
            let key = self.keys[last];
            let place = key.token - self.taken;
            self.tokens.insert(place, Token { kind: TokenKind::Key, mark: key.mark });
            self.roll(key.mark, Some(place), TokenKind::BlockMappingStart)?;
            self.keys[last].is_possible = false;
            self.is_key_allowed = false;
        } else {
            if self.flow_level == 0 {
                if !self.is_key_allowed {
                    return self.error("mapping values are not allowed in this context");
                }
                self.roll(self.mark, None, TokenKind::BlockMappingStart)?;
            }
            self.is_key_allowed = self.flow_level == 0;
        }
        self.fetch_indicator(TokenKind::Value);
        Ok(())
    }

    /// True if a key may still have begun there: it ends on its line and has a maximum length.
    fn is_key_valid(&mut self, key: usize) -> Scanned<bool> {
        let SimpleKey { is_possible, is_required, mark, .. } = self.keys[key];
        if !is_possible {
            return Ok(false);
        }
        if mark.line < self.mark.line || mark.index + KEY_CHARS_MAX < self.mark.index {
            if is_required {
                return self.error("could not find expected ':'");
            }
            self.keys[key].is_possible = false;
            return Ok(false);
        }
        Ok(true)
    }

    fn save_key(&mut self) -> Scanned<()> {
        if self.is_key_allowed {
            let is_required = self.flow_level == 0 && self.indent == self.mark.column as isize;
            let token = self.taken + self.tokens.len();
            let key = SimpleKey { is_possible: true, is_required, token, mark: self.mark };
            self.remove_key()?;
            if let Some(last) = self.keys.last_mut() {
                *last = key;
            }
        }
        Ok(())
    }

    fn remove_key(&mut self) -> Scanned<()> {
        match self.keys.last_mut() {
            Some(key) if key.is_possible && key.is_required => {
                self.error("could not find expected ':'")
            }
            Some(key) => {
                key.is_possible = false;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Begins a block collection at a column that is further right; its token goes in front of the
    /// one at `place`, or behind all.
    fn roll(&mut self, mark: Mark, place: Option<usize>, kind: TokenKind) -> Scanned<()> {
        let column = mark.column as isize;
        if self.flow_level > 0 || self.indent >= column {
            return Ok(());
        }
        self.indents.push(self.indent);
        self.indent = column;
        if self.indents.len() > self.depth_max {
            return self.error(&format!("exceeded max depth of {}", self.depth_max));
        }
        let place = place.unwrap_or(self.tokens.len());
        self.tokens.insert(place, Token { kind, mark });
        Ok(())
    }

    /// Ends the block collections that are further right than a column.
    fn unroll(&mut self, column: isize) {
        while self.flow_level == 0 && self.indent > column {
            self.push(TokenKind::BlockEnd, self.mark);
            self.indent = self.indents.pop().unwrap_or(-1);
        }
    }

    // k8s: scannerc.go yaml_parser_scan_to_next_token
    fn skip_to_token(&mut self) {
        if self.mark.byte == 0 && (self.at(0), self.at(1), self.at(2)) == (0xef, 0xbb, 0xbf) {
            self.skip();
        }
        loop {
            let is_tab_space = self.flow_level > 0 || !self.is_key_allowed;
            while self.at(0) == b' ' || (is_tab_space && self.at(0) == b'\t') {
                self.skip();
            }
            if self.at(0) == b'#' {
                self.skip_comment();
            }
            if !self.is_break(0) {
                return;
            }
            self.skip_break();
            if self.flow_level == 0 {
                self.is_key_allowed = true;
            }
        }
    }
}
