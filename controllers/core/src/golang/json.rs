//! Go's JSON of a typed object, to the byte.
//!
//! Input: an object as JSON of any origin. Output: what Go's encoder writes after Go's decoder has
//! read it: fields in Go's order, zeros without `omitempty` present, fields that Go does not know
//! absent, `<`, `>`, `&` and two separators escaped; and the data of ControllerRevisions, for which
//! the text is decoded to a map and encoded once more, so that keys are sorted. Upstream compares
//! revisions by these bytes. The two controllers decode with different packages: DaemonSets keep
//! whole numbers, StatefulSets turn them into floats, which shows beyond 2^53.

use std::fmt::Write as _;

use serde_json::Value;

use super::types::{GoStruct, JsonShape};
use super::{number, time};

/// The largest number that a float holds exactly.
const FLOAT_EXACT_MAX: u64 = 1 << 53;

/// How a decoded map keeps numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodedNumbers {
    /// As 64 bits where they are whole, by `k8s.io/apimachinery/pkg/util/json`.
    Whole,
    /// As floats, by `encoding/json`.
    Floats,
}

/// The data of a DaemonSet's revision for its object.
// k8s: pkg/controller/daemon/update.go getPatch
pub fn daemon_set_revision_data(set: &Value) -> String {
    template_patch(&set["spec"]["template"], DecodedNumbers::Whole)
}

/// The data of a StatefulSet's revision for its object.
// k8s: pkg/controller/statefulset/stateful_set_utils.go getPatch
pub fn stateful_set_revision_data(set: &Value) -> String {
    template_patch(&set["spec"]["template"], DecodedNumbers::Floats)
}

fn template_patch(template: &Value, numbers: DecodedNumbers) -> String {
    let typed = typed_json("core/v1.PodTemplateSpec", template);
    let mut template: Value = serde_json::from_str(&typed).expect("the written text is JSON");
    template["$patch"] = "replace".into();
    sorted_json(&serde_json::json!({"spec": {"template": template}}), numbers)
}

/// The JSON that Go writes of an object of the struct `name`, such as `apps/v1.Deployment`.
///
/// # Panics
/// If the table has no such struct.
pub fn typed_json(name: &str, value: &Value) -> String {
    let mut out = String::new();
    write_struct(GoStruct::named(name), Some(value), &mut out);
    out
}

/// The JSON that Go writes of a map it has decoded: keys sorted, numbers as they were decoded.
pub fn sorted_json(value: &Value, numbers: DecodedNumbers) -> String {
    let mut out = String::new();
    write_sorted(value, numbers, &mut out);
    out
}

fn write_struct(of: &GoStruct, value: Option<&Value>, out: &mut String) {
    out.push('{');
    let mut is_first = true;
    write_fields(of, value, &mut is_first, out);
    out.push('}');
}

fn write_fields(of: &GoStruct, value: Option<&Value>, is_first: &mut bool, out: &mut String) {
    for field in &of.fields {
        if let (true, JsonShape::Struct(at)) = (field.is_inline, &field.shape) {
            write_fields(GoStruct::at(*at), value, is_first, out);
            continue;
        }
        let inner = field.of(value);
        if (field.omits_empty && field.shape.is_empty(inner))
            || (field.omits_zero && field.shape.is_zero(inner))
        {
            continue;
        }
        separate(is_first, out);
        write_text(field.json, out);
        out.push(':');
        write_value(&field.shape, inner, out);
    }
}

fn separate(is_first: &mut bool, out: &mut String) {
    if !std::mem::take(is_first) {
        out.push(',');
    }
}

fn write_value(shape: &JsonShape, value: Option<&Value>, out: &mut String) {
    let value = value.filter(|value| !value.is_null());
    match (shape, value) {
        (JsonShape::Struct(at), _) => write_struct(GoStruct::at(*at), value, out),
        (JsonShape::Pointer(inner), Some(_)) => write_value(inner, value, out),
        (JsonShape::List(inner), Some(Value::Array(items))) => {
            out.push('[');
            let mut is_first = true;
            for item in items {
                separate(&mut is_first, out);
                write_value(inner, Some(item), out);
            }
            out.push(']');
        }
        (JsonShape::Map(inner), Some(Value::Object(entries))) => {
            out.push('{');
            let mut is_first = true;
            for (key, item) in entries {
                separate(&mut is_first, out);
                write_text(key, out);
                out.push(':');
                write_value(inner, Some(item), out);
            }
            out.push('}');
        }
        _ => write_leaf(shape, value, out),
    }
}

fn write_leaf(shape: &JsonShape, value: Option<&Value>, out: &mut String) {
    let text = value.and_then(Value::as_str);
    match shape {
        JsonShape::Text => write_text(text.unwrap_or_default(), out),
        JsonShape::Duration => write_text(text.unwrap_or("0s"), out),
        JsonShape::Bool => out.push_str(match value.and_then(Value::as_bool) {
            Some(true) => "true",
            _ => "false",
        }),
        JsonShape::Quantity => write_text(&number::encoded(value), out),
        JsonShape::Time => write_optional(time::encoded(value).as_deref(), out),
        JsonShape::MicroTime => write_optional(time::encoded_micros(value).as_deref(), out),
        JsonShape::Bytes => write_optional(text, out),
        JsonShape::IntOrString if text.is_some() => write_optional(text, out),
        JsonShape::Int | JsonShape::IntOrString => {
            let number = value.and_then(Value::as_i64).unwrap_or_default();
            write!(out, "{number}").expect("a text has room");
        }
        JsonShape::Float => write_float(value.and_then(Value::as_f64).unwrap_or_default(), out),
        JsonShape::Fields | JsonShape::Raw => match value {
            Some(raw) => write_raw(raw, out),
            None => out.push_str("null"),
        },
        JsonShape::Pointer(_) | JsonShape::List(_) | JsonShape::Map(_) | JsonShape::Struct(_) => {
            out.push_str("null");
        }
    }
}

