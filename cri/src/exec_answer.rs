//! Decodes the bytes of an `ExecSyncResponse` as they arrive.
//!
//! Pure. Input: the pieces of a gRPC message with its head. Output: the answer with only the first
//! bytes of its outputs, which are never held whole. Bounds: `keep_bytes` of each output,
//! `message_bytes_max` in all. The fuzz targets compile this file by itself: it uses nothing but
//! the message's type.

use std::fmt;

use crate::v1;

/// Bytes before a message: whether it is compressed, and its length.
pub(crate) const HEAD_BYTES: usize = 5;

/// Reason why the bytes are no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Compression was not requested.
    Compressed,
    /// It announces so many bytes.
    TooLong(u64),
    /// It is another message, or none.
    Broken,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compressed => f.write_str("a compressed answer was not asked for"),
            Self::TooLong(bytes) => write!(f, "an answer of {bytes} bytes is too long"),
            Self::Broken => f.write_str("the runtime's answer is no ExecSyncResponse"),
        }
    }
}

/// The reader's position within the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderPosition {
    /// In the bytes before it; so many have come.
    Head(usize),
    /// In the key of a field.
    Key,
    /// In a number of that field.
    Number(u64),
    /// In the length of that field.
    Length(u64),
    /// In the content of that field, of which so many bytes are to come.
    Content(u64, u64),
}

/// Reads an `ExecSyncResponse` as its bytes come.
#[derive(Debug)]
pub(crate) struct Scan {
    at: ReaderPosition,
    keep_bytes: usize,
    message_bytes_max: usize,
    /// The number that is being read, and how many of its bits have come.
    number: u64,
    bits: u32,
    /// Bytes of the message that are to come.
    left: u64,
    answer: v1::ExecSyncResponse,
}

impl Scan {
    /// Nothing has come yet.
    pub(crate) fn new(keep_bytes: usize, message_bytes_max: usize) -> Self {
        let answer = v1::ExecSyncResponse::default();
        let (at, number, bits, left) = (ReaderPosition::Head(0), 0, 0, 0);
        Self { at, keep_bytes, message_bytes_max, number, bits, left, answer }
    }

    /// Takes the next bytes.
    pub(crate) fn read(&mut self, mut data: &[u8]) -> Result<(), Unreadable> {
        while !data.is_empty() {
            if let ReaderPosition::Content(field, length) = self.at {
                let here = usize::try_from(length).unwrap_or(usize::MAX).min(data.len());
                self.keep(field, &data[..here]);
                self.spend(here as u64)?;
                let length = length - here as u64;
                self.at = if length == 0 {
                    ReaderPosition::Key
                } else {
                    ReaderPosition::Content(field, length)
                };
                data = &data[here..];
                continue;
            }
            self.byte(data[0])?;
            data = &data[1..];
        }
        Ok(())
    }

    fn byte(&mut self, byte: u8) -> Result<(), Unreadable> {
        if let ReaderPosition::Head(came) = self.at {
            if came == 0 && byte != 0 {
                return Err(Unreadable::Compressed);
            }
            self.left = (self.left << 8) | u64::from(byte);
            self.at = if came + 1 == HEAD_BYTES {
                ReaderPosition::Key
            } else {
                ReaderPosition::Head(came + 1)
            };
            if self.left > self.message_bytes_max as u64 {
                return Err(Unreadable::TooLong(self.left));
            }
            return Ok(());
        }
        self.spend(1)?;
        if self.bits >= u64::BITS {
            return Err(Unreadable::Broken);
        }
        self.number |= u64::from(byte & 0x7F) << self.bits;
        self.bits += 7;
        if byte & 0x80 != 0 {
            return Ok(());
        }
        let number = std::mem::take(&mut self.number);
        self.bits = 0;
        self.at = match self.at {
            ReaderPosition::Key => match number & 7 {
                0 => ReaderPosition::Number(number >> 3),
                1 => ReaderPosition::Content(0, 8),
                2 => ReaderPosition::Length(number >> 3),
                5 => ReaderPosition::Content(0, 4),
                _ => return Err(Unreadable::Broken),
            },
            ReaderPosition::Length(_) if number == 0 => ReaderPosition::Key,
            ReaderPosition::Length(field) => ReaderPosition::Content(field, number),
            _ => {
                if self.at == ReaderPosition::Number(3) {
                    self.answer.exit_code = number as i32;
                }
                ReaderPosition::Key
            }
        };
        Ok(())
    }

