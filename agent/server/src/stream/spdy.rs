//! SPDY/3.1, as much of it as a client of a runtime's exec and attach needs.
//!
//! Output: frames that open streams with one header, carry data and end. Input: frames of the
//! runtime; their heads are parsed, their headers ignored, so nothing is ever decompressed. Our own
//! headers are "compressed" in stored blocks, which every zlib reads: the stream's state is then
//! the position in it and nothing else. There is no flow control in this dialect; a side that does
//! not read blocks the whole connection. Pure, and independent of the rest of the agent: fuzzing
//! links this file alone.
// k8s: staging/src/k8s.io/streaming/pkg/httpstream/spdy/connection.go; github.com/moby/spdystream

/// Bytes of every frame's head.
pub(super) const HEAD_BYTES: usize = 8;
/// Largest payload of a control frame that is read.
const PING_BYTES: usize = 4;
/// The first stream of a client; further ones are every second number.
pub(super) const FIRST_STREAM: u32 = 1;

const VERSION: u16 = 3;
const CONTROL: u32 = 0x8000_0000;
const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GO_AWAY: u16 = 7;
const FLAG_FIN: u8 = 0x01;
/// zlib's head: deflate, a dictionary follows, check bits.
const ZLIB_HEAD: [u8; 2] = [0x78, 0xbb];
/// Adler-32 of the dictionary of SPDY/3.
const DICTIONARY_ID: [u8; 4] = [0xe3, 0xc6, 0xa7, 0xc2];
/// An empty stored block: everything before it is to be delivered.
const SYNC_FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// The head of a frame from the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpdyHead {
    /// Data of a stream; `last` ends it.
    Data { stream: u32, last: bool, bytes: u32 },
    /// The runtime resets a stream.
    Reset { bytes: u32 },
    /// To be sent back unchanged.
    Ping { bytes: u32 },
    /// No more streams; the connection is about to end.
    GoAway { bytes: u32 },
    /// Of no interest; to be skipped.
    Other { bytes: u32 },
}

impl SpdyHead {
    /// Parses a head. Any bytes are one.
    pub(super) fn parse(head: [u8; HEAD_BYTES]) -> Self {
        let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let last = head[4] & FLAG_FIN != 0;
        let bytes = u32::from_be_bytes([0, head[5], head[6], head[7]]);
        if first & CONTROL == 0 {
            return Self::Data { stream: first, last, bytes };
        }
        match u16::from_be_bytes([head[2], head[3]]) {
            RST_STREAM => Self::Reset { bytes },
            PING if bytes as usize == PING_BYTES => Self::Ping { bytes },
            GO_AWAY => Self::GoAway { bytes },
            _ => Self::Other { bytes },
        }
    }
}

/// Reads any bytes as heads of a runtime's frames, for fuzzing.
pub fn fuzz(bytes: &[u8]) {
    let mut rest = bytes;
    while let Some((head, after)) = rest.split_first_chunk() {
        let (SpdyHead::Data { bytes, .. }
        | SpdyHead::Reset { bytes }
        | SpdyHead::Ping { bytes }
        | SpdyHead::GoAway { bytes }
        | SpdyHead::Other { bytes }) = SpdyHead::parse(*head);
        assert!(bytes < 1 << 24, "a length has 24 bits");
        rest = after.get(bytes as usize..).unwrap_or_default();
    }
}

/// Makes the frames of a client.
#[derive(Debug, Default)]
pub(super) struct Framer {
    begun: bool,
}

impl Framer {
    /// Opens a stream with one header. With `last` nothing will be sent on it.
    pub(super) fn open(&mut self, stream: u32, name: &str, value: &str, last: bool) -> Vec<u8> {
        let mut block = 1_u32.to_be_bytes().to_vec();
        for text in [name, value] {
            block.extend_from_slice(&length(text.len()).to_be_bytes());
            block.extend_from_slice(text.as_bytes());
        }
        let mut payload = stream.to_be_bytes().to_vec();
        payload.extend_from_slice(&[0; 4]); // belongs to no other stream
        payload.extend_from_slice(&[0; 2]); // priority, slot
        if !self.begun {
            self.begun = true;
            payload.extend_from_slice(&ZLIB_HEAD);
            payload.extend_from_slice(&DICTIONARY_ID);
        }
        let stored = u16::try_from(block.len()).expect("two short texts fit into a block");
        payload.push(0); // a stored block, not the last one
        payload.extend_from_slice(&stored.to_le_bytes());
        payload.extend_from_slice(&(!stored).to_le_bytes());
        payload.extend_from_slice(&block);
        payload.extend_from_slice(&SYNC_FLUSH);
        let mut frame = control(SYN_STREAM, last, payload.len());
        frame.extend_from_slice(&payload);
        frame
    }
}

