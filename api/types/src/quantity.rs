//! Quantities of the API as exact integers.
//!
//! Input: the text of a `Quantity` (`100m`, `1.5Gi`, `2e3`). Output: `Amount`, a count of
//! nano-units with the notation it was written in, and the canonical text that the API server
//! would store for it. Floats never take part: sums and comparisons are exact, and rounding goes
//! up, as `resource.Quantity` rounds, so that a request is never understated.
//!
//! Bounds: values are capped at 2^63-1 units in either direction, fractions finer than a nano-unit
//! are rounded away from zero, texts longer than `TEXT_LEN_MAX` bytes are refused.

use std::ops::Add;

/// Nano-units in one unit.
const NANO: i128 = 1_000_000_000;
/// Nano-units in a thousandth.
const NANO_PER_MILLI: i128 = 1_000_000;
/// Largest magnitude in nano-units, upstream's cap of 2^63-1 units.
const NANO_MAX: i128 = (i64::MAX as i128) * NANO;
/// Longest text that is parsed.
const TEXT_LEN_MAX: usize = 64;

/// Notation in which a quantity was written and is written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notation {
    /// Powers of 1000 with `n u m k M G T P E`.
    Decimal,
    /// Powers of 1024 with `Ki Mi Gi Ti Pi Ei`.
    Binary,
    /// `e` and an exponent that is a multiple of three.
    Exponent,
}

