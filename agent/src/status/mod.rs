//! What is told of pods: events and status at the API server. What is told is decided by the core.

pub mod announce;
pub mod writer;

pub use pintle_agent_core::outbox::{merge, patch};
pub use pintle_agent_core::status::*;
#[cfg(test)]
pub(crate) use pintle_agent_core::testing as view_testing;
pub use pintle_agent_core::{explain, link, outbox, timeline, view};
