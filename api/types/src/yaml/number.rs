//! Numbers as Go's strconv reads and writes them.

/// An integer of 64 bits, with a sign or without, in the base of its prefix.
// k8s: strconv.ParseInt and strconv.ParseUint with base 0
pub(super) fn parse_int(text: &str) -> Option<i128> {
    let (is_negative, is_signed, digits) = match text.as_bytes().first()? {
        b'-' => (true, true, &text[1..]),
        b'+' => (false, true, &text[1..]),
        _ => (false, false, text),
    };
    let (base, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (16, &digits[2..]),
        [b'0', b'b' | b'B', _, ..] => (2, &digits[2..]),
        [b'0', b'o' | b'O', _, ..] => (8, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| char::from(digit).is_digit(base)) {
        return None;
    }
    let magnitude = i128::from_str_radix(digits, base).ok()?;
    let number = if is_negative { -magnitude } else { magnitude };
    // Only a number without a sign may be read as one of 64 bits without one.
    let most = if is_signed { i128::from(i64::MAX) } else { i128::from(u64::MAX) };
    (i128::from(i64::MIN)..=most).contains(&number).then_some(number)
}

/// An integer behind `0b` with a sign of its own, which go-yaml takes as well.
pub(super) fn parse_signed_binary(text: &str) -> Option<i128> {
    let signed = text.strip_prefix("0b")?;
    let digits = signed.strip_prefix(['-', '+'])?;
    let is_binary = !digits.is_empty() && digits.bytes().all(|it| matches!(it, b'0' | b'1'));
    let number = i128::from(i64::from_str_radix(signed, 2).ok()?);
    is_binary.then_some(number)
}

/// The text without underscores, if each stands between two digits.
pub(super) fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let is_digit =
        |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let is_separator = |at: usize| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1));
    let mut underscores = text.match_indices('_');
    underscores.all(|(at, _)| is_separator(at)).then(|| text.replace('_', ""))
}

/// A decimal number; one that is too large is none.
// k8s: vendor/go.yaml.in/yaml/v2/resolve.go yamlStyleFloat
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    let is_digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let has_digits = !whole.is_empty() || !fraction.is_empty();
    let exponent = exponent.map(|it| it.strip_prefix(['-', '+']).unwrap_or(it));
    let is_exponent = exponent.is_none_or(|digits| !digits.is_empty() && is_digits(digits));
    if !has_digits || !is_digits(whole) || !is_digits(fraction) || !is_exponent {
        return None;
    }
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// A number as Go's encoding/json writes it; `None` if it is not finite.
pub(super) fn json_float(number: f64) -> Option<String> {
    let size = number.abs();
    if !number.is_finite() {
        return None;
    }
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{number:e}");
        return Some(if size < 1.0 { text } else { text.replace('e', "e+") });
    }
    Some(format!("{number}"))
}

/// A number that is a key, as sigs.k8s.io/yaml writes it: with 32 bits.
// k8s: strconv.FormatFloat(f, 'g', -1, 32)
pub(super) fn key_float(number: f64) -> String {
    let number = number as f32;
    if number.is_nan() {
        return ".nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let text = format!("{number:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if number != 0.0 && !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    format!("{number}")
}
