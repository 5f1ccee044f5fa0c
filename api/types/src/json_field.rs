//! The text of one field of an object, without reading beyond it.
//!
//! Input: an object as JSON. Output: a part of that text. Kubernetes' objects begin with their
//! metadata, which is all that many readers need. Pure.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The text of the first field with the name; `None` when the object has none.
///
/// # Errors
/// When the text before the end of the field is no object.
pub fn find_field<'a>(object: &'a str, name: &str) -> Result<Option<&'a str>, serde_json::Error> {
    let mut found = None;
    let mut from = serde_json::Deserializer::from_str(object);
    let read = from.deserialize_map(FindField { name, found: &mut found });
    match found {
        // The reader stopped in the middle, which it reports as an error.
        Some(field) => Ok(Some(field)),
        None => read.map(|()| None),
    }
}

struct FindField<'f, 'a> {
    name: &'f str,
    found: &'f mut Option<&'a str>,
}

impl<'a> Visitor<'a> for FindField<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(is_it) = map.next_key_seed(IsName(self.name))? {
            if is_it {
                *self.found = Some(map.next_value::<&RawValue>()?.get());
                return Ok(());
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// Compares a key without keeping it.
struct IsName<'f>(&'f str);

impl<'de> DeserializeSeed<'de> for IsName<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for IsName<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_found_in_a_text_that_is_cut_off_behind_it() {
        let find = |text, name| find_field(text, name).ok();
        let text = r#"{"a":{"b":1}, "metadata" : {"name":"x"} ,"#;
        assert_eq!(find(text, "metadata"), Some(Some(r#"{"name":"x"}"#)));
        assert_eq!(find(text, "b"), None, "only an object that ends has no such field");
        assert_eq!(find(r#"{"a":{"b":1}}"#, "b"), Some(None));
        assert_eq!(find(r#"{"a\u0062":null}"#, "ab"), Some(Some("null")));
        assert_eq!(find("[]", "a"), None);
    }
}
