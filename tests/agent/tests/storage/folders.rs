//! Folders, files and mounts of a pod with each kind of volume: those of the kubelet.
//!
//! Input: the same pods under the kubelet and under our agent, one after the other. Output: equal
//! lists of what is below the pod's folder and below the folders that pods share, or a difference
//! that `EXPECTED` names. Either agent can only find what the other one left if they are equal.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use pintle_testbed::cluster::TestCluster;
use pintle_testbed::cluster::swap::{End, Swap, ours};
use pintle_testbed::{LONG, until};
use xtask::cluster::Agent;

use crate::drivers::Driver;
use crate::fleet::Fleet;

/// The agent's root folder on the node.
const ROOT: &str = "/var/lib/kubelet";
/// Folders below it that have something of volumes.
const FOLDERS: [&str; 2] = ["pods", "plugins"];
/// Longest file that is compared by its text.
const TEXT_BYTES_MAX: u64 = 4 << 10;
/// Parts of lines that only one side has, each with the reason.
const EXPECTED: [(&str, &str); 0] = [];

/// The lines of everything below a folder. Content of volumes that a pod writes is left out.
fn list(root: &Path, words: &Words, lines: &mut BTreeSet<String>) {
    let mut open: Vec<PathBuf> = FOLDERS.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            let name = entry.file_name().to_string_lossy().into_owned();
            // What pods wrote: files by their number.
            let is_number = name.chars().all(|c| c.is_ascii_digit());
            if meta.is_file() && is_number && !path_has(&path, "containers") {
                continue;
            }
            let kind = match meta.file_type() {
                kind if kind.is_dir() => {
                    open.push(path.clone());
                    "dir".to_owned()
                }
                kind if kind.is_symlink() => match fs::read_link(&path) {
                    Ok(to) => format!("link to {}", to.display()),
                    Err(_) => continue,
                },
                kind if kind.is_block_device() => "device".to_owned(),
                _ if meta.len() <= TEXT_BYTES_MAX && name.ends_with(".json") => {
                    format!("file {}", fs::read_to_string(&path).unwrap_or_default().trim())
                }
                _ => "file".to_owned(),
            };
            let below = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            let owner = format!("{:o} {}:{}", meta.mode() & 0o7777, meta.uid(), meta.gid());
            lines.insert(words.replace(&format!("{below} {owner} {kind}")));
        }
    }
}

fn path_has(path: &Path, part: &str) -> bool {
    path.components().any(|component| component.as_os_str() == part)
}

/// The mounts below the root folder: where, what, with which options.
fn mounts(text: &str, words: &Words) -> BTreeSet<String> {
    let line = |line: &str| {
        let (mount, source) = line.split_once(" - ")?;
        let fields: Vec<&str> = mount.split(' ').collect();
        let (point, options) = (fields.get(4)?, fields.get(5)?);
        let kind = source.split(' ').next()?;
        let is_of_volume =
            FOLDERS.iter().any(|folder| point.starts_with(&format!("{ROOT}/{folder}/")));
        is_of_volume.then(|| words.replace(&format!("mount {point} {kind} {options}")))
    };
    text.lines().filter_map(line).collect()
}

/// Names that differ from pod to pod, and what stands for them.
struct Words(Vec<(String, String)>);

impl Words {
    /// The uids of pods, by their places in the fleet.
    fn of(pods: &[Pod], first: u64) -> Self {
        let mut words = Vec::new();
        for pod in pods {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let number: u64 = name[1..].parse().expect("a pod of the fleet");
            let own = format!("POD-{}", number - first);
            words.push((pod.metadata.uid.clone().unwrap_or_default(), own.clone()));
            words.push((format!("kinds-{name}"), format!("EPHEMERAL-{own}")));
        }
        // A name may begin with another pod's.
        words.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Self(words)
    }

    fn replace(&self, line: &str) -> String {
        let mut text = line.to_owned();
        for (from, to) in &self.0 {
            text = text.replace(from, to);
        }
        without_logs(&without_hashes(&without_times(&text)))
    }
}

/// The folder of a projection has the time of its writing in its name.
fn without_times(text: &str) -> String {
    let stamp = regex::Regex::new(r"\.\.\d{4}_\d\d_\d\d_[0-9_.]+").expect("a pattern");
    stamp.replace_all(text, "..TIME").into_owned()
}

/// The hash of a handle, and a handle that was numbered by the driver.
fn without_hashes(text: &str) -> String {
    let hash = regex::Regex::new(r"[0-9a-f]{64}|vol-[0-9a-f]{8}").expect("a pattern");
    hash.replace_all(text, "HASH").into_owned()
}

/// The file of a termination message has a name that is made up.
fn without_logs(text: &str) -> String {
    let log = regex::Regex::new(r"/containers/c/[0-9a-f]{8}").expect("a pattern");
    log.replace_all(text, "/containers/c/MESSAGE").into_owned()
}

/// What the agent has on the disk for one pod of each kind.
fn collect(test: &TestCluster, fleet: &mut Fleet<'_>) -> BTreeSet<String> {
    let first = fleet.made() + 1;
    fleet.create_one_of_each();
    fleet.settle();
    let pods = test.pods().expect("pods");
    let words = Words::of(&pods, first);
    let mountinfo = format!("/proc/{}/mountinfo", test.agent_pid());
    let mut lines = mounts(&fs::read_to_string(mountinfo).expect("mounts"), &words);
    list(&test.on_node(ROOT), &words, &mut lines);
    let names = fleet.names();
    fleet.delete(&names);
    until(LONG, "no pod is left", || {
        anyhow::ensure!(test.pods()?.is_empty(), "some are");
        Ok(())
    });
    lines
}

#[test]
#[ignore = "minutes: the kubelet starts and ends a pod of each kind"]
fn folders_files_and_mounts_of_each_kind_are_those_of_the_kubelet() {
    let test = TestCluster::take();
    test.empty_nodes();
    let swap = Swap::new(&test);
    let driver = Driver::start(&test, "folders", false);
    let mut fleet = Fleet::new(&test, &driver, 1);
    fleet.choose_first_volumes();
    let own = collect(&test, &mut fleet);
    swap.to(&Agent::Kubelet, End::Stopped);
    let kubelets = collect(&test, &mut fleet);
    swap.to(&ours(), End::Stopped);
    let only = |side: &str, one: &BTreeSet<String>, other: &BTreeSet<String>| {
        let lines = one.difference(other).map(|line| format!("{side}: {line}"));
        let is_new = |line: &String| !EXPECTED.iter().any(|(part, _)| line.contains(part));
        lines.filter(is_new).collect::<Vec<_>>()
    };
    let different = [only("ours", &own, &kubelets), only("kubelet", &kubelets, &own)].concat();
    assert!(different.is_empty(), "{}", different.join("\n"));
}
