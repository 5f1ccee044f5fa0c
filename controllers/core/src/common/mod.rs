//! Pieces that several controllers share.

pub mod owner;
