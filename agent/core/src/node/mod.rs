//! The node: what it is and has, and what the cluster is told of it.
//!
//! ```text
//!   settings, machine, runtime_state, addresses, images ─> status::Facts ─> status::update ─> patch
//! ```

pub mod addresses;
pub mod capacity;
pub mod conditions;
pub mod machine;
pub mod patch;
pub mod register;
pub mod runtime_state;
pub mod selector;
pub mod settings;
pub mod status;
