//! Files of a pod on its node: its folder below the agent's root, its logs, its mounts.
//!
//! Each is a line of type, mode, owner, and its content or target. Read through the root of a
//! process of the node, so that its mounts are visible.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::normal::Normal;
use super::observe::Subject;

/// Folder of the pods' folders.
const PODS: &str = "/var/lib/kubelet/pods";
/// Folders of their logs, and of the links to them.
const LOGS: [&str; 2] = ["/var/log/pods", "/var/log/containers"];
/// Contents beyond this are compared by their size.
const CONTENT_BYTES_MAX: u64 = 4096;
/// Limit of files of one pod.
const FILES_MAX: usize = 2000;

/// The pod's folder on its node.
pub(super) fn folder(root: &Path, subject: &Subject) -> PathBuf {
    root.join(PODS.trim_start_matches('/')).join(&subject.uid)
}

/// Everything of the pod below the node's root.
pub(super) fn of(root: &Path, subject: &Subject, normal: &Normal) -> Value {
    let mut lines = FileTree { lines: BTreeMap::new(), normal };
    let inside = |path: &str| root.join(path.trim_start_matches('/'));
    let dir = format!("{PODS}/{}", subject.uid);
    walk(&folder(root, subject), &dir, &mut lines);
    let Subject { uid, namespace, name } = subject;
    let logs = format!("{}/{namespace}_{name}_{uid}", LOGS[0]);
    walk(&inside(&logs), &logs, &mut lines);
    for entry in fs::read_dir(inside(LOGS[1])).into_iter().flatten().flatten() {
        let link = entry.file_name().to_string_lossy().into_owned();
        // An earlier pod of this name may have left some.
        let is_own = fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(&logs));
        if is_own && link.starts_with(&format!("{name}_{namespace}_")) {
            lines.insert(&format!("{}/{link}", LOGS[1]), &line(&entry.path()));
        }
    }
    json!({"tree": lines.named(), "mounts": mounts(root, &dir)})
}

/// Lines by path. Two paths may look alike once random parts are placeholders.
struct FileTree<'a> {
    lines: BTreeMap<String, Vec<String>>,
    normal: &'a Normal,
}

impl FileTree<'_> {
    fn insert(&mut self, path: &str, line: &str) {
        self.lines.entry(self.normal.text(path)).or_default().push(self.normal.text(line));
    }

    /// Paths that look alike get numbers, in the order of their lines.
    fn named(self) -> BTreeMap<String, String> {
        let mut named = BTreeMap::new();
        for (path, mut lines) in self.lines {
            lines.sort();
            for (at, line) in lines.into_iter().enumerate() {
                let suffix = if at == 0 { String::new() } else { format!(" ({})", at + 1) };
                named.insert(format!("{path}{suffix}"), line);
            }
        }
        named
    }
}

fn walk(path: &Path, shown: &str, lines: &mut FileTree<'_>) {
    if lines.lines.len() >= FILES_MAX || fs::symlink_metadata(path).is_err() {
        return;
    }
    lines.insert(shown, &line(path));
    if !path.is_symlink() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let shown = format!("{shown}/{}", entry.file_name().to_string_lossy());
            walk(&entry.path(), &shown, lines);
        }
    }
}

fn line(path: &Path) -> String {
    let Ok(meta) = fs::symlink_metadata(path) else { return "gone".to_owned() };
    let kind = meta.file_type();
    let what = if kind.is_symlink() {
        format!("-> {}", fs::read_link(path).unwrap_or_default().display())
    } else if kind.is_dir() {
        "folder".to_owned()
    } else if kind.is_socket() || kind.is_fifo() || kind.is_block_device() || kind.is_char_device()
    {
        "special".to_owned()
    } else if meta.len() > CONTENT_BYTES_MAX {
        "long".to_owned()
    } else {
        shown(&fs::read(path).unwrap_or_default())
    };
    format!("{:04o} {}:{} {what}", meta.mode() & 0o7777, meta.uid(), meta.gid())
}

/// A content in one line, so that words in it keep their boundaries.
fn shown(content: &[u8]) -> String {
    let text = String::from_utf8_lossy(content);
    let text = text.replace('\n', " ⏎ ").replace('\t', " ⇥ ");
    let shown: String = text.chars().map(|c| if c.is_control() { '�' } else { c }).collect();
    format!("[{shown}]")
}

/// Types and options of mounts below the folder.
fn mounts(root: &Path, dir: &str) -> BTreeMap<String, String> {
    let table = root.parent().map(|process| process.join("mountinfo")).unwrap_or_default();
    let text = fs::read_to_string(table).unwrap_or_default();
    parse_mounts(&text, dir)
}

fn parse_mounts(table: &str, dir: &str) -> BTreeMap<String, String> {
    let mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let place: Vec<&str> = place.split(' ').collect();
        let mut kind = kind.split(' ');
        let (fs, _, options) = (kind.next()?, kind.next()?, kind.next()?);
        let at = place.get(4)?;
        // A device's own options are the host's.
        let options = if fs == "tmpfs" { options } else { "" };
        at.starts_with(dir).then(|| ((*at).to_owned(), format!("{fs} {} {options}", place[5])))
    };
    table.lines().filter_map(mount).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_below_a_folder_are_found() {
        let table = "1 2 0:5 / /var/lib/kubelet/pods/u/v rw,relatime shared:1 - tmpfs tmpfs rw,size=4k\n\
                     1 2 0:5 / /var/lib/other rw - ext4 /dev/vda rw\n";
        let found = parse_mounts(table, "/var/lib/kubelet/pods/u");
        let expected = [("/var/lib/kubelet/pods/u/v", "tmpfs rw,relatime rw,size=4k")];
        assert!(found.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(expected));
    }

    #[test]
    fn paths_that_are_equal_after_normalization_are_all_kept() {
        let normal = Normal::new(Vec::new());
        let mut tree = FileTree { lines: BTreeMap::new(), normal: &normal };
        for (file, line) in [("0123abcd", "b"), ("4567abcd", "a")] {
            tree.insert(&format!("/p/containers/main/{file}"), line);
        }
        let named = tree.named();
        assert_eq!(named["/p/containers/main/<log>"], "a");
        assert_eq!(named["/p/containers/main/<log> (2)"], "b");
    }

    #[test]
    fn a_tree_is_lines_of_mode_owner_and_content() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let pod = dir.path().join("var/lib/kubelet/pods/u");
        fs::create_dir_all(&pod).expect("made");
        fs::write(pod.join("etc-hosts"), "x\n").expect("written");
        std::os::unix::fs::symlink("etc-hosts", pod.join("link")).expect("linked");
        let [uid, namespace, name] = ["u", "ns", "p"].map(str::to_owned);
        let subject = Subject { uid, namespace, name };
        let seen = of(dir.path(), &subject, &Normal::new(Vec::new()));
        let file = seen["tree"]["/var/lib/kubelet/pods/u/etc-hosts"].as_str().expect("a line");
        assert!(file.ends_with(" [x ⏎ ]"), "{file}");
        let link = seen["tree"]["/var/lib/kubelet/pods/u/link"].as_str().expect("a line");
        assert!(link.ends_with(" -> etc-hosts"), "{link}");
    }
}
