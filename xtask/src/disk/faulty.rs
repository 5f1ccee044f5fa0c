//! A file system in memory with operations that can be made slow, fail, or hang.
//!
//! A FUSE server on a thread of its own, for tests and attacks: files, folders and links; any other
//! request gets `ENOSYS`. The kernel caches nothing unless a test asks for it, so each call comes
//! here. An operation that is slow or hangs delays its own caller only. Bounds: none, because only
//! tests use it.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::mem;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;

use super::wire::{Answer, Attr, HEAD_BYTES, KIND_DIR, KIND_FILE, KIND_LINK, ROOT, Request};

/// Longest question: a write of the most that the kernel sends, and its head.
const QUESTION_BYTES_MAX: usize = (128 << 10) + 4096;

/// Operations that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskOperation {
    /// Look up a name.
    Lookup,
    /// Open a file.
    Open,
    /// Create and open a file.
    Create,
    /// Read a file.
    Read,
    /// Write a file.
    Write,
    /// Sync a file or folder.
    Sync,
    /// Remove a name.
    Unlink,
    /// Rename.
    Rename,
}

impl DiskOperation {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Lookup,
        Self::Open,
        Self::Create,
        Self::Read,
        Self::Write,
        Self::Sync,
        Self::Unlink,
        Self::Rename,
    ];
}

/// Kind of a fault.
#[derive(Clone, Copy, Debug)]
pub enum DiskFault {
    /// With this error.
    Fails(Errno),
    /// It is done, after this time.
    Slow(Duration),
    /// It is not answered until [`Faulty::lift`].
    Hangs,
}

#[derive(Debug)]
struct FaultyNode {
    kind: u32,
    mode: u32,
    owner: (u32, u32),
    bytes: Vec<u8>,
    /// Size in bytes; bytes after the written ones are zeros, and take no memory.
    size: usize,
    names: BTreeMap<Vec<u8>, u64>,
}

#[derive(Debug, Default)]
struct State {
    nodes: HashMap<u64, FaultyNode>,
    last: u64,
    faults: HashMap<DiskOperation, DiskFault>,
    is_cached: bool,
    /// Questions that hang.
    hung: Vec<Vec<u8>>,
}

/// The mount; it ends with this.
#[derive(Debug)]
pub struct Faulty {
    server: FaultyServer,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl Faulty {
    /// Mounts it without faults, for use within `with_private_mounts`.
    pub fn mount(path: &Path) -> Self {
        Self::mount_by(path, |_, options| {
            let flags = MsFlags::empty();
            mount(Some("faulty"), path, Some("fuse"), flags, Some(options)).expect("mounted");
        })
    }

    /// The same, but `mount` mounts it: it gets the device and the mount's options.
    pub fn mount_by(path: &Path, mount: impl FnOnce(&File, &str)) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        let fd = device.as_raw_fd();
        mount(&device, &format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"));
        let mut state = State { last: ROOT, ..State::default() };
        state.nodes.insert(ROOT, FaultyNode::new(KIND_DIR, 0o755));
        let server = FaultyServer { device: Arc::new(device), state: Arc::new(Mutex::new(state)) };
        let stop = Arc::new(EventFd::new().expect("an eventfd"));
        let (served, stopped) = (server.clone(), Arc::clone(&stop));
        let thread = thread::spawn(move || served.serve(&stopped));
        Self { server, stop, thread: Some(thread), path: path.to_owned() }
    }

    /// Sets the fault of an operation, or removes it.
    pub fn set(&self, operation: DiskOperation, fault: impl Into<Option<DiskFault>>) {
        let mut state = lock(&self.server.state);
        match fault.into() {
            Some(fault) => _ = state.faults.insert(operation, fault),
            None => _ = state.faults.remove(&operation),
        }
    }

    /// Lets the kernel cache files that are opened from now on, as on any disk.
    pub fn let_cache(&self) {
        lock(&self.server.state).is_cached = true;
    }

    /// How many operations hang.
    pub fn hung(&self) -> usize {
        lock(&self.server.state).hung.len()
    }

    /// Removes all faults; operations that hang continue.
    pub fn lift(&self) {
        let questions = {
            let mut state = lock(&self.server.state);
            state.faults.clear();
            mem::take(&mut state.hung)
        };
        questions.iter().for_each(|question| self.server.take(question));
    }
}

impl Drop for Faulty {
    /// Closes the connection, so that requests that wait get an error.
    fn drop(&mut self) {
        let _ = self.stop.write(1);
        drop(self.thread.take().map(JoinHandle::join));
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Debug)]
struct FaultyServer {
    device: Arc<File>,
    state: Arc<Mutex<State>>,
}

impl FaultyServer {
    fn serve(&self, stop: &EventFd) {
        let mut question = vec![0; QUESTION_BYTES_MAX];
        loop {
            let wanted = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut fds = [wanted(self.device.as_fd()), wanted(stop.as_fd())];
            let ready = poll(&mut fds, PollTimeout::NONE);
            if fds[1].any() == Some(true) || !matches!(ready, Ok(_) | Err(Errno::EINTR)) {
                return;
            }
            match (&*self.device).read(&mut question) {
                Ok(length) => self.take(&question[..length]),
                // A question that was taken back.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOENT) => {}
                // Nothing is mounted any more.
                Err(_) => return,
            }
        }
    }

