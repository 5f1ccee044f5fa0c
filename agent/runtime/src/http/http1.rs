//! HTTP/1.1 as Go's client speaks it: the order and case of the headers it sends, and every answer
//! that it accepts.
//!
//! Servers in pods are often home-made. Go accepts a space before a header's colon, folded headers,
//! two spaces in the status line, lines that end in a bare LF, a status line without a reason, and
//! a body without a length; so a probe must. Effects: reads and writes the stream. Bounds: the head
//! takes `HEAD_BYTES_MAX` bytes in `HEADERS_MAX` lines, of a body `limit` bytes are kept. Every
//! error is Go's sentence.
// Go: net/http Request.write, ReadResponse, readTransfer; net/textproto Reader.ReadMIMEHeader

use std::io;
use std::time::Instant;

use hyper::StatusCode;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use super::{Get, HEAD_BYTES_MAX, HEADERS_MAX, HttpAnswer, RequestProgress, words};

/// Longest line that begins a chunk, in bytes.
// Go: net/http/internal maxLineLength
const CHUNK_LINE_BYTES_MAX: usize = 4096;
/// Bytes that a chunked body may hold besides data.
// Go: net/http/internal chunkedReader.beginChunk
const CHUNK_EXCESS_BYTES_MAX: i64 = 16 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum BrokenResponse {
    /// The peer closed the connection without a word.
    #[error("EOF")]
    Closed,
    /// The connection failed.
    #[error("read")]
    Read(#[source] io::Error),
    /// The answer is not HTTP.
    #[error("net/http: HTTP/1.x transport connection broken: {0}")]
    Malformed(String),
    /// A header cannot be sent.
    #[error("net/http: {0}")]
    Header(String),
}

fn malformed<T>(text: impl Into<String>) -> Result<T, BrokenResponse> {
    Err(BrokenResponse::Malformed(text.into()))
}

/// The request, byte by byte.
// Go: net/http Request.write, Transport.roundTrip
pub(super) fn request(get: &Get, address: &str) -> Result<Vec<u8>, BrokenResponse> {
    for (name, value) in &get.headers {
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err(BrokenResponse::Header(format!("invalid header field name {name:?}")));
        }
        if value.bytes().any(|byte| byte != b'\t' && (byte < b' ' || byte == 0x7f)) {
            return Err(BrokenResponse::Header(format!("invalid header field value for {name:?}")));
        }
    }
    let target = match &*get.path {
        path if path.starts_with('?') => format!("/{path}"),
        "" => "/".to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    let given = get.header("Host").filter(|host| !host.is_empty());
    let host = given.unwrap_or(address);
    let host = if host.bytes().all(is_host) { host } else { "" };
    let mut text = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n");
    let mut put = |name: &str, value: &str| {
        text.push_str(&format!("{name}: {}\r\n", value.trim_matches([' ', '\t'])));
    };
    if let Some(agent) = get.header("User-Agent").filter(|agent| !agent.is_empty()) {
        put("User-Agent", agent);
    }
    let ours = ["Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer"];
    let mut headers: Vec<_> = get.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    if let Some(referer) = get.referer.as_deref().filter(|_| get.header("Referer").is_none()) {
        headers.push(("Referer", referer));
    }
    headers.retain(|(name, _)| !ours.contains(name));
    headers.sort_by_key(|(name, _)| *name);
    headers.iter().for_each(|(name, value)| put(name, value));
    let options = headers.iter().filter(|(name, _)| *name == "Connection");
    let mut options = options.flat_map(|(_, value)| value.split(',').map(str::trim));
    if !options.any(|option| option.eq_ignore_ascii_case("close")) {
        put("Connection", "close");
    }
    text.push_str("\r\n");
    Ok(text.into_bytes())
}

// Go: golang.org/x/net/http/httpguts IsTokenRune
pub(super) fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

// Go: golang.org/x/net/http/httpguts ValidHostHeader
fn is_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&()*+,-.:;=[]'_~".contains(&byte)
}

