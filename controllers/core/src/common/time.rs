//! Times as the API writes them.

use jiff::Timestamp;

/// The time in whole seconds, as the API stores it; a fraction would flap when it is read again.
pub fn api_time(at: Timestamp) -> String {
    let whole = Timestamp::from_second(at.as_second()).expect("a second of a valid time");
    whole.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_time_has_no_fraction() {
        let at = "2026-01-02T03:04:05.678Z".parse().expect("a time");
        assert_eq!(api_time(at), "2026-01-02T03:04:05Z");
    }
}
