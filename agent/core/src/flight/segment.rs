//! The bytes of a segment, written.
//!
//! ```text
//!   0      magic, format version, length and CRC-32C of what follows: Header as JSON
//!   512    batch: marker, number of the segment, of the batch, frames, length, CRC of the payload,
//!          CRC of these; payload: frames of (length, CRC-32C, JSON) ; zeros up to a sector
//!   …      batch
//! ```
//! Numbers are little-endian. Each batch begins at a sector of its own. A disk writes a sector
//! whole: a crash tears only the batch that was being written, because the one before it is not
//! touched again. A reader finds the next batch behind a broken one without following its length.
//! Each batch names its segment, so older content of the disk is not taken for a part of it;
//! numbers of segments only grow.
//!
//! Pure: returns bytes to append, and reports when the segment is full. Bounds: below.

use serde::{Deserialize, Serialize};

use super::crc32c::crc32c;
use pintle_api_types::ids::UnixNanos;

/// Alignment of batches.
pub const SECTOR_BYTES: usize = 512;
/// A segment is full at this size; one batch may be beyond it.
pub const SEGMENT_BYTES: u64 = 8 << 20;
/// A batch is to be written at this size; one frame may be beyond it.
pub const BATCH_BYTES_MAX: usize = 128 << 10;
/// Longest frame; the API server takes no object that is longer than an eighth of it.
pub const FRAME_BYTES_MAX: usize = 12 << 20;
/// Version of the format. The fields before the header's JSON are the same in all versions.
pub const FORMAT: u32 = 1;

pub(super) const MAGIC: [u8; 8] = *b"pintleFR";
pub(super) const MARKER: [u8; 4] = *b"PFRb";
/// Magic, format, length, CRC.
pub(super) const HEADER_BYTES: usize = 20;
/// Marker, segment, batch, frames, length, CRC of the payload, CRC of all this.
pub(super) const BATCH_HEADER_BYTES: usize = 36;
/// Length and CRC.
pub(super) const FRAME_HEADER_BYTES: usize = 8;

/// The description of a segment at its beginning. It fits into a sector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Counts the segments of this node; only grows.
    pub number: u64,
    /// The number of its first batch. They are counted from the start of the agent, over all its
    /// segments, so that one that is missing is missed.
    pub first_batch: u64,
    /// Names the key under which values were redacted.
    pub key_id: String,
    /// When it began.
    pub began_at: UnixNanos,
}

/// A frame that cannot be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {bytes} bytes is longer than {FRAME_BYTES_MAX}")]
pub struct TooLong {
    /// Its length.
    pub bytes: usize,
}

/// Writes one segment.
#[derive(Debug)]
pub struct Encoder {
    number: u64,
    batch: u64,
    /// Given out, in bytes.
    written: u64,
    frames: u32,
    /// The batch that is being filled, with room for its header.
    pending: Vec<u8>,
}

impl Encoder {
    /// A segment, and the bytes with which it begins.
    pub fn begin(header: &Header) -> (Self, Vec<u8>) {
        let json = serde_json::to_vec(header).expect("plain data serialises");
        let mut bytes = Vec::with_capacity(SECTOR_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(length(json.len()).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(json);
        let crc = header_crc(&bytes);
        bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        assert!(bytes.len() <= SECTOR_BYTES, "a header fits into a sector");
        pad(&mut bytes);
        let written = bytes.len() as u64;
        let (number, batch) = (header.number, header.first_batch);
        (Self { number, batch, written, frames: 0, pending: Vec::new() }, bytes)
    }

    /// Adds a frame to the batch.
    pub fn push(&mut self, json: &[u8]) -> Result<(), TooLong> {
        if json.len() > FRAME_BYTES_MAX {
            return Err(TooLong { bytes: json.len() });
        }
        if self.pending.is_empty() {
            self.pending.resize(BATCH_HEADER_BYTES, 0);
        }
        self.pending.extend(length(json.len()).to_le_bytes());
        self.pending.extend(crc32c(json).to_le_bytes());
        self.pending.extend(json);
        self.frames += 1;
        Ok(())
    }

    /// Bytes that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// The batch, to be appended in one write; `None` when there is nothing in it.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        if self.pending.is_empty() {
            return None;
        }
        let mut bytes = std::mem::take(&mut self.pending);
        let payload = &bytes[BATCH_HEADER_BYTES..];
        let mut header = Vec::with_capacity(BATCH_HEADER_BYTES);
        header.extend(MARKER);
        header.extend(self.number.to_le_bytes());
        header.extend(self.batch.to_le_bytes());
        header.extend(std::mem::take(&mut self.frames).to_le_bytes());
        header.extend(length(payload.len()).to_le_bytes());
        header.extend(crc32c(payload).to_le_bytes());
        header.extend(crc32c(&header).to_le_bytes());
        bytes[..BATCH_HEADER_BYTES].copy_from_slice(&header);
        pad(&mut bytes);
        self.batch += 1;
        self.written += bytes.len() as u64;
        Some(bytes)
    }

    /// The number of the next batch.
    pub fn next_batch(&self) -> u64 {
        self.batch
    }

    /// The next batch belongs into another segment.
    pub fn is_full(&self) -> bool {
        self.written >= SEGMENT_BYTES
    }
}

/// Of a header with its JSON, without the header's own CRC.
pub(super) fn header_crc(bytes: &[u8]) -> u32 {
    let (before, after) = (&bytes[..HEADER_BYTES - 4], &bytes[HEADER_BYTES..]);
    crc32c(&[before, after].concat())
}

/// The first place from `at` on where a batch may begin.
pub(super) fn sector_after(at: usize) -> usize {
    at.next_multiple_of(SECTOR_BYTES)
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(sector_after(bytes.len()), 0);
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("batches end long before 4 GiB")
}
