//! Patterns that were compiled.
//!
//! Input: the text of a pattern. Output: the pattern, or that it is none. Owner: the selectors. Bounds:
//! `KEPT_MAX` patterns of `PATTERN_BYTES_MAX` bytes are kept. To compile one takes about as long as a
//! thousand steps of an evaluation, which may ask for the same one at each entry of a list.
// k8s: apiserver/pkg/cel/library/regex.go FindRegexOptimization

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use regex::{Regex, RegexBuilder};

/// Most memory of a pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 18;
/// Patterns that are kept; once there are more, all are forgotten.
const KEPT_MAX: usize = 32;

/// Patterns by their text; those that are none, too.
#[derive(Debug, Default)]
pub(crate) struct Patterns(RefCell<HashMap<Box<str>, Option<Rc<Regex>>>>);

impl Patterns {
    /// Whether it was compiled already.
    pub(super) fn has(&self, text: &str) -> bool {
        self.0.borrow().contains_key(text)
    }

    /// A pattern.
    ///
    /// # Errors
    /// When it is none.
    pub(super) fn compiled(&self, text: &str) -> Result<Rc<Regex>, String> {
        let mut kept = self.0.borrow_mut();
        let found = match kept.get(text) {
            Some(known) => known.clone(),
            None => {
                let new = compile(text).map(Rc::new);
                if kept.len() >= KEPT_MAX {
                    kept.clear();
                }
                if text.len() <= PATTERN_BYTES_MAX {
                    kept.insert(text.into(), new.clone());
                }
                new
            }
        };
        found.ok_or_else(|| format!("error parsing regexp: `{text}`"))
    }
}

fn compile(text: &str) -> Option<Regex> {
    // The tree of one is far larger than its text, and the program of one of this length too large.
    if text.len() > PATTERN_BYTES_MAX {
        return None;
    }
    let mut builder = RegexBuilder::new(text);
    builder.size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX).build().ok()
}
