//! An object as a table keeps it: its facts and, if some controller replaces objects of its kind,
//! its whole text.
//!
//! A replacement must contain every field of the object, also those that no controller reads;
//! therefore it is made from the text. Managed fields are left out: the API server keeps its own
//! when a request has none, and they are half of the text.

use std::cell::OnceCell;
use std::ops::Deref;

use pintle_api_types::json_field::find_field;
use pintle_api_types::kind::Kind;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::golang::digest::TemplateDigest;
use crate::meta::Meta;

const MANAGED_FIELDS: &str = "managedFields";

/// The fields of a kind's objects that controllers read.
pub trait Facts: DeserializeOwned + 'static {
    /// The kind.
    const KIND: Kind;
    /// The text is kept, because some controller replaces such objects.
    const IS_WHOLE: bool;

    /// The object's metadata.
    fn metadata(&self) -> &Meta;

    /// The key of the table's second index, such as the node of a pod.
    fn index(&self) -> Option<&str> {
        None
    }
}

/// An object in a table.
#[derive(Debug)]
pub struct KeptObject<T> {
    facts: T,
    text: Option<Box<str>>,
    /// Computed at the first use.
    template: OnceCell<TemplateDigest>,
}

impl<T: Facts> KeptObject<T> {
    /// Decodes the text of an object.
    ///
    /// # Errors
    /// When a field that controllers read has another type.
    pub fn decode(text: &str) -> Result<Self, serde_json::Error> {
        let facts: T = serde_json::from_str(text)?;
        let text = T::IS_WHOLE.then(|| without_managed_fields(text)).transpose()?;
        Ok(Self { facts, text, template: OnceCell::new() })
    }

    /// Decodes an answer of the API server.
    ///
    /// # Errors
    /// As [`KeptObject::decode`].
    pub fn of_value(value: &Value) -> Result<Self, serde_json::Error> {
        Self::decode(&value.to_string())
    }

    /// The text of a field of the whole object, byte by byte as it was read.
    ///
    /// # Panics
    /// When the kind is not kept whole.
    pub fn raw(&self, field: &str) -> Option<String> {
        self.part(&[field]).map(str::to_owned)
    }

    /// All annotations, also those that are no facts.
    ///
    /// # Panics
    /// When the kind is not kept whole.
    pub fn annotations(&self) -> Map<String, Value> {
        let text = self.part(&["metadata", "annotations"]);
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// The digest of its pod template.
    ///
    /// # Panics
    /// When the kind is not kept whole.
    pub fn template_digest(&self) -> TemplateDigest {
        *self.template.get_or_init(|| TemplateDigest::of(&self.template()))
    }

    /// Its pod template.
    ///
    /// # Panics
    /// When the kind is not kept whole.
    pub fn template(&self) -> Value {
        let text = self.part(&["spec", "template"]);
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    fn part(&self, path: &[&str]) -> Option<&str> {
        let text = self.text.as_deref().expect("the kind is kept whole");
        let step = |text, name: &&str| find_field(text, name).ok().flatten();
        path.iter().try_fold(text, step)
    }

    /// The whole object, if the kind is kept whole.
    pub fn whole(&self) -> Option<Value> {
        self.text.is_some().then(|| self.value())
    }

    /// The whole object, to be changed and sent.
    ///
    /// # Panics
    /// When the kind is not kept whole.
    pub fn value(&self) -> Value {
        let text = self.text.as_deref().expect("the kind is kept whole");
        let mut value: Value = serde_json::from_str(text).expect("it was decoded before");
        value["apiVersion"] = T::KIND.api_version().into();
        value["kind"] = T::KIND.kind.into();
        value
    }
}

impl<T> Deref for KeptObject<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.facts
    }
}

impl<'de, T: Facts> Deserialize<'de> for KeptObject<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(from)?;
        Self::decode(text.get()).map_err(D::Error::custom)
    }
}

/// The text without `metadata.managedFields`. Most of the text is not parsed, because objects begin
/// with their metadata.
fn without_managed_fields(text: &str) -> Result<Box<str>, serde_json::Error> {
    let metadata = find_field(text, "metadata")?;
    let Some(metadata) = metadata else { return Ok(text.into()) };
    let Some(fields) = find_field(metadata, MANAGED_FIELDS)? else { return Ok(text.into()) };
    // The addresses are of one text, of which the other is a part.
    let start = fields.as_ptr().addr() - text.as_ptr().addr();
    let (before, after) = (&text[..start], &text[start + fields.len()..]);
    match cut(before, after) {
        Some(text) => Ok(text),
        None => without_managed_fields_parsed(text),
    }
}

/// Both parts together, without the key that ends the first one and one of the commas around.
fn cut(before: &str, after: &str) -> Option<Box<str>> {
    let before = before.trim_end().strip_suffix(':')?.trim_end().strip_suffix('"')?;
    let before = before.strip_suffix(MANAGED_FIELDS)?.strip_suffix('"')?.trim_end();
    let (before, after) = match before.strip_suffix(',') {
        Some(before) => (before, after),
        None => (before, after.trim_start().strip_prefix(',').unwrap_or(after)),
    };
    Some([before, after].concat().into())
}

/// The same by parsing: the key is spelled with escapes.
fn without_managed_fields_parsed(text: &str) -> Result<Box<str>, serde_json::Error> {
    let mut object: Value = serde_json::from_str(text)?;
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove(MANAGED_FIELDS);
    }
    serde_json::to_string(&object).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_fields_are_removed_at_any_position_in_metadata() {
        for (text, expected) in [
            (
                r#"{"metadata":{"name":"a","managedFields":[{"a":[1]}]},"b":1}"#,
                r#"{"metadata":{"name":"a"},"b":1}"#,
            ),
            (
                r#"{"b":1,"metadata":{"managedFields" : [] , "name":"a"}}"#,
                r#"{"b":1,"metadata":{ "name":"a"}}"#,
            ),
            (r#"{"metadata":{"managedFields":null}}"#, r#"{"metadata":{}}"#),
            (r#"{"metadata":{"a":1,"managedFields":[],"b":2}}"#, r#"{"metadata":{"a":1,"b":2}}"#),
            (r#"{"metadata":{"managed\u0046ields":[],"a":1}}"#, r#"{"metadata":{"a":1}}"#),
            (r#"{"spec":{"managedFields":[]}}"#, r#"{"spec":{"managedFields":[]}}"#),
        ] {
            let found = without_managed_fields(text).expect("an object");
            assert_eq!(&*found, expected);
        }
        assert!(without_managed_fields("{").is_err());
    }
}
