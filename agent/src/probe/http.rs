//! HTTP and HTTPS probes: a GET, well when its status is 200 to 399.
//!
//! The request is made by `crate::http`. An answer whose body breaks off or does not end within
//! the limit counts as neither, as upstream has it. The body never goes into an event: it may hold
//! secrets; a redirect that is not followed is the exception, as upstream prints it.
// k8s: pkg/probe/http/http.go, pkg/probe/http/request.go

use std::error::Error as _;
use std::io;
use std::time::Duration;

use k8s_openapi::api::core::v1::HTTPGetAction;

use super::attempt::Verdict;
use super::patience::patiently;
use super::target::Target;
use super::words::{self, Spent};
use crate::http::{self, Get, Watch};

/// Longest body that is read, in bytes.
const BODY_BYTES_MAX: usize = 10 * 1024;
/// The name that servers see.
pub(super) const USER_AGENT: &str = "kube-probe/1.36";

/// Asks once.
pub(super) async fn probe(target: &Target, action: &HTTPGetAction, limit: Duration) -> Verdict {
    let request = match request(target, action) {
        Ok(request) => request,
        Err(message) => return Verdict::unknown(message),
    };
    let (url, address) = (url(&request), words::address(&request.host, request.port));
    let watch = Watch::default();
    let began = std::time::Instant::now();
    let waited = patiently(limit, http::get_watched(&request, &watch)).await;
    match waited.done {
        Some(Ok(answer)) => judge(answer),
        Some(Err(http::Error::Url { url })) => {
            Verdict::unknown(format!("parse {url:?}: invalid URL"))
        }
        Some(Err(error)) => Verdict::Failure(format!("Get {url:?}: {}", cause(&address, &error))),
        None if watch.answered.get().is_some() => Verdict::Error {
            state: "failure",
            message: "context deadline exceeded (Client.Timeout or context cancellation while \
                      reading body)"
                .to_owned(),
        },
        None => {
            let connect = watch.connected.get().map(|at| at.duration_since(began).min(limit));
            let answer = limit.saturating_sub(connect.unwrap_or_default());
            let spent = Spent { connect, answer, delay: waited.delay };
            let what = match connect {
                Some(_) => "context deadline exceeded".to_owned(),
                None => format!("dial tcp {address}: i/o timeout"),
            };
            let limit = "(Client.Timeout exceeded while awaiting headers)";
            Verdict::Failure(format!("Get {url:?}: {what} {limit}{}", spent.text()))
        }
    }
}

fn request(target: &Target, action: &HTTPGetAction) -> Result<Get, String> {
    Ok(Get {
        tls: action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
        host: target.host_or(action.host.as_deref())?,
        port: target.port(&action.port)?,
        path: path(action.path.as_deref().unwrap_or_default()),
        headers: headers(action),
        body_bytes_max: BODY_BYTES_MAX,
    })
}

/// The probe's headers with upstream's defaults. A header that is given empty is left out.
// k8s: pkg/probe/http/request.go newProbeRequest
fn headers(action: &HTTPGetAction) -> Vec<(String, String)> {
    let given = action.http_headers.iter().flatten();
    let mut headers: Vec<_> = given.map(|h| (h.name.clone(), h.value.clone())).collect();
    for (name, value) in [("User-Agent", USER_AGENT), ("Accept", "*/*")] {
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

fn url(request: &Get) -> String {
    let scheme = if request.tls { "https" } else { "http" };
    let slash = if request.path.starts_with('/') { "" } else { "/" };
    format!("{scheme}://{}{slash}{}", words::address(&request.host, request.port), request.path)
}

// k8s: pkg/probe/http/http.go DoHTTPProbe
fn judge(answer: http::Answer) -> Verdict {
    if !answer.body_error.is_empty() {
        return Verdict::Error { state: "failure", message: answer.body_error };
    }
    match answer.status {
        200..300 => Verdict::Success,
        300..400 => {
            let body = String::from_utf8_lossy(&answer.body);
            Verdict::Warning(format!("Probe terminated redirects, Response body: {body}"))
        }
        status => Verdict::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// Why there was no answer, as Go's client says it.
fn cause(address: &str, error: &http::Error) -> String {
    match error {
        http::Error::Connect { source, .. } => words::dial_error(address, source),
        http::Error::Tls { source, .. } if error.is_plain_text_answer() => {
            let _ = source;
            "http: server gave HTTP response to HTTPS client".to_owned()
        }
        http::Error::Tls { source, .. } => broken(source, "tls"),
        http::Error::Http { source, .. } if source.is_incomplete_message() => "EOF".to_owned(),
        http::Error::Http { source, .. } => {
            match source.source().and_then(|inner| inner.downcast_ref::<io::Error>()) {
                Some(inner) => broken(inner, "read"),
                None => format!("net/http: HTTP/1.x transport connection broken: {source}"),
            }
        }
        other => other.to_string(),
    }
}

fn broken(error: &io::Error, during: &str) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        _ if error.raw_os_error().is_some() => format!("read: {}", words::io_error(error)),
        _ => format!("{during}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sent(given: Value) -> Vec<(String, String)> {
        let action: HTTPGetAction =
            serde_json::from_value(json!({"port": 80, "httpHeaders": given})).expect("it parses");
        headers(&action)
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
    fn statuses_below_400_are_well_and_a_redirect_that_stays_is_a_warning() {
        for (status, expected) in [
            (200, Verdict::Success),
            (299, Verdict::Success),
            (304, Verdict::Warning("Probe terminated redirects, Response body: x".to_owned())),
            (404, Verdict::Failure("HTTP probe failed with statuscode: 404".to_owned())),
            (500, Verdict::Failure("HTTP probe failed with statuscode: 500".to_owned())),
        ] {
            let answer =
                http::Answer { status, body: b"x".to_vec(), reason: "", body_error: String::new() };
            assert_eq!(judge(answer), expected);
        }
    }
}