/// Sends the request and reads the answer, and where it redirects to.
pub(super) async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    request: &[u8],
    limit: usize,
    watch: &RequestProgress,
) -> Result<(HttpAnswer, Option<String>), BrokenResponse> {
    // A server may answer and close before it has read: the answer counts.
    let sent = async {
        stream.write_all(request).await?;
        stream.flush().await
    };
    let sent = sent.await;
    let mut input =
        ResponseInput { stream: BufReader::new(stream), left: HEAD_BYTES_MAX, lines: HEADERS_MAX };
    match (input.peek().await, sent) {
        (Ok(Some(_)), _) => {}
        (Ok(None) | Err(_), Err(error)) | (Err(error), Ok(())) => {
            return Err(BrokenResponse::Read(error));
        }
        (Ok(None), Ok(())) => return Err(BrokenResponse::Closed),
    }
    let mut head = input.head().await?;
    while (100..200).contains(&head.status) && head.status != 101 {
        head = input.head().await?;
    }
    let framing = head.framing()?;
    watch.answered.set(Some(Instant::now()));
    let location = head.values("location").next().map(|v| String::from_utf8_lossy(v).into_owned());
    let status = head.status;
    let (body, body_error) = input.body(framing, limit).await;
    let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    let reason = reason.unwrap_or_default();
    Ok((HttpAnswer { status, body, reason, body_error }, location))
}

/// Status line and headers.
#[derive(Debug)]
struct ResponseHead {
    status: u16,
    /// Major and minor version.
    version: (u8, u8),
    /// Names in lower case, those with a space as they came.
    headers: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Bytes(u64),
    Chunks,
    Close,
}

impl ResponseHead {
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let named = self.headers.iter().filter(move |(own, _)| own == name.as_bytes());
        named.map(|(_, value)| &**value)
    }

    // Go: net/http transferReader.parseTransferEncoding, fixLength
    fn framing(&self) -> Result<Framing, BrokenResponse> {
        let shown = |values: &[&[u8]]| {
            let texts = values.iter().map(|v| format!("{:?}", String::from_utf8_lossy(v)));
            texts.collect::<Vec<_>>().join(" ")
        };
        let codings: Vec<_> = self.values("transfer-encoding").collect();
        let chunked = match &codings[..] {
            _ if self.version < (1, 1) => false,
            [] => false,
            [one] if one.eq_ignore_ascii_case(b"chunked") => true,
            [one] => return malformed(format!("unsupported transfer encoding: {}", shown(&[one]))),
            all => return malformed(format!("too many transfer encodings: [{}]", shown(all))),
        };
        let lengths: Vec<_> = self.values("content-length").map(<[u8]>::trim_ascii).collect();
        if lengths.iter().any(|length| *length != lengths[0]) {
            let all = shown(&lengths);
            let text = "http: message cannot contain multiple Content-Length headers; got";
            return malformed(format!("{text} [{all}]"));
        }
        let length = match lengths.first() {
            None => None,
            Some([]) => return malformed("invalid empty Content-Length \"\""),
            Some(length) => {
                let digits = length.iter().all(u8::is_ascii_digit);
                let text = std::str::from_utf8(length).ok().filter(|_| digits);
                match text.and_then(|text| text.parse::<i64>().ok()) {
                    Some(length) => Some(length.unsigned_abs()),
                    None => return malformed(format!("bad Content-Length {}", shown(&[length]))),
                }
            }
        };
        Ok(match self.status {
            100..200 | 204 | 304 => Framing::Bytes(0),
            _ if chunked => Framing::Chunks,
            _ => length.map_or(Framing::Close, Framing::Bytes),
        })
    }
}

/// The stream, read as a head and then as a body.
struct ResponseInput<S> {
    stream: BufReader<S>,
    /// Bytes that the heads may still take.
    left: usize,
    /// Headers that may still come.
    lines: usize,
}

impl<S: AsyncRead + Unpin> ResponseInput<S> {
    /// The buffered bytes; empty at the end of the stream.
    async fn buffered(&mut self) -> io::Result<&[u8]> {
        match self.stream.fill_buf().await {
            // A peer that closes without a TLS close_notify has ended all the same.
            // Go: crypto/tls Conn.readRecordOrCCS
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(&[]),
            other => other,
        }
    }

    async fn peek(&mut self) -> io::Result<Option<u8>> {
        Ok(self.buffered().await?.first().copied())
    }