    fn take(&self, question: &[u8]) {
        let Some(request) = Request::read(question) else { return };
        let fault = request.operation().and_then(|of| lock(&self.state).faults.get(&of).copied());
        match fault {
            None => self.answer(&request),
            Some(DiskFault::Fails(errno)) => reply(&self.device, request.id, Err(errno)),
            Some(DiskFault::Hangs) => lock(&self.state).hung.push(question.to_owned()),
            Some(DiskFault::Slow(time)) => {
                let later = self.clone();
                thread::spawn(move || {
                    thread::sleep(time);
                    later.answer(&request);
                });
            }
        }
    }

    fn answer(&self, request: &Request) {
        let answer = lock(&self.state).answer(request);
        if let Some(answer) = answer.transpose() {
            reply(&self.device, request.id, answer);
        }
    }
}

/// Sends the answer; the caller of the operation may be gone.
fn reply(mut device: &File, id: u64, answer: Result<Answer, Errno>) {
    let (error, body) = match answer {
        Ok(answer) => (0, answer.bytes),
        Err(errno) => (-(errno as i32), Vec::new()),
    };
    let length = u32::try_from(HEAD_BYTES + body.len()).expect("short");
    let mut bytes = [length.to_le_bytes(), error.to_le_bytes()].concat();
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&body);
    let _ = device.write_all(&bytes);
}

impl FaultyNode {
    fn new(kind: u32, mode: u32) -> Self {
        let (bytes, size, names) = Default::default();
        Self { kind, mode: mode & 0o7777, owner: (0, 0), bytes, size, names }
    }
}

impl State {
    fn node(&mut self, number: u64) -> Result<&mut FaultyNode, Errno> {
        self.nodes.get_mut(&number).ok_or(Errno::ESTALE)
    }

    fn attr(&mut self, number: u64) -> Result<Attr, Errno> {
        let node = self.node(number)?;
        let (mode, size) = (node.kind | node.mode, node.size as u64);
        Ok(Attr { number, mode, size, owner: node.owner })
    }

