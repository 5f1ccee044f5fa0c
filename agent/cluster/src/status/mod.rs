//! What is told of pods: events and status at the API server. What is told is decided by the core.

pub mod event_recorder;
pub mod writer;
