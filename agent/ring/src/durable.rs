//! Files of one folder that are replaced, each in one step, and are durable afterwards.
//!
//! Input: folder, names, bytes. Each new file is written beside the old one as `.NAME.new`, synced
//! and renamed, all of them side by side; then the folder is synced once. After a crash each is the
//! old one or the new one. As `pintle_daemon::durable`, which blocks.

use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::Mode;
use pintle_daemon::blocking::JobPlace;

use crate::chain::{Batch, Chain, PathStart};
use crate::files::{FileError, run, run_all};

/// A file that is to be.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// Its name in the folder.
    pub name: String,
    /// All that is in it.
    pub bytes: Vec<u8>,
    /// Its rights, less the umask.
    pub mode: Mode,
}

impl NewFile {
    fn beside(&self, folder: &Path) -> Result<PathStart, Errno> {
        PathStart::path(folder.join(format!(".{}.new", self.name)))
    }
}

/// Replaces or makes the files. Removes the leftovers of an interrupted call, so that each file has
/// its mode from its first byte on. Some may be replaced where others fail.
pub async fn replace(place: JobPlace, folder: &Path, files: &[NewFile]) -> Result<(), FileError> {
    let mut done = run_all(place.clone(), batch(folder, files)?).await;
    if let Err(FileError::Chain(error)) = &done
        && error.errno() == Errno::EEXIST
    {
        remove_beside(&place, folder, files).await?;
        done = run_all(place.clone(), batch(folder, files)?).await;
    }
    if let Err(FileError::Chain(_)) = done {
        // On a full disk half a file must not take the room that the next attempt needs.
        remove_beside(&place, folder, files).await?;
    }
    done.map(drop)
}

fn batch(folder: &Path, files: &[NewFile]) -> Result<Batch, Errno> {
    let chain = |file: &NewFile| {
        let at = PathStart::path(folder.join(&file.name))?;
        Ok(Chain::replace(file.beside(folder)?, at, file.bytes.clone(), file.mode))
    };
    let chains: Result<Vec<_>, Errno> = files.iter().map(chain).collect();
    Ok(Batch::from(chains?).then().with(Chain::sync_dir(PathStart::path(folder)?)))
}

/// Removes temporary files; missing ones are fine, and the next attempt reports other errors.
async fn remove_beside(
    place: &JobPlace,
    folder: &Path,
    files: &[NewFile],
) -> Result<(), FileError> {
    let chain = |file: &NewFile| {
        let mut chain = Chain::new();
        chain.unlink(file.beside(folder)?);
        Ok(chain)
    };
    let chains: Result<Vec<_>, Errno> = files.iter().map(chain).collect();
    run(place.clone(), chains?).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::RingFiles;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn files(bytes: &[u8]) -> Vec<NewFile> {
        let file = |name: &str| NewFile {
            name: name.to_owned(),
            bytes: bytes.to_owned(),
            mode: Mode::S_IRUSR | Mode::S_IWUSR,
        };
        ["a", "b"].map(file).into()
    }

    /// Runs `test` on a file system in memory of 64 KiB, through a ring and by plain calls.
    fn on_each(test: impl AsyncFn(&Path) + Copy + Send + 'static) {
        for is_ring in [true, false] {
            xtask::disk::with_private_mounts(move || {
                pintle_daemon::blocking::Pool::own();
                let ring = || RingFiles::ring(false).expect("this kernel has io_uring");
                (if is_ring { ring() } else { RingFiles::direct() }).for_thread();
                let folder = tempfile::tempdir().expect("a folder");
                xtask::disk::small(folder.path(), 64 << 10);
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
                runtime.expect("a runtime").block_on(test(folder.path()));
            });
        }
    }

    #[test]
    fn full_disk_leaves_the_old_files_and_no_partial_new_file() {
        on_each(async |folder| {
            let place = || JobPlace::own("test");
            replace(place(), folder, &files(b"old")).await.expect("there is room");
            let error = replace(place(), folder, &files(&vec![b'x'; 128 << 10])).await;
            let Err(FileError::Chain(error)) = error else { panic!("{error:?}") };
            assert_eq!(error.errno(), Errno::ENOSPC);
            for name in ["a", "b"] {
                assert_eq!(fs::read(folder.join(name)).expect("a file"), b"old");
            }
            replace(place(), folder, &files(&vec![b'y'; 20 << 10])).await.expect("room again");
            assert_eq!(fs::read_dir(folder).expect("a folder").count(), 2);
        });
    }

    #[test]
    fn secret_is_never_written_through_a_leftover_temporary_file() {
        on_each(async |folder| {
            let elsewhere = folder.join("elsewhere");
            fs::write(&elsewhere, "theirs").expect("written");
            symlink(&elsewhere, folder.join(".a.new")).expect("linked");
            fs::write(folder.join(".b.new"), "half, for all to read").expect("written");
            replace(JobPlace::own("test"), folder, &files(b"secret")).await.expect("replaced");
            assert_eq!(fs::read_to_string(&elsewhere).expect("a file"), "theirs");
            for name in ["a", "b"] {
                let meta = fs::symlink_metadata(folder.join(name)).expect("a file");
                assert!(meta.is_file());
                assert_eq!(meta.permissions().mode() & 0o777, 0o600);
                assert_eq!(fs::read(folder.join(name)).expect("a file"), b"secret");
            }
            assert_eq!(fs::read_dir(folder).expect("a folder").count(), 3, "nothing is left");
        });
    }
}
