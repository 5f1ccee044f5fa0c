//! Quantities of expressions.
//!
//! Input: texts and numbers. Output: amounts, and how upstream keeps them, for that decides whether
//! one is a whole number: "2000m" is none. Owner: pure data.
// k8s: apimachinery/pkg/api/resource/{quantity,amount}.go, apiserver/pkg/cel/{quantity.go,library/quantity.go}

use pintle_api_types::quantity::Amount;

/// Longest number that upstream keeps as a number of 64 bits, in digits.
const DIGITS_MAX: usize = 18;
/// The same where a power of two multiplies it.
const DIGITS_OF_BINARY: i32 = 15;
/// The smallest part: a billionth.
const SCALE_MIN: i32 = -9;

/// A quantity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantity {
    pub(crate) amount: Amount,
    /// As a number of 64 bits times ten to the power of this; `None` for a number of any size.
    scale: Option<i32>,
    /// What came of adding: upstream's comparison does not know it on its right side.
    pub(crate) is_sum: bool,
}

impl Quantity {
    /// Reads one; one without digits is nothing.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let begins = unsigned.starts_with(|c: char| c.is_ascii_digit());
        let whole = (!text.is_empty() && !begins).then(|| format!("0{unsigned}"));
        // Nothing of what follows has a sign then but parts of one.
        let amount = match whole {
            Some(whole) if text.starts_with('-') => Amount::ZERO.minus(Amount::parse(&whole)?),
            Some(whole) => Amount::parse(&whole)?,
            None => Amount::parse(text)?,
        };
        Some(Self { amount, scale: scale(text), is_sum: false })
    }

    /// A whole number.
    pub(crate) fn whole(number: i64) -> Option<Self> {
        Self::parse(&number.to_string()).map(|q| Self { scale: Some(0), ..q })
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        self.summed(other, self.amount + other.amount)
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        self.summed(other, self.amount.minus(other.amount))
    }

    /// The smaller of two powers is that of the sum; nothing changes none.
    fn summed(self, other: Self, amount: Amount) -> Self {
        let scale = match (self.scale, other.scale) {
            (scale, Some(_)) if other.amount.is_zero() => scale,
            (Some(_), scale) if self.amount.is_zero() => scale,
            (Some(a), Some(b)) => Some(a.min(b)),
            _ => None,
        };
        Self { amount, scale, is_sum: true }
    }

    /// As a whole number, if upstream keeps it as one.
    pub(crate) fn integer(self) -> Option<i64> {
        let units = self.amount.units();
        let is_one = self.amount.is_whole() && units != i64::MAX && units != i64::MIN;
        (is_one && self.scale.is_some_and(|scale| scale >= 0)).then_some(units)
    }
}

/// Why a text is no quantity.
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

/// What the parser of quantities says.
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
