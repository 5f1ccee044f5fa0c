//! Events and statuses of pods for the API server. The core decides what is sent.

pub mod event_recorder;
pub mod writer;
