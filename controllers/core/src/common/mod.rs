//! Pieces that several controllers share.

pub mod claim;
pub mod owner;
pub mod pods;
pub mod ranking;
#[cfg(test)]
mod ranking_tests;
pub mod scaled;
pub mod sample;
pub mod time;
