//! Requests: steps of a chain in their order, chains of a batch.
//!
//! Input: paths, bytes and descriptors, all owned. Output: one `Done` for each step. A chain stops
//! at its first step that fails. Files that it opened are closed at its end, also after a failure.
//! Nothing here touches a file.
//!
//! Only regular files are read and written at an offset the same way by both backends. A read is
//! one read: it is short at the end of the file. A write is all of its bytes or an error. Closing
//! reports no error, as a descriptor of a ring has no flush: a caller that needs it syncs.
//!
//! Bounds: `STEPS_MAX`, `OPENS_MAX`, `READ_BYTES_MAX`.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, RenameFlags, ResolveFlag};
use nix::sys::stat::Mode;

/// Steps of one chain.
pub const STEPS_MAX: usize = 16;
/// Files that one chain opens.
pub const OPENS_MAX: usize = 4;
/// Bytes of one read.
pub const READ_BYTES_MAX: usize = 64 << 20;

/// A path, and where it begins.
#[derive(Clone, Debug)]
pub struct PathStart {
    pub(crate) dir: Option<Arc<OwnedFd>>,
    pub(crate) path: CString,
}

impl PathStart {
    /// A path from the root, or from where the process is.
    pub fn path(path: impl AsRef<Path>) -> Result<Self, Errno> {
        Self::new(None, path.as_ref())
    }

    /// A path from an open directory.
    pub fn within(dir: &Arc<OwnedFd>, path: impl AsRef<Path>) -> Result<Self, Errno> {
        Self::new(Some(Arc::clone(dir)), path.as_ref())
    }

    fn new(dir: Option<Arc<OwnedFd>>, path: &Path) -> Result<Self, Errno> {
        Ok(Self { dir, path: text(path)? })
    }

    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_ref().map_or(AT_FDCWD, |dir| dir.as_fd())
    }
}

/// A path as the kernel takes it; with a NUL within it is none.
fn text(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

/// Flags for opening a file, see openat2(2). `O_CLOEXEC` is implied.
#[derive(Clone, Copy, Debug)]
pub struct How {
    pub(crate) flags: OFlag,
    pub(crate) mode: Mode,
    pub(crate) resolve: ResolveFlag,
}

impl How {
    /// Opens with these flags of open(2).
    pub fn flags(flags: OFlag) -> Self {
        Self { flags: flags - OFlag::O_CLOEXEC, mode: Mode::empty(), resolve: ResolveFlag::empty() }
    }

    /// Opens for reading; a FIFO without a writer does not block.
    pub fn read() -> Self {
        Self::flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
    }

    /// A directory, to be synced or to be the begin of paths.
    pub fn directory() -> Self {
        Self::flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY)
    }

    /// A new file for writing, with this mode less the umask; that it exists is an error.
    pub fn create_new(mode: Mode) -> Self {
        Self { mode, ..Self::flags(OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL) }
    }

    /// The path must stay beneath its directory and lead over no link.
    #[must_use]
    pub fn beneath(self) -> Self {
        let resolve = ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_MAGICLINKS
            | ResolveFlag::RESOLVE_NO_SYMLINKS;
        Self { resolve: self.resolve | resolve, ..self }
    }
}

/// Names a file that the same chain opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened(pub(crate) usize);

/// A file to be read, written or synced.
#[derive(Clone, Debug)]
pub enum OpenFile {
    /// A file that this chain opens.
    Here(Opened),
    /// Before, by the caller.
    Held(Arc<OwnedFd>),
}

impl From<Opened> for OpenFile {
    fn from(opened: Opened) -> Self {
        Self::Here(opened)
    }
}

impl From<&Arc<OwnedFd>> for OpenFile {
    fn from(held: &Arc<OwnedFd>) -> Self {
        Self::Held(Arc::clone(held))
    }
}

