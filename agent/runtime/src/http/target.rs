//! URLs as Go's `net/url` parses them: the meaning of a probe's path or a `Location` on the wire.
//!
//! Pure. A path that begins with two slashes names a host, which the probe's own replaces; a path
//! with a broken escape is taken literally; a query is sent as it was given.
// Go: net/url Parse, URL.EscapedPath

use std::net::Ipv6Addr;

/// A parsed URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Url {
    /// Lower case; empty without one.
    pub(super) scheme: String,
    /// Host and port; `None` where the URL names none.
    pub(super) host: Option<String>,
    /// The part after the scheme of a URL without slashes, such as `mailto:x`.
    pub(super) opaque: bool,
    /// Escaped.
    pub(super) path: String,
    /// With its question mark; empty without one.
    pub(super) query: String,
}

/// Reason why a text is no URL, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UrlError {
    #[error("net/url: invalid control character in URL")]
    ControlCharacter,
    #[error("first path segment in URL cannot contain colon")]
    ColonInPath,
    #[error("missing protocol scheme")]
    Scheme,
    #[error("net/url: invalid userinfo")]
    User,
    #[error("invalid host: ParseAddr({0:?}): unable to parse IP")]
    Address(String),
    #[error("missing ']' in host")]
    Bracket,
    #[error("invalid IP-literal")]
    Literal,
    #[error("invalid port {0:?} after host")]
    Port(String),
    #[error("invalid character {0:?} in host name")]
    HostCharacter(String),
    #[error("invalid URL escape {0:?}")]
    Escape(String),
}

impl Url {
    /// Parses a URL; the error is Go's.
    pub(super) fn parse(text: &str) -> Result<Self, UrlError> {
        let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
        if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return Err(UrlError::ControlCharacter);
        }
        if text == "*" {
            return Ok(Self { path: "*".to_owned(), ..Self::default() });
        }
        let (scheme, rest) = split_scheme(text)?;
        let (rest, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        let mut url =
            Self { scheme: scheme.to_lowercase(), query: query.to_owned(), ..Self::default() };
        let mut path = rest;
        if !rest.starts_with('/') {
            if !scheme.is_empty() {
                return Ok(Self { opaque: true, ..url });
            }
            if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
                return Err(UrlError::ColonInPath);
            }
        }
        let has_authority = !scheme.is_empty() || !rest.starts_with("///");
        if let Some(rest) = rest.strip_prefix("//").filter(|_| has_authority) {
            let (authority, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            url.host = Some(host_of(&url.scheme, authority)?).filter(|host| !host.is_empty());
            path = rest;
        }
        url.path = escaped_path(path)?;
        decode(fragment)?;
        Ok(url)
    }
}

/// A probe's path with query in wire format, without the host that it may name.
// k8s: pkg/probe/http/request.go formatURL
pub(super) fn path_of(given: &str) -> String {
    match Url::parse(given) {
        Ok(url) if !url.opaque => url.path + &url.query,
        // Upstream has a URL without a host then and sends no request: taken literally it fails
        // with the server's own answer.
        _ => escape(given.as_bytes()),
    }
}

// Go: net/url getScheme
fn split_scheme(text: &str) -> Result<(&str, &str), UrlError> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
    match end {
        Some(0) if text.starts_with(':') => Err(UrlError::Scheme),
        Some(end)
            if text[end..].starts_with(':')
                && text.starts_with(|c: char| c.is_ascii_alphabetic()) =>
        {
            Ok((&text[..end], &text[end + 1..]))
        }
        _ => Ok(("", text)),
    }
}

/// Host and port of an authority, without its user.
// Go: net/url parseAuthority, parseHost
fn host_of(scheme: &str, authority: &str) -> Result<String, UrlError> {
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let is_user = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if !user.chars().all(is_user) {
        return Err(UrlError::User);
    }
    let port = match (host.rfind('['), host.rfind(']')) {
        (Some(0), Some(end)) => {
            // The zone of an address may be anything.
            let address = host[1..end].split("%25").next().unwrap_or_default();
            if address.parse::<Ipv6Addr>().is_err() {
                return Err(UrlError::Address(host[1..end].to_owned()));
            }
            &host[end + 1..]
        }
        (Some(0), None) => return Err(UrlError::Bracket),
        (Some(_), _) => return Err(UrlError::Literal),
        // Two colons are an invalid port where the scheme defines the host.
        (None, _) => match scheme {
            "http" | "https" => &host[host.find(':').unwrap_or(host.len())..],
            _ => &host[host.rfind(':').unwrap_or(host.len())..],
        },
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) || (port == digits && !port.is_empty()) {
        return Err(UrlError::Port(port.to_owned()));
    }
    let is_host = |c: char| {
        !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"%".contains(c)
    };
    match host.chars().find(|c| !is_host(*c)) {
        Some(bad) => Err(UrlError::HostCharacter(bad.to_string())),
        None => decode(host).map(|_| host.to_owned()),
    }
}

