//! The form in which objects are stored: what decoding and encoding in the real server leaves.
//!
//! Input: an object as a client wrote it. Output: the same without fields that mean nothing, so
//! that equal objects are equal values and an update without effect is found. Of managed fields the
//! model keeps nothing. Custom resources keep what they say outside the metadata. Pure.

use serde_json::{Map, Value};

use pintle_api_types::kind::{self, Kind};

use crate::meta;
use crate::rules::{KindRules, StatusKeeps};

/// Numbers and switches of statuses that are pointers in Go, so that 0 is not absence.
const POINTERS: [&str; 4] = ["ready", "terminating", "collisionCount", "terminatingReplicas"];

/// Numbers and switches of specs that are no pointers, so that 0 is absence.
const SPEC_ZEROES: [&str; 3] = ["minReadySeconds", "paused", "unschedulable"];

/// Brings an object into its stored form.
pub(crate) fn settle(kind: Kind, rules: &KindRules, object: &mut Value) {
    let Some(fields) = object.as_object_mut() else { return };
    fields.insert("apiVersion".to_owned(), kind.api_version().into());
    fields.insert("kind".to_owned(), kind.kind.into());
    metadata(meta::of(object));
    if rules.is_custom {
        return;
    }
    let fields = object.as_object_mut().expect("it was an object above");
    for (name, value) in fields.iter_mut() {
        // A revision's data is another object's text; of a secret's bytes Go writes none as null.
        let keeps_data = [kind::CONTROLLER_REVISIONS, kind::SECRETS].contains(&kind);
        if !keeps_data || name != "data" {
            drop_nulls(value);
        }
    }
    fields.retain(|_, value| !value.is_null());
    for name in ["spec", "status", "subsets"] {
        if let Some(value) = fields.get_mut(name) {
            drop_empty_lists(value);
        }
    }
    if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut) {
        drop_empty_maps_of_templates(spec);
        spec.retain(|name, value| !SPEC_ZEROES.contains(&name.as_str()) || !is_zero(value));
    }
    if rules.status != StatusKeeps::None {
        status(meta::child(object, "status"), rules);
    }
}

/// Labels and annotations of templates that are empty are left out; the object's own are elsewhere.
fn drop_empty_maps_of_templates(spec: &mut Map<String, Value>) {
    for name in ["template", "jobTemplate"] {
        let Some(template) = spec.get_mut(name).and_then(Value::as_object_mut) else { continue };
        if let Some(fields) = template.get_mut("metadata").and_then(Value::as_object_mut) {
            let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
            fields.retain(|_, value| !is_empty(value));
        }
        if let Some(inner) = template.get_mut("spec").and_then(Value::as_object_mut) {
            drop_empty_maps_of_templates(inner);
        }
    }
}

fn metadata(fields: &mut Map<String, Value>) {
    fields.remove("managedFields");
    fields.remove("selfLink");
    fields.retain(|_, value| !is_empty(value));
    if fields.get("generation") == Some(&0.into()) {
        fields.remove("generation");
    }
    for value in fields.values_mut() {
        drop_nulls(value);
    }
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0) || *value == Value::Bool(false)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn status(fields: &mut Map<String, Value>, rules: &KindRules) {
    fields.retain(|name, value| {
        let is_text = value.as_str() == Some("");
        POINTERS.contains(&name.as_str()) || !(is_zero(value) || is_text)
    });
    for zero in rules.status_zeroes {
        fields.entry(*zero).or_insert_with(|| 0.into());
    }
    let conditions = fields.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.retain(|name, value| {
            value.as_str() != Some("") || !["reason", "message"].contains(&name.as_str())
        });
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn drop_empty_lists(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                name == "containers" || value.as_array().is_none_or(|items| !items.is_empty())
            });
            fields.values_mut().for_each(drop_empty_lists);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty_lists),
        _ => {}
    }
}
