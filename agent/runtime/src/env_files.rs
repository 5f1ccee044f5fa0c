//! Reads files of variables, which a pod's containers have written into its volumes.
//!
//! Input: a volume's directory and a path in it. Output: the whole text, or why there is none. What
//! the text means is `pintle_agent_core::env::file`. Bound: `FILE_BYTES_MAX`.

use std::io::{self, Read as _};
use std::path::Path;

use pintle_agent_host::volume::dir_fd::open_file_beneath;

/// Longest file that is read; a longer one is an error, never cut. The kubelet has no limit here,
/// so this one is far above what anybody writes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A file beneath a volume's directory. Blocks for as long as the volume's file system does.
pub(super) fn read(volume: &Path, path: &str) -> io::Result<String> {
    let file = open_file_beneath(volume, path)?;
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("longer than {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(text).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_whole_or_not_at_all() {
        let volume = tempfile::tempdir().expect("a folder");
        std::fs::write(volume.path().join("env"), "x".repeat(100 << 10)).expect("written");
        assert_eq!(read(volume.path(), "env").expect("read").len(), 100 << 10);
        let huge = std::fs::File::create(volume.path().join("huge")).expect("made");
        huge.set_len(FILE_BYTES_MAX + 1).expect("sparse");
        assert!(read(volume.path(), "huge").is_err());
        for (what, put) in xtask::disk::STRANGE {
            let path = volume.path().join("strange");
            put(&path);
            let read = read(volume.path(), "strange");
            assert!(read.is_err(), "{what}");
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
        }
    }
}
