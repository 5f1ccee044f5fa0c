//! Sizes of logs and the agent's own files of pods. Effects: reads metadata.
//!
//! Bounds: `FILES_MAX` files of one log folder.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

pub(super) use pintle_agent_host::disk::{FileSystem, file_system};

/// Files of one folder that are added up.
const FILES_MAX: usize = 1024;
/// Unit of a file's blocks.
const BLOCK_BYTES: u64 = 512;

/// Disk usage of some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileUsage {
    pub(super) bytes: u64,
    pub(super) inodes: u64,
}

/// Disk usage of the files of a folder, without folders below it.
pub(super) fn folder(path: &Path) -> FileUsage {
    let entries = fs::read_dir(path).into_iter().flatten().flatten().take(FILES_MAX);
    entries.fold(FileUsage::default(), |sum, entry| add(sum, &entry.path()))
}

/// Adds one file to a sum.
pub(super) fn add(sum: FileUsage, file: &Path) -> FileUsage {
    match fs::symlink_metadata(file) {
        Ok(meta) if meta.is_file() => {
            FileUsage { bytes: sum.bytes + meta.blocks() * BLOCK_BYTES, inodes: sum.inodes + 1 }
        }
        _ => sum,
    }
}

/// The hosts files that the agent wrote for pods, by their uids.
pub(super) fn hosts_files(pods: &Path, uids: Vec<String>) -> HashMap<String, FileUsage> {
    let size = |uid: &String| add(FileUsage::default(), &pods.join(uid).join("etc-hosts"));
    uids.into_iter().map(|uid| (uid.clone(), size(&uid))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_folder_are_added_up() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("a"), vec![1; 10_000]).expect("written");
        fs::write(dir.path().join("b"), "").expect("written");
        fs::create_dir(dir.path().join("c")).expect("made");
        let usage = folder(dir.path());
        assert_eq!(usage.inodes, 2);
        assert!(usage.bytes >= 10_000 && usage.bytes < 40_000, "{usage:?}");
        assert_eq!(folder(Path::new("/no/such")), FileUsage::default());
        let fs = file_system(dir.path()).expect("there");
        assert!(fs.capacity_bytes >= fs.available_bytes && fs.inodes >= fs.inodes_free);
    }
}
