//! Connections whose requests name the socket's path as their authority, as the kubelet's do.
//!
//! Go's gRPC client sends the escaped path of the socket, which the HTTP library refuses as no
//! authority (PROTOCOL_ERROR). Input: the bytes of a client. Output: the same bytes with another value
//! of equal length in each literal `:authority`. Header fields are walked, not decoded: HPACK's table
//! then has an entry that is no longer than the client's, so no later index points elsewhere. Bound:
//! one frame is held back until it is complete. For tests.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::{Connected, UdsConnectInfo};

/// What every client sends first.
const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
/// The type of a frame with header fields, and its flags.
const HEADERS: u8 = 1;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;
/// `:authority` in HPACK's static table.
const AUTHORITY: usize = 1;
const READ_BYTES: usize = 16 << 10;

/// A connection with acceptable authorities.
#[derive(Debug)]
pub(crate) struct Lenient {
    stream: UnixStream,
    /// Bytes of a frame that is not complete.
    pending: Vec<u8>,
    /// Bytes to be read.
    ready: Vec<u8>,
    has_begun: bool,
}

impl Lenient {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, pending: Vec::new(), ready: Vec::new(), has_begun: false }
    }

    /// Moves complete frames on.
    fn release_frames(&mut self) {
        if !self.has_begun {
            if self.pending.len() < PREFACE_BYTES {
                return;
            }
            self.ready.extend(self.pending.drain(..PREFACE_BYTES));
            self.has_begun = true;
        }
        while let Some(length) = frame_length(&self.pending) {
            let mut frame: Vec<u8> = self.pending.drain(..length).collect();
            if frame[3] == HEADERS {
                // A block that cannot be walked is the HTTP library's to refuse.
                let _ = replace_authority(&mut frame);
            }
            self.ready.append(&mut frame);
        }
    }
}

/// Bytes of the first frame, if it is complete.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..FRAME_HEADER_BYTES)?;
    let payload =
        usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
    let length = FRAME_HEADER_BYTES + payload;
    (bytes.len() >= length).then_some(length)
}

/// Walks the fields of a HEADERS frame; `None` if it ends in the middle of one.
fn replace_authority(frame: &mut [u8]) -> Option<()> {
    let flags = frame[4];
    let mut at = FRAME_HEADER_BYTES;
    let mut end = frame.len();
    if flags & PADDED != 0 {
        end = end.checked_sub(usize::from(*frame.get(at)?))?;
        at += 1;
    }
    if flags & PRIORITY != 0 {
        at += 5;
    }
    while at < end {
        let first = *frame.get(at)?;
        let prefix_bits = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let name = integer(frame, &mut at, prefix_bits)?;
        if first & 0x80 != 0 || first & 0xe0 == 0x20 {
            continue; // an index, or a new size of the table
        }
        if name == 0 {
            skip_text(frame, &mut at)?;
        }
        let begin = at;
        let text = skip_text(frame, &mut at)?;
        if name == AUTHORITY && text < at {
            frame[begin] &= 0x7f; // plain, not in Huffman's code
            frame[text..at].fill(b'a');
        }
    }
    Some(())
}

/// Passes a text; returns where its bytes begin.
fn skip_text(frame: &[u8], at: &mut usize) -> Option<usize> {
    let length = integer(frame, at, 7)?;
    let begin = *at;
    *at = begin.checked_add(length).filter(|end| *end <= frame.len())?;
    Some(begin)
}

/// Passes an integer of HPACK with a prefix of so many bits.
fn integer(frame: &[u8], at: &mut usize, prefix_bits: u32) -> Option<usize> {
    let most = (1_usize << prefix_bits) - 1;
    let mut value = usize::from(*frame.get(*at)?) & most;
    *at += 1;
    if value < most {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = usize::from(*frame.get(*at)?);
        *at += 1;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

impl AsyncRead for Lenient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.ready.is_empty() {
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                self.ready = std::mem::take(&mut self.pending);
                break;
            }
            self.pending.extend_from_slice(read.filled());
            self.release_frames();
        }
        let count = self.ready.len().min(to.remaining());
        to.put_slice(&self.ready[..count]);
        self.ready.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Lenient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Lenient {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of HEADERS with these fields.
    fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("a short frame");
        [&[0, 0, length, HEADERS, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn authority_is_replaced_and_every_other_byte_is_kept() {
        // POST, http, a literal path, the authority in Huffman's code, an index, a new name.
        let fields = [
            &[0x83, 0x86, 0x44, 2, b'/', b'x'][..],
            &[0x41, 0x83, 0xde, 0xad, 0xbf, 0xbe, 0x40, 1, b'n', 1, b'v'],
        ]
        .concat();
        let mut found = frame(0, &fields);
        replace_authority(&mut found).expect("it can be walked");
        let mut wanted = frame(0, &fields);
        wanted[9 + 7] = 3;
        wanted[9 + 8..9 + 11].fill(b'a');
        assert_eq!(found, wanted);
    }

    #[test]
    fn padding_and_priority_are_passed_and_a_broken_block_is_left() {
        let mut padded = frame(PADDED | PRIORITY, &[1, 0, 0, 0, 0, 9, 0x41, 1, b'/', 0]);
        replace_authority(&mut padded).expect("it can be walked");
        assert_eq!(padded[9 + 8..], *b"a\0");
        assert_eq!(replace_authority(&mut frame(0, &[0x41, 0x05, b'/'])), None);
    }

    #[test]
    fn frames_are_released_when_they_are_complete() {
        assert_eq!(frame_length(&[0, 0, 1, 0, 0, 0, 0, 0]), None);
        assert_eq!(frame_length(&[0, 0, 1, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(frame_length(&[0, 0, 1, 0, 0, 0, 0, 0, 0, 7, 8]), Some(10));
    }
}
