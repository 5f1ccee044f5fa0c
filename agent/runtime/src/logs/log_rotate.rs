//! Rotates one log: rename, have the runtime open a new file, tidy the old ones.
//!
//! ```text
//!   0.log                            the runtime writes here
//!   0.log.20260101-101502            newest rotated one, left as it is for collectors
//!   0.log.20260101-101455.gz         older ones
//! ```
//! Input: path, policy, time, and how to ask the runtime. Output: a new live file, at most
//! `max_files` files in all. Unlike upstream, the rename comes first and compression afterwards:
//! compressing first let the live file grow meanwhile. On a full disk nothing needs space: the
//! oldest files are deleted, and a file that cannot be compressed for lack of space is deleted
//! instead. Killed anywhere, the next rotation removes half-written `.tmp` files; a log renamed
//! without a new one is noticed by its missing name. A file that is not regular is moved aside like
//! a log, never opened, and removed where it would be compressed.
// k8s: pkg/kubelet/logs/container_log_manager.go rotateLog

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use pintle_agent_host::volume::error::{Context, IoFailure};
use pintle_daemon::regular_file;

use super::log_files::{remove_file, rotated};

const COMPRESSED: &str = ".gz";
const UNFINISHED: &str = ".tmp";
/// Format of a rotated log's time.
const STAMP: &str = "%Y%m%d-%H%M%S";
/// How far a stamp may be put off to be the newest: that many rotations within one second.
const STAMPS_AHEAD_MAX: u32 = 600;

/// When and how much to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotatePolicy {
    /// `containerLogMaxSize` in bytes.
    pub max_bytes: u64,
    /// `containerLogMaxFiles`: live file and rotated ones together, at least 2.
    pub max_files: usize,
}

/// Moves the live log aside. Returns its new name, which is newer than every other one.
pub fn set_aside(log: &Path, now: jiff::Timestamp) -> Result<PathBuf, IoFailure> {
    let newest = rotated(log).iter().filter_map(|path| stamp_of(log, path)).max();
    let mut at = now;
    for _ in 0..STAMPS_AHEAD_MAX {
        let stamp = stamp(at);
        at += jiff::SignedDuration::from_secs(1);
        if newest.as_ref().is_some_and(|newest| stamp <= *newest) {
            continue;
        }
        let aside = with_suffix(log, &format!(".{stamp}"));
        // Never over another file: two rotations in one second would lose the first one's lines.
        match renameat2(AT_FDCWD, log, AT_FDCWD, &aside, RenameFlags::RENAME_NOREPLACE) {
            Ok(()) => return Ok(aside),
            Err(Errno::EEXIST) => {}
            Err(Errno::EINVAL | Errno::ENOSYS) if !aside.exists() => {
                fs::rename(log, &aside).on("rename", log)?;
                return Ok(aside);
            }
            Err(errno) => return Err(IoFailure::new("rename", log, errno)),
        }
    }
    Err(IoFailure::new("rename", log, Errno::EEXIST))
}

/// Undoes `set_aside`, when the runtime did not open a new file.
pub fn put_back(log: &Path, aside: &Path) -> Result<(), IoFailure> {
    match renameat2(AT_FDCWD, aside, AT_FDCWD, log, RenameFlags::RENAME_NOREPLACE) {
        // The runtime opened one after all.
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(IoFailure::new("rename", aside, errno)),
    }
}

/// Deletes the excess, then compresses all rotated logs but the newest. Blocks for as long as
/// compressing takes.
pub fn tidy(log: &Path, max_files: usize) -> Result<(), IoFailure> {
    let files = drop_excess(log, max_files)?;
    let Some((_, older)) = files.split_last() else { return Ok(()) };
    for path in older.iter().filter(|path| !ends_with(path, COMPRESSED)) {
        match compress(path) {
            Ok(()) => {}
            // No room even for the smaller file: deleting it makes room.
            Err(failure) if is_full(failure.errno) => remove_file(path)?,
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// Removes unfinished and superseded files and the oldest beyond `max_files - 1` rotated ones;
/// returns the rest, oldest first.
pub fn drop_excess(log: &Path, max_files: usize) -> Result<Vec<PathBuf>, IoFailure> {
    let found = rotated(log);
    let superseded = |path: &Path| found.contains(&with_suffix(path, COMPRESSED));
    let (unused, mut used): (Vec<_>, Vec<_>) =
        found.iter().cloned().partition(|path| ends_with(path, UNFINISHED) || superseded(path));
    for path in &unused {
        remove_file(path)?;
    }
    let excess = used.len().saturating_sub(max_files.saturating_sub(1));
    for path in used.drain(..excess) {
        remove_file(&path)?;
    }
    Ok(used)
}

/// Deletes the oldest rotated log. False when there is none.
pub fn drop_oldest(log: &Path) -> Result<bool, IoFailure> {
    match rotated(log).first() {
        Some(oldest) => remove_file(oldest).map(|()| true),
        None => Ok(false),
    }
}

/// True for errors of a full disk or quota.
pub fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSPC | Errno::EDQUOT)
}

fn compress(path: &Path) -> Result<(), IoFailure> {
    let meta = fs::symlink_metadata(path).on("stat", path)?;
    if !meta.is_file() {
        return remove_file(path);
    }
    let unfinished = with_suffix(path, UNFINISHED);
    let result = write_compressed(path, &unfinished).on("compress", path);
    if result.is_err() {
        remove_file(&unfinished)?;
        return result;
    }
    let done = with_suffix(path, COMPRESSED);
    fs::rename(&unfinished, &done).on("rename", &unfinished)?;
    remove_file(path)
}

fn write_compressed(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = regular_file::open_at(from)?;
    let mode = source.metadata()?.permissions().mode() & 0o777;
    let _ = remove_file(to);
    let target = regular_file::create_at(to, mode)?;
    let mut encoder = GzEncoder::new(target, Compression::default());
    io::copy(&mut source, &mut encoder)?;
    encoder.finish()?.flush()
}

fn stamp(at: jiff::Timestamp) -> String {
    // In local time, as upstream's clock formats it.
    at.to_zoned(jiff::tz::TimeZone::system()).strftime(STAMP).to_string()
}

/// `20260101-101502` of `0.log.20260101-101502` and `0.log.20260101-101502.gz`.
fn stamp_of(log: &Path, path: &Path) -> Option<String> {
    let prefix = format!("{}.", log.file_name()?.to_str()?);
    let rest = path.file_name()?.to_str()?.strip_prefix(&prefix)?;
    Some(rest.split('.').next()?.to_owned())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn ends_with(path: &Path, suffix: &str) -> bool {
    path.to_str().is_some_and(|path| path.ends_with(suffix))
}
