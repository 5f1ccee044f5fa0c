//! URLs in expressions.
//!
//! Input: texts. Output: their parts, or Go's error messages. Owner: pure data and functions.
//! `url()` parses a text twice, as a request URI and then with its fragment.
// k8s: apiserver/pkg/cel/library/urls.go, net/url

use std::rc::Rc;

use super::address;
use super::error::CelError;
use super::eval::{Evaluated, no_overload};
use super::texts::quote;
use super::value::{Map, MapKey, Value};

/// The parts of a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    opaque: String,
    user: Option<(String, Option<String>)>,
    host: String,
    path: Vec<u8>,
    written_path: String,
    query: String,
    has_query: bool,
    fragment: Vec<u8>,
    has_no_host: bool,
}

/// Part of a URL: each has its own characters that need no escape.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlPart {
    Path,
    User,
    Host,
    Zone,
    Query,
    Fragment,
}

/// Parses a URL.
///
/// # Errors
/// The reason it is invalid, without the operation.
pub(super) fn parse(text: &str) -> Result<Url, CelError> {
    let of = |text: &str, why: CelError| CelError::from(format!("parse {}: {why}", quote(text)));
    parts(text, true).map_err(|why| of(text, why))?;
    let (before, fragment) = text.split_once('#').unwrap_or((text, ""));
    let mut url = parts(before, false).map_err(|why| of(before, why))?;
    url.fragment = unescape(fragment, UrlPart::Fragment).map_err(|why| of(text, why))?;
    Ok(url)
}

/// Returns the reason that a text is no URL; `None` for a valid one.
pub(super) fn why_not(text: &str) -> Option<String> {
    parts(text, true).err().map(|why| format!("parse {}: {why}", quote(text)))
}

fn parts(text: &str, is_request: bool) -> Result<Url, CelError> {
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err("net/url: invalid control character in URL".into());
    }
    if text.is_empty() && is_request {
        return Err("empty url".into());
    }
    if text == "*" {
        return Ok(Url { path: b"*".to_vec(), ..Url::default() });
    }
    let (scheme, mut rest) = scheme(text)?;
    let mut url = Url { scheme: scheme.to_ascii_lowercase(), ..Url::default() };
    match rest.strip_suffix('?').filter(|before| !before.contains('?')) {
        Some(before) => (url.has_query, rest) = (true, before),
        None => {
            let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
            (url.query, rest) = (query.to_owned(), before);
        }
    }
    if !rest.starts_with('/') {
        if !url.scheme.is_empty() {
            url.opaque = rest.to_owned();
            return Ok(url);
        }
        if is_request {
            return Err("invalid URI for request".into());
        }
        if rest.split('/').next().unwrap_or_default().contains(':') {
            return Err("first path segment in URL cannot contain colon".into());
        }
    }
    let with_host = !url.scheme.is_empty() || !is_request && !rest.starts_with("///");
    match rest.strip_prefix("//").filter(|_| with_host) {
        Some(after) => {
            let end = after.find('/').unwrap_or(after.len());
            let (authority, path) = after.split_at(end);
            rest = path;
            let (user, host) = match authority.rsplit_once('@') {
                Some((user, host)) => (Some(user), host),
                None => (None, authority),
            };
            url.host = read_host(&url.scheme, host)?;
            url.user = user.map(read_user).transpose()?;
        }
        None => url.has_no_host = !url.scheme.is_empty() && rest.starts_with('/'),
    }
    url.path = unescape(rest, UrlPart::Path)?;
    if escape(&url.path, UrlPart::Path) != rest {
        rest.clone_into(&mut url.written_path);
    }
    Ok(url)
}

fn scheme(text: &str) -> Result<(&str, &str), CelError> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return Err("missing protocol scheme".into()),
            b':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

fn read_user(text: &str) -> Result<(String, Option<String>), CelError> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if !text.chars().all(is_fine) {
        return Err("net/url: invalid userinfo".into());
    }
    let plain = |text: &str| unescape(text, UrlPart::User).map(|bytes| lossy(&bytes));
    match text.split_once(':') {
        Some((name, password)) => Ok((plain(name)?, Some(plain(password)?))),
        None => Ok((plain(text)?, None)),
    }
}

fn read_host(scheme: &str, host: &str) -> Result<String, CelError> {
    let port = |port: &str| match is_port(port) {
        true => Ok(()),
        false => Err(CelError::from(format!("invalid port {} after host", quote(port)))),
    };
    match host.rfind('[') {
        Some(0) => {
            let Some(end) = host.rfind(']') else {
                return Err("missing ']' in host".into());
            };
            port(&host[end + 1..])?;
            let after = lossy(&unescape(&host[end + 1..], UrlPart::Host)?);
            let inner = &host[1..end];
            let inner = match inner.find("%25") {
                Some(zone) => {
                    let before = unescape(&inner[..zone], UrlPart::Host)?;
                    lossy(&[before, unescape(&inner[zone..], UrlPart::Zone)?].concat())
                }
                None => lossy(&unescape(inner, UrlPart::Host)?),
            };
            let is_six = address::host_in_brackets(&inner);
            match is_six.map_err(|why| CelError::from(format!("invalid host: {why}")))? {
                true => Ok(format!("[{inner}]{after}")),
                false => Err("invalid IP-literal".into()),
            }
        }
        Some(_) => Err("invalid IP-literal".into()),
        None => {
            let last = host.rfind(':');
            let strict = matches!(scheme, "http" | "https");
            if let Some(at) = if strict { host.find(':') } else { last } {
                port(&host[at..])?;
            }
            Ok(lossy(&unescape(host, UrlPart::Host)?))
        }
    }
}

