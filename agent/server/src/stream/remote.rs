//! exec and attach over a WebSocket whose streams close one by one, joined to SPDY of the runtime.
//!
//! Effects. Input: a WebSocket that offers `v5.channel.k8s.io`. Each of its messages begins with
//! the number of its stream; 255 and a number closes that stream, which the runtime's own
//! WebSockets cannot do and SPDY can. Output: stdin and terminal sizes to the runtime, stdout and
//! stderr to the client, and at last one status. Bounds: one buffer each way, `STATUS_BYTES_MAX`
//! for the status; both are read only as fast as the other side takes it.
// k8s: staging/src/k8s.io/apiserver/pkg/util/proxy/streamtranslator.go, websocket.go;
//      staging/src/k8s.io/client-go/tools/remotecommand/v4.go

use hyper::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::body::Reply;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::io::{self, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Mutex;

use super::proxy::{BUFFER_BYTES, dial};
use super::request::{StreamChoice, V5};
use super::spdy::{self, FIRST_STREAM, Framer, SpdyHead};
use super::tunnel::{SPDY, STREAM_PROTOCOL};
use super::websocket::{self, FrameReader, Opcode};
use super::{StreamRequest, handshake};

/// Largest status that is kept until the outputs have ended.
const STATUS_BYTES_MAX: usize = 64 * 1024;
/// The dialect of SPDY that the runtime speaks.
const V4: HeaderValue = HeaderValue::from_static("v4.channel.k8s.io");
/// The header with the type of a stream.
const STREAM_TYPE: &str = "streamtype";

/// Numbers of the streams in a WebSocket's messages.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// Opens the WebSocket; the runtime is dialed afterwards, and a failure then is its status.
pub(super) async fn open(wanted: StreamRequest, streams: StreamChoice) -> Reply {
    let StreamRequest { mut request, url, turn, .. } = wanted;
    let Some(reply) = handshake::accept(request.headers(), V5) else {
        return HttpAnswer::text(400, "the WebSocket has no key\n").into();
    };
    let client = hyper::upgrade::on(&mut request);
    pintle_daemon::tasks::serve("stream", async move {
        turn.hold(translate(client, &url, streams)).await;
    });
    reply
}

async fn translate(client: OnUpgrade, url: &str, streams: StreamChoice) {
    let client = match client.await {
        Ok(client) => TokioIo::new(client),
        Err(error) => return tracing::debug!(%error, "a WebSocket was not upgraded"),
    };
    let (from_client, to_client) = io::split(client);
    let to_client = Mutex::new(to_client);
    let ended = async {
        greet(&to_client, streams).await?;
        let status = match reach(url).await {
            Ok(runtime) => {
                let (from_runtime, to_runtime) = io::split(TokioIo::new(runtime));
                let link = PingLink { to_client: &to_client, to_runtime: Mutex::new(to_runtime) };
                link.run(from_client, from_runtime, &StreamNumbers::new(streams)).await?
            }
            Err(error) => internal_error(&error.to_string()),
        };
        let mut to = to_client.lock().await;
        websocket::write(&mut *to, Opcode::Binary, Some(ERROR), &status).await?;
        websocket::close(&mut *to).await
    };
    if let Err(error) = ended.await {
        tracing::debug!(%error, "a translated stream broke");
    }
}

/// An empty message on the first output shows the client that it is connected.
async fn greet(to: &Mutex<impl AsyncWrite + Unpin>, streams: StreamChoice) -> io::Result<()> {
    let channel = match streams {
        StreamChoice { stdout: true, .. } => STDOUT,
        StreamChoice { stderr: true, .. } => STDERR,
        _ => ERROR,
    };
    let mut to = to.lock().await;
    websocket::write(&mut *to, Opcode::Binary, Some(channel), &[]).await
}

/// Reason why the runtime's stream does not open.
#[derive(Debug, thiserror::Error)]
enum ReachError {
    #[error("{0}")]
    Dial(String),
    #[error("unable to upgrade connection: {0}")]
    Refused(StatusCode),
    #[error(transparent)]
    Upgrade(#[from] hyper::Error),
}

async fn reach(url: &str) -> Result<Upgraded, ReachError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, SPDY);
    headers.insert(STREAM_PROTOCOL, V4);
    let answer = dial(url, Method::POST, headers).await;
    let answer = answer.map_err(|error| ReachError::Dial(error.to_string()))?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(ReachError::Refused(answer.status()));
    }
    Ok(hyper::upgrade::on(answer).await?)
}

