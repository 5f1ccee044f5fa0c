//! A quantity in Go's representation: which of its two numbers is set, and the cached text, if any.
//!
//! Input: a quantity in JSON. Output: [`GoQuantity`]. The printer shows its private fields, because
//! they are part of a template's hash: `100m` keeps its text and `64Mi` does not. Amounts
//! themselves are `pintle_api_types::quantity`.
//!
//! Bounds: numbers beyond 127 bits saturate; the API server stores none of them in a template.
// k8s: staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go ParseQuantity

use std::borrow::Cow;

use pintle_api_types::quantity::Amount;
use serde_json::Value;

/// Digits with which upstream calculates in 64 bits.
const DECIMAL_DIGITS_MAX: i32 = 18;
const BINARY_DIGITS_MAX: i32 = 15;
/// Places behind the point that a quantity can have.
const PLACES_MAX: i32 = 9;

/// The fields of Go's `resource.Quantity`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GoQuantity<'a> {
    pub(super) number: GoNumber,
    /// The text as it was written, if Go keeps it; else empty.
    pub(super) text: Cow<'a, str>,
    /// `DecimalSI`, `BinarySI`, `DecimalExponent`, or nothing if there was no text.
    pub(super) format: &'static str,
}

/// The number in the field that has it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GoNumber {
    /// `int64Amount`: value times ten to the scale.
    Small { value: i64, scale: i32 },
    /// `inf.Dec`: unscaled divided by ten to the scale.
    Large { unscaled: i128, scale: i32 },
}

/// A quantity's text, taken apart.
struct QuantityText<'a> {
    is_negative: bool,
    /// Digits before the point, without leading zeros.
    whole: &'a str,
    fraction: &'a str,
    /// Ten or two to this exponent.
    exponent: i32,
    is_binary: bool,
    format: &'static str,
}

const ZERO: GoQuantity<'static> = GoQuantity {
    number: GoNumber::Small { value: 0, scale: 0 },
    text: Cow::Borrowed(""),
    format: "",
};

/// The text of a quantity in JSON, which may be a number.
pub(super) fn quantity_text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text.trim()),
        other => Cow::Owned(other.to_string()),
    }
}

/// The amount of a quantity in JSON; zero if it is none.
pub(super) fn amount(value: Option<&Value>) -> Amount {
    value.and_then(|value| Amount::parse(&quantity_text(value))).unwrap_or_default()
}

/// The text that Go's encoder writes for a quantity in JSON.
// k8s: quantity.go MarshalJSON
pub(super) fn encoded(value: Option<&Value>) -> String {
    let kept = GoQuantity::decode(value).text;
    if kept.is_empty() { amount(value).canonical() } else { kept.into_owned() }
}

impl<'a> GoQuantity<'a> {
    /// Decodes a quantity as Go does.
    pub(super) fn decode(value: Option<&'a Value>) -> Self {
        let Some(value) = value else { return ZERO };
        let text = quantity_text(value);
        if text == "0" {
            return Self { text, format: "DecimalSI", ..ZERO };
        }
        let Some(written) = QuantityText::parse(&text) else { return ZERO };
        let format = written.format;
        match written.small() {
            Some((number, true)) => Self { number, text, format },
            Some((number, false)) => Self { number, text: "".into(), format },
            None => {
                let (number, format) = written.large();
                Self { number, text: "".into(), format }
            }
        }
    }
}