/// An exact amount.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    nanos: i128,
    notation: Notation,
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

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self { nanos: 0, notation: Notation::Decimal };

    /// A count of thousandths, decimal notation.
    pub fn from_millis(millis: i64) -> Self {
        Self { nanos: i128::from(millis) * NANO_PER_MILLI, notation: Notation::Decimal }
    }

    /// A count of bytes, binary notation.
    pub fn from_bytes(bytes: i64) -> Self {
        Self { nanos: i128::from(bytes) * NANO, notation: Notation::Binary }
    }

    /// Parses a quantity. `None` when the text is not one.
    // k8s: staging/src/k8s.io/apimachinery/pkg/api/resource/quantity.go ParseQuantity
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > TEXT_LEN_MAX {
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
        let (base, exponent, notation) = suffix_scale(suffix)?;
        let magnitude = scale_digits(whole, fraction, base, exponent);
        Some(Self { nanos: if negative { -magnitude } else { magnitude }, notation })
    }

    /// Thousandths, rounded up.
    pub fn millis(self) -> i64 {
        clamp_i64(div_ceil(self.nanos, NANO_PER_MILLI))
    }

    /// Whole units, rounded up.
    pub fn units(self) -> i64 {
        clamp_i64(div_ceil(self.nanos, NANO))
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
        let small = self.nanos > -1024 * NANO && self.nanos < 1024 * NANO;
        match self.notation {
            Notation::Binary if !small => {
                let (count, steps) = strip_factors(div_away(self.nanos, NANO), 1024, 6);
                format!("{count}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][steps])
            }
            Notation::Exponent => {
                let (count, steps) = strip_factors(self.nanos, 1000, usize::MAX);
                match steps as i64 * 3 - 9 {
                    _ if self.nanos == 0 => "0".to_owned(),
                    0 => count.to_string(),
                    exponent => format!("{count}e{exponent}"),
                }
            }
            _ => {
                let (count, steps) = strip_factors(self.nanos, 1000, 9);
                let suffix = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][steps];
                if self.nanos == 0 { "0".to_owned() } else { format!("{count}{suffix}") }
            }
        }
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

fn cap(nanos: i128) -> i128 {
    nanos.clamp(-NANO_MAX, NANO_MAX)
}

fn clamp_i64(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// Rounds towards positive infinity.
fn div_ceil(value: i128, by: i128) -> i128 {
    value.div_euclid(by) + i128::from(value.rem_euclid(by) != 0)
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

/// Base, exponent and notation of a suffix.
fn suffix_scale(suffix: &str) -> Option<(u32, i32, Notation)> {
    let decimal = |exponent| Some((10, exponent, Notation::Decimal));
    let binary = |exponent| Some((2, exponent, Notation::Binary));
    match suffix {
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
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let exponent: i32 = exponent.parse().ok()?;
            Some((10, exponent.clamp(-100, 100), Notation::Exponent))
        }
    }
}

/// `whole.fraction * base^exponent` in nano-units, rounded up and capped.
fn scale_digits(whole: &str, fraction: &str, base: u32, exponent: i32) -> i128 {
    let mut mantissa: i128 = 0;
    let mut point = 0i32; // power of ten by which the mantissa is too large
    let mut lost = false; // digits beyond what an i128 mantissa needs
    for (index, digit) in whole.bytes().chain(fraction.bytes()).enumerate() {
        let in_fraction = index >= whole.len();
        if mantissa > i128::MAX / 1_000 {
            lost |= digit != b'0';
            point -= i32::from(!in_fraction);
            continue;
        }
        mantissa = mantissa * 10 + i128::from(digit - b'0');
        point += i32::from(in_fraction);
    }
    if mantissa == 0 {
        return i128::from(lost);
    }
    let ten_power = 9 - point + if base == 10 { exponent } else { 0 };
    let two_power = if base == 2 { exponent } else { 0 };
    let scaled = (0..two_power).try_fold(mantissa, |value, _| value.checked_mul(2));
    let Some(scaled) = scaled else {
        return NANO_MAX;
    };
    if ten_power >= 0 {
        let grown = (0..ten_power).try_fold(scaled, |value, _| value.checked_mul(10));
        return grown.map_or(NANO_MAX, cap);
    }
    let mut value = scaled;
    for _ in 0..-ten_power {
        lost |= value % 10 != 0;
        value /= 10;
    }
    cap(value + i128::from(lost))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn canonical(text: &str) -> String {
        Amount::parse(text).map_or_else(|| "refused".to_owned(), Amount::canonical)
    }

    #[test]
    fn a_quantity_is_stored_as_the_api_server_stores_it() {
        for (text, want) in [
            ("0.1", "100m"),
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("100m", "100m"),
            ("2", "2"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1048576Ki", "1Gi"),
            ("64Mi", "64Mi"),
            ("512Ki", "512Ki"),
            ("0.5Ki", "512"),
            ("1000", "1k"),
            ("1e3", "1e3"),
            ("12e6", "12e6"),
            ("1E", "1E"),
            ("0", "0"),
            ("0Mi", "0"),
            ("1.0000000001", "1000000001n"),
            ("-0.5", "-500m"),
            ("+1", "1"),
            (".5", "500m"),
            ("5.", "5"),
            ("9007199254740988Ki", "9007199254740988Ki"),
        ] {
            assert_eq!(canonical(text), want, "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in
            ["", "m", "1x", "1 Gi", "1gi", "1Kib", "--1", "1e", "1.2.3", "Gi", "1k5", "0x10"]
        {
            assert_eq!(Amount::parse(text), None, "{text}");
        }
    }

    #[test]
    fn reading_an_amount_rounds_up() {
        for (text, millis, units) in [
            ("0.0001", 1, 1),
            ("1500m", 1500, 2),
            ("1m", 1, 1),
            ("128Mi", 134_217_728_000, 134_217_728),
            ("100E", i64::MAX, i64::MAX),
        ] {
            let amount = Amount::parse(text).expect("a quantity");
            assert_eq!((amount.millis(), amount.units()), (millis, units), "{text}");
        }
    }

    #[test]
    fn a_sum_keeps_the_notation_of_its_first_term() {
        let sum = |a: &str, b: &str| {
            (Amount::parse(a).expect("a") + Amount::parse(b).expect("b")).canonical()
        };
        assert_eq!(sum("1Gi", "1000"), "1073742824");
        assert_eq!(sum("512Mi", "512Mi"), "1Gi");
        assert_eq!(sum("0", "64Mi"), "64Mi");
        assert_eq!(sum("250m", "750m"), "1");
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC{0,70}") {
            let _ = Amount::parse(&text).map(Amount::canonical);
        }

        #[test]
        fn canonical_text_is_a_fixed_point(
            number in 0u64..u64::MAX, fraction in 0u32..1_000_000, suffix in "[numkMGTPE]?|[KMGTP]i"
        ) {
            let text = format!("{number}.{fraction}{suffix}");
            let amount = Amount::parse(&text).expect("a quantity");
            let again = Amount::parse(&amount.canonical()).expect("canonical");
            prop_assert_eq!(again.canonical(), amount.canonical());
            prop_assert!(again >= amount);
        }
    }
}
