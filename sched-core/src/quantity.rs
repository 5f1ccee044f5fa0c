//! Resource quantities: exact parsing, sums and roundings as Kubernetes does them.
//!
//! Input: the text of a quantity ("7.7Gi", "8267812044800m", "1e3"). Output: whole nano-units.
//! Owner: pure functions. Bounds: 128-bit nano-units, that is 1.7e29 units; larger text saturates.
//! Why nano: that is the finest precision of the API; sums of fractions must be exact because the
//! rounding up to whole units (or thousandths) happens once, after the sum.
// k8s: staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go ParseQuantity

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Nano-units in one unit.
const NANO: i128 = 1_000_000_000;
/// Nano-units in one thousandth.
const MILLI: i128 = 1_000_000;
/// Longest text that is looked at; the API accepts far less.
const TEXT_BYTES_MAX: usize = 256;

/// An amount of something, in billionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(pub i128);

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Amount>;

/// A text that is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("quantity {0:?} is not a number with an optional suffix such as m, k, Mi or Gi")]
pub struct QuantityError(pub String);

impl Amount {
    /// So many whole units.
    #[must_use]
    pub const fn units(value: i64) -> Self {
        Self(value as i128 * NANO)
    }

    /// So many thousandths.
    #[must_use]
    pub const fn milli(value: i64) -> Self {
        Self(value as i128 * MILLI)
    }

    /// Whole units, rounded up (away from zero), saturating.
    // k8s: quantity.go Value
    #[must_use]
    pub fn value(self) -> i64 {
        round_away(self.0, NANO)
    }

    /// Thousandths, rounded up (away from zero), saturating.
    // k8s: quantity.go MilliValue
    #[must_use]
    pub fn milli_value(self) -> i64 {
        round_away(self.0, MILLI)
    }

    /// The sum, saturating.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// Division rounding away from zero, saturating to 64 bits.
fn round_away(nanos: i128, unit: i128) -> i64 {
    let (quotient, rest) = (nanos / unit, nanos % unit);
    let rounded = quotient + if rest == 0 { 0 } else { rest.signum() };
    i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
}

/// Parses the text of a quantity.
///
/// # Errors
/// When the text is not a quantity.
pub fn parse(text: &str) -> Result<Amount, QuantityError> {
    let error = || QuantityError(text.chars().take(TEXT_BYTES_MAX).collect());
    if text.is_empty() || text.len() > TEXT_BYTES_MAX {
        return Err(error());
    }
    let (negative, rest) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(error());
    }
    let (base, exponent) = scale(suffix).ok_or_else(error)?;
    let nanos = to_nanos(whole, fraction, base, exponent);
    Ok(Amount(if negative { -nanos } else { nanos }))
}

/// The factor of a suffix: a binary multiplier and a decimal exponent.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    Some(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => {
            let digits = suffix.strip_prefix(['e', 'E'])?;
            (1, digits.parse::<i32>().ok().filter(|e| e.abs() <= 64)?)
        }
    })
}

/// `whole.fraction * base * 10^exponent` in nano-units, rounded up, saturating.
fn to_nanos(whole: &str, fraction: &str, base: i128, exponent: i32) -> i128 {
    let mut mantissa: i128 = 0;
    let mut shift = exponent + 9;
    for digit in whole.bytes().chain(fraction.bytes()) {
        let Some(next) =
            mantissa.checked_mul(10).and_then(|m| m.checked_add(i128::from(digit - b'0')))
        else {
            return i128::MAX / 4;
        };
        mantissa = next;
    }
    shift -= i32::try_from(fraction.len()).expect("text is bounded");
    let Some(mut value) = mantissa.checked_mul(base) else { return i128::MAX / 4 };
    let mut inexact = false;
    while shift < 0 && value != 0 {
        inexact |= value % 10 != 0;
        value /= 10;
        shift += 1;
    }
    while shift > 0 && value != 0 {
        let Some(next) = value.checked_mul(10) else { return i128::MAX / 4 };
        value = next;
        shift -= 1;
    }
    value + i128::from(inexact)
}

/// Parses every quantity of a resource list.
///
/// # Errors
/// The resource whose quantity is not one.
pub fn parse_list(
    list: Option<&BTreeMap<String, Quantity>>,
) -> Result<Amounts, (String, QuantityError)> {
    let mut amounts = Amounts::new();
    for (name, quantity) in list.into_iter().flatten() {
        amounts.insert(name.clone(), parse(&quantity.0).map_err(|e| (name.clone(), e))?);
    }
    Ok(amounts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_the_values_kubernetes_gives_them() {
        for (text, value, milli) in [
            ("0", 0, 0),
            ("1", 1, 1000),
            ("250m", 1, 250),
            ("1.5", 2, 1500),
            (".5", 1, 500),
            ("5.", 5, 5000),
            ("1Ki", 1024, 1_024_000),
            ("7.7Gi", 8_267_812_045, 8_267_812_044_800),
            ("8267812044800m", 8_267_812_045, 8_267_812_044_800),
            ("1e3", 1000, 1_000_000),
            ("1E3", 1000, 1_000_000),
            ("12E-1", 2, 1200),
            ("1E", 1_000_000_000_000_000_000, i64::MAX),
            ("100u", 1, 1),
            ("-1.5", -2, -1500),
            ("+2k", 2000, 2_000_000),
            ("0.0000000001", 1, 1),
        ] {
            let amount = parse(text).expect(text);
            assert_eq!((amount.value(), amount.milli_value()), (value, milli), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "x", "1 Gi", "1gi", "1.2.3", "Ki", "--1", "1e", "1e999", ".", "1K"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn fractions_are_summed_before_they_are_rounded() {
        let third = parse("333m").expect("quantity");
        assert_eq!(third.plus(third).plus(third).value(), 1);
        assert_eq!(third.value() * 3, 3);
    }
}
