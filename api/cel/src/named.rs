//! Formats by name: `format.dns1123Label().validate(text)`.
//!
//! Input: a name, a text. Output: violations of the format. Owner: pure functions.
// k8s: apiserver/pkg/cel/library/format.go, apimachinery/pkg/api/validate/content

use super::{times, url};

/// Formats by name: the name of their function, and their own name.
pub(super) const FORMATS: [(&str, &str); 13] = [
    ("dns1123Label", "DNS1123Label"),
    ("dns1123Subdomain", "DNS1123Subdomain"),
    ("dns1035Label", "DNS1035Label"),
    ("qualifiedName", "QualifiedName"),
    ("dns1123LabelPrefix", "DNS1123LabelPrefix"),
    ("dns1123SubdomainPrefix", "DNS1123SubdomainPrefix"),
    ("dns1035LabelPrefix", "DNS1035LabelPrefix"),
    ("labelValue", "LabelValue"),
    ("uri", "URI"),
    ("uuid", "uuid"),
    ("byte", "byte"),
    ("date", "date"),
    ("datetime", "datetime"),
];

const CHARACTERS: &str = "characters";
const BYTES: &str = "bytes";
const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// Returns the format of a name.
pub(super) fn named(name: &str) -> Option<&'static str> {
    FORMATS.iter().find(|(known, _)| *known == name).map(|(known, _)| *known)
}

/// Returns the violations of the format; empty for a valid text.
pub(super) fn validate(format: &str, text: &str) -> Vec<String> {
    let only = |fits: bool, why: &str| if fits { Vec::new() } else { vec![why.to_owned()] };
    match format {
        "dns1123Label" => dns_label(text),
        "dns1123LabelPrefix" => dns_label(&masked(text)),
        "dns1123Subdomain" => subdomain(text, CHARACTERS),
        "dns1123SubdomainPrefix" => subdomain(&masked(text), CHARACTERS),
        "dns1035Label" => old_label(text),
        "dns1035LabelPrefix" => old_label(&masked(text)),
        "qualifiedName" => qualified(text),
        "labelValue" => label_value(text),
        "uri" => url::why_not(text).into_iter().collect(),
        "uuid" => only(is_uuid(text), "does not match the UUID format"),
        "byte" => only(is_base64(text), "invalid base64"),
        "date" => only(times::is_date(text), "invalid date"),
        _ => only(is_date_time(text), "invalid datetime"),
    }
}

/// Replaces a dash at the end, because a suffix may follow it.
fn masked(text: &str) -> String {
    match text.strip_suffix('-').filter(|before| !before.is_empty()) {
        // As upstream: the character before the dash is dropped too.
        Some(before) => {
            let mut bytes = before.as_bytes().to_vec();
            bytes.pop();
            bytes.push(b'a');
            String::from_utf8_lossy(&bytes).into_owned()
        }
        None => text.to_owned(),
    }
}

/// Upstream counts bytes; some of its messages call them characters.
fn too_long(text: &str, most: usize, unit: &str) -> Option<String> {
    (text.len() > most).then(|| format!("must be no more than {most} {unit}"))
}

fn unlike(what: &str, pattern: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|one| format!("'{one}', ")).collect();
    format!("{what} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or "))
}

/// Returns true for a name that begins and ends with letters or digits, with bytes of `within`
/// between.
fn is_name(text: &str, is_end: impl Fn(u8) -> bool, within: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let ends = bytes.first().zip(bytes.last());
    ends.is_some_and(|(first, last)| is_end(*first) && is_end(*last))
        && bytes.iter().all(|byte| is_end(*byte) || within.contains(byte))
}