/// The numbers of the SPDY streams; 0 for those that were not requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StreamNumbers {
    error: u32,
    stdin: u32,
    stdout: u32,
    stderr: u32,
    resize: u32,
}

impl StreamNumbers {
    fn new(streams: StreamChoice) -> Self {
        let mut next = FIRST_STREAM;
        let mut number = |wanted: bool| {
            let number = if wanted { next } else { 0 };
            next += if wanted { 2 } else { 0 };
            number
        };
        // The order in which clients open them.
        let error = number(true);
        let (stdin, stdout) = (number(streams.stdin), number(streams.stdout));
        let (stderr, resize) = (number(streams.stderr), number(streams.tty));
        Self { error, stdin, stdout, stderr, resize }
    }

    /// The frames that open all of them.
    fn open(&self) -> Vec<u8> {
        let mut framer = Framer::default();
        let streams = [
            (self.error, "error"),
            (self.stdin, "stdin"),
            (self.stdout, "stdout"),
            (self.stderr, "stderr"),
            (self.resize, "resize"),
        ];
        let wanted = streams.into_iter().filter(|(number, _)| *number != 0);
        let mut frames: Vec<u8> = wanted
            .flat_map(|(number, kind)| framer.open(number, STREAM_TYPE, kind, false))
            .collect();
        // Nothing is ever sent to the runtime on this one.
        frames.extend_from_slice(&spdy::data(self.error, true, 0));
        frames
    }

    /// The stream for a client's message; `None` if it was not requested.
    fn stream_of(&self, channel: u8) -> Option<u32> {
        let number = match channel {
            STDIN => self.stdin,
            RESIZE => self.resize,
            _ => 0,
        };
        (number != 0).then_some(number)
    }
}

/// Both connections' writing halves, which each direction needs for its own pings.
struct PingLink<'a, C, R> {
    to_client: &'a Mutex<C>,
    to_runtime: Mutex<R>,
}

