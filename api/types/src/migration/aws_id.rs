//! Names of Amazon's disks: `vol-1` and `aws://zone/vol-1` are the same disk.
//!
//! Input: the text of the API. Output: the driver's name, or why there is none. The text is read as Go
//! reads URLs, because the path in it may be escaped. Pure.
// k8s: csi-translation-lib/plugins/aws_ebs.go KubernetesVolumeIDToEBSVolumeID

use std::net::Ipv6Addr;

use super::TranslateError;
use crate::url::unescaped;

/// What Kubernetes puts in front of a zone and a disk.
const SCHEME: &str = "aws://";

/// What is wrong with a URL, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UrlError(String);

/// The driver's name of a disk.
pub(super) fn ebs_id(id: &str) -> Result<String, TranslateError> {
    let Some(rest) = id.strip_prefix(SCHEME) else { return Ok(id.to_owned()) };
    let wrong =
        |part: &str, why| TranslateError::AwsUrl { id: id.to_owned(), part: part.to_owned(), why };
    let (url, fragment) = id.split_once('#').unwrap_or((id, ""));
    let rest = rest.split('#').next().unwrap_or_default();
    let path = path(rest).map_err(|why| wrong(url, why))?;
    check_escapes(fragment).map_err(|why| wrong(id, why))?;
    let disk = path.trim_matches('/');
    match disk.starts_with("vol-") && !disk.contains('/') {
        true => Ok(disk.to_owned()),
        false => Err(TranslateError::AwsFormat { id: id.to_owned() }),
    }
}

/// The path of a URL without its scheme and fragment; escapes are replaced.
// Go: net/url parse
fn path(rest: &str) -> Result<String, UrlError> {
    if rest.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err(UrlError("net/url: invalid control character in URL".to_owned()));
    }
    let rest = rest.split('?').next().unwrap_or_default();
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    check_host(host)?;
    if let Some(user) = user {
        if !user.chars().all(is_of_user) {
            return Err(UrlError("net/url: invalid userinfo".to_owned()));
        }
        check_escapes(user)?;
    }
    check_escapes(path)?;
    unescaped(path, false).ok_or_else(|| UrlError("the path is no text".to_owned()))
}

// Go: net/url validUserinfo
fn is_of_user(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c)
}

// Go: net/url unescape
fn check_escapes(text: &str) -> Result<(), UrlError> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == b'%') {
        at += found;
        let digits = bytes.get(at + 1..at + 3);
        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err(UrlError(bad_escape(&bytes[at..bytes.len().min(at + 3)])));
        }
        at += 3;
    }
    Ok(())
}

/// Quoted as Go does it: of a letter that is cut there are bytes.
fn bad_escape(bytes: &[u8]) -> String {
    let mut quoted = String::new();
    for chunk in bytes.utf8_chunks() {
        quoted.extend(chunk.valid().escape_debug());
        quoted.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    format!("invalid URL escape \"{quoted}\"")
}

// Go: net/url parseHost
fn check_host(host: &str) -> Result<(), UrlError> {
    match host.rfind('[') {
        None => {}
        Some(0) => return check_address(host),
        Some(_) => return Err(UrlError("invalid IP-literal".to_owned())),
    }
    if let Some(colon) = host.rfind(':') {
        check_port(&host[colon..])?;
    }
    check_host_text(host)
}

/// `[::1]:80`
fn check_address(host: &str) -> Result<(), UrlError> {
    let Some(end) = host.rfind(']') else { return Err(UrlError("missing ']' in host".to_owned())) };
    check_port(&host[end + 1..])?;
    let address = &host[1..end];
    check_host_text(address)?;
    address.parse::<Ipv6Addr>().map(drop).map_err(|_| UrlError("invalid host".to_owned()))
}

fn check_port(text: &str) -> Result<(), UrlError> {
    let is_port = match text.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_digit()),
        None => text.is_empty(),
    };
    if is_port { Ok(()) } else { Err(UrlError(format!("invalid port {text:?} after host"))) }
}

/// A host has escapes of bytes that are no ASCII, and few signs.
fn check_host_text(text: &str) -> Result<(), UrlError> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte == b'%' {
            let end = bytes.len().min(at + 3);
            check_escapes(&String::from_utf8_lossy(&bytes[at..end]))?;
            if bytes[at + 1] < b'8' && &bytes[at..end] != b"%25" {
                return Err(UrlError(bad_escape(&bytes[at..end])));
            }
            at += 3;
            continue;
        }
        let is_sign = b"-_.~!$&'()*+,;=:[]<>\"".contains(&byte);
        if byte.is_ascii() && !byte.is_ascii_alphanumeric() && !is_sign {
            let sign = char::from(byte).to_string();
            return Err(UrlError(format!("invalid character {sign:?} in host name")));
        }
        at += 1;
    }
    Ok(())
}