/// One operation.
#[derive(Clone, Debug)]
pub(crate) enum ChainStep {
    Open { at: PathStart, how: How, into: Opened },
    OpenHeld { at: PathStart, how: How },
    Stat { at: PathStart, follow: bool },
    Read { file: OpenFile, offset: u64, bytes_max: usize },
    Write { file: OpenFile, offset: u64, bytes: Vec<u8> },
    Sync { file: OpenFile, data_only: bool },
    MakeDir { at: PathStart, mode: Mode },
    Unlink { at: PathStart, is_dir: bool },
    Rename { from: PathStart, to: PathStart, flags: RenameFlags },
    SymLink { target: CString, at: PathStart },
}

impl ChainStep {
    /// Its name in errors.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Open { .. } | Self::OpenHeld { .. } => "openat2",
            Self::Stat { .. } => "statx",
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Sync { data_only: true, .. } => "fdatasync",
            Self::Sync { data_only: false, .. } => "fsync",
            Self::MakeDir { .. } => "mkdirat",
            Self::Unlink { .. } => "unlinkat",
            Self::Rename { .. } => "renameat2",
            Self::SymLink { .. } => "symlinkat",
        }
    }
}

/// Metadata of a file that both backends provide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// Type and rights, as `st_mode`.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// Owner.
    pub uid: u32,
    /// Owner's group.
    pub gid: u32,
    /// Number within its file system.
    pub ino: u64,
    /// Names that it has.
    pub links: u64,
}

/// The result of a step.
#[derive(Debug)]
pub enum Done {
    /// It was done, and has no result.
    Nothing,
    /// The bytes of a read.
    Bytes(Vec<u8>),
    /// The metadata of a file.
    Stat(FileStat),
    /// A file for the caller to keep.
    File(OwnedFd),
}

impl Done {
    /// The bytes of a read; empty for any other step.
    pub fn bytes(self) -> Vec<u8> {
        if let Self::Bytes(bytes) = self { bytes } else { Vec::new() }
    }

    /// The metadata of a file, after a `stat`.
    pub fn stat(&self) -> Option<FileStat> {
        if let Self::Stat(stat) = self { Some(*stat) } else { None }
    }

    /// The file, after an `open_held`.
    pub fn file(self) -> Option<OwnedFd> {
        if let Self::File(file) = self { Some(file) } else { None }
    }
}

/// Steps that run in their order.
///
/// Its builders panic on more than `STEPS_MAX` steps or `OPENS_MAX` files, and on reads of more
/// than `READ_BYTES_MAX`: these are written in the program and not made from data.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    pub(crate) steps: Vec<ChainStep>,
    pub(crate) opens: usize,
}

impl Chain {
    /// A chain without steps.
    pub fn new() -> Self {
        Self::default()
    }

    fn step(&mut self, step: ChainStep) -> &mut Self {
        assert!(self.steps.len() < STEPS_MAX, "a chain has at most {STEPS_MAX} steps");
        self.steps.push(step);
        self
    }

    /// Opens a file for the steps that follow; it is closed at the chain's end.
    pub fn open(&mut self, at: PathStart, how: How) -> Opened {
        assert!(self.opens < OPENS_MAX, "a chain opens at most {OPENS_MAX} files");
        let into = Opened(self.opens);
        self.opens += 1;
        self.step(ChainStep::Open { at, how, into });
        into
    }

    /// Opens a file that is the caller's afterwards (`Done::File`).
    pub fn open_held(&mut self, at: PathStart, how: How) -> &mut Self {
        self.step(ChainStep::OpenHeld { at, how })
    }

    /// Reads metadata (`Done::Stat`); with `follow` of the target of a link.
    pub fn stat(&mut self, at: PathStart, follow: bool) -> &mut Self {
        self.step(ChainStep::Stat { at, follow })
    }

    /// Reads once from `offset` on (`Done::Bytes`); fewer bytes are the file's end.
    pub fn read(&mut self, file: impl Into<OpenFile>, offset: u64, bytes_max: usize) -> &mut Self {
        assert!(bytes_max <= READ_BYTES_MAX, "a read is of at most {READ_BYTES_MAX} bytes");
        self.step(ChainStep::Read { file: file.into(), offset, bytes_max })
    }

