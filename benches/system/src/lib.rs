//! Shared parts of the benchmarks on a real containerd: one table, and fair opponents.
//!
//! - `table`: xtask's; a row per goal: ours beside the lower bound of the same run
//! - `load`: CPU and memory of a process
//! - `memory_api`: an API server in memory
//! - `raw`: the agent's CRI calls, made again without the agent
//! - `seen`: fast polling of `/pods`
//!
//! Every goal is a ratio or a distance between two things measured in one run on one machine. All
//! stamps are of the wall clock, because the runtime's own stamps are.

#![forbid(unsafe_code)]

pub mod load;
pub mod memory_api;
pub mod raw;
pub mod seen;

pub use xtask::{bench_report, table};

use std::path::PathBuf;

use anyhow::Result;
use pintle_testbed::TestNode;
use pintle_testbed::manifest::{container, pod};
use xtask::node::agent::build_release;

/// Nanoseconds since the Unix epoch, as CRI stamps them.
pub type Stamp = i64;

/// The wall clock.
pub fn now() -> Stamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_nanos()).expect("this century"))
}

/// Milliseconds from one stamp to another; negative when `to` was first.
pub fn ms(from: Stamp, to: Stamp) -> f64 {
    (to - from) as f64 / 1e6
}

/// How often to repeat: `PINTLE_BENCH_ROUNDS`, else `usual`.
pub fn rounds(usual: usize) -> usize {
    count("PINTLE_BENCH_ROUNDS", usual)
}

/// A number that the environment may ask for, at least 1.
pub fn count(variable: &str, usual: usize) -> usize {
    let asked = std::env::var(variable).ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(usual).max(1)
}

/// Calls that create or start something at once: as many as the agent allows itself.
// Same as `starts` in agent/src/app.rs.
pub fn parallel() -> usize {
    4 * std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Our program in the release profile, or the one that the environment names.
pub fn release(program: &str, variable: &str) -> Result<PathBuf> {
    match std::env::var_os(variable) {
        Some(path) => Ok(path.into()),
        None => build_release(program),
    }
}

/// Writes the manifest of a pod with one container that waits until it is deleted.
pub fn put_pod(node: &TestNode, name: &str) {
    let waits = container("main", &["/box", "pause"]);
    node.put(&format!("{name}.json"), &pod(name, &[waits]));
}

/// Names of `count` pods that sort as they are numbered.
pub fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number:03}")).collect()
}