// Go: net/url URL.setPath, URL.EscapedPath
fn escaped_path(path: &str) -> Result<String, UrlError> {
    let decoded = decode(path)?;
    let is_valid = |byte: u8| !must_escape(byte) || b"!'()*[]%".contains(&byte);
    Ok(if path.bytes().all(is_valid) { path.to_owned() } else { escape(&decoded) })
}

/// The bytes that escapes stand for.
// Go: net/url unescape
fn decode(text: &str) -> Result<Vec<u8>, UrlError> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        rest = match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                &after[2..]
            }
            (b'%', ..) => {
                let shown = String::from_utf8_lossy(&rest[..rest.len().min(3)]);
                return Err(UrlError::Escape(shown.into_owned()));
            }
            _ => {
                out.push(first);
                after
            }
        };
    }
    Ok(out)
}

// Go: net/url escape with encodePath
fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if must_escape(*byte) {
            out.push_str(&format!("%{byte:02X}"));
        } else {
            out.push(char::from(*byte));
        }
    }
    out
}

fn must_escape(byte: u8) -> bool {
    !byte.is_ascii_alphanumeric() && !b"-_.~$&+,/:;=@".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_sent_as_upstream_sends_them() {
        // As `formatURL` and `URL.RequestURI` of Go 1.26 have them.
        for (given, wire) in [
            ("/healthz?full=1", "/healthz?full=1"),
            ("/a b", "/a%20b"),
            ("/a%20b", "/a%20b"),
            ("/a b%2Fc", "/a%20b/c"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a!b(c)*'", "/a!b(c)*'"),
            ("/a%zz?x!", "/a%25zz%3Fx%21"),
            ("/a#b", "/a"),
            ("/ü", "/%C3%BC"),
            ("/x?q=a b&ü", "/x?q=a b&ü"),
            ("plain", "plain"),
            ("", ""),
            ("?a", "?a"),
            ("/?", "/?"),
            ("*", "*"),
            ("//manage/ready", "/ready"),
            ("//manage", ""),
            ("//manage:8080/ready?x", "/ready?x"),
            ("//user:pw@manage/ready", "/ready"),
            ("///ready", "///ready"),
            ("//a b/ready", "//a%20b/ready"),
            ("//a:x/ready", "//a:x/ready"),
            ("//[/ready", "//%5B/ready"),
            ("http://other/ready", "/ready"),
            ("1:a/b", "1:a/b"),
            ("/a\u{1}", "/a%01"),
            ("/a#%zz", "/a%23%25zz"),
            ("/a\"b", "/a%22b"),
            ("//a:1:2/x", "/x"),
            ("//[::1]:80/x", "/x"),
            ("//[zz]/x", "//%5Bzz%5D/x"),
            ("/x??", "/x??"),
        ] {
            assert_eq!(path_of(given), wire, "{given}");
        }
    }

    #[test]
    fn urls_rejected_by_go_are_rejected_with_the_same_error() {
        for (text, error) in [
            ("http://[bad", "missing ']' in host"),
            ("http://a:1:2/", "invalid port \":1:2\" after host"),
            ("http://a:b/", "invalid port \":b\" after host"),
            ("http://a b/", "invalid character \" \" in host name"),
            ("/%zz", "invalid URL escape \"%zz\""),
            ("1:b", "first path segment in URL cannot contain colon"),
            (":b", "missing protocol scheme"),
            ("/a\n", "net/url: invalid control character in URL"),
        ] {
            assert_eq!(
                Url::parse(text).map_err(|found| found.to_string()),
                Err(error.to_owned()),
                "{text}"
            );
        }
    }
}
