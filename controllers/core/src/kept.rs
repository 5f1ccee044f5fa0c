//! An object as a table keeps it: its facts and, if some controller replaces objects of its kind,
//! its whole text.
//!
//! A replacement must contain every field of the object, also those that no controller reads;
//! therefore it is made from the text. Managed fields are left out: the API server keeps its own
//! when a request has none, and they are half of the text.

use std::collections::BTreeMap;
use std::ops::Deref;

use pintle_api_types::kind::Kind;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::meta::Meta;

/// What controllers read of the objects of a kind.
pub trait Facts: DeserializeOwned + 'static {
    /// The kind.
    const KIND: Kind;
    /// The text is kept, because some controller replaces such objects.
    const IS_WHOLE: bool;

    /// The object's metadata.
    fn metadata(&self) -> &Meta;

    /// Reads what needs more than one look at the text.
    ///
    /// # Errors
    /// When a field that controllers read has another type.
    fn complete(&mut self, _text: &str) -> Result<(), serde_json::Error> {
        Ok(())
    }

    /// What else the table finds it by: the node of a pod.
    fn index(&self) -> Option<&str> {
        None
    }
}

/// An object in a table.
#[derive(Debug)]
pub struct Kept<T> {
    facts: T,
    text: Option<Box<str>>,
}

impl<T: Facts> Kept<T> {
    /// Decodes the text of an object.
    ///
    /// # Errors
    /// When a field that controllers read has another type.
    pub fn decode(text: &str) -> Result<Self, serde_json::Error> {
        let mut facts: T = serde_json::from_str(text)?;
        facts.complete(text)?;
        let text = T::IS_WHOLE.then(|| without_managed_fields(text)).transpose()?;
        Ok(Self { facts, text })
    }

    /// Decodes an answer of the API server.
    ///
    /// # Errors
    /// As [`Kept::decode`].
    pub fn of_value(value: &Value) -> Result<Self, serde_json::Error> {
        Self::decode(&value.to_string())
    }

    /// The text of a field of the whole object, byte by byte as it was read.
    ///
    /// # Panics
    /// When the kind is not kept whole.
    pub fn raw(&self, field: &str) -> Option<String> {
        let text = self.text.as_deref().expect("the kind is kept whole");
        let object: BTreeMap<&str, &RawValue> =
            serde_json::from_str(text).expect("it was decoded before");
        object.get(field).map(|raw| raw.get().to_owned())
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

impl<T> Deref for Kept<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.facts
    }
}

impl<'de, T: Facts> Deserialize<'de> for Kept<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(from)?;
        Self::decode(text.get()).map_err(D::Error::custom)
    }
}

fn without_managed_fields(text: &str) -> Result<Box<str>, serde_json::Error> {
    type Fields<'a> = BTreeMap<&'a str, &'a RawValue>;
    let mut object: Fields<'_> = serde_json::from_str(text)?;
    let Some(metadata) = object.get("metadata") else { return Ok(text.into()) };
    let mut metadata: Fields<'_> = serde_json::from_str(metadata.get())?;
    if metadata.remove("managedFields").is_none() {
        return Ok(text.into());
    }
    let metadata = serde_json::value::to_raw_value(&metadata)?;
    object.insert("metadata", &metadata);
    serde_json::to_string(&object).map(Into::into)
}
