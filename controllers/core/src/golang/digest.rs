//! Digests of pod templates: equal ones have equal digests, whatever they look like as text.
//!
//! Input: a template as JSON. Output: 128 bits over all that [`super::equal`] compares, in one
//! spelling. A Deployment compares its template with those of all its sets each time it is synced;
//! two digests compare at once, and a digest lasts as long as the text that it is of.

use std::hash::{DefaultHasher, Hasher};

use serde_json::Value;

use super::equal::POD_TEMPLATE_HASH;
use super::types::{GoStruct, JsonShape};
use super::{number, time};

/// A digest of a pod template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateDigest([u64; 2]);

/// The first byte of a value, so that no two lists of values have the same encoding.
const ABSENT: u8 = 0;
const PRESENT: u8 = 1;

impl TemplateDigest {
    /// The digest of a template without the label with the hash.
    pub fn of(template: &Value) -> Self {
        let mut spelled = Vec::with_capacity(1024);
        let metadata = template.get("metadata");
        for field in &GoStruct::named("meta/v1.ObjectMeta").fields {
            let value = field.of(metadata);
            match field.json {
                "labels" => spell_labels(value, &mut spelled),
                _ => spell(&field.shape, value, &mut spelled),
            }
        }
        spell_struct(GoStruct::named("core/v1.PodSpec"), template.get("spec"), &mut spelled);
        Self([0_u8, 1].map(|half| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u8(half);
            hasher.write(&spelled);
            hasher.finish()
        }))
    }
}

fn spell_labels(value: Option<&Value>, to: &mut Vec<u8>) {
    let entries = value.and_then(Value::as_object).into_iter().flatten();
    for (key, value) in entries.filter(|(key, _)| *key != POD_TEMPLATE_HASH) {
        to.push(PRESENT);
        spell_text(key, to);
        spell_text(value.as_str().unwrap_or_default(), to);
    }
    to.push(ABSENT);
}

fn spell_struct(of: &GoStruct, value: Option<&Value>, to: &mut Vec<u8>) {
    for field in &of.fields {
        spell(&field.shape, field.of(value), to);
    }
}

fn spell(shape: &JsonShape, value: Option<&Value>, to: &mut Vec<u8>) {
    let value = value.filter(|value| !value.is_null());
    match shape {
        JsonShape::Pointer(inner) => {
            to.push(if value.is_some() { PRESENT } else { ABSENT });
            if value.is_some() {
                spell(inner, value, to);
            }
        }
        JsonShape::Struct(at) => spell_struct(GoStruct::at(*at), value, to),
        JsonShape::List(inner) => {
            for item in value.and_then(Value::as_array).into_iter().flatten() {
                to.push(PRESENT);
                spell(inner, Some(item), to);
            }
            to.push(ABSENT);
        }
        JsonShape::Map(inner) => {
            for (key, value) in value.and_then(Value::as_object).into_iter().flatten() {
                to.push(PRESENT);
                spell_text(key, to);
                spell(inner, Some(value), to);
            }
            to.push(ABSENT);
        }
        JsonShape::Quantity => spell_text(&number::amount(value).canonical(), to),
        JsonShape::Time | JsonShape::MicroTime => match time::instant(value) {
            Some(at) => spell_text(&at.to_string(), to),
            None => to.push(ABSENT),
        },
        JsonShape::Text | JsonShape::Bytes => {
            spell_text(value.and_then(Value::as_str).unwrap_or_default(), to);
        }
        JsonShape::Bool => to.push(u8::from(value.and_then(Value::as_bool).unwrap_or_default())),
        JsonShape::Int | JsonShape::Float | JsonShape::IntOrString => match value {
            Some(value) => spell_text(&value.to_string(), to),
            None => spell_text("0", to),
        },
        JsonShape::Duration | JsonShape::Fields | JsonShape::Raw => match value {
            Some(value) => spell_text(&value.to_string(), to),
            None => to.push(ABSENT),
        },
    }
}

/// A text begins with a byte that nothing else begins with, and its length.
fn spell_text(text: &str, to: &mut Vec<u8>) {
    to.push(2);
    to.extend_from_slice(&text.len().to_le_bytes());
    to.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::golang::equal::are_templates_equal_but_hash;

    /// Templates of which some are spelled in several ways; each line is one template.
    fn spellings() -> Vec<Vec<Value>> {
        let pod = |labels: Value, container: Value| {
            let spec = json!({"containers": [container]});
            json!({"metadata": {"labels": labels}, "spec": spec})
        };
        vec![
            vec![
                pod(
                    json!({"app": "a"}),
                    json!({"name": "a", "args": [],
                    "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}),
                ),
                pod(
                    json!({"app": "a", "pod-template-hash": "x"}),
                    json!({"name": "a",
                    "tty": false, "fieldOfNextYear": 1,
                    "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}, "requests": {}}}),
                ),
                json!({"metadata": {"labels": {"app": "a"}, "creationTimestamp": null}, "spec": {
                    "volumes": null, "containers": [{"name": "a", "image": "",
                    "resources": {"limits": {"cpu": "0.5", "memory": "1048576Ki"}}}]}}),
            ],
            vec![pod(json!({"app": "b"}), json!({"name": "a"}))],
            vec![pod(json!({"app": "a"}), json!({"name": "a"}))],
            vec![pod(json!({"app": "a"}), json!({"name": "a", "securityContext": {}}))],
            vec![pod(json!({"app": "a"}), json!({"name": "a", "args": ["b"]}))],
            vec![pod(json!({"app": "a"}), json!({"name": "a", "command": ["b"]}))],
            vec![pod(json!({"app": "a"}), json!({"name": "a", "args": ["b", ""]}))],
            vec![pod(
                json!({"app": "a"}),
                json!({"name": "a", "livenessProbe": {
                    "httpGet": {"port": 80}}}),
            )],
            vec![pod(
                json!({"app": "a"}),
                json!({"name": "a", "livenessProbe": {
                    "httpGet": {"port": "80"}}}),
            )],
            vec![json!({})],
        ]
    }

    #[test]
    fn digests_are_equal_exactly_where_templates_are() {
        let all: Vec<_> = spellings().into_iter().enumerate().collect();
        let all = all.iter().flat_map(|(at, same)| same.iter().map(move |one| (at, one)));
        for (at, one) in all.clone() {
            for (other_at, other) in all.clone() {
                let is_same = TemplateDigest::of(one) == TemplateDigest::of(other);
                assert_eq!(is_same, at == other_at, "{one} {other}");
                assert_eq!(is_same, are_templates_equal_but_hash(one, other), "{one} {other}");
            }
        }
    }
}
