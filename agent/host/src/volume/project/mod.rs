//! Projects of volumes, so that the kernel counts what one holds and nobody has to walk it.
//!
//! ```text
//!   set-up     assign: lock, id of the list or a free one, list written, folder given to it, unlock
//!   counting   listed, then Listed::usage: the list's id is the folder's own -> one quotactl
//!   teardown   release, after the volume's files are gone; sweep frees what a crash left
//! ```
//! Where ids are kept: in `/etc/projects` and `/etc/projid`, with the kubelet's numbers, forms and
//! locks. A node may go from either agent to the other: each finds the ids of the volumes that are
//! there, gives none twice, and frees what the other gave. Nothing is kept in memory, so a restart
//! forgets nothing.
//!
//! Killed at any instruction: an id is listed before a folder has it and freed after the files that
//! count for it are gone, so no id is ever given twice. A listed folder without its project gets it
//! from the next set-up; a listed folder that is gone, or a name without one, goes with the next
//! change or sweep.
//!
//! Whether a file system accounts projects is asked once for each volume that is set up: the call
//! costs less than a table that had to notice unmounts and quotaon(8).
//!
//! Never fails a pod: a volume without a project is counted by walking. Blocks; called in jobs of
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

/// The gate that lets volumes be counted by projects.
pub const GATE: &str = "LocalStorageCapacityIsolationFSQuotaMonitoring";
/// Length of either file.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// How often a lock that somebody else has is tried, and how long it is left alone in between.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(25);
/// Mode of a file that is made.
const MODE: u32 = 0o644;

/// How the use of a pod's volumes is found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// By walking them.
    Walk,
    /// By a project of each where the file system has them, else by walking.
    Project,
}

/// Why a volume has no project, or keeps a listed one.
#[derive(Debug, thiserror::Error)]
pub enum ProjectFailure {
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoFailure),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] ProjectError),
    /// The files' lock was never free.
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
    /// Others have taken all that were looked at.
    #[error("{} projects from {FIRST} on hold something and are in no file", list::STRANGERS_MAX)]
    NoneFree,
}

/// The two files.
#[derive(Clone, Debug)]
pub struct Files {
    folders: PathBuf,
    names: PathBuf,
}

/// Both files locked: nobody else writes them, whichever agent or tool.
struct Held<'a> {
    files: &'a Files,
    list: Projects,
    _locks: [Flock<File>; 2],
    /// Between jobs of this process, which so wait for each other without trying again and again.
    _turn: MutexGuard<'static, ()>,
}

impl Files {
    /// Those of the node.
    pub fn host() -> Self {
        Self::in_folder(Path::new("/etc"))
    }

    /// Those in another folder.
    pub fn in_folder(folder: &Path) -> Self {
        Self { folders: folder.join("projects"), names: folder.join("projid") }
    }

    /// Gives an empty volume a project of its own and returns it; `None` where the file system
    /// accounts none. One that has its project already keeps it.
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
            // In this order: what is named without a folder is found again, by whoever looks.
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

    /// Frees the project of a volume whose files are gone.
    // k8s: pkg/volume/util/fsquota/quota_linux.go ClearQuota
    pub fn release(&self, dir: &Path) -> Result<(), ProjectFailure> {
        let Some(path) = dir.to_str() else { return Ok(()) };
        self.remove(|listed| listed == path)
    }

    /// Frees the projects of volumes below a folder that are no longer there.
    pub fn sweep(&self, below: &Path) -> Result<(), ProjectFailure> {
        self.remove(|listed| Path::new(listed).starts_with(below) && is_gone(Path::new(listed)))
    }

    /// What is listed now.
    pub fn listed(&self) -> Listed {
        let list = self.read().unwrap_or_default();
        Listed(list.folders().map(|(id, path)| (PathBuf::from(path), id)).collect())
    }

    fn remove(&self, is_gone: impl Fn(&str) -> bool) -> Result<(), ProjectFailure> {
        // Files are replaced whole, so a look without the lock sees one version or the other.
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

    fn lock(&self) -> Result<Held<'_>, ProjectFailure> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut folders = locked(&self.folders)?;
        let mut names = locked(&self.names)?;
        let text = text_of(&mut folders, &self.folders)?;
        let list = Projects::parse(&text, &text_of(&mut names, &self.names)?);
        Ok(Held { files: self, list, _locks: [folders, names], _turn: turn })
    }

    fn write_folders(&self, list: &Projects) -> Result<(), ProjectFailure> {
        write(&self.folders, &list.folders_text())
    }

    fn write_names(&self, list: &Projects) -> Result<(), ProjectFailure> {
        write(&self.names, &list.names_text())
    }
}

impl Held<'_> {
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
    /// What a volume holds, as the kernel counted it; `None` for one that has to be walked: it is
    /// not listed, or the folder belongs to another project, such as one of all the node's.
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

/// Gives a new volume a project, or says why it is walked.
pub(super) fn measure(dir: &Path) {
    static SAID: Once = Once::new();
    match Files::host().assign(dir) {
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

/// Frees the project of a volume that is gone; what cannot be freed now is freed by the sweep.
pub(super) fn release(dir: &Path) {
    if let Err(error) = Files::host().release(dir) {
        tracing::warn!(%error, dir = %dir.display(), "a volume's project stays listed for now");
    }
}

/// Frees the projects of volumes that are gone, as a crash may leave them.
pub(super) fn sweep(pods: &Path) {
    if let Err(error) = Files::host().sweep(pods) {
        tracing::debug!(%error, "projects of volumes that are gone stay listed for now");
    }
}

fn as_line(dir: &Path) -> Result<&str, ProjectFailure> {
    let line = dir.to_str().filter(|path| !path.contains(['\n', '\r']));
    line.ok_or_else(|| ProjectFailure::NotALine(dir.to_owned()))
}

/// Neither there nor on its way out.
fn is_gone(dir: &Path) -> bool {
    let missing = |path: &Path| {
        fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    missing(dir) && missing(&dir.with_file_name(format!("{DELETING}{name}")))
}

/// The file as it is named now, made if need be, with its lock.
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
        // Whoever had it may have put another file in its place.
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
    // The umask took bits away.
    fs::set_permissions(path, Permissions::from_mode(mode)).on("chmod", path)?;
    Ok(())
}

#[cfg(test)]
mod tests;
