//! Our decisions beside what the originals decided, as recordings have it.
//!
//! - `stand`: the agent in this process, between a fake runtime and the API server in memory

pub mod stand;
