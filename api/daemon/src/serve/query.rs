//! Paths and queries of URLs, decoded. Pure.
//!
//! Bounds: a request's head is bounded by its listener; here `PAIRS_MAX` pairs are looked at.

use pintle_api_types::url::unescaped;

/// Pairs of a query that are looked at; an exec has one for each word of its command.
const PAIRS_MAX: usize = 4096;

/// The pairs of a query in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses `a=1&b=2`. A pair that cannot be decoded is left out, as in Go.
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).take(PAIRS_MAX);
        let decoded = pairs.filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((unescaped(name, true)?, unescaped(value, true)?))
        });
        Self(decoded.collect())
    }

    /// The first value of that name.
    pub fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// All values of that name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// Decodes a path; `None` when it is not UTF-8 or an escape is broken.
pub fn decode_path(path: &str) -> Option<String> {
    unescaped(path, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_pair_by_pair() {
        let query = Query::parse("command=sh&command=-c&command=echo+a%26b&tty=&x=%zz&y");
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["sh", "-c", "echo a&b"]);
        assert_eq!(query.first("tty"), Some(""));
        assert_eq!(query.first("x"), None, "a broken escape");
        assert_eq!(query.first("y"), Some(""));
    }

    #[test]
    fn paths_are_decoded_and_broken_ones_refused() {
        assert_eq!(decode_path("/metri%63s/a+b").as_deref(), Some("/metrics/a+b"));
        for broken in ["/%", "/%4", "/%zz", "/%ff"] {
            assert_eq!(decode_path(broken), None, "{broken}");
        }
    }
}
