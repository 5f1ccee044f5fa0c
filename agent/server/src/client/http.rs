//! One request without a body over a unix socket, blocking.
//!
//! HTTP/1.1 with `Connection: close`; the agent's answer always has a length. Bounds: `ANSWER_WAIT`
//! for each read, `ANSWER_BYTES_MAX` in all.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest silence of the agent.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    /// The socket has no listener.
    #[error(
        "no agent listens on {path} ({source}); start pintle-agent, or name its --root-dir or its \
         --socket",
        path = path.display()
    )]
    NoAgent {
        /// The socket.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The socket is another user's.
    #[error("the agent's socket {path} may only be used by root; use sudo", path = path.display())]
    NotAllowed {
        /// The socket.
        path: PathBuf,
    },
    /// The agent sent nothing in time.
    #[error("the agent has not answered for {} s; see its log", ANSWER_WAIT.as_secs())]
    Silent,
    /// The connection broke.
    #[error("the connection to the agent broke: {0}")]
    Broken(io::Error),
    /// This is not HTTP, or not all of it.
    #[error("what answers on the socket is no agent, or it ended while it answered")]
    Garbled,
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HttpReply {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

/// Sends a request and reads the whole answer.
pub(super) fn ask(socket: &Path, method: &str, path: &str) -> Result<HttpReply, HttpError> {
    let connected = UnixStream::connect(socket).map_err(|source| match source.kind() {
        ErrorKind::PermissionDenied => HttpError::NotAllowed { path: socket.to_owned() },
        _ => HttpError::NoAgent { path: socket.to_owned(), source },
    })?;
    exchange(connected, method, path)
}

fn exchange(mut stream: UnixStream, method: &str, path: &str) -> Result<HttpReply, HttpError> {
    let broken = |error: io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => HttpError::Silent,
        _ => HttpError::Broken(error),
    };
    stream.set_read_timeout(Some(ANSWER_WAIT)).map_err(broken)?;
    let head = format!("{method} {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).map_err(broken)?;
    let mut raw = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut raw).map_err(broken)?;
    parse(&raw).ok_or(HttpError::Garbled)
}

fn parse(raw: &[u8]) -> Option<HttpReply> {
    let end = raw.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, body) = (std::str::from_utf8(&raw[..end]).ok()?, &raw[end + 4..]);
    let mut lines = head.lines();
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let mut fields = lines.filter_map(|line| line.split_once(':'));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?.1;
    let length: usize = length.trim().parse().ok()?;
    (body.len() == length).then(|| HttpReply { status, body: body.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_or_no_answer() {
        let whole = b"HTTP/1.1 404 Not Found\r\nX: y\r\nContent-Length: 2\r\n\r\nno";
        assert_eq!(parse(whole), Some(HttpReply { status: 404, body: b"no".to_vec() }));
        for (cut, why) in [
            (&whole[..whole.len() - 1], "its body is cut"),
            (&whole[..20], "its head is cut"),
            (b"SSH-2.0-x\r\n\r\n".as_slice(), "it is something else"),
            (b"".as_slice(), "it is empty"),
        ] {
            assert_eq!(parse(cut), None, "{why}");
        }
    }
}
