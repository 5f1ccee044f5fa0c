//! Questions of FUSE and answers to them, as bytes: version 7.31 of the kernel's protocol. Pure.

use nix::errno::Errno;

use super::faulty::DiskOperation;

/// The root's number.
pub(super) const ROOT: u64 = 1;
/// Length of an answer's head, and of a question's.
pub(super) const HEAD_BYTES: usize = 16;
const QUESTION_HEAD_BYTES: usize = 40;
/// Types, as in `st_mode`.
pub(super) const KIND_DIR: u32 = 0o040_000;
pub(super) const KIND_FILE: u32 = 0o100_000;
pub(super) const KIND_LINK: u32 = 0o120_000;
/// Reads and writes come here, whatever was read before.
const DIRECT: u32 = 1;
/// The kernel may send several reads of a cached file without waiting.
const ASYNC_READ: u32 = 1;
/// Pages cached before the file was opened stay.
const KEEP: u32 = 2;
const BLOCK_BYTES: u32 = 4096;

/// Operation codes of requests.
pub(super) mod code {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const RENAME2: u32 = 45;
}

/// A question.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) code: u32,
    pub(super) id: u64,
    pub(super) node: u64,
    bytes: Vec<u8>,
}

impl Request {
    pub(super) fn read(question: &[u8]) -> Option<Self> {
        let mut head = Body(question);
        let (_, code) = (head.word32().ok()?, head.word32().ok()?);
        let (id, node) = (head.word64().ok()?, head.word64().ok()?);
        let bytes = question.get(QUESTION_HEAD_BYTES..)?.to_owned();
        Some(Self { code, id, node, bytes })
    }

    pub(super) fn body(&self) -> Body<'_> {
        Body(&self.bytes)
    }

    pub(super) fn operation(&self) -> Option<DiskOperation> {
        Some(match self.code {
            code::LOOKUP => DiskOperation::Lookup,
            code::OPEN => DiskOperation::Open,
            code::CREATE => DiskOperation::Create,
            code::READ => DiskOperation::Read,
            code::WRITE => DiskOperation::Write,
            code::FSYNC | code::FSYNCDIR => DiskOperation::Sync,
            code::UNLINK => DiskOperation::Unlink,
            code::RENAME | code::RENAME2 => DiskOperation::Rename,
            _ => return None,
        })
    }
}

/// The part of a request that has not been read.
pub(super) struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Errno> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Errno::EPROTO)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn word32(&mut self) -> Result<u32, Errno> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| Errno::EPROTO)?))
    }

    pub(super) fn word64(&mut self) -> Result<u64, Errno> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| Errno::EPROTO)?))
    }

    pub(super) fn skip(&mut self, bytes: usize) -> Result<(), Errno> {
        self.take(bytes).map(drop)
    }

    /// Up to a NUL.
    pub(super) fn name(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::EPROTO)?;
        let name = self.take(end)?;
        self.skip(1)?;
        Ok(name)
    }

    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Attributes of a file.
pub(super) struct Attr {
    pub(super) number: u64,
    pub(super) mode: u32,
    pub(super) size: u64,
    pub(super) owner: (u32, u32),
}

/// An answer without its head.
pub(super) struct Answer {
    pub(super) bytes: Vec<u8>,
}

impl Answer {
    pub(super) fn empty() -> Self {
        Self { bytes: Vec::new() }
    }

    fn word32(mut self, word: u32) -> Self {
        self.bytes.extend_from_slice(&word.to_le_bytes());
        self
    }

    fn word64(mut self, word: u64) -> Self {
        self.bytes.extend_from_slice(&word.to_le_bytes());
        self
    }

    fn zeros(mut self, count: usize) -> Self {
        self.bytes.resize(self.bytes.len() + count, 0);
        self
    }

    /// Version, how far files are read ahead where they are cached, and the smallest of all else.
    pub(super) fn init() -> Self {
        let all = Self::empty().word32(7).word32(31).word32(128 << 10).word32(ASYNC_READ);
        all.zeros(4).word32(128 << 10).zeros(40)
    }

    fn with_attr(self, attr: &Attr) -> Self {
        let blocks = attr.size.div_ceil(512);
        let all = self.word64(attr.number).word64(attr.size).word64(blocks);
        // Three times with their fractions.
        let all = all.zeros(3 * 8 + 3 * 4).word32(attr.mode).word32(1);
        all.word32(attr.owner.0).word32(attr.owner.1).word32(0).word32(BLOCK_BYTES).word32(0)
    }

    /// The result of a lookup or a create; the kernel must not cache it.
    pub(super) fn entry(attr: &Attr) -> Self {
        Self::empty().word64(attr.number).zeros(4 * 8).with_attr(attr)
    }

    pub(super) fn attr(attr: &Attr) -> Self {
        Self::empty().zeros(16).with_attr(attr)
    }

    pub(super) fn and_open(self, is_cached: bool) -> Self {
        self.word64(0).word32(if is_cached { KEEP } else { DIRECT }).word32(0)
    }

    pub(super) fn wrote(size: u32) -> Self {
        Self::empty().word32(size).word32(0)
    }

    pub(super) fn statfs() -> Self {
        let all = Self::empty().word64(1 << 20).word64(1 << 19).word64(1 << 19);
        all.word64(1 << 20).word64(1 << 19).word32(BLOCK_BYTES).word32(255).zeros(32)
    }

    /// One more name of a folder; false when there is no room for it.
    pub(super) fn list(
        &mut self,
        number: u64,
        next: u64,
        kind: u32,
        name: &[u8],
        bytes_max: usize,
    ) -> bool {
        let entry = Self::empty().word64(number).word64(next);
        let length = u32::try_from(name.len()).expect("a short name");
        let mut entry = entry.word32(length).word32(kind >> 12);
        entry.bytes.extend_from_slice(name);
        entry.bytes.resize(entry.bytes.len().next_multiple_of(8), 0);
        if self.bytes.len() + entry.bytes.len() > bytes_max {
            return false;
        }
        self.bytes.append(&mut entry.bytes);
        true
    }
}
