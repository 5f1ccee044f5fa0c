//! A value as CBOR, as Kubernetes' components send it.
//!
//! Input: a JSON value. Output: bytes of RFC 8949 in their deterministic form: lengths in the fewest
//! bytes, names in the order of their bytes. Pure. Bounds: the value.
//! Texts and names are byte strings, as upstream's encoder has them; its decoder takes both.
// k8s: staging/src/k8s.io/apimachinery/pkg/runtime/serializer/cbor/internal/modes/encode.go

use serde_json::Value;

/// Marks the following bytes as CBOR: the head of tag 55799.
const SELF_DESCRIBED: [u8; 3] = [0xd9, 0xd9, 0xf7];

/// The type of an item: the upper three bits of its first byte.
#[derive(Clone, Copy)]
enum ItemKind {
    Natural = 0,
    Negative = 1,
    Bytes = 2,
    Array = 4,
    Map = 5,
    Simple = 7,
}

const FALSE: u64 = 20;
const TRUE: u64 = 21;
const NULL: u64 = 22;
/// A float of 64 bits follows.
const DOUBLE: u8 = 27;

/// The value as a document of its own.
pub(super) fn document(value: &Value) -> Vec<u8> {
    let mut out = SELF_DESCRIBED.to_vec();
    item(value, &mut out);
    out
}

fn item(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => head(ItemKind::Simple, NULL, out),
        Value::Bool(is) => head(ItemKind::Simple, if *is { TRUE } else { FALSE }, out),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(natural), _) => head(ItemKind::Natural, natural, out),
            // -1 is written as 0, -2 as 1: all bits turned.
            (None, Some(negative)) => head(ItemKind::Negative, !negative.cast_unsigned(), out),
            (None, None) => {
                out.push((ItemKind::Simple as u8) << 5 | DOUBLE);
                out.extend(number.as_f64().unwrap_or_default().to_be_bytes());
            }
        },
        Value::String(text) => bytes(text, out),
        Value::Array(items) => {
            head(ItemKind::Array, items.len() as u64, out);
            items.iter().for_each(|inner| item(inner, out));
        }
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            // The order of bytes that are written: a length stands first.
            names.sort_unstable_by_key(|name| (name.len(), name.as_str()));
            head(ItemKind::Map, names.len() as u64, out);
            for name in names {
                bytes(name, out);
                item(&fields[name], out);
            }
        }
    }
}

fn bytes(text: &str, out: &mut Vec<u8>) {
    head(ItemKind::Bytes, text.len() as u64, out);
    out.extend(text.as_bytes());
}

/// The first byte of an item, and its number or length in as few bytes as it takes.
fn head(kind: ItemKind, number: u64, out: &mut Vec<u8>) {
    let kind = (kind as u8) << 5;
    match number.to_be_bytes() {
        [0, 0, 0, 0, 0, 0, 0, small] if small < 24 => out.push(kind | small),
        [0, 0, 0, 0, 0, 0, 0, byte] => out.extend([kind | 24, byte]),
        [0, 0, 0, 0, 0, 0, two @ ..] => {
            out.push(kind | 25);
            out.extend(two);
        }
        [0, 0, 0, 0, four @ ..] => {
            out.push(kind | 26);
            out.extend(four);
        }
        eight => {
            out.push(kind | 27);
            out.extend(eight);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hex(value: &Value) -> String {
        let mut out = Vec::new();
        item(value, &mut out);
        out.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Those of RFC 8949, appendix A, with texts as byte strings.
    #[test]
    fn values_are_encoded_as_in_rfc_8949() {
        for (value, expected) in [
            (json!(0), "00"),
            (json!(23), "17"),
            (json!(24), "1818"),
            (json!(1000), "1903e8"),
            (json!(1_000_000), "1a000f4240"),
            (json!(1_000_000_000_000_u64), "1b000000e8d4a51000"),
            (json!(-1), "20"),
            (json!(-1000), "3903e7"),
            (json!(i64::MIN), "3b7fffffffffffffff"),
            (json!(1.1), "fb3ff199999999999a"),
            (json!([false, true, null]), "83f4f5f6"),
            (json!("IETF"), "4449455446"),
            (json!([1, [2, 3]]), "8201820203"),
            (json!({"bb": 1, "a": [], "c": {}}), "a341618041 63a0426262 01"),
        ] {
            assert_eq!(hex(&value), expected.replace(' ', ""), "{value}");
        }
        assert_eq!(document(&json!(1)), [0xd9, 0xd9, 0xf7, 1]);
    }
}
