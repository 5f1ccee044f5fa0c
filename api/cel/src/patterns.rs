//! Cache of compiled patterns, with the cost of searching.
//!
//! Input: the text of a pattern. Output: the compiled pattern, or an error. Owner: the selectors.
//! Bounds: `KEPT_MAX` patterns of `PATTERN_BYTES_MAX` bytes of text and [`SIZES`] bytes of program
//! are cached; the least recently used one is dropped. The engine reads a text once, but each byte
//! may take as long as its program is; it cannot be interrupted, so that the price is known before
//! it runs.
// k8s: apiserver/pkg/cel/library/regex.go FindRegexOptimization

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use regex::{Regex, RegexBuilder};

use super::account::Account;
use super::error::CelError;
use super::go_pattern;

/// Longest text of a pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 15;
/// Distinguished sizes of programs, in bytes; the last is the limit.
const SIZES: [usize; 5] = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18];
/// Bytes of a program for one state that a byte of a text may visit.
const STATE_BYTES: u64 = 32;
/// Work units of compiling a byte of a pattern, which may name a class of many characters.
const READ_WORK: u64 = 600;
/// Memory of a pattern's syntax tree, for each byte of its text.
const TREE_BYTES: u64 = 1_600;
/// Cached patterns.
const KEPT_MAX: usize = 32;

/// A pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) regex: Regex,
    /// Upper limit of the states of its program.
    states: u64,
}

impl Pattern {
    /// Returns the largest work of a search in this many bytes.
    pub(super) fn work(&self, bytes: usize) -> u64 {
        (1 + bytes as u64).saturating_mul(self.states)
    }
}

/// Patterns by their text, with the time of their last use; invalid ones are cached too.
#[derive(Debug, Default)]
pub struct Patterns(RefCell<KeptPattern>);

#[derive(Debug, Default)]
struct KeptPattern {
    uses: u64,
    all: HashMap<Box<str>, (u64, Option<Rc<Pattern>>)>,
}

impl Patterns {
    /// Returns a pattern; the evaluation that needs it first pays for compiling it.
    ///
    /// # Errors
    /// It is invalid, or a limit of the account is exceeded.
    pub(super) fn compiled(&self, text: &str, account: &Account) -> Result<Rc<Pattern>, CelError> {
        let mut kept = self.0.borrow_mut();
        kept.uses += 1;
        let uses = kept.uses;
        let found = match kept.all.get_mut(text) {
            Some((used, known)) => {
                *used = uses;
                known.clone()
            }
            None => {
                let new = compile(text, account)?.map(Rc::new);
                kept.keep(text, new.clone());
                new
            }
        };
        found.ok_or_else(|| CelError::from(format!("error parsing regexp: `{text}`")))
    }
}

impl KeptPattern {
    fn keep(&mut self, text: &str, new: Option<Rc<Pattern>>) {
        let used = self.uses;
        if self.all.len() >= KEPT_MAX {
            let oldest = self.all.iter().min_by_key(|(_, (used, _))| *used);
            let oldest = oldest.map(|(text, _)| text.clone());
            oldest.iter().for_each(|text| _ = self.all.remove(text));
        }
        self.all.insert(text.into(), (used, new));
    }
}

/// Compiles a pattern with the smallest sufficient limit, because the engine does not report the
/// size of its programs.
fn compile(text: &str, account: &Account) -> Result<Option<Pattern>, CelError> {
    if text.len() > PATTERN_BYTES_MAX {
        return Err("error parsing regexp: expression too large".into());
    }
    let translated = go_pattern::translated(text);
    for size in SIZES {
        account.bytes(TREE_BYTES * text.len() as u64 + size as u64)?;
        account.at_once(READ_WORK * text.len() as u64 + size as u64)?;
        let largest = SIZES[SIZES.len() - 1];
        let mut builder = RegexBuilder::new(&translated);
        match builder.size_limit(size).dfa_size_limit(largest).build() {
            Ok(regex) => {
                return Ok(Some(Pattern { regex, states: 1 + size as u64 / STATE_BYTES }));
            }
            Err(regex::Error::CompiledTooBig(_)) => {}
            Err(_) => return Ok(None),
        }
    }
    Ok(None)
}
