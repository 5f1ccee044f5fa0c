//! What an agent decided is decided again from its record, at the end of every test.
//!
//! That proves on real runs that the decisions are a function of their recorded inputs.

use std::path::Path;

use pintle_agent_server::record::replay_folder;

/// Replays the record below an agent's root folder; panics with the first difference.
pub fn is_replayed(root: &Path) {
    let report = match replay_folder(root) {
        Ok(report) => report,
        Err(error) => panic!("the record of the agent: {error}"),
    };
    assert!(report.is_equal(), "{}", report.text(env!("CARGO_PKG_VERSION")));
}
