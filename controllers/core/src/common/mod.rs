//! Pieces that several controllers share.

pub mod claim;
pub mod owner;
pub mod pods;
