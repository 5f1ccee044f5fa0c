//! The cache folder: everything fetched or made once and used by every later run.
//!
//! `$PINTLE_CACHE`, else `$XDG_CACHE_HOME/pintle`, else `~/.cache/pintle`. It is outside the
//! repository because the runtime's programs are patched to their final path and a clean clone
//! should not fetch them again. An entry is a folder that appears by rename with its stamp inside,
//! so that a half-made one is never used; an entry whose stamp differs from the wanted one is
//! rebuilt. A lock file serialises makers: several test processes may start at once.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use nix::fcntl::{Flock, FlockArg};

/// Name of the file in each entry that says which recipe made it.
const STAMP: &str = ".stamp";
/// How many entries of one content-named kind are kept: several checkouts may be at work.
const KEPT_MAX: usize = 8;

/// The cache folder, created if missing.
pub fn dir() -> Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let dir = from("PINTLE_CACHE")
        .or_else(|| from("XDG_CACHE_HOME").map(|d| d.join("pintle")))
        .or_else(|| from("HOME").map(|d| d.join(".cache/pintle")))
        .ok_or_else(|| anyhow!("no cache folder: set HOME or PINTLE_CACHE"))?;
    fs::create_dir_all(&dir).with_context(|| format!("create cache folder {}", dir.display()))?;
    fs::canonicalize(&dir).with_context(|| format!("resolve {}", dir.display()))
}

/// The entry `name`; `make` builds it if it is missing or its stamp differs.
///
/// `make` gets an empty folder (same file system) and the entry's final path, for programs that
/// must know where they will live.
pub fn entry(
    name: &str,
    stamp: &str,
    make: impl FnOnce(&Path, &Path) -> Result<()>,
) -> Result<PathBuf> {
    let root = dir()?;
    let done = root.join(name);
    if is_fresh(&done, stamp) {
        return Ok(done);
    }
    let _lock = lock(&root, name)?;
    if is_fresh(&done, stamp) {
        return Ok(done); // another process made it while we waited
    }
    let parent = done.parent().expect("an entry lies inside the cache folder");
    let staging = parent.join(format!(".making-{}", name.replace('/', "-")));
    remove(&staging)?;
    fs::create_dir_all(&staging).with_context(|| format!("create {}", staging.display()))?;
    make(&staging, &done).with_context(|| format!("make {}", done.display()))?;
    fs::write(staging.join(STAMP), stamp).context("write the stamp")?;
    remove(&done)?;
    fs::rename(&staging, &done).with_context(|| format!("put {} in place", done.display()))?;
    Ok(done)
}

/// An entry named by its content, `kind-digest`; the oldest others of its kind are removed.
pub fn content_entry(
    kind: &str,
    digest: &str,
    make: impl FnOnce(&Path, &Path) -> Result<()>,
) -> Result<PathBuf> {
    let name = format!("{kind}-{}", &digest[..12]);
    let mut is_new = false;
    let path = entry(&name, digest, |staging, done| {
        is_new = true;
        make(staging, done)
    })?;
    if is_new {
        prune(&path, &format!("{}-", dir()?.join(kind).display()))?;
    }
    Ok(path)
}

/// Keeps the newest entries with a path that starts with `prefix`.
fn prune(newest: &Path, prefix: &str) -> Result<()> {
    let parent = newest.parent().expect("an entry lies inside the cache folder");
    let mut same: Vec<_> = fs::read_dir(parent)?
        .flatten()
        .filter(|e| e.path().to_string_lossy().starts_with(prefix))
        .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())))
        .collect();
    same.sort();
    let surplus = same.len().saturating_sub(KEPT_MAX);
    same[..surplus].iter().try_for_each(|(_, path)| remove(path))
}

/// Removes files and folders of processes that have ended, named `prefix` and the process' number.
pub fn sweep(prefix: &str) -> Result<()> {
    sweep_in(&dir()?, prefix)
}

fn sweep_in(root: &Path, prefix: &str) -> Result<()> {
    for entry in fs::read_dir(root)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix(prefix).and_then(|rest| rest.split('.').next());
        let Some(maker) = number.and_then(|number| number.parse::<u32>().ok()) else { continue };
        if Path::new(&format!("/proc/{maker}")).exists() {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => remove(&entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// Returns whether the entry exists and was made by this recipe.
fn is_fresh(dir: &Path, stamp: &str) -> bool {
    fs::read_to_string(dir.join(STAMP)).is_ok_and(|found| found == stamp)
}

/// An exclusive lock per entry, held until dropped; the kernel frees it if we die.
fn lock(root: &Path, name: &str) -> Result<Flock<File>> {
    lock_file(&root.join(format!(".lock-{}", name.replace('/', "-"))))
}

/// Waits for an exclusive lock of a file, which is created; held until dropped.
pub(crate) fn lock_file(path: &Path) -> Result<Flock<File>> {
    let file = File::create(path).with_context(|| format!("open {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| anyhow!("lock {}: {errno}", path.display()))
}

/// Removes a folder tree; one that is not there is fine.
pub fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_ended_processes_are_removed_and_other_files_stay() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| dir.path().join(name);
        let ours = format!("disk-{}", std::process::id());
        // No process has that number: it is above the kernel's limit.
        for name in ["disk-4999999", "disk-x", "other-4999999", &ours] {
            fs::write(at(name), "").expect("written");
        }
        fs::create_dir_all(at("disk-4999998.tree/in")).expect("made");
        sweep_in(dir.path(), "disk-").expect("swept");
        let entries = fs::read_dir(dir.path()).expect("read").flatten();
        let mut left: Vec<_> =
            entries.map(|e| e.file_name().into_string().expect("text")).collect();
        left.sort();
        let mut wanted = [ours.as_str(), "disk-x", "other-4999999"];
        wanted.sort_unstable();
        assert_eq!(left, wanted);
    }

    #[test]
    fn only_the_newest_entries_of_a_kind_are_kept_and_other_kinds_stay() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let at = |name: String| dir.path().join(name);
        for n in 0..KEPT_MAX + 2 {
            fs::create_dir(at(format!("a-{n:02}"))).expect("created");
            let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(n as u64);
            File::open(at(format!("a-{n:02}"))).expect("open").set_modified(old).expect("set");
        }
        fs::create_dir(at("b-00".to_owned())).expect("created");
        let prefix = format!("{}-", at("a".to_owned()).display());
        prune(&at("a-09".to_owned()), &prefix).expect("pruned");
        assert!(!at("a-00".to_owned()).exists() && !at("a-01".to_owned()).exists());
        assert!(at("a-02".to_owned()).exists() && at("b-00".to_owned()).exists());
    }
}
