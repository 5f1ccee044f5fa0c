//! The texts with which upstream's HTTP client, Go's, reports a missing answer.
//!
//! Pure. Users search for these phrases and alert on them, so a connection that was refused is
//! `dial tcp 10.0.0.1:80: connect: connection refused` here too.

use std::io;

use nix::errno::Errno;
use tokio_rustls::rustls;
use tokio_rustls::rustls::AlertDescription;

use super::http1::BrokenResponse;
use super::{Error, Get};

/// Why the request came to nothing.
pub fn failed(request: &Get, error: &Error) -> String {
    match error {
        Error::Url { url } => format!("parse {url:?}: invalid URL"),
        error => format!("Get {:?}: {}", request.url(), cause(error)),
    }
}

fn cause(error: &Error) -> String {
    match error {
        Error::Connect { address, source } => dial_error(address, source),
        Error::Tls { plain: true, .. } => {
            "http: server gave HTTP response to HTTPS client".to_owned()
        }
        Error::Tls { source, .. } => refused(source).unwrap_or_else(|| broken(source, "tls")),
        Error::Http1 { source: BrokenResponse::Read(source), .. } => broken(source, "read"),
        Error::Http1 { source, .. } => source.to_string(),
        Error::Http2 { source, .. } if source.is_incomplete_message() => "EOF".to_owned(),
        Error::Http2 { source, .. } => lost(source),
        other => other.to_string(),
    }
}

/// The server has found no way of encryption that both know. Go offers four suites of old servers
/// that ring does not have: ECDHE with AES in CBC mode.
// Go: crypto/tls defaultCipherSuites
fn refused(error: &io::Error) -> Option<String> {
    let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let alert = match inner {
        rustls::Error::AlertReceived(AlertDescription::HandshakeFailure) => "handshake failure",
        rustls::Error::AlertReceived(AlertDescription::InsufficientSecurity) => {
            "insufficient security level"
        }
        _ => return None,
    };
    Some(format!(
        "remote error: tls: {alert} (the server probably offers only cipher suites that pintle does \
         not support: CBC, RSA key exchange)"
    ))
}

/// Why an exchange ended early. A request that the end of its connection cancelled has the cause
/// inside.
fn lost(error: &hyper::Error) -> String {
    let mut last: &(dyn std::error::Error + 'static) = error;
    while let Some(inner) = last.source() {
        if let Some(inner) = inner.downcast_ref::<io::Error>() {
            return broken(inner, "read");
        }
        last = inner;
    }
    format!("net/http: HTTP/1.x transport connection broken: {last}")
}

pub(super) fn broken(error: &io::Error, during: &str) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        _ if error.raw_os_error().is_some() => format!("read: {}", io_error(error)),
        _ => format!("{during}: {error}"),
    }
}

/// The reason of a failed connection, as Go's dialer formats it.
pub fn dial_error(address: &str, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(_) => format!("dial tcp {address}: connect: {}", io_error(error)),
        // The error of a failed look-up has its own text.
        None => format!("dial tcp: {error}"),
    }
}

/// An error of the operating system in lower case and without its number, others as they are.
fn io_error(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => Errno::from_raw(code).desc().to_lowercase(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_are_written_as_go_writes_them() {
        for (errno, text) in [
            (Errno::ECONNREFUSED, "dial tcp 10.0.0.1:80: connect: connection refused"),
            (Errno::EHOSTUNREACH, "dial tcp 10.0.0.1:80: connect: no route to host"),
            (Errno::ENETUNREACH, "dial tcp 10.0.0.1:80: connect: network is unreachable"),
        ] {
            assert_eq!(dial_error("10.0.0.1:80", &io::Error::from(errno)), text);
        }
    }

    #[test]
    fn failed_request_is_reported_with_its_url_and_error() {
        let host = "10.0.0.1".to_owned();
        let request = Get { tls: true, host, port: 80, path: "/x".to_owned(), ..Get::default() };
        let refused = || io::Error::from(Errno::ECONNREFUSED);
        let address = || "10.0.0.1:80".to_owned();
        let asked = "Get \"https://10.0.0.1:80/x\"";
        for (error, text) in [
            (
                Error::Connect { address: address(), source: refused() },
                format!("{asked}: dial tcp 10.0.0.1:80: connect: connection refused"),
            ),
            (
                Error::Tls { address: address(), plain: true, source: refused() },
                format!("{asked}: http: server gave HTTP response to HTTPS client"),
            ),
            (
                Error::Tls {
                    address: address(),
                    plain: false,
                    source: io::Error::other(rustls::Error::AlertReceived(
                        AlertDescription::HandshakeFailure,
                    )),
                },
                format!(
                    "{asked}: remote error: tls: handshake failure (the server probably offers only \
                     cipher suites that pintle does not support: CBC, RSA key exchange)"
                ),
            ),
            (Error::Redirects, format!("{asked}: stopped after 10 redirects")),
            (Error::Url { url: "x y".to_owned() }, "parse \"x y\": invalid URL".to_owned()),
        ] {
            assert_eq!(failed(&request, &error), text);
        }
    }
}
