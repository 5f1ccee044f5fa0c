//! Frames of WebSocket, the server's side (RFC 6455).
//!
//! `head` is pure; `FrameReader` and `write` move frames. A message is never gathered: its payload
//! passes through the caller's buffer piece by piece, so a frame of any length costs nothing.
//! Extensions are not offered. A protocol error ends the stream. Uses nothing of the agent: fuzzing
//! links this file alone.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Largest payload of a control frame.
const CONTROL_BYTES_MAX: usize = 125;
/// Largest head of a server's frame.
const HEAD_BYTES_MAX: usize = 10;
/// Close code of a normal end.
const NORMAL_CLOSURE: u16 = 1000;

/// Kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    Continuation,
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

impl Opcode {
    fn of(number: u8) -> Option<Self> {
        Some(match number {
            0x0 => Self::Continuation,
            0x1 => Self::Text,
            0x2 => Self::Binary,
            0x8 => Self::Close,
            0x9 => Self::Ping,
            0xa => Self::Pong,
            _ => return None,
        })
    }

    fn number(self) -> u8 {
        match self {
            Self::Continuation => 0x0,
            Self::Text => 0x1,
            Self::Binary => 0x2,
            Self::Close => 0x8,
            Self::Ping => 0x9,
            Self::Pong => 0xa,
        }
    }

    fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// The head of a frame that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) opcode: Opcode,
    /// The last frame of its message.
    pub(super) last: bool,
    /// Payload still to be read.
    pub(super) bytes: u64,
    mask: [u8; 4],
    /// Payload read so far, for the mask.
    read: usize,
}

/// Reads frames of a client.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    from: R,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from }
    }

    /// The next frame's head; `None` at the end of the connection.
    pub(super) async fn head(&mut self) -> io::Result<Option<FrameHead>> {
        let mut start = [0; 2];
        if self.from.read(&mut start[..1]).await? == 0 {
            return Ok(None);
        }
        self.from.read_exact(&mut start[1..]).await?;
        let last = start[0] & 0x80 != 0;
        let opcode = Opcode::of(start[0] & 0x0f).ok_or_else(|| broken("unknown opcode"))?;
        if start[0] & 0x70 != 0 {
            return Err(broken("an extension that was not agreed on"));
        }
        if start[1] & 0x80 == 0 {
            return Err(broken("a client's frame without a mask"));
        }
        let bytes = match start[1] & 0x7f {
            126 => u64::from(self.from.read_u16().await?),
            127 => self.from.read_u64().await?,
            short => u64::from(short),
        };
        let whole = last && bytes <= CONTROL_BYTES_MAX as u64;
        if opcode.is_control() && !whole {
            return Err(broken("a control frame that is long or in pieces"));
        }
        let mut mask = [0; 4];
        self.from.read_exact(&mut mask).await?;
        Ok(Some(FrameHead { opcode, last, bytes, mask, read: 0 }))
    }

    /// Fills `buffer` with the next piece of the frame's payload; 0 at its end.
    pub(super) async fn piece(
        &mut self,
        head: &mut FrameHead,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(head.bytes).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let read = self.from.read(&mut buffer[..wanted]).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for byte in &mut buffer[..read] {
            *byte ^= head.mask[head.read % 4];
            head.read = head.read.wrapping_add(1);
        }
        head.bytes -= read as u64;
        Ok(read)
    }

    /// The whole payload of a control frame.
    pub(super) async fn control(&mut self, mut head: FrameHead) -> io::Result<Vec<u8>> {
        let mut payload = vec![0; CONTROL_BYTES_MAX];
        let mut filled = 0;
        while head.bytes > 0 {
            filled += self.piece(&mut head, &mut payload[filled..]).await?;
        }
        payload.truncate(filled);
        Ok(payload)
    }
}

/// Reads any bytes as frames of a client, for fuzzing: every payload passes through one small
/// buffer, and no frame gives more than the bytes that are there.
pub fn fuzz(bytes: &[u8]) {
    let read = async {
        let (mut reader, mut buffer, mut taken) = (FrameReader::new(bytes), [0; 16], 0);
        while let Ok(Some(mut head)) = reader.head().await {
            if matches!(head.opcode, Opcode::Ping | Opcode::Pong) {
                match reader.control(head).await {
                    Ok(payload) => taken += payload.len(),
                    Err(_) => break,
                }
                continue;
            }
            while let Ok(read @ 1..) = reader.piece(&mut head, &mut buffer).await {
                taken += read;
            }
        }
        taken
    };
    let Poll::Ready(taken) = pin!(read).poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("reading bytes that are there does not wait");
    };
    assert!(taken <= bytes.len());
}

