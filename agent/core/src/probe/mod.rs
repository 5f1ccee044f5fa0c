//! Probes: whom to ask, when, and what an answer means.

pub mod adopt;
pub mod plan;
pub mod target;
#[doc(hidden)]
pub mod testing;
