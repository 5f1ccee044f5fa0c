//! A request of a probe or hook: what an `HTTPGetAction` asks for, and where a redirect leads.
//!
//! Pure. Headers, escapes and redirects are those of the kubelet, whose client is Go's.
// k8s: pkg/probe/http/request.go, pkg/probe/http/http.go RedirectChecker

use hyper::Uri;
use hyper::header::HOST;
use k8s_openapi::api::core::v1::HTTPGetAction;

use crate::resolver::Resolver;

/// A GET request.
#[derive(Clone, Debug, Default)]
pub struct Get {
    /// HTTPS.
    pub tls: bool,
    /// The server may choose HTTP/2 then.
    pub http2: bool,
    /// Address or name to connect to.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path with query, with or without the leading slash, escaped.
    pub path: String,
    /// Headers; a `Host` among them replaces the default one.
    pub headers: Vec<(String, String)>,
    /// Longest body that is kept.
    pub body_bytes_max: usize,
    /// Looks up the host.
    pub resolver: Resolver,
}

impl Get {
    /// What the action asks for, of this host and port.
    // k8s: pkg/probe/http/request.go NewRequestForHTTPGetAction
    pub fn of(action: &HTTPGetAction, host: String, port: u16, user_agent: &str) -> Self {
        Self {
            tls: action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
            host,
            port,
            path: path(action.path.as_deref().unwrap_or_default()),
            headers: headers(action, user_agent),
            ..Self::default()
        }
    }

    /// The same without TLS, and without what must not be sent in clear text.
    // k8s: pkg/kubelet/lifecycle/handlers.go runHTTPHandler
    #[must_use]
    pub fn in_clear_text(mut self) -> Self {
        self.tls = false;
        self.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
        self
    }

    /// The request's URL.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        // Go writes no slash where there is no path.
        let slash =
            if self.path.is_empty() || self.path.starts_with(['/', '?']) { "" } else { "/" };
        format!("{scheme}://{}{slash}{}", authority(&self.host, self.port), self.path)
    }
}

/// `host:port`, an IPv6 address in brackets.
pub fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The action's headers with upstream's defaults. A header that is given empty is left out.
// k8s: pkg/probe/http/request.go newProbeRequest
fn headers(action: &HTTPGetAction, user_agent: &str) -> Vec<(String, String)> {
    let given = action.http_headers.iter().flatten();
    let mut headers: Vec<_> = given.map(|h| (h.name.clone(), h.value.clone())).collect();
    for (name, value) in [("User-Agent", user_agent), ("Accept", "*/*")] {
        if !headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name)) {
            headers.push((name.to_owned(), value.to_owned()));
        }
    }
    let may_be_left_out = ["user-agent", "accept", "host"];
    headers.retain(|(name, value)| {
        !value.is_empty() || !may_be_left_out.contains(&&*name.to_ascii_lowercase())
    });
    // Of several hosts the first one counts.
    let mut has_host = false;
    headers.retain(|(name, _)| {
        !name.eq_ignore_ascii_case("host") || !std::mem::replace(&mut has_host, true)
    });
    headers
}