impl<C: AsyncWrite + Unpin, R: AsyncWrite + Unpin> PingLink<'_, C, R> {
    /// Runs until the runtime is done; the status. An error when the client is gone.
    async fn run(
        &self,
        from_client: impl AsyncRead + Unpin,
        from_runtime: impl AsyncRead + Unpin,
        numbers: &StreamNumbers,
    ) -> io::Result<Vec<u8>> {
        self.to_runtime.lock().await.write_all(&numbers.open()).await?;
        let mut up = std::pin::pin!(self.up(from_client, numbers));
        let mut down = std::pin::pin!(self.down(from_runtime, numbers));
        tokio::select! {
            ended = &mut up => {
                ended?;
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            status = &mut down => status,
        }
    }

    /// From the client to the runtime, until the client closes the WebSocket. Bytes for a runtime
    /// that has gone are dropped: its final status is still to be read.
    async fn up(&self, from: impl AsyncRead + Unpin, numbers: &StreamNumbers) -> io::Result<()> {
        let mut reader = FrameReader::new(from);
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut channel = None;
        while let Some(mut head) = reader.head().await? {
            match head.opcode {
                Opcode::Ping => {
                    let payload = reader.control(head).await?;
                    let mut to = self.to_client.lock().await;
                    websocket::write(&mut *to, Opcode::Pong, None, &payload).await?;
                    continue;
                }
                Opcode::Pong => {
                    reader.control(head).await?;
                    continue;
                }
                Opcode::Close => return Ok(()),
                Opcode::Text => return Err(io::ErrorKind::InvalidData.into()),
                Opcode::Binary => channel = None,
                Opcode::Continuation => {}
            }
            loop {
                let read = reader.piece(&mut head, &mut buffer).await?;
                if read == 0 {
                    break;
                }
                let piece = match channel {
                    Some(_) => &buffer[..read],
                    None => {
                        channel = Some(buffer[0]);
                        &buffer[1..read]
                    }
                };
                let sent = self.to_stream(channel.unwrap_or(CLOSE), piece, numbers).await;
                if let Err(error) = sent {
                    tracing::debug!(%error, "the runtime takes no more input");
                }
            }
            if head.last {
                channel = None;
            }
        }
        Ok(())
    }

    async fn to_stream(
        &self,
        channel: u8,
        piece: &[u8],
        numbers: &StreamNumbers,
    ) -> io::Result<()> {
        if channel == CLOSE {
            // Closing an unknown stream, or one twice, changes nothing.
            let Some(stream) = piece.first().and_then(|closed| numbers.stream_of(*closed)) else {
                return Ok(());
            };
            return self.send(&spdy::data(stream, true, 0), &[]).await;
        }
        match numbers.stream_of(channel) {
            Some(stream) if !piece.is_empty() => {
                self.send(&spdy::data(stream, false, piece.len()), piece).await
            }
            _ => Ok(()),
        }
    }

    async fn send(&self, head: &[u8], payload: &[u8]) -> io::Result<()> {
        let mut to = self.to_runtime.lock().await;
        to.write_all(head).await?;
        to.write_all(payload).await?;
        to.flush().await
    }

    /// From the runtime to the client, until all outputs and the status have ended, or the runtime
    /// has gone: one that could not start a command sends an error and ends no stream.
    // k8s: staging/src/k8s.io/cri-streaming/pkg/streaming/remotecommand/exec.go ServeExec
    async fn down(
        &self,
        mut from: impl AsyncRead + Unpin,
        numbers: &StreamNumbers,
    ) -> io::Result<Vec<u8>> {
        let mut status = Vec::new();
        let mut open = vec![numbers.error];
        open.extend([numbers.stdout, numbers.stderr].into_iter().filter(|number| *number != 0));
        let mut buffer = vec![0; BUFFER_BYTES];
        while !open.is_empty() {
            match self.frame(&mut from, &mut buffer, numbers, &mut status).await? {
                Ok(ended) => open.retain(|number| Some(*number) != ended),
                // It may have broken off within the status.
                Err(error) if serde_json::from_slice::<IgnoredAny>(&status).is_ok() => {
                    tracing::debug!(%error, "the runtime closed before its streams had ended");
                    break;
                }
                Err(error) => return Ok(internal_error(&format!("the runtime's stream: {error}"))),
            }
        }
        Ok(if status.is_empty() { success() } else { status })
    }

    /// Takes one frame of the runtime; the stream that it ends. The outer error is the client's.
    async fn frame(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        buffer: &mut [u8],
        numbers: &StreamNumbers,
        status: &mut Vec<u8>,
    ) -> io::Result<io::Result<Option<u32>>> {
        let mut head = [0; spdy::HEAD_BYTES];
        if let Err(error) = from.read_exact(&mut head).await {
            return Ok(Err(error));
        }
        let (stream, last, mut left) = match SpdyHead::parse(head) {
            SpdyHead::Data { stream, last, bytes } => (stream, last, bytes as usize),
            SpdyHead::Ping { .. } => return Ok(self.pong(from).await.map(|()| None)),
            SpdyHead::Reset { bytes } | SpdyHead::GoAway { bytes } | SpdyHead::Other { bytes } => {
                (0, false, bytes as usize)
            }
        };
        while left > 0 {
            let wanted = left.min(buffer.len());
            if let Err(error) = from.read_exact(&mut buffer[..wanted]).await {
                return Ok(Err(error));
            }
            left -= wanted;
            self.to_channel(stream, &buffer[..wanted], numbers, status).await?;
        }
        Ok(Ok(last.then_some(stream)))
    }

    async fn pong(&self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        let mut number = [0; 4];
        from.read_exact(&mut number).await?;
        self.send(&spdy::ping(number), &[]).await
    }

    async fn to_channel(
        &self,
        stream: u32,
        piece: &[u8],
        numbers: &StreamNumbers,
        status: &mut Vec<u8>,
    ) -> io::Result<()> {
        let channel = match stream {
            0 => return Ok(()),
            number if number == numbers.error => {
                let room = STATUS_BYTES_MAX.saturating_sub(status.len());
                status.extend_from_slice(&piece[..piece.len().min(room)]);
                return Ok(());
            }
            number if number == numbers.stdout => STDOUT,
            number if number == numbers.stderr => STDERR,
            _ => return Ok(()),
        };
        let mut to = self.to_client.lock().await;
        websocket::write(&mut *to, Opcode::Binary, Some(channel), piece).await
    }
}

