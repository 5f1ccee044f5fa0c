//! The node: its facts and resources, and the Node object that reports them.
//!
//! ```text
//!   settings, machine, runtime_state, addresses, images ─> StatusFacts ─> status::update ─> patch
//! ```

pub mod addresses;
pub mod capacity;
pub mod conditions;
pub mod machine;
pub mod patch;
pub mod register;
pub mod runtime_state;
pub mod settings;
pub mod status;
