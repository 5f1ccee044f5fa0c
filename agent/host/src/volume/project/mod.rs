//! Project quotas of volumes, with which the kernel counts a volume's usage without a walk.
//!
//! ```text
//!   set-up     assign: lock, id of the list or a free one, list written, folder given to it, unlock
//!   counting   listed, then Listed::usage: the list's id is the folder's own -> one quotactl
//!   teardown   release, after the volume's files are deleted; sweep frees what a crash left
//! ```
//! Ids are stored in `/etc/projects` and `/etc/projid`, with the kubelet's numbers, forms and
//! locks. A node may switch between the two agents: each finds the ids of existing volumes, assigns
//! none twice, and frees those that the other assigned. No id is kept in memory only, so a restart
//! loses none.
//!
//! Safe to kill at any instruction: an id is listed before a folder has it and freed after its
//! files are deleted, so no id is ever assigned twice. The next set-up assigns the project to a
//! listed folder without it; the next change or sweep removes deleted folders and names without a
//! folder.
//!
//! Each set-up asks the kernel once whether the file system accounts projects: the call costs less
//! than a cache that must notice unmounts and quotaon(8).
//!
//! Never fails a pod: a volume without a project is counted by a walk. Blocks; called in jobs of
//! the pool and by the thread that counts volumes.
//! Bounds: `FILE_BYTES_MAX`, `LOCK_TRIES` times `LOCK_PAUSE`, `list::STRANGERS_MAX`.
// k8s: pkg/volume/util/fsquota/quota_linux.go

pub mod list;

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use pintle_daemon::{durable, regular_file};
pub use pintle_ring::project::ProjectUsage;
use pintle_ring::project::{self, ProjectError};

use self::list::{FIRST, Projects};
use super::dir_fd::open_dir;
use super::error::{Context as _, IoFailure};
use super::remove::DELETING;

/// The feature gate of counting by projects.
pub const GATE: &str = "LocalStorageCapacityIsolationFSQuotaMonitoring";
/// Length of either file.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Attempts to take a lock that another process holds, and the pause between them.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(25);
/// Mode of a file that is made.
const MODE: u32 = 0o644;

/// How the usage of a pod's volumes is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageMeasure {
    /// By a walk.
    Walk,
    /// By a project of each where the file system has them, else by walking.
    Project,
}

/// The reason for which a volume has no project, or a listed project is not freed.
#[derive(Debug, thiserror::Error)]
pub enum ProjectFailure {
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoFailure),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] ProjectError),
    /// Another process held the files' lock during all attempts.
    #[error("{} is locked by somebody else", .0.display())]
    Locked(PathBuf),
    /// A file is no plain text of a reasonable size.
    #[error("{} is not a plain text file of at most {FILE_BYTES_MAX} bytes", .0.display())]
    NotText(PathBuf),
    /// The path cannot be a line.
    #[error("{} cannot be written on a line", .0.display())]
    NotALine(PathBuf),
    /// The volume holds something and has no project: its files would not be counted.
    #[error("{} has files that belong to no project", .0.display())]
    NotEmpty(PathBuf),
    /// All projects that were tried are in use.
    #[error("{} projects from {FIRST} on hold something and are in no file", list::STRANGERS_MAX)]
    NoneFree,
}

/// The two files.
#[derive(Clone, Debug)]
pub struct ProjectFiles {
    folders: PathBuf,
    names: PathBuf,
}

/// Both files, locked against writes of other agents and tools.
struct LockedFiles<'a> {
    files: &'a ProjectFiles,
    list: Projects,
    _locks: [Flock<File>; 2],
    /// Lock among jobs of this process, which wait on it without polling.
    _turn: MutexGuard<'static, ()>,
}

impl ProjectFiles {
    /// The node's files, in `/etc`.
    pub fn host() -> Self {
        Self::in_folder(Path::new("/etc"))
    }

    /// The files in another folder.
    pub fn in_folder(folder: &Path) -> Self {
        Self { folders: folder.join("projects"), names: folder.join("projid") }
    }

