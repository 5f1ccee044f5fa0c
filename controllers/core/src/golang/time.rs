//! Instants as Go's `metav1.Time` decodes, keeps and encodes them.
//!
//! Input: RFC 3339 text. Output: seconds since year one and nanoseconds as the printer shows them,
//! and the text in UTC with whole seconds. A text that is no time counts as none.
// k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/time.go

use jiff::Timestamp;
use serde_json::Value;

/// Seconds from the first day of year one to 1970, where Go begins to count.
const SECONDS_TO_1970: i64 = 62_135_596_800;

/// The instant of a time in JSON.
pub(super) fn instant(value: Option<&Value>) -> Option<Timestamp> {
    value?.as_str()?.parse().ok()
}

/// The text that Go's encoder writes; `None` for a time that is unset.
pub(super) fn encoded(value: Option<&Value>) -> Option<String> {
    Some(instant(value)?.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// The same with microseconds, for `metav1.MicroTime`.
pub(super) fn encoded_micros(value: Option<&Value>) -> Option<String> {
    Some(instant(value)?.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string())
}

/// Nanoseconds and seconds as Go's `time.Time` has them.
pub(super) fn wall_and_ext(at: Timestamp) -> (i64, i64) {
    let nanos = i64::from(at.subsec_nanosecond());
    let (nanos, borrowed) = if nanos < 0 { (nanos + 1_000_000_000, 1) } else { (nanos, 0) };
    (nanos, at.as_second() - borrowed + SECONDS_TO_1970)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_written_in_utc_with_whole_seconds() {
        let text = json!("2026-01-02T03:04:05.678+02:00");
        assert_eq!(encoded(Some(&text)).as_deref(), Some("2026-01-02T01:04:05Z"));
        assert_eq!(encoded_micros(Some(&text)).as_deref(), Some("2026-01-02T01:04:05.678000Z"));
        assert_eq!(encoded(None), None);
    }

    #[test]
    fn seconds_are_counted_from_year_one() {
        let at = instant(Some(&json!("1970-01-01T00:00:01.5Z"))).expect("a time");
        assert_eq!(wall_and_ext(at), (500_000_000, 62_135_596_801));
        let at = instant(Some(&json!("1969-12-31T23:59:59.5Z"))).expect("a time");
        assert_eq!(wall_and_ext(at), (500_000_000, 62_135_596_799));
    }
}