/// A path with query as it goes over the wire: what may not stand in a URL is escaped; when its
/// own escapes are broken, all of it is taken literally.
// k8s: pkg/probe/http/request.go formatURL
fn path(given: &str) -> String {
    let is_broken = has_broken_escape(given.split('?').next().unwrap_or_default());
    let given = if is_broken { given } else { given.split('#').next().unwrap_or_default() };
    let mut out = String::with_capacity(given.len());
    for byte in given.bytes() {
        let literal = match byte {
            b'%' | b'?' | b'#' => !is_broken,
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => false,
            _ => byte.is_ascii_graphic(),
        };
        if literal {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn has_broken_escape(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    (0..bytes.len()).any(|at| bytes[at] == b'%' && !(is_hex(at + 1) && is_hex(at + 2)))
}

/// The request to a redirect's target, if it stays with the host.
pub(super) fn same_host(from: &Get, location: &str) -> Option<Get> {
    let has_scheme = has_scheme(location);
    let absolute = match location {
        _ if has_scheme => location.to_owned(),
        _ if location.starts_with("//") => {
            format!("{}:{location}", if from.tls { "https" } else { "http" })
        }
        _ => return Some(Get { path: resolve(&from.path, location), ..from.clone() }),
    };
    let uri: Uri = absolute.parse().ok()?;
    if uri.host()?.trim_matches(['[', ']']) != from.host {
        return None;
    }
    let tls = uri.scheme_str()? == "https";
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let path = resolve("", uri.path_and_query().map_or("/", |p| p.as_str()));
    let mut target = Get { tls, port, path, ..from.clone() };
    if has_scheme {
        // The name that the first request was given is over.
        // Go: net/http Client.do (a custom Host header goes with a relative location only)
        target.headers.retain(|(name, _)| !name.eq_ignore_ascii_case(HOST.as_str()));
    }
    Some(target)
}

// Go: net/url getScheme
fn has_scheme(location: &str) -> bool {
    let end = location.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
    location.starts_with(|c: char| c.is_ascii_alphabetic())
        && end.is_some_and(|end| location[end..].starts_with(':'))
}

/// A location without a host, seen from the path that answered with it.
// Go: net/url URL.ResolveReference
fn resolve(from: &str, location: &str) -> String {
    let (own, own_query) = split(from);
    match split(location) {
        ("", "") => without_dots(own) + own_query,
        ("", query) => without_dots(own) + query,
        (path, query) if path.starts_with('/') => without_dots(path) + query,
        (path, query) => {
            let folder = own.rfind('/').map_or("", |end| &own[..=end]);
            without_dots(&format!("{folder}{path}")) + query
        }
    }
}

/// Path and query, which begins with its question mark.
fn split(url: &str) -> (&str, &str) {
    let url = url.split('#').next().unwrap_or_default();
    url.split_at(url.find('?').unwrap_or(url.len()))
}

/// A path whose dot segments have been followed.
// Go: net/url resolvePath
fn without_dots(full: &str) -> String {
    if full.is_empty() {
        return String::new();
    }
    let mut path = String::from("/");
    let (mut is_first, mut last) = (true, "");
    for part in full.split('/') {
        last = part;
        match part {
            "." => is_first = false,
            ".." => {
                path.truncate(path[1..].rfind('/').map_or(1, |end| end + 1));
                is_first = path.len() == 1;
            }
            _ => {
                path.push_str(if is_first { "" } else { "/" });
                path.push_str(part);
                is_first = false;
            }
        }
    }
    if matches!(last, "." | "..") {
        path.push('/');
    }
    if path[1..].starts_with('/') {
        path.remove(0);
    }
    path
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sent(given: Value) -> Vec<(String, String)> {
        let action: HTTPGetAction =
            serde_json::from_value(json!({"port": 80, "httpHeaders": given})).expect("it parses");
        headers(&action, "kube-probe/1.36")
    }

    #[test]
    fn upstreams_headers_are_sent_unless_the_probe_says_otherwise() {
        let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let (agent, accept) = (own("User-Agent", "kube-probe/1.36"), own("Accept", "*/*"));
        assert_eq!(sent(json!([])), [agent.clone(), accept.clone()]);
        let given = json!([{"name": "user-agent", "value": "x"}, {"name": "accept", "value": ""}]);
        assert_eq!(sent(given), [own("user-agent", "x")]);
        let hosts = json!([{"name": "Host", "value": ""}, {"name": "HOST", "value": "a"},
                           {"name": "host", "value": "b"}]);
        assert_eq!(sent(hosts), [own("HOST", "a"), agent, accept]);
    }

    #[test]
    fn paths_are_escaped_as_upstream_escapes_them() {
        for (given, wire) in [
            ("/healthz?full=1", "/healthz?full=1"),
            ("/a b", "/a%20b"),
            ("/a%20b", "/a%20b"),
            ("/a%zz?x", "/a%25zz%3Fx"),
            ("/a#b", "/a"),
            ("/ü", "/%C3%BC"),
            ("plain", "plain"),
        ] {
            assert_eq!(path(given), wire, "{given}");
        }
    }

    #[test]
    fn urls_are_written_as_go_writes_them() {
        for (path, url) in [
            ("", "http://[fd00::1]:80"),
            ("/", "http://[fd00::1]:80/"),
            ("?a", "http://[fd00::1]:80?a"),
            ("x", "http://[fd00::1]:80/x"),
        ] {
            let get = Get {
                host: "fd00::1".to_owned(),
                port: 80,
                path: path.to_owned(),
                ..Get::default()
            };
            assert_eq!(get.url(), url);
        }
    }

    #[test]
    fn a_credential_is_not_sent_in_clear_text() {
        let header = |name: &str| (name.to_owned(), "x".to_owned());
        let headers = vec![header("AUTHORIZATION"), header("Cookie"), header("authorization")];
        let get = Get { tls: true, headers, ..Get::default() }.in_clear_text();
        assert!(!get.tls);
        assert_eq!(get.headers, [header("Cookie")]);
    }

    #[test]
    fn a_redirect_is_followed_within_its_host_only() {
        let from = Get {
            host: "10.0.0.1".to_owned(),
            port: 8080,
            path: "/a/b?q=1".to_owned(),
            headers: vec![("Host".to_owned(), "shop.example".to_owned())],
            ..Get::default()
        };
        for (location, expected) in [
            ("/ready", Some((false, 8080, "/ready", true))),
            ("ready", Some((false, 8080, "/a/ready", true))),
            ("?q=2", Some((false, 8080, "/a/b?q=2", true))),
            ("/x#y", Some((false, 8080, "/x", true))),
            ("https://10.0.0.1/s", Some((true, 443, "/s", false))),
            ("http://10.0.0.1", Some((false, 80, "/", false))),
            ("//10.0.0.1:81/s", Some((false, 81, "/s", true))),
            ("", Some((false, 8080, "/a/b?q=1", true))),
            (
                "/in?to=http://shop.example/",
                Some((false, 8080, "/in?to=http://shop.example/", true)),
            ),
            ("in#http://x/", Some((false, 8080, "/a/in", true))),
            ("../c/./d?../e", Some((false, 8080, "/c/d?../e", true))),
            ("/a/../../b/..", Some((false, 8080, "/", true))),
            ("http://10.0.0.1/a/../b", Some((false, 80, "/b", false))),
            ("in:to", None),
            ("http://shop.example/", None),
            ("//other/", None),
            ("http://[bad", None),
        ] {
            let got = same_host(&from, location);
            let got = got.as_ref().map(|g| (g.tls, g.port, &*g.path, !g.headers.is_empty()));
            assert_eq!(got, expected, "{location}");
        }
        let named = Get { host: "shop".to_owned(), ..from };
        assert!(same_host(&named, "shop:8080").is_none(), "the scheme of a URL without a host");
    }
}
