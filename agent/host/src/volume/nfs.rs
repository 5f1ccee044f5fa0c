//! NFS volumes: mounted by the host's `mount`, which asks the server, and taken away by `umount`.
//!
//! Input: server, path, directory of the volume. Effects: the mount. Blocks, as long as a server
//! that does not answer lets it, but no longer than `MOUNT_MAX` or `UNMOUNT_MAX`: called on the
//! pod's share of the threads that may. What is mounted is learnt from the kernel's list: looking
//! at a directory of a dead server would hang.
// k8s: pkg/volume/nfs/nfs.go

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::dir_fd::make_dir_all;
use super::error::{Cause, Context, IoFailure};
use super::layout::DIR_MODE;
use super::mount;
use super::plan::Nfs;
use super::program::{self, ProgramError};

/// Longest mount. The program itself tries for two minutes.
const MOUNT_MAX: Duration = Duration::from_secs(180);
/// Longest unmount before it is forced.
// k8s: pkg/volume/nfs/nfs.go unMountTimeout
const UNMOUNT_MAX: Duration = Duration::from_secs(60);

/// The programs, which tests replace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Programs<'a> {
    mount: &'a str,
    umount: &'a str,
    mount_max: Duration,
    unmount_max: Duration,
}

/// Those of the host.
pub(super) const HOST: Programs<'static> =
    Programs { mount: "mount", umount: "umount", mount_max: MOUNT_MAX, unmount_max: UNMOUNT_MAX };

impl Programs<'_> {
    /// Mounts the volume unless it is. After a failure nothing of it is left.
    // k8s: pkg/volume/nfs/nfs.go SetUpAt
    pub(super) fn set_up(&self, dir: &Path, nfs: &Nfs) -> Result<(), Cause> {
        if is_mounted(dir)? {
            return Ok(());
        }
        make_dir_all(dir, DIR_MODE)?;
        let target = dir.to_string_lossy();
        let mut args = vec!["-t", "nfs"];
        if nfs.read_only {
            args.extend(["-o", "ro"]);
        }
        args.extend([nfs.source.as_str(), &target]);
        let Err(error) = program::run(self.mount, &args, self.mount_max) else { return Ok(()) };
        // Killed when its time was over, it may have mounted all the same.
        if is_mounted(dir)? {
            self.unmount(dir)?;
        }
        // Not empty only when somebody else puts files there.
        let _ = fs::remove_dir(dir);
        Err(failed(&args, &error).into())
    }

    /// Unmounts the volume and removes its directory.
    // k8s: pkg/volume/nfs/nfs.go TearDownAt
    pub(super) fn tear_down(&self, dir: &Path) -> Result<(), IoFailure> {
        for point in mounts_within(dir)? {
            self.unmount(&point)?;
        }
        match fs::remove_dir(dir) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(IoFailure::of("rmdir", dir, &error))
            }
            _ => Ok(()),
        }
    }

    /// By force when the server does not answer.
    // k8s: k8s.io/mount-utils mount_linux.go UnmountWithForce
    fn unmount(&self, dir: &Path) -> Result<(), IoFailure> {
        let target = dir.to_string_lossy();
        let done = match program::run(self.umount, &[&target], self.unmount_max) {
            Err(ProgramError::Late { .. }) => {
                program::run(self.umount, &["-f", &target], self.unmount_max)
            }
            done => done,
        };
        let Err(error) = done else { return Ok(()) };
        if !is_mounted(dir)? {
            return Ok(());
        }
        let words = format!("{error} {}", error.output());
        Err(IoFailure::of("umount", dir, &std::io::Error::other(words.trim().to_owned())))
    }
}

// k8s: k8s.io/mount-utils mount_linux.go doMount
fn failed(args: &[&str], error: &ProgramError) -> String {
    format!(
        "mount failed: {error}\nMounting command: mount\nMounting arguments: {}\nOutput: {}\n",
        args.join(" "),
        error.output()
    )
}

fn is_mounted(dir: &Path) -> Result<bool, IoFailure> {
    let real = real(dir)?;
    Ok(mounts_within(dir)?.contains(&real))
}

/// Mounts on the volume's directory and in it, deepest first.
fn mounts_within(dir: &Path) -> Result<Vec<PathBuf>, IoFailure> {
    let parent = dir.parent().unwrap_or(dir);
    let real = real(dir)?;
    let mut within = mount::below(parent)?;
    within.retain(|point| point.starts_with(&real));
    Ok(within)
}

/// Its path as the kernel prints it, found without looking at what is mounted there.
fn real(dir: &Path) -> Result<PathBuf, IoFailure> {
    let parent = dir.parent().unwrap_or(dir);
    let real = match fs::canonicalize(parent) {
        Err(error) if error.kind() == ErrorKind::NotFound => parent.to_owned(),
        done => done.on("resolve", parent)?,
    };
    Ok(real.join(dir.file_name().unwrap_or(OsStr::new(""))))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A folder with a program that writes down its arguments and then does as told.
    fn scene(script: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("program");
        let text = format!("#!/bin/sh\necho \"$*\" >> {}/args\n{script}\n", dir.path().display());
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        (dir, path.to_string_lossy().into_owned())
    }

    fn programs(program: &str) -> Programs<'_> {
        let limit = Duration::from_secs(30);
        Programs { mount: program, umount: program, mount_max: limit, unmount_max: limit }
    }

    fn nfs(read_only: bool) -> Nfs {
        Nfs { source: "s:/export".to_owned(), read_only }
    }

    fn args(dir: &tempfile::TempDir) -> String {
        fs::read_to_string(dir.path().join("args")).unwrap_or_default()
    }

    #[test]
    fn the_program_is_told_what_the_kubelet_tells_it() {
        for (read_only, want) in [(false, "-t nfs s:/export"), (true, "-t nfs -o ro s:/export")] {
            let (dir, program) = scene("true");
            let volume = dir.path().join("volumes/data");
            programs(&program).set_up(&volume, &nfs(read_only)).expect("mounted");
            assert_eq!(args(&dir), format!("{want} {}\n", volume.display()));
            assert!(volume.is_dir());
        }
    }

    #[test]
    fn a_refusal_is_told_in_the_kubelets_words_and_leaves_nothing() {
        let (dir, program) = scene("echo mount.nfs: access denied >&2; exit 32");
        let volume = dir.path().join("data");
        let error = programs(&program).set_up(&volume, &nfs(false)).expect_err("refused");
        let want = format!(
            "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs \
             s:/export {}\nOutput: mount.nfs: access denied\n\n",
            volume.display()
        );
        assert_eq!(error.to_string(), want);
        assert!(!volume.exists());
    }

    #[test]
    fn a_server_that_does_not_answer_ends_in_time() {
        let (dir, program) = scene("exec sleep 600");
        let hurried = Programs { mount_max: Duration::from_millis(200), ..programs(&program) };
        let volume = dir.path().join("data");
        let error = hurried.set_up(&volume, &nfs(false)).expect_err("no answer");
        assert!(error.to_string().starts_with("mount failed: no end within"), "{error}");
        programs(&program).tear_down(&volume).expect("nothing is mounted");
        programs(&program).tear_down(&volume).expect("nor is it twice");
    }
}
