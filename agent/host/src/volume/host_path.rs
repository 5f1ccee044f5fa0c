//! hostPath volumes: the path is checked against its type and, for two types, created. Never
//! removed.
//!
//! Input: path and type of the spec. Output: nothing; the container mounts the path itself.

use std::fs;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use super::dir_fd::make_dir_all;
use super::error::{Cause, Context};
use super::plan::HostPathType;

/// Mode of a directory that is made.
const DIR_MODE: u32 = 0o755;
/// Mode of a file that is made.
const FILE_MODE: u32 = 0o644;

/// Checks the path, making it where the type says so.
// k8s: pkg/volume/hostpath/host_path.go checkTypeInternal
pub fn check(path: &Path, kind: HostPathType) -> Result<(), Cause> {
    if kind == HostPathType::Unset {
        return Ok(());
    }
    let found = fs::metadata(path).ok().map(|meta| meta.file_type());
    match (kind, found) {
        (HostPathType::DirectoryOrCreate, None) => Ok(make_dir_all(path, DIR_MODE)?),
        (HostPathType::FileOrCreate, None) => {
            let mut open = fs::OpenOptions::new();
            open.create(true).append(true).mode(FILE_MODE).open(path).on("open", path)?;
            Ok(())
        }
        (_, Some(found)) if fits(kind, found) => Ok(()),
        _ => {
            let path = path.display().to_string();
            Err(Cause::HostPathType { path, expected: expected(kind) })
        }
    }
}

fn expected(kind: HostPathType) -> &'static str {
    match kind {
        HostPathType::Unset => "there",
        HostPathType::DirectoryOrCreate | HostPathType::Directory => "a directory",
        HostPathType::FileOrCreate | HostPathType::File => "a file",
        HostPathType::Socket => "a socket file",
        HostPathType::CharDevice => "a character device",
        HostPathType::BlockDevice => "a block device",
    }
}

fn fits(kind: HostPathType, found: fs::FileType) -> bool {
    match kind {
        HostPathType::Unset => true,
        HostPathType::DirectoryOrCreate | HostPathType::Directory => found.is_dir(),
        HostPathType::FileOrCreate | HostPathType::File => found.is_file(),
        HostPathType::Socket => found.is_socket(),
        HostPathType::CharDevice => found.is_char_device(),
        HostPathType::BlockDevice => found.is_block_device(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn host_path_type_accepts_only_its_file_kind_with_the_error_of_kubelet() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("d")).expect("mkdir");
        fs::write(at("f"), "").expect("write");
        let _socket = UnixListener::bind(at("s")).expect("bind");
        std::os::unix::fs::symlink(at("d"), at("link")).expect("symlink");
        let null = Path::new("/dev/null").to_owned();
        let table = [
            (at("d"), "Directory", Ok(())),
            (at("link"), "Directory", Ok(())),
            (at("f"), "Directory", Err("a directory")),
            (at("none"), "Directory", Err("a directory")),
            (at("f"), "DirectoryOrCreate", Err("a directory")),
            (at("f"), "File", Ok(())),
            (at("d"), "File", Err("a file")),
            (at("d"), "FileOrCreate", Err("a file")),
            (at("s"), "Socket", Ok(())),
            (at("f"), "Socket", Err("a socket file")),
            (null.clone(), "CharDevice", Ok(())),
            (at("f"), "CharDevice", Err("a character device")),
            (null, "BlockDevice", Err("a block device")),
            (at("none"), "", Ok(())),
        ];
        for (path, kind, expected) in table {
            let kind = HostPathType::parse(kind).expect("known");
            let found = check(&path, kind).map_err(|cause| cause.to_string());
            let expected = expected.map_err(|what: &str| {
                format!("hostPath type check failed: {} is not {what}", path.display())
            });
            assert_eq!(found, expected, "{kind:?}");
        }
    }

    #[test]
    fn or_create_host_path_types_create_missing_paths_with_the_modes_of_kubelet() {
        let dir = tempfile::tempdir().expect("dir");
        let made = dir.path().join("a/b");
        check(&made, HostPathType::DirectoryOrCreate).expect("made");
        assert_eq!(fs::metadata(&made).expect("stat").permissions().mode() & 0o777, 0o755);
        let file = made.join("file");
        check(&file, HostPathType::FileOrCreate).expect("made");
        assert_eq!(fs::metadata(&file).expect("stat").permissions().mode() & 0o777, 0o644);
        let orphan = dir.path().join("no/such/file");
        let error = check(&orphan, HostPathType::FileOrCreate).expect_err("no directory");
        assert!(error.to_string().contains("ENOENT"), "{error}");
    }
}
