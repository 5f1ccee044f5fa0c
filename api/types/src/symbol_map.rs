//! A small map of texts that many objects have in common: labels, selectors, amounts of resources.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::symbol::Symbol;

/// Entries by key, in one allocation that is as large as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolMap(Box<[(Symbol, Symbol)]>);

impl SymbolMap {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Symbol> {
        let at = self.0.binary_search_by(|(known, _)| known.as_str().cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// Keys and values, by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Symbol, &Symbol)> {
        self.0.iter().map(|(key, value)| (key, value))
    }
}

impl FromIterator<(Symbol, Symbol)> for SymbolMap {
    /// Of several values of a key the last one counts.
    fn from_iter<I: IntoIterator<Item = (Symbol, Symbol)>>(entries: I) -> Self {
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.reverse();
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        entries.dedup_by(|(one, _), (other, _)| one == other);
        Self(entries.into())
    }
}

impl<'de> Deserialize<'de> for SymbolMap {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct SymbolEntries;
        impl<'de> Visitor<'de> for SymbolEntries {
            type Value = SymbolMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SymbolMap, A::Error> {
                let entries = std::iter::from_fn(|| map.next_entry().transpose());
                entries.collect()
            }
            fn visit_unit<E: serde::de::Error>(self) -> Result<SymbolMap, E> {
                Ok(SymbolMap::default())
            }
        }
        from.deserialize_any(SymbolEntries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_key() {
        let map: SymbolMap =
            serde_json::from_str(r#"{"b":"1","a":"2","b":"3"}"#).expect("a map of strings");
        let found: Vec<_> = map.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(found, ["a=2", "b=3"]);
        assert_eq!(map.get("b").map(Symbol::as_str), Some("3"));
        assert_eq!(map.get("c"), None);
        assert_eq!(serde_json::from_str::<SymbolMap>("null").ok(), Some(SymbolMap::default()));
        assert!(serde_json::from_str::<SymbolMap>(r#"{"a":1}"#).is_err());
    }
}