/// Sends a whole message in one frame: `first` and then `payload`.
pub(super) async fn write(
    to: &mut (impl AsyncWrite + Unpin),
    opcode: Opcode,
    first: Option<u8>,
    payload: &[u8],
) -> io::Result<()> {
    let length = payload.len() + usize::from(first.is_some());
    let (mut start, mut used) = head(opcode, length);
    if let Some(first) = first {
        start[used] = first;
        used += 1;
    }
    to.write_all(&start[..used]).await?;
    to.write_all(payload).await?;
    to.flush().await
}

/// Sends the close of a stream that ended well, and closes.
pub(super) async fn close(to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    write(to, Opcode::Close, None, &NORMAL_CLOSURE.to_be_bytes()).await?;
    to.shutdown().await
}

fn head(opcode: Opcode, length: usize) -> ([u8; HEAD_BYTES_MAX + 1], usize) {
    let mut head = [0; HEAD_BYTES_MAX + 1];
    head[0] = 0x80 | opcode.number();
    let used = if let Ok(short) = u8::try_from(length)
        && usize::from(short) <= CONTROL_BYTES_MAX
    {
        head[1] = short;
        2
    } else if let Ok(medium) = u16::try_from(length) {
        head[1] = 126;
        head[2..4].copy_from_slice(&medium.to_be_bytes());
        4
    } else {
        head[1] = 127;
        head[2..10].copy_from_slice(&(length as u64).to_be_bytes());
        10
    };
    (head, used)
}

fn broken(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// A frame as a client sends it, for tests.
#[cfg(test)]
pub(super) fn masked(opcode: Opcode, last: bool, payload: &[u8]) -> Vec<u8> {
    let (mut head, used) = head(opcode, payload.len());
    if !last {
        head[0] &= 0x7f;
    }
    head[1] |= 0x80;
    let mask = [1, 2, 3, 4];
    let mut frame = head[..used].to_vec();
    frame.extend_from_slice(&mask);
    frame.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    async fn payload(reader: &mut FrameReader<&[u8]>, mut head: FrameHead) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), [0; 7]);
        loop {
            let read = reader.piece(&mut head, &mut buffer).await.expect("read");
            if read == 0 {
                return all;
            }
            all.extend_from_slice(&buffer[..read]);
        }
    }

    fn wait<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(future)
    }

    #[test]
    fn websocket_protocol_violations_are_refused() {
        for (why, frame) in [
            ("no mask", vec![0x82, 0x01, 0x00]),
            ("an extension", vec![0xc2, 0x81, 0, 0, 0, 0, 0]),
            ("an unknown opcode", vec![0x83, 0x80, 0, 0, 0, 0]),
            ("a ping in pieces", vec![0x09, 0x80, 0, 0, 0, 0]),
            ("a long ping", vec![0x89, 0xfe, 0, 126, 0, 0, 0, 0]),
            ("cut off", vec![0x82]),
        ] {
            assert!(wait(FrameReader::new(frame.as_slice()).head()).is_err(), "{why}");
        }
        assert_eq!(wait(FrameReader::new(&[][..]).head()).expect("the end"), None);
    }

    proptest! {
        #[test]
        fn websocket_client_frames_are_read_as_sent(
            payloads in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..300), 1..4),
        ) {
            let frames: Vec<u8> =
                payloads.iter().flat_map(|p| masked(Opcode::Binary, true, p)).collect();
            wait(async {
                let mut reader = FrameReader::new(frames.as_slice());
                for sent in &payloads {
                    let head = reader.head().await.expect("a frame").expect("a frame");
                    assert_eq!((head.opcode, head.last), (Opcode::Binary, true));
                    assert_eq!(&payload(&mut reader, head).await, sent);
                }
                assert_eq!(reader.head().await.expect("the end"), None);
            });
        }

        #[test]
        fn any_bytes_are_frames_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            wait(async {
                let mut reader = FrameReader::new(bytes.as_slice());
                while let Ok(Some(mut head)) = reader.head().await {
                    let mut buffer = [0; 16];
                    while matches!(reader.piece(&mut head, &mut buffer).await, Ok(1..)) {}
                }
            });
        }
    }

    #[test]
    fn frames_of_every_length_have_the_right_head() {
        for (length, used) in [(0, 2), (125, 2), (126, 4), (65_535, 4), (65_536, 10)] {
            assert_eq!(head(Opcode::Binary, length).1, used, "{length}");
        }
    }
}