fn is_label(text: &str) -> bool {
    is_name(text, |b| b.is_ascii_lowercase() || b.is_ascii_digit(), b"-")
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_key(text: &str) -> bool {
    is_name(text, |b| b.is_ascii_alphanumeric(), b"-_.")
}

fn dns_label(text: &str) -> Vec<String> {
    let mut wrong: Vec<String> = too_long(text, 63, CHARACTERS).into_iter().collect();
    if !is_label(text) {
        wrong.push(match is_subdomain(text) {
            true => "must not contain dots".to_owned(),
            false => {
                let what = "a lowercase RFC 1123 label must consist of lower case alphanumeric \
                            characters or '-', and must start and end with an alphanumeric character";
                unlike(what, LABEL, &["my-name", "123-abc"])
            }
        });
    }
    wrong
}

fn subdomain(text: &str, unit: &str) -> Vec<String> {
    let mut wrong: Vec<String> = too_long(text, 253, unit).into_iter().collect();
    if !is_subdomain(text) {
        let what = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
                    characters, '-' or '.', and must start and end with an alphanumeric character";
        wrong.push(unlike(what, &format!("{LABEL}(\\.{LABEL})*"), &["example.com"]));
    }
    wrong
}

fn old_label(text: &str) -> Vec<String> {
    let mut wrong: Vec<String> = too_long(text, 63, CHARACTERS).into_iter().collect();
    if !(is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())) {
        let what = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', \
                    start with an alphabetic character, and end with an alphanumeric character";
        wrong.push(unlike(what, "[a-z]([-a-z0-9]*[a-z0-9])?", &["my-name", "abc-123"]));
    }
    wrong
}

fn qualified(text: &str) -> Vec<String> {
    let what = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
                an alphanumeric character";
    let unlike_key = || unlike(what, KEY, &["MyName", "my.name", "123-abc"]);
    let mut wrong = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, name)) if name.contains('/') => {
            let optional =
                " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {}{optional}", unlike_key())];
        }
        Some(("", name)) => {
            wrong.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            wrong.extend(
                subdomain(prefix, BYTES).into_iter().map(|why| format!("prefix part {why}")),
            );
            name
        }
    };
    match name.is_empty() {
        true => wrong.push("name part must be non-empty".to_owned()),
        false => wrong.extend(too_long(name, 63, BYTES).map(|why| format!("name part {why}"))),
    }
    if !is_key(name) {
        wrong.push(format!("name part {}", unlike_key()));
    }
    wrong
}

fn label_value(text: &str) -> Vec<String> {
    let mut wrong: Vec<String> = too_long(text, 63, BYTES).into_iter().collect();
    if !text.is_empty() && !is_key(text) {
        let what = "a valid label must be an empty string or consist of alphanumeric characters, '-', \
                    '_' or '.', and must start and end with an alphanumeric character";
        wrong.push(unlike(what, &format!("({KEY})?"), &["MyValue", "my_value", "12345"]));
    }
    wrong
}

/// Parses digits in groups, with an optional dash after each but the last.
fn is_uuid(text: &str) -> bool {
    let mut rest = text;
    for (at, count) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        rest = if at > 0 { rest.strip_prefix('-').unwrap_or(rest) } else { rest };
        let digits = rest.bytes().take(count).take_while(u8::is_ascii_hexdigit).count();
        if digits < count {
            return false;
        }
        rest = &rest[count..];
    }
    rest.is_empty()
}

fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || b"+/".contains(&byte);
    !digits.is_empty()
        && text.len().is_multiple_of(4)
        && padding <= 2
        && digits.bytes().all(is_digit)
}

/// Parses the time after a date: the character before the fraction may be anything.
fn is_date_time(text: &str) -> bool {
    let text = text.to_lowercase();
    let mut parts = text.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    let number = |at: usize, most: u32| {
        let digits = time.get(at..at + 2).filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
        digits.and_then(|digits| digits.parse::<u32>().ok()).is_some_and(|n| n <= most)
    };
    let colons = [2, 5].iter().all(|at| time.as_bytes().get(*at) == Some(&b':'));
    let begins = times::is_date(date) && colons && number(0, 23) && number(3, 59) && number(6, 59);
    begins && time.get(8..).is_some_and(is_zone)
}

fn is_zone(text: &str) -> bool {
    let is_plain = |zone: &str| {
        let bytes = zone.as_bytes();
        let digit = |at: usize| bytes[at].is_ascii_digit();
        zone == "z"
            || bytes.len() == 6
                && matches!(bytes[0], b'+' | b'-')
                && bytes[3] == b':'
                && [1, 2, 4, 5].into_iter().all(digit)
    };
    if is_plain(text) {
        return true;
    }
    // One character, then digits, then the zone.
    let mut chars = text.chars();
    let Some(_) = chars.next() else { return false };
    let rest = chars.as_str();
    let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    after.len() < rest.len() && is_plain(after)
}
