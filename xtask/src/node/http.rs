//! A request over a given connection: the node's ports are only reachable inside its network.
//!
//! HTTP/1.1 with `Connection: close`; the body may have a length, be chunked or end with the
//! connection. Bounded by `ANSWER_WAIT` per read and `BODY_BYTES_MAX`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

/// How long the server may be silent.
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// The largest answer read, in bytes.
const BODY_BYTES_MAX: u64 = 64 << 20;

/// An answer.
#[derive(Debug)]
pub struct NodeHttpReply {
    /// The status code.
    pub status: u16,
    /// The body as text.
    pub body: String,
}

/// The rest of a request besides the path.
#[derive(Clone, Copy, Debug)]
pub struct NodeHttpRequest<'a> {
    /// GET, POST and so on.
    pub method: &'a str,
    /// With the query.
    pub path: &'a str,
    /// Type of the body; empty for no body.
    pub content_type: &'a str,
    /// The body.
    pub body: &'a str,
}

/// Sends one GET and reads the whole answer.
pub fn get(stream: TcpStream, path: &str) -> Result<NodeHttpReply> {
    stream.set_read_timeout(Some(ANSWER_WAIT))?;
    send(stream, NodeHttpRequest { method: "GET", path, content_type: "", body: "" })
}

/// Sends one request and reads the whole answer.
pub fn send(mut stream: impl Read + Write, request: NodeHttpRequest<'_>) -> Result<NodeHttpReply> {
    let NodeHttpRequest { method, path, content_type, body } = request;
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n")?;
    if !content_type.is_empty() {
        let length = body.len();
        write!(stream, "Content-Type: {content_type}\r\nContent-Length: {length}\r\n")?;
    }
    write!(stream, "\r\n{body}")?;
    let mut raw = Vec::new();
    let read = stream.take(BODY_BYTES_MAX).read_to_end(&mut raw);
    read.with_context(|| format!("{method} {path}"))?;
    parse(&raw)
}

fn parse(raw: &[u8]) -> Result<NodeHttpReply> {
    let end = raw.windows(4).position(|w| w == b"\r\n\r\n").ok_or_else(|| anyhow!("no head"))?;
    let (head, body) = (String::from_utf8_lossy(&raw[..end]), &raw[end + 4..]);
    let mut lines = head.lines();
    let status = lines.next().and_then(|l| l.split(' ').nth(1)).and_then(|s| s.parse().ok());
    let status = status.ok_or_else(|| anyhow!("no status line: {head}"))?;
    let is_chunked = lines.any(|l| l.eq_ignore_ascii_case("transfer-encoding: chunked"));
    let body = if is_chunked { join_chunks(body)? } else { body.to_vec() };
    Ok(NodeHttpReply { status, body: String::from_utf8(body).context("the body is text")? })
}

fn join_chunks(mut rest: &[u8]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n").ok_or_else(|| anyhow!("no chunk"))?;
        let size = std::str::from_utf8(&rest[..end])?.split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size.trim(), 16).context("a chunk's size")?;
        let start = end + 2;
        if size == 0 {
            return Ok(body);
        }
        match rest.get(start..start + size) {
            Some(chunk) => body.extend_from_slice(chunk),
            None => bail!("the answer ends inside a chunk"),
        }
        rest = rest.get(start + size + 2..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_body_is_joined() {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let raw = format!("{head}3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
        let answer = parse(raw.as_bytes()).expect("parsed");
        assert_eq!((answer.status, answer.body.as_str()), (200, "abcde"));
    }

    #[test]
    fn a_plain_body_is_everything_after_the_head() {
        let answer = parse(b"HTTP/1.1 503 X\r\nContent-Length: 2\r\n\r\nno").expect("parsed");
        assert_eq!((answer.status, answer.body.as_str()), (503, "no"));
    }
}
