//! Disks for tests: private mounts, small file systems, stand-ins for a file, and servers that
//! never answer or answer wrongly.

mod faulty;
mod wire;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;

pub use self::faulty::{DiskFault, DiskOperation, Faulty};

/// Puts something at a path that is no regular file.
pub type Put = fn(&Path);

/// File types that a pod could put in place of a file, with their names.
pub const STRANGE: [(&str, Put); 7] = [
    ("a FIFO", |path| mkfifo(path, Mode::S_IRWXU).expect("a FIFO")),
    ("a socket", |path| drop(UnixListener::bind(path).expect("a socket"))),
    ("a directory", |path| fs::create_dir(path).expect("a directory")),
    ("a link to a device", |path| symlink("/dev/zero", path).expect("a link")),
    ("a link to a file", |path| symlink("/etc/passwd", path).expect("a link")),
    ("a link to itself", |path| symlink(path, path).expect("a link")),
    // An endless device, as a container with the default rights can make.
    ("a device", |path| {
        let zero = makedev(1, 5);
        mknod(path, SFlag::S_IFCHR, Mode::S_IRUSR, zero).expect("a device (the test needs root)");
    }),
];

/// Runs `test` on a thread with private mounts, which end with the thread.
pub fn with_private_mounts(test: impl FnOnce() + Send + 'static) {
    // Under the test's own name, so that the report of a skipped test names it.
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let thread = std::thread::Builder::new().name(name).spawn(|| {
        if let Err(errno) = unshare(CloneFlags::CLONE_NEWNS) {
            crate::skip(&format!("no mount namespaces here: {errno}"));
            return;
        }
        let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        nix::mount::mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).expect("private");
        test();
    });
    if let Err(panic) = thread.expect("a thread").join() {
        resume_unwind(panic);
    }
}

/// Mounts what `server` answers for by a program that mounts somewhere else, as in a node's
/// namespace.
pub fn mount_fuse(mut mount: Command, server: &File, options: &str, at: &Path) {
    // The program names the descriptor, so it must get it.
    fcntl(server, FcntlArg::F_SETFD(FdFlag::empty())).expect("kept for the mount");
    mount.args(["-i", "-t", "fuse", "-o", options, "test"]).arg(at);
    crate::shell::run(&mut mount).expect("mounted");
    // No child process may hold the descriptor that keeps the mount alive.
    fcntl(server, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("for itself again");
}

/// Opcode of the kernel's first question.
const FUSE_INIT: u32 = 26;
/// Length of a question's header, and of an answer's.
const HEADS: (usize, usize) = (40, 16);

/// A mount whose server answers the first request and never another one.
pub struct Hung {
    /// Dropping it closes the connection, which fails all requests that wait.
    device: Option<File>,
    path: PathBuf,
}

impl Hung {
    /// Mounts it; for use within `with_private_mounts`.
    pub fn mount(path: &Path) -> Self {
        let mut device =
            File::options().read(true).write(true).open("/dev/fuse").expect("FUSE is built in");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        nix::mount::mount(Some("hung"), path, Some("fuse"), MsFlags::empty(), Some(&*options))
            .expect("mounted");
        let mut question = vec![0; 64 << 10];
        let length = device.read(&mut question).expect("the kernel's first question");
        assert!(length >= HEADS.0);
        let word = |at: usize| u32::from_le_bytes(question[at..at + 4].try_into().expect("four"));
        assert_eq!(word(4), FUSE_INIT);
        // Version 7.31 with the smallest of everything: 64 bytes of answer after the head.
        let mut answer = vec![0_u8; HEADS.1 + 64];
        let total = u32::try_from(answer.len()).expect("small");
        answer[0..4].copy_from_slice(&total.to_le_bytes());
        answer[8..16].copy_from_slice(&question[8..16]);
        answer[16..20].copy_from_slice(&7_u32.to_le_bytes());
        answer[20..24].copy_from_slice(&31_u32.to_le_bytes());
        answer[36..40].copy_from_slice(&4096_u32.to_le_bytes());
        device.write_all(&answer).expect("answered");
        Self { device: Some(device), path: path.to_owned() }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        drop(self.device.take());
        let _ = nix::mount::umount2(&self.path, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// A file system in memory of this size; for use within `with_private_mounts`.
pub fn small(at: &Path, bytes: u64) {
    let options = format!("size={bytes}");
    let flags = MsFlags::empty();
    nix::mount::mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some(options.as_str()))
        .expect("a file system in memory");
}
