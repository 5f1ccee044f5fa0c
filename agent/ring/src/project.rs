//! Project quotas of a file system: a folder's project, and the kernel's counts for it.
//!
//! Input: an open folder. Output: its project, or bytes and inodes of a project. A file system
//! without projects, or without accounting by project, is an answer (`None`, `false`) and no error:
//! the caller walks there. Works on ext4 and XFS alike (`prjquota`), from Linux 5.14.
//!
//! JUSTIFICATION of `unsafe`: neither call has a safe form elsewhere. nix has `quotactl` by the
//! path of a block device alone, which a container's view of `/dev` may lack, and no project ids.
//!
//! Why this is sound: each call gets a descriptor that is borrowed for its length and one structure
//! of the kernel's own layout with a size that is checked below. Nothing is kept beyond the call.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

/// The third kind of quota, after those of users and groups.
const PROJECT_QUOTA: libc::c_uint = 2;
/// Commands of quotactl(2).
const GET_STATE: libc::c_uint = 0x80_0005;
const GET_QUOTA: libc::c_uint = 0x80_0007;
/// New files inside belong to the same project.
const INHERIT: u32 = 0x200;

/// The project of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Project {
    /// 0 for none.
    pub id: u32,
    /// New files inside belong to the project as well.
    pub is_inherited: bool,
}

/// The usage of a project, everywhere on its file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectUsage {
    /// Bytes of blocks, those that are promised and not on the disk yet among them.
    pub bytes: u64,
    /// Files, folders and links.
    pub inodes: u64,
}

/// A call that the kernel refused for another reason than that it has no such thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProjectError {
    /// A folder's project cannot be read.
    #[error("cannot read a folder's project: {}", .0.desc())]
    Read(Errno),
    /// A folder's project cannot be set.
    #[error("cannot set a folder's project to {id}: {}", .errno.desc())]
    Assign {
        /// The project.
        id: u32,
        /// The kernel's error.
        errno: Errno,
    },
    /// The accounting state cannot be read.
    #[error("cannot ask a file system for project quotas: {}", .0.desc())]
    State(Errno),
    /// A project's use cannot be read.
    #[error("cannot read what project {id} uses: {}", .errno.desc())]
    Usage {
        /// The project.
        id: u32,
        /// The kernel's error.
        errno: Errno,
    },
}

/// `struct fsxattr` of `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct FileAttributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copied_extent_size: u32,
    unused: [u8; 8],
}

/// `struct if_dqinfo` of `linux/quota.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct State {
    block_grace: u64,
    inode_grace: u64,
    flags: u32,
    valid: u32,
}

/// `struct if_dqblk` of `linux/quota.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Quota {
    blocks_hard: u64,
    blocks_soft: u64,
    bytes: u64,
    inodes_hard: u64,
    inodes_soft: u64,
    inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
}

// The kernel's structures must fit.
const _: () = assert!(size_of::<FileAttributes>() == 28);
const _: () = assert!(size_of::<State>() == 24);
const _: () = assert!(size_of::<Quota>() == 72);

/// A structure of the kernel's into which quotactl_fd(2) writes.
trait QuotaReply: Default {
    /// The command for this structure.
    const COMMAND: libc::c_uint;
}

impl QuotaReply for State {
    const COMMAND: libc::c_uint = GET_STATE;
}

impl QuotaReply for Quota {
    const COMMAND: libc::c_uint = GET_QUOTA;
}

mod calls {
    use super::FileAttributes;
    nix::ioctl_read!(get_attributes, b'X', 31, FileAttributes);
    nix::ioctl_write_ptr!(set_attributes, b'X', 32, FileAttributes);
}

/// True if the folder's file system accounts the usage of projects.
pub fn is_accounted(dir: BorrowedFd<'_>) -> Result<bool, ProjectError> {
    let state = known(quota_call::<State>(dir, 0)).map_err(ProjectError::State)?;
    Ok(state.is_some())
}

/// The folder's project; `None` where there are none.
pub fn of_dir(dir: BorrowedFd<'_>) -> Result<Option<Project>, ProjectError> {
    let found = known(attributes(dir)).map_err(ProjectError::Read)?;
    let project = |found: FileAttributes| Project {
        id: found.project,
        is_inherited: found.flags & INHERIT != 0,
    };
    Ok(found.map(project))
}

