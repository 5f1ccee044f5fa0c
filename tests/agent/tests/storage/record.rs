//! The record that the pods of a fleet keep: which of them ran, what they wrote, what they missed.
//!
//! Input: a folder of the node that every pod of the fleet mounts. Output: its lines. The pods append
//! to it while it is read; a line is written at once.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use pintle_testbed::cluster::TestCluster;

use crate::ground::folder;

/// Stands for the volume in lines of pods with a volume that ends with them.
const NO_VOLUME: &str = "-";

/// The folder of the record.
#[derive(Clone, Debug)]
pub struct WriteRecord {
    /// As the node sees it.
    pub on_node: String,
    /// As the test sees it.
    path: PathBuf,
}

/// What a pod wrote into a volume that outlives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The pods' name for the volume.
    pub volume: String,
    /// The number of the pod.
    pub number: u64,
    /// The uid of the pod, which is what it wrote.
    pub uid: String,
}

impl WriteRecord {
    /// An empty record.
    pub fn create(test: &TestCluster) -> Self {
        let old = folder(test, "record");
        fs::remove_dir_all(test.on_node(&old)).expect("an old record can be removed");
        let on_node = folder(test, "record");
        Self { path: test.on_node(&on_node), on_node }
    }

    /// Returns whether a container of the pod with this name has come past its start.
    pub fn has_run(&self, pod: &str) -> bool {
        self.path.join(format!("ran-{}", pod.trim_start_matches('w'))).exists()
    }

    /// Fails if a pod missed something that it had written.
    pub fn check_nothing_is_lost(&self) {
        let lost = fs::read_to_string(self.path.join("lost")).unwrap_or_default();
        assert!(lost.is_empty(), "{lost}");
    }

    /// Returns the writes so far, in their order.
    pub fn writes(&self) -> Result<Vec<Write>> {
        match fs::read_to_string(self.path.join("put")) {
            Ok(text) => decode(&text),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).context("read what pods wrote"),
        }
    }
}

fn decode(text: &str) -> Result<Vec<Write>> {
    let mut writes = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [volume, number, uid] = words[..] else { bail!("{line:?} is no record") };
        if volume != NO_VOLUME {
            let (volume, uid) = (volume.to_owned(), uid.to_owned());
            writes.push(Write { volume, number: number.parse()?, uid });
        }
    }
    Ok(writes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_with_lines_of_pods_without_a_lasting_volume_has_the_other_writes() {
        let write = Write { volume: "disk".to_owned(), number: 7, uid: "u-7".to_owned() };
        assert_eq!(decode("- 6 u-6\ndisk 7 u-7\n").expect("lines"), [write]);
        assert!(decode("disk 7\n").is_err());
    }
}
