//! Resource quantities the way Kubernetes writes them: `100Mi`, `1.5`, `200m`, `12e6`.
//!
//! Input: text of a flag, a configuration file or a pod spec. Output: [`Amount`], an exact number
//! of billionths, or [`Quantity`], the same text kept for showing it again. Rounding follows the
//! API: whole values and milli values are rounded up, away from what was asked for. Values beyond
//! 2^63 - 1 are capped as the API caps them; nothing here can overflow.
//!
//! // k8s: staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go ParseQuantity

use std::fmt;
use std::str::FromStr;

use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

const NANOS_PER_UNIT: i128 = 1_000_000_000;
const NANOS_PER_MILLI: i128 = 1_000_000;
/// Longer digit strings than this only repeat what the cap already says.
const DIGITS_MAX: usize = 64;

/// An exact amount in billionths of the resource's unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(i128);

/// A text that is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a quantity such as 500m, 2 or 100Mi")]
pub struct QuantityError {
    text: String,
}

impl Amount {
    /// Whole units (bytes, CPUs, inodes), rounded up.
    pub fn units(self) -> i64 {
        round_up(self.0, NANOS_PER_UNIT)
    }

    /// Thousandths (millicores), rounded up.
    pub fn millis(self) -> i64 {
        round_up(self.0, NANOS_PER_MILLI)
    }

    /// -1, 0 or 1.
    pub fn signum(self) -> i32 {
        i32::from(self.0 > 0) - i32::from(self.0 < 0)
    }

    /// The larger of what `i64` holds and this.
    fn capped(nanos: i128) -> Self {
        let cap = i128::from(i64::MAX) * NANOS_PER_UNIT;
        Self(nanos.clamp(-cap, cap))
    }
}

fn round_up(nanos: i128, unit: i128) -> i64 {
    let whole = nanos.div_euclid(unit) + i128::from(nanos.rem_euclid(unit) != 0);
    i64::try_from(whole).unwrap_or(if whole > 0 { i64::MAX } else { i64::MIN })
}

impl FromStr for Amount {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        parse(text).ok_or_else(|| QuantityError { text: text.to_owned() })
    }
}

/// What a suffix multiplies with, as numerator and denominator.
enum Scale {
    Binary(u32),
    Decimal(i32),
}

fn parse(text: &str) -> Option<Amount> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let number_len = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(number_len);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let scale = scale_of(suffix)?;
    let nanos = scaled_nanos(whole, fraction, &scale);
    Some(Amount::capped(if negative { nanos.saturating_neg() } else { nanos }))
}

fn scale_of(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "" => Scale::Decimal(0),
        "n" => Scale::Decimal(-9),
        "u" => Scale::Decimal(-6),
        "m" => Scale::Decimal(-3),
        "k" => Scale::Decimal(3),
        "M" => Scale::Decimal(6),
        "G" => Scale::Decimal(9),
        "T" => Scale::Decimal(12),
        "P" => Scale::Decimal(15),
        "E" => Scale::Decimal(18),
        "Ki" => Scale::Binary(10),
        "Mi" => Scale::Binary(20),
        "Gi" => Scale::Binary(30),
        "Ti" => Scale::Binary(40),
        "Pi" => Scale::Binary(50),
        "Ei" => Scale::Binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            Scale::Decimal(exponent.parse::<i32>().ok()?)
        }
    })
}

/// Digits times scale in billionths; a remainder below one billionth rounds up.
fn scaled_nanos(whole: &str, fraction: &str, scale: &Scale) -> i128 {
    let digits: String = whole.chars().chain(fraction.chars()).collect();
    let digits = digits.trim_start_matches('0');
    let kept = &digits[..digits.len().min(DIGITS_MAX)];
    let dropped = digits.len() - kept.len();
    // mantissa x 10^exponent is the number; mantissa is cut to what fits, the cut rounds up.
    let fraction_len = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
    let mut exponent = i64::try_from(dropped).unwrap_or(i64::MAX) - fraction_len + 9;
    let (mut mantissa, factor) = match scale {
        Scale::Binary(bits) => (parse_capped(kept, &mut exponent), 1_i128 << bits),
        Scale::Decimal(power) => {
            exponent = exponent.saturating_add(i64::from(*power));
            (parse_capped(kept, &mut exponent), 1)
        }
    };
    mantissa = mantissa.saturating_mul(factor);
    if mantissa == 0 {
        return 0;
    }
    match u32::try_from(exponent.unsigned_abs()).ok().and_then(|e| 10_i128.checked_pow(e)) {
        Some(power) if exponent >= 0 => mantissa.saturating_mul(power),
        Some(power) => mantissa / power + i128::from(mantissa % power != 0),
        None if exponent > 0 => i128::MAX,
        None => 1,
    }
}

/// At most 19 digits, so that a binary factor still fits into 128 bits; the rest rounds up.
fn parse_capped(digits: &str, exponent: &mut i64) -> i128 {
    const MANTISSA_DIGITS: usize = 19;
    let kept = &digits[..digits.len().min(MANTISSA_DIGITS)];
    let cut = &digits[kept.len()..];
    *exponent = exponent.saturating_add(i64::try_from(cut.len()).unwrap_or(i64::MAX));
    let round = i128::from(cut.bytes().any(|b| b != b'0'));
    kept.parse::<i128>().unwrap_or(0) + round
}

/// A quantity as it was written, checked to be one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Quantity(String);

impl Quantity {
    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its exact amount.
    pub fn amount(&self) -> Amount {
        self.0.parse().unwrap_or_default()
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self("0".to_owned())
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        text.parse::<Amount>().map(|_| Self(text.to_owned()))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor)
    }
}

/// The API takes `"1"` and `1` alike.
struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity such as 500m, 2 or 100Mi")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
        text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn suffixes_scale_and_rounding_goes_up() {
        for (text, units, millis) in [
            ("0", 0, 0),
            ("1", 1, 1_000),
            ("100m", 1, 100),
            ("1.5", 2, 1_500),
            ("-1.5", -1, -1_500),
            ("1n", 1, 1),
            ("0.1n", 1, 1),
            ("10Mi", 10 << 20, (10 << 20) * 1_000),
            ("1.5Gi", 3 << 29, (3 << 29) * 1_000),
            ("12e6", 12_000_000, 12_000_000_000),
            ("5E-3", 1, 5),
            ("2E", 2_000_000_000_000_000_000, i64::MAX),
            (".5k", 500, 500_000),
            ("16Ei", i64::MAX, i64::MAX),
        ] {
            let amount: Amount = text.parse().expect(text);
            assert_eq!((amount.units(), amount.millis()), (units, millis), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_quantity() {
        for text in ["", "-", ".", "1.2.3", "1 Mi", "Mi", "1KiB", "1e", "e5", "1e1.5", "10%"] {
            assert!(text.parse::<Amount>().is_err(), "{text:?} must be refused");
        }
    }

    proptest! {
        #[test]
        fn whole_numbers_are_exact(units in -1_000_000_000_000_i64..1_000_000_000_000) {
            prop_assert_eq!(units.to_string().parse::<Amount>().map(Amount::units), Ok(units));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[-+0-9.eEmKMGi]{0,40}|.{0,20}") {
            let _ = text.parse::<Amount>();
        }
    }
}
