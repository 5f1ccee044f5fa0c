//! Texts that many objects have in common, kept once: namespaces, names of nodes, keys of labels.
//!
//! One table for the process, behind a lock that is held for a look-up. An unused text stays until
//! the table has doubled and is swept. Bounds: twice as many texts as are in use, and `SWEEP_MIN`.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// Texts before those that are not used are looked for.
const SWEEP_MIN: usize = 1_024;

static TABLE: LazyLock<Mutex<SymbolTable>> = LazyLock::new(Mutex::default);
/// Decoders begin with it for every field that may be missing.
static EMPTY: LazyLock<Symbol> = LazyLock::new(|| Symbol::of(""));

/// A text that is there once, however many have it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symbol(Arc<str>);

#[derive(Debug, Default)]
struct SymbolTable {
    texts: HashSet<Arc<str>>,
    /// At this size unused texts are removed.
    sweep_at: usize,
}

impl SymbolTable {
    fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        if self.texts.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.texts.retain(|known| Arc::strong_count(known) > 1);
            self.sweep_at = self.texts.len() * 2;
        }
        let text: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&text));
        text
    }
}

impl Symbol {
    /// The text, shared by all symbols of the same text.
    pub fn of(text: &str) -> Self {
        Self(TABLE.lock().unwrap_or_else(PoisonError::into_inner).intern(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Symbol {
    fn default() -> Self {
        EMPTY.clone()
    }
}

impl Deref for Symbol {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Symbol {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl<'de> Deserialize<'de> for Symbol {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct SymbolText;
        impl Visitor<'_> for SymbolText {
            type Value = Symbol;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Symbol, E> {
                Ok(Symbol::of(text))
            }
        }
        from.deserialize_str(SymbolText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_symbols_share_an_allocation_and_unused_symbols_are_freed() {
        let (a, b) = (Symbol::of("kube-system"), serde_json::from_str(r#""kube-system""#));
        let b: Symbol = b.expect("a string");
        assert!(Arc::ptr_eq(&a.0, &b.0));
        let mut table = SymbolTable::default();
        let kept: Vec<_> = (0..10).map(|n| table.intern(&format!("kept-{n}"))).collect();
        for n in 0..100 * SWEEP_MIN {
            table.intern(&format!("dropped-{n}"));
            assert!(table.texts.len() <= SWEEP_MIN + kept.len());
        }
        assert!(kept.iter().all(|text| Arc::ptr_eq(&table.intern(text), text)));
    }
}
