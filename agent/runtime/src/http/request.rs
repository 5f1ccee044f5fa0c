//! A request of a probe or hook: from an `HTTPGetAction`, or for the target of a redirect.
//!
//! Pure. Headers, escapes and redirects are those of the kubelet with its Go client.
// k8s: pkg/probe/http/request.go, pkg/probe/http/http.go RedirectChecker

use k8s_openapi::api::core::v1::HTTPGetAction;

use super::http1;
use super::target::{Url, path_of};
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
    /// Headers by Go's names; a `Host` among them replaces the default one.
    pub headers: Vec<(String, String)>,
    /// The URL that redirected here.
    pub referer: Option<String>,
    /// Longest body that is kept.
    pub body_bytes_max: usize,
    /// Looks up the host.
    pub resolver: Resolver,
}

impl Get {
    /// The request of the action, for this host and port.
    // k8s: pkg/probe/http/request.go NewRequestForHTTPGetAction
    pub fn of(action: &HTTPGetAction, host: String, port: u16, user_agent: &str) -> Self {
        Self {
            tls: action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
            host,
            port,
            path: path_of(action.path.as_deref().unwrap_or_default()),
            headers: headers(action, user_agent),
            ..Self::default()
        }
    }

    /// The same without TLS, and without headers that must not be sent in clear text.
    // k8s: pkg/kubelet/lifecycle/handlers.go runHTTPHandler
    #[must_use]
    pub fn in_clear_text(mut self) -> Self {
        self.tls = false;
        self.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
        self
    }