fn write_optional(text: Option<&str>, out: &mut String) {
    match text {
        Some(text) => write_text(text, out),
        None => out.push_str("null"),
    }
}

/// Writes JSON that Go keeps as bytes; its encoder only escapes it.
fn write_raw(value: &Value, out: &mut String) {
    for character in value.to_string().chars() {
        match escape(character) {
            Some(escaped) if !matches!(character, '"' | '\\') => out.push_str(&escaped),
            _ => out.push(character),
        }
    }
}

fn write_sorted(value: &Value, numbers: DecodedNumbers, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _)
                if numbers == DecodedNumbers::Whole || whole.unsigned_abs() <= FLOAT_EXACT_MAX =>
            {
                write!(out, "{whole}").expect("a text has room");
            }
            (_, float) => write_float(float.unwrap_or_default(), out),
        },
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            out.push('[');
            let mut is_first = true;
            for item in items {
                separate(&mut is_first, out);
                write_sorted(item, numbers, out);
            }
            out.push(']');
        }
        // The keys of serde_json's maps are sorted by their bytes, as Go sorts them.
        Value::Object(entries) => {
            out.push('{');
            let mut is_first = true;
            for (key, item) in entries {
                separate(&mut is_first, out);
                write_text(key, out);
                out.push(':');
                write_sorted(item, numbers, out);
            }
            out.push('}');
        }
    }
}

/// Writes the shortest digits that read as the same float; very large and small ones with an
/// exponent.
// Go: encoding/json/encode.go floatEncoder
fn write_float(float: f64, out: &mut String) {
    let magnitude = float.abs();
    let is_plain = magnitude == 0.0 || (1e-6..1e21).contains(&magnitude);
    let written = if is_plain { format!("{float}") } else { format!("{float:e}") };
    // Go writes the sign of an exponent.
    match written.split_once('e') {
        Some((digits, exponent)) if !exponent.starts_with('-') => {
            write!(out, "{digits}e+{exponent}").expect("a text has room");
        }
        _ => out.push_str(&written),
    }
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match escape(character) {
            Some(escaped) => out.push_str(&escaped),
            None => out.push(character),
        }
    }
    out.push('"');
}

/// The escape that Go writes for a character, if it does not write the character.
// Go: encoding/json/encode.go appendString
fn escape(character: char) -> Option<String> {
    let short = match character {
        '"' => "\\\"",
        '\\' => "\\\\",
        '\u{8}' => "\\b",
        '\u{c}' => "\\f",
        '\n' => "\\n",
        '\r' => "\\r",
        '\t' => "\\t",
        '\0'..'\u{20}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
            return Some(format!("\\u{:04x}", u32::from(character)));
        }
        _ => return None,
    };
    Some(short.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn zeros_without_omitempty_are_there_and_unknown_fields_are_not() {
        let container = json!({"name": "a", "image": "", "fieldOfNextYear": 1, "args": []});
        assert_eq!(typed_json("core/v1.Container", &container), r#"{"name":"a","resources":{}}"#);
        let template = json!({"metadata": {"creationTimestamp": null}, "spec": {}});
        assert_eq!(
            typed_json("core/v1.PodTemplateSpec", &template),
            r#"{"metadata":{},"spec":{"containers":null}}"#
        );
    }

    #[test]
    fn html_characters_are_escaped() {
        let text = json!({"a": "<&>\u{2028}\u{1}\t\u{7f}"});
        let sorted = sorted_json(&text, DecodedNumbers::Floats);
        assert_eq!(sorted, "{\"a\":\"\\u003c\\u0026\\u003e\\u2028\\u0001\\t\u{7f}\"}");
    }

    #[test]
    fn numbers_of_a_decoded_map_are_floats_or_whole() {
        let numbers = json!([1, -5, 9_007_199_254_740_993_i64, i64::MAX, 1.5]);
        let floats = sorted_json(&numbers, DecodedNumbers::Floats);
        assert_eq!(floats, "[1,-5,9007199254740992,9223372036854776000,1.5]");
        let whole = sorted_json(&numbers, DecodedNumbers::Whole);
        assert_eq!(whole, "[1,-5,9007199254740993,9223372036854775807,1.5]");
        let large = sorted_json(&json!([1e21, 1e-7, 2.5e30]), DecodedNumbers::Floats);
        assert_eq!(large, "[1e+21,1e-7,2.5e+30]");
    }

    #[test]
    fn a_revision_replaces_the_template() {
        let set = json!({"spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}});
        let data = daemon_set_revision_data(&set);
        let template = r#"{"$patch":"replace","metadata":{},"spec":{"containers":[{"name":"a","resources":{}}]}}"#;
        let expected = format!(r#"{{"spec":{{"template":{template}}}}}"#);
        assert_eq!(data, expected);
        assert_eq!(stateful_set_revision_data(&set), expected);
    }
}
