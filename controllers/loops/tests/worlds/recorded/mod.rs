//! Recordings of the real controllers, played through ours: the same user does the same things at
//! the same times, with a kubelet and scheduler as fast as the recorded ones.
//!
//! Input: `tests/recorded/controllers`, or another folder that `PINTLE_RECORDED` names. Compared, by
//! object: creations and deletions, the sizes that a set was given, the status before each pause,
//! events, and the objects at the end. Not compared: names that the server makes, times, versions,
//! and how often a status was written in between, which depends on timing.

mod compare;
mod play;

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

/// Recordings of controllers that are all here.
const SCENARIOS: &[&str] = &[
    "deployment-create-3",
    "deployment-progress-deadline",
    "deployment-recreate",
    "deployment-revision-history-limit",
    "deployment-rollback",
    "deployment-rollout",
    "deployment-scale-up-down",
    "replicaset-adopt-orphan-pods",
    "replicaset-delete-background",
    "replicaset-delete-orphan",
    "replicaset-release-on-label-change",
    "replicationcontroller-basic",
];

fn read(folder: &std::path::Path, name: &str) -> Value {
    let path = folder.join(format!("{name}.json"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_str(&text).expect("a recording is JSON")
}

#[test]
fn recorded_users_get_what_the_real_controllers_gave_them() {
    let ours = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/recorded").into();
    let folder = std::env::var_os("PINTLE_RECORDED").unwrap_or_else(ours);
    let folder = PathBuf::from(folder).join("controllers");
    let only = std::env::var("PINTLE_SCENARIO").ok();
    let mut differences = Vec::new();
    for name in SCENARIOS.iter().filter(|name| only.as_deref().is_none_or(|one| one == **name)) {
        let recording = read(&folder, name);
        let played = play::play(&recording);
        println!("{name}: {}", compare::summary(&recording, &played));
        for difference in compare::compare(&recording, &played) {
            differences.push(format!("{name}: {difference}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
