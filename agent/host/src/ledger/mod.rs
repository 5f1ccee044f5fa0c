//! What the agent must know after a restart and nobody else keeps.
//!
//! Two files below `--root-dir`, with the kubelet's names and format, so that either agent
//! continues where the other stopped: `allocated_pods_state`, what pods were given, and what ended
//! those that nothing is left of; `actuated_pods_state`, what the runtime was told. `checkpoint` is
//! their format, pure; `writer` makes them durable, many changes with one pair of files.

pub mod writer;

pub use pintle_agent_core::ledger as checkpoint;

pub use checkpoint::Entries;
pub use writer::Ledger;
