//! Sources of pods with their effects: a folder of manifests, a URL, the API server.

pub mod apiserver;
pub mod file;
pub mod http;

pub use pintle_agent_core::source::*;
