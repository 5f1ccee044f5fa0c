//! Paths and queries of URLs, decoded. Pure.
//!
//! Bounds: a request's head is bounded by its listener; a query of more than `PAIRS_MAX` pairs is as
//! good as none, because a part of it would be another request.

use pintle_api_types::url::unescaped;

/// Pairs of a query; an exec has one for each word of its command.
// k8s: Go's net/url urlmaxqueryparams
const PAIRS_MAX: usize = 10_000;

/// The pairs of a query in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses `a=1&b=2`. A pair that cannot be decoded is left out, as in Go.
    pub fn parse(text: &str) -> Self {
        if text.split('&').count() > PAIRS_MAX {
            return Self::default();
        }
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
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
    fn a_query_is_taken_as_a_whole_or_not_at_all() {
        let words = |count: usize| format!("{}output=1", "command=x&".repeat(count));
        let all = Query::parse(&words(PAIRS_MAX - 1));
        assert_eq!(all.all("command").count(), PAIRS_MAX - 1);
        assert_eq!(all.first("output"), Some("1"));
        assert_eq!(Query::parse(&words(PAIRS_MAX)), Query::default());
    }

    #[test]
    fn paths_are_decoded_and_broken_ones_refused() {
        assert_eq!(decode_path("/metri%63s/a+b").as_deref(), Some("/metrics/a+b"));
        for broken in ["/%", "/%4", "/%zz", "/%ff"] {
            assert_eq!(decode_path(broken), None, "{broken}");
        }
    }
}
