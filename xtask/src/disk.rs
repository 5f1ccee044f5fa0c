//! Disks for tests: mounts that nobody else sees, small file systems, what can stand in for a file.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::panic::resume_unwind;
use std::path::Path;

use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;

/// Puts something at a path that is no regular file.
pub type Put = fn(&Path);

/// What a pod could put in place of a file, with its name.
pub const STRANGE: [(&str, Put); 7] = [
    ("a FIFO", |path| mkfifo(path, Mode::S_IRWXU).expect("a FIFO")),
    ("a socket", |path| drop(UnixListener::bind(path).expect("a socket"))),
    ("a directory", |path| fs::create_dir(path).expect("a directory")),
    ("a link to a device", |path| symlink("/dev/zero", path).expect("a link")),
    ("a link to a file", |path| symlink("/etc/passwd", path).expect("a link")),
    ("a link to itself", |path| symlink(path, path).expect("a link")),
    // One that never ends, as a container with the default rights can make.
    ("a device", |path| {
        let zero = makedev(1, 5);
        mknod(path, SFlag::S_IFCHR, Mode::S_IRUSR, zero).expect("a device (the test needs root)");
    }),
];

/// Runs `test` on a thread whose mounts nobody else sees and which end with it.
pub fn with_private_mounts(test: impl FnOnce() + Send + 'static) {
    // Under the test's own name, so that a skipped one is told by it.
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

/// A file system in memory of so many bytes; for use within `with_private_mounts`.
pub fn small(at: &Path, bytes: u64) {
    let options = format!("size={bytes}");
    let flags = MsFlags::empty();
    nix::mount::mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some(options.as_str()))
        .expect("a file system in memory");
}