    /// A line without its end; `None` at the end of the stream.
    async fn line(&mut self) -> Result<Option<Vec<u8>>, BrokenResponse> {
        let mut line = Vec::new();
        loop {
            let left = self.left;
            let bytes = self.buffered().await.map_err(BrokenResponse::Read)?;
            if bytes.is_empty() {
                return Ok(Some(line).filter(|line| !line.is_empty()));
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(bytes.len(), |end| end + 1);
            if taken > left {
                return Err(BrokenResponse::Header(format!(
                    "server response headers exceeded {HEAD_BYTES_MAX} bytes; aborted"
                )));
            }
            line.extend_from_slice(&bytes[..end.unwrap_or(taken)]);
            self.left -= taken;
            self.stream.consume(taken);
            if end.is_some() {
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return Ok(Some(line));
            }
        }
    }

    // Go: net/http ReadResponse
    async fn head(&mut self) -> Result<ResponseHead, BrokenResponse> {
        let Some(line) = self.line().await? else { return malformed("unexpected EOF") };
        let line = String::from_utf8_lossy(&line).into_owned();
        let Some((version, status)) = line.split_once(' ') else {
            return malformed(format!("malformed HTTP response {line:?}"));
        };
        let code = status.trim_start_matches(' ').split(' ').next().unwrap_or_default();
        let Some(status) = code.parse::<u16>().ok().filter(|_| code.len() == 3) else {
            return malformed(format!("malformed HTTP status code {code:?}"));
        };
        let version = match version.as_bytes() {
            [b'H', b'T', b'T', b'P', b'/', major @ b'0'..=b'9', b'.', minor @ b'0'..=b'9'] => {
                (major - b'0', minor - b'0')
            }
            _ => return malformed(format!("malformed HTTP version {version:?}")),
        };
        Ok(ResponseHead { status, version, headers: self.headers().await? })
    }

    // Go: net/textproto Reader.ReadMIMEHeader
    async fn headers(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>, BrokenResponse> {
        if matches!(self.peek().await.map_err(BrokenResponse::Read)?, Some(b' ' | b'\t')) {
            let line = self.line().await?.unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            return malformed(format!("malformed MIME header initial line: {line:?}"));
        }
        let mut headers = Vec::new();
        loop {
            let line = match self.folded_line().await? {
                None => return malformed("unexpected EOF"),
                Some(line) if line.is_empty() => return Ok(headers),
                Some(line) => line,
            };
            let wrong = || {
                let line = String::from_utf8_lossy(&line).into_owned();
                malformed(format!("malformed MIME header line: {line:?}"))
            };
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { return wrong() };
            let (name, value) = (&line[..colon], &line[colon + 1..]);
            let is_value = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
            let is_named = !name.is_empty() && name.iter().all(|b| *b == b' ' || is_name(*b));
            if !is_named || !value.iter().all(is_value) {
                return wrong();
            }
            if self.lines == 0 {
                return malformed("message too large");
            }
            self.lines -= 1;
            // A name with a space is accepted and is no name that counts.
            let name = if name.contains(&b' ') { name.to_vec() } else { name.to_ascii_lowercase() };
            headers.push((name, trim(value).to_vec()));
        }
    }

    /// A header with the lines that continue it.
    // Go: net/textproto Reader.readContinuedLineSlice
    async fn folded_line(&mut self) -> Result<Option<Vec<u8>>, BrokenResponse> {
        let Some(first) = self.line().await? else { return Ok(None) };
        if first.is_empty() {
            return Ok(Some(first));
        }
        if !first.contains(&b':') {
            let line = String::from_utf8_lossy(&first).into_owned();
            return malformed(format!("malformed MIME header: missing colon: {line:?}"));
        }
        let mut whole = trim(&first).to_vec();
        while let Some(b' ' | b'\t') = self.peek().await.map_err(BrokenResponse::Read)? {
            let Some(more) = self.line().await? else { break };
            whole.push(b' ');
            whole.extend_from_slice(trim(&more));
        }
        Ok(Some(whole))
    }

    /// The first bytes of the body, and why it ended early if it did.
    async fn body(&mut self, framing: Framing, limit: usize) -> (Vec<u8>, String) {
        let mut body = Vec::new();
        let read = match framing {
            Framing::Bytes(length) => self.copy(length, limit, &mut body).await,
            Framing::Close => self.rest(limit, &mut body).await,
            Framing::Chunks => self.chunks(limit, &mut body).await,
        };
        let error = match read {
            Ok(()) => String::new(),
            Err(BrokenResponse::Read(error)) => words::broken(&error, "read"),
            Err(BrokenResponse::Malformed(text)) => text,
            Err(other) => other.to_string(),
        };
        (body, error)
    }

    async fn rest(&mut self, limit: usize, body: &mut Vec<u8>) -> Result<(), BrokenResponse> {
        while body.len() < limit {
            let bytes = self.buffered().await.map_err(BrokenResponse::Read)?;
            let taken = bytes.len().min(limit - body.len());
            if taken == 0 {
                break;
            }
            body.extend_from_slice(&bytes[..taken]);
            self.stream.consume(taken);
        }
        Ok(())
    }

    /// That many bytes, or as many as are kept.
    async fn copy(
        &mut self,
        length: u64,
        limit: usize,
        body: &mut Vec<u8>,
    ) -> Result<(), BrokenResponse> {
        let room = limit.saturating_sub(body.len());
        let end = body.len() + usize::try_from(length).unwrap_or(usize::MAX).min(room);
        self.rest(end, body).await?;
        if body.len() < end { malformed("unexpected EOF") } else { Ok(()) }
    }

    // Go: net/http/internal chunkedReader
    async fn chunks(&mut self, limit: usize, body: &mut Vec<u8>) -> Result<(), BrokenResponse> {
        let mut excess = 0_i64;
        self.left = HEAD_BYTES_MAX;
        while body.len() < limit {
            let line = self.chunk_line().await?;
            let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
            let length = chunk_length(size.trim_ascii_end())?;
            let of_data = i64::try_from(length).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
            excess = (excess + line.len() as i64 + 2 - 16 - 2 * of_data).max(0);
            if excess > CHUNK_EXCESS_BYTES_MAX {
                return malformed("chunked encoding contains too much non-data");
            }
            if length == 0 {
                return self.trailer().await;
            }
            self.copy(length, limit, body).await?;
            if body.len() >= limit {
                return Ok(());
            }
            let mut end = [0; 2];
            match self.stream.read_exact(&mut end).await {
                Ok(_) if end == *b"\r\n" => {}
                Ok(_) => return malformed("malformed chunked encoding"),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return malformed("unexpected EOF");
                }
                Err(error) => return Err(BrokenResponse::Read(error)),
            }
        }
        Ok(())
    }

    async fn chunk_line(&mut self) -> Result<Vec<u8>, BrokenResponse> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.stream).take(CHUNK_LINE_BYTES_MAX as u64 + 2);
        match bounded.read_until(b'\n', &mut line).await {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                return Err(BrokenResponse::Read(error));
            }
            _ => {}
        }
        match line.iter().position(|byte| *byte == b'\r') {
            _ if line.last() != Some(&b'\n') && line.len() > CHUNK_LINE_BYTES_MAX => {
                malformed("header line too long")
            }
            _ if line.last() != Some(&b'\n') => malformed("unexpected EOF"),
            None => malformed("chunked line ends with bare LF"),
            Some(at) if at + 2 != line.len() => malformed("invalid CR in chunked line"),
            Some(at) => {
                line.truncate(at);
                Ok(line)
            }
        }
    }

    /// Reads the trailer after the last chunk.
    // Go: net/http body.readTrailer
    async fn trailer(&mut self) -> Result<(), BrokenResponse> {
        if self.peek().await.map_err(BrokenResponse::Read)?.is_none() {
            return malformed("http: unexpected EOF reading trailer");
        }
        self.headers().await.map(drop)
    }
}

// Go: net/http/internal parseHexUint
fn chunk_length(digits: &[u8]) -> Result<u64, BrokenResponse> {
    if digits.is_empty() {
        return malformed("empty hex number for chunk length");
    }
    let text = std::str::from_utf8(digits).ok();
    match text.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        None => malformed("invalid byte in chunk length"),
        Some(text) if text.len() > 16 => malformed("http chunk length too large"),
        Some(text) => {
            u64::from_str_radix(text, 16).or_else(|_| malformed("http chunk length too large"))
        }
    }
}

fn trim(line: &[u8]) -> &[u8] {
    let is_text = |byte: &u8| !matches!(byte, b' ' | b'\t');
    let start = line.iter().position(is_text).unwrap_or(line.len());
    let end = line.iter().rposition(is_text).map_or(start, |end| end + 1);
    &line[start..end]
}

#[cfg(test)]
#[path = "http1_tests.rs"]
mod tests;
