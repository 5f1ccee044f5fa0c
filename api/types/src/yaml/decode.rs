//! Decodes a value to a type, as Go's JSON decoder fills a struct.
//!
//! Field names are case-sensitive and unknown ones are ignored. `null` is the zero value of the
//! requested type: in a list or a map as well, where serde has none. A number is no text and `1.0`
//! no integer; a quantity is either. An error names the field.
// k8s: vendor/sigs.k8s.io/json UnmarshalCaseSensitivePreserveInts

use serde::de::value::{MapDeserializer, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use super::json::Json;
use crate::quantity::Amount;

/// Names under which k8s-openapi asks for a quantity, and for times.
const QUANTITY: &str = "Quantity";
const TIMES: [&str; 2] = ["Time", "MicroTime"];

/// A value that is not of the type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", if .path.is_empty() { String::new() } else { format!("{path}: ") })]
pub struct DecodeError {
    /// The field, such as `spec.containers[0].image`.
    pub path: String,
    /// The fault.
    pub message: String,
}

impl serde::de::Error for DecodeError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self { path: String::new(), message: message.to_string() }
    }
}

impl DecodeError {
    fn within(mut self, key: &str) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{key}{dot}{}", self.path);
        self
    }
}

/// Makes a value of a type.
pub fn from_json<T: DeserializeOwned>(json: &Json) -> Result<T, DecodeError> {
    T::deserialize(json)
}

impl Json {
    fn unexpected(&self) -> Unexpected<'_> {
        match self {
            Self::Null => Unexpected::Unit,
            Self::Bool(value) => Unexpected::Bool(*value),
            Self::Number(text) => match text.parse() {
                Ok(number) => Unexpected::Signed(number),
                Err(_) => Unexpected::Float(text.parse().unwrap_or_default()),
            },
            Self::String(text) => Unexpected::Str(text),
            Self::Array(_) => Unexpected::Seq,
            Self::Object(_) => Unexpected::Map,
        }
    }

    fn visit_integer<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, DecodeError> {
        let text = match self {
            Self::Null => return visitor.visit_u64(0),
            Self::Number(text) => text,
            other => return Err(DecodeError::invalid_type(other.unexpected(), &visitor)),
        };
        match (text.parse::<i64>(), text.parse::<u64>()) {
            (Ok(number), _) => visitor.visit_i64(number),
            (_, Ok(number)) => visitor.visit_u64(number),
            _ => Err(DecodeError::invalid_type(self.unexpected(), &visitor)),
        }
    }

    fn visit_object<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Self::Null => visitor.visit_map(MapDeserializer::<_, DecodeError>::new(
                std::iter::empty::<(&str, &str)>(),
            )),
            Self::Object(entries) => {
                visitor.visit_map(Entries { entries: entries.iter(), value: None })
            }
            other => Err(DecodeError::invalid_type(other.unexpected(), &visitor)),
        }
    }

    /// The text of a quantity, which may be written as a number.
    // k8s: staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go Quantity.UnmarshalJSON
    fn quantity(&self) -> Result<&str, DecodeError> {
        let text = match self {
            Self::Null => "0",
            Self::Number(text) => text,
            // As JSON text, where an escaped character is no space.
            Self::String(text) => text.trim_matches(|it: char| it.is_whitespace() && it >= ' '),
            other => return Err(DecodeError::invalid_type(other.unexpected(), &"a quantity")),
        };
        match Amount::parse(text) {
            Some(_) => Ok(text),
            None => Err(DecodeError::invalid_value(Unexpected::Str(text), &"a quantity")),
        }
    }

    /// The text of a time in the one form that Go takes.
    fn time(&self) -> Result<&str, DecodeError> {
        match self {
            Self::String(text) if is_rfc3339(text) => Ok(text),
            other => Err(DecodeError::invalid_type(other.unexpected(), &"a time as of RFC 3339")),
        }
    }
}

fn is_rfc3339(text: &str) -> bool {
    let shape = b"0000-00-00T00:00:00";
    let Some((whole, rest)) = text.split_at_checked(shape.len()) else { return false };
    let fits = whole.bytes().zip(shape).all(|(own, shape)| match shape {
        b'0' => own.is_ascii_digit(),
        _ => own == *shape,
    });
    let rest = match rest.strip_prefix('.') {
        Some(fraction) => fraction.trim_start_matches(|it: char| it.is_ascii_digit()),
        None => rest,
    };
    fits && (rest == "Z" || rest.len() == 6)
}

impl<'de> Deserializer<'de> for &Json {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Json::Null => visitor.visit_unit(),
            Json::Bool(value) => visitor.visit_bool(*value),
            Json::Number(text) if text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok() => {
                self.visit_integer(visitor)
            }
            Json::Number(text) => visitor.visit_f64(text.parse().unwrap_or_default()),
            Json::String(text) => visitor.visit_str(text),
            Json::Array(items) => visitor.visit_seq(Items { items: items.iter(), index: 0 }),
            Json::Object(_) => self.visit_object(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Json::Null => visitor.visit_bool(false),
            Json::Bool(value) => visitor.visit_bool(*value),
            other => Err(DecodeError::invalid_type(other.unexpected(), &visitor)),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Json::Null => visitor.visit_f64(0.0),
            Json::Number(text) => match text.parse::<f64>() {
                Ok(number) if number.is_finite() => visitor.visit_f64(number),
                _ => Err(DecodeError::invalid_value(self.unexpected(), &visitor)),
            },
            other => Err(DecodeError::invalid_type(other.unexpected(), &visitor)),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Json::Null => visitor.visit_str(""),
            Json::String(text) => visitor.visit_str(text),
            other => Err(DecodeError::invalid_type(other.unexpected(), &visitor)),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Json::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        if name == QUANTITY {
            let text: StrDeserializer<'_, DecodeError> = self.quantity()?.into_deserializer();
            return visitor.visit_newtype_struct(text);
        }
        if TIMES.contains(&name) {
            let text: StrDeserializer<'_, DecodeError> = self.time()?.into_deserializer();
            return visitor.visit_newtype_struct(text);
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Json::Null => visitor.visit_seq(Items { items: [].iter(), index: 0 }),
            Json::Array(items) => visitor.visit_seq(Items { items: items.iter(), index: 0 }),
            other => Err(DecodeError::invalid_type(other.unexpected(), &visitor)),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.visit_object(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.visit_object(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self {
            Json::Null => visitor.visit_enum("".into_deserializer()),
            Json::String(text) => visitor.visit_enum(text.as_str().into_deserializer()),
            other => Err(DecodeError::invalid_type(other.unexpected(), &visitor)),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.visit_integer(visitor)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.visit_integer(visitor)
    }

    fn deserialize_i16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.visit_integer(visitor)
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.visit_integer(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.visit_integer(visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.visit_integer(visitor)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.visit_integer(visitor)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.visit_integer(visitor)
    }

    forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct identifier
    }
}

struct Items<'j> {
    items: std::slice::Iter<'j, Json>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = DecodeError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DecodeError> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        let value = seed.deserialize(item);
        value.map(Some).map_err(|error| error.within(&format!("[{index}]")))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Entries<'j> {
    entries: std::collections::btree_map::Iter<'j, String, Json>,
    value: Option<(&'j str, &'j Json)>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = DecodeError;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DecodeError> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = Some((key, value));
        let key: StrDeserializer<'_, DecodeError> = key.as_str().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, DecodeError> {
        let Some((key, value)) = self.value.take() else {
            return Err(DecodeError::custom("a value without a key"));
        };
        seed.deserialize(value).map_err(|error| error.within(key))
    }
}
