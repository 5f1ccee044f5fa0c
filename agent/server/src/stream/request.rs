//! Parameters of a request for a stream: streams, ports, and the protocol that carries it. Pure.

use hyper::header::{HeaderMap, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use pintle_daemon::serve::query::Query;

/// WebSocket protocol of streams that can be closed one by one.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/remotecommand/constants.go
pub(super) const V5: &str = "v5.channel.k8s.io";
/// Prefix of the SPDY protocol that a WebSocket carries.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/portforward/constants.go
pub(super) const TUNNEL_PREFIX: &str = "SPDY/3.1+";
const TUNNEL_SUFFIX: &str = ".k8s.io";

/// Ports of one request.
const PORTS_MAX: usize = 256;

/// The client's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamProtocol {
    /// Bytes that the runtime understands.
    Raw { websocket: bool },
    /// A WebSocket with closable streams.
    Channels,
    /// SPDY in a WebSocket.
    Tunnel,
}

/// The streams of an exec or attach.
// k8s: staging/src/k8s.io/cri-streaming/pkg/streaming/remotecommand/httpstream.go NewOptions
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamChoice {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

/// The client's protocol according to its headers.
// k8s: staging/src/k8s.io/streaming/pkg/httpstream/wsstream/conn.go
pub(super) fn wire(headers: &HeaderMap) -> StreamProtocol {
    let websocket = headers
        .get(UPGRADE)
        .is_some_and(|upgrade| upgrade.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if websocket && protocols(headers).any(|protocol| protocol == V5) {
        StreamProtocol::Channels
    } else if websocket && tunnelled(headers).next().is_some() {
        StreamProtocol::Tunnel
    } else {
        StreamProtocol::Raw { websocket }
    }
}

/// The SPDY protocols that the client would have inside its WebSocket.
pub(super) fn tunnelled(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let tunnels = protocols(headers).filter(|protocol| protocol.ends_with(TUNNEL_SUFFIX));
    tunnels.filter_map(|protocol| protocol.strip_prefix(TUNNEL_PREFIX))
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(',')).map(str::trim)
}

/// Reason why a query names no streams or ports.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum StreamQueryError {
    #[error("you must specify at least 1 of stdin, stdout, stderr")]
    NoStream,
    #[error("query parameter \"port\" cannot be empty")]
    EmptyPort,
    #[error("unable to parse {text:?} as a port: {number:?} is not a number up to 65535")]
    NoPort { text: String, number: String },
    #[error("port {0:?} must be > 0")]
    Zero(String),
    #[error("query parameter \"port\" is required")]
    PortMissing,
    #[error("more than {PORTS_MAX} ports")]
    ManyPorts,
}

/// The streams that the query asks for.
pub(super) fn streams(query: &Query) -> Result<StreamChoice, StreamQueryError> {
    let is = |name| query.first(name) == Some("1");
    let tty = is("tty");
    // A terminal has one output.
    let streams =
        StreamChoice { stdin: is("input"), stdout: is("output"), stderr: is("error") && !tty, tty };
    if !streams.stdin && !streams.stdout && !streams.stderr {
        return Err(StreamQueryError::NoStream);
    }
    Ok(streams)
}

/// The ports that a WebSocket asks for.
// k8s: staging/src/k8s.io/cri-streaming/pkg/streaming/portforward/websocket.go NewV4Options
pub(super) fn ports(query: &Query) -> Result<Vec<i32>, StreamQueryError> {
    let mut ports = Vec::new();
    for text in query.all("port") {
        if text.is_empty() {
            return Err(StreamQueryError::EmptyPort);
        }
        for number in text.split(',').take(PORTS_MAX) {
            let port: u16 = number.parse().map_err(|_| {
                let (text, number) = (text.to_owned(), number.to_owned());
                StreamQueryError::NoPort { text, number }
            })?;
            if port == 0 {
                return Err(StreamQueryError::Zero(text.to_owned()));
            }
            ports.push(i32::from(port));
        }
    }
    match ports.len() {
        0 => Err(StreamQueryError::PortMissing),
        1..=PORTS_MAX => Ok(ports),
        _ => Err(StreamQueryError::ManyPorts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn headers(upgrade: &str, protocol: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_str(upgrade).expect("a value"));
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(protocol).expect("a value"));
        headers
    }

    #[test]
    fn the_wire_is_read_off_the_headers() {
        let raw = |websocket| StreamProtocol::Raw { websocket };
        for (upgrade, protocol, expected) in [
            ("SPDY/3.1", "", raw(false)),
            ("SPDY/3.1", "v5.channel.k8s.io", raw(false)),
            ("websocket", "v4.channel.k8s.io", raw(true)),
            ("WebSocket", "v5.channel.k8s.io, v4.channel.k8s.io", StreamProtocol::Channels),
            ("websocket", "SPDY/3.1+portforward.k8s.io", StreamProtocol::Tunnel),
            ("websocket", "SPDY/3.1+other", raw(true)),
        ] {
            assert_eq!(wire(&headers(upgrade, protocol)), expected, "{upgrade} {protocol}");
        }
        assert_eq!(wire(&HeaderMap::new()), raw(false));
    }

    #[test]
    fn streams_are_asked_for_with_ones_and_a_terminal_has_no_stderr() {
        let of = |query| streams(&Query::parse(query));
        let all = StreamChoice { stdin: true, stdout: true, stderr: true, tty: false };
        assert_eq!(of("input=1&output=1&error=1"), Ok(all));
        let terminal = StreamChoice { stderr: false, tty: true, ..all };
        assert_eq!(of("input=1&output=1&error=1&tty=1"), Ok(terminal));
        assert!(of("input=true").is_err());
        assert!(of("tty=1&error=1").is_err());
    }

    #[test]
    fn ports_are_numbers_that_may_be_listed() {
        let of = |query| ports(&Query::parse(query));
        assert_eq!(of("port=80&port=81,82"), Ok(vec![80, 81, 82]));
        for wrong in ["", "port=", "port=0", "port=x", "port=65536", "port=1,,2"] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }
}