impl<'a> QuantityText<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = unsigned.split_at(digits);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count()),
            None => ("", rest),
        };
        let whole = whole.trim_start_matches('0');
        let is_negative = text.starts_with('-');
        let (exponent, is_binary, format) = suffix_scale(suffix)?;
        Some(Self { is_negative, whole, fraction, exponent, is_binary, format })
    }

    /// The digits without a point, at least one.
    fn digits(&self) -> String {
        let whole = if self.whole.is_empty() { "0" } else { self.whole };
        format!("{whole}{}", self.fraction)
    }

    /// The number in 64 bits if upstream calculates so, and whether it keeps the text.
    fn small(&self) -> Option<(GoNumber, bool)> {
        let digits = self.digits();
        let count = i32::try_from(digits.len()).ok()?;
        let (room, factor) = if self.is_binary {
            // Two to the tenth has about three digits.
            let factor_digits = self.exponent * 3 / 10;
            let room = if self.fraction.is_empty() {
                BINARY_DIGITS_MAX - count - factor_digits - 1
            } else {
                -1
            };
            (room, 1_i64.checked_shl(self.exponent.unsigned_abs())?)
        } else {
            (DECIMAL_DIGITS_MAX - count, 1)
        };
        let exponent = if self.is_binary { 0 } else { self.exponent };
        let scale = exponent - i32::try_from(self.fraction.len()).ok()?;
        if room < 0 || scale < -PLACES_MAX {
            return None;
        }
        let number: i64 = digits.parse().ok()?;
        let magnitude = number.checked_mul(factor)?;
        let value = if self.is_negative { -magnitude } else { magnitude };
        let keeps_text = if self.is_binary {
            number % 8 != 0
        } else {
            scale % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0')
        };
        Some((GoNumber::Small { value, scale }, keeps_text))
    }

    /// The number with as many digits as it needs, and the notation that is left of its own.
    fn large(&self) -> (GoNumber, &'static str) {
        let mut unscaled: i128 = self.digits().parse().unwrap_or(i128::MAX);
        let mut scale = i32::try_from(self.fraction.len()).unwrap_or(i32::MAX);
        if self.is_binary {
            let factor = 1_i128 << self.exponent;
            unscaled = unscaled.saturating_mul(factor);
        } else {
            scale -= self.exponent;
        }
        let mut format = self.format;
        if unscaled != 0 {
            unscaled = with_places(unscaled, scale);
            scale = PLACES_MAX;
            let unit = 10_i128.pow(PLACES_MAX.unsigned_abs());
            if self.is_binary && unscaled > i128::from(i64::MAX) * unit {
                (unscaled, scale) = (i128::from(i64::MAX), 0);
            } else if self.is_binary && unscaled < unit {
                format = "DecimalSI";
            }
        }
        let unscaled = if self.is_negative { -unscaled } else { unscaled };
        (GoNumber::Large { unscaled, scale }, format)
    }
}

/// A magnitude with nine places behind the point, rounded up.
fn with_places(unscaled: i128, scale: i32) -> i128 {
    let shift = (scale - PLACES_MAX).unsigned_abs();
    match 10_i128.checked_pow(shift) {
        Some(factor) if scale <= PLACES_MAX => unscaled.saturating_mul(factor),
        Some(factor) => unscaled / factor + i128::from(unscaled % factor != 0),
        None if scale <= PLACES_MAX => i128::MAX,
        None => 1,
    }
}

/// The exponent of a suffix, whether its base is two, and the notation.
// k8s: staging/src/k8s.io/apimachinery/pkg/api/resource/suffix.go interpret
fn suffix_scale(suffix: &str) -> Option<(i32, bool, &'static str)> {
    const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let exponent_at =
        |at: usize, step: i32, first: i32| i32::try_from(at).unwrap_or(0) * step + first;
    if let Some(at) = DECIMAL.iter().position(|known| *known == suffix) {
        return Some((exponent_at(at, 3, -9), false, "DecimalSI"));
    }
    if let Some(at) = BINARY.iter().position(|known| *known == suffix) {
        return Some((exponent_at(at, 10, 10), true, "BinarySI"));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some((exponent, false, "DecimalExponent"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantity_text_is_kept_when_it_looks_canonical() {
        for (text, kept) in [
            ("100m", "100m"),
            ("64Mi", ""),
            ("100Mi", "100Mi"),
            ("1000", ""),
            ("0.5", ""),
            ("1.500", "1.500"),
            ("0", "0"),
            ("00", ""),
            (" 1 ", "1"),
            ("100Ti", ""),
        ] {
            assert_eq!(GoQuantity::decode(Some(&json!(text))).text, kept, "{text}");
        }
    }

    #[test]
    fn large_and_fine_numbers_are_decimals() {
        let number = |text: &str| GoQuantity::decode(Some(&json!(text))).number;
        let unit = 10_i128.pow(9);
        assert_eq!(number("64Mi"), GoNumber::Small { value: 64 << 20, scale: 0 });
        assert_eq!(number("250m"), GoNumber::Small { value: 250, scale: -3 });
        let unscaled = (100_i128 << 40) * unit;
        assert_eq!(number("100Ti"), GoNumber::Large { unscaled, scale: 9 });
        assert_eq!(number("0.0000000001"), GoNumber::Large { unscaled: 1, scale: 9 });
        let unscaled = i128::from(i64::MAX);
        assert_eq!(number("16Ei"), GoNumber::Large { unscaled, scale: 0 });
    }

    #[test]
    fn the_encoder_writes_the_kept_or_the_canonical_text() {
        for (text, written) in [("64Mi", "64Mi"), ("1024Mi", "1Gi"), ("0.5", "500m"), ("+1", "+1")]
        {
            assert_eq!(encoded(Some(&json!(text))), written);
        }
        assert_eq!(encoded(Some(&json!(100))), "100");
        assert_eq!(encoded(None), "0");
    }
}
