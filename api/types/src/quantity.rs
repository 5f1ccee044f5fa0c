//! Quantities of the API as exact integers: the one home of `100m`, `1.5Gi`, `2e3`.
//!
//! Input: the text of a pod, a node, a flag or a configuration file. Output: [`Amount`], a count of
//! nano-units with the notation it was written in, and the canonical text that the API server would
//! store for it; or [`Quantity`], the text as it was written, checked. Floats never take part: sums
//! and comparisons are exact. Fractions of a nano-unit, and readings in whole units or thousandths,
//! round away from zero, so that a request is never understated.
//!
//! Bounds: a text has `TEXT_BYTES_MAX` bytes at most and an exponent `EXPONENT_MAX`. Binary
//! notation is capped at 2^63-1 units as upstream caps it, everything else at 10^28; a number
//! beyond 64 bits reads as the largest, where upstream's wraps around or reads as zero. A text
//! without a digit is refused, where upstream takes it for zero.
// k8s: staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Add;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Nano-units in one unit.
const NANO: i128 = 1_000_000_000;
/// Nano-units in a thousandth.
const NANO_PER_MILLI: i128 = 1_000_000;
/// Largest magnitude in nano-units; ten times of it still is an `i128`.
const NANO_MAX: i128 = 10_i128.pow(37);
/// Largest magnitude in binary notation, 2^63-1 units.
const NANO_BINARY_MAX: i128 = (i64::MAX as i128) * NANO;
/// Longest text that is read, in bytes.
const TEXT_BYTES_MAX: usize = 256;
/// Largest exponent of ten that is read, either way.
const EXPONENT_MAX: u32 = 100;
/// Digits of a number that upstream calculates with as with 64 bits, in decimal and in binary
/// notation.
// k8s: staging/src/k8s.io/apimachinery/pkg/api/resource/math.go maxInt64Factors
const DIGITS_MAX: usize = 18;
const BINARY_DIGITS_MAX: usize = 15;
/// Characters of an invalid text that an error quotes.
const TEXT_CHARS_TOLD: usize = 64;

/// Notation in which a quantity was written and is written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Notation {
    /// Powers of 1000 with `n u m k M G T P E`.
    Decimal,
    /// Powers of 1024 with `Ki Mi Gi Ti Pi Ei`.
    Binary,
    /// `e` and an exponent that is a multiple of three.
    Exponent,
}

/// An exact amount.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Amount {
    #[serde(with = "text")]
    nanos: i128,
    notation: Notation,
}

/// Numbers that are too large for JSON's, as text.
mod text {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(number: &i128, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(number)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<i128, D::Error> {
        String::deserialize(input)?.parse().map_err(de::Error::custom)
    }
}

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Amount>;

/// A text that is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a quantity such as 500m, 2 or 100Mi")]
pub struct QuantityError {
    text: String,
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Amount {}
impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Amount {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Default for Amount {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self { nanos: 0, notation: Notation::Decimal };

    /// A count of thousandths, decimal notation.
    pub const fn from_millis(millis: i64) -> Self {
        Self { nanos: millis as i128 * NANO_PER_MILLI, notation: Notation::Decimal }
    }

    /// A count of bytes, binary notation.
    pub const fn from_bytes(bytes: i64) -> Self {
        Self { nanos: bytes as i128 * NANO, notation: Notation::Binary }
    }

    /// Parses a quantity. `None` when the text is not one.
    // k8s: staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go ParseQuantity
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = rest.split_at(digits);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count()),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let (magnitude, notation) = match scale(suffix)? {
            Scale::Decimal(exponent, notation) => {
                (decimal_nanos(whole, fraction, exponent), notation)
            }
            Scale::Binary(bits) => match binary_nanos(whole, fraction, bits) {
                // Fractions of one unit are shown in powers of ten.
                nanos if nanos < NANO => (nanos, Notation::Decimal),
                nanos => (nanos, Notation::Binary),
            },
        };
        Some(Self { nanos: if negative { -magnitude } else { magnitude }, notation })
    }