/// The head of a frame of data.
pub(super) fn data(stream: u32, last: bool, bytes: usize) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&stream.to_be_bytes());
    head[4..].copy_from_slice(&length(bytes).to_be_bytes());
    head[4] = if last { FLAG_FIN } else { 0 };
    head
}

/// A ping with the number of the one that was received.
pub(super) fn ping(number: [u8; PING_BYTES]) -> Vec<u8> {
    let mut frame = control(PING, false, PING_BYTES);
    frame.extend_from_slice(&number);
    frame
}

fn control(kind: u16, last: bool, bytes: usize) -> Vec<u8> {
    let mut frame = (CONTROL | u32::from(VERSION) << 16 | u32::from(kind)).to_be_bytes().to_vec();
    frame.extend_from_slice(&length(bytes).to_be_bytes());
    frame[4] = if last { FLAG_FIN } else { 0 };
    frame
}

/// A length of a frame: 24 bits.
fn length(bytes: usize) -> u32 {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    assert!(bytes < 1 << 24, "frames are cut far below 16 MiB");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::DeflateDecoder;
    use proptest::prelude::*;
    use std::io::Read as _;

    /// The header blocks of several frames, inflated as one stream.
    fn inflated(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut deflated = Vec::new();
        for (index, frame) in frames.iter().enumerate() {
            let start = HEAD_BYTES + 10 + if index == 0 { 6 } else { 0 };
            deflated.extend_from_slice(&frame[start..]);
        }
        let mut out = Vec::new();
        // The stream continues for as long as the connection: its end is missing here.
        let _ = DeflateDecoder::new(deflated.as_slice()).read_to_end(&mut out);
        out
    }

    #[test]
    fn streams_are_opened_with_headers_that_zlib_reads() {
        let mut framer = Framer::default();
        let frames = [
            framer.open(1, "streamtype", "error", true),
            framer.open(3, "streamtype", "stdin", false),
        ];
        assert_eq!(&frames[0][..5], &[0x80, 3, 0, 1, FLAG_FIN]);
        assert_eq!(frames[1][4], 0);
        assert_eq!(&frames[0][8..12], &[0, 0, 0, 1]);
        assert_eq!(&frames[0][18..24], &[0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2]);
        assert_eq!(u16::from_be_bytes(ZLIB_HEAD) % 31, 0, "check bits of zlib's head");
        for frame in &frames {
            let bytes = usize::from(frame[6]) << 8 | usize::from(frame[7]);
            assert_eq!(bytes, frame.len() - HEAD_BYTES);
        }
        let mut expected = Vec::new();
        for value in ["error", "stdin"] {
            expected.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 10]);
            expected.extend_from_slice(b"streamtype");
            expected.extend_from_slice(&[0, 0, 0, 5]);
            expected.extend_from_slice(value.as_bytes());
        }
        assert_eq!(inflated(&frames), expected);
    }

    #[test]
    fn spdy_frame_heads_are_distinguished() {
        let head = |bytes: &[u8]| SpdyHead::parse(bytes.try_into().expect("8 bytes"));
        let data = data(5, true, 7);
        assert_eq!(head(&data), SpdyHead::Data { stream: 5, last: true, bytes: 7 });
        assert_eq!(head(&ping([0, 0, 0, 2])[..8]), SpdyHead::Ping { bytes: 4 });
        assert_eq!(head(&[0x80, 3, 0, 3, 0, 0, 0, 8]), SpdyHead::Reset { bytes: 8 });
        assert_eq!(head(&[0x80, 3, 0, 7, 0, 0, 0, 8]), SpdyHead::GoAway { bytes: 8 });
        assert_eq!(head(&[0x80, 3, 0, 2, 0, 0, 1, 0]), SpdyHead::Other { bytes: 256 });
        assert_eq!(head(&[0x80, 3, 0, 6, 0, 0, 1, 0]), SpdyHead::Other { bytes: 256 });
    }

    proptest! {
        #[test]
        fn any_spdy_frame_head_has_the_length_of_its_frame(head in any::<[u8; 8]>()) {
            let expected = u32::from_be_bytes([0, head[5], head[6], head[7]]);
            let (SpdyHead::Data { bytes, .. } | SpdyHead::Reset { bytes } | SpdyHead::Ping { bytes }
                | SpdyHead::GoAway { bytes } | SpdyHead::Other { bytes }) = SpdyHead::parse(head);
            prop_assert_eq!(bytes, expected);
        }
    }
}
