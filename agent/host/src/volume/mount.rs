//! Mount system calls of volumes, each idempotent, and the list of mounts below a directory.
//!
//! Nothing here follows a symlink at the target: `UMOUNT_NOFOLLOW`, and targets lie in directories
//! that only the agent can write.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::error::{Context, IoFailure};

/// Most stacked mounts that are unmounted from one path; a crash between two mounts stacks two.
const STACK_MAX: u32 = 16;

#[cfg(test)]
thread_local! {
    /// How often this thread has read the list of all mounts.
    pub(super) static LISTS_READ: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Set once the kernel refused the `noswap` option (before 6.4, or in a user namespace).
static NOSWAP_REFUSED: AtomicBool = AtomicBool::new(false);

/// Mounts a tmpfs; `size_bytes` of `None` leaves the kernel's default of half the memory.
// k8s: pkg/volume/emptydir/empty_dir.go setupTmpfs, generateTmpfsMountOptions
pub fn tmpfs(target: &Path, size_bytes: Option<u64>) -> Result<(), IoFailure> {
    let size = size_bytes.filter(|b| *b > 0).map(|b| format!("size={b}"));
    if !NOSWAP_REFUSED.load(Ordering::Relaxed) {
        let options = size.as_ref().map_or("noswap".to_owned(), |s| format!("{s},noswap"));
        match mount_new("tmpfs", target, "tmpfs", Some(&options)) {
            Err(Errno::EINVAL | Errno::EPERM) => NOSWAP_REFUSED.store(true, Ordering::Relaxed),
            done => return done.on("mount tmpfs on", target),
        }
    }
    mount_new("tmpfs", target, "tmpfs", size.as_deref()).on("mount tmpfs on", target)
}

/// Mounts a hugetlbfs of one page size.
// k8s: pkg/volume/emptydir/empty_dir.go setupHugepages
pub fn hugetlbfs(target: &Path, page_bytes: u64) -> Result<(), IoFailure> {
    let options = format!("pagesize={page_bytes}");
    mount_new("nodev", target, "hugetlbfs", Some(&options)).on("mount hugetlbfs on", target)
}

/// Binds `source` (a path of ours or a `/proc/self/fd` path) to an existing `target`.
pub fn bind(source: &Path, target: &Path) -> Result<(), IoFailure> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .on("bind mount on", target)
}

/// Lets mounts made below `dir` reach containers, and those of containers the node. Fine when they
/// do already; else `dir` becomes a mount of its own.
// k8s: pkg/volume/util/hostutil/hostutil_linux.go MakeRShared
pub fn share(dir: &Path) -> Result<(), IoFailure> {
    let path = Path::new("/proc/thread-self/mountinfo");
    let text = fs::read(path).on("read", path)?;
    let real = fs::canonicalize(dir).on("resolve", dir)?;
    if is_shared(&text, &real) {
        return Ok(());
    }
    let recursive = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(dir), dir, None::<&str>, recursive, None::<&str>).on("bind mount on", dir)?;
    let shared = MsFlags::MS_SHARED | MsFlags::MS_REC;
    mount(None::<&str>, dir, None::<&str>, shared, None::<&str>).on("share mounts of", dir)
}

/// True when the mount that holds `path` propagates.
fn is_shared(mountinfo: &[u8], path: &Path) -> bool {
    // Optional fields: between the sixth field and a lone dash.
    let line = holding(mountinfo, path).unwrap_or_default();
    let mut fields = line.split(|b| *b == b' ').skip(6).take_while(|field| *field != b"-");
    fields.any(|field| field.starts_with(b"shared:"))
}

/// True if the same device is mounted at both paths.
///
/// # Errors
/// The list of mounts cannot be read, or a path cannot be resolved.
pub fn is_one_device(one: &Path, other: &Path) -> Result<bool, IoFailure> {
    let path = Path::new("/proc/thread-self/mountinfo");
    let text = fs::read(path).on("read", path)?;
    let real = |path: &Path| fs::canonicalize(path).on("resolve", path);
    let (one, other) = (real(one)?, real(other)?);
    Ok(device(&text, &one).is_some_and(|of| device(&text, &other) == Some(of)))
}

