//! The part of a file that a request asks for: all of it, one range, or nothing because the client
//! has it already. Pure.
//!
//! Input: a request's headers, the file's size and its modification time. Output: bytes, or a
//! refusal. Several ranges at once are answered with the whole file, as HTTP allows.
// k8s: Go's net/http fs.go serveContent, parseRange

use std::ops::Range;

use hyper::header::{HeaderMap, HeaderName, IF_MODIFIED_SINCE, IF_RANGE, RANGE};
use jiff::Timestamp;
use jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};

/// The part to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FilePart {
    Whole,
    /// These bytes.
    Bytes(Range<u64>),
    /// The file was not changed since the client read it.
    Known,
    /// No such range, or none of this file, in Go's words.
    Refused(&'static str),
}

/// The part of a file of that size that the headers ask for.
pub(super) fn asked(headers: &HeaderMap, size: u64, changed: Option<Timestamp>) -> FilePart {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let time = |text: &str| DateTimeParser::new().parse_timestamp(text).ok();
    let seconds = changed.map(Timestamp::as_second);
    if let Some(since) = text(IF_MODIFIED_SINCE).and_then(time)
        && seconds.is_some_and(|seconds| seconds <= since.as_second())
    {
        return FilePart::Known;
    }
    let is_same = |text: &str| {
        let given = time(text).map(Timestamp::as_second);
        given.is_some() && given == seconds
    };
    match text(RANGE) {
        Some(range) if text(IF_RANGE).is_none_or(is_same) => part(range, size),
        _ => FilePart::Whole,
    }
}

/// A time as HTTP writes it.
pub(super) fn http_date(time: Timestamp) -> Option<String> {
    DateTimePrinter::new().timestamp_to_rfc9110_string(&time).ok()
}

fn part(range: &str, size: u64) -> FilePart {
    const INVALID: FilePart = FilePart::Refused("invalid range");
    let Some(range) = range.strip_prefix("bytes=") else { return INVALID };
    if range.contains(',') {
        return FilePart::Whole;
    }
    let Some((first, last)) = range.split_once('-') else { return INVALID };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    if first.trim().is_empty() {
        let Some(count) = number(last) else { return INVALID };
        return FilePart::Bytes(size.saturating_sub(count)..size);
    }
    let Some(first) = number(first) else { return INVALID };
    let end = match last.trim() {
        "" => size,
        last => match number(last) {
            Some(last) if last >= first => last.saturating_add(1).min(size),
            _ => return INVALID,
        },
    };
    match first < size {
        true => FilePart::Bytes(first..end),
        false if size == 0 => FilePart::Whole,
        false => FilePart::Refused("invalid range: failed to overlap"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn a_range_is_a_part_of_the_file_or_refused() {
        let outside = FilePart::Refused("invalid range: failed to overlap");
        for (range, expected) in [
            ("bytes=0-0", FilePart::Bytes(0..1)),
            ("bytes=2-", FilePart::Bytes(2..10)),
            ("bytes=2-99", FilePart::Bytes(2..10)),
            ("bytes=-3", FilePart::Bytes(7..10)),
            ("bytes=-99", FilePart::Bytes(0..10)),
            ("bytes=0-1,3-4", FilePart::Whole),
            ("bytes=10-", outside),
            ("bytes=3-2", FilePart::Refused("invalid range")),
            ("bytes=-", FilePart::Refused("invalid range")),
            ("lines=1-2", FilePart::Refused("invalid range")),
        ] {
            assert_eq!(part(range, 10), expected, "{range}");
        }
        assert_eq!(part("bytes=0-", 0), FilePart::Whole, "an empty file");
    }

    #[test]
    fn unmodified_file_is_not_sent_and_a_range_of_a_changed_file_is_sent_whole() {
        let changed = Timestamp::from_millisecond(1_500).expect("a time");
        let at = |seconds| http_date(Timestamp::from_second(seconds).expect("a time"));
        let part = |fields: &[(HeaderName, Option<String>)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                let value = value.as_deref().expect("a date");
                headers.insert(name, HeaderValue::from_str(value).expect("a value"));
            }
            asked(&headers, 10, Some(changed))
        };
        assert_eq!(at(1).as_deref(), Some("Thu, 01 Jan 1970 00:00:01 GMT"));
        assert_eq!(part(&[(IF_MODIFIED_SINCE, at(1))]), FilePart::Known);
        assert_eq!(part(&[(IF_MODIFIED_SINCE, at(0))]), FilePart::Whole);
        let range = (RANGE, Some("bytes=-1".to_owned()));
        assert_eq!(part(&[range.clone(), (IF_RANGE, at(1))]), FilePart::Bytes(9..10));
        assert_eq!(part(&[range, (IF_RANGE, at(2))]), FilePart::Whole);
    }
}