    /// Assigns a new project to an empty volume and returns it; `None` where the file system
    /// accounts no projects. A volume with a project keeps it.
    // k8s: pkg/volume/util/fsquota/quota_linux.go AssignQuota
    pub fn assign(&self, dir: &Path) -> Result<Option<u32>, ProjectFailure> {
        let open = open_dir(dir).on("open", dir)?;
        if !project::is_accounted(open.as_fd())? {
            return Ok(None);
        }
        let path = as_line(dir)?;
        let mut held = self.lock()?;
        let (id, is_new) = match held.list.of(path) {
            Some(id) => (id, false),
            None => (held.free(&open)?, true),
        };
        if project::of_dir(open.as_fd())?.is_some_and(|found| found.id == id && found.is_inherited)
        {
            return Ok(Some(id));
        }
        if fs::read_dir(dir).on("read", dir)?.next().is_some() {
            return Err(ProjectFailure::NotEmpty(dir.to_owned()));
        }
        if is_new {
            held.list.add(id, path);
            // In this order, because any agent finds and removes a name without a folder.
            self.write_names(&held.list)?;
            self.write_folders(&held.list)?;
        }
        match project::assign(open.as_fd(), id) {
            Ok(true) => Ok(Some(id)),
            refused => {
                held.remove(|listed| listed == path)?;
                refused.map(|_| None).map_err(ProjectFailure::Kernel)
            }
        }
    }

    /// Frees the project of a volume after its files are deleted.
    // k8s: pkg/volume/util/fsquota/quota_linux.go ClearQuota
    pub fn release(&self, dir: &Path) -> Result<(), ProjectFailure> {
        let Some(path) = dir.to_str() else { return Ok(()) };
        self.remove(|listed| listed == path)
    }

    /// Frees the projects of deleted volumes below a folder.
    pub fn sweep(&self, below: &Path) -> Result<(), ProjectFailure> {
        self.remove(|listed| Path::new(listed).starts_with(below) && is_gone(Path::new(listed)))
    }

    /// Reads the listed volumes.
    pub fn listed(&self) -> Listed {
        let list = self.read().unwrap_or_default();
        Listed(list.folders().map(|(id, path)| (PathBuf::from(path), id)).collect())
    }

    fn remove(&self, is_gone: impl Fn(&str) -> bool) -> Result<(), ProjectFailure> {
        // Files are replaced whole, so a read without the lock sees one version or the other.
        if !self.read()?.folders().any(|(_, path)| is_gone(path)) {
            return Ok(());
        }
        self.lock()?.remove(is_gone)
    }

    fn read(&self) -> Result<Projects, ProjectFailure> {
        let text = |path: &Path| match regular_file::open_at(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
            file => text_of(&mut file.on("open", path)?, path),
        };
        Ok(Projects::parse(&text(&self.folders)?, &text(&self.names)?))
    }

    fn lock(&self) -> Result<LockedFiles<'_>, ProjectFailure> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut folders = locked(&self.folders)?;
        let mut names = locked(&self.names)?;
        let text = text_of(&mut folders, &self.folders)?;
        let list = Projects::parse(&text, &text_of(&mut names, &self.names)?);
        Ok(LockedFiles { files: self, list, _locks: [folders, names], _turn: turn })
    }

    fn write_folders(&self, list: &Projects) -> Result<(), ProjectFailure> {
        write(&self.folders, &list.folders_text())
    }

    fn write_names(&self, list: &Projects) -> Result<(), ProjectFailure> {
        write(&self.names, &list.names_text())
    }
}

impl LockedFiles<'_> {
    fn free(&self, dir: &OwnedFd) -> Result<u32, ProjectFailure> {
        let holds = |id| -> Result<bool, ProjectError> {
            let usage = project::usage(dir.as_fd(), id)?.unwrap_or_default();
            Ok(usage != ProjectUsage::default())
        };
        self.list.free(holds)?.ok_or(ProjectFailure::NoneFree)
    }

    fn remove(&mut self, is_gone: impl Fn(&str) -> bool) -> Result<(), ProjectFailure> {
        self.list.remove(is_gone);
        self.files.write_folders(&self.list)?;
        self.files.write_names(&self.list)
    }
}

/// Volumes that are listed with their projects.
#[derive(Clone, Debug, Default)]
pub struct Listed(HashMap<PathBuf, u32>);

