//! Label selectors over interned labels: comparisons and hashes are those of integers.

use crate::intern::{Interner, Str};
use pintle_api_types::selector::SelectorWords;
pub use pintle_api_types::selector::{LabelOp, SelectorError};

/// A selector of interned words.
pub type Selector = pintle_api_types::selector::Selector<Str>;

/// One of its requirements.
pub type Requirement = pintle_api_types::selector::Requirement<Str>;

impl SelectorWords for Interner {
    type Word = Str;

    fn word(&mut self, text: &str) -> Str {
        self.intern(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_equal_words() {
        let mut interner = Interner::default();
        let labels = [("app".to_owned(), "web".to_owned())].into();
        let selector = Selector::from_labels(Some(&labels), &mut interner);
        let words = (interner.intern("app"), interner.intern("web"));
        assert!(selector.matches(&[words]) && !selector.matches(&[(words.1, words.0)]));
        assert_eq!(selector.anchor(), Some(words));
    }
}
