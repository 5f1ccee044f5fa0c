//! The same chains with plain calls, where the kernel refuses a ring.
//!
//! A batch is one job of `pintle_daemon::blocking`'s pool: jobs of the same place run one after the
//! other there, so a job for each chain would win nothing. A caller that goes away ends it at
//! its next step.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, openat2, renameat2};
use nix::libc::off_t;
use nix::sys::stat::{fstatat, mkdirat};
use nix::sys::uio::{pread, pwrite};
use nix::unistd::{UnlinkatFlags, fdatasync, fsync, symlinkat, unlinkat};
use pintle_daemon::blocking::{Blocked, JobPlace, Pool};

use crate::chain::{Batch, Chain, ChainStep, Done, FileStat, How, OPENS_MAX, OpenFile, PathStart};
use crate::files::{Answers, ChainError};
use crate::progress::Failure;

/// Set when the caller goes away.
struct CallerGone(Arc<AtomicBool>);

impl Drop for CallerGone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a batch as one job.
pub(crate) async fn run(pool: &Pool, place: JobPlace, batch: Batch) -> Result<Answers, Blocked> {
    let gone = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&gone);
    let _gone = CallerGone(gone);
    pool.run(place, move || all(batch, &seen)).await
}

fn all(batch: Batch, gone: &AtomicBool) -> Answers {
    let mut answers = Vec::with_capacity(batch.len());
    let mut begins = true;
    for group in batch.groups {
        if !begins {
            answers.extend(group.iter().map(|_| Err(ChainError::NotBegun)));
            continue;
        }
        let done = group
            .iter()
            .map(|chain| run_chain(chain, gone).map_err(|failure| ChainError::of(chain, failure)));
        let done: Vec<_> = done.collect();
        begins = done.iter().all(Result::is_ok);
        answers.extend(done);
    }
    answers
}

fn run_chain(chain: &Chain, gone: &AtomicBool) -> Result<Vec<Done>, Failure> {
    let mut open: [Option<OwnedFd>; OPENS_MAX] = Default::default();
    let mut done = Vec::with_capacity(chain.steps.len());
    for (at, step) in chain.steps.iter().enumerate() {
        if gone.load(Ordering::Relaxed) {
            return Err((at, Errno::ECANCELED));
        }
        done.push(run_step(step, &mut open).map_err(|errno| (at, errno))?);
    }
    Ok(done)
}

fn run_step(step: &ChainStep, open: &mut [Option<OwnedFd>; OPENS_MAX]) -> nix::Result<Done> {
    match step {
        ChainStep::Open { at, how, into } => {
            open[into.0] = Some(again(|| open_at(at, how))?);
            Ok(Done::Nothing)
        }
        ChainStep::OpenHeld { at, how } => again(|| open_at(at, how)).map(Done::File),
        ChainStep::Stat { at, follow } => {
            let flags = if *follow { AtFlags::empty() } else { AtFlags::AT_SYMLINK_NOFOLLOW };
            let stat = fstatat(at.dir(), at.path.as_c_str(), flags)?;
            Ok(Done::Stat(FileStat {
                mode: stat.st_mode,
                size: stat.st_size.cast_unsigned(),
                uid: stat.st_uid,
                gid: stat.st_gid,
                ino: stat.st_ino,
                links: stat.st_nlink,
            }))
        }
        ChainStep::Read { file, offset, bytes_max } => {
            let (file, offset) = (fd_of(file, open)?, position(*offset)?);
            let mut buffer = vec![0; *bytes_max];
            let count = again(|| pread(file, &mut buffer, offset))?;
            buffer.truncate(count);
            Ok(Done::Bytes(buffer))
        }
        ChainStep::Write { file, offset, bytes } => {
            write_all(fd_of(file, open)?, *offset, bytes).map(|()| Done::Nothing)
        }
        ChainStep::Sync { file, data_only } => {
            let file = fd_of(file, open)?;
            let synced = again(|| if *data_only { fdatasync(file) } else { fsync(file) });
            synced.map(|()| Done::Nothing)
        }
        step => again(|| change_name(step)).map(|()| Done::Nothing),
    }
}

/// A step that changes only names.
fn change_name(step: &ChainStep) -> nix::Result<()> {
    match step {
        ChainStep::MakeDir { at, mode } => mkdirat(at.dir(), at.path.as_c_str(), *mode),
        ChainStep::Unlink { at, is_dir } => {
            let kind = if *is_dir { UnlinkatFlags::RemoveDir } else { UnlinkatFlags::NoRemoveDir };
            unlinkat(at.dir(), at.path.as_c_str(), kind)
        }
        ChainStep::Rename { from, to, flags } => {
            let (before, after) = (from.path.as_c_str(), to.path.as_c_str());
            renameat2(from.dir(), before, to.dir(), after, *flags)
        }
        ChainStep::SymLink { target, at } => {
            symlinkat(target.as_c_str(), at.dir(), at.path.as_c_str())
        }
        _ => Err(Errno::EINVAL),
    }
}

fn open_at(at: &PathStart, how: &How) -> nix::Result<OwnedFd> {
    let flags = how.flags | OFlag::O_CLOEXEC;
    let how = OpenHow::new().flags(flags).mode(how.mode).resolve(how.resolve);
    openat2(at.dir(), at.path.as_c_str(), how)
}

fn write_all(file: BorrowedFd<'_>, offset: u64, bytes: &[u8]) -> nix::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        let at = position(offset + written as u64)?;
        match again(|| pwrite(file, &bytes[written..], at))? {
            0 => return Err(Errno::EIO),
            count => written += count,
        }
    }
    Ok(())
}

fn position(offset: u64) -> nix::Result<off_t> {
    off_t::try_from(offset).map_err(|_| Errno::EINVAL)
}

fn fd_of<'a>(file: &'a OpenFile, open: &'a [Option<OwnedFd>]) -> nix::Result<BorrowedFd<'a>> {
    match file {
        OpenFile::Held(held) => Ok(held.as_fd()),
        OpenFile::Here(opened) => open[opened.0].as_ref().map(AsFd::as_fd).ok_or(Errno::EBADF),
    }
}

fn again<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}
