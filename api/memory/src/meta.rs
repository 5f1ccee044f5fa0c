//! Reading and writing an object's metadata.
//!
//! Input and output: objects as JSON values. Absent, null and empty mean the same, as they do once
//! the real server has decoded an object. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use serde_json::{Map, Value};

/// A text of the metadata; empty when it is absent.
pub(crate) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// A number of the metadata.
pub(crate) fn number(object: &Value, field: &str) -> Option<i64> {
    object["metadata"][field].as_i64()
}

pub(crate) fn name(object: &Value) -> &str {
    text(object, "name")
}

pub(crate) fn key(object: &Value) -> ObjectKey {
    ObjectKey::new(text(object, "namespace"), name(object))
}

/// The version as text; empty when none is stated. `0` means none, too.
pub(crate) fn version(object: &Value) -> &str {
    match text(object, "resourceVersion") {
        "0" => "",
        version => version,
    }
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    !text(object, "deletionTimestamp").is_empty()
}

pub(crate) fn finalizers(object: &Value) -> Vec<String> {
    let list = object["metadata"]["finalizers"].as_array().into_iter().flatten();
    list.filter_map(|item| Some(item.as_str()?.to_owned())).collect()
}

pub(crate) fn labels(object: &Value) -> BTreeMap<String, String> {
    texts(&object["metadata"]["labels"])
}

/// A map of texts.
pub(crate) fn texts(value: &Value) -> BTreeMap<String, String> {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect()
}

/// The metadata, made if it is absent.
pub(crate) fn of(object: &mut Value) -> &mut Map<String, Value> {
    child(object, "metadata")
}

/// A field that is an object, made if it is absent or none.
pub(crate) fn child<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let fields = object.as_object_mut().expect("made an object above");
    let value = fields.entry(field).or_insert(Value::Null);
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("made an object above")
}

/// Sets a field of the metadata, or removes it for null.
pub(crate) fn set(object: &mut Value, field: &str, value: Value) {
    put(of(object), field, value);
}

/// Copies a field of the metadata, also its absence.
pub(crate) fn copy(object: &mut Value, field: &str, from: &Value) {
    set(object, field, from["metadata"][field].clone());
}

/// Copies a field of the object, also its absence.
pub(crate) fn copy_field(object: &mut Value, field: &str, from: &Value) {
    if let Some(fields) = object.as_object_mut() {
        put(fields, field, from[field].clone());
    }
}

fn put(fields: &mut Map<String, Value>, field: &str, value: Value) {
    match value {
        Value::Null => drop(fields.remove(field)),
        value => drop(fields.insert(field.to_owned(), value)),
    }
}

/// A time as the API writes it, in whole seconds.
pub(crate) fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A time of the API.
pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}