    fn keep(&mut self, field: u64, data: &[u8]) {
        let output = match field {
            1 => &mut self.answer.stdout,
            2 => &mut self.answer.stderr,
            _ => return,
        };
        let room = self.keep_bytes.saturating_sub(output.len());
        output.extend_from_slice(&data[..data.len().min(room)]);
    }

    fn spend(&mut self, bytes: u64) -> Result<(), Unreadable> {
        self.left = self.left.checked_sub(bytes).ok_or(Unreadable::Broken)?;
        Ok(())
    }

    /// The whole answer, unless more was announced.
    pub(crate) fn done(self) -> Result<v1::ExecSyncResponse, Unreadable> {
        match self.at {
            ReaderPosition::Key if self.left == 0 => Ok(self.answer),
            _ => Err(Unreadable::Broken),
        }
    }
}

/// Feeds any bytes to the reader, as an answer and as the message of one, whole and in two pieces;
/// for fuzzing. Must not panic, keep more than it may, or depend on the pieces.
pub fn fuzz(bytes: &[u8]) {
    const KEEP_BYTES: usize = 10;
    const MESSAGE_BYTES: usize = 1 << 20;
    let scan = |pieces: &[&[u8]]| {
        let mut scan = Scan::new(KEEP_BYTES, MESSAGE_BYTES);
        pieces.iter().try_for_each(|piece| scan.read(piece))?;
        scan.done()
    };
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    let framed = [&[0][..], &length, bytes].concat();
    for bytes in [bytes, &framed] {
        let whole = scan(&[bytes]);
        if let Ok(answer) = &whole {
            assert!(answer.stdout.len() <= KEEP_BYTES && answer.stderr.len() <= KEEP_BYTES);
        }
        for at in [1, HEAD_BYTES, bytes.len() / 2] {
            let (first, rest) = bytes.split_at(at.min(bytes.len()));
            assert_eq!(scan(&[first, rest]), whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    const MESSAGE_BYTES_MAX: usize = 1 << 24;

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
        [&[0][..], &length, message].concat()
    }

    fn scan(pieces: &[&[u8]], keep_bytes: usize) -> Result<v1::ExecSyncResponse, Unreadable> {
        let mut scan = Scan::new(keep_bytes, MESSAGE_BYTES_MAX);
        for piece in pieces {
            scan.read(piece)?;
        }
        scan.done()
    }

    proptest! {
        #[test]
        fn exec_response_is_read_regardless_of_its_chunks_and_truncation(
            stdout in proptest::collection::vec(any::<u8>(), 0..300),
            stderr in proptest::collection::vec(any::<u8>(), 0..300),
            exit_code: i32, keep in 0_usize..320, cuts in proptest::collection::vec(0_usize..700, 0..6),
        ) {
            let answer = v1::ExecSyncResponse { stdout, stderr, exit_code };
            let bytes = framed(&answer.encode_to_vec());
            let mut cuts: Vec<_> = cuts.into_iter().map(|at| at.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            let mut expected = answer;
            expected.stdout.truncate(keep);
            expected.stderr.truncate(keep);
            prop_assert_eq!(scan(&pieces, keep).expect("it is whole"), expected);
            let short = &bytes[..bytes.len() - 1];
            prop_assert!(bytes.len() == HEAD_BYTES || scan(&[short], keep).is_err());
        }

        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            fuzz(&bytes);
        }
    }

    #[test]
    fn fields_of_a_later_protocol_are_passed_over() {
        let answer = v1::ExecSyncResponse { exit_code: 7, ..Default::default() };
        let mut bytes = vec![0x22, 3, b'x', b'y', b'z', 0x29]; // field 4: bytes, field 5: 64 bit
        bytes.extend([0; 8]);
        bytes.extend([0x35, 0, 0, 0, 0, 0x38, 0xAC, 2, 0x1A, 0]); // 32 bit, a number, nothing
        bytes.extend(answer.encode_to_vec());
        assert_eq!(scan(&[&framed(&bytes)], 5).expect("it is whole"), answer);
    }

    #[test]
    fn exec_response_above_the_message_limit_is_refused_before_it_is_read() {
        let length = u32::try_from(MESSAGE_BYTES_MAX + 1).expect("it fits").to_be_bytes();
        let refused = scan(&[&[0], &length], 5).expect_err("it is too long");
        assert_eq!(refused, Unreadable::TooLong(MESSAGE_BYTES_MAX as u64 + 1));
    }
}
