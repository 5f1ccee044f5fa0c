//! The folder of recordings: this repository's, or the one that `PINTLE_RECORDED` names.
//!
//! A test of recordings that finds none proves nothing, so it fails. A folder that holds only some
//! of them says so in its file `not-recorded.txt`: one name a line, as it would be in the folder
//! (`pods`, `node-writes.json`).

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// File with the names that a folder does not have.
const NOT_RECORDED: &str = "not-recorded.txt";

/// The folder.
pub fn folder() -> PathBuf {
    std::env::var_os("PINTLE_RECORDED").map_or_else(own, PathBuf::from)
}

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../recorded")
}

/// A file or folder of that name; `None` when it was not recorded. Panics when it is only missing.
pub fn path(name: &str) -> Option<PathBuf> {
    let found = find(&folder(), name).unwrap_or_else(|problem| panic!("{problem}"));
    if found.is_none() {
        crate::lacks(&format!("{name} was not recorded, says {}", folder().display()));
    }
    found
}

fn find(folder: &Path, name: &str) -> anyhow::Result<Option<PathBuf>> {
    let path = folder.join(name);
    if path.exists() {
        return Ok(Some(path));
    }
    let told = fs::read_to_string(folder.join(NOT_RECORDED)).unwrap_or_default();
    if told.lines().any(|line| line.trim().trim_end_matches('/') == name) {
        return Ok(None);
    }
    let folder = folder.display();
    anyhow::bail!("there is no {name} in {folder}, and its {NOT_RECORDED} does not say so")
}

/// A file as JSON; `None` when it was not recorded.
pub fn json(name: &str) -> Option<Value> {
    path(name).map(|path| parsed(&path))
}

/// A file about the node; if it was not recorded, this repository's file replaces it, as recordings
/// are made on nodes of one kind.
pub fn json_or_own(name: &str) -> Value {
    json(name).unwrap_or_else(|| parsed(&own().join(name)))
}

/// The recorded pods by name of their files, in order; `None` when pods were not recorded. Every
/// file there is one, so a broken one fails.
pub fn pods() -> Option<Vec<(String, Value)>> {
    let folder = path("pods")?;
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Some(files.into_iter().map(|path| (name(&path), parsed(&path))).collect())
}

fn parsed(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_recording_fails_unless_the_folder_lists_it_as_not_recorded() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("here.json"), "{}").expect("written");
        assert!(find(dir.path(), "here.json").expect("it is there").is_some());
        find(dir.path(), "node-writes.json").expect_err("it is not listed");
        fs::write(dir.path().join(NOT_RECORDED), "pods/\nnode-writes.json\n").expect("written");
        assert_eq!(find(dir.path(), "node-writes.json").expect("it is named"), None);
        assert_eq!(find(dir.path(), "pods").expect("it is named"), None);
        find(dir.path(), "static-pods.json").expect_err("it is not listed");
    }
}
