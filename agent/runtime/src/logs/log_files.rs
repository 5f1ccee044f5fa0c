//! Names of log files and directories, and their making and removal.
//!
//! Input: `podLogsDir`, `/var/log/containers` and the names of the pod. Output: directories, links,
//! files gone. Nothing outside the given directories is touched; removal does not follow links.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::errno::Errno;
use pintle_agent_host::volume::error::IoFailure;
use pintle_agent_host::volume::remove::remove_tree;
use pintle_daemon::regular_file;

/// Mode of log directories.
const DIR_MODE: u32 = 0o755;
/// Longest file name.
// k8s: pkg/kubelet/kuberuntime/legacy.go ext4MaxFileNameLen
const NAME_BYTES_MAX: usize = 255;
const LINK_SUFFIX: &str = ".log";

/// Directory of a pod's logs below `podLogsDir`: `<namespace>_<name>_<uid>`.
// k8s: pkg/kubelet/kuberuntime/helpers.go BuildPodLogsDirectory
pub fn pod_dir(logs: &Path, namespace: &str, name: &str, uid: &str) -> PathBuf {
    logs.join(format!("{namespace}_{name}_{uid}"))
}

/// The uid in the name of a pod's log directory.
// k8s: pkg/kubelet/kuberuntime/helpers.go parsePodUIDFromLogsDirectory
pub fn uid_of_pod_dir(name: &str) -> &str {
    name.rsplit('_').next().unwrap_or(name)
}

/// Makes a container's log directory.
pub fn make_container_dir(pod_dir: &Path, container: &str) -> Result<PathBuf, IoFailure> {
    let dir = pod_dir.join(container);
    pintle_agent_host::volume::dir_fd::make_dir_all(&dir, DIR_MODE)?;
    Ok(dir)
}

/// Attempt of the next container, from the log files in its directory: one more than the highest
/// number. Used when the runtime has forgotten the earlier attempts.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go calcRestartCountByLogDir
pub fn next_attempt(container_dir: &Path) -> u32 {
    let entries = fs::read_dir(container_dir).into_iter().flatten().flatten();
    let files = entries.filter(|e| e.file_type().is_ok_and(|t| !t.is_dir()));
    let attempts = files.filter_map(|e| attempt_of(e.file_name().to_str()?));
    attempts.max().map_or(0, |highest| highest.saturating_add(1))
}

/// `3` of `3.log`, `3.log.20260101-000000` and `3.log.20260101-000000.gz`.
fn attempt_of(name: &str) -> Option<u32> {
    let (number, rest) = name.split_once(".log")?;
    let is_log = rest.is_empty() || rest.starts_with('.');
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (is_log && digits).then(|| number.parse().ok()).flatten()
}

/// Path of the link that log collectors read: `<pod>_<namespace>_<container>-<id>.log`.
// k8s: pkg/kubelet/kuberuntime/legacy.go logSymlink
pub fn link_path(links: &Path, pod_full_name: &str, container: &str, id: &str) -> PathBuf {
    let mut name = format!("{pod_full_name}_{container}-{id}");
    let mut end = name.len().min(NAME_BYTES_MAX - LINK_SUFFIX.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    links.join(name + LINK_SUFFIX)
}

/// Makes the link to a container's log, replacing another one of that name.
pub fn make_link(link: &Path, log: &Path) -> Result<(), IoFailure> {
    let fail = |e: &io::Error| IoFailure::of("symlink", link, e);
    if let Some(dir) = link.parent() {
        pintle_agent_host::volume::dir_fd::make_dir_all(dir, DIR_MODE)?;
    }
    match std::os::unix::fs::symlink(log, link) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            if fs::read_link(link).is_ok_and(|to| to == log) {
                return Ok(());
            }
            fs::remove_file(link).map_err(|e| fail(&e))?;
            std::os::unix::fs::symlink(log, link).map_err(|e| fail(&e))
        }
        result => result.map_err(|e| fail(&e)),
    }
}

