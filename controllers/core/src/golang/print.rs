//! The text that go-spew prints of a Go value, from the JSON that the value was decoded from.
//!
//! Input: a struct of [`types`](super::types) and JSON. Output: `%#v` as `dump.ForHash` configures
//! it: keys of maps sorted, no methods, no addresses, no capacities. A field shows its type, an
//! item of a list or map does not; nil fields are printed, too, which is why the text, and with it
//! the hash, changes with every release that adds a field.
//!
//! Bounds: what a pod template consists of; the remaining leaves print as nil. A time prints the
//! location of a process without a time zone, as the images of Kubernetes have it.
// k8s: k8s.io/utils/dump/dump.go ForHash; github.com/davecgh/go-spew/spew/format.go

use std::fmt::{self, Write};

use serde_json::Value;

use super::number::{GoNumber, GoQuantity};
use super::time;
use super::types::{GoStruct, JsonShape};

const NIL: &str = "<nil>";

/// Prints a struct with its type.
pub(super) fn print_typed(
    printed: &str,
    of: &GoStruct,
    value: Option<&Value>,
    out: &mut impl Write,
) -> fmt::Result {
    write!(out, "({printed})")?;
    print_struct(of, value, out)
}

fn print_struct(of: &GoStruct, value: Option<&Value>, out: &mut impl Write) -> fmt::Result {
    out.write_char('{')?;
    for (at, field) in of.fields.iter().enumerate() {
        let space = if at == 0 { "" } else { " " };
        write!(out, "{space}{}:({})", field.name, field.printed)?;
        print(&field.shape, field.of(value), out)?;
    }
    out.write_char('}')
}

/// Prints a value without its type.
fn print(shape: &JsonShape, value: Option<&Value>, out: &mut impl Write) -> fmt::Result {
    let value = value.filter(|value| !value.is_null());
    let text = value.and_then(Value::as_str).unwrap_or_default();
    match shape {
        JsonShape::Pointer(inner) if value.is_some() => print(inner, value, out),
        JsonShape::List(inner) => print_list(inner, value, out),
        JsonShape::Map(inner) => print_map(inner, value, out),
        JsonShape::Struct(at) => print_struct(GoStruct::at(*at), value, out),
        JsonShape::Text => out.write_str(text),
        JsonShape::Bool => write!(out, "{}", value.and_then(Value::as_bool).unwrap_or_default()),
        JsonShape::Int => write!(out, "{}", value.and_then(Value::as_i64).unwrap_or_default()),
        JsonShape::Quantity => print_quantity(&GoQuantity::decode(value), out),
        JsonShape::Time | JsonShape::MicroTime => print_time(value, out),
        JsonShape::IntOrString => {
            let kind = u8::from(value.is_some_and(Value::is_string));
            let number = value.and_then(Value::as_i64).unwrap_or_default();
            let fields = format_args!("IntVal:(int32){number} StrVal:(string){text}");
            write!(out, "{{Type:(intstr.Type){kind} {fields}}}")
        }
        JsonShape::Fields => {
            let raw = value.map(Value::to_string).unwrap_or_default();
            out.write_str("{Raw:([]uint8)")?;
            print_items(raw.bytes(), value.is_some(), out)?;
            out.write_char('}')
        }
        JsonShape::Pointer(_)
        | JsonShape::Bytes
        | JsonShape::Float
        | JsonShape::Duration
        | JsonShape::Raw => out.write_str(NIL),
    }
}

fn print_list(inner: &JsonShape, value: Option<&Value>, out: &mut impl Write) -> fmt::Result {
    let Some(items) = value.and_then(Value::as_array) else { return out.write_str(NIL) };
    out.write_char('[')?;
    for (at, item) in items.iter().enumerate() {
        out.write_str(if at == 0 { "" } else { " " })?;
        print(inner, Some(item), out)?;
    }
    out.write_char(']')
}

fn print_map(inner: &JsonShape, value: Option<&Value>, out: &mut impl Write) -> fmt::Result {
    let Some(entries) = value.and_then(Value::as_object) else { return out.write_str(NIL) };
    out.write_str("map[")?;
    // The keys of serde_json's maps are sorted by their bytes, as Go sorts them.
    for (at, (key, item)) in entries.iter().enumerate() {
        write!(out, "{}{key}:", if at == 0 { "" } else { " " })?;
        print(inner, Some(item), out)?;
    }
    out.write_char(']')
}

fn print_items(
    items: impl Iterator<Item = impl fmt::Display>,
    is_set: bool,
    out: &mut impl Write,
) -> fmt::Result {
    if !is_set {
        return out.write_str(NIL);
    }
    out.write_char('[')?;
    for (at, item) in items.enumerate() {
        write!(out, "{}{item}", if at == 0 { "" } else { " " })?;
    }
    out.write_char(']')
}