fn success() -> Vec<u8> {
    json!({"metadata": {}, "status": "Success"}).to_string().into_bytes()
}

// k8s: staging/src/k8s.io/apimachinery/pkg/api/errors/errors.go NewInternalError
fn internal_error(error: &str) -> Vec<u8> {
    json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("Internal error occurred: {error}"),
        "reason": "InternalError",
        "details": {"causes": [{"message": error}]},
        "code": 500,
    })
    .to_string()
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::websocket::masked;
    use serde_json::Value;

    const ALL: StreamChoice = StreamChoice { stdin: true, stdout: true, stderr: true, tty: false };

    #[test]
    fn only_the_streams_that_were_asked_for_have_numbers() {
        let all = StreamNumbers { error: 1, stdin: 3, stdout: 5, stderr: 7, resize: 0 };
        assert_eq!(StreamNumbers::new(ALL), all);
        let terminal = StreamChoice { stderr: false, tty: true, ..ALL };
        let expected = StreamNumbers { error: 1, stdin: 3, stdout: 5, stderr: 0, resize: 7 };
        assert_eq!(StreamNumbers::new(terminal), expected);
        assert_eq!(expected.stream_of(RESIZE), Some(7));
        assert_eq!(all.stream_of(RESIZE), None);
        assert_eq!(all.stream_of(STDOUT), None, "clients do not write outputs");
    }

    /// A runtime that takes stdin to its end, answers with it, and sends its status.
    async fn runtime(mut end: impl AsyncRead + AsyncWrite + Unpin, status: &[u8]) {
        let numbers = StreamNumbers::new(ALL);
        let mut opening = vec![0; numbers.open().len()];
        end.read_exact(&mut opening).await.expect("streams are opened");
        assert_eq!(opening, numbers.open());
        let mut stdin = Vec::new();
        loop {
            let mut head = [0; spdy::HEAD_BYTES];
            end.read_exact(&mut head).await.expect("a frame");
            let SpdyHead::Data { stream, last, bytes } = SpdyHead::parse(head) else {
                panic!("data")
            };
            assert_eq!(stream, numbers.stdin);
            let mut data = vec![0; bytes as usize];
            end.read_exact(&mut data).await.expect("data");
            stdin.extend_from_slice(&data);
            if last {
                break;
            }
        }
        end.write_all(&spdy::ping([0, 0, 0, 2])).await.expect("sent");
        let mut pong = [0; 12];
        end.read_exact(&mut pong).await.expect("answered");
        assert_eq!(pong.as_slice(), spdy::ping([0, 0, 0, 2]));
        for (stream, text) in
            [(numbers.stdout, stdin.as_slice()), (numbers.stderr, b"oops"), (numbers.error, status)]
        {
            end.write_all(&spdy::data(stream, false, text.len())).await.expect("sent");
            end.write_all(text).await.expect("sent");
        }
        for stream in [numbers.stdout, numbers.stderr, numbers.error] {
            end.write_all(&spdy::data(stream, true, 0)).await.expect("sent");
        }
    }

    #[tokio::test]
    async fn stdin_is_closed_alone_and_outputs_and_status_come_back() {
        let (mut user, client) = io::duplex(1 << 16);
        let (ours, theirs) = io::duplex(1 << 16);
        let status = br#"{"status":"Failure","reason":"NonZeroExitCode"}"#;
        tokio::spawn(async move { runtime(theirs, status).await });
        let (from_client, to_client) = io::split(client);
        let (from_runtime, to_runtime) = io::split(ours);
        let to_client = Mutex::new(to_client);
        let link = PingLink { to_client: &to_client, to_runtime: Mutex::new(to_runtime) };
        for frame in [
            masked(Opcode::Ping, true, b"p"),
            masked(Opcode::Binary, true, b"\0hel"),
            masked(Opcode::Binary, false, b"\0l"),
            masked(Opcode::Continuation, true, b"o"),
            masked(Opcode::Binary, true, b"\x04{\"Width\":1}"),
            masked(Opcode::Binary, true, &[CLOSE, STDIN]),
        ] {
            user.write_all(&frame).await.expect("sent");
        }
        let said =
            link.run(from_client, from_runtime, &StreamNumbers::new(ALL)).await.expect("a status");
        assert_eq!(said, status);
        let mut frames = [0; 3 + 8 + 7];
        user.read_exact(&mut frames).await.expect("frames");
        assert_eq!(&frames, b"\x8a\x01p\x82\x06\x01hello\x82\x05\x02oops");
    }

    #[tokio::test]
    async fn a_runtime_that_breaks_off_is_an_internal_error() {
        let status = told(&[]).await;
        assert_eq!((&status["status"], &status["code"]), (&json!("Failure"), &json!(500)));
    }

    /// The client's status when the runtime sends these frames and closes.
    async fn told(frames: &[&[u8]]) -> Value {
        let (_user, client) = io::duplex(1 << 16);
        let (ours, mut theirs) = io::duplex(1 << 16);
        for frame in frames {
            theirs.write_all(frame).await.expect("sent");
        }
        drop(theirs);
        let (from_client, to_client) = io::split(client);
        let (from_runtime, _) = io::split(ours);
        let to_client = Mutex::new(to_client);
        let link = PingLink { to_client: &to_client, to_runtime: Mutex::new(io::sink()) };
        let status =
            link.run(from_client, from_runtime, &StreamNumbers::new(ALL)).await.expect("said");
        serde_json::from_slice(&status).expect("JSON")
    }

    #[tokio::test]
    async fn exit_status_is_reported_when_the_runtime_disconnects_without_ending_its_streams() {
        let reset = |stream: u8| [0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, stream, 0, 0, 0, 5];
        let resets = [reset(5), reset(7), reset(1)].concat();
        let status = br#"{"status":"Failure","reason":"NonZeroExitCode"}"#;
        let said = spdy::data(1, false, status.len());
        let out = spdy::data(5, false, 3);
        let never_began = told(&[&said, status, &resets]).await;
        assert_eq!(never_began["reason"], "NonZeroExitCode");
        let ended = told(&[&out, b"out", &said, status, &resets]).await;
        assert_eq!(ended["reason"], "NonZeroExitCode");
        let in_the_middle = told(&[&said, status, &out, b"o"]).await;
        assert_eq!(in_the_middle["reason"], "NonZeroExitCode");
        assert_eq!(told(&[&out, b"out"]).await["reason"], "InternalError", "it said nothing");
        let half = told(&[&said, &status[..20]]).await;
        assert_eq!(half["reason"], "InternalError", "it did not say all of it");
    }

    #[tokio::test]
    async fn input_that_the_runtime_no_longer_reads_does_not_end_the_stream() {
        let (mut user, client) = io::duplex(1 << 16);
        let (to_runtime, _) = io::duplex(1);
        let link =
            PingLink { to_client: &Mutex::new(io::sink()), to_runtime: Mutex::new(to_runtime) };
        for _ in 0..2 {
            user.write_all(&masked(Opcode::Binary, true, b"\0more")).await.expect("sent");
        }
        user.write_all(&masked(Opcode::Close, true, b"")).await.expect("sent");
        link.up(client, &StreamNumbers::new(ALL)).await.expect("the client closed");
    }

    #[test]
    fn absent_exec_status_is_success() {
        assert_eq!(success(), br#"{"metadata":{},"status":"Success"}"#);
    }
}