/// Files of one log: rotated ones (`<log>.*`), oldest first. The live file is not among them.
pub fn rotated(log: &Path) -> Vec<PathBuf> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(|n| n.to_str())) else {
        return Vec::new();
    };
    let prefix = format!("{name}.");
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .filter(|e| e.file_name().to_str().is_some_and(|n| n.starts_with(&prefix)))
        .map(|e| e.path())
        .collect();
    files.sort();
    files
}

/// True if a log's path is below the folder of all logs, and nowhere else.
pub fn is_below(log: &Path, logs: &Path) -> bool {
    use std::path::Component;
    let below = log.strip_prefix(logs).ok();
    below.is_some_and(|below| {
        let mut parts = below.components().peekable();
        parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
    })
}

/// Removes a container's log, its rotated files and its link.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go removeContainerLog
pub fn remove_container_log(log: &Path, link: &Path) -> Result<(), IoFailure> {
    let removed = beside(log, |log| {
        let files = rotated(log).into_iter().chain([log.to_owned()]);
        files.map(|path| remove_file(&path)).fold(Ok(()), Result::and)
    });
    let removed = removed.or_else(|failure| match failure.errno {
        Errno::ENOENT => Ok(()),
        _ => Err(failure),
    });
    removed.and(remove_file(link))
}

/// As `regular_file::beside_log`, with the failures of this folder.
pub fn beside<T>(
    log: &Path,
    work: impl FnOnce(&Path) -> Result<T, IoFailure>,
) -> Result<T, IoFailure> {
    let done = regular_file::beside_log(log, |inside| {
        Ok(work(inside).map_err(|failure| {
            // The name that users know.
            let name = failure.path.file_name().unwrap_or_default();
            IoFailure { path: log.with_file_name(name), ..failure }
        }))
    });
    done.map_err(|error| IoFailure::of("open the folder of", log, &error))?
}

/// Removes a pod's log directory and the links into it.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_gc.go evictPodLogsDirectories
pub fn remove_pod_dir(pod_dir: &Path, links: &Path) -> Result<(), IoFailure> {
    remove_tree(pod_dir)?;
    for entry in fs::read_dir(links).into_iter().flatten().flatten() {
        let path = entry.path();
        if fs::read_link(&path).is_ok_and(|to| to.starts_with(pod_dir)) {
            remove_file(&path)?;
        }
    }
    Ok(())
}

/// Removes dangling links to logs, except links made after `before` and links to logs of `live`
/// containers, because a log is missing for a moment while it is rotated. Other files stay.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_gc.go evictPodLogsDirectories
pub fn remove_dangling(links: &Path, logs: &Path, live: &BTreeSet<PathBuf>, before: SystemTime) {
    for entry in fs::read_dir(links).into_iter().flatten().flatten() {
        let path = entry.path();
        let changed = entry.metadata().and_then(|meta| meta.modified());
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.ends_with(LINK_SUFFIX))
            && changed.is_ok_and(|at| at < before);
        let Some(log) = fs::read_link(&path).ok().filter(|log| is_ours && is_below(log, logs))
        else {
            continue;
        };
        if live.contains(&log) || !log.try_exists().is_ok_and(|exists| !exists) {
            continue;
        }
        if let Err(error) = remove_file(&path) {
            tracing::warn!(%error, "cannot remove a link to a log that is gone");
        }
    }
}