/// The device that is mounted where a path lies: the second field after the lone dash.
fn device<'a>(mountinfo: &'a [u8], path: &Path) -> Option<&'a [u8]> {
    let fields = holding(mountinfo, path)?.split(|b| *b == b' ');
    let source = fields.skip_while(|field| *field != b"-").nth(2);
    source.filter(|source| source.starts_with(b"/dev/"))
}

/// The line of the mount that holds a path. Of several at one place the last one counts.
fn holding<'a>(mountinfo: &'a [u8], path: &Path) -> Option<&'a [u8]> {
    let lines = mountinfo.split(|b| *b == b'\n');
    let holding = lines.filter_map(|line| {
        let point = mount_point(line).filter(|point| path.starts_with(point))?;
        Some((point.components().count(), line))
    });
    holding.max_by_key(|(depth, _)| *depth).map(|(_, line)| line)
}

fn mount_new(source: &str, target: &Path, kind: &str, options: Option<&str>) -> nix::Result<()> {
    mount(Some(source), target, Some(kind), MsFlags::empty(), options)
}

/// Unmounts everything from `target`; succeeds when nothing is mounted or it does not exist.
pub fn unmount(target: &Path) -> Result<(), IoFailure> {
    for _ in 0..STACK_MAX {
        match umount2(target, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(IoFailure::new("unmount", target, errno)),
        }
    }
    Ok(())
}

/// Mount points at and below `dir`, deepest first. Reads the list of all mounts, which is long on a
/// node with many pods.
pub fn below(dir: &Path) -> Result<Vec<PathBuf>, IoFailure> {
    #[cfg(test)]
    LISTS_READ.with(|reads| reads.set(reads.get() + 1));
    // The thread's own view: a thread may have a mount namespace of its own.
    let path = Path::new("/proc/thread-self/mountinfo");
    let text = fs::read(path).on("read", path)?;
    // The kernel prints real paths.
    let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let mut found: Vec<PathBuf> = text
        .split(|b| *b == b'\n')
        .filter_map(mount_point)
        .filter(|p| p.starts_with(&dir))
        .collect();
    // Later mounts may hide earlier ones: undo in reverse order.
    found.reverse();
    found.sort_by_key(|p| std::cmp::Reverse(p.as_os_str().len()));
    Ok(found)
}

/// The source of the mount at a path: the second field after the lone dash, such as `server:/path`.
pub(super) fn source_of(point: &Path) -> Result<Option<String>, IoFailure> {
    let path = Path::new("/proc/thread-self/mountinfo");
    let text = fs::read(path).on("read", path)?;
    let mut lines = text.split(|b| *b == b'\n').rev();
    let line = lines.find(|line| mount_point(line).is_some_and(|own| own == point));
    let source =
        line.and_then(|line| line.split(|b| *b == b' ').skip_while(|field| *field != b"-").nth(2));
    Ok(source.map(|source| String::from_utf8_lossy(source).into_owned()))
}

/// True when something is mounted on a directory of ours, by the kernel's list: nothing there is
/// touched.
pub(super) fn is_mounted(target: &Path) -> Result<bool, IoFailure> {
    let parent = target.parent().unwrap_or(target);
    let Ok(real) = fs::canonicalize(parent) else { return Ok(false) };
    let real = real.join(target.file_name().unwrap_or_default());
    Ok(source_of(&real)?.is_some())
}

/// Other mount points that show the same directory of the same file system.
// k8s: k8s.io/mount-utils mount_linux.go SearchMountPoints
pub(super) fn others_of(dir: &Path) -> Result<Vec<PathBuf>, IoFailure> {
    let path = Path::new("/proc/thread-self/mountinfo");
    let text = fs::read(path).on("read", path)?;
    let real = fs::canonicalize(dir).on("resolve", dir)?;
    Ok(others_in(&text, &real))
}

fn others_in(mountinfo: &[u8], dir: &Path) -> Vec<PathBuf> {
    let shown = |line: &[u8]| {
        let mut fields = line.split(|b| *b == b' ');
        Some((fields.nth(2)?.to_vec(), unescape(fields.next()?)))
    };
    let Some(line) = holding(mountinfo, dir) else { return Vec::new() };
    let point = mount_point(line).unwrap_or_default();
    let Some((device, root)) = shown(line) else { return Vec::new() };
    let below = dir.strip_prefix(&point).unwrap_or(Path::new(""));
    let wanted = match below.as_os_str().is_empty() {
        true => root,
        false => root.join(below),
    };
    let lines = mountinfo.split(|b| *b == b'\n').filter(|other| *other != line);
    let same = |other: &&[u8]| shown(other).is_some_and(|(d, r)| d == device && r == wanted);
    lines.filter(same).filter_map(mount_point).collect()
}

