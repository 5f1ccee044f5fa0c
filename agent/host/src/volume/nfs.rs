//! NFS volumes: mounted by the host's `mount`, which calls the server, and unmounted by `umount2`.
//!
//! Input: server, path, directory of the volume. Effects: the mount. No thread waits for the
//! mounting program. An unmount may wait for a server that does not answer, so it runs on that
//! server's share of the threads for remote volumes (`JobPlace::remote`) and delays only that
//! server's volumes. Mounts are read from the kernel's list, because a stat of a directory of a
//! dead server would hang. The helper `umount` is never run, because it stats the directory.
// k8s: pkg/volume/nfs/nfs.go

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::statfs::statfs;
use pintle_agent_core::types::PodUid;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;

use super::dir_fd::make_dir_all;
use super::error::{Cause, Context, IoFailure};
use super::layout::DIR_MODE;
use super::mount;
use super::plan::Nfs;
use super::program::{self, ProgramError};

/// Longest mount. The program itself tries for two minutes.
const MOUNT_MAX: Duration = Duration::from_secs(180);
/// Longest unmount before it is forced: written data may take that long to reach the server.
// k8s: pkg/volume/nfs/nfs.go unMountTimeout
const UNMOUNT_MAX: Duration = Duration::from_secs(60);
/// Longest wait for a sign of life from a server.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Longest wait for aborted calls to end.
const FORCE_MAX: Duration = Duration::from_secs(1);

/// The mounting program and its limit, which tests replace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mounter<'a> {
    program: &'a str,
    limit: Duration,
}

/// The host's mounting program.
pub(super) const HOST: Mounter<'static> = Mounter { program: "mount", limit: MOUNT_MAX };

impl Mounter<'_> {
    /// Mounts the volume unless it is. After a failure nothing of it is left.
    // k8s: pkg/volume/nfs/nfs.go SetUpAt
    pub(super) async fn set_up(&self, uid: &PodUid, dir: &Path, nfs: &Nfs) -> Result<(), Cause> {
        let own = dir.to_owned();
        let prepare = move || -> Result<bool, IoFailure> {
            let is_there = is_mounted(&own)?;
            if !is_there {
                make_dir_all(&own, DIR_MODE)?;
            }
            Ok(is_there)
        };
        let blocked = |why: blocking::Blocked| Cause::from(why.to_string());
        if blocking::run(JobPlace::change(uid), prepare).await.map_err(blocked)?? {
            return Ok(());
        }
        let target = dir.to_string_lossy();
        let mut options: BTreeSet<&str> = nfs.options.iter().map(String::as_str).collect();
        if nfs.read_only {
            options.insert("ro");
        }
        let options = options.into_iter().collect::<Vec<_>>().join(",");
        let mut args = vec!["-t", "nfs"];
        if !options.is_empty() {
            args.extend(["-o", &options]);
        }
        args.extend([nfs.source.as_str(), &target]);
        let done = program::run(dir, self.program, &args, self.limit).await;
        let Err(error) = done else { return Ok(()) };
        if !matches!(error, ProgramError::Busy) {
            let own = dir.to_owned();
            let undo = move || tear_down(&own);
            let undone = blocking::run(JobPlace::remote(server_of(&nfs.source)), undo).await;
            undone.map_err(blocked)??;
        }
        Err(program::mount_failure(&args, &error).into())
    }
}

/// The server of `server:/path`.
fn server_of(source: &str) -> &str {
    source.rsplit_once(":/").map_or(source, |(server, _)| server)
}

/// A mount of a server in a pod's volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    /// The volume's directory.
    pub(super) dir: PathBuf,
    /// The server that it is of.
    pub(super) server: String,
}

/// The volumes among these directories that are mounted, by the kernel's list.
pub(super) fn mounted(dirs: Vec<PathBuf>) -> Result<Vec<Remote>, IoFailure> {
    let mut found = Vec::new();
    for dir in dirs {
        let source = mount::source_of(&real(&dir)?)?;
        found.extend(source.map(|source| {
            let server = server_of(&source).to_owned();
            Remote { dir, server }
        }));
    }
    Ok(found)
}

/// Servers that did not answer, and when; their other volumes get a shorter wait.
static SILENT: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());
/// How long a server counts as silent.
const SILENT_FOR: Duration = Duration::from_secs(120);
/// Most servers that are remembered.
const SILENT_MAX: usize = 64;