    /// Writes all bytes from `offset` on.
    pub fn write(&mut self, file: impl Into<OpenFile>, offset: u64, bytes: Vec<u8>) -> &mut Self {
        self.step(ChainStep::Write { file: file.into(), offset, bytes })
    }

    /// Makes contents and attributes durable: fsync.
    pub fn sync(&mut self, file: impl Into<OpenFile>) -> &mut Self {
        self.step(ChainStep::Sync { file: file.into(), data_only: false })
    }

    /// Makes contents durable, and of the attributes only the length: fdatasync.
    pub fn sync_data(&mut self, file: impl Into<OpenFile>) -> &mut Self {
        self.step(ChainStep::Sync { file: file.into(), data_only: true })
    }

    /// Makes a directory.
    pub fn make_dir(&mut self, at: PathStart, mode: Mode) -> &mut Self {
        self.step(ChainStep::MakeDir { at, mode })
    }

    /// Removes a file's name.
    pub fn unlink(&mut self, at: PathStart) -> &mut Self {
        self.step(ChainStep::Unlink { at, is_dir: false })
    }

    /// Removes an empty directory.
    pub fn remove_dir(&mut self, at: PathStart) -> &mut Self {
        self.step(ChainStep::Unlink { at, is_dir: true })
    }

    /// Renames; an existing file of the new name is replaced unless the flags forbid it.
    pub fn rename(&mut self, from: PathStart, to: PathStart, flags: RenameFlags) -> &mut Self {
        self.step(ChainStep::Rename { from, to, flags })
    }

    /// Makes a link at `at` to `target`.
    pub fn link(&mut self, target: impl AsRef<Path>, at: PathStart) -> Result<&mut Self, Errno> {
        let target = text(target.as_ref())?;
        Ok(self.step(ChainStep::SymLink { target, at }))
    }

    /// The beginning of a small file: open, read, close. The bytes are of the second step.
    pub fn read_file(at: PathStart, how: How, bytes_max: usize) -> Self {
        let mut chain = Self::new();
        let file = chain.open(at, how);
        chain.read(file, 0, bytes_max);
        chain
    }

    /// A file that is replaced in one step, once the file at `beside` is written and durable. The
    /// folder is to be synced after it.
    pub fn replace(beside: PathStart, at: PathStart, bytes: Vec<u8>, mode: Mode) -> Self {
        let mut chain = Self::new();
        let file = chain.open(beside.clone(), How::create_new(mode));
        chain.write(file, 0, bytes).sync(file).rename(beside, at, RenameFlags::empty());
        chain
    }

    /// Bytes at the end of a log that stays open, durable.
    pub fn append(log: &Arc<OwnedFd>, offset: u64, bytes: Vec<u8>) -> Self {
        let mut chain = Self::new();
        chain.write(log, offset, bytes).sync_data(log);
        chain
    }

    /// A directory's names made durable.
    pub fn sync_dir(at: PathStart) -> Self {
        let mut chain = Self::new();
        let dir = chain.open(at, How::directory());
        chain.sync(dir);
        chain
    }
}

/// Groups of chains. Those of a group run beside each other; a group begins when all chains of the
/// one before it have succeeded.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(crate) groups: Vec<Vec<Chain>>,
}

impl Batch {
    /// A batch without chains.
    pub fn new() -> Self {
        Self { groups: vec![Vec::new()] }
    }

    /// Adds a chain beside the last ones.
    #[must_use]
    pub fn with(mut self, chain: Chain) -> Self {
        self.push(chain);
        self
    }

    /// Adds a chain beside the last ones.
    pub fn push(&mut self, chain: Chain) {
        self.groups.last_mut().expect("a batch has a group").push(chain);
    }

    /// The next chains wait for all chains so far.
    #[must_use]
    pub fn then(mut self) -> Self {
        self.groups.push(Vec::new());
        self
    }

    /// Chains in all groups.
    pub(crate) fn len(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl From<Vec<Chain>> for Batch {
    fn from(chains: Vec<Chain>) -> Self {
        Self { groups: vec![chains] }
    }
}

impl From<Chain> for Batch {
    fn from(chain: Chain) -> Self {
        vec![chain].into()
    }
}