/// Fifth field of a line of mountinfo, with its octal escapes undone.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    line.split(|b| *b == b' ').nth(4).map(unescape)
}

fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let escape = (byte == b'\\').then(|| tail.get(..3)).flatten();
        let decoded = escape
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match decoded {
            Some(value) => {
                out.push(value);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn device_of_a_btrfs_subvolume_is_found_by_its_mount_source() {
        let text = b"\
            22 1 0:20 /@ / rw shared:1 - btrfs /dev/sda2 rw,subvol=/@\n\
            23 22 0:20 /@containerd /var/lib/containerd rw - btrfs /dev/sda2 rw,subvol=/@c\n\
            24 22 0:31 / /var/lib/other rw shared:2 - btrfs /dev/sdb1 rw\n\
            25 22 0:32 / /run rw - tmpfs tmpfs rw\n";
        let of = |path: &str| device(text, Path::new(path)).map(String::from_utf8_lossy);
        assert_eq!(of("/var/lib/kubelet").as_deref(), Some("/dev/sda2"));
        assert_eq!(of("/var/lib/containerd/nested").as_deref(), Some("/dev/sda2"));
        assert_eq!(of("/var/lib/other").as_deref(), Some("/dev/sdb1"));
        assert_eq!(of("/run/x"), None, "no device");
    }

    #[test]
    fn other_mounts_of_a_folder_are_found_by_device_and_root() {
        let text = b"\
            22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
            23 22 8:16 / /mnt/disk rw - ext4 /dev/sdb rw\n\
            24 22 8:1 /mnt/data /k/pods/u1/v rw - ext4 /dev/sda1 rw\n\
            25 22 8:16 / /k/pods/u2/v rw - ext4 /dev/sdb rw\n\
            26 22 8:16 /part /k/pods/u3/v rw - ext4 /dev/sdb rw\n";
        let others = |path: &str| others_in(text, Path::new(path));
        assert_eq!(others("/mnt/data"), [Path::new("/k/pods/u1/v")]);
        assert_eq!(others("/mnt/disk"), [Path::new("/k/pods/u2/v")]);
        assert_eq!(others("/mnt/disk/part"), [Path::new("/k/pods/u3/v")]);
        assert_eq!(others("/mnt/other"), Vec::<PathBuf>::new());
    }

    #[test]
    fn escaped_mount_points_are_unescaped() {
        let table = [
            ("36 35 98:0 / /a/b rw - tmpfs tmpfs rw", Some("/a/b")),
            (r"36 35 98:0 / /with\040space\134 rw - tmpfs x rw", Some(r"/with space\")),
            (r"36 35 98:0 / /odd\9 rw", Some(r"/odd\9")),
            ("36 35 98:0 /", None),
            ("", None),
        ];
        for (line, path) in table {
            assert_eq!(mount_point(line.as_bytes()), path.map(PathBuf::from), "{line}");
        }
    }

    #[test]
    fn mount_propagation_of_a_path_is_that_of_the_mount_that_contains_it() {
        let text = b"1 0 8:1 / / rw shared:1 - ext4 x rw\n2 1 8:1 / /a rw - ext4 x rw\n\
            3 1 8:1 / /a/b rw master:1 shared:7 - ext4 x rw\n\
            4 1 8:1 / /c rw shared:9 - ext4 x rw\n5 4 8:1 / /c rw - ext4 shared:2 rw\n";
        let table = [
            ("/x", true),
            ("/a", false),
            ("/a/x", false),
            ("/a/b/c", true),
            ("/ab", true),
            ("/c", false),
        ];
        for (path, shared) in table {
            assert_eq!(is_shared(text, Path::new(path)), shared, "{path}");
        }
    }

    #[test]
    fn the_root_mount_is_found_below_the_root() {
        let found = below(Path::new("/")).expect("readable");
        assert_eq!(found.last().map(|p| p.as_os_str().as_bytes()), Some(&b"/"[..]));
    }
}