    fn find(&mut self, folder: u64, name: &[u8]) -> Result<u64, Errno> {
        self.node(folder)?.names.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn make(&mut self, folder: u64, name: &[u8], node: FaultyNode) -> Result<Attr, Errno> {
        if self.find(folder, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.last += 1;
        let number = self.last;
        self.node(folder)?.names.insert(name.to_owned(), number);
        self.nodes.insert(number, node);
        self.attr(number)
    }

    /// None for a question that wants no answer.
    fn answer(&mut self, request: &Request) -> Result<Option<Answer>, Errno> {
        use super::wire::code;
        let (at, mut body) = (request.node, request.body());
        let answer = match request.code {
            code::FORGET | code::BATCH_FORGET | code::INTERRUPT => return Ok(None),
            code::INIT => Answer::init(),
            code::LOOKUP => {
                let found = self.find(at, body.name()?)?;
                Answer::entry(&self.attr(found)?)
            }
            code::GETATTR => Answer::attr(&self.attr(at)?),
            code::SETATTR => self.set_attr(at, request)?,
            code::READLINK => Answer { bytes: self.node(at)?.bytes.clone() },
            code::SYMLINK => {
                let (name, target) = (body.name()?, body.name()?);
                let (bytes, size) = (target.to_owned(), target.len());
                let link = FaultyNode { bytes, size, ..FaultyNode::new(KIND_LINK, 0o777) };
                Answer::entry(&self.make(at, name, link)?)
            }
            code::MKDIR => {
                let (mode, _) = (body.word32()?, body.word32()?);
                Answer::entry(&self.make(at, body.name()?, FaultyNode::new(KIND_DIR, mode))?)
            }
            code::CREATE => {
                let (_, mode, _, _) =
                    (body.word32()?, body.word32()?, body.word32()?, body.word32()?);
                let made = self.make(at, body.name()?, FaultyNode::new(KIND_FILE, mode))?;
                Answer::entry(&made).and_open(self.is_cached)
            }
            code::UNLINK | code::RMDIR => {
                let name = body.name()?;
                let found = self.find(at, name)?;
                if !self.node(found)?.names.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                self.node(at)?.names.remove(name);
                Answer::empty()
            }
            code::RENAME | code::RENAME2 => self.rename(request)?,
            code::OPEN | code::OPENDIR => Answer::empty().and_open(self.is_cached),
            code::READ | code::WRITE => self.transfer(request)?,
            code::READDIR => self.list(request)?,
            code::STATFS => Answer::statfs(),
            code::RELEASE | code::RELEASEDIR | code::FLUSH | code::FSYNC | code::FSYNCDIR => {
                Answer::empty()
            }
            _ => return Err(Errno::ENOSYS),
        };
        Ok(Some(answer))
    }

    fn set_attr(&mut self, at: u64, request: &Request) -> Result<Answer, Errno> {
        let mut body = request.body();
        let (valid, _, _, size) = (body.word32()?, body.word32()?, body.word64()?, body.word64()?);
        // Lock owner, three times and their fractions.
        body.skip(4 * 8 + 3 * 4)?;
        let (mode, _, uid, gid) = (body.word32()?, body.word32()?, body.word32()?, body.word32()?);
        let node = self.node(at)?;
        if valid & 1 != 0 {
            node.mode = mode & 0o7777;
        }
        if valid & 2 != 0 {
            node.owner.0 = uid;
        }
        if valid & 4 != 0 {
            node.owner.1 = gid;
        }
        if valid & 8 != 0 {
            node.size = usize::try_from(size).map_err(|_| Errno::EFBIG)?;
            node.bytes.truncate(node.size);
        }
        Ok(Answer::attr(&self.attr(at)?))
    }

    fn rename(&mut self, request: &Request) -> Result<Answer, Errno> {
        let mut body = request.body();
        let to = body.word64()?;
        let flags = match request.code {
            super::wire::code::RENAME2 => body.word64()? as u32,
            _ => 0,
        };
        let (old, new) = (body.name()?, body.name()?);
        let found = self.find(request.node, old)?;
        if flags & 1 != 0 && self.find(to, new).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.node(request.node)?.names.remove(old);
        self.node(to)?.names.insert(new.to_owned(), found);
        Ok(Answer::empty())
    }

    fn transfer(&mut self, request: &Request) -> Result<Answer, Errno> {
        let mut body = request.body();
        let (_, offset, size) = (body.word64()?, body.word64()?, body.word32()?);
        let offset = usize::try_from(offset).map_err(|_| Errno::EFBIG)?;
        let node = self.node(request.node)?;
        if request.code == super::wire::code::READ {
            let end = node.size.min(offset.saturating_add(size as usize));
            let written = node.bytes.get(offset..end.min(node.bytes.len())).unwrap_or_default();
            let mut bytes = vec![0; end.saturating_sub(offset)];
            bytes[..written.len()].copy_from_slice(written);
            return Ok(Answer { bytes });
        }
        // Flags, lock owner, flags of the open file.
        body.skip(4 + 8 + 4 + 4)?;
        let text = body.rest();
        let end = offset + text.len();
        if node.bytes.len() < end {
            node.bytes.resize(end, 0);
        }
        node.bytes[offset..end].copy_from_slice(text);
        node.size = node.size.max(end);
        Ok(Answer::wrote(size))
    }

    fn list(&mut self, request: &Request) -> Result<Answer, Errno> {
        let mut body = request.body();
        let (_, offset, size) = (body.word64()?, body.word64()?, body.word32()?);
        let names: Vec<_> = self.node(request.node)?.names.clone().into_iter().collect();
        let mut answer = Answer::empty();
        for (at, (name, number)) in names.iter().enumerate().skip(offset as usize) {
            let kind = self.node(*number)?.kind;
            if !answer.list(*number, at as u64 + 1, kind, name, size as usize) {
                break;
            }
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn file_operations_succeed_until_a_fault_is_set() {
        super::super::with_private_mounts(|| {
            let root = tempfile::tempdir().expect("a folder");
            let disk = Faulty::mount(root.path());
            let (file, folder) = (root.path().join("a"), root.path().join("d"));
            fs::write(&file, vec![b'x'; 300 << 10]).expect("written");
            assert_eq!(fs::read(&file).expect("read").len(), 300 << 10);
            fs::create_dir(&folder).expect("made");
            fs::rename(&file, folder.join("b")).expect("renamed");
            symlink("d/b", root.path().join("link")).expect("linked");
            assert_eq!(fs::read(root.path().join("link")).expect("read").len(), 300 << 10);
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("changed");
            assert_eq!(fs::metadata(&folder).expect("there").permissions().mode() & 0o777, 0o700);
            let names =
                fs::read_dir(root.path()).expect("listed").map(|e| e.expect("e").file_name());
            assert_eq!(names.collect::<Vec<_>>(), ["d", "link"]);
            assert!(fs::remove_dir(&folder).is_err());
            let hole = root.path().join("hole");
            fs::write(&hole, "ab").expect("written");
            File::options().write(true).open(&hole).expect("there").set_len(5).expect("grown");
            assert_eq!(fs::read(&hole).expect("read"), b"ab\0\0\0");
            File::options().write(true).open(&hole).expect("there").set_len(1).expect("cut");
            assert_eq!(fs::read(&hole).expect("read"), b"a");

            disk.set(DiskOperation::Unlink, DiskFault::Fails(Errno::EIO));
            let error = fs::remove_file(folder.join("b")).expect_err("it fails");
            assert_eq!(error.raw_os_error(), Some(nix::libc::EIO));
            disk.set(DiskOperation::Unlink, DiskFault::Slow(Duration::from_millis(1)));
            fs::remove_file(folder.join("b")).expect("in the end");
            disk.set(DiskOperation::Create, DiskFault::Hangs);
            let hangs = thread::scope(|scope| {
                let asks = scope.spawn(|| fs::write(root.path().join("c"), "text"));
                while disk.hung() == 0 {
                    thread::yield_now();
                }
                drop(disk);
                asks.join().expect("no panic")
            });
            assert!(hangs.is_err(), "the error says that the server is gone");
        });
    }
}
