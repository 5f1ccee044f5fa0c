//! All volumes and snapshots, in one file.
//!
//! Drivers of several nodes share the file: a change is made under the lock
//! beside it.
//! Written to a temporary file and renamed, so a driver that dies leaves the old or the new state.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

/// Everything that is known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct State {
    /// Volumes by id. Ids grow, so their order is that of their creation.
    pub(crate) volumes: BTreeMap<String, VolumeState>,
    /// Snapshots by id.
    pub(crate) snapshots: BTreeMap<String, SnapshotState>,
    /// Nodes of which a driver has run.
    #[serde(default)]
    pub(crate) nodes: BTreeSet<String>,
    ids: u64,
}

/// A volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct VolumeState {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) is_block: bool,
    /// It goes with its publication.
    pub(crate) is_ephemeral: bool,
    pub(crate) source: Option<Source>,
    pub(crate) parameters: BTreeMap<String, String>,
    /// Parameters of its VolumeAttributesClass.
    #[serde(default)]
    pub(crate) mutable: BTreeMap<String, String>,
    pub(crate) topology: BTreeMap<String, String>,
    /// Nodes that it is attached to.
    pub(crate) attached: BTreeMap<String, Attachment>,
    /// What nodes have made of it.
    pub(crate) nodes: BTreeMap<String, OnNode>,
}

/// What a volume was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Source {
    /// A snapshot's id.
    Snapshot(String),
    /// A volume's id.
    Volume(String),
}

/// A volume on a node, for the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) is_read_only: bool,
    pub(crate) capability: String,
}

/// A volume on a node, for the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OnNode {
    /// Staging paths, each with the capability of the call.
    pub(crate) staged: BTreeMap<String, String>,
    /// Target paths, each with what the call asked for.
    pub(crate) published: BTreeMap<String, Publication>,
}

/// What a publication was asked to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Publication {
    pub(crate) is_read_only: bool,
    pub(crate) capability: String,
}

/// A snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotState {
    pub(crate) name: String,
    pub(crate) volume: String,
    pub(crate) size_bytes: u64,
    pub(crate) is_block: bool,
    pub(crate) created_seconds: i64,
}

impl State {
    /// An id that no volume or snapshot has had.
    pub(crate) fn new_id(&mut self, kind: &str) -> String {
        self.ids += 1;
        format!("{kind}-{:08x}", self.ids)
    }

    pub(crate) fn volume_named(&self, name: &str) -> Option<(&String, &VolumeState)> {
        self.volumes.iter().find(|(_, volume)| volume.name == name)
    }
}

impl VolumeState {
    /// Returns whether a node has it staged or published.
    pub(crate) fn is_in_use(&self) -> bool {
        self.nodes.values().any(|node| *node != OnNode::default())
    }
}

/// The file, and the folder that it is in.
#[derive(Clone, Debug)]
pub(crate) struct StateFile {
    folder: PathBuf,
}

/// The state, for as long as it may be changed.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) state: State,
    path: PathBuf,
    _lock: Flock<File>,
}

impl StateFile {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Waits for the lock and reads the state.
    pub(crate) fn lock(&self) -> io::Result<Locked> {
        let lock = File::create(self.folder.join("state.lock"))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
        let path = self.folder.join("state.json");
        let state = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(error),
        };
        Ok(Locked { state, path, _lock: lock })
    }
}

impl Locked {
    /// Writes the state.
    pub(crate) fn save(&self) -> io::Result<()> {
        let new = self.path.with_extension("new");
        fs::write(&new, serde_json::to_vec_pretty(&self.state)?)?;
        fs::rename(new, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_state_is_read_back_and_ids_are_never_reused() {
        let temp = tempfile::tempdir().expect("a folder");
        let file = StateFile::new(temp.path());
        let mut locked = file.lock().expect("an empty state");
        let id = locked.state.new_id("vol");
        locked.state.volumes.insert(id.clone(), VolumeState::default());
        locked.save().expect("saved");
        drop(locked);
        let mut locked = file.lock().expect("the state");
        assert!(locked.state.volumes.contains_key(&id));
        locked.state.volumes.clear();
        assert_ne!(locked.state.new_id("vol"), id);
    }
}
