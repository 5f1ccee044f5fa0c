//! Does a text look like a time to go-yaml? It stays a text, but a `!!timestamp` has to be one.
// k8s: vendor/go.yaml.in/yaml/v2/resolve.go parseTimestamp

/// True for the four forms that go-yaml knows.
pub(super) fn is_timestamp(text: &str) -> bool {
    let Some((date, rest)) = take_date(text) else { return false };
    if rest.is_empty() {
        return date;
    }
    let (separator, rest) = rest.split_at(1);
    let Some(rest) = take_clock(rest) else { return false };
    match separator {
        "T" | "t" => date && is_zone(rest),
        " " => date && rest.is_empty(),
        _ => false,
    }
}

/// `2006-1-2`; whether the day exists, and the rest of the text.
fn take_date(text: &str) -> Option<(bool, &str)> {
    let (year, rest) = text.split_at_checked(4)?;
    let year: u32 = year.bytes().all(|it| it.is_ascii_digit()).then(|| year.parse().ok())??;
    let (month, rest) = take_number(rest.strip_prefix('-')?)?;
    let (day, rest) = take_number(rest.strip_prefix('-')?)?;
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    Some(((1..=days).contains(&day), rest))
}

/// One digit or two.
fn take_number(text: &str) -> Option<(u32, &str)> {
    let digits = text.bytes().take(2).take_while(u8::is_ascii_digit).count();
    Some((text[..digits].parse().ok()?, &text[digits..]))
}

/// `15:4:5` and a fraction.
fn take_clock(text: &str) -> Option<&str> {
    // Go wants two digits of the hour here, and takes one or two of the others.
    let (hour, rest) = take_number(text)?;
    let (minute, rest) = take_number(rest.strip_prefix(':')?)?;
    let (second, rest) = take_number(rest.strip_prefix(':')?)?;
    let rest = match rest.strip_prefix(['.', ',']) {
        Some(fraction) => {
            let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 { rest } else { &fraction[digits..] }
        }
        None => rest,
    };
    (hour < 24 && minute < 60 && second < 60).then_some(rest)
}

/// `Z` or `-07:00`.
fn is_zone(text: &str) -> bool {
    match text.as_bytes() {
        [b'Z'] => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => {
            let number = |high: &u8, low: &u8| {
                let is_digits = high.is_ascii_digit() && low.is_ascii_digit();
                is_digits.then(|| u32::from(high - b'0') * 10 + u32::from(low - b'0'))
            };
            number(h1, h2).is_some_and(|hours| hours <= 24)
                && number(m1, m2).is_some_and(|minutes| minutes < 60)
        }
        _ => false,
    }
}
