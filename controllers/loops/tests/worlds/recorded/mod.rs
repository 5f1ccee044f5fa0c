//! Recordings of the real controllers, played through ours: the same user does the same things at
//! the same times, with a kubelet and scheduler as fast as the recorded ones.
//!
//! Input: every file of `tests/recorded/controllers`, or of another folder that `PINTLE_RECORDED`
//! names. Compared, by object: creations and deletions, the sizes that a set was given, the status
//! before each pause, events, and the objects at the end. Not compared: names that the server
//! makes, times, versions, how often a status was written in between, which depends on timing, and
//! writes of the controllers that `controllers.rs` leaves out. `PINTLE_SCENARIO` plays only one.

mod admission;
mod clock;
mod compare;
mod controllers;
mod normal;
mod play;
mod pods;
mod steps;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Recordings in the repository.
const COUNT: usize = 22;

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_str(&text).expect("a recording is JSON")
}

/// The recordings of a folder, in the order of their names.
fn recordings(folder: &Path) -> Vec<Value> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let paths = entries.map(|entry| entry.expect("a file").path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "json")).collect();
    paths.sort_unstable();
    paths.iter().map(|path| read(path)).collect()
}

#[test]
fn replayed_recordings_match_the_upstream_controllers() {
    let given = std::env::var_os("PINTLE_RECORDED").map(PathBuf::from);
    let own = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/recorded").into();
    let folder = given.clone().unwrap_or_else(own).join("controllers");
    let only = std::env::var("PINTLE_SCENARIO").ok();
    let (mut played, mut differences) = (0, Vec::new());
    for recording in recordings(&folder) {
        let name = recording["scenario"].as_str().expect("a name");
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let unknown = controllers::unknown_users(&recording);
        if !unknown.is_empty() {
            println!("{name}: not played, because it is also about {}", unknown.join(", "));
            continue;
        }
        played += 1;
        let result = play::play(&recording);
        println!("{name}: {}", compare::summary(&recording, &result));
        for difference in compare::compare(&recording, &result) {
            differences.push(format!("{name}: {difference}"));
        }
    }
    let wanted = if given.is_some() || only.is_some() { 1 } else { COUNT };
    assert!(played >= wanted, "only {played} recordings of {folder:?} were played");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
