//! Starts the watcher of machine shutdowns, if time for them is configured.
//!
//! On the main thread: its work is an input of the decisions, two descriptors that sleep.

use std::path::PathBuf;

use pintle_agent_core::shutdown;
use pintle_agent_host::shutdown::logind::Announcer;
use pintle_agent_host::shutdown::{LOGIND_CONF, Settings, last, start as watch};

use super::{StageInputs, cluster};

/// When it returns, a shutdown that is under way is the first input of the decisions.
pub(super) async fn start(parts: &StageInputs) {
    let config = &parts.config;
    let windows = shutdown::of_config(config);
    if windows.is_empty() {
        return;
    }
    let root_dir = config.flags.root_dir.clone();
    if let Some(last) = last(&root_dir) {
        parts.metrics.shutdown(&last);
    }
    let logind_conf = PathBuf::from(LOGIND_CONF);
    let announcer = match config.flags.shutdown_from_logind_only {
        true => Announcer::Logind,
        false => Announcer::Anybody,
    };
    let settings = Settings { windows, root_dir, logind_conf, announcer, bus: None };
    let events = cluster::node_events(parts.cluster.as_ref());
    watch(settings, parts.inputs.clone(), events, &parts.shutdown).await;
}
