//! The node: what it is and has. Registration and status for the API server come with it later.

pub mod context;
pub mod facts;