/// Returns true for a colon with digits, or an empty text.
fn is_port(text: &str) -> bool {
    match text.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_digit()),
        None => text.is_empty(),
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns true if a character must be escaped in this part.
fn is_escaped(byte: u8, part: UrlPart) -> bool {
    if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
        return false;
    }
    match part {
        UrlPart::Host | UrlPart::Zone => !b"!$&'()*+,;=:[]<>\"".contains(&byte),
        UrlPart::Path => !b"$&+,/:;=@".contains(&byte),
        UrlPart::User => !b"$&+,;=".contains(&byte),
        UrlPart::Query => true,
        UrlPart::Fragment => !b"$&+,/:;=?@!()*".contains(&byte),
    }
}

fn escape(bytes: &[u8], part: UrlPart) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        match is_escaped(byte, part) {
            true => out.push_str(&format!("%{byte:02X}")),
            false => out.push(char::from(byte)),
        }
    }
    out
}

fn unescape(text: &str, part: UrlPart) -> Result<Vec<u8>, CelError> {
    let wrong = |at: &[u8]| {
        CelError::from(format!("invalid URL escape {}", quote(&String::from_utf8_lossy(at))))
    };
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let here = &bytes[at..bytes.len().min(at + 3)];
        match byte {
            b'%' => {
                let digit = |at: usize| here.get(at).and_then(|b| char::from(*b).to_digit(16));
                let (Some(high), Some(low)) = (digit(1), digit(2)) else {
                    return Err(wrong(here));
                };
                let value = u8::try_from(high * 16 + low).unwrap_or(u8::MAX);
                let is_percent = here == b"%25";
                if part == UrlPart::Host && high < 8 && !is_percent
                    || part == UrlPart::Zone
                        && !is_percent
                        && value != b' '
                        && is_escaped(value, UrlPart::Host)
                {
                    return Err(wrong(here));
                }
                out.push(value);
                at += 3;
                continue;
            }
            b'+' if part == UrlPart::Query => out.push(b' '),
            _ if matches!(part, UrlPart::Host | UrlPart::Zone)
                && byte.is_ascii()
                && is_escaped(byte, part) =>
            {
                let letter = quote(&char::from(byte).to_string());
                return Err(format!("invalid character {letter} in host name").into());
            }
            _ => out.push(byte),
        }
        at += 1;
    }
    Ok(out)
}

impl Url {
    fn escaped_path(&self) -> String {
        let is_fine =
            |byte: u8| b"!$&'()*+,;=:@[]%".contains(&byte) || !is_escaped(byte, UrlPart::Path);
        if !self.written_path.is_empty() && self.written_path.bytes().all(is_fine) {
            return self.written_path.clone();
        }
        match &self.path[..] {
            b"*" => "*".to_owned(),
            path => escape(path, UrlPart::Path),
        }
    }

    fn host_and_port(&self) -> (&str, &str) {
        let colon = self.host.rfind(':').filter(|at| is_port(&self.host[*at..]));
        let (host, port) = match colon {
            Some(at) => (&self.host[..at], &self.host[at + 1..]),
            None => (&self.host[..], ""),
        };
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        (inner.unwrap_or(host), port)
    }

    /// Returns query values by name; invalid ones are left out.
    fn queries(&self) -> Map {
        let mut found: Vec<(String, Vec<Value>)> = Vec::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let read = |text: &str| unescape(text, UrlPart::Query).map(|bytes| lossy(&bytes));
            let (Ok(name), Ok(value)) = (read(name), read(value)) else { continue };
            let value = Value::from(value.as_str());
            match found.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => values.push(value),
                None => found.push((name, vec![value])),
            }
        }
        let mut map = Map::default();
        for (name, values) in found {
            map.entries.insert(MapKey::Str(name.into()), Value::List(values.into()));
        }
        map
    }

    /// Returns the length of its parts together, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.scheme.len() + self.host.len() + self.path.len() + self.query.len()
    }

    pub(super) fn call(&self, name: &str, rest: &[Value]) -> Evaluated {
        let text = |text: &str| Ok(Value::from(text));
        match name {
            _ if !rest.is_empty() => Err(no_overload()),
            "getScheme" => text(&self.scheme),
            "getHost" => text(&self.host),
            "getHostname" => text(self.host_and_port().0),
            "getPort" => text(self.host_and_port().1),
            "getEscapedPath" => text(&self.escaped_path()),
            "getQuery" => Ok(Value::Map(Rc::new(self.queries()))),
            _ => Err(no_overload()),
        }
    }
}
