//! Small files that are read whole, up to a bound.
//!
//! Input: paths and a bound. Output: each file's beginning, or why there is none. Most are far
//! shorter than their bound: `FIRST_BYTES` of each are read first, side by side, and those of which
//! there may be more are read again.

use std::path::Path;

use pintle_daemon::blocking::JobPlace;

use crate::chain::{Batch, Chain, Done, How, PathStart};
use crate::files::{Answers, ChainError, FileError, run};

/// Bytes of the first read of each file.
const FIRST_BYTES: usize = 8 << 10;

/// The beginning of a file, at most `bytes_max` of it.
pub async fn read(place: JobPlace, path: &Path, bytes_max: usize) -> Result<Vec<u8>, FileError> {
    let mut all = read_all(place, &[path], bytes_max).await?;
    Ok(all.pop().expect("one for each path")?)
}

/// The beginnings of files, read side by side, in their order.
pub async fn read_all(
    place: JobPlace,
    paths: &[impl AsRef<Path>],
    bytes_max: usize,
) -> Result<Vec<Result<Vec<u8>, ChainError>>, FileError> {
    let chain = |path: &Path, bytes_max| -> Result<Chain, FileError> {
        Ok(Chain::read_file(PathStart::path(path)?, How::read(), bytes_max))
    };
    let first_bytes = FIRST_BYTES.min(bytes_max);
    let first: Result<Vec<_>, _> =
        paths.iter().map(|path| chain(path.as_ref(), first_bytes)).collect();
    let mut read: Vec<_> = texts(run(place.clone(), first?).await?).collect();
    let mut longer = Vec::new();
    let mut again = Batch::new();
    for (at, path) in paths.iter().enumerate() {
        let is_full = read[at].as_ref().is_ok_and(|text| text.len() == first_bytes);
        if is_full && first_bytes < bytes_max {
            longer.push(at);
            // From its beginning: it may be another file by now.
            again.push(chain(path.as_ref(), bytes_max)?);
        }
    }
    if !longer.is_empty() {
        for (at, text) in longer.into_iter().zip(texts(run(place, again).await?)) {
            read[at] = text;
        }
    }
    Ok(read)
}

fn texts(answers: Answers) -> impl Iterator<Item = Result<Vec<u8>, ChainError>> {
    let last = |done: Vec<Done>| done.into_iter().next_back().map(Done::bytes);
    answers.into_iter().map(move |answer| answer.map(|done| last(done).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::RingFiles;
    use nix::errno::Errno;

    #[test]
    fn small_files_are_each_read_to_their_end_or_to_the_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let lengths = [0, 1, FIRST_BYTES - 1, FIRST_BYTES, FIRST_BYTES + 1, 5 * FIRST_BYTES];
        let paths = lengths.map(|length| folder.path().join(length.to_string()));
        let text = |length: usize| -> Vec<u8> { (0..length).map(|n| (n % 251) as u8).collect() };
        for (path, length) in paths.iter().zip(lengths) {
            std::fs::write(path, text(length)).expect("written");
        }
        let own = || JobPlace::own("test");
        for files in [RingFiles::ring(false), RingFiles::ring(true), Ok(RingFiles::direct())] {
            files.expect("this kernel has io_uring").for_thread();
            crate::tests::runtime().block_on(async {
                for bytes_max in [0, 10, FIRST_BYTES, 2 * FIRST_BYTES, 1 << 20] {
                    let read = read_all(own(), &paths, bytes_max).await.expect("answered");
                    let expected = lengths.map(|length| Ok(text(length.min(bytes_max))));
                    assert_eq!(read, expected, "{bytes_max}");
                }
                let missing = read(own(), &folder.path().join("none"), 10).await;
                let Err(FileError::Chain(missing)) = missing else { panic!("{missing:?}") };
                assert_eq!(missing.errno(), Errno::ENOENT);
                let [dir, file] = [folder.path(), &paths[1]];
                let mixed = read_all(own(), &[dir, file], 10).await.expect("answered");
                assert_eq!(mixed[0].as_ref().map_err(|e| e.errno()), Err(Errno::EISDIR));
                assert_eq!(mixed[1], Ok(text(1)), "the other is read");
            });
        }
    }
}