fn unmount_limit(server: &str) -> Duration {
    let silent = SILENT.lock().unwrap_or_else(PoisonError::into_inner);
    let is_silent = silent.get(server).is_some_and(|at| at.elapsed() < SILENT_FOR);
    if is_silent { ANSWER_MAX } else { UNMOUNT_MAX }
}

fn mark_silent(server: &str) {
    let mut silent = SILENT.lock().unwrap_or_else(PoisonError::into_inner);
    silent.retain(|_, at| at.elapsed() < SILENT_FOR);
    if silent.len() < SILENT_MAX {
        silent.insert(server.to_owned(), Instant::now());
    }
}

/// Unmounts the volume and removes its directory; returns the loss of a forced unmount.
// k8s: pkg/volume/nfs/nfs.go TearDownAt
pub(super) fn tear_down(dir: &Path) -> Result<Option<String>, IoFailure> {
    let mut given_up = None;
    for point in mounts_within(dir)? {
        let source = mount::source_of(&point)?.unwrap_or_default();
        let server = server_of(&source);
        if let Some(text) = unmount(&point, unmount_limit(server))? {
            tracing::warn!(point = %point.display(), source, text, "unmounted by force");
            mark_silent(server);
            given_up = Some(text);
        }
    }
    match fs::remove_dir(dir) {
        // It is not empty only when another process put files there.
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(IoFailure::of("rmdir", dir, &error))
        }
        _ => Ok(given_up),
    }
}

/// Unmounts with the smallest loss: a plain unmount; when the server does not answer, a forced one
/// that aborts the calls waiting for it; at last a lazy one, which always succeeds. No container of
/// the pod runs when this is called. Returns the loss of a forced or lazy unmount.
// k8s: k8s.io/mount-utils mount_linux.go UnmountWithForce
fn unmount(point: &Path, limit: Duration) -> Result<Option<String>, IoFailure> {
    let plain = |limit| within(limit, point, |point| umount2(point, MntFlags::UMOUNT_NOFOLLOW));
    match plain(limit)? {
        Some(Ok(()) | Err(Errno::EINVAL | Errno::ENOENT)) => return Ok(None),
        // In use. If the server answers, a process uses the mount: then it is not forced.
        Some(Err(errno)) => {
            let answers = within(ANSWER_MAX, point, |point| statfs(point).map(drop))?;
            if errno != Errno::EBUSY || answers.is_some() {
                return Err(IoFailure::new("unmount", point, errno));
            }
        }
        None => {}
    }
    let _ = umount2(point, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_FORCE);
    std::thread::sleep(FORCE_MAX);
    let seconds = limit.as_secs();
    match plain(FORCE_MAX)? {
        Some(Ok(()) | Err(Errno::EINVAL | Errno::ENOENT)) => Ok(Some(format!(
            "its server did not answer for {seconds} s: calls that waited for it were broken off, \
             and what the server had not taken is lost"
        ))),
        _ => {
            let hidden = umount2(point, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH);
            hidden.map_err(|errno| IoFailure::new("detach", point, errno))?;
            Ok(Some(format!(
                "its server did not answer for {seconds} s and a process still uses it: it was \
                 detached, and what the server had not taken is lost"
            )))
        }
    }
}