/// Removes a file; fine when it is gone. Anything that a pod put in its place is removed as well.
pub fn remove_file(path: &Path) -> Result<(), IoFailure> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == ErrorKind::IsADirectory => remove_tree(path),
        Err(e) if e.kind() != ErrorKind::NotFound => Err(IoFailure::of("unlink", path, &e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_attempt_follows_the_highest_log_number() {
        let dir = tempfile::tempdir().expect("dir");
        assert_eq!(next_attempt(&dir.path().join("none")), 0);
        assert_eq!(next_attempt(dir.path()), 0);
        let names =
            ["0.log", "2.log.20260101-000000.gz", "10.log", "x.log", "11.logs", ".log", "9"];
        for name in names {
            fs::write(dir.path().join(name), "").expect("write");
        }
        fs::create_dir(dir.path().join("40.log")).expect("mkdir");
        assert_eq!(next_attempt(dir.path()), 11);
    }

    #[test]
    fn only_a_path_below_the_folder_of_logs_is_a_log() {
        let logs = Path::new("/var/log/pods");
        for (path, is_log) in [
            ("/var/log/pods/ns_p_u/c/0.log", true),
            ("/var/log/pods", false),
            ("/var/log/pods/../../../etc/shadow", false),
            ("/var/log/podsx/0.log", false),
            ("/etc/shadow", false),
            ("", false),
        ] {
            assert_eq!(is_below(Path::new(path), logs), is_log, "{path}");
        }
    }

    #[test]
    fn links_are_named_as_collectors_expect_and_cut_to_a_files_name() {
        let links = Path::new("/var/log/containers");
        let short = link_path(links, "web_default", "c", "abc123");
        assert_eq!(short, links.join("web_default_c-abc123.log"));
        let long = link_path(links, &"ü".repeat(200), "c", "abc");
        let name = long.file_name().expect("a name").len();
        assert!(name <= NAME_BYTES_MAX && name > NAME_BYTES_MAX - 4, "{name}");
        assert_eq!(uid_of_pod_dir("default_web_11-22"), "11-22");
    }

    #[test]
    fn dangling_log_link_is_removed_unless_its_container_still_writes_the_log() {
        let root = tempfile::tempdir().expect("root");
        let (logs, links) = (root.path().join("pods"), root.path().join("containers"));
        fs::create_dir_all(logs.join("ns_p_u/c")).expect("mkdir");
        let (there, rotated) = (logs.join("ns_p_u/c/1.log"), logs.join("ns_p_u/c/2.log"));
        fs::write(&there, "").expect("write");
        for (name, log) in [
            ("p_ns_c-there.log", &there),
            ("p_ns_c-rotated.log", &rotated),
            ("p_ns_c-gone.log", &logs.join("ns_p_u/c/0.log")),
            ("p_ns_c-elsewhere.log", &root.path().join("nowhere/0.log")),
            ("p_ns_c-gone.txt", &logs.join("ns_p_u/c/0.log")),
        ] {
            make_link(&links.join(name), log).expect("made");
        }
        fs::write(links.join("file.log"), "").expect("write");
        let names = || {
            let entries = fs::read_dir(&links).expect("read").flatten();
            entries.map(|e| e.file_name().into_string().expect("UTF-8")).collect::<BTreeSet<_>>()
        };
        let all = names();
        let live = BTreeSet::from([rotated]);
        remove_dangling(&links, &logs, &live, SystemTime::UNIX_EPOCH);
        assert_eq!(names(), all, "those are newer");
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        remove_dangling(&links, &logs, &live, later);
        let gone: Vec<_> = all.difference(&names()).cloned().collect();
        assert_eq!(gone, ["p_ns_c-gone.log"]);
        remove_dangling(&root.path().join("none"), &logs, &live, later);
    }

    #[test]
    fn log_removal_deletes_rotated_files_and_links_but_no_other_log() {
        let root = tempfile::tempdir().expect("root");
        let pod = pod_dir(root.path(), "default", "web", "u1");
        let links = root.path().join("containers");
        let dir = make_container_dir(&pod, "c").expect("made");
        let log = dir.join("0.log");
        for name in
            ["0.log", "0.log.20260101-000000", "0.log.20260101-000001.gz", "00.log", "1.log"]
        {
            fs::write(dir.join(name), "").expect("write");
        }
        let link = link_path(&links, "web_default", "c", "id0");
        let other = link_path(&links, "web_default", "c", "id1");
        make_link(&link, Path::new("/nowhere")).expect("made");
        make_link(&link, &log).expect("replaced");
        make_link(&other, &dir.join("1.log")).expect("made");
        assert_eq!(rotated(&log).len(), 2);
        remove_container_log(&log, &link).expect("removed");
        let mut left: Vec<_> =
            fs::read_dir(&dir).expect("read").flatten().map(|e| e.file_name()).collect();
        left.sort();
        assert_eq!(left, ["00.log", "1.log"]);
        assert!(fs::symlink_metadata(&link).is_err());
        remove_pod_dir(&pod, &links).expect("removed");
        assert!(!pod.exists() && fs::symlink_metadata(&other).is_err());
    }
}