    /// Thousandths, rounded away from zero.
    // k8s: quantity.go MilliValue
    pub fn millis(self) -> i64 {
        clamp_i64(div_away(self.nanos, NANO_PER_MILLI))
    }

    /// Whole units, rounded away from zero.
    // k8s: quantity.go Value
    pub fn units(self) -> i64 {
        clamp_i64(div_away(self.nanos, NANO))
    }

    /// The amount in whole thousandths, rounded away from zero.
    // k8s: quantity.go RoundUp
    pub fn rounded_to_millis(self) -> Self {
        let nanos = cap(div_away(self.nanos, NANO_PER_MILLI) * NANO_PER_MILLI);
        Self { nanos, notation: self.notation }
    }

    /// The nearest float or one beside it: the value of upstream's metrics.
    // k8s: staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go AsApproximateFloat64
    pub fn approximate(self) -> f64 {
        let (count, steps) = strip_factors(self.nanos, 1000, 3);
        // A power of ten that is a float itself, or the float nearest to it.
        count as f64 * [1e-9, 1e-6, 1e-3, 1.0][steps]
    }

    /// True for nothing.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// True below zero.
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// True when it is a whole number of units.
    pub fn is_whole(self) -> bool {
        self.nanos % NANO == 0
    }

    /// The canonical text, as the API server would store it.
    // k8s: staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go CanonicalizeBytes
    pub fn canonical(self) -> String {
        if self.nanos == 0 {
            return "0".to_owned();
        }
        let small = self.nanos > -1024 * NANO && self.nanos < 1024 * NANO;
        match self.notation {
            // Powers of 1024 have no fractions, so these would be lost.
            Notation::Binary if !small && self.is_whole() => {
                let (count, steps) = strip_factors(self.nanos / NANO, 1024, 6);
                format!("{count}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][steps])
            }
            Notation::Exponent => {
                let (count, steps) = strip_factors(self.nanos, 1000, usize::MAX);
                match steps as i64 * 3 - 9 {
                    0 => count.to_string(),
                    exponent => format!("{count}e{exponent}"),
                }
            }
            _ => {
                let (count, steps) = strip_factors(self.nanos, 1000, 9);
                format!("{count}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][steps])
            }
        }
    }

    /// As many times this amount as that one is units, in this amount's notation. A fraction of a
    /// nano-unit in the product counts as one more.
    pub fn times(self, factor: Self) -> Self {
        let (whole, part) = (self.nanos / NANO, self.nanos % NANO);
        let whole = whole.saturating_mul(factor.nanos);
        // A factor that leaves no room beside a part is so large that its own part does not matter.
        let part = match part.checked_mul(factor.nanos) {
            Some(product) => div_away(product, NANO),
            None => (factor.nanos / NANO) * part,
        };
        Self { nanos: cap(whole.saturating_add(part)), notation: self.notation }
    }

    /// Difference, keeping this amount's notation.
    pub fn minus(self, other: Self) -> Self {
        Self { nanos: cap(self.nanos - other.nanos), notation: self.notation }
    }
}

impl Add for Amount {
    type Output = Self;

    /// The sum in the first operand's notation, unless that operand is nothing.
    fn add(self, other: Self) -> Self {
        let notation = if self.nanos == 0 { other.notation } else { self.notation };
        Self { nanos: cap(self.nanos + other.nanos), notation }
    }
}

impl FromStr for Amount {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let error = || QuantityError { text: text.chars().take(TEXT_CHARS_TOLD).collect() };
        Self::parse(text).ok_or_else(error)
    }
}

/// Does upstream keep the text beside the number, so that it is stored as it was written? It does
/// for small numbers that look canonical to a quick glance; no sum has been made with them.
// k8s: quantity.go ParseQuantity, "if the number is in canonical form, reuse the string"
pub fn is_stored_as_written(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = unsigned.bytes().take_while(|it| it.is_ascii_digit() || *it == b'.').count();
    let (number, suffix) = unsigned.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.trim_start_matches('0');
    match scale(suffix) {
        Some(Scale::Decimal(exponent, _)) => {
            let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
            let exponent = exponent.saturating_sub(places);
            let is_small = whole.len() + fraction.len() <= DIGITS_MAX && exponent >= -9;
            let is_plain = !whole.is_empty() && !format!("{whole}{fraction}").ends_with("000");
            is_small && is_plain && exponent % 3 == 0
        }
        // A factor of 2^10 has about three digits.
        Some(Scale::Binary(bits)) => {
            let is_small = whole.len() + (bits as usize * 3 / 10) < BINARY_DIGITS_MAX;
            let is_odd = whole.parse::<u64>().is_ok_and(|number| number % 8 != 0);
            fraction.is_empty() && is_small && is_odd
        }
        None => false,
    }
}

/// Reads every quantity of a resource list.
///
/// # Errors
/// The resource with an invalid quantity.
pub fn read_list(
    list: Option<&BTreeMap<String, ApiQuantity>>,
) -> Result<Amounts, (String, QuantityError)> {
    let read = |(name, quantity): (&String, &ApiQuantity)| match quantity.0.parse() {
        Ok(amount) => Ok((name.clone(), amount)),
        Err(error) => Err((name.clone(), error)),
    };
    list.into_iter().flatten().map(read).collect()
}

fn cap(nanos: i128) -> i128 {
    nanos.clamp(-NANO_MAX, NANO_MAX)
}

fn clamp_i64(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// Rounds away from zero.
fn div_away(value: i128, by: i128) -> i128 {
    value / by + if value % by == 0 { 0 } else { value.signum() }
}

/// Takes out a factor as often as it divides, at most `steps_max` times.
fn strip_factors(mut value: i128, factor: i128, steps_max: usize) -> (i128, usize) {
    let mut steps = 0;
    while value != 0 && steps < steps_max && value % factor == 0 {
        value /= factor;
        steps += 1;
    }
    (value, steps)
}

/// The factor of a suffix.
enum Scale {
    /// A power of ten, and how it was written.
    Decimal(i32, Notation),
    /// A power of two.
    Binary(u32),
}

fn scale(suffix: &str) -> Option<Scale> {
    let decimal = |exponent| Scale::Decimal(exponent, Notation::Decimal);
    Some(match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => Scale::Binary(10),
        "Mi" => Scale::Binary(20),
        "Gi" => Scale::Binary(30),
        "Ti" => Scale::Binary(40),
        "Pi" => Scale::Binary(50),
        "Ei" => Scale::Binary(60),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let bounded = exponent.unsigned_abs() <= EXPONENT_MAX;
            return bounded.then_some(Scale::Decimal(exponent, Notation::Exponent));
        }
    })
}

/// `whole.fraction * 10^exponent` in nano-units, rounded up and capped.
fn decimal_nanos(whole: &str, fraction: &str, exponent: i32) -> i128 {
    let digits = whole.bytes().chain(fraction.bytes());
    let length = |text: &str| i32::try_from(text.len()).expect("texts are bounded");
    // Digits before this one are whole nano-units.
    let point = length(whole) + 9 + exponent;
    let (mut nanos, mut rest) = (0_i128, false);
    for (at, digit) in (0..).zip(digits) {
        if at < point {
            nanos = cap(nanos * 10 + i128::from(digit - b'0'));
        } else {
            rest |= digit != b'0';
        }
    }
    for _ in length(whole) + length(fraction)..point {
        nanos = cap(nanos * 10);
    }
    cap(nanos + i128::from(rest))
}

/// `whole.fraction * 2^bits` in nano-units, rounded up and capped.
fn binary_nanos(whole: &str, fraction: &str, bits: u32) -> i128 {
    let scale = NANO << bits;
    let digit = |digit: u8| i128::from(digit - b'0');
    let whole = whole.bytes().fold(0, |sum, d| cap(sum * 10 + digit(d))).saturating_mul(scale);
    // From the last digit on, so that no step is larger than ten times the scale.
    let (mut part, mut rest) = (0, false);
    for d in fraction.bytes().rev() {
        let sum = digit(d) * scale + part;
        part = sum / 10;
        rest |= sum % 10 != 0;
    }
    whole.saturating_add(part + i128::from(rest)).min(NANO_BINARY_MAX)
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
#[path = "quantity_tests.rs"]
mod tests;