fn print_quantity(quantity: &GoQuantity<'_>, out: &mut impl Write) -> fmt::Result {
    let (value, value_scale) = match quantity.number {
        GoNumber::Small { value, scale } => (value, scale),
        GoNumber::Large { .. } => (0, 0),
    };
    write!(out, "{{i:(resource.int64Amount){{value:(int64){value} ")?;
    write!(out, "scale:(resource.Scale){value_scale}}} d:(resource.infDecAmount){{Dec:(*inf.Dec)")?;
    match quantity.number {
        GoNumber::Small { .. } => out.write_str(NIL)?,
        GoNumber::Large { unscaled, scale } => {
            let is_negative = unscaled < 0;
            write!(out, "{{unscaled:(big.Int){{neg:(bool){is_negative} abs:(big.nat)")?;
            print_words(unscaled.unsigned_abs(), out)?;
            write!(out, "}} scale:(inf.Scale){scale}}}")?;
        }
    }
    let GoQuantity { text, format, .. } = quantity;
    write!(out, "}} s:(string){text} Format:(resource.Format){format}}}")
}

/// Prints the words of a large number, the lowest first.
fn print_words(magnitude: u128, out: &mut impl Write) -> fmt::Result {
    let words = [magnitude as u64, (magnitude >> 64) as u64];
    let count = words.iter().rposition(|word| *word != 0).map_or(0, |at| at + 1);
    // Go has no words for zero.
    print_items(words[..count].iter(), count > 0, out)
}

fn print_time(value: Option<&Value>, out: &mut impl Write) -> fmt::Result {
    let (wall, ext, has_location) = match time::instant(value) {
        Some(at) => {
            let (wall, ext) = time::wall_and_ext(at);
            (wall, ext, true)
        }
        None => (0, 0, false),
    };
    write!(out, "{{Time:(time.Time){{wall:(uint64){wall} ext:(int64){ext} loc:(*time.Location)")?;
    out.write_str(if has_location { LOCATION } else { NIL })?;
    out.write_str("}}")
}

/// `time.Local` of a process without a time zone.
const LOCATION: &str = "{name:(string)UTC zone:([]time.zone)<nil> tx:([]time.zoneTrans)<nil> \
     extend:(string) cacheStart:(int64)0 cacheEnd:(int64)0 cacheZone:(*time.zone)<nil>}";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn printed(name: &str, value: &Value) -> String {
        let mut out = String::new();
        print_struct(GoStruct::named(name), Some(value), &mut out).expect("a text has room");
        out
    }

    #[test]
    fn fields_show_their_types_and_items_do_not() {
        let value = json!({"add": ["A", "B"], "drop": []});
        let expected = "{Add:([]v1.Capability)[A B] Drop:([]v1.Capability)[]}";
        assert_eq!(printed("core/v1.Capabilities", &value), expected);
        let expected = "{Add:([]v1.Capability)<nil> Drop:([]v1.Capability)<nil>}";
        assert_eq!(printed("core/v1.Capabilities", &json!({"add": null})), expected);
    }

    #[test]
    fn a_nil_pointer_has_the_type_of_its_field() {
        let expected = "{Path:(string)/healthz Port:(intstr.IntOrString){Type:(intstr.Type)1 \
             IntVal:(int32)0 StrVal:(string)http} Host:(string) Scheme:(v1.URIScheme) \
             HTTPHeaders:([]v1.HTTPHeader)<nil>}";
        let value = json!({"path": "/healthz", "port": "http"});
        assert_eq!(printed("core/v1.HTTPGetAction", &value), expected);
        let value = json!({"medium": "Memory", "sizeLimit": null});
        let expected = "{Medium:(v1.StorageMedium)Memory SizeLimit:(*resource.Quantity)<nil>}";
        assert_eq!(printed("core/v1.EmptyDirVolumeSource", &value), expected);
    }

    #[test]
    fn a_quantity_shows_its_private_fields() {
        let expected = "{Medium:(v1.StorageMedium) SizeLimit:(*resource.Quantity)\
             {i:(resource.int64Amount){value:(int64)67108864 scale:(resource.Scale)0} \
             d:(resource.infDecAmount){Dec:(*inf.Dec)<nil>} s:(string) \
             Format:(resource.Format)BinarySI}}";
        assert_eq!(
            printed("core/v1.EmptyDirVolumeSource", &json!({"sizeLimit": "64Mi"})),
            expected
        );
    }
}