impl Listed {
    /// The kernel's count of a volume's usage; `None` if a walk is needed: the volume is not
    /// listed, or its folder belongs to another project, such as one for the whole node.
    // k8s: pkg/volume/util/fsquota/quota_linux.go GetConsumption, GetInodes
    pub fn usage(&self, dir: &Path) -> Option<ProjectUsage> {
        let id = *self.0.get(dir)?;
        let open = open_dir(dir).ok()?;
        let found = project::of_dir(open.as_fd()).ok()??;
        if found.id != id || !found.is_inherited {
            return None;
        }
        project::usage(open.as_fd(), id).ok()?
    }
}

/// Assigns a project to a new volume, or logs why it is walked instead.
pub(super) fn measure(dir: &Path) {
    static SAID: Once = Once::new();
    match ProjectFiles::host().assign(dir) {
        Ok(Some(_)) => {}
        Ok(None) => SAID.call_once(|| {
            tracing::info!(dir = %dir.display(),
                "the file system of volumes has no project quotas: volumes are walked");
        }),
        Err(error) => {
            tracing::warn!(%error, dir = %dir.display(), "a volume has no project and is walked");
        }
    }
}

/// Frees the project of a deleted volume; after a failure the sweep frees it.
pub(super) fn release(dir: &Path) {
    if let Err(error) = ProjectFiles::host().release(dir) {
        tracing::warn!(%error, dir = %dir.display(), "a volume's project stays listed for now");
    }
}

/// Frees the projects of deleted volumes, which a crash may leave.
pub(super) fn sweep(pods: &Path) {
    if let Err(error) = ProjectFiles::host().sweep(pods) {
        tracing::debug!(%error, "projects of volumes that are gone stay listed for now");
    }
}

fn as_line(dir: &Path) -> Result<&str, ProjectFailure> {
    let line = dir.to_str().filter(|path| !path.contains(['\n', '\r']));
    line.ok_or_else(|| ProjectFailure::NotALine(dir.to_owned()))
}

/// True when the volume exists neither under its name nor as a directory under deletion.
fn is_gone(dir: &Path) -> bool {
    let missing = |path: &Path| {
        fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    missing(dir) && missing(&dir.with_file_name(format!("{DELETING}{name}")))
}

/// Opens the current file of this name, creates it if missing, and locks it.
// k8s: pkg/volume/util/fsquota/project.go openAndLockProjectFiles
fn locked(path: &Path) -> Result<Flock<File>, ProjectFailure> {
    let mut options = File::options();
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CREAT;
    options.read(true).custom_flags(flags.bits()).mode(MODE);
    for attempt in 0..LOCK_TRIES {
        if attempt > 0 {
            std::thread::sleep(LOCK_PAUSE);
        }
        let file = options.open(path).on("open", path)?;
        let opened = file.metadata().on("stat", path)?;
        if !opened.is_file() {
            return Err(ProjectFailure::NotText(path.to_owned()));
        }
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => continue,
            Err((_, errno)) => return Err(IoFailure::new("lock", path, errno).into()),
        };
        // The process that held the lock may have replaced the file.
        let named = fs::symlink_metadata(path);
        if named.is_ok_and(|named| (named.dev(), named.ino()) == (opened.dev(), opened.ino())) {
            return Ok(file);
        }
    }
    Err(ProjectFailure::Locked(path.to_owned()))
}

fn text_of(file: &mut File, path: &Path) -> Result<String, ProjectFailure> {
    let mut text = String::new();
    match file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text) {
        Ok(length) if length as u64 <= FILE_BYTES_MAX => Ok(text),
        Ok(_) => Err(ProjectFailure::NotText(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(ProjectFailure::NotText(path.to_owned()))
        }
        Err(error) => Err(IoFailure::of("read", path, &error).into()),
    }
}

fn write(path: &Path, text: &str) -> Result<(), ProjectFailure> {
    let mode = fs::metadata(path).map_or(MODE, |meta| meta.permissions().mode() & 0o777);
    durable::replace(path, text.as_bytes(), mode).on("replace", path)?;
    // The umask cleared bits of the mode.
    fs::set_permissions(path, Permissions::from_mode(mode)).on("chmod", path)?;
    Ok(())
}

#[cfg(test)]
mod tests;
