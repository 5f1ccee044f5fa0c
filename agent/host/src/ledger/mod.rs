//! State that the agent needs after a restart and that no other component keeps.
//!
//! Two files below `--root-dir`, with the kubelet's names and format, so that either agent
//! continues where the other stopped: `allocated_pods_state` has the allocated resources of pods,
//! and the verdicts of ended pods without remains; `actuated_pods_state` has the resources applied
//! at the runtime. `checkpoint` is their format, pure; `writer` makes them durable, many changes
//! with one pair of files.

pub mod writer;

pub use pintle_agent_core::ledger as checkpoint;

pub use checkpoint::Entries;
pub use writer::Ledger;
