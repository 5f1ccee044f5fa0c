//! Quantities of expressions.
//!
//! Input: texts and numbers. Output: amounts, and their format in upstream, which decides if one is
//! a whole number: "2000m" is not. Owner: pure data.
// k8s: apimachinery/pkg/api/resource/{quantity,amount}.go, apiserver/pkg/cel/{quantity.go,library/quantity.go}

use pintle_api_types::quantity::Amount;

/// Longest number that upstream keeps in 64 bits, in digits.
const DIGITS_MAX: usize = 18;
/// The same for a number with a binary suffix.
const DIGITS_OF_BINARY: i32 = 15;
/// The smallest part: a billionth.
const SCALE_MIN: i32 = -9;

/// A quantity.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    /// The exact amount.
    pub amount: Amount,
    /// Scale of upstream's 64-bit form, as a power of ten; `None` for its form of any size.
    scale: Option<i32>,
    /// It is a sum: upstream's comparison does not support that on its right side.
    pub is_sum: bool,
}

impl Quantity {
    /// Parses a quantity; a text without digits is zero.
    pub fn parse(text: &str) -> Option<Self> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let begins = unsigned.starts_with(|c: char| c.is_ascii_digit());
        let whole = (!text.is_empty() && !begins).then(|| format!("0{unsigned}"));
        // The rest may only have signs within its parts.
        let amount = match whole {
            Some(whole) if text.starts_with('-') => Amount::ZERO.minus(Amount::parse(&whole)?),
            Some(whole) => Amount::parse(&whole)?,
            None => Amount::parse(text)?,
        };
        Some(Self { amount, scale: scale(text), is_sum: false })
    }

    /// A whole number.
    pub fn whole(number: i64) -> Option<Self> {
        Self::parse(&number.to_string()).map(|q| Self { scale: Some(0), ..q })
    }

    /// Returns the sum.
    pub fn plus(self, other: Self) -> Self {
        self.summed(other, self.amount + other.amount)
    }

    /// Returns the difference.
    pub fn minus(self, other: Self) -> Self {
        self.summed(other, self.amount.minus(other.amount))
    }

    /// Returns a sum; it has the smaller scale, and adding zero keeps the scale.
    fn summed(self, other: Self, amount: Amount) -> Self {
        let scale = match (self.scale, other.scale) {
            (scale, Some(_)) if other.amount.is_zero() => scale,
            (Some(_), scale) if self.amount.is_zero() => scale,
            (Some(a), Some(b)) => Some(a.min(b)),
            _ => None,
        };
        Self { amount, scale, is_sum: true }
    }

    /// Returns it as a whole number, if upstream keeps it as one.
    pub fn integer(self) -> Option<i64> {
        let units = self.amount.units();
        let is_one = self.amount.is_whole() && units != i64::MAX && units != i64::MIN;
        (is_one && self.scale.is_some_and(|scale| scale >= 0)).then_some(units)
    }
}

/// Returns the reason that a text is no quantity.
// k8s: quantity.go parseQuantityString
pub(super) fn why_not(text: &str) -> &'static str {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digit = |c: char| c.is_ascii_digit();
    let rest = unsigned.trim_start_matches(digit);
    let rest = rest.strip_prefix('.').map_or(rest, |parts| parts.trim_start_matches(digit));
    let rest = rest.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let rest = rest.strip_prefix(['+', '-']).unwrap_or(rest).trim_start_matches(digit);
    match text.is_empty() || !rest.is_empty() {
        true => BAD_FORMAT,
        false => "unable to parse quantity's suffix",
    }
}

/// Error of the parser of quantities.
// k8s: quantity.go ErrFormatWrong
const BAD_FORMAT: &str = "quantities must match the regular expression \
    '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

// k8s: quantity.go ParseQuantity, parseQuantityString
fn scale(text: &str) -> Option<i32> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text).trim_start_matches('0');
    let end = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = digits.split_at(end(digits));
    let rest = rest.strip_prefix('.').unwrap_or(rest);
    let (parts, suffix) = rest.split_at(end(rest));
    let (number, parts) = (number.len().max(1), i32::try_from(parts.len()).ok()?);
    let power = match suffix {
        "" => 0,
        "n" => -9,
        "u" => -6,
        "m" => -3,
        "k" => 3,
        "M" => 6,
        "G" => 9,
        "T" => 12,
        "P" => 15,
        "E" => 18,
        binary if binary.ends_with('i') => {
            let at = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].iter().position(|s| *s == binary)?;
            let bits = (i32::try_from(at).ok()? + 1) * 10;
            let left = DIGITS_OF_BINARY - i32::try_from(number).ok()? - bits * 3 / 10 - 1;
            return (parts == 0 && left >= 0).then_some(0);
        }
        exponent => exponent[1..].parse().ok()?,
    };
    let fits = number + usize::try_from(parts).ok()? <= DIGITS_MAX;
    (fits && power - parts >= SCALE_MIN).then_some(power - parts)
}
