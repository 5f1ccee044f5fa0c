//! Writes ustar archives in memory: the few entry types that a container image layer needs.
//!
//! Input: paths with modes and bytes. Output: the archive's bytes, equal for equal input (no times,
//! no owners), so that an image keeps its digest from run to run. Bounds: paths up to 100 bytes,
//! files up to 8 GiB, as the format has them. Ours because a dependency would be larger than this.

/// One header or padding unit of the format, in bytes.
const BLOCK_BYTES: usize = 512;

/// An archive being written.
#[derive(Default)]
pub struct Tar {
    bytes: Vec<u8>,
    dirs: std::collections::BTreeSet<String>,
}

impl Tar {
    /// A regular file; its missing parent folders are added before it.
    pub fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.parents(path);
        self.header(path, mode, data.len(), b'0', "");
        self.bytes.extend_from_slice(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    }

    /// A folder, once.
    pub fn dir(&mut self, path: &str, mode: u32) {
        self.parents(path);
        if self.dirs.insert(path.to_owned()) {
            self.header(&format!("{path}/"), mode, 0, b'5', "");
        }
    }

    /// A symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.header(path, 0o777, 0, b'2', target);
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK_BYTES, 0);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.dir(parent, 0o755);
        }
    }

    fn header(&mut self, path: &str, mode: u32, size: usize, kind: u8, target: &str) {
        assert!(path.len() <= 100 && target.len() <= 100, "ustar name too long: {path}");
        let mut block = [0u8; BLOCK_BYTES];
        let mut put = |at: usize, text: &str| {
            block[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, path);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000"); // uid
        put(116, "0000000"); // gid
        put(124, &format!("{size:011o}"));
        put(136, "00000000000"); // modification time
        put(148, "        "); // the checksum counts as spaces while it is computed
        put(157, target);
        put(257, "ustar");
        put(263, "00");
        block[156] = kind;
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_tar_extracts_the_written_archive() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut tar = Tar::default();
        tar.file("bin/tool", 0o755, b"#!/bin/sh\n");
        tar.file("bin/other", 0o644, &[7; 1000]);
        tar.symlink("bin/alias", "tool");
        tar.dir("tmp", 0o1777);
        let path = dir.path().join("x.tar");
        std::fs::write(&path, tar.finish()).expect("written");
        let ok = std::process::Command::new("tar")
            .args(["-xpf", "x.tar"])
            .current_dir(dir.path())
            .status()
            .expect("tar starts");
        assert!(ok.success());
        assert_eq!(std::fs::read(dir.path().join("bin/other")).expect("there"), [7; 1000]);
        assert_eq!(
            std::fs::read_link(dir.path().join("bin/alias")).expect("a link").to_str(),
            Some("tool")
        );
        assert!(dir.path().join("tmp").is_dir());
    }
}
