//! Reads the bytes of a segment: whatever they are, returns the whole parts and the losses.
//!
//! A batch is whole or not there. Behind a broken one the next is searched for at each sector. JSON
//! has no zero bytes and the head of a batch always has some, so text of a pod is never taken for a
//! batch. Only a segment of a newer format is refused. Pure; bounds: the bytes given.

use std::ops::Range;

use super::crc32c::crc32c;
use super::frame::Frame;
use super::segment::{
    BATCH_HEADER_BYTES, FORMAT, FRAME_HEADER_BYTES, HEADER_BYTES, Header, MAGIC, MARKER,
    SECTOR_BYTES, header_crc, sector_after,
};

/// Why a segment is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Written by a newer agent.
    #[error(
        "the segment has format {found}; this program reads formats up to {FORMAT}: use one \
             that is as new as the agent that wrote it"
    )]
    Newer {
        /// Its format.
        found: u32,
    },
}

/// A batch that is whole.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Its number since the start of the agent, from 0.
    pub number: u64,
    /// Its frames.
    pub frames: Vec<Frame>,
}

/// A part of the record that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Its byte range.
    pub bytes: Range<usize>,
    /// Which batches; to an unknown number (`None`) at the end of the segment.
    pub batches: (u64, Option<u64>),
}

/// A segment as far as it is there.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// Its number; `None` when nothing of it is there.
    pub number: Option<u64>,
    /// `None` when its sector is broken.
    pub header: Option<Header>,
    /// In the order in which they were written.
    pub batches: Vec<Batch>,
    /// In the order of their places; a broken header is not a loss.
    pub losses: Vec<Loss>,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Range { start, end } = &self.bytes;
        match self.batches {
            (first, Some(next)) if next == first + 1 => write!(f, "batch {first}")?,
            (first, Some(next)) => write!(f, "batches {first} to {}", next - 1)?,
            (first, None) => write!(f, "what follows batch {first}, with it")?,
        }
        match start == end {
            true => write!(f, ": never written"),
            false => write!(f, ": bytes {start} to {end} are broken"),
        }
    }
}

/// Reads the whole parts of a segment.
pub fn read(bytes: &[u8]) -> Result<Segment, ReadError> {
    let header = read_header(bytes)?;
    let found = find(bytes);
    // Numbers grow, so a batch with a smaller one was in this place before.
    let numbers = found.iter().map(|found| found.segment).chain(header.iter().map(|h| h.number));
    let number = numbers.max();
    let header = header.filter(|header| Some(header.number) == number);
    let (mut at, mut next) = (SECTOR_BYTES, header.as_ref().map_or(0, |h| h.first_batch));
    let mut segment = Segment { number, header, ..Segment::default() };
    for found in found {
        if Some(found.segment) != number || found.batch.number < next {
            continue;
        }
        // Without a header the number of the first batch is unknown; the batch in this place is the
        // first.
        if segment.header.is_none() && found.bytes.start == SECTOR_BYTES {
            next = found.batch.number;
        }
        if found.bytes.start > at || found.batch.number > next {
            let batches = (next, Some(found.batch.number));
            segment.losses.push(Loss { bytes: at..found.bytes.start, batches });
        }
        (at, next) = (found.bytes.end, found.batch.number + 1);
        segment.batches.push(found.batch);
    }
    if bytes.len() > at {
        segment.losses.push(Loss { bytes: at..bytes.len(), batches: (next, None) });
    }
    Ok(segment)
}

fn read_header(bytes: &[u8]) -> Result<Option<Header>, ReadError> {
    let Some(rest) = bytes.strip_prefix(&MAGIC) else { return Ok(None) };
    let mut fields = NumberFields(rest);
    let (Some(format), Some(length), Some(crc)) = (fields.u32(), fields.u32(), fields.u32()) else {
        return Ok(None);
    };
    let end = HEADER_BYTES.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
    let Some(whole) = bytes.get(..end).filter(|whole| header_crc(whole) == crc) else {
        return Ok(None);
    };
    if format > FORMAT {
        return Err(ReadError::Newer { found: format });
    }
    Ok(serde_json::from_slice(&whole[HEADER_BYTES..]).ok())
}

/// A batch, with its place and segment.
struct FoundBatch {
    segment: u64,
    bytes: Range<usize>,
    batch: Batch,
}

/// All whole batches, of any segment.
fn find(bytes: &[u8]) -> Vec<FoundBatch> {
    let (mut all, mut at) = (Vec::new(), SECTOR_BYTES);
    while at < bytes.len() {
        match batch_at(bytes, at) {
            Some(found) => {
                at = found.bytes.end;
                all.push(found);
            }
            None => at += SECTOR_BYTES,
        }
    }
    all
}

fn batch_at(bytes: &[u8], at: usize) -> Option<FoundBatch> {
    let head = bytes.get(at..at + BATCH_HEADER_BYTES)?;
    let mut fields = NumberFields(head.strip_prefix(&MARKER)?);
    let (segment, number) = (fields.u64()?, fields.u64()?);
    let (count, length, crc) = (fields.u32()?, fields.u32()?, fields.u32()?);
    if crc32c(&head[..BATCH_HEADER_BYTES - 4]) != fields.u32()? {
        return None;
    }
    let from = at + BATCH_HEADER_BYTES;
    let to = from.checked_add(usize::try_from(length).ok()?)?;
    let payload = bytes.get(from..to).filter(|payload| crc32c(payload) == crc)?;
    let frames = frames_of(payload).filter(|frames| frames.len() == count as usize)?;
    // The padding of the last sector may be cut off.
    let end = sector_after(to).min(bytes.len());
    Some(FoundBatch { segment, bytes: at..end, batch: Batch { number, frames } })
}

fn frames_of(mut payload: &[u8]) -> Option<Vec<Frame>> {
    let mut frames = Vec::new();
    while !payload.is_empty() {
        let (head, rest) = payload.split_at_checked(FRAME_HEADER_BYTES)?;
        let mut fields = NumberFields(head);
        let (length, crc) = (fields.u32()?, fields.u32()?);
        let (json, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        if crc32c(json) != crc {
            return None;
        }
        frames.push(frame_of(json).unwrap_or(Frame::Unknown { bytes: json.len() as u64 }));
        payload = rest;
    }
    Some(frames)
}

fn frame_of(json: &[u8]) -> Option<Frame> {
    match serde_json::from_slice(json).ok()? {
        Frame::Packed(packed) => match serde_json::from_slice(&packed.json()?).ok()? {
            Frame::Packed(_) => None,
            frame => Some(frame),
        },
        frame => Some(frame),
    }
}

/// Numbers one after the other.
struct NumberFields<'a>(&'a [u8]);

impl NumberFields<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*field))
    }

    fn u64(&mut self) -> Option<u64> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*field))
    }
}