    /// The first value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find(|(given, _)| given == name).map(|(_, value)| &**value)
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

/// The action's headers with upstream's defaults, named as Go names them. For single-valued names
/// the first value counts; an empty one takes the header away.
// k8s: pkg/probe/http/request.go newProbeRequest
// Go: net/textproto CanonicalMIMEHeaderKey
fn headers(action: &HTTPGetAction, user_agent: &str) -> Vec<(String, String)> {
    let given = action.http_headers.iter().flatten();
    let mut headers: Vec<_> = given.map(|h| (canonical(&h.name), h.value.clone())).collect();
    for (name, value) in [("User-Agent", user_agent), ("Accept", "*/*")] {
        if !headers.iter().any(|(given, _)| given == name) {
            headers.push((name.to_owned(), value.to_owned()));
        }
    }
    for name in ["User-Agent", "Accept", "Host"] {
        let first = headers.iter().find(|(given, _)| given == name);
        let is_empty = first.is_some_and(|(_, value)| value.is_empty());
        let counts_once = name != "Accept";
        let mut seen = false;
        headers.retain(|(given, _)| {
            if given != name {
                return true;
            }
            let again = std::mem::replace(&mut seen, true);
            !(is_empty || counts_once && again)
        });
    }
    headers
}

fn canonical(name: &str) -> String {
    if !name.bytes().all(http1::is_name) {
        return name.to_owned();
    }
    let mut starts = true;
    let letters = name.chars().map(|c| {
        let c = if starts { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
        starts = c == '-';
        c
    });
    letters.collect()
}

/// The target of a redirect.
#[derive(Debug)]
pub(super) enum Redirect {
    /// To the same host.
    Within(Box<Get>),
    /// To another one: upstream does not follow.
    Elsewhere,
    /// No target; the reason, in Go's words.
    Broken(String),
}

/// Follows a `Location` as far as it keeps the host.
// k8s: pkg/probe/http/http.go RedirectChecker
// Go: net/http Client.do, net/url URL.ResolveReference
pub(super) fn redirect(from: &Get, location: &str) -> Redirect {
    let url = match Url::parse(location) {
        Ok(url) => url,
        Err(error) => {
            return Redirect::Broken(format!(
                "failed to parse Location header {location:?}: parse {location:?}: {error}"
            ));
        }
    };
    let mut target = from.clone();
    // Upstream sends where it came from, but not from HTTPS to plain HTTP.
    target.referer = Some(from.url());
    let Some(host) = url.host.as_deref().filter(|_| !url.opaque) else {
        if !url.scheme.is_empty() {
            return Redirect::Elsewhere;
        }
        target.path = resolve(&from.path, &(url.path + &url.query));
        return Redirect::Within(Box::new(target));
    };
    let (name, port) = split_port(host);
    if name.trim_matches(['[', ']']) != from.host {
        return Redirect::Elsewhere;
    }
    target.tls = match &*url.scheme {
        "https" => true,
        "http" => false,
        "" => from.tls,
        other => return Redirect::Broken(format!("unsupported protocol scheme {other:?}")),
    };
    target.port = match port {
        "" => {
            if target.tls {
                443
            } else {
                80
            }
        }
        port => match port.parse() {
            Ok(port) => port,
            Err(_) => return Redirect::Broken(format!("dial tcp: address {port}: invalid port")),
        },
    };
    target.path = resolve("", &(url.path + &url.query));
    if from.tls && !target.tls {
        target.referer = None;
    }
    if !url.scheme.is_empty() {
        // A custom Host header is sent for a relative location only.
        target.headers.retain(|(name, _)| name != "Host");
    }
    Redirect::Within(Box::new(target))
}

/// Host and port of an authority.
fn split_port(authority: &str) -> (&str, &str) {
    match authority.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, port),
        _ => (authority, ""),
    }
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

/// A path after resolution of its dot segments.
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
    fn upstream_default_headers_are_sent_unless_the_probe_overrides_them() {
        let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let (agent, accept) = (own("User-Agent", "kube-probe/1.36"), own("Accept", "*/*"));
        assert_eq!(sent(json!([])), [agent.clone(), accept.clone()]);
        let given = json!([{"name": "user-agent", "value": "x"}, {"name": "accept", "value": ""}]);
        assert_eq!(sent(given), [own("User-Agent", "x")]);
        let hosts = json!([{"name": "Host", "value": ""}, {"name": "HOST", "value": "a"},
                           {"name": "host", "value": "b"}]);
        assert_eq!(sent(hosts), [agent.clone(), accept.clone()]);
        let hosts = json!([{"name": "HOST", "value": "a"}, {"name": "host", "value": "b"},
                           {"name": "x-API-key", "value": ""}]);
        assert_eq!(sent(hosts), [own("Host", "a"), own("X-Api-Key", ""), agent, accept]);
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
            ("http://10.0.0.1", Some((false, 80, "", false))),
            ("//10.0.0.1:81/s", Some((false, 81, "/s", true))),
            ("?", Some((false, 8080, "/a/b?", true))),
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
        ] {
            let got = match redirect(&from, location) {
                Redirect::Within(get) => Some(get),
                Redirect::Elsewhere => None,
                Redirect::Broken(error) => panic!("{location}: {error}"),
            };
            let got = got.as_ref().map(|g| (g.tls, g.port, &*g.path, !g.headers.is_empty()));
            assert_eq!(got, expected, "{location}");
        }
        let named = Get { host: "shop".to_owned(), ..from.clone() };
        let opaque = redirect(&named, "shop:8080");
        assert!(matches!(opaque, Redirect::Elsewhere), "the scheme of a URL without a host");
        let broken = redirect(&from, "http://[bad");
        let Redirect::Broken(error) = broken else { panic!("{broken:?}") };
        let want = "failed to parse Location header \"http://[bad\": parse \"http://[bad\": \
                    missing ']' in host";
        assert_eq!(error, want);
    }

    #[test]
    fn redirect_sends_a_referer_except_from_https_to_http() {
        let host = "10.0.0.1".to_owned();
        let from = Get { tls: true, host, port: 8443, path: "/a".to_owned(), ..Get::default() };
        let referer = |location: &str| match redirect(&from, location) {
            Redirect::Within(get) => get.referer,
            other => panic!("{other:?}"),
        };
        assert_eq!(referer("/b"), Some("https://10.0.0.1:8443/a".to_owned()));
        assert_eq!(referer("http://10.0.0.1/b"), None);
    }
}
