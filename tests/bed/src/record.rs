//! Replays an agent's recorded decisions at the end of every test.
//!
//! That proves on real runs that the decisions are a function of their recorded inputs.

use std::path::Path;
use std::{fs, io};

use pintle_agent_core::flight;
use pintle_agent_server::record::replay_folder;

/// Replays the record below an agent's root folder; panics with the first difference.
pub fn check_replay(root: &Path) {
    let report = match replay_folder(root) {
        Ok(report) => report,
        Err(error) => panic!("the record of the agent: {error}"),
    };
    assert!(report.is_equal(), "{}", report.text(env!("CARGO_PKG_VERSION")));
}

/// Contents of the segments below an agent's root folder: their bytes, and their unpacked data.
pub fn contents(root: &Path) -> String {
    let mut text = String::new();
    for bytes in files(&root.join("flight")) {
        text.push_str(&String::from_utf8_lossy(&bytes));
        let Ok(segment) = flight::read(&bytes) else { continue }; // the key
        for frame in segment.batches.iter().flat_map(|batch| &batch.frames) {
            text.push_str(&serde_json::to_string(frame).unwrap_or_default());
        }
    }
    text
}

/// Contents of each file of a folder. An agent that begins a segment removes its oldest one: then
/// all files are read again.
fn files(folder: &Path) -> Vec<Vec<u8>> {
    loop {
        let entries = fs::read_dir(folder).expect("a folder");
        let read: io::Result<_> = entries.map(|entry| fs::read(entry?.path())).collect();
        match read {
            Ok(files) => return files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => panic!("{}: {error}", folder.display()),
        }
    }
}
