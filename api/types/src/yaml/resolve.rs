//! The type of a scalar: YAML 1.1 as go-yaml v2 knows it.
// k8s: vendor/go.yaml.in/yaml/v2/resolve.go resolve, decode.go scalar

use base64::Engine as _;
use base64::engine::general_purpose::GeneralPurpose;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};

use super::parser::YAML_TAG;
use super::timestamp::is_timestamp;
use super::{json, number};

/// A resolved scalar, by Go's types, which keys of a map differ in.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(String),
}

/// Go's encoding refuses bits behind the end as little as go-yaml does.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// A value that does not fit its tag.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScalarError {
    #[error("cannot decode {value:?} as a !!{tag}")]
    Tag { value: String, tag: String },
    #[error("!!binary value contains invalid base64 data")]
    Base64,
}

impl ScalarError {
    fn tag(value: &str, tag: &str) -> Self {
        Self::Tag { value: value.to_owned(), tag: tag.to_owned() }
    }
}

/// Resolves a scalar; the error is why its tag does not fit.
pub(super) fn scalar(value: &str, tag: &str, is_implicit: bool) -> Result<Scalar, ScalarError> {
    if tag.is_empty() && !is_implicit {
        return Ok(Scalar::Text(value.to_owned()));
    }
    let Some(short) = (if tag.is_empty() { Some("") } else { tag.strip_prefix(YAML_TAG) }) else {
        return Ok(Scalar::Text(value.to_owned()));
    };
    match short {
        "null" if matches!(value, "" | "~" | "null" | "Null" | "NULL") => Ok(Scalar::Null),
        "str" => Ok(Scalar::Text(value.to_owned())),
        "binary" => binary(value),
        "" => Ok(plain(value)),
        "null" | "bool" | "int" | "float" | "timestamp" => tagged(value, short),
        _ => Ok(Scalar::Text(value.to_owned())),
    }
}

/// A value with one of YAML's own tags has to be of that type.
fn tagged(value: &str, tag: &str) -> Result<Scalar, ScalarError> {
    let found = plain(value);
    let is_time = tag == "timestamp" && is_timestamp(value);
    let fits = match (&found, tag) {
        _ if is_time => return Ok(Scalar::Text(value.to_owned())),
        (Scalar::Int(number), "float") => return Ok(Scalar::Float(*number as f64)),
        (Scalar::Null, "null")
        | (Scalar::Bool(_), "bool")
        | (Scalar::Int(_) | Scalar::Uint(_), "int")
        | (Scalar::Float(_), "float") => true,
        _ => false,
    };
    if fits { Ok(found) } else { Err(ScalarError::tag(value, tag)) }
}

fn binary(value: &str) -> Result<Scalar, ScalarError> {
    let digits: String = value.chars().filter(|it| !matches!(it, '\r' | '\n')).collect();
    match BASE64.decode(digits) {
        Ok(bytes) => Ok(Scalar::Text(json::utf8_of(&bytes))),
        Err(_) => Err(ScalarError::Base64),
    }
}

/// The scalar of a value without quotes and tag.
fn plain(value: &str) -> Scalar {
    match value {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Scalar::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Scalar::Bool(false);
        }
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        ".nan" | ".NaN" | ".NAN" => return Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Scalar::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return Scalar::Float(f64::NEG_INFINITY),
        _ => {}
    }
    let number = match value.as_bytes()[0] {
        b'.' => number::without_underscores(value)
            .and_then(|value| number::parse_float(&value))
            .map(Scalar::Float),
        b'0'..=b'9' | b'+' | b'-' => numeric(value),
        _ => None,
    };
    number.unwrap_or_else(|| Scalar::Text(value.to_owned()))
}

fn numeric(value: &str) -> Option<Scalar> {
    let plain = value.replace('_', "");
    let integer = number::parse_int(&plain).or_else(|| number::parse_signed_binary(&plain));
    if let Some(number) = integer {
        return Some(match i64::try_from(number) {
            Ok(number) => Scalar::Int(number),
            Err(_) => Scalar::Uint(u64::try_from(number).ok()?),
        });
    }
    number::parse_float(&plain).map(Scalar::Float)
}