/// Runs a call that may never return on its own thread; `None` when it times out. Such a thread
/// ends when the calls to the server are aborted.
fn within(
    limit: Duration,
    point: &Path,
    call: fn(&Path) -> nix::Result<()>,
) -> Result<Option<nix::Result<()>>, IoFailure> {
    let (answer, answered) = mpsc::channel();
    let own = point.to_owned();
    std::thread::Builder::new()
        .name("files-umount".to_owned())
        .spawn(move || answer.send(call(&own)))
        .on("start a thread for", point)?;
    Ok(answered.recv_timeout(limit).ok())
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

/// The volume's path as the kernel prints it, resolved without a stat of the mount.
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

    /// A folder with a program that writes its arguments to a file and then runs the script.
    fn scene(script: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("program");
        let text = format!("#!/bin/sh\necho \"$*\" >> {}/args\n{script}\n", dir.path().display());
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        (dir, path.to_string_lossy().into_owned())
    }

    fn mounter(program: &str) -> Mounter<'_> {
        Mounter { program, limit: Duration::from_secs(30) }
    }

    async fn set_up(mounter: &Mounter<'_>, dir: &Path, read_only: bool) -> Result<(), Cause> {
        mounter.set_up(&PodUid::from("u"), dir, &nfs(read_only)).await
    }

    fn nfs(read_only: bool) -> Nfs {
        Nfs { source: "s:/export".to_owned(), read_only, options: Vec::new() }
    }

    fn args(dir: &tempfile::TempDir) -> String {
        fs::read_to_string(dir.path().join("args")).unwrap_or_default()
    }

    #[tokio::test]
    async fn mount_program_gets_the_arguments_of_kubelet() {
        for (read_only, want) in [(false, "-t nfs s:/export"), (true, "-t nfs -o ro s:/export")] {
            let (dir, program) = scene("true");
            let volume = dir.path().join("volumes/data");
            set_up(&mounter(&program), &volume, read_only).await.expect("mounted");
            assert_eq!(args(&dir), format!("{want} {}\n", volume.display()));
            assert!(volume.is_dir());
        }
    }

    #[tokio::test]
    async fn options_of_a_persistent_volume_are_sorted_among_our_own() {
        let (dir, program) = scene("true");
        let volume = dir.path().join("volumes/data");
        let options = ["soft", "nfsvers=4.1"].map(str::to_owned).to_vec();
        let nfs = Nfs { options, ..nfs(true) };
        let done = mounter(&program).set_up(&PodUid::from("u"), &volume, &nfs).await;
        done.expect("mounted");
        let want = format!("-t nfs -o nfsvers=4.1,ro,soft s:/export {}\n", volume.display());
        assert_eq!(args(&dir), want);
    }

    #[tokio::test]
    async fn failed_nfs_mount_has_the_error_of_kubelet_and_leaves_no_folder() {
        let (dir, program) = scene("echo mount.nfs: access denied >&2; exit 32");
        let volume = dir.path().join("data");
        let error = set_up(&mounter(&program), &volume, false).await.expect_err("refused");
        let want = format!(
            "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs \
             s:/export {}\nOutput: mount.nfs: access denied\n\n",
            volume.display()
        );
        assert_eq!(error.to_string(), want);
        assert!(!volume.exists());
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_ends_in_time() {
        let (dir, program) = scene("exec sleep 600");
        let hurried = Mounter { limit: Duration::from_millis(200), ..mounter(&program) };
        let volume = dir.path().join("data");
        let error = set_up(&hurried, &volume, false).await.expect_err("no answer");
        assert!(error.to_string().starts_with("mount failed: no end within"), "{error}");
        assert_eq!(tear_down(&volume).expect("nothing is mounted"), None);
        assert_eq!(tear_down(&volume).expect("nor is it twice"), None);
    }

    #[test]
    fn nfs_server_is_the_part_of_the_source_before_the_path() {
        for (source, server) in [
            ("files.example:/export/a", "files.example"),
            ("[fd00::1]:/export", "[fd00::1]"),
            ("tmpfs", "tmpfs"),
        ] {
            assert_eq!(server_of(source), server);
        }
    }

    /// A hanging file system stands in for a dead server.
    #[test]
    fn mount_of_a_dead_nfs_server_is_aborted_and_detached_if_in_use() {
        crate::volume::tests::with_private_mounts(|| {
            let root = tempfile::tempdir().expect("a folder");
            let brief = Duration::from_millis(200);
            for is_used in [false, true] {
                let point = root.path().join(format!("used-{is_used}"));
                fs::create_dir(&point).expect("made");
                let hung = xtask::disk::Hung::mount(&point);
                let (began, begin) = mpsc::channel();
                let own = point.clone();
                let user = is_used.then(|| {
                    std::thread::spawn(move || {
                        began.send(()).expect("the test receives it");
                        fs::metadata(own.join("x")).map(drop)
                    })
                });
                if is_used {
                    begin.recv().expect("it has begun");
                    std::thread::sleep(brief);
                }
                let given_up = unmount(&point, brief).expect("unmounted");
                assert_eq!(given_up.is_some(), is_used, "{given_up:?}");
                assert_eq!(mounts_within(&point).expect("readable"), Vec::<PathBuf>::new());
                if let Some(user) = user {
                    user.join().expect("no panic").expect_err("its call was broken off");
                }
                drop(hung);
            }
        });
    }
}
