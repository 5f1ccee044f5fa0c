//! How full a file system is. Effects: one `statvfs`, which hangs where the file system does.

use std::path::Path;

use nix::sys::statvfs::statvfs;

/// A file system as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSystem {
    /// All bytes.
    pub capacity_bytes: u64,
    /// Bytes available without root privileges.
    pub available_bytes: u64,
    /// Bytes to root.
    pub free_bytes: u64,
    /// All inodes; 0 where the file system makes them as it needs them.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
}

/// The file system that holds this path; `None` when there is no such path.
pub fn file_system(path: &Path) -> Option<FileSystem> {
    let stat = statvfs(path).ok()?;
    let unit = stat.fragment_size();
    Some(FileSystem {
        capacity_bytes: stat.blocks().saturating_mul(unit),
        available_bytes: stat.blocks_available().saturating_mul(unit),
        free_bytes: stat.blocks_free().saturating_mul(unit),
        inodes: stat.files(),
        inodes_free: stat.files_free(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_system_capacity_is_at_least_its_free_and_available_space() {
        let fs = file_system(Path::new("/")).expect("there");
        assert!(fs.capacity_bytes >= fs.free_bytes && fs.free_bytes >= fs.available_bytes);
        assert!(fs.capacity_bytes > 0 && fs.inodes >= fs.inodes_free);
        assert_eq!(file_system(Path::new("/no/such/path")), None);
    }
}