/// Gives the folder to a project, and with it new files inside; false where there are no projects.
pub fn assign(dir: BorrowedFd<'_>, id: u32) -> Result<bool, ProjectError> {
    let set = attributes(dir).and_then(|mut wanted| {
        wanted.project = id;
        wanted.flags |= INHERIT;
        // SAFETY: the descriptor is open as long as it is borrowed, and the kernel only reads one
        // `struct fsxattr`, which lives until the call returns.
        unsafe { calls::set_attributes(dir.as_raw_fd(), &raw const wanted) }
    });
    let set = known(set).map_err(|errno| ProjectError::Assign { id, errno })?;
    Ok(set.is_some())
}

/// Usage of a project of the folder's file system; `None` where it is not accounted.
pub fn usage(dir: BorrowedFd<'_>, id: u32) -> Result<Option<ProjectUsage>, ProjectError> {
    let quota = match quota_call::<Quota>(dir, id) {
        // XFS returns this for a project without files.
        Err(Errno::ENOENT) => Ok(Some(Quota::default())),
        answer => known(answer),
    };
    let quota = quota.map_err(|errno| ProjectError::Usage { id, errno })?;
    Ok(quota.map(|quota| ProjectUsage { bytes: quota.bytes, inodes: quota.inodes }))
}

/// `None` when the kernel or the file system lacks the call; any other error stays one.
fn known<T>(answer: nix::Result<T>) -> nix::Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        // In turn: no such call, no such request of this file system, no projects there, not
        // accounted, not this kind of quota.
        Err(Errno::ENOSYS | Errno::ENOTTY | Errno::EOPNOTSUPP | Errno::ESRCH | Errno::EINVAL) => {
            Ok(None)
        }
        Err(errno) => Err(errno),
    }
}

fn attributes(dir: BorrowedFd<'_>) -> nix::Result<FileAttributes> {
    let mut found = FileAttributes::default();
    // SAFETY: the descriptor is open as long as it is borrowed, and the kernel writes one `struct
    // fsxattr` into a place of that size that lives until the call returns.
    unsafe { calls::get_attributes(dir.as_raw_fd(), &raw mut found) }?;
    Ok(found)
}

fn quota_call<T: QuotaReply>(dir: BorrowedFd<'_>, id: u32) -> nix::Result<T> {
    let mut answer = T::default();
    let command = (T::COMMAND << 8) | PROJECT_QUOTA;
    // SAFETY: the descriptor is open as long as it is borrowed. The command only reads quotas; its
    // answer is the structure that `T` stands for, so it fits into the place, which lives until the
    // call returns. A kernel without the call touches nothing.
    let result = unsafe {
        libc::syscall(libc::SYS_quotactl_fd, dir.as_raw_fd(), command, id, &raw mut answer)
    };
    Errno::result(result).map(|_| answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd as _;

    #[test]
    fn errno_of_an_absent_project_quota_is_none_and_any_other_is_an_error() {
        let lacking =
            [Errno::ENOSYS, Errno::ENOTTY, Errno::EOPNOTSUPP, Errno::ESRCH, Errno::EINVAL];
        for errno in lacking {
            assert_eq!(known::<()>(Err(errno)), Ok(None), "{errno}");
        }
        for errno in [Errno::EIO, Errno::EPERM, Errno::EDQUOT, Errno::EROFS, Errno::EFAULT] {
            assert_eq!(known::<()>(Err(errno)), Err(errno));
        }
        assert_eq!(known(Ok(7)), Ok(Some(7)));
    }

    #[test]
    fn file_system_without_project_quotas_reports_none() {
        let proc = File::open("/proc").expect("there");
        let dir = proc.as_fd();
        assert_eq!(is_accounted(dir), Ok(false));
        assert_eq!(of_dir(dir), Ok(None));
        assert_eq!(assign(dir, 1_048_577), Ok(false));
        assert_eq!(usage(dir, 1_048_577), Ok(None));
    }

    #[test]
    fn project_of_an_o_path_descriptor_cannot_be_read_or_assigned() {
        use nix::fcntl::{OFlag, open};
        let reference = open("/proc", OFlag::O_PATH, nix::sys::stat::Mode::empty()).expect("there");
        let dir = reference.as_fd();
        assert_eq!(of_dir(dir), Err(ProjectError::Read(Errno::EBADF)));
        let refused = ProjectError::Assign { id: 9, errno: Errno::EBADF };
        assert_eq!(assign(dir, 9), Err(refused));
    }
}
